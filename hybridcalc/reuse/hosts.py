"""How large are the pools on the host? As the engines make them, for one rank.

    SGLang   --hicache-ratio r      states  int(K r) + 1             KV  floor(int(T r) / page) + 1 pages
             --hicache-size  G      G 10^9 B shared as the two pools on the GPU weigh, draft states counted; of that
                                    states  floor(share / slot) + 1  KV  floor(share / token / page) + 1 pages
             a size or a ratio of its own for the states (--hicache-mamba-size-gb, --hicache-mamba-ratio), which pull
             requests to SGLang propose and 0.5.23 does not take: KV then has the rest of G
    vLLM     --kv-offloading-size   2^30 B of all ranks; a chunk is a block of each rank, in whole pages of memory, once
                                    where ranks hold the same. A state and a page of KV take as many chunks as blocks

K slots, T tokens. Units: slots, tokens, bytes on one rank. Source: SGLang mem_cache/pool_host/base.py and mamba.py,
mem_cache/hybrid_cache/hybrid_pool_assembler.py (0.5.23); vLLM v1/kv_offload/cpu/spec.py (0.33.0).
"""

from math import ceil
from typing import NamedTuple

from hybridcalc.errors import InputError
from hybridcalc.reuse.requests import BlockPool
from hybridcalc.units import GIB

GB = 10**9
USUAL_RATIO = 2.0
"""--hicache-ratio where nothing is said."""
MEMORY_PAGE = 4096


class HiCache(NamedTuple):
    """What is asked of SGLang's host tier. ``size_gb`` comes before ``ratio``; None: not said."""

    ratio: float = USUAL_RATIO
    size_gb: float | None = None
    state_ratio: float | None = None
    state_size_gb: float | None = None


class HostTier(NamedTuple):
    """States and KV tokens (None: as many as there are) that the host holds, or chunks of them; bytes on one rank."""

    slots: int
    kv_tokens: int | None
    bytes: int
    chunks: BlockPool | None = None


class Weight(NamedTuple):
    """Bytes of a slot and of a token on one rank, and the tokens of a page."""

    slot: int
    token: float
    page: int = 1


def hicache_tier(
    asked: HiCache, slots: int, kv_tokens: int | None, weight: Weight | None, held: tuple[int, int] | None = None
) -> HostTier:
    """The two pools beside ``slots`` and ``kv_tokens`` on the GPU, which take ``held`` bytes there, states and KV.

    Raises InputError for a size where that is not known.
    """
    states = int(slots * (asked.ratio if asked.state_ratio is None else asked.state_ratio)) + 1
    tokens = None if kv_tokens is None else int(kv_tokens * asked.ratio)
    page = 1 if weight is None else weight.page
    if asked.size_gb is not None or asked.state_size_gb is not None:
        if weight is None:
            raise InputError("a host tier of a size holds as many states as they weigh", fix="name a MODEL")
        state_gb = asked.state_size_gb
        if asked.size_gb is not None:
            if state_gb is None:
                state_gb = asked.size_gb * _state_share(held)
            elif state_gb >= asked.size_gb:
                raise InputError(
                    f"states of {state_gb:g} GB leave no KV in a host tier of {asked.size_gb:g} GB",
                    fix="write a larger --hicache-size",
                )
            tokens = int((asked.size_gb - state_gb) * GB // weight.token)
        if asked.state_ratio is None and state_gb is not None:
            states = int(state_gb * GB // weight.slot) + 1
    if tokens is not None:
        tokens = (tokens // page + 1) * page
    return HostTier(states, tokens, 0 if weight is None else round(states * weight.slot + (tokens or 0) * weight.token))


def _state_share(held: tuple[int, int] | None) -> float:
    """The share of states in both pools on the GPU."""
    if held is None:
        raise InputError(
            "--hicache-size is shared as the pools on the GPU are, and how much KV there is is not known",
            fix="give the memory, as --gpu or --rest",
        )
    state, kv = held
    return state / (state + kv)


def hicache_size_for(states: int, tokens: int, weight: Weight, held: tuple[int, int]) -> int:
    """The least whole --hicache-size that holds so many states and tokens. Unit: GB."""
    share = _state_share(held)
    state_bytes, kv_bytes = (states - 1) * weight.slot, (tokens - weight.page) * weight.token
    return max(ceil(max(state_bytes / share, kv_bytes / (1 - share)) / GB), 1)


def chunk_bytes(block_bytes: int, copies: int) -> int:
    """A block of so many ranks, in whole pages of memory."""
    return -(-block_bytes * copies // MEMORY_PAGE) * MEMORY_PAGE


def offload_tier(size_gib: float, block_bytes: int, copies: int, pool: BlockPool) -> HostTier:
    """Chunks of ``size_gib`` for all ranks; a block of ``copies`` of them makes one. ``pool``: the GPU's."""
    chunk = chunk_bytes(block_bytes, copies)
    chunks = int(size_gib * GIB) // chunk
    return HostTier(0, None, chunks * chunk // copies, pool._replace(blocks=chunks))
