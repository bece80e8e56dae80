"""What Toy's flags come to without memory."""

from toy.planner import prepare


def unsized(model, args, workload):
    """Nothing but the start-up: both rules need the memory."""
    return prepare(model, args)
