"""What was typed for ``hybridcalc reuse``: which options mean something together, and the workload."""

from collections.abc import Mapping, Sequence
from math import isnan
from pathlib import Path
from typing import Any

import typer

from hybridcalc.cli import plan_inputs as inputs
from hybridcalc.cli.options import CardGiven, check_fraction
from hybridcalc.deployment import Memory
from hybridcalc.engines import ENGINES
from hybridcalc.engines.engine import Engine
from hybridcalc.errors import InputError
from hybridcalc.reuse.requests import Workload

REAL = ("hicache_ratio", "hicache_mamba_ratio", "hicache_mamba_size_gb", "kv_offloading_size", "slot_prompt_similarity")
OF_A_MODEL = ("tp_size", "kv_cache_dtype", "mamba_ssm_dtype")
"""What weighs its slots and tokens, and nothing without one."""


def is_typed(context: typer.Context, name: str) -> bool:
    """Whether an option was given on the command line."""
    source = context.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"


def check_flags(engine: Engine, context: typer.Context) -> None:
    """Raise InputError for a flag that only another engine has."""
    for option in context.command.params:
        name = option.name or ""
        if not is_typed(context, name) or name in engine.options or _has(engine, option.opts):
            continue
        owner = next((other for other in ENGINES if _has(ENGINES[other], option.opts[:1])), None)
        if owner is not None:
            raise InputError(
                f"{option.opts[0]} is no flag of {engine.title}", fix=f"leave it out, or write --engine {owner}"
            )


def _has(engine: Engine, spellings: Sequence[str]) -> bool:
    return any(spelling in engine.flags.by_spelling for spelling in spellings)


def check_typed(typed: Mapping[str, Any]) -> None:
    """Raise InputError for numbers that are none, and for an option of a host tier where there is none."""
    for name in REAL:
        if typed[name] is not None and isnan(typed[name]):
            raise InputError(f"--{name.replace('_', '-')} nan is not a number", fix="write one like 2.0")
    if typed["host_kv_tokens"] is not None and not typed["host_slots"]:
        raise InputError("--host-kv-tokens has no effect alone", fix="add --host-slots N")


def check_memory(engine: Engine, card: CardGiven, memory: Memory, rest: str | None) -> None:
    """Raise InputError for options of the memory that would be passed over."""
    engine.check_memory(memory)
    check_fraction(card)
    beside = {"--weights": card.weights, "--mem-fraction-static": card.mem_fraction_static}
    for flag, value in beside.items():
        if rest is not None and value is not None:
            raise InputError(f"{flag} says nothing beside --rest", fix="leave one of them out")


def check_model(context: typer.Context, model: str | None) -> None:
    """Raise InputError for options that say what slots of a model weigh, without one."""
    for option in context.command.params if model is None else ():
        if option.name in OF_A_MODEL and is_typed(context, option.name):
            raise InputError(f"{option.opts[0]} says nothing without a MODEL", fix="name a MODEL, or leave it out")


def workload_of(
    text: str, seed: int, warmup_rounds: int, running: int, requests: int | None, workers: int
) -> tuple[Workload, list[str]]:
    """The workload of one of the workers, or the first ``requests`` of it, and what there is to say of it."""
    found = inputs.traffic(text, seed=seed, workers=workers)
    if requests is not None:
        from hybridcalc.reuse.traces import sample

        found = sample(found, requests)
    kind = text.partition(":")[0]
    shadowed = kind == text and found.rounds is not None and Path(text).is_file()
    notes = [f"{text} is taken for the kind of workload; for the file write ./{text}"] if shadowed else []
    notes += [found.note] if found.note else []
    if found.rounds is None and warmup_rounds:
        raise InputError("a trace has no rounds to leave out", fix="drop --warmup-rounds")
    if found.rounds is None and seed:
        raise InputError("a trace has nothing to draw by --seed", fix="drop --seed")
    if found.rounds is not None and warmup_rounds >= found.rounds:
        raise InputError(
            f"--warmup-rounds {warmup_rounds} leaves none of {found.rounds} rounds to count",
            fix=f"write {found.rounds - 1} or less, or more rounds",
        )
    if found.at_once is not None and running > found.at_once:
        notes.append(
            f"{found.name} sends {found.at_once:,} requests at once: with {running:,} running some start "
            "before the answer that they follow on is made"
        )
    return found, notes
