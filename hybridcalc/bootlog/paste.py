r"""What was the line, before terminals, loggers, mail programs and people had their way with it?

    plain(raw) -> Plain     the log's own text, and where each of its characters stood in the raw bytes

Everything else is blanked, which keeps each position, and the blanks are dropped last; so a record found in the text
can be placed in the file to the byte. Two characters stand for the end of a line: ``\n`` where the file has one,
``\v`` where only the text has one (a JSON "\n", a progress bar's carriage return). Words and numbers that a line end
cuts in half stay cut: mending them is the grammars' business, who know what may follow what.

Handled: colour codes, raw or escaped; CR and CRLF; JSON log lines; indentation; ``>`` quotes; ``#``, ``//`` comments,
bullets and string quotes; table pipes; grep's numbers and file names; prefixes of docker compose, containerd, kubectl,
journald, syslog, Ray and srun; backticks, bold, no-break spaces, fullwidth punctuation, HTML's ``&#58;``; lines that a
screen filled up with blanks.
Left out: prefixes not in that list, where they are repeated in the middle of a wrapped line.

Tables that somebody wrote by hand say figures of a boot too:

    |               | before              | after                |
    |---------------|---------------------|----------------------|      a column is a boot of its own
    | mamba cache   | 28 slots (1.43 GB)  | **143 slots**        |
    | KV pool       | 137,408 tok         | 715,136 tok          |

    | fraction | KV tokens | mamba slots |                           or its labels head the columns,
    |----------|-----------|-------------|                           and a row is a boot
    | 0.88     | 52,032    | 9           |

A row is read where its label is one that an engine's grammar knows (`TableRow`), and a figure stands in its cell or, as
of "KV cache (96 K cells, 2/2 seqs)", in the label itself. Two rows at least, or one whose label is an engine's own
word, make a table that is read, as one engine's: that which knows more of them, or is named more often. A column of
differences or of what was reckoned is no boot. What is read so is marked: somebody tells it, no engine printed it.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import compress
from typing import NamedTuple

from hybridcalc.bootlog import About, Found, Printed, Record, Value
from hybridcalc.units import GIB, MIB

_CODE = rb"(?:\[[0-?]{0,32}[ -/]{0,4}[@-~]|\][^\x07\x1b\n]{0,256}(?:\x07|\x1b\\)|\([0B])?"
_COLOUR = re.compile(
    rb"\x1b" + _CODE
    + rb"|\\\\{0,3}(?:u001[bB]|x1[bB]|033|e(?=\[))" + _CODE  # as JSON, Python and shells write the character
    + rb"|\#033" + _CODE  # rsyslog
    + rb"|\^\[(?=\[)" + _CODE  # cat -v
    + rb"|\[[0-9]{1,3}(?:;[0-9]{1,3}){0,5}m"  # where the character was lost on the way
)  # fmt: skip

_JSON_LINE = re.compile(
    rb'^(?P<opening>[^\n{"]{0,200}\{[^\n{}]{0,400}?"(?:log|message|msg|text|line|event|content)"\s{0,4}:\s{0,4}")'
    rb'[^"\\\n]*+(?:\\.[^"\\\n]*+)*(?P<closing>"[^\n]*?(?:\}(?=[\s,]*\{)|$))?',
    re.MULTILINE,
)

_ESCAPED = rb"""[nrt"'/_#*`|<>\[\]()-]"""
_BACKSLASHED = re.compile(rb"\\\\{0,3}" + _ESCAPED + rb"(?:\\{1,4}" + _ESCAPED + rb")*")
_BACKSLASHED_AS = bytes.maketrans(b"\\nrt", b"\0\v\v ")

_LOOKALIKES = {
    b"\xc2\xa0": b" ", b"\xe2\x80\xaf": b" ", b"\xe2\x80\x89": b" ", b"\xe3\x80\x80": b" ",
    b"\xef\xbc\x8c": b",", b"\xef\xbc\x9a": b":", b"\xe3\x80\x81": b",", b"\xe2\x94\x82": b"|",
    b"\xef\xbb\xbf": b"", b"\xe2\x80\x8b": b"", b"`": b"", b"**": b"", b"\xe2\x86\x92": b"->", b"\xc3\x97": b"x",
    b"\xe2\x94\x80": b"-", b"\xe2\x94\x9c": b"|", b"\xe2\x94\xbc": b"|", b"\xe2\x94\xa4": b"|",
}  # fmt: skip
_ENTITY = re.compile(rb"&(?:amp;)?(?:#([0-9]{1,6})|#[xX]([0-9a-fA-F]{1,5})|([a-z]{2,6}));")
_NAMED = {
    b"lt": b"<", b"gt": b">", b"amp": b"&", b"quot": b'"', b"apos": b"'", b"colon": b":", b"equals": b"=",
    b"comma": b",", b"num": b"#", b"lowbar": b"_", b"period": b".", b"lpar": b"(", b"rpar": b")", b"lsqb": b"[",
    b"rsqb": b"]", b"vert": b"|", b"nbsp": b" ",
}  # fmt: skip
_LOOKALIKE = re.compile(b"|".join(re.escape(seen) for seen in _LOOKALIKES))

_LINE_PREFIX = re.compile(
    rb"""[\n\v](?:(?P<empty>[\x20\t\0]++(?=[\n\v])(?:[\n\v][\x20\t\0]++(?=[\n\v]))*) | (?:  # lines of blanks
        [\x20\t\0]+                                                # indentation, and the blanks of a colour code
      | >                                                           # a quoted mail or answer
      | (?:\#+ | // | rem | REM | :: | [-*])(?=[\x20\t]) | \+      # comments, bullets, a diff
      | \|(?![\x20\t\0]*+[A-Za-z][\w.-]{0,63}[\x20\t\0]{1,64}\|)    # a table's row, whose word is no service
      | [frb]?["']                                                  # a string in a script or a list
      | [0-9]{1,7}(?:\t|[:-](?![0-9]))                              # cat -n, grep -n, srun --label
      | [\w./-]{1,200}\.(?:log|txt|out|err)[:-](?:[0-9]{1,7}[:-])?  # grep over files
      | (?<!\|)(?<!\|\x20)(?![^|\n\v]{0,64}                       # docker compose; a table's cell is none
           (?:size|state|tokens|max_|_len|mem|cache|mamba|usage|dtype|buffer|concurrency|eights|slots|pool))
        [A-Za-z][\w.-]{0,63}[\x20\t\0]{1,64}\|(?!\|)
      | [0-9]{4}-[0-9]{2}-[0-9]{2}[T\x20]%(clock)s(?:Z|[+-][0-9]{2}:?[0-9]{2})?[\x20\t]       # docker logs -t, kubectl
        (?:std(?:out|err)\x20[FP]\x20                               # containerd
         | [\w.-]{1,64}\x20[\w.@/-]{1,64}\[[0-9]{1,9}\]:\x20)?     # journald
      | [A-Z][a-z]{2}\x20{1,2}[0-9]{1,2}\x20%(clock)s\x20           # journald, syslog
        [\w.-]{1,64}\x20[\w.@/-]{1,64}(?:\[[0-9]{1,9}\])?:\x20
      | %(clock)s\x20 | \[%(clock)s\]\x20                           # ts
      | \[(?:pod|container)/[^\]\n]{1,200}\]                       # kubectl --prefix
      | \((?:[\w.:-]{1,64}\x20)?pid=[0-9]{1,9}(?:,\x20ip=[0-9a-f.:]{1,40})?\)              # Ray and its like
    )+)"""
    % {b"clock": rb"[0-9]{2}:[0-9]{2}:[0-9]{2}(?:[.,][0-9]{1,9})?"},
    re.VERBOSE,
)
_NUMBERED = re.compile(rb"^([0-9]{1,7})[:-](?=[0-9])", re.MULTILINE)
_PADDED = re.compile(rb"(?<=[0-9])[ ]{40,}(?=[0-9]{1,9},[ ][a-z_]{1,40}=)")
"""A screen's line filled up with blanks in the middle of a number, and what follows it: a line end that was lost."""
_TRAILING = re.compile(rb"(?<![ \t])[ \t]++(?=[\n\v])")
"""What an editor left behind a line: a word that is cut there goes on in the next."""
_BLANKS = bytes.maketrans(b" \t", b"\0\0")
_STRING_END = re.compile(rb"""["'],?[\x20\t]*(?=[\n\v]|\Z)""")


class Plain(NamedTuple):
    """The log's own text, and for each of its characters the index it had in the raw bytes."""

    text: bytes
    places: Sequence[int]


def plain(raw: bytes) -> Plain:
    """``raw`` without colour, prefixes, quotes, escapes and other wrapping; never raises, whatever the bytes."""
    text = _COLOUR.sub(_blank, raw)
    text = _JSON_LINE.sub(_without_json, text)
    text = _BACKSLASHED.sub(_unescaped, text)
    text = _ENTITY.sub(_unquoted, text)
    text = text.replace(b"\r", b"\v")
    text = _PADDED.sub(_line_end, text)
    text = _LOOKALIKE.sub(_in_ascii, text)
    text = _STRING_END.sub(_blank, text)  # first, or the quote behind a "\n" would pass for an opening one
    text = _NUMBERED.sub(_without_number, text)
    text = _LINE_PREFIX.sub(_without_prefix, b"\n" + text)[1:]
    text = _TRAILING.sub(_blank, text)
    return Plain(text.translate(None, b"\0"), array("Q", compress(range(len(text)), text)))


def _without_number(match: re.Match[bytes]) -> bytes:
    """A line's number before a digit, which only the numbers of the lines beside it tell from a figure."""
    number, text = int(match[1]), match.string
    last_line = text.rfind(b"\n", 0, max(0, match.start() - 1)) + 1
    before = text[last_line : last_line + 9]
    next_line = text.find(b"\n", match.end()) + 1
    after = text[next_line : next_line + 9]
    beside = (
        before.startswith(b"%d%c" % (number - 1, sign)) or after.startswith(b"%d%c" % (number + 1, sign))
        for sign in b":-"
    )
    return bytes(len(match[0])) if any(beside) else match[0]


def _line_end(match: re.Match[bytes]) -> bytes:
    return b"\v".ljust(len(match[0]), b"\0")


def _blank(match: re.Match[bytes]) -> bytes:
    return bytes(len(match[0]))


def _without_json(match: re.Match[bytes]) -> bytes:
    """The message of a JSON log line alone: the keys around it would stand between the halves of a wrapped line."""
    opening, closing = match["opening"], match["closing"] or b""
    inner = match[0][len(opening) : len(match[0]) - len(closing)]
    return bytes(len(opening)) + inner + bytes(len(closing))


def _unescaped(match: re.Match[bytes]) -> bytes:
    """The characters that a row of escapes stands for, each after as many blanks as it had backslashes."""
    return match[0].translate(_BACKSLASHED_AS)


def _unquoted(match: re.Match[bytes]) -> bytes:
    """The character that HTML wrote as ``&#58;`` or ``&colon;``; what names none stays."""
    decimal, hexadecimal, name = match.groups()
    if name is not None:
        character = _NAMED.get(name)
    else:
        character = chr(int(decimal) if decimal else int(hexadecimal, 16)).encode(errors="replace")
    return match[0] if character is None else character.ljust(len(match[0]), b"\0")


def _without_prefix(match: re.Match[bytes]) -> bytes:
    if match["empty"] is not None:
        return match[0].translate(_BLANKS)
    return match[0][:1] + bytes(len(match[0]) - 1)


def _in_ascii(match: re.Match[bytes]) -> bytes:
    return _LOOKALIKES[match[0]].ljust(len(match[0]), b"\0")


FEWEST_ROWS = 2
MOST_ROWS, MOST_COLUMNS, LONGEST_CELL = 60, 8, 200
_TABLE = re.compile(
    rb"(?:^(?P<head>[^\n]{0,2000}\|[^\n]{0,2000})\n)?^[ \t]*\|?[ \t]*:?-{2,}+[-:| \t]*+$(?P<rows>(?:\n.*\|.*$){1,%d})"
    % MOST_ROWS,
    re.MULTILINE,
)
_SPACED_RULE = re.compile(rb"\|[ \t]*\n[ \t]*\n[ \t]*\|?[ \t]*:?-{2,}[-:| \t]*\n[ \t]*\n")
_SPACE_BEHIND_ROW = re.compile(rb"(?<=[|])\n(?=[ \t]*\n[^\n]*\|)")
"""A blank line between all rows of a table, the rule too."""
_NO_BOOT = re.compile(
    rb"delta|\xce\x94|\bdiff|\bchange|\bgain|\bsav|ratio(?!\W{0,3}[0-9])|computed|expect|estimate|predict|formula|theor|planned"
)
_GROUPED = rb"[0-9]{1,3}(?:[ ,][0-9]{3}){1,4}|[0-9]{1,12}"
_ABOUT = re.compile(rb"(?:~|\xe2\x89\x88|\b(?:about|approx\.?|roughly|around|ca\.))[ *`]{0,3}\Z", re.IGNORECASE)
NUMBER = rb"(?P<figure>[0-9]{1,9}\.[0-9]{1,4})"
COUNT = rb"(?P<figure>" + _GROUPED + rb")"
SIZE = rb"(?P<figure>(?:" + _GROUPED + rb")(?:\.[0-9]{1,3})?)[ ]?(?P<unit>[GM])i?B"


class TableRow(NamedTuple):
    """A row of a table: the kind of line that says the same, what its label holds, in small letters, and its figures.

    A figure is its name and a pattern with a group "figure", and a "unit" where it is a size; it is looked for in the
    cell, then in the label. The first figure must be there. Rows of a kind that are ``joined`` are one line. Where the
    label is the engine's ``own`` word, one row makes a table. A ``head`` is no label: it stands over a column.
    """

    kind: str
    label: bytes
    figures: tuple[tuple[str, bytes], ...]
    joined: bool = False
    own: bytes = b"(?!)"
    head: bool = False


class TableReader:
    """The rows that several engines know."""

    def __init__(self, engines: Sequence[tuple[str, tuple[TableRow, ...]]]) -> None:
        """``engines``: of each its name and its rows."""
        self._rows = {name: [_Compiled.of(row) for row in rows] for name, rows in engines if rows}

    def find(self, text: bytes) -> Iterator[Found]:
        """The tables' records, column by column; lines are counted from 1 within ``text``. Never raises."""
        if b"|" not in text or b"--" not in text:
            return
        text, small = text.replace(b"\v\n", b" \n"), text.lower()
        named = {name: small.count(name.encode()) for name in self._rows}
        spaced = _SPACED_RULE.search(text) is not None
        text, whole = _SPACE_BEHIND_ROW.sub(b" ", text) if spaced else text, text
        for table in _TABLE.finditer(text):
            lines = [_cells(line) for line in table["rows"].split(b"\n")[1:]]
            head = _cells(table["head"] or b"")
            head = [*[b""] * (max(map(len, lines)) - len(head)), *head] if head else []  # an empty cell opens it
            first = whole.count(b"\n", 0, table.start("rows")) + 2
            places = range(first, first + MOST_ROWS * 2, 2) if spaced else range(first, first + MOST_ROWS)
            ways = [(name, self._read(places, head, lines, name)) for name in self._rows]
            ways += [(name, self._headed(places, head, lines, name)) for name in self._rows] if head else []
            told = [(len(way), sum(len(said.figures) for _, said in way), named[name], way) for name, way in ways]
            best = max(told, key=lambda one: one[:3], default=(0, 0, 0, []))[-1]
            for number, (column, record) in enumerate(sorted(best, key=lambda pair: pair[0])):
                place = min(table.start() + number, table.end() - 1)
                yield Found(place, place + 1, replace(record, process=f"column pid={column}"))

    def _read(
        self, places: range, head: list[bytes], lines: list[list[bytes]], engine: str
    ) -> list[tuple[int, Record]]:
        """The records that an engine reads in rows, each with its column; ``places`` are the numbers of the lines."""
        told, found = [not _NO_BOOT.search(cell.lower()) for cell in head], _Told(engine)
        for column, cell in enumerate(head[1:], 1):
            heads = [row for row in self._labelled(engine, cell) if row.head]
            found.add(column, heads, -1, b"", cell, places[0] - (places[1] - places[0]) * 2)
        for number, (label, *cells) in enumerate(lines):
            rows = [row for row in self._labelled(engine, label) if not row.head]
            for column, cell in enumerate(cells, 1):
                if column >= len(told) or told[column]:
                    found.add(column, rows, number, cell, label, places[number])
        return found.records(FEWEST_ROWS)

    def _headed(
        self, places: range, head: list[bytes], lines: list[list[bytes]], engine: str
    ) -> list[tuple[int, Record]]:
        """The records that an engine reads in columns, each with its line."""
        rows = [[row for row in self._labelled(engine, label) if not row.head] for label in head]
        found = _Told(engine)
        for number, cells in enumerate(lines):
            for column, (known, cell) in enumerate(zip(rows, cells, strict=False)):
                found.add(number, known, column, cell, head[column], places[number])
        return found.records(FEWEST_ROWS)

    def _labelled(self, engine: str, label: bytes) -> list[_Compiled]:
        return [one for one in self._rows[engine] if one.label.search(label.lower())]


class _Told:
    """Records of a table as they are read, by boot; rows of a kind that are ``joined`` are one record."""

    def __init__(self, engine: str) -> None:
        self._engine, self._found = engine, dict[tuple[int, str], Record]()
        self._labels: dict[int, set[str]] = {}
        self._own = False

    def add(self, boot: int, rows: list[_Compiled], place: int, cell: bytes, label: bytes, line: int) -> None:
        """Take what a cell says in: of each kind by the first of its label's rows whose first figure is there."""
        kinds = set[str]()
        for row in rows:
            values = _figures(row.figures, cell, label) if row.kind not in kinds else ()
            if values and values[0][0] == row.figures[0][0]:
                kinds.add(row.kind)
                self._take(boot, row, f"{row.kind} {place}", values, line)
                self._own = self._own or row.own.search(label) is not None

    def _take(self, boot: int, row: _Compiled, label: str, values: tuple[tuple[str, Value], ...], line: int) -> None:
        key = (boot, row.kind if row.joined else label)
        before = self._found.get(key)
        figures = (*(before.figures if before is not None else ()), *values)
        number = before.line if before is not None else line
        self._found[key] = Record(self._engine, row.kind, figures, "", number, told=True)
        self._labels.setdefault(boot, set()).add(label)

    def records(self, fewest: int) -> list[tuple[int, Record]]:
        """Each with its boot; nothing where no boot has ``fewest`` labels, and none is the engine's own."""
        if not self._own and all(len(labels) < fewest for labels in self._labels.values()):
            return []
        return [(boot, record) for (boot, _), record in self._found.items()]


class _Compiled(NamedTuple):
    """A row, its patterns compiled."""

    kind: str
    label: re.Pattern[bytes]
    figures: tuple[tuple[str, re.Pattern[bytes]], ...]
    joined: bool
    own: re.Pattern[bytes]
    head: bool

    @classmethod
    def of(cls, row: TableRow) -> _Compiled:
        figures = tuple((name, re.compile(pattern)) for name, pattern in row.figures)
        return cls(row.kind, re.compile(row.label), figures, row.joined, re.compile(row.own), row.head)


def _cells(line: bytes) -> list[bytes]:
    cells = [cell.strip()[:LONGEST_CELL] for cell in line.strip().strip(b"|").split(b"|")]
    return cells[: MOST_COLUMNS + 1] if line else []


def _figures(
    figures: Sequence[tuple[str, re.Pattern[bytes]]], cell: bytes, label: bytes
) -> tuple[tuple[str, Value], ...]:
    read = list[tuple[str, Value]]()
    for name, pattern in figures:
        match = pattern.search(cell) or pattern.search(label)
        if match is not None:
            about = _ABOUT.search(match.string, 0, match.start("figure")) is not None
            read.append((name, _about(_value(match)) if about else _value(match)))
    return tuple(read)


def _about(value: Value) -> Value:
    if isinstance(value, int):
        return About(value)
    return replace(value, about=True) if isinstance(value, Printed) else value


def _value(match: re.Match[bytes]) -> Value:
    groups, text = match.groupdict(), match["figure"].replace(b" ", b"").replace(b",", b"").decode()
    unit = groups.get("unit")
    if unit is not None:
        return Printed(text, GIB if unit == b"G" else MIB, len(text.partition(".")[2]))
    if "." in text:
        return Printed(text, 1, len(text.partition(".")[2]))
    return int(text) * (1024 if groups.get("kilo") else 1)
