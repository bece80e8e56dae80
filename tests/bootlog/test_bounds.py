"""Logs of any size and shape are read in bounded time and memory."""

import gzip
import tracemalloc
from typing import BinaryIO, cast

import pytest
from published_boot import BOOT, CHATTER, FIGURES, Within, read, texts

from hybridcalc.bootlog import scan
from hybridcalc.bootlog.reader import CHUNK_BYTES


class Stream:
    """A file of ``size`` bytes that repeats ``unit`` and ends in ``tail``, made up as it is read."""

    def __init__(self, unit: bytes, size: int, tail: bytes = b"") -> None:
        self.block = unit * (CHUNK_BYTES // len(unit) + 2)
        self.unit, self.left, self.tail, self.at = len(unit), size, tail, 0

    def read(self, size: int) -> bytes:
        if not self.left:
            tail, self.tail = self.tail, b""
            return tail
        size = min(size, self.left)
        self.left -= size
        start, self.at = self.at, (self.at + size) % self.unit
        return self.block[start : start + size]


@pytest.mark.parametrize("unit", [CHATTER, b"x", b" ", b"\0", b"\xff"], ids=["log", "x", "spaces", "zeros", "bytes"])
def test_a_big_file_takes_bounded_time_and_memory(unit: bytes, within: Within):
    """64 MiB of serving log, and 64 MiB without a single newline: seconds, and memory for a few chunks."""
    tracemalloc.start()
    try:
        with within(20):
            found = list(scan(cast(BinaryIO, Stream(unit, 64 * 2**20, ("\n" + "\n".join(BOOT)).encode()))))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert [texts(record) for record in found] == FIGURES
    assert peak < 16 * 2**20


@pytest.mark.parametrize(
    "unit",
    [
        b"ssm_state",
        b"#tokens: 1",
        b"V size: 1\n",
        b"allocated" + b"1\n" * 1500,
        b"allocated" + b"\\n" * 1500,
        b"_state" + b"\\" * 3000,
        b"_state" + b"[" * 3000,
        b'_state\n{"a' * 50,
        b'_state {"log": "' + b"\\n" * 1500,
    ],
)
def test_a_file_made_to_be_slow_is_not_slow(unit: bytes, within: Within):
    """Nothing but literals that a line may open with, or what the cleaning looks for: time grows with size alone."""
    with within(20):
        found = list(scan(cast(BinaryIO, Stream(unit, 2 * 2**20, ("\n" + "\n".join(BOOT)).encode()))))
    assert [texts(record) for record in found] == FIGURES


def test_a_file_of_literals_alone_is_held_a_chunk_at_a_time():
    """Every byte is a neighbourhood then, and still only a chunk of them is cleaned at once."""
    tracemalloc.start()
    try:
        assert list(scan(cast(BinaryIO, Stream(b"#tokens" + b" " * 50, 2 * 2**20)))) == []
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 64 * 2**20


def test_a_gzip_bomb_is_unpacked_a_chunk_at_a_time(within: Within):
    """64 MiB in 64 KiB: what is unpacked is never held as a whole."""
    packed = gzip.compress(b"\n" * (64 * 2**20) + "\n".join(BOOT).encode())
    tracemalloc.start()
    try:
        with within(20):
            found = read(packed)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert [texts(record) for record in found] == FIGURES
    assert peak < 16 * 2**20
