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
    STAGE_NUMBER,
    STATE_SIZES,
    ExactSizes,
    Pools,
    bounds_of,
    fits,
    impossible,
    mismatches,
    model_sizes,
    stage_of,
)
from hybridcalc.engines import ENGINES
from hybridcalc.engines.sglang import ServerArgs
from hybridcalc.engines.sglang.kv import kv_dtype
from hybridcalc.engines.sglang.releases import RELEASES, rules_for
from hybridcalc.engines.sglang.sizes import state_slot
from hybridcalc.errors import HybridcalcError
from hybridcalc.units import parse_dtype, short_dtype

LIKELY_TP = (1, 2, 4, 8, 16, 32)
LIKELY_STAGES = (2, 3, 4, 6, 8, 12, 16)
KV_DTYPES = {
    "bfloat16": ("bfloat16",), "float16": ("float16",), "float8_e4m3fn": ("fp8_e4m3",),
    "float8_e4m3fnuz": ("fp8_e4m3",), "fp8_e4m3": ("fp8_e4m3",), "float8_e5m2": ("fp8_e5m2",),
    "fp8_e5m2": ("fp8_e5m2",), "fp8": ("fp8_e4m3", "fp8_e5m2"),
}  # fmt: skip
"""What a log prints as dtype -> the values of --kv-cache-dtype that print it."""
_SSM = ("", "float32", "bfloat16")
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
    state, kv, printed = _sized(answer.boot, pools)
    if state is None and answer.boot.size("refused_hybrid", "per_slot") is None:
        return
    answer.candidates = _as_stated(candidates(answer.boot, state, kv, printed, args, model), args, stated)
    if answer.candidates:
        answer.model_guess = answer.candidates[0].describe()
        shown = stages_shown(answer.boot)
        if shown and len(shown) < args.pp_size and "pp_size" not in stated:
            alone = f"{', '.join(f'PP{stage}' for stage in sorted(shown))} of the pipeline stages alone "
            alone += "is" if len(shown) == 1 else "are"
            answer.find("HC107", f"{alone} in the log: taken as of {args.pp_size}", "--command says how many")
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


def _sized(boot: Boot, pools: Pools) -> tuple[Record | None, Record | None, str | None]:
    """The state pool and the KV pool, where their sizes are printed, and the KV dtype."""
    state = pools.state if pools.state and pools.state.count("slots") and not impossible(pools.state) else None
    state = state if state is not None and state.sizes(*STATE_SIZES) else None
    printed = (pools.kv.word("dtype") if pools.kv else None) or boot.word("kv_dtype", "kv_dtype")
    return state, pools.kv if pools.tokens_sized else None, printed


def has_pools_of(boot: Boot, pools: Pools, args: ServerArgs, model: Architecture | None) -> bool:
    """Whether the pools may be the ``model``'s, or any that is known: no size of theirs says otherwise."""
    state, kv, printed = _sized(boot, pools)
    if state is None and boot.size("refused_hybrid", "per_slot") is None:
        return True
    return bool(candidates(boot, state, kv, printed, args, model))


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
    ranks, least, per_slot = ranks_of(boot), fewest_ranks(boot), boot.size("refused_hybrid", "per_slot")
    stage = stage_of(state or kv)
    bounds, slot = bounds_of(state, kv, args), per_slot.interval if per_slot is not None else None
    found: list[tuple[tuple[object, ...], Candidate]] = []
    missing = rules_for(args.engine_version)[0].missing_classes
    for architecture in models:
        version = None if architecture.architecture in missing else args.engine_version  # a fork may have the class
        seen: set[tuple[int, str, str]] = set()
        for tp, ssm, kv_name in _flags(dtype, args):
            exact = _sizes(architecture, tp, (args.pp_size, stage), ssm, kv_name, version)
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
            fit = version != args.engine_version, tp < least or (ranks is not None and tp != ranks)
            rank = (*fit, bool(ssm), kv_name not in ("auto", "bfloat16"), tp)
            found.append((rank, Candidate(architecture.name, tp, name, cache, exact.state, size)))
    found.sort(key=lambda pair: (pair[0], pair[1].model))
    if found and not found[0][0][0]:
        found = [pair for pair in found if not pair[0][0]]  # one that the release has
    if any(candidate.tp == ranks for _, candidate in found):
        found = [pair for pair in found if pair[1].tp == ranks]  # the log shows all of the ranks
    if any(candidate.tp >= least for _, candidate in found):
        found = [pair for pair in found if pair[1].tp >= least]
    return tuple(candidate for _, candidate in found)


def _flags(dtype: str | None, args: ServerArgs) -> Iterator[tuple[int, str, str]]:
    sizes = dict.fromkeys((args.tp_size, *LIKELY_TP)) if args.tp_size > 1 else LIKELY_TP
    ssm_dtypes = dict.fromkeys((args.mamba_ssm_dtype or "", *_SSM))
    return product(sizes, ssm_dtypes, KV_DTYPES.get(dtype or "", ("auto", "fp8_e4m3")))


@lru_cache(maxsize=8192)
def _sizes(
    model: Architecture, tp: int, stage: tuple[int, int], ssm: str, kv_name: str, version: str | None
) -> ExactSizes | None:
    args = ServerArgs(
        tp_size=tp, pp_size=stage[0], mamba_ssm_dtype=ssm or None, kv_cache_dtype=kv_name, engine_version=version
    )
    try:
        return model_sizes(model, args, rules_for(version)[0], stage[1])
    except HybridcalcError:
        return None


def stages_shown(boot: Boot) -> frozenset[int]:
    """The pipeline stages whose ranks the log shows. A rank is named by its stage only where there are several."""
    return frozenset(int(number) for rank in boot.ranks for number in STAGE_NUMBER.findall(rank))


def stages_of(boot: Boot) -> tuple[int, ...]:
    """How many pipeline stages there may be, the likeliest first: as many as the log shows, or more where it does not
    show the first of them, or but one.
    """
    shown = stages_shown(boot)
    if not shown:
        return (1,)
    least = max(2, 1 + max(shown))
    return (least,) if len(shown) == least else (least, *(n for n in LIKELY_STAGES if n > least))


def _rank_numbers(boot: Boot) -> set[int]:
    """The tensor-parallel ranks that the log shows; none where workers share them out."""
    ranks = boot.ranks
    if any(rank.startswith("DP") for rank in ranks):
        return set()
    return {int(n) for rank in ranks for match in _RANK_NUMBER.finditer(rank) for n in match.groups() if n}


def ranks_of(boot: Boot) -> int | None:
    """Tensor-parallel ranks that the log shows: one more than the highest; None where it names none or one alone, or
    where workers share them out.
    """
    numbers = _rank_numbers(boot)
    return max(numbers) + 1 if len(numbers) > 1 else None


def fewest_ranks(boot: Boot) -> int:
    """As many tensor-parallel ranks as there are at least, for a log that may show one alone."""
    return max(_rank_numbers(boot), default=0) + 1


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


def may_print(version: str, releases: list[str]) -> bool:
    """Whether a release has rules, and is one of the ``releases`` that print such lines; any is where none does."""
    if not ENGINES["sglang"].knows(version):
        return False
    return not releases or rules_for(version)[0].version in releases


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
