"""``hybridcalc plan``: what an engine will allocate, clamp and refuse, and which flags serve the workload better.

Everything that is no option of this command is read as the engine's own command line, so that every spelling the
engine takes works here; what follows ``--`` is a whole launch line.
"""

import csv
import sys
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperCommand

from hybridcalc.architecture.geometry import Architecture
from hybridcalc.cli import options, pictures, server_options
from hybridcalc.cli import plan_inputs as inputs
from hybridcalc.deployment import Workload
from hybridcalc.errors import IllegalCombination
from hybridcalc.findings import at_or_above
from hybridcalc.output.document import print_json
from hybridcalc.units import MOST_SLOTS

if TYPE_CHECKING:
    from hybridcalc.cli.plan_engine import PlanEngine
    from hybridcalc.output.pictures.page import Page
    from hybridcalc.sweep import Axis, Point

KIND_HELP = (
    "long, agent, batch or small: what else to suggest for; or requests as `reuse` takes them: chat:sessions=50."
)
MOST_LISTED = 200
"""Rows of a sweep's page."""
LAUNCH_WORDS = "hybridcalc.launch_words"


class LaunchCommand(TyperCommand):
    """A command that keeps what follows ``--`` apart: a launch line to read, not words of its own."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse what comes before ``--``."""
        if "--" in args:
            at = args.index("--")
            ctx.meta[LAUNCH_WORDS] = args[at + 1 :]
            args = args[:at]
        parsed: list[str] = super().parse_args(ctx, args)
        return parsed


app = typer.Typer(rich_markup_mode=None, add_completion=False)


