"""How a prefix cache fills: slots held while requests come, against what is given and what would suffice."""

from hybridcalc.output.pictures.chart import Axis, Chart, Series
from hybridcalc.output.pictures.page import Choice, Page, Table, command_line
from hybridcalc.reuse.answer import Reuse
from hybridcalc.reuse.simulation import Outcome


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


def reuse_page(answer: Reuse) -> Page:
    """The page about an answer of ``hybridcalc reuse``."""
    from hybridcalc.output.reuse_text import reuse_choices, reuse_figures, reuse_verdict

    rows = [("as asked", *_counts(answer.outcome))]
    rows += [(row.variant.flags, *_counts(row.outcome)) for row in answer.rows or ()]
    tables = [Table("What if", ("", "tokens reused", "recomputed tokens", "evictions"), tuple(rows), (1, 2, 3))]
    title = f"Prefix reuse on {answer.settings.engine}: {answer.workload.name}"
    choices = tuple(Choice(label, flags, effect) for label, flags, effect in reuse_choices(answer))
    return Page(
        title,
        *reuse_verdict(answer),
        command_line(),
        tuple(reuse_figures(answer)),
        (slots_picture(answer),),
        None,
        tuple(tables),
        choices=choices,
        notes=answer.notes,
        steps=tuple(answer.steps),
    )


def _counts(outcome: Outcome) -> tuple[str, str, str]:
    return f"{100 * outcome.token_hit_rate:.1f} %", f"{outcome.recomputed_tokens:,}", f"{outcome.evictions:,}"
