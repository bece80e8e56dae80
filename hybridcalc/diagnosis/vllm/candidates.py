"""Which models, at which tensor parallelism, dtypes and release, print these pages?

Block size and padding are exact integers of the model's geometry: every preset is planned (engines/vllm) at likely
tensor parallelism and dtypes, and those that print the same pages are candidates; memory and concurrency decide.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from fractions import Fraction
from itertools import product
from typing import NamedTuple

from hybridcalc.architecture import Architecture
from hybridcalc.architecture.weights import parameters
from hybridcalc.bootlog import Printed
from hybridcalc.bootlog.boots import Boot
from hybridcalc.deployment import Rest
from hybridcalc.diagnosis import models_with_states
from hybridcalc.diagnosis.answer import Candidate
from hybridcalc.diagnosis.names import Hints
from hybridcalc.engines import ENGINES
from hybridcalc.engines.vllm import EngineArgs
from hybridcalc.engines.vllm.planner import Prepared, prepare
from hybridcalc.engines.vllm.releases import LINES, RELEASES
from hybridcalc.engines.vllm.server_plan import Plan, plan
from hybridcalc.errors import HybridcalcError
from hybridcalc.findings import Suggestion
from hybridcalc.units import GIB, short_dtype

_TP = (1, 2, 4, 8, 16)
DRAFTS = (1, 2, 3, 4, 5, 7, 6, 8, 15, 16)
"""Draft tokens tried where pages fit no model without any: those of heads, then those of drafters of whole blocks."""
NEAR_TOKENS = 256
MOST_OF_SHARE, LEAST_OF_SHARE = 2, Fraction(1, 8)
"""What a rank may hold of its share of a model's weights in bf16, a draft model's beside them."""
SHARED = re.compile(r"PP|DP|EP")
"""Ranks that share out layers, requests or experts."""
HOPPER, OLDER = "9.0", "8.9"
"""Cards whose prefill kernels can keep states at a grid of tokens, and those that cannot."""


class Figures(NamedTuple):
    """What the boot printed of its pages and its cache."""

    block: int | None
    padding: Printed | None
    available: Printed | None
    tokens: int | None
    concurrency: Printed | None
    length: int | None


def class_of(boot: Boot) -> str | None:
    """The model's class, where a line names it."""
    return boot.word("architecture", "name") or boot.word("cache_mode", "class")


def figures_of(boot: Boot) -> Figures:
    """The figures that answers rest on; the pages of another program's blocks say nothing of the model."""
    kinds = ("available", "cpu_memory", "one_request_too_big", "reserved")
    available = next((size for kind in kinds if (size := boot.size(kind, "available")) is not None), None)
    available = available or boot.size("free_memory", "in_use")
    other_program = boot.first("block_size", "before") is not None
    return Figures(
        None if other_program else boot.count("block_size", "tokens"),
        boot.size("padding", "percent"),
        available,
        boot.count("kv_size", "tokens"),
        boot.size("concurrency", "concurrency"),
        boot.count("concurrency", "max_model_len") or boot.count("one_request_too_big", "max_model_len"),
    )


class Known(NamedTuple):
    """The arguments that are known, and whether the tensor parallelism is among those that are stated."""

    args: EngineArgs
    tp_stated: bool = False


class Fit(NamedTuple):
    """Arguments under which a model prints the boot's pages; ``told``: and its concurrency, from its memory, which is
    then missed by the share ``miss``. ``available_bytes``: the memory of the printed interval that was planned.
    """

    args: EngineArgs
    candidate: Candidate
    model: Architecture
    told: bool
    miss: float
    available_bytes: int | None = None


class Release(NamedTuple):
    """Which releases a boot may be of, in words, and the rule sets to try, the likeliest first; ``told``: the text
    around the log says so.
    """

    said: str | None
    tried: tuple[str, ...]
    told: bool = False


def release_of(boot: Boot, hints: Hints, launched: str | None = None) -> Release:
    """The printed version, that of the launch, that which the text around the log tells, or what the form of the
    capacity lines and the meaning of the tokens leave.
    """
    for kind in ("engine_started", "server_version"):
        version = (boot.word(kind, "version") or "").removeprefix("v")
        if version and _has_rules(version):
            return Release(version, (version,))
    if launched is not None:
        return Release(launched, (launched,))
    build = (boot.word("engine_started", "version") or boot.word("server_version", "version") or "").removeprefix("v")
    release = _by_form(boot)
    if build:
        return release._replace(said=build)
    told = hints.release("vllm", lambda version: not _has_rules(version) or _may_print(version, boot))
    if told is None:
        return release
    return Release(told, (told,), told=True) if _has_rules(told) else release._replace(said=told, told=True)


