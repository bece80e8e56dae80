"""An SGLang boot: its constants, the model that has them, S, the memory and the ratio, what binds, what to set.

    rest  = (K + 1) x slot + (R + 1) x D x slot + T x cell        what the pools were charged
    ratio = (rest - T x cell) / (T x cell)                        where nothing was pinned
    S     = the clamp line's, or the one with K // S = R

Sizes are intervals (diagnosis/balance.py) until one model is found that fits them; then they are exact and the
engine's own start-up (engines/sglang) says what other flags would do with the same memory.
"""

from __future__ import annotations

import re
from dataclasses import replace
from fractions import Fraction

from hybridcalc.architecture.geometry import Architecture
from hybridcalc.architecture.presets import find_preset, load_model
from hybridcalc.bootlog import KvPoolAllocated, Printed, StatePoolAllocated
from hybridcalc.bootlog.boots import Boot
from hybridcalc.bootlog.figures import figure_list
from hybridcalc.deployment import requests_text
from hybridcalc.diagnosis.answer import Candidate, Diagnosis, Row, whole_range
from hybridcalc.diagnosis.balance import UNKNOWN_PAGE, exact_sizes, mismatches
from hybridcalc.diagnosis.candidates import sglang_candidates
from hybridcalc.diagnosis.consistency import contradictions, fraction_finding, ruled_out
from hybridcalc.diagnosis.failures import failures
from hybridcalc.diagnosis.pools import Pools
from hybridcalc.diagnosis.question import Launch, Question, launch_of
from hybridcalc.diagnosis.rules import finding
from hybridcalc.diagnosis.serving import serving_findings
from hybridcalc.diagnosis.setting import settings_for
from hybridcalc.engines.sglang.config import ServerArgs
from hybridcalc.engines.sglang.constants import Range, architecture_constants
from hybridcalc.engines.sglang.releases import RELEASES, rules_for
from hybridcalc.errors import HybridcalcError
from hybridcalc.findings import Finding
from hybridcalc.units import GIB, format_bytes

CLAMP_VALUES = (5, 4, 3, 2, 1)
MOST_NAMED = 4
LARGEST_PINNED, ABSURD_RATIO = 2**17, 4
"""Tokens up to which a round count looks set by hand, and a ratio beyond which nobody splits memory on purpose."""
_RANK_NUMBER = re.compile(r"TP([0-9]+)(?:(?:\.{2,3}|-)(?:TP)?([0-9]+))?")


def diagnose_sglang(boot: Boot, question: Question) -> Diagnosis:
    """The answer for one SGLang boot."""
    answer = Diagnosis(boot, version=version_of(boot))
    launch = launch_of(boot, question)
    args = replace(launch.args, engine_version=_rules_version(boot, launch.args))
    answer.derived["rules_of_version"] = args.engine_version
    pools = Pools(boot, args)
    model = question.model or _echoed_model(launch)
    _identify(answer, pools, args, model, named=question.model is not None)
    sizes = {candidate.sizes for candidate in answer.candidates}
    best = answer.candidates[0] if len(sizes) == 1 or (answer.candidates and question.model is not None) else None
    answer.constants = _constants(answer, pools, model)
    slots_per_request, origin = _slots_per_request(boot, pools)
    if slots_per_request is not None:
        answer.derived["slots_per_request"] = slots_per_request
    _rows(answer, pools, best, slots_per_request, origin)
    _memory(answer, pools, best, launch)
    failed = failures(answer)
    answer.findings += contradictions(boot, pools.slots, pools.tokens, pools.requests, slots_per_request, launch)
    if isinstance(question.command, ServerArgs):
        ratio = answer.derived.get("mamba_full_memory_ratio")
        answer.findings += ruled_out(launch, answer.candidates, pools.tokens, ratio)
    _notes(answer, pools, slots_per_request)
    answer.findings += serving_findings(answer, pools.slots, slots_per_request)
    if not failed:
        settings_for(answer, pools, best, model, args, launch, question.workload, slots_per_request)
    _verdict(answer, pools, best, slots_per_request, question, failed)
    answer.findings = list(dict.fromkeys(answer.findings))
    return answer


