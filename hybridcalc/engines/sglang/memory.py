"""How much memory do SGLang's pools share, from what is known before a boot or printed by one?

    rest  = available - slack - multimodal reserve           GiB, floats in the engine's order
    slack = free before the weights * (1 - mem_fraction_static)

available: free after the weights. Known from the two ``avail mem`` figures of a boot (printed to two decimals: an
interval), or estimated from the GPU, the weights on one rank and the fraction. Two terms are newer than 0.5.16: the
reserve of a multimodal model, SGLANG_VLM_CACHE_SIZE_MB and with ``--mm-feature-transport cuda_ipc|cuda_vmm`` also
SGLANG_MM_FEATURE_CACHE_MB; and, where SGLANG_ENABLE_POST_CAPTURE_KV_SIZING has KV sized after graph capture, a least
slack of 512 + 1.5 * max(tokens, 2048) + tp * pp / 8 * 1024 MB, 10,240 MB on GPUs above 60 GiB.

Mirrors kv_cache_configurator.py _profile_available_bytes, runtime_context.py pre_capture_activation_reserve_mb and
arg_groups/overrides.py post_capture_kv_sizing_planned (0.5.23).
"""

from typing import TYPE_CHECKING

from hybridcalc.architecture import Architecture
from hybridcalc.deployment import COMPUTED, ESTIMATED, HEADROOM, Memory, MemoryPart, Rest, exact_rest, one_way
from hybridcalc.engines.engine import WEIGHTS_BUDGET
from hybridcalc.engines.sglang import ServerArgs
from hybridcalc.engines.sglang.releases import rules_for
from hybridcalc.errors import InputError, Refusal

if TYPE_CHECKING:
    from hybridcalc.hardware import Gpu

CONTEXT_OF_BOOT_GIB = 1.1
"""Memory a process takes before the weights, where a log tells what is left: it decides no more than a GPU's size."""
CONTEXTS = {
    "unified": (7.5, 10.0, 12.0), "one": (0.25, 0.6, 0.85), "several AMD": (4.4, 6.5, 9.5),
    "several NVLink Blackwell": (2.3, 2.7, 3.2), "several NVLink": (1.5, 1.9, 2.6), "several PCIe": (0.4, 0.7, 1.0),
}  # fmt: skip
"""Least, likely and most GiB of context, NCCL and all-reduce buffers before the weights: all of 53 public boots."""
HALF_CENT = 0.005
NO_FRACTION = "the memory for the pools depends on --mem-fraction-static", "add --mem-fraction-static F, e.g. 0.85"
BIG_GPU_MB, BIG_GPU_RESERVE_MB = 60 * 1024, 10_240
VLM_CACHE_MB, FEATURE_CACHE_MB = 100, 1024
"""Defaults of SGLANG_VLM_CACHE_SIZE_MB and SGLANG_MM_FEATURE_CACHE_MB."""
FEATURES_ON_GPU = ("cuda_ipc", "cuda_vmm")


def check_memory(known: Memory) -> None:
    """Raise InputError for figures of which one would be ignored, or that say nothing alone."""
    boot = known.avail_before is not None or known.avail_after is not None
    one_way({"--rest": known.rest is not None, "the avail figures": boot})
    one_way({"--gpu": known.gpu is not None, "the avail figures": boot})
    if known.weights is not None and known.gpu is None:
        raise InputError("--weights says nothing without --gpu", fix="add --gpu NAME, or leave it out")
    one_way({"--rest": known.rest is not None, "--weights": known.weights is not None})
    if boot and (known.avail_before is None or known.avail_after is None):
        raise InputError("--avail-before and --avail-after go together", fix="give both figures of the boot log")


def rest_of(model: Architecture, args: ServerArgs, known: Memory) -> Rest:
    """The memory left: as given, from the figures of a boot, or from the GPU, the weights and the fraction.

    Raises MemoryUnknown where they are not all there, Refusal for weights that do not fit.
    """
    if known.rest is not None:  # a GPU beside it says kernels and ranks
        return exact_rest(known.rest)._replace(gpu=None if known.gpu is None else known.gpu.source)
    if known.avail_before is not None and known.avail_after is not None:
        return rest_from_boot(known.avail_before, known.avail_after, model, args)
    weights = None if known.gpu is None else known.weights_part()
    if known.gpu is not None and weights is not None:
        return rest_from_gpu(known.gpu, weights, model, args)
    raise known.unknown("left for the pools", "or --rest SIZE, or the two --avail figures with --mem-fraction-static")


def rest_from_boot(
    before_gib: float, after_gib: float, model: Architecture, args: ServerArgs, *, gpu: "Gpu | None" = None
) -> Rest:
    """From the ``avail mem`` figures before and after the weights, each printed to two decimals."""
    from hybridcalc.engines.sglang.fraction import aiter_share

    fraction = _fraction(args) * aiter_share(model, args)
    if after_gib > before_gib:
        raise InputError(f"{after_gib} GiB after the weights is more than {before_gib} GiB before them")
    held = multimodal_gib(model, args)
    least = least_slack_gib(model, args, gpu.gib if gpu else before_gib + CONTEXT_OF_BOOT_GIB)

    def rest(before: float, after: float) -> float:
        return after - max(before * (1 - fraction), least) - held

    return Rest(
        rest(before_gib, after_gib),
        rest(before_gib + HALF_CENT, after_gib - HALF_CENT),
        rest(before_gib - HALF_CENT, after_gib + HALF_CENT),
        f"{after_gib:.2f} GiB after the weights - {_slack(before_gib, fraction, least)}{_held(held)}",
        None if least else before_gib,
        _others(before_gib - after_gib, max(before_gib * (1 - fraction), least), held),
        weights_from="the avail mem figures",
    )


