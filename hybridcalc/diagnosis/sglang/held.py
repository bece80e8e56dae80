"""How many slots does a request hold: what a log says of S, and what it may be where a log does not say it?"""

from __future__ import annotations

from hybridcalc.deployment import requests_text
from hybridcalc.diagnosis.sglang.evidence import CLAMP_VALUES, Case
from hybridcalc.engines.sglang.releases import RELEASES
from hybridcalc.formulas import Strategy, admitted_requests
from hybridcalc.formulas import slots_per_request as slots_of


def slots_per_request(case: Case) -> tuple[int | None, str]:
    """S, and where it is from: the clamp line, or the only S with K // S = R. Unit: slots."""
    printed, slots, requests = case.boot.count("capped", "slots_per_request"), case.pools.slots, case.pools.requests
    if printed is not None:
        return printed, "printed"
    if slots and requests:
        fitting = [s for s in CLAMP_VALUES if slots // s == requests]
        if len(fitting) == 1:
            return fitting[0], f"the only S with {slots:,} // S = {requests:,}"
    return None, ""


def possible_slots(case: Case) -> None:
    """Say what S may be, and the requests it admits, where K alone is printed and no flags are known."""
    slots, pools, derived = case.pools.slots, case.pools, case.derived
    told = pools.requests or pools.tokens or case.slots_per_request or derived.slots_per_request or derived.requests
    if not slots or told or case.flags.given:
        return
    first = next(rules.version for rules in RELEASES.rule_sets if rules.automatic_strategy)
    ways = (
        (slots_of(Strategy.EXTRA_BUFFER).count, f"extra_buffer, what auto mostly takes from {first} on"),
        (slots_of(Strategy.EXTRA_BUFFER_LAZY).count, "extra_buffer_lazy, or without the overlap scheduler"),
        (slots_of(Strategy.NO_BUFFER).count, f"no_buffer, what auto takes before {first}"),
        (slots_of(Strategy.NO_BUFFER, radix_cache=False).count, "without a prefix cache"),
    )
    said = "; ".join(f"{each} ({why}): {requests_text(admitted_requests(slots, each))}" for each, why in ways)
    case.answer.find("HC131", f"S is not printed, and may be {said}", "--command says which")
