"""Pictures in files as Vega-Lite, with their data in named datasets (``points``, ``marks``, ``bands``, ``labels``).

Vega-Lite is what https://vega.github.io/vega-lite/ describes. A page draws its pictures itself (web/charts.js).
"""

from itertools import pairwise
from textwrap import wrap
from typing import Any

from hybridcalc.engines.charts import Axis, Bar, Bars, Chart, Picture
from hybridcalc.output.pictures.axes import bounds, decimals, powers, round_steps
from hybridcalc.output.pictures.palette import LIGHT, on
from hybridcalc.units import GIB, KIB, MIB, TIB, format_bytes

SCHEMA = "https://vega.github.io/schema/vega-lite/v6.json"
WIDTH, HEIGHT = 640, 340
ROW, THICK, THIN, GAP, LINE = 64, 46, 36, 16, 15
"""Pixels: a single bar's row and thickness; thickness, gap and line of a name where there are several bars."""
MOST_LETTERS = 100
TITLE_LETTERS, TOLD_LETTERS = 66, 100
DIGIT_PX = 6.6
"""What a character of a size takes; a part that is narrower than its size goes without."""
SHAPES = ("circle", "diamond", "square", "triangle-up")
MOST_ROWS, ROW_PX = 20, 17
LABEL_PX, SPILL_PX = 5.6, 60
"""What a letter beside a point takes, and how far such a text may leave the plot."""
SIDES = ((7, -7), (-7, -7), (9, 4), (-9, 4), (7, 14), (-7, 14))
"""Where a text lies beside its point, pixels to the right and down."""
LETTER_PX = 7.2
"""What a bold letter of a mark takes on average."""
FONT = "Helvetica, Arial, Liberation Sans, DejaVu Sans, sans-serif"
CONFIG = {
    "font": FONT,
    "background": LIGHT["ground"],
    "padding": 14,
    "view": {"stroke": None},
    "title": {
        "anchor": "start", "frame": "bounds", "fontSize": 16, "fontWeight": 600, "color": LIGHT["text"], "offset": 12,
        "subtitleFontSize": 12, "subtitleColor": LIGHT["muted"], "subtitlePadding": 6, "subtitleLineHeight": 16,
    },
    "axis": {
        "labelColor": LIGHT["muted"], "titleColor": LIGHT["text"], "gridColor": LIGHT["grid"], "labelFontSize": 11,
        "domainColor": LIGHT["muted"], "tickColor": LIGHT["muted"], "titleFontSize": 12, "titleFontWeight": 500,
        "titlePadding": 10, "labelPadding": 5,
    },
    "legend": {
        "labelColor": LIGHT["text"], "titleColor": LIGHT["text"], "labelFontSize": 12, "orient": "bottom",
        "direction": "horizontal", "symbolStrokeWidth": 3, "symbolSize": 130, "labelLimit": 320, "offset": 14,
        "rowPadding": 5, "columnPadding": 22,
    },
}  # fmt: skip
TOKENS = (
    f"datum.value >= {2**20} && datum.value % {2**20} == 0 ? format(datum.value / {2**20}, ',') + 'M' : "
    "datum.value >= 1024 && datum.value % 1024 == 0 ? format(datum.value / 1024, ',') + 'k' : format(datum.value, ',')"
)
BYTES = (
    "datum.value == 0 ? '0' : "
    + "".join(
        f"datum.value >= {unit} ? format(datum.value / {unit}, ',~r') + ' {name}' : "
        for unit, name in ((TIB, "TiB"), (GIB, "GiB"), (MIB, "MiB"), (KIB, "KiB"))
    )
    + "format(datum.value, ',') + ' B'"
)
LABELS = {"tokens": TOKENS, "bytes": BYTES, "number": "format(datum.value, ',')", "ratio": "format(datum.value, '~g')"}
LEGEND_LETTERS = 90
"""Letters of all names that a legend holds in one line."""
DASHES = {"line": [1, 0], "dashed": [7, 4], "steps": [1, 0], "dots": [1, 0]}


