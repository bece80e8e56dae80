"""Logs as people keep and paste them: any wrapping, any prefix, any size, any bytes."""

import gzip
import io
import json
import os
import re
import subprocess
import sys
import textwrap
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from published_boot import BOOT, CHATTER, FIGURES, KV, STATE, read, texts

from hybridcalc.bootlog.reader import AFTER_BYTES, BEFORE_BYTES, CHUNK_BYTES, read_log, scan
from hybridcalc.errors import InputError

LOGS = [path.read_bytes() for path in sorted((Path(__file__).parent.parent / "data" / "bootlogs").glob("*.log"))]


def hard_wrapped(width: int, prefix: str = "") -> str:
    """The boot as a terminal cuts it: at the column, wherever that is."""
    return "".join(f"{prefix}{line[at : at + width]}\n" for line in BOOT for at in range(0, len(line), width))


def soft_wrapped(width: int, prefix: str = "") -> str:
    """The boot as an editor wraps it: at a space where there is one."""
    return "".join(f"{prefix}{piece}\n" for line in BOOT for piece in textwrap.wrap(line, width))


def as_json(**other: str) -> str:
    return "".join(json.dumps({"log": line + "\n", **other}) + "\n" for line in hard_wrapped(50).splitlines())


BAR = "Capturing batches (bs=1 avail_mem=2.91 GB):  25%|##5       | 1/4 [00:00<00:00,  5.37it/s]"
VARIANTS = {
    "as printed": "\n".join(BOOT),
    "CRLF": "\r\n".join(BOOT) + "\r\n",
    "wrapped by a terminal": hard_wrapped(60),
    "wrapped by an editor": soft_wrapped(40),
    "wrapped, CRLF": hard_wrapped(47).replace("\n", "\r\n"),
    "indented continuation": "\n      ".join(BOOT[0].split(", ")) + "\n" + "\n      ".join(BOOT[1].split(", ")),
    "between size: and its number": "\n".join(BOOT).replace("size: ", "size:\n   "),
    "inside numbers": "\n".join(BOOT).replace("13.04", "13.\n04").replace("1167552", "1167\n552"),
    "colours": "\n".join(f"\x1b[32m{line[:26]}\x1b[0m\x1b[1;37m{line[26:]}\x1b[0m" for line in BOOT),
    "grep --color": "\n".join(re.sub("(?i)cache|size", "\x1b[01;31m\x1b[K\\g<0>\x1b[m\x1b[K", line) for line in BOOT),
    "colours without their escape": "\n".join(f"[01;31m{line}[0m" for line in BOOT),
    "colours in a syslog": "\n".join(f"#033[32m{line}#033[0m" for line in BOOT),
    "docker logs -t": hard_wrapped(60, "2026-02-01T00:05:03.123456789Z "),
    "containerd": hard_wrapped(60, "2026-02-01T00:05:03.123456789Z stdout P "),
    "docker compose": hard_wrapped(60, "sglang-1  | "),
    "docker compose, coloured": hard_wrapped(60, "\x1b[36msglang-1  | \x1b[0m"),
    "kubectl --prefix": hard_wrapped(60, "[pod/sglang-0/server] "),
    "journald": hard_wrapped(60, "Feb 01 00:05:03 gpu-node python3[812]: "),
    "journald, ISO": hard_wrapped(60, "2026-02-01T00:05:03+0000 gpu-node python3[812]: "),
    "Ray": hard_wrapped(60, "(Scheduler pid=812, ip=10.0.0.4) "),
    "grep -n": "".join(f"{n}:{line}\n" for n, line in enumerate(soft_wrapped(60).splitlines(), 40)),
    "quoted mail": hard_wrapped(60, "> > "),
    "shell comment": hard_wrapped(60, "#    "),
    "bullets and backticks": "".join(f"- `{line}`\n" for line in BOOT),
    "bold": "\n".join(BOOT).replace("max_mamba_cache_size: 257", "**max_mamba_cache_size:** **257**"),
    "table row": "\n".join("| " + line.replace(", ", " | ") + " |" for line in BOOT),
    "table rows": soft_wrapped(60, "| "),
    "escaped markdown": "\n".join(BOOT).replace("_", "\\_").replace("[", "\\["),
    "docker's JSON": as_json(stream="stderr", time="2026-02-01T00:05:03.1Z"),
    "JSON, message last": "".join(json.dumps({"level": "INFO", "message": line}) + "\n" for line in BOOT),
    "JSON with colours": "".join(json.dumps({"log": f"\x1b[32m{line}\x1b[0m\n"}) + "\n" for line in BOOT),
    "JSON in JSON": json.dumps({"line": json.dumps({"msg": "\r\n".join(BOOT)})}),
    "one JSON string": json.dumps({"stdout": hard_wrapped(70)}),
    "JSON documents on one line": "".join(json.dumps({"log": line, "n": 1}) for line in BOOT),
    "a notebook": json.dumps(hard_wrapped(60).splitlines(keepends=True), indent=1),
    "Python strings": "".join(f"    {line!r},\n" for line in hard_wrapped(60).splitlines()),
    "after a progress bar": "".join(f"{BAR}\r{BAR}\r{line}\n" for line in BOOT),
    "on a progress bar's line": "".join(f"{BAR}{line}\n" for line in BOOT),
    "thousands separators": "\n".join(BOOT).replace("1167552", "1,167,552"),
    "no-break spaces": "\n".join(BOOT).replace(": ", ":\u00a0").replace(" GB", "\u202fGB"),
    "tabs": "\n".join(BOOT).replace(" ", "\t").replace("2026-02-01\t", "2026-02-01 ").replace("03\tTP", "03 TP"),
    "zero-width characters": "\ufeff" + "\n".join(BOOT).replace("_", "_\u200b"),
    "one line": " ".join(BOOT),
}  # fmt: skip


