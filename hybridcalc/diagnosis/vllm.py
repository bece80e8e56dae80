"""A vLLM boot: pages, blocks, what the printed tokens mean, which model has these pages, and what to set.

    capacity = concurrency x max_model_len                tokens that requests of max_model_len can hold
    printed  = capacity                                   since the capacity line counts groups
             = num_blocks / groups x block                before: one group's share, capacity / groups

Block size and padding are exact integers of the model's geometry: every preset is planned (engines/vllm) at likely
tensor parallelism and dtypes, and those that print the same pages are candidates; memory and concurrency decide.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction
from functools import lru_cache
from itertools import product
from typing import NamedTuple

from hybridcalc.architecture.geometry import Architecture
from hybridcalc.architecture.presets import load_model, model_names
from hybridcalc.bootlog.boots import Boot
from hybridcalc.bootlog.records import Printed, Value
from hybridcalc.deployment import Rest
from hybridcalc.diagnosis.answer import Candidate, Diagnosis, Row
from hybridcalc.diagnosis.candidates import same_class
from hybridcalc.diagnosis.failures import failures
from hybridcalc.diagnosis.question import Question
from hybridcalc.diagnosis.rules import finding
from hybridcalc.diagnosis.serving import serving_findings
from hybridcalc.engines.vllm.config import EngineArgs
from hybridcalc.engines.vllm.planner import Prepared, prepare
from hybridcalc.engines.vllm.releases import rules_for
from hybridcalc.engines.vllm.server_plan import Plan, plan
from hybridcalc.errors import HybridcalcError
from hybridcalc.units import GIB, format_bytes, short_dtype

_TP = (1, 2, 4, 8, 16)
DRAFTS = (1, 3)
"""Draft tokens tried where pages fit no model without any."""
NEAR_TOKENS = 256
MUCH_PADDING_PCT = 10
ONE_GROUP = Fraction(5, 100)
_OF_STATES = ("block_size", "padding", "cache_mode", "padding_layers", "seqs_exceed_blocks", "graph_sizes_capped")
"""Lines that only a model with states prints."""
MUCH_GRAPH = 2 * GIB


class _Printed(NamedTuple):
    """What the boot printed of its pages and its cache."""

    block: int | None
    padding: Printed | None
    available: Printed | None
    tokens: int | None
    concurrency: Printed | None
    length: int | None


def diagnose_vllm(boot: Boot, question: Question) -> Diagnosis:
    """The answer for one vLLM boot."""
    release = release_of(boot)
    answer = Diagnosis(boot, version=release.said)
    said = _Printed(
        None
        if boot.of("block_size") and boot.first("block_size", "before") is not None
        else _count(boot.first("block_size", "tokens")),  # another program's pages say nothing of the model
        _size(boot.first("padding", "percent")),
        _size(
            boot.first("available", "available")
            or boot.first("cpu_memory", "available")
            or boot.first("one_request_too_big", "available")
            or boot.first("reserved", "available")
        ),
        _count(boot.first("kv_size", "tokens")),
        _size(boot.first("concurrency", "concurrency")),
        _count(boot.first("concurrency", "max_model_len") or boot.first("one_request_too_big", "max_model_len")),
    )
    args = _args(boot, question)
    fitting = _candidates(boot, said, args, question.model, release.tried)
    counted = said.available is not None and said.concurrency is not None
    known = question.model is not None or boot.first("architecture", "name") is not None
    decided = bool(fitting) and (fitting[0].told or (known and not counted))
    answer.candidates = tuple(fit.candidate for fit in fitting)
    one = decided and len({fit.model.name for fit in fitting}) == 1
    if decided:
        answer.model_guess = answer.candidates[0].describe()
        if fitting[0].told and len(release.tried) > 1:
            answer.version = f"by the rules of {fitting[0].args.engine_version}"
    failed = failures(answer)
    _rows(answer, said)
    _meaning(answer, said)
    _notes(answer, said)
    answer.findings += serving_findings(answer, None, None)
    if answer.model_guess is not None:
        _exact(answer, fitting[0], said, question, one=one or _alike(fitting))
    elif fitting:
        names = _names(answer)
        why = "the log ends before the cache was sized"
        if counted:
            why = "its tokens are those of none of them"
        elif said.tokens is not None:
            why = "the memory for the cache is not printed"
        answer.findings.append(finding("HC107", f"the pages fit {names}; {why}", "--model says which it is"))
    elif said.block is not None and question.model is not None:
        answer.findings.append(
            finding(
                "HC101",
                f"no tp and no dtype gives {question.model.name} a block of {said.block:,} tokens with this padding",
            )
        )
    elif said.block is not None:
        answer.findings.append(finding("HC107", "none of the known models has these pages at TP 1 to 16"))
    _verdict(answer, said, failed)
    return answer


def _args(boot: Boot, question: Question) -> EngineArgs:
    """The arguments that are known: of the launch line, or as the engine echoes them."""
    if isinstance(question.command, EngineArgs):
        return question.command
    fields: dict[str, object] = {}
    for kind in ("arguments", "engine_started"):
        for statement in boot.of(kind):
            for name, value in statement.figures:
                if name in EngineArgs.__dataclass_fields__ and value not in ("auto", "None"):
                    fields[name] = _plain(value)
    mode = boot.first("cache_mode", "mode")
    if mode is not None:
        fields.setdefault("enable_prefix_caching", mode != "none")
    return replace(EngineArgs(), **fields)  # type: ignore[arg-type]


def _plain(value: Value) -> object:
    if isinstance(value, Printed):
        return value.number
    return {"True": True, "False": False}.get(value, value) if isinstance(value, str) else value


class _Fit(NamedTuple):
    """Arguments under which a model prints the boot's pages; ``told``: and its concurrency, from its memory, which is
    then missed by the share ``miss``.
    """

    args: EngineArgs
    candidate: Candidate
    model: Architecture
    told: bool
    miss: float


def _candidates(
    boot: Boot, said: _Printed, args: EngineArgs, model: Architecture | None, releases: tuple[str, ...]
) -> list[_Fit]:
    """Models and arguments whose pages are the printed ones; where memory and concurrency are printed as well, those
    alone that give the one from the other. Drafts widen the pages: they are tried where nothing fits without and the
    model's class is known.
    """
    if said.block is None and model is None:
        return []
    printed = boot.first("architecture", "name")
    kin = [m for m in _models() if not isinstance(printed, str) or same_class(m.architecture, printed)]
    models = [model] if model is not None else kin or list(_models())
    sure = model is not None or isinstance(printed, str)
    drafts = (args.num_speculative_tokens,) if args.num_speculative_tokens else (0, *(DRAFTS if sure else ()))
    best: list[_Fit] = []
    for number in drafts:
        found = [fit for tried in models for fit in _fits(tried, said, args, number, releases)]
        told = [fit for fit in found if fit.told]
        if told:
            return _ranked(told)
        best = best or found
    return _ranked(best)


def _fits(
    model: Architecture, said: _Printed, args: EngineArgs, drafts: int, releases: tuple[str, ...]
) -> Iterator[_Fit]:
    tps = (args.tensor_parallel_size,) if args.tensor_parallel_size > 1 else _TP
    dtypes = (args.kv_cache_dtype,) if args.kv_cache_dtype != "auto" else ("auto", "fp8")
    caching = (True, False) if args.enable_prefix_caching is None else (args.enable_prefix_caching,)
    for tp, dtype, ssm, cached in product(tps, dtypes, ("auto", "float32"), caching):
        for release in releases:
            tried = replace(
                args,
                tensor_parallel_size=tp,
                kv_cache_dtype=dtype,
                mamba_ssm_cache_dtype=ssm,
                engine_version=release,
                max_model_len=said.length or args.max_model_len,
                num_speculative_tokens=drafts,
                enable_prefix_caching=cached,
            )
            ready = _prepared(model, tried)
            if ready is None:
                continue
            if said.block is not None and abs(ready.pages.block - said.block) > NEAR_TOKENS:
                break  # releases differ by a granule of the block, not by more
            if _same_pages(ready, said):
                kv = "fp8" if dtype.startswith("fp8") else short_dtype(ready.model_dtype)
                found = Candidate(model.name, tp, "" if ssm == "auto" else short_dtype(ssm), kv, 0, 0)
                planned = _planned(model, tried, said)
                yield _Fit(tried, found, model, _tells(planned, said), _miss(planned, said))


def _ranked(fits: list[_Fit]) -> list[_Fit]:
    """The likeliest first, one for each model with its tp and dtypes."""
    order = sorted(
        fits,
        key=lambda fit: (
            not fit.told,
            round(fit.miss, 4),
            fit.args.mamba_ssm_cache_dtype != "auto",
            fit.args.kv_cache_dtype != "auto",
            fit.args.tensor_parallel_size,
            fit.model.name,
        ),
    )
    return list({fit.candidate: fit for fit in reversed(order)}.values())[::-1]


class Release(NamedTuple):
    """Which releases a boot may be of, in words, and the rule sets to try, the likeliest first."""

    said: str | None
    tried: tuple[str, ...]


def release_of(boot: Boot) -> Release:
    """The printed version, or what the form of the capacity lines and the meaning of the tokens leave."""
    for kind in ("engine_started", "server_version"):
        version = boot.first(kind, "version")
        if isinstance(version, str) and _release(version.removeprefix("v")):
            return Release(version.removeprefix("v"), (version.removeprefix("v"),))
    tokens, concurrency = next(iter(boot.of("kv_size")), None), next(iter(boot.of("concurrency")), None)
    if tokens is None or concurrency is None:
        return Release(None, ("0.33.0", "0.28.0", "0.22.1"))
    count, times, length = tokens.get("tokens"), concurrency.get("concurrency"), concurrency.get("max_model_len")
    whole = isinstance(count, int) and isinstance(times, Printed) and isinstance(length, int)
    if whole and not _is_capacity(count, times, length):  # type: ignore[arg-type]
        return Release("0.20.1 or earlier", ("0.20.0", "0.18.0"))
    if tokens.line == concurrency.line and tokens.get("goes_on") is not None:
        return Release("0.28 or later", ("0.33.0", "0.32.0", "0.29.0", "0.28.0", "0.22.1"))
    return Release("before 0.28", ("0.27.0", "0.26.0", "0.22.1", "0.33.0"))


def _is_capacity(tokens: int, concurrency: Printed, length: int) -> bool:
    """Whether a printed token figure is concurrency x max_model_len, as far as two decimals tell."""
    low, high = (bound * length for bound in concurrency.interval)
    slack = Fraction(length, 1000)
    return low - slack <= tokens <= high + slack


def _release(text: str) -> bool:
    try:
        rules_for(text)
    except HybridcalcError:
        return False
    return True


@lru_cache(maxsize=1)
def _models() -> tuple[Architecture, ...]:
    return tuple(model for name in model_names() if (model := load_model(name)).state is not None)


def _prepared(model: Architecture, args: EngineArgs) -> Prepared | None:
    try:
        return prepare(model, args)
    except HybridcalcError:
        return None


def _planned(model: Architecture, args: EngineArgs, said: _Printed) -> Plan | None:
    if said.available is None or said.length is None:
        return None
    try:
        return plan(model, replace(args, max_num_seqs=1), available_bytes=int(said.available.value))
    except HybridcalcError:
        return None


def _same_pages(ready: Prepared, said: _Printed) -> bool:
    if said.block is not None and ready.pages.block != said.block:
        return False
    padding = float(ready.settled.get("padding_pct", 0.0))
    return said.padding is None or abs(padding - said.padding.number) <= 0.006


def _miss(planned: Plan | None, said: _Printed) -> float:
    """By which share a plan's concurrency is off the printed one."""
    if planned is None or said.concurrency is None:
        return 1.0
    return abs(planned.max_concurrency / max(1e-9, said.concurrency.number) - 1)


