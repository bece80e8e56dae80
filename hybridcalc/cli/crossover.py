"""``hybridcalc crossover``: the length from which KV outweighs the state, in three readings, and the curve."""

from fractions import Fraction
from math import ceil
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hybridcalc.cli import options, pictures
from hybridcalc.engines.crossover import Baseline, Crossover
from hybridcalc.engines.engine import ENGINES, offered
from hybridcalc.formulas.crossover import Span
from hybridcalc.output.document import print_json
from hybridcalc.units import format_bytes

if TYPE_CHECKING:
    from hybridcalc.output.pictures.page import Page

app = typer.Typer(rich_markup_mode=None, add_completion=False)


@app.command()
def crossover(
    model: options.Model,
    baseline: Annotated[
        str | None,
        typer.Option(
            "--baseline", metavar="MODEL", autocompletion=options.complete_model, help="A model to weigh it against."
        ),
    ] = None,
    length: Annotated[
        str | None, typer.Option("--length", "-L", metavar="TOKENS", help="Longest length of the curve.")
    ] = None,
    engine: Annotated[
        str, typer.Option("--engine", metavar="NAME", help="sglang; or vllm: what its pages and blocks take.")
    ] = ENGINES.usual,
    tp_size: options.Tp = 1,
    dp_size: options.Dp = 1,
    enable_dp_attention: options.DpAttention = False,
    dcp_size: options.Dcp = 1,
    kv_cache_dtype: options.KvDtype = "auto",
    mamba_ssm_dtype: options.SsmDtype = None,
    enable_prefix_caching: Annotated[
        bool | None,
        typer.Option(
            "--enable-prefix-caching/--no-enable-prefix-caching",
            help="vLLM: with it a state takes two or three blocks, without it one.",
        ),
    ] = None,
    env: options.Environment = None,
    engine_version: options.EngineVersion = None,
    save: pictures.Save = None,
    figure: pictures.Figure = None,
    theme: pictures.Theme = "auto",
    force: pictures.Force = False,
    as_json: options.Json = False,
    explain: options.Explain = False,
) -> None:
    """The length from which a sequence's KV weighs more than its recurrent state, and a hybrid less than a baseline.

    Three readings: one layer pair, the whole state against the model's own KV, and the whole hybrid against a baseline.
    """
    asked_for = pictures.wanted(save, figure, theme, force=force, document=as_json, explain=explain)
    served = ENGINES[ENGINES.named(engine)]
    compare = offered(served.crossover, "crossover", served.title)
    given = {
        "tp_size": tp_size,
        "dp_size": dp_size if dp_size > 1 else None,
        "enable_dp_attention": enable_dp_attention or None,
        "dcp_size": dcp_size,
        "kv_cache_dtype": kv_cache_dtype,
        "mamba_ssm_dtype": options.ssm_dtype(mamba_ssm_dtype),
        "enable_prefix_caching": enable_prefix_caching,
        "engine_version": engine_version,
    }
    served.check_options(given)
    args = served.with_options(served.read([], options.environment(env or []))[1], given)
    served.check_together(args)
    other = options.model(baseline) if baseline is not None else None
    answer = compare(options.model(model), other, args, longest=options.tokens("-L", length))
    if asked_for.any:
        from hybridcalc.output.pictures.crossover import crossover_picture

        draw = {"crossover": lambda: crossover_picture(answer)}
        pictures.deliver(asked_for, draw, lambda: crossover_page(answer), quiet=as_json)
    if as_json:
        print_json("crossover", {"engine": served.name} | answer.to_dict())
    elif not asked_for.any:
        _print(answer, explain=explain)


def _print(answer: Crossover, *, explain: bool) -> None:
    from hybridcalc.output import terminal
    from hybridcalc.output.pictures.crossover import crossover_picture
    from hybridcalc.output.pictures.terminal import draw

    out = terminal.console()
    terminal.verdict(out, *_verdict(answer))
    terminal.figures(out, _figures(answer), styles=(terminal.STATE, terminal.KV))
    out.print()
    chart = crossover_picture(answer)
    picture = draw(chart, width=out.width, colour=out.color_system is not None, encoding=out.encoding)
    if picture is not None:
        out.file.write(picture + "\n")
    else:
        terminal.listing(out, *_points(answer), right=(0, 1, 2, 3))
        terminal.notes(out, ["pip install 'hybridcalc[plot]' draws this as a curve"])
    terminal.notes(out, answer.notes)
    if explain:
        terminal.explanation(out, answer.steps)


def crossover_page(answer: Crossover) -> "Page":
    """The page about a crossover."""
    from hybridcalc.output.pictures.crossover import crossover_picture
    from hybridcalc.output.pictures.page import Page, Table, command_line

    header, points = _points(answer)
    table = Table("Curve", tuple(cell.strip() for cell in header), tuple(points), tuple(range(1, len(header))))
    title = f"{answer.model}: state against KV"
    return Page(
        title,
        *_verdict(answer),
        command_line(),
        tuple(_figures(answer)),
        (crossover_picture(answer),),
        None,
        (table,),
        notes=tuple(answer.notes),
        steps=tuple(answer.steps),
    )


def _verdict(answer: Crossover) -> tuple[str, str]:
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


def _figures(answer: Crossover) -> list[tuple[str, str, str, str]]:
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


def _points(answer: Crossover) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
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
