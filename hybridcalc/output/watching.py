"""A watch as it goes on: one table that is drawn anew on a terminal, a line a scrape anywhere else."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol

from hybridcalc.live.watch import bound_text, figure, label
from hybridcalc.output import terminal

if TYPE_CHECKING:
    from rich.console import Group

COLUMNS = ("", "now", "least", "mean", "most")


class ShowsScrape(Protocol):
    """Shows one scrape: how many seconds after the first, a line about it, figures as they are, and over the time."""

    def __call__(self, seconds: float, line: str, now: Mapping[str, float], summary: Mapping[str, Any]) -> None:
        """Show it."""


@contextmanager
def watching() -> Iterator[ShowsScrape]:
    """What shows each scrape, until the watch ends."""
    out = terminal.console()
    if not out.is_terminal or out.is_dumb_terminal:

        def line_by_line(seconds: float, line: str, now: Mapping[str, float], summary: Mapping[str, Any]) -> None:
            del now, summary
            print(f"{seconds:8,.0f} s  {line}", flush=True)

        yield line_by_line
        return
    from rich.live import Live

    with Live(console=out, auto_refresh=False, transient=True, vertical_overflow="crop") as drawn:

        def anew(seconds: float, line: str, now: Mapping[str, float], summary: Mapping[str, Any]) -> None:
            drawn.update(_table(seconds, line, now, summary), refresh=True)

        yield anew


def _table(seconds: float, line: str, now: Mapping[str, float], summary: Mapping[str, Any]) -> Group:
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    table = Table(*COLUMNS, box=None, padding=(0, 2, 0, 0), header_style=terminal.QUIET)
    for column in table.columns[1:]:
        column.justify = "right"
    for name, over in summary["figures"].items():
        style = next((colour for pool, colour in terminal.STYLES.items() if name.startswith(pool)), "")
        here = figure(name, now[name]) if name in now else ""
        table.add_row(Text(label(name), style), here, *(figure(name, over[end]) for end in ("min", "mean", "max")))
    ends = f"{bound_text(summary)}; {seconds:,.0f} s from the first, Ctrl-C ends it"
    return Group(Text(line), table, Text(ends, terminal.QUIET))
