"""Logs of any size and shape are read in bounded time and memory."""

import gzip
import tracemalloc
from pathlib import Path
from typing import BinaryIO, cast

import pytest
from published_boot import BOOT, CHATTER, FIGURES, Within, read, texts

from hybridcalc.bootlog import EVERYTHING, reader, scan
from hybridcalc.bootlog.reader import CHUNK_BYTES
from hybridcalc.diagnosis.boot import diagnose_log
from hybridcalc.diagnosis.question import Question
from hybridcalc.errors import InputError


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


@pytest.mark.parametrize("unit", [("\n".join(BOOT) + "\n").encode(), b"allocated\n"], ids=["boots", "literals"])
def test_what_is_parsed_of_a_log_is_bounded_unless_all_is_asked_for(
    unit: bytes, within: Within, monkeypatch: pytest.MonkeyPatch
):
    """A log that speaks of memory in every line is read up to a point, and says so."""
    monkeypatch.setattr(reader, "PARSED_BYTES", 2**20)
    remarks: list[str] = []
    with within(20):
        list(scan(cast(BinaryIO, Stream(unit, 2**40)), remarks, grammars=EVERYTHING, whole=False))
    assert len(remarks) == 1 and remarks[0].endswith("--all reads the rest")


def test_an_endless_stream_and_a_device_end(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(reader, "SILENT_BYTES", 2**22)
    remarks: list[str] = []
    assert list(scan(cast(BinaryIO, Stream(b"\0", 2**50)), remarks, grammars=EVERYTHING, whole=False)) == []
    assert len(remarks) == 1
    with pytest.raises(InputError, match="is a device"):
        reader.read_log("/dev/zero")


MANY_RECORDS = {
    "drafts": "[2026-02-01 00:05:02 TP0] KV Cache is allocated. #tokens: 5000, KV size: {0}.{1:02} GB",
    "ranks": "[2026-02-01 00:05:02 DP{0} TP{0}] KV Cache is allocated. #tokens: {0}000, KV size: 15.03 GB\n"
    "[2026-02-01 00:05:02 DP{0} TP{0}] max_total_num_tokens={0}, max_running_requests={0}",
    "graphs": "[2026-02-01 00:05:02 TP0] Capture cuda graph end. mem usage={0}.00 GB. avail mem={1}.00 GB.",
    "errors": "[2026-02-01 00:05:02 TP{0}] CUDA out of memory. Tried to allocate {0}.00 GiB",
    "boots": "Mamba Cache is allocated. max_mamba_cache_size: {0}, conv_state size: 0.34GB, ssm_state size: 17.58GB",
}


@pytest.mark.parametrize("line", MANY_RECORDS.values(), ids=MANY_RECORDS)
def test_a_log_of_thousands_of_records_is_answered_at_once(line: str, tmp_path: Path, within: Within):
    path = tmp_path / "boot.log"
    path.write_text("\n".join(line.format(number, number % 100) for number in range(4000, 1, -1)))
    with within(20):
        answer = diagnose_log(path, Question())
    assert answer.boots and answer.figures
    assert all(len(boot.findings) < 40 for boot in answer.boots)
