"""Pictures as Vega-Lite: one specification that draws the file, and lives on in a page.

Everything that changes with the data lies in named datasets (``points``, ``marks``, ``bands``, ``labels``), so that a
page replaces those and leaves the rest. Vega-Lite is what https://vega.github.io/vega-lite/ describes.
"""

from textwrap import wrap
from typing import Any

from hybridcalc.pictures.chart import Axis, Bars, Chart, Picture, bounds, powers
from hybridcalc.pictures.palette import LIGHT, on
from hybridcalc.units import GIB, KIB, MIB, TIB, format_bytes

SCHEMA = "https://vega.github.io/schema/vega-lite/v6.json"
WIDTH, HEIGHT = 640, 340
ROW, THICK, THIN, GAP, LINE = 64, 46, 36, 16, 15
"""Pixels: a single bar's row and thickness; thickness, gap and line of a name where there are several bars."""
MOST_LETTERS = 100
LEAST_LABELLED = 0.055
"""Share of a bar below which a part has no room for its size."""
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
    + "".join(f"datum.value >= {unit} ? format(datum.value / {unit}, ',~r') + ' {name}' : "
              for unit, name in ((TIB, "TiB"), (GIB, "GiB"), (MIB, "MiB"), (KIB, "KiB")))
    + "format(datum.value, ',') + ' B'"
)  # fmt: skip
LABELS = {"tokens": TOKENS, "bytes": BYTES, "number": "format(datum.value, ',')", "ratio": "format(datum.value, '~g')"}
DASHES = {"line": [1, 0], "dashed": [7, 4], "steps": [1, 0], "dots": [1, 0]}


def specification(picture: Picture) -> dict[str, Any]:
    """The Vega-Lite of a picture; a live one has its title and its ground from the page."""
    drawn = _chart(picture) if isinstance(picture, Chart) else _bars(picture)
    if picture.live:
        del drawn["title"]
        drawn |= {"background": None, "autosize": {"type": "pad", "resize": True}}
    return drawn


def point_rows(chart: Chart) -> list[dict[str, Any]]:
    """The dataset ``points``: what an axis cannot show is left out."""
    return [
        {"x": x, "y": y, "series": series.name}
        for series in chart.series
        for x, y in series.points
        if (x > 0 or not chart.x.log) and (y > 0 or not chart.y.log)
    ]


def mark_rows(chart: Chart) -> list[dict[str, Any]]:
    """The dataset ``marks``: each label on a line of its own, on the side that has room."""
    low, high = _bounds(chart, "x")
    shown = sorted((mark for mark in chart.marks if low <= mark.at <= high), key=lambda mark: mark.at)
    places = [_share(chart.x, mark.at, low, high) * WIDTH for mark in shown]
    rows = []
    for row, (mark, place) in enumerate(zip(shown, places, strict=True)):
        wide = 10 + LETTER_PX * len(mark.label)
        crossed = [sum(a < other < b for other in places) + 9 * (a < 0 or b > WIDTH)
                   for a, b in ((place, place + wide), (place - wide, place))]  # fmt: skip
        rows.append({"x": mark.at, "label": mark.label, "row": row, "left": int(crossed[1] < crossed[0])})
    return rows


def band_rows(chart: Chart) -> list[dict[str, Any]]:
    """The dataset ``bands``."""
    return [
        {"x": band.low, "x2": band.high, "label": band.label, "fill": LIGHT[f"{band.role} band"],
         "mid": (band.low * band.high) ** 0.5 if chart.x.log else (band.low + band.high) / 2}
        for band in chart.bands
    ]  # fmt: skip


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
        "title": axis.title, "labelExpr": LABELS[axis.unit], "labelOverlap": "greedy", "grid": grid,
    }  # fmt: skip
    if axis.log and axis.unit in ("tokens", "bytes"):
        drawn["values"] = powers(low, high)
    elif axis.log and axis.unit == "ratio":
        drawn["values"] = [value for value in (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100)]
    elif axis.log:
        scale["base"] = 10
        drawn["values"] = [m * 10**e for e in range(10) for m in (1, 2, 5)]
    elif axis.unit == "bytes":
        drawn["values"] = _linear_bytes(high)
    else:
        drawn["tickCount"] = 5
    return {"type": "quantitative", "scale": scale, "axis": drawn}


