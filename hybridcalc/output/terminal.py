"""Answers as text: a verdict line, the few figures it rests on, what to set, then notes. 80 columns, no boxes.

Colour means one thing each: cyan the state pool, yellow the KV pool, red trouble. It goes away with NO_COLOR, with
TERM=dumb and when the output is no terminal; nothing is said by colour alone.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterable, Sequence
from io import StringIO
from textwrap import indent, wrap
from typing import IO, TYPE_CHECKING, Any, Literal, cast

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from hybridcalc.findings import Choice, Finding, Number, Quantity, Step
from hybridcalc.findings import Table as Listed
from hybridcalc.units import format_bytes

if TYPE_CHECKING:
    from hybridcalc.engines.charts import Part

LINES, COLUMNS = 12, 80
"""What a short answer has."""
STATE, KV, TROUBLE, QUIET = "cyan", "yellow", "bold red", "dim"
STYLES = {"state": STATE, "kv": KV}
INDENT = "  "
PIPED_WIDTH, LEAST_WIDTH = 80, 20
WIDEST, NARROWEST = 100, 20
"""Columns of a picture."""
SHADES = {"state": "cyan", "kv": "yellow", "balanced": "magenta", "scratch": "magenta", "trouble": "red"}
CODES = {"cyan": 36, "yellow": 33, "magenta": 35, "red": 31}
LEAST_REASON = 16
"""Columns the wrapping last column needs; with fewer, a table becomes paragraphs."""
LONGEST_WORD = 34
"""What a last column keeps whole: the name of a model class."""
COUNTED = ("tokens", "slots", "requests", "blocks", "states", "bytes", "ranks", "sequences", "cells")
"""Units that are one thing each."""
_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


def height_of(show: Callable[[Console], None]) -> int:
    """How many lines of 80 columns something prints."""
    out = Console(file=StringIO(), width=COLUMNS, color_system=None, highlight=False, markup=False, emoji=False)
    show(out)
    text = out.file.getvalue()  # type: ignore[attr-defined]
    return int(text.count("\n"))


def console() -> Console:
    """A console on stdout: as wide as COLUMNS says, else as the terminal is, else 80 columns; 20 at least."""
    terminal = sys.stdout.isatty()
    stream = sys.stdout if terminal else cast(IO[str], _Clean(sys.stdout))
    plain = bool(os.environ.get("NO_COLOR"))  # wins over FORCE_COLOR, and takes bold and dim along
    colours: Literal["auto"] | None = None if plain else "auto"
    environment = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES")}
    out = Console(
        file=stream,
        width=_width(terminal),
        color_system=colours,
        highlight=False,
        markup=False,
        emoji=False,
        _environ=environment,
    )
    if isinstance(stream, _Clean):
        stream.codes = out.is_terminal
    return out


def _width(terminal: bool) -> int:
    text = os.environ.get("COLUMNS", "")
    columns = int(text) if text.isascii() and text.isdecimal() and len(text) < 6 else 0
    if not columns and terminal:
        try:
            columns = os.get_terminal_size(sys.stdout.fileno()).columns
        except OSError:
            columns = 0
    return max(columns or PIPED_WIDTH, LEAST_WIDTH)


class _Clean:
    """A text stream for pipes and files: without the blanks with which tables fill their lines and, unless colours are
    forced (``codes``), without the control codes that somebody's text may hold.
    """

    def __init__(self, stream: IO[str]) -> None:
        self._stream = stream
        self.codes = False

    def write(self, text: str) -> int:
        if not self.codes:
            text = _CONTROLS.sub("", text)
        return self._stream.write(re.sub(r"[ \t]+(?=\n|$)", "", text))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def told(finding: Finding) -> str:
    """A finding in a line: its rule, what is wrong, and what to write instead."""
    return f"{finding.rule} {finding.message}{'; ' + finding.fix if finding.fix else ''}"


def table(out: Console, shown: Listed, *, gap: bool = True) -> None:
    """A table of an answer, set off by a blank line; nothing where it has no rows."""
    if not shown.rows:
        return
    if gap:
        out.print()
    first, *others = shown.header
    rows = [(f"{INDENT}{row[0]}", *row[1:]) for row in shown.rows]
    listing(out, (f"{INDENT}{first}", *others), rows, right=shown.numbers)


def verdict(
    out: Console, headline: str, rest: str = "", *, style: str = "bold", subject: str = "", gap: bool = True
) -> None:
    """The answer in a line, and what it means: behind it or, where both are long, under it; then its subject, and a
    blank line where more follows.
    """
    line = Text.assemble((headline, style), f"   {rest}" if rest else "")
    if line.cell_len <= out.width or not rest:
        out.print(line)
    else:
        out.print(Text(headline, style=style))
        out.print(Padding(Text(rest), (0, 0, 0, len(INDENT))))
    if subject:
        out.print(Padding(Text(subject), (0, 0, 0, len(INDENT))))
    if gap:
        out.print()


def figures(out: Console, rows: Iterable[Quantity], roles: Sequence[str] = (), *, brief: bool = False) -> None:
    """Rows of label, value, human unit, reason; the reason wraps, the rest stays whole. ``brief``: in one unit."""
    shown = [row.brief if brief else (row.label, row.value, row.unit, row.reason) for row in rows]
    cells = [[Text(cell) for cell in (INDENT + label, *others)] for label, *others in shown]
    for row, role in zip(cells, roles, strict=False):
        row[1].stylize(STYLES.get(role, ""))
    _print_grid(out, cells, ("left", "right", "left") if brief else ("left", "right", "right", "left"))


def evidence(out: Console, rows: Iterable[tuple[str, str, str]]) -> None:
    """Rows of where a figure was read, what it says, and the arithmetic behind it; the last wraps."""
    cells = [(Text(INDENT + place, style=QUIET), Text(what), Text(why)) for place, what, why in rows]
    _print_grid(out, cells, ("left", "left", "left"))


def choices(out: Console, rows: Sequence[Choice], *, brief: bool = False) -> None:
    """What to set, ready to paste: the flags under each other, each beside what it comes to or, where one is long,
    above it.
    """
    told = [row.effect if brief else row.full or row.effect for row in rows]
    lead = max((len(row.label) for row in rows), default=0) + 2 * len(INDENT)
    widest = max((len(row.flags) for row in rows), default=0)
    if not any(row.full for row in rows) and lead + widest + len(INDENT) + LEAST_REASON <= out.width:
        cells = [
            (Text(INDENT + row.label), Text(row.flags, style="bold"), Text(text))
            for row, text in zip(rows, told, strict=True)
        ]
        _print_grid(out, cells, ("left", "left", "left"))
        return
    for row, text in zip(rows, told, strict=True):
        lines = continued(row.flags, out.width - lead)
        beside = f"{INDENT}{text}" if brief and lead + len(lines[-1]) + len(INDENT + text) <= out.width else ""
        flags = f"\n{' ' * lead}".join(lines)
        out.print(Text.assemble(f"{INDENT}{row.label}".ljust(lead), (flags, "bold"), beside), soft_wrap=True)
        if not beside:
            out.print(Padding(Text(text), (0, 0, 0, lead)))


def continued(flags: str, width: int) -> list[str]:
    """A flag line as lines that a shell reads as one: broken before a flag, where it is wider than ``width``."""
    lines: list[str] = []
    if len(flags) <= width:
        return [flags]
    for part in re.split(" (?=--)", flags):
        if lines and len(f"{lines[-1]} {part} \\") <= width:
            lines[-1] += f" {part}"
        else:
            lines.append(part)
    return [f"{line} \\" for line in lines[:-1]] + lines[-1:]


def quoted(out: Console, line: str) -> None:
    """A line of a log, wrapped under its own indent."""
    out.print(Padding(Text(line.rstrip(), style=QUIET), (0, 0, 0, len(INDENT))))


def notes(
    out: Console,
    texts: Iterable[str],
    *,
    label: str = "note",
    style: str = "",
    gap: bool = True,
    gap_after: bool = False,
) -> None:
    """Each note on its own lines, indented under its label, set off by a blank line; nothing when there are none."""
    table = Table.grid(padding=(0, 1, 0, 0))
    table.add_column()
    table.add_column(overflow="fold")
    for text in texts:
        table.add_row(Text(f"{label}:", style=style), Text(text))
    if not table.row_count:
        return
    if gap and not gap_after:
        out.print()
    out.print(table)
    if gap_after:
        out.print()


LONGEST_FIGURE = 14
MOST_HEADING = 10
"""Columns a heading may take beyond what its figures need."""


def listing(out: Console, header: Sequence[str], rows: Iterable[Sequence[str]], *, right: Sequence[int] = ()) -> None:
    """A plain table with a dim header that breaks at hyphens; the columns in ``right`` are right-aligned.

    Only the last column wraps: no figure is ever cut. Where the columns do not fit, each row becomes a paragraph.
    """
    table = Table(box=None, pad_edge=False, header_style=QUIET, padding=(0, 2, 0, 0))
    cells = [[Text(cell) for cell in row] for row in rows]
    needed = 0
    for number, name in enumerate(header):
        last = number == len(header) - 1
        widest = max((row[number].cell_len for row in cells), default=0)
        heading = _heading(name, max(widest, MOST_HEADING))
        least = max(widest, *(len(line) for line in heading.split("\n")))
        table.add_column(
            heading,
            justify="right" if number in right else "left",
            no_wrap=not last,
            overflow="fold",
            min_width=None if last else least,
        )
        words = [len(word) for row in cells for word in row[number].plain.split()]
        flags = [len(word) for row in cells for word in row[number].plain.split() if word.startswith("--")]
        needed += max(min(max(words, default=0), LONGEST_FIGURE), *flags, 0) if last else least + 2
    if needed > out.width:
        _paragraphs(out, header, cells)
        return
    for row in cells:
        table.add_row(*row)
    out.print(table)


def _paragraphs(out: Console, header: Sequence[str], rows: Iterable[Sequence[Text]]) -> None:
    """Rows whose columns do not fit: every cell with its heading, wrapped."""
    for row in rows:
        cells = [f"{name.strip()} {cell.plain.strip()}".strip() for name, cell in zip(header, row, strict=True)]
        lines = wrap("; ".join(cell for cell in cells if cell), out.width - 2 * len(INDENT), break_on_hyphens=False)
        for number, line in enumerate(lines):
            out.print(Text(INDENT * (2 if number else 1) + line))


def _heading(name: str, width: int) -> str:
    """A heading; a flag's name broken at its hyphens where it is wider than that."""
    flag = name.strip()
    width = max(width, *(len(part) + 1 for part in flag.split("-")))
    if " " in flag or len(flag) <= width:
        return name
    return indent("\n".join(wrap(flag, width)), " " * (len(name) - len(name.lstrip())))


