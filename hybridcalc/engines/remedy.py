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
from hybridcalc.errors import HybridcalcError
from hybridcalc.findings import at_or_above

STEP = 0.01
"""How finely a share of the memory is tried."""


Memory = Callable[[Architecture, Any], Rest]
"""The memory left for other arguments, or of another checkpoint."""


class Serves(Protocol):
    """Plans other arguments or another checkpoint."""

    def __call__(self, other: Architecture, changed: Any, *, certain: bool = True) -> Answer | None:
        """The plan, where it serves a request; a ``certain`` one does so over all of an estimated memory."""


def remedies(engine: Engine, model: Architecture, args: Any, memory: Memory, workload: Workload, rule: str) -> str:
    """What to write instead, as a fix of a refusal by ``rule``; empty where nothing tried starts, and for a rule
    that is not about memory.
    """
    if not engine.offers("suggest") or rule not in engine.part("suggest").SHORT:
        return ""

    def serves(other: Architecture, changed: Any, *, certain: bool = True) -> Answer | None:
        with suppress(HybridcalcError):
            plan = engine.plan(other, changed, memory(other, changed), workload)
            enough = plan.requests or workload.mean_length is None
            return plan if enough and not (certain and at_or_above(plan.findings, "error")) else None
        return None

    said = list[str]()
    for search in (partial(_share, memory=memory), _ranks, _checkpoint):
        found = search(engine, model, args, serves=serves)
        if found is not None:
            words, plan = found
            count = f"{plan.requests:,}" if said else requests_text(plan.requests)
            gpus = engine.server_ranks(plan.args)
            more = f" on {gpus} GPUs" if gpus > engine.server_ranks(args) else ""
            said.append(f"{words}: {count}{ends(plan)}{more}")
    return f"write {'; or '.join(said)}" if said and said[0].startswith("--") else "; or ".join(said)


def _share(
    engine: Engine, model: Architecture, args: Any, *, serves: Serves, memory: Memory
) -> tuple[str, Answer] | None:
    """The least share of the memory that does, in steps."""
    with suppress(HybridcalcError):
        field, today, largest = engine.part("suggest").share_of(args, memory(model, args))
        for step in range(1, floor((largest - today) / STEP + STEP) + 1 if today else 0):
            larger = round(today + step * STEP, 2)
            plan = serves(model, replace(args, **{field: larger}))
            if plan is not None:
                return f"--{field.replace('_', '-')} {larger:g}", plan
    return None


def _ranks(engine: Engine, model: Architecture, args: Any, *, serves: Serves) -> tuple[str, Answer] | None:
    """The fewest ranks that do."""
    for ranks in RANKS_TRIED:
        with suppress(HybridcalcError):
            changed = engine.with_options(args, {"tp_size": ranks})
            more = engine.server_ranks(changed) > engine.server_ranks(args)
            plan = serves(model, changed) if more else None
            if plan is not None:
                return f"--tp {ranks}", plan
    return None


def _checkpoint(engine: Engine, model: Architecture, args: Any, *, serves: Serves) -> tuple[str, Answer] | None:
    """A quantised checkpoint of the same model that does, the first that is listed; one that may, where its weights are
    an estimate.
    """
    for name in quantised_releases(model) if args.quantization is None else ():
        other = load_model(name)
        plan = serves(other, args) or serves(other, args, certain=False)
        if plan is not None:
            return f"load {name}", plan
    return None
