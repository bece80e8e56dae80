"""``hybridcalc fit``: which hardware, flags and engine serve a workload most cheaply; or which models fit hardware."""

import sys
from contextlib import nullcontext, redirect_stdout
from fractions import Fraction
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from hybridcalc.cli import answers, options
from hybridcalc.cli import plan_inputs as inputs
from hybridcalc.cli.app import command
from hybridcalc.cli.prices import prices_of
from hybridcalc.errors import InputError, quoted
from hybridcalc.units import MOST_RANKS

if TYPE_CHECKING:
    from hybridcalc.fitting.candidates import Deployment
    from hybridcalc.manifests.emit import Emitted

app = typer.Typer(rich_markup_mode=None, add_completion=False)
SEARCH, PRICES = "Search", "Prices"


class Searched(NamedTuple):
    """What is searched."""

    gpu: Annotated[
        list[str] | None,
        typer.Option(
            "--gpu",
            metavar="NAME,...",
            help="GPUs, 8xh200 for 8 at most; all presets by default.",
            rich_help_panel=SEARCH,
        ),
    ] = None
    engine: Annotated[
        list[str] | None,
        typer.Option(
            "--engine",
            metavar="NAME,...",
            help="Engines, each with a release as vllm@0.32.0, or @all.",
            rich_help_panel=SEARCH,
        ),
    ] = None
    allow: Annotated[
        list[str] | None,
        typer.Option(
            "--allow", metavar="WHAT,...", help="accuracy: fewer bits; reuse: no prefix cache.", rich_help_panel=SEARCH
        ),
    ] = None
    max_gpus: Annotated[
        int | None,
        typer.Option(
            "--max-gpus", metavar="N", min=1, max=MOST_RANKS, help="GPUs in all, at most.", rich_help_panel=SEARCH
        ),
    ] = None
    max_tp: Annotated[
        int,
        typer.Option(
            "--max-tp", metavar="N", min=1, max=16, help="Tensor-parallel ranks, at most.", rich_help_panel=SEARCH
        ),
    ] = 16
    interconnect: Annotated[
        str,
        typer.Option(
            "--interconnect",
            metavar="NAME",
            help="nvlink: no server of several GPUs without it.",
            rich_help_panel=SEARCH,
        ),
    ] = "any"
    headroom: Annotated[
        str, typer.Option("--headroom", metavar="PERCENT", help="Requests to spare beyond -C.", rich_help_panel=SEARCH)
    ] = "0%"
    pace: Annotated[
        float | None,
        typer.Option(
            "--pace",
            metavar="N",
            help="Tokens a second that each request may get, by the floor of a step.",
            rich_help_panel=SEARCH,
        ),
    ] = None
    price: Annotated[
        list[str] | None,
        typer.Option("--price", metavar="GPU=P,...", help="Price of a GPU an hour.", rich_help_panel=PRICES),
    ] = None
    prices: Annotated[
        str | None,
        typer.Option("--prices", metavar="FILE", help="The same, one GPU=PRICE a line.", rich_help_panel=PRICES),
    ] = None
    top: Annotated[
        int, typer.Option("--top", metavar="N", min=1, max=200, help="Deployments shown.", rich_help_panel=SEARCH)
    ] = 4
    sort: Annotated[
        str, typer.Option("--sort", metavar="NAME", help="Models by parameters or requests.", rich_help_panel=SEARCH)
    ] = "parameters"


@command(app, "fit")
def fit_command(
    *,
    model: options.OptionalModel = None,
    length: options.Length = None,
    lengths: options.Lengths = None,
    concurrency: options.Concurrency = None,
    workload: options.Requests = None,
    searched: Searched,
    emit: options.Emit = None,
    as_csv: Annotated[bool, typer.Option("--csv", help="Print the deployments as CSV.")] = False,
    form: answers.Forms,
) -> None:
    """The cheapest deployments that serve a model's requests, each with its launch line; without a MODEL, which models
    fit one kind of GPU.

    Every engine, GPU, layout of ranks, checkpoint and setting is planned, or shown to lose. Nothing that changes an
    answer is set unless --allow accuracy admits it. Where the memory is an estimate, what its low end holds counts.
    """
    from hybridcalc.fitting.answer import Fit, flat
    from hybridcalc.fitting.ask import fit

    asked_for = answers.wanted(form, as_csv=as_csv)
    if as_csv and form.as_json:
        raise InputError("--csv and --json exclude each other", fix="give one of them")
    if emit is not None:
        answers.check_emit(emit, ["--csv"] if as_csv else [], as_json=form.as_json, others_are="--json and --csv")
        engine_of = emit.removesuffix(answers.CONFIG_FORM)
        if engine_of != emit and not searched.engine:
            searched = searched._replace(engine=[engine_of])
    work = inputs.workload_of(length, lengths, concurrency, workload)
    from hybridcalc.output.progress import bars, counter

    with bars(None) as start:
        move = start("planning")
        found = fit(
            None if model is None else options.model(model),
            workload=work,
            gpu=searched.gpu or (),
            engine=searched.engine or (),
            prices=prices_of(searched.price or (), searched.prices),
            allow=searched.allow or (),
            max_gpus=searched.max_gpus,
            max_tp=searched.max_tp,
            interconnect=searched.interconnect,
            headroom=_share(searched.headroom),
            pace=searched.pace,
            variables=emit is None or not emit.endswith(answers.CONFIG_FORM),  # which a file of flags cannot hold
            top=searched.top,
            order=searched.sort,
            watch=counter(move),
        )
    if emit is not None and found.deployments:
        answers.write_out(emit, to_emit(emit, found.deployments[0]), work)
        return
    aside = redirect_stdout(sys.stderr) if emit is not None and not form.as_json else nullcontext()
    from hybridcalc.fitting.view import fit_view, models_view

    def text() -> None:
        from hybridcalc.output.fit_text import print_fit, print_models

        if isinstance(found, Fit):
            print_fit(found, verbose=form.verbose, explain=form.explain)
        else:
            print_models(found, verbose=form.verbose, explain=form.explain)

    view = (lambda: fit_view(found)) if isinstance(found, Fit) else (lambda: models_view(found))
    served = bool(found.deployments)
    with aside:  # what stands in for a file is none
        answers.show(
            "fit",
            asked_for if served else asked_for.undrawn("nothing serves"),
            view,
            found.to_dict,
            text=text,
            rows=lambda: flat(found.to_records()),
        )
    if not served:
        raise typer.Exit(1)


def to_emit(form: str, made: "Deployment") -> "Emitted":
    """What is to be written of a row; replicas as a number of it where the form has one."""
    from hybridcalc.manifests.emit import Emitted

    launch, count = made.started(one=form == "kubernetes")
    about = f"{made.gpus} x {made.offer.name}: {made.certain:,} requests of {made.one.workload.describe()} for certain"
    words, ranks = tuple(launch["argv"]), made.gpus // count
    return Emitted(
        made.engine, made.served.version, words, launch["env"], ranks, made.offer.name, count, about, made.nodes
    )


def _share(text: str) -> Fraction:
    """A percentage, 10% or 10, as a share."""
    try:
        share = Fraction(text.strip().removesuffix("%").strip()) / 100
    except (ValueError, ZeroDivisionError):
        share = Fraction(-1)
    if not 0 <= share <= 10 or len(text) > 20:
        raise InputError(f"--headroom {quoted(text)} is not a percentage", fix="write 10%")
    return share
