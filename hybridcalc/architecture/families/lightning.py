"""Lightning (linear) attention, of MiniMax-Text-01, Ling 2.5, MiniCPM-SALA: a square matrix a head, no convolution.

    temporal (H/tp, d, d)

H heads of width d.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from hybridcalc.architecture.families import Recurrence, RecurrentState, StateShapes, divide

if TYPE_CHECKING:
    from hybridcalc.architecture.fields import Fields
    from hybridcalc.architecture.tensors import Tensor


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

    def parameters(self, hidden: int, form: str, fields: "Fields") -> "tuple[Tensor, ...]":
        """q, k, v, an output gate and a norm over all heads, each hidden x P; ``form`` says how a class spells them.

        4 hidden P + P hidden + P, P = heads x width; all but MiniMax have q and k norms of one head's width as well.
        """
        from hybridcalc.architecture.tensors import Part, linear, vector

        wide = Part(self.num_heads * self.head_dim, self.num_heads)
        joined, gate, out, norm, normed = {
            "minimax": ("qkv_proj", "output_gate", "out_proj", "norm", ""),
            "bailing": ("query_key_value", "g_proj", "dense", "g_norm", "query_layernorm key_layernorm"),
            "minicpm": ("", "z_proj", "o_proj", "o_norm", "q_norm k_norm"),
        }[form]
        inputs = {joined: (wide, wide, wide)} if joined else {f"{name}_proj": (wide,) for name in "qkv"}
        return (
            *(linear(name, "mixer", rows, hidden, "rows", "attention") for name, rows in inputs.items()),
            linear(gate, "mixer", (wide,), hidden, "rows", "attention"),
            linear(out, "mixer", hidden, wide.size, "columns", "attention"),
            vector(norm, "mixer", wide, cut="rows"),
            *(vector(name, "mixer", self.head_dim) for name in normed.split()),
        )
