"""What a prefix cache does, for people: verdict, figures, what to set, what else would change, the best split."""

from collections.abc import Iterator, Sequence

from hybridcalc.engines.charts import Axis, Chart, Series
from hybridcalc.reuse.answer import Reuse
from hybridcalc.reuse.knee import Knee
from hybridcalc.reuse.policy import NO_CAP
from hybridcalc.reuse.settings import Cost
from hybridcalc.reuse.simulation import Outcome
from hybridcalc.reuse.what_if import Split
from hybridcalc.steps import Choice, Quantity, Table, View
from hybridcalc.units import format_bytes

SPLITS_SHOWN = 7
HELD_SHOWN = 6


def reuse_view(answer: Reuse) -> View:
    """The whole answer."""
    own, priced = _cells(answer.outcome), answer.priced is not None
    rows, same = [(*own, *_price(answer, answer.price(answer.settings)), "as asked")], []
    for row in answer.rows or ():
        weighs = answer.price(row.variant.settings)
        host = f", host {format_bytes(weighs.host_bytes)}" if weighs is not None and weighs.host_bytes else ""
        if _cells(row.outcome) == own:
            same.append(row.variant.flags)
        else:
            rows.append((*_cells(row.outcome), *_price(answer, weighs), row.variant.flags + host))
    what_if = Table(
        "What if",
        ("tokens reused", "recomputed", *(("memory",) if priced else ()), "what if"),
        tuple(rows) if answer.rows else (),
        tuple(range(3 if priced else 2)),
    )
    header = ("running", "cached slots", "tokens reused", "recomputed", "work", "")
    split = Table("Split", header, tuple(_split_rows(answer.splits)) if answer.splits else (), tuple(range(5)))
    return View(
        f"Prefix reuse on {answer.settings.engine}: {answer.workload.name}",
        *_verdict(answer),
        figures=tuple(_figures(answer)),
        choices=tuple(_choices(answer)),
        tables=(what_if, split),
        notes=(*([f"no change: {'; '.join(same)}"] if same else ()), *answer.notes),
        steps=tuple(answer.steps),
        pictures={"slots": lambda: slots_picture(answer)},
    )


def _verdict(answer: Reuse) -> tuple[str, str]:
    """What the answer comes to: the headline, and what it means."""
    outcome, knee, given = answer.outcome, answer.knee, answer.settings.slots
    headline = f"{_percent(outcome.token_hit_rate)} of prompt tokens reused"
    if knee is None:
        return headline, f"{_percent(outcome.hit_rate)} of requests hit, with {given:,} slots"
    if knee.slots is None:
        capped = answer.setup.policy.path_cap != NO_CAP and not answer.settings.running
        alone = ", one request at a time" if capped else ""
        return headline, f"this workload reuses nothing with any number of slots{alone}"
    int8 = answer.settings.int8_slots
    pool, kind = (given, "") if int8 is None else (int8, "int8 ")
    given_text = f"{pool:,} {'is' if pool == 1 else 'are'} given" if int8 is None else f"the int8 pool has {pool:,}"
    one = knee.slots == 1
    verb = ("suffices" if one else "suffice") if answer.enough else ("is wanted" if one else "are wanted")
    given_text = "" if pool == knee.slots else f", {given_text}"
    return headline, f"{knee.slots:,} {kind}slot{'' if one else 's'} {verb}{given_text}"


def _figures(answer: Reuse) -> list[Quantity]:
    """The figures it rests on, the most telling first."""
    outcome, settings, knee = answer.outcome, answer.settings, answer.knee
    rounds, pool = answer.warmup_rounds, settings.slots if settings.int8_slots is None else settings.int8_slots
    left_out = f"; {rounds:,} warm-up round{'' if rounds == 1 else 's'} left out" if rounds else ""
    rows = []
    if knee is not None and knee.slots is not None and knee.at_knee is not None:
        rate, most = _percent(knee.at_knee.token_hit_rate), _percent(knee.limit.token_hit_rate)
        told = f"{rate} of tokens; any number of slots: {most}"
        at_knee = answer.price(settings.room.wanted(settings, knee.slots)[0])
        weigh = "" if at_knee is None else f"they weigh {format_bytes(at_knee.gpu_bytes)}"
        rows.append(Quantity("knee", f"{knee.slots:,}", "slots", told, weigh))
    own = answer.price(settings)
    if own is not None:
        why = f"{settings.slots:,}{settings.room.SPARE} slots" + (
            f", {settings.int8_slots:,} + 1 in int8" if own.int8_bytes else ""
        )
        rows.append(Quantity("slots weigh", f"{own.gpu_bytes:,} B", format_bytes(own.gpu_bytes), why))
        if own.kv_tokens is not None:
            rows.append(Quantity("KV beside", f"{own.kv_tokens:,}", "tokens", "left of the memory given"))
    if settings.running:
        each, count = answer.setup.policy.own_slots, answer.setup.policy.slots_per_request
        requests = "1 request" if settings.running == 1 else f"{settings.running:,} requests"
        why = f"{each} each of {requests}, beside the states they lock"
        told = f"the engine counts {count} each"
        rows.append(Quantity("running", f"{settings.running * each:,}", "slots", why, told))
    hits = f"{_percent(outcome.hit_rate)}; {answer.setup.policy.name}"
    return [
        *rows,
        Quantity("hit tokens", f"{outcome.hit_tokens:,}", "tokens", f"of {outcome.prompt_tokens:,} in prompts"),
        Quantity("recomputed", f"{outcome.recomputed_tokens:,}", "tokens", _replayed(outcome)),
        Quantity("hit", f"{outcome.hits:,}", "requests", hits),
        Quantity("evictions", f"{outcome.evictions:,}", "states", _other_losses(outcome)),
        Quantity(
            "held", f"{outcome.most_cached:,}", "slots", f"at most by cached states, of {pool:,}", _course(outcome)
        ),
        Quantity.of(
            "requests", f"{outcome.requests:,}", "", f"{answer.workload.name}: {answer.workload.description}{left_out}"
        ),
    ]


