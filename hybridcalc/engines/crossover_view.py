"""Crossovers as people read them: verdict, figures, and the curve; of a model that has none, what it stores."""

from collections.abc import Callable
from fractions import Fraction
from math import ceil

from hybridcalc.architecture import Architecture
from hybridcalc.engines.charts import Axis, Chart, Mark, Picture, Series, lengths
from hybridcalc.engines.crossover import Baseline, Crossover
from hybridcalc.engines.engine import Engine
from hybridcalc.errors import HybridcalcError
from hybridcalc.findings import Quantity, Table, View
from hybridcalc.formulas import Span
from hybridcalc.units import format_bytes

SHORTEST, LONGEST = 16, 131_072
"""Tokens at which the curve starts: below it only the fixed state is to be seen."""


def crossover_view(answer: Crossover) -> View:
    """The whole answer."""
    return View(
        f"{answer.model}: state against KV",
        *_verdict(answer),
        figures=tuple(_figures(answer)),
        roles=("state", "kv"),
        tables=(_curve(answer),),
        notes=tuple(answer.notes),
        steps=tuple(answer.steps),
        pictures={"crossover": lambda: crossover_picture(answer)},
        curve=True,
    )


def stored_view(model: Architecture, engine: Engine, why: HybridcalcError) -> View:
    """A model that no command answers for: why, and its KV over length as ``engine`` keeps it."""
    figures: tuple[Quantity, ...] = ()
    draw: dict[str, Callable[[], Picture]] = {}
    if model.attention is not None:
        size, row = engine.part("sizes").kv_of(model)
        figures = (Quantity("KV per token", f"{size:,} B", format_bytes(size), row),)
        draw["kv"] = lambda: kv_picture(model.name, size)
    told = why.message[:1].upper() + why.message[1:]
    return View(f"{model.name}: what it stores", told, why.fix, figures=figures, pictures=draw)


def _verdict(answer: Crossover) -> tuple[str, str]:
    """What the crossover comes to: the headline, and what it means."""
    if answer.baseline is not None:
        return _against(answer.model, answer.baseline)
    if answer.component_tokens is None:
        return "no crossover", f"{answer.model} has no KV that grows"
    where = _above(answer.component_tokens, int(answer.component_tokens) + 1)
    return f"T* = {ceil(answer.component_tokens):,} tokens", f"{where} KV outweighs the state"


def _against(model: str, baseline: Baseline) -> tuple[str, str]:
    """At which lengths the hybrid holds less than the baseline."""
    less, total = f"{model} holds less than {baseline.name}", baseline.total_tokens
    if not baseline.lighter:
        return "never", f"{model} holds no less than {baseline.name}, however long the sequence"
    bounded = [span for span in baseline.lighter if span.last is not None]
    endless = next((span for span in baseline.lighter if span.last is None), None)
    if endless is None:
        headline = " and ".join(_lengths(span) for span in bounded)
        return headline, f"{less}, and no less at any other length"
    if endless.first == 1 or total is None:
        return "from the first token", less
    if bounded:
        less += f", and {' and '.join(_lengths(span) for span in bounded)} as well"
    return f"T* = {ceil(total):,} tokens", f"{_above(total, endless.first)} {less}"


def _lengths(span: Span) -> str:
    """A span that ends, in words."""
    end = (span.last or 0) + 1
    return f"below {end:,} tokens" if span.first == 1 else f"from {span.first:,} to {end - 1:,} tokens"


def _above(meeting: Fraction, first: int) -> str:
    """From ``first`` tokens on, said after the meeting itself."""
    return "from there on" if first == ceil(meeting) else f"from {first:,} tokens on"


def _figures(answer: Crossover) -> list[Quantity]:
    """The figures it rests on: label, value, unit, reason."""
    state, kv = answer.state_bytes, answer.kv_bytes_per_token
    rows = [
        Quantity.of("state", f"{state:,} B", format_bytes(state), answer.state_why),
        Quantity.of("KV per token", f"{kv:,} B", format_bytes(kv), answer.kv_why),
    ]
    if answer.baseline is not None:
        size = answer.baseline.kv_bytes_per_token
        rows.append(
            Quantity(answer.baseline.name, f"{size:,} B", format_bytes(size), f"per token, {answer.baseline.why}")
        )
    if answer.curve:
        rows.append(_longest(answer))
    if answer.per_layer_tokens is not None and answer.component_tokens is not None:
        rows.append(
            Quantity(
                "one layer pair", _tokens(answer.per_layer_tokens), "tokens", "one state layer against one KV layer"
            )
        )
        rows.append(
            Quantity(
                "whole state", _tokens(answer.component_tokens), "tokens", "all state layers against all KV layers"
            )
        )
    if answer.traffic_tokens is not None:
        why = "from there a step moves more KV than state"
        rows.append(Quantity("in traffic", _tokens(answer.traffic_tokens), "tokens", why))
    if answer.baseline is not None:
        base = answer.baseline
        if base.component_tokens is not None:
            rows.append(
                Quantity("state alone", _tokens(base.component_tokens), "tokens", f"its state against {base.name}'s KV")
            )
        whole = f"all of it against all of {base.name}"
        if base.total_tokens is not None or not base.lighter:
            total = _tokens(base.total_tokens) if base.total_tokens is not None else "never"
            rows.append(Quantity("whole hybrid", total, "tokens", whole))
        rows += [
            Quantity("lighter up to", f"{span.last:,}", "tokens", f"from {span.first:,} on, {whole}")
            for span in base.lighter
            if span.last is not None
        ]
    return rows


def _longest(answer: Crossover) -> Quantity:
    """What the longest sequence of the curve holds."""
    end = answer.curve[-1]
    whole = end.state_bytes + end.kv_bytes
    why = f"state {format_bytes(end.state_bytes)} + KV {format_bytes(end.kv_bytes)}"
    if answer.baseline is not None and end.baseline_bytes is not None:
        why = f"{answer.baseline.name}: {format_bytes(end.baseline_bytes)}"
    return Quantity(f"at {end.tokens:,} tokens", f"{whole:,} B", format_bytes(whole), why)


def _tokens(value: Fraction) -> str:
    return f"{float(value):,.2f}"


def _curve(answer: Crossover) -> Table:
    """The curve as a table."""
    others = () if answer.baseline is None else (answer.baseline.name,)
    rows = []
    for point in answer.curve:
        sizes = (point.state_bytes, point.kv_bytes, point.baseline_bytes)
        rows.append((f"{point.tokens:,}", *(format_bytes(size) for size in sizes if size is not None)))
    return Table("Curve", ("tokens", "state", "KV", *others), tuple(rows), (0, 1, 2, 3))


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
