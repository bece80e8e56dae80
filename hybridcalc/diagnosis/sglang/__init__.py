"""An SGLang boot: its constants, the model that has them, S, the memory and the ratio, what binds, what to set.

    rest  = (K + 1) x slot + (R + 1) x D x slot + T x cell        what the pools were charged
    ratio = (rest - T x cell) / (T x cell)                        where nothing was pinned
    S     = the clamp line's, or the one with K // S = R

Sizes are intervals (evidence.py) until one model is found that fits them; then they are exact and the engine's own
start-up (engines/sglang) says what other flags would do with the same memory.
"""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

from hybridcalc.architecture.presets import load_model
from hybridcalc.bootlog import Printed, Record
from hybridcalc.bootlog.boots import Boot, figure_list
from hybridcalc.bootlog.sglang import differ, draft_pools, target_pools, window_pools
from hybridcalc.deployment import requests_text
from hybridcalc.diagnosis import Question, add_failures, serving_findings
from hybridcalc.diagnosis.answer import MOST_NAMED, Constants, Diagnosis, Exact, Range, whole_range
from hybridcalc.diagnosis.names import named_model
from hybridcalc.diagnosis.sglang.candidates import (
    has_pools_of,
    identify,
    may_print,
    perhaps_shortened,
    releases_of,
    stages_of,
    version_of,
)
from hybridcalc.diagnosis.sglang.consistency import (
    CAUSES,
    contradictions,
    fraction_finding,
    least_fraction,
    ruled_out,
    together,
)
from hybridcalc.diagnosis.sglang.evidence import (
    KV_SIZES,
    SCRATCH_SIZES,
    STATE_SIZES,
    Case,
    Pools,
    SglangDerived,
    flags_of,
    kv_sizes,
    largest_page,
    launched,
    possible_slots,
    sizes_text,
    slots_per_request,
)
from hybridcalc.diagnosis.sglang.settings import answer_wanted, settings_for
from hybridcalc.engines.sglang.releases import RELEASES, rules_for
from hybridcalc.units import GIB, format_bytes, percent_text

__all__ = ["diagnose", "launched", "together"]

LARGEST_PINNED, ABSURD_RATIO = 2**17, 4
"""Tokens up to which a round count looks set by hand, and a ratio beyond which nobody splits memory on purpose."""
_POOL, _CONFIGURATOR = "SGLang mem_cache/memory_pool.py", "SGLang model_executor/pool_configurator.py"


