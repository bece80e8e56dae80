"""How does a log of any size become records, without reading it line by line?

    bytes -> unzipped, in UTF-8 -> literals found in big chunks -> the text around them made plain -> grammars

A log is megabytes of serving chatter around a few lines that matter. Each grammar names literals that its lines cannot
do without; they are looked for at memory speed, and only their neighbourhoods are cleaned (paste.py) and parsed.
Memory is bounded by the chunk whatever the file holds: no newline at all, a gzip bomb, one literal after another.

What a running server repeats without end is sampled: a few lines of every chunk, and the last one. Which literals and
which grammars there are is said in grammars.py.
"""

from __future__ import annotations

import codecs
import os
import re
import sys
import zlib
from collections.abc import Iterable, Iterator
from contextlib import nullcontext
from dataclasses import replace
from itertools import chain
from typing import BinaryIO

from hybridcalc.bootlog.forms import denied
from hybridcalc.bootlog.grammars import POOLS, Grammars
from hybridcalc.bootlog.paste import plain
from hybridcalc.bootlog.records import Found, Record, Statement
from hybridcalc.errors import InputError, printable

CHUNK_BYTES = 2**20
"""Read and searched at a time; a few times as much is held."""
BEFORE_BYTES, AFTER_BYTES = 2**11, 2**12
"""How far a line may reach around a literal: forty pieces of a wrapped line, each behind a logger's prefix."""
QUIET_BYTES = 2**23
"""A log that says nothing of a boot for as long after one is not read on, unless all of it is asked for."""
SAMPLES = 8
"""Lines of each kind that are read of every chunk of a running server's chatter, besides the last one."""
ALL_SAMPLED_BYTES = 2**16
"""In a log no longer than this they are all read."""
_UNZIPPED_AT_ONCE = 2**14

_RUNNING = frozenset({"running", "prefilling", "serving"})
_SETTLED = frozenset({"summary", "kv_size", "ready", "kv_total", "kv_buffer"})
_PROCESS = re.compile(rb"\(([A-Za-z][\w.-]{0,40}) pid=([0-9]{1,9})[^)\n]{0,60}\)")

_GZIP = b"\x1f\x8b"
_BYTE_ORDER_MARKS = {
    codecs.BOM_UTF32_LE: "utf-32", codecs.BOM_UTF32_BE: "utf-32",  # before UTF-16, whose mark opens the same way
    codecs.BOM_UTF16_LE: "utf-16", codecs.BOM_UTF16_BE: "utf-16",
}  # fmt: skip


def read_log(
    path: str | os.PathLike[str], remarks: list[str] | None = None, *, grammars: Grammars = POOLS, whole: bool = True
) -> Iterator[Record]:
    """Records of the log at ``path``, in its order; ``-`` is standard input. Gzip and UTF-16 are read as they come.

    The file is opened at once and read as records are asked for. Raises InputError where there is no such file, where
    it is a directory and where it cannot be read. A file with no line known here has no records. What keeps a file
    from being read to its end, damage to its compression, is added to ``remarks`` when it is met. Where not the
    ``whole`` is wanted, a log that turns quiet after a boot is not read on, and a remark says so.
    """
    name = os.fspath(path)
    if name == "-":
        return _records(sys.stdin.buffer, name, remarks, grammars, whole, close=False)
    if not name:
        raise InputError("the name of the log file is empty", fix="name a file, or - for standard input")
    try:
        stream = open(name, "rb")  # noqa: SIM115 - _records closes it after the last record
    except (OSError, ValueError) as error:
        raise _unreadable(name, error) from None
    return _records(stream, name, remarks, grammars, whole, close=True)


