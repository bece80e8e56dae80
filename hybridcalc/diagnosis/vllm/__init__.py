"""A vLLM boot: pages, blocks, what the printed tokens mean, which model has these pages, and what to set.

capacity = concurrency x max_model_len                tokens that requests of max_model_len can hold
printed  = capacity                                   since the capacity line counts groups
= num_blocks / groups x block                before: one group's share, capacity / groups
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

from hybridcalc.architecture import Architecture
from hybridcalc.bootlog.boots import Boot
from hybridcalc.deployment import Workload
from hybridcalc.diagnosis import Launched, Question, add_failures, echoed, serving_findings, shared
from hybridcalc.diagnosis.answer import Constants, Derived, Diagnosis, PageSizes
from hybridcalc.diagnosis.names import Hints, Named, named_model
from hybridcalc.diagnosis.vllm.candidates import (
    Figures,
    Fit,
    Known,
    class_of,
    figures_of,
    fitting_models,
    is_capacity,
    over_printed_memory,
    prepared,
    printed_rest,
    release_of,
    tells,
)
from hybridcalc.diagnosis.vllm.failures import CAUSES, that_serves
from hybridcalc.diagnosis.vllm.wanted import answer_wanted, of_length
from hybridcalc.engines.vllm import EngineArgs
from hybridcalc.engines.vllm.releases import RELEASES
from hybridcalc.engines.vllm.server_plan import Plan, plan
from hybridcalc.errors import HybridcalcError
from hybridcalc.units import GIB, format_bytes

MUCH_PADDING_PCT = 10
MUCH_GRAPH = 2 * GIB
ONE_GROUP = Fraction(5, 100)
PRINTED_KV = {"bfloat16": "bfloat16", "float16": "float16", "float8_e4m3fn": "fp8_e4m3", "float8_e5m2": "fp8_e5m2"}
"""A dtype of KV as torch calls it, and as --kv-cache-dtype does."""
GDN_KERNELS = ("triton", "flashinfer", "cutedsl")
_OF_STATES = ("block_size", "padding", "cache_mode", "padding_layers", "seqs_exceed_blocks", "graph_sizes_capped")
"""Lines that only a model with states prints."""


@dataclass(slots=True)
class VllmDerived(Derived):
    """What follows from a vLLM boot's figures; None where it does not. ``capacity_tokens`` is [lowest, highest]."""

    capacity_tokens: tuple[int, int] | None = None
    tokens_mean: str | None = None
    groups_seen: float | None = None
    bytes_per_block: int | None = None
    state_layers: int | None = None
    num_blocks: int | None = None
    blocks_per_request: int | None = None
    planned_concurrency: float | None = None


