"""Crossovers as text: verdict, figures, and the curve in letters, or as a table where nothing draws it."""

from fractions import Fraction
from math import ceil
from typing import Any

from hybridcalc.engines.crossover import Baseline, Crossover
from hybridcalc.formulas.crossover import Span
from hybridcalc.output import terminal
from hybridcalc.units import format_bytes


def print_crossover(answer: Crossover, *, explain: bool) -> None:
    """Verdict, figures, curve and notes; the steps with ``explain``."""
    from hybridcalc.output.pictures.crossover import crossover_picture
    from hybridcalc.output.pictures.terminal import draw

    out = terminal.console()
    terminal.verdict(out, *crossover_verdict(answer))
    terminal.figures(out, crossover_figures(answer), styles=(terminal.STATE, terminal.KV))
    out.print()
    chart = crossover_picture(answer)
    picture = draw(chart, width=out.width, colour=out.color_system is not None, encoding=out.encoding)
    if picture is not None:
        out.file.write(picture + "\n")
    else:
        terminal.listing(out, *crossover_points(answer), right=(0, 1, 2, 3))
        terminal.notes(out, ["pip install 'hybridcalc[plot]' draws this as a curve"])
    terminal.notes(out, answer.notes)
    if explain:
        terminal.explanation(out, answer.steps)


def crossover_verdict(answer: Crossover) -> tuple[str, str]:
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


def crossover_figures(answer: Crossover) -> list[tuple[str, str, str, str]]:
    """The figures it rests on: label, value, unit, reason."""
    state, kv = answer.state_bytes, answer.kv_bytes_per_token
    rows = [
        ("state", f"{state:,} B", format_bytes(state), answer.state_why),
        ("KV per token", f"{kv:,} B", format_bytes(kv), answer.kv_why),
    ]
    if answer.per_layer_tokens is not None and answer.component_tokens is not None:
        rows.append(
            ("one layer pair", _tokens(answer.per_layer_tokens), "tokens", "one state layer against one KV layer")
        )
        rows.append(
            ("whole state", _tokens(answer.component_tokens), "tokens", "all state layers against all KV layers")
        )
    if answer.baseline is not None:
        base = answer.baseline
        size = base.kv_bytes_per_token
        rows.append((base.name, f"{size:,} B", format_bytes(size), f"per token, {base.why}"))
        if base.component_tokens is not None:
            rows.append(
                ("state alone", _tokens(base.component_tokens), "tokens", f"its state against {base.name}'s KV")
            )
        whole = f"all of it against all of {base.name}"
        if base.total_tokens is not None or not base.lighter:
            total = _tokens(base.total_tokens) if base.total_tokens is not None else "never"
            rows.append(("whole hybrid", total, "tokens", whole))
        rows += [
            ("lighter up to", f"{span.last:,}", "tokens", f"from {span.first:,} on, {whole}")
            for span in base.lighter
            if span.last is not None
        ]
    return rows


def _tokens(value: Fraction) -> str:
    return f"{float(value):,.2f}"


def crossover_points(answer: Crossover) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """The curve as a table: its header and its rows."""
    header: tuple[str, ...] = ("  tokens", "state", "KV")
    if answer.baseline is not None:
        header = (*header, answer.baseline.name)
    rows = []
    for point in answer.curve:
        cells: list[Any] = [f"{point.tokens:,}", format_bytes(point.state_bytes), format_bytes(point.kv_bytes)]
        if point.baseline_bytes is not None:
            cells.append(format_bytes(point.baseline_bytes))
        rows.append(tuple(cells))
    return header, rows
