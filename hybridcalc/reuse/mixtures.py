"""What do several workloads send together? Each its own requests, evenly spread over the whole.

Of N requests in all, a workload that sends n of them sends its k-th at (k + 1/2) / n of the way, so that all begin and
end together. Names are kept apart: what one of them sends shares nothing with the others.
"""

from collections.abc import Iterator
from heapq import merge
from typing import cast

from hybridcalc.errors import InputError
from hybridcalc.reuse.requests import Request, Workload

MOST_MIXED = 16


def mixed(parts: list[Workload]) -> Workload:
    """The workloads at once. A warm-up round leaves the first of each out, so there are as many as the fewest have.

    Raises InputError for more than MOST_MIXED.
    """
    if len(parts) > MOST_MIXED:
        raise InputError(
            f"--workload: {len(parts)} workloads at once; at most {MOST_MIXED} are simulated", fix="leave some out"
        )
    open_at_once = [part.at_once if part.at_once is not None else part.requests or 0 for part in parts]
    return Workload(
        " + ".join(part.name for part in parts),
        lambda: _together(parts),
        sum(part.requests or 0 for part in parts),
        min(part.rounds or 1 for part in parts),
        "; ".join(f"{part.name}: {part.description}" for part in parts),
        preempts=any(part.preempts for part in parts),
        at_once=sum(open_at_once) if any(part.at_once is not None for part in parts) else None,
    )


def _together(parts: list[Workload]) -> Iterator[Request]:
    streams = [_placed(part, place, len(parts)) for place, part in enumerate(parts)]
    return (request for _, _, request in merge(*streams, key=lambda one: one[:2]))


def _placed(part: Workload, place: int, parts: int) -> Iterator[tuple[float, int, Request]]:
    """The requests of one, each with how far on the way it is, under names that only it has."""
    share = 1 / (part.requests or 1)
    for number, request in enumerate(part.stream()):
        ids = tuple(parts * name + place for name in cast(tuple[int, ...], request.ids))
        yield (number + 0.5) * share, place, request._replace(ids=ids)
