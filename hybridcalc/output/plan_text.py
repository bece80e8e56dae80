"""A plan as text, of any engine; comparisons, sweeps, and what does not start."""

import csv
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from fractions import Fraction
from typing import TYPE_CHECKING, Any, Protocol, cast

from hybridcalc.engines.engine import ENGINES, Answer
from hybridcalc.errors import Refusal
from hybridcalc.findings import Finding
from hybridcalc.output import terminal
from hybridcalc.output.memory_map import Segment
from hybridcalc.steps import BudgetLine

if TYPE_CHECKING:
    from rich.console import Console

    from hybridcalc.engines.sweep import Axis, Point

STYLES = {"state": terminal.STATE, "kv": terminal.KV, "scratch": "magenta", "other": terminal.QUIET}
LETTERS = {
    "state pool": "S", "draft states": "D", "ReplaySSM rings": "R", "KV pool": "K", "draft KV": "k",
    "int8 checkpoints": "8", "per-layer-embedding convolutions": "p", "request table": "t",
    "states": "S", "state padding": "/", "KV": "K", "empty layer slots": "-", "free blocks": ".", "null block": "0",
}  # fmt: skip
SLOW_POINTS = 5_000
MOST_REASONS = 4
MOST_ROWS = 60


class Words(Protocol):
    """What an engine's plans say in words of their own; a module of output/, by the name of the room in ENGINES."""

    def plan_verdict(self, plan: Any) -> tuple[str, str]:
        """What the plan comes to: the headline, and what it means."""

    def plan_figures(self, plan: Any) -> list[tuple[str, str, str, str]]:
        """The figures it rests on: label, value, human unit, reason."""

    def print_budget(self, out: "Console", plan: Any) -> None:
        """Where the memory goes."""

    def comparison_cells(self, plan: Any) -> dict[str, str]:
        """One side of a comparison."""


def words_of(engine: str) -> Words:
    """The words of an engine's plans; those that suit any where it has none of its own."""
    own = ENGINES.room(engine, "output")
    if own is None:
        from hybridcalc.output import plain_text as own
    return cast(Words, own)


def print_plan(plan: Answer, engine: str, *, explain: bool, remarks: Sequence[str] = ()) -> None:
    """The whole answer: verdict, figures, budget, findings, what to set, log lines, notes, steps."""
    out, words = terminal.console(), words_of(engine)
    terminal.verdict(out, *words.plan_verdict(plan))
    terminal.figures(out, words.plan_figures(plan), styles=(terminal.STATE, terminal.KV))
    out.print()
    words.print_budget(out, plan)
    for severity in ("error", "warning"):
        texts = [_told(f) for f in plan.findings if f.severity == severity]
        terminal.notes(out, texts, label=severity, style=terminal.TROUBLE)
    if plan.suggestions:
        out.print()
        for suggestion in plan.suggestions:
            terminal.choice(out, suggestion.flags, f"{suggestion.effect}: {suggestion.why}")
    out.print()
    out.print("log lines to expect:", style=terminal.QUIET)
    for line in plan.log_lines:
        terminal.quoted(out, line)
    notes = [_told(f) for f in plan.findings if f.severity == "note"]
    if plan.workload.mean_length is None:
        notes.append("-L TOKENS (or --lengths) shows what the pools admit, what idles, and what to set")
    terminal.notes(out, [*remarks, *notes, *plan.notes])
    if explain:
        terminal.explanation(out, plan.steps)


def _told(finding: Finding) -> str:
    return f"{finding.rule} {finding.message}{'; ' + finding.fix if finding.fix else ''}"


def comparison_columns(sides: Sequence[tuple[str, Answer | Refusal]], engine: str) -> list[dict[str, str]]:
    """The cells of every side of a comparison, in rows that plans have in common."""
    words = words_of(engine)
    return [{"starts": "no"} if isinstance(p, Refusal) else words.comparison_cells(p) for _, p in sides]


