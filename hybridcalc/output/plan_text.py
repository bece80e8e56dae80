"""A plan as text: verdict, figures, budget with a picture of the memory, findings, what to set, log lines."""

import sys
from collections.abc import Iterable, Iterator, Sequence
from fractions import Fraction
from math import ceil
from typing import TYPE_CHECKING, Any

from hybridcalc.deployment import HEADROOM, requests_text
from hybridcalc.engines.sglang.server_plan import Plan
from hybridcalc.errors import IllegalCombination
from hybridcalc.findings import Finding
from hybridcalc.output import terminal
from hybridcalc.output.memory_map import Segment, memory_map
from hybridcalc.plan import BudgetLine
from hybridcalc.sweep import Axis, Point
from hybridcalc.units import GIB, format_bytes

if TYPE_CHECKING:
    from rich.console import Console

STYLES = {"state": terminal.STATE, "kv": terminal.KV, "scratch": "magenta", "other": terminal.QUIET}
LETTERS = {
    "state pool": "S", "draft states": "D", "ReplaySSM rings": "R", "KV pool": "K", "draft KV": "k",
    "int8 checkpoints": "8", "per-layer-embedding convolutions": "p", "request table": "t",
    "states": "S", "state padding": "/", "KV": "K", "empty layer slots": "-", "free blocks": ".", "null block": "0",
}  # fmt: skip
SLOW_POINTS = 5_000
MOST_REASONS = 4
MOST_ROWS = 60


def print_plan(plan: Plan, *, explain: bool, remarks: Sequence[str] = ()) -> None:
    """The whole answer."""
    out = terminal.console()
    terminal.verdict(out, *plan_verdict(plan))
    terminal.figures(out, plan_figures(plan), styles=(terminal.STATE, terminal.KV))
    out.print()
    _budget(out, plan)
    print_tail(out, plan, explain=explain, remarks=remarks)


def print_tail(out: "Console", plan: Any, *, explain: bool, remarks: Sequence[str]) -> None:
    """What follows the figures of any engine's plan: findings, what to set, log lines, notes, steps."""
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


def print_comparison(sides: Sequence[tuple[str, dict[str, str] | IllegalCombination]]) -> None:
    """Plans side by side, the first as given: the same rows, and what changes."""
    out = terminal.console()
    columns = [{"starts": "no"} if isinstance(side, IllegalCombination) else side for _, side in sides]
    names = list(dict.fromkeys(name for cells in columns for name in cells))
    letters = [f"with {number}" for number in range(1, len(sides))] if len(sides) > 2 else ["with"]
    told = (f"{letter}: {flags}" for letter, (flags, _) in zip(letters, sides[1:], strict=True))
    terminal.verdict(out, "compare", "; ".join(("as given", *told)))
    rows = [(f"  {name}", *(cells.get(name, "-") for cells in columns), "") for name in names]
    terminal.listing(out, ("", "as given", *letters, ""), rows, right=tuple(range(1, len(sides) + 1)))
    refusals = [
        (label, side)
        for label, (_, side) in zip(["as given", *letters], sides, strict=True)
        if isinstance(side, IllegalCombination)
    ]
    reasons = [f"{label}: {getattr(refusal, 'rule', '')} {refusal.message}" for label, refusal in refusals]
    terminal.notes(out, reasons)


def print_sweep(axes: Sequence[Axis], points: Sequence[Point], length: Fraction | None, unit: str) -> None:
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


def with_progress(points: Iterable[Point], count: int) -> Iterator[Point]:
    """The points as they come; a bar on stderr when there are many and someone is watching."""
    if count < SLOW_POINTS or not sys.stderr.isatty():
        yield from points
        return
    from rich.console import Console
    from rich.progress import track

    yield from track(points, total=count, description="planning", console=Console(stderr=True))


def plan_verdict(plan: Plan) -> tuple[str, str]:
    """What the plan comes to: the headline, and what it means."""
    capacity, dp = plan.capacity, plan.args.attn_dp_size
    per = " a worker" if dp > 1 else ""
    count = f"{requests_text(plan.concurrency)}{per}"
    binds = {"state": "the state pool binds", "kv": "KV binds", "limit": "the request limit binds"}[plan.binding]
    if plan.workload.mean_length is None:
        return count, f"{binds}; {plan.logical_token_capacity:,} KV tokens"
    idle = "KV" if plan.binding == "state" else "state slots"
    text = f"of {plan.workload.describe()}: {binds}"
    if plan.binding != "limit" and capacity.idle_percent >= 1:
        text += f", {min(capacity.idle_percent, 99.9):.0f} % of the {idle} idle"
    return count, text