def specification(picture: Picture) -> dict[str, Any]:
    """The Vega-Lite of a picture."""
    return _chart(picture) if isinstance(picture, Chart) else _bars(picture)


def point_rows(chart: Chart) -> list[dict[str, Any]]:
    """The dataset ``points``, as they lie over each other; what an axis cannot show is left out."""
    return [
        {"x": x, "y": y, "series": series.name}
        for series in chart.upwards
        for x, y in series.points
        if (x > 0 or not chart.x.log) and (y > 0 or not chart.y.log)
    ]


def mark_rows(chart: Chart) -> list[dict[str, Any]]:
    """The dataset ``marks``: labels in rows above the picture, row 0 the lowest, where no line crosses them.

    A line begins at its own label. Labels to the right of their lines go down from the left, so that the lines to their
    right begin below them; one that finds no room lies to the left of its line, over all those.
    """
    low, high = _bounds(chart, "x")
    shown = sorted((mark for mark in chart.marks if low <= mark.at <= high), key=lambda mark: mark.at)
    sided = [
        (mark, int(_share(chart.x, mark.at, low, high) * WIDTH + 10 + LETTER_PX * len(mark.label) > WIDTH))
        for mark in shown
    ]
    upwards = [*(pair for pair in reversed(sided) if not pair[1]), *(pair for pair in sided if pair[1])]
    return [{"x": mark.at, "label": mark.label, "row": row, "left": left} for row, (mark, left) in enumerate(upwards)]


def label_rows(chart: Chart) -> list[dict[str, Any]]:
    """The dataset ``labels``: each on the first of SIDES that is free of points and of other labels."""

    def place(at: float, height: float) -> tuple[float, float]:
        return _share(chart.x, at, *x) * WIDTH, HEIGHT - _share(chart.y, height, *y) * HEIGHT

    x, y = _bounds(chart, "x"), _bounds(chart, "y")
    points = [place(*point) for series in chart.series for point in series.points] if chart.labels else []
    taken, rows = list[tuple[float, float, float]](), list[dict[str, Any]]()
    for at, height, text in chart.labels:
        across, down = place(at, height)
        wide = LABEL_PX * len(text)
        for side, (dx, dy) in enumerate(SIDES):
            left, line = across + dx - (wide if dx < 0 else 0), down + dy
            struck = any(left < px + 4 and px - 4 < left + wide and abs(py - line) < 8 for px, py in points)
            crossed = any(left < a + w and a < left + wide and abs(line - b) < 12 for a, b, w in taken)
            if not (struck or crossed or left < 0 or left + wide > WIDTH + SPILL_PX):
                taken.append((left, line, wide))
                rows.append({"x": at, "y": height, "label": text, "side": side})
                break
    return rows


def band_rows(chart: Chart) -> list[dict[str, Any]]:
    """The dataset ``bands``: each label in the widest stretch between marked lines, where it has room."""
    low, high = _bounds(chart, "x")
    rows = []
    for band in chart.bands:
        inside = sorted(mark.at for mark in chart.marks if band.low < mark.at < band.high)
        edges = [(_share(chart.x, at, low, high) * WIDTH, at) for at in (band.low, *inside, band.high)]
        wide, one, other = max((b[0] - a[0], a[1], b[1]) for a, b in pairwise(edges))
        rows.append(
            {
                "x": band.low,
                "x2": band.high,
                "fill": LIGHT[f"{band.role} band"],
                "mid": (one * other) ** 0.5 if chart.x.log else (one + other) / 2,
                "label": band.label if wide > DIGIT_PX * len(band.label) else "",
            }
        )
    return rows


def _share(axis: Axis, value: float, low: float, high: float) -> float:
    from math import log

    if axis.log:
        return log(value / low) / log(high / low)
    return (value - low) / (high - low)


