"""An answer as text, whole or in twelve lines of 80 columns: which part of a view is said first?

The verdict, the most telling figures, the worst finding, and two things to set: the safest that helps and the boldest,
with its price. What is left out is counted in the last line; -v says it all. What is shown is the same at every width.
Of a table that was asked for, the most telling rows are shown where it is longer.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from typing import NamedTuple

from rich.console import Console

from hybridcalc.findings import BOLD, Finding, View, two
from hybridcalc.output import terminal

ONE_LINE = terminal.COLUMNS - len("  safe  ")
MOST = 5
"""Figures beside something to set."""
SEVERITIES = ("error", "warning", "note")


class Brief(NamedTuple):
    """The part of a view that is shown, whether a blank line parts the figures from what to set, what -v adds; whether
    none parts its tables from a note (``tight``).
    """

    view: View
    gap: bool = False
    more: str = ""
    tight: bool = False


def print_view(view: View, *, explain: bool, verbose: bool = False, out: Console | None = None) -> None:
    """The answer on stdout, in a few lines or, with ``verbose``, whole; its steps with ``explain``."""
    out = out or terminal.console()
    if verbose:
        print_whole(out, view)
    else:
        print_part(out, cut(view, whole=explain))
    if explain and view.steps:
        terminal.explanation(out, view.steps)


def print_whole(out: Console, view: View) -> None:
    """All there is to say; its curve drawn where something draws it, else as a table."""
    _verdict(out, view)
    terminal.figures(out, view.figures, view.roles)
    terminal.evidence(out, view.evidence)
    gap = _rows(view) > 0
    findings = list(_fixed_once(view.findings))
    for severity in ("error", "warning"):
        texts = [terminal.told(found) for found in findings if found.severity == severity]
        terminal.notes(out, texts, label=severity, style=terminal.TROUBLE, gap=gap)
        gap = gap or bool(texts)
    if view.fix:
        terminal.notes(out, [view.fix], label="fix", gap=gap)
    if view.choices:
        out.print()
        terminal.choices(out, view.choices)
    if not (view.curve and _drawn(out, view)):
        for number, shown in enumerate(view.tables):
            terminal.table(out, shown, gap=number > 0 or _says_more(view))
        if view.curve:
            terminal.notes(out, ["pip install 'hybridcalc[plot]' draws this as a curve"])
    if view.memory and (parts := view.memory()):
        out.print()
        out.file.write(terminal.bars([("", parts)], out.width, colour=out.color_system is not None) + "\n")
    if view.log_lines and view.starts:
        out.print()
        out.print("log lines to expect:", style=terminal.QUIET)
        for line in view.log_lines:
            terminal.quoted(out, line)
    terminal.notes(out, [*(terminal.told(found) for found in findings if found.severity == "note"), *view.notes])


def _fixed_once(findings: Iterable[Finding]) -> Iterator[Finding]:
    """Findings in their order, what to write instead with the first alone that says it."""
    said = set[str]()
    for found in findings:
        yield found._replace(fix="") if found.fix in said else found
        said.add(found.fix)


def _says_more(view: View) -> bool:
    """Whether something stands between its verdict and its tables."""
    return bool(_rows(view) or view.findings or view.fix or view.choices)


def _drawn(out: Console, view: View) -> bool:
    """Whether the answer's curve could be drawn, and is."""
    from hybridcalc.output.pictures.terminal import draw

    picture = next(iter(view.pictures.values()))()
    text = draw(picture, width=out.width, colour=out.color_system is not None, encoding=out.encoding)
    if text is not None:
        out.print()
        out.file.write(text + "\n")
    return text is not None


def print_part(out: Console, short: Brief) -> None:
    """Print the part of a view that is shown."""
    _figures(out, short)
    _rest(out, short)


