"""Do the figures of a boot of SGLang agree, with one another and its flags? If it failed, why, and what changes that?

Each check names the two figures that part. What may differ is left alone: free memory moves by what loaders give back,
and an engine may run fewer requests than its pools admit. Every refusal is told with the figures the log gives for it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from fractions import Fraction
from functools import partial
from itertools import product

from hybridcalc.bootlog import Printed, Record
from hybridcalc.bootlog.boots import Boot
from hybridcalc.bootlog.sglang import target_pools, window_pools
from hybridcalc.diagnosis import Causes, moment_before, out_of_memory
from hybridcalc.diagnosis.answer import Diagnosis, both_ends, finding, sure_bound
from hybridcalc.diagnosis.sglang.candidates import KV_DTYPES
from hybridcalc.diagnosis.sglang.evidence import KV_SIZES, SCRATCH_SIZES, STATE_SIZES, Case
from hybridcalc.errors import InputError
from hybridcalc.findings import Finding
from hybridcalc.units import GIB, parse_dtype, short_dtype

SLACK = Fraction(5, 100) * GIB
"""Free memory may move by as much between two lines without anything being wrong."""
LARGEST_DRIFT = 2 * GIB
OTHER_START = "this log is of another start"


def contradictions(case: Case) -> list[Finding]:
    """What cannot all be true of one boot, and what the flags rule out."""
    return [*_within(case), *_once(list(_memory(case.boot))), *_flags(case)]


def _within(case: Case) -> Iterator[Finding]:
    boot, slots, requests, each = case.boot, case.pools.slots, case.pools.requests, case.slots_per_request
    targets = target_pools(boot)
    tokens = dict.fromkeys(count for kv in targets if (count := kv.count("tokens")))
    for summary in boot.of("summary"):
        said = summary.count("max_total_num_tokens")
        if said is not None and tokens and said not in tokens and not boot.of("post_capture"):
            yield _apart(
                f"the KV pool holds {next(iter(tokens)):,} tokens (line {targets[0].line})",
                f"the summary says {said:,} (line {summary.line})",
            )
    states = dict.fromkeys(count for state in boot.of("state_pool") if (count := state.count("slots")) is not None)
    for clamp in boot.of("capped"):
        names = ("max_mamba_cache_size", "slots_per_request", "max_running_requests")
        said, per, limit = (clamp.count(name) for name in names)
        if said is not None and states and said not in states:
            yield _apart(
                f"the state pool has {next(iter(states)):,} slots", f"the clamp says {said:,} (line {clamp.line})"
            )
        if said is not None and per and limit is not None and said // per != limit:
            yield _apart(f"{said:,} // {per} is {said // per:,}", f"the clamp says {limit:,} (line {clamp.line})")
    if slots is None or requests is None:
        return
    if each and requests > slots // each:
        yield _apart(f"{requests:,} requests run", f"{slots:,} slots admit {slots // each:,}")
    elif 0 <= slots < requests:
        yield _apart(f"{requests:,} requests run", f"there are {slots:,} slots, and each needs one at least")


def _once(found: list[Finding]) -> list[Finding]:
    """Notes that differ from rank to rank by a cent, as one."""
    notes = [one for one in found if one.rule == "HC116"]
    if len(notes) < 2:
        return found
    first = notes[0]._replace(message=f"{notes[0].message}; about so on {len(notes)} ranks")
    return [first if one is notes[0] else one for one in found if one.rule != "HC116" or one is notes[0]]


def _memory(boot: Boot) -> Iterator[Finding]:
    """Free memory before and after each step, against what the step says it took."""
    loaded = boot.firsts("weights_loaded")
    for rank, statement in loaded.items():
        begun = boot.firsts("weights_begin").get(rank)
        before, left, used = begun and begun.size("avail"), statement.size("avail"), statement.size("usage")
        if before and left and used and abs(before.value - left.value - used.value) > SLACK:
            yield _apart(f"{before} - {left} GiB are free less", f"the weights took {used} GiB (line {statement.line})")
    sizes_by_rank: dict[str, list[Fraction]] = {}
    for pool in (*boot.of("state_pool"), *target_pools(boot), *window_pools(boot)):
        taken = pool.sizes(*STATE_SIZES, *SCRATCH_SIZES, *KV_SIZES)
        sizes_by_rank.setdefault(pool.rank, []).extend(size.value for size in taken)
    alone = len(boot.of("weights_loaded")) == len(loaded)
    for rank, statement in loaded.items():
        after, sizes = statement.size("avail"), sizes_by_rank.get(rank)
        if after is None or not sizes:
            continue
        total = sum(sizes, start=Fraction(0))
        if total > after.value + LARGEST_DRIFT:
            free = f"{after} GiB were free (line {statement.line})"
            yield _apart(f"the pools take {float(total / GIB):.2f} GiB", free)
        ended = boot.firsts("pools_done").get(rank)
        kept = ended.size("avail") if ended is not None and alone else None
        if kept is None:
            continue
        drift = after.value - total - kept.value
        if abs(drift) > LARGEST_DRIFT / 8:
            less = f"{float(abs(drift) / GIB):.2f} {'more' if drift < 0 else 'less'}"
            was = f"{after} - {float(total / GIB):.2f}"
            yield finding("HC116", f"{kept} GiB are free after the pools, {less} than {was}")


def _flags(case: Case) -> Iterator[Finding]:
    """Figures that the flags of the boot do not give."""
    args, given, source = case.flags.args, case.flags.given, case.flags.source
    slots, requests = case.pools.slots, case.pools.requests
    if not given:
        return
    workers = max(1, args.attn_dp_size)
    asked, limit = args.max_mamba_cache_size, args.max_running_requests
    if asked is not None and slots is not None and slots != asked // workers:
        yield _other(f"{source} pins {asked:,} slots, the log has {slots:,}")
    if limit is not None and requests is not None:
        if requests > max(1, limit // workers):
            yield _other(f"{source} allows {limit:,} requests, the log runs {requests:,}")
        elif requests < limit // workers and not case.boot.of("capped"):
            yield finding("HC112", f"{limit:,} requests were asked for, {requests:,} run")
    printed = {dtype for kv in target_pools(case.boot) if (dtype := kv.word("dtype"))}
    wanted = _dtype(args.kv_cache_dtype) if "kv_cache_dtype" in given else None
    if wanted is not None and printed and not any(wanted in KV_DTYPES.get(dtype, (wanted,)) for dtype in printed):
        yield _other(f"{source} sets {args.kv_cache_dtype} KV, the log has {sorted(printed)[0]}")


def ruled_out(case: Case) -> Iterator[Finding]:
    """Flags that were handed over and that no model which fits the log agrees with; a split that the pools do not keep,
    a cap of the tokens.
    """
    args, given, source, tokens = case.flags.args, case.flags.given, case.flags.source, case.pools.tokens
    ratio, handed = case.derived.mamba_full_memory_ratio, case.flags.handed_over
    fitting = case.answer.candidates if handed else ()
    if "tp_size" in given and args.attn_dp_size <= 1 and fitting and args.tp_size not in {c.tp for c in fitting}:
        yield _other(f"{source} sets --tp {args.tp_size}, the pools are of TP{fitting[0].tp}")
    wanted = _dtype(args.mamba_ssm_dtype) if args.mamba_ssm_dtype else None
    printed = {candidate.ssm_dtype for candidate in fitting if candidate.ssm_dtype}
    if "mamba_ssm_dtype" in given and wanted and printed and short_dtype(wanted) not in printed:
        yield _other(f"{source} sets {short_dtype(wanted)} states, the pools hold {min(printed)}")
    if args.max_total_tokens is not None and tokens is not None and tokens > args.max_total_tokens:
        yield _other(f"{source} caps tokens at {args.max_total_tokens:,}, the log has {tokens:,}")
    pinned = args.max_mamba_cache_size is not None or args.max_total_tokens is not None or args.disable_radix_cache
    asked = args.memory_ratio
    held = "mamba_full_memory_ratio" in given and not pinned
    if held and ratio and not ratio[0] * 0.95 <= asked <= ratio[1] * 1.05:
        found = _other(f"{source} splits at {asked:g}, the pools at {sum(ratio) / 2:.2f}")
        yield found if handed else found._replace(severity="warning", fix="the log was edited, or another flag decides")


def fraction_finding(case: Case, fraction: tuple[float, float]) -> Iterator[Finding]:
    """Whether the fraction that was asked for leaves the memory that the pools took."""
    asked = case.flags.args.mem_fraction_static
    if asked is not None and not fraction[0] - 0.02 <= asked <= fraction[1] + 0.02:
        need = f"the pools need about {sum(fraction) / 2:.2f}"
        yield _other(f"{case.flags.source} gives --mem-fraction-static {asked:g}, {need}")


def _dtype(name: str) -> str | None:
    """A dtype's full name; None for one that is not known here."""
    try:
        return parse_dtype(name)
    except InputError:
        return None


