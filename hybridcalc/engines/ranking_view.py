"""Launch lines ranked, as people read it."""

from collections.abc import Sequence

from hybridcalc.engines.charts import comparison_picture
from hybridcalc.engines.ranking import Ranked, difference, ranking, ranking_table
from hybridcalc.steps import Table, View

NO_LENGTH = "without -L, requests are those that an engine's own limits let run: -L TOKENS makes them comparable"


def compared_view(sides: Sequence[Ranked], skipped: Sequence[tuple[str, str]] = ()) -> View:
    """The best in a line, a ranked table, what stops those that do not start; how launch lines differ. ``skipped``:
    those that could not be planned, and why.
    """
    order = ranking(sides)
    best = sides[order[0]]
    plan = best.plan
    if plan is None:
        headline = "none of these starts"
    else:
        of = f" of {plan.workload.describe()}" if plan.workload.lengths else ""
        headline = f"{best.label} runs the most on a GPU: {best.certain / best.gpus:,.2f} requests{of}"
    rows = list[tuple[str, str, str]]()
    for number in order:
        base, flags = difference(sides[number], sides)
        rows += [(*(("", "") if place else (sides[number].label, base)), flag) for place, flag in enumerate(flags)]
    differences = Table("Differences", ("launch", "against", "- its flags, + own flags"), tuple(rows))
    said = [] if plan is None or plan.workload.lengths else [NO_LENGTH]
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
        tables=(ranking_table(sides), differences),
        notes=tuple(said),
        pictures={"compare": lambda: comparison_picture(started)} if started else {},
    )