def diagnose(boot: Boot, question: Question) -> Diagnosis:
    """The answer for one SGLang boot."""
    flags, fitting = flags_of(boot, question), releases_of(boot)
    hints, told = question.hints, None
    if flags.args.engine_version is None:
        told = hints.release("sglang", lambda version: may_print(version, fitting))
        flags = flags._replace(args=replace(flags.args, engine_version=told))
    args = replace(flags.args, engine_version=flags.args.engine_version or (fitting or RELEASES.versions)[-1])
    stages = [replace(args, pp_size=n) for n in stages_of(boot)] if args.pp_size == 1 else [args]
    args = stages[0]
    if len(stages) > 1:
        args = next((one for one in stages if has_pools_of(boot, Pools(boot, one), one, question.model)), stages[0])
    derived = SglangDerived(rules_of_version=args.engine_version or "")
    answer = Diagnosis(boot, version=flags.args.engine_version or version_of(fitting), derived=derived)
    by_log = named_model(flags.model)
    model_told = by_log is None and question.model is None and hints.model is not None
    named = hints.named() if model_told else by_log
    model, pools = question.model or (named.preset if named is not None else None), Pools(boot, args)
    if model_told and (model is None or not has_pools_of(boot, pools, args, model)):
        named, model, model_told = None, None, False
    case = Case(answer, derived, flags, args, pools, model, question.workload)
    identify(answer, case.pools, args, model, named=question.model is not None, stated=flags.given)
    answer.candidates = tuple(one for one in answer.candidates if one.model in hints.presets) or answer.candidates
    if named is not None and named.preset is None and question.model is None:
        case.unknown = named.name
    sizes = {candidate.sizes for candidate in answer.candidates}
    if len(sizes) == 1 or (sizes and question.model is not None):
        case.best = answer.candidates[0]
        found = case.model or load_model(case.best.model)
        if found.architecture in rules_for(args.engine_version)[0].missing_classes:
            case.args = replace(args, engine_version=None)
        if flags.args.engine_version is None:
            answer.version = version_of(releases_of(boot, found.architecture)) or answer.version
    answer.constants = _constants(case)
    case.slots_per_request, origin = slots_per_request(case)
    derived.slots_per_request = case.slots_per_request
    _state_rows(case)
    _kv_rows(case, origin)
    _memory(case)
    failed = add_failures(answer, CAUSES)
    answer.findings = [least_fraction(one, case) for one in answer.findings]
    answer.findings += contradictions(case)
    answer.findings += ruled_out(case)
    _notes_on_pools(case)
    _notes_on_requests(case)
    _serving(case)
    if not failed:
        settings_for(case)
        possible_slots(case)
    answer_wanted(case)
    version = f" {answer.version}" if answer.version else ""
    if version and flags.args.engine_version is None and perhaps_shortened(boot):
        version, answer.version = f", lines as {answer.version}", None
    guess = case.best.describe() if case.best else ""
    guess = (
        guess.replace(f"on TP{case.best.tp}", f"on TP{case.best.tp} x PP{args.pp_size}")
        if case.best and args.pp_size > 1
        else guess
    )
    if case.unknown:
        answer.model_guess = case.unknown
        if answer.candidates:
            fix = "--model takes its config.json"
            answer.find("HC107", f"{case.unknown} is no preset; it has the sizes of {answer.names}", fix)
        guess = f"{case.unknown}, sized as {guess}" if guess else case.unknown
    if not guess and named is not None and named.preset is not None and question.model is None:
        guess = named.preset.name
    hints.note(answer, title="SGLang", release=told is not None, model=model_told, by_log=by_log)
    head = f"SGLang{version}{', as told' if told else ''}" + (f", {guess}" if guess else "")
    answer.conclude(head, _verdict(case), failed)
    answer.findings = list(dict.fromkeys(answer.findings))
    return answer


def _constants(case: Case) -> Constants | None:
    answer, pools, exact = case.answer, case.pools, None
    if answer.candidates:
        best = answer.candidates[0]
        one = len({candidate.sizes for candidate in answer.candidates}) == 1 and not case.unknown
        certain = one or case.model is not None
        exact = Exact(best.model, best.state_bytes, best.kv_bytes or None, certain)
    slot, conv, ssm, cell = (whole_range(one) for one in (pools.slot, pools.conv, pools.ssm, pools.cell))
    known = exact is not None or any(one is not None for one in (slot, conv, ssm, cell))
    return Constants(slot, conv, ssm, cell, exact) if known else None


def _state_rows(case: Case) -> None:
    """The state pool and the draft states, with the sizes that make their figures."""
    state, slots, best, answer = case.pools.state, case.pools.slots, case.best, case.answer
    if (flag := case.pools.flag) is not None:
        answer.row(f"line {flag.line}", f"K = {slots:,} slots", "as --max-mamba-cache-size says")
    if state is None or slots is None:
        return
    what = f"K = {slots:,} slots" + (f", S = {case.slots_per_request}" if case.slots_per_request else "")
    sizes = sizes_text(state, *STATE_SIZES)
    arithmetic = f"printed {sizes} GiB" if sizes else ""
    if best is not None and sizes:
        total = (slots + 1) * best.state_bytes
        arithmetic = f"{slots + 1:,} x {best.state_bytes:,} B = {format_bytes(total)} (printed {sizes})"
        answer.step("state pool", "(K + 1) x slot", f"({slots:,} + 1) x {best.state_bytes:,}", total, "bytes", _POOL)
    elif case.pools.slot is not None:
        low, high = whole_range(case.pools.slot) or (0, 0)
        arithmetic = f"{low:,} to {high:,} B a slot (printed {sizes} over {slots + 1:,})"
    answer.row(f"line {state.line}", what, arithmetic)
    if scratch := sizes_text(state, *SCRATCH_SIZES):
        drafts = case.derived.draft_tokens = _drafts(case.pools)
        said = f"{drafts} draft tokens a request" if drafts else ""
        answer.row(f"line {state.line}", "draft states", f"printed {scratch} GiB {said}")