@pytest.mark.parametrize("name", VARIANTS)
def test_the_boot_is_read_however_it_was_pasted(name: str) -> None:
    """Same two records, same rank, whatever a terminal, a logger or a person did to the lines."""
    found = read(VARIANTS[name].encode())
    assert [texts(record) for record in found] == FIGURES
    assert [record.rank for record in found] == ["TP0", "TP0"]
    assert [record.kind for record in found] == ["state_pool", "kv_pool"]


@pytest.mark.parametrize("prefix", ["", "   ", "> ", "# ", "2026-02-01T00:05:03.1Z ", "sglang-1  | "])
@pytest.mark.parametrize("wrapped", [hard_wrapped, soft_wrapped])
def test_no_column_is_a_bad_one_to_wrap_at(wrapped: Callable[[int, str], str], prefix: str) -> None:
    """From 30 columns up, a cut may fall into any word, label or number."""
    for width in range(30, 140):
        found = read(wrapped(width, prefix).encode())
        assert [(texts(record), record.rank) for record in found] == [(said, "TP0") for said in FIGURES], width


@pytest.mark.parametrize("noise", ["\n", "\r\n", "\n    ", "\x1b[0m", "\\n", "\x1b[31m\x1b[K"])
def test_no_place_is_a_bad_one_for_a_cut_or_a_colour(noise: str) -> None:
    """One cut or colour code anywhere in the text behind the time stamp changes no figure."""
    text = f"{STATE}\n{KV}\n"
    for at in range(1, len(text) - 1):
        assert [texts(record) for record in read((text[:at] + noise + text[at:]).encode())] == FIGURES, at


def test_the_line_is_the_one_the_record_starts_on() -> None:
    """Counted in the file: a wrapped record has its first line, and a JSON string's inner lines do not count."""
    found = read(("chatter\n" * 70_000 + hard_wrapped(60) + json.dumps({"log": hard_wrapped(60)})).encode())
    assert [record.line for record in found] == [70_001, 70_004, 70_006, 70_006]


