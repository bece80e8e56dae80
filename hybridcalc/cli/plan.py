"""``hybridcalc plan``: what an engine will allocate, clamp and refuse, and which flags serve the workload better.

Everything that is no option of this command is read as the engine's own command line, so that every spelling the
engine takes works here; what follows ``--`` is a whole launch line.
"""

import csv
import sys
from collections.abc import Callable
from fractions import Fraction
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from hybridcalc.architecture.geometry import Architecture
from hybridcalc.cli import options
from hybridcalc.cli import plan_inputs as inputs
from hybridcalc.deployment import Workload
from hybridcalc.engines.sglang.config import NEWEST_VERSION, Refusal, ServerArgs
from hybridcalc.engines.sglang.server_plan import Plan, plan, refused
from hybridcalc.findings import at_or_above
from hybridcalc.reports.document import print_json
from hybridcalc.units import MOST_SLOTS

KIND_HELP = "What else to suggest for: long (documents), agent (short turns), batch, small (cards)."
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
    "plan", cls=LaunchCommand, context_settings={"ignore_unknown_options": True, "allow_extra_args": True},
    options_metavar="[MODEL] [ENGINE FLAGS] [OPTIONS] [-- LAUNCH LINE]",
)  # fmt: skip
def plan_command(
    context: typer.Context,
    rest: Annotated[
        str | None, typer.Option("--rest", metavar="SIZE", help="Memory left for both pools on one rank.")
    ] = None,
    gpu: Annotated[
        str | None, typer.Option("--gpu", metavar="NAME|SIZE", help="GPU, with --weights and --mem-fraction-static.")
    ] = None,
    weights: Annotated[
        str | None, typer.Option("--weights", metavar="SIZE", help="Weights on one rank (`mem usage` of a boot log).")
    ] = None,
    avail_before: Annotated[
        str | None, typer.Option("--avail-before", metavar="GIB", help="`avail mem` a boot printed before the weights.")
    ] = None,
    avail_after: Annotated[
        str | None, typer.Option("--avail-after", metavar="GIB", help="`avail mem` a boot printed after the weights.")
    ] = None,
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
    workload: Annotated[str | None, typer.Option("--workload", metavar="KIND", help=KIND_HELP)] = None,
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
    max_draft_tokens: Annotated[
        int | None,
        typer.Option("--max-draft-tokens", metavar="N", min=1, max=1024, help="Most draft tokens, where they adapt."),
    ] = None,
    platform: Annotated[
        str, typer.Option("--platform", metavar="NAME", help="cuda, hip, npu, xpu, musa or cpu.")
    ] = "cuda",
    env: options.Environment = None,
    engine_version: options.EngineVersion = NEWEST_VERSION,
    fail_on: Annotated[
        str | None,
        typer.Option(
            "--fail-on", metavar="SEVERITY", help="Exit 1 on findings from: note, warning, error (default), never."
        ),
    ] = None,
    as_json: options.Json = False,
    explain: options.Explain = False,
) -> None:
    """What SGLang will allocate, where it clamps, what it refuses, and which flags serve the workload better.

    MODEL and the engine's own flags come as on its command line, or as a launch line after --. Memory comes from
    --rest; or --gpu, --weights and --mem-fraction-static; or the two `avail mem` figures of a boot.
    """
    extra: dict[str, Any] = {
        "draft_layers": draft_layers, "draft_kv_bytes_per_token": draft_kv_bytes_per_token,
        "max_draft_tokens": max_draft_tokens, "platform": platform, "engine_version": engine_version,
    }  # fmt: skip
    severity = options.severity("--fail-on", fail_on or "error")
    given = inputs.MemoryOptions(rest, gpu, weights, avail_before, avail_after)
    axes, others = sweep or [], compare or []
    inputs.check_together(
        platform, given, sweep=axes, compare=others, as_csv=as_csv, as_json=as_json, fail_on=fail_on,
        length=bool(length or lengths),
    )  # fmt: skip
    own = [name for option in context.command.params for name in option.opts]
    launch = inputs.launch_words(
        list(context.args), context.meta.get(LAUNCH_WORDS), options.environment(env or []), own
    )
    asked = inputs.arguments(launch, extra, complete=not axes)
    name, args = asked.model, asked.args
    model = options.model(name)
    work = inputs.workload_of(length, lengths, concurrency, workload)
    memory_left = inputs.memory_of(given, axes, model, name)
    if axes:
        _sweep(model, lambda flags: inputs.arguments(launch, extra, flags).args, axes, memory_left, work,
               as_csv=as_csv, as_json=as_json)  # fmt: skip
        return
    first = _planned(model, args, memory_left, work)
    if others:
        sides: list[Side] = [("as given", model, args, first)]
        for flags in others:
            more, more_env = inputs.comparison_flags(flags, own)
            changed = launch._replace(env=launch.env | more_env)
            other_name, other, _ = inputs.arguments(changed, extra, more)
            other_model = model if other_name == name else options.model(other_name)
            left = inputs.memory_of(given, axes, other_model, other_name)
            sides.append((flags, other_model, other, _planned(other_model, other, left, work)))
        _compare(sides, as_json=as_json)
        return
    said = inputs.remarks(asked, given)
    if isinstance(first, Refusal):
        if as_json:
            print_json("plan", refused(model, args, first) | {"notes": said})
        else:
            _print_refusal(first, said)
        raise typer.Exit(1)
    if as_json:
        document = first.to_dict()
        print_json("plan", document | {"notes": [*said, *document["notes"]]})
    else:
        from hybridcalc.reports.plan_text import print_plan

        print_plan(first, explain=explain, remarks=said)
    if at_or_above(first.findings, severity):
        raise typer.Exit(1)


