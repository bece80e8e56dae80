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
import stat
import sys
import zlib
from collections.abc import Iterable, Iterator, Set
from contextlib import nullcontext
from dataclasses import replace
from itertools import chain
from typing import BinaryIO

from hybridcalc.bootlog import Found, Record, Value
from hybridcalc.bootlog.grammars import Sought, sought
from hybridcalc.bootlog.paste import plain
from hybridcalc.errors import InputError, printable

CHUNK_BYTES = 2**18
"""Read and searched at a time; a few times as much is held."""
KEPT_BYTES = 2**22
"""A block that was freed once, its pages never touched: from then on glibc keeps freed blocks up to this size for the
next chunk. Handing their pages back and getting them again took twice as long as all searching.
"""
BEFORE_BYTES, AFTER_BYTES = 2**11, 2**12
"""How far a line may reach around a literal: forty pieces of a wrapped line, each behind a logger's prefix."""
QUIET_BYTES = 2**23
"""A log that says nothing of a boot for as long after one is not read on, unless all of it is asked for."""
PARSED_BYTES, SILENT_BYTES = 2**25, 2**34
"""Nor is one read on that says something of memory in every line, once so much of it was parsed, or that is longer than
any log and holds no boot.
"""
MANY = 64
"""Literals in a chunk beyond which a log is taken to speak of other things."""
SHORT_BYTES = 2**16
"""A log no longer than this is read as a whole, whatever its lines hold."""
SAMPLES, SAMPLED_CHUNKS, CHUNKS_A_SAMPLE, SAMPLE_BYTES = 4, 8, 64, 2**9
"""Lines of each kind that are read of a running server's chatter: in each of the first chunks, and later one of so many
chunks; and how far such a line may reach.
"""
_CLOCKED = re.compile(rb"\A\W{0,2}[0-9]|[0-9]:[0-9]{2}:[0-9]{2}")
LEAST_SORTED, MOST_SORTED = 5, 200
"""Lines of an excerpt that somebody may have sorted."""
_UNZIPPED_AT_ONCE = 2**14

_UNFINISHED = re.compile(rb"(?:-?[0-9][0-9.,_]*|[=:][ ]*'[^'\n]{0,200})\Z")
"""A number or a quoted name that a log without a last line end stops in: more of it may have stood there."""
_CLOCK = re.compile(rb"[0-9]:[0-9]{2}:[0-9]{2}")
_PROCESS = re.compile(rb"\(([A-Za-z][\w.-]{0,40}) pid=([0-9]{1,9})[^)\n]{0,60}\)")

_DATED = re.compile(rb"(?<![0-9])([01][0-9]-[0-3][0-9])[ T]([0-2][0-9](?::[0-5][0-9]){2})")

_SOURCE = re.compile(
    rb"""(?:[0-9]{1,3}\|)?(?P<service>[A-Za-z][\w.-]{0,62})[\x20\t]{1,64}\|(?!\|)          # docker compose, pm2
      | \[(?:pod|container)/(?P<pod>[\w.-]{1,120})(?:/[\w.-]{1,120})?\]                    # kubectl --prefix
      # stern
      | (?:\+\x20)?(?P<hashed>[\w.-]{1,120}-[0-9a-z]{5,10}-[0-9a-z]{5})\x20(?:\xe2\x80\xba\x20)?[\w.-]{1,63}\x20
    """,
    re.VERBOSE,
)
"""Whose line it is, where several services write into one log."""
_COPY = re.compile(r"(?:-(?=[0-9a-z]*[0-9])[0-9a-z]{5,10}-[0-9a-z]{5}|[-_]?[0-9]{1,3})+\Z")
_PART = re.compile(r"[-_.]?(?:leader|worker|head|node|master|rank)s?\Z")
"""What tells the copies and the nodes of one service apart."""
_NO_SERVICE = re.compile(r"(?i)(?:std(?:out|err)|info|warn(?:ing)?|error|debug|critical|trace)\Z")

_GZIP = b"\x1f\x8b"
_BYTE_ORDER_MARKS = {
    codecs.BOM_UTF32_LE: "utf-32", codecs.BOM_UTF32_BE: "utf-32",  # before UTF-16, whose mark opens the same way
    codecs.BOM_UTF16_LE: "utf-16", codecs.BOM_UTF16_BE: "utf-16",
}  # fmt: skip


