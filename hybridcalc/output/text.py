"""An answer as text: verdict, figures, what is wrong, what to set, tables, memory, log lines, notes, steps."""

import csv
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from hybridcalc.findings import Finding
from hybridcalc.output import terminal
from hybridcalc.steps import Table, View

if TYPE_CHECKING:
    from rich.console import Console

STYLES = {"state": terminal.STATE, "kv": terminal.KV}
SLOW_POINTS = 5_000
One = TypeVar("One")


def print_view(view: View, *, explain: bool, out: "Console | None" = None) -> None:
    """The whole answer on stdout; the steps with ``explain``."""
    out = out or terminal.console()
    terminal.verdict(out, view.headline, view.meaning, style="bold" if view.starts else terminal.TROUBLE)
    terminal.figures(out, view.figures, styles=[STYLES[role] for role in view.roles])
    terminal.evidence(out, view.evidence)
    for severity in ("error", "warning"):
        texts = [told(found) for found in view.findings if found.severity == severity]
        terminal.notes(out, texts, label=severity, style=terminal.TROUBLE)
    if view.fix:
        terminal.notes(out, [view.fix], label="fix")
    if view.choices:
        out.print()
        terminal.choices(out, view.choices)
    if not (view.curve and _drawn(out, view)):
        for table in view.tables:
            _table(out, table)
        if view.curve:
            terminal.notes(out, ["pip install 'hybridcalc[plot]' draws this as a curve"])
    if view.memory:
        out.print()
        out.file.write(terminal.bars([("", view.memory)], out.width, colour=out.color_system is not None) + "\n")
    if view.log_lines and view.starts:
        out.print()
        out.print("log lines to expect:", style=terminal.QUIET)
        for line in view.log_lines:
            terminal.quoted(out, line)
    terminal.notes(out, [*(told(found) for found in view.findings if found.severity == "note"), *view.notes])
    if explain and view.steps:
        terminal.explanation(out, view.steps)


def told(finding: Finding) -> str:
    """A finding in a line: its rule, what is wrong, and what to write instead."""
    return f"{finding.rule} {finding.message}{'; ' + finding.fix if finding.fix else ''}"


def _table(out: "Console", table: Table) -> None:
    if not table.rows:
        return
    out.print()
    first, *others = table.header
    rows = [(f"{terminal.INDENT}{row[0]}", *row[1:]) for row in table.rows]
    terminal.listing(out, (f"{terminal.INDENT}{first}", *others), rows, right=table.numbers)


def _drawn(out: "Console", view: View) -> bool:
    """Whether the answer's curve could be drawn, and is."""
    from hybridcalc.output.pictures.terminal import draw

    picture = next(iter(view.pictures.values()))()
    text = draw(picture, width=out.width, colour=out.color_system is not None, encoding=out.encoding)
    if text is not None:
        out.print()
        out.file.write(text + "\n")
    return text is not None


def print_csv(rows: Sequence[Mapping[str, Any]]) -> None:
    """The points of a sweep as CSV, one a line, under their names; there is at least one."""
    writer = csv.DictWriter(sys.stdout, fieldnames=list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)


def with_progress(points: Iterable[One], count: int) -> Iterator[One]:
    """The points as they come; a bar on stderr when there are many and someone is watching."""
    if count < SLOW_POINTS or not sys.stderr.isatty():
        yield from points
        return
    from rich.console import Console
    from rich.progress import track

    yield from track(points, total=count, description="planning", console=Console(stderr=True))