def _other(message: str) -> Finding:
    return finding("HC108", message, OTHER_START)


def _apart(one: str, other: str) -> Finding:
    return finding("HC105", f"inconsistent: {one}, but {other}", "the log was edited, or holds lines of two boots")


DEFAULT_SHARE = Fraction(9, 19)
"""What the states have of the memory for both pools where no ratio is given: r / (1 + r) with r = 0.9."""
HIGHEST_FRACTION = 0.98
"""Beyond it the engine has nothing left for activations and graphs."""
FEWEST_SLOTS = 8
"""Slots, and as much KV, that a start needs at the very least."""
_NO_FRACTION, _LESS_WEIGHTS = "no --mem-fraction-static helps", "use smaller weights or more GPUs"
MORE_MEMORY = "raise --mem-fraction-static, or use more GPUs or smaller weights"


def _refused_hybrid(boot: Boot, error: Record) -> Finding:
    slots, rest, per = error.count("max_mamba_cache_size"), error.size("total_rest_memory"), error.size("per_slot")
    message, fix = "no memory for the state pool", MORE_MEMORY
    numbers = [f"{rest} GiB are left for both pools"] if rest is not None else []
    numbers += [f"K comes out at {slots:,}"] if slots is not None else []
    message += f": {', '.join(numbers)}" if numbers else ""
    message += f" of slots of {per} MiB" if numbers and per is not None else ""
    before, after = boot.size("weights_begin", "avail"), boot.size("weights_loaded", "avail")
    asked = _fraction(boot)
    if rest is not None and rest.value < 0:
        fix = f"{float(-rest.value / GIB):.2f} GiB and more are missing: {fix}"
        if before is not None and before.value > 0:
            more = float(-rest.value / before.value)
            other = both_ends(-rest.interval[1] / before.value, -rest.interval[0] / before.value)
            fix = f"raise --mem-fraction-static by more than {more:.2f}{other}, or use more GPUs"
            if asked is not None and asked + more >= HIGHEST_FRACTION:
                fix = f"{_NO_FRACTION}: {asked:g} + {more:.2f} would leave the engine nothing; {_LESS_WEIGHTS}"
            elif after is not None and after.value <= (1 - Fraction(HIGHEST_FRACTION)) * before.value:
                fix = f"{_NO_FRACTION}: {after} GiB are free after the weights; {_LESS_WEIGHTS}"
    elif rest is not None and per is not None and DEFAULT_SHARE * rest.value >= per.value:
        fits = int(DEFAULT_SHARE * rest.value / per.value)
        message += f": {fits:,} would fit without draft states" if slots is None else ""
        fix = "fewer --speculative-num-draft-tokens or --max-running-requests: (R + 1) x D draft states are held beside"
        fix += " the slots; or raise --mem-fraction-static"
    return finding("HC120", message, fix)


