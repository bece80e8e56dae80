"""``hybridcalc plan``: what an engine will allocate, clamp and refuse, and which flags serve the workload better.

Everything that is no option of this command is read as the engine's own command line, so that every spelling the
engine takes works here; what follows ``--`` is a whole launch line.
"""

from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from hybridcalc.architecture.geometry import Architecture
from hybridcalc.cli import options, pictures
from hybridcalc.cli import plan_inputs as inputs
from hybridcalc.deployment import Workload
from hybridcalc.engines.engine import Engine, offered
from hybridcalc.engines.view import comparison_view, plan_view, refusal_view
from hybridcalc.errors import Refusal
from hybridcalc.findings import at_or_above
from hybridcalc.output.document import print_json
from hybridcalc.units import MOST_SLOTS

if TYPE_CHECKING:
    from hybridcalc.engines.engine import Answer

KIND_HELP = (
    "long, agent, batch or small: what else to suggest for; or requests as `reuse` takes them: chat:sessions=50."
)
LAUNCH_WORDS = "hybridcalc.launch_words"


class LaunchCommand(options.Command):
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


@options.command(
    app,
    "plan",
    cls=LaunchCommand,
    context_settings={"ignore_unknown_options": True, "allow_extra_args": True},
    options_metavar="[MODEL] [ENGINE FLAGS] [OPTIONS] [-- LAUNCH LINE]",
)
def plan_command(
    *,
    context: typer.Context,
    engine: options.EngineName = None,
    memory: options.MemoryGiven,
    length: options.Length = None,
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
    server: options.ServerGiven,
    env: options.Environment = None,
    fail_on: Annotated[
        str | None,
        typer.Option(
            "--fail-on", metavar="SEVERITY", help="Exit 1 on findings from: note, warning, error (default), never."
        ),
    ] = None,
    picture: pictures.Pictures,
    as_json: options.Json = False,
    explain: options.Explain = False,
) -> None:
    """What SGLang or vLLM will allocate, where it clamps, what it refuses, and which flags serve the workload better.

    MODEL and the engine's own flags come as on its command line, or as a launch line after --. Memory comes for SGLang
    from --rest; --gpu, --weights and --mem-fraction-static; or the two `avail mem` figures of a boot; for vLLM from
    --available; or --gpu, --weights and --gpu-memory-utilization.
    """
    severity = options.severity("--fail-on", fail_on or "error")
    asked_for = pictures.wanted(picture, document=as_json or as_csv, explain=explain)
    axes, others = sweep or [], compare or []
    inputs.check_together(
        sweep=axes,
        compare=others,
        as_csv=as_csv,
        as_json=as_json,
        fail_on=fail_on,
        length=bool(length or lengths),
        fixed_memory=memory.rest is not None or memory.available is not None,
    )
    given: dict[str, Any] = {
        **memory._asdict(),
        **server._asdict(),
        "shared_prefix": options.tokens("--shared-prefix", shared_prefix),
        "private": options.tokens("--private", private),
    }
    own = [name for option in context.command.params for name in option.opts]
    launch, variables = context.meta.get(LAUNCH_WORDS), options.environment(env or [])
    question = inputs.question(context.args, launch, variables, own, engine, given)
    work = inputs.workload_of(
        length, lengths, concurrency, workload, shared=given["shared_prefix"], private=given["private"]
    )
    if axes:
        _sweep(question, axes, work, asked_for, as_csv=as_csv, as_json=as_json)
        return
    side = _planned(question, "as given", question.arguments(), work)
    if others:
        sides = [side]
        for flags in others:
            served = question.engine
            more, more_env = inputs.comparison_flags(flags, own, served.flags, served.model_flag)
            changed = question._replace(launch=question.launch._replace(env=question.launch.env | more_env))
            sides.append(_planned(changed, flags, changed.arguments(more), work, side))
        _compare(question.engine, sides, asked_for, as_json=as_json)
        return
    _answer(question, side, asked_for, severity, as_json=as_json, explain=explain)


class Side(NamedTuple):
    """One plan: the flags that make it another than the first, what was asked, and the answer, or the refusal."""

    flags: str
    asked: inputs.Asked
    model: Architecture
    answer: "Answer | Refusal"