@pytest.mark.parametrize("around", [CHUNK_BYTES, CHUNK_BYTES - AFTER_BYTES, CHUNK_BYTES - AFTER_BYTES - BEFORE_BYTES])
@pytest.mark.parametrize("filler", [b"x", b"ordinary chatter\n"])
def test_a_record_on_a_chunk_boundary_is_found_once(around: int, filler: bytes) -> None:
    """Wherever the boundary falls into the text: not lost, not doubled, not cut, and on its line."""
    boot = "\n".join(["", *BOOT, ""]).encode()
    for offset in range(around - len(boot) - 2, around + 3, 7):
        before = (filler * (offset // len(filler) + 1))[:offset]
        found = read(before + boot + filler * 900)
        assert [texts(record) for record in found] == FIGURES
        assert [record.line for record in found] == [before.count(b"\n") + 2, before.count(b"\n") + 3]


def test_many_records_close_together_are_all_found() -> None:
    """A log of nothing else, larger than a chunk: each line once."""
    count = 2 * CHUNK_BYTES // 240
    found = read(("\n".join(BOOT) + "\n").encode() * count)
    assert [record.line for record in found] == list(range(1, 2 * count + 1))
    assert [texts(record) for record in found] == FIGURES * count


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-32"])
@pytest.mark.parametrize("pack", [bytes, gzip.compress], ids=["plain", "gzip"])
def test_a_file_is_read_in_its_encoding(tmp_path: Path, encoding: str, pack: Callable[[bytes], bytes]) -> None:
    """PowerShell writes UTF-16, log rotation gzip."""
    path = tmp_path / "boot.log"
    path.write_bytes(pack(("\r\n".join(["ready", *BOOT]) + "\r\n").encode(encoding)))
    found = list(read_log(path))
    assert [texts(record) for record in found] == FIGURES
    assert [record.line for record in found] == [2, 3]
    assert [texts(record) for record in read_log(str(path))] == FIGURES


def test_several_gzip_members_are_one_log() -> None:
    """``cat old.gz new.gz`` is a valid gzip file."""
    packed = b"".join(gzip.compress(line.encode() + b"\n") for line in BOOT)
    assert [texts(record) for record in read(packed + b"\0" * 512)] == FIGURES


def test_a_cut_gzip_file_yields_what_it_still_holds() -> None:
    packed = gzip.compress("\n".join(BOOT).encode() + b"\n" + os.urandom(5000))
    assert [texts(record) for record in read(packed[:-2500])] == FIGURES


PACKED = gzip.compress("\n".join(BOOT).encode() + b"\n" + bytes(range(256)) * 40)
_DEFLATE = zlib.compressobj(wbits=31)
BLOCK = _DEFLATE.compress(("\n".join(BOOT) + "\n").encode()) + _DEFLATE.flush(zlib.Z_FULL_FLUSH)
DAMAGE = {
    "whole": (PACKED, None),
    "padded with zeros": (PACKED + b"\0" * 512, None),
    "two members": (PACKED + PACKED, None),
    "cut": (
        PACKED[:-20],
        f"the gzip file is cut off after {len(PACKED) - 20} bytes: what came behind them is not in it",
    ),
    "cut in its checksum": (PACKED[:-5], "the gzip file is cut off"),
    "cut in the second member": (PACKED + PACKED[:5], "the gzip file is cut off"),
    "wrong checksum": (PACKED[:-8] + b"\0\0\0\0" + PACKED[-4:], "the gzip file is damaged at byte "),
    "text behind it": (PACKED + b"INFO: ready\n", "the gzip file is damaged at byte "),
    "damaged block": (
        BLOCK + b"\xff" * 20,
        f"the gzip file is damaged at byte {len(BLOCK):,}: what lies behind is not read",
    ),
}


@pytest.mark.parametrize(("packed", "remark"), DAMAGE.values(), ids=DAMAGE)
def test_a_damaged_gzip_file_is_remarked_on_and_read_up_to_the_damage(packed: bytes, remark: str | None) -> None:
    """Also what one call to zlib would have unpacked before it met the damage."""
    remarks: list[str] = []
    found = list(scan(io.BytesIO(packed), remarks))
    assert [texts(record) for record in found][:2] == FIGURES
    assert [said.startswith(remark or "") for said in remarks] == [True] * (remark is not None)


def test_a_dash_is_standard_input(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO("\n".join(BOOT).encode())))
    assert [texts(record) for record in read_log("-")] == FIGURES
    assert not sys.stdin.closed


def test_a_pipe_may_hand_out_single_bytes() -> None:
    class Slow:
        def __init__(self, raw: bytes) -> None:
            self.bytes = iter(raw)

        def read(self, size: int) -> bytes:
            return bytes(one for one, _ in zip(self.bytes, range(1), strict=False))

    assert [texts(record) for record in scan(cast(BinaryIO, Slow("\n".join(BOOT).encode("utf-16"))))] == FIGURES


def test_an_unreadable_file_is_one_short_message(tmp_path: Path) -> None:
    """The command line prints it as it is: what, where, why."""
    missing = tmp_path / "boot.txt"
    with pytest.raises(InputError) as raised:
        read_log(missing)
    assert raised.value.message == f"{missing}: no such file"
    with pytest.raises(InputError) as raised:
        read_log(tmp_path)
    assert raised.value.message == f"{tmp_path}: is a directory"
    missing.write_text("")
    with pytest.raises(InputError) as raised:
        read_log(missing / "boot.txt")
    assert raised.value.message == f"{missing}/boot.txt: cannot be read (not a directory)"
    with pytest.raises(InputError) as raised:
        read_log("")
    assert raised.value.message == "the name of the log file is empty"
    with pytest.raises(InputError) as raised:
        read_log("  ")
    assert raised.value.message == "'  ': no such file"
    with pytest.raises(InputError) as raised:
        read_log("boot\0.txt")
    assert raised.value.message == "boot?.txt: cannot be read (not a file name)"


def test_a_file_that_fails_while_it_is_read_is_an_input_error() -> None:
    """A dying disk or network mount, seen only at the first read: /proc/self/mem has nothing at address 0."""
    if not Path("/proc/self/mem").exists():
        pytest.skip("needs Linux")
    with pytest.raises(InputError, match=r"(?m)^/proc/self/mem: cannot be read \(input/output error\)$"):
        list(read_log("/proc/self/mem"))


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"\n",
        b"\0" * 5000,
        b"\xff" * 5000,
        b"\x1f\x8b",
        b"\x1f\x8b" + b"junk" * 500,
        b"\xff\xfe\0\xd8",
        b"Mamba Cache is allocated.",
        b"INFO: the server is fired up",
        b"#tokens",
        b"{" * 9000 + b"_state",
        "Mamba Cache is allocated. max_mamba_cache_size: \uff14\uff12".encode(),
    ],
)
def test_a_file_without_such_lines_has_no_records(raw: bytes) -> None:
    assert read(raw) == []


