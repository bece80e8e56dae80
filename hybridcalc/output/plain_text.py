"""What a plan says as text where its engine has no words of its own."""

from typing import TYPE_CHECKING

from hybridcalc.deployment import requests_text
from hybridcalc.engines.engine import Answer
from hybridcalc.output import terminal
from hybridcalc.output.memory_map import memory_map
from hybridcalc.output.plan_text import segment
from hybridcalc.units import format_bytes

if TYPE_CHECKING:
    from rich.console import Console


def plan_verdict(plan: Answer) -> tuple[str, str]:
    """What the plan comes to: the headline, and what it means."""
    length = f"of {plan.workload.describe()}: " if plan.workload.lengths else ""
    return requests_text(plan.requests), f"{length}{plan.tokens:,} KV tokens"


def plan_figures(plan: Answer) -> list[tuple[str, str, str, str]]:
    """The figures it rests on: label, value, human unit, reason."""
    return [
        ("KV tokens", f"{plan.tokens:,}", "tokens", "that the caches hold"),
        ("memory", f"{plan.rest.likely_gib:.2f} GiB", "", plan.rest.why),
    ]


def print_budget(out: "Console", plan: Answer) -> None:
    """Every buffer, and the memory to scale."""
    rows = [
        (f"  {line.name}", f"{line.allocated_bytes:,}", format_bytes(line.allocated_bytes), line.why)
        for line in plan.budget
    ]
    terminal.listing(out, ("  per rank", "B", "", "why"), rows, right=(1, 2))
    out.print()
    out.print(memory_map([segment(line) for line in plan.budget], out.width))


def comparison_cells(plan: Answer) -> dict[str, str]:
    """One side of a comparison."""
    return {"starts": "yes", "KV tokens": f"{plan.tokens:,}", "requests at once": f"{plan.requests:,}"}
