"""How much of a shared prefix does vLLM reuse, and how much does it compute again?

    reused = floor(min(N, N + M - 1) / unit) x unit, one unit less where drafts need the block before
    unit   = the block, or prefix_match_unit where hits may land between blocks (align, 0.33)

N: shared tokens, M: private ones. A hit ends where every group has something to continue from: whole attention blocks
and a state. With sparse retention the first request keeps the state at its own end only; the second one computes the
shared part again and leaves the state at the junction, so that the third is served. Source: vLLM
v1/core/kv_cache_utils.py, kv_cache_coordinator.py, single_type_kv_cache_manager.py (0.33.0).
"""

from typing import Any, NamedTuple

from hybridcalc.engines.vllm.groups import STATE
from hybridcalc.engines.vllm.planner import Prepared, Sizing
from hybridcalc.formulas.pages import reused_tokens

LEAST_UNIT = 16
"""Tokens: finer hashes cost more than they find."""
BLOCK_DROPPERS = ("mtp", "eagle", "eagle3")


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
            "shared_tokens": self.shared, "private_tokens": self.private, "unit_tokens": self.unit,
            "reused_tokens": self.reused, "computed_tokens": self.computed, "why": self.why,
        }  # fmt: skip


def finest_reuse(ready: Prepared, sizing: Sizing, shared: int, private: int) -> PrefixReuse | None:
    """The most that a finer --prefix-match-unit reuses, at the coarsest unit that does; None where none reuses more.

    Units divide the block; only states of mode align can be matched inside one.
    """
    if not ready.prefix_caching or ready.mode != "align" or not ready.rules.fine_hits or len(ready.groups) < 2:
        return None
    block, best = ready.pages.block, prefix_reuse(ready, sizing, shared, private)
    found = None
    for unit in range(block - 1, LEAST_UNIT - 1, -1):
        if block % unit == 0:
            reuse = prefix_reuse(ready, sizing._replace(hit_tokens=unit), shared, private)
            if reuse.reused > best.reused:
                found = best = reuse
    return found


def prefix_reuse(ready: Prepared, sizing: Sizing, shared: int, private: int) -> PrefixReuse:
    """What a request of ``shared`` + ``private`` tokens reuses once requests like it have been served."""
    unit = sizing.hit_tokens
    if not ready.prefix_caching:
        return PrefixReuse(shared, private, unit, 0, "prefix caching is off")
    reused = reused_tokens(min(shared, shared + private - 1), unit)
    method = ready.args.speculative_method or ""
    if reused and any(method.endswith(name) for name in BLOCK_DROPPERS):
        reused -= unit
    if not reused:
        return PrefixReuse(shared, private, unit, 0, f"a hit needs {unit:,} shared tokens")
    why = f"{reused // unit:,} x {unit:,} tokens"
    sparse = ready.rules.fine_hits and ready.args.prefix_cache_retention_interval == 0
    if sparse and any(group.kind == STATE for group in ready.groups):
        why += ", from the third request on: the second leaves the state where the prefix ends"
    return PrefixReuse(shared, private, unit, reused, why)
