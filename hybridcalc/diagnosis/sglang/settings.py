"""What do this boot's pools admit for a workload, and which flags would serve it better?

The memory that reproduces the boot's own K and T is found first; then the engine's planner answers for other flags.
Where no single model fits, the measured sizes are used: they give a ratio and a pin, and no more.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from itertools import product
from typing import TYPE_CHECKING

from hybridcalc.architecture import Architecture
from hybridcalc.architecture.presets import load_model
from hybridcalc.diagnosis import shared
from hybridcalc.diagnosis.sglang.evidence import Case, log_constants
from hybridcalc.engines.sglang import ServerArgs
from hybridcalc.engines.sglang.planner import prepare, start
from hybridcalc.engines.sglang.server_plan import plan
from hybridcalc.errors import HybridcalcError
from hybridcalc.findings import Suggestion
from hybridcalc.units import GIB, format_bytes, parse_dtype, percent_text

if TYPE_CHECKING:
    from hybridcalc.engines.sglang.balance import Balance
    from hybridcalc.engines.sglang.sizes import Constants

PLENTY_GIB = 4096.0
CLOSE, FEW_SLOTS = 1, 50
"""Slots by which a planned K may miss the printed one, where there are more than a few: the memory is known to two
decimals.
"""
STRATEGIES: dict[int, tuple[dict[str, object], ...]] = {
    5: ({"mamba_radix_cache_strategy": "extra_buffer"},),
    4: (
        {"mamba_radix_cache_strategy": "extra_buffer_lazy"},
        {"mamba_radix_cache_strategy": "extra_buffer", "disable_overlap_schedule": True},
    ),
    3: ({"mamba_radix_cache_strategy": "no_buffer", "disable_overlap_schedule": True},),
    1: ({"disable_radix_cache": True},),
}
"""Slots a request -> the flags that may hold as many, the likeliest first."""


def settings_for(case: Case) -> None:
    """Binding pool, requests, idle share and suggestions, as far as the log allows."""
    if case.pools.slots is None or not case.pools.tokens:
        return
    best = case.best
    if best is not None and best.kv_bytes and len({c.sizes for c in case.answer.candidates}) == 1:
        try:
            found = _reproduced(case, case.model or load_model(best.model))
        except HybridcalcError:
            found = None
        if found is not None:
            _by_plan(case, *found)
            return
    _by_sizes(case)


def _reproduced(case: Case, model: Architecture) -> tuple[Architecture, ServerArgs, float] | None:
    """The arguments and the memory under which the planner gives the boot's own K and T; None where none do."""
    pools, derived, best = case.pools, case.derived, case.best
    slots, tokens = pools.slots, pools.tokens
    if best is None or slots is None or tokens is None:
        return None
    args = replace(
        case.args,
        tp_size=best.tp,
        dp_size=1,
        enable_dp_attention=False,
        kv_cache_dtype=parse_dtype(best.kv_dtype.replace("fp8 e5m2", "fp8_e5m2")) if best.kv_dtype else "auto",
        mamba_ssm_dtype=parse_dtype(best.ssm_dtype) if best.ssm_dtype else None,
        mem_fraction_static=None,
        max_running_requests=None,
        max_total_tokens=None,
    )
    if pools.scratch[0] and not args.speculative:
        if not derived.draft_tokens:
            return None
        drafts = derived.draft_tokens
        args = replace(args, speculative_algorithm="NEXTN", speculative_num_draft_tokens=drafts, draft_layers=0)
    if case.slots_per_request is not None:
        args = _with_slots(model, args, case.slots_per_request)
    args = replace(args, max_running_requests=_limit(case, prepare(model, args).slots.count))
    for version in dict.fromkeys((args.engine_version, None)):
        tried = replace(args, engine_version=version)
        pinned = replace(tried, max_mamba_cache_size=slots)
        try:
            ready = prepare(model, pinned)
            cell = max(stage.bytes for stage in ready.cells)
            charged = int(PLENTY_GIB * GIB) - start(ready, PLENTY_GIB).state.kv_bytes
        except HybridcalcError:
            continue
        rest = (charged + int((tokens + 0.5) * cell)) / GIB
        if derived.tokens_pinned:
            return model, replace(pinned, max_total_tokens=derived.tokens_pinned), rest
        if "max_mamba_cache_size" not in case.flags.given:
            for ratio in _ratios(case, tried):
                solved = replace(tried, mamba_full_memory_ratio=ratio, max_mamba_cache_size=None)
                if _gives(model, solved, rest, slots):
                    derived.ratio_used = ratio
                    return model, solved, rest
        return model, pinned, rest
    return None


def _gives(model: Architecture, args: ServerArgs, rest_gib: float, slots: int) -> bool:
    """Whether the engine makes so many slots of the memory."""
    try:
        got = start(prepare(model, args), rest_gib).state.slots
    except HybridcalcError:
        return False
    return abs(got - slots) <= (CLOSE if slots > FEW_SLOTS else 0)