def diagnose(boot: Boot, question: Question) -> Diagnosis:
    """The answer for one vLLM boot."""
    known, said, derived = _known(boot, question), figures_of(boot), VllmDerived()
    release = release_of(boot, question.hints, known.args.engine_version)
    answer = Diagnosis(boot, version=release.said, derived=derived)
    served = boot.word("arguments", "served") or boot.word("engine_started", "served")
    by_log = named_model(_path(boot, question), served) if question.model is None else None
    told = by_log is None and question.model is None and question.hints.model is not None
    named = question.hints.named() if told else by_log
    model = question.model or (named.preset if named is not None else None)
    fitting = fitting_models(boot, said, known, model, release.tried)
    if not fitting and release.told:
        other = release_of(boot, Hints(), known.args.engine_version)
        found = fitting_models(boot, said, known, model, other.tried) if other.tried != release.tried else []
        if fitting := found:  # what is told is without this model
            release, answer.version = other, other.said
    if not fitting and named is not None and named.preset is not None and said.block is not None:
        fitting = fitting_models(boot, said, known, None, release.tried)
        named, told = (None if told and fitting else named if told else Named(named.name, None)), told and not fitting
    fitting = [fit for fit in fitting if fit.model.name in question.hints.presets] or fitting
    unknown = named.name if named is not None and named.preset is None else ""
    answer.candidates = tuple(fit.candidate for fit in fitting)
    counted = said.available is not None and said.concurrency is not None
    kin = model is not None or class_of(boot) is not None
    unsaid = boot.first("arguments", "drafting") is not None and not known.args.num_speculative_tokens
    decided = bool(fitting) and (fitting[0].told or (kin and not counted and not unknown and not unsaid))
    apart = False
    if decided:
        apart = not fitting[0].told and len({one.tp for one in answer.candidates}) > 1
        best = answer.candidates[0]
        answer.model_guess = (best._replace(tp=0) if apart else best).describe()
        if RELEASES.newer(release.tried[0]):
            answer.version = f"{answer.version}, by the rules of {RELEASES.newest}"
        elif fitting[0].told and len(release.tried) > 1:
            by = f"by the rules of {fitting[0].args.engine_version}"
            build = boot.first("engine_started", "version") or release.told
            answer.version = f"{answer.version}, {by}" if build else by
    drafts = fitting[0].args.num_speculative_tokens if decided else 0
    if drafts and drafts != known.args.num_speculative_tokens:
        answer.find("HC107", f"the pages are those with {drafts} draft tokens, of which no line tells")
    failed = add_failures(answer, CAUSES)
    if failed and decided:
        answer.findings = [that_serves(one, boot, fitting[0], said, question.workload) for one in answer.findings]
    _rows(answer, said)
    _meaning(answer, derived, said)
    _notes(answer, said)
    serving_findings(
        answer,
        None,
        more_state="raise --gpu-memory-utilization, or lower --max-num-seqs",
        more_kv="raise --gpu-memory-utilization, lower --max-model-len, or use fp8 KV",
    )
    if decided and not apart:
        one = len({fit.model.name for fit in fitting}) == 1 or _alike(fitting)
        _exact(answer, derived, fitting[0], said, question.workload, one=one, sure=not unknown)
    elif not unknown or not fitting:
        _undecided(answer, said, question.model)
    if question.workload.wanted is not None:
        share = shared(boot, question.workload.wanted, known.args.data_parallel_size)
        answer_wanted(answer, derived, said, question.workload, share, known.args)
    if unknown:
        if fitting:
            same = f"{unknown} is no preset of these pages; they are those of {answer.names}"
            answer.find("HC107", same, "--model takes its config.json")
        like = f", pages as of {answer.model_guess}" if decided else ""
        answer.model_guess = f"{unknown}{like}"
    elif named is not None and named.preset is not None and not answer.model_guess:
        answer.model_guess = named.preset.name
    head = f"vLLM {answer.version or ''}{', as told' if release.told else ''}".rstrip()
    question.hints.note(answer, title="vLLM", release=release.told, model=told, by_log=by_log)
    limit = known.args.max_num_seqs
    by_length = of_length(answer, derived, said, question.workload, limit)
    parts = [*by_length, *_verdict(answer, said, None if by_length else limit)]
    answer.conclude(head + (f", {answer.model_guess}" if answer.model_guess else ""), parts, failed)
    return answer


def _undecided(answer: Diagnosis, said: Figures, model: Architecture | None) -> None:
    """Say why no model was found, or none of several chosen."""
    if answer.candidates:
        why = "the log ends before the cache was sized"
        drafting = [("engine_started", "speculative_method"), ("arguments", "drafting")]
        drafts = any(answer.boot.first(*one) is not None for one in drafting)
        if drafts and said.concurrency is not None:
            why = "layers of a draft model, of which no line tells, share the blocks"
        elif said.available is not None and said.concurrency is not None:
            why = "its tokens are those of none of them"
        elif said.tokens is not None:
            why = "the memory for the cache is not printed"
        several = len({one.model for one in answer.candidates}) > 1
        fix = "" if model else "--model says which it is" if several else "--command says its TP"
        fix = "--command says which drafts" if drafts and not several else fix
        answer.find("HC107", f"the pages fit {answer.names}; {why}", fix)
    elif said.block is not None and model is not None:
        block = f"a block of {said.block:,} tokens"
        answer.find("HC101", f"no tp and no dtype gives {model.name} {block} with this padding")
    elif said.block is not None:
        none = "none of the known models has these pages at TP 1 to 16"
        answer.find("HC107", f"{none} without draft tokens", "--model tries some")


