"""What a page needs to recompute a vLLM plan in the browser: sizes of every combination of its settings."""

from dataclasses import replace
from typing import Any

from hybridcalc.architecture.geometry import Architecture
from hybridcalc.deployment import Workload
from hybridcalc.engines.play import (
    LONGEST,
    MOST_REQUESTS,
    TOKENS,
    Control,
    Play,
    length_control,
    live_bar,
    live_curves,
    memory_control,
    one_of,
    ranks_control,
    table_of,
    with_own,
)
from hybridcalc.engines.vllm.config import AUTO_FIT, EngineArgs
from hybridcalc.engines.vllm.planner import Prepared, prepare, size
from hybridcalc.errors import HybridcalcError

KV_DTYPES = ("auto", "fp8")
RESULTS = {
    "at-once": "requests at once", "fits": "blocks admit", "blocks": "blocks", "each": "blocks a request",
    "per-request": "at max_model_len", "block": "tokens of a block",
}  # fmt: skip
CURVES = ("blocks admit", "--max-num-seqs")


def play(model: Architecture, args: EngineArgs, gib: float, work: Workload) -> Play | None:
    """The settings of a vLLM plan; None where the browser could not follow it."""
    ready = prepare(model, args)
    args = ready.args
    if args.max_model_len == AUTO_FIT:
        return None
    own, ssm = args.tensor_parallel_size, args.mamba_ssm_cache_dtype
    dtypes = with_own(("auto", "float32", "float16") if ready.state else ("auto",), ssm)
    kv = with_own(KV_DTYPES, args.kv_cache_dtype)

    def sizes(ranks: int, kv_dtype: str, dtype: str) -> dict[str, Any]:
        changed = replace(args, tensor_parallel_size=ranks, kv_cache_dtype=kv_dtype, mamba_ssm_cache_dtype=dtype)
        return sizes_of(model, changed)

    table = table_of(own, (kv, dtypes), sizes)
    controls = (
        length_control(int(work.mean_length or ready.length)),
        Control("seqs", "--max-num-seqs", str(args.seqs), 1, max(MOST_REQUESTS, args.seqs)),
        memory_control("Memory for the cache, GiB a GPU", gib),
        ranks_control(table, own),
        one_of("ssm", "dtype of the state", ssm, dtypes),
        one_of("kv", "dtype of the KV cache", args.kv_cache_dtype, kv),
    )
    return Play(
        controls,
        RESULTS,
        {
            "memory": live_bar(("blocks of states", "state"), ("blocks of KV", "kv"), ("free", "unused")),
            "lengths": live_curves("Requests at once by length", TOKENS, CURVES, roles=("kv", "balanced")),
        },
        {
            "engine": "vllm",
            "table": table,
            "constants": constants_of(ready),
            "longest": LONGEST,
            "series": {"lengths": CURVES},
        },
    )


def sizes_of(model: Architecture, args: EngineArgs) -> dict[str, Any]:
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


def constants_of(ready: Prepared) -> dict[str, Any]:
    """What no control of the page changes of a vLLM plan."""
    return {"override": ready.args.num_gpu_blocks_override, "nullReserved": ready.rules.null_block_reserved}