@st.composite
def mangled(draw: st.DrawFn) -> bytes:
    """Pieces of real logs, put together anyhow, then cut, coloured and flipped."""
    pieces = draw(st.lists(st.sampled_from([*LOGS, "\n".join(BOOT).encode(), b"\0\xff\x1b[", b"{%d}"]), max_size=4))
    raw = bytearray(b"".join(pieces))
    for _ in range(draw(st.integers(0, 12))):
        at = draw(st.integers(0, len(raw)))
        edit = draw(st.sampled_from(["insert", "delete", "flip", "duplicate"]))
        if edit == "insert":
            raw[at:at] = draw(
                st.sampled_from([b"\n", b"\r", b"\r\n   ", b"\\n", b"\x1b[31m", b"`", b"> ", b"\xff", b"|"])
            )
        elif edit == "delete":
            del raw[at : at + draw(st.integers(1, 60))]
        elif edit == "flip" and at < len(raw):
            raw[at] ^= 1 << draw(st.integers(0, 7))
        else:
            raw[at:at] = raw[at : at + draw(st.integers(1, 200))]
    return bytes(raw)


@given(mangled())
def test_mangled_logs_never_raise_and_never_yield_a_number_they_do_not_hold(raw: bytes) -> None:
    """Whatever happened to the text, each figure's digits stand in it in a row (but for line ends and separators)."""
    digits = re.sub(rb"[^0-9]", b"", re.sub(rb"\x1b\[[0-9]*m", b"", raw)).decode()
    for record in read(raw):
        assert texts(record), "a record says something"
        for said in texts(record):
            assert re.sub("[^0-9]", "", said) in digits
        for figure in record.sizes("conv", "ssm", "k", "v", "kv"):
            low, high = figure.interval
            assert 0 <= low <= figure.value < high


@pytest.mark.parametrize("groups", [900, 1440])
@pytest.mark.parametrize("figure", ["257", "1167552"])
def test_a_number_of_thousands_of_digits_is_read_as_one_or_as_none(figure: str, groups: int) -> None:
    """Never an error of the interpreter, which reads 4,300 digits at most."""
    endless = "1" + ",000" * groups
    found = read("\n".join(BOOT).replace(figure, endless).encode())
    counts = [record.count("slots" if record.kind == "state_pool" else "tokens") for record in found]
    read_as = 10 ** (3 * groups) if groups == 900 else None
    assert counts == [read_as if figure == "257" else 257, read_as if figure == "1167552" else 1_167_552]