def _known(boot: Boot, question: Question) -> Known:
    """The arguments that are known: of the launch line, or as the engine echoes them; and the kernel that it names,
    which need not be the one that they ask for.
    """
    launch = question.launch
    kernel = next((name for name in GDN_KERNELS if boot.of(f"gdn_{name}")), None)
    if launch is not None and isinstance(launch.args, EngineArgs):
        runs = kernel or launch.args.gdn_prefill_backend
        return Known(replace(launch.args, gdn_prefill_backend=runs), tp_stated=True)
    fields = _fields(echoed([*boot.of("arguments"), *boot.of("engine_started")]))
    ranks = boot.count("context_parallel", "size")
    if ranks is not None and ranks > 1:
        fields.setdefault("decode_context_parallel_size", ranks)
    mode = boot.first("cache_mode", "mode")
    if mode is not None:
        fields.setdefault("enable_prefix_caching", mode != "none")
    if kernel is not None:
        fields["gdn_prefill_backend"] = kernel
    printed = boot.word("kv_dtype", "dtype")
    if printed in PRINTED_KV:
        fields.setdefault("kv_cache_dtype", PRINTED_KV[printed])
    return Known(replace(EngineArgs(), **fields), tp_stated="tensor_parallel_size" in fields)


def _fields(said: dict[str, int | float | str | bool]) -> dict[str, Any]:
    """Printed arguments by their fields; the grammar reads each as its kind."""
    fields: dict[str, Any] = {name: value for name, value in said.items() if name in EngineArgs.__dataclass_fields__}
    method, drafts = said.get("speculative_method"), said.get("num_speculative_tokens")
    if method is not None:
        fields["speculative_config"] = {"method": method, "num_speculative_tokens": drafts}
    return fields


def launched(boot: Boot) -> Launched | None:
    """The launch that a boot's printed arguments are of; None where it prints none, or none that names a model."""
    said = echoed(boot.of("arguments"))
    model = said.get("model", said.get("model_tag"))
    return None if model is None else Launched(boot.engine, str(model), replace(EngineArgs(), **_fields(said)))


def _path(boot: Boot, question: Question) -> str | None:
    """The model that the launch line or the log names, as it stands there."""
    if question.launch is not None and question.launch.model:
        return question.launch.model
    said = (("engine_started", "model"), ("arguments", "model"), ("arguments", "model_tag"))
    return next((path for kind, figure in said if (path := boot.word(kind, figure))), None)


def _alike(fitting: list[Fit]) -> bool:
    """Whether all candidates plan alike: the same pages and groups."""
    sizes = set()
    for fit in fitting:
        ready = prepared(fit.model, fit.args)
        sizes.add((ready.bytes_per_block, tuple(g.layers for g in ready.groups)) if ready else None)
    return len(sizes) == 1


def _rows(answer: Diagnosis, said: Figures) -> None:
    boot = answer.boot
    places = {kind: f"line {boot.of(kind)[0].line}" for kind in ("block_size", "available", "kv_size") if boot.of(kind)}
    in_use = (f"line {one.line}" for one in boot.of("free_memory") if one.size("in_use") is not None)
    places.setdefault("available", next(in_use, ""))
    if "block_size" in places and said.block is not None:
        padding = f"states padded by {said.padding} %" if said.padding else "states fill it exactly"
        padding = padding if boot.of("padding") else "no padding line"
        answer.row(places["block_size"], f"{said.block:,} tokens a block", padding)
    if places["available"] and said.available is not None:
        answer.row(places["available"], f"{said.available} GiB", "for KV and states of one GPU")
    if "kv_size" in places and said.tokens is not None:
        many = said.concurrency is not None and said.length is not None
        each = f", {said.concurrency} requests of {said.length:,}" if many else ""
        answer.row(places["kv_size"], f"{said.tokens:,} tokens", f"as printed{each}")