def _kv_rows(case: Case, origin: str) -> None:
    """The KV pools, with the sizes that make their figures, and S."""
    kv, tokens, best, boot, answer = case.pools.kv, case.pools.tokens, case.best, case.boot, case.answer
    if kv is not None and tokens:
        printed = sizes_text(kv, *KV_SIZES) if kv_sizes(kv) else ""  # K alone, of a line that is cut, is not all
        arithmetic = f"printed {printed} GiB" if printed else ""
        if best is not None and best.kv_bytes and printed:
            total = tokens * best.kv_bytes
            arithmetic = f"{best.kv_bytes:,} B each = {format_bytes(total)} (printed {printed})"
            answer.step("KV pool", "T x cell", f"{tokens:,} x {best.kv_bytes:,}", total, "bytes", _CONFIGURATOR)
        elif case.pools.cell is not None:
            low, high = whole_range(case.pools.cell) or (0, 0)
            size = f"{low:,} to {high:,} B" if case.pools.tokens_sized else f"at most {high:,} B"
            arithmetic = f"{size} a token (printed {printed})"
        answer.row(f"line {kv.line}", f"{tokens:,} tokens", arithmetic)
    elif tokens:
        line = next((summary.line for summary in boot.of("summary")), boot.line)
        answer.row(f"line {line}", f"{tokens:,} tokens", "the summary's figure")
    if case.slots_per_request is not None:
        answer.step("S", "slots a request holds", origin or "printed", case.slots_per_request, "slots", "the log")
    _host_rows(case)
    for pool in window_pools(boot)[:1]:
        what = f"{pool.count('tokens'):,} tokens of windows"
        answer.row(f"line {pool.line}", what, f"printed {sizes_text(pool, *KV_SIZES)} GiB, beside them")
    for draft in draft_pools(boot)[:1]:
        answer.row(f"line {draft.line}", "draft model's KV", f"printed {sizes_text(draft, *KV_SIZES)} GiB")


def _host_rows(case: Case) -> None:
    """The host pools of a hierarchical cache: tokens and states that the GPU does not hold."""
    answer, best = case.answer, case.best
    for pool in case.boot.of("hicache_kv")[:1]:
        held, size = pool.count("tokens"), pool.size("host_gb")
        each = f"{float(size.number * 10**9 / held):,.0f} B each = " if held and size is not None else ""
        what = f"{held:,} tokens on the host" if held else "KV on the host"
        answer.row(f"line {pool.line}", what, f"{each}{size} GB (10**9 B)" if size is not None else "")
    for pool in case.boot.of("hicache_mamba")[:1]:
        size = pool.size("host_gb")
        slots = f", about {int(size.number * 10**9 / best.state_bytes):,} slots" if size and best is not None else ""
        answer.row(f"line {pool.line}", "states on the host", f"{size} GB (10**9 B){slots}" if size else "")


def _drafts(pools: Pools) -> int | None:
    """D, from the scratch: (R + 1) x D recurrent states; only where R is printed and one D fits."""
    held, ssm = pools.state and pools.state.size("intermediate_ssm"), pools.ssm
    if not held or ssm is None or not pools.requests or ssm[0] <= 0:
        return None
    (low, high), rows = held.interval, pools.requests + 1
    fitting = [d for d in range(1, 65) if rows * d * ssm[0] < high and rows * d * ssm[1] >= low]
    return fitting[0] if len(fitting) == 1 else None