def scan(
    stream: BinaryIO, remarks: list[str] | None = None, *, grammars: Grammars = POOLS, whole: bool = True
) -> Iterator[Record]:
    """Records of a binary stream, in its order: read once, in bounded memory. Junk has no records and never raises.

    ``remarks``, ``grammars`` and ``whole`` as for read_log.
    """
    held, said = bytearray(), [] if remarks is None else remarks
    base, line = 0, 1  # where held starts in the stream, and that place's line
    done, settled_boot, last_said = [0] * len(grammars.find), False, 0
    for chunk in chain(filter(None, _text(stream, said)), [b""]):
        held += chunk
        if chunk and len(held) < CHUNK_BYTES:
            continue
        settled = len(held) - AFTER_BYTES if chunk else len(held)  # what starts later may go on in the next chunk
        for number, found in _found(held, line, grammars, everything=not chunk and not base):
            if done[number] <= base + found.start < base + settled:
                done[number] = base + found.end
                kind = found.record.kind if isinstance(found.record, Statement) else "pool"
                if kind not in _RUNNING:
                    last_said, settled_boot = base + found.end, settled_boot or kind in _SETTLED
                yield found.record
        passed = max(0, settled - BEFORE_BYTES)
        done = [max(one, base + settled) for one in done]  # each place in the stream is settled once
        base, line = base + passed, line + held.count(b"\n", 0, passed)
        del held[:passed]
        if chunk and not whole and settled_boot and base - last_said > QUIET_BYTES:
            said.append(f"read up to line {line:,}: what follows the boot is serving; --all reads the rest")
            return


def _records(
    stream: BinaryIO, name: str, remarks: list[str] | None, grammars: Grammars, whole: bool, *, close: bool
) -> Iterator[Record]:
    with stream if close else nullcontext():
        try:
            yield from scan(stream, remarks, grammars=grammars, whole=whole)
        except OSError as error:
            raise _unreadable(name, error) from None


def _found(text: bytearray, line: int, grammars: Grammars, *, everything: bool) -> Iterator[tuple[int, Found]]:
    """What the grammars find in ``text``, whose first line is number ``line``, each with its grammar's number.

    Where ``everything`` is at hand, a short log is read as a whole and every line of its serving with it.
    """
    counted, short = 0, everything and len(text) <= ALL_SAMPLED_BYTES
    for start, end in [(0, len(text))] if short and grammars.samples else _neighbourhoods(text, grammars):
        line, counted = line + text.count(b"\n", counted, start), start
        raw = bytes(text[start:end])
        words, places = plain(raw)
        found = [(number, one) for number, find in enumerate(grammars.find) for one in find(words)]
        for number, one in sorted(found, key=lambda pair: pair[1].start):
            if not isinstance(one.record, Statement) and denied(words, one.start, one.end, one.end):
                continue
            record = replace(one.record, line=line + one.record.line - 1)
            if isinstance(record, Statement):
                record = _with_process(record, raw, places[one.start])
            yield number, Found(start + places[one.start], start + places[one.end - 1] + 1, record)


def _with_process(record: Statement, raw: bytes, place: int) -> Statement:
    """The statement with the process that vLLM names in front of its line, and the rank in that name."""
    named = list(_PROCESS.finditer(raw, max(raw.rfind(b"\n", 0, place), place - 400, 0), place))
    if not named:
        return record
    match = named[-1]
    name = match[1].decode()
    return replace(record, process=f"{name} pid={match[2].decode()}", rank=record.rank or name)


def _neighbourhoods(text: bytearray, grammars: Grammars) -> Iterator[tuple[int, int]]:
    """Stretches around the grammars' literals, of whole lines unless these are long; stretches that meet are one."""
    start, end = 0, -1
    for anchor in sorted(_anchors(text, grammars)):
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


def _anchors(text: bytearray, grammars: Grammars) -> Iterator[int]:
    """Where the literals stand. As long as they are few, a search for each outruns one alternation of them all.

    Most chunks hold none: a search from the end says so at twice the speed of one from the start.
    """
    for literal in grammars.needles:
        if text.rfind(literal) < 0:
            continue
        place = text.find(literal)
        while place >= 0:
            yield place
            place = text.find(literal, place + len(literal))
    for literal in grammars.samples:
        last = text.rfind(literal)
        if last < 0:
            continue
        yield last
        for part in range(SAMPLES):
            place = text.find(literal, part * len(text) // SAMPLES)
            if place >= 0:
                yield place


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
