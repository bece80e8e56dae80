"""The pages of plans, of any engine: of one, of several side by side, of a sweep; and what all pages share."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from hybridcalc.architecture.geometry import Architecture
from hybridcalc.engines.engine import ENGINES, Answer
from hybridcalc.engines.sweep import Axis, Point
from hybridcalc.errors import HybridcalcError, Refusal
from hybridcalc.findings import Finding
from hybridcalc.output.pictures.chart import Picture
from hybridcalc.output.pictures.crossover import kv_picture
from hybridcalc.output.pictures.memory import comparison_picture
from hybridcalc.output.pictures.page import Choice, Page, Table, command_line
from hybridcalc.output.plan_text import comparison_columns, words_of
from hybridcalc.steps import Suggestion
from hybridcalc.units import format_bytes

MOST_LISTED = 200
"""Rows of a sweep's page."""
Draw = Mapping[str, Callable[[], Picture]]


def plan_pictures(plan: Answer, engine: str) -> Draw:
    """The pictures of a plan by name, the usual one first."""
    room = ENGINES.room(engine, "output.pictures")
    found: Draw = {"memory": lambda: comparison_picture([("", plan)])} if room is None else room.pictures(plan)
    return found


def plan_page(plan: Answer, engine: str, remarks: Sequence[str]) -> Page:
    """The page of a plan: verdict, figures, pictures, what to try, budget, findings, what to set, log lines, steps."""
    words, room = words_of(engine), ENGINES.room(engine, "output.pictures")
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
        f"{plan.model.name} on {ENGINES.rows[engine].title} {plan.version}",
        *words.plan_verdict(plan),
        command_line(),
        tuple(words.plan_figures(plan)),
        drawn(tuple(plan_pictures(plan, engine).values())),
        None if room is None else room.play(plan),
        (budget,),
        tuple(plan.findings),
        suggested(plan.suggestions),
        tuple(plan.log_lines),
        (*remarks, *plan.notes),
        tuple(plan.steps),
    )


def refusal_page(title: str, refusal: Refusal, remarks: Sequence[str]) -> Page:
    """The page of what does not start."""
    found = Finding.of(refusal)
    lines = tuple(refusal.outputs.get("log", ()))
    return Page(
        title,
        "Does not start",
        refusal.message,
        command_line(),
        findings=(found,),
        log_lines=lines,
        notes=tuple(remarks),
    )


def comparison_page(
    title: str, sides: Sequence[tuple[str, Answer | Refusal]], engine: str, pictures: Sequence[Any]
) -> Page:
    """The page of plans side by side."""
    columns = comparison_columns(sides, engine)
    for cells, (_, side) in zip(columns, sides, strict=True):
        if isinstance(side, Refusal):
            cells["why"] = side.message
    names = dict.fromkeys(name for cells in columns for name in cells)
    rows = tuple((name, *(cells.get(name, "-") for cells in columns)) for name in names)
    table = Table("Side by side", ("", *(flags for flags, _ in sides)), rows)
    headline = f"{len(sides)} settings side by side"
    return Page(title, headline, "", command_line(), pictures=drawn(pictures), tables=(table,))


def sweep_page(title: str, axes: Sequence[Axis], points: Sequence[Point], unit: str, pictures: Sequence[Any]) -> Page:
    """The page of a sweep: its best trade-offs."""
    best = sorted((p for p in points if p.best), key=lambda p: (-p.requests, -p.tokens))[:MOST_LISTED]
    rows = tuple(
        (p.values[0], *p.values[1:], f"{p.units:,}", f"{p.tokens:,}", f"{p.requests:,}", p.binding) for p in best
    )
    header = (*(axis.name for axis in axes), unit, "KV tokens", "requests", "binds")
    count = len(axes)
    table = Table("Best trade-offs", header, rows, tuple(range(count, count + 3)))
    most = f"{best[0].requests:,} requests at most" if best else "Nothing starts"
    counted = f"{len(points):,} combination{'s' if len(points) != 1 else ''}"
    told = f"{counted}, {sum(bool(p.refusal) for p in points):,} do not start"
    return Page(title, most, told, command_line(), pictures=drawn(pictures), tables=(table,))


def stored_page(model: Architecture, why: HybridcalcError) -> Page:
    """The page of a model that no command answers for: why, and its KV over length as the usual engine keeps it."""
    rows, draw = list[tuple[str, str, str, str]](), []
    if model.attention is not None:
        size, row = ENGINES[ENGINES.usual].part("constants").kv_of(model)
        rows.append(("KV per token", f"{size:,} B", format_bytes(size), row))
        draw.append(lambda: kv_picture(model.name, size))
    told = why.message[:1].upper() + why.message[1:]
    return Page(f"{model.name}: what it stores", told, why.fix, command_line(), tuple(rows), drawn(draw))


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
