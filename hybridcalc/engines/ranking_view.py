"""Launch lines ranked, as people read it."""

from collections.abc import Mapping, Sequence

from hybridcalc.engines.charts import comparison_picture
from hybridcalc.engines.ranking import Ranked, difference, ranking, ranking_table
from hybridcalc.findings import Table, View

NO_LENGTH = "without -L, requests are those that an engine's own limits let run: -L TOKENS makes them comparable"

TIME = ("a step, at best", "tokens/s each")
WHY = (*TIME, "block, tokens", "slots a request S", "a request takes", "and each token")
"""What explains a difference best, by its name in the engine's own terms."""
MOST_SIDES = 3
"""Sides of which this is shown."""


def compared_view(
    sides: Sequence[Ranked],
    skipped: Sequence[tuple[str, str]] = (),
    beside: Sequence[Table] = (),
    more: Sequence[Mapping[str, str]] = (),
) -> View:
    """The best in a line, a ranked table and others ``beside`` it, what stops those that do not start; how launch lines
    differ. ``skipped``: those that could not be planned, and why; ``more``: what else is to be said of each side.
    """
    order = ranking(sides)
    best = sides[order[0]]
    plan = best.plan
    if plan is None:
        headline = "none of these starts"
    else:
        of = f" of {plan.workload.describe()}" if plan.workload.lengths else ""
        headline = f"{best.label} runs the most on a GPU for certain: {best.certain / best.gpus:,.2f} requests{of}"
    tables = [ranking_table(sides), *_what_differs(sides, more), *beside]
    rows = list[tuple[str, str, str]]()
    for number in order:
        base, flags = difference(sides[number], sides)
        rows += [(*(("", "") if place else (sides[number].label, base)), flag) for place, flag in enumerate(flags)]
    differences = Table("Differences", ("launch", "against", "- its flags, + own flags"), tuple(rows))
    said = list(dict.fromkeys(side.assumed for side in sides if side.assumed))
    said += [] if plan is None or plan.workload.lengths else [NO_LENGTH]
    said += _likelier(best, sides)
    said += [
        f"{side.label}: {side.answer.message}{'; ' + side.answer.fix if side.answer.fix else ''}"  # type: ignore[union-attr]
        for side in (sides[number] for number in order)
        if side.plan is None
    ]
    said += [f"{label} is left out: {reason}" for label, reason in skipped]
    started = [(side.label, side.plan) for side in sides if side.plan is not None]
    return View(
        "Launch lines compared",
        headline,
        starts=plan is not None,
        findings=tuple(
            found._replace(message=f"{side.label}: {found.message}")
            for side in sides
            if side.plan is not None
            for found in side.plan.of_words
        ),
        tables=(*tables, differences),
        notes=tuple(said),
        pictures={"compare": lambda: comparison_picture(started)} if started else {},
    )


def _likelier(best: Ranked, sides: Sequence[Ranked]) -> list[str]:
    """Which line runs more than the best one where the memory is what it likely is."""
    started = [(side.label, side.plan.requests / side.gpus) for side in sides if side.plan is not None]
    if not started or best.plan is None:
        return []
    label, most = max(started, key=lambda each: each[1])
    own = best.plan.requests / best.gpus
    return [f"on the likely memory {label} runs more on a GPU: {most:,.2f} against {own:,.2f}"] if most > own else []


def _what_differs(sides: Sequence[Ranked], more: Sequence[Mapping[str, str]]) -> list[Table]:
    """Why few lines serve more or less: what differs in the terms of their engine, or in those that several share."""
    plans = [(side, side.plan) for side in sides if side.plan is not None]
    if not 1 < len(plans) <= MOST_SIDES:
        return []
    from hybridcalc.engines.view import facts_of

    told = dict(zip([side.label for side in sides], more, strict=False))
    cells = [{**told.get(side.label, {}), **facts_of(side.engine).cells(plan)} for side, plan in plans]
    alone = len({side.engine.name for side, _ in plans}) == 1
    shared = [name for name in cells[0] if alone or all(name in each for each in cells)]
    differing = [name for name in shared if len({each.get(name, "-") for each in cells}) > 1]
    first = sorted(differing, key=lambda name: (name not in WHY, differing.index(name)))
    rows = tuple((name, *(each.get(name, "-") for each in cells), "") for name in first)
    header = ("a rank", *(side.label for side, _ in plans), "")
    return [Table("What differs", header, rows, tuple(range(1, len(plans) + 1)), fills=True)] if rows else []