def cut(view: View, lines: int = terminal.LINES, *, whole: bool = False) -> Brief:
    """The part of a view that is said first: of the figures as many as ``lines`` hold, then notes; with ``whole``
    tables that were asked for.
    """
    tables = tuple(table for table in view.tables if table.asked)
    asked = tables if whole else tuple(table.most_telling(lines) for table in tables)
    said = view.said if view.choices else ()
    found = sorted((f for f in view.findings if f.rule not in said), key=lambda one: _weight(one, view.asked))
    pair = two(view.choices, view.wanted, ONE_LINE)
    shown = view._replace(findings=tuple(found[:1]), choices=pair, tables=asked, log_lines=(), memory=None)
    shown = shown._replace(figures=view.figures[: MOST if view.choices else None], notes=())

    def height(part: View, *, tight: bool = False) -> int:
        return _height(Brief(part, False, _more(view, part), tight))

    first = max(0, _height(Brief(View("", "", notes=view.notes[:1]))) - 2)  # without the verdict and the gap behind it
    asked_for = sum(row.label in view.kept for row in shown.figures)
    full, least = shown, (asked_for if view.wanted else 1) if any(c.label == BOLD for c in pair) else view.fewest
    while (rows := _rows(shown)) and height(shown) + (first if rows > view.essential else 0) > lines:
        if rows <= least and len(shown.choices) > 1:
            safe, bold = shown.choices[0], shown.choices[-1]
            left = shown.choices[1:] if safe.after < view.wanted <= bold.after else shown.choices[:-1]
            shown = shown._replace(choices=left, figures=full.figures, evidence=full.evidence)
        else:
            last = max((n for n, row in enumerate(shown.figures) if row.label not in view.kept), default=0)
            figures = (*shown.figures[:last], *shown.figures[last + 1 :])
            shown = shown._replace(figures=figures, evidence=shown.evidence[:-1])
    if height(shown) > lines and len(shown.choices) > 1:
        shown = shown._replace(choices=shown.choices[:-1])
    while not whole and any(table.rows[1:] for table in shown.tables) and height(shown) > lines:
        last = max(n for n, table in enumerate(shown.tables) if table.rows[1:])
        shorter = tables[last].most_telling(len(shown.tables[last].rows) - 1)
        shown = shown._replace(tables=(*shown.tables[:last], shorter, *shown.tables[last + 1 :]))
    gap = rows > 0 and bool(shown.findings or shown.choices or shown.fix) and height(shown) < lines
    for one in found[1:]:
        longer = shown._replace(findings=(*shown.findings, one))
        shown = longer if height(longer) + gap <= lines else shown
    for note in view.notes if not shown.notes else ():
        longer = shown._replace(notes=(*shown.notes, note))
        shown = longer if height(longer) + gap <= lines else shown
    alone = shown._replace(notes=view.notes[:1])
    tight = bool(not shown.notes and shown.tables and view.notes) and height(alone, tight=True) + gap <= lines
    shown = alone if tight else shown
    for table in (table for table in view.tables if table.fills and not table.asked):
        parts = (table.most_telling(count) for count in range(min(len(table.rows), lines), 0, -1))
        fuller = (shown._replace(tables=(*shown.tables, part)) for part in parts)
        shown = next((each for each in fuller if height(each) + gap <= lines), shown)
    return Brief(shown, gap, _more(view, shown), tight)


def _rows(view: View) -> int:
    return max(len(view.figures), len(view.evidence))


def _lines(view: View) -> int:
    """Rows of the tables that were asked for."""
    return sum(len(table.rows) for table in view.tables if table.asked)


def _weight(finding: Finding, asked: Collection[str]) -> tuple[bool, int, bool]:
    """Errors and what was asked for first, then the worst; among equals those that say what to do."""
    later = finding.severity != "error" and finding.rule not in asked
    return later, SEVERITIES.index(finding.severity), not finding.fix


def _more(view: View, shown: View) -> str:
    """What -v adds, in words; empty where nothing is left out."""

    def parts() -> Iterator[str]:
        rows = _rows(view) - _rows(shown)
        for count, name in (
            (rows, "figure"),
            (len(view.choices) - len(shown.choices), "setting"),
            (len(view.notes) - len(shown.notes), "note"),
            (_lines(view) - _lines(shown), "row"),
        ):
            if count:
                yield f"{count} {name}{'' if count == 1 else 's'}"
        yield from dict.fromkeys(found.rule for found in view.findings if found not in shown.findings)
        titles = {table.title for table in shown.tables if table.asked}
        missing = (table for table in view.tables if table.rows and table not in shown.tables)
        yield from (table.title.lower() for table in missing if table.title not in titles)
        if view.log_lines and view.starts:
            yield "log lines"

    return ", ".join(parts())


def _verdict(out: Console, view: View, *, gap: bool = True) -> None:
    style = "bold" if view.starts else terminal.TROUBLE
    terminal.verdict(out, view.headline, view.meaning, style=style, subject=view.subject, gap=gap)


def _figures(out: Console, short: Brief) -> None:
    view = short.view
    _verdict(out, view, gap=bool(_says_more(view) or view.tables or view.notes or short.more))
    terminal.figures(out, view.figures, view.roles, brief=True)
    terminal.evidence(out, view.evidence)


def _rest(out: Console, short: Brief) -> None:
    view = short.view
    if short.gap and not view.tables:
        out.print()
    for found in view.findings:
        style = "" if found.severity == "note" else terminal.TROUBLE
        terminal.notes(out, [terminal.told(_said_once(found, view))], label=found.severity, style=style, gap=False)
    if view.fix:
        terminal.notes(out, [view.fix], label="fix", gap=False)
    terminal.choices(out, view.choices, brief=True)
    for number, table in enumerate(view.tables):
        terminal.table(out, table, gap=number > 0 or _says_more(view))
    terminal.notes(out, view.notes, gap=bool(view.tables) and not short.tight)
    if short.more:
        terminal.notes(out, [short.more], label="-v", style=terminal.QUIET, gap=False)


def _said_once(found: Finding, view: View) -> Finding:
    """A finding without a fix that is one of the settings shown below it."""
    said = found.sets and any(choice.flags == found.sets for choice in view.choices)
    return found._replace(fix="") if said else found


def _height(short: Brief) -> int:
    """Lines of it at 80 columns."""
    return terminal.height_of(lambda out: print_part(out, short))
