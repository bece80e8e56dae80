"""How much of a shared prefix does vLLM reuse, and how much does it compute again?

    reused = floor(min(N, N + M - 1) / unit) x unit, one unit less where drafts need the block before
    unit   = the block, or prefix_match_unit where hits may land between blocks (align, 0.33)

N: shared tokens, M: private ones. A hit ends where every group has something to continue from: whole attention blocks
and a state. With sparse retention the first request keeps the state at its own end only; the second one computes the
shared part again and leaves the state at the junction, so that the third is served. Source: vLLM
v1/core/kv_cache_utils.py, kv_cache_coordinator.py, single_type_kv_cache_manager.py (0.33.0).
"""

from dataclasses import replace
from typing import Any, NamedTuple

from hybridcalc.engines.vllm.groups import STATE
from hybridcalc.engines.vllm.planner import Prepared, Sizing, prepare, size
from hybridcalc.errors import HybridcalcError
from hybridcalc.formulas.pages import divisors, reused_tokens

BLOCK_DROPPERS = ("mtp", "eagle", "eagle3")
SMALLEST_UNIT = 16
"""Tokens of the shortest unit that is suggested: an unpadded block of attention."""


class PrefixReuse(NamedTuple):
    """Tokens of a request that come from the cache and that are computed, and the unit in which hits land."""

    shared: int
    private: int
    unit: int
    reused: int
    why: str

    @property
    def computed(self) -> int:
        """Tokens that are computed."""
        return self.shared + self.private - self.reused

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        return {
            "shared_tokens": self.shared,
            "private_tokens": self.private,
            "unit_tokens": self.unit,
            "reused_tokens": self.reused,
            "computed_tokens": self.computed,
            "why": self.why,
        }


def prefix_reuse(ready: Prepared, sizing: Sizing, shared: int, private: int) -> PrefixReuse:
    """What a request of ``shared`` + ``private`` tokens reuses once requests like it have been served."""
    unit = sizing.hit_tokens
    if not ready.prefix_caching:
        return PrefixReuse(shared, private, unit, 0, "prefix caching is off")
    reused = reused_tokens(min(shared, shared + private - 1), unit)
    method = ready.args.speculative_method or ""
    dropped = unit if any(method.endswith(name) for name in BLOCK_DROPPERS) else 0
    reused = max(0, reused - dropped)
    if not reused:
        return PrefixReuse(shared, private, unit, 0, f"a hit needs {unit + dropped:,} shared tokens")
    why = f"{reused // unit:,} x {unit:,} tokens"
    sparse = ready.rules.sparse_retention and ready.args.prefix_cache_retention_interval == 0
    if sparse and any(group.kind == STATE for group in ready.groups):
        why += ", from the third request on: the second leaves the state where the prefix ends"
    return PrefixReuse(shared, private, unit, reused, why)


def finest_reuse(ready: Prepared, sizing: Sizing, shared: int, private: int) -> PrefixReuse:
    """The most that any --prefix-match-unit reuses, by the longest unit that does; today's where none reuses more."""
    best = prefix_reuse(ready, sizing, shared, private)
    if not ready.prefix_caching or ready.mode != "align" or not ready.rules.fine_hits:
        return best
    block = ready.pages.block
    for unit in (n for n in divisors(block) if n % SMALLEST_UNIT == 0):
        try:
            finer = prepare(ready.model, replace(ready.args, prefix_match_unit=unit))
            reuse = prefix_reuse(finer, size(finer, sizing.available_bytes), shared, private)
        except HybridcalcError:
            continue
        if reuse.reused > best.reused or (reuse.reused == best.reused > 0 and best.unit < reuse.unit < block):
            best = reuse
    return best
