"""Twenty thousand damaged logs: no traceback, and no figure that is not in the text."""

from __future__ import annotations

import io
import random
import re
from pathlib import Path

import pytest

from hybridcalc.bootlog import Printed, Record
from hybridcalc.bootlog.boots import figure_list, merged
from hybridcalc.bootlog.grammars import assemble
from hybridcalc.bootlog.reader import scan

LOGS = [path.read_bytes() for path in sorted((Path(__file__).parent.parent / "data" / "bootlogs").glob("*.log"))]
MUTATIONS, PARTS = 8_000, 8
INSERTED = (
    b"\n",
    b"\r",
    b"\r\n  ",
    b"\x1b[31m",
    b"`",
    b"> ",
    b"\xff",
    b"|",
    b"...",
    b"{x}",
    b"\0",
    b"**",
    b"\xef\xbb\xbf",
)
PREFIXES = (b"> ", b"2026-02-01T00:05:03Z ", b"pod-1  | ", b"# ")


def mutated(draw: random.Random) -> bytes:
    """A real log or two, cut, shuffled, flipped, prefixed, repeated."""
    raw = bytearray(b"\n".join(draw.choice(LOGS) for _ in range(draw.choice((1, 1, 1, 2)))))
    for _ in range(draw.randint(1, 8)):
        at = draw.randrange(len(raw) + 1)
        edit = draw.randrange(8)
        if edit == 0:
            raw[at:at] = draw.choice(INSERTED)
        elif edit == 1:
            del raw[at : at + draw.randint(1, 60)]
        elif edit == 2 and at < len(raw):
            raw[at] ^= 1 << draw.randrange(8)
        elif edit == 3:
            lines = raw.split(b"\n")
            draw.shuffle(lines)
            raw = bytearray(b"\n".join(lines))
        elif edit == 4:
            raw = raw[:at]
        elif edit == 5:
            raw = raw[at:]
        elif edit == 6:
            prefix = draw.choice(PREFIXES)
            raw = bytearray(b"\n".join(prefix + line for line in raw.split(b"\n")))
        else:
            raw[at:at] = raw[at : at + 200]
    return bytes(raw)


def printed(record: Record) -> list[str]:
    """The numbers of a record, as text."""
    values = [value for _, value in record.figures]
    return [v.text if isinstance(v, Printed) else str(v) for v in values if isinstance(v, Printed | int)]


@pytest.mark.parametrize("part", range(PARTS))
def test_no_damage_raises_and_none_invents_a_figure(part: int) -> None:
    """Each number's digits stand in the text in a row, but for line ends, prefixes, colours and separators."""
    draw = random.Random(part)
    for _ in range(MUTATIONS // PARTS):
        raw = mutated(draw)
        bare = re.sub(rb"\x1b\[31m|(?m:^(?:> |2026-02-01T00:05:03Z |pod-1  \| |# )+)", b"", raw)
        digits = re.sub(rb"[^0-9]", b"", bare).decode()
        records = list(scan(io.BytesIO(raw)))
        for record in records:
            for text in printed(record):
                assert re.sub("[^0-9]", "", text) in digits, (text, raw)
        boots = assemble(records).boots
        assert len(merged(boots)) <= sum(len(figure_list(boot)) for boot in boots)


@pytest.mark.parametrize("line_end", [b"\n", b"\r\n"], ids=["lf", "crlf"])
def test_a_line_end_anywhere_in_a_word_or_number_changes_no_figure(line_end: bytes) -> None:
    """Numbers and dtypes are whole again, and none is reported by half."""
    draw, invented, lost = random.Random(10), [], []
    for raw in LOGS:
        said = _flat(raw)
        inside = [
            at for at in range(1, len(raw)) if raw[at - 1 : at].isalnum() and re.match(rb"[\w.,-]", raw[at : at + 1])
        ]
        for at in draw.sample(inside, min(len(inside), 30)):
            cut = _flat(raw[:at] + line_end + raw[at:])
            invented += [(raw[at - 20 : at], raw[at : at + 20], cut - said)] if cut - said else []
            lost += [(raw[at - 20 : at], raw[at : at + 20], said - cut)] if said - cut else []
    assert not invented
    assert len(lost) <= 2


def _flat(raw: bytes) -> set[tuple[str, object]]:
    said = merged(assemble(scan(io.BytesIO(raw))).boots)
    return {(name, one) for name, value in said.items() for one in (value if isinstance(value, list) else [value])}