@pytest.mark.parametrize("figure", ["257", "1167552"])
def test_a_number_longer_than_any_line_is_none(figure: str) -> None:
    """Its pool is read as far as it goes, if at all; the other pool as ever."""
    found = read("\n".join(BOOT).replace(figure, "1" + ",000" * 20_000).encode())
    counts = {record.count("slots" if record.kind == "state_pool" else "tokens") for record in found}
    assert int(figure) not in counts and counts <= {None, 257, 1_167_552}


@given(st.binary(max_size=3000))
def test_junk_never_raises(raw: bytes) -> None:
    read(raw)
    read(b"#tokens" + raw + b"_state" + raw)
    read(b"\x1f\x8b\x08" + raw)
    read(b"\xff\xfe" + raw)


PREFIXES = st.sampled_from(
    ["", "    ", "> ", "# ", "- ", "| ", "sglang-1  | ", "2026-02-01T00:05:03.1Z ", "2026-02-01T00:05:03.1Z stderr F ",
     "Feb  1 00:05:03 node sglang[1]: ", "[pod/a-0/b] ", "2026-02-01 00:05:03.123 | ", "\t"]
)  # fmt: skip


@given(st.sampled_from(LOGS), st.lists(PREFIXES, max_size=3).map("".join), st.sampled_from(["\n", "\r\n"]))
def test_a_prefix_on_every_line_changes_nothing(raw: bytes, prefix: str, line_end: str) -> None:
    """The same log through a logger or a quote: the same records on the same lines."""
    prefixed = line_end.join(prefix + line for line in raw.decode().split("\n"))
    assert read(prefixed.encode()) == read(raw)


@given(st.lists(st.sampled_from(LOGS), max_size=5))
def test_logs_one_after_another_are_read_one_after_another(logs: list[bytes]) -> None:
    """Several boots in one file: the records of each, and no line of one goes on in the next."""
    separate = [texts(record) for raw in logs for record in read(raw)]
    assert [texts(record) for record in read(b"\n[2026-02-01 00:05:03 TP0] next\n".join(logs))] == separate


def test_importing_it_loads_nothing_but_the_standard_library() -> None:
    """A log is read on the fast path of the command line."""
    script = (
        "import sys; before = set(sys.modules); import hybridcalc.bootlog.reader\n"
        "print(*sorted(set(sys.modules) - before - sys.stdlib_module_names))"
    )
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    names = [name for name in ran.stdout.split() if name.partition(".")[0] not in sys.stdlib_module_names]
    allowed = {"hybridcalc", "hybridcalc.units", "hybridcalc.errors", "hybridcalc.engines"}
    assert {name for name in names if not name.startswith("hybridcalc.bootlog")} == allowed


def test_records_come_as_they_are_found() -> None:
    """A caller may stop at the first one, without reading on."""

    def endless() -> Iterator[bytes]:
        yield "\n".join(BOOT).encode()
        while True:
            yield CHATTER * 1000

    class Endless:
        chunks = endless()

        def read(self, size: int) -> bytes:
            return next(self.chunks)

    assert texts(next(scan(cast(BinaryIO, Endless())))) == FIGURES[0]


@pytest.mark.parametrize(
    ("line", "kind"),
    [
        ("max_running_requests is capped to 1 by the mamba state cache", "capped"),
        ("RuntimeError: Not enough space for mamba ping pong idx", "ping_pong"),
    ],
)
def test_a_line_that_stands_alone_in_a_long_log_is_found(line: str, kind: str) -> None:
    chatter = b'INFO:     127.0.0.1:1234 - "GET /health HTTP/1.1" 200 OK\n' * 3000
    found = list(scan(io.BytesIO(chatter + line.encode() + b"\n" + chatter)))
    assert [record.kind for record in found] == [kind]


def test_blanks_behind_a_line_that_cuts_a_word() -> None:
    for blanks in ("", "   ", "\t"):
        found = read(hard_wrapped(23).replace("\n", f"{blanks}\n").encode())
        assert [texts(one) for one in found] == [texts(one) for one in read(hard_wrapped(23).encode())]
        assert len(found) == 2
