"""Which models, at which tensor parallelism and dtypes, would have printed these pools?

Every preset is tried at every likely tp with fp32 and bf16 states and the KV dtypes that the log allows; its exact
sizes must lie in all printed intervals. All that fit are returned, the likeliest first: the class that the weights
line names, the ranks that the log shows, the model's own dtypes. An empty answer means: none of the known.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache

from hybridcalc.architecture.geometry import Architecture
from hybridcalc.architecture.presets import load_model, model_names
from hybridcalc.bootlog import KvPoolAllocated, StatePoolAllocated
from hybridcalc.diagnosis.answer import Candidate
from hybridcalc.diagnosis.balance import LIKELY_TP, ExactSizes, exact_sizes, fits, pool_bounds
from hybridcalc.engines.sglang.config import ServerArgs
from hybridcalc.engines.sglang.constants import Range, architecture_constants
from hybridcalc.engines.sglang.kv import kv_dtype
from hybridcalc.engines.sglang.releases import rules_for
from hybridcalc.engines.sglang.states import state_slot
from hybridcalc.errors import HybridcalcError
from hybridcalc.units import short_dtype

KV_DTYPES = {
    "bfloat16": ("bfloat16",), "float16": ("float16",), "float8_e4m3fn": ("fp8_e4m3",),
    "float8_e4m3fnuz": ("fp8_e4m3",), "fp8_e4m3": ("fp8_e4m3",), "float8_e5m2": ("fp8_e5m2",),
    "fp8_e5m2": ("fp8_e5m2",), "fp8": ("fp8_e4m3", "fp8_e5m2"),
}  # fmt: skip
"""What a log prints as dtype -> the values of --kv-cache-dtype that print it."""
_SSM = ("", "float32", "bfloat16")


def sglang_candidates(
    state: StatePoolAllocated | None,
    kv: KvPoolAllocated | None,
    args: ServerArgs,
    *,
    dtype: str | None,
    model: Architecture | None,
    model_class: str | None,
    ranks: int | None,
    per_slot: Range | None = None,
) -> tuple[Candidate, ...]:
    """Every preset (or the given ``model`` alone) that fits the pools, or the size of a slot that a refusal prints."""
    informative = per_slot is not None or (state is not None and state.slots and (state.conv or state.ssm))
    if not informative:
        return ()
    bounds = pool_bounds(state, kv, args) if state is not None else None
    found: list[tuple[tuple[object, ...], Candidate]] = []
    for architecture in _models() if model is None else (model,):
        kin = model_class is None or same_class(architecture.architecture, model_class)
        seen: set[tuple[int, str, str]] = set()
        for tp, ssm, kv_name in _flags(dtype, args):
            exact = _sizes(architecture, tp, ssm, kv_name, args.engine_version)
            if exact is None or (bounds is not None and not fits(exact, bounds)):
                continue
            if per_slot is not None and not per_slot[0] <= exact.state < per_slot[1]:
                continue
            tried = replace(args, tp_size=tp, mamba_ssm_dtype=ssm or None, kv_cache_dtype=kv_name)
            slot = state_slot(architecture, tried)
            name = short_dtype(slot.ssm_dtype) if slot.ssm_bytes else ""
            cache = short_dtype(kv_dtype(architecture, tried)) if kv is not None else ""
            if (tp, name, cache) in seen:
                continue
            seen.add((tp, name, cache))
            size = exact.token if kv is not None else 0
            rank = (not kin, ranks is not None and tp != ranks, bool(ssm), kv_name not in ("auto", "bfloat16"), tp)
            found.append((rank, Candidate(architecture.name, tp, name, cache, exact.state, size)))
    found.sort(key=lambda pair: (pair[0], pair[1].model))
    if found and not found[0][0][0]:
        found = [pair for pair in found if not pair[0][0]]  # the class is known, and a model of it fits
    if any(candidate.tp == ranks for _, candidate in found):
        found = [pair for pair in found if pair[1].tp == ranks]  # the log shows all of the ranks
    return tuple(candidate for _, candidate in found)


def _flags(dtype: str | None, args: ServerArgs) -> Iterator[tuple[int, str, str]]:
    known = KV_DTYPES.get(dtype or "")
    kv_names = known or ("auto", "fp8_e4m3")
    sizes = dict.fromkeys((args.tp_size, *LIKELY_TP)) if args.tp_size > 1 else LIKELY_TP
    for tp in sizes:
        for ssm in dict.fromkeys((args.mamba_ssm_dtype or "", *_SSM)):
            for name in kv_names:
                yield tp, ssm, name


def same_class(architecture: str, printed: str) -> bool:
    """Whether a printed class is a preset's: the text and the vision class of a model are one family."""
    return _stem(architecture) == _stem(printed)


def _stem(name: str) -> str:
    for ending in ("ForConditionalGeneration", "ForCausalLM"):
        name = name.removesuffix(ending)
    return name


@lru_cache(maxsize=1)
def _models() -> tuple[Architecture, ...]:
    return tuple(model for name in model_names() if (model := load_model(name)).state is not None)


@lru_cache(maxsize=8192)
def _sizes(model: Architecture, tp: int, ssm: str, kv_name: str, version: str | None) -> ExactSizes | None:
    args = ServerArgs(tp_size=tp, mamba_ssm_dtype=ssm or None, kv_cache_dtype=kv_name, engine_version=version)
    try:
        return exact_sizes(architecture_constants(model, args, rules_for(version)[0]))
    except HybridcalcError:
        return None