def _ratios(case: Case, args: ServerArgs) -> list[float]:
    """Ratios that may have split the memory: the one asked for, and those the figures allow."""
    middle = sum(case.derived.mamba_full_memory_ratio or (0.9, 0.9)) / 2
    return list(dict.fromkeys((args.memory_ratio, 0.9, round(middle, 2), round(middle, 4))))


def _limit(case: Case, slots_per_request: int) -> int | None:
    """The request limit of a worker: as asked for, or the printed one where the slots would admit more."""
    asked, pools = case.flags.args.max_running_requests, case.pools
    if asked is not None:
        return max(1, asked // max(1, case.flags.args.attn_dp_size))
    if pools.requests is None or pools.slots is None:
        return None
    if case.boot.count("capped", "max_running_requests") == pools.requests:
        return None  # the slots made the limit
    if slots_per_request == 1 and pools.requests == pools.slots:
        return pools.requests  # without prefixes the limit itself is K
    return pools.requests if pools.requests < pools.slots // slots_per_request else None


def _with_slots(model: Architecture, args: ServerArgs, slots_per_request: int) -> ServerArgs:
    """``args`` with a strategy that holds so many slots a request."""
    for changes in ({}, *STRATEGIES.get(slots_per_request, ())):
        choice = replace(args, **changes)  # type: ignore[arg-type]  # each of its field's kind
        try:
            if prepare(model, choice).slots.count == slots_per_request:
                return choice
        except HybridcalcError:
            continue
    return args


def _by_plan(case: Case, model: Architecture, args: ServerArgs, rest_gib: float) -> None:
    answer, derived, workload = case.answer, case.derived, case.workload
    if workload.wanted is not None:
        each = shared(case.boot, workload.wanted, case.flags.args.dp_size).each
        workload = workload._replace(concurrency=each)
    planned = plan(model, args, rest_gib=rest_gib, workload=workload)
    answer.planned = planned
    derived.slots_per_request = planned.slots_per_request
    derived.slots_reason = planned.ready.slots.reason
    derived.planned_rest_gib = round(rest_gib, 4)
    derived.charged_bytes = sum(line.charged_bytes for line in planned.budget)
    derived.allocated_bytes = sum(line.allocated_bytes for line in planned.budget)
    uncharged = planned.uncharged_bytes
    said = "charged = allocated" if uncharged < 2**20 else f"{format_bytes(uncharged)} are allocated beyond the charge"
    answer.rows = [
        row._replace(arithmetic="; ".join(filter(None, (row.arithmetic, said)))) if row.place == "split" else row
        for row in answer.rows
    ]
    answer.steps += planned.steps
    if workload.mean_length is None:
        state_requests = planned.max_mamba_cache_size // planned.slots_per_request
        answer.binding = _binding(case, "state" if planned.max_running_requests == state_requests else "limit")
        derived.requests = planned.max_running_requests
        return
    capacity = planned.capacity
    answer.binding, derived.requests = _binding(case, planned.binding), planned.concurrency
    derived.state_requests, derived.kv_requests = capacity.state_requests, capacity.kv_requests
    _idle(case, capacity.idle_percent)
    answer.suggestions = [] if derived.tokens_pinned else list(planned.suggestions)
    if planned.args.dp_size > 1:
        answer.row("workers", f"{planned.args.dp_size}", "figures are per worker")


def _binding(case: Case, planned: str | None) -> str | None:
    """What binds: the state pool where the log says that it made the limit."""
    capped = case.boot.count("capped", "max_running_requests")
    return "state" if planned == "limit" and capped and capped == case.pools.requests else planned


def _by_sizes(case: Case) -> None:
    """Binding and suggestions by arithmetic on measured sizes alone."""
    pools, answer, derived, workload, limit = case.pools, case.answer, case.derived, case.workload, case.pools.requests
    if workload.mean_length is None:
        if case.slots_per_request is not None and pools.slots is not None:
            state = pools.slots // case.slots_per_request
            binding = "limit" if limit is not None and limit < state else "state" if limit == state else None
            answer.binding = _binding(case, binding)
            derived.requests = limit if answer.binding else None
        return
    if pools.state is None or pools.kv is None or not pools.tokens_sized:
        return
    guesses = STRATEGIES.get(case.slots_per_request or 0, ({},))
    args = replace(case.args, **guesses[0])  # type: ignore[arg-type]  # each of its field's kind
    try:
        measured = log_constants(pools.state, pools.kv, args)
        if round(measured.state_bytes) < 1 or round(measured.kv_bytes_per_token) < 1:
            return  # the counts are too large for the sizes: nothing is left for each
        rest = sum(derived.rest_gib) / 2 if derived.rest_gib else None
        from hybridcalc.engines.sglang.balance import Observed, balance_constants

        observed = Observed(pools.slots or 0, pools.tokens or 0)
        balance = balance_constants(measured, args, workload, rest_gib=rest, observed=observed)
    except HybridcalcError:
        return
    today = balance.setting("today")
    if today is None:
        return
    derived.state_requests, derived.kv_requests = today.state_requests, today.kv_requests
    if limit is not None and limit < today.running:
        answer.binding, derived.requests = _binding(case, "limit"), limit
        return  # no other split of the memory runs more than the limit
    answer.binding, derived.requests = today.binding, today.running
    derived.slots_per_request = derived.slots_per_request or balance.slots.count
    _idle(case, today.idle_percent)
    if derived.tokens_pinned:
        return  # no ratio moves them
    if pools.scratch[0]:
        left_open = "draft states are held, and how many is not printed: what other flags would come to is left open"
        answer.find("HC113", left_open, severity="note")
        return
    for label in ("set", "or"):
        setting = balance.setting(label)
        if setting is not None and setting.running > today.running:
            least, most = _at_ends(case, measured, args, setting.flags)
            why = "by the sizes the log prints"
            if label == "set":
                ratios = sorted(float(one.ratio) for one in _corners(case, measured, args))
                shown = list(dict.fromkeys(f"{ratio:.2f}" for ratio in (ratios[:1] + ratios[-1:])))
                why += f", which balance at {' to '.join(shown)}" if len(shown) > 1 else ""
            ends = min(least, setting.running), max(most, setting.running)
            found = Suggestion(setting.flags, today.running, setting.running, workload.describe(), why)
            found = found._replace(ends=ends if ends[0] < ends[1] else None)
            answer.suggestions.append(found)


def _at_ends(case: Case, measured: Constants, args: ServerArgs, flags: str) -> tuple[int, int]:
    """The fewest and the most requests that run with ``flags`` over the sizes that the log allows."""
    from hybridcalc.engines.sglang import ENGINE

    settings = [one.setting("today") for one in _corners(case, measured, ENGINE.changed(args, flags))]
    runs = [one.running for one in settings if one is not None]
    return min(runs, default=0), max(runs, default=0)


def _corners(case: Case, measured: Constants, args: ServerArgs) -> Iterator[Balance]:
    """Balances at the ends of a slot's and a token's sizes, each with the memory that the boot's pools take then."""
    from hybridcalc.engines.sglang.balance import balance_constants

    slots, tokens = case.pools.slots or 0, case.pools.tokens or 0
    for state, cell in product(measured.state_range or (), measured.kv_range or ()):
        rest = float(((slots + 1) * state + case.pools.scratch[0] + (tokens + 1) * cell) / GIB)
        sized = measured._replace(state_bytes=state, kv_bytes_per_token=cell)
        with suppress(HybridcalcError):
            yield balance_constants(sized, args, case.workload, rest_gib=rest)


def _idle(case: Case, percent: float) -> None:
    case.derived.idle_percent = round(percent, 2)
    pool = {"state": ("HC110", "KV"), "kv": ("HC111", "slots")}.get(case.answer.binding or "")
    if pool is not None and percent >= 5:
        case.answer.find(pool[0], f"{percent_text(percent)} % of the {pool[1]} idle at {case.workload.describe()}")


def answer_wanted(case: Case) -> None:
    """Whether the requests that are asked for run, and what they take of each pool."""
    pools, wanted, length = case.pools, case.workload.wanted, case.workload.mean_length
    each = case.slots_per_request or case.derived.slots_per_request
    if wanted is None:
        return
    args = case.flags.args
    share, asked = shared(case.boot, wanted, args.dp_size), args.max_running_requests
    limit = pools.requests
    if limit is None and asked is not None:
        limit = max(1, asked // max(1, args.attn_dp_size))
    takes, fixes, admitted = list[str](), list[str](), [limit] if limit is not None else []
    if each and pools.slots is not None:
        admitted.append(pools.slots // each)
        takes.append(f"{share.each * each:,} slots ({share.each} x {each}) of {pools.slots:,}")
        if pools.slots < share.each * each:
            fixes.append(f"--max-mamba-cache-size {(share.each * each + 1) * args.attn_dp_size}")
    if length is not None and pools.tokens:
        admitted.append(int(pools.tokens // length))
        takes.append(f"{int(share.each * length):,} tokens of {pools.tokens:,}")
        if pools.tokens < share.each * length:
            fixes.append("more memory for KV")
    if not admitted:
        return
    run = min(admitted) if case.derived.requests is None else min(*admitted, case.derived.requests)
    if limit is not None and limit < share.each and not case.boot.of("capped"):
        fixes.append(f"--max-running-requests {share.each * args.attn_dp_size}")
    said = f"{share.said} want " + " and ".join(takes) if takes else f"{share.said} are wanted"
    if run < share.each:
        case.answer.short(f"{said}: {run * share.workers} run", share.each, ", ".join(fixes))
    elif takes:
        case.answer.find("HC155", f"{said}: they run", severity="note")
