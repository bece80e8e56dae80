"""The pictures of an SGLang plan: its memory, its concurrency over length and over the ratio.

Curves are the engine's own solver at each point (planner.size), but the balanced ratio's, which is the closed form of
formulas.py at every length.
"""

from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction

from hybridcalc.architecture import Architecture
from hybridcalc.deployment import HEADROOM, Workload, requests_text
from hybridcalc.engines.charts import (
    LEAST_END,
    SHORTEST,
    Axis,
    Band,
    Bar,
    Bars,
    Chart,
    Mark,
    Series,
    cut,
    gpu_parts,
    lengths,
    over_length,
    request_cuts,
)
from hybridcalc.engines.crossover_view import crossover_picture
from hybridcalc.engines.sglang import ServerArgs
from hybridcalc.engines.sglang.balance import Balance
from hybridcalc.engines.sglang.crossover import compare
from hybridcalc.engines.sglang.planner import Prepared, Sizing, prepare, size
from hybridcalc.engines.sglang.server_plan import Plan
from hybridcalc.engines.sglang.sizes import draft_kv_bytes, draft_states
from hybridcalc.errors import HybridcalcError, InputError
from hybridcalc.formulas import balanced_ratio, balanced_requests
from hybridcalc.units import GIB, format_bytes, ratio_text

POINTS = 65
AT_ONCE = "requests at once"
LOWEST_RATIO, HIGHEST_RATIO = 0.05, 20.0
DEFAULT_LENGTH = 8192
SHOWN, MOST_SHOWN = 2.2, 8.0
"""Curves over the ratio leave the picture at so many times what the pools hold at most: beyond, a pool only waits for
the other; higher, up to the second, where today's ratio wants both to be seen."""
BINDS = {"state": "state pool binds", "kv": "KV pool binds", "limit": "request limit binds"}


def memory_picture(plan: Plan) -> Bars:
    """One GPU to scale."""
    parts = gpu_parts(plan.budget, plan.rest)
    each = plan.slots_per_request * (plan.ready.stage_slot_bytes + plan.ready.rings.per_slot)
    bar, cut = request_cuts(Bar("", tuple(parts)), "state pool", each, plan.capacity.state_requests)
    whole = HEADROOM in dict(plan.rest.others)
    told = (
        f"{plan.max_mamba_cache_size:,} state slots = {plan.capacity.state_requests:,} requests x "
        f"{plan.slots_per_request} slots; {plan.max_total_num_tokens:,} KV tokens of "
        f"{plan.ready.cells[0].bytes:,} B. {_runs(plan)}"
    )
    title = f"{'One GPU' if whole else 'Memory for the pools of one GPU'}: {plan.model.name}, {_flags(plan.args)}"
    return Bars(title, told, "memory of one GPU" if whole else "memory of the pools", (bar,), cuts=_cut(cut))


