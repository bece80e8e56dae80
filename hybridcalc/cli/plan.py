"""``hybridcalc plan``: what an engine will allocate, clamp and refuse, and which flags serve the workload better.

Everything that is no option of this command is read as the engine's own command line, so that every spelling the
engine takes works here; what follows ``--`` is a whole launch line.
"""

import sys
from collections.abc import Callable, Iterator
from contextlib import redirect_stdout, suppress
from dataclasses import replace
from functools import partial
from string import ascii_letters
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from hybridcalc.architecture import Architecture
from hybridcalc.cli import answers, options
from hybridcalc.cli import plan_inputs as inputs
from hybridcalc.cli.app import PanelledCommand, command
from hybridcalc.deployment import Rest, Workload
from hybridcalc.engines import offered
from hybridcalc.engines.engine import Engine
from hybridcalc.engines.view import plan_view, refusal_view, serves
from hybridcalc.errors import HybridcalcError, Refusal, flags_of
from hybridcalc.findings import Quantity, at_or_above

if TYPE_CHECKING:
    from hybridcalc.engines.answer import Answer
    from hybridcalc.engines.remedy import Remedied
    from hybridcalc.findings import View
    from hybridcalc.speed.plans import Pace

KIND_HELP = (
    "long, agent, batch or small: what else to suggest for; or requests as `reuse` takes them: chat:sessions=50."
)
LAUNCH_WORDS = "hybridcalc.launch_words"


class LaunchCommand(PanelledCommand):
    """A command that keeps what follows ``--`` apart: a launch line to read, not words of its own."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse what comes before ``--``."""
        if "--" in args:
            at = args.index("--")
            ctx.meta[LAUNCH_WORDS] = args[at + 1 :]
            args = args[:at]
        parsed: list[str] = super().parse_args(ctx, args)
        return parsed

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """The usage as it is written: MODEL stands first, and what follows ``--`` last."""
        return [self.options_metavar or ""]

    def make_parser(self, ctx: Any) -> Any:
        """A parser that leaves an engine's flags of one dash whole (``-ctv``): they are no short options in a row."""
        parser = super().make_parser(ctx)
        own = {name for option in self.params for name in option.opts}
        parser._opt_prefixes |= {f"-{letter}" for letter in ascii_letters if f"-{letter}" not in own}
        return parser


app = typer.Typer(rich_markup_mode=None, add_completion=False)


