"""SGLang: its arguments, its start-up, and what to set.

``plan(model, args, rest_gib=...)`` runs the start-up; a configuration the engine refuses raises ``Refusal``.
"""

from typing import TYPE_CHECKING, Any

from hybridcalc.engines.sglang.config import ServerArgs
from hybridcalc.engines.sglang.releases import NEWEST_VERSION, rules_for
from hybridcalc.errors import Refusal

if TYPE_CHECKING:
    from hybridcalc.engines.sglang.fraction import resolve as resolve
    from hybridcalc.engines.sglang.server_plan import Plan as Plan
    from hybridcalc.engines.sglang.server_plan import plan as plan

__all__ = ["NEWEST_VERSION", "Plan", "Refusal", "ServerArgs", "plan", "resolve", "rules_for"]


if not TYPE_CHECKING:  # a type checker knows every name, and that there are no others

    def __getattr__(name: str) -> Any:
        if name in ("Plan", "plan"):
            from hybridcalc.engines.sglang import server_plan

            found = globals()[name] = getattr(server_plan, name)
            return found
        if name == "resolve":
            from hybridcalc.engines.sglang.fraction import resolve

            return resolve
        raise AttributeError(f"module 'hybridcalc.engines.sglang' has no attribute {name!r}")
