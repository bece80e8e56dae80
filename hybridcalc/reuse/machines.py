"""Which GPUs hold what a workload wants to keep? Asked of ``fit``, in the requests that take as much of both pools.

    C = ceil(slots / least slots of a request)     L = ceil(KV tokens / C)

C requests of L tokens hold at least so many slots and so much KV. What fit finds is planned, and its pools are counted;
where a setting that it chose makes them smaller, more requests are asked for. Several servers hold as much as they do
together where each prefix goes to the server that has it. Units: slots, tokens.
"""

import shlex
from collections.abc import Callable
from math import ceil
from typing import Any, NamedTuple

from hybridcalc.architecture import Architecture
from hybridcalc.errors import HybridcalcError
from hybridcalc.fitting.answer import Fit

TRIES = 4


class Machines(NamedTuple):
    """The fewest GPUs found: how many, which, the servers they make, what their pools hold, the line that asks fit for
    them, and the one that starts them.
    """

    gpus: int
    gpu: str
    workers: int
    slots: int
    kv_tokens: int
    line: str
    launch: str
    differs: str = ""
    """What else fit chose: the checkpoint and its settings, where they are not those that the pools were asked of."""

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        return self._asdict()


def machines_for(
    model: Architecture,
    engine: str,
    gpu: str,
    slots: int,
    kv_tokens: int,
    each: int,
    held: Callable[[Any], tuple[int, int]],
) -> Machines | None:
    """The fewest GPUs of a kind that hold ``slots`` and ``kv_tokens``; None where none is found.

    ``each``: the least slots of a request; ``held``: slots and KV tokens of a plan's worker.
    """
    from hybridcalc.fitting.ask import fit

    wanted = max(ceil(slots / each), 1)
    for _ in range(TRIES):
        length = max(ceil(kv_tokens / wanted), 1)
        asked = shlex.quote(model.asked or model.name)
        line = f"hybridcalc fit {asked} --gpu {gpu} --engine {engine} -L {length} -C {wanted}"
        try:
            found = fit(model, length=length, concurrency=wanted, gpu=gpu, engine=engine, top=1)
        except HybridcalcError:
            return None
        if not isinstance(found, Fit) or not found.deployments:
            return None
        made = found.deployments[0]
        workers = made.plan.workers * made.launches
        has_slots, has_tokens = (count * workers for count in held(made.plan))
        if has_slots >= slots and has_tokens >= kv_tokens:
            launch = shlex.join(made.launch["argv"])
            chosen = [(made.model.asked or made.model.name).rpartition("/")[2], made.change.flags]
            differs = f"with {' and '.join(filter(None, chosen))}"
            return Machines(made.gpus, gpu, workers, has_slots, has_tokens, line, launch, differs)
        short = max(slots / max(has_slots, 1), kv_tokens / max(has_tokens, 1))
        wanted = ceil(wanted * short)
    return None