def _memory(case: Case) -> None:
    """The memory the pools were given, the ratio they split it by, and the fraction of the GPU that leaves it."""
    pools, best, answer, derived = case.pools, case.best, case.answer, case.derived
    if pools.slots is None or pools.tokens is None or pools.impossible or window_pools(case.boot):
        return
    if case.args.pp_size > 1:
        return  # a stage has what its layers need of pools that the fullest stage sizes
    slot = _point(best.state_bytes) if best and best.state_bytes else pools.slot
    cell = _point(best.kv_bytes) if best and best.kv_bytes else pools.cell
    if slot is None or cell is None or slot[1] <= 0 or cell[0] <= 0:
        return
    page = largest_page(pools.tokens, case.flags.args)
    kv = pools.tokens * cell[0], (pools.tokens + page) * cell[1]
    states = ((pools.slots + 1) * slot[0] + pools.scratch[0], (pools.slots + 1) * slot[1] + pools.scratch[1])
    rest = states[0] + kv[0], states[1] + kv[1]
    derived.rest_gib = (round(float(rest[0] / GIB), 3), round(float(rest[1] / GIB), 3))
    answer.step(
        "rest",
        "states + draft states + KV",
        f"{format_bytes(states[0])} + {format_bytes(kv[0])}",
        round(float(rest[0] / GIB), 4),
        "GiB",
        "SGLang mem_cache/kv_cache_configurator.py",
    )
    if not pools.tokens_sized and not (best and best.kv_bytes):
        return
    old = not rules_for(case.args.engine_version)[0].padding_slot_charged
    given = states[0] - (slot[0] if old else 0), states[1] + (0 if old else slot[1])
    ratio = given[0] / kv[1], given[1] / max(kv[0] - slot[1], Fraction(1))
    if _tokens_pinned(case, ratio[0]):
        _pinned(case, states[0])
        return
    derived.mamba_full_memory_ratio = (round(float(ratio[0]), 4), round(float(ratio[1]), 4))
    low, high = float(ratio[0]), float(ratio[1])
    text, notes = f"ratio {low:.2f}" if high - low < 0.02 else f"ratio {low:.2f} to {high:.2f}", []
    if ratio[0] <= Fraction(9, 10) <= ratio[1]:
        text, derived.ratio_is_default = "ratio 0.90", True
        notes.append("the default")
    elif "max_mamba_cache_size" in case.flags.given:
        text = f"pinned, as ratio {low:.2f} would"
    if (fraction := _fraction(case.boot, rest)) is not None:
        derived.mem_fraction_static = (round(fraction[0], 4), round(fraction[1], 4))
        answer.findings += fraction_finding(case, fraction)
        notes.append(f"a --mem-fraction-static of about {sum(fraction) / 2:.2f}")
    answer.row("split", f"{text} of {float(rest[0] / GIB):.2f} GiB", "; ".join(notes))


def _pinned(case: Case, states: Fraction) -> None:
    """Say that the tokens were set by hand, beside so many bytes of states."""
    tokens, beside = case.pools.tokens or 0, f"{format_bytes(states)} of states"
    case.derived.tokens_pinned = tokens
    case.answer.row("split", f"{tokens:,} tokens pinned", f"{beside} beside them")
    if "max_total_tokens" not in case.flags.given:
        case.answer.find(
            "HC109",
            f"{tokens:,} tokens beside {beside}: --max-total-tokens looks pinned, and then no ratio moves the tokens",
            "--command says what the boot was started with",
        )


def _tokens_pinned(case: Case, ratio: Fraction) -> bool:
    """Whether the tokens were set by hand: by the flags, or by a small round count that only an absurd ratio gives."""
    tokens, given = case.pools.tokens or 0, case.flags.given
    if "max_total_tokens" in given:
        return case.flags.args.max_total_tokens == tokens
    few = 0 < tokens <= LARGEST_PINNED and (tokens % 1000 == 0 or tokens % 1024 == 0)
    return few and ratio > ABSURD_RATIO and "mamba_full_memory_ratio" not in given


def _point(size: int) -> Range:
    return Fraction(size), Fraction(size)


