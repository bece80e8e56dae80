"""What an SGLang plan comes to, for people: verdict, figures, cells of a comparison, pictures, settings to try."""

from collections.abc import Callable
from math import ceil
from typing import TYPE_CHECKING, Any

from hybridcalc.deployment import requests_text
from hybridcalc.engines.sglang.server_plan import Plan
from hybridcalc.engines.view import between, counted, each, memory_figure
from hybridcalc.findings import Quantity
from hybridcalc.units import format_bytes, percent_text

if TYPE_CHECKING:
    from hybridcalc.engines.charts import Picture
    from hybridcalc.engines.play import Play


SAID = ("HC010", "HC011", "HC012")


def verdict(plan: Plan) -> tuple[str, str]:
    """What the plan comes to: the headline, and what it means."""
    capacity, count = plan.capacity, counted(plan)
    if plan.too_long:
        return count, f"longer than the context of {plan.ready.context_length:,}"
    binds = {"state": "the state pool binds", "kv": "KV binds", "limit": "the request limit binds"}[plan.binding]
    if plan.workload.mean_length is None:
        return count, f"{binds}{each(plan, 'worker')}; {plan.logical_token_capacity:,} KV tokens"
    idle = "KV" if plan.binding == "state" else "state slots"
    text = f"{binds}{each(plan, 'worker')}"
    if plan.binding != "limit" and capacity.idle_percent >= 1 and not plan.ready.stateless:
        text += f", {percent_text(capacity.idle_percent)} % of the {idle} idle"
    return count, text


def figures(plan: Plan) -> list[Quantity]:
    """The figures it rests on, the most telling first."""
    fixed, marginal = plan.fixed_bytes_per_request, ceil(plan.marginal_bytes_per_token)
    slot, count = plan.ready.stage_slot_bytes, plan.slots_per_request
    why = f"{count} slot{'' if count == 1 else 's'} of {slot:,} B"
    if plan.sizing.state.draft_bytes:
        why += f" and {plan.args.draft_tokens} draft states"
    if plan.ready.rings.per_slot or plan.ready.rings.per_request:
        why += " and their ReplaySSM rings"

    def held(*names: str) -> int:
        return sum(line.allocated_bytes for line in plan.budget if line.name in names)

    states, kv = held("state pool"), held("KV pool", "draft KV")

    slots = Quantity(
        "state slots",
        f"{plan.max_mamba_cache_size:,}",
        "slots",
        f"{format_bytes(states)} at {slot:,} B: {requests_text(plan.capacity.state_requests)} x {count}",
        f"K{between(plan.low.state.slots, plan.high.state.slots)}; {plan.ready.slots.reason}",
    )
    tokens = Quantity(
        "KV tokens",
        f"{plan.max_total_num_tokens:,}",
        "tokens",
        f"{format_bytes(kv)} at {_kv_of_requests(plan)}" if marginal else "that take no memory",
        f"T{between(plan.low.tokens, plan.high.tokens)} on a rank",
    )
    ranks, least = plan.args.dcp_size, "limit and T // 2" if plan.ready.stateless else "limit, T // 2 and K // S"
    of_ranks = [Quantity("sequences hold", f"{plan.logical_token_capacity:,}", "tokens", f"on {ranks} ranks")]
    limit = Quantity("request limit", f"{plan.max_running_requests:,}", "requests", f"R: the least of {least}")
    pools = Quantity("pools", format_bytes(states + kv), "", f"{states:,} B states + {kv:,} B KV")
    memory, given = memory_figure(plan.rest), plan.rest.total_gib is None  # of a GPU the memory is what the pools are
    shared = [tokens, *(of_ranks if ranks > 1 else [])]
    each_token = Quantity("and each token", f"{marginal:,} B", format_bytes(marginal), "of KV on a rank")
    if plan.ready.stateless:
        return [*shared, memory, each_token._replace(label="a token takes"), limit]
    taken = Quantity("a request takes", f"{fixed:,} B", format_bytes(fixed), f"before its first token: {why}")
    first, last = ([pools], [memory]) if given else ([memory], [])
    return [slots, *shared, *(first if marginal else [memory]), taken, each_token, *(last if marginal else ()), limit]


def _kv_of_requests(plan: Plan) -> str:
    """What a token takes on a rank; of requests of the workload, how many the tokens hold."""
    each_token = f"{plan.ready.cells[0].bytes:,} B"
    if plan.workload.mean_length is None:
        return each_token
    size = format_bytes(round(plan.marginal_bytes_per_token * plan.workload.mean_length)).replace(".00 ", " ")
    return f"{each_token}: {requests_text(plan.capacity.kv_requests)} x {size}"


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
            "the other pool idles": f"{percent_text(plan.capacity.idle_percent)} %",
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

    return settings(plan.model, plan.args, plan.rest, plan.workload)


def _curves() -> Any:
    from hybridcalc.engines.sglang import curves

    return curves
