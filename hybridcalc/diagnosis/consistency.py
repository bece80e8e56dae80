"""Do the figures of a boot agree with one another, and with the flags it was started with?

Each check names the two figures that part. What may differ is left alone: free memory moves by what loaders give back,
and an engine may run fewer requests than its pools admit.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from fractions import Fraction

from hybridcalc.bootlog.boots import Boot
from hybridcalc.bootlog.records import Pool, Printed, Statement, StatePoolAllocated
from hybridcalc.diagnosis.answer import Candidate
from hybridcalc.diagnosis.candidates import KV_DTYPES
from hybridcalc.diagnosis.question import Launch
from hybridcalc.diagnosis.rules import finding
from hybridcalc.errors import InputError
from hybridcalc.findings import Finding
from hybridcalc.units import GIB, parse_dtype, short_dtype

SLACK = Fraction(5, 100) * GIB
"""Free memory may move by as much between two lines without anything being wrong."""
LARGEST_DRIFT = 2 * GIB


def contradictions(
    boot: Boot,
    slots: int | None,
    tokens: int | None,
    requests: int | None,
    slots_per_request: int | None,
    launch: Launch,
) -> list[Finding]:
    """What cannot all be true of one boot, and what the flags rule out."""
    return [
        *_within(boot, slots, tokens, requests, slots_per_request),
        *_once(list(_memory(boot))),
        *_flags(boot, slots, requests, launch),
    ]


def _within(
    boot: Boot, slots: int | None, tokens: int | None, requests: int | None, slots_per_request: int | None
) -> Iterator[Finding]:
    targets = boot.target_kvs
    pools = dict.fromkeys(kv.tokens for kv in targets if kv.tokens)
    resized = boot.of("post_capture")
    for statement in boot.of("summary"):
        said = statement.get("max_total_num_tokens")
        if isinstance(said, int) and pools and said not in pools and not resized:
            yield _apart(
                f"the KV pool holds {next(iter(pools)):,} tokens (line {targets[0].line})",
                f"the summary says {said:,} (line {statement.line})",
            )
    states = dict.fromkeys(state.slots for state in boot.states if state.slots is not None)
    for statement in boot.of("capped"):
        said, limit = statement.get("max_mamba_cache_size"), statement.get("max_running_requests")
        if isinstance(said, int) and states and said not in states:
            yield _apart(
                f"the state pool has {next(iter(states)):,} slots", f"the clamp says {said:,} (line {statement.line})"
            )
        per = statement.get("slots_per_request")
        if isinstance(said, int) and isinstance(per, int) and isinstance(limit, int) and per and said // per != limit:
            yield _apart(f"{said:,} // {per} is {said // per:,}", f"the clamp says {limit:,} (line {statement.line})")
    if slots is not None and requests is not None and slots_per_request and requests > slots // slots_per_request:
        yield _apart(f"{requests:,} requests run", f"{slots:,} slots admit {slots // slots_per_request:,}")
    elif slots is not None and requests is not None and 0 <= slots < requests:
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
    by_rank = {s.rank: s for s in reversed(boot.of("weights_begin"))}
    loaded: dict[str, Statement] = {}
    for statement in boot.of("weights_loaded"):
        first = loaded.setdefault(statement.rank, statement)
        begun = by_rank.get(statement.rank)
        before, left, used = begun.get("avail") if begun else None, statement.get("avail"), statement.get("usage")
        if first is not statement or not isinstance(before, Printed):
            continue
        if not isinstance(left, Printed) or not isinstance(used, Printed):
            continue
        if abs(before.value - left.value - used.value) > SLACK:
            yield _apart(
                f"{before.text} - {left.text} GiB are free less",
                f"the weights took {used.text} GiB (line {statement.line})",
            )
    sizes_by_rank: dict[str, list[Fraction]] = {}
    pools: list[Pool] = [*boot.states, *boot.target_kvs]
    for pool in pools:
        sizes_by_rank.setdefault(pool.rank, []).extend(part.value for part in sizes_of(pool) if part is not None)
    ended = {s.rank: s for s in reversed(boot.of("pools_done"))}
    alone = len(boot.of("weights_loaded")) == len(loaded)
    for rank, statement in loaded.items():
        after, sizes = statement.get("avail"), sizes_by_rank.get(rank)
        if not isinstance(after, Printed) or not sizes:
            continue
        total = sum(sizes, start=Fraction(0))
        if total > after.value + LARGEST_DRIFT:
            free = f"{after.text} GiB were free (line {statement.line})"
            yield _apart(f"the pools take {float(total / GIB):.2f} GiB", free)
        kept = ended[rank].get("avail") if rank in ended else None
        if isinstance(kept, Printed) and alone:
            drift = after.value - total - kept.value
            if abs(drift) > LARGEST_DRIFT / 8:
                less = "more" if drift < 0 else "less"
                yield finding(
                    "HC116",
                    f"{kept.text} GiB are free after the pools, {float(abs(drift) / GIB):.2f} {less} than "
                    f"{after.text} - {float(total / GIB):.2f}",
                )


def sizes_of(pool: Pool) -> tuple[Printed | None, ...]:
    """What a pool's parts take."""
    if isinstance(pool, StatePoolAllocated):
        return pool.conv, pool.ssm, pool.intermediate_conv, pool.intermediate_ssm
    return pool.k, pool.v, pool.kv