def _fraction(boot: Boot, rest: Range) -> tuple[float, float] | None:
    """The fraction of the memory that weights and pools took: 1 - (available after the weights - rest) / before."""
    before, after = boot.size("weights_begin", "avail"), boot.size("weights_loaded", "avail")
    loaded = boot.of("weights_loaded")
    if len(loaded) > 1 and draft_pools(boot):
        after = loaded[-1].size("avail") or after
    if before is None or after is None or before.value <= 0:
        return None
    low = 1 - (after.value - rest[0]) / before.value
    high = 1 - (after.value - rest[1]) / before.value
    return (float(low), float(high)) if 0 < low < 1 else None


def _notes_on_pools(case: Case) -> None:
    """What an operator should know about the pools and the models that fit them."""
    boot, answer, pools = case.boot, case.answer, case.pools
    for name, kept in (("state", boot.of("state_pool")), ("KV", target_pools(boot))):
        if differ(kept) and len({pool.rank for pool in kept}) > 1:
            which = "; ".join(f"{pool.rank or 'a rank'} {_pool_text(pool)}" for pool in kept[:MOST_NAMED])
            answer.find("HC103", f"ranks differ in their {name} pools: {which}")
    sizes = len({candidate.sizes for candidate in answer.candidates})
    stateful = bool(answer.candidates) and not any(candidate.kv_bytes for candidate in answer.candidates)
    if pools.cell is not None and not pools.tokens_sized and not stateful:
        printed = sizes_text(pools.kv, *KV_SIZES) if pools.kv is not None else ""
        answer.find("HC107", f"the KV pool is printed as {printed} GiB: what a token takes is not known")
    if sizes > 1 or len({candidate.model for candidate in answer.candidates}) > 1:
        same = "all of the same sizes" if sizes == 1 else "the printed figures do not decide"
        answer.find("HC107", f"fits {answer.names}: {same}", "" if sizes == 1 else "--model says which it is")
    scratch = pools.scratch[0]
    states = (pools.slots + 1) * pools.slot[0] if pools.slot is not None and pools.slots else None
    if states is not None and scratch > states:
        times = float(scratch / states) if states else 0.0
        answer.find(
            "HC113",
            f"draft states take {format_bytes(scratch)}, {times:.1f} times the slots",
            "lower --max-running-requests or --speculative-num-draft-tokens, or use "
            "--enable-linear-replayssm-spec where the model supports it",
        )
    for draft in draft_pools(boot)[:1]:
        answer.find("HC114", f"line {draft.line}: the second KV pool is the draft model's")
    drafts = boot.grammar.of_draft(boot)
    loaded = [one for one in boot.of("weights_loaded") if id(one) in drafts]
    if loaded and pools.kv is not None and not draft_pools(boot):
        whose = f"a draft model is loaded (line {loaded[0].line}) and one KV pool is printed (line {pools.kv.line})"
        answer.find("HC114", f"{whose}: it may be the draft's")
    _workers(case)


def _workers(case: Case) -> None:
    """What holds for each data-parallel worker, and all of them together."""
    boot, derived = case.boot, case.derived
    workers = {rank.split()[0] for rank in boot.ranks if rank.startswith("DP")}
    if not workers or not boot.of("summary"):
        return
    shown = f"{len(workers)} of them are in the log" if len(workers) > 1 else "one is in the log"
    case.answer.find("HC115", f"limits and tokens are per data-parallel worker; {shown}")
    if len(workers) > 1:
        derived.workers = len(workers)
        derived.total_tokens = _total(boot, "max_total_num_tokens", len(workers))
        derived.total_requests = _total(boot, "max_running_requests", len(workers))


def _total(boot: Boot, figure: str, workers: int) -> int | None:
    """A figure of the summary over all workers; None where one does not print it."""
    by_worker = {s.rank.split()[0]: s.count(figure) for s in boot.of("summary") if s.rank.startswith("DP")}
    counts = [value for value in by_worker.values() if value is not None]
    return sum(counts) if len(counts) == workers else None


