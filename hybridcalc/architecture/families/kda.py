"""KDA, the delta attention of Kimi-Linear and Kimi-K3: a square matrix a head, convolutions over q, k and v.

    conv (K-1, 3*H*d/tp)      temporal (H/tp, d, d)

H heads of width d, K the convolutions' kernel.
"""

from dataclasses import dataclass
from typing import ClassVar

from hybridcalc.architecture.families import ConvWindow, Recurrence, RecurrentState, StateShapes, divide


@dataclass(frozen=True, slots=True)
class KimiDelta(RecurrentState):
    """KDA: one num_heads x head_dim x head_dim matrix, and convolutions over q, k and v, all num_heads x head_dim."""

    family: ClassVar[str] = "kda"
    label: ClassVar[str] = "KDA"

    num_heads: int
    head_dim: int
    conv_kernel: int

    @property
    def recurrence(self) -> Recurrence:
        """The delta rule with one decay a key channel, replayed by taking every step again."""
        return Recurrence(self.head_dim, self.head_dim, delta_rule=True, channel_decay=True, replay="inputs")

    def shard(self, tp: int) -> StateShapes:
        """Heads are shared out, with their channels of all three convolutions."""
        heads = f"{self.num_heads} KDA heads"
        part = divide(self.num_heads * self.head_dim, tp, heads)
        temporal = (divide(self.num_heads, tp, heads), self.head_dim, self.head_dim)
        return StateShapes((ConvWindow(self.conv_kernel - 1, 3 * part),), temporal)