def _has_rules(version: str) -> bool:
    """Whether a release is one of those that are known, and no build between two of them."""
    return "rc" not in version and "dev" not in version and ENGINES["vllm"].knows(version)


def _may_print(version: str, boot: Boot) -> bool:
    """Whether a release prints capacity lines of the form of the boot's."""
    rules, found = RELEASES.rules_for(version)[0], figures_of(boot)
    tokens = next(iter(boot.of("kv_size")), None)
    if tokens is None or found.tokens is None or found.concurrency is None or found.length is None:
        return True
    if tokens.told:
        return True
    goes_on = tokens.get("goes_on") is not None and not tokens.quoted
    whole = is_capacity(found.tokens, found.concurrency, found.length)
    return rules.one_capacity_line >= goes_on and (whole or rules.tokens_of_pool)


def _by_form(boot: Boot) -> Release:
    """What the form of the capacity lines and the meaning of the tokens leave."""
    tokens, concurrency = next(iter(boot.of("kv_size")), None), next(iter(boot.of("concurrency")), None)
    one_line = RELEASES.oldest_with("one_capacity_line", True)
    any_of_them = Release(None, tuple(dict.fromkeys((RELEASES.newest, one_line, *RELEASES.recorded))))
    if tokens is None or concurrency is None or tokens.told:
        return any_of_them
    count, times, length = tokens.count("tokens"), concurrency.size("concurrency"), concurrency.count("max_model_len")
    if count is not None and times is not None and length is not None and not is_capacity(count, times, length):
        first = RELEASES.oldest_with("tokens_of_pool", False)
        return Release(f"before {first}", RELEASES.unlike("tokens_of_pool", True, apart=LINES))
    if tokens.quoted:
        return any_of_them
    one_after_the_other = 0 <= concurrency.line - tokens.line <= 1  # a note may break the line behind its comma
    later = one_after_the_other and tokens.get("goes_on") is not None
    said = f"{one_line.removesuffix('.0')} or later" if later else f"before {one_line.removesuffix('.0')}"
    tried = [
        version
        for version in RELEASES.unlike("one_capacity_line", later, apart=LINES)
        if not RELEASES.rules_for(version)[0].tokens_of_pool
    ]
    return Release(said, tuple(dict.fromkeys((*tried, *RELEASES.recorded))))


def is_capacity(tokens: int, concurrency: Printed, length: int) -> bool:
    """Whether a printed token figure is concurrency x max_model_len, as far as two decimals tell."""
    low, high = (bound * length for bound in concurrency.interval)
    slack = Fraction(length, 1000)
    return low - slack <= tokens <= high + slack


def fitting_models(
    boot: Boot, said: Figures, known: Known, model: Architecture | None, releases: tuple[str, ...]
) -> list[Fit]:
    """Models and arguments whose pages are the printed ones; where memory and concurrency are printed as well, those
    alone that give the one from the other. Drafts widen the pages, and bf16 states make them smaller: both are tried
    where nothing fits without and the model's class is known.
    """
    unseen = said.block is None and (model is None or (said.available is None and not known.tp_stated))
    if unseen:
        return []  # there is nothing to hold a model against
    args, printed = known.args, class_of(boot)
    models = (model,) if model is not None else models_with_states(printed) or models_with_states()
    sure = model is not None or printed is not None
    drafts = (args.num_speculative_tokens,) if args.num_speculative_tokens else (0, *(DRAFTS if sure else ()))
    best: list[Fit] = []
    for number in drafts:
        found = [fit for tried in models for fit in _fits(tried, said, known, number, releases)]
        found = [fit for fit in found if model is not None or _may_weigh(fit, boot)]
        told = [fit for fit in found if fit.told]
        if told:
            return _ranked(told)
        best = best or found
    if not best and sure and args.mamba_ssm_cache_dtype == "auto":
        narrow = known._replace(args=replace(args, mamba_ssm_cache_dtype="bfloat16"))
        return fitting_models(boot, said, narrow, model, releases)
    return _ranked(best)


