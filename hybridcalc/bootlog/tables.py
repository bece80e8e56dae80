r"""What does a table that somebody wrote by hand say of a boot?

    |               | before              | after                |
    |---------------|---------------------|----------------------|      a column is a boot of its own
    | mamba cache   | 28 slots (1.43 GB)  | **143 slots**        |
    | KV pool       | 137,408 tok         | 715,136 tok          |

A row is read where its label is one that an engine's grammar knows (`TableRow`), and a figure stands in its cell or, as
of "KV cache (96 K cells, 2/2 seqs)", in the label itself. Two rows at least make a table that is read, as one engine's:
that which knows more of them. What is read so is marked: somebody tells it, no engine printed it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

from hybridcalc.bootlog.records import Found, Printed, Record, Value
from hybridcalc.units import GIB, MIB

FEWEST_ROWS = 2
MOST_ROWS, MOST_COLUMNS, LONGEST_CELL = 60, 8, 200
_TABLE = re.compile(rb"^[ \t]*\|?[ \t]*:?-{2,}+[-:| \t]*+$(?:\n.*\|.*$){1,%d}" % MOST_ROWS, re.MULTILINE)
_GROUPED = rb"[0-9]{1,3}(?:[ ,][0-9]{3}){1,4}|[0-9]{1,12}"
COUNT = rb"(?P<figure>" + _GROUPED + rb")"
SIZE = rb"(?P<figure>(?:" + _GROUPED + rb")(?:\.[0-9]{1,3})?)[ ]?(?P<unit>[GM])i?B"


class TableRow(NamedTuple):
    """A row of a table: the kind of line that says the same, what its label holds, in small letters, and its figures.

    A figure is its name and a pattern with a group "figure", and a "unit" where it is a size; it is looked for in the
    cell, then in the label. The first figure must be there. Rows of a kind that are ``joined`` are one line.
    """

    kind: str
    label: bytes
    figures: tuple[tuple[str, bytes], ...]
    joined: bool = False


class TableReader:
    """The rows that several engines know."""

    def __init__(self, engines: Sequence[tuple[str, tuple[TableRow, ...]]]) -> None:
        """``engines``: of each its name and its rows."""
        self._rows = {name: [_Compiled.of(row) for row in rows] for name, rows in engines if rows}

    def find(self, text: bytes) -> Iterator[Found]:
        """The tables' records, column by column; lines are counted from 1 within ``text``. Never raises."""
        if b"|" not in text or b"--" not in text:
            return
        for table in _TABLE.finditer(text):
            best = max((self._read(text, table, name) for name in self._rows), key=len, default=[])
            columns = max((column for column, _ in best), default=0)
            if len({record.line for _, record in best}) < FEWEST_ROWS:
                continue
            for number, (column, record) in enumerate(sorted(best, key=lambda pair: pair[0])):
                place = min(table.start() + number, table.end() - 1)
                yield Found(place, place + 1, replace(record, process=f"column pid={column}" if columns > 1 else ""))

    def _read(self, text: bytes, table: re.Match[bytes], engine: str) -> list[tuple[int, Record]]:
        """The records that an engine reads in a table, each with its column; rows of one kind are one record."""
        found, first = dict[tuple[int, str], Record](), text.count(b"\n", 0, table.start()) + 1
        for number, line in enumerate(table[0].split(b"\n")[1:], 1):
            label, *cells = [cell.strip()[:LONGEST_CELL] for cell in line.strip().strip(b"|").split(b"|")][
                : MOST_COLUMNS + 1
            ]
            row = next((one for one in self._rows[engine] if one.label.search(label.lower())), None)
            if row is None:
                continue
            for column, cell in enumerate(cells, 1):
                values = _figures(row.figures, cell, label)
                if values and values[0][0] == row.figures[0][0]:
                    before = found.get((column, row.kind)) if row.joined else None
                    figures = (*(before.figures if before is not None else ()), *values)
                    line_number = before.line if before is not None else first + number
                    key = (column, row.kind) if row.joined else (column, f"{row.kind} {number}")
                    found[key] = Record(engine, row.kind, figures, "", line_number, told=True)
        return [(column, record) for (column, _), record in found.items()]


class _Compiled(NamedTuple):
    """A row, its patterns compiled."""

    kind: str
    label: re.Pattern[bytes]
    figures: tuple[tuple[str, re.Pattern[bytes]], ...]
    joined: bool

    @classmethod
    def of(cls, row: TableRow) -> _Compiled:
        figures = tuple((name, re.compile(pattern)) for name, pattern in row.figures)
        return cls(row.kind, re.compile(row.label), figures, row.joined)


def _figures(
    figures: Sequence[tuple[str, re.Pattern[bytes]]], cell: bytes, label: bytes
) -> tuple[tuple[str, Value], ...]:
    read = []
    for name, pattern in figures:
        match = pattern.search(cell) or pattern.search(label)
        if match is not None:
            read.append((name, _value(match)))
    return tuple(read)


def _value(match: re.Match[bytes]) -> Value:
    groups, text = match.groupdict(), match["figure"].replace(b" ", b"").replace(b",", b"").decode()
    unit = groups.get("unit")
    if unit is not None:
        return Printed(text, GIB if unit == b"G" else MIB, len(text.partition(".")[2]))
    return int(text) * (1024 if groups.get("kilo") else 1)