def _meaning(answer: Diagnosis, derived: VllmDerived, said: Figures) -> None:
    """What the printed token figure is, and the capacity it stands for."""
    if said.concurrency is None or said.length is None:
        return
    times, length = said.concurrency, said.length
    printed = said.tokens if said.tokens is not None and is_capacity(said.tokens, times, length) else None
    low, high = (bound * length for bound in times.interval)
    capacity = printed or int(times.value * length)
    derived.capacity_tokens = (printed, printed) if printed else (int(low), int(high))
    numbers = f"{times} x {length:,}" + (", as printed" if printed else "")
    answer.step(
        "capacity", "concurrency x max_model_len", numbers, capacity, "tokens", "vLLM v1/core/kv_cache_utils.py"
    )
    if not said.tokens:  # of none there is nothing to say
        return
    if printed is not None:
        derived.tokens_mean = "concurrency x max_model_len"
        if answer.candidates or any(answer.boot.of(kind) for kind in _OF_STATES):
            are = f"are {times} requests of {length:,}: of shorter requests they are fewer"
            answer.find("HC140", f"the {said.tokens:,} tokens {are}, since each holds its states")
        return
    groups = Fraction(capacity, max(1, said.tokens))
    derived.tokens_mean, derived.groups_seen = "one group's share", round(float(groups), 2)
    if abs(groups - 1) >= ONE_GROUP:  # else one group: its share is all of it
        share = f"are one group's share of the blocks: requests of {length:,} tokens hold {capacity:,} together"
        answer.find("HC140", f"the {said.tokens:,} tokens {share}, {float(groups):.1f} times as many")


def _notes(answer: Diagnosis, said: Figures) -> None:
    boot = answer.boot
    if said.padding is not None and said.padding.number >= MUCH_PADDING_PCT:
        fix = "another tp or KV dtype changes the padding"
        answer.find("HC141", f"state pages are padded by {said.padding} %", fix)
    evened = [(waste, added) for added in boot.of("padding_layers") if (waste := added.size("waste")) is not None]
    if evened:  # a draft model's groups are evened out too
        waste, added = max(evened, key=lambda one: one[0].value)
        layers = f"{added.get('layers')} layers were added to even out groups"
        answer.find("HC141", f"{layers}: up to {waste} % of the cache is wasted")
    for pool in boot.of("graph_pool"):
        actual, estimate = pool.size("actual"), pool.size("estimate")
        if actual is not None and estimate is not None and estimate.value - actual.value > MUCH_GRAPH:
            idle = f"{float((estimate.value - actual.value) / GIB):.2f} GiB idle"
            answer.find(
                "HC142",
                f"graphs took {actual} of {estimate} GiB estimated: {idle}",
                "raise --gpu-memory-utilization by that much, or lower the largest captured batch",
            )
    for capped in boot.of("graph_sizes_capped"):
        reach = f"graphs reach batches of {capped.get('to')}, not {capped.get('from')}"
        fix = "more memory for the cache, or a lower --max-num-seqs"
        answer.find("HC143", f"{reach}: there are {capped.get('blocks')} blocks", fix)
    spread = {size.get("tokens") for size in boot.of("kv_size")}
    if len(spread) > 1:
        answer.find("HC103", f"engines differ in their tokens: {', '.join(map(str, spread))}")