def _bounds(chart: Chart, side: str) -> tuple[float, float]:
    values = [point[side == "y"] for series in chart.series for point in series.points]
    return bounds(chart.y if side == "y" else chart.x, values)


def _axis(axis: Axis, low: float, high: float, *, grid: bool) -> dict[str, Any]:
    scale: dict[str, Any] = {"type": "log", "base": 2} if axis.log else {"zero": True}
    if axis.low is not None or axis.high is not None:
        scale |= {"domain": [low, high], "nice": False}
    drawn: dict[str, Any] = {
        "title": axis.title,
        "labelExpr": LABELS[axis.unit],
        "labelOverlap": "greedy",
        "grid": grid,
    }
    if axis.log and axis.unit in ("tokens", "bytes"):
        drawn["values"] = powers(low, high)
    elif axis.log and axis.unit == "ratio":
        drawn["values"] = decimals(low, high)
    elif axis.log:
        scale["base"] = 10
        drawn["values"] = decimals(1, high)
    elif axis.unit == "bytes":
        drawn["values"] = _linear_bytes(high)
    else:
        drawn["values"] = round_steps(low, high)
    return {"type": "quantitative", "scale": scale, "axis": drawn}


def _linear_bytes(high: float) -> list[float]:
    """Round sizes from 0 up: 5 to 10 of them."""
    unit = next((unit for unit in (TIB, GIB, MIB, KIB) if high >= unit), 1)
    step = next(s for e in range(4) for s in (1 * 10**e, 2 * 10**e, 5 * 10**e) if high / unit / s <= 9)
    if high / unit < 4:
        step = 0.25 if high / unit < 2 else 0.5
    return [i * step * unit for i in range(int(high / unit / step) + 1)]


def _chart(chart: Chart) -> dict[str, Any]:
    x = {"field": "x", **_axis(chart.x, *_bounds(chart, "x"), grid=False)}
    y = {"field": "y", **_axis(chart.y, *_bounds(chart, "y"), grid=True)}
    curves = [*_bands(chart, x), *_curves(chart, x, y), *_dots(chart, x, y), *_labels(chart, x, y)]
    spec = _frame(chart.title, chart.told) | {
        "width": WIDTH,
        "height": HEIGHT,
        "layer": curves,
        "datasets": {
            "points": point_rows(chart),
            "marks": mark_rows(chart),
            "bands": band_rows(chart),
            "labels": label_rows(chart),
        },
    }
    if chart.marks:  # their rows have a scale of their own
        spec |= {
            "layer": [{"layer": curves}, *_marks(x, ROW_PX if chart.bands else 0)],
            "resolve": {"scale": {"y": "independent"}},
        }
    return spec


def _bands(chart: Chart, x: dict[str, Any]) -> list[dict[str, Any]]:
    """The shaded ranges, each with its label above it, where no curve comes."""
    if not chart.bands:
        return []
    fill = {"field": "fill", "type": "nominal", "scale": None}
    text = {"type": "text", "fontSize": 12, "fontStyle": "italic", "color": LIGHT["muted"], "baseline": "bottom"}
    return [
        {
            "data": {"name": "bands"},
            "mark": {"type": "rect"},
            "encoding": {"x": x, "x2": {"field": "x2"}, "color": fill},
        },
        {
            "data": {"name": "bands"},
            "mark": text,
            "encoding": {"x": {**x, "field": "mid"}, "y": {"value": -5}, "text": {"field": "label"}},
        },
    ]


def _by_series(chart: Chart, values: list[Any], **more: Any) -> dict[str, Any]:
    """An encoding that gives each series one of ``values``."""
    scale = {"domain": [series.name for series in chart.series], "range": values}
    return {"field": "series", "type": "nominal", "sort": None, "title": None, "scale": scale, **more}


