"""What do ReplaySSM's ring buffers cost, and which ring lengths are legal?

Instead of D full states a request, ReplaySSM keeps the inputs of the last L steps and replays them. Per layer and
slot, with Hv value heads and Hk key heads on the rank, dv and dk their widths, c = bytes of the conv dtype:

    both     d, rawv: Hv * L * dv * c      k, rawk: Hk * L * dk * c
    inputs   g: Hk * L * dk * 4            beta: Hv * L * 4
    pairs    g: Hv * L * 4                 no beta; rawv and rawk only where the conv dtype is not fp32
    window   g: Hv * L * 4                 beta: Hv * L * 4; no d and no k

KDA replays inputs: raw v and k with g, one decay a key channel, and beta. GDN replays d and k as pairs of a rounded
value and the rest; up to SGLang 0.5.19 it kept a window of its raw inputs. A ring keeps L a power of two and at least
2D (early-flush margin). Shapes are (layers, slots, heads, L[, width]); bytes are exact.
Source: SGLang configs/mamba_utils.py, mem_cache/memory_pool.py (0.5.23).
"""

from math import prod
from typing import Literal, NamedTuple

from hybridcalc.architecture.families import Replay
from hybridcalc.units import DTYPE_BYTES

Kept = Replay | Literal["window"]
"""What a ring holds: a family's form, or that which GDN had before it."""


class Ring(NamedTuple):
    """One ring buffer of the whole pool on one rank."""

    name: str
    shape: tuple[int, ...]
    dtype: str

    @property
    def bytes(self) -> int:
        """Bytes of the whole buffer."""
        return prod(self.shape) * DTYPE_BYTES[self.dtype]


def replay_rings(
    kept: Kept,
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
    """The rings of verification: d, k, g, and as ``kept`` asks rawv, rawk and beta. Heads per rank."""
    value = (layers, slots, v_heads, cache_len, v_head_dim)
    key = (layers, slots, k_heads, cache_len, k_head_dim)
    decay = Ring("g", key if kept == "inputs" else value[:-1], "float32")
    rings: tuple[Ring, ...] = (Ring("d", value, conv_dtype), Ring("k", key, conv_dtype), decay)
    if kept == "pairs" and conv_dtype == "float32":
        return rings
    if kept == "window":
        rings = (decay,)
    rings = (*rings, Ring("rawv", value, conv_dtype), Ring("rawk", key, conv_dtype))
    return rings if kept == "pairs" else (*rings, Ring("beta", value[:-1], "float32"))


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
