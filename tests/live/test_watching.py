"""A watch on a terminal is one table drawn anew, elsewhere a line a scrape; Ctrl-C ends either with the summary."""

import json
import os
import pty
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

EXAMPLE = (Path(__file__).parents[2] / "examples" / "kimi-k3-metrics.txt").read_bytes()
MAIN = [sys.executable, "-c", "import sys; from hybridcalc.cli import main; sys.exit(main())", "live"]
ENOUGH = 4
"""Scrapes after which a watch is ended."""


@pytest.fixture
def server() -> Iterator[tuple[str, threading.Event]]:
    """A server that fails every third time, and an event once it has been asked often enough."""
    enough, asked = threading.Event(), []

    class Metrics(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            found = self.path == "/metrics"
            asked.append(found)
            times = sum(asked)
            self.send_response(503 if found and times % 3 == 2 else 200 if found else 404)
            self.end_headers()
            if found:
                self.wfile.write(EXAMPLE.replace(b"} 12.0", b"} 0.0") if times % 2 else EXAMPLE)
            if times > ENOUGH:
                enough.set()

        def log_message(self, *_: Any) -> None:
            pass

    serving = ThreadingHTTPServer(("127.0.0.1", 0), Metrics)
    threading.Thread(target=serving.serve_forever, args=(0.01,), daemon=True).start()
    yield f"http://127.0.0.1:{serving.server_port}", enough
    serving.shutdown()
    serving.server_close()


def watched(url: str, enough: threading.Event, *words: str, terminal: bool) -> tuple[int, str]:
    """Exit code and output of a watch that Ctrl-C ends."""
    near, far = pty.openpty() if terminal else os.pipe()
    env = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "NO_COLOR", "FORCE_COLOR")}
    running = subprocess.Popen(
        [*MAIN, url, "--watch", "100ms", *words],
        stdin=subprocess.DEVNULL,
        stdout=far,
        stderr=subprocess.STDOUT,
        env={**env, "TERM": "xterm-256color", "COLUMNS": "80"},
        start_new_session=True,
    )
    os.close(far)
    parts: list[bytes] = []

    def read() -> None:
        try:
            while part := os.read(near, 65536):
                parts.append(part)
        except OSError:  # a terminal whose other end is closed
            return

    reader = threading.Thread(target=read)
    reader.start()
    assert enough.wait(60)
    running.send_signal(signal.SIGINT)
    code = running.wait(60)
    reader.join()
    os.close(near)
    return code, b"".join(parts).decode()


def test_a_terminal_shows_one_table_that_is_drawn_anew(server: tuple[str, threading.Event]) -> None:
    code, out = watched(*server, terminal=True)
    assert code == 0
    assert out.count("requests running") > 2  # drawn at each scrape
    assert "\x1b[2K" in out or "\x1b[1A" in out
    table, _, end = out.rpartition("\x1b[2K")
    assert "Ctrl-C ends it" in table
    plain = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", end)
    assert "bound, of" in plain
    assert "could not be read" in plain
    assert all(len(line) <= 80 for line in plain.splitlines())


def test_elsewhere_it_is_a_line_a_scrape(server: tuple[str, threading.Event]) -> None:
    code, out = watched(*server, terminal=False)
    assert code == 0
    assert "\x1b" not in out
    lines = [line for line in out.splitlines() if re.match(r" +\d+ s  ", line)]
    assert len(lines) >= ENOUGH
    assert any("not read: http" in line and "HTTP 503" in line for line in lines)
    ends = [line for line in out.splitlines() if line not in lines]
    assert len(ends) <= 12
    (bound,) = [line for line in ends if "bound, of" in line]
    assert {"none 50 %", "state 50 %", "could not be read"} & set(re.split(r"[,;:] | more ", bound))


def test_a_document_is_whole_where_it_is_ended(server: tuple[str, threading.Event]) -> None:
    code, out = watched(*server, "--json", terminal=False)
    assert code == 0
    summary = json.loads(out)["summary"]
    assert summary["scrapes"] >= 2
    assert summary["failed"] >= 1
    assert sum(summary["bound"].values()) == pytest.approx(1, abs=0.001)


def test_lines_and_a_picture_are_whole_where_it_is_ended(server: tuple[str, threading.Event], tmp_path: Path) -> None:
    code, out = watched(*server, "--jsonl", "--save", str(tmp_path / "pools.svg"), terminal=False)
    assert code == 0
    lines = [json.loads(line) for line in out.splitlines() if line.startswith("{")]
    assert all(line["K"] == 257 for line in lines[:-1])
    assert lines[-1]["summary"]["scrapes"] == len(lines) - 1
    assert (tmp_path / "pools.svg").read_text().startswith("<svg")