def _linear_bytes(high: float) -> list[float]:
    """Round sizes from 0 up: 5 to 10 of them."""
    unit = next((unit for unit in (TIB, GIB, MIB, KIB) if high >= unit), 1)
    step = next(s for e in range(4) for s in (1 * 10**e, 2 * 10**e, 5 * 10**e) if high / unit / s <= 9)
    if high / unit < 4:
        step = 0.25 if high / unit < 2 else 0.5
    return [i * step * unit for i in range(int(high / unit / step) + 1)]


def _chart(chart: Chart) -> dict[str, Any]:
    x, y = (_axis(axis, *_bounds(chart, side), grid=side == "y")
            for axis, side in ((chart.x, "x"), (chart.y, "y")))  # fmt: skip
    names = [series.name for series in chart.series]
    colour = {
        "field": "series", "type": "nominal", "sort": None, "title": None,
        "scale": {"domain": names, "range": [LIGHT[series.role] for series in chart.series]},
        "legend": {"symbolType": "stroke"},
    }  # fmt: skip
    dash = {
        "field": "series", "type": "nominal", "sort": None, "title": None,
        "scale": {"domain": names, "range": [DASHES[series.style] for series in chart.series]},
    }  # fmt: skip
    dotted = {series.name for series in chart.series if series.style == "dots"}
    stepped = any(series.style == "steps" for series in chart.series)
    if chart.live:
        y["scale"] |= {"domainMin": 1} if chart.y.log else {}
    px, py = {"field": "x", **x}, {"field": "y", **y}
    layers: list[dict[str, Any]] = []
    if chart.bands:
        layers += [
            {"data": {"name": "bands"}, "mark": {"type": "rect", "tooltip": False},
             "encoding": {"x": px, "x2": {"field": "x2"}, "color": {"field": "fill", "type": "nominal", "scale": None}}},
            {"data": {"name": "bands"},
             "mark": {"type": "text", "fontSize": 12, "fontStyle": "italic", "color": LIGHT["muted"], "baseline": "bottom"},
             "encoding": {"x": {"field": "mid", **x}, "y": {"value": HEIGHT - 6}, "text": {"field": "label"}}},
        ]  # fmt: skip
    if len(dotted) < len(names):
        line: dict[str, Any] = {"type": "line", "strokeWidth": 2.5, "clip": True}
        only = [] if chart.live else [{"filter": {"field": "series", "oneOf": [n for n in names if n not in dotted]}}]
        layers.append({
            "data": {"name": "points"}, "mark": line | ({"interpolate": "step-after"} if stepped else {}),
            "transform": only, "encoding": {"x": px, "y": py, "color": colour, "strokeDash": dash},
        })  # fmt: skip
    if dotted:
        layers.append({
            "data": {"name": "points"}, "mark": {"type": "point", "filled": True, "size": 55, "opacity": 0.9},
            "transform": [{"filter": {"field": "series", "oneOf": sorted(dotted)}}],
            "encoding": {"x": px, "y": py, "color": {**colour, "legend": {"symbolStrokeWidth": 0}}, "shape": {
                **colour, "legend": {}, "scale": {"domain": names, "range": ["circle", "diamond", "square"][: len(names)]}}},
        })  # fmt: skip
    if chart.marks:
        layers.append({"data": {"name": "marks"}, "mark": {"type": "rule", "color": LIGHT["text"], "strokeDash": [3, 3]},
                       "encoding": {"x": px}})  # fmt: skip
        for left, align, dx in ((0, "left", 5), (1, "right", -5)):
            layers.append({
                "data": {"name": "marks"}, "transform": [{"filter": f"datum.left == {left}"}],
                "mark": {"type": "text", "align": align, "dx": dx, "fontSize": 12, "color": LIGHT["text"], "fontWeight": 600},
                "encoding": {"x": px, "text": {"field": "label"},
                             "y": {"field": "row", "type": "quantitative", "axis": None,
                                   "scale": {"domain": [0, 20], "range": [10, 10 + 20 * 17]}}},
            })  # fmt: skip
    if chart.labels:
        layers.append({
            "data": {"name": "labels"},
            "mark": {"type": "text", "align": "left", "dx": 7, "dy": -7, "fontSize": 11, "color": LIGHT["text"]},
            "encoding": {"x": px, "y": py, "text": {"field": "label"}},
        })  # fmt: skip
    spec = _frame(chart.title, chart.told) | {
        "width": WIDTH, "height": HEIGHT,
        "datasets": {"points": point_rows(chart), "marks": mark_rows(chart), "bands": band_rows(chart),
                     "labels": [{"x": px_, "y": py_, "label": text} for px_, py_, text in chart.labels]},
        "layer": layers,
    }  # fmt: skip
    if chart.marks:
        spec["resolve"] = {"scale": {"y": "independent"}}
        spec["layer"] = [layer for layer in layers if layer["data"]["name"] != "marks"]
        spec["layer"] = [{"layer": spec["layer"]}, *(layer for layer in layers if layer["data"]["name"] == "marks")]
    return spec


