"""What one combination of a sweep comes to on llama.cpp: slots, tokens of the context, requests.

A context takes what it is asked for; where memory is known and less, --fit would leave layers to the host, and the
combination counts as one that does not start. One that nobody set is as long as fits.
"""

from hybridcalc.deployment import Workload, exact_rest
from hybridcalc.engines.llamacpp.config import ContextParams
from hybridcalc.engines.llamacpp.placement import caches_on_cards
from hybridcalc.engines.llamacpp.planner import Prepared, prepare
from hybridcalc.engines.llamacpp.server_plan import plan
from hybridcalc.engines.sweep import Outcome, Sweeping
from hybridcalc.errors import Refusal
from hybridcalc.units import GIB

ROUNDING = 1024
"""Bytes that a size in GiB may be off by as a float."""


def _solve(ready: Prepared, args: ContextParams, gib: float, work: Workload) -> Outcome:
    """Slots, tokens, requests and what binds. Raises Refusal for what does not start, or not whole on the cards."""
    found = plan(ready.model, args, rest=exact_rest(gib), workload=work)
    needed = caches_on_cards(found.ready)
    if needed > gib * GIB + ROUNDING:
        reason = f"KV and states take {needed / GIB:.2f} GiB, {max(gib, 0):.2f} are left: layers go to the host"
        raise Refusal(reason, stage="llama_kv_cache", rule="HC219")
    return Outcome(found.ready.sequences, found.tokens, found.requests, found.binding)


SWEEPING = Sweeping(prepare, _solve, (), ("n_seq_max", "n_ctx"), "slots", tried=False)
