"""What one combination of a sweep comes to on SGLang. Points that only differ in ratio, K, limits, memory or length
share all that does not depend on them.
"""

from typing import NamedTuple

from hybridcalc.architecture.geometry import Architecture
from hybridcalc.deployment import Workload
from hybridcalc.engines.sglang.allocation import check_allocation, check_kv_pages
from hybridcalc.engines.sglang.config import ServerArgs, with_model_defaults
from hybridcalc.engines.sglang.planner import Prepared, prepare, size
from hybridcalc.engines.sglang.settings import CHEAP_FIELDS, binding_limit, settle
from hybridcalc.engines.sweep import Outcome, Sweeping
from hybridcalc.errors import Refusal


class _Shared(NamedTuple):
    """What points of one preparation share; ``unbuildable`` is why the pools are refused once they are sized."""

    ready: Prepared
    unbuildable: Refusal | None


def _prepare(model: Architecture, args: ServerArgs) -> _Shared:
    ready = prepare(model, args)
    try:
        check_allocation(model, ready.args, replay_active=ready.replay_active)
        check_kv_pages(model, ready.args)
    except Refusal as refusal:
        return _Shared(ready, refusal)
    return _Shared(ready, None)


def _solve(shared: _Shared, args: ServerArgs, gib: float, work: Workload) -> Outcome:
    """Slots, tokens of sequences and requests. Raises Refusal for what does not start."""
    ready = shared.ready._replace(args=with_model_defaults(shared.ready.model.architecture, args))
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


SWEEPING = Sweeping(_prepare, _solve, CHEAP_FIELDS, ("max_mamba_cache_size", "logical_token_capacity"), "slots")
