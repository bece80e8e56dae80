"""Reading servers: in bounded time and memory, from this host alone, and never more than one error line."""

import contextlib
import http.server
import itertools
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from command_line import run
from hypothesis import given
from hypothesis import strategies as st

from hybridcalc.errors import InputError
from hybridcalc.live import scrape
from hybridcalc.live.fetch import LARGEST_BYTES
from hybridcalc.live.watch import Missed, Moment, Tally, watch

PREFIXES = ("sglang:", "vllm:", "llamacpp:")
OFFERED = {"sglang:": ("server_info",), "vllm:": (), "llamacpp:": ("slots", "props")}
EXAMPLE = Path(__file__).parents[2] / "examples" / "kimi-k3-metrics.txt"


class Server(http.server.BaseHTTPRequestHandler):
    """A server that plays SGLang, moves away, asks for a token, or never ends."""

    asked: list[tuple[str, str | None]]

    def do_GET(self) -> None:
        type(self).asked.append((self.path, self.headers.get("Authorization")))
        status, headers, body = self.answer()
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        with contextlib.suppress(OSError):  # the reader may have had enough
            self.wfile.write(body)

    def answer(self) -> tuple[int, dict[str, str], bytes]:
        if self.path == "/metrics":
            return 200, {}, EXAMPLE.read_bytes()
        if self.path == "/server_info":
            return 200, {}, json.dumps({"version": "0.5.23"}).encode()
        if self.path == "/away/metrics":
            return 302, {"Location": "http://localhost:1/metrics"}, b""
        if self.path == "/closed/metrics":
            return 401, {}, b""
        if self.path == "/huge/metrics":
            return 200, {}, b"a" * (LARGEST_BYTES + 1)
        return 404, {}, b""

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def server() -> Iterator[str]:
    Server.asked = []
    serving = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Server)
    thread = threading.Thread(target=serving.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{serving.server_port}"
    serving.shutdown()
    serving.server_close()


def test_a_server_is_asked_for_its_metrics_and_documents(server: str) -> None:
    found = scrape.read(server, OFFERED, {"Authorization": "Bearer secret"})
    assert found.metrics["sglang:num_running_reqs"][0].value == 51
    assert found.documents == {"server_info": {"version": "0.5.23"}}
    assert Server.asked == [(path, "Bearer secret") for path in ("/metrics", "/server_info")]


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("/away", "redirected to another host"),
        ("/closed", "HTTP 401"),
        ("/nothing", "HTTP 404"),
        ("/huge", "more than 16 MiB"),
    ],
)
def test_what_a_server_does_wrong_is_one_line(server: str, path: str, message: str) -> None:
    code, out, err = run("live", server + path, "--header", "Authorization: Bearer secret")
    assert (code, out) == (2, "")
    assert message in err
    assert len(err.splitlines()) <= 2
    assert "secret" not in err


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"<!DOCTYPE html><p>sign in</p>", "a page, no metrics"),
        (b"", "no metric of a server"),
        (b"\xff\xfe\x00", "not UTF-8"),
        (b"sglang:num_running_reqs{a=", "text:1: no sample"),
        (b"up 1\nsglang:num_running_reqs{} x\n", "text:2: no sample"),
        (b"sglang:num_running_reqs NaN\n", "no metric of a server"),
        (b"sglang:num_running_reqs 1\n" * 2, "text: sglang:num_running_reqs stands twice with the same labels"),
        (b"{" * 100_000, "neither metrics nor a JSON document"),
        (b"go_goroutines 7\n", "wanted: /metrics with sglang:"),
        (b'sglang:num_running_reqs{a="' + b"x" * 5000 + b'"} 1\n', "text:1: more than 4,096 characters in a line"),
        (b"".join(b'sglang:x{dp_rank="%d"} 1\n' % rank for rank in range(90_000)), "more than 2 MiB of samples"),
    ],
)
def test_hostile_texts_are_refused(text: bytes, message: str) -> None:
    with pytest.raises(InputError) as raised:
        scrape.of_text("text", text, PREFIXES)
    assert message in f"{raised.value.message} {raised.value.fix}"


@given(st.binary(max_size=300))
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    for text in (data, b"sglang:num_running_reqs" + data, b'sglang:mamba_usage{dp_rank="' + data):
        try:
            scrape.of_text("text", text, PREFIXES)
        except InputError:
            continue


@pytest.mark.parametrize(
    "url", ["ftp://host/", "http://", "http://host:99999/", "https://[::1", "file:///etc/passwd", "http://:80/"]
)
def test_only_urls_of_servers_are_asked(url: str) -> None:
    with pytest.raises(InputError, match="no URL of a server"):
        scrape.read(url, OFFERED, {})


