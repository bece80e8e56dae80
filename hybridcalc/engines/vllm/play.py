"""What a page needs to recompute a vLLM plan in the browser: sizes of every combination of its settings."""

from dataclasses import replace
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
from hybridcalc.engines.vllm import AUTO_FIT, EngineArgs
from hybridcalc.engines.vllm.planner import Prepared, prepare, size
from hybridcalc.errors import HybridcalcError

KV_DTYPES = ("auto", "fp8")
RESULTS = {
    "at-once": "requests at once", "fits": "blocks admit", "blocks": "blocks", "each": "blocks a request",
    "per-request": "at max_model_len", "block": "tokens of a block",
}  # fmt: skip
CHARTS = {"memory": "What the memory of a GPU goes to", "lengths": "Requests at once by length"}


def play(model: Architecture, args: EngineArgs, rest: Rest, work: Workload) -> Play | None:
    """The settings of a vLLM plan; None where the browser could not follow it."""
    from hybridcalc.engines.vllm import ENGINE

    ready = prepare(model, args)
    if ready.args.max_model_len == AUTO_FIT:
        return None
    constants, own, ssm = constants_of(ready), args.tensor_parallel_size, args.mamba_ssm_cache_dtype
    dtypes = with_own(("auto", "float32", "float16") if ready.state else ("auto",), ssm)
    kv = with_own(KV_DTYPES, args.kv_cache_dtype)

    def sizes(ranks: int, kv_dtype: str, dtype: str) -> dict[str, Any]:
        changed = replace(args, tensor_parallel_size=ranks, kv_cache_dtype=kv_dtype, mamba_ssm_cache_dtype=dtype)
        return settled(ENGINE, model, changed, rest, sizes_of(model, changed, constants))

    table, seqs = table_of(own, (kv, dtypes), sizes), str(ready.args.seqs)
    controls = (
        length_control(int(work.mean_length or ready.length)),
        Control("seqs", "--max-num-seqs", seqs, 1, max(MOST_REQUESTS, ready.args.seqs)),
        memory_control("Memory for the cache, GiB a GPU", rest.likely_gib),
        ranks_control(table, own),
        one_of("ssm", "dtype of the state", ssm, dtypes),
        one_of("kv", "dtype of the KV cache", args.kv_cache_dtype, kv),
    )
    flags = {
        "tp": ("tensor_parallel_size", "1"),
        "kv": ("kv_cache_dtype", "auto"),
        "ssm": ("mamba_ssm_cache_dtype", "auto"),
        "seqs": ("max_num_seqs", seqs if args.max_num_seqs is None else ""),
    }
    data = {
        "engine": "vllm",
        "table": table,
        "constants": constants,
        "longest": LONGEST,
        "launch": launch_line(ENGINE, model, args, flags),
    }
    return Play(controls, RESULTS, CHARTS, data)


def sizes_of(model: Architecture, args: EngineArgs, usual: dict[str, Any]) -> dict[str, Any]:
    """Blocks of one combination of settings, with the constants that are not the ``usual`` ones, or why the engine
    refuses it whatever the memory.
    """
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
        "own": {name: value for name, value in constants_of(ready).items() if value != usual.get(name)},
    }


def constants_of(ready: Prepared) -> dict[str, Any]:
    """What hardly any control of the page changes of a vLLM plan."""
    return {
        "override": ready.args.num_gpu_blocks_override,
        "nullReserved": ready.rules.null_block_reserved,
        "dp": ready.args.data_parallel_size,
    }
