"""What a page needs to recompute a plan in the browser: sizes of every combination, and the pictures to redraw.

The browser repeats the arithmetic that depends on memory, length and ratio (web/arithmetic.js); what depends on ranks,
dtypes and strategy is computed here and handed over in a table. Flags without a control stay as they were given;
unified memory and a fitted max_model_len have no settings.
"""

from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from typing import Any, NamedTuple

from hybridcalc.architecture.geometry import Architecture
from hybridcalc.deployment import Workload
from hybridcalc.engines.sglang import config as sglang_config
from hybridcalc.engines.sglang.allocation import check_allocation, check_kv_pages
from hybridcalc.engines.sglang.constants import architecture_constants, draft_kv_bytes, draft_states
from hybridcalc.engines.sglang.planner import Prepared, prepare
from hybridcalc.engines.sglang.pools import per_worker_limit
from hybridcalc.engines.sglang.unified import is_unified
from hybridcalc.errors import HybridcalcError
from hybridcalc.formulas.slots import STRATEGIES
from hybridcalc.output.pictures.chart import Axis, Bar, Bars, Chart, Mark, Picture, Series
from hybridcalc.output.pictures.memory import part
from hybridcalc.output.pictures.palette import LIGHT, on
from hybridcalc.units import GIB

RANKS = (1, 2, 4, 8, 16, 32)
STATE_DTYPES = ("float32", "bfloat16", "float16")
SGLANG_KV, VLLM_KV = ("auto", "fp8_e4m3"), ("auto", "fp8")
LONGEST, MOST_REQUESTS = 2**20, 10_000
LEAST_GIB, MOST_GIB = 0.5, 256.0
RATIOS = (0.02, 50.0)


class Control(NamedTuple):
    """One setting of the page: a number in [low, high], or one of ``choices`` (value and what it is called)."""

    name: str
    label: str
    value: str
    low: float = 0
    high: float = 0
    whole: bool = True
    choices: tuple[tuple[str, str], ...] = ()


class Result(NamedTuple):
    """One figure that the browser writes."""

    name: str
    label: str


class Play(NamedTuple):
    """All of it: ``data`` is what the script reads, ``charts`` the pictures it redraws."""

    controls: tuple[Control, ...]
    results: tuple[Result, ...]
    charts: dict[str, Picture]
    data: dict[str, Any]


