"""Which models would have printed a boot's pools, and which releases of SGLang print such lines?

Every preset is tried at every likely tp with fp32 and bf16 states and the KV dtypes that the log allows; all that fit
are returned, the likeliest first: the class that the weights line names, the ranks that the log shows, the model's own
dtypes. An empty answer means: none of the known.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import lru_cache
from itertools import product

from hybridcalc.architecture import Architecture
from hybridcalc.bootlog import Record
from hybridcalc.bootlog.boots import Boot
from hybridcalc.bootlog.sglang import target_pools
from hybridcalc.diagnosis import models_with_states
from hybridcalc.diagnosis.answer import Candidate, Diagnosis
from hybridcalc.diagnosis.sglang.evidence import (
    KV_SIZES,
    STATE_SIZES,
    ExactSizes,
    Pools,
    bounds_of,
    fits,
    impossible,
    mismatches,
    model_sizes,
)
from hybridcalc.engines.sglang import ServerArgs
from hybridcalc.engines.sglang.kv import kv_dtype
from hybridcalc.engines.sglang.releases import RELEASES, rules_for
from hybridcalc.engines.sglang.sizes import state_slot
from hybridcalc.errors import HybridcalcError
from hybridcalc.units import parse_dtype, short_dtype

LIKELY_TP = (1, 2, 4, 8, 16, 32)
KV_DTYPES = {
    "bfloat16": ("bfloat16",), "float16": ("float16",), "float8_e4m3fn": ("fp8_e4m3",),
    "float8_e4m3fnuz": ("fp8_e4m3",), "fp8_e4m3": ("fp8_e4m3",), "float8_e5m2": ("fp8_e5m2",),
    "fp8_e5m2": ("fp8_e5m2",), "fp8": ("fp8_e4m3", "fp8_e5m2"),
}  # fmt: skip
"""What a log prints as dtype -> the values of --kv-cache-dtype that print it."""
_SSM = ("", "float32", "bfloat16")
_STAGE_NUMBER = re.compile(r"PP([0-9]{1,3})")
_RANK_NUMBER = re.compile(r"TP([0-9]+)(?:(?:\.{2,3}|-)(?:TP)?([0-9]+))?")


def identify(
    answer: Diagnosis,
    pools: Pools,
    args: ServerArgs,
    model: Architecture | None,
    *,
    named: bool,
    stated: frozenset[str] = frozenset(),
) -> None:
    """Find the models that fit the pools, or the size of a slot that a refusal prints, and say where none does.

    ``model`` alone is tried where it is known, and it must fit where the caller ``named`` it. Flags that are ``stated``
    rule out what does not agree with them, as long as something does.
    """
    state = pools.state if pools.state and pools.state.count("slots") and not impossible(pools.state) else None
    state = state if state is not None and state.sizes(*STATE_SIZES) else None
    kv = pools.kv if pools.tokens_sized else None
    if state is None and answer.boot.size("refused_hybrid", "per_slot") is None:
        return
    printed = (pools.kv.word("dtype") if pools.kv else None) or answer.boot.word("kv_dtype", "kv_dtype")
    answer.candidates = _as_stated(candidates(answer.boot, state, kv, printed, args, model), args, stated)
    if answer.candidates:
        answer.model_guess = answer.candidates[0].describe()
        if args.pp_size == 2 and "pp_size" not in stated and all("PP0" in rank for rank in answer.boot.ranks):
            first = "the first pipeline stage alone is in the log: taken as one of 2"
            answer.find("HC107", first, "--command says how many")
    elif model is not None and state is not None:
        try:
            said = "; ".join(_why_not(model, state, kv, printed, args)) or "the slot of its refusal is another"
        except HybridcalcError as error:
            said = error.message
        if not named:
            answer.find("HC107", f"the log names {model.name}, and its pools are not of its sizes: {said}")
            return
        answer.find("HC101", f"the log does not match {model.name}: {said}", "no tp and no dtypes tried make it fit")
    else:
        answer.find("HC107", "none of the known models fits these pools at TP 1 to 32")


def _as_stated(found: tuple[Candidate, ...], args: ServerArgs, stated: frozenset[str]) -> tuple[Candidate, ...]:
    """The candidates that agree with the flags that are stated; all of them where none does."""
    wanted = short_dtype(parse_dtype(args.mamba_ssm_dtype)) if args.mamba_ssm_dtype else ""
    if "tp_size" in stated:
        tp = args.tp_size // max(1, args.attn_dp_size)
        found = tuple(one for one in found if one.tp == tp) or found
    if "mamba_ssm_dtype" in stated and wanted:
        found = tuple(one for one in found if one.ssm_dtype in ("", wanted)) or found
    return found


def _why_not(
    model: Architecture, state: Record, kv: Record | None, dtype: str | None, args: ServerArgs
) -> Iterator[str]:
    """What the log prints that the model has not: as the flags have it, with the KV dtype that is printed."""
    printed = KV_DTYPES.get(dtype or "", (args.kv_cache_dtype,))
    tried = args if args.kv_cache_dtype in printed else replace(args, kv_cache_dtype=printed[0])
    exact = model_sizes(model, tried, rules_for(args.engine_version)[0])
    yield from mismatches(exact, state, kv, args)
    if tried is not args and args.kv_cache_dtype != "auto":
        yield f"its KV is {dtype}, not {args.kv_cache_dtype}"


def candidates(
    boot: Boot, state: Record | None, kv: Record | None, dtype: str | None, args: ServerArgs, model: Architecture | None
) -> tuple[Candidate, ...]:
    """Every preset (or the given ``model`` alone) that fits the pools and the slot that a refusal prints; of the class
    that the log names, where one of it does.
    """
    named = next((name for s in boot.of("weights_loaded") if (name := s.word("model_class"))), None)
    if len({tuple(pool.size(name) for name in KV_SIZES) for pool in target_pools(boot)}) > 1:
        kv = None  # ranks differ: none stands for another
    if model is not None:
        return _fitting((model,), boot, state, kv, dtype, args)
    of_class = models_with_states(named) if named is not None else ()
    return _fitting(of_class, boot, state, kv, dtype, args) or _fitting(
        models_with_states(), boot, state, kv, dtype, args
    )


def _fitting(
    models: Iterable[Architecture],
    boot: Boot,
    state: Record | None,
    kv: Record | None,
    dtype: str | None,
    args: ServerArgs,
) -> tuple[Candidate, ...]:
    """Those of the ``models`` that fit, the likeliest first."""
    ranks, per_slot = ranks_of(boot), boot.size("refused_hybrid", "per_slot")
    bounds, slot = bounds_of(state, kv, args), per_slot.interval if per_slot is not None else None
    found: list[tuple[tuple[object, ...], Candidate]] = []
    missing = rules_for(args.engine_version)[0].missing_classes
    for architecture in models:
        version = None if architecture.architecture in missing else args.engine_version  # a fork may have the class
        seen: set[tuple[int, str, str]] = set()
        for tp, ssm, kv_name in _flags(dtype, args):
            exact = _sizes(architecture, tp, args.pp_size, ssm, kv_name, version)
            if exact is None or not fits(exact, bounds) or (slot is not None and not slot[0] <= exact.state < slot[1]):
                continue
            tried = replace(
                args, tp_size=tp, mamba_ssm_dtype=ssm or None, kv_cache_dtype=kv_name, engine_version=version
            )
            held = state_slot(architecture, tried)
            name = short_dtype(held.ssm_dtype) if held.ssm_bytes else ""
            cache = short_dtype(kv_dtype(architecture, tried)) if kv is not None else ""
            if (tp, name, cache) in seen:
                continue
            seen.add((tp, name, cache))
            size = exact.token if kv is not None else 0
            fit = version != args.engine_version, ranks is not None and tp != ranks
            rank = (*fit, bool(ssm), kv_name not in ("auto", "bfloat16"), tp)
            found.append((rank, Candidate(architecture.name, tp, name, cache, exact.state, size)))
    found.sort(key=lambda pair: (pair[0], pair[1].model))
    if found and not found[0][0][0]:
        found = [pair for pair in found if not pair[0][0]]  # one that the release has
    if any(candidate.tp == ranks for _, candidate in found):
        found = [pair for pair in found if pair[1].tp == ranks]  # the log shows all of the ranks
    return tuple(candidate for _, candidate in found)


def _flags(dtype: str | None, args: ServerArgs) -> Iterator[tuple[int, str, str]]:
    sizes = dict.fromkeys((args.tp_size, *LIKELY_TP)) if args.tp_size > 1 else LIKELY_TP
    ssm_dtypes = dict.fromkeys((args.mamba_ssm_dtype or "", *_SSM))
    return product(sizes, ssm_dtypes, KV_DTYPES.get(dtype or "", ("auto", "fp8_e4m3")))


@lru_cache(maxsize=8192)
def _sizes(model: Architecture, tp: int, pp: int, ssm: str, kv_name: str, version: str | None) -> ExactSizes | None:
    args = ServerArgs(
        tp_size=tp, pp_size=pp, mamba_ssm_dtype=ssm or None, kv_cache_dtype=kv_name, engine_version=version
    )
    try:
        return model_sizes(model, args, rules_for(version)[0])
    except HybridcalcError:
        return None


def stages_of(boot: Boot) -> int:
    """Pipeline stages that the log's ranks show, one at least. A rank is named by its stage only where there are
    several.
    """
    numbers = [int(number) for rank in boot.ranks for number in _STAGE_NUMBER.findall(rank)]
    return max(2, 1 + max(numbers)) if numbers else 1


def ranks_of(boot: Boot) -> int | None:
    """Tensor-parallel ranks that the log shows: one more than the highest; None where it names none, or where workers
    share them out.
    """
    ranks = boot.ranks
    if any(rank.startswith("DP") for rank in ranks):
        return None
    numbers = [int(n) for rank in ranks for match in _RANK_NUMBER.finditer(rank) for n in match.groups() if n]
    return max(numbers) + 1 if numbers and max(numbers) > 0 else None


def releases_of(boot: Boot, architecture: str = "") -> list[str]:
    """The releases whose lines have the form of these, and that have the class of the model; oldest first."""
    lines, capped = boot.of("kv_pool"), bool(boot.of("capped"))
    named = any(line.get("dtype") for line in lines)
    told = named or any(line.get("verbatim") for line in lines)  # of shortened lines what lacks says nothing
    return [
        rules.version
        for rules in RELEASES.rule_sets
        if rules.cap_line >= capped
        and (not told or rules.kv_dtype_line == named)
        and architecture not in rules.missing_classes
    ]


def perhaps_shortened(boot: Boot) -> bool:
    """Whether the release rests on what a line without a clock lacks: somebody may have left that out."""
    lines = boot.of("kv_pool")
    return not boot.of("capped") and bool(lines) and not any(line.get("dtype") or line.clock for line in lines)


def version_of(releases: list[str]) -> str | None:
    """These releases in words; None for all of them, or none."""
    known = RELEASES.versions
    if not releases or len(releases) == len(known):
        return None
    if releases[-1] == known[-1]:
        return f"{releases[0]} or later"
    if releases[0] == known[0]:
        return f"before {known[len(releases)]}"
    return f"{releases[0]} to {releases[-1]}"
