"""Lightning (linear) attention, of MiniMax-Text-01, Ling 2.5, MiniCPM-SALA: a square matrix a head, no convolution.

    temporal (H/tp, d, d)

H heads of width d.
"""

from dataclasses import dataclass
from typing import ClassVar

from hybridcalc.architecture.families import Recurrence, RecurrentState, StateShapes, divide


@dataclass(frozen=True, slots=True)
class Lightning(RecurrentState):
    """Lightning (linear) attention: num_heads x head_dim x head_dim, no convolution."""

    family: ClassVar[str] = "lightning"
    label: ClassVar[str] = "lightning"

    num_heads: int
    head_dim: int

    @property
    def recurrence(self) -> Recurrence:
        """One decay a head; the value itself is added."""
        return Recurrence(self.head_dim, self.head_dim)

    def shard(self, tp: int) -> StateShapes:
        """Heads are shared out."""
        heads = divide(self.num_heads, tp, f"{self.num_heads} lightning heads")
        return StateShapes((), (heads, self.head_dim, self.head_dim))
