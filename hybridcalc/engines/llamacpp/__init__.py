"""llama.cpp: its context parameters, what its caches take for a hybrid model, and what to set.

``plan(model, params)`` says what a context allocates; a combination the engine refuses raises ``Refusal``.
"""

from typing import TYPE_CHECKING, Any

from hybridcalc.engines.llamacpp.config import ContextParams
from hybridcalc.engines.llamacpp.releases import NEWEST_VERSION, rules_for
from hybridcalc.errors import Refusal

if TYPE_CHECKING:
    from hybridcalc.engines.llamacpp.server_plan import Plan as Plan
    from hybridcalc.engines.llamacpp.server_plan import plan as plan

__all__ = ["NEWEST_VERSION", "ContextParams", "Plan", "Refusal", "plan", "rules_for"]


if not TYPE_CHECKING:  # a type checker knows every name, and that there are no others

    def __getattr__(name: str) -> Any:
        if name in ("Plan", "plan"):
            from hybridcalc.engines.llamacpp import server_plan

            found = globals()[name] = getattr(server_plan, name)
            return found
        raise AttributeError(f"module 'hybridcalc.engines.llamacpp' has no attribute {name!r}")
