"""How much memory does vLLM leave for its cache, from what is known before a boot?

    available = total x gpu_memory_utilization - weights - beside - graphs        GiB, on one GPU

total: what the CUDA or HIP runtime gives. beside: what profiling finds beside the weights (libraries, NCCL buffers, the
sampler, a forward of max_num_batched_tokens, an encoder), given by the user or estimated: by the class of machine from
public boots, cut by the parts where flags are known. graphs: their estimate, where a release charges it.
--kv-cache-memory-bytes says the result itself. Mirrors vLLM v1/worker/gpu_worker.py determine_available_memory; a
measured boot prints it as `Available KV cache memory`.
"""

from dataclasses import replace
from typing import TYPE_CHECKING

from hybridcalc.architecture import Architecture
from hybridcalc.deployment import COMPUTED, ESTIMATED, GIVEN, HEADROOM, Memory, MemoryPart, Rest, exact_rest, one_way
from hybridcalc.engines.engine import WEIGHTS_BUDGET
from hybridcalc.engines.vllm import EngineArgs
from hybridcalc.engines.vllm.planner import prepare
from hybridcalc.engines.vllm.releases import rules_for
from hybridcalc.errors import InputError, Refusal, Write
from hybridcalc.units import GIB

if TYPE_CHECKING:
    from hybridcalc.hardware import Gpu

TOGETHER = "beside"
"""The name of all parts beside weights and cache, whose sum boots bound better than the parts are known."""


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
    said = rest_from_flag(args)
    if said is not None:  # a GPU beside it says kernels, ranks and pace
        return said._replace(gpu=None if known.gpu is None else known.gpu.source)
    weights = None if known.gpu is None else known.weights_part()
    if args.num_gpu_blocks_override is not None and (known.gpu is None or weights is None):
        return exact_rest(
            args.num_gpu_blocks_override * prepare(model, args).bytes_per_block / GIB, "--num-gpu-blocks-override"
        )
    if known.gpu is not None and weights is not None:
        return rest_from_gpu(known.gpu, weights, model, args, non_cache_gib=known.non_cache)
    raise known.unknown("free for the cache", "or --available SIZE, or --kv-cache-memory-bytes")


def rest_from_flag(args: EngineArgs) -> Rest | None:
    """The memory that --kv-cache-memory-bytes asks for; None without the flag."""
    if args.kv_cache_memory_bytes is None:
        return None
    return exact_rest(args.kv_cache_memory_bytes / GIB, "--kv-cache-memory-bytes")


