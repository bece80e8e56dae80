"""vLLM: its arguments, how it sizes pages and blocks for a hybrid model, and what to set.

``plan(model, args, available_bytes=...)`` runs the start-up; a configuration the engine refuses raises ``Refusal``.
"""

from typing import TYPE_CHECKING, Any

from hybridcalc.engines.vllm.config import EngineArgs
from hybridcalc.engines.vllm.layers import layer_state, state_bytes_per_layer
from hybridcalc.engines.vllm.releases import NEWEST_VERSION, rules_for
from hybridcalc.errors import Refusal

if TYPE_CHECKING:
    from hybridcalc.engines.vllm.server_plan import Plan as Plan
    from hybridcalc.engines.vllm.server_plan import plan as plan

__all__ = [
    "NEWEST_VERSION", "EngineArgs", "Plan", "Refusal", "layer_state", "plan", "rules_for", "state_bytes_per_layer",
]  # fmt: skip


if not TYPE_CHECKING:  # a type checker knows every name, and that there are no others

    def __getattr__(name: str) -> Any:
        if name in ("Plan", "plan"):
            from hybridcalc.engines.vllm import server_plan

            found = globals()[name] = getattr(server_plan, name)
            return found
        raise AttributeError(f"module 'hybridcalc.engines.vllm' has no attribute {name!r}")