@app.command(
    "plan",
    cls=LaunchCommand,
    context_settings={"ignore_unknown_options": True, "allow_extra_args": True},
    options_metavar="[MODEL] [ENGINE FLAGS] [OPTIONS] [-- LAUNCH LINE]",
)
def plan_command(
    context: typer.Context,
    engine: server_options.EngineName = None,
    rest: server_options.Rest = None,
    available: server_options.Available = None,
    gpu: server_options.Gpu = None,
    weights: server_options.Weights = None,
    non_cache: server_options.NonCache = None,
    avail_before: server_options.AvailBefore = None,
    avail_after: server_options.AvailAfter = None,
    length: Annotated[
        str | None, typer.Option("--length", "-L", metavar="TOKENS", help="Tokens a request holds: prompt and answer.")
    ] = None,
    lengths: Annotated[
        str | None,
        typer.Option("--lengths", metavar="L:N,...", help="Unequal requests: 8k:20,128k:2 (length:requests)."),
    ] = None,
    concurrency: Annotated[
        int | None,
        typer.Option("--concurrency", "-C", metavar="N", min=1, max=MOST_SLOTS, help="Requests that should run."),
    ] = None,
    workload: Annotated[str | None, typer.Option("--workload", metavar="W", help=KIND_HELP)] = None,
    shared_prefix: Annotated[
        str | None,
        typer.Option("--shared-prefix", metavar="TOKENS", help="vLLM: tokens of a prompt that requests share."),
    ] = None,
    private: Annotated[
        str | None,
        typer.Option("--private", metavar="TOKENS", help="vLLM: tokens after them that are a request's own."),
    ] = None,
    compare: Annotated[
        list[str] | None,
        typer.Option("--compare", metavar="FLAGS", help="Plan these engine flags as well, side by side; repeatable."),
    ] = None,
    sweep: Annotated[
        list[str] | None,
        typer.Option(
            "--sweep", metavar="NAME=V", help="Plan every value: NAME=a,b,c or NAME=low:high:step; repeatable."
        ),
    ] = None,
    as_csv: Annotated[bool, typer.Option("--csv", help="Print a sweep as CSV.")] = False,
    draft_layers: options.DraftLayers = None,
    draft_kv_bytes_per_token: options.DraftKv = None,
    max_draft_tokens: server_options.MaxDraftTokens = None,
    platform: server_options.PlatformName = None,
    gpu_capability: server_options.GpuCapability = None,
    env: options.Environment = None,
    engine_version: server_options.RulesVersion = None,
    fail_on: Annotated[
        str | None,
        typer.Option(
            "--fail-on", metavar="SEVERITY", help="Exit 1 on findings from: note, warning, error (default), never."
        ),
    ] = None,
    save: pictures.Save = None,
    figure: pictures.Figure = None,
    theme: pictures.Theme = "auto",
    force: pictures.Force = False,
    as_json: options.Json = False,
    explain: options.Explain = False,
) -> None:
    """What SGLang or vLLM will allocate, where it clamps, what it refuses, and which flags serve the workload better.

    MODEL and the engine's own flags come as on its command line, or as a launch line after --. Memory comes for SGLang
    from --rest; --gpu, --weights and --mem-fraction-static; or the two `avail mem` figures of a boot; for vLLM from
    --available; or --gpu, --weights and --gpu-memory-utilization.
    """
    severity = options.severity("--fail-on", fail_on or "error")
    asked_for = pictures.wanted(save, figure, theme, force=force, document=as_json or as_csv, explain=explain)
    given = inputs.MemoryOptions(rest, available, gpu, weights, non_cache, avail_before, avail_after)
    axes, others = sweep or [], compare or []
    inputs.check_together(
        sweep=axes,
        compare=others,
        as_csv=as_csv,
        as_json=as_json,
        fail_on=fail_on,
        length=bool(length or lengths),
        fixed_memory=rest is not None or available is not None,
    )
    line = inputs.read_line(context.meta.get(LAUNCH_WORDS))
    served = engine_named(inputs.engine_of(engine, line))
    from hybridcalc.cli.plan_engine import PlanOptions

    extra = PlanOptions(
        engine_version,
        draft_layers,
        draft_kv_bytes_per_token,
        max_draft_tokens,
        platform,
        gpu_capability,
        options.tokens("--shared-prefix", shared_prefix),
        options.tokens("--private", private),
    )
    served.check_options(extra, given)
    own = [name for option in context.command.params for name in option.opts]
    launch = inputs.launch_words(
        list(context.args), line, options.environment(env or []), own, served.table, served.model_flag
    )
    work = inputs.workload_of(length, lengths, concurrency, workload, shared=extra.shared_prefix, private=extra.private)
    asked = served.arguments(launch, extra, given, whole=not axes)
    name, args = asked.model, asked.args
    model = options.model(name)
    memory_swept = inputs.swept(served.memory_name, axes)
    if axes:
        memory_left = served.memory(given, memory_swept, model, name)
        _sweep(
            served,
            model,
            lambda flags: served.arguments(launch, extra, given, flags).args,
            axes,
            memory_left,
            work,
            asked_for,
            as_csv=as_csv,
            as_json=as_json,
        )
        return
    first = _planned(served, model, args, served.memory(given, memory_swept, model, name), work)
    if others:
        sides: list[Side] = [("as given", model, args, first)]
        for flags in others:
            more, more_env = inputs.comparison_flags(flags, own, served.table, served.model_flag)
            changed = launch._replace(env=launch.env | more_env)
            other = served.arguments(changed, extra, given, more)
            other_model = model if other.model == name else options.model(other.model)
            left = served.memory(given, memory_swept, other_model, other.model)
            sides.append((flags, other_model, other.args, _planned(served, other_model, other.args, left, work)))
        _compare(served, sides, asked_for, as_json=as_json)
        return
    said = served.said(asked, given)
    if isinstance(first, IllegalCombination):
        if asked_for.page:
            pictures.deliver(asked_for, {}, lambda: _refusal_page(served, name, first, said), quiet=as_json)
        if as_json:
            print_json("plan", served.refused(model, args, first) | {"notes": said})
        elif not asked_for.page:
            _print_refusal(first, said)
        if not asked_for.page:
            pictures.nothing_drawn(asked_for)
        raise typer.Exit(1)
    if asked_for.any:
        pictures.deliver(asked_for, served.pictures(first), lambda: served.page(first, said), quiet=as_json)
    if as_json:
        document = first.to_dict()
        print_json("plan", document | {"notes": [*said, *document["notes"]]})
    elif not asked_for.any:
        served.print_plan(first, explain=explain, remarks=said)
    if at_or_above(served.findings(first), severity):
        raise typer.Exit(1)