def _may_weigh(fit: Fit, boot: Boot) -> bool:
    """Whether the weights that a rank printed may be the model's: no more than twice its share of all parameters in
    bf16, and no less than that share in two bits, where nothing but tensors is known to be shared out.
    """
    printed = max((size.value for one in boot.of("weights_loaded") if (size := one.size("usage"))), default=0)
    if not printed:
        return True
    try:
        share = Fraction(2 * parameters(fit.model).number(), fit.args.tensor_parallel_size)
    except HybridcalcError:
        return True
    alone = not any(SHARED.search(rank) for rank in boot.ranks) and not fit.args.cpu_offload_gb
    alone = alone and fit.args.pipeline_parallel_size == fit.args.data_parallel_size == 1
    return printed <= MOST_OF_SHARE * share and (not alone or printed >= LEAST_OF_SHARE * share)


def _fits(model: Architecture, said: Figures, known: Known, drafts: int, releases: tuple[str, ...]) -> Iterator[Fit]:
    length = said.length or known.args.max_model_len
    args = replace(known.args, max_model_len=length, num_speculative_tokens=drafts)
    for by_release in _variants(known._replace(args=args), releases):
        for variant in by_release:
            pages = variant.pages_of(model)
            if pages is None:
                continue
            if said.block is not None and abs(pages.block - said.block) > NEAR_TOKENS:
                break  # releases differ by a granule of the block, not by more
            if pages.match(said):
                tried, ssm, dtype = variant.args, variant.args.mamba_ssm_cache_dtype, variant.args.kv_cache_dtype
                kv = "fp8" if dtype.startswith("fp8") else short_dtype(pages.model_dtype)
                state = "" if ssm == "auto" else short_dtype(ssm)
                found = Candidate(model.name, tried.tensor_parallel_size, state, kv, 0, 0)
                planned = _planned(model, tried, said)
                size = planned.available_bytes if planned is not None else None
                yield Fit(tried, found, model, tells(planned, said), _miss(planned, said), size)


class _Pages(NamedTuple):
    """What of a model's pages a log prints."""

    block: int
    padding: float
    model_dtype: str

    def match(self, said: Figures) -> bool:
        """Whether they are the printed ones."""
        same = said.block is None or self.block == said.block
        return same and (said.padding is None or abs(self.padding - said.padding.number) <= 0.006)


class _Variant(NamedTuple):
    """Arguments that may have been given, and the pages of each model under them, as far as they were asked for."""

    args: EngineArgs
    pages: dict[Architecture, _Pages | None]

    def pages_of(self, model: Architecture) -> _Pages | None:
        """The model's pages; None where it does not start."""
        if model not in self.pages:
            ready = prepared(model, self.args)
            padding = float(ready.settled.get("padding_pct", 0.0)) if ready is not None else 0.0
            self.pages[model] = _Pages(ready.pages.block, padding, ready.model_dtype) if ready is not None else None
        return self.pages[model]


_MOST_KEPT = 2 * (2 + len(DRAFTS))
_kept: list[tuple[Known, tuple[str, ...], list[list[_Variant]]]] = []
"""Variants of the last boots: the next one of a log is mostly started alike."""


def _variants(known: Known, releases: tuple[str, ...]) -> list[list[_Variant]]:
    """The arguments that may have been given, and each with the rules of every release on either kind of card."""
    for before, same, variants in _kept:
        if before == known and same == releases:
            return variants
    args = known.args
    tps = (args.tensor_parallel_size,) if known.tp_stated or args.tensor_parallel_size > 1 else _TP
    dtypes = (args.kv_cache_dtype,) if args.kv_cache_dtype != "auto" else ("auto", "fp8")
    caching = (True, False) if args.enable_prefix_caching is None else (args.enable_prefix_caching,)
    states = (args.mamba_ssm_cache_dtype,) if args.mamba_ssm_cache_dtype != "auto" else ("auto", "float32")
    variants = []
    for tp, dtype, ssm, cached in product(tps, dtypes, states, caching):
        one = replace(args, tensor_parallel_size=tp, kv_cache_dtype=dtype, mamba_ssm_cache_dtype=ssm)
        one = replace(one, enable_prefix_caching=cached)
        by_release = (replace(one, engine_version=release) for release in releases)
        variants.append([_Variant(on_card, {}) for each in by_release for on_card in _on_cards(each)])
    _kept[:] = [*_kept[1 - _MOST_KEPT :], (known, releases, variants)]
    return variants


def _on_cards(args: EngineArgs) -> Iterator[EngineArgs]:
    """The arguments on Hopper, and on an older card where its kernels have other blocks; no line names the card."""
    yield args
    kernel = args.gdn_prefill_backend is not None or args.gpu_capability != HOPPER
    if not kernel and RELEASES.rules_for(args.engine_version)[0].checkpoints:
        yield replace(args, gpu_capability=OLDER)