def _tells(planned: Plan | None, said: _Printed) -> bool:
    """Whether a plan prints the boot's concurrency, as far as memory known to two decimals decides."""
    if planned is None or said.concurrency is None or said.available is None:
        return False
    share = 0.006 * GIB / max(1, int(said.available.value)) + 0.006 / max(0.01, said.concurrency.number)
    if _miss(planned, said) > share:
        return False
    return said.tokens is None or abs(planned.kv_cache_size_tokens / max(1, said.tokens) - 1) <= share


def _names(answer: Diagnosis) -> str:
    names = list(dict.fromkeys(candidate.model for candidate in answer.candidates))
    return f"{', '.join(names[:4])}{f' and {len(names) - 4} more' if len(names) > 4 else ''}"


def _alike(fitting: list[_Fit]) -> bool:
    """Whether all candidates plan alike: the same pages and groups."""
    sizes = set()
    for fit in fitting:
        ready = _prepared(fit.model, fit.args)
        sizes.add((ready.bytes_per_block, tuple(g.layers for g in ready.groups)) if ready else None)
    return len(sizes) == 1


def _rows(answer: Diagnosis, said: _Printed) -> None:
    boot = answer.boot
    for kind, what in (("block_size", "block"), ("available", "memory"), ("kv_size", "tokens")):
        statement = next(iter(boot.of(kind)), None)
        if statement is None:
            continue
        place = f"line {statement.line}"
        if what == "block" and said.block is not None:
            padding = f"states padded by {said.padding.text} %" if said.padding else "states fill it exactly"
            if not boot.of("padding"):
                padding = "no padding line"
            answer.rows.append(Row(place, f"{said.block:,} tokens a block", padding))
        elif what == "memory" and said.available is not None:
            answer.rows.append(Row(place, f"{said.available.text} GiB", "for KV and states of one GPU"))
        elif what == "tokens" and said.tokens is not None:
            many = said.concurrency is not None and said.length is not None
            each = f", {said.concurrency.text} requests of {said.length:,}" if many else ""  # type: ignore[union-attr]
            answer.rows.append(Row(place, f"{said.tokens:,} tokens", f"as printed{each}"))