def version_of(boot: Boot) -> str | None:
    """The release as far as the form of the lines tells it."""
    if boot.of("capped"):
        return "later than 0.5.16"
    if any(kv.dtype for kv in boot.kvs):
        return "0.5.16 or later"
    return None


def _rules_version(boot: Boot, args: ServerArgs) -> str:
    if args.engine_version is not None:
        return args.engine_version
    old = boot.kvs and not any(kv.dtype for kv in boot.kvs) and not boot.of("capped")
    return RELEASES.oldest if old else RELEASES.newest


def _echoed_model(launch: Launch) -> Architecture | None:
    """The model whose path the log echoes, where a preset has that name."""
    name = launch.model.rsplit("/", 1)[-1] if launch.model else ""
    for spelling in (launch.model, name):
        if spelling and (found := find_preset(spelling)):
            return load_model(found[0])
    return None


def ranks_of(boot: Boot) -> int | None:
    """Tensor-parallel ranks that the log shows: one more than the highest; None where it names none, or where workers
    share them out.
    """
    if any(rank.startswith("DP") for rank in boot.ranks):
        return None
    numbers = [int(n) for rank in boot.ranks for match in _RANK_NUMBER.finditer(rank) for n in match.groups() if n]
    return max(numbers) + 1 if numbers and max(numbers) > 0 else None


def _identify(answer: Diagnosis, pools: Pools, args: ServerArgs, model: Architecture | None, *, named: bool) -> None:
    boot = answer.boot
    dtype = pools.kv.dtype if pools.kv else None
    printed = boot.first("kv_dtype", "kv_dtype")
    dtype = dtype or (printed if isinstance(printed, str) else None)
    weights = [s.get("model_class") for s in boot.of("weights_loaded")]
    model_class = next((name for name in weights if isinstance(name, str)), None)
    per_slot = boot.first("refused_hybrid", "per_slot")
    kv = pools.kv if pools.kv and (pools.kv.kv or (pools.kv.k and pools.kv.v)) else None
    uneven = len({(kv.k, kv.v, kv.kv) for kv in boot.target_kvs}) > 1
    state = pools.state if pools.state and pools.state.slots and not impossible(pools.state) else None
    answer.candidates = sglang_candidates(
        state,
        None if uneven else kv,
        args,
        dtype=dtype,
        model=model,
        model_class=model_class,
        ranks=ranks_of(boot),
        per_slot=per_slot.interval if isinstance(per_slot, Printed) else None,
    )
    if answer.candidates:
        answer.model_guess = answer.candidates[0].describe()
        return
    informative = (state is not None and (state.conv or state.ssm)) or per_slot is not None
    if named and model is not None and informative and state is not None:
        answer.findings.append(_does_not_fit(model, state, kv, args))
    elif informative:
        answer.findings.append(finding("HC107", "none of the known models fits these pools at TP 1 to 32"))


def _does_not_fit(
    model: Architecture, state: StatePoolAllocated, kv: KvPoolAllocated | None, args: ServerArgs
) -> Finding:
    try:
        exact = architecture_constants(model, args, rules_for(args.engine_version)[0])
        said = "; ".join(mismatches(exact_sizes(exact), state, kv, args))
    except HybridcalcError as error:
        said = error.message
    return finding("HC101", f"the log does not match {model.name}: {said}", "no tp and no dtypes tried make it fit")


def impossible(state: StatePoolAllocated) -> bool:
    """Whether a pool is larger than any rank's memory."""
    return any(part is not None and part.value > 1024 * GIB for part in (state.conv, state.ssm))


def _constants(answer: Diagnosis, pools: Pools, model: Architecture | None) -> dict[str, object] | None:
    slot, cell = pools.slot, pools.cell
    sizes = {candidate.sizes for candidate in answer.candidates}
    exact = None
    if answer.candidates:
        best = answer.candidates[0]
        exact = {
            "model": best.model,
            "state_bytes_per_slot": best.state_bytes,
            "kv_bytes_per_token": best.kv_bytes or None,
            "certain": len(sizes) == 1 or model is not None,
        }
    if slot is None and cell is None and exact is None and pools.conv is None and pools.ssm is None:
        return None
    return {
        "state_bytes_per_slot": whole_range(slot),
        "conv_bytes_per_slot": whole_range(pools.conv),
        "ssm_bytes_per_slot": whole_range(pools.ssm),
        "kv_bytes_per_token": whole_range(cell),
        "exact": exact,
    }


