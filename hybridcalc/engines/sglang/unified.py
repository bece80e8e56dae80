"""How many requests does SGLang's unified memory hold, where slots and KV share one pool?

    pool    = KV bytes in whole blocks of 4,096 + K * slot        under a token limit T: T * entry + K * slot
    request = S * slot + L * entry / dcp                          entry: KV bytes of a token, rounded up to 32

K, T and R are solved as without it, and R still limits the requests; but KV may take what idle slots leave.
Mirrors mem_cache/unified_memory_pool.py (0.5.23). Leaves out: fused draft entries.
"""

from fractions import Fraction

from hybridcalc.engines.sglang.planner import Prepared, Sizing

BLOCK, ENTRY = 4096, 32


def is_unified(ready: Prepared) -> bool:
    """Whether slots and KV share one pool."""
    return ready.args.enable_unified_memory and len(ready.stages) == 1


def unified_bytes(ready: Prepared, sizing: Sizing) -> int:
    """The pool of one rank."""
    states = sizing.state.slots * ready.stage_slot_bytes
    limited = ready.args.max_total_tokens is not None and sizing.tokens == ready.args.max_total_tokens
    kv = sizing.tokens * _entry(ready) if limited else sizing.state.kv_bytes // BLOCK * BLOCK
    return kv + states


def unified_requests(ready: Prepared, sizing: Sizing, length: Fraction) -> int:
    """Requests of ``length`` tokens that the pool holds at once; the request limit is not applied."""
    request = ready.slots.count * ready.stage_slot_bytes + Fraction(_entry(ready), ready.args.dcp_size) * length
    return int(unified_bytes(ready, sizing) // request)


def _entry(ready: Prepared) -> int:
    return -(-ready.cells[0].bytes // ENTRY) * ENTRY
