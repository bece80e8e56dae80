"""What was typed for ``hybridcalc verify``, turned into the servers to verify."""

from collections.abc import Iterator
from typing import NamedTuple

from hybridcalc.architecture.geometry import Architecture
from hybridcalc.cli import options
from hybridcalc.cli import plan_inputs as inputs
from hybridcalc.cli.plan import engine_named
from hybridcalc.cli.plan_engine import PlanOptions
from hybridcalc.cli.verify_plan import subject_of_plan
from hybridcalc.crosscheck.subject import Skipped, Subject, sglang_subject, vllm_subject
from hybridcalc.engines.sglang.allocation import DSA_PAGE
from hybridcalc.engines.sglang.config import ServerArgs
from hybridcalc.engines.vllm.config import EngineArgs
from hybridcalc.errors import HybridcalcError, InputError


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
    words: Words, extra: PlanOptions, given: inputs.MemoryOptions, *, plan_file: str | None, all_presets: bool
) -> Iterator[Subject | Skipped]:
    """The servers to verify, one after the other. Raises InputError and Refusal."""
    if all_presets and plan_file is not None:
        raise InputError("--all and --plan exclude each other", fix="give one of them")
    if plan_file is not None:
        if words.launch is not None or any(given):
            raise InputError("--plan brings its own flags and sizes", fix="leave out the launch line and the memory")
        if words.env or any(value is not None for value in extra):
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
        return _of_presets(words, extra, given)
    if not words.launch and not [word for word in words.words if word == "-" or not word.startswith("-")]:
        raise InputError("verify needs a MODEL", fix="name a preset (`hybridcalc models`), or write --all")
    return iter([_of_words(words, extra, given)])


def _of_words(words: Words, extra: PlanOptions, given: inputs.MemoryOptions) -> Subject:
    line = inputs.read_line(words.launch)
    served = engine_named(inputs.engine_of(words.engine, line))
    served.check_options(extra, given)
    launch = inputs.launch_words(words.words, line, words.env, words.own, served.table, served.model_flag, "verify")
    asked = served.arguments(launch, extra, given)
    model = options.model(asked.model)
    sized = any(given) or getattr(asked.args, "kv_cache_memory_bytes", None) is not None
    rest = served.memory(given, False, model, asked.model)(asked.args) if sized else None
    notes = tuple(served.said(asked, given))
    if isinstance(asked.args, EngineArgs):
        return vllm_subject(model, asked.args, rest, notes=notes)
    return sglang_subject(model, asked.args, rest, notes=notes)


def _of_presets(words: Words, extra: PlanOptions, given: inputs.MemoryOptions) -> Iterator[Subject | Skipped]:
    """Every preset with a recurrent state, under the flags given."""
    from hybridcalc.architecture.presets import load_model, model_names

    for name in model_names():
        model = load_model(name)
        if model.state is None:
            yield Skipped(name, "no recurrent state", "no state")
            continue
        try:
            yield _of_words(words._replace(words=[name, *words.words, *_index_pages(model, words.words)]), extra, given)
        except HybridcalcError as error:
            yield Skipped(name, error.message, "refused")


def _index_pages(model: Architecture, words: list[str]) -> list[str]:
    """The page size that the index of a sparse-attention model needs, where no other is given."""
    indexer = getattr(model.attention, "indexer", None)
    if indexer is None or any(word.partition("=")[0] == "--page-size" for word in words):
        return []
    page = DSA_PAGE * indexer.kpool
    return ["--page-size", str(page), "--mamba-track-interval", str(max(page, ServerArgs().mamba_track_interval))]