def _slots_per_request(boot: Boot, pools: Pools) -> tuple[int | None, str]:
    """S, and where it is from: the clamp line, or the only S with K // S = R."""
    printed = boot.first("capped", "slots_per_request")
    if isinstance(printed, int):
        return printed, "printed"
    if pools.slots and pools.requests:
        fitting = [s for s in CLAMP_VALUES if pools.slots // s == pools.requests]
        if len(fitting) == 1:
            return fitting[0], f"the only S with {pools.slots:,} // S = {pools.requests:,}"
    return None, ""


def _rows(answer: Diagnosis, pools: Pools, best: Candidate | None, slots_per_request: int | None, origin: str) -> None:
    """The pools, each with the sizes that make its figure."""
    state, kv = pools.state, pools.kv
    if state is not None and pools.slots is not None:
        what = f"K = {pools.slots:,} slots" + (f", S = {slots_per_request}" if slots_per_request else "")
        sizes = " + ".join(part.text for part in (state.conv, state.ssm) if part is not None)
        arithmetic = f"printed {sizes} GiB" if sizes else ""
        if best is not None and sizes:
            total = (pools.slots + 1) * best.state_bytes
            arithmetic = f"{pools.slots + 1:,} x {best.state_bytes:,} B = {format_bytes(total)} (printed {sizes})"
            answer.step(
                "state pool",
                "(K + 1) x slot",
                f"({pools.slots:,} + 1) x {best.state_bytes:,}",
                total,
                "bytes",
                "SGLang mem_cache/memory_pool.py",
            )
        elif pools.slot is not None:
            low, high = whole_range(pools.slot) or (0, 0)
            arithmetic = f"{low:,} to {high:,} B a slot (printed {sizes} over {pools.slots + 1:,})"
        answer.rows.append(Row(f"line {state.line}", what, arithmetic))
        scratch = [part.text for part in (state.intermediate_ssm, state.intermediate_conv) if part is not None]
        if scratch:
            drafts = _drafts(pools)
            if drafts:
                answer.derived["draft_tokens"] = drafts
            said = f"{drafts} draft tokens a request" if drafts else ""
            answer.rows.append(Row(f"line {state.line}", "draft states", f"printed {' + '.join(scratch)} GiB {said}"))
    if kv is not None and kv.tokens:
        printed = " + ".join(part.text for part in (kv.kv, kv.k, kv.v) if part is not None)
        arithmetic = f"printed {printed} GiB" if printed else ""
        if best is not None and best.kv_bytes and printed:
            arithmetic = f"{best.kv_bytes:,} B each = {format_bytes(kv.tokens * best.kv_bytes)} (printed {printed})"
            answer.step(
                "KV pool",
                "T x cell",
                f"{kv.tokens:,} x {best.kv_bytes:,}",
                kv.tokens * best.kv_bytes,
                "bytes",
                "SGLang model_executor/pool_configurator.py",
            )
        elif pools.cell is not None:
            low, high = whole_range(pools.cell) or (0, 0)
            arithmetic = f"{low:,} to {high:,} B a token (printed {printed})"
        answer.rows.append(Row(f"line {kv.line}", f"{kv.tokens:,} tokens", arithmetic))
    elif pools.tokens:
        line = answer.boot.of("summary")[0].line if answer.boot.of("summary") else answer.boot.line
        answer.rows.append(Row(f"line {line}", f"{pools.tokens:,} tokens", "the summary's figure"))
    if slots_per_request is not None:
        answer.step("S", "slots a request holds", origin or "printed", slots_per_request, "slots", "the log")
    if answer.boot.draft_kvs:
        pool = answer.boot.draft_kvs[0]
        printed = " + ".join(part.text for part in (pool.kv, pool.k, pool.v) if part is not None)
        answer.rows.append(Row(f"line {pool.line}", "draft model's KV", f"printed {printed} GiB"))


def _drafts(pools: Pools) -> int | None:
    """D, from the scratch: (R + 1) x D recurrent states; only where R is printed and one D fits."""
    state, ssm = pools.state, pools.ssm
    if state is None or state.intermediate_ssm is None or ssm is None or not pools.requests or ssm[0] <= 0:
        return None
    low, high = state.intermediate_ssm.interval
    rows = pools.requests + 1
    fitting = [d for d in range(1, 65) if rows * d * ssm[0] < high and rows * d * ssm[1] >= low]
    return fitting[0] if len(fitting) == 1 else None


def _memory(answer: Diagnosis, pools: Pools, best: Candidate | None, launch: Launch) -> None:
    """The memory the pools were given, the ratio they split it by, and the fraction of the GPU that leaves it."""
    if pools.slots is None or pools.tokens is None or impossible_pool(pools):
        return
    slot = _point(best.state_bytes) if best and best.state_bytes else pools.slot
    cell = _point(best.kv_bytes) if best and best.kv_bytes else pools.cell
    if slot is None or cell is None or slot[1] <= 0 or cell[0] <= 0:
        return
    page = launch.args.page_size or UNKNOWN_PAGE[1]
    scratch = pools.scratch
    kv = pools.tokens * cell[0], (pools.tokens + page) * cell[1]
    states = (pools.slots + 1) * slot[0] + scratch[0], (pools.slots + 1) * slot[1] + scratch[1]
    rest = states[0] + kv[0], states[1] + kv[1]
    answer.derived["rest_gib"] = [round(float(end / GIB), 3) for end in rest]
    answer.step(
        "rest",
        "states + draft states + KV",
        f"{format_bytes(states[0])} + {format_bytes(kv[0])}",
        round(float(rest[0] / GIB), 4),
        "GiB",
        "SGLang mem_cache/kv_cache_configurator.py",
    )
    old = not rules_for(_rules_version(answer.boot, launch.args))[0].padding_slot_charged
    given = states[0] - (slot[0] if old else 0), states[1] + (0 if old else slot[1])
    ratio = given[0] / kv[1], given[1] / max(kv[0] - slot[1], Fraction(1))
    answer.derived["mamba_full_memory_ratio"] = [round(float(end), 4) for end in ratio]
    fraction = _fraction(answer.boot, rest)
    text = (
        f"ratio {float(ratio[0]):.2f}"
        if float(ratio[1]) - float(ratio[0]) < 0.02
        else (f"ratio {float(ratio[0]):.2f} to {float(ratio[1]):.2f}")
    )
    if ratio[0] <= Fraction(9, 10) <= ratio[1]:
        text = "ratio 0.90"
        answer.derived["ratio_is_default"] = True
    elif "max_mamba_cache_size" in launch.given:
        text = f"pinned, as ratio {float(ratio[0]):.2f} would"
    if tokens_pinned(pools, launch, ratio[0]):
        answer.derived["tokens_pinned"] = pools.tokens
        del answer.derived["mamba_full_memory_ratio"]
        answer.rows.append(
            Row("split", f"{pools.tokens:,} tokens pinned", f"{format_bytes(states[0])} of states beside them")
        )
        if "max_total_tokens" not in launch.given:
            answer.findings.append(
                finding(
                    "HC109",
                    f"{pools.tokens:,} tokens beside {format_bytes(states[0])} of states: --max-total-tokens "
                    "looks pinned, and then no ratio moves the tokens",
                    "--command says what the boot was started with",
                )
            )
        return
    notes = "the default" if answer.derived.get("ratio_is_default") else ""
    if fraction is not None:
        answer.derived["mem_fraction_static"] = [round(end, 4) for end in fraction]
        wrong = fraction_finding(launch, fraction)
        answer.findings += [wrong] if wrong else []
        notes = f"{notes + '; ' if notes else ''}a --mem-fraction-static of about {sum(fraction) / 2:.2f}"
    answer.rows.append(Row("split", f"{text} of {float(rest[0] / GIB):.2f} GiB", notes))


def tokens_pinned(pools: Pools, launch: Launch, ratio: Fraction) -> bool:
    """Whether the tokens were set by hand: by the flags, or by a small round count that only an absurd ratio gives."""
    tokens = pools.tokens or 0
    if "max_total_tokens" in launch.given:
        return launch.args.max_total_tokens == tokens
    few = 0 < tokens <= LARGEST_PINNED and (tokens % 1000 == 0 or tokens % 1024 == 0)
    return few and ratio > ABSURD_RATIO and "mamba_full_memory_ratio" not in launch.given


def impossible_pool(pools: Pools) -> bool:
    """Whether the state pool is beyond any machine."""
    return pools.state is not None and impossible(pools.state)


def _point(size: int) -> Range:
    return Fraction(size), Fraction(size)


def _fraction(boot: Boot, rest: Range) -> tuple[float, float] | None:
    """The fraction of the memory that weights and pools took: 1 - (available after the weights - rest) / before."""
    before, after = boot.first("weights_begin", "avail"), boot.first("weights_loaded", "avail")
    draft = [s.get("avail") for s in boot.of("weights_loaded")]
    if len(draft) > 1 and isinstance(draft[-1], Printed) and any(boot.draft_kvs):
        after = draft[-1]
    if not isinstance(before, Printed) or not isinstance(after, Printed) or before.value <= 0:
        return None
    low = 1 - (after.value - rest[0]) / before.value
    high = 1 - (after.value - rest[1]) / before.value
    return (float(low), float(high)) if 0 < low < 1 else None


def _notes(answer: Diagnosis, pools: Pools, slots_per_request: int | None) -> None:
    """What an operator should know about the pools."""
    boot, said = answer.boot, answer.findings
    for name, kept in (("state", boot.states), ("KV", boot.target_kvs)):
        sizes = {replace(pool, rank="", line=0) for pool in kept}
        if len(sizes) > 1 and len({pool.rank for pool in kept}) > 1:
            which = "; ".join(f"{pool.rank or 'a rank'} {_pool_text(pool)}" for pool in kept[:MOST_NAMED])
            said.append(finding("HC103", f"ranks differ in their {name} pools: {which}"))
    if len(answer.candidates) > 1:
        names = list(dict.fromkeys(candidate.model for candidate in answer.candidates))
        weights = {candidate.sizes for candidate in answer.candidates}
        if len(weights) > 1 or len(names) > 1:
            more = f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else ""
            same = "all of the same sizes" if len(weights) == 1 else "the printed figures do not decide"
            said.append(
                finding(
                    "HC107",
                    f"fits {', '.join(names[:MOST_NAMED])}{more}: {same}",
                    "" if len(weights) == 1 else "--model says which it is",
                )
            )
    scratch, held = pools.scratch, pools.slot
    if scratch[0] and held is not None and pools.slots:
        states = (pools.slots + 1) * held[0]
        if scratch[0] > states:
            times = float(scratch[0] / states) if states else 0.0
            said.append(
                finding(
                    "HC113",
                    f"draft states take {format_bytes(scratch[0])}, {times:.1f} times the slots",
                    "lower --max-running-requests or --speculative-num-draft-tokens, or use "
                    "--enable-linear-replayssm-spec where the model supports it",
                )
            )
    if boot.draft_kvs:
        said.append(finding("HC114", f"line {boot.draft_kvs[0].line}: the second KV pool is the draft model's"))
    workers = {rank.split()[0] for rank in boot.ranks if rank.startswith("DP")}
    if workers and boot.of("summary"):
        shown = f"{len(workers)} of them are in the log" if len(workers) > 1 else "one is in the log"
        said.append(finding("HC115", f"limits and tokens are per data-parallel worker; {shown}"))
        if len(workers) > 1:
            answer.derived["workers"] = len(workers)
            for name, figure in (("total_tokens", "max_total_num_tokens"), ("total_requests", "max_running_requests")):
                by_worker = {s.rank.split()[0]: s.get(figure) for s in boot.of("summary") if s.rank.startswith("DP")}
                counts = [value for value in by_worker.values() if isinstance(value, int)]
                if len(counts) == len(workers):
                    answer.derived[name] = sum(counts)
    for statement in boot.of("reduced"):
        text = f"{statement.get('requested')} requests were asked for, {statement.get('effective')} run: KV is the wall"
        said.append(finding("HC112", text))
    for statement in (s for s in boot.of("capped") if s.get("max_running_requests") != 0):
        limit, slots = statement.get("max_running_requests"), statement.get("max_mamba_cache_size")
        because = f": {slots} // {slots_per_request}" if slots and slots_per_request else ""
        many = requests_text(limit) if isinstance(limit, int) else "fewer requests"
        said.append(finding("HC112", f"line {statement.line}: the slots admit {many}{because}"))
    if pools.requests and pools.slots and slots_per_request:
        needed = pools.requests * slots_per_request
        if pools.slots > 2 * needed + 1:
            said.append(
                finding(
                    "HC111",
                    f"{pools.slots:,} slots for {requests_text(pools.requests)} at {slots_per_request}: "
                    f"{needed:,} would do, the others only keep prefixes",
                    f"--max-mamba-cache-size {needed + 1} leaves the rest to KV",
                )
            )
    elif pools.requests and pools.slots and pools.slots > 12 * pools.requests:
        said.append(
            finding(
                "HC111",
                f"{pools.slots:,} slots for {requests_text(pools.requests)} at 5 each at most: "
                f"{5 * pools.requests:,} would do",
                f"--max-mamba-cache-size {5 * pools.requests + 1} leaves the rest to KV",
            )
        )


def _pool_text(pool: StatePoolAllocated | KvPoolAllocated) -> str:
    if isinstance(pool, StatePoolAllocated):
        sizes = " + ".join(part.text for part in (pool.conv, pool.ssm) if part is not None)
        return f"{pool.slots} slots {sizes} GiB"
    return f"{pool.tokens} tokens {' + '.join(p.text for p in (pool.kv, pool.k, pool.v) if p is not None)} GiB"


def _verdict(
    answer: Diagnosis,
    pools: Pools,
    best: Candidate | None,
    slots_per_request: int | None,
    question: Question,
    failed: bool,
) -> None:
    version = f" {answer.version}" if answer.version else ""
    head = f"SGLang{version}" + (f", {best.describe()}" if best else "")
    if failed:
        first = next(f for f in answer.findings if f.severity == "error")
        answer.headline, answer.meaning = (
            f"{head}: does not start" if not answer.boot.serving.lines else (f"{head}: failed while serving"),
            first.message,
        )
        return
    answer.headline = head
    parts = list[str]()
    length = question.workload.mean_length
    if answer.binding and "requests" in answer.derived:
        count = answer.derived["requests"]
        binds = {"state": "the state pool binds", "kv": "KV binds", "limit": "the request limit binds"}[answer.binding]
        parts.append(f"{binds} at {requests_text(count)}")
        idle = answer.derived.get("idle_percent")
        if idle and length is not None and idle >= 1:
            other = "KV" if answer.binding == "state" else "slots" if answer.binding == "kv" else "KV"
            parts.append(f"{idle:.0f} % of the {other} idle at {int(length):,} tokens")
    else:
        if pools.slots is not None:
            parts.append(f"{pools.slots:,} slots")
        if pools.tokens is not None:
            parts.append(f"{pools.tokens:,} KV tokens")
        if pools.requests is not None:
            parts.append(f"{requests_text(pools.requests)} at most")
    serving = answer.boot.serving
    if not parts and serving.lines and serving.most_running:
        usage = f"state pool {serving.peak_state_usage:.0%} full"
        parts.append(f"serving: {requests_text(serving.most_running)} at most, {usage}")
    sizes = [part for part in (pools.state.conv, pools.state.ssm) if part is not None] if pools.state else []
    if not parts and sizes:
        parts.append(f"a state pool of {' + '.join(part.text for part in sizes)} GiB; its slots are not printed")
    if not parts:
        printed = {figure.name: figure.value for figure in reversed(figure_list(answer.boot))}
        for name, what in (("weights_gib", "weights"), ("draft_weights_gib", "the draft model's weights")):
            weights = printed.get(name)
            if not parts and isinstance(weights, Printed):
                parts.append(f"{what} take {weights.text} GiB")
    if not parts:
        parts.append("no pool line in it")
    answer.meaning = "; ".join(parts)
