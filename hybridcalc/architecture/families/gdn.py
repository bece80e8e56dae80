"""GDN, the gated delta net of Qwen3-Next and its successors: a matrix a value head, a convolution over q, k and v.

    conv (K-1, (Hv*dv + 2*G*dk)/tp)      temporal (Hv/tp, dv, dk)

Hv value and Hk key heads of widths dv and dk, G = shard_groups(Hk, tp), K the convolution's kernel.
"""

from dataclasses import dataclass
from typing import ClassVar

from hybridcalc.architecture.families import ConvWindow, Recurrence, RecurrentState, StateShapes, divide, shard_groups


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