def _notes_on_requests(case: Case) -> None:
    """What limits the requests, and slots that none of them can use."""
    boot, answer, slots, requests = case.boot, case.answer, case.pools.slots, case.pools.requests
    each = case.slots_per_request
    for reduced in boot.of("reduced"):
        asked, run = reduced.get("requested"), reduced.get("effective")
        answer.find("HC112", f"{asked} requests were asked for, {run} run: KV is the wall")
    for clamp in boot.of("capped"):
        limit, of = clamp.get("max_running_requests"), clamp.get("max_mamba_cache_size")
        if limit != 0:
            because = f": {of} // {each}" if of and each else ""
            many = requests_text(limit) if isinstance(limit, int) else "fewer requests"
            answer.find("HC112", f"line {clamp.line}: the slots admit {many}{because}")
    if not requests or not slots:
        return
    needed = requests * (each or 5)
    fix = f"--max-mamba-cache-size {needed + 1} leaves the rest to KV"
    if each and slots > 2 * needed + 1:
        use = f"{slots:,} slots for {requests_text(requests)} at {each}: {needed:,} would do"
        answer.find("HC111", f"{use}, the others only keep prefixes", fix)
    elif not each and slots > 12 * requests:
        use = f"{slots:,} slots for {requests_text(requests)} at 5 each at most"
        answer.find("HC111", f"{use}: {needed:,} would do", fix)


def _serving(case: Case) -> None:
    serving = case.boot.serving
    if case.pools.slots is None and serving.most_slots and serving.peak_state_usage > 0:
        case.derived.slots_from_usage = round(serving.most_slots / serving.peak_state_usage)
    serving_findings(
        case.answer,
        case.slots_per_request,
        more_state="raise --mamba-full-memory-ratio, or use --mamba-ssm-dtype bfloat16 or extra_buffer_lazy",
        more_kv="lower --mamba-full-memory-ratio, or use fp8 KV",
    )


def _pool_text(pool: Record) -> str:
    slots = f"{pool.count('slots')} slots" if pool.kind == "state_pool" else f"{pool.count('tokens')} tokens"
    return f"{slots} {sizes_text(pool, *STATE_SIZES, *KV_SIZES)} GiB"


def _verdict(case: Case) -> list[str]:
    """What a boot that did not fail comes to: what binds, or the figures that are there."""
    pools, answer, derived, serving = case.pools, case.answer, case.derived, case.boot.serving
    length, idle = case.workload.mean_length, derived.idle_percent
    if answer.binding and derived.requests is not None:
        binds = {"state": "the state pool binds", "kv": "KV binds", "limit": "the request limit binds"}[answer.binding]
        parts = [f"{binds} at {requests_text(derived.requests)}"]
        if idle and length is not None and idle >= 1 and answer.binding != "limit":
            other = "slots" if answer.binding == "kv" else "KV"
            parts.append(f"{percent_text(idle)} % of the {other} idle at {int(length):,} tokens")
        return parts
    parts = [f"{pools.slots:,} slots"] if pools.slots is not None else []
    parts += [f"{pools.tokens:,} KV tokens"] if pools.tokens is not None else []
    parts += [f"{requests_text(pools.requests)} at most"] if pools.requests is not None else []
    if length is not None and pools.tokens:
        parts.append(f"KV holds {requests_text(int(pools.tokens // length))} of {int(length):,} tokens")
    if parts:
        return parts
    if serving.lines and serving.most_running:
        usage = f"state pool {serving.peak_state_usage:.0%} full"
        return [f"serving: {requests_text(serving.most_running)} at most, {usage}"]
    if pools.state is not None and (sizes := sizes_text(pools.state, *STATE_SIZES)):
        return [f"a state pool of {sizes} GiB; its slots are not printed"]
    printed = {figure.name: figure.value for figure in reversed(figure_list(case.boot))}
    for name, what in (("weights_gib", "weights"), ("draft_weights_gib", "the draft model's weights")):
        if isinstance(weights := printed.get(name), Printed):
            return [f"{what} take {weights} GiB"]
    return ["no pool line in it"]
