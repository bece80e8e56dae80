"""A server over time: scrapes at an interval, counters as they grew between them, and which pool bound how long."""

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from hybridcalc.errors import InputError
from hybridcalc.live.scrape import NotRead
from hybridcalc.live.verdict import Live, binding
from hybridcalc.live.worker import BLOCKS, KV, STATE, Worker

NOTHING = "none"
"""What binds where no request waits."""
SHORTEST_SECONDS = 0.1
MOST_KEPT = 100_000
"""Moments kept; of a longer watch every second one is let go, again and again."""


class Moment(NamedTuple):
    """One scrape: when, in seconds, and what it came to."""

    at: float
    live: Live


class Missed(NamedTuple):
    """A scrape that failed: when, and why."""

    at: float
    why: str


def watch(
    look: Callable[[], Live],
    every: float,
    *,
    most: int | None = None,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> Iterator[Moment | Missed]:
    """A scrape each ``every`` seconds, ``most`` of them or without an end. Counters are what they grew by since the
    last one. A scrape that fails is missed: servers restart. Raises what is no server's fault at the first, and at the
    end the last failure where nothing was ever read.
    """
    if every < SHORTEST_SECONDS:
        raise InputError(f"--watch {every} s is too short", fix=f"at least {SHORTEST_SECONDS} s")
    before: Live | None = None
    failed: InputError | None = None
    taken = 0
    while most is None or taken < most:
        started = clock()
        try:
            found = look()
        except InputError as error:
            if before is None and not isinstance(error, NotRead):
                raise
            failed = error
            yield Missed(started, str(error))
        else:
            yield Moment(started, _grown(before, found))
            before = found
        taken += 1
        if most is None or taken < most:
            sleep(max(0.0, every - (clock() - started)))
    if before is None and failed is not None:
        raise failed


def _grown(before: Live | None, found: Live) -> Live:
    """The same with counters as they grew, and what binds where requests lost their place meanwhile."""
    if before is None:
        return found
    kinds = {(one.engine, one.workers[0].model): one for one in (before, *before.others)}
    shown = tuple(_since(kinds.get((one.engine, one.workers[0].model)), one) for one in (found, *found.others))
    return replace(shown[0], others=shown[1:])


def _since(before: Live | None, found: Live) -> Live:
    """Counters of a server that started again count from zero; those of one that was not read before are not growth."""
    held = {(one.source, one.name): one.counters for one in before.workers} if before is not None else {}
    workers = []
    for worker in found.workers:
        old = held.get((worker.source, worker.name), worker.counters if before is not None else {})
        grown = {
            name: now - old.get(name, 0) if now >= old.get(name, 0) else now for name, now in worker.counters.items()
        }
        workers.append(worker._replace(counters=grown))
    slots = found.planned.get("slots_per_request")
    verdicts = [
        binding(one, slots, preempted=held.get((one.source, one.name)) is not None and _lost(one)) for one in workers
    ]
    since = found.since if before is None else "the last scrape"
    return replace(found, workers=tuple(workers), verdicts=tuple(verdicts), since=since)


def _lost(worker: Worker) -> bool:
    """Whether requests lost their place since the last scrape."""
    return any(worker.counters.get(name, 0) > 0 for name in ("preempted", "retracted"))


class Kept:
    """Moments of a watch, thinned out where they are many."""

    def __init__(self) -> None:
        """None yet."""
        self.moments: list[Moment] = []
        self.last: Moment
        self._stride, self._seen = 1, 0

    def add(self, moment: Moment) -> None:
        """Keep one."""
        self.last = moment
        if self._seen % self._stride == 0:
            self.moments.append(moment)
        self._seen += 1
        if len(self.moments) > MOST_KEPT:
            del self.moments[1::2]
            self._stride *= 2


class Tally:
    """Least, mean and most of every figure over a watch, how often each pool bound, and scrapes that failed."""

    def __init__(self) -> None:
        """Nothing yet."""
        self.scrapes, self.failed = 0, 0
        self.first: float | None = None
        self.last = 0.0
        self.now: dict[str, float] = {}
        self._figures: dict[str, tuple[float, float, float, int]] = {}
        self._bound: dict[str, int] = {}

    def add(self, moment: Moment) -> None:
        """Count one scrape."""
        self.seconds(moment.at)
        self.last, self.scrapes, self.now = moment.at, self.scrapes + 1, dict(_figures(moment.live))
        for name, value in self.now.items():
            least, total, most, count = self._figures.get(name, (value, 0.0, value, 0))
            self._figures[name] = min(least, value), total + value, max(most, value), count + 1
        bound = moment.live.binding or NOTHING
        self._bound[bound] = self._bound.get(bound, 0) + 1

    def miss(self) -> None:
        """Count a scrape that failed."""
        self.failed += 1

    def seconds(self, at: float) -> float:
        """How long after the first scrape, read or not."""
        self.first = at if self.first is None else self.first
        return at - self.first

    def to_dict(self) -> dict[str, Any]:
        """The key ``summary`` of ``live --watch --json``."""
        return {
            "scrapes": self.scrapes,
            "failed": self.failed,
            "seconds": round(max(0.0, self.last - (self.first or 0.0)), 3),
            "figures": {
                name: {"min": least, "mean": round(total / count, 4), "max": most}
                for name, (least, total, most, count) in self._figures.items()
            },
            "bound": {name: round(count / self.scrapes, 4) for name, count in self._bound.items()},
        }


def _figures(live: Live) -> Iterator[tuple[str, float]]:
    """The figures of a moment by name: those that are known."""
    yield "requests_running", live.running
    yield "requests_queued", live.queued
    for pool in (STATE, KV, BLOCKS):
        share = live.share(pool)
        if share is not None:
            yield f"{pool}_usage", round(share, 6)
    for name, held in (("slots_per_request_held", live.each(STATE)), ("tokens_per_request", live.each(KV))):
        if held is not None:
            yield name, round(held, 4)
    if live.hit_rate is not None:
        yield "hit_rate", round(live.hit_rate, 6)


def figure(name: str, value: float) -> str:
    """A figure of a watch in few characters, shares in percent."""
    if name.endswith(("_usage", "_rate")):
        return f"{100 * value:.0f} %"
    return f"{value:,.1f}" if name.startswith("slots") else f"{value:,.0f}"


def label(name: str) -> str:
    """The name of a figure in words."""
    return name.replace("_", " ").replace("kv ", "KV ")


def bound_text(summary: Mapping[str, Any]) -> str:
    """What bound how long, and scrapes that failed."""
    shares = ", ".join(f"{name} {100 * share:.0f} %" for name, share in summary["bound"].items())
    failed = f"; {summary['failed']:,} more could not be read" if summary["failed"] else ""
    many = "1 scrape" if summary["scrapes"] == 1 else f"{summary['scrapes']:,} scrapes"
    return f"bound, of {many} over {summary['seconds']:,.0f} s: {shares or 'nothing'}{failed}"