def _fraction(boot: Boot) -> float | None:
    """The --mem-fraction-static that the boot echoes, or that its profile prints."""
    asked = boot.size("arguments", "mem_fraction_static") or boot.size("profiled", "mem_fraction_static")
    return asked.number if asked is not None else None


def together(answers: Sequence[Diagnosis]) -> None:
    """Refusals of one host solved against each other: what was free before and after the weights, and what that means.

    rest = after - before x (1 - fraction), twice; each rest is known to half a cent.
    """
    seen: dict[tuple[object, ...], dict[float, tuple[Printed, Diagnosis]]] = {}
    for answer in answers:
        boot, asked = answer.boot, _fraction(answer.boot)
        rest = boot.size("refused_hybrid", "total_rest_memory")
        if (
            rest is None
            or asked is None
            or any(boot.size(kind, "avail") for kind in ("weights_begin", "weights_loaded"))
        ):
            continue
        host = (
            boot.word("arguments", "model_path"),
            boot.count("arguments", "tp_size"),
            boot.count("arguments", "pp_size"),
            boot.word("arguments", "kv_cache_dtype"),
        )
        seen.setdefault(host, {})[asked] = rest, answer
    for refusals in seen.values():
        if len(refusals) < 2:
            continue
        low, high = min(refusals), max(refusals)
        least, most = (Fraction(asked).limit_denominator(10_000) for asked in (low, high))
        rests = refusals[low][0], refusals[high][0]
        before, after = _free_memory((least, rests[0].value), (most, rests[1].value))
        if before <= 0 or not 0 < after < before:
            continue
        ends = [
            _free_memory((least, one), (most, other)) for one, other in product(rests[0].interval, rests[1].interval)
        ]
        for _, answer in refusals.values():
            _solved(answer, before, after, ends)