def _ranked(fits: list[Fit]) -> list[Fit]:
    """The likeliest first, one for each model with its tp and dtypes."""
    order = sorted(
        fits,
        key=lambda fit: (
            not fit.told,
            round(fit.miss, 4),
            fit.args.gpu_capability == OLDER,
            fit.args.mamba_ssm_cache_dtype != "auto",
            fit.args.kv_cache_dtype != "auto",
            fit.args.tensor_parallel_size,
            fit.model.name,
        ),
    )
    best: dict[Candidate, Fit] = {}
    for fit in order:
        best.setdefault(fit.candidate, fit)
    return list(best.values())


def prepared(model: Architecture, args: EngineArgs) -> Prepared | None:
    """What start-up settles before memory counts; None where it refuses."""
    try:
        return prepare(model, args)
    except HybridcalcError:
        return None


def _planned(model: Architecture, args: EngineArgs, said: Figures) -> Plan | None:
    """The plan on the printed memory: that of its interval which prints the boot's figures, where one does."""
    if said.available is None or said.length is None:
        return None
    tried = replace(args, max_num_seqs=1)
    planned = _plan(model, tried, int(said.available.value))
    if said.concurrency is None or _prints(planned, said):
        return planned
    others = [other for size in _sizes(planned, said) if (other := _plan(model, tried, size)) is not None]
    exact = next((other for other in others if _prints(other, said)), None)
    return exact or next((one for one in (planned, *others) if tells(one, said)), planned)


def _plan(model: Architecture, args: EngineArgs, available: int) -> Plan | None:
    try:
        return plan(model, args, available_bytes=available)
    except HybridcalcError:
        return None


def over_printed_memory(planned: Plan) -> list[Suggestion]:
    """A plan's suggestions, each with the fewest and the most requests over the memory as its digits leave it."""

    def ends(suggestion: Suggestion) -> tuple[int, int] | None:
        args = ENGINES["vllm"].changed(planned.args, suggestion.flags)
        with suppress(HybridcalcError):
            least, most = plan(planned.model, args, rest=planned.rest, workload=planned.workload).requests_at_ends
            found = min(least, suggestion.after), max(most, suggestion.after)
            return found if found[0] < found[1] else None
        return None

    return [one._replace(ends=ends(one)) if one.before != one.after else one for one in planned.suggestions]


def _prints(planned: Plan | None, said: Figures) -> bool:
    """Whether a plan prints the boot's concurrency and tokens, digit by digit."""
    if planned is None or said.concurrency is None:
        return False
    low, high = said.concurrency.interval
    return low <= planned.max_concurrency <= high and said.tokens in (None, planned.kv_cache_size_tokens)


def _sizes(planned: Plan | None, said: Figures) -> list[int]:
    """Other sizes that the printed memory may stand for: those whose blocks are about what the concurrency needs."""
    if said.available is None or said.concurrency is None:
        return []
    low, high = (int(bound) for bound in said.available.interval)
    if planned is None:
        return [high]
    block = planned.bytes_per_block
    wanted = round(said.concurrency.number * planned.blocks_per_request)
    counts = range(max(wanted - 1, -(-low // block)), min(wanted + 1, high // block) + 1)
    return [count * block for count in counts if count != planned.num_blocks]


def _miss(planned: Plan | None, said: Figures) -> float:
    """By which share a plan's concurrency is off the printed one."""
    if planned is None or said.concurrency is None:
        return 1.0
    return abs(planned.max_concurrency / max(1e-9, said.concurrency.number) - 1)


def tells(planned: Plan | None, said: Figures) -> bool:
    """Whether a plan prints the boot's concurrency, as far as memory known to two decimals decides."""
    if planned is None or said.concurrency is None or said.available is None:
        return False
    share = 0.006 * GIB / max(1, int(said.available.value)) + 0.006 / max(0.01, said.concurrency.number)
    if _miss(planned, said) > share:
        return False
    return said.tokens is None or abs(planned.kv_cache_size_tokens / max(1, said.tokens) - 1) <= share


def printed_rest(fit: Fit, said: Figures) -> Rest | None:
    """The memory for the cache that is printed, known to two decimals; None where it is not."""
    if said.available is None:
        return None
    low, high = (float(bound / GIB) for bound in said.available.interval)
    gib = fit.available_bytes / GIB if fit.available_bytes is not None else float(said.available.value / GIB)
    return Rest(gib, low, high, f"{said.available} GiB as printed")
