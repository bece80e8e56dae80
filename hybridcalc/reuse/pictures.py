"""Pictures of a prefix cache: slots held, hits against slots for each setting, both pools, and which lost states.

hits     share of prompt tokens reused over the slots for states, of the settings as asked and of what else helps
pools    each pool as a share of what there is, as requests come
lost     states given up so far because slots lacked, and because KV did
"""

from collections.abc import Callable

from hybridcalc.engines.charts import Axis, Chart, Mark, Picture, Series
from hybridcalc.errors import InputError
from hybridcalc.reuse.answer import Reuse

LETTERS = "oabdefhijlmn"
MOST_CURVES = 5
"""Settings that one picture tells apart."""
ROLES = ("answer", "state", "kv", "balanced", "scratch", "other")


def pictures_of(answer: Reuse) -> dict[str, Callable[[], Picture]]:
    """All of them by name."""
    return {
        "slots": lambda: slots_picture(answer),
        "hits": lambda: hits_picture(answer),
        "pools": lambda: pools_picture(answer),
        "lost": lambda: lost_picture(answer),
    }


def hits_picture(answer: Reuse) -> Chart:
    """Hits against slots: of the settings as asked, and of those that want other slots or reuse another share."""
    if answer.knee is None:
        raise InputError("hits against slots need the knee", fix="leave out --no-knee")
    if not answer.knee.curve:
        raise InputError("this workload reuses nothing with any number of slots: no curve", fix="draw another figure")
    curves = [("as asked", answer.knee.curve)]
    seen = {answer.knee.curve}
    for row in sorted(answer.rows or (), key=lambda row: -row.outcome.hit_tokens):
        if row.knee.curve and row.knee.curve not in seen and "," not in row.variant.name:
            seen.add(row.knee.curve)
            curves.append((row.variant.flags.split(" --")[0].removeprefix("--"), row.knee.curve))
    curves = curves[:MOST_CURVES]
    end = max(slots for _, curve in curves for slots, _ in curve)
    series = tuple(
        Series(
            name,
            ROLES[place],
            ((0, 0.0), *((slots, 100 * rate) for slots, rate in curve), (end, 100 * curve[-1][1])),
            LETTERS[place],
            "steps",
        )
        for place, (name, curve) in enumerate(curves)
    )
    given = answer.setup.cached_slots
    marks = (Mark(given, f"{given:,} for states"),) if given <= end else ()
    return Chart(
        "Hits against slots",
        f"{answer.workload.name}: {answer.workload.description}. KV to spare; what was simulated, steps between.",
        Axis("slots for states", low=0, high=1.04 * end),
        Axis("prompt tokens reused, %", low=0, high=100),
        series,
        marks,
    )


def pools_picture(answer: Reuse) -> Chart:
    """Both pools as shares of what there is."""
    held, setup = answer.outcome.held, answer.setup
    slots = setup.slots if setup.checkpoint_slots is None else setup.checkpoint_slots
    kv_tokens = setup.kv_tokens
    shared = setup.pool
    if shared is not None:
        block = setup.policy.grid
        curves = [
            (
                "states",
                "state",
                [(p.requests, shared.per_state * (p.cached + p.running) / shared.blocks) for p in held],
            ),
            ("KV", "kv", [(p.requests, shared.per_page * -(-p.kv_tokens // block) / shared.blocks) for p in held]),
        ]
        title, unit = "What the blocks hold as requests come", "share of the blocks, %"
    else:
        if kv_tokens is None:
            kv_tokens = answer.kv_needed
        if not kv_tokens:
            raise InputError("both pools need a limit on KV", fix="add --rest, --gpu or --max-total-tokens")
        own = 0 if setup.checkpoint_slots is not None else 1
        curves = [
            ("states", "state", [(p.requests, (p.cached + own * p.running) / slots) for p in held]),
            ("KV", "kv", [(p.requests, p.kv_tokens / kv_tokens) for p in held]),
        ]
        title, unit = "Both pools as requests come", "share of the pool, %"
    drawn = tuple(
        Series(name, role, ((0, 0.0), *((at, 100 * share) for at, share in points)), name[0], "line")
        for name, role, points in curves
        if points
    )
    told = f"{slots:,} slots" if shared is None else f"{shared.blocks:,} blocks"
    if shared is None:
        told += f", {kv_tokens:,} KV tokens" + ("" if setup.kv_tokens is not None else " wanted, as many as there are")
    highest = max([y for one in drawn for _, y in one.points], default=0.0)
    end = max((p.requests for p in held), default=1)
    axis = Axis("requests so far", low=0, high=max(end, 1))
    return Chart(
        title, f"{answer.workload.name}: {told}.", axis, Axis(unit, low=0, high=max(105, 1.05 * highest)), drawn
    )


def lost_picture(answer: Reuse) -> Chart:
    """States given up so far, by what lacked."""
    held = answer.outcome.held
    if not held or not (held[-1].lost_to_slots or held[-1].lost_to_kv):
        raise InputError("no state was given up", fix="give fewer --slots, or less memory")
    pooled = answer.setup.pool is not None
    curves = (
        ("of themselves" if pooled else "slots lacked", "state", [(p.requests, p.lost_to_slots) for p in held], "s"),
        ("with their KV" if pooled else "KV lacked", "kv", [(p.requests, p.lost_to_kv) for p in held], "k"),
    )
    drawn = tuple(Series(name, role, ((0, 0), *points), letter, "steps") for name, role, points, letter in curves)
    highest = max(y for one in drawn for _, y in one.points)
    why = "oldest in the pool first" if pooled else "the pool that lacks room gives them up"
    return Chart(
        "States given up, by what lacked",
        f"{answer.workload.name}: {why}.",
        Axis("requests so far", low=0, high=max(held[-1].requests, 1)),
        Axis("states", low=0, high=1.1 * highest),
        drawn,
    )


def slots_picture(answer: Reuse) -> Chart:
    """Slots held over the requests that came, cached and in all; the pool, and the knee."""
    held, settings, knee = answer.outcome.held, answer.settings, answer.knee
    own_pool = settings.int8_slots is not None
    pool = settings.int8_slots if settings.int8_slots is not None else settings.slots
    end = max(1, answer.outcome.requests, *(point.requests for point in held)) if held else 1
    first = ((0, 0),)
    series = [
        Series("cached states", "state", first + tuple((point.requests, point.cached) for point in held), "c", "steps")
    ]
    if not own_pool and any(point.running for point in held):
        whole = first + tuple((point.requests, point.cached + point.running) for point in held)
        series.append(Series("with running requests", "scratch", whole, "r", "steps"))
    series.append(Series(f"given: {pool:,}", "other", ((0, pool), (end, pool)), "g", "dashed"))
    if knee is not None and knee.slots is not None:
        wanted = f"suffices: {knee.slots:,}"
        series.append(Series(wanted, "balanced", ((0, knee.slots), (end, knee.slots)), "k", "dashed"))
    outcome = answer.outcome
    told = (
        f"{answer.workload.name}: {answer.workload.description}. {100 * outcome.token_hit_rate:.0f} % of prompt tokens "
        f"reused, {outcome.evictions:,} states evicted."
    )
    highest = max([y for one in series for _, y in one.points])
    return Chart(
        "State slots held as requests come",
        told,
        Axis("requests so far", low=0, high=end),
        Axis("state slots", low=0, high=1.12 * highest),
        tuple(s for s in series if s.points),
    )