def _free_memory(low: tuple[Fraction, Fraction], high: tuple[Fraction, Fraction]) -> tuple[Fraction, Fraction]:
    """What is free before and after the weights, of two fractions with the memory that each left."""
    before = (high[1] - low[1]) / (high[0] - low[0])
    return before, high[1] + before * (1 - high[0])


def _solved(answer: Diagnosis, before: Fraction, after: Fraction, ends: list[tuple[Fraction, Fraction]]) -> None:
    """Say what two refusals come to together, in place of advice that knows of one; ``ends``: of the printed digits."""
    shown, left = f"{float(before / GIB):.1f}", f"{float(after / GIB):.2f}"
    both = f"two refusals together say {shown} GiB free before the weights and {left} after them"
    per = answer.boot.size("refused_hybrid", "per_slot")
    needed = (per.value if per is not None else Fraction(0)) * FEWEST_SLOTS
    least = 1 - (after - needed) / before
    mend = None
    if least >= HIGHEST_FRACTION:
        fix = f"{both}: {_NO_FRACTION}, none leaves more than that; {_LESS_WEIGHTS}"
    else:
        needs = sorted(1 - (left_then - needed) / then for then, left_then in ends if then > 0)
        sure, other = sure_bound(needs[0], needs[-1], least=True)
        if float(sure) >= HIGHEST_FRACTION:
            sure, _ = sure_bound(least, least, least=True)
        mend = "--mem-fraction-static", sure
        fix = f"{both}: {' '.join(mend)} at least{other}"
    answer.findings = [one._replace(fix=fix, mend=mend) if one.rule == "HC120" else one for one in answer.findings]


def _serves_none(error: Record) -> str:
    slots, per = error.count("max_mamba_cache_size"), error.count("slots_per_request")
    numbers = f": {slots} slots at {per} a request" if slots is not None and per is not None else ""
    return f"the state pool serves no request{numbers}"


def _refused_small(boot: Boot, error: Record) -> Finding:
    per = error.count("slots_per_request")
    fix = f"--max-mamba-cache-size {per + 1} at least, " if per is not None else ""
    mend = ("--max-mamba-cache-size", str(per + 1)) if per is not None else None
    return finding("HC121", _serves_none(error), fix + "or more memory for the pools", mend=mend)


def _clamped_to_none(boot: Boot, error: Record) -> Finding:
    per = error.count("slots_per_request")
    least = f"--max-mamba-cache-size {per}" if per is not None else "a larger --max-mamba-cache-size"
    fix = f"{least} at least, a higher --mamba-full-memory-ratio, or --mamba-ssm-dtype bfloat16"
    mend = ("--max-mamba-cache-size", str(per)) if per is not None else None
    return finding("HC121", _serves_none(error), fix, mend=mend)


