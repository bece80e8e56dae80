"""What a page needs to recompute a vLLM plan in the browser: sizes of every combination of its settings."""

from dataclasses import replace
from typing import Any

from hybridcalc.architecture.geometry import Architecture
from hybridcalc.deployment import Workload
from hybridcalc.engines.vllm.config import AUTO_FIT, EngineArgs
from hybridcalc.engines.vllm.planner import Prepared, prepare, size
from hybridcalc.errors import HybridcalcError
from hybridcalc.output.pictures.chart import Axis, Picture
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

KV_DTYPES = ("auto", "fp8")


def vllm_play(model: Architecture, args: EngineArgs, gib: float, work: Workload) -> Play | None:
    """The settings of a vLLM plan; None where the browser could not follow it."""
    ready = prepare(model, args)
    args = ready.args
    if args.max_model_len == AUTO_FIT:
        return None
    ssm = args.mamba_ssm_cache_dtype
    dtypes = with_own(("auto", "float32", "float16") if ready.state else ("auto",), ssm)
    kv = with_own(KV_DTYPES, args.kv_cache_dtype)
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
        "memory": live_bar((("blocks of states", "state"), ("blocks of KV", "kv"), ("free", "unused"))),
        "lengths": live_curves(
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


def vllm_sizes(model: Architecture, args: EngineArgs) -> dict[str, Any]:
    """Blocks of one combination of settings, or why the engine refuses it whatever the memory."""
    try:
        ready = prepare(model, args)
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


def vllm_constants(ready: Prepared) -> dict[str, Any]:
    """What no control of the page changes of a vLLM plan."""
    return {"override": ready.args.num_gpu_blocks_override, "nullReserved": ready.rules.null_block_reserved}
