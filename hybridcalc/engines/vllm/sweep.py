"""What one combination of a sweep comes to on vLLM. Points that only differ in limits, memory or length share pages and
groups.
"""

from typing import Any

from hybridcalc.architecture.geometry import Architecture
from hybridcalc.deployment import Workload
from hybridcalc.engines.vllm.config import EngineArgs
from hybridcalc.engines.vllm.figures import running
from hybridcalc.engines.vllm.planner import Prepared, prepare, size
from hybridcalc.errors import Refusal
from hybridcalc.sweep import Outcome
from hybridcalc.units import GIB

CHEAP_FIELDS = ("max_num_seqs", "num_gpu_blocks_override", "gpu_memory_utilization", "kv_cache_memory_bytes",
                "prefix_match_unit", "prefix_cache_retention_interval")  # fmt: skip
"""Arguments that change only the arithmetic of a plan, not what is prepared for it."""
MOST_PREPARED = 1024
"""Preparations kept at once."""
NAMES = ("num_blocks", "kv_cache_size_tokens")


class SweepSolver:
    """Solves combinations for one model, and prepares once for those that share it."""

    def __init__(self, model: Architecture) -> None:
        self.model = model
        self._prepared: dict[tuple[Any, ...], Prepared | Refusal] = {}

    def __call__(self, args: EngineArgs, key: tuple[Any, ...], gib: float, work: Workload) -> Outcome:
        """Blocks, the engine's token figure and requests. Raises Refusal for what does not start."""
        shared = self._prepared.get(key)
        if shared is None:
            if len(self._prepared) >= MOST_PREPARED:
                self._prepared.clear()
            try:
                shared = prepare(self.model, args)
            except Refusal as refusal:
                shared = refusal
            self._prepared[key] = shared
        if isinstance(shared, Refusal):
            raise shared.with_traceback(None)  # the same object is raised for every point
        ready = shared._replace(args=args)
        sizing = size(ready, int(gib * GIB))
        found = running(ready, sizing, work)
        return Outcome(sizing.blocks, sizing.tokens, found.requests, found.binding)
