"""How does a log of any size become records, without reading it line by line?

    bytes -> unzipped, in UTF-8 -> literals found in big chunks -> the text around them made plain -> grammars

A log is megabytes of serving chatter around a few lines that matter. Each grammar names literals that its lines cannot
do without; they are looked for at memory speed, and only their neighbourhoods are cleaned (paste.py) and parsed.
Memory is bounded by the chunk whatever the file holds: no newline at all, a gzip bomb, one literal after another.

An engine's lines are added in ``_GRAMMARS``: its literals, and the function that finds its records in plain text.
"""

from __future__ import annotations

import codecs
import os
import sys
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import nullcontext
from dataclasses import replace
from itertools import chain
from typing import BinaryIO

from hybridcalc.bootlog import sglang
from hybridcalc.bootlog.paste import plain
from hybridcalc.bootlog.records import Found, Record
from hybridcalc.errors import InputError, printable

_GRAMMARS: tuple[tuple[tuple[bytes, ...], Callable[[bytes], Iterator[Found]]], ...] = ((sglang.ANCHORS, sglang.find),)

CHUNK_BYTES = 2**20
"""Read and searched at a time; a few times as much is held."""
BEFORE_BYTES, AFTER_BYTES = 2**11, 2**12
"""How far a line may reach around a literal: forty pieces of a wrapped line, each behind a logger's prefix."""
_UNZIPPED_AT_ONCE = 2**14

_GZIP = b"\x1f\x8b"
_BYTE_ORDER_MARKS = {
    codecs.BOM_UTF32_LE: "utf-32", codecs.BOM_UTF32_BE: "utf-32",  # before UTF-16, whose mark opens the same way
    codecs.BOM_UTF16_LE: "utf-16", codecs.BOM_UTF16_BE: "utf-16",
}  # fmt: skip


def read_log(path: str | os.PathLike[str], remarks: list[str] | None = None) -> Iterator[Record]:
    """Records of the log at ``path``, in its order; ``-`` is standard input. Gzip and UTF-16 are read as they come.

    The file is opened at once and read as records are asked for. Raises InputError where there is no such file, where
    it is a directory and where it cannot be read. A file with no line known here has no records. What keeps a file
    from being read to its end, damage to its compression, is added to ``remarks`` when it is met.
    """
    name = os.fspath(path)
    if name == "-":
        return _records(sys.stdin.buffer, name, remarks, close=False)
    if not name:
        raise InputError("the name of the log file is empty", fix="name a file, or - for standard input")
    try:
        stream = open(name, "rb")  # noqa: SIM115 - _records closes it after the last record
    except (OSError, ValueError) as error:
        raise _unreadable(name, error) from None
    return _records(stream, name, remarks, close=True)


def scan(stream: BinaryIO, remarks: list[str] | None = None) -> Iterator[Record]:
    """Records of a binary stream, in its order: read once, in bounded memory. Junk has no records and never raises.

    ``remarks`` as for read_log.
    """
    held = bytearray()
    base, line, done = 0, 1, 0  # where held starts in the stream, that place's line, and where the last record ended
    for chunk in chain(filter(None, _text(stream, [] if remarks is None else remarks)), [b""]):
        held += chunk
        if chunk and len(held) < CHUNK_BYTES:
            continue
        settled = len(held) - AFTER_BYTES if chunk else len(held)  # what starts later may go on in the next chunk
        for found in _found(held, line):
            if done <= base + found.start < base + settled:
                done = base + found.end
                yield found.record
        passed = max(0, settled - BEFORE_BYTES)
        done = max(done, base + settled)  # each place in the stream is settled once
        base, line = base + passed, line + held.count(b"\n", 0, passed)
        del held[:passed]


def _records(stream: BinaryIO, name: str, remarks: list[str] | None, *, close: bool) -> Iterator[Record]:
    with stream if close else nullcontext():
        try:
            yield from scan(stream, remarks)
        except OSError as error:
            raise _unreadable(name, error) from None


def _found(text: bytearray, line: int) -> Iterator[Found]:
    """What the grammars find in ``text``, whose first line is number ``line``."""
    counted = 0
    for start, end in _neighbourhoods(text):
        line, counted = line + text.count(b"\n", counted, start), start
        words, places = plain(bytes(text[start:end]))
        found = [one for _, find in _GRAMMARS for one in find(words)]
        for one in sorted(found, key=lambda one: one.start):
            record = replace(one.record, line=line + one.record.line - 1)
            yield Found(start + places[one.start], start + places[one.end - 1] + 1, record)


