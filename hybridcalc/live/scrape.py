"""What a running server says of itself: samples in Prometheus' text format, and documents beside them.

A source is a file, ``-`` for stdin, or a URL that the user typed: of a server (http://host:30000, whose /metrics is
read) or of its metrics. Text is read by the parser of prometheus-client, no line of it that is no figure of an engine.
Bounds: 16 MiB a text, 5 s for all of a source (fetch.py).
"""

import json
import math
import re
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import IO, Any, NamedTuple

from hybridcalc.errors import InputError, quoted
from hybridcalc.live.fetch import LARGEST_BYTES, LONGEST_SECONDS, checked, fetch, shown, too_large

LONGEST_LINE, MOST_CHARACTERS = 2**12, 2**21
"""Characters of a sample, and of all samples of engines, that are read: the parser's time grows with the square of a
line. A server with eight ranks has a tenth of them.
"""
BUCKET = "_bucket"
"""What names of a histogram's parts end in, of which none is read."""
MOST_AT_ONCE = 32
"""Sources that are read at the same time."""
APART = "give the text of each server as a file of its own"


_HOST = re.compile(r"[A-Za-z0-9.-]{1,100}:[0-9]{1,5}(/[\x21-\x7e]{0,100})?")
"""A host and its port, typed where a file or a URL is wanted."""


class NotRead(InputError):
    """A server that gives no metrics now, and may later."""


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


def read_all(
    sources: Sequence[str], offered: Mapping[str, tuple[str, ...]], headers: Mapping[str, str]
) -> tuple[list[Scrape], list[NotRead]]:
    """Every source at once, in the order given, and why servers beside them were not read.

    Arguments and errors as of `read`; the first error is raised, NotRead where no source is read.
    """

    def one(source: str) -> Scrape | NotRead:
        try:
            return read(source, offered, headers)
        except NotRead as error:
            return error

    if len(sources) == 1:
        found = [one(sources[0])]
    else:
        from concurrent.futures import ThreadPoolExecutor

        with ThreadPoolExecutor(min(len(sources), MOST_AT_ONCE)) as readers:
            found = list(readers.map(one, sources))
    missed = [each for each in found if isinstance(each, NotRead)]
    if not any(isinstance(each, Scrape) and each.metrics for each in found) and missed:
        raise missed[0]
    return [each for each in found if isinstance(each, Scrape)], missed


def read(source: str, offered: Mapping[str, tuple[str, ...]], headers: Mapping[str, str]) -> Scrape:
    """A source with the metrics whose prefixes ``offered`` has, and the documents beside them that it names for each.

    Raises InputError for what cannot be read, or says nothing of them; NotRead where that is a server's fault.
    """
    if "://" not in source:
        return of_text(source, _file(source), tuple(offered))
    parts, until = checked(source), time.monotonic() + LONGEST_SECONDS
    root = parts.path.rstrip("/").removesuffix("/metrics").rstrip("/")
    metrics = parts._replace(path=f"{root}/metrics")
    _parser()
    try:
        scrape = of_text(shown(metrics), fetch(metrics, headers, until), tuple(offered))._replace(source=shown(parts))
    except InputError as error:
        raise NotRead(error.message, fix=error.fix) from None
    found = {}
    for path in dict.fromkeys(path for prefix, paths in offered.items() if scrape.prefixed(prefix) for path in paths):
        try:
            found[path] = json.loads(fetch(parts._replace(path=f"{root}/{path}"), headers, until))
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
    seen = set()
    for metric, value, labels in _samples(name, text, prefixes):
        if math.isnan(value):
            continue
        key = metric, frozenset(labels.items())
        if key in seen:
            raise InputError(f"{name}: {metric} stands twice with the same labels", fix=APART)
        seen.add(key)
        found.setdefault(metric, []).append(Sample(value, labels))
    if not found:
        what = "a page, no metrics" if text.lstrip()[:1] == "<" else "no metric of a server known here"
        wanted = ", ".join(f"{prefix}..." for prefix in prefixes)
        raise InputError(f"{name}: {what}", fix=f"wanted: /metrics with {wanted}")
    return Scrape(source, {metric: tuple(samples) for metric, samples in found.items()}, {})


def _parser() -> Callable[[str], Iterable[Any]]:
    try:
        from prometheus_client.parser import text_string_to_metric_families
    except ImportError:
        raise InputError(
            "reading metrics needs the library prometheus-client", fix="pip install 'hybridcalc[live]'"
        ) from None
    return text_string_to_metric_families


def _samples(name: str, text: str, prefixes: tuple[str, ...]) -> Iterator[tuple[str, float, Mapping[str, str]]]:
    families = _parser()
    taken = 0
    for number, line in enumerate(text.splitlines(), 1):
        if not line.startswith(prefixes) or line.partition("{")[0].endswith(BUCKET):
            continue
        taken += len(line)
        if len(line) > LONGEST_LINE or taken > MOST_CHARACTERS:
            what = f"{LONGEST_LINE:,} characters in a line" if len(line) > LONGEST_LINE else "2 MiB of samples"
            raise InputError(f"{name}:{number}: more than {what}", fix="give one server's /metrics")
        try:
            for family in families(line + "\n"):
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
        return _bounded(sys.stdin.buffer, "stdin")
    try:
        with open(source, "rb") as opened:
            return _bounded(opened, source)
    except (OSError, ValueError) as error:
        fix = f"a server is http://{source}" if _HOST.fullmatch(source) else ""
        raise InputError(f"{quoted(source)}: {getattr(error, 'strerror', None) or 'no file name'}", fix=fix) from None


def _bounded(opened: IO[bytes], name: str) -> bytes:
    data = opened.read(LARGEST_BYTES + 1)
    if len(data) > LARGEST_BYTES:
        raise too_large(name)
    return data