def engine_named(name: str) -> "PlanEngine[Any, Any]":
    """The engine of that name; only its modules are imported."""
    if name == "vllm":
        from hybridcalc.cli.plan_vllm import VllmEngine

        return VllmEngine()
    from hybridcalc.cli.plan_sglang import SglangEngine

    return SglangEngine()


def _planned(served: "PlanEngine[Any, Any]", model: Architecture, args: Any, memory_left: Any, work: Workload) -> Any:
    """The plan, or the refusal of the engine or of its memory."""
    try:
        return served.plan(model, args, memory_left(args), work)
    except IllegalCombination as refusal:
        if not hasattr(refusal, "stage"):
            raise
        return refusal


def _refusal_page(served: "PlanEngine[Any, Any]", name: str, refusal: IllegalCombination, remarks: list[str]) -> "Page":
    from hybridcalc.findings import Finding
    from hybridcalc.output.pictures.page import Page, command_line

    found = Finding(getattr(refusal, "rule", ""), "error", refusal.message, refusal.fix)
    lines = getattr(refusal, "outputs", {}).get("log", [])
    title = f"{name} on {served.title}"
    return Page(
        title,
        "Does not start",
        refusal.message,
        command_line(),
        findings=(found,),
        log_lines=tuple(lines),
        notes=tuple(remarks),
    )


def _comparison_page(served: "PlanEngine[Any, Any]", sides: "list[Side]", draw: pictures.Draw) -> "Page":
    from hybridcalc.output.pictures.page import Page, Table, command_line
    from hybridcalc.output.pictures.pages import drawn

    columns = [
        {"starts": "no", "why": answer.message}
        if isinstance(answer, IllegalCombination)
        else served.comparison_cells(answer)
        for _, _, _, answer in sides
    ]
    names = dict.fromkeys(name for cells in columns for name in cells)
    rows = tuple((name, *(cells.get(name, "-") for cells in columns)) for name in names)
    table = Table("Side by side", ("", *(flags for flags, *_ in sides)), rows)
    title, headline = f"{sides[0][1].name} on {served.title}", f"{len(sides)} settings side by side"
    return Page(title, headline, "", command_line(), pictures=drawn(tuple(draw.values())), tables=(table,))


def _sweep_page(
    served: "PlanEngine[Any, Any]", axes: "list[Axis]", points: "list[Point]", name: str, draw: pictures.Draw
) -> "Page":
    from hybridcalc.output.pictures.page import Page, Table, command_line
    from hybridcalc.output.pictures.pages import drawn

    best = sorted((p for p in points if p.best), key=lambda p: (-p.requests, -p.tokens))[:MOST_LISTED]
    rows = tuple(
        (p.values[0], *p.values[1:], f"{p.units:,}", f"{p.tokens:,}", f"{p.requests:,}", p.binding) for p in best
    )
    header = (*(axis.name for axis in axes), served.unit, "KV tokens", "requests", "binds")
    count = len(axes)
    table = Table("Best trade-offs", header, rows, tuple(range(count, count + 3)))
    most = f"{best[0].requests:,} requests at most" if best else "Nothing starts"
    counted = f"{len(points):,} combination{'s' if len(points) != 1 else ''}"
    told = f"{counted}, {sum(bool(p.refusal) for p in points):,} do not start"
    return Page(
        f"{name} on {served.title}", most, told, command_line(), pictures=drawn(tuple(draw.values())), tables=(table,)
    )