@command(
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
    lengths: options.Lengths = None,
    concurrency: options.Concurrency = None,
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
    emit: options.Emit = None,
    fail_on: Annotated[
        str | None,
        typer.Option(
            "--fail-on", metavar="SEVERITY", help="Exit 1 on findings from: note, warning, error (default), never."
        ),
    ] = None,
    form: answers.Forms,
) -> None:
    """What SGLang or vLLM will allocate, where it clamps, what it refuses, and which flags serve the workload better.

    MODEL and the engine's own flags come as on its command line, or as a launch line after --. Memory comes for SGLang
    from --rest; --gpu, --weights and --mem-fraction-static; or the two `avail mem` figures of a boot; for vLLM from
    --available; or --gpu, --weights and --gpu-memory-utilization.
    """
    severity = options.severity("--fail-on", fail_on or "error")
    asked_for = answers.wanted(form, as_csv=as_csv)
    axes, others = sweep or [], compare or []
    inputs.check_together(
        sweep=axes,
        compare=others,
        as_csv=as_csv,
        as_json=form.as_json,
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
    if emit is not None:
        answers.check_emit(emit, axes, others, as_json=form.as_json)
    if axes:
        _sweep(question, axes, work, asked_for)
        return
    side = planned(question, "as given", question.arguments(), work)
    if emit is not None:
        if not isinstance(side.answer, Refusal) and not at_or_above(side.answer.findings, severity):
            _emit(emit, question, side, work)
            return
        why = "it does not start" if isinstance(side.answer, Refusal) else f"there are findings from {severity} on"
        way = "" if isinstance(side.answer, Refusal) else "; --fail-on never writes it all the same"
        print(f"nothing is written for --emit {emit}: {why}{way}\n", file=sys.stderr)
        with redirect_stdout(sys.stderr):  # what stands in for a file is none
            _answer(question, side, work, asked_for, severity)
    if others:
        sides = [side]
        for flags in others:
            served = question.engine
            more, more_env = inputs.comparison_flags(flags, own, served.flags, served.model_flag)
            more = options.spelt_for(served, more)
            changed = question._replace(launch=question.launch._replace(env=question.launch.env | more_env))
            sides.append(planned(changed, flags, changed.arguments(more), work, side))
        _compare(question.engine, sides, asked_for)
        return
    _answer(question, side, work, asked_for, severity)


class Side(NamedTuple):
    """One plan: the flags that make it another than the first, what was asked, and the answer, or the refusal."""

    flags: str
    asked: inputs.Asked
    model: Architecture
    answer: "Answer | Refusal"


def planned(
    question: inputs.Question, flags: str, asked: inputs.Asked, work: Workload, first: Side | None = None
) -> Side:
    """The plan, or the refusal of the engine or of its memory."""
    model = first.model if first is not None and first.asked.model == asked.model else options.model(asked.model)
    try:
        rest = question.memory(model, asked.args, None if first is None else (first.model, first.asked.args))
        answer = question.engine.plan(model, asked.args, rest, work)
        answer.of_words = question.passed_over(asked)
        if question.known.gpu is not None and question.engine.ranked:
            answer.wider = partial(_wider, question, model, asked.args, work)
        return Side(flags, asked, model, answer)
    except Refusal as refusal:
        untyped = question.engine.not_shared(model, asked.args, asked.shared, refusal, question.known.gpu)
        return Side(flags, asked, model, untyped or refusal)


def _answer(question: inputs.Question, side: Side, work: Workload, asked_for: answers.Wanted, severity: str) -> None:
    """One plan, or why it does not start; exits with 1 for that, and for findings at or above ``severity``."""
    engine, answer, remarks = question.engine, side.answer, question.remarks(side.asked)
    if isinstance(answer, Refusal):
        answer.fix = remedied(question, side, answer.rule, answer.fix, work)
        remarks += [found.message for found in question.passed_over(side.asked)]
        then = partial(mended, question, side, answer.fix, work)
        view = partial(refusal_view, engine, f"{side.asked.model} on {engine.title}", answer, remarks, then)
        answers.show("plan", asked_for.undrawn(), view, lambda: _document(engine, side) | {"notes": remarks})
        raise typer.Exit(1)

    doubts = (
        doubt._replace(fix=remedied(question, side, doubt.rule, doubt.fix, work)) for doubt in answer.rest.undecided
    )
    answer.rest = answer.rest._replace(undecided=tuple(doubts))
    pace, unknown = pace_known(engine, answer)

    def document() -> dict[str, Any]:
        found = _document(engine, side)
        told = (f"no floor of time: {why}" for why in unknown)
        return found | {"notes": [*remarks, *told, *found["notes"]]}

    def whole() -> "View":
        found = plan_view(engine, answer, remarks, partial(_on_newest, question, side, work))
        if pace is None:
            at = next((n + 1 for n, row in enumerate(found.figures) if row.label == "memory"), 0)
            open_one = tuple(Quantity("a step", "not known", "", why) for why in unknown)
            return found._replace(figures=(*found.figures[:at], *open_one, *found.figures[at:]), kept=("a step",))
        return pace.shown(found, prompt=work.tells_prompts)

    answers.show("plan", asked_for, whole, document)
    if at_or_above(answer.findings, severity):
        raise typer.Exit(1)


def pace_known(engine: Engine, plan: "Answer") -> "tuple[Pace | None, list[str]]":
    """The floors of its time, of a plan on a GPU with a name and for a length; or why they are not known."""
    if plan.rest.gpu is None or plan.workload.mean_length is None or not plan.requests:
        return None, []
    from hybridcalc.hardware import gpu_id

    if gpu_id(plan.rest.gpu) is None or not engine.offers("weights"):  # a size; a checkpoint that is a file of its own
        return None, []
    from hybridcalc.speed.plans import pace_of

    try:
        return pace_of(engine, plan, wanted=plan.workload.wanted), []
    except HybridcalcError as error:
        return None, [str(error)]


def _emit(form: str, question: inputs.Question, side: Side, work: Workload) -> None:
    """The plan's launch as a deployment file, with what was typed of it that says nothing to a plan."""
    from hybridcalc.engines.document import launch_of
    from hybridcalc.hardware import gpu_id
    from hybridcalc.manifests.emit import of_launch

    engine, plan = question.engine, side.answer
    card = None if isinstance(plan, Refusal) or plan.rest.gpu is None else gpu_id(plan.rest.gpu)
    launch = launch_of(engine, side.model, side.asked.args.given())
    words = question.launch.words
    typed = words[1:] if question.launch.strict and not words[0].startswith("-") else words  # without MODEL
    answers.write_out(form, of_launch(engine, side.asked.args, launch, card, typed), work, question.known)


def mended(question: inputs.Question, side: Side, fix: str, work: Workload) -> "Answer | None":
    """The plan with what a refusal says to write; None where that is no flag, or does not start either."""
    flags = flags_of(fix)
    return _changed(question, side, work, lambda args: question.engine.changed(args, flags)) if flags else None


def remedied(question: inputs.Question, side: Side, rule: str, fix: str, work: Workload) -> str:
    """What would start on the same GPUs, where the memory follows from them, and all ranks that divide the model where
    these were wrong; else the ``fix`` as it is.
    """
    if question.known.gpu is None or flags_of(fix):
        return fix
    from hybridcalc.engines.remedy import remedies

    found = remedies(_case(question, side.model, side.asked.args, work), rule)
    divide = f"; {fix.removeprefix('write ')} divide" if rule == question.engine.indivisible[1] and "," in fix else ""
    return f"{found}{divide}" if found else fix


def _case(question: inputs.Question, model: Architecture, args: Any, work: Workload) -> "Remedied":
    """What remedies are sought for."""
    from hybridcalc.engines.remedy import Remedied

    def memory(other: Architecture, changed: Any) -> Rest:
        return question.memory(other, changed, (model, args))

    gpu = question.known.gpu
    return Remedied(question.engine, model, args, memory, work, None if gpu is None else gpu.cards)


def _wider(
    question: inputs.Question, model: Architecture, args: Any, work: Workload, wanted: int, *, within: bool
) -> str:
    """More ranks that serve the requests that are wanted."""
    from hybridcalc.engines.remedy import wider

    return wider(_case(question, model, args, work), wanted, within=within)


def _on_newest(question: inputs.Question, side: Side, work: Workload) -> "Answer | None":
    """The plan of the newest release, where another is asked for and that one starts as well."""
    if side.asked.args.engine_version in (None, question.engine.newest):
        return None
    return _changed(question, side, work, lambda args: replace(args, engine_version=None))


def _changed(question: inputs.Question, side: Side, work: Workload, change: Callable[[Any], Any]) -> "Answer | None":
    """The plan with changed arguments; None where there is none."""
    with suppress(HybridcalcError):
        asked = side.asked._replace(args=change(side.asked.args))
        answer = planned(question, "", asked, work, side).answer
        return None if isinstance(answer, Refusal) else answer
    return None


def _document(engine: Engine, side: Side) -> dict[str, Any]:
    """The keys of ``plan --json``, of a plan that starts or does not."""
    if not isinstance(side.answer, Refusal):
        pace, _ = pace_known(engine, side.answer)
        return side.answer.to_dict() | ({} if pace is None else {"speed": pace.to_dict()})
    from hybridcalc.engines.document import refusal_document

    return refusal_document(engine, side.model, side.asked.args, side.answer)


def _compare(engine: Engine, sides: list[Side], asked_for: answers.Wanted) -> None:
    """Several plans side by side; exits with 1 when one of them does not start, or none serves what is wanted."""
    from hybridcalc.engines.ranking import comparison_view

    plans_made = [side.answer for side in sides if not isinstance(side.answer, Refusal)]
    started = len(plans_made)
    title, plans = f"{sides[0].model.name} on {engine.title}", [(side.flags, side.answer) for side in sides]
    answers.show(
        "plan",
        asked_for if started else asked_for.undrawn(),
        lambda: _timed(comparison_view(engine, title, plans), engine, plans),
        lambda: {"compare": [{"flags": side.flags} | _document(engine, side) for side in sides]},
    )
    if started < len(sides) or not any(serves(plan) and not plan.rest.undecided for plan in plans_made):
        raise typer.Exit(1)


def _timed(view: "View", engine: Engine, plans: "list[tuple[str, Answer | Refusal]]") -> "View":
    """Plans side by side, with the floors of their time where they are known."""
    from hybridcalc.speed.rows import times

    paced = [
        (flags or "as given", pace, 1)
        for flags, plan in plans
        if not isinstance(plan, Refusal) and (pace := pace_known(engine, plan)[0]) is not None
    ]
    return view._replace(tables=(*view.tables, times(paced))) if paced else view


def _sweep(question: inputs.Question, specs: list[str], work: Workload, asked_for: answers.Wanted) -> None:
    """Every combination of the swept settings; exits with 1 when none starts."""
    from hybridcalc.engines.sweep import count_points, mark_front, parse_axis, sweep, sweep_view
    from hybridcalc.output.progress import with_progress

    engine = question.engine
    how = offered(engine.sweeping, "--sweep", engine.title)
    model, axes = options.model(question.model_named()), [parse_axis(spec) for spec in specs]
    first = (model, question.arguments().args) if question.known.weights is not None else None
    estimated = False

    def memory(args: Any) -> Rest:
        nonlocal estimated
        rest = question.memory(model, args, first)
        estimated = estimated or not rest.exact
        return rest

    count = count_points(axes, engine.flags)
    points = sweep(engine, axes, lambda flags: question.arguments(flags).args, model, memory=memory, work=work)
    marked = mark_front(list(with_progress(points, count)))
    starts = any(not point.refusal for point in marked)

    def rows() -> Iterator[dict[str, Any]]:
        return (point.to_dict(axes, how.names) for point in marked)

    answers.show(
        "plan",
        asked_for if starts else asked_for.undrawn(),
        lambda: sweep_view(engine, model.name, axes, marked, work, estimated=estimated),
        lambda: {"sweep": list(rows())},
        rows=rows,
    )
    if not starts:
        raise typer.Exit(1)