def _flags(boot: Boot, slots: int | None, requests: int | None, launch: Launch) -> Iterator[Finding]:
    args = launch.args
    if not launch.given:
        return
    workers = max(1, args.attn_dp_size)
    asked = args.max_mamba_cache_size
    if asked is not None and slots is not None and slots != asked // workers:
        yield finding(
            "HC108", f"{launch.source} pins {asked:,} slots, the log has {slots:,}", "this log is of another start"
        )
    limit = args.max_running_requests
    if limit is not None and requests is not None and requests > max(1, limit // workers):
        yield finding(
            "HC108",
            f"{launch.source} allows {limit:,} requests, the log runs {requests:,}",
            "this log is of another start",
        )
    elif limit is not None and requests is not None and requests < limit // workers and not boot.of("capped"):
        yield finding("HC112", f"{limit:,} requests were asked for, {requests:,} run")
    printed = {kv.dtype for kv in boot.target_kvs if kv.dtype}
    wanted = _dtype(args.kv_cache_dtype) if "kv_cache_dtype" in launch.given else None
    if wanted is not None and printed and not any(wanted in KV_DTYPES.get(dtype, (wanted,)) for dtype in printed):
        yield finding(
            "HC108",
            f"{launch.source} sets {args.kv_cache_dtype} KV, the log has {sorted(printed)[0]}",
            "this log is of another start",
        )


def ruled_out(
    launch: Launch, fitting: Sequence[Candidate], tokens: int | None, ratio: Sequence[float] | None
) -> Iterator[Finding]:
    """Flags that no model which fits the log agrees with, and a split or a cap that the pools do not keep."""
    args, other = launch.args, "this log is of another start"
    if "tp_size" in launch.given and args.attn_dp_size <= 1 and fitting and args.tp_size not in {c.tp for c in fitting}:
        yield finding("HC108", f"{launch.source} sets --tp {args.tp_size}, the pools are of TP{fitting[0].tp}", other)
    wanted = _dtype(args.mamba_ssm_dtype) if args.mamba_ssm_dtype else None
    printed = {candidate.ssm_dtype for candidate in fitting if candidate.ssm_dtype}
    if "mamba_ssm_dtype" in launch.given and wanted and printed and short_dtype(wanted) not in printed:
        yield finding(
            "HC108", f"{launch.source} sets {short_dtype(wanted)} states, the pools hold {min(printed)}", other
        )
    if args.max_total_tokens is not None and tokens is not None and tokens > args.max_total_tokens:
        yield finding(
            "HC108", f"{launch.source} caps tokens at {args.max_total_tokens:,}, the log has {tokens:,}", other
        )
    pinned = args.max_mamba_cache_size is not None or args.max_total_tokens is not None or args.disable_radix_cache
    asked = args.mamba_full_memory_ratio
    held = "mamba_full_memory_ratio" in launch.given and not pinned
    if held and ratio and not ratio[0] * 0.95 <= asked <= ratio[1] * 1.05:
        yield finding("HC108", f"{launch.source} splits at {asked:g}, the pools at {sum(ratio) / 2:.2f}", other)


def _dtype(name: str) -> str | None:
    """A dtype's full name; None for one that is not known here."""
    try:
        return parse_dtype(name)
    except InputError:
        return None


def fraction_finding(launch: Launch, fraction: tuple[float, float]) -> Finding | None:
    """Whether the fraction that was asked for leaves the memory that the pools took."""
    asked = launch.args.mem_fraction_static
    if asked is None or fraction[0] - 0.02 <= asked <= fraction[1] + 0.02:
        return None
    return finding(
        "HC108",
        f"{launch.source} gives --mem-fraction-static {asked:g}, the pools need about {sum(fraction) / 2:.2f}",
        "this log is of another start",
    )


def _apart(one: str, other: str) -> Finding:
    return finding("HC105", f"inconsistent: {one}, but {other}", "the log was edited, or holds lines of two boots")