def _replayed(outcome: Outcome) -> str:
    if not outcome.preemptions:
        return ""
    return f"{outcome.replayed_tokens:,} of them after {outcome.preemptions:,} preemptions"


def _other_losses(outcome: Outcome) -> str:
    """What else went, where it did."""
    parts = [
        f"{outcome.capped:,} more to the path cap" if outcome.capped else "",
        f"{outcome.kv_evictions:,} KV tokens" if outcome.kv_evictions else "",
        f"{outcome.host_hits:,} hits from the host" if outcome.host_hits else "",
    ]
    return "; ".join(part for part in parts if part)


def _course(outcome: Outcome) -> str:
    """A few points of the slots held, in order."""
    held = outcome.held
    step = max(len(held) // HELD_SHOWN, 1)
    return "over time " + " ".join(f"{cached:,}" for _, cached, _ in held[step - 1 :: step][:HELD_SHOWN])


def _choices(answer: Reuse) -> Iterator[Choice]:
    """Flags that reach the knee, where the slots given do not: more slots, and each other setting that does."""
    knee, settings = answer.knee, answer.settings
    if knee is None or knee.slots is None or knee.at_knee is None or answer.enough:
        return
    wanted, label, told = settings.room.wanted(settings, knee.slots)
    yield Choice(label, told, _effect(knee.at_knee, answer.price(wanted)))
    yield from _others(answer, knee)


def _others(answer: Reuse, knee: Knee) -> Iterator[Choice]:
    """Other settings that reach the knee with the slots given."""
    for row in answer.rows or ():
        if knee.reached_by(row.outcome) and not row.variant.flags.startswith("--slots"):
            yield Choice("or", row.variant.flags, _effect(row.outcome, answer.price(row.variant.settings)))


def _effect(outcome: Outcome, weighs: Cost | None) -> str:
    return f"{_percent(outcome.token_hit_rate)} of tokens" + (f", {_memory(weighs)}" if weighs is not None else "")


def _split_rows(splits: Sequence[Split]) -> Iterator[tuple[str, ...]]:
    """The best split among others spread over all that were tried, fewest running first."""
    best, tried = splits[0], sorted(splits, key=lambda split: split.running)
    step = -(-len(tried) // SPLITS_SHOWN)
    for place, split in enumerate(tried):
        if split is best or place % step == 0:
            work = f"{split.work_tokens / best.work_tokens:.2f}" if best.work_tokens else "-"
            label = "least work" if split is best else ""
            yield f"{split.running:,}", f"{split.cached_slots:,}", *_cells(split.outcome), work, label


def _cells(outcome: Outcome) -> tuple[str, str]:
    return _percent(outcome.token_hit_rate), f"{outcome.recomputed_tokens:,}"


def _price(answer: Reuse, weighs: Cost | None) -> tuple[str, ...]:
    if answer.priced is None:
        return ()
    return ("refused",) if weighs is None else (_memory(weighs, host=False),)


def _memory(weighs: Cost, *, host: bool = True) -> str:
    parts = [format_bytes(weighs.gpu_bytes)]
    if host and weighs.host_bytes:
        parts.append(f"host {format_bytes(weighs.host_bytes)}")
    if weighs.kv_tokens == 0:
        parts.append("no KV left")
    return ", ".join(parts)


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"


def slots_picture(answer: Reuse) -> Chart:
    """Slots held over the requests that came, cached and in all; the pool, and the knee."""
    held, settings, knee = answer.outcome.held, answer.settings, answer.knee
    own_pool = settings.int8_slots is not None
    pool = settings.int8_slots if settings.int8_slots is not None else settings.slots
    end = max(1, answer.outcome.requests, *(seen for seen, _, _ in held)) if held else 1
    first = ((0, 0),)
    series = [Series("cached states", "state", first + tuple((seen, cached) for seen, cached, _ in held), "c", "steps")]
    if not own_pool and any(running for _, _, running in held):
        whole = first + tuple((seen, cached + running) for seen, cached, running in held)
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
