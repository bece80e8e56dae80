"""vLLM's door; closed until its planner is there."""

from hybridcalc.checks.doors import Door


def vllm_door() -> Door | None:
    """The door to vLLM's planner."""
    return None
