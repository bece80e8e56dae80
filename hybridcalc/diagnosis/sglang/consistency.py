"""Do the figures of a boot agree with one another, and with the flags it was started with?

Each check names the two figures that part. What may differ is left alone: free memory moves by what loaders give back,
and an engine may run fewer requests than its pools admit.
"""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction

from hybridcalc.bootlog.boots import Boot
from hybridcalc.bootlog.sglang import target_pools
from hybridcalc.diagnosis.rules import finding
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
            yield _apart(
                f"{before.text} - {left.text} GiB are free less",
                f"the weights took {used.text} GiB (line {statement.line})",
            )
    sizes_by_rank: dict[str, list[Fraction]] = {}
    for pool in (*boot.of("state_pool"), *target_pools(boot)):
        taken = pool.sizes(*STATE_SIZES, *SCRATCH_SIZES, *KV_SIZES)
        sizes_by_rank.setdefault(pool.rank, []).extend(size.value for size in taken)
    alone = len(boot.of("weights_loaded")) == len(loaded)
    for rank, statement in loaded.items():
        after, sizes = statement.size("avail"), sizes_by_rank.get(rank)
        if after is None or not sizes:
            continue
        total = sum(sizes, start=Fraction(0))
        if total > after.value + LARGEST_DRIFT:
            free = f"{after.text} GiB were free (line {statement.line})"
            yield _apart(f"the pools take {float(total / GIB):.2f} GiB", free)
        ended = boot.firsts("pools_done").get(rank)
        kept = ended.size("avail") if ended is not None and alone else None
        drift = after.value - total - kept.value if kept is not None else Fraction(0)
        if kept is not None and abs(drift) > LARGEST_DRIFT / 8:
            less = f"{float(abs(drift) / GIB):.2f} {'more' if drift < 0 else 'less'}"
            was = f"{after.text} - {float(total / GIB):.2f}"
            yield finding("HC116", f"{kept.text} GiB are free after the pools, {less} than {was}")


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
    """Flags that no model which fits the log agrees with, and a split or a cap that the pools do not keep."""
    args, given, source, tokens = case.flags.args, case.flags.given, case.flags.source, case.pools.tokens
    fitting, ratio = case.answer.candidates, case.derived.mamba_full_memory_ratio
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
        yield _other(f"{source} splits at {asked:g}, the pools at {sum(ratio) / 2:.2f}")


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