def _curves(chart: Chart, x: dict[str, Any], y: dict[str, Any]) -> list[dict[str, Any]]:
    """The series that are lines."""
    names = [series.name for series in chart.series if series.style != "dots"]
    if not names:
        return []
    line: dict[str, Any] = {"type": "line", "clip": True}
    if any(series.style == "steps" for series in chart.series):
        line["interpolate"] = "step-after"
    colours = [LIGHT[series.role] for series in chart.series]
    wide = sum(len(series.name) for series in chart.series) > LEGEND_LETTERS
    return [
        {
            "data": {"name": "points"},
            "mark": line,
            "transform": [{"filter": {"field": "series", "oneOf": names}}],
            "encoding": {
                "x": x,
                "y": y,
                "color": _by_series(chart, colours, legend={"symbolType": "stroke"} | ({"columns": 3} if wide else {})),
                "strokeDash": _by_series(chart, [DASHES[series.style] for series in chart.series]),
                "strokeWidth": _by_series(chart, [4 if series.role == "answer" else 2.5 for series in chart.series]),
            },
        }
    ]


def _dots(chart: Chart, x: dict[str, Any], y: dict[str, Any]) -> list[dict[str, Any]]:
    """The series that are points, told apart by their shape as well."""
    names = [series.name for series in chart.series if series.style == "dots"]
    if not names:
        return []
    colours = [LIGHT[series.role] for series in chart.series]
    return [
        {
            "data": {"name": "points"},
            "mark": {"type": "point", "filled": True, "size": 55, "opacity": 0.9},
            "transform": [{"filter": {"field": "series", "oneOf": names}}],
            "encoding": {
                "x": x,
                "y": y,
                "color": _by_series(chart, colours, legend={"symbolStrokeWidth": 0}),
                "shape": _by_series(chart, list(SHAPES[: len(chart.series)]), legend={}),
            },
        }
    ]


def _labels(chart: Chart, x: dict[str, Any], y: dict[str, Any]) -> list[dict[str, Any]]:
    """Texts beside points."""
    if not chart.labels:
        return []
    return [
        {
            "data": {"name": "labels"},
            "transform": [{"filter": f"datum.side == {side}"}],
            "mark": {
                "type": "text",
                "align": "right" if dx < 0 else "left",
                "dx": dx,
                "dy": dy,
                "fontSize": 11,
                "color": LIGHT["text"],
            },
            "encoding": {"x": x, "y": y, "text": {"field": "label"}},
        }
        for side, (dx, dy) in enumerate(SIDES)
    ]


def _marks(x: dict[str, Any], up: int) -> list[dict[str, Any]]:
    """Vertical lines from their labels down, and these in rows above the picture, ``up`` pixels over it."""
    row = {
        "field": "row",
        "type": "quantitative",
        "axis": None,
        "scale": {"domain": [0, MOST_ROWS], "range": [-10 - up, -10 - up - MOST_ROWS * ROW_PX]},
    }
    rule = {"type": "rule", "color": LIGHT["text"], "strokeDash": [3, 3]}
    layers: list[dict[str, Any]] = [
        {"data": {"name": "marks"}, "mark": rule, "encoding": {"x": x, "y": row, "y2": {"value": HEIGHT}}}
    ]
    for left, align, dx in ((0, "left", 5), (1, "right", -5)):
        text = {"type": "text", "align": align, "dx": dx, "fontSize": 12, "color": LIGHT["text"], "fontWeight": 600}
        layers.append(
            {
                "data": {"name": "marks"},
                "transform": [{"filter": f"datum.left == {left}"}],
                "mark": text,
                "encoding": {"x": x, "y": row, "text": {"field": "label"}},
            }
        )
    return layers


