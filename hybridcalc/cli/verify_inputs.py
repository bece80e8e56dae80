"""What was typed for ``hybridcalc verify``, turned into the servers to verify."""

import json
import sys
from collections.abc import Iterator, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from hybridcalc.architecture.geometry import Architecture
from hybridcalc.cli import options
from hybridcalc.cli import plan_inputs as inputs
from hybridcalc.cli.plan import engine_named
from hybridcalc.cli.plan_engine import PlanOptions
from hybridcalc.crosscheck.subject import Skipped, Subject, sglang_subject, vllm_subject
from hybridcalc.crosscheck.vllm_tensors import ALLOCATED
from hybridcalc.engines.sglang.allocation import DSA_PAGE
from hybridcalc.engines.sglang.config import ServerArgs
from hybridcalc.engines.vllm.config import EngineArgs
from hybridcalc.errors import HybridcalcError, InputError
from hybridcalc.units import LARGEST_BYTES, LARGEST_TOKENS

Args = TypeVar("Args", ServerArgs, EngineArgs)
LARGEST_PLAN_BYTES = 2**24
PLAN_SCHEMA = "hybridcalc.plan/1"
COUNTS = ("max_mamba_cache_size", "max_total_num_tokens", "max_running_requests")


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
        return iter([_of_plan(plan_file, words)])
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
            yield Skipped(name, "no recurrent state")
            continue
        try:
            yield _of_words(words._replace(words=[name, *words.words, *_index_pages(model, words.words)]), extra, given)
        except HybridcalcError as error:
            yield Skipped(name, error.message)


def _index_pages(model: Architecture, words: list[str]) -> list[str]:
    """The page size that the index of a sparse-attention model needs, where no other is given."""
    indexer = getattr(model.attention, "indexer", None)
    if indexer is None or any(word.partition("=")[0] == "--page-size" for word in words):
        return []
    page = DSA_PAGE * indexer.kpool
    return ["--page-size", str(page), "--mamba-track-interval", str(max(page, ServerArgs().mamba_track_interval))]


def _of_plan(path: str, words: Words) -> Subject:
    """The server of an answer of ``plan --json``, with the figures that answer states."""
    document = _read_plan(path)
    if document.get("starts") is not True:
        raise InputError(f"{path[:60]} is a plan that does not start: there is nothing to allocate")
    if [word for word in words.words if word.startswith("-")]:
        raise InputError("--plan brings its own flags", fix="leave the others out")
    name = words.words[0] if words.words else document.get("model")
    arguments = document.get("arguments")
    if not isinstance(arguments, dict) or not isinstance(name, str):
        raise InputError(f"{path[:60]} states no arguments", fix="write it anew with this version's plan --json")
    model = options.model(name)
    if document.get("engine") == "vllm":
        engine_args = _arguments(path, arguments, EngineArgs, "vLLM")
        blocks, stated = _count(path, document, "num_blocks"), _count(path, document, ALLOCATED, LARGEST_BYTES)
        return vllm_subject(model, engine_args, None, blocks=blocks, stated={ALLOCATED: stated})
    args = _arguments(path, arguments, ServerArgs, "SGLang")
    options.check_arguments(args)
    slots, tokens, requests = (_count(path, document, key) for key in COUNTS)
    return sglang_subject(model, args, None, counts=(slots, tokens, requests), stated=_figures(document))


def _count(path: str, document: Mapping[str, Any], key: str, most: int = LARGEST_TOKENS) -> int:
    """A count of a plan: K, T or R, blocks, bytes."""
    count = document.get(key)
    if not isinstance(count, int) or isinstance(count, bool) or not 0 < count <= most:
        raise InputError(f"{path[:60]}: {key} is no count", fix="write it anew with plan --json")
    return count


def _read_plan(path: str) -> Mapping[str, Any]:
    try:
        with sys.stdin.buffer if path == "-" else Path(path).open("rb") as stream:
            data = stream.read(LARGEST_PLAN_BYTES + 1)
        document = json.loads(data) if len(data) <= LARGEST_PLAN_BYTES else None
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(f"--plan {path[:60]} cannot be read: {' '.join(str(error).split())[:80]}") from None
    if not isinstance(document, dict) or document.get("schema") != PLAN_SCHEMA:
        raise InputError(
            f"--plan {path[:60]} is no answer of plan --json", fix="hybridcalc plan ... --json > plan.json"
        )
    return document


def _arguments(path: str, arguments: Mapping[str, Any], kind: type[Args], title: str) -> Args:
    """The engine's arguments of a plan, checked as data from outside."""
    from pydantic import TypeAdapter, ValidationError

    unknown = sorted(set(arguments) - {field.name for field in fields(kind)})
    if unknown:
        raise InputError(f"{path[:60]}: arguments.{unknown[0][:40]} is no argument of {title} known here")
    try:
        return TypeAdapter(kind).validate_json(json.dumps(arguments), strict=True)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise InputError(f"{path[:60]}: arguments.{where[:60]}: {first['msg']}") from None


def _figures(document: Mapping[str, Any]) -> dict[str, int]:
    """Allocation figures of a plan, under the names of the tensors' figures."""
    found: dict[str, Any] = {}
    states = document.get("alloc_mamba")
    if isinstance(states, dict):
        found |= {name: states.get(name) for name in ("conv_state", "ssm_state", "intermediate_ssm", "ple_short_conv")}
        found["intermediate_conv_window"] = states.get("intermediate_conv_window")
        rings, pool = states.get("ring"), states.get("int8_ckpt")
        found |= rings if isinstance(rings, dict) else {}
        found["int8_ckpt"] = pool.get("bytes") if isinstance(pool, dict) else None
    kv = document.get("alloc_kv")
    found["alloc_kv"] = sum(kv) if isinstance(kv, list) and all(isinstance(part, int) for part in kv) else kv
    found["alloc_req_to_token"] = document.get("alloc_req_to_token")
    return {name: size for name, size in found.items() if isinstance(size, int) and not isinstance(size, bool)}