def context_of(gpu: "Gpu", args: ServerArgs) -> MemoryPart:
    """What the process takes before the weights: an estimate by the class of machine."""
    if gpu.unified:
        kind = "unified"
    elif args.tp_size * args.pp_size == 1:
        kind = "one"
    elif gpu.amd:
        kind = "several AMD"
    elif gpu.linked:
        kind = "several NVLink Blackwell" if (gpu.capability or "").startswith("10.") else "several NVLink"
    else:
        kind = "several PCIe"
    return MemoryPart("context", *CONTEXTS[kind], ESTIMATED, f"{kind}: CUDA context, NCCL and all-reduce buffers")


def rest_from_gpu(gpu: "Gpu", weights: MemoryPart, model: Architecture, args: ServerArgs) -> Rest:
    """From the GPU's memory, the weights on one rank and --mem-fraction-static; the context is estimated.

    Raises Refusal for weights that do not fit.
    """
    from hybridcalc.engines.sglang.fraction import aiter_share, settle_fraction

    settled = None if args.mem_fraction_static is not None else settle_fraction(model, args, round(gpu.gib * 1024))
    fraction = _fraction(args) * aiter_share(model, args) if settled is None else settled.fraction
    context, total = context_of(gpu, args), gpu.engine_gib
    before = total - context.likely
    if weights.likely >= before:
        refusal = Refusal(
            f"weights alone take {weights.likely:.2f} of {before:.2f} GiB ({total:.2f} less about {context.likely:g})",
            stage="load",
            rule="HC001",
            fix="more ranks (--tp) or a larger GPU",
        )
        refusal.outputs[WEIGHTS_BUDGET] = before * fraction
        raise refusal
    held = multimodal_gib(model, args)
    least = least_slack_gib(model, args, gpu.gib)

    def rest(context_gib: float, weights_gib: float) -> float:
        free = total - context_gib
        return free - weights_gib - max(free * (1 - fraction), least) - held

    why = (
        f"{total:.2f} GiB ({gpu.source}) - {context.text} of context - {weights.text} of weights"
        f" - {_slack(before, fraction, least)}{_held(held)}"
    )
    slack = max(before * (1 - fraction), least)
    kept = _slack(before, fraction, least) + ("" if settled is None else f", SGLang's default: {settled.why}")
    parts = (context, weights, MemoryPart.of(HEADROOM, slack, COMPUTED, kept))
    return Rest(
        rest(context.likely, weights.likely),
        rest(context.high, weights.high),
        rest(context.low, weights.low),
        why,
        None if least else before,
        (*_others(weights.likely, slack, held), ("context", context.likely)),
        gpu.source,
        total,
        weights.why,
        (*parts, *((MemoryPart.of("images", held, COMPUTED),) if held else ())),
        None if settled is None else fraction,
    )


def least_slack_gib(model: Architecture, args: ServerArgs, gpu_gib: float) -> float:
    """Slack that is kept whatever the fraction, where KV is sized after graph capture; 0 elsewhere. GiB."""
    from hybridcalc.engines.sglang.fraction import after_capture, by_memory

    rules = rules_for(args.engine_version)[0]
    chunk, _ = by_memory(args, round(gpu_gib * 1024), rules)
    active = after_capture(model, args, chunk, rules)
    if not active:
        return 0.0
    tokens = chunk if chunk > 0 else args.max_prefill_tokens
    if args.disaggregation_mode == "decode":
        tokens = (args.max_running_requests or 1) * (args.draft_tokens or 1)
    reserve = 512 + max(tokens, 2048) * 1.5 + args.tp_size * args.pp_size / 8 * 1024
    if gpu_gib * 1024 > BIG_GPU_MB:
        reserve = max(reserve, BIG_GPU_RESERVE_MB)
    return reserve / 1024


def multimodal_gib(model: Architecture, args: ServerArgs) -> float:
    """What a multimodal model sets aside for images and their features before KV is sized. GiB."""
    if not model.multimodal or not rules_for(args.engine_version)[0].multimodal_reserve:
        return 0.0
    reserve = _megabytes(args, "SGLANG_VLM_CACHE_SIZE_MB", VLM_CACHE_MB)
    if args.mm_feature_transport in FEATURES_ON_GPU:
        reserve += _megabytes(args, "SGLANG_MM_FEATURE_CACHE_MB", FEATURE_CACHE_MB)
    return reserve / 1024


def _fraction(args: ServerArgs) -> float:
    if args.mem_fraction_static is None:
        raise InputError(NO_FRACTION[0], fix=NO_FRACTION[1])
    if not 0 < args.mem_fraction_static < 1:
        raise InputError(
            f"--mem-fraction-static {args.mem_fraction_static:g} is not between 0 and 1", flag="--mem-fraction-static"
        )
    return args.mem_fraction_static


def _others(weights: float, slack: float, held: float) -> tuple[tuple[str, float], ...]:
    """What else the GPU holds, GiB, largest concerns first."""
    return (("weights", weights), (HEADROOM, slack), *((("images", held),) if held else ()))


def _megabytes(args: ServerArgs, variable: str, default: int) -> int:
    text = args.env.get(variable, "").strip()
    if not text:
        return default
    if not (text.isascii() and text.isdecimal()) or len(text) > 9:
        raise InputError(f"{variable}={text[:20]} is not a number of MB")
    return int(text)


def _slack(before: float, fraction: float, least: float) -> str:
    if least > before * (1 - fraction):
        return f"{least:.2f} kept for graph capture"
    return f"{before:.2f} x (1 - {fraction:g})"


def _held(gib: float) -> str:
    return f" - {gib:.2f} for images" if gib else ""
