"""Mamba1, of Falcon-Mamba and Jamba: a row of state a channel, a convolution over the channels (B and C have none).

    conv (K-1, I/tp)      temporal (I/tp, N)

Inner size I, state N, K the convolution's kernel.
"""

from dataclasses import dataclass
from typing import ClassVar

from hybridcalc.architecture.families import ConvWindow, Recurrence, RecurrentState, StateShapes, divide


@dataclass(frozen=True, slots=True)
class Mamba1(RecurrentState):
    """Mamba1: inner_size x state_size, and a convolution over inner_size (B and C are not convolved)."""

    family: ClassVar[str] = "mamba1"
    label: ClassVar[str] = "Mamba1"

    inner_size: int
    state_size: int
    conv_kernel: int

    @property
    def recurrence(self) -> Recurrence:
        """Every channel a head of one value; each of its state's entries decays by its own factor."""
        return Recurrence(1, self.state_size, channel_decay=True)

    def shard(self, tp: int) -> StateShapes:
        """Channels are shared out."""
        width = divide(self.inner_size, tp, f"the Mamba1 inner size of {self.inner_size:,}")
        return StateShapes((ConvWindow(self.conv_kernel - 1, width),), (width, self.state_size))
