"""What do this boot's pools admit for a workload, and which flags would serve it better?

The memory that reproduces the boot's own K and T is found first; then the engine's planner answers for other flags.
Where no single model fits, the measured sizes are used: they give a ratio and a pin, and no more.
"""

from __future__ import annotations

from dataclasses import replace

from hybridcalc.architecture.geometry import Architecture
from hybridcalc.architecture.presets import load_model
from hybridcalc.deployment import Workload
from hybridcalc.diagnosis.answer import Candidate, Diagnosis, Row
from hybridcalc.diagnosis.balance import log_constants
from hybridcalc.diagnosis.pools import Pools
from hybridcalc.diagnosis.question import Launch
from hybridcalc.diagnosis.rules import finding
from hybridcalc.engines.sglang.balance import Observed, balance_constants
from hybridcalc.engines.sglang.config import ServerArgs
from hybridcalc.engines.sglang.planner import prepare, size
from hybridcalc.engines.sglang.server_plan import Plan, plan
from hybridcalc.errors import HybridcalcError
from hybridcalc.steps import Suggestion
from hybridcalc.units import GIB, format_bytes, parse_dtype

PLENTY_GIB = 4096.0
_STRATEGIES = {5: "extra_buffer", 4: "extra_buffer_lazy"}
CLOSE, FEW_SLOTS = 1, 50
"""Slots by which a planned K may miss the printed one, where there are more than a few: the memory is known to two
decimals.
"""


def settings_for(
    answer: Diagnosis,
    pools: Pools,
    best: Candidate | None,
    model: Architecture | None,
    args: ServerArgs,
    launch: Launch,
    workload: Workload,
    slots_per_request: int | None,
) -> None:
    """Binding pool, requests, idle share and suggestions, as far as the log allows."""
    if pools.slots is None or not pools.tokens:
        return
    if best is not None and best.kv_bytes and len({c.sizes for c in answer.candidates}) == 1:
        try:
            found = _reproduced(answer, pools, best, model or load_model(best.model), args, launch, slots_per_request)
        except HybridcalcError:
            found = None
        if found is not None:
            _by_plan(answer, *found, workload)
            return
    _by_sizes(answer, pools, args, workload, slots_per_request)


def _reproduced(
    answer: Diagnosis,
    pools: Pools,
    best: Candidate,
    model: Architecture,
    args: ServerArgs,
    launch: Launch,
    slots_per_request: int | None,
) -> tuple[Architecture, ServerArgs, float] | None:
    """The arguments and the memory under which the planner gives the boot's own K and T; None where none do."""
    slots, tokens = pools.slots or 0, pools.tokens or 0
    kv_name = parse_dtype(best.kv_dtype.replace("fp8 e5m2", "fp8_e5m2")) if best.kv_dtype else "auto"
    args = replace(
        args,
        tp_size=best.tp,
        dp_size=1,
        enable_dp_attention=False,
        kv_cache_dtype=kv_name,
        mamba_ssm_dtype=parse_dtype(best.ssm_dtype) if best.ssm_dtype else None,
        mem_fraction_static=None,
        max_running_requests=None,
        max_total_tokens=None,
    )
    asked = launch.args.max_running_requests
    drafts = answer.derived.get("draft_tokens")
    if pools.scratch[0] and not args.speculative:
        if not drafts:
            return None
        args = replace(args, speculative_algorithm="NEXTN", speculative_num_draft_tokens=drafts, draft_layers=0)
    if slots_per_request is not None:
        args = _with_slots(model, args, slots_per_request)
    args = replace(args, max_running_requests=_limit(pools, asked, prepare(model, args).slots.count, launch))
    pinned_tokens = answer.derived.get("tokens_pinned")
    for version in dict.fromkeys((args.engine_version, None)):
        tried = replace(args, engine_version=version)
        try:
            pinned = prepare(model, replace(tried, max_mamba_cache_size=slots))
            cell = max(stage.bytes for stage in pinned.cells)
            charged = int(PLENTY_GIB * GIB) - size(pinned, PLENTY_GIB).state.kv_bytes
        except HybridcalcError:
            continue
        rest = (charged + int((tokens + 0.5) * cell)) / GIB
        if pinned_tokens:
            return model, replace(tried, max_mamba_cache_size=slots, max_total_tokens=pinned_tokens), rest
        for ratio in _ratios(answer, tried):
            solved = replace(tried, mamba_full_memory_ratio=ratio, max_mamba_cache_size=None)
            try:
                got = size(prepare(model, solved), rest)
            except HybridcalcError:
                continue
            if (
                abs(got.state.slots - slots) <= (CLOSE if slots > FEW_SLOTS else 0)
                and "max_mamba_cache_size" not in launch.given
            ):
                answer.derived["ratio_used"] = ratio
                return model, solved, rest
        return model, replace(tried, max_mamba_cache_size=slots), rest
    return None


