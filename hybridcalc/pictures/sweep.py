"""A sweep's combinations as requests over tokens, the best trade-offs named."""

from collections.abc import Sequence

from hybridcalc.errors import InputError
from hybridcalc.pictures.chart import Axis, Chart, Series
from hybridcalc.pictures.vega import HEIGHT, WIDTH
from hybridcalc.sweep import Axis as Swept
from hybridcalc.sweep import Point

MOST_LABELS = 12
MOST_DRAWN = 2000
LABEL_PX, LINE_PX = 6.2, 16


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
    told = f"{len(points):,} combinations of {names}; {len(points) - len(started):,} do not start."
    series = [Series("other combinations", "other", tuple(others), ".", "dots")] if others else []
    series.append(Series("best trade-offs", "state", tuple(best), "*", "dots"))
    return Chart(f"Requests against KV tokens: {model}", told, Axis("KV tokens", "number"), Axis("requests at once"),
                 tuple(series), labels=_labels(started))  # fmt: skip


def _labels(points: Sequence[Point]) -> tuple[tuple[float, float, str], ...]:
    """The settings of the best points, as far as they stand apart."""
    best: dict[tuple[int, int], str] = {}
    for point in points:
        if point.best:
            best.setdefault((point.tokens, point.requests), ", ".join(point.values))
    wide, high = max(p.tokens for p in points) or 1, max(p.requests for p in points) or 1
    placed = list[tuple[float, float, float]]()
    found = []
    for (tokens, requests), text in sorted(best.items(), key=lambda item: -item[0][1]):
        x, y, length = tokens / wide * WIDTH, HEIGHT - requests / high * HEIGHT, len(text) * LABEL_PX
        if any(x < px + plength and px < x + length and abs(y - py) < LINE_PX for px, py, plength in placed):
            continue
        if x + length > WIDTH + 90:
            continue
        placed.append((x, y, length))
        found.append((float(tokens), float(requests), text))
        if len(found) == MOST_LABELS:
            break
    return tuple(found)
