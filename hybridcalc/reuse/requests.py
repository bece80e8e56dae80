"""What does a prefix cache see of a request? Its tokens, as runs that other requests may share.

A run is a stretch of tokens with a name (``ids``) and the token at which it ends (``ends``, counted from the start of
the request). Two requests agree on their leading runs of the same name, and no further: runs of different names differ
in their first token, and a run is not followed by one of its own name unless all of that name are equally long. A
system prompt is one run; a token of a recorded prompt is a run of its own. So a prompt of a
hundred thousand tokens costs no more here than its parts. Units: tokens.

Several workloads send together: each its own requests, evenly spread over the whole. Of N requests in
all, a workload that sends n of them sends its k-th at (k + 1/2) / n of the way, so that all begin and end together.
Names are kept apart: what one of them sends shares nothing with the others.

For the planners, requests are lengths of prompt and answer together, as `deployment.Workload`: counted as they are up
to MOST_LENGTHS different ones; beyond that, neighbours are taken together at their mean, rounded up, so that a plan
never gets less than what the requests hold.
"""

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator
from heapq import merge
from itertools import islice
from typing import NamedTuple, cast

from hybridcalc import deployment
from hybridcalc.errors import IllegalCombination, InputError


class Request(NamedTuple):
    """One request: its runs (prompt, then answer), the tokens of its prompt, and the round of the workload it is in.

    ``ends`` grows strictly and its last entry is prompt and answer together; it may end with the prompt. ``preempted``
    is how many answer tokens were made when the request was taken off the GPU, once; 0: it never was.
    """

    ids: tuple[Hashable, ...]
    ends: tuple[int, ...]
    prompt: int
    round: int = 0
    preempted: int = 0


class BlockPool(NamedTuple):
    """vLLM's one pool: ``blocks`` for anybody, of which a state takes ``per_state``, one for each group of state
    layers, and a page of KV ``per_page``, one for each group of attention layers. Units: blocks.
    """

    blocks: int
    per_state: int
    per_page: int


class Workload(NamedTuple):
    """Requests that can be replayed: ``stream`` starts them anew, always the same. ``requests`` is None if unknown;
    ``preempts`` says whether any of them may be preempted, ``at_once`` how many may run at a time, since each of the
    others follows on the answer of one that does; None where none does, or it is not known. ``note``: what a record
    leaves out; ``asked``: a synthetic workload as it was written.
    """

    name: str
    stream: Callable[[], Iterable[Request]]
    requests: int | None
    rounds: int | None
    description: str
    preempts: bool = False
    at_once: int | None = None
    note: str = ""
    asked: str = ""


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


MOST_LENGTHS = 256
MOST_PLANNED = 2**22
"""Requests whose lengths are counted: some seconds."""


class Within:
    """The requests of a workload that a context holds, with a token of an answer at least. Of the last pass:
    ``refused`` counts the others, ``served`` these, and ``longest`` is the longest of them.
    """

    def __init__(self, workload: Workload, context: int) -> None:
        self.workload, self.context = workload, context
        self.served = self.refused = self.longest = 0

    def stream(self) -> Iterator[Request]:
        """One pass. Raises IllegalCombination where no request is held."""
        served = refused = longest = 0
        context = self.context
        for request in self.workload.stream():
            tokens = request.ends[-1]
            if tokens < context or (tokens == context > request.prompt):
                served += 1
                if tokens > longest:
                    longest = tokens
                yield request
            else:
                refused += 1
        self.served, self.refused, self.longest = served, refused, longest
        if refused and not served:
            raise IllegalCombination(
                f"every request is longer than the context of {context:,} tokens", fix="write shorter requests"
            )


def planned_workload(workload: Workload, *, concurrency: int | None = None) -> deployment.Workload:
    """The lengths of a workload's requests, with how many have each, for ``hybridcalc plan``.

    Raises InputError for more requests than are counted.

    The counts are a mix: how often a length comes, not how many requests run at once; that is ``concurrency``.
    """
    counts: Counter[int] = Counter()
    if (workload.requests or 0) <= MOST_PLANNED:
        counts.update(request.ends[-1] for request in islice(workload.stream(), MOST_PLANNED + 1))
    if max(counts.total(), workload.requests or 0) > MOST_PLANNED:
        raise InputError(
            f"--workload {workload.name} sends more than {MOST_PLANNED:,} requests, too many to count",
            fix="write fewer of them: what counts is how often each length comes",
        )
    counted = sorted(counts.items())
    size = -(-len(counted) // MOST_LENGTHS) if counted else 1
    lengths = []
    for start in range(0, len(counted), size):
        group = counted[start : start + size]
        requests = sum(count for _, count in group)
        tokens = sum(length * count for length, count in group)
        lengths.append((-(-tokens // requests), requests))
    return deployment.Workload(tuple(lengths), concurrency, mix=True)