def read_log(path: str | os.PathLike[str], remarks: list[str] | None = None, *, whole: bool = True) -> Iterator[Record]:
    """Records of the log at ``path``, in its order; ``-`` is standard input. Gzip and UTF-16 are read as they come.

    The file is opened at once and read as records are asked for. Raises InputError where there is no such file, where
    it is a directory and where it cannot be read. A file with no line known here has no records. What keeps a file
    from being read to its end, damage to its compression, is added to ``remarks`` when it is met. Where not the
    ``whole`` is wanted, a log that turns quiet after a boot is not read on, and a remark says so.
    """
    name = os.fspath(path)
    if name == "-":
        return _records(sys.stdin.buffer, name, remarks, whole, close=False)
    if not name:
        raise InputError("the name of the log file is empty", fix="name a file, or - for standard input")
    try:
        if name != os.devnull and stat.S_ISCHR(os.stat(name).st_mode) and not os.path.samefile(name, "/dev/stdin"):
            raise InputError(f"{printable(name)} is a device, not a log")
        stream = open(name, "rb")  # noqa: SIM115 - _records closes it after the last record
    except (OSError, ValueError) as error:
        raise _unreadable(name, error) from None
    return _records(stream, name, remarks, whole, close=True)


def scan(stream: BinaryIO, remarks: list[str] | None = None, *, whole: bool = True) -> Iterator[Record]:
    """Records of a binary stream, in its order: read once, in bounded memory. Junk has no records and never raises.

    ``remarks`` and ``whole`` as for read_log.
    """
    lines = sought()
    held, said = bytearray(), [] if remarks is None else remarks
    base, line, chunks = 0, 1, 0  # where held starts in the stream, and that place's line
    done, boot_seen, last_said, parsed = [0] * len(lines.find), False, 0, 0
    serving = _Serving(lines)
    for chunk in chain(filter(None, _text(stream, said)), [b""]):
        held += chunk
        if chunk and len(held) < CHUNK_BYTES:
            continue
        if not chunks:
            bytes(KEPT_BYTES)
        if not chunk:
            del held[_whole(held, first=not base) :]
        settled = len(held) - AFTER_BYTES if chunk else len(held)  # what starts later may go on in the next chunk
        every = not chunk and not base and len(held) <= SHORT_BYTES
        sampled = not every and chunks < SAMPLED_CHUNKS
        stretches = [(0, len(held))] if every else _stretches(held, lines)
        if sampled:
            stretches = list(_joined(sorted([*stretches, *serving.samples(held)])))
        for number, found in _found(held, line, stretches, lines):
            if done[number] <= base + found.start < base + settled:
                done[number] = base + found.end
                kind = found.record.engine, found.record.kind
                if kind in lines.serving:
                    serving.passed = base + found.end
                else:
                    yield from serving.last(before=base + found.start)
                    last_said, boot_seen = base + found.end, boot_seen or kind in lines.settled
                yield found.record
        parsed += sum(end - start for start, end in stretches)
        passed, chunks = max(0, settled - BEFORE_BYTES), chunks + 1
        done = [max(one, base + settled) for one in done]  # each place in the stream is settled once
        line += _line_ends(held[:passed])
        if not chunk or stretches or not chunks % CHUNKS_A_SAMPLE:
            serving.remember(held, settled, base, line, passed)
        base += passed
        del held[:passed]
        if not chunk or not chunks % CHUNKS_A_SAMPLE:
            yield from serving.last()
        if chunk and not whole and boot_seen and base - last_said > QUIET_BYTES:
            yield from serving.last()
            said.append(f"read up to line {line:,}: what follows the boot is serving; --all reads the rest")
            return
        if chunk and not whole and (parsed > PARSED_BYTES or base > SILENT_BYTES):
            yield from serving.last()
            said.append(f"read up to line {line:,}, {base >> 20:,} MiB; --all reads the rest")
            return


def _whole(text: bytearray, *, first: bool) -> int:
    """Where the last figure of a log that is cut off begins, else the end. One line that no logger wrote is quoted."""
    unfinished = _UNFINISHED.search(text, max(0, len(text) - BEFORE_BYTES))
    quoted = first and b"\n" not in text and not _CLOCK.search(text)
    return len(text) if unfinished is None or quoted else unfinished.start()


