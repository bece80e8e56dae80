"""A sweep as people read it: its combinations, the best trade-offs marked, and those as requests over tokens."""

from collections.abc import Sequence

from hybridcalc.deployment import Workload
from hybridcalc.engines import offered
from hybridcalc.engines.charts import Axis, Chart, Series
from hybridcalc.engines.engine import Engine
from hybridcalc.engines.sweep import Axis as Swept
from hybridcalc.engines.sweep import Point
from hybridcalc.errors import InputError
from hybridcalc.findings import Table, View

MOST_REASONS, MOST_ROWS = 4, 60
MOST_LABELS, MOST_DRAWN = 12, 2000


def sweep_view(
    engine: Engine,
    model: str,
    axes: Sequence[Swept],
    points: Sequence[Point],
    work: Workload,
    *,
    estimated: bool = False,
) -> View:
    """Every point of a sweep, or the front alone where there are too many to read. ``estimated``: memory is an interval
    of which they take the likely middle.
    """
    refused = sum(bool(point.refusal) for point in points)
    shown = (list(points) if len(points) <= MOST_ROWS else [point for point in points if point.best])[:MOST_ROWS]
    length = work.mean_length
    what = f"requests of {float(length):,.0f} tokens" if length is not None else "requests"
    most = max((point.requests for point in points if not point.refusal), default=None)
    rows = tuple(
        (
            *point.values,
            f"{point.units:,}",
            f"{point.tokens:,}",
            f"{point.requests:,} {'*' if point.best else ' '}",
            "refused" if point.refusal else point.binding,
        )
        for point in shown
    )
    notes = ["* no other combination has as many requests and tokens, and more of one"]
    reasons = list(dict.fromkeys(f"refused: {point.refusal}" for point in shown if point.refusal))
    notes += reasons[:MOST_REASONS]
    if len(reasons) > MOST_REASONS:
        notes.append(f"{len(reasons) - MOST_REASONS} more reasons: see --csv or --json")
    if estimated:
        notes.append("memory is an estimate: these are of the likely one, and a plan of one of them says the range")
    if len(shown) < len(points):
        notes.append(f"{len(points):,} points: only those are shown; --csv or --json print all of them")
    unit: str = offered(engine.sweeping, "--sweep", engine.title).unit
    header = (*(axis.name for axis in axes), unit, "KV tokens", "requests  ", "binds")
    counted = f"{len(points):,} combination{'s' if len(points) != 1 else ''}"
    return View(
        f"{model} on {engine.title}",
        "nothing starts" if most is None else f"{most:,} {what} at most",
        f"{counted}, {refused:,} do not start",
        tables=(Table("Combinations", header, rows, tuple(range(len(axes), len(axes) + 3)), asked=True),),
        notes=tuple(notes),
        pictures={"pareto": lambda: pareto_picture(axes, points, model)},
    )


def pareto_picture(axes: Sequence[Swept], points: Sequence[Point], model: str) -> Chart:
    """Every combination that starts. Raises InputError where none does."""
    started = [point for point in points if not point.refusal]
    if not started:
        raise InputError("nothing starts: there is nothing to draw", fix="the answer without --save says why")
    best = sorted({(p.tokens, p.requests) for p in started if p.best})
    others = sorted({(p.tokens, p.requests) for p in started if not p.best})
    if len(others) > MOST_DRAWN:
        others = others[:: -(-len(others) // MOST_DRAWN)]
    names = ", ".join(axis.name for axis in axes)
    count = f"{len(points):,} combination{'s' if len(points) != 1 else ''}"
    told = f"{count} of {names}; {len(points) - len(started):,} do not start."
    series = [Series("other combinations", "other", tuple(others), ".", "dots")] if others else []
    series.append(Series("best trade-offs", "state", tuple(best), "*", "dots"))
    return Chart(
        f"Requests against KV tokens: {model}",
        told,
        Axis("KV tokens", "number"),
        Axis("requests at once"),
        tuple(series),
        labels=_labels(started),
    )


def _labels(points: Sequence[Point]) -> tuple[tuple[float, float, str], ...]:
    """The settings of the best points."""
    best: dict[tuple[int, int], str] = {}
    for point in points:
        if point.best:
            best.setdefault((point.tokens, point.requests), ", ".join(point.values))
    ordered = sorted(best.items(), key=lambda item: -item[0][1])
    return tuple((float(tokens), float(requests), text) for (tokens, requests), text in ordered[:MOST_LABELS])