def _bars(picture: Bars) -> dict[str, Any]:
    whole = max((bar.bytes for bar in picture.bars), default=1) or 1
    rows, cuts = [], []
    for bar in picture.bars:
        at = 0
        for part in bar.parts:
            if not part.bytes:
                continue
            label = format_bytes(part.bytes) if part.bytes >= LEAST_LABELLED * whole * _room(part.bytes) else ""
            rows.append({"bar": bar.name, "part": part.name, "x": at, "x2": at + part.bytes, "mid": at + part.bytes / 2,
                         "label": label, "ink": on(part.role), "size": format_bytes(part.bytes)})  # fmt: skip
            at += part.bytes
        cuts += [{"bar": bar.name, "x": tick} for tick in bar.ticks]
    parts = picture.parts
    single = len(picture.bars) == 1
    sized = single and not picture.live
    names = [f"{part.name}  {format_bytes(part.bytes)}" if sized else part.name for part in parts]
    named = dict(zip((part.name for part in parts), names, strict=True))
    for row in rows:
        row["part"] = named[row["part"]]
    order = [bar.name for bar in picture.bars]
    names_ = {bar.name: wrap(bar.name, MOST_LETTERS) or [""] for bar in picture.bars}
    lines = 0 if single else max(map(len, names_.values()))
    thick, step = (THICK, ROW) if single else (THIN, THIN + GAP + LINE * lines)
    shift = 0 if single else (step - thick) // 2 - GAP // 3
    y = {"field": "bar", "type": "nominal", "sort": order, "title": None, "axis": None}
    x = {"field": "x", **_axis(Axis(picture.axis, "bytes", low=0, high=whole), 0, whole, grid=False)}
    if picture.live:
        x = {"field": "x", **_axis(Axis(picture.axis), 0, whole, grid=False)}
    colour = {"field": "part", "type": "nominal", "sort": None, "title": None,
              "scale": {"domain": names, "range": [LIGHT[part.role] for part in parts]},
              "legend": {"columns": 3 if sized else 4, "symbolType": "square"}}  # fmt: skip
    layers: list[dict[str, Any]] = [
        {"mark": {"type": "bar", "stroke": LIGHT["ground"], "strokeWidth": 1, "height": thick, "yOffset": shift},
         "encoding": {"x": x, "x2": {"field": "x2"}, "y": y, "color": colour}},
        {"mark": {"type": "text", "fontSize": 12, "yOffset": shift},
         "encoding": {"x": {**x, "field": "mid"}, "y": y, "text": {"field": "label"},
                      "color": {"field": "ink", "type": "nominal", "scale": None}}},
    ]  # fmt: skip
    if cuts:
        layers.insert(1, {"data": {"name": "cuts"}, "mark": {
            "type": "tick", "color": LIGHT["ground"], "opacity": 0.7, "thickness": 1, "size": thick * 0.28,
            "yOffset": shift + round(thick * 0.36)}, "encoding": {"x": x, "y": y}})  # fmt: skip
    for line in range(lines):
        layers.append({
            "data": {"name": "names"}, "transform": [{"filter": f"datum.up == {line}"}],
            "mark": {"type": "text", "align": "left", "baseline": "bottom", "fontSize": 12, "color": LIGHT["text"],
                     "yOffset": shift - thick // 2 - 4 - LINE * line},
            "encoding": {"x": {"value": 0}, "y": y, "text": {"field": "text"}},
        })  # fmt: skip
    return _frame(picture.title, picture.told) | {
        "width": WIDTH, "height": {"step": step},
        "datasets": {"rows": rows, "cuts": cuts,
                     "names": [{"bar": name, "text": text, "up": up} for name in order
                               for up, text in enumerate(reversed(names_[name]))]}, "data": {"name": "rows"},
        "layer": layers,
    }  # fmt: skip


def _room(size: int) -> float:
    """How much wider than usual the text of a size is."""
    return len(format_bytes(size)) / 8


def _frame(title: str, told: str) -> dict[str, Any]:
    return {
        "$schema": SCHEMA, "config": CONFIG, "description": f"{title}. {told}",
        "title": {"text": title, "subtitle": wrap(told, 105)} if told else title,
    }  # fmt: skip