class _Serving:
    """The lines that a running server repeats without end: the last of each kind is kept as text until it is due.

    A boot's last line is due where another boot's first is found; besides that a few are read now and then.
    """

    def __init__(self, lines: Sought) -> None:
        self.passed, self._sought = 0, lines
        self._kept: dict[bytes, tuple[int, int, bytes]] = {}

    def samples(self, text: bytearray) -> Iterator[tuple[int, int]]:
        """Places of a few lines of each kind."""
        for literal in self._sought.samples:
            last = text.rfind(literal)
            parts = range(SAMPLES) if last >= 0 else range(0)
            for place in {last, *(text.find(literal, part * len(text) // SAMPLES) for part in parts)} - {-1}:
                yield _around(text, place, SAMPLE_BYTES, SAMPLE_BYTES)

    def remember(self, text: bytearray, settled: int, base: int, line: int, passed: int) -> None:
        """Keep the last line of each kind; ``line`` is the number of the line at ``passed``."""
        for literal in self._sought.samples:
            place = text.rfind(literal, 0, settled)
            if place >= 0 and base + place > self.passed:
                low, high = _around(text, place, SAMPLE_BYTES, SAMPLE_BYTES)
                lines = text.count(b"\n", min(low, passed), max(low, passed))
                self._kept[literal] = base + low, line - lines if low < passed else line + lines, bytes(text[low:high])

    def last(self, before: int | None = None) -> Iterator[Record]:
        """The records of what is kept, up to the place ``before``."""
        kept, self._kept = sorted(self._kept.values()), {}
        for start, line, text in kept:
            if before is not None and start > before:
                continue
            found = [
                one
                for _, one in _found(bytearray(text), line, [(0, len(text))], self._sought)
                if (one.record.engine, one.record.kind) in self._sought.serving and start + one.start >= self.passed
            ]
            if found:
                self.passed = start + found[-1].end
                yield found[-1].record


def _records(stream: BinaryIO, name: str, remarks: list[str] | None, whole: bool, *, close: bool) -> Iterator[Record]:
    with stream if close else nullcontext():
        try:
            yield from scan(stream, remarks, whole=whole)
        except OSError as error:
            raise _unreadable(name, error) from None


def _found(
    text: bytearray, line: int, stretches: Iterable[tuple[int, int]], lines: Sought
) -> Iterator[tuple[int, Found]]:
    """What the grammars find in ``stretches`` of ``text``, whose first line is number ``line``; each with the number of
    its grammar.
    """
    counted = 0
    for start, end in stretches:
        line, counted = line + text.count(b"\n", counted, start), start
        raw = bytes(text[start:end])
        words, places = plain(raw)
        found = [(number, one) for number, find in enumerate(lines.find) for one in find(words)]
        told = {(one.record.line, figure) for _, one in found if one.record.told for figure in one.record.figures}
        found = [pair for pair in found if pair[1].record.told or not _is_a_cell(pair[1].record, told)]
        said = {(one.record.line, name) for _, one in found if not one.record.told for name, _ in one.record.figures}
        found = [pair for pair in found if not pair[1].record.told or not _is_said(pair[1].record, said)]
        by_alphabet = bool(found) and _by_alphabet(raw)
        for number, one in sorted(found, key=lambda pair: pair[1].start):
            record = replace(one.record, line=line + one.record.line - 1, sorted=by_alphabet)
            record = _with_prefix(record, raw, places[one.start], places[one.end - 1] + 1)
            yield number, Found(start + places[one.start], start + places[one.end - 1] + 1, record)


def _by_alphabet(text: bytes) -> bool:
    """Whether somebody sorted the lines, which begin with words: a log with clocks is in that order by itself."""
    lines = [line for line in text.split(b"\n", MOST_SORTED) if line.strip()]
    if not LEAST_SORTED <= len(lines) < MOST_SORTED or any(map(_CLOCKED.search, lines)):
        return False
    return lines == sorted(lines) or [line.lower() for line in lines] == sorted(line.lower() for line in lines)


def _is_a_cell(record: Record, told: Set[tuple[int, tuple[str, Value]]]) -> bool:
    """Whether a line that a form read is but the first cell of a table's row, which the table's reader has whole."""
    return bool(record.figures) and all((record.line, figure) in told for figure in record.figures)


def _is_said(record: Record, said: Set[tuple[int, str]]) -> bool:
    """Whether a line that an engine printed, and somebody quotes, says what was read as a sentence or a table."""
    return any((record.line, name) in said for name, _ in record.figures)


def _with_prefix(record: Record, raw: bytes, place: int, end: int) -> Record:
    """The statement with the process that vLLM names in front of its line, the rank in that name, and the time; and
    whether a code span ends with it.
    """
    start = max(raw.rfind(b"\n", 0, place), place - 400, 0)
    if b"`" in raw[place : end + 2] and raw.count(b"`", start, place) % 2:
        record = replace(record, quoted=True)
    if not record.told and (source := _source(raw, raw.rfind(b"\n", 0, place) + 1)):
        record = replace(record, source=source)
    clock = next(iter(reversed(_DATED.findall(raw, start, place))), None)
    record = record if clock is None else replace(record, clock=b" ".join(clock).decode())
    named = list(_PROCESS.finditer(raw, start, place))
    if not named:
        return record
    match = named[-1]
    name = match[1].decode()
    return replace(record, process=f"{name} pid={match[2].decode()}", rank=record.rank or name)


def _source(raw: bytes, start: int) -> str:
    """The service that the line at ``start`` names in front; "" where it names none."""
    match = _SOURCE.match(raw, start)
    name = "" if match is None else next(filter(None, match.groups())).decode(errors="replace")
    return "" if _NO_SERVICE.match(name) else _PART.sub("", _COPY.sub("", name)) or name


def _stretches(text: bytearray, lines: Sought) -> list[tuple[int, int]]:
    """Stretches around the literals; those that meet are one.

    As long as they are few, a search for each outruns one alternation of them all, above all where a rare letter of
    the literal is missing from the chunk: a search for one byte costs nothing. A search from the end is twice as fast
    as one from the start, and most chunks hold no literal.
    """
    places: list[int] = []
    for literal, rare in lines.needles:
        if (rare and rare not in text) or text.rfind(literal) < 0:
            continue
        place = text.find(literal)
        while place >= 0:
            places.append(place)
            place = text.find(literal, place + len(literal))
    if len(places) > MANY:
        places = [match.start() for match in lines.fragments.finditer(text)]
    return list(_joined(_around(text, place, BEFORE_BYTES, AFTER_BYTES) for place in sorted(places)))


def _line_ends(text: bytearray) -> int:
    """How many lines end in ``text``: leaving the ends out takes a quarter of the time that counting them does, but for
    very short lines.
    """
    if text.count(b"\n", 0, 2**12) > 2**7:
        return text.count(b"\n")
    return len(text) - len(text.replace(b"\n", b""))


def _around(text: bytearray, place: int, before: int, after: int) -> tuple[int, int]:
    """A stretch around ``place``, of whole lines unless these are long."""
    low, high = max(0, place - before), min(len(text), place + after)
    if low:
        low = text.find(b"\n", low - 1, place) + 1 or low
    if high < len(text):
        high = text.rfind(b"\n", place, high) + 1 or high
    return low, high


def _joined(stretches: Iterable[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """Sorted stretches, those that meet made one."""
    start, end = 0, -1
    for low, high in stretches:
        if low > end >= 0:
            yield start, end
        start = low if low > end else start
        end = max(end, high)
    if end >= 0:
        yield start, end


def _text(stream: BinaryIO, remarks: list[str]) -> Iterable[bytes]:
    """The stream's content, unzipped and in UTF-8 (or whatever bytes it has, where nothing says what they are)."""
    head, chunks = _peeked(iter(lambda: stream.read(CHUNK_BYTES), b""))
    if head.startswith(_GZIP):
        head, chunks = _peeked(_unzipped(chunks, remarks))
    for mark, encoding in _BYTE_ORDER_MARKS.items():
        if head.startswith(mark):
            return _in_utf8(chunks, encoding)
    unmarked = _unmarked_encoding(head)
    return _in_utf8(chunks, unmarked) if unmarked else chunks


def _unmarked_encoding(head: bytes) -> str | None:
    """UTF-16 or UTF-32 without a mark: of text in ASCII every other byte, or three of four, is zero."""
    if len(head) < 8 or head[:8].count(0) < 4:
        return None
    zeros = "".join("0" if byte == 0 else "x" for byte in head[:8])
    return {"x0" * 4: "utf-16-le", "0x" * 4: "utf-16-be", "x000" * 2: "utf-32-le", "000x" * 2: "utf-32-be"}.get(zeros)


def _peeked(chunks: Iterator[bytes]) -> tuple[bytes, Iterator[bytes]]:
    """The first bytes, enough for any mark, and all chunks including them. A pipe may hand them out one by one."""
    head = b""
    for chunk in chunks:
        head += chunk
        if len(head) >= 8:
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
