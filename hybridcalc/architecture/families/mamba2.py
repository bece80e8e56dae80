"""Mamba2 (SSD), of Nemotron-H, Granite-4-H, Falcon-H1, Bamba, Zamba2: a matrix a head, a convolution over x, B and C.

    conv (K-1, (I + 2*G*N)/tp)      temporal (H/tp, P, N)

H heads of width P and state N, inner size I, G = shard_groups(groups, tp), K the convolution's kernel.
"""

from dataclasses import dataclass
from typing import ClassVar

from hybridcalc.architecture.families import (
    ConvWindow,
    OrZero,
    Recurrence,
    RecurrentState,
    StateShapes,
    divide,
    shard_groups,
)


@dataclass(frozen=True, slots=True)
class Mamba2(RecurrentState):
    """Mamba2: num_heads x head_dim x state_size, and a convolution over inner_size + 2 x n_groups x state_size."""

    family: ClassVar[str] = "mamba2"
    label: ClassVar[str] = "Mamba2"

    num_heads: int
    head_dim: int
    state_size: int
    n_groups: OrZero
    inner_size: int
    conv_kernel: int

    @property
    def recurrence(self) -> Recurrence:
        """One decay a head; the value itself is added."""
        return Recurrence(self.head_dim, self.state_size)

    def shard(self, tp: int) -> StateShapes:
        """Heads are shared out, groups of B and C too or one whole one a rank."""
        heads = f"{self.num_heads} Mamba2 heads"
        channels = self.inner_size + 2 * shard_groups(self.n_groups, tp) * self.state_size
        what = heads if self.num_heads % tp else f"the Mamba2 convolution of {channels:,} channels"
        window = ConvWindow(self.conv_kernel - 1, divide(channels, tp, what))
        return StateShapes((window,), (divide(self.num_heads, tp, heads), self.head_dim, self.state_size))
