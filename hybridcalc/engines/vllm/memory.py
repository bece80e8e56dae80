"""How much memory does vLLM leave for its cache, from what is known before a boot?

    available = total x gpu_memory_utilization - weights - non-cache        GiB, on one GPU

total: the GPU's memory as its driver reports it. non-cache: what profiling finds beside the weights (activations, CUDA
context, NCCL buffers, graphs), given by the user or estimated. --kv-cache-memory-bytes says the result itself. Mirrors
vLLM v1/worker/gpu_worker.py determine_available_memory; a measured boot prints it as `Available KV cache memory`.
"""

from hybridcalc.deployment import HEADROOM, Rest, exact_rest
from hybridcalc.engines.vllm.config import EngineArgs, Refusal
from hybridcalc.errors import InputError
from hybridcalc.hardware import Gpu
from hybridcalc.units import GIB

NON_CACHE_GIB = (1.5, 3.0, 6.0)
"""Least, likely and most that boots of one GPU take beside weights and cache. An estimate, and said to be one."""


def rest_from_flag(args: EngineArgs) -> Rest | None:
    """The memory that --kv-cache-memory-bytes asks for; None without the flag."""
    if args.kv_cache_memory_bytes is None:
        return None
    return exact_rest(args.kv_cache_memory_bytes / GIB, "--kv-cache-memory-bytes")


def rest_from_gpu(gpu: Gpu, weights_gib: float, args: EngineArgs, *, non_cache_gib: float | None = None) -> Rest:
    """From the GPU, the weights on one rank and --gpu-memory-utilization; ``non_cache_gib`` None is estimated.

    Raises Refusal for weights that do not fit.
    """
    share = args.gpu_memory_utilization
    if not 0 < share <= 1:
        raise InputError(f"--gpu-memory-utilization {share:g} is not a share of the memory", fix="write 0.92")
    budget = gpu.gib * share
    if weights_gib >= budget:
        raise Refusal(
            f"weights of {weights_gib:.2f} GiB do not fit {budget:.2f} GiB ({share:g} of {gpu.gib:.2f})",
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
        f"{gpu.gib:.2f} GiB ({gpu.source}) x {share:g} - {weights_gib:.2f} of weights - {said}",
        gpu.gib,
        (("weights", weights_gib), ("activations, graphs", likely), (HEADROOM, gpu.gib - budget)),
    )