def plan_figures(plan: Plan) -> list[tuple[str, str, str, str]]:
    """The figures it rests on: label, value, human unit, reason."""
    fixed, marginal = plan.fixed_bytes_per_request, ceil(plan.marginal_bytes_per_token)
    why = f"{plan.slots_per_request} slots of {plan.ready.stage_slot_bytes:,} B"
    if plan.sizing.state.draft_bytes:
        why += f" and {plan.args.draft_tokens} draft states"
    if plan.ready.rings.per_slot or plan.ready.rings.per_request:
        why += " and their ReplaySSM rings"
    rows = [
        (
            "state slots",
            f"{plan.max_mamba_cache_size:,}",
            "slots",
            f"K{between(plan.low.state.slots, plan.high.state.slots)}: {plan.capacity.state_requests:,} requests"
            f" x {plan.slots_per_request} ({plan.ready.slots.reason})",
        ),
        (
            "KV tokens",
            f"{plan.max_total_num_tokens:,}",
            "tokens",
            f"T{between(plan.low.tokens, plan.high.tokens)} on a rank, {plan.ready.cells[0].bytes:,} B each",
        ),
        ("request limit", f"{plan.max_running_requests:,}", "requests", "R: the least of limit, T // 2 and K // S"),
        ("a request takes", f"{fixed:,} B", format_bytes(fixed), f"before its first token: {why}"),
        ("and each token", f"{marginal:,} B", format_bytes(marginal), "of KV on a rank"),
        ("memory", f"{plan.rest.likely_gib:.2f} GiB", "", plan.rest.why),
    ]
    if plan.args.dcp_size > 1:
        rows.insert(
            2, ("sequences hold", f"{plan.logical_token_capacity:,}", "tokens", f"on {plan.args.dcp_size} ranks")
        )
    return rows


def between(low: int, high: int) -> str:
    """The bounds of a figure that rests on a memory printed to two decimals; nothing where they meet."""
    return "" if low == high else f" ({min(low, high):,}..{max(low, high):,})"


def _budget(out: "Console", plan: Plan) -> None:
    rows = [
        (
            f"  {line.name}",
            f"{line.charged_bytes:,}",
            f"{line.allocated_bytes:,}",
            format_bytes(line.allocated_bytes),
            line.why,
        )
        for line in plan.budget
    ]
    terminal.listing(out, ("  per rank", "charged B", "allocated B", "", "why"), rows, right=(1, 2, 3))
    segments = [segment(line) for line in plan.budget]
    left = int(plan.rest.likely_gib * GIB) - sum(line.charged_bytes for line in plan.budget)
    if left > 0:
        segments.append(Segment("unused", ".", left, terminal.QUIET))
    for name, gib in plan.rest.others:
        held = gib - plan.uncharged_bytes / GIB if name == HEADROOM else gib
        segments.append(Segment(name, name[0].upper(), round(held * GIB), terminal.QUIET))
    out.print()
    out.print(memory_map(segments, out.width))
    over = plan.uncharged_bytes
    if over:
        out.print(f"  {format_bytes(over)} of this are not charged: the headroom holds them", style=terminal.QUIET)


def segment(line: BudgetLine) -> Segment:
    """A line of a budget as a part of the memory map."""
    return Segment(line.name, LETTERS.get(line.name, "?"), line.allocated_bytes, STYLES[line.kind])


def comparison_cells(plan: Plan) -> dict[str, str]:
    """One side of a comparison."""
    cells = {
        "starts": "yes",
        "state slots K": f"{plan.max_mamba_cache_size:,}",
        "slots a request S": f"{plan.slots_per_request}",
        "KV tokens T": f"{plan.max_total_num_tokens:,}",
        "tokens of sequences": f"{plan.logical_token_capacity:,}",
        "request limit R": f"{plan.max_running_requests:,}",
        "a request takes": format_bytes(plan.fixed_bytes_per_request),
        "and each token": format_bytes(ceil(plan.marginal_bytes_per_token)),
        "not charged": format_bytes(plan.uncharged_bytes),
    }
    if plan.workload.mean_length is not None:
        cells |= {
            "requests at once": f"{plan.concurrency:,}",
            "binds": plan.binding,
            "the other pool idles": f"{plan.capacity.idle_percent:.0f} %",
        }
        if plan.balanced is not None:
            best = max(plan.concurrency, plan.balanced.requests)
            cells["at the best ratio"] = f"{best:,}"
    return cells
