"""One document of a server over HTTP, in bounded time and memory, from the host that was typed and no other.

Every answer is read in a thread of its own, so that the whole of it (names, handshake, headers, body) ends in 5 s,
however slowly it comes; at 16 MiB it ends too. Certificates are verified against the system's authorities, or those of
SSL_CERT_FILE. Neither headers nor the query of a URL appear in a message. Proxies of the environment are not asked.
"""

import socket
import threading
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING
from urllib.parse import SplitResult, urljoin, urlsplit

from hybridcalc.errors import InputError, quoted

if TYPE_CHECKING:
    from http.client import HTTPConnection, HTTPResponse

LARGEST_BYTES = 2**24
LONGEST_SECONDS = 5.0
MOST_REDIRECTS = 3
PIECE_BYTES = 2**16
STARTS_METRICS = "SGLang serves /metrics with --enable-metrics, llama-server with --metrics"
FIXES = {
    401: "add --header 'Authorization: Bearer ...'",
    403: "add --header 'Authorization: Bearer ...'",
    404: STARTS_METRICS,
    501: STARTS_METRICS,
}
"""What is wanted where a server answers with a status."""


def checked(url: str) -> SplitResult:
    """A URL of http or https, without its fragment. Raises InputError that quotes no password."""
    try:
        parts = urlsplit(url)
        whole = bool(parts.hostname) and (parts.port is None or parts.port > 0)
    except ValueError:
        whole, parts = False, urlsplit("")
    if "@" in (parts.netloc if whole else url):
        raise InputError("a URL with a password in it is not asked", fix="--header 'Authorization: Basic ...'")
    if not whole or parts.scheme not in ("http", "https"):
        raise InputError(f"{quoted(url)}: no URL of a server", fix="write http://HOST:PORT or https://HOST")
    return parts._replace(fragment="")


def shown(parts: SplitResult) -> str:
    """A URL as messages have it: without its query, which may hold a token."""
    return parts._replace(query="", fragment="").geturl()


class _Reading:
    """One answer as it is read: the connection, so that it can be ended, and what came of it."""

    def __init__(self) -> None:
        self.connection: HTTPConnection | None = None
        self.body: bytes | None = None
        self.error: Exception | None = None
        self.over = False

    def end(self) -> None:
        """Let go of the connection, whatever it waits for."""
        self.over = True
        sock = self.connection.sock if self.connection is not None else None
        if sock is not None:
            try:
                sock.shutdown(socket.SHUT_RDWR)
            except OSError:
                return


def fetch(parts: SplitResult, headers: Mapping[str, str], until: float) -> bytes:
    """The body of a URL, read before ``until`` (time.monotonic). Raises InputError for anything else."""
    reading = _Reading()
    thread = threading.Thread(target=_read, args=(reading, parts, headers), daemon=True)
    thread.start()
    thread.join(max(0.0, until - time.monotonic()))
    if thread.is_alive():
        reading.end()
        raise InputError(f"{shown(parts)}: not read within {LONGEST_SECONDS:.0f} s", fix="is the server up?")
    if reading.error is not None:
        raise reading.error
    return reading.body or b""


def _read(reading: _Reading, parts: SplitResult, headers: Mapping[str, str]) -> None:
    from http.client import HTTPException

    try:
        reading.body = _body(reading, parts, headers)
    except InputError as error:
        reading.error = error
    except (OSError, HTTPException, ValueError) as error:
        reading.error = InputError(f"{shown(parts)}: {_reason(error)}", fix=_fix(error))


def _reason(error: Exception) -> str:
    """What went wrong, without an errno, in one line."""
    said = getattr(error, "verify_message", None) or getattr(error, "strerror", None) or str(error)
    plain = " ".join(str(said).split())[:120]
    if getattr(error, "verify_message", None):
        return f"its certificate is not trusted: {plain}"
    return plain or type(error).__name__


def _fix(error: Exception) -> str:
    return "SSL_CERT_FILE names the authority's file" if hasattr(error, "verify_message") else "is the server up?"


def _body(reading: _Reading, parts: SplitResult, headers: Mapping[str, str]) -> bytes:
    """Follow what moves within one host, then read."""
    asked = parts
    for _ in range(MOST_REDIRECTS + 1):
        connection = reading.connection = _connection(asked)
        try:
            target = asked._replace(scheme="", netloc="", path=asked.path or "/").geturl()
            connection.request("GET", target, headers={"Accept": "*/*", **headers})
            with connection.getresponse() as answer:
                if answer.status not in (301, 302, 303, 307, 308):
                    if answer.status != 200:
                        raise InputError(f"{shown(parts)}: HTTP {answer.status}", fix=FIXES.get(answer.status, ""))
                    return _bounded(reading, answer, shown(parts))
                moved = urlsplit(urljoin(asked.geturl(), answer.headers.get("Location") or ""))
        finally:
            connection.close()
        if (moved.scheme, moved.netloc) != (parts.scheme, parts.netloc):
            raise InputError(f"{shown(parts)}: redirected to another host, which is not asked")
        asked = moved._replace(fragment="")
    raise InputError(f"{shown(parts)}: redirected more than {MOST_REDIRECTS} times")


def _connection(parts: SplitResult) -> "HTTPConnection":
    from http.client import HTTPConnection, HTTPSConnection

    host = parts.hostname or ""
    if parts.scheme == "http":
        return HTTPConnection(host, parts.port, timeout=LONGEST_SECONDS)
    import ssl

    return HTTPSConnection(host, parts.port, timeout=LONGEST_SECONDS, context=ssl.create_default_context())


def _bounded(reading: _Reading, answer: "HTTPResponse", name: str) -> bytes:
    pieces, size = [], 0
    while not reading.over and (part := answer.read1(PIECE_BYTES)):
        size += len(part)
        if size > LARGEST_BYTES:
            raise too_large(name)
        pieces.append(part)
    if answer.length:
        raise InputError(f"{name}: the answer ends {answer.length:,} B early", fix="is the server up?")
    return b"".join(pieces)


def too_large(name: str) -> InputError:
    """What is said of more than is read."""
    return InputError(f"{name}: more than {LARGEST_BYTES // 2**20} MiB", fix="give one server's /metrics")
