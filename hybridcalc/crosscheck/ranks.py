"""One process a rank, under torchrun: each allocates its own shard, and rank 0 hears of all of them.

torchrun tells each process its RANK and WORLD_SIZE. Server ranks are dealt out to the processes in turn, so that fewer
processes than ranks verify them one after the other. Results are gathered over gloo, or over nccl where the shards lie
on GPUs. A process that fails says so in its result instead of leaving the others waiting.
"""

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

from hybridcalc.crosscheck.backend import torch
from hybridcalc.errors import InputError


class Process(NamedTuple):
    """This process among those that torchrun started; one of one without it."""

    rank: int
    world: int

    def mine(self, ranks: Sequence[Any]) -> list[Any]:
        """The server ranks this process verifies."""
        return list(ranks[self.rank :: self.world])

    def gather(self, result: Any) -> list[Any]:
        """Results of all processes in the order of their ranks, on every process."""
        if self.world == 1:
            return [result]
        results: list[Any] = [None] * self.world
        torch.distributed.all_gather_object(results, result)
        return results


@contextmanager
def processes(device: str, environment: Mapping[str, str] = os.environ) -> Iterator[Process]:
    """This process, joined to the others while the block runs."""
    world, rank = _number(environment, "WORLD_SIZE", 1), _number(environment, "RANK", 0)
    if world == 1:
        yield Process(0, 1)
        return
    if device == "cuda":
        torch.cuda.set_device(_number(environment, "LOCAL_RANK", rank) % torch.cuda.device_count())
    nccl = device == "cuda" and torch.distributed.is_nccl_available()
    torch.distributed.init_process_group("nccl" if nccl else "gloo")
    try:
        yield Process(rank, world)
    finally:
        torch.distributed.destroy_process_group()


def _number(environment: Mapping[str, str], name: str, default: int) -> int:
    text = environment.get(name, str(default))
    if not (text.isascii() and text.isdecimal() and len(text) < 8):
        raise InputError(
            f"{name}={text[:20]!r} is no number", fix="torchrun sets it; unset it to verify in one process"
        )
    return int(text)
