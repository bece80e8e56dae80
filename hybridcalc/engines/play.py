"""What a page needs to recompute a plan in the browser: its settings, its figures, and the pictures to redraw.

The browser repeats the arithmetic that depends on memory, length and ratio; what depends on ranks, dtypes and strategy
an engine computes and hands over in a table. Flags without a control stay as they were given.
"""

from collections.abc import Callable, Mapping, Sequence
from itertools import product
from typing import Any, NamedTuple

from hybridcalc.engines.charts import Axis, Band, Bar, Bars, Chart, Mark, Picture, Series, part
from hybridcalc.units import GIB

RANKS = (1, 2, 4, 8, 16, 32)
LONGEST, MOST_REQUESTS = 2**20, 10_000
LEAST_GIB, MOST_GIB = 0.5, 256.0
TOKENS = Axis("tokens a request holds", "tokens", True, 256, LONGEST)
Table = dict[str, dict[str, Any]]


class Control(NamedTuple):
    """One setting of the page: a number in [low, high], or one of ``choices`` (value and what it is called)."""

    name: str
    label: str
    value: str
    low: float = 0
    high: float = 0
    whole: bool = True
    choices: tuple[tuple[str, str], ...] = ()


class Play(NamedTuple):
    """All of it: ``results`` are the figures that the browser writes, by what they are called; ``data`` is what the
    script reads; ``charts`` are the pictures it redraws, and ``bands`` what their shaded ranges say, by role.
    """

    controls: tuple[Control, ...]
    results: Mapping[str, str]
    charts: dict[str, Picture]
    data: dict[str, Any]
    bands: Mapping[str, str] = {}


def table_of(own: int, choices: Sequence[Sequence[str]], sizes: Callable[..., dict[str, Any]]) -> Table:
    """The sizes of every combination of ranks and choices; of ranks that refuse all of them, only the ``own`` ones."""
    table: Table = {}
    for ranks in sorted({*RANKS, own}):
        cells = {"|".join((str(ranks), *names)): sizes(ranks, *names) for names in product(*choices)}
        if ranks == own or not all("refused" in cell for cell in cells.values()):
            table |= cells
    return table


def with_own(usual: Sequence[str], own: str) -> list[str]:
    """The usual choices, and the one that is asked for."""
    return [*usual, *([] if own in usual else [own])]


def one_of(name: str, label: str, value: str, choices: Sequence[str], **called: str) -> Control:
    """A choice; each is called as it is, but for those that are ``called`` otherwise."""
    return Control(name, label, value, choices=tuple((one, called.get(one, one)) for one in choices))


def length_control(length: int) -> Control:
    """The length of requests."""
    return Control("length", "Tokens a request holds (L)", str(length), 1, max(LONGEST, length))


def memory_control(label: str, gib: float) -> Control:
    """The memory for the caches, GiB."""
    return Control("memory", label, repr(gib), LEAST_GIB, max(MOST_GIB, gib), whole=False)


def ranks_control(table: Table, own: int) -> Control:
    """The ranks that the table has sizes of."""
    ranks = dict.fromkeys(key.split("|")[0] for key in table)
    return Control("tp", "Tensor-parallel ranks", str(own), choices=tuple((one, f"tp {one}") for one in ranks))


def live_bar(*parts: tuple[str, str]) -> Bars:
    """A bar with every part the script may draw; it brings their sizes."""
    row = Bar("", tuple(part(name, role, GIB) for name, role in parts))
    return Bars("What the memory goes to, as charged", "", "GiB", (row,), live=True)


def live_curves(
    title: str,
    x: Axis,
    names: Sequence[str],
    *,
    roles: Sequence[str] = ("state", "kv", "balanced"),
    banded: bool = False,
) -> Chart:
    """Curves of those names that the script draws, requests at once over ``x``; it brings their points."""
    styles = ("line", "line" if len(names) == 3 or banded else "dashed", "dashed")
    series = tuple(
        Series(name, role, ((x.low or 1, 1.0), (x.high or 1, 2.0)), name[0], style)
        for name, role, style in zip(names, roles, styles, strict=False)
    )
    bands = (Band(x.low or 1, x.high or 1, "", "state"),) if banded else ()
    y = Axis("requests at once", "number", not banded)
    return Chart(title, "", x, y, series, (Mark(x.low or 1, ""),), bands, live=True)
