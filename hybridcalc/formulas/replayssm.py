"""What do ReplaySSM's ring buffers cost, and which ring lengths are legal?

Instead of D full states a request, ReplaySSM keeps the inputs of the last L steps and replays them. Per layer and
slot, with Hv value heads and Hk key heads on the rank, dv and dk their widths, c = bytes of the conv dtype:

    kda   d, k, rawv, rawk: H * L * d * c each     g: H * L * dk * 4     beta: H * L * 4
    gdn   d, rawv: Hv * L * dv * c                 k, rawk: Hk * L * dk * c        g: Hv * L * 4
          (rawv and rawk only where the conv dtype is not fp32)

Other families take the gdn form with (Hv, dv, dk) their temporal shape. A ring keeps L a power of two and at least 2D
(early-flush margin), which SGLang checks for KDA. Shapes are (layers, slots, heads, L[, width]); bytes are exact.
Source: SGLang configs/mamba_utils.py, mem_cache/memory_pool.py (0.5.23).
"""

from math import prod
from typing import NamedTuple

from hybridcalc.units import DTYPE_BYTES


class Ring(NamedTuple):
    """One ring buffer of the whole pool on one rank."""

    name: str
    shape: tuple[int, ...]
    dtype: str

    @property
    def bytes(self) -> int:
        """Bytes of the whole buffer."""
        return prod(self.shape) * DTYPE_BYTES[self.dtype]


def kda_rings(
    *, layers: int, slots: int, heads: int, head_dim: int, cache_len: int, conv_dtype: str
) -> tuple[Ring, ...]:
    """The six rings of KDA verification: d, k, g, rawv, rawk, beta. ``heads`` is per rank."""
    wide = (layers, slots, heads, cache_len, head_dim)
    return (
        Ring("d", wide, conv_dtype),
        Ring("k", wide, conv_dtype),
        Ring("g", wide, "float32"),
        Ring("rawv", wide, conv_dtype),
        Ring("rawk", wide, conv_dtype),
        Ring("beta", wide[:-1], "float32"),
    )


def gdn_rings(
    *,
    layers: int,
    slots: int,
    v_heads: int,
    v_head_dim: int,
    k_heads: int,
    k_head_dim: int,
    cache_len: int,
    conv_dtype: str,
) -> tuple[Ring, ...]:
    """The rings of GDN verification: d, k, g and, unless the conv dtype is float32, rawv and rawk. Heads per rank."""
    value = (layers, slots, v_heads, cache_len, v_head_dim)
    key = (layers, slots, k_heads, cache_len, k_head_dim)
    rings = (Ring("d", value, conv_dtype), Ring("k", key, conv_dtype), Ring("g", value[:-1], "float32"))
    if conv_dtype == "float32":
        return rings
    return (*rings, Ring("rawv", value, conv_dtype), Ring("rawk", key, conv_dtype))


def ring_length_problem(cache_len: int, draft_tokens: int) -> str:
    """Why a ring of ``cache_len`` cannot serve ``draft_tokens``; empty when it can. D is 0 without speculation."""
    if cache_len < 1 or cache_len & (cache_len - 1):
        return f"the ring length must be a power of two, {cache_len} is not"
    if cache_len < 2 * draft_tokens:
        least = f"2 x D = {2 * draft_tokens} for {draft_tokens} draft tokens"
        return f"the ring length must be at least {least}, {cache_len} is not"
    return ""


def smallest_ring(draft_tokens: int) -> int:
    """Smallest legal ring for D draft tokens: the next power of two from 2D. Unit: steps."""
    return 1 << max(0, 2 * draft_tokens - 1).bit_length()
