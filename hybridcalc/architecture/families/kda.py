"""KDA, the delta attention of Kimi-Linear and Kimi-K3: a square matrix a head, convolutions over q, k and v.

    conv (K-1, 3*H*d/tp)      temporal (H/tp, d, d)

H heads of width d, K the convolutions' kernel.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from hybridcalc.architecture.families import ConvWindow, Recurrence, RecurrentState, StateShapes, divide

if TYPE_CHECKING:
    from hybridcalc.architecture.fields import Fields
    from hybridcalc.architecture.tensors import Tensor


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

    def parameters(self, hidden: int, form: str, fields: "Fields") -> "tuple[Tensor, ...]":
        """q, k, v, their convolutions, the forget gate f, the step b, the output gate g, one norm.

        P = heads x width. Gates are full (hidden x P) or of the rank of one head (hidden x width + width x P): ``form``
        names which are full, "fg", "g" or "".
        """
        from hybridcalc.architecture.tensors import Part, Tensor, linear, vector

        heads = Part(self.num_heads, self.num_heads)
        wide = Part(self.num_heads * self.head_dim, self.num_heads)

        def gate(name: str) -> tuple[Tensor, ...]:
            if name in form:
                return (linear(f"{name}_proj", "mixer", (wide,), hidden, "rows", "attention"),)
            return (
                linear(f"{name}_a_proj", "mixer", self.head_dim, hidden, "", "attention"),
                linear(f"{name}_b_proj", "mixer", (wide,), self.head_dim, "rows", "attention"),
            )

        return (
            *(linear(f"{name}_proj", "mixer", (wide,), hidden, "rows", "attention") for name in "qkv"),
            Tensor("conv1d", "mixer", (wide, wide, wide), self.conv_kernel, "rows", dtype="float32"),
            vector("dt_bias", "mixer", wide, cut="rows", dtype="float32"),
            vector("A_log", "mixer", heads, cut="rows", dtype="float32"),
            *gate("f"),
            linear("b_proj", "mixer", (heads,), hidden, "rows", "attention"),
            *gate("g"),
            vector("o_norm", "mixer", self.head_dim),
            linear("o_proj", "mixer", hidden, wide.size, "columns", "attention"),
        )
