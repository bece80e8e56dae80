"""Logs of any size and shape are read with bounded work and in bounded memory."""

import gzip
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO, cast

import pytest
from published_boot import BOOT, CHATTER, FIGURES, pools, read, texts

from hybridcalc import diagnosis
from hybridcalc.bootlog import reader
from hybridcalc.bootlog.paste import Plain, plain
from hybridcalc.bootlog.reader import CHUNK_BYTES, scan
from hybridcalc.diagnosis import LogAnswer, Question, diagnose_log
from hybridcalc.diagnosis.sglang import candidates
from hybridcalc.errors import InputError

DENSE = ("\n".join(BOOT) + "\n").encode()
AROUND = reader.BEFORE_BYTES + reader.AFTER_BYTES


class Stream:
    """A file of ``size`` bytes that repeats ``unit`` and ends in ``tail``, made up as it is read."""

    def __init__(self, unit: bytes, size: int, tail: bytes = b"") -> None:
        self.block = unit * (CHUNK_BYTES // len(unit) + 2)
        self.unit, self.left, self.tail, self.at, self.handed_out = len(unit), size, tail, 0, 0

    def read(self, size: int) -> bytes:
        if not self.left:
            tail, self.tail = self.tail, b""
            return tail
        size = min(size, self.left)
        self.left -= size
        self.handed_out += size
        start, self.at = self.at, (self.at + size) % self.unit
        return self.block[start : start + size]

    @property
    def binary(self) -> BinaryIO:
        return cast(BinaryIO, self)


@pytest.fixture
def parsed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The length of each stretch of a log that was cleaned and parsed."""
    lengths: list[int] = []

    def counted(raw: bytes) -> Plain:
        lengths.append(len(raw))
        return plain(raw)

    monkeypatch.setattr(reader, "plain", counted)
    return lengths


@pytest.mark.parametrize("unit", [CHATTER, b"x", b" ", b"\0", b"\xff"], ids=["log", "x", "spaces", "zeros", "bytes"])
def test_a_big_file_takes_bounded_work_and_memory(unit: bytes, parsed: list[int]) -> None:
    """64 MiB of serving log, and 64 MiB without a single newline: a few chunks are held, and the boot alone is parsed
    with a few lines of a running server, which are sampled.
    """
    tracemalloc.start()
    try:
        found = list(scan(Stream(unit, 64 * 2**20, b"\n" + DENSE).binary))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert [texts(record) for record in pools(found)] == FIGURES and len(found) < 100
    assert peak < 16 * 2**20
    assert sum(parsed) <= AROUND + len(DENSE) + (2**17 if unit == CHATTER else 0)


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
def test_a_file_made_to_be_slow_is_not_slow(
    unit: bytes, growth: Callable[[Callable[[], object], Callable[[], object]], float]
) -> None:
    """Nothing but literals that a line may open with, or what the cleaning looks for: work grows with size alone, where
    four times the input would be sixteen times the work of a search that starts over.
    """

    def scanned(size: int) -> Callable[[], object]:
        return lambda: list(scan(Stream(unit, size, b"\n" + DENSE).binary))

    assert [texts(record) for record in pools(cast(list[Any], scanned(2**19)()))] == FIGURES
    assert growth(scanned(2**16), scanned(2**18)) < 8


def test_a_file_of_literals_alone_is_held_a_chunk_at_a_time() -> None:
    """Every byte is a neighbourhood then, and still only a chunk of them is cleaned at once."""
    tracemalloc.start()
    try:
        assert list(scan(Stream(b"#tokens" + b" " * 50, 2**20).binary)) == []
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 64 * 2**20


def test_a_gzip_bomb_is_unpacked_a_chunk_at_a_time(parsed: list[int]) -> None:
    """64 MiB in 64 KiB: what is unpacked is never held as a whole."""
    packed = gzip.compress(b"\n" * (64 * 2**20) + DENSE)
    tracemalloc.start()
    try:
        found = read(packed)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert [texts(record) for record in found] == FIGURES
    assert peak < 16 * 2**20
    assert sum(parsed) <= AROUND + len(DENSE)


@pytest.mark.parametrize("unit", [DENSE, b"a size of 1 GB\n"], ids=["boots", "literals"])
def test_what_is_parsed_of_a_log_is_bounded_unless_all_is_asked_for(
    unit: bytes, parsed: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A log that speaks of memory in every line is read up to a point, and says so."""
    monkeypatch.setattr(reader, "PARSED_BYTES", 2**19)
    remarks: list[str] = []
    stream = Stream(unit, 2**40)
    list(scan(stream.binary, remarks, whole=False))
    assert len(remarks) == 1 and remarks[0].endswith("--all reads the rest")
    assert sum(parsed) <= 2**19 + 2 * CHUNK_BYTES
    assert stream.handed_out <= 2**19 + 3 * CHUNK_BYTES


def test_an_endless_stream_and_a_device_end(parsed: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor is a stream read for ever that says nothing: literals of no line known here are looked for, not parsed."""
    monkeypatch.setattr(reader, "SILENT_BYTES", 2**22)
    for unit in (b"\0", b"allocated\n"):
        remarks: list[str] = []
        stream = Stream(unit, 2**50)
        assert list(scan(stream.binary, remarks, whole=False)) == []
        assert len(remarks) == 1
        assert stream.handed_out <= 2**22 + 3 * CHUNK_BYTES
    assert parsed == []
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
def test_a_log_of_thousands_of_records_is_answered_in_steps_that_grow_with_it(
    line: str, tmp_path: Path, steps: Callable[[Callable[[], object]], int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Twice the lines take at most two and a half times the work, and no boot is told more than a reader reads."""

    def answered(many: int) -> Callable[[], LogAnswer]:
        path = tmp_path / f"{many}.log"
        path.write_text("\n".join(line.format(number, number % 100) for number in range(many, 1, -1)))
        return lambda: diagnose_log(path, Question())

    monkeypatch.setattr(diagnosis, "MOST_DIAGNOSED", 10)
    small, large = answered(400), answered(800)
    answer = small()
    assert answer.boots and answer.figures
    assert all(len(one.findings) < 40 for one in answer.boots)
    assert steps(large) <= 2.5 * steps(small)


def test_a_boot_is_held_against_every_model_in_few_steps_a_combination(
    tmp_path: Path, steps: Callable[[Callable[[], object]], int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the pools print is worked out once a boot, not once a model, tp and dtype: 30 calls at most for each."""
    combinations, sizes = [0], candidates._sizes

    def counted(*key: Any) -> Any:
        combinations[0] += 1
        return sizes(*key)

    monkeypatch.setattr(candidates, "_sizes", counted)
    path = tmp_path / "boot.log"
    path.write_text(BOOT[0])
    diagnose_log(path, Question())  # the models' own sizes are kept from here on
    tried = combinations[0]
    assert tried > 500
    assert steps(lambda: diagnose_log(path, Question())) < 30 * tried
