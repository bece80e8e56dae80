"""A sweep's combinations as requests over tokens, the best trade-offs named."""

from collections.abc import Sequence

from hybridcalc.engines.sweep import Axis as Swept
from hybridcalc.engines.sweep import Point
from hybridcalc.errors import InputError
from hybridcalc.output.pictures.chart import Axis, Chart, Series

MOST_LABELS = 12
MOST_DRAWN = 2000


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
