"""What a picture shows, before anybody draws it: curves over an axis, or bars to scale.

A `Chart` has series over one x axis, marks (vertical lines with a label) and bands (shaded ranges of x); `Bars` are
rows of parts in bytes. Roles ("state", "kv", ...) stand for colours (palette.py), letters for a terminal without any.
The memory of a GPU is cut up here from any engine's budget: the state pool into what one request holds, and what the
engine did not charge apart from the headroom that it lies in.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

from hybridcalc.deployment import HEADROOM, Rest, Workload, requests_text
from hybridcalc.errors import InputError
from hybridcalc.findings import BudgetLine
from hybridcalc.units import GIB

LETTERS = {
    "weights": "W", "state pool": "S", "states": "S", "draft states": "D", "ReplaySSM rings": "R", "KV pool": "K",
    "KV": "K", "draft KV": "k", "int8 checkpoints": "8", "PLE convolutions": "p", "request table": "t",
    "state padding": "/", "padding": "/", "empty layer slots": "-", "free blocks": ".", "null block": "0",
    "not charged": "!", "unused": ".", "headroom": "H", "context": "C", "images": "I",
}  # fmt: skip
ROLES = {"weights": "weights", HEADROOM: "headroom", "free blocks": "unused", "context": "context"}
LEAST_UNUSED = 2000
"""Unused memory below such a share of all is rounding."""
GROUPS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000, 10**6)
SHORTEST, LEAST_END = 256, 131_072
"""Tokens where curves over the length of requests begin, and where they end at least."""
MOST_CUTS = 160
"""Requests in one piece of the state pool, and how many pieces a bar's width can show."""


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
    """Curves over one axis. ``told`` is the line under the title; ``labels`` are texts beside points."""

    title: str
    told: str
    x: Axis
    y: Axis
    series: tuple[Series, ...]
    marks: tuple[Mark, ...] = ()
    bands: tuple[Band, ...] = ()
    labels: tuple[tuple[float, float, str], ...] = ()

    @property
    def upwards(self) -> list[Series]:
        """The series as they are drawn over each other: what runs, the answer itself, on top."""
        return sorted(self.series, key=lambda one: one.role == "answer")


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
    """Rows of parts on one scale of bytes. ``cuts`` says what the ticks of the bars are, where they are drawn."""

    title: str
    told: str
    axis: str
    bars: tuple[Bar, ...]
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


def part(name: str, role: str, size: int) -> Part:
    """A part with its letter."""
    return Part(name, role, size, LETTERS.get(name, name[:1].upper() or "?"))


def pool_parts(lines: Sequence[BudgetLine]) -> list[Part]:
    """The buffers of a budget as far as they are charged, and in one part what goes beyond."""
    parts = [
        part(line.name, ROLES.get(line.name, line.kind), min(line.charged_bytes, line.allocated_bytes))
        for line in lines
    ]
    beyond = sum(max(0, line.allocated_bytes - line.charged_bytes) for line in lines)
    return [p for p in [*parts, part("not charged", "trouble", beyond)] if p.bytes]


def gpu_parts(lines: Sequence[BudgetLine], rest: Rest) -> list[Part]:
    """Everything on the GPU: weights, pools, what they leave, and the headroom less what takes it unasked."""
    pools = pool_parts(lines)
    beyond = sum(p.bytes for p in pools if p.name == "not charged")
    taken = sum(p.bytes for p in pools) - beyond
    others = [part(name, ROLES.get(name, "other"), round(gib * GIB)) for name, gib in rest.others]
    weights = [p for p in others if p.name == "weights"]
    after = [p for p in others if p.name not in ("weights", HEADROOM)]
    headroom = [p._replace(bytes=max(0, p.bytes - beyond)) for p in others if p.name == HEADROOM]
    unused = part("unused", "unused", max(0, int(rest.likely_gib * GIB) - taken))
    found = [
        *weights,
        *pools[: len(pools) - bool(beyond)],
        unused,
        *pools[len(pools) - bool(beyond) :],
        *after,
        *headroom,
    ]
    whole = sum(p.bytes for p in found)
    return [p for p in found if p.bytes and (p.name != "unused" or p.bytes * LEAST_UNUSED > whole)]


def over_length(
    title: str, told: str, end: int, series: Sequence[Series], marks: Sequence[Mark], plan: Any, *, high: float
) -> Chart:
    """Requests at once over their length, with the workload of a plan marked."""
    work: Workload = plan.workload
    if work.mean_length is not None:
        name, length = "mean L" if len(work.lengths) > 1 else "L", float(work.mean_length)
        marks = [*marks, Mark(length, f"{name} = {length:,.0f}: {requests_text(plan.concurrency)}")]
    return Chart(
        f"Requests at once by length: {title}",
        told,
        Axis("tokens a request holds", "tokens", True, SHORTEST, end),
        Axis("requests at once", "number", True, 1, 1.2 * max(1, high)),
        tuple(series),
        tuple(marks),
    )


def pools_bar(name: str, plan: Any) -> Bar:
    """The pools of one plan, and what is left beside them."""
    parts = pool_parts(plan.budget)
    left = int(plan.rest.likely_gib * GIB) - sum(p.bytes for p in parts if p.name != "not charged")
    return Bar(name, (*parts, *([part("unused", "unused", left)] if left * 100 > plan.rest.likely_gib * GIB else ())))


def comparison_picture(sides: Sequence[tuple[str, Any]]) -> Bars:
    """The pools of several plans, each under what it comes to. Raises InputError where none starts."""
    if not sides:
        raise InputError("nothing starts: there is nothing to draw")
    first = sides[0][1]
    bars = [
        pools_bar(f"{plan.concurrency:,} at once {'with ' if row else ''}{flags}{_tokens(plan)}", plan)
        for row, (flags, plan) in enumerate(sides)
    ]
    work = first.workload
    told = f"Requests of {work.describe()}." if work.lengths else ""
    return Bars(f"Pools side by side: {first.model.name}", told, "memory of the pools on one GPU", tuple(bars))


def _tokens(plan: Any) -> str:
    """What all KV of a rank's pool holds, where context parallelism makes that more than the bytes show."""
    tokens = getattr(plan, "logical_token_capacity", None)
    return "" if tokens is None else f" ({tokens:,} KV tokens)"


def request_cuts(bar: Bar, pool: str, each: int, requests: int) -> tuple[Bar, int]:
    """The bar with ``pool`` cut into what a number of ``requests`` hold, and that number: as few as can be told apart;
    0 where nothing is cut.
    """
    at, whole = 0, bar.bytes
    for p in bar.parts:
        if p.name == pool and requests:
            group = next(g for g in GROUPS if g * each * MOST_CUTS >= whole or g == GROUPS[-1])
            cuts = (i * each for i in range(group, requests + 1, group))
            return bar._replace(ticks=tuple(float(at + cut) for cut in cuts if cut < p.bytes)), group
        at += p.bytes
    return bar, 0