def pairs(out: Console, rows: Iterable[tuple[str, str]]) -> None:
    """Name and value, the value wrapping."""
    _print_grid(out, [(Text(INDENT + name, style=QUIET), Text(value)) for name, value in rows], ("left", "left"))


def explanation(out: Console, steps: Iterable[Step]) -> None:
    """Every step: symbol, formula, numbers, value with unit, source."""
    out.print()
    for step in steps:
        _hanging(out, Text.assemble((step.symbol, "bold"), f" = {step.formula}"), 0)
        _hanging(out, Text(f"= {step.with_numbers}"), 2)
        _hanging(out, Text(f"= {number(step.value)} {_unit_of(step)}"), 2)
        _hanging(out, Text(step.source, style=QUIET), 2)


def _unit_of(step: Step) -> str:
    """The unit of a step's value, of one in the singular."""
    first, space, rest = step.unit.partition(" ")
    return f"{first[:-1]}{space}{rest}" if step.value == 1 and first in COUNTED else step.unit


def _hanging(out: Console, text: Text, depth: int) -> None:
    """A text that far in, its continued lines two steps further."""
    first, *others = text.wrap(out, out.width - len(INDENT) * (depth + 2), overflow="fold")
    out.print(Padding(first, (0, 0, 0, len(INDENT) * depth)))
    for line in others:
        out.print(Padding(line, (0, 0, 0, len(INDENT) * (depth + 2))))


