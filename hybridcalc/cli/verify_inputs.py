"""What was typed for ``hybridcalc verify``, turned into the servers to verify; of --plan, what a saved answer states.

What stands in that file is data from outside: model, arguments and figures are checked here or by those that own the
rules, and each complaint names its place in the document.
"""

from collections.abc import Iterator, Mapping
from dataclasses import fields, replace
from typing import Any, NamedTuple

from hybridcalc.cli import options
from hybridcalc.cli import plan_inputs as inputs
from hybridcalc.crosscheck.subject import Skipped, Subject, room_of
from hybridcalc.deployment import Memory, Rest
from hybridcalc.engines import ENGINES
from hybridcalc.engines.engine import Engine
from hybridcalc.errors import HybridcalcError, InputError, MemoryUnknown, quoted
from hybridcalc.saved_plan import ANEW, read_saved_plan, shown
from hybridcalc.units import LARGEST_TOKENS


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


def boots_whole(words: Words) -> Any:
    """What boots the engine that is asked for whole, and compares; None where its tensors are allocated one by one."""
    name = inputs.engine_of(words.engine, inputs.read_line(words.launch), words.words)
    return getattr(ENGINES.room(name, "crosscheck"), "booted", None)


def booted(words: Words, given: Mapping[str, Any], boot: Any, others: Mapping[str, Any]) -> Any:
    """A server that is booted whole, beside its plan. Raises InputError for options that say nothing of that."""
    for option, value in others.items():
        if value is not None:
            raise InputError(f"{option} says nothing of an engine that is booted whole", fix="leave it out")
    question = inputs.question(words.words, words.launch, words.env, words.own, words.engine, given, "verify")
    asked = question.arguments()
    return boot(options.model(asked.model), asked.args, tuple(question.remarks(asked)))


def _of_words(words: Words, given: Mapping[str, Any]) -> Subject:
    question = inputs.question(words.words, words.launch, words.env, words.own, words.engine, given, "verify")
    asked = question.arguments()
    model = options.model(asked.model)
    rest: Rest | None = None
    try:
        rest = question.memory(model, asked.args)
    except MemoryUnknown:
        if any(question.known):
            raise
    notes = tuple(question.remarks(asked))
    subject = room_of(question.engine.name).subject(model, asked.args, rest, notes=notes)
    question.engine.check_ranks(model, asked.args)
    return subject


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


def subject_of_plan(path: str) -> Subject:
    """The server of a plan, at the sizes it states, with the figures to hold. Raises InputError and Refusal."""
    where, document = shown(path, "--plan"), read_saved_plan(path, "--plan")
    if document.get("starts") is not True:
        raise InputError(f"{where} is a plan that does not start: there is nothing to allocate")
    name, arguments = document.get("model"), document.get("arguments")
    if not isinstance(arguments, dict) or not isinstance(name, str):
        raise InputError(f"{where} states no arguments", fix="write it anew with this version's plan --json")
    model = options.model(name)
    named = document.get("engine")
    if not isinstance(named, str) or named not in ENGINES:
        raise InputError(f"{where}: engine {quoted(named)} is not {' or '.join(ENGINES)}", fix=ANEW)
    engine, room = ENGINES[named], room_of(named)
    args = _arguments(where, arguments, engine)
    counts = tuple(_count(where, document, key) for key in room.COUNTS)
    figures = room.stated(document, engine.prepare(model, args), where)
    engine.check_ranks(model, args)
    return room.subject(model, args, None, counts=counts, plan=figures)


def _count(where: str, document: Mapping[str, Any], key: str) -> int:
    """A count of a plan: K, T or R, or blocks."""
    count = document.get(key)
    if not isinstance(count, int) or isinstance(count, bool) or not 0 < count <= LARGEST_TOKENS:
        raise InputError(f"{where}: {key} {quoted(count)} is no count", fix=ANEW)
    return count


def _arguments(where: str, arguments: Mapping[str, Any], engine: Engine) -> Any:
    """The engine's arguments of a plan, held to what its command line takes."""
    blank = engine.read([], {})[1]
    unknown = sorted(set(arguments) - {field.name for field in fields(blank)})
    if unknown:
        raise InputError(f"{where}: arguments.{unknown[0][:40]} is no argument of {engine.title} known here")
    args = replace(blank, **arguments)
    try:
        engine.check_arguments(args)
    except InputError as error:
        raise InputError(f"{where}: arguments.{error.message}", fix=error.fix) from None
    engine.check_together(args)
    return args