def test_a_header_is_never_quoted() -> None:
    code, _, err = run("live", "x", "--header", "secret\x01token")
    assert code == 2
    assert "secret" not in err
    assert "header 1 is not NAME: VALUE" in err


def test_a_file_beside_the_metrics_says_the_release(tmp_path: Path) -> None:
    info = tmp_path / "server_info.json"
    info.write_text('{"version": "0.5.23"}')
    code, out, _ = run("live", str(EXAMPLE), str(info), "--json")
    assert code == 0
    assert json.loads(out)["engine_version"] == "0.5.23"


def test_a_watch_counts_what_grew_and_what_bound() -> None:
    from test_verdict import live, metrics

    def text(number: int) -> str:
        figures = {
            "num_requests_running": 10.0,
            "num_requests_waiting": number % 2,
            "kv_cache_usage_perc": 0.5,
            "num_preemptions_total": 10 * (number // 3),
        }
        return metrics("vllm:", figures)

    numbers, clock = itertools.count(), itertools.count()

    def look() -> Any:
        number = next(numbers)
        if number == 2:
            raise InputError("the server starts again")
        return live(text(number))

    taken = list(watch(look, 1.0, most=4, clock=lambda: float(next(clock)), sleep=lambda _: None))
    moments = [moment for moment in taken if isinstance(moment, Moment)]
    assert [one.why for one in taken if isinstance(one, Missed)] == ["the server starts again"]
    tally = Tally()
    for moment in moments:
        tally.add(moment)
    assert [moment.live.queued for moment in moments] == [0, 1, 1]
    assert [moment.live.workers[0].counters["preempted"] for moment in moments] == [0, 0, 10]
    found = tally.to_dict()
    assert found["scrapes"] == 3
    assert found["bound"] == {"none": 0.3333, "other": 0.3333, "blocks": 0.3333}
    assert found["figures"]["requests_queued"] == {"min": 0, "mean": pytest.approx(0.6667, abs=1e-4), "max": 1}


def test_a_watch_that_never_reads_anything_fails() -> None:
    def look() -> Any:
        raise InputError("nothing")

    with pytest.raises(InputError, match="nothing"):
        list(watch(look, 1.0, most=3, sleep=lambda _: None))
    with pytest.raises(InputError, match="too short"):
        list(watch(look, 0.0))


def test_a_watched_server_ends_in_a_summary(server: str, tmp_path: Path) -> None:
    code, out, _ = run("live", server, "--watch", "100ms", "--scrapes", "2")
    assert code == 0
    assert out.count("the state pool binds") >= 2
    assert "bound, of 2 scrapes over 0 s: state 100 %" in out
    ends = [line for line in out.splitlines() if " s  the state pool binds" not in line]
    assert len(ends) <= 12
    assert any("state usage" in line and "at each scrape" in line for line in ends)
    code, out, _ = run("live", server, "--watch", "100ms", "--scrapes", "2", "--jsonl")
    assert [json.loads(line)["binding"] for line in out.splitlines()[:2]] == ["state", "state"]
    picture = tmp_path / "pools.svg"
    code, _, err = run("live", server, "--watch", "100ms", "--scrapes", "2", "--save", str(picture))
    assert (code, err) == (0, "")
    assert picture.read_text().startswith("<svg")


def test_pools_over_time_are_shaded_where_requests_wait() -> None:
    from test_verdict import live

    from hybridcalc.live.view import over_time

    text = EXAMPLE.read_text()
    waits, idle = live(text), live(text.replace("} 12.0", "} 0.0"))
    chart = over_time([Moment(float(at), waits if 2 <= at < 5 else idle) for at in range(10)])
    assert [(band.low, band.high, band.label, band.role) for band in chart.bands] == [
        (2.0, 5.0, "the state pool binds", "state")
    ]
    assert chart.told == "10 scrapes over 9 s; shaded while requests wait: the state pool 30 %"
    assert [round(series.points[0][1]) for series in chart.series] == [79, 35]
    assert (chart.y.low, chart.y.high) == (0, 100)


def test_moments_of_one_scrape_have_no_picture() -> None:
    from test_verdict import live

    from hybridcalc.live.view import view

    found = live(EXAMPLE.read_text())
    assert not view(found, [Moment(0.0, found)]).pictures
    assert list(view(found, [Moment(0.0, found), Moment(1.0, found)]).pictures) == ["pools"]
