"""What a page needs to recompute an SGLang plan in the browser: sizes of every combination of its settings."""

from dataclasses import replace
from fractions import Fraction
from typing import Any

from hybridcalc.architecture import Architecture
from hybridcalc.deployment import Rest, Workload
from hybridcalc.engines.play import (
    LONGEST,
    MOST_REQUESTS,
    Control,
    Play,
    launch_line,
    length_control,
    memory_control,
    one_of,
    ranks_control,
    settled,
    table_of,
    with_own,
)
from hybridcalc.engines.sglang import ServerArgs
from hybridcalc.engines.sglang.flags import STATE_DTYPES
from hybridcalc.engines.sglang.planner import Prepared, prepare
from hybridcalc.engines.sglang.pools import per_worker_limit
from hybridcalc.engines.sglang.sizes import architecture_constants, draft_kv_bytes, draft_states
from hybridcalc.errors import HybridcalcError
from hybridcalc.formulas import STRATEGIES

KV_DTYPES = ("auto", "fp8_e4m3")
RATIOS = (0.02, 50.0)
RESULTS = {
    "at-once": "requests at once", "by-state": "slots admit", "by-kv": "KV admits", "ratio-star": "r*",
    "slots": "K, state slots", "tokens": "KV tokens", "limit": "R, request limit",
    "slots-per-request": "S, slots a request", "pin": "slots that pin the wanted", "pin-at-once": "at once when pinned",
}  # fmt: skip
CHARTS = {
    "memory": "What the memory of a GPU goes to, as charged", "ratios": "Requests at once by memory ratio",
    "lengths": "Requests at once by length",
}  # fmt: skip


def play(model: Architecture, args: ServerArgs, rest: Rest, work: Workload) -> Play | None:
    """The settings of an SGLang plan; None where the browser could not follow it."""
    from hybridcalc.engines.sglang import ENGINE

    ready, typed = prepare(model, args), args.mamba_radix_cache_strategy
    if ready.unified or model.state is None or not any(cell.price for cell in ready.cells):
        return None
    constants, ratio = constants_of(ready), f"{ready.args.memory_ratio:g}"
    kv, dtypes = with_own(KV_DTYPES, args.kv_cache_dtype), with_own(STATE_DTYPES, ready.slot.ssm_dtype)

    def sizes(ranks: int, kv_dtype: str, ssm: str, strategy: str) -> dict[str, Any]:
        changed = replace(args, tp_size=ranks, kv_cache_dtype=kv_dtype, mamba_ssm_dtype=ssm)
        changed = replace(changed, mamba_radix_cache_strategy=strategy)
        return settled(ENGINE, model, changed, rest, sizes_of(model, changed, constants))

    table = table_of(args.tp_size, (kv, dtypes, STRATEGIES), sizes)
    strategies = {name: f"{name}{_slots(table, name)}{_resolved(model, args, name)}" for name in STRATEGIES}
    controls = (
        length_control(int(work.mean_length or 8192)),
        Control("concurrency", "Requests wanted at once", str(work.wanted or 32), 1, MOST_REQUESTS),
        Control("ratio", "--mamba-full-memory-ratio", ratio, *RATIOS, whole=False),
        memory_control("Memory for both pools, GiB a rank", rest.likely_gib),
        one_of("strategy", "Slots a request holds (S), by strategy", typed, STRATEGIES, **strategies),
        ranks_control(table, args.tp_size),
        one_of("ssm", "dtype of the state", ready.slot.ssm_dtype, dtypes),
        one_of("kv", "dtype of the KV cache", args.kv_cache_dtype, kv),
    )
    flags = {
        "tp": ("tp_size", "1"),
        "kv": ("kv_cache_dtype", "auto"),
        "ssm": ("mamba_ssm_dtype", ready.slot.ssm_dtype if args.mamba_ssm_dtype is None else ""),
        "strategy": ("mamba_radix_cache_strategy", "auto"),
        "ratio": ("mamba_full_memory_ratio", ratio if args.mamba_full_memory_ratio is None else ""),
    }
    data = {
        "engine": "sglang",
        "table": table,
        "constants": constants,
        "slots": args.max_mamba_cache_size,
        "longest": LONGEST,
        "ratios": RATIOS,
        "launch": launch_line(ENGINE, model, args, flags),
    }
    return Play(controls, RESULTS, CHARTS, data)


def sizes_of(model: Architecture, args: ServerArgs, usual: dict[str, Any]) -> dict[str, Any]:
    """Sizes of one combination of settings, with the constants that are not the ``usual`` ones, or why the engine
    refuses it before memory counts.
    """
    try:
        ready = prepare(model, args)
        if ready.unbuildable is not None:
            raise ready.unbuildable.refusal()
        constants = architecture_constants(model, ready.args, ready.rules)
    except HybridcalcError as refusal:
        return {"refused": refusal.message}
    drafts, _ = draft_states(ready.args, active=ready.replay_active)
    return {
        "slot": ready.stage_slot_bytes,
        "ringSlot": ready.rings.per_slot,
        "ringRequest": ready.rings.per_request,
        "S": ready.slots.count,
        "prices": [cell.price for cell in ready.cells],
        "replay": ready.replay_active,
        "state": _number(constants.state_bytes),
        "kv": _number(constants.kv_bytes_per_token),
        "draftStates": drafts,
        "draftKv": draft_kv_bytes(model, ready.args, ready.rules),
        "own": {name: value for name, value in constants_of(ready).items() if value != usual.get(name)},
    }


def constants_of(ready: Prepared) -> dict[str, Any]:
    """What hardly any control of the page changes of an SGLang plan."""
    args, model = ready.args, ready.model
    window = None
    if model.window_attention is not None and model.window_layers:
        window = {"ratio": args.window_ratio, "tokens": model.window or 0}
    return {
        "dp": args.attn_dp_size,
        "dcp": args.dcp_size,
        "page": args.tokens_per_page,
        "context": ready.context_length,
        "draftTokens": args.draft_tokens,
        "radix": args.radix_cache,
        "perWorker": per_worker_limit(args, ready.rules),
        "keepsDrafts": args.speculative and args.disaggregation_mode != "prefill",
        "maxTotal": args.max_total_tokens,
        "paddingCharged": ready.rules.padding_slot_charged,
        "window": window,
    }


def _number(value: int | Fraction) -> int | float:
    return int(value) if value == int(value) else float(value)


def _slots(table: dict[str, dict[str, Any]], strategy: str) -> str:
    counts = {cell["S"] for key, cell in table.items() if key.endswith(f"|{strategy}") and "S" in cell}
    return f": {min(counts)} slot{'s' if min(counts) > 1 else ''}" if len(counts) == 1 else ""


def _resolved(model: Architecture, args: ServerArgs, strategy: str) -> str:
    """What the engine makes of a strategy that it chooses itself."""
    try:
        found = prepare(model, replace(args, mamba_radix_cache_strategy=strategy)).choice.strategy
    except HybridcalcError:
        return ""
    return f" ({found})" if found != strategy else ""
