"""One process a rank, under torchrun: each allocates its own shard, and rank 0 hears of all of them.

torchrun tells each process its RANK and WORLD_SIZE. Server ranks are dealt out to the processes in turn, so that fewer
processes than ranks verify them one after the other. Results are gathered over gloo, or over nccl where the shards lie
on GPUs. A process that fails says so in its result instead of leaving the others waiting.
"""

import os
import pickle
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

from hybridcalc.crosscheck.backend import torch
from hybridcalc.errors import InputError, quoted


class Process(NamedTuple):
    """A process among those that torchrun started; one of one without it. ``sharers`` share this device's memory."""

    rank: int
    world: int
    sharers: int = 1

    def mine(self, ranks: Sequence[Any]) -> list[Any]:
        """The server ranks it verifies."""
        return list(ranks[self.rank :: self.world])

    def gather(self, result: Any) -> list[Any]:
        """Results of all processes in the order of their ranks, on every process."""
        if self.world == 1:
            return [result]
        return [pickle.loads(data) for data in _all_gather(pickle.dumps(result))]  # noqa: S301  written by ourselves


@contextmanager
def processes(device: str, environment: Mapping[str, str] = os.environ) -> Iterator[Process]:
    """The running process, joined to the others while the block runs."""
    world, rank = _number(environment, "WORLD_SIZE", 1), _number(environment, "RANK", 0)
    if world == 1:
        yield Process(0, 1)
        return
    local = sharers = _number(environment, "LOCAL_WORLD_SIZE", world)
    if device == "cuda":
        torch.cuda.set_device(_number(environment, "LOCAL_RANK", rank) % torch.cuda.device_count())
        sharers = -(-local // torch.cuda.device_count())
    nccl = device == "cuda" and torch.distributed.is_nccl_available()
    torch.distributed.init_process_group("nccl" if nccl else "gloo")
    try:
        yield Process(rank, world, sharers)
    finally:
        torch.distributed.destroy_process_group()


def _all_gather(data: bytes) -> list[bytes]:
    """The bytes of every process. torch's own gathering of objects needs numpy; tensors of bytes do not."""
    where = "cuda" if torch.distributed.get_backend() == "nccl" else "cpu"
    world = torch.distributed.get_world_size()
    mine = torch.tensor([len(data)], dtype=torch.int64, device=where)
    lengths = [torch.zeros_like(mine) for _ in range(world)]
    torch.distributed.all_gather(lengths, mine)
    longest = max(int(length) for length in lengths)
    padded = torch.zeros(longest, dtype=torch.uint8, device=where)
    padded[: len(data)] = torch.frombuffer(bytearray(data), dtype=torch.uint8)
    parts = [torch.zeros_like(padded) for _ in range(world)]
    torch.distributed.all_gather(parts, padded)
    return [bytes(part[: int(length)].tolist()) for part, length in zip(parts, lengths, strict=True)]


def _number(environment: Mapping[str, str], name: str, default: int) -> int:
    text = environment.get(name, str(default))
    if not (text.isascii() and text.isdecimal() and len(text) < 8):
        raise InputError(
            f"{name}={quoted(text, 20)} is no number", fix="torchrun sets it; unset it to verify in one process"
        )
    return int(text)