def lengths_picture(plan: Plan) -> Chart:
    """Requests at once over their length: both caps, and the balanced ratio."""
    ready, slots, tokens = plan.ready, plan.sizing.state.slots, plan.logical_token_capacity
    end = max(LEAST_END, min(ready.context_length, 2**20), 4 * int(plan.workload.mean_length or DEFAULT_LENGTH))
    at = lengths(SHORTEST, end, POINTS)
    by_state = slots // ready.slots.count
    best = balanced_at(ready, plan.rest.likely_gib)
    served = tuple((x, min(by_state, tokens // x, plan.sizing.requests)) for x in at)
    series = [
        Series(AT_ONCE, "answer", served, "r"),
        Series("state slots admit", "state", tuple((x, by_state) for x in at), "s"),
        Series("KV tokens admit", "kv", tuple((x, tokens // x) for x in at), "k"),
        Series("at the balanced ratio of each length", "balanced", tuple((x, best(x)) for x in at), "*", "dashed"),
    ]
    marks = [Mark(tokens / by_state, f"pools balanced at {tokens // by_state:,} tokens")] if by_state else []
    told = f"What each pool admits at ratio {_ratio(plan.ready.args)}, and what runs: the lower of both."
    high = max(y for one in series for _, y in one.points)
    return over_length(f"{plan.model.name}, {_flags(plan.args)}", told, end, series, marks, plan, high=high)


def balanced_at(ready: Prepared, rest_gib: float) -> Callable[[int], int]:
    """Requests of a length that the memory serves when both pools run out together; the padding slot is taken off."""
    args, slot = ready.args, ready.stage_slot_bytes + ready.rings.per_slot
    drafts, _ = draft_states(args, active=ready.replay_active)
    cell = max(ready.cells, key=lambda c: c.price)
    draft_kv = draft_kv_bytes(ready.model, args, ready.rules)
    target = Fraction(cell.price) - (cell.draft_bytes or 0)

    def requests(length: int) -> int:
        return balanced_requests(
            int(rest_gib * GIB),
            slot,
            target,
            slots_per_request=ready.slots.count,
            length_tokens=length,
            draft_states=drafts,
            dcp=args.dcp_size,
            draft_kv_bytes_per_token=draft_kv,
        )

    return requests


def ratios_picture(plan: Plan) -> Chart:
    """Requests at once over --mamba-full-memory-ratio, the binding pool shaded."""
    work = plan.workload if plan.workload.lengths else Workload.at(DEFAULT_LENGTH)
    star = _balanced_ratio(plan.ready, work.mean_length or Fraction(DEFAULT_LENGTH))
    today = plan.ready.args.memory_ratio if plan.args.max_mamba_cache_size is None else None
    return ratio_chart(plan.model.name, plan.args, plan.ready, plan.rest.likely_gib, work, star, today)


def ratio_chart(
    name: str,
    args: ServerArgs,
    ready: Prepared,
    rest_gib: float,
    work: Workload,
    star: Fraction | None,
    today: float | None,
) -> Chart:
    """Both caps over the ratio, from the engine's own solver; where it refuses there is no curve."""
    length = work.mean_length or Fraction(DEFAULT_LENGTH)
    if star is None:
        raise InputError(f"{name} has no ratio to draw", fix="it needs a state and KV that grows")
    low, high = min(LOWEST_RATIO, float(star) / 4), max(HIGHEST_RATIO, float(star) * 4)
    if today is not None:
        low, high = min(low, today / 2), max(high, today * 2)
    ratios = [low * (high / low) ** (i / (2 * POINTS - 2)) for i in range(2 * POINTS - 1)]
    state, kv, served, bands = [], [], [], list[Band]()
    for ratio in ratios:
        sizing = sized_at(ready, ratio, rest_gib)
        if sizing is None:
            continue
        by_state, by_kv, limit = _caps(sizing, ready, length)
        state.append((ratio, by_state))
        kv.append((ratio, by_kv))
        served.append((ratio, min(by_state, by_kv, limit)))
        binding = "state" if by_state <= by_kv else "kv"
        if limit < min(by_state, by_kv):
            binding = "limit"
        if bands and bands[-1].role == binding:
            bands[-1] = bands[-1]._replace(high=ratio)
        else:
            if bands:
                bands[-1] = bands[-1]._replace(high=ratio)
            bands.append(Band(ratio, ratio, BINDS[binding], binding))
    if not state:
        raise InputError(f"no ratio starts in {format_bytes(int(rest_gib * GIB))}", fix="give more memory")
    best = max(min(s, k) for (_, s), (_, k) in zip(state, kv, strict=True))
    marks = [Mark(float(star), f"r* = {ratio_text(star)}")]
    top = SHOWN * max(1, best)
    if today is not None and (sizing := sized_at(ready, today, rest_gib)) is not None:
        caps = _caps(sizing, ready, length)
        marks.append(Mark(today, f"ratio {today:g}: {requests_text(min(caps))}"))
        top = max(top, min(MOST_SHOWN * max(1, best), 1.1 * max(caps[:2])))
    title = f"Requests at once by memory ratio: {name}, {_flags(args)}"
    told = (
        f"Requests of {work.describe()}; {rest_gib:.2f} GiB for both pools; {_most(max(y for _, y in served), best)}."
    )
    return Chart(
        title,
        told,
        Axis("--mamba-full-memory-ratio (state to KV)", "ratio", True, low, high),
        Axis("requests at once", "number", False, 0, top),
        (
            Series(AT_ONCE, "answer", tuple(served), "r"),
            Series("state slots admit", "state", cut(state, top), "s"),
            Series("KV tokens admit", "kv", cut(kv, top), "k"),
        ),
        tuple(marks),
        tuple(band for band in bands if band.high > band.low),
    )


def balance_picture(answer: Balance, model: Architecture, args: ServerArgs, rest_gib: float) -> Chart:
    """Requests at once over the ratio, of an answer of ``hybridcalc ratio``."""
    ready = prepare(model, args)
    today = ready.args.memory_ratio if ready.args.max_mamba_cache_size is None else None
    return ratio_chart(answer.model, ready.args, ready, rest_gib, answer.workload, answer.ratio, today)


def ratio_by_length(answer: Balance) -> Chart:
    """R* over the length of requests."""
    length = answer.workload.mean_length or Fraction(1)
    end = max(LEAST_END, 4 * int(length))
    curve = tuple((float(x), float(answer.ratio * length / x)) for x in lengths(SHORTEST, end, POINTS))
    return Chart(
        f"Balanced memory ratio by length: {answer.model or 'as logged'}",
        f"r* = slots x state / (KV per token x length); {answer.slots.count} slots a request ({answer.slots.reason}).",
        Axis("tokens a request holds", "tokens", True, SHORTEST, end),
        Axis("--mamba-full-memory-ratio (state to KV)", "ratio", True),
        (Series("r*", "balanced", curve, "r"),),
        (Mark(float(length), f"r* = {ratio_text(answer.ratio)} at {int(length):,} tokens"),),
    )


def crossover_of(model: Architecture, args: ServerArgs) -> Chart:
    """State against KV over the length of one sequence."""
    return crossover_picture(compare(model, None, args))


def sized_at(ready: Prepared, ratio: float, rest_gib: float) -> Sizing | None:
    """The engine's sizing at a ratio; None where it would not start."""
    args = replace(ready.args, mamba_full_memory_ratio=ratio, max_mamba_cache_size=None)
    try:
        return size(ready._replace(args=args), rest_gib)
    except HybridcalcError:
        return None


def _caps(sizing: Sizing, ready: Prepared, length: Fraction) -> tuple[int, int, int]:
    """Requests that the state slots, the KV tokens and the request limit admit."""
    by_kv = int(sizing.tokens * ready.args.dcp_size / length)
    return sizing.state.slots // ready.slots.count, by_kv, min(sizing.asked, sizing.tokens // 2)


def _most(served: int, pools: int) -> str:
    """What runs at most at any ratio, and what keeps it below what the pools hold."""
    limited = f", where the pools hold {pools:,}: the request limit binds" if served < pools else ""
    return f"{requests_text(served)} at most{limited}"


def _balanced_ratio(ready: Prepared, length: Fraction) -> Fraction | None:
    cell = ready.cells[0]
    if not ready.slot.bytes or not cell.price:
        return None
    drafts, _ = draft_states(ready.args, active=ready.replay_active)
    draft_kv = draft_kv_bytes(ready.model, ready.args, ready.rules)
    return balanced_ratio(
        ready.slot.bytes,
        Fraction(sum(c.target_bytes for c in ready.cells)),
        slots_per_request=ready.slots.count,
        length_tokens=length,
        draft_states=drafts,
        dcp=ready.args.dcp_size,
        draft_kv_bytes_per_token=draft_kv,
    )


def _cut(group: int) -> str:
    """How the state pool is cut."""
    return f"A line in the state pool every {requests_text(group) if group > 1 else 'request'}." if group else ""


def _runs(plan: Plan) -> str:
    if plan.workload.mean_length is None:
        return f"{requests_text(plan.concurrency)} at once."
    return f"{requests_text(plan.concurrency)} of {plan.workload.describe()}: {BINDS[plan.binding]}."


def _ratio(args: ServerArgs) -> str:
    if args.max_mamba_cache_size is not None:
        return f"set by --max-mamba-cache-size {args.max_mamba_cache_size:,}"
    return f"{args.memory_ratio:g}"


def _flags(args: ServerArgs) -> str:
    told = [f"tp {args.tp_size}"]
    told += [f"pp {args.pp_size}"] if args.pp_size > 1 else []
    told += [f"dcp {args.dcp_size}"] if args.dcp_size > 1 else []
    told += [f"KV {args.kv_cache_dtype}"] if args.kv_cache_dtype != "auto" else []
    return ", ".join(told)