def number(value: Number) -> str:
    """A figure with thousands separators: whole numbers whole, others with four decimals at most."""
    if isinstance(value, int) or value == int(value):
        return f"{int(value):,}"
    return f"{float(value):,.4f}".rstrip("0").rstrip(".")


def _print_grid(out: Console, rows: Sequence[Sequence[Text]], justify: Sequence[str]) -> None:
    """Rows in columns of which the last wraps; paragraphs where the width does not hold the others whole."""
    widths = [max((row[column].cell_len for row in rows), default=0) for column in range(len(justify))]
    words = (len(word) for row in rows for word in row[-1].plain.split())
    least = max(LEAST_REASON, min(LONGEST_WORD, max(words, default=0)))
    if sum(widths[:-1]) + 2 * (len(widths) - 1) + min(widths[-1], least) > out.width:
        _paragraphs(out, [""] * len(justify), rows)
        return
    table = Table.grid(padding=(0, 2, 0, 0))
    for position, side in enumerate(justify):
        last = position == len(justify) - 1
        table.add_column(justify="right" if side == "right" else "left", no_wrap=not last, overflow="fold")
    for row in rows:
        table.add_row(*row)
    out.print(table)


def bars(rows: Sequence[tuple[str, Sequence[Part]]], width: int, *, colour: bool) -> str:
    """Rows of parts as letters on one scale, each under its name, and what the letters mean.

    A part too thin for a column is named all the same, with its bytes where there is one row.
    """
    inner = max(NARROWEST, min(width, WIDEST) - 4)
    sizes = [sum(part.bytes for part in parts) for _, parts in rows]
    whole = max(sizes, default=1) or 1
    lines, seen = list[str](), set[str]()
    named: dict[str, Part] = {}
    for (name, parts), size in zip(rows, sizes, strict=True):
        lines += [f"{INDENT}{line}" for line in wrap(name, inner)]
        counts = columns([*(part.bytes for part in parts), whole - size], inner)
        drawn = ""
        for part, count in zip(parts, counts, strict=False):
            drawn += _coloured(part.letter * count, part.role, colour)
            if part.bytes:
                named.setdefault(part.name, part)
            if count:
                seen.add(part.name)
        lines.append(f"{INDENT}[{drawn}{' ' * counts[-1]}]")
    entries = [
        f"{part.letter if part.name in seen else '(thin)'} {part.name}"
        + (f" {format_bytes(part.bytes)}" if len(rows) == 1 else "")
        for part in named.values()
    ]
    beyond = ", with what is not charged" if any(part.role == "trouble" for part in named.values()) else ""
    lines += ["", *legend(entries, inner), f"{INDENT}the whole width is {format_bytes(whole)}{beyond}"]
    return "\n".join(lines)


def legend(entries: Sequence[str], inner: int) -> list[str]:
    """What letters mean, as many to a line as it holds."""
    lines = [""]
    for entry in entries:
        if lines[-1] and len(lines[-1]) + len(entry) + 3 > inner:
            lines.append("")
        lines[-1] += ("   " if lines[-1] else "") + entry
    return [f"{INDENT}{line}" for line in lines]


def _coloured(text: str, role: str, colour: bool) -> str:
    code = CODES.get(SHADES.get(role, ""))
    return f"\x1b[{code}m{text}\x1b[0m" if colour and code and text else text


def columns(sizes: Sequence[int], width: int) -> list[int]:
    """Columns for each size: floors of the exact shares, the rest to the largest remainders."""
    total = sum(sizes)
    if total <= 0:
        return [0] * len(sizes)
    shares = [size * width // total for size in sizes]
    left = sorted(range(len(sizes)), key=lambda i: -(sizes[i] * width % total))
    for position in left[: width - sum(shares)]:
        shares[position] += 1
    return shares