def print_comparison(sides: Sequence[tuple[str, Answer | Refusal]], engine: str) -> None:
    """Plans side by side, the first as given: the same rows, and what changes."""
    out = terminal.console()
    columns = comparison_columns(sides, engine)
    names = list(dict.fromkeys(name for cells in columns for name in cells))
    letters = [f"with {number}" for number in range(1, len(sides))] if len(sides) > 2 else ["with"]
    told = (f"{letter}: {flags}" for letter, (flags, _) in zip(letters, sides[1:], strict=True))
    terminal.verdict(out, "compare", "; ".join(("as given", *told)))
    rows = [(f"  {name}", *(cells.get(name, "-") for cells in columns), "") for name in names]
    terminal.listing(out, ("", "as given", *letters, ""), rows, right=tuple(range(1, len(sides) + 1)))
    refusals = [
        (label, side)
        for label, (_, side) in zip(["as given", *letters], sides, strict=True)
        if isinstance(side, Refusal)
    ]
    reasons = [f"{label}: {refusal.rule} {refusal.message}" for label, refusal in refusals]
    terminal.notes(out, reasons)


def print_refusal(refusal: Refusal, remarks: Sequence[str]) -> None:
    """Why a plan does not start, at which stage, and what to change."""
    out, settled = terminal.console(), refusal.outputs
    terminal.verdict(out, "does not start", refusal.message, style=terminal.TROUBLE)
    rows = [("rule", refusal.rule, "", ""), ("stage", refusal.stage, "", "of the engine's start-up")]
    if "memory_why" in settled:
        rows.append(("memory", f"{settled['available_gib']:.2f} GiB", "", settled["memory_why"]))
    terminal.figures(out, rows)
    if refusal.fix:
        terminal.notes(out, [refusal.fix], label="fix")
    terminal.notes(out, remarks)


def print_sweep(axes: "Sequence[Axis]", points: "Sequence[Point]", length: Fraction | None, unit: str) -> None:
    """Every point of a sweep, or the front alone where there are too many to read."""
    out = terminal.console()
    started = [point for point in points if not point.refusal]
    shown = (list(points) if len(points) <= MOST_ROWS else [point for point in points if point.best])[:MOST_ROWS]
    what = f"requests of {float(length):,.0f} tokens" if length is not None else "requests"
    best = max(started, key=lambda point: (point.requests, point.tokens), default=None)
    headline = f"{best.requests:,} {what} at most" if best is not None else "nothing starts"
    terminal.verdict(out, headline, f"{len(points):,} combinations, {len(points) - len(started):,} do not start")
    rows = [
        (
            "  " + point.values[0],
            *point.values[1:],
            f"{point.units:,}",
            f"{point.tokens:,}",
            f"{point.requests:,} {'*' if point.best else ' '}",
            "refused" if point.refusal else point.binding,
        )
        for point in shown
    ]
    header = ("  " + axes[0].name, *(axis.name for axis in axes[1:]), unit, "KV tokens", "requests  ", "binds")
    terminal.listing(out, header, rows, right=tuple(range(len(axes), len(axes) + 3)))
    remarks = ["* no other combination has as many requests and tokens, and more of one"]
    reasons = list(dict.fromkeys(f"refused: {point.refusal}" for point in shown if point.refusal))
    remarks += reasons[:MOST_REASONS]
    if len(reasons) > MOST_REASONS:
        remarks.append(f"{len(reasons) - MOST_REASONS} more reasons: see --csv or --json")
    if len(shown) < len(points):
        remarks.append(f"{len(points):,} points: only those are shown; --csv or --json print all of them")
    terminal.notes(out, remarks)


def print_csv(rows: Sequence[Mapping[str, Any]]) -> None:
    """The points of a sweep as CSV, one a line, under their names; there is at least one."""
    writer = csv.DictWriter(sys.stdout, fieldnames=list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)


def with_progress(points: "Iterable[Point]", count: int) -> "Iterator[Point]":
    """The points as they come; a bar on stderr when there are many and someone is watching."""
    if count < SLOW_POINTS or not sys.stderr.isatty():
        yield from points
        return
    from rich.console import Console
    from rich.progress import track

    yield from track(points, total=count, description="planning", console=Console(stderr=True))


def between(low: int, high: int) -> str:
    """The bounds of a figure that rests on a memory printed to two decimals; nothing where they meet."""
    return "" if low == high else f" ({min(low, high):,}..{max(low, high):,})"


def segment(line: BudgetLine) -> Segment:
    """A line of a budget as a part of the memory map."""
    return Segment(line.name, LETTERS.get(line.name, line.name[:1]), line.allocated_bytes, STYLES[line.kind])
