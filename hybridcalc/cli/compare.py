"""``hybridcalc compare``: whole launch lines of any engines, GPUs and models, ranked by requests a GPU."""

import os
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from hybridcalc.architecture.presets import find_preset
from hybridcalc.cli import answers, options
from hybridcalc.cli import plan_inputs as inputs
from hybridcalc.cli.app import command
from hybridcalc.cli.launch_text import launch_of
from hybridcalc.cli.plan import LAUNCH_WORDS, LaunchCommand, mended, pace_known, planned, remedied
from hybridcalc.cli.prices import prices_of
from hybridcalc.deployment import Workload
from hybridcalc.engines import ENGINES
from hybridcalc.engines.ranking import Ranked, difference, ranking
from hybridcalc.errors import HybridcalcError, InputError, MemoryUnknown, Refusal, printable
from hybridcalc.findings import Table

if TYPE_CHECKING:
    from hybridcalc.shell.launch import Launch
    from hybridcalc.speed.plans import Pace

MOST_SIDES = 500

app = typer.Typer(rich_markup_mode=None, add_completion=False)


class Line(NamedTuple):
    """A launch to compare: what it is called, the launch, and the GPU that its file names."""

    label: str
    launch: "Launch"
    gpu: str | None = None


@command(app, "compare", cls=LaunchCommand, options_metavar="[LINE|PATH]... [OPTIONS] [-- LAUNCH LINE]")
def compare(
    *,
    context: typer.Context,
    targets: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[LINE|PATH]...", help="Launch lines, each in quotes; scripts, manifests, folders; - is stdin."
        ),
    ] = None,
    gpu: Annotated[
        list[str] | None,
        typer.Option("--gpu", metavar="NAME|SIZE", help="GPU where no file says it; repeated, one for each in order."),
    ] = None,
    rest: Annotated[
        str | None, typer.Option("--rest", metavar="SIZE,...", help="SGLang: memory left for both pools on one rank.")
    ] = None,
    available: Annotated[
        str | None, typer.Option("--available", metavar="SIZE,...", help="vLLM: memory free for the cache on one GPU.")
    ] = None,
    weights: Annotated[str | None, typer.Option("--weights", metavar="SIZE,...", help="Weights on one rank.")] = None,
    engine_version: Annotated[
        str | None, typer.Option("--engine-version", metavar="V,...", help="Releases whose rules apply.")
    ] = None,
    price: Annotated[
        list[str] | None, typer.Option("--price", metavar="GPU=P,...", help="Price of a GPU an hour: ranks by it.")
    ] = None,
    length: options.Length = None,
    lengths: options.Lengths = None,
    concurrency: options.Concurrency = None,
    workload: options.Requests = None,
    variables: Annotated[
        list[str] | None, typer.Option("--set", metavar="NAME=VALUE", help="A variable from outside; repeatable.")
    ] = None,
    form: answers.Forms,
) -> None:
    """Launch lines side by side, the one with the most requests on a GPU first: what starts, what binds, what idles.

    Where the memory is an estimate, the requests at its low end count. GPUs, sizes and releases are one for all lines,
    or one for each in order; one line stands for as many as there are. Exits with 1 where a line does not start.
    """
    asked_for = answers.wanted(form)
    work = inputs.workload_of(length, lengths, concurrency, workload)
    outside = options.environment(variables or [], "--set")
    lines = list(_lines([*(targets or []), *_behind(context)], outside))
    if not lines:
        raise InputError("compare needs launch lines", fix="give some, each in quotes, or a script or folder")
    if len(lines) > MOST_SIDES:
        raise InputError(f"{len(lines):,} launches are more than {MOST_SIDES}", fix="name fewer files")
    cards = [name.strip() for text in gpu or [] for name in text.split(",") if name.strip()]
    asked = {"gpu": ",".join(cards) or None, "rest": rest, "available": available, "weights": weights}
    asked["engine_version"] = engine_version
    lines, given = _spread(lines, {name: _values(name, text) for name, text in asked.items()})
    prices = prices_of(price or ())
    served = [ENGINES[line.launch.engine or ENGINES.meant_by(line.launch.words)] for line in lines]
    for name in ("rest", "available", "weights"):
        if any(given[name]) and not any(name in engine.options for engine in served):
            served[0].check_options({name: given[name]})
    sides, skipped = list[Ranked](), list[tuple[str, HybridcalcError]]()
    for number, line in enumerate(lines):
        try:
            sizes = {name: texts[number] for name, texts in given.items()}
            sides.append(_side(line, sizes.pop("gpu"), sizes.pop("engine_version"), sizes, work, prices))
        except HybridcalcError as error:
            skipped.append((line.label, error))
    if not sides:
        label, first = skipped[0]
        raise InputError(f"{label}: {first.message}", fix=first.fix)
    from hybridcalc.engines.causes import causes
    from hybridcalc.engines.ranking import compared_view

    paces = [None if side.plan is None else pace_known(side.engine, side.plan)[0] for side in sides]
    told = [(label, f"{why.message}{'; ' + why.fix if why.fix else ''}") for label, why in skipped]
    answers.show(
        "compare",
        asked_for if any(side.plan is not None for side in sides) else asked_for.undrawn(),
        lambda: compared_view(
            sides,
            told,
            _times(sides, paces),
            [_time(pace) for pace in paces],
            [cause.text for cause in causes(sides) if cause.text],
        ),
        lambda: (
            _document(sides, paces)
            | {"causes": [cause.to_dict() for cause in causes(sides)]}
            | {"skipped": [{"label": label, "reason": reason} for label, reason in told]}
        ),
    )
    if skipped or any(side.plan is None for side in sides):
        raise typer.Exit(1)


