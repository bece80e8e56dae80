"""Where does one GPU's memory go? Bars to scale, from any engine's budget.

The state pool is cut into what one request holds; what the engine did not charge lies in the headroom, and is shown.
"""

from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from typing import Any

from hybridcalc.deployment import HEADROOM, Rest
from hybridcalc.errors import HybridcalcError, InputError
from hybridcalc.output.pictures.chart import Bar, Bars, Part
from hybridcalc.shell.parse import split_command
from hybridcalc.steps import BudgetLine
from hybridcalc.units import GIB

RATIO_FLAG = "--mamba-full-memory-ratio"
"""Takes the place of a number of slots."""

LETTERS = {
    "weights": "W", "state pool": "S", "states": "S", "draft states": "D", "ReplaySSM rings": "R", "KV pool": "K",
    "KV": "K", "draft KV": "k", "int8 checkpoints": "8", "per-layer-embedding convolutions": "p", "request table": "t",
    "state padding": "/", "padding": "/", "empty layer slots": "-", "free blocks": ".", "null block": "0",
    "not charged": "!",
    "unused": ".", "headroom": "H", "context": "C", "images": "I",
}  # fmt: skip
LEAST_UNUSED = 2000
"""Unused memory below such a share of all is rounding."""
GROUPS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000, 10**6)
MOST_CUTS = 160
"""Requests in one piece of the state pool, and how many pieces a bar's width can show."""
ROLES = {"weights": "weights", HEADROOM: "headroom", "free blocks": "unused", "context": "context"}


def part(name: str, role: str, size: int) -> Part:
    """A part with its letter."""
    return Part(name, role, size, LETTERS.get(name, name[:1].upper() or "?"))


def pool_parts(lines: Sequence[BudgetLine]) -> list[Part]:
    """The buffers of a budget as far as they are charged, and in one part what goes beyond."""
    parts = [
        part(line.name, ROLES.get(line.name, line.kind), min(line.charged_bytes, line.allocated_bytes))
        for line in lines
    ]
    beyond = sum(max(0, line.allocated_bytes - line.charged_bytes) for line in lines)
    return [p for p in [*parts, part("not charged", "trouble", beyond)] if p.bytes]


def gpu_parts(lines: Sequence[BudgetLine], rest: Rest) -> list[Part]:
    """Everything on the GPU: weights, pools, what they leave, and the headroom less what takes it unasked."""
    pools = pool_parts(lines)
    beyond = sum(p.bytes for p in pools if p.name == "not charged")
    taken = sum(p.bytes for p in pools) - beyond
    others = [part(name, ROLES.get(name, "other"), round(gib * GIB)) for name, gib in rest.others]
    weights = [p for p in others if p.name == "weights"]
    after = [p for p in others if p.name not in ("weights", HEADROOM)]
    headroom = [p._replace(bytes=max(0, p.bytes - beyond)) for p in others if p.name == HEADROOM]
    unused = part("unused", "unused", max(0, int(rest.likely_gib * GIB) - taken))
    found = [
        *weights,
        *pools[: len(pools) - bool(beyond)],
        unused,
        *pools[len(pools) - bool(beyond) :],
        *after,
        *headroom,
    ]
    whole = sum(p.bytes for p in found)
    return [p for p in found if p.bytes and (p.name != "unused" or p.bytes * LEAST_UNUSED > whole)]


def pools_bar(name: str, plan: Any) -> Bar:
    """The pools of one plan, and what is left beside them."""
    parts = pool_parts(plan.budget)
    left = int(plan.rest.likely_gib * GIB) - sum(p.bytes for p in parts if p.name != "not charged")
    return Bar(name, (*parts, *([part("unused", "unused", left)] if left * 100 > plan.rest.likely_gib * GIB else ())))


def comparison_picture(sides: Sequence[tuple[str, Any]]) -> Bars:
    """The pools of several plans, each under what it comes to. Raises InputError where none starts."""
    if not sides:
        raise InputError("nothing starts: there is nothing to draw")
    first = sides[0][1]
    bars = [
        pools_bar(f"{plan.concurrency:,} at once {'with ' if row else ''}{flags}{_tokens(plan)}", plan)
        for row, (flags, plan) in enumerate(sides)
    ]
    work = first.workload
    told = f"Requests of {work.describe()}." if work.lengths else ""
    return Bars(f"Pools side by side: {first.model.name}", told, "memory of the pools on one GPU", tuple(bars))


def _tokens(plan: Any) -> str:
    """What all KV of a rank's pool holds, where context parallelism makes that more than the bytes show."""
    tokens = getattr(plan, "logical_token_capacity", None)
    return "" if tokens is None else f" ({tokens:,} KV tokens)"


def after_suggestions(
    plan: Any, read: Callable[..., Any], make: Callable[..., Any], most: int = 2
) -> list[tuple[str, Any]]:
    """The plans that the best suggestions lead to, each under its flags; those that serve no more are left out.

    ``read`` reads an engine's words, ``make`` plans with arguments.
    """
    found = list[tuple[str, Any]]()
    for suggestion in plan.suggestions:
        try:
            changed = make(changed_arguments(plan.args, suggestion.flags, read))
        except HybridcalcError:
            continue
        if changed.concurrency > plan.concurrency:
            found.append((suggestion.flags, changed))
        if len(found) == most:
            break
    return found


def changed_arguments(args: Any, flags: str, read: Callable[..., Any]) -> Any:
    """The arguments with what ``flags`` set; variables stand in front of them."""
    words = split_command(flags)
    env = dict(word.split("=", 1) for word in words if not word.startswith("-") and "=" in word)
    typed = read([word for word in words if word.startswith("-") or "=" not in word], env, unknown=[])[1]
    blank = read([], {}, unknown=[])[1]
    names = [field.name for field in fields(args) if field.name != "env"]
    given = {name: getattr(typed, name) for name in names if getattr(typed, name) != getattr(blank, name)}
    if RATIO_FLAG in words:
        given |= {"mamba_full_memory_ratio": typed.mamba_full_memory_ratio, "max_mamba_cache_size": None}
    return replace(args, **given, env={**args.env, **typed.env})


def request_cuts(bar: Bar, pool: str, each: int, requests: int) -> tuple[Bar, int]:
    """The bar with ``pool`` cut into what a number of ``requests`` hold, and that number: as few as can be told apart;
    0 where nothing is cut.
    """
    at, whole = 0, bar.bytes
    for p in bar.parts:
        if p.name == pool and requests:
            group = next(g for g in GROUPS if g * each * MOST_CUTS >= whole or g == GROUPS[-1])
            cuts = (i * each for i in range(group, requests + 1, group))
            return bar._replace(ticks=tuple(float(at + cut) for cut in cuts if cut < p.bytes)), group
        at += p.bytes
    return bar, 0