def _meaning(answer: Diagnosis, said: _Printed) -> None:
    """What the printed token figure is, and the capacity it stands for."""
    if said.concurrency is None or said.length is None:
        return
    low, high = (bound * said.length for bound in said.concurrency.interval)
    capacity = int(said.concurrency.value * said.length)
    answer.derived["capacity_tokens"] = [int(low), int(high)]
    answer.step(
        "capacity",
        "concurrency x max_model_len",
        f"{said.concurrency.text} x {said.length:,}",
        capacity,
        "tokens",
        "vLLM v1/core/kv_cache_utils.py",
    )
    if said.tokens is None:
        return
    if _is_capacity(said.tokens, said.concurrency, said.length):
        answer.derived["tokens_mean"] = "concurrency x max_model_len"
        boot = answer.boot
        if any(boot.of(kind) for kind in _OF_STATES) or answer.candidates:
            answer.findings.append(
                finding(
                    "HC140",
                    f"the {said.tokens:,} tokens are {said.concurrency.text} requests of {said.length:,}: of "
                    "shorter requests they are fewer, since each holds its states",
                )
            )
        return
    times = Fraction(capacity, max(1, said.tokens))
    answer.derived["tokens_mean"] = "one group's share"
    answer.derived["groups_seen"] = round(float(times), 2)
    if abs(times - 1) < ONE_GROUP:
        return  # one group: its share is all of it
    answer.findings.append(
        finding(
            "HC140",
            f"the {said.tokens:,} tokens are one group's share of the blocks: requests of {said.length:,} "
            f"tokens hold {capacity:,} together, {float(times):.1f} times as many",
        )
    )