def _values(name: str, text: str | None) -> list[str]:
    """The values of an option, joined by commas. Raises InputError for an option that has none."""
    values = [value.strip() for value in (text or "").split(",") if value.strip()]
    if text is not None and not values:
        raise InputError(f"--{name.replace('_', '-')} has no value", fix="give one for all lines, or one for each")
    return values


def _spread(lines: list[Line], asked: dict[str, list[str]]) -> tuple[list[Line], dict[str, list[str | None]]]:
    """The launches and a value of each option for each of them, of one for all or of one for each; a single launch is
    compared with itself. Labels say GPUs and releases that differ. Raises InputError for another number of values.
    """
    alone, most = len(lines) == 1, max(len(values) for values in asked.values())
    if alone and most > 1:
        lines = lines * most
    given = dict[str, list[str | None]]()
    for name, values in asked.items():
        if len(values) > 1 and len(values) != len(lines):
            several = f"{len(values)} --{name.replace('_', '-')} for {len(lines)} launches"
            raise InputError(several, fix="give one for all, or one for each")
        given[name] = [*values] if len(values) > 1 else [next(iter(values), None)] * len(lines)
    named = asked if alone else ("gpu", "engine_version")
    differ = [name for name in named if len({*given[name]}) > 1]
    if differ:
        told = [", ".join(str(given[name][number]) for name in differ) for number in range(len(lines))]
        lines = [
            line._replace(label=words if alone else f"{line.label}, {words}")
            for line, words in zip(lines, told, strict=True)
        ]
    return lines, given


def _price(gpu: str | None, prices: dict[str, float]) -> float | None:
    """What an hour of that GPU costs, None where no price is asked about. Raises InputError where it has none."""
    if not prices:
        return None
    from hybridcalc.hardware import find_gpu

    if gpu is None:
        raise InputError("nothing names its GPU, of which there is a price", fix="add --gpu NAME")
    found = {find_gpu(name): price for name, price in prices.items()}.get(find_gpu(gpu))
    if found is None:
        raise InputError(f"no price of {gpu[:40]}", fix=f"add --price {gpu[:40]}=PRICE")
    return found


def _behind(context: typer.Context) -> list[str]:
    """The launch line after ``--``, as one text."""
    import shlex

    words = context.meta.get(LAUNCH_WORDS)
    return [] if not words else [words[0] if len(words) == 1 else shlex.join(words)]


def _lines(targets: list[str], outside: dict[str, str]) -> Iterator[Line]:
    """The launches of every target. Raises InputError for a target that has none, or that cannot be read."""
    for number, target in enumerate(targets, 1):
        if len(target.split()) > 1 and not os.path.lexists(target):
            yield Line(f"line {number}", launch_of([target]))
        elif not os.path.lexists(target) and find_preset(target) is not None:
            raise InputError(f"{printable(target, 60)} is a model", fix="give its launch line, in quotes")
        else:
            yield from _in_files(target, outside)


