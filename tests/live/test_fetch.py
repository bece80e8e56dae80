"""Fetching: bounded in time and size whatever a server does, from the host that was typed alone, secrets unprinted."""

import contextlib
import itertools
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from command_line import run

from hybridcalc.live import fetch, scrape

METRICS = b"sglang:num_running_reqs 3\nsglang:num_queue_reqs 0\n"
FOUND = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(METRICS) + METRICS
PEM = Path(__file__).parents[1] / "data" / "tls" / "self-signed.pem"
SECRET = "hunter2"
Answer = Callable[[bytes], Iterator[bytes]]


@contextlib.contextmanager
def answering(answer: Answer, tls: ssl.SSLContext | None = None) -> Iterator[int]:
    """The port of a server that sends what ``answer`` yields for a request's first line, as slowly as that does."""
    listening = socket.create_server(("127.0.0.1", 0))
    over = threading.Event()

    def serve(taken: socket.socket) -> None:
        with contextlib.suppress(OSError), taken, tls.wrap_socket(taken, server_side=True) if tls else taken as whole:
            asked = whole.recv(4096).split(b"\r\n")[0]
            for part in answer(asked):
                if over.is_set():
                    return
                whole.sendall(part)
            over.wait(0.01)

    def accept() -> None:
        with contextlib.suppress(OSError):
            while True:
                threading.Thread(target=serve, args=(listening.accept()[0],), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    try:
        yield listening.getsockname()[1]
    finally:
        over.set()
        listening.close()


def always(*parts: bytes) -> Answer:
    return lambda asked: iter(parts)


def slowly(first: bytes, part: bytes) -> Answer:
    """A part again and again, with a pause between them that is short for one read and long for all."""

    def answer(asked: bytes) -> Iterator[bytes]:
        del asked
        yield first
        for _ in itertools.count():
            threading.Event().wait(0.01)
            yield part

    return answer


def moved(to: str) -> Answer:
    return always(f"HTTP/1.1 302 Found\r\nLocation: {to}\r\nContent-Length: 0\r\n\r\n".encode())


ENDLESS = {
    "headers that never end": slowly(b"HTTP/1.1 200 OK\r\n", b"X-A: b\r\n"),
    "one header that never ends": slowly(b"HTTP/1.1 200 OK\r\nX-A: ", b"b"),
    "a body that comes byte by byte": slowly(b"HTTP/1.1 200 OK\r\n\r\n", b"s"),
    "a chunked body that never ends": slowly(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", b"1\r\ns\r\n"),
    "interim answers that never end": slowly(b"", b"HTTP/1.1 100 Continue\r\n\r\n"),
    "nothing": slowly(b"", b""),
}


@pytest.mark.parametrize("name", ENDLESS)
def test_an_answer_that_never_ends_is_given_up(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scrape, "LONGEST_SECONDS", 0.2)
    with answering(ENDLESS[name]) as port:
        code, out, err = run("live", f"http://127.0.0.1:{port}")
    assert (code, out) == (2, "")
    assert len(err.splitlines()) <= 2
    assert "not read within" in err or "headers" in err or "header line" in err


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (always(b"HTTP/1.1 200 OK\r\n\r\n", *[b"s" * 2**20] * 17), "more than 16 MiB"),
        (always(b"garbage\r\n\r\n"), "garbage"),
        (always(b""), "without response"),
        (always(b"HTTP/1.1 200 OK\r\nContent-Length: 900\r\n\r\n" + METRICS), "the answer ends 850 B early"),
        (always(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n80\r\n" + METRICS), "is the server up"),
        (always(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n" + METRICS), "is the server up"),
        (always(b"HTTP/1.1 200 OK\r\n\r\n\xff\xfe\x00"), "not UTF-8"),
        (always(b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\n\r\n\x1f\x8b\x08\x00"), "not UTF-8"),
        (always(b"HTTP/1.1 200 OK\r\n\r\n<html>sign in</html>"), "a page, no metrics"),
        (always(b"HTTP/1.1 204 No Content\r\n\r\n"), "HTTP 204"),
        (always(b"HTTP/1.1 501 Not Implemented\r\nContent-Length: 0\r\n\r\n"), "--enable-metrics"),
        (moved("http://127.0.0.1:1/metrics"), "redirected to another host"),
        (moved("https://127.0.0.1/metrics"), "redirected to another host"),
        (moved("file:///etc/passwd"), "redirected to another host"),
        (moved("//example.com/metrics"), "redirected to another host"),
        (moved("/metrics"), "redirected more than 3 times"),
    ],
)
def test_what_a_server_does_wrong_is_said(answer: Answer, said: str) -> None:
    with answering(answer) as port:
        code, out, err = run("live", f"http://127.0.0.1:{port}", "--header", f"Authorization: Bearer {SECRET}")
    assert (code, out) == (2, "")
    assert said in err
    assert len(err.splitlines()) <= 2
    assert SECRET not in err


def test_a_move_within_the_host_is_followed() -> None:
    def answer(asked: bytes) -> Iterator[bytes]:
        yield FOUND if b" /x/metrics" in asked else b"HTTP/1.1 308 Moved\r\nLocation: /x/metrics\r\n\r\n"

    with answering(answer) as port:
        code, out, _ = run("live", f"http://127.0.0.1:{port}/metrics")
    assert code == 0
    assert "no request waits: 3 run" in out


def test_certificates_are_verified(monkeypatch: pytest.MonkeyPatch) -> None:
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(PEM)
    with answering(always(FOUND), server) as port:
        code, out, err = run("live", f"https://127.0.0.1:{port}")
        assert (code, out) == (2, "")
        assert "its certificate is not trusted: self-signed certificate" in err
        assert "SSL_CERT_FILE" in err
        monkeypatch.setenv("SSL_CERT_FILE", str(PEM))
        code, out, _ = run("live", f"https://127.0.0.1:{port}")
        assert code == 0
        assert run("live", f"http://127.0.0.1:{port}")[0] == 2


@pytest.mark.parametrize(
    "host", ["user:{secret}@127.0.0.1:1", "{secret}@127.0.0.1:1", "u:{secret}/x@127.0.0.1", "u:{secret}@"]
)
def test_a_password_in_a_url_is_refused_unprinted(host: str) -> None:
    code, out, err = run("live", "http://" + host.format(secret=SECRET))
    assert (code, out) == (2, "")
    assert SECRET not in err


def test_a_token_in_a_query_is_sent_and_not_printed(tmp_path: Path) -> None:
    asked: list[bytes] = []

    def answer(line: bytes) -> Iterator[bytes]:
        asked.append(line)
        yield FOUND if b"/good" in line else b"HTTP/1.1 500 Oops\r\n\r\n"

    with answering(answer) as port:
        url = f"http://127.0.0.1:{port}/{{}}/metrics?token={SECRET}"
        bad = run("live", url.format("bad"))
        good = run("live", url.format("good"), url.format("good"), "--json")
        page = tmp_path / "live.html"
        saved = run("live", url.format("good"), url.format("good"), "--save", str(page))
    assert f"GET /bad/metrics?token={SECRET} HTTP/1.1".encode() in asked
    assert (bad[0], good[0], saved[0]) == (2, 0, 0)
    assert "HTTP 500" in bad[2]
    for text in (*bad[1:], *good[1:], *saved[1:], page.read_text()):
        assert SECRET not in text


def test_no_proxy_of_the_environment_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    with answering(always(FOUND)) as port:
        assert run("live", f"http://127.0.0.1:{port}")[0] == 0


def test_a_thread_that_is_given_up_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scrape, "LONGEST_SECONDS", 0.05)
    with answering(ENDLESS["nothing"]) as port:
        assert run("live", f"http://127.0.0.1:{port}")[0] == 2
        for thread in threading.enumerate():
            if "_read" in thread.name:
                thread.join(fetch.LONGEST_SECONDS)
                assert not thread.is_alive()