def _ratios(answer: Diagnosis, args: ServerArgs) -> list[float]:
    """Ratios that may have split the memory: the one asked for, and those the figures allow."""
    low, high = answer.derived.get("mamba_full_memory_ratio", (0.9, 0.9))
    middle = (low + high) / 2
    return list(dict.fromkeys((args.mamba_full_memory_ratio, 0.9, round(middle, 2), round(middle, 4))))


def _limit(pools: Pools, asked: int | None, slots_per_request: int, launch: Launch) -> int | None:
    """The request limit of a worker: as asked for, or the printed one where the slots would admit more."""
    if asked is not None:
        return max(1, asked // max(1, launch.args.attn_dp_size))
    if pools.requests is None or pools.slots is None:
        return None
    if slots_per_request == 1 and pools.requests == pools.slots:
        return pools.requests  # without prefixes the limit itself is K
    return pools.requests if pools.requests < pools.slots // slots_per_request else None


def _with_slots(model: Architecture, args: ServerArgs, slots_per_request: int) -> ServerArgs:
    """``args`` with a strategy that holds so many slots a request."""
    choices = [args]
    if slots_per_request in _STRATEGIES:
        choices.append(replace(args, mamba_radix_cache_strategy=_STRATEGIES[slots_per_request]))
    if slots_per_request == 4:
        choices.append(replace(args, mamba_radix_cache_strategy="extra_buffer", disable_overlap_schedule=True))
    if slots_per_request == 3:
        choices.append(replace(args, mamba_radix_cache_strategy="no_buffer", disable_overlap_schedule=True))
    if slots_per_request == 1:
        choices.append(replace(args, disable_radix_cache=True))
    for choice in choices:
        try:
            if prepare(model, choice).slots.count == slots_per_request:
                return choice
        except HybridcalcError:
            continue
    return args


def _by_plan(answer: Diagnosis, model: Architecture, args: ServerArgs, rest_gib: float, workload: Workload) -> None:
    planned: Plan = plan(model, args, rest_gib=rest_gib, workload=workload)
    answer.planned = planned
    answer.derived |= {
        "slots_per_request": planned.slots_per_request,
        "slots_reason": planned.ready.slots.reason,
        "planned_rest_gib": round(rest_gib, 4),
        "charged_bytes": sum(line.charged_bytes for line in planned.budget),
        "allocated_bytes": sum(line.allocated_bytes for line in planned.budget),
    }
    uncharged = planned.uncharged_bytes
    said = "charged = allocated" if uncharged < 2**20 else f"{format_bytes(uncharged)} are allocated beyond the charge"
    answer.rows = [
        row._replace(arithmetic="; ".join(filter(None, (row.arithmetic, said)))) if row.place == "split" else row
        for row in answer.rows
    ]
    answer.steps += planned.steps
    state_requests = planned.max_mamba_cache_size // planned.slots_per_request
    if workload.mean_length is None:
        answer.binding = "state" if planned.max_running_requests == state_requests else "limit"
        answer.derived["requests"] = planned.max_running_requests
        return
    answer.binding = planned.binding
    answer.derived |= {
        "requests": planned.concurrency,
        "state_requests": planned.capacity.state_requests,
        "kv_requests": planned.capacity.kv_requests,
        "idle_percent": round(planned.capacity.idle_percent, 2),
    }
    _idle(answer, planned.binding, planned.capacity.idle_percent, workload)
    answer.suggestions = [] if answer.derived.get("tokens_pinned") else list(planned.suggestions)
    if planned.args.dp_size > 1:
        answer.rows.append(Row("workers", f"{planned.args.dp_size}", "figures are per worker"))


def _by_sizes(
    answer: Diagnosis, pools: Pools, args: ServerArgs, workload: Workload, slots_per_request: int | None
) -> None:
    """Binding and suggestions by arithmetic on measured sizes alone."""
    if slots_per_request is not None and pools.slots is not None and pools.tokens is not None:
        state = pools.slots // slots_per_request
        if workload.mean_length is None:
            limit = pools.requests
            answer.binding = "limit" if limit is not None and limit < state else "state" if limit == state else None
            if answer.binding:
                answer.derived["requests"] = min(state, limit) if limit is not None else state
            return
    if workload.mean_length is None or pools.state is None or pools.kv is None:
        return
    args = _unnamed(args, slots_per_request)
    try:
        measured = log_constants(pools.state, pools.kv, args)
        if round(measured.state_bytes) < 1 or round(measured.kv_bytes_per_token) < 1:
            return  # the counts are too large for the sizes: nothing is left for each
        rest = answer.derived.get("rest_gib")
        observed = Observed(pools.slots or 0, pools.tokens or 0)
        balance = balance_constants(
            measured, args, workload, rest_gib=sum(rest) / 2 if rest else None, observed=observed
        )
    except HybridcalcError:
        return
    today = balance.setting("today")
    if today is None:
        return
    limit = pools.requests
    if limit is not None and limit < today.running:
        answer.binding = "limit"
        answer.derived |= {"requests": limit, "state_requests": today.state_requests, "kv_requests": today.kv_requests}
        return  # no other split of the memory runs more than the limit
    answer.binding = today.binding
    answer.derived |= {
        "requests": today.running,
        "state_requests": today.state_requests,
        "kv_requests": today.kv_requests,
        "idle_percent": round(today.idle_percent, 2),
    }
    answer.derived.setdefault("slots_per_request", balance.slots.count)
    _idle(answer, today.binding, today.idle_percent, workload)
    if answer.derived.get("tokens_pinned"):
        return  # no ratio moves them
    if pools.scratch[0]:
        answer.findings.append(
            finding(
                "HC113",
                "draft states are held, and how many is not printed: what other flags would come to is left open",
                severity="note",
            )
        )
        return
    for label in ("set", "or"):
        setting = balance.setting(label)
        if setting is not None and setting.running > today.running:
            effect = f"{today.running:,} -> {setting.running:,} requests of {workload.describe()}"
            answer.suggestions.append(
                Suggestion(setting.flags, effect, "by the sizes the log prints", float(setting.running - today.running))
            )


def _unnamed(args: ServerArgs, slots_per_request: int | None) -> ServerArgs:
    if slots_per_request in _STRATEGIES:
        return replace(args, mamba_radix_cache_strategy=_STRATEGIES[slots_per_request])
    if slots_per_request == 3:
        return replace(args, mamba_radix_cache_strategy="no_buffer", disable_overlap_schedule=True)
    return replace(args, disable_radix_cache=True) if slots_per_request == 1 else args


def _idle(answer: Diagnosis, binding: str, percent: float, workload: Workload) -> None:
    if percent < 5:
        return
    if binding == "state":
        answer.findings.append(finding("HC110", f"{percent:.0f} % of the KV idle at {workload.describe()}"))
    elif binding == "kv":
        answer.findings.append(finding("HC111", f"{percent:.0f} % of the slots idle at {workload.describe()}"))