def _in_files(target: str, outside: dict[str, str]) -> Iterator[Line]:
    from hybridcalc.hardware import gpu_of_label
    from hybridcalc.manifests import Trouble
    from hybridcalc.manifests.find import find_files, read_file

    found = 0
    for path in find_files([target]):
        if isinstance(path, Trouble):
            raise InputError(f"{printable(path.path, 60)}: {path.message}", fix=path.fix)
        if not isinstance(path, str):
            continue
        contents = read_file(path, outside, stdin=lambda most: sys.stdin.buffer.read(most))
        if contents.troubles and path == target:
            trouble = contents.troubles[0]
            raise InputError(f"{printable(trouble.path, 60)}: {trouble.message}", fix=trouble.fix)
        for each in contents.deployments:
            found += 1
            label = each.hardware.label
            place = f"{os.path.basename(each.path)}:{each.place.line}"
            yield Line(place, each.launch, gpu_of_label(label) if label is not None else None)
    if not found:
        raise InputError(f"{printable(target, 60)} starts no engine known here", fix="give a launch line, or a script")


def _side(
    line: Line,
    gpu: str | None,
    release: str | None,
    sizes: dict[str, str | None],
    work: Workload,
    prices: dict[str, float],
) -> Ranked:
    """One launch, planned; or why the engine refuses it. Raises HybridcalcError for what cannot be planned."""
    served = ENGINES[line.launch.engine or ENGINES.meant_by(line.launch.words)]
    given: dict[str, Any] = {name: size for name, size in sizes.items() if name in served.options}
    told = any(size is not None for name, size in given.items() if name == served.memory_option)
    given |= {"gpu": None if told else line.gpu or gpu, "engine_version": release or ENGINES.release(line.launch)}
    known = inputs.memory_of(given)
    said = inputs.launch_words(
        [], line.launch, {}, ("--length", "-L"), served.flags, served.model_flag, served.environment, "compare"
    )
    question = inputs.Question(served, said, {**given, "gpu": known.gpu}, known)
    asked = question.arguments()
    try:
        side = planned(question, "", asked._replace(model=asked.model.removeprefix("hf://")), work)
    except MemoryUnknown:
        if given["gpu"] is not None:
            raise  # what it lacks is something else
        raise InputError("nothing names its GPU", fix=f"add --gpu NAME, or --{served.memory_option} SIZE") from None
    answer, then = side.answer, None
    if isinstance(answer, Refusal):
        answer.fix = remedied(question, side, answer.rule, answer.fix, work)
        then = mended(question, side, answer.fix, work)
    assumed = ("" if release else ENGINES.assumed(line.launch)) or served.newer(asked.args.engine_version)
    return Ranked(
        line.label, served, side.model, asked.args, answer, assumed, _price(line.gpu or gpu, prices), then, known
    )


def _times(sides: list[Ranked], paces: "list[Pace | None]") -> list[Table]:
    """The floors of their time, the best first, where they are known."""
    from hybridcalc.speed.rows import times

    known = [(sides[n].label, pace, 1) for n in ranking(sides) if (pace := paces[n]) is not None]
    return [times(known)] if known else []


def _time(pace: "Pace | None") -> dict[str, str]:
    """The floor of a side's step, as it stands beside the others."""
    if pace is None:
        return {}
    from hybridcalc.engines.ranking import TIME
    from hybridcalc.speed.plans import ms_text, rate_text

    return dict(zip(TIME, (f"{ms_text(pace.step.floor_ms)} ms", rate_text(pace.step.tokens_per_second())), strict=True))


def _document(sides: list[Ranked], paces: "list[Pace | None]") -> dict[str, Any]:
    """The keys of ``compare --json``."""
    return {
        "sides": [
            {
                "label": side.label,
                "requests_per_gpu": None if side.plan is None else side.plan.requests / side.gpus,
                "requests_certain": None if side.plan is None else side.certain,
                **({} if side.price is None else {"price_per_hour": side.cost, "price_per_request": side.each}),
                "difference": difference(side, sides)[1],
                **_plan_document(side),
                **({} if pace is None else {"speed": pace.to_dict()}),
            }
            for side, pace in zip(sides, paces, strict=True)
        ],
        "ranking": ranking(sides),
    }


def _plan_document(side: Ranked) -> dict[str, Any]:
    if not isinstance(side.answer, Refusal):
        return side.answer.to_dict()
    from hybridcalc.engines.document import refusal_document

    return refusal_document(side.engine, side.model, side.args, side.answer)
