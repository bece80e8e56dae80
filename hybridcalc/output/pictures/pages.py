"""The page of a plan, of either engine; and what pages of all answers share."""

from collections.abc import Sequence
from typing import Any

from hybridcalc.errors import HybridcalcError
from hybridcalc.output.pictures.chart import Picture
from hybridcalc.output.pictures.page import Choice, Page, Table, command_line
from hybridcalc.output.pictures.play import Play
from hybridcalc.plan import Suggestion
from hybridcalc.units import format_bytes


def plan_page(
    plan: Any,
    title: str,
    told: tuple[str, str],
    rows: Sequence[tuple[str, str, str, str]],
    pictures: Sequence[Any],
    play: Play | None,
    remarks: Sequence[str],
) -> Page:
    """The page of ``plan``: ``told`` is its verdict, ``rows`` its figures, ``pictures`` functions that may refuse."""
    budget = Table(
        "Budget",
        ("per rank", "charged B", "allocated B", "", "why"),
        tuple(
            (
                line.name,
                f"{line.charged_bytes:,}",
                f"{line.allocated_bytes:,}",
                format_bytes(line.allocated_bytes),
                line.why,
            )
            for line in plan.budget
        ),
        (1, 2, 3),
    )
    return Page(
        title,
        *told,
        command_line(),
        tuple(rows),
        drawn(pictures),
        play,
        (budget,),
        tuple(plan.findings),
        suggested(plan.suggestions),
        tuple(plan.log_lines),
        (*remarks, *plan.notes),
        tuple(plan.steps),
    )


def drawn(pictures: Sequence[Any]) -> tuple[Picture, ...]:
    """Those of the pictures that this answer has."""
    found = []
    for picture in pictures:
        try:
            found.append(picture())
        except HybridcalcError:
            continue
    return tuple(found)


def suggested(suggestions: Sequence[Suggestion]) -> tuple[Choice, ...]:
    """Suggestions as flags to copy."""
    return tuple(Choice("", s.flags, f"{s.effect}: {s.why}") for s in suggestions)
