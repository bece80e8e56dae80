"""How much memory do SGLang's pools share, from what is known before a boot or printed by one?

    rest = available - slack - multimodal reserve           GiB, floats in the engine's order
    slack = free before the weights * (1 - mem_fraction_static)

available: free after the weights. Known from the two ``avail mem`` figures of a boot (printed to two decimals: an
interval), or estimated from the GPU, the weights on one rank and the fraction. Where KV is sized after graph capture
the slack is at least reserve = 512 + 1.5 * max(tokens, 2048) + tp * pp / 8 * 1024 MB, on GPUs above 60 GiB at least
10,240 MB. Mirrors kv_cache_configurator.py _profile_available_bytes and runtime_context.py (0.5.23).
"""

import json
from pathlib import Path

from hybridcalc.architecture.presets import PRESETS
from hybridcalc.deployment import Rest
from hybridcalc.engines.sglang.config import ServerArgs
from hybridcalc.errors import IllegalCombination, InputError
from hybridcalc.units import GIB, MIB, parse_bytes

CONTEXT_GIB = 1.1
"""Memory a process takes before the weights: 78.5 of 79.65 GiB are free on an H100. An estimate, and said to be one."""
HALF_CENT = 0.005
LARGEST_INDEX_BYTES = 64 * MIB
BIG_GPU_MB, BIG_GPU_RESERVE_MB = 60 * 1024, 10_240


def rest_from_boot(before_gib: float, after_gib: float, args: ServerArgs) -> Rest:
    """From the ``avail mem`` figures before and after the weights, each printed to two decimals."""
    fraction = _fraction(args)
    if after_gib > before_gib:
        raise InputError(f"{after_gib} GiB after the weights is more than {before_gib} GiB before them")

    def rest(before: float, after: float) -> float:
        return after - before * (1 - fraction) - multimodal_gib(args)

    return _checked(
        Rest(
            rest(before_gib, after_gib),
            rest(before_gib + HALF_CENT, after_gib - HALF_CENT),
            rest(before_gib - HALF_CENT, after_gib + HALF_CENT),
            f"{after_gib:.2f} GiB after the weights - {before_gib:.2f} x (1 - {fraction:g})",
        )
    )


def rest_from_gpu(gpu_gib: float, weights_gib: float, args: ServerArgs, *, context_gib: float = CONTEXT_GIB) -> Rest:
    """From the GPU's memory, the weights on one rank and --mem-fraction-static; ``context_gib`` is an estimate."""
    fraction = _fraction(args)
    before = gpu_gib - context_gib
    if weights_gib >= before:
        raise IllegalCombination(
            f"weights of {weights_gib:.2f} GiB do not fit a GPU with {before:.2f} GiB free",
            fix="more ranks (--tp), a quantised checkpoint, or a larger GPU",
        )
    rest = before - weights_gib - before * (1 - fraction) - multimodal_gib(args)
    why = f"{gpu_gib:.2f} GiB x {fraction:g} less {weights_gib:.2f} of weights and about {context_gib:.1f} of context"
    return _checked(Rest(rest, rest, rest, why))


def capture_reserve_gib(args: ServerArgs, gpu_gib: float) -> float:
    """Slack kept where KV is sized after graph capture. GiB."""
    tokens = args.chunked_prefill_size or 0
    if tokens <= 0:
        tokens = args.max_prefill_tokens
    reserve = 512 + 1.5 * max(tokens, 2048) + args.tp_size * args.pp_size / 8 * 1024
    if gpu_gib * 1024 > BIG_GPU_MB:
        reserve = max(reserve, BIG_GPU_RESERVE_MB)
    return reserve / 1024


def multimodal_gib(args: ServerArgs) -> float:
    """What the environment sets aside for multimodal features, GiB."""
    sizes = (args.env.get("SGLANG_VLM_CACHE_SIZE_MB"), args.env.get("SGLANG_MM_FEATURE_CACHE_MB"))
    return sum(float(size) for size in sizes if size and size.isdecimal() and len(size) < 12) / 1024


def gpu_gib(name_or_size: str) -> tuple[float, str]:
    """(GiB, what it is) of a GPU preset's name or alias, or of a size. Raises InputError with the nearest names."""
    gpus = json.loads((PRESETS / "gpus.json").read_bytes())
    wanted = name_or_size.strip().lower()
    for gpu in gpus.values():
        if wanted in (gpu["id"], gpu["name"].lower(), *(alias.lower() for alias in gpu.get("aliases", ()))):
            return gpu["memory_mib"] / 1024, f"{gpu['name']}, {gpu['memory_mib']:,} MiB as its driver reports"
    if wanted[:1].isdigit():
        return parse_bytes(name_or_size) / GIB, "as given"
    import difflib

    near = difflib.get_close_matches(wanted[:40], gpus, n=3, cutoff=0.4)
    raise InputError(
        f"no GPU {name_or_size[:40]!r}", fix=f"nearest: {', '.join(near) or ', '.join(list(gpus)[:6])}; or a size"
    )


def weights_from_index(folder: Path, args: ServerArgs) -> float | None:
    """GiB of weights on one rank from a ``model.safetensors.index.json``: total over tp and pp; None without one."""
    index = folder / "model.safetensors.index.json"
    if not index.is_file() or index.stat().st_size > LARGEST_INDEX_BYTES:
        return None
    try:
        total = json.loads(index.read_bytes())["metadata"]["total_size"]
    except (ValueError, KeyError, TypeError, RecursionError):
        raise InputError(f"{index}: not a safetensors index", fix="give --weights SIZE") from None
    if isinstance(total, bool) or not isinstance(total, int | float) or not 0 < total < 2**60:
        raise InputError(f"{index}: metadata.total_size is not a size", fix="give --weights SIZE")
    return float(total) / (args.tp_size * args.pp_size) / GIB


def _fraction(args: ServerArgs) -> float:
    if args.mem_fraction_static is None:
        raise InputError(
            "the memory for the pools depends on --mem-fraction-static", fix="add --mem-fraction-static F, e.g. 0.85"
        )
    if not 0 < args.mem_fraction_static < 1:
        raise InputError(f"--mem-fraction-static {args.mem_fraction_static:g} is not between 0 and 1")
    return args.mem_fraction_static


def _checked(rest: Rest) -> Rest:
    if rest.likely_gib <= 0:
        raise IllegalCombination(
            f"the weights leave {rest.likely_gib:.2f} GiB for the pools ({rest.why})",
            fix="raise --mem-fraction-static, use more ranks, or a quantised checkpoint",
        )
    return rest
