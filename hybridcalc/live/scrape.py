"""What a running server says of itself: samples in Prometheus' text format, and documents beside them.

A source is a file, ``-`` for stdin, or a URL that the user typed: of a server (http://host:30000, whose /metrics is
read) or of its metrics. Text is read by the parser of prometheus-client, no line of it that is no figure of an engine.
Bounds: 16 MiB and 5 s a source, no redirect to another host, TLS verified, headers never printed.
"""

import json
import math
import sys
import time
from collections.abc import Iterator, Mapping
from typing import IO, Any, NamedTuple
from urllib.parse import urlsplit, urlunsplit

from hybridcalc.errors import InputError, quoted

LARGEST_BYTES = 2**24
LONGEST_SECONDS = 5.0
LARGEST_FIGURE = 2.0**62
DOCUMENTS = ("server_info", "slots", "props")
"""What servers offer beside their metrics, by path."""


class Sample(NamedTuple):
    """One figure of a metric, and its labels."""

    value: float
    labels: Mapping[str, str]


class Scrape(NamedTuple):
    """One source at one time: every metric of an engine by its name, and the documents beside it."""

    source: str
    metrics: Mapping[str, tuple[Sample, ...]]
    documents: Mapping[str, Any]

    def prefixed(self, prefix: str) -> bool:
        """Whether there is a metric of that prefix."""
        return any(name.startswith(prefix) for name in self.metrics)


def read(source: str, prefixes: tuple[str, ...], headers: Mapping[str, str]) -> Scrape:
    """A source with the metrics of ``prefixes``. Raises InputError for what cannot be read, or says nothing of them."""
    if "://" not in source:
        return of_text(source, _file(source), prefixes)
    base = _checked(source)
    text = _fetch(base if base.endswith("/metrics") else base.rstrip("/") + "/metrics", headers)
    scrape = of_text(source, text, prefixes)
    root = base.removesuffix("/metrics").rstrip("/")
    found = {}
    for path in DOCUMENTS:
        try:
            found[path] = json.loads(_fetch(f"{root}/{path}", headers))
        except (InputError, ValueError, RecursionError):
            continue  # not offered, which is no fault
    return scrape._replace(documents=found)


def of_text(source: str, data: bytes, prefixes: tuple[str, ...]) -> Scrape:
    """A text in Prometheus' format, or a document of a server. Raises InputError for anything else."""
    name = "stdin" if source == "-" else source
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        raise InputError(f"{name}: not UTF-8 at byte {error.start:,}", fix="give the text of /metrics") from None
    if text.lstrip()[:1] in ("{", "["):
        return Scrape(source, {}, _document(name, text))
    found: dict[str, list[Sample]] = {}
    for metric, value, labels in _samples(name, text, prefixes):
        if math.isfinite(value) and abs(value) <= LARGEST_FIGURE:
            found.setdefault(metric, []).append(Sample(value, labels))
    if not found:
        what = "a page, no metrics" if text.lstrip()[:1] == "<" else "no metric of a server known here"
        wanted = ", ".join(f"{prefix}..." for prefix in prefixes)
        raise InputError(f"{name}: {what}", fix=f"wanted: /metrics with {wanted}")
    return Scrape(source, {metric: tuple(samples) for metric, samples in found.items()}, {})


def _samples(name: str, text: str, prefixes: tuple[str, ...]) -> Iterator[tuple[str, float, Mapping[str, str]]]:
    try:
        from prometheus_client.parser import text_string_to_metric_families
    except ImportError:
        raise InputError(
            "reading metrics needs the library prometheus-client", fix="pip install 'hybridcalc[live]'"
        ) from None
    for number, line in enumerate(text.splitlines(), 1):
        if not line.startswith(prefixes):
            continue
        try:
            for family in text_string_to_metric_families(line + "\n"):
                for sample in family.samples:
                    yield sample.name, float(sample.value), sample.labels
        except (ValueError, IndexError, KeyError):
            raise InputError(f"{name}:{number}: no sample in Prometheus' format: {quoted(line[:60])}") from None


def _document(name: str, text: str) -> Mapping[str, Any]:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        raise InputError(f"{name}: neither metrics nor a JSON document") from None
    if isinstance(found, list):
        return {"slots": found}
    if "default_generation_settings" in found or "total_slots" in found:
        return {"props": found}
    return {"server_info": found}


def _file(source: str) -> bytes:
    if source == "-":
        return _bounded(sys.stdin.buffer, "stdin", None)
    try:
        with open(source, "rb") as opened:
            return _bounded(opened, source, None)
    except (OSError, ValueError) as error:
        raise InputError(f"{quoted(source)}: {getattr(error, 'strerror', None) or 'no file name'}") from None


def _bounded(opened: IO[bytes], name: str, until: float | None) -> bytes:
    parts, size = [], 0
    while part := opened.read(2**16):
        size += len(part)
        if size > LARGEST_BYTES:
            raise InputError(f"{name}: more than {LARGEST_BYTES // 2**20} MiB", fix="give one server's /metrics")
        if until is not None and time.monotonic() > until:
            raise InputError(f"{name}: not read within {LONGEST_SECONDS:.0f} s")
        parts.append(part)
    return b"".join(parts)


def _checked(url: str) -> str:
    """A URL of http or https without its fragment. Raises InputError."""
    try:
        parts = urlsplit(url)
        whole = bool(parts.hostname) and (parts.port is None or parts.port > 0)
    except ValueError:
        whole = False
    if not whole or parts.scheme not in ("http", "https"):
        raise InputError(f"{quoted(url)}: no URL of a server", fix="write http://HOST:PORT or https://HOST")
    return urlunsplit((parts.scheme, parts.netloc, parts.path, parts.query, ""))


def _fetch(url: str, headers: Mapping[str, str]) -> bytes:
    from http.client import HTTPException
    from urllib.error import HTTPError, URLError
    from urllib.request import HTTPRedirectHandler, ProxyHandler, Request, build_opener

    host = urlsplit(url).netloc

    class SameHost(HTTPRedirectHandler):
        def redirect_request(self, *asked: Any) -> Any:
            if urlsplit(asked[-1]).netloc != host or urlsplit(asked[-1]).scheme != urlsplit(url).scheme:
                raise InputError(f"{url}: redirected to another host, which is not asked")
            return super().redirect_request(*asked)

    until = time.monotonic() + LONGEST_SECONDS
    try:
        opener = build_opener(SameHost, ProxyHandler({}))
        with opener.open(Request(url, headers=dict(headers)), timeout=LONGEST_SECONDS) as answer:  # noqa: S310  checked
            return _bounded(answer, url, until)
    except HTTPError as error:
        fix = "add --header 'Authorization: Bearer ...'" if error.code in (401, 403) else ""
        raise InputError(f"{url}: HTTP {error.code}", fix=fix) from None
    except (URLError, OSError, HTTPException, ValueError) as error:
        reason = getattr(error, "reason", error)
        raise InputError(f"{url}: {str(reason)[:120] or type(error).__name__}", fix="is the server up?") from None
