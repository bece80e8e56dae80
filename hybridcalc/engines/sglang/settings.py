"""What does one choice of flags come to: slots, tokens, and the requests each pool admits?

A `Setting` is one line of the answer's "what to set". Slots and requests are those of one attention worker, tokens
those of all its context-parallel ranks together.
"""

from typing import Any, NamedTuple

from hybridcalc.engines.sglang.config import RuleSet, ServerArgs
from hybridcalc.engines.sglang.pools import Rings, request_limit, solve_pools
from hybridcalc.formulas.slots import admitted_requests


class Setting(NamedTuple):
    """One choice of flags. ``binding`` is the pool (or the request limit) that caps concurrency; the other pool
    idles by ``idle_percent`` when the binding one is full.
    """

    label: str
    flags: str
    slots: int
    state_requests: int
    kv_tokens: int
    kv_requests: int
    binding: str
    idle_percent: float

    @property
    def requests(self) -> int:
        """Requests of the asked length that both pools hold at once, before any request limit."""
        return min(self.state_requests, self.kv_requests)

    def to_dict(self) -> dict[str, Any]:
        """The figures, under the names of ``clamp`` in ``ratio --json``."""
        return {
            "max_mamba_cache_size": self.slots,
            "state_requests": self.state_requests,
            "kv_tokens": self.kv_tokens,
            "kv_requests": self.kv_requests,
            "binding": self.binding,
            "idle_percent": round(self.idle_percent, 2),
        }


class Solver(NamedTuple):
    """The engine's pool solver with everything but the flags filled in; sizes in bytes per rank, length in tokens."""

    rest_gib: float
    slot_bytes: int
    cell_bytes: int
    slots_per_request: int
    length: int
    rules: RuleSet
    rings: Rings
    replay_active: bool

    def setting(self, label: str, flags: str, args: ServerArgs) -> Setting:
        """What ``args`` come to. Raises IllegalCombination where the engine would not start."""
        pools = solve_pools(
            self.rest_gib, self.slot_bytes, self.slots_per_request, self.cell_bytes, self.length, args, self.rules,
            replay_active=self.replay_active, rings=self.rings,
        )  # fmt: skip
        tokens = pools.tokens * args.dcp_size
        return weigh(label, flags, pools.state.slots, tokens, self.slots_per_request, self.length, args)


def weigh(
    label: str, flags: str, slots: int, tokens: int, slots_per_request: int, length: int, args: ServerArgs
) -> Setting:
    """Which pool binds at ``length`` tokens a request, and how much of the other idles then."""
    by_state, by_kv = admitted_requests(slots, slots_per_request), tokens // length
    limit = request_limit(args)
    running = min(by_state, by_kv)
    if limit is not None and max(1, limit // args.attn_dp_size) < running:
        return Setting(label, flags, slots, by_state, tokens, by_kv, "limit", 0.0)
    if by_state <= by_kv:
        idle = 100 * (1 - running * length / tokens) if tokens else 0.0
        return Setting(label, flags, slots, by_state, tokens, by_kv, "state", idle)
    idle = 100 * (1 - running * slots_per_request / slots) if slots else 0.0
    return Setting(label, flags, slots, by_state, tokens, by_kv, "kv", idle)
