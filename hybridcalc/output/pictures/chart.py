"""What a picture shows, before anybody draws it: curves over an axis, or bars to scale.

A `Chart` has series over one x axis, marks (vertical lines with a label) and bands (shaded ranges of x); `Bars` are
rows of parts in bytes. Roles ("state", "kv", ...) stand for colours (palette.py), letters for a terminal without any.
vega.py draws them for files and pages, terminal.py for a terminal; figures of engines are in the modules beside.
"""

from collections.abc import Sequence
from math import ceil, floor, log, log10
from typing import NamedTuple

MOST_TICKS = 9
BASES = (2, 4, 8, 16, 64, 256, 4096, 2**20)


class Axis(NamedTuple):
    """A title, the unit its values are written in ("tokens", "bytes", "number", "ratio"), whether it is logarithmic.

    ``low`` and ``high`` bound it; None where the data decides.
    """

    title: str
    unit: str = "number"
    log: bool = False
    low: float | None = None
    high: float | None = None


class Series(NamedTuple):
    """One curve: its name, what it stands for, and its points; ``letter`` marks it where there is no colour.

    ``style``: "line", "dashed", "steps" or "dots".
    """

    name: str
    role: str
    points: tuple[tuple[float, float], ...]
    letter: str
    style: str = "line"


class Mark(NamedTuple):
    """A vertical line at ``at``, and what it says."""

    at: float
    label: str


class Band(NamedTuple):
    """A shaded range of x and what holds in it."""

    low: float
    high: float
    label: str
    role: str


class Chart(NamedTuple):
    """Curves over one axis. ``told`` is the line under the title; ``labels`` are texts beside points.

    The data of a ``live`` picture is replaced by a page's script: its axes follow what comes.
    """

    title: str
    told: str
    x: Axis
    y: Axis
    series: tuple[Series, ...]
    marks: tuple[Mark, ...] = ()
    bands: tuple[Band, ...] = ()
    labels: tuple[tuple[float, float, str], ...] = ()
    live: bool = False


class Part(NamedTuple):
    """A stretch of a bar: its name, what it stands for, its bytes, and the letter that draws it in a terminal."""

    name: str
    role: str
    bytes: int
    letter: str


class Bar(NamedTuple):
    """One row of parts; ``ticks`` are places in bytes where a part is cut into equal pieces."""

    name: str
    parts: tuple[Part, ...]
    ticks: tuple[float, ...] = ()

    @property
    def bytes(self) -> int:
        """The length of the row."""
        return sum(part.bytes for part in self.parts)


class Bars(NamedTuple):
    """Rows of parts on one scale of bytes; those of a ``live`` picture are drawn by a page's script, in GiB.

    ``cuts`` says what the ticks of the bars are, where they are drawn.
    """

    title: str
    told: str
    axis: str
    bars: tuple[Bar, ...]
    live: bool = False
    cuts: str = ""

    @property
    def parts(self) -> list[Part]:
        """The distinct parts of all rows in order, each with the bytes of the first row that has it."""
        found: dict[str, Part] = {}
        for bar in self.bars:
            for part in bar.parts:
                if part.bytes:
                    found.setdefault(part.name, part)
        return list(found.values())


Picture = Chart | Bars


def powers(low: float, high: float, *, most: int = MOST_TICKS) -> list[float]:
    """Powers of 2, 4, 16, ... within [low, high]: at most ``most``; both ends where there are fewer than two."""
    if not 0 < low < high:
        return [low] if low == high else []
    for base in BASES:
        first, last = ceil(log(low, base) - 1e-9), floor(log(high, base) + 1e-9)
        if last - first < most:
            ticks = [float(base) ** exponent for exponent in range(first, last + 1)]
            return ticks if len(ticks) > 1 else [low, high]
    return [low, high]


def decimals(low: float, high: float, *, most: int = 12) -> list[float]:
    """1, 2 and 5 times powers of ten within [low, high]; powers alone, or every so many, where there would be more."""
    if not 0 < low <= high:
        return []
    first, last = floor(log10(low) + 1e-9), ceil(log10(high) - 1e-9)
    step = max(1, -(-(last - first) // most))
    factors = (1, 2, 5) if 3 * (last - first) <= most + 3 else (1,)
    ticks = [m * 10**e if e >= 0 else m / 10**-e for e in range(first, last + 1, step) for m in factors]
    return [tick for tick in ticks if low * (1 - 1e-9) <= tick <= high * (1 + 1e-9)]


def round_steps(low: float, high: float, *, most: int = 5) -> list[float]:
    """Whole multiples of 1, 2 or 5 times a power of ten within [low, high], at most ``most`` and one."""
    if not low < high:
        return [low]
    ten = max(1.0, 10.0 ** floor(log10((high - low) / most)))
    step = next(m * ten for m in (1, 2, 5, 10) if m * ten * most >= high - low)
    return [i * step for i in range(ceil(low / step - 1e-9), floor(high / step + 1e-9) + 1)]


def bounds(axis: Axis, values: Sequence[float]) -> tuple[float, float]:
    """The range of an axis: as it says, else that of the values it can show."""
    shown = [value for value in values if value > 0 or not axis.log] or [1.0]
    low = axis.low if axis.low is not None else (min(shown) if axis.log else 0.0)
    high = axis.high if axis.high is not None else max(shown)
    return low, high if high > low else low * 2 or 1.0


def cut(curve: Sequence[tuple[float, float]], top: float) -> tuple[tuple[float, float], ...]:
    """A curve over a logarithmic axis that runs to ``top`` and ends there where it rises above."""
    kept = list[tuple[float, float]]()
    for i, (x, y) in enumerate(curve):
        if y <= top:
            kept.append((x, y))
            continue
        near = next((p for p in (*curve[max(0, i - 1) : i], *curve[i + 1 : i + 2]) if p[1] <= top), None)
        if near is not None:
            kept.append((near[0] * (x / near[0]) ** ((top - near[1]) / (y - near[1])), top))
    return tuple(kept)


def lengths(low: int, high: int, points: int) -> list[int]:
    """Whole lengths from ``low`` to ``high`` at equal steps of a logarithmic axis."""
    if high <= low:
        return [low]
    step = (high / low) ** (1 / (points - 1))
    return sorted({min(high, max(low, round(low * step**i))) for i in range(points)})
