"""States beside the running ones: int8 checkpoints, snapshots over a sequence, and the hand-over to decode.

    int8 slot      layers * (H*dv*dk + H*dk * scale + conv)      one byte a value, one scale a row of dv values
    prefill        ceil(input / chunk) snapshots                 one at each chunk boundary
    decode         generated // track_interval snapshots made    only the newest is kept: one slot, rewritten
    hand-over      state + input * kv                            bytes moved from prefill to decode for one sequence

Scales are stored in the SSM dtype (4 B under float32), not in two bytes. Units: bytes, snapshots.
Source: SGLang mem_cache/mamba_checkpoint_pool.py and --mamba-track-interval (0.5.23); int8 checkpoint write-up (E2).
"""

from math import prod

from hybridcalc.units import DTYPE_BYTES


def int8_slot_bytes(*, layers: int, temporal: tuple[int, ...], conv_bytes: int, scale_dtype: str) -> int:
    """Bytes of one int8 checkpoint slot. ``temporal`` is (H, dv, dk) of one layer, ``conv_bytes`` its windows.

    Without a temporal state (short convolutions) only the windows count.
    """
    values = prod(temporal) if temporal else 0
    rows = temporal[0] * temporal[-1] if values else 0
    return layers * (values + rows * DTYPE_BYTES[scale_dtype] + conv_bytes)


def prefill_snapshots(input_tokens: int, chunk_tokens: int) -> int:
    """Snapshots a prompt leaves when each prefill chunk ends in one."""
    return -(-input_tokens // chunk_tokens)


def decode_snapshots(generated_tokens: int, track_interval: int) -> int:
    """Snapshots written while decoding, one each ``track_interval`` tokens; each replaces the one before."""
    return generated_tokens // track_interval


def handover_bytes(state_bytes: int, kv_bytes_per_token: int, input_tokens: int) -> int:
    """Bytes moved when prefill hands one sequence to decode: its state and the KV of its prompt, per rank."""
    return state_bytes + input_tokens * kv_bytes_per_token


def cyclic_hit_rate(prefixes: int, slots: int) -> int:
    """Hit rate of ``prefixes`` probed in turn, again and again, against an LRU of ``slots`` states: 1 or 0.

    One prefix too many and each is evicted just before its turn. Without unit; the first round is left out.
    """
    return 1 if prefixes <= slots else 0