def _notes(answer: Diagnosis, said: _Printed) -> None:
    boot = answer.boot
    if said.padding is not None and said.padding.number >= MUCH_PADDING_PCT:
        answer.findings.append(
            finding(
                "HC141",
                f"state pages are padded by {said.padding.text} %",
                "another tp or KV dtype changes the padding",
            )
        )
    for statement in boot.of("padding_layers"):
        waste = statement.get("waste")
        if isinstance(waste, Printed):
            layers = statement.get("layers")
            added = f"{layers} layers were added to even out groups"
            answer.findings.append(finding("HC141", f"{added}: up to {waste.text} % of the cache is wasted"))
    for statement in boot.of("graph_pool"):
        actual, estimate = statement.get("actual"), statement.get("estimate")
        if not isinstance(actual, Printed) or not isinstance(estimate, Printed):
            continue
        if estimate.value - actual.value > MUCH_GRAPH:
            idle = float((estimate.value - actual.value) / GIB)
            answer.findings.append(
                finding(
                    "HC142",
                    f"graphs took {actual.text} of {estimate.text} GiB estimated: {idle:.2f} GiB idle",
                    "raise --gpu-memory-utilization by that much, or lower the largest captured batch",
                )
            )
    for statement in boot.of("graph_sizes_capped"):
        answer.findings.append(
            finding(
                "HC143",
                f"graphs reach batches of {statement.get('to')}, not {statement.get('from')}: there are "
                f"{statement.get('blocks')} blocks",
                "more memory for the cache, or a lower --max-num-seqs",
            )
        )
    spread = {s.get("tokens") for s in boot.of("kv_size")}
    if len(spread) > 1:
        answer.findings.append(finding("HC103", f"engines differ in their tokens: {', '.join(map(str, spread))}"))