def _planned(
    question: inputs.Question, flags: str, asked: inputs.Asked, work: Workload, first: Side | None = None
) -> Side:
    """The plan, or the refusal of the engine or of its memory."""
    model = first.model if first is not None and first.asked.model == asked.model else options.model(asked.model)
    try:
        rest = question.memory(model, asked)
        return Side(flags, asked, model, question.engine.plan(model, asked.args, rest, work))
    except Refusal as refusal:
        return Side(flags, asked, model, refusal)


def _answer(
    question: inputs.Question, side: Side, asked_for: pictures.Wanted, severity: str, *, as_json: bool, explain: bool
) -> None:
    """One plan, or why it does not start; exits with 1 for that, and for findings at or above ``severity``."""
    engine, answer, remarks = question.engine, side.answer, question.remarks(side.asked)
    if isinstance(answer, Refusal):
        view = partial(refusal_view, f"{side.asked.model} on {engine.title}", answer, remarks)
        pictures.show(view, _page_or_text(asked_for), document=as_json)
        if as_json:
            from hybridcalc.engines.document import refusal_document

            print_json("plan", refusal_document(engine, side.model, side.asked.args, answer) | {"notes": remarks})
        raise typer.Exit(1)
    pictures.show(partial(plan_view, engine, answer, remarks), asked_for, document=as_json, explain=explain)
    if as_json:
        document = answer.to_dict()
        print_json("plan", document | {"notes": [*remarks, *document["notes"]]})
    if at_or_above(answer.findings, severity):
        raise typer.Exit(1)


def _page_or_text(asked_for: pictures.Wanted) -> pictures.Wanted:
    """What is shown where nothing starts: no picture."""
    if asked_for.page:
        return asked_for
    pictures.nothing_drawn(asked_for)
    return pictures.NOTHING


def _compare(engine: Engine, sides: list[Side], asked_for: pictures.Wanted, *, as_json: bool) -> None:
    """Several plans side by side; exits with 1 when one of them does not start."""
    answers = [(side.flags, side.answer) for side in sides]
    started = sum(not isinstance(side.answer, Refusal) for side in sides)
    view = partial(comparison_view, engine, f"{sides[0].model.name} on {engine.title}", answers)
    pictures.show(view, asked_for if started else _page_or_text(asked_for), document=as_json)
    if as_json:
        from hybridcalc.engines.document import refusal_document

        documents = [
            {"flags": flags}
            | (refusal_document(engine, model, asked.args, p) if isinstance(p, Refusal) else p.to_dict())
            for flags, asked, model, p in sides
        ]
        print_json("plan", {"compare": documents})
    if started < len(sides):
        raise typer.Exit(1)


def _sweep(
    question: inputs.Question,
    specs: list[str],
    work: Workload,
    asked_for: pictures.Wanted,
    *,
    as_csv: bool,
    as_json: bool,
) -> None:
    """Every combination of the swept settings; exits with 1 when none starts."""
    from hybridcalc.engines.sweep import count_points, mark_front, parse_axis, sweep
    from hybridcalc.engines.sweep_view import sweep_view
    from hybridcalc.output.document import print_csv
    from hybridcalc.output.progress import with_progress

    engine = question.engine
    how = offered(engine.sweeping, "--sweep", engine.title)
    name = question.model_named()
    model, axes = options.model(name), [parse_axis(spec) for spec in specs]
    count = count_points(axes, engine.flags)
    points = sweep(
        engine,
        axes,
        lambda flags: question.arguments(flags).args,
        model,
        memory=lambda args: question.memory(model, inputs.Asked(name, args, ())),
        work=work,
    )
    marked = mark_front(list(with_progress(points, count)))
    starts = any(not point.refusal for point in marked)
    view = partial(sweep_view, engine, model.name, axes, marked, work)
    pictures.show(view, asked_for if starts else _page_or_text(asked_for), document=as_json or as_csv)
    if as_json:
        print_json("plan", {"sweep": [point.to_dict(axes, how.names) for point in marked]})
    elif as_csv:
        print_csv([point.to_dict(axes, how.names) for point in marked])
    if not starts:
        raise typer.Exit(1)