def _exact(
    answer: Diagnosis, derived: VllmDerived, fit: Fit, said: Figures, workload: Workload, *, one: bool, sure: bool
) -> None:
    """What the planner adds where the model is known: pages, groups, blocks, capacity for a workload, flags. Where the
    log names a model without preset, the pages are known and not the model: it is not ``sure``.
    """
    ready = prepared(fit.model, fit.args)
    if ready is None:
        return
    sizes = [group.layers for group in ready.groups]
    per_block, padded = ready.bytes_per_block, ready.pages.padded
    answer.constants = Constants(exact=PageSizes(fit.candidate.model, per_block, padded, sizes, one and sure))
    layers = ", ".join(map(str, sizes))
    planned = _planned(fit, said, workload)
    if planned is not None:
        request = f"{planned.blocks_per_request:,} for a request of {planned.max_model_len:,}"
        answer.row("blocks", f"{planned.num_blocks:,}", f"{request}: {planned.max_concurrency:.2f} at once")
    answer.row("groups", f"{len(sizes)} of {layers} layers", f"a block is {format_bytes(per_block)} over all of them")
    derived.bytes_per_block = per_block
    derived.state_layers = sum(group.layers for group in ready.groups if group.kind == "state")
    if sure and len({candidate.model for candidate in answer.candidates}) > 1:
        alike = f"fits {answer.names}: all of the same pages"
        answer.find("HC107", alike if one else f"fits {answer.names}", "" if one else "--model says which it is")
    if planned is None:
        return
    derived.num_blocks, derived.blocks_per_request = planned.num_blocks, planned.blocks_per_request
    derived.planned_concurrency = round(planned.max_concurrency, 4)
    answer.steps += planned.steps
    if tells(planned, said):
        blocks = f"{planned.num_blocks:,} blocks of {format_bytes(planned.bytes_per_block)}"
        answer.find("HC100", f"the log matches {'' if sure else 'the pages of '}{fit.candidate.describe()}: {blocks}")
    answer.binding = "limit" if planned.binding == "limit" and fit.args.max_num_seqs is not None else "kv"
    derived.requests = planned.concurrency
    if workload.mean_length is not None and one:
        derived.idle_percent = round(planned.running.idle_percent, 2)
        answer.suggestions = over_printed_memory(planned)


def _planned(fit: Fit, said: Figures, workload: Workload) -> Plan | None:
    """The plan on the memory that is printed, known to two decimals; None where nothing starts on it."""
    rest = printed_rest(fit, said)
    if rest is None:
        return None

    def of(most: int | None) -> Plan | None:
        with suppress(HybridcalcError):
            return plan(fit.model, replace(fit.args, max_num_seqs=most), rest=rest, workload=workload)
        return None

    planned = of(fit.args.max_num_seqs)
    if planned is None and (one := of(1)) is not None:
        return of(one.num_blocks) or one  # no more sequences start than there are blocks
    return planned


def _verdict(answer: Diagnosis, said: Figures, limit: int | None) -> list[str]:
    """What a boot that did not fail comes to, as far as its log goes."""
    if said.concurrency is not None and said.length is not None:
        times, length = said.concurrency, said.length
        printed = said.tokens is not None and is_capacity(said.tokens, times, length)
        together = f"{said.tokens if printed else int(times.value * length):,} tokens together"
        most = [f"--max-num-seqs {limit} run"] if limit is not None and limit < times.value else []
        return [f"{times} requests of {length:,} tokens at once", *most, together]
    if said.tokens is not None:
        return [f"{said.tokens:,} tokens"]
    if said.available is not None:
        return [f"{said.available} GiB for KV and states"]
    if said.block is not None:
        return [f"blocks of {said.block:,} tokens; the log ends before the cache was sized"]
    if said.padding is not None:
        return [f"state pages padded by {said.padding} %"]
    weights = answer.boot.size("weights_loaded", "usage")
    return [f"weights take {weights} GiB" if weights is not None else "no cache line in it"]
