"""Short convolutions alone, of LFM2, ZAYA1 and Inkling: the last columns of each stream, no temporal state.

    conv, each stream: (rows, width on the rank)

Rows are the kernel less one.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from hybridcalc.architecture import kv_heads_on_rank
from hybridcalc.architecture.families import ConvWindow, OrZero, RecurrentState, StateShapes, divide

if TYPE_CHECKING:
    from hybridcalc.architecture.fields import Fields
    from hybridcalc.architecture.tensors import Tensor


class ConvStream(NamedTuple):
    """One short convolution of a layer: ``rows`` past columns of ``width`` channels.

    ``kv_heads`` tells how the stream is cut under tensor parallelism: a number means it follows that many KV heads
    (never fewer than one a rank), 0 that it divides evenly, None that every rank keeps it whole.
    """

    width: int
    rows: int
    kv_heads: OrZero | None = 0

    @property
    def problem(self) -> str:
        """What is wrong with the sizes; empty where nothing is."""
        if self.kv_heads and self.width % self.kv_heads:
            return f"width {self.width} is no multiple of its kv_heads {self.kv_heads}"
        return ""

    def width_on_rank(self, tp: int) -> int:
        """Channels that one of ``tp`` ranks keeps. Raises ShardingError when tp does not divide them."""
        if self.kv_heads is None:
            return self.width
        if self.kv_heads:
            return self.width // self.kv_heads * kv_heads_on_rank(self.kv_heads, tp)
        return divide(self.width, tp, f"the short convolution of {self.width:,} channels")


@dataclass(frozen=True, slots=True)
class ShortConv(RecurrentState):
    """Short convolutions alone: no temporal state (LFM2: one stream; ZAYA1: two; Inkling: six)."""

    family: ClassVar[str] = "shortconv"
    label: ClassVar[str] = "short-conv"

    streams: tuple[ConvStream, ...]

    @classmethod
    def read(cls, fields: Mapping[str, Any]) -> "ShortConv":
        """The streams of a preset, each a mapping of its own."""
        return cls(tuple(ConvStream(**stream) for stream in fields["streams"]))

    @property
    def recurrence(self) -> None:
        """No temporal state."""
        return None

    def shard(self, tp: int) -> StateShapes:
        """Each stream by its own rule."""
        return StateShapes(tuple(ConvWindow(stream.rows, stream.width_on_rank(tp)) for stream in self.streams), ())

    def parameters(self, hidden: int, form: str, fields: "Fields") -> "tuple[Tensor, ...]":
        """LFM2: three inputs of the width, taps a channel, and the way out; the one form there is.

        3 hidden W + W x kernel + W hidden.
        """
        from hybridcalc.architecture.tensors import Part, Tensor, linear

        stream = self.streams[0]
        wide = Part(stream.width)
        return (
            linear("in_proj", "mixer", (wide, wide, wide), hidden, "rows", "attention"),
            Tensor("conv", "mixer", (wide,), stream.rows + 1, "rows"),
            linear("out_proj", "mixer", hidden, stream.width, "columns", "attention"),
        )