def _neighbourhoods(text: bytearray) -> Iterator[tuple[int, int]]:
    """Stretches around the grammars' literals, of whole lines unless these are long; stretches that meet are one."""
    start, end = 0, -1
    for anchor in sorted(_anchors(text)):
        low, high = max(0, anchor - BEFORE_BYTES), min(len(text), anchor + AFTER_BYTES)
        if low:
            low = text.find(b"\n", low - 1, anchor) + 1 or low
        if high < len(text):
            high = text.rfind(b"\n", anchor, high) + 1 or high
        if low > end >= 0:
            yield start, end
        start = low if low > end else start
        end = max(end, high)
    if end >= 0:
        yield start, end


def _anchors(text: bytearray) -> Iterator[int]:
    """Where the literals stand. As long as they are few, a find for each outruns one alternation of them all."""
    for literals, _ in _GRAMMARS:
        for literal in literals:
            place = text.find(literal)
            while place >= 0:
                yield place
                place = text.find(literal, place + len(literal))


def _text(stream: BinaryIO, remarks: list[str]) -> Iterable[bytes]:
    """The stream's content, unzipped and in UTF-8 (or whatever bytes it has, where nothing says what they are)."""
    head, chunks = _peeked(iter(lambda: stream.read(CHUNK_BYTES), b""))
    if head.startswith(_GZIP):
        head, chunks = _peeked(_unzipped(chunks, remarks))
    for mark, encoding in _BYTE_ORDER_MARKS.items():
        if head.startswith(mark):
            return _in_utf8(chunks, encoding)
    return chunks


def _peeked(chunks: Iterator[bytes]) -> tuple[bytes, Iterator[bytes]]:
    """The first bytes, enough for any mark, and all chunks including them. A pipe may hand them out one by one."""
    head = b""
    for chunk in chunks:
        head += chunk
        if len(head) >= 4:
            break
    return head, chain([head], chunks)


def _unzipped(chunks: Iterable[bytes], remarks: list[str]) -> Iterator[bytes]:
    """The content of gzip members, a chunk at a time however well they are packed; up to where they are damaged.

    What follows the last member is no gzip, and damage too, unless it is the zeros that pad a tape's block.
    """
    inflate, at_start, place = zlib.decompressobj(wbits=31), True, 0
    for chunk in chunks:
        for offset in range(0, len(chunk), _UNZIPPED_AT_ONCE):
            packed = chunk[offset : offset + _UNZIPPED_AT_ONCE]
            while packed:
                if at_start and place:
                    place, packed = place + len(packed) - len(packed.lstrip(b"\0")), packed.lstrip(b"\0")
                    if not packed:
                        break
                undamaged = inflate.copy()
                try:
                    text = inflate.decompress(packed, CHUNK_BYTES)
                except zlib.error:
                    sound = _before_damage(undamaged, packed)
                    place += len(sound)
                    remarks.append(f"the gzip file is damaged at byte {place:,}: what lies behind is not read")
                    yield from sound
                    return
                left = inflate.unused_data if inflate.eof else inflate.unconsumed_tail
                place, packed, at_start = place + len(packed) - len(left), left, inflate.eof
                if inflate.eof:
                    inflate = zlib.decompressobj(wbits=31)
                yield text
    if not at_start:
        yield inflate.flush()
        if not inflate.eof:
            remarks.append(f"the gzip file is cut off after {place:,} bytes: what came behind them is not in it")


def _before_damage(inflate: zlib._Decompress, packed: bytes) -> list[bytes]:
    """What each byte up to the damage unpacks to: the call that meets damage gives nothing of what came before it."""
    sound = []
    for place in range(len(packed)):
        try:
            sound.append(inflate.decompress(packed[place : place + 1]))
        except zlib.error:
            break
    return sound


def _in_utf8(chunks: Iterable[bytes], encoding: str) -> Iterator[bytes]:
    decode = codecs.getincrementaldecoder(encoding)(errors="replace").decode
    for chunk in chunks:
        yield decode(chunk).encode(errors="replace")
    yield decode(b"", True).encode(errors="replace")


def _unreadable(name: str, error: OSError | ValueError) -> InputError:
    shown = printable(name) if name.strip() else repr(name)
    if isinstance(error, FileNotFoundError):
        return InputError(f"{shown}: no such file")
    if isinstance(error, IsADirectoryError):
        return InputError(f"{shown}: is a directory", fix="name the log file in it")
    reason = (error.strerror or "input error").lower() if isinstance(error, OSError) else "not a file name"
    return InputError(f"{shown}: cannot be read ({reason})")
