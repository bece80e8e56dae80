"""How much memory does vLLM leave for its cache, from what is known before a boot?

    available = total x gpu_memory_utilization - weights - non-cache        GiB, on one GPU

total: the GPU's memory as its driver reports it. non-cache: what profiling finds beside the weights (activations, CUDA
context, NCCL buffers, graphs), given by the user or estimated. --kv-cache-memory-bytes says the result itself. Mirrors
vLLM v1/worker/gpu_worker.py determine_available_memory; a measured boot prints it as `Available KV cache memory`.
"""

from typing import TYPE_CHECKING

from hybridcalc.architecture.geometry import Architecture
from hybridcalc.deployment import GPU, HEADROOM, WEIGHTS, Memory, Rest, exact_rest, one_way
from hybridcalc.engines.vllm.config import EngineArgs
from hybridcalc.engines.vllm.planner import prepare
from hybridcalc.errors import InputError, MemoryUnknown, Refusal, Write
from hybridcalc.units import GIB

if TYPE_CHECKING:
    from hybridcalc.hardware import Gpu

NON_CACHE_GIB = (1.5, 3.0, 6.0)
"""Least, likely and most that boots of one GPU take beside weights and cache. An estimate, and said to be one."""


def check_memory(known: Memory) -> None:
    """Raise InputError for figures of which one would be ignored, or that say nothing alone."""
    for flag, value in (("--weights", known.weights), ("--non-cache", known.non_cache)):
        if value is not None and known.gpu is None:
            raise InputError(f"{flag} says nothing without --gpu", fix="add --gpu NAME, or leave it out")
    one_way({"--available": known.available is not None, "--gpu": known.weights is not None})


def rest_of(model: Architecture, args: EngineArgs, known: Memory) -> Rest:
    """The memory for the cache: as given, as a flag says it or the blocks, or from the GPU and the weights.

    Raises MemoryUnknown where they are not all there, Refusal for weights that do not fit and what start-up refuses.
    """
    if known.available is not None:
        return exact_rest(known.available)
    flagged = rest_from_flag(args)
    if flagged is not None:
        return flagged
    weights = known.weights_of(args.tensor_parallel_size * args.pipeline_parallel_size)
    if args.num_gpu_blocks_override is not None and (known.gpu is None or weights is None):
        return exact_rest(
            args.num_gpu_blocks_override * prepare(model, args).bytes_per_block / GIB, "--num-gpu-blocks-override"
        )
    if known.gpu is not None and weights is not None:
        return rest_from_gpu(known.gpu, weights, args, non_cache_gib=known.non_cache, weights_from=known.weights_from)
    figures = tuple(name for name, value in {GPU: known.gpu, WEIGHTS: weights}.items() if value is None)
    if known.gpu is not None:
        raise MemoryUnknown("--gpu needs the weights on one rank", figures=figures, fix="add --weights SIZE")
    raise MemoryUnknown(
        "plan needs the memory free for the cache: add --available SIZE",
        figures=figures,
        fix="or --gpu with --weights, or --kv-cache-memory-bytes",
    )


def rest_from_flag(args: EngineArgs) -> Rest | None:
    """The memory that --kv-cache-memory-bytes asks for; None without the flag."""
    if args.kv_cache_memory_bytes is None:
        return None
    return exact_rest(args.kv_cache_memory_bytes / GIB, "--kv-cache-memory-bytes")


def rest_from_gpu(
    gpu: "Gpu",
    weights_gib: float,
    args: EngineArgs,
    *,
    non_cache_gib: float | None = None,
    weights_from: str = "--weights",
) -> Rest:
    """From the GPU, the weights on one rank and --gpu-memory-utilization; ``non_cache_gib`` None is estimated.

    Raises Refusal for weights that do not fit.
    """
    share = args.utilization
    if not 0 < share <= 1:
        raise InputError(
            f"--gpu-memory-utilization {share:g} is not a share of the memory",
            fix=Write("", "0.92"),
            flag="--gpu-memory-utilization",
        )
    budget = gpu.engine_gib * share
    if weights_gib >= budget:
        raise Refusal(
            f"weights of {weights_gib:.2f} GiB do not fit {budget:.2f} GiB ({share:g} of {gpu.engine_gib:.2f})",
            stage="initialize_model",
            rule="HC040",
            fix="more ranks (-tp), a quantised checkpoint, or a larger GPU",
        )
    least, likely, most = (non_cache_gib,) * 3 if non_cache_gib is not None else NON_CACHE_GIB
    said = f"{likely:.2f} beside" if non_cache_gib is not None else f"about {likely:.1f} ({least:g} to {most:g}) beside"
    left = budget - weights_gib
    return Rest(
        left - likely,
        left - most,
        left - least,
        f"{gpu.engine_gib:.2f} GiB ({gpu.source}) x {share:g} - {weights_gib:.2f} of weights - {said}",
        gpu.engine_gib,
        (("weights", weights_gib), ("activations, graphs", likely), (HEADROOM, gpu.engine_gib - budget)),
        gpu.source,
        gpu.engine_gib,
        weights_from,
    )
