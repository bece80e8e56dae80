"""Toy's rules."""

from collections.abc import Iterator
from typing import Any

from hybridcalc.findings import MEMORY, Rule


def _limited(plan: Any) -> Iterator[Any]:
    if plan.binding == "limit":
        yield f"{plan.args.max_requests} requests are the limit", "raise --max-requests"


RULES = (
    Rule("TOY1", "error", "model refused", "It has attention only.", "toy", needs=(MEMORY,)),
    Rule("TOY2", "warning", "the limit binds", "Blocks are left.", "toy", _limited, needs=(MEMORY,)),
)
