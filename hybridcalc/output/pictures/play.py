"""What a page needs to recompute a plan in the browser: its settings, its figures, and the pictures to redraw.

The browser repeats the arithmetic that depends on memory, length and ratio (web/arithmetic.js); what depends on ranks,
dtypes and strategy an engine computes (sglang_play.py, vllm_play.py) and hands over in a table. Flags without a control
stay as they were given; unified memory and a fitted max_model_len have no settings.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

from hybridcalc.output.pictures.chart import Axis, Bar, Bars, Chart, Mark, Picture, Series
from hybridcalc.output.pictures.memory import part
from hybridcalc.output.pictures.palette import on
from hybridcalc.units import GIB

RANKS = (1, 2, 4, 8, 16, 32)
LONGEST, MOST_REQUESTS = 2**20, 10_000
LEAST_GIB, MOST_GIB = 0.5, 256.0


class Control(NamedTuple):
    """One setting of the page: a number in [low, high], or one of ``choices`` (value and what it is called)."""

    name: str
    label: str
    value: str
    low: float = 0
    high: float = 0
    whole: bool = True
    choices: tuple[tuple[str, str], ...] = ()


class Result(NamedTuple):
    """One figure that the browser writes."""

    name: str
    label: str


class Play(NamedTuple):
    """All of it: ``data`` is what the script reads, ``charts`` the pictures it redraws."""

    controls: tuple[Control, ...]
    results: tuple[Result, ...]
    charts: dict[str, Picture]
    data: dict[str, Any]


def script_data(play: Play, compiled: dict[str, Any], width: int) -> dict[str, Any]:
    """What the page's script reads."""
    controls = [
        {"name": c.name, "label": c.label, "low": c.low, "high": c.high, "whole": c.whole, "choices": bool(c.choices)}
        for c in play.controls
    ]
    return play.data | {
        "controls": controls,
        "results": [result.name for result in play.results],
        "charts": compiled,
        "width": width,
        "inks": {role: on(role) for role in ("state", "kv", "scratch", "unused")},
    }


def with_own(usual: Sequence[str], own: str) -> list[str]:
    """The usual choices, and the one that is asked for."""
    return [*usual, *([] if own in usual else [own])]


def live_bar(parts: Sequence[tuple[str, str]]) -> Bars:
    """A bar with every part the script may draw; it brings their sizes."""
    row = Bar("", tuple(part(name, role, GIB) for name, role in parts))
    return Bars("What the memory goes to, as charged", "", "GiB", (row,), live=True)


def live_curves(
    title: str,
    x: Axis,
    y: Axis,
    names: Sequence[str],
    *,
    roles: Sequence[str] = ("state", "kv", "balanced"),
    banded: bool = False,
) -> Chart:
    """Curves of those names that the script draws; it brings their points."""
    from hybridcalc.output.pictures.chart import Band

    styles = ("line", "line" if len(names) == 3 or banded else "dashed", "dashed")
    series = tuple(
        Series(name, role, ((x.low or 1, 1.0), (x.high or 1, 2.0)), name[0], style)
        for name, role, style in zip(names, roles, styles, strict=False)
    )
    bands = (Band(x.low or 1, x.high or 1, "", "state"),) if banded else ()
    return Chart(title, "", x, y, series, (Mark(x.low or 1, ""),), bands, live=True)
