"""What an SGLang plan comes to, for people: verdict, figures, cells of a comparison, pictures, settings to try."""

from collections.abc import Callable
from math import ceil
from typing import TYPE_CHECKING, Any

from hybridcalc.deployment import requests_text
from hybridcalc.engines.sglang.server_plan import Plan
from hybridcalc.engines.view import between, each, memory_figure
from hybridcalc.units import format_bytes

if TYPE_CHECKING:
    from hybridcalc.engines.charts import Picture
    from hybridcalc.engines.play import Play


def verdict(plan: Plan) -> tuple[str, str]:
    """What the plan comes to: the headline, and what it means."""
    capacity, count = plan.capacity, requests_text(plan.requests)
    binds = {"state": "the state pool binds", "kv": "KV binds", "limit": "the request limit binds"}[plan.binding]
    if plan.workload.mean_length is None:
        return count, f"{binds}{each(plan, 'worker')}; {plan.logical_token_capacity:,} KV tokens"
    idle = "KV" if plan.binding == "state" else "state slots"
    text = f"of {plan.workload.describe()}{each(plan, 'worker')}: {binds}"
    if plan.binding != "limit" and capacity.idle_percent >= 1 and not plan.ready.stateless:
        text += f", {min(capacity.idle_percent, 99.9):.0f} % of the {idle} idle"
    return count, text


def figures(plan: Plan) -> list[tuple[str, str, str, str]]:
    """The figures it rests on: label, value, human unit, reason."""
    fixed, marginal = plan.fixed_bytes_per_request, ceil(plan.marginal_bytes_per_token)
    why = f"{plan.slots_per_request} slots of {plan.ready.stage_slot_bytes:,} B"
    if plan.sizing.state.draft_bytes:
        why += f" and {plan.args.draft_tokens} draft states"
    if plan.ready.rings.per_slot or plan.ready.rings.per_request:
        why += " and their ReplaySSM rings"
    slots = (
        "state slots",
        f"{plan.max_mamba_cache_size:,}",
        "slots",
        f"K{between(plan.low.state.slots, plan.high.state.slots)}: {plan.capacity.state_requests:,} requests"
        f" x {plan.slots_per_request} ({plan.ready.slots.reason})",
    )
    tokens = (
        "KV tokens",
        f"{plan.max_total_num_tokens:,}",
        "tokens",
        f"T{between(plan.low.tokens, plan.high.tokens)} on a rank, {plan.ready.cells[0].bytes:,} B each",
    )
    held = ("sequences hold", f"{plan.logical_token_capacity:,}", "tokens", f"on {plan.args.dcp_size} ranks")
    least = "limit and T // 2" if plan.ready.stateless else "limit, T // 2 and K // S"
    limit = ("request limit", f"{plan.max_running_requests:,}", "requests", f"R: the least of {least}")
    taken = ("a request takes", f"{fixed:,} B", format_bytes(fixed), f"before its first token: {why}")
    each_token = ("and each token", f"{marginal:,} B", format_bytes(marginal), "of KV on a rank")
    kv = [tokens, *([held] if plan.args.dcp_size > 1 else [])]
    if plan.ready.stateless:
        return [*kv, limit, ("a token takes", *each_token[1:]), memory_figure(plan.rest)]
    return [slots, *kv, limit, taken, each_token, memory_figure(plan.rest)]


def cells(plan: Plan) -> dict[str, str]:
    """One side of a comparison."""
    found = {
        "state slots K": f"{plan.max_mamba_cache_size:,}",
        "slots a request S": f"{plan.slots_per_request}",
        "KV tokens T": f"{plan.max_total_num_tokens:,}",
        "tokens of sequences": f"{plan.logical_token_capacity:,}",
        "request limit R": f"{plan.max_running_requests:,}",
        "a request takes": format_bytes(plan.fixed_bytes_per_request),
        "and each token": format_bytes(ceil(plan.marginal_bytes_per_token)),
        "not charged": format_bytes(plan.uncharged_bytes),
    }
    if plan.workload.mean_length is not None:
        found |= {
            "requests at once": f"{plan.requests:,}",
            "binds": plan.binding,
            "the other pool idles": f"{plan.capacity.idle_percent:.0f} %",
        }
        if plan.balanced is not None:
            best = max(plan.concurrency, plan.balanced.requests) * plan.workers
            found["at the best ratio"] = f"{best:,}"
    return found


def pictures(plan: Plan) -> dict[str, "Callable[[], Picture]"]:
    """Its memory, and requests at once over their length and over the ratio."""
    if plan.ready.stateless:
        return {"memory": lambda: _curves().memory_picture(plan)}
    return {
        "memory": lambda: _curves().memory_picture(plan),
        "lengths": lambda: _curves().lengths_picture(plan),
        "ratios": lambda: _curves().ratios_picture(plan),
    }


def play(plan: Plan) -> "Play | None":
    """The settings of a page to try."""
    from hybridcalc.engines.sglang.play import play as settings

    return settings(plan.model, plan.args, plan.rest.likely_gib, plan.workload)


def _curves() -> Any:
    from hybridcalc.engines.sglang import curves

    return curves
