"""What one combination of a sweep comes to on SGLang. Points that only differ in ratio, K, limits, memory or length
share all that does not depend on them.
"""

from hybridcalc.deployment import Workload
from hybridcalc.engines.sglang.config import ServerArgs
from hybridcalc.engines.sglang.planner import CHEAP_FIELDS, Prepared, prepare, start
from hybridcalc.engines.sglang.settings import binding_limit, settle
from hybridcalc.engines.sglang.strategy import with_defaults
from hybridcalc.engines.sweep import Outcome, Sweeping


def _solve(shared: Prepared, args: ServerArgs, gib: float, work: Workload) -> Outcome:
    """Slots, tokens of sequences and requests. Raises Refusal for what does not start."""
    ready = shared._replace(args=with_defaults(shared.model, args, shared.rules), typed=args)
    sizing = start(ready, gib)
    slots, tokens = sizing.state.slots, sizing.tokens * args.dcp_size
    length = work.mean_length
    if length is None:
        binding = binding_limit(slots, tokens, ready.slots.count, sizing.requests)
        return Outcome(slots, tokens, sizing.requests, binding)
    setting = settle("", "", ready, sizing, length)
    return Outcome(slots, tokens, setting.running, setting.binding)


SWEEPING = Sweeping(prepare, _solve, CHEAP_FIELDS, ("max_mamba_cache_size", "logical_token_capacity"), "slots")