def _print_refusal(refusal: IllegalCombination, remarks: list[str]) -> None:
    rule, stage = getattr(refusal, "rule", ""), getattr(refusal, "stage", "")
    settled: dict[str, Any] = getattr(refusal, "outputs", {})
    from hybridcalc.output import terminal

    out = terminal.console()
    terminal.verdict(out, "does not start", refusal.message, style=terminal.TROUBLE)
    rows = [("rule", rule, "", ""), ("stage", stage, "", "of the engine's start-up")]
    if "memory_why" in settled:
        rows.append(("memory", f"{settled['available_gib']:.2f} GiB", "", settled["memory_why"]))
    terminal.figures(out, rows)
    if refusal.fix:
        terminal.notes(out, [refusal.fix], label="fix")
    terminal.notes(out, remarks)


Side = tuple[str, Architecture, Any, Any]
"""One side of a comparison: its flags, what was asked, and the answer (a plan, or a refusal)."""


def _compare(served: "PlanEngine[Any, Any]", sides: list[Side], asked_for: pictures.Wanted, *, as_json: bool) -> None:
    """Several plans side by side; exits with 1 when one of them does not start."""
    started = [(flags, answer) for flags, _, _, answer in sides if not isinstance(answer, IllegalCombination)]
    pictured = asked_for.any and (asked_for.page or bool(started))
    if not pictured:
        pictures.nothing_drawn(asked_for)
    else:
        from hybridcalc.output.pictures.memory import comparison_picture

        draw = {"compare": lambda: comparison_picture(started)}
        pictures.deliver(asked_for, draw, lambda: _comparison_page(served, sides, draw), quiet=as_json)
    if as_json:
        documents = [
            {"flags": flags} | (served.refused(model, args, p) if isinstance(p, IllegalCombination) else p.to_dict())
            for flags, model, args, p in sides
        ]
        print_json("plan", {"compare": documents})
    elif not pictured:
        from hybridcalc.output.plan_text import print_comparison

        cells = [
            (flags, answer if isinstance(answer, IllegalCombination) else served.comparison_cells(answer))
            for flags, _, _, answer in sides
        ]
        print_comparison(cells)
    if any(isinstance(answer, IllegalCombination) for _, _, _, answer in sides):
        raise typer.Exit(1)


def _sweep(
    served: "PlanEngine[Any, Any]",
    model: Architecture,
    arguments: Any,
    specs: list[str],
    memory_left: Any,
    work: Workload,
    asked_for: pictures.Wanted,
    *,
    as_csv: bool,
    as_json: bool,
) -> None:
    from hybridcalc.output import plan_text
    from hybridcalc.sweep import count_points, mark_front, parse_axis, sweep

    axes = [parse_axis(spec) for spec in specs]
    count, length = count_points(axes, served.table), work.mean_length
    points = sweep(
        axes,
        arguments,
        served.solver(model),
        served.table,
        memory_name=served.memory_name,
        cheap_fields=served.cheap_fields,
        memory=memory_left,
        work=work,
    )
    marked = mark_front(list(plan_text.with_progress(points, count)))
    starts = any(not point.refusal for point in marked)
    pictured = asked_for.any and (asked_for.page or starts)
    if not pictured:
        pictures.nothing_drawn(asked_for)
    else:
        from hybridcalc.output.pictures.sweep import pareto_picture

        draw = {"pareto": lambda: pareto_picture(axes, marked, model.name)}
        page = partial(_sweep_page, served, axes, marked, model.name, draw)
        pictures.deliver(asked_for, draw, page, quiet=as_json or as_csv)
    if as_json:
        print_json("plan", {"sweep": [point.to_dict(axes, served.sweep_names) for point in marked]})
    elif as_csv:
        rows = [point.to_dict(axes, served.sweep_names) for point in marked]
        writer = csv.DictWriter(sys.stdout, fieldnames=list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    elif not pictured:
        plan_text.print_sweep(axes, marked, length, served.unit)
    if not starts:
        raise typer.Exit(1)
