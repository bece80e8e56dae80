"""What Toy's flags decide alone."""

from typing import NamedTuple

from hybridcalc.errors import Refusal
from hybridcalc.findings import Finding
from toy.planner import prepare

MEMORY = "the memory for the blocks"


class Decided(NamedTuple):
    """Findings, and rules that wait."""

    findings: tuple[Finding, ...]
    waiting: tuple[tuple[str, tuple[str, ...]], ...]


def decide(model, args, workload):
    """The refusal, or what waits for memory."""
    try:
        prepare(model, args)
    except Refusal as refusal:
        return Decided((Finding(refusal.rule, "error", refusal.reason, refusal.fix),), ())
    return Decided((), (("TOY2", (MEMORY,)),))
