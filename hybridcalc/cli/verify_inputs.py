"""What was typed for ``hybridcalc verify``, turned into the servers to verify."""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from hybridcalc.cli import options
from hybridcalc.cli import plan_inputs as inputs
from hybridcalc.cli.verify_plan import subject_of_plan
from hybridcalc.crosscheck.subject import Skipped, Subject, room_of
from hybridcalc.deployment import Memory, Rest
from hybridcalc.errors import HybridcalcError, InputError, MemoryUnknown


class Words(NamedTuple):
    """The engine's words, the launch line after --, the environment, the names of this command's own options,
    and the engine asked for.
    """

    words: list[str]
    launch: list[str] | None
    env: dict[str, str]
    own: list[str]
    engine: str | None


def subjects(
    words: Words, given: Mapping[str, Any], *, plan_file: str | None, all_presets: bool
) -> Iterator[Subject | Skipped]:
    """The servers to verify, one after the other. Raises InputError and Refusal."""
    if all_presets and plan_file is not None:
        raise InputError("--all and --plan exclude each other", fix="give one of them")
    if plan_file is not None:
        if words.launch is not None or any(given.get(name) is not None for name in Memory._fields):
            raise InputError("--plan brings its own flags and sizes", fix="leave out the launch line and the memory")
        if words.env or any(value is not None for value in given.values()):
            raise InputError("--plan brings its own flags, environment and version", fix="leave the others out")
        if words.words or words.engine is not None:
            what = "flags" if not words.words or words.words[0].startswith("-") else "model"
            named = words.words[0][:40] if words.words else "--engine"
            raise InputError(f"--plan brings its own {what}, not {named}", fix="leave it out")
        return iter([subject_of_plan(plan_file)])
    if all_presets:
        if words.words and not words.words[0].startswith("-"):
            raise InputError(
                f"--all verifies every preset, not {words.words[0][:40]} alone", fix="leave one of them out"
            )
        return _of_presets(words, given)
    if not words.launch and not [word for word in words.words if word == "-" or not word.startswith("-")]:
        raise InputError("verify needs a MODEL", fix="name a preset (`hybridcalc models`), or write --all")
    return iter([_of_words(words, given)])


def _of_words(words: Words, given: Mapping[str, Any]) -> Subject:
    question = inputs.question(words.words, words.launch, words.env, words.own, words.engine, given, "verify")
    asked = question.arguments()
    model = options.model(asked.model)
    rest: Rest | None = None
    try:
        rest = question.memory(model, asked)
    except MemoryUnknown:
        if any(question.known):
            raise
    notes = tuple(question.remarks(asked))
    return room_of(question.engine.name).subject(model, asked.args, rest, notes=notes)


def _of_presets(words: Words, given: Mapping[str, Any]) -> Iterator[Subject | Skipped]:
    """Every preset with a recurrent state, under the flags given."""
    from hybridcalc.architecture.presets import load_model, model_names

    line = inputs.read_line(words.launch)
    room = room_of(inputs.engine_of(words.engine, line))
    for name in model_names():
        model = load_model(name)
        if model.state is None:
            yield Skipped(name, "no recurrent state", "no state")
            continue
        try:
            yield _of_words(words._replace(words=[name, *words.words, *room.more_flags(model, words.words)]), given)
        except HybridcalcError as error:
            yield Skipped(name, error.message, "refused")
