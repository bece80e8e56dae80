"""How long are the requests of a workload, for the planners? Prompt and answer together, as `deployment.Workload`.

Lengths are counted as they are up to MOST_LENGTHS different ones; beyond that, neighbours are taken together at their
mean, rounded up, so that a plan never gets less than what the requests hold. Units: tokens.
"""

from collections import Counter
from collections.abc import Iterator
from itertools import islice

from hybridcalc import deployment
from hybridcalc.errors import IllegalCombination, InputError
from hybridcalc.reuse.requests import Request, Workload

MOST_LENGTHS = 256
MOST_PLANNED = 2**22
"""Requests whose lengths are counted: some seconds."""


class Within:
    """The requests of a workload that a context holds; ``refused`` counts the others of the last pass."""

    def __init__(self, workload: Workload, context: int) -> None:
        self.workload, self.context, self.refused = workload, context, 0

    def stream(self) -> Iterator[Request]:
        """One pass. Raises IllegalCombination where no request is held."""
        served = refused = 0
        context = self.context
        for request in self.workload.stream():
            if request.ends[-1] <= context:
                served += 1
                yield request
            else:
                refused += 1
        self.refused = refused
        if refused and not served:
            raise IllegalCombination(
                f"every request is longer than the context of {context:,} tokens", fix="write shorter requests"
            )

    def note(self) -> str:
        """What is left out."""
        return (
            f"{self.refused:,} requests are longer than the context of {self.context:,} tokens, prompt and answer "
            "together: the server refuses them"
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
