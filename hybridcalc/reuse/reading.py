"""How is a file of requests read as a stream? Objects of JSON, one a line or in one array; rows of CSV; either packed.

What is in memory is one object; nothing that is read is run. A place is a file and a line, for messages.
"""

import csv
import gzip
import json
import re
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple, TextIO

from hybridcalc.errors import InputError, quoted

LARGEST_OBJECT = 2**24
"""Characters of one object: 16 Mi, a prompt of two million tokens written out."""
_READ = 2**20
_NEAR_THE_END = 16
"""Characters in which a number, a word or an escape may be cut off."""
_GZIP = b"\x1f\x8b"
_BLANK = re.compile(r"[ \t\r\n]*")


class LineOfFile(NamedTuple):
    """Where an object was read, for messages."""

    path: str
    line: int

    def __str__(self) -> str:
        return f"{self.path}:{self.line}"


def objects(path: Path) -> Iterator[tuple[LineOfFile, dict[str, Any]]]:
    """Every object of a file, with the line on which it starts; a row of CSV is an object of texts.

    Raises InputError for what cannot be read.
    """
    try:
        yield from _unpacked_objects(path)
    except (OSError, EOFError, zlib.error) as error:
        raise InputError(f"{path}: cannot be read to its end: {str(error)[:80]}") from None


def _opened(path: Path) -> TextIO:
    with path.open("rb") as stream:
        packed = stream.read(len(_GZIP)) == _GZIP
    if packed:
        return gzip.open(path, "rt", encoding="utf-8", errors="replace")
    return path.open(encoding="utf-8", errors="replace")


def _unpacked_objects(path: Path) -> Iterator[tuple[LineOfFile, dict[str, Any]]]:
    with _opened(path) as stream:
        first, skipped = stream.read(1), 0
        while first and first in " \t\r\n\ufeff":
            skipped += first == "\n"
            first = stream.read(1)
        if first == "[":
            yield from _array(path, stream, skipped + 1)
            return
        if first.isalpha() or first == '"':
            yield from _rows(path, first, stream, skipped + 1)
            return
        rest = first
        for number, line in enumerate(_lines(path, stream), skipped + 1):
            text = (rest + line).strip()
            rest = ""
            if text:
                place = LineOfFile(str(path), number)
                yield place, _object(place, _parsed(place, text))


def _lines(path: Path, stream: TextIO) -> Iterator[str]:
    number = 0
    while line := stream.readline(LARGEST_OBJECT + 1):
        number += 1
        if len(line) > LARGEST_OBJECT:
            raise _too_long(LineOfFile(str(path), number))
        yield line


def _rows(path: Path, first: str, stream: TextIO, line: int) -> Iterator[tuple[LineOfFile, dict[str, Any]]]:
    """The rows of a CSV file under their names in its first line, in small letters."""
    csv.field_size_limit(LARGEST_OBJECT)  # a prompt written out may be one field; Python's own limit is 128 KiB
    rows = csv.reader(_lines(path, stream))
    try:
        names = [name.strip().lower() for name in next(csv.reader([first + stream.readline(LARGEST_OBJECT)]))]
        if len(names) < 2:
            raise InputError(
                f"{LineOfFile(str(path), line)}: neither JSON nor the header of a CSV file",
                fix="write one object a line, or all of them in one [...]",
            )
        for row in rows:
            place = LineOfFile(str(path), line + rows.line_num)
            if len(row) > len(names) or (row and len(row) < len(names)):
                raise InputError(f"{place}: {len(row)} columns; the header has {len(names)}")
            if row:
                yield place, dict(zip(names, row, strict=True))
    except csv.Error as error:
        raise InputError(f"{LineOfFile(str(path), line + rows.line_num)}: this is not CSV: {str(error)[:80]}") from None


