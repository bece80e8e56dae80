"""A server over time: scrapes at an interval, counters as they grew between them, and which pool bound how long."""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from hybridcalc.errors import InputError
from hybridcalc.live.verdict import Live, binding
from hybridcalc.live.worker import BLOCKS, KV, STATE

GROWING = ("preempted", "evicted_tokens", "drafted", "accepted")
SHORTEST_SECONDS = 0.1
MOST_KEPT = 100_000
"""Moments kept; of a longer watch every second one is let go, again and again."""


class Moment(NamedTuple):
    """One scrape: when, in seconds, and what it came to."""

    at: float
    live: Live


def watch(
    look: Callable[[], Live],
    every: float,
    *,
    most: int | None = None,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> Iterator[Moment]:
    """A scrape each ``every`` seconds, ``most`` of them or without an end. Counters are what they grew by since the
    last one. A scrape that fails after the first is let go: servers restart.
    """
    if every < SHORTEST_SECONDS:
        raise InputError(f"--watch {every} s is too short", fix=f"at least {SHORTEST_SECONDS} s")
    before: Live | None = None
    taken = 0
    while most is None or taken < most:
        started = clock()
        try:
            found = look()
        except InputError:
            if before is None:
                raise
        else:
            yield Moment(started, _grown(before, found))
            before = found
        taken += 1
        if most is None or taken < most:
            sleep(max(0.0, every - (clock() - started)))


def _grown(before: Live | None, found: Live) -> Live:
    """The same with counters as they grew; those of a server that started again count from zero."""
    if before is None or len(before.workers) != len(found.workers):
        return found
    workers = []
    for old, new in zip(before.workers, found.workers, strict=True):
        grown = dict(new.counters)
        for name in GROWING:
            if name in new.counters and new.counters[name] >= old.counters.get(name, 0.0):
                grown[name] = new.counters[name] - old.counters.get(name, 0.0)
        workers.append(new._replace(counters=grown))
    slots = found.planned.get("slots_per_request")
    verdicts = [binding(worker, slots, preempted=worker.counters.get("preempted", 0) > 0) for worker in workers]
    return replace(found, workers=tuple(workers), verdicts=tuple(verdicts))


class Kept:
    """Moments of a watch, thinned out where they are many."""

    def __init__(self) -> None:
        """None yet."""
        self.moments: list[Moment] = []
        self._stride, self._seen = 1, 0

    def add(self, moment: Moment) -> None:
        """Keep one."""
        if self._seen % self._stride == 0:
            self.moments.append(moment)
        self._seen += 1
        if len(self.moments) > MOST_KEPT:
            del self.moments[1::2]
            self._stride *= 2


def summary(moments: Sequence[Moment]) -> dict[str, Any]:
    """Least, mean and most of each figure, and the share of the scrapes in which each pool bound."""
    figures: dict[str, list[float]] = {}
    for moment in moments:
        live = moment.live
        figures.setdefault("requests_running", []).append(live.running)
        figures.setdefault("requests_queued", []).append(live.queued)
        for pool in (STATE, KV, BLOCKS):
            share = live.share(pool)
            if share is not None:
                figures.setdefault(f"{pool}_usage", []).append(share)
        tokens = live.each(KV)
        if tokens is not None:
            figures.setdefault("tokens_per_request", []).append(tokens)
    bound = [moment.live.binding or "none" for moment in moments]
    return {
        "scrapes": len(moments),
        "seconds": round(moments[-1].at - moments[0].at, 3) if moments else 0.0,
        "figures": {
            name: {"min": min(values), "mean": round(sum(values) / len(values), 4), "max": max(values)}
            for name, values in figures.items()
        },
        "bound": {name: round(bound.count(name) / len(bound), 4) for name in dict.fromkeys(bound)},
    }