def _planned(model: Architecture, args: ServerArgs, memory_left: inputs.Memory, work: Workload) -> Plan | Refusal:
    try:
        return plan(model, args, rest=memory_left(args), workload=work)
    except Refusal as refusal:
        return refusal


def _print_refusal(refusal: Refusal, remarks: list[str]) -> None:
    from hybridcalc.reports import terminal

    out = terminal.console()
    terminal.verdict(out, "does not start", refusal.reason, style=terminal.TROUBLE)
    rows = [("rule", refusal.rule, "", ""), ("stage", refusal.stage, "", "of the engine's start-up")]
    terminal.figures(out, rows)
    if refusal.fix:
        terminal.notes(out, [refusal.fix], label="fix")
    terminal.notes(out, remarks)


Side = tuple[str, Architecture, ServerArgs, Plan | Refusal]
"""One side of a comparison: its flags, what was asked, and the answer."""


def _compare(sides: list[Side], *, as_json: bool) -> None:
    """Several plans side by side; exits with 1 when one of them does not start."""
    if as_json:
        documents = [
            {"flags": flags} | (refused(model, args, p) if isinstance(p, Refusal) else p.to_dict())
            for flags, model, args, p in sides
        ]
        print_json("plan", {"compare": documents})
    else:
        from hybridcalc.reports.plan_text import print_comparison

        print_comparison([(flags, answer) for flags, _, _, answer in sides])
    if any(isinstance(answer, Refusal) for _, _, _, answer in sides):
        raise typer.Exit(1)


def _sweep(
    model: Architecture, arguments: Callable[[list[str]], ServerArgs], specs: list[str], memory_left: inputs.Memory,
    work: Workload, *, as_csv: bool, as_json: bool,
) -> None:  # fmt: skip
    from hybridcalc.engines.sglang.sweep import count_points, mark_front, parse_axis, sweep
    from hybridcalc.reports import plan_text

    axes = [parse_axis(spec) for spec in specs]
    count = count_points(axes)
    length: Fraction | None = work.mean_length
    points = sweep(model, arguments, axes, memory=memory_left, length=length)
    marked = mark_front(list(plan_text.with_progress(points, count)))
    if as_json:
        print_json("plan", {"sweep": [point.to_dict(axes) for point in marked]})
    elif as_csv:
        rows = [point.to_dict(axes) for point in marked]
        writer = csv.DictWriter(sys.stdout, fieldnames=list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    else:
        plan_text.print_sweep(axes, marked, length)
    if all(point.refusal for point in marked):
        raise typer.Exit(1)
