"""What a page needs to recompute an SGLang plan in the browser: sizes of every combination of its settings."""

from dataclasses import replace
from fractions import Fraction
from typing import Any

from hybridcalc.architecture.geometry import Architecture
from hybridcalc.deployment import Workload
from hybridcalc.engines.sglang.config import ServerArgs
from hybridcalc.engines.sglang.constants import architecture_constants, draft_kv_bytes, draft_states
from hybridcalc.engines.sglang.planner import Prepared, prepare
from hybridcalc.engines.sglang.pools import per_worker_limit
from hybridcalc.engines.sglang.settings import is_unified
from hybridcalc.errors import HybridcalcError
from hybridcalc.formulas.slots import STRATEGIES
from hybridcalc.output.pictures.chart import Axis, Picture
from hybridcalc.output.pictures.palette import LIGHT
from hybridcalc.output.pictures.play import (
    LEAST_GIB,
    LONGEST,
    MOST_GIB,
    MOST_REQUESTS,
    RANKS,
    Control,
    Play,
    Result,
    live_bar,
    live_curves,
    with_own,
)

STATE_DTYPES = ("float32", "bfloat16", "float16")
KV_DTYPES = ("auto", "fp8_e4m3")
RATIOS = (0.02, 50.0)


def sglang_play(model: Architecture, args: ServerArgs, rest_gib: float, work: Workload) -> Play | None:
    """The settings of an SGLang plan; None where the browser could not follow it."""
    ready, typed = prepare(model, args), args.mamba_radix_cache_strategy
    if is_unified(ready) or model.state is None or not any(cell.price for cell in ready.cells):
        return None
    args, kv = ready.args, with_own(KV_DTYPES, args.kv_cache_dtype)
    dtypes = with_own(STATE_DTYPES, ready.slot.ssm_dtype)
    strategies = [*STRATEGIES]
    table = dict[str, dict[str, Any]]()
    for tp in sorted({*RANKS, args.tp_size}):
        cells = {}
        for kv_dtype in kv:
            for ssm in dtypes:
                for strategy in strategies:
                    changed = replace(
                        args,
                        tp_size=tp,
                        kv_cache_dtype=kv_dtype,
                        mamba_ssm_dtype=ssm,
                        mamba_radix_cache_strategy=strategy,
                    )
                    cells["|".join((str(tp), kv_dtype, ssm, strategy))] = sglang_sizes(model, changed)
        if tp == args.tp_size or not all("refused" in cell for cell in cells.values()):
            table |= cells
    ranks = list(dict.fromkeys(key.split("|")[0] for key in table))
    length = int(work.mean_length or 8192)
    controls = (
        Control("length", "Tokens a request holds (L)", str(length), 1, max(LONGEST, length)),
        Control("concurrency", "Requests wanted at once", str(work.wanted or 32), 1, MOST_REQUESTS),
        Control("ratio", "--mamba-full-memory-ratio", f"{args.mamba_full_memory_ratio:g}", *RATIOS, whole=False),
        Control(
            "memory",
            "Memory for both pools, GiB a rank",
            repr(rest_gib),
            LEAST_GIB,
            max(MOST_GIB, rest_gib),
            whole=False,
        ),
        Control(
            "strategy",
            "Slots a request holds (S), by strategy",
            typed,
            choices=tuple((name, f"{name}{_slots(table, name)}{_resolved(model, args, name)}") for name in strategies),
        ),
        Control("tp", "Tensor-parallel ranks", str(args.tp_size), choices=tuple((r, f"tp {r}") for r in ranks)),
        Control("ssm", "dtype of the state", ready.slot.ssm_dtype, choices=tuple((d, d) for d in dtypes)),
        Control("kv", "dtype of the KV cache", args.kv_cache_dtype, choices=tuple((d, d) for d in kv)),
    )
    results = tuple(
        Result(*pair)
        for pair in (
            ("at-once", "requests at once"),
            ("by-state", "slots admit"),
            ("by-kv", "KV admits"),
            ("ratio-star", "r*"),
            ("slots", "K, state slots"),
            ("tokens", "KV tokens"),
            ("limit", "R, request limit"),
            ("slots-per-request", "S, slots a request"),
            ("pin", "slots that pin the wanted"),
            ("pin-at-once", "at once when pinned"),
        )
    )
    names = ("state slots admit", "KV tokens admit", "at the balanced ratio")
    low, high = RATIOS
    charts: dict[str, Picture] = {
        "memory": live_bar(
            (("state pool", "state"), ("draft states", "scratch"), ("KV pool", "kv"), ("unused", "unused"))
        ),
        "ratios": live_curves(
            "Requests at once by memory ratio",
            Axis("--mamba-full-memory-ratio", "ratio", True, low, high),
            Axis("requests at once"),
            names[:2],
            banded=True,
        ),
        "lengths": live_curves(
            "Requests at once by length",
            Axis("tokens a request holds", "tokens", True, 256, LONGEST),
            Axis("requests at once", "number", True),
            names,
        ),
    }
    return Play(
        controls,
        results,
        charts,
        {
            "engine": "sglang",
            "table": table,
            "constants": sglang_constants(ready),
            "slots": args.max_mamba_cache_size,
            "longest": LONGEST,
            "ratios": RATIOS,
            "series": {"ratios": names[:2], "lengths": names},
            "bands": {
                role: {"fill": LIGHT[f"{role} band"], "label": label}
                for role, label in (
                    ("state", "state pool binds"),
                    ("kv", "KV pool binds"),
                    ("limit", "request limit binds"),
                )
            },
        },
    )


def sglang_sizes(model: Architecture, args: ServerArgs) -> dict[str, Any]:
    """Sizes of one combination of settings, or why the engine refuses it before memory counts."""
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
    }


def sglang_constants(ready: Prepared) -> dict[str, Any]:
    """What no control of the page changes of an SGLang plan."""
    args, model = ready.args, ready.model
    window = None
    if model.window_attention is not None and model.window_layers:
        window = {"ratio": args.swa_full_tokens_ratio, "tokens": model.window or 0}
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
