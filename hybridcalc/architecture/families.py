"""Per-rank shapes of one layer's recurrent state, for each family, and of attention KV under tensor parallelism.

Per layer and rank, with tp ranks, K = conv kernel, every division exact or refused:

    gdn        conv (K-1, (Hv*dv + 2*G'*dk)/tp)      temporal (Hv/tp, dv, dk)      G' = shard_groups(Hk, tp)
    kda        conv (K-1, 3*H*d/tp)                  temporal (H/tp, d, d)
    mamba2     conv (K-1, (I + 2*G'*N)/tp)           temporal (H/tp, P, N)         G' = shard_groups(G, tp)
    mamba1     conv (K-1, I/tp)                      temporal (I/tp, N)
    lightning  no conv                               temporal (H/tp, d, d)
    shortconv  each stream (rows, width on the rank) no temporal state

Shapes are elements; `rows` are past positions, `width` channels. Engines order the two axes differently, use other
divisors, or refuse what this module shards: that is theirs (engines/*/states.py). The rules are those of SGLang
configs/mamba_utils.py and vLLM model_executor/layers/mamba/mamba_utils.py, which agree on every size here.
"""

from collections.abc import Callable
from math import prod
from typing import NamedTuple

from hybridcalc.architecture.geometry import (
    AttentionKV,
    ConvStream,
    GatedDeltaNet,
    GroupedQueryKV,
    KimiDelta,
    Lightning,
    Mamba1,
    Mamba2,
    RecurrentState,
    ShortConv,
)
from hybridcalc.errors import ShardingError

MOST_RANKS_TRIED = 1024
"""Tensor-parallel sizes tried when one is refused, to name those that would do."""


class ConvWindow(NamedTuple):
    """Convolution window of one layer on one rank: ``rows`` past positions x ``width`` channels, in elements."""

    rows: int
    width: int


class StateShapes(NamedTuple):
    """State of one layer of one sequence on one rank, in elements."""

    conv: tuple[ConvWindow, ...]
    temporal: tuple[int, ...]

    @property
    def conv_elements(self) -> int:
        """Elements of all convolution windows."""
        return sum(window.rows * window.width for window in self.conv)

    @property
    def temporal_elements(self) -> int:
        """Elements of the temporal (SSM) state; 0 where the family has none."""
        return prod(self.temporal) if self.temporal else 0


def state_shapes(state: RecurrentState, tp: int) -> StateShapes:
    """Shapes of one layer's state on one of ``tp`` ranks.

    Raises ShardingError, with the sizes that would do, when tp does not divide what it must.
    """
    try:
        return _SHAPES[state.family](state, tp)
    except ShardingError as error:
        most = min(_most_ranks(state), MOST_RANKS_TRIED)
        fitting = [str(n) for n in range(1, most + 1) if _shards(state, n)]
        listed = ", ".join(fitting[:14]) + (", ..." if len(fitting) > 14 else "")
        error.fix = f"{listed} do" if len(fitting) > 1 else f"only --tp {listed} does" if fitting else ""
        raise


def shard_groups(groups: int, tp: int) -> int:
    """Groups all ranks hold together: ``groups`` when tp divides them, else tp, one whole group on each rank.

    With more ranks than groups this replicates groups. With fewer it is the engine's own arithmetic
    (groups + (tp - groups) = tp), which holds fewer than the model has: Qwen3.8-27B at tp 3 keeps 3 groups of 16.
    """
    return groups if groups % tp == 0 else tp


