"""State against KV over the length of a sequence, with the crossovers marked; log axes."""

from math import ceil

from hybridcalc.engines.crossover import Crossover
from hybridcalc.output.crossover_text import crossover_figures, crossover_points, crossover_verdict
from hybridcalc.output.pictures.chart import Axis, Chart, Mark, Series, lengths
from hybridcalc.output.pictures.page import Page, Table, command_line

SHORTEST, LONGEST = 16, 131_072
"""Tokens at which the curve starts: below it only the fixed state is to be seen."""


def crossover_picture(answer: Crossover) -> Chart:
    """The curve of an answer of ``hybridcalc crossover``."""
    points = [point for point in answer.curve if point.tokens >= SHORTEST] or list(answer.curve)
    series = [
        Series("state", "state", tuple((p.tokens, p.state_bytes) for p in points if p.state_bytes), "s"),
        Series("KV", "kv", tuple((p.tokens, p.kv_bytes) for p in points if p.kv_bytes), "k"),
    ]
    told = f"State {answer.state_bytes:,} B; KV {answer.kv_bytes_per_token:,} B a token. One sequence on one rank."
    if answer.baseline is not None:
        name = answer.baseline.name
        whole = tuple((p.tokens, p.state_bytes + p.kv_bytes) for p in points)
        series.append(Series(f"all of {answer.model}", "balanced", whole, "a", "dashed"))
        other = tuple((p.tokens, p.baseline_bytes) for p in points if p.baseline_bytes)
        series.append(Series(f"baseline {name}", "baseline", other, "b", "dashed"))
    marks = tuple(Mark(float(at), f"{_mark(name)} at {ceil(at):,}") for name, at in answer.marks)
    title = f"State against KV: {answer.model}"
    if answer.baseline is not None:
        title += f", and {answer.baseline.name}"
    return Chart(
        title,
        told,
        Axis("tokens of one sequence", "tokens", True, points[0].tokens, points[-1].tokens),
        Axis("memory", "bytes", True),
        tuple(s for s in series if s.points),
        marks,
    )


def crossover_page(answer: Crossover) -> Page:
    """The page about a crossover."""
    header, points = crossover_points(answer)
    table = Table("Curve", tuple(cell.strip() for cell in header), tuple(points), tuple(range(1, len(header))))
    title = f"{answer.model}: state against KV"
    return Page(
        title,
        *crossover_verdict(answer),
        command_line(),
        tuple(crossover_figures(answer)),
        (crossover_picture(answer),),
        None,
        (table,),
        notes=tuple(answer.notes),
        steps=tuple(answer.steps),
    )


def _mark(name: str) -> str:
    return "T*: KV = state" if name == "KV = state" else f"T*: {name}"


def kv_picture(name: str, kv_bytes_per_token: int) -> Chart:
    """KV alone over length, of a model without a state."""
    at = lengths(SHORTEST, LONGEST, 33)
    curve = Series("KV", "kv", tuple((x, x * kv_bytes_per_token) for x in at), "k")
    told = f"KV {kv_bytes_per_token:,} B a token; no state beside it. One sequence on one rank."
    return Chart(
        f"KV over length: {name}",
        told,
        Axis("tokens of one sequence", "tokens", True, SHORTEST, LONGEST),
        Axis("memory", "bytes", True),
        (curve,),
    )
