"""GDN, the gated delta net of Qwen3-Next and its successors: a matrix a value head, a convolution over q, k and v.

    conv (K-1, (Hv*dv + 2*G*dk)/tp)      temporal (Hv/tp, dv, dk)

Hv value and Hk key heads of widths dv and dk, G = shard_groups(Hk, tp), K the convolution's kernel.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from hybridcalc.architecture.families import ConvWindow, Recurrence, RecurrentState, StateShapes, divide, shard_groups

if TYPE_CHECKING:
    from hybridcalc.architecture.fields import Fields
    from hybridcalc.architecture.tensors import Part, Tensor


@dataclass(frozen=True, slots=True)
class GatedDeltaNet(RecurrentState):
    """GDN: one num_v_heads x v_head_dim x k_head_dim matrix, and a convolution over q, k and v."""

    family: ClassVar[str] = "gdn"
    label: ClassVar[str] = "GDN"

    num_v_heads: int
    num_k_heads: int
    v_head_dim: int
    k_head_dim: int
    conv_kernel: int

    @property
    def recurrence(self) -> Recurrence:
        """The delta rule with one decay a head, replayed from d and k."""
        return Recurrence(self.v_head_dim, self.k_head_dim, delta_rule=True, replay="pairs")

    def shard(self, tp: int) -> StateShapes:
        """Value heads are shared out, key heads too or one whole one a rank."""
        heads = f"{self.num_v_heads} GDN value heads"
        channels = self.num_v_heads * self.v_head_dim + 2 * shard_groups(self.num_k_heads, tp) * self.k_head_dim
        what = heads if self.num_v_heads % tp else f"the GDN convolution of {channels:,} channels"
        window = ConvWindow(self.conv_kernel - 1, divide(channels, tp, what))
        return StateShapes((window,), (divide(self.num_v_heads, tp, heads), self.v_head_dim, self.k_head_dim))

    def parameters(self, hidden: int, form: str, fields: "Fields") -> "tuple[Tensor, ...]":
        """q, k, v and the gate z from one projection or several (``form``), a decay and a step a head, one norm.

        hidden x (2K + 2W) + hidden x 2 heads + kernel x (2K + W) + 2 heads + dv + W x hidden; K = G*dk, W = Hv*dv.
        """
        from hybridcalc.architecture.tensors import Part, Tensor, linear, vector

        keys, values = Part(self.num_k_heads * self.k_head_dim, self.num_k_heads), self._values
        heads = Part(self.num_v_heads, self.num_v_heads)
        if form == "jet":
            return self._jet(hidden, fields)
        forms: dict[str, dict[str, tuple[Part, ...]]] = {
            "fused": {"in_proj_qkvz": (keys, keys, values, values), "in_proj_ba": (heads, heads)},
            "split": {
                "in_proj_qkv": (keys, keys, values),
                "in_proj_z": (values,),
                "in_proj_b": (heads,),
                "in_proj_a": (heads,),
            },
            "apart": {
                "q_proj": (keys,),
                "k_proj": (keys,),
                "v_proj": (values,),
                "g_proj": (values,),
                "a_proj": (heads,),
                "b_proj": (heads,),
            },
        }
        out, norm = ("o_proj", "o_norm") if form == "apart" else ("out_proj", "norm")
        return (
            *(linear(name, "mixer", rows, hidden, "rows", "attention") for name, rows in forms[form].items()),
            Tensor("conv1d", "mixer", (keys, keys, values), self.conv_kernel, "rows"),
            vector("dt_bias", "mixer", heads, cut="rows"),
            vector("A_log", "mixer", heads, cut="rows", dtype="float32"),
            vector(norm, "mixer", self.v_head_dim),
            linear(out, "mixer", hidden, values.size, "columns", "attention"),
        )

    @property
    def _values(self) -> "Part":
        from hybridcalc.architecture.tensors import Part

        return Part(self.num_v_heads * self.v_head_dim, self.num_v_heads)

    def _jet(self, hidden: int, fields: "Fields") -> "tuple[Tensor, ...]":
        """Jet-Nemotron: the convolution's taps over v are made from the input, by two matrices of rank hidden / 8."""
        from hybridcalc.architecture.tensors import Part, Tensor, linear, vector

        jet = fields.table("efficient_attention_config").table("jet")
        rank = hidden // (jet.optional("dconv_generator_reduction") or 8)
        keys, heads = Part(self.num_k_heads * self.k_head_dim, self.num_k_heads), Part(self.num_v_heads)
        values, taps = self._values, self._values.size * self.conv_kernel
        return (
            linear("in_proj", "mixer", (keys, keys, values, values, heads, heads), hidden, "rows", "attention"),
            Tensor("dconv.w1", "mixer", (Part(rank),), hidden),
            Tensor("dconv.w2", "mixer", (Part(taps),), rank),
            vector("dconv.w2.bias", "mixer", taps),
            vector("A_log", "mixer", heads, dtype="float32"),
            vector("dt_bias", "mixer", heads),
            vector("o_norm", "mixer", self.v_head_dim),
            linear("o_proj", "mixer", hidden, values.size, "columns", "attention"),
        )