def _bars(picture: Bars) -> dict[str, Any]:
    whole = max((bar.bytes for bar in picture.bars), default=1) or 1
    single = len(picture.bars) == 1
    parts = picture.parts
    named = {part.name: f"{part.name}  {format_bytes(part.bytes)}" if single else part.name for part in parts}
    names = [wrap(bar.name, MOST_LETTERS) or [""] for bar in picture.bars]
    lines = 0 if single else max(map(len, names))
    thick, step = (THICK, ROW) if single else (THIN, THIN + GAP + LINE * lines)
    shift = 0 if single else (step - thick) // 2 - GAP // 3
    order = [str(number) for number in range(len(picture.bars))]
    y = {"field": "bar", "type": "nominal", "sort": order, "title": None, "axis": None}
    x = {"field": "x", **_axis(Axis(picture.axis, "bytes", low=0, high=whole), 0, whole, grid=False)}
    colour = {
        "field": "part",
        "type": "nominal",
        "sort": None,
        "title": None,
        "scale": {"domain": list(named.values()), "range": [LIGHT[part.role] for part in parts]},
        "legend": {"columns": 3 if single else 4, "symbolType": "square"},
    }
    cuts = [{"bar": str(number), "x": tick} for number, bar in enumerate(picture.bars) for tick in bar.ticks]
    ink = {"field": "ink", "type": "nominal", "scale": None}
    cut = {
        "type": "tick",
        "color": LIGHT["ground"],
        "opacity": 0.7,
        "thickness": 1,
        "size": thick * 0.28,
        "yOffset": shift + round(thick * 0.36),
    }
    layers: list[dict[str, Any]] = [
        {
            "mark": {"type": "bar", "stroke": LIGHT["ground"], "strokeWidth": 1, "height": thick, "yOffset": shift},
            "encoding": {"x": x, "x2": {"field": "x2"}, "y": y, "color": colour},
        },
        *([{"data": {"name": "cuts"}, "mark": cut, "encoding": {"x": x, "y": y}}] if cuts else []),
        {
            "mark": {"type": "text", "fontSize": 12, "yOffset": shift},
            "encoding": {"x": {**x, "field": "mid"}, "y": y, "text": {"field": "label"}, "color": ink},
        },
        *(_name_line(line, y, shift - thick // 2 - 4 - LINE * line) for line in range(lines)),
    ]
    return _frame(picture.title, f"{picture.told} {picture.cuts}".strip()) | {
        "width": WIDTH,
        "height": {"step": step},
        "data": {"name": "rows"},
        "layer": layers,
        "datasets": {
            "rows": [row for number, bar in enumerate(picture.bars) for row in _bar_rows(bar, number, named, whole)],
            "cuts": cuts,
            "names": [
                {"bar": str(number), "text": text, "up": up}
                for number, texts in enumerate(names)
                for up, text in enumerate(reversed(texts))
            ],
        },
    }


def _bar_rows(bar: Bar, number: int, named: dict[str, str], whole: int) -> list[dict[str, Any]]:
    """One row of data a part: where it lies, and its size where that has room."""
    rows, at = list[dict[str, Any]](), 0
    for part in bar.parts:
        if part.bytes:
            size = format_bytes(part.bytes)
            roomy = part.bytes * WIDTH >= DIGIT_PX * len(size) * whole
            rows.append(
                {
                    "bar": str(number),
                    "part": named[part.name],
                    "x": at,
                    "x2": at + part.bytes,
                    "mid": at + part.bytes / 2,
                    "label": size if roomy else "",
                    "ink": on(part.role),
                }
            )
            at += part.bytes
    return rows


def _name_line(line: int, y: dict[str, Any], offset: int) -> dict[str, Any]:
    """One line of the names above the bars, the lowest first."""
    text = {
        "type": "text",
        "align": "left",
        "baseline": "bottom",
        "fontSize": 12,
        "color": LIGHT["text"],
        "yOffset": offset,
    }
    return {
        "data": {"name": "names"},
        "transform": [{"filter": f"datum.up == {line}"}],
        "mark": text,
        "encoding": {"x": {"value": 0}, "y": y, "text": {"field": "text"}},
    }


def _frame(title: str, told: str) -> dict[str, Any]:
    return {
        "$schema": SCHEMA,
        "config": CONFIG,
        "description": f"{title}. {told}",
        "title": {"text": wrap(title, TITLE_LETTERS), "subtitle": wrap(told, TOLD_LETTERS) if told else ""},
    }
