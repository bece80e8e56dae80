"""What would start, where a plan does not: a larger share of the memory, more ranks, a checkpoint that takes less?

Each is planned as the engine would, with all else as given, and said with the requests that it then serves.
"""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from math import floor
from typing import Any, Protocol

from hybridcalc.architecture import Architecture
from hybridcalc.architecture.presets import load_model
from hybridcalc.deployment import Rest, Workload, requests_text
from hybridcalc.engines.answer import Answer
from hybridcalc.engines.checkpoints import quantised_releases
from hybridcalc.engines.engine import Engine
from hybridcalc.engines.ranks import RANKS_TRIED
from hybridcalc.engines.view import ends
from hybridcalc.errors import HybridcalcError, Refusal, Write, flags_of
from hybridcalc.findings import at_or_above

STEP = 0.01
"""How finely a share of the memory is tried."""


Memory = Callable[[Architecture, Any], Rest]
"""The memory left for other arguments, or of another checkpoint."""


Found = tuple[str, Answer]
"""Flags, and the plan that has them."""


class Serves(Protocol):
    """Plans other arguments or another checkpoint."""

    def __call__(
        self, other: Architecture, changed: Any, *, certain: bool = True, several: bool = False
    ) -> Found | None:
        """The plan, where it serves a request, and the flag that it takes besides, or ``several``; a ``certain`` one
        serves over all of an estimated memory.
        """


def remedies(engine: Engine, model: Architecture, args: Any, memory: Memory, workload: Workload, rule: str) -> str:
    """What to write instead, as a fix of a refusal by ``rule``; empty where nothing tried starts, and for a rule
    that is not about memory.
    """
    if not engine.offers("suggest") or rule not in engine.part("suggest").SHORT:
        return ""

    def planned(other: Architecture, changed: Any, several: bool, more: str = "") -> Found | None:
        try:
            return more, engine.plan(other, changed, memory(other, changed), workload)
        except Refusal as refusal:
            again = flags_of(refusal.fix)
            if more or not again or not (several or isinstance(refusal.fix, Write)):
                return None
        more = f" {again}"
        return planned(other, engine.changed(changed, more), several, more)

    def serves(other: Architecture, changed: Any, *, certain: bool = True, several: bool = False) -> Found | None:
        with suppress(HybridcalcError):
            found = planned(other, changed, several)
            enough = found is not None and (found[1].requests or workload.mean_length is None)
            if found is not None and enough and not (certain and at_or_above(found[1].findings, "error")):
                return found
        return None

    usual = _usual_share(engine, model, args, memory, serves)
    said = list[str]()
    for search in (partial(_share, memory=memory), _ranks, _checkpoint) if usual is None else ():
        found = search(engine, model, args, serves=serves)
        if found is not None:
            words, plan = found
            count = f"{plan.requests:,}" if said else requests_text(plan.requests)
            gpus = engine.server_ranks(plan.args)
            more = f" on {gpus} GPUs" if gpus > engine.server_ranks(args) else ""
            said.append(f"{words}: {count}{ends(plan)}{more}")
    if usual is not None:
        said = [f"{usual[0]}: {requests_text(usual[1].requests)}{ends(usual[1])}"]
    return f"write {'; or '.join(said)}" if said and said[0].startswith("-") else "; or ".join(said)


def _usual_share(engine: Engine, model: Architecture, args: Any, memory: Memory, serves: Serves) -> Found | None:
    """The engine's own share of the memory, where a smaller one is typed and that does."""
    with suppress(HybridcalcError):
        share_of = engine.part("suggest").share_of
        field, typed = share_of(args, None)[:2]
        unset = replace(args, **{field: None})
        usual = share_of(unset, memory(model, unset))[1]
        found = serves(model, replace(args, **{field: usual})) if typed is not None and typed < usual else None
        return None if found is None else (f"--{field.replace('_', '-')} {usual:g}{found[0]}", found[1])
    return None


def _share(engine: Engine, model: Architecture, args: Any, *, serves: Serves, memory: Memory) -> Found | None:
    """The least share of the memory that does, in steps."""
    with suppress(HybridcalcError):
        field, today, largest = engine.part("suggest").share_of(args, memory(model, args))
        for step in range(1, floor((largest - today) / STEP + STEP) + 1 if today else 0):
            larger = round(today + step * STEP, 2)
            found = serves(model, replace(args, **{field: larger}))
            if found is not None:
                return f"--{field.replace('_', '-')} {larger:g}{found[0]}", found[1]
    return None


def _ranks(engine: Engine, model: Architecture, args: Any, *, serves: Serves) -> Found | None:
    """The fewest ranks that do."""
    for ranks in RANKS_TRIED:
        with suppress(HybridcalcError):
            changed = engine.with_options(args, {"tp_size": ranks})
            more = engine.server_ranks(changed) > engine.server_ranks(args)
            found = serves(model, changed) if more else None
            if found is not None:
                return f"{engine.tp_flag} {ranks}{found[0]}", found[1]
    return None


def _checkpoint(engine: Engine, model: Architecture, args: Any, *, serves: Serves) -> Found | None:
    """A quantised checkpoint of the same model that does, the first that is listed, if possible without more flags; one
    that may, where its weights are an estimate.
    """
    others = list[Found]()
    for name in quantised_releases(model) if args.quantization is None else ():
        other = load_model(name)
        found = serves(other, args, several=True) or serves(other, args, certain=False, several=True)
        if found is not None:
            more = f" with{found[0]}" if found[0] else ""
            others.append((f"load {name}{more}", found[1]))
            if not more:
                return others[-1]
    return others[0] if others else None
