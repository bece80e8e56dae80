"""Mamba2 (SSD), of Nemotron-H, Granite-4-H, Falcon-H1, Bamba, Zamba2: a matrix a head, a convolution over x, B and C.

    conv (K-1, (I + 2*G*N)/tp)      temporal (H/tp, P, N)

H heads of width P and state N, inner size I, G = shard_groups(groups, tp), K the convolution's kernel.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from hybridcalc.architecture.families import (
    ConvWindow,
    OrZero,
    Recurrence,
    RecurrentState,
    StateShapes,
    divide,
    shard_groups,
)

if TYPE_CHECKING:
    from hybridcalc.architecture.fields import Fields
    from hybridcalc.architecture.tensors import Tensor


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

    def parameters(self, hidden: int, form: str, fields: "Fields") -> "tuple[Tensor, ...]":
        """One projection to z, x, B, C and dt, a convolution over x, B and C, three vectors of heads, a norm.

        hidden x (2I + 2GN + heads) + (I + 2GN) x (kernel + bias) + 3 heads + I (norm) + I x hidden. ``form`` "bare" has
        no gated norm. A single group is whole on every rank.
        """
        from hybridcalc.architecture.tensors import Part, Tensor, linear, vector

        heads = Part(self.num_heads, self.num_heads)
        inner = Part(self.inner_size, self.num_heads)
        group = Part(self.n_groups * self.state_size, self.n_groups, self.n_groups == 1, "groups")
        convolved = (inner, group, group)
        bias = fields.raw("use_conv_bias", "mamba_conv_bias") is not False
        return (
            linear("in_proj", "mixer", (inner, *convolved, heads), hidden, "rows", "attention"),
            Tensor("conv1d", "mixer", convolved, self.conv_kernel, "rows"),
            *((Tensor("conv1d.bias", "mixer", convolved, 1, "rows"),) if bias else ()),
            vector("A_log", "mixer", heads, cut="rows", dtype="float32"),
            vector("D", "mixer", heads, cut="rows"),
            vector("dt_bias", "mixer", heads, cut="rows"),
            *(() if form == "bare" else (vector("norm", "mixer", inner, cut="rows"),)),
            linear("out_proj", "mixer", hidden, self.inner_size, "columns", "attention"),
        )