def sglang_play(model: Architecture, args: sglang_config.ServerArgs, rest_gib: float, work: Workload) -> Play | None:
    """The settings of an SGLang plan; None where the browser could not follow it."""
    ready, typed = prepare(model, args), args.mamba_radix_cache_strategy
    if is_unified(ready) or model.state is None or not any(cell.price for cell in ready.cells):
        return None
    args, kv = ready.args, _with(SGLANG_KV, args.kv_cache_dtype)
    dtypes = _with(STATE_DTYPES, ready.slot.ssm_dtype)
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
        "memory": _bar((("state pool", "state"), ("draft states", "scratch"), ("KV pool", "kv"), ("unused", "unused"))),
        "ratios": _curves(
            "Requests at once by memory ratio",
            Axis("--mamba-full-memory-ratio", "ratio", True, low, high),
            Axis("requests at once"),
            names[:2],
            banded=True,
        ),
        "lengths": _curves(
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


def vllm_play(model: Architecture, args: Any, gib: float, work: Workload) -> Play | None:
    """The settings of a vLLM plan; None where the browser could not follow it."""
    from hybridcalc.engines.vllm.planner import prepare as prepare_vllm

    ready = prepare_vllm(model, args)
    args = ready.args
    if args.max_model_len == -1:
        return None
    ssm = args.mamba_ssm_cache_dtype
    dtypes = _with(("auto", "float32", "float16") if ready.state else ("auto",), ssm)
    kv = _with(VLLM_KV, args.kv_cache_dtype)
    table = dict[str, dict[str, Any]]()
    for tp in sorted({*RANKS, args.tensor_parallel_size}):
        cells = {}
        for kv_dtype in kv:
            for dtype in dtypes:
                changed = replace(args, tensor_parallel_size=tp, kv_cache_dtype=kv_dtype, mamba_ssm_cache_dtype=dtype)
                cells["|".join((str(tp), kv_dtype, dtype))] = vllm_sizes(model, changed)
        if tp == args.tensor_parallel_size or not all("refused" in cell for cell in cells.values()):
            table |= cells
    ranks = list(dict.fromkeys(key.split("|")[0] for key in table))
    length = int(work.mean_length or ready.length)
    controls = (
        Control("length", "Tokens a request holds (L)", str(length), 1, max(LONGEST, length)),
        Control("seqs", "--max-num-seqs", str(args.seqs), 1, max(MOST_REQUESTS, args.seqs)),
        Control("memory", "Memory for the cache, GiB a GPU", repr(gib), LEAST_GIB, max(MOST_GIB, gib), False),
        Control(
            "tp", "Tensor-parallel ranks", str(args.tensor_parallel_size), choices=tuple((r, f"tp {r}") for r in ranks)
        ),
        Control("ssm", "dtype of the state", ssm, choices=tuple((d, d) for d in dtypes)),
        Control("kv", "dtype of the KV cache", args.kv_cache_dtype, choices=tuple((d, d) for d in kv)),
    )
    results = tuple(
        Result(*pair)
        for pair in (
            ("at-once", "requests at once"),
            ("fits", "blocks admit"),
            ("blocks", "blocks"),
            ("each", "blocks a request"),
            ("per-request", "at max_model_len"),
            ("block", "tokens of a block"),
        )
    )
    names = ("blocks admit", "--max-num-seqs")
    charts: dict[str, Picture] = {
        "memory": _bar((("blocks of states", "state"), ("blocks of KV", "kv"), ("free", "unused"))),
        "lengths": _curves(
            "Requests at once by length",
            Axis("tokens a request holds", "tokens", True, 256, LONGEST),
            Axis("requests at once", "number", True),
            names,
            roles=("kv", "balanced"),
        ),
    }
    return Play(
        controls,
        results,
        charts,
        {
            "engine": "vllm",
            "table": table,
            "constants": vllm_constants(ready),
            "longest": LONGEST,
            "series": {"lengths": names},
        },
    )


def script_data(play: Play, compiled: dict[str, Any], width: int) -> dict[str, Any]:
    """What the page's script reads."""
    controls = [
        {"name": c.name, "label": c.label, "low": c.low, "high": c.high, "whole": c.whole, "choices": bool(c.choices)}
        for c in play.controls
    ]
    return play.data | {
        "controls": controls,
        "results": [result.name for result in play.results],
        "charts": compiled,
        "width": width,
        "inks": {role: on(role) for role in ("state", "kv", "scratch", "unused")},
    }


def sglang_sizes(model: Architecture, args: sglang_config.ServerArgs) -> dict[str, Any]:
    """Sizes of one combination of settings, or why the engine refuses it before memory counts."""
    try:
        ready = prepare(model, args)
        check_allocation(model, ready.args, replay_active=ready.replay_active)
        check_kv_pages(model, ready.args)
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


def vllm_constants(ready: Any) -> dict[str, Any]:
    """What no control of the page changes of a vLLM plan."""
    return {"override": ready.args.num_gpu_blocks_override, "nullReserved": ready.rules.null_block_reserved}


def vllm_sizes(model: Architecture, args: Any) -> dict[str, Any]:
    """Blocks of one combination of settings, or why the engine refuses it whatever the memory."""
    from hybridcalc.engines.vllm.planner import prepare as prepare_vllm
    from hybridcalc.engines.vllm.planner import size

    try:
        ready = prepare_vllm(model, args)
        room = max(args.seqs, ready.blocks_at(ready.length)) + 2
        size(ready._replace(args=replace(ready.args, num_gpu_blocks_override=None)), ready.bytes_per_block * room)
    except HybridcalcError as refusal:
        return {"refused": refusal.message}
    held = ready.held
    return {
        "groups": [{"kind": group.kind, "block": group.block} for group in ready.groups],
        "mode": held.mode,
        "drafts": held.drafts,
        "checkpoints": held.checkpoints,
        "dcp": held.dcp,
        "window": held.window,
        "inFlight": held.in_flight_tokens,
        "perBlock": ready.bytes_per_block,
        "length": ready.length,
        "block": ready.pages.block,
        "seqsChecked": ready.seqs_checked,
    }


def _number(value: int | Fraction) -> int | float:
    return int(value) if value == int(value) else float(value)


def _with(usual: Sequence[str], own: str) -> list[str]:
    return [*usual, *([] if own in usual else [own])]


def _slots(table: dict[str, dict[str, Any]], strategy: str) -> str:
    counts = {cell["S"] for key, cell in table.items() if key.endswith(f"|{strategy}") and "S" in cell}
    return f": {min(counts)} slot{'s' if min(counts) > 1 else ''}" if len(counts) == 1 else ""


def _resolved(model: Architecture, args: sglang_config.ServerArgs, strategy: str) -> str:
    """What the engine makes of a strategy that it chooses itself."""
    try:
        found = prepare(model, replace(args, mamba_radix_cache_strategy=strategy)).choice.strategy
    except HybridcalcError:
        return ""
    return f" ({found})" if found != strategy else ""


def _bar(parts: Sequence[tuple[str, str]]) -> Bars:
    """A bar with every part the script may draw; it brings their sizes."""
    row = Bar("", tuple(part(name, role, GIB) for name, role in parts))
    return Bars("What the memory goes to, as charged", "", "GiB", (row,), live=True)


def _curves(
    title: str,
    x: Axis,
    y: Axis,
    names: Sequence[str],
    *,
    roles: Sequence[str] = ("state", "kv", "balanced"),
    banded: bool = False,
) -> Chart:
    from hybridcalc.output.pictures.chart import Band

    styles = ("line", "line" if len(names) == 3 or banded else "dashed", "dashed")
    series = tuple(
        Series(name, role, ((x.low or 1, 1.0), (x.high or 1, 2.0)), name[0], style)
        for name, role, style in zip(names, roles, styles, strict=False)
    )
    bands = (Band(x.low or 1, x.high or 1, "", "state"),) if banded else ()
    return Chart(title, "", x, y, series, (Mark(x.low or 1, ""),), bands, live=True)
