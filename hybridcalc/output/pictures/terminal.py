"""Pictures in a terminal: curves by plotext, bars of letters. Right at 80 columns and without colour.

Series are told apart by their marker as well as by colour. Where an encoding lacks the lines of boxes, they are drawn
in ASCII. `draw` returns None where curves are asked for and the plotting library is not installed.
"""

from itertools import pairwise
from math import log
from textwrap import wrap
from typing import Any

from hybridcalc.engines.charts import Axis, Bars, Chart, Picture
from hybridcalc.output.pictures.axes import bounds, decimals, round_steps
from hybridcalc.output.terminal import SHADES, WIDEST, bars, legend
from hybridcalc.units import format_bytes

HEIGHT = 18
DASHES = 24
"""Places of a dashed curve."""
ASCII_LINES = str.maketrans("\u2500\u2502\u250c\u2510\u2514\u2518\u251c\u2524\u252c\u2534\u253c\u2026", "-|+++++++++.")


def draw(picture: Picture, *, width: int, colour: bool, encoding: str = "utf-8") -> str | None:
    """The picture at ``width`` columns; its lines can be written in ``encoding``."""
    if isinstance(picture, Bars):
        text: str | None = bars([(bar.name, bar.parts) for bar in picture.bars], width, colour=colour)
    else:
        text = _chart(picture, width, colour)
    if text is None:
        return None
    try:
        text.encode(encoding)
    except (UnicodeError, LookupError):
        text = text.translate(ASCII_LINES).encode("ascii", "replace").decode("ascii")
    return "\n".join(line.rstrip() for line in text.splitlines()).rstrip()


def headed(picture: Picture, drawn: str, width: int) -> str:
    """The drawing under its title and what it says."""
    told = wrap(picture.told, min(width, WIDEST) - 3)
    title = wrap(picture.title, min(width, WIDEST) - 1)
    return "\n".join([*title, *(f"  {line}" for line in told), "", drawn])


def _chart(chart: Chart, width: int, colour: bool) -> str | None:
    try:
        import plotext as plot
    except ImportError:
        return None
    xs = [x for series in chart.series for x, _ in series.points]
    low, high = bounds(chart.x, xs)
    plot.clear_figure()
    plot.plot_size(min(width, WIDEST) - 1, HEIGHT)
    plot.theme("clear")
    sizes: list[float] = []
    top = chart.y.high
    for series in chart.upwards:
        seen = [(x, y) for x, y in series.points if (y > 0 or not chart.y.log) and (top is None or y <= top)]
        if not seen:
            continue
        columns_x, columns_y = zip(*seen, strict=True)
        shade = SHADES.get(series.role, "default")
        sizes += columns_y
        if series.style == "dashed":
            columns_x, columns_y = zip(*_dashes(chart, seen, low, high), strict=True)
        put = plot.plot if series.style in ("line", "steps") else plot.scatter
        put(columns_x, columns_y, marker=series.letter, color=shade)
    for mark in chart.marks:
        if low <= mark.at <= high:
            plot.vertical_line(float(mark.at))
    least, most = bounds(chart.y._replace(high=None), sizes)
    if chart.y.log and all(size == least for size in sizes):
        most = least  # a level curve takes one row, which plotext labels with any of the ticks it holds
    for axis, scale, limit, ticks, ends in (
        (chart.x, plot.xscale, plot.xlim, plot.xticks, (low, high)),
        (chart.y, plot.yscale, plot.ylim, plot.yticks, (least, most)),
    ):
        if axis.log:
            scale("log")
        else:
            limit(*ends)
        places = _ticks(axis, *ends, x=axis is chart.x)
        if places:
            ticks(places, [_written(axis, place) for place in places])
    plot.xlabel(chart.x.title)
    text: str = plot.build()
    text = text if colour else plot.uncolorize(text)
    marked = "; ".join(mark.label for mark in chart.marks)
    bands = "; ".join(
        f"{band.label} from {_written(chart.x, band.low)} to {_written(chart.x, band.high)}" for band in chart.bands
    )
    named = wrap(f"lines: {marked}", min(width, WIDEST) - 3) if marked else []
    named += wrap(bands, min(width, WIDEST) - 3) if bands else []
    entries = [f"{series.letter} {series.name}" for series in chart.series]
    named = [*legend(entries, min(width, WIDEST) - 4), *(f"  {line}" for line in named)]
    return "\n".join([f"  {chart.y.title}", *text.splitlines(), *named])


def _dashes(chart: Chart, points: Any, low: float, high: float) -> list[tuple[float, float]]:
    """Places along a curve so far apart that what lies under it is seen between them."""
    if len(points) < 2:
        return list(points)
    found = []
    for i in range(DASHES + 1):
        share = i / DASHES
        x = low * (high / low) ** share if chart.x.log else low + (high - low) * share
        for (x1, y1), (x2, y2) in pairwise(points):
            if x1 <= x <= x2 and x1 < x2:
                part = log(x / x1) / log(x2 / x1) if chart.x.log else (x - x1) / (x2 - x1)
                found.append((x, y1 * (y2 / y1) ** part if chart.y.log else y1 + (y2 - y1) * part))
                break
    return found or list(points)


def _ticks(axis: Axis, low: float, high: float, *, x: bool) -> list[float]:
    if axis.log and axis.unit == "ratio":
        return decimals(low, high, most=9)
    if axis.log:
        base = {"tokens": 4, "bytes": 16}.get(axis.unit, 10)
        base = 16 if x and high / low > 4**9 else base
        found, power = list[float](), 1
        while power <= high:
            if power >= low:
                found.append(power)
            power *= base
        return found if len(found) > 1 else sorted({low, high})
    return round_steps(low, high, most=4 if x else 5)


def _written(axis: Axis, value: Any) -> str:
    if axis.unit == "bytes":
        return format_bytes(int(value))
    if axis.unit == "ratio":
        return f"{value:.3g}" if value < 1000 else f"{value:,.0f}"
    if axis.unit == "tokens":
        for unit, name in ((2**20, "M"), (2**10, "k")):
            if value >= unit and value % unit == 0:
                return f"{int(value) // unit:,}{name}"
    return f"{value:,.0f}"
