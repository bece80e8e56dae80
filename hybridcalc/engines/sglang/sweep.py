"""What one combination of a sweep comes to on SGLang. Points that only differ in ratio, K, limits, memory or length
share all that does not depend on them.
"""

from typing import Any, NamedTuple

from hybridcalc.architecture.geometry import Architecture
from hybridcalc.deployment import Workload
from hybridcalc.engines.sglang.allocation import check_allocation, check_kv_pages
from hybridcalc.engines.sglang.config import ServerArgs, with_model_defaults
from hybridcalc.engines.sglang.planner import Prepared, prepare, size
from hybridcalc.engines.sglang.settings import binding_limit, settle
from hybridcalc.errors import Refusal
from hybridcalc.sweep import Outcome

CHEAP_FIELDS = ("mamba_full_memory_ratio", "max_mamba_cache_size", "max_running_requests", "max_total_tokens")
"""Arguments that change only the arithmetic of a plan, not what is prepared for it."""
MOST_PREPARED = 1024
"""Preparations kept at once."""
NAMES = ("max_mamba_cache_size", "logical_token_capacity")


class _Shared(NamedTuple):
    """What points of one preparation share; ``unbuildable`` is why the pools are refused once they are sized."""

    ready: Prepared
    unbuildable: Refusal | None


class SweepSolver:
    """Solves combinations for one model, and prepares once for those that share it."""

    def __init__(self, model: Architecture) -> None:
        self.model = model
        self._prepared: dict[tuple[Any, ...], _Shared | Refusal] = {}

    def __call__(self, args: ServerArgs, key: tuple[Any, ...], gib: float, work: Workload) -> Outcome:
        """Slots, tokens of sequences and requests. Raises Refusal for what does not start."""
        shared = self._prepared.get(key)
        if shared is None:
            if len(self._prepared) >= MOST_PREPARED:
                self._prepared.clear()
            shared = self._prepared[key] = self._share(args)
        if isinstance(shared, Refusal):
            raise shared.with_traceback(None)  # the same object is raised for every point
        ready = shared.ready._replace(args=with_model_defaults(self.model.architecture, args))
        sizing = size(ready, gib)
        if shared.unbuildable is not None:
            raise shared.unbuildable.with_traceback(None)
        slots, tokens = sizing.state.slots, sizing.tokens * args.dcp_size
        length = work.mean_length
        if length is None:
            binding = binding_limit(slots, tokens, ready.slots.count, sizing.requests)
            return Outcome(slots, tokens, sizing.requests, binding)
        setting = settle("", "", ready, sizing, length)
        return Outcome(slots, tokens, setting.running, setting.binding)

    def _share(self, args: ServerArgs) -> _Shared | Refusal:
        try:
            ready = prepare(self.model, args)
        except Refusal as refusal:
            return refusal
        try:
            check_allocation(self.model, ready.args, replay_active=ready.replay_active)
            check_kv_pages(self.model, ready.args)
        except Refusal as refusal:
            return _Shared(ready, refusal)
        return _Shared(ready, None)
