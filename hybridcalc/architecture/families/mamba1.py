"""Mamba1, of Falcon-Mamba and Jamba: a row of state a channel, a convolution over the channels (B and C have none).

    conv (K-1, I/tp)      temporal (I/tp, N)

Inner size I, state N, K the convolution's kernel.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from hybridcalc.architecture.families import ConvWindow, Recurrence, RecurrentState, StateShapes, divide

if TYPE_CHECKING:
    from hybridcalc.architecture.fields import Fields
    from hybridcalc.architecture.tensors import Tensor


@dataclass(frozen=True, slots=True)
class Mamba1(RecurrentState):
    """Mamba1: inner_size x state_size, and a convolution over inner_size (B and C are not convolved)."""

    family: ClassVar[str] = "mamba1"
    label: ClassVar[str] = "Mamba1"

    inner_size: int
    state_size: int
    conv_kernel: int

    @property
    def recurrence(self) -> Recurrence:
        """Every channel a head of one value; each of its state's entries decays by its own factor."""
        return Recurrence(1, self.state_size, channel_decay=True)

    def shard(self, tp: int) -> StateShapes:
        """Channels are shared out."""
        width = divide(self.inner_size, tp, f"the Mamba1 inner size of {self.inner_size:,}")
        return StateShapes((ConvWindow(self.conv_kernel - 1, width),), (width, self.state_size))

    def parameters(self, hidden: int, form: str, fields: "Fields") -> "tuple[Tensor, ...]":
        """A projection to x and z, a convolution, a projection to dt (rank R), B and C, A, D and the way out.

        2 hidden I + I x (kernel + bias) + I (R + 2N) + R I + I + I N + I + I hidden; ``form`` "normed" (Jamba) has
        norms of dt, B and C.
        """
        from hybridcalc.architecture.tensors import Part, Tensor, linear, vector

        inner, state = Part(self.inner_size), self.state_size
        rank = fields.optional("mamba_dt_rank", "time_step_rank") or -(-hidden // 16)
        bias = fields.raw("mamba_conv_bias", "use_conv_bias") is not False
        norms = (("dt_layernorm", rank), ("b_layernorm", state), ("c_layernorm", state)) if form == "normed" else ()
        return (
            linear("in_proj", "mixer", (inner, inner), hidden, "rows", "attention"),
            Tensor("conv1d", "mixer", (inner,), self.conv_kernel, "rows"),
            *((vector("conv1d.bias", "mixer", inner, cut="rows"),) if bias else ()),
            linear("x_proj", "mixer", rank + 2 * state, self.inner_size, "columns", "attention"),
            linear("dt_proj", "mixer", (inner,), rank, "rows", "attention"),
            vector("dt_proj.bias", "mixer", inner, cut="rows"),
            Tensor("A_log", "mixer", (inner,), state, "rows", dtype="float32"),
            vector("D", "mixer", inner, cut="rows"),
            linear("out_proj", "mixer", hidden, self.inner_size, "columns", "attention"),
            *(vector(name, "mixer", size) for name, size in norms),
        )