class _Text:
    """A stream, of which ``text`` from ``position`` on is what has been read and not been used, at ``line``."""

    def __init__(self, path: Path, stream: TextIO, line: int) -> None:
        self.path, self.stream, self.line = path, stream, line
        self.text, self.position = "", 0

    @property
    def place(self) -> LineOfFile:
        """Where the next character is."""
        return LineOfFile(str(self.path), self.line)

    def use(self, end: int) -> None:
        """Go on to ``end``."""
        self.line += self.text.count("\n", self.position, end)
        self.position = end

    def more(self) -> bool:
        """Read on, as much again as is kept, so that what is looked at twice is no more than is read."""
        kept = self.text[self.position :]
        read = self.stream.read(max(_READ, len(kept)))
        self.text, self.position = kept + read, 0
        return bool(read)

    def next(self) -> str:
        """The next character that is not blank, which stays; "" at the end."""
        while True:
            self.use(_BLANK.match(self.text, self.position).end())  # type: ignore[union-attr]  # it matches nothing too
            if self.position < len(self.text):
                return self.text[self.position]
            if not self.more():
                return ""


def _array(path: Path, stream: TextIO, line: int) -> Iterator[tuple[LineOfFile, dict[str, Any]]]:
    """The elements of one JSON array, decoded as soon as they are complete; its opening bracket has been read."""
    source = _Text(path, stream, line)
    if source.next() == "]":
        source.use(source.position + 1)
    else:
        while True:
            _ = source.next()  # so that the place is where the element begins
            place = source.place
            yield place, _object(place, _element(source))
            separator = source.next()
            if separator not in (",", "]"):
                shown = f"{separator!r} where" if separator else "it is cut off:"
                raise InputError(f"{source.place}: this is not JSON: {shown} a comma or ] belongs")
            source.use(source.position + 1)
            if separator == "]":
                break
    if source.next():
        raise InputError(
            f"{source.place}: something stands behind the end of the array", fix="write one array, or one object a line"
        )


def _element(source: _Text) -> Any:
    """The next element; more is read as long as what is there may be the beginning of one."""
    decoder = json.JSONDecoder(object_pairs_hook=_pairs)
    while True:
        place, kept = source.place, len(source.text) - source.position
        try:
            item, end = decoder.raw_decode(source.text, source.position)
        except RecursionError:
            raise InputError(f"{place}: nested too deeply") from None
        except json.JSONDecodeError as error:
            cut = error.pos >= len(source.text) - _NEAR_THE_END or error.msg.startswith("Unterminated string")
            if not cut:
                raise InputError(f"{place}: this is not JSON: {error.msg[:80]}") from None
        except ValueError as error:
            raise InputError(f"{place}: this is not JSON: {str(error)[:80]}") from None
        else:
            if end - source.position > LARGEST_OBJECT:
                raise _too_long(place)
            source.use(end)
            return item
        if kept > LARGEST_OBJECT:
            raise _too_long(place)
        if not source.more():
            raise InputError(f"{place}: this is not JSON, or it is cut off")


def _too_long(place: LineOfFile) -> InputError:
    return InputError(f"{place}: an object of more than {LARGEST_OBJECT:,} characters")


def _pairs(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object. Raises ValueError for a key that comes twice: which of them is meant cannot be known."""
    item = dict(pairs)
    if len(item) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"{quoted(twice)} is there twice")
    return item


def _parsed(place: LineOfFile, text: str) -> Any:
    try:
        item = json.loads(text)
        keys = len(item) if isinstance(item, dict) else -1
        return item if text.count('":') == keys else json.loads(text, object_pairs_hook=_pairs)  # nothing twice
    except RecursionError:
        raise InputError(f"{place}: nested too deeply") from None
    except ValueError as error:
        raise InputError(
            f"{place}: this is not JSON: {str(error)[:80]}", fix="write one object a line, or all of them in one [...]"
        ) from None


def _object(place: LineOfFile, item: Any) -> dict[str, Any]:
    if not isinstance(item, dict):
        raise InputError(f"{place}: a request is a JSON object", fix='write {"hash_ids": [...], ...}')
    return item
