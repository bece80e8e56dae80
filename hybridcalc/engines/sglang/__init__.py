"""SGLang: its arguments, its rules for slots and pools, and what to set."""

from hybridcalc.engines.sglang.config import NEWEST_VERSION, ServerArgs, rules_for

__all__ = ["NEWEST_VERSION", "ServerArgs", "rules_for"]