def _exact(answer: Diagnosis, fit: _Fit, said: _Printed, question: Question, *, one: bool) -> None:
    """What the planner adds where the model is known: pages, groups, blocks, capacity for a workload, flags."""
    args, candidate, model = fit.args, fit.candidate, fit.model
    ready = _prepared(model, args)
    if ready is None:
        return
    state = sum(group.layers for group in ready.groups if group.kind == "state")
    answer.constants = {
        "state_bytes_per_slot": None,
        "kv_bytes_per_token": None,
        "exact": {
            "model": candidate.model,
            "bytes_per_block": ready.bytes_per_block,
            "padded_page_bytes": ready.pages.padded,
            "group_sizes": [group.layers for group in ready.groups],
            "certain": one,
        },
    }
    groups = ", ".join(f"{group.layers}" for group in ready.groups)
    answer.rows.append(
        Row(
            "groups",
            f"{len(ready.groups)} of {groups} layers",
            f"a block is {format_bytes(ready.bytes_per_block)} over all of them",
        )
    )
    answer.derived["bytes_per_block"] = ready.bytes_per_block
    answer.derived["state_layers"] = state
    if not one:
        answer.findings.append(finding("HC107", f"fits {_names(answer)}", "--model says which it is"))
    if said.available is None:
        return
    half = 0.005
    gib = float(said.available.value / GIB)
    rest = Rest(gib, gib - half, gib + half, f"{said.available.text} GiB as printed")
    planned = None
    for seqs in (args.max_num_seqs, 1):
        try:
            planned = plan(model, replace(args, max_num_seqs=seqs), rest=rest, workload=question.workload)
            break
        except HybridcalcError:
            continue
    if planned is None:
        return
    answer.derived |= {
        "num_blocks": planned.num_blocks,
        "blocks_per_request": planned.blocks_per_request,
        "planned_concurrency": round(planned.max_concurrency, 4),
    }
    answer.rows.append(
        Row(
            "blocks",
            f"{planned.num_blocks:,}",
            f"{planned.blocks_per_request:,} for a request of "
            f"{planned.max_model_len:,}: {planned.max_concurrency:.2f} at once",
        )
    )
    answer.steps += planned.steps
    if _tells(planned, said):
        blocks = f"{planned.num_blocks:,} blocks of {format_bytes(planned.bytes_per_block)}"
        answer.findings.append(finding("HC100", f"the log matches {candidate.describe()}: {blocks}"))
    answer.binding = "limit" if planned.binding == "limit" and args.max_num_seqs is not None else "kv"
    answer.derived["requests"] = planned.concurrency
    if question.workload.mean_length is not None and one:
        answer.derived["idle_percent"] = round(planned.running.idle_percent, 2)
        answer.suggestions = list(planned.suggestions)


def _verdict(answer: Diagnosis, said: _Printed, failed: bool) -> None:
    version = f" {answer.version}" if answer.version else ""
    head = f"vLLM{version}" + (f", {answer.model_guess}" if answer.model_guess else "")
    if failed:
        answer.headline = f"{head}: {'failed while serving' if answer.boot.serving.lines else 'does not start'}"
        answer.meaning = next(f for f in answer.findings if f.severity == "error").message
        return
    answer.headline = head
    parts = list[str]()
    if said.concurrency is not None and said.length is not None:
        parts.append(f"{said.concurrency.text} requests of {said.length:,} tokens at once")
        parts.append(f"{int(said.concurrency.value * said.length):,} tokens together")
    elif said.tokens is not None:
        parts.append(f"{said.tokens:,} tokens")
    if not parts and said.available is not None:
        parts.append(f"{said.available.text} GiB for KV and states")
    if not parts and said.block is not None:
        parts.append(f"blocks of {said.block:,} tokens; the log ends before the cache was sized")
    if not parts and said.padding is not None:
        parts.append(f"state pages padded by {said.padding.text} %")
    weights = answer.boot.first("weights_loaded", "usage")
    if not parts and isinstance(weights, Printed):
        parts.append(f"weights take {weights.text} GiB")
    answer.meaning = "; ".join(parts) or "no cache line in it"


def _count(value: Value | None) -> int | None:
    return value if isinstance(value, int) else None


def _size(value: Value | None) -> Printed | None:
    return value if isinstance(value, Printed) else None
