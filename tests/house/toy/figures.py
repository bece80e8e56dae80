"""What Toy's flags come to without memory."""

from typing import Any

from toy.planner import prepare


def unsized(model: Any, args: Any, workload: Any) -> Any:
    """Nothing but the start-up: both rules need the memory."""
    return prepare(model, args)
