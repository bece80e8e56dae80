"""What one combination of a sweep comes to on vLLM. Points that only differ in limits, memory or length share pages and
groups.
"""

from hybridcalc.deployment import Workload
from hybridcalc.engines.sweep import Outcome, Sweeping
from hybridcalc.engines.vllm.config import EngineArgs
from hybridcalc.engines.vllm.figures import running
from hybridcalc.engines.vllm.planner import Prepared, prepare, size
from hybridcalc.units import GIB

CHEAP_FIELDS = ("max_num_seqs", "num_gpu_blocks_override", "gpu_memory_utilization", "kv_cache_memory_bytes",
                "prefix_match_unit", "prefix_cache_retention_interval")  # fmt: skip
"""Arguments that change only the arithmetic of a plan, not what is prepared for it."""


def _solve(ready: Prepared, args: EngineArgs, gib: float, work: Workload) -> Outcome:
    """Blocks, the engine's token figure and requests. Raises Refusal for what does not start."""
    ready = ready._replace(args=args)
    sizing = size(ready, int(gib * GIB))
    found = running(ready, sizing, work)
    return Outcome(sizing.blocks, sizing.tokens, found.requests, found.binding)


SWEEPING = Sweeping(prepare, _solve, CHEAP_FIELDS, ("num_blocks", "kv_cache_size_tokens"), "blocks")
