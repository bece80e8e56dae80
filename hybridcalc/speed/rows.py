"""The paces of several plans under each other: what a step takes at least, what a request gets of it, what is usual."""

from collections.abc import Iterable

from hybridcalc.findings import Table
from hybridcalc.speed.floor import Floor
from hybridcalc.speed.plans import Pace, ms_text, rate_text

LEAST_MEASURED = 16
"""Requests from which on measurements tell what is usual (docs/speed.md)."""
BINDS = {"weights": "weights bind", "kv": "KV binds", "state": "state binds", "compute": "compute binds"}


def pace_text(pace: Pace) -> str:
    """What a step takes, and what a request gets of it, in a line."""
    step = pace.step
    usual = f", usually {_rates(step)}" if step.batch >= LEAST_MEASURED else ""
    most, of = rate_text(step.tokens_per_second()), f" at {step.batch:,}" if pace.fewer else ""
    binds = "" if pace.fewer else f"; {BINDS[step.binding]}"
    return f"{ms_text(step.floor_ms)} ms or more{of}: {most} tokens/s at most{usual}{binds}"


def prompt_text(pace: Pace) -> str:
    """What the first token of an answer waits for at least, in a line."""
    figure = pace.prompt_figure()
    return f"{figure.value} {figure.unit}: {figure.why}; {figure.more}"


def _rates(step: Floor) -> str:
    low, high = step.band_ms
    return f"{rate_text(1000 / high)} to {rate_text(1000 / low)}"


def times(rows: Iterable[tuple[str, Pace, int]]) -> Table:
    """A row for each: what it is called, its pace, and how many servers keep it."""
    cells = [
        (
            label,
            ms_text(pace.step.floor_ms),
            rate_text(pace.step.tokens_per_second()),
            rate_text(servers * pace.step.batch * pace.step.tokens_per_second()),
            _rates(pace.step) if pace.step.batch >= LEAST_MEASURED else "",
            BINDS[pace.step.binding],
        )
        for label, pace, servers in rows
    ]
    header = ("at best", "a step, ms", "tokens/s each", "in all", "usual each", "")
    return Table("Speed", header, tuple(cells), (1, 2, 3, 4), fills=True)