def rest_from_gpu(
    gpu: "Gpu", weights: MemoryPart, model: Architecture, args: EngineArgs, *, non_cache_gib: float | None = None
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
    if weights.likely >= budget:
        refusal = Refusal(
            f"weights alone take {weights.likely:.2f} of {budget:.2f} GiB ({share:g} of {gpu.engine_gib:.2f})",
            stage="initialize_model",
            rule="HC040",
            fix="more ranks (-tp) or a larger GPU",
        )
        usual = replace(args, gpu_memory_utilization=None).utilization
        if share < usual and weights.high < gpu.engine_gib * usual:
            refusal.fix = f"raise --gpu-memory-utilization: the default, {usual:g}, holds them"
        else:
            refusal.outputs[WEIGHTS_BUDGET] = budget
        raise refusal
    if non_cache_gib is not None:
        all_beside = MemoryPart.of(TOGETHER, non_cache_gib, GIVEN, "--non-cache")
        parts: tuple[MemoryPart, ...] = ()
    else:
        all_beside, parts = beside(gpu, model, args)
    charged = graphs(args, gpu)
    held = (all_beside, *((charged,) if charged.high else ()))
    left = budget - weights.likely
    said = "".join(f" - {part.text} {'of graphs' if part is charged else 'beside'}" for part in held)
    return Rest(
        left - sum(part.likely for part in held),
        budget - weights.high - sum(part.high for part in held),
        budget - weights.low - sum(part.low for part in held),
        f"{gpu.engine_gib:.2f} GiB ({gpu.source}) x {share:g} - {weights.text} of weights{said}",
        gpu.engine_gib,
        (
            ("weights", weights.likely),
            ("activations, graphs", sum(part.likely for part in held)),
            (HEADROOM, gpu.engine_gib - budget),
        ),
        gpu.source,
        gpu.engine_gib,
        weights.why,
        (weights, *held, *parts, MemoryPart.of(HEADROOM, gpu.engine_gib - budget, COMPUTED, f"1 - {share:g} of all")),
    )


LARGE_GIB = 70.0
CLASSES = {
    "unified": (2.0, 4.5, 8.0), "one small": (0.2, 0.9, 2.3), "one large": (1.5, 2.3, 3.3),
    "several small": (0.3, 1.4, 2.4), "several large": (2.4, 5.6, 7.4),
}  # fmt: skip
"""Least, likely and most GiB beside weights and cache, without an estimate of graphs: 40 of 42 boots of releases from
0.10 on. "Small" cards have less than 70 GiB.
"""
NON_TORCH = {
    "unified": (0.1, 1.0, 5.7), "one": (0.02, 0.2, 0.34), "PCIe": (0.1, 1.0, 1.84), "NVLink": (0.95, 1.7, 1.84),
}  # fmt: skip
"""What the driver holds for the process: libraries, NCCL buffers. GiB."""
SAMPLER_BYTES = (4, 19, 38)
"""Bytes a sequence and token of the vocabulary that sampling takes: 7 in FlashInfer's, 33 to 40 where it sorts."""
SAMPLER_OF_CLASS = {"several large": 5.6}
"""GiB of sampling that the boots behind a class held: 1,024 sequences of 152,000 tokens on several large cards, a
quarter of that elsewhere. More of it is on top of the class's bound: 9.0 GiB for 1,024 sequences of 248,320 tokens.
"""
ENCODER = (0.2, 0.5, 1.2)
GRAPHS_ESTIMATE = {"small": (0.1, 0.4, 0.6), "large": (0.1, 0.6, 5.0), "unified": (0.2, 1.5, 1.9)}


def kind_of(gpu: "Gpu", args: EngineArgs) -> str:
    """The class of machine, one of CLASSES."""
    if gpu.unified:
        return "unified"
    several = args.tensor_parallel_size * args.pipeline_parallel_size > 1
    return f"{'several' if several else 'one'} {'large' if gpu.engine_gib >= LARGE_GIB else 'small'}"


def beside(gpu: "Gpu", model: Architecture, args: EngineArgs) -> tuple[MemoryPart, tuple[MemoryPart, ...]]:
    """What a boot takes beside weights and cache, and its named parts: the bound of the class of machine, cut by the
    sum of the parts where flags make it narrower, and wider by sampling that its boots did not have.
    """
    kind = kind_of(gpu, args)
    non_torch = NON_TORCH[
        kind if kind == "unified" else "one" if kind.startswith("one") else "NVLink" if gpu.linked else "PCIe"
    ]
    parts = [MemoryPart("non-torch", *non_torch, ESTIMATED, "libraries, NCCL buffers")]
    from hybridcalc.architecture.weights import widths_of

    sizes = widths_of(model)
    if sizes is not None:
        low, likely, high = (size * args.seqs * sizes.vocabulary / GIB for size in SAMPLER_BYTES)
        many = f"{args.seqs:,} sequences x {sizes.vocabulary:,} tokens of the vocabulary"
        parts.append(MemoryPart("sampler", low, likely, high, ESTIMATED, f"4 to 38 B x {many}"))
        each = 40 * sizes.hidden if sizes.experts else 6 * sizes.inner // args.tensor_parallel_size + 2 * sizes.hidden
        forward = args.batched_tokens * each / GIB
        parts.append(
            MemoryPart(
                "forward", forward / 2, forward, forward * 2, ESTIMATED, f"{args.batched_tokens:,} batched tokens"
            )
        )
    if model.multimodal and not args.language_model_only:
        parts.append(MemoryPart("encoder", *ENCODER, ESTIMATED, "one pass of the vision tower"))
    low, likely, high = CLASSES[kind]
    if sizes is not None and kind != "unified":  # there the host's page cache moves more than any part
        more = next(part.high for part in parts if part.name == "sampler") - SAMPLER_OF_CLASS.get(kind, 1.4)
        low = max(low, min(sum(part.low for part in parts), high))
        high = max(low, min(high + max(0.0, more), sum(part.high for part in parts)))
    likely = min(max(likely, low), high)
    why = (
        f"boots with {kind} card{'s' if kind.startswith('several') else ''}" if kind != "unified" else "unified memory"
    )
    return MemoryPart(TOGETHER, low, likely, high, ESTIMATED, why), tuple(parts)


def graphs(args: EngineArgs, gpu: "Gpu") -> MemoryPart:
    """What CUDA graphs are estimated to take and charged before the cache is sized; nothing where they are not."""
    rules = rules_for(args.engine_version)[0]
    off = args.env.get("VLLM_MEMORY_PROFILER_ESTIMATE_CUDAGRAPHS", "").strip() == "0"
    on_v2 = args.env.get("VLLM_USE_V2_MODEL_RUNNER", "1" if rules.runner_v2 else "0").strip() != "0"
    if args.enforce_eager or off or on_v2 or not rules.graphs_charged:
        return MemoryPart.of("graphs", 0.0, COMPUTED)
    size = "unified" if gpu.unified else "large" if gpu.engine_gib >= LARGE_GIB else "small"
    return MemoryPart(
        "graphs", *GRAPHS_ESTIMATE[size], ESTIMATED, "charged by its own estimate before the cache is sized"
    )