def _refused_tokens(boot: Boot, error: Record) -> Finding:
    message, fix = "nothing is left for KV tokens", "raise --mem-fraction-static"
    rest, free, total = (boot.size("profiled", name) for name in ("rest", "available", "total"))
    free, total = free or boot.size("weights_loaded", "avail"), total or boot.size("weights_begin", "avail")
    asked = error.size("mem_fraction_static") or boot.size("profiled", "mem_fraction_static")
    message += f": {rest} GiB" if rest is not None else ""
    message += f" at --mem-fraction-static {asked.number:g}" if asked is not None else ""
    if free is not None and total is not None and 0 < free.value < total.value:
        message += f", {free} of {total} GiB are free after the weights"
        least = 1 - free.value / total.value
        ends = 1 - free.interval[1] / total.interval[0], 1 - free.interval[0] / total.interval[1]
        fix += f" above {float(least):.2f}{both_ends(*ends)}"
        if least >= HIGHEST_FRACTION:
            return finding("HC122", message, f"{_NO_FRACTION}; {_LESS_WEIGHTS}")
    if boot.of("state_pool") or boot.of("capped"):
        fix += ", or lower the state's share: --mamba-full-memory-ratio or --max-mamba-cache-size"
    else:
        fix += ", or use more GPUs or smaller weights"
    return finding("HC122", message, fix)


def least_fraction(found: Finding, case: Case) -> Finding:
    """A finding of tokens that lack memory with the least fraction by which its model starts on what the boot had free:
    the weights fit under the fraction that was asked for, and the state pool took what they left.
    """
    boot, asked, model = case.boot, _fraction(case.boot), case.model
    before, after = boot.size("weights_begin", "avail"), boot.size("weights_loaded", "avail")
    if found.rule != "HC122" or asked is None or model is None or before is None or after is None:
        return found
    if after.value <= (1 - Fraction(HIGHEST_FRACTION)) * before.value:
        return found
    from hybridcalc.engines.remedy import Remedied, larger_share
    from hybridcalc.engines.sglang import ENGINE
    from hybridcalc.engines.sglang.memory import rest_from_boot

    args, memory = case.args.changed(mem_fraction_static=asked), partial(rest_from_boot, before.number, after.number)
    least = larger_share(Remedied(ENGINE, model, args, memory, case.workload))
    if least is None:
        return found
    flag, _, value = least[0].partition(" ")
    return found._replace(fix=f"{least[0]} at least, or use more GPUs or smaller weights", mend=(flag, value))


def _refused_weights(boot: Boot, error: Record) -> Finding:
    return finding("HC122", "weights and slack leave no memory for the pools", MORE_MEMORY)


def _ping_pong(boot: Boot, error: Record) -> Finding:
    usage = boot.serving.peak_state_usage
    seen = f" at {usage:.0%} of the pool with {boot.serving.most_running} running" if usage else ""
    return finding(
        "HC123",
        f"no free slot for a request's tracking states{seen}",
        "raise --max-mamba-cache-size where it is set (the ratio the message names has no effect then), else "
        "--mamba-full-memory-ratio; or lower --max-running-requests, or use extra_buffer_lazy",
    )


def _slots_exhausted(boot: Boot, error: Record) -> Finding:
    return finding(
        "HC123",
        "no free state slot for a request",
        "raise --max-mamba-cache-size or --mamba-full-memory-ratio, or lower --max-running-requests",
    )


def _host(boot: Boot, error: Record) -> Finding:
    return finding("HC124", "no host memory is left for HiCache", "lower --hicache-size or --hicache-ratio")


def _oom(boot: Boot, error: Record) -> Finding:
    return out_of_memory(boot, error, "--mem-fraction-static")


def _exception(boot: Boot, error: Record) -> Finding:
    pages, (step, _) = error.count("page_size"), moment_before(boot, error)
    message = f"line {error.line}: {error.word('raised') or 'an exception'} ended the scheduler {step}".rstrip()
    if pages is not None:
        return finding(
            "HC128", f"{message}: it wants pages of {pages}", f"--page-size {pages}", mend=("--page-size", str(pages))
        )
    return finding("HC128", message, "the traceback's last lines say what it lacked")


CAUSES: Causes = {
    "refused_hybrid": _refused_hybrid,
    "refused_small": _refused_small,
    "refused_tokens": _refused_tokens,
    "refused_weights": _refused_weights,
    "ping_pong": _ping_pong,
    "slots_exhausted": _slots_exhausted,
    "no_host_memory": _host,
    "oom": _oom,
    "capped": _clamped_to_none,
    "exception": _exception,
}
