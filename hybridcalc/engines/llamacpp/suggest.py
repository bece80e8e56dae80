"""Which slots, context and types of K and V would serve the requests that are asked for, where a plan serves fewer?

    -np N -c N x pad256(longest), N as many as are wanted or else the most that the cards hold whole

Each is planned before it is said, with nothing left to the host: as it is, and with K and V in q8_0.
"""

from bisect import bisect_left
from functools import partial
from typing import TYPE_CHECKING

from hybridcalc.engines.better import Change, Served, suggestion
from hybridcalc.engines.llamacpp import MOST_SEQUENCES, PLAIN, padded
from hybridcalc.engines.llamacpp.figures import bounded
from hybridcalc.engines.llamacpp.rules import spilled
from hybridcalc.errors import HybridcalcError
from hybridcalc.findings import Suggestion

if TYPE_CHECKING:
    from hybridcalc.engines.llamacpp.server_plan import Plan

SHORT = ()
"""Refusals say themselves what starts."""
CHANGES = (
    Change("", {}, "slots as long as the requests, whole on the cards"),
    Change("-ctk q8_0 -ctv q8_0", {"type_k": "q8_0", "type_v": "q8_0"}, "about halves the KV of a token", "accuracy"),
)


def suggest(plan: "Plan") -> tuple[Suggestion, ...]:
    """The fewest changes first; none for a plan that serves what is asked for, or that Ollama starts."""
    work, args = plan.workload, plan.args
    least = min(work.wanted or 1, MOST_SEQUENCES)
    if not work.lengths or plan.requests >= least or plan.ready.front is not None or not bounded(plan.rest):
        return ()
    found, best, tokens = list[Suggestion](), plan.requests, padded(work.longest)
    for change in CHANGES if args.type_k in PLAIN else CHANGES[:1]:
        count = bisect_left(range(1, least + 1), True, key=partial(_too_many, plan, change, tokens))
        if count > best:
            slots = "" if count == plan.ready.sequences else f"--parallel {count} "
            flags = f"{slots}--ctx-size {count * tokens} {change.flags}".strip()
            found.append(suggestion(plan, flags, Served(count), change.why, change.risk))
            best = count
    return tuple(found)


def _too_many(plan: "Plan", change: Change, tokens: int, slots: int) -> bool:
    """Whether so many streams of the longest request, with the change, do not lie on the cards whole."""
    from hybridcalc.engines.llamacpp.server_plan import plan as planned

    fields = {**change.fields, "n_seq_max": slots, "n_ctx": slots * tokens, "kv_unified": False}
    args = plan.asked.args.changed(**fields)
    try:
        rest = plan.rest.again(args) if plan.rest.again is not None else plan.rest
        found = planned(plan.model, args, rest=rest, workload=plan.workload)
    except HybridcalcError:
        return True
    return found.requests < slots or any(spilled(found))