def kv_heads_on_rank(kv_heads: int, tp: int) -> int:
    """KV heads one rank keeps: a share of them, and one whole head replicated where there are fewer than ranks."""
    return max(1, kv_heads // tp)


def kv_elements_per_token(attention: AttentionKV, tp: int) -> int:
    """Elements one attention layer keeps a token on one rank, an indexer's keys not included.

    GQA: KV heads of the rank x (head_dim + v_head_dim). MLA: one latent row, whole on every rank.
    """
    if isinstance(attention, GroupedQueryKV):
        return kv_heads_on_rank(attention.kv_heads, tp) * (attention.head_dim + attention.v_head_dim)
    return attention.kv_lora_rank + attention.qk_rope_head_dim


def _divide(total: int, tp: int, what: str) -> int:
    if total % tp:
        raise ShardingError(f"--tp {tp} does not divide {what}", total=total, parts=tp)
    return total // tp


def _gdn(state: GatedDeltaNet, tp: int) -> StateShapes:
    heads = f"{state.num_v_heads} GDN value heads"
    conv_width = state.num_v_heads * state.v_head_dim + 2 * shard_groups(state.num_k_heads, tp) * state.k_head_dim
    what = heads if state.num_v_heads % tp else f"the GDN convolution of {conv_width:,} channels"
    width = _divide(conv_width, tp, what)
    temporal = (_divide(state.num_v_heads, tp, heads), state.v_head_dim, state.k_head_dim)
    return StateShapes((ConvWindow(state.conv_kernel - 1, width),), temporal)


def _kda(state: KimiDelta, tp: int) -> StateShapes:
    heads = f"{state.num_heads} KDA heads"
    part = _divide(state.num_heads * state.head_dim, tp, heads)
    temporal = (_divide(state.num_heads, tp, heads), state.head_dim, state.head_dim)
    return StateShapes((ConvWindow(state.conv_kernel - 1, 3 * part),), temporal)


def _mamba2(state: Mamba2, tp: int) -> StateShapes:
    heads = f"{state.num_heads} Mamba2 heads"
    conv_width = state.inner_size + 2 * shard_groups(state.n_groups, tp) * state.state_size
    what = heads if state.num_heads % tp else f"the Mamba2 convolution of {conv_width:,} channels"
    width = _divide(conv_width, tp, what)
    temporal = (_divide(state.num_heads, tp, heads), state.head_dim, state.state_size)
    return StateShapes((ConvWindow(state.conv_kernel - 1, width),), temporal)


def _mamba1(state: Mamba1, tp: int) -> StateShapes:
    width = _divide(state.inner_size, tp, f"the Mamba1 inner size of {state.inner_size:,}")
    return StateShapes((ConvWindow(state.conv_kernel - 1, width),), (width, state.state_size))


def _lightning(state: Lightning, tp: int) -> StateShapes:
    heads = _divide(state.num_heads, tp, f"{state.num_heads} lightning heads")
    return StateShapes((), (heads, state.head_dim, state.head_dim))


def _shortconv(state: ShortConv, tp: int) -> StateShapes:
    return StateShapes(tuple(ConvWindow(stream.rows, _stream_width(stream, tp)) for stream in state.streams), ())


def _stream_width(stream: ConvStream, tp: int) -> int:
    if stream.kv_heads is None:
        return stream.width
    if stream.kv_heads:
        return stream.width // stream.kv_heads * kv_heads_on_rank(stream.kv_heads, tp)
    return _divide(stream.width, tp, f"the short convolution of {stream.width:,} channels")


_SHAPES: dict[str, Callable[..., StateShapes]] = {
    "gdn": _gdn, "kda": _kda, "mamba2": _mamba2, "mamba1": _mamba1, "lightning": _lightning, "shortconv": _shortconv,
}  # fmt: skip


def _shards(state: RecurrentState, tp: int) -> bool:
    try:
        _SHAPES[state.family](state, tp)
    except ShardingError:
        return False
    return True


def _most_ranks(state: RecurrentState) -> int:
    """Heads, and where there are none a bound beyond any tensor-parallel group: tp above it never divides."""
    if isinstance(state, GatedDeltaNet):
        return state.num_v_heads
    if isinstance(state, KimiDelta | Mamba2 | Lightning):
        return state.num_heads
    return 64
