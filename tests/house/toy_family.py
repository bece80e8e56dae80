"""A seventh family, as whoever adds one writes it: a square matrix a head, and a convolution as wide as the heads."""

from dataclasses import dataclass
from typing import ClassVar

from hybridcalc.architecture.families import ConvWindow, OrZero, Recurrence, RecurrentState, StateShapes, divide


@dataclass(frozen=True, slots=True)
class Toy(RecurrentState):
    family: ClassVar[str] = "toy"
    label: ClassVar[str] = "Toy"

    num_heads: int
    width: int
    rows: OrZero = 3

    @property
    def recurrence(self) -> Recurrence:
        return Recurrence(self.width, self.width)

    def shard(self, tp: int) -> StateShapes:
        heads = divide(self.num_heads, tp, f"{self.num_heads} toy heads")
        return StateShapes((ConvWindow(self.rows, heads * self.width),), (heads, self.width, self.width))
