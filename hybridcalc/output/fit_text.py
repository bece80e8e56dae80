"""The answers of `fit` as text: the verdict, a ranked table, the launch line of the first row, what would be bolder."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import compress
from textwrap import wrap

from rich.console import Console
from rich.padding import Padding
from rich.text import Text

from hybridcalc.deployment import requests_text
from hybridcalc.fitting.answer import DEFAULT_TOP, Fit, Nearest, command_text, counted, gpus_text, layout
from hybridcalc.fitting.candidates import Deployment
from hybridcalc.fitting.models import FitModels, parameters_of
from hybridcalc.fitting.pace import pace_of_one
from hybridcalc.fitting.question import Question
from hybridcalc.output.terminal import INDENT, LEAST_WIDTH, TROUBLE, console, continued, listing, table, verdict
from hybridcalc.speed.plans import rate_text
from hybridcalc.speed.rows import pace_text, times
from hybridcalc.units import short_dtype

GPUS_OF_A_MACHINE = 8
LINES, HEAD, LEAST_ROWS = 12, 4, 2
"""Lines of an answer, those of its headline, of the table's header and between them, and rows shown at least."""
LABEL = 8
"""Columns of what stands before a line."""
COLUMNS = 80
TOLD = COLUMNS - len(INDENT) - LABEL - 1
HOURLY, RATE = "an hour", "tokens/s"
MOST_PRICED = 2
MOST_MODELS = 5
"""Rows of models shown where nobody asks for all."""


def print_fit(fit: Fit, *, verbose: bool, explain: bool) -> None:
    """The whole answer."""
    out = console()
    question = fit.question
    asked = f"{requests_text(question.wanted or 1)} of {question.workload.describe()}"
    if not fit.deployments:
        _print_none(out, fit, f"{asked}{_each(question)}", explain=explain)
    else:
        first, told = fit.deployments[0], _footer(fit, explain=explain)
        gpus = gpus_text(first.gpus, first.offer)
        serve = _serve(first.gpus) if question.pace is None else "may serve"
        said = f"{_price(first)}{gpus} {serve} {asked}{_each(question)}"
        rest = f"{_requests(first)} at once{_each_hour(first)}"
        verdict(out, said, rest)
        used = (
            HEAD
            + (len(f"{said}   {rest}") > COLUMNS)
            + len(_launch_lines(COLUMNS, first))
            + sum(len(wrap(text, TOLD)) for _, text in told)
        )
        shown = max(LEAST_ROWS, LINES - used) if fit.top == DEFAULT_TOP and not verbose else fit.top
        _table(out, fit.deployments[:shown])
        out.print()
        for made in fit.deployments if verbose else fit.deployments[:1]:
            print_launch(out, made)
        _print_told(out, told)
        if verbose:
            _times(out, fit.deployments)
    if explain:
        _print_losers(out, fit)


def _each(question: Question) -> str:
    return "" if question.pace is None else f" at {rate_text(question.pace)} tokens/s each"


def _serve(gpus: int) -> str:
    return "serves" if gpus == 1 else "serve"


def _price(made: Deployment) -> str:
    return "" if made.offer.price is None else f"{made.cost:,.2f} an hour: "


def _each_hour(made: Deployment) -> str:
    return "" if made.offer.price is None else f", {made.cost / made.certain:,.3g} an hour each"


def _table(out: Console, rows: Sequence[Deployment]) -> None:
    """A row for each deployment; tokens a second of a request where 80 columns have room for them."""
    header, right = ["GPUs", "engine", "stored", "layout", "requests", "a GPU", "idle"], {"requests", "a GPU", "idle"}
    cells = [_cells(made, rows) for made in rows]
    if any(made.offer.price is not None for made in rows):
        header.insert(1, HOURLY)
        cells = [(line[0], f"{made.cost:,.2f}", *line[1:]) for made, line in zip(rows, cells, strict=True)]
    paces = [pace_of_one(made) for made in rows]
    if any(paces):
        rates = ["" if pace is None else rate_text(pace.step.tokens_per_second()) for pace in paces]
        wider, timed = [*header, RATE], [(*line, rate) for line, rate in zip(cells, rates, strict=True)]
        widths = [max(len(line[n]) for line in [wider, *timed]) + len(INDENT) for n in range(len(wider))]
        if sum(widths) <= COLUMNS:
            header, cells = wider, timed
    numbers = [place for place, name in enumerate(header) if name in right | {HOURLY, RATE}]
    lines = [(INDENT + line[0], *line[1:]) for line in cells]
    listing(out, (INDENT + header[0], *header[1:]), lines, right=numbers)


def _cells(made: Deployment, rows: Sequence[Deployment]) -> tuple[str, ...]:
    gpus, each = gpus_text(made.gpus, made.offer), f"{made.requests / made.gpus:,.1f}"
    return gpus, _engine(made, rows), stored(made), layout(made), _requests(made), each, _idle(made)


def _times(out: Console, rows: Sequence[Deployment]) -> None:
    """The floor of a step of every deployment, and where measurements lie."""
    paces = ((made, pace_of_one(made)) for made in rows)
    said = ((f"{gpus_text(made.gpus, made.offer)}, {_engine(made, rows)}", pace, made.servers) for made, pace in paces)
    table(out, times((label, pace, servers) for label, pace, servers in said if pace is not None))


def stored(made: Deployment) -> str:
    """How the checkpoint is stored: bf16, fp8, nvfp4."""
    from hybridcalc.engines.checkpoints import checkpoint_of, quantized_by_name

    own: str = made.engine.stored_as(made.model)
    if own:
        return own
    found = checkpoint_of(made.model, getattr(made.args, "quantization", None))
    if found.quantization is None and not found.marked:
        return short_dtype(made.model.model_dtype)
    read = found.quantization
    method = found.marked if read is None else read.method if read.scheme is None else read.scheme.name
    return quantized_by_name(found.name) or method.partition(" ")[0]


def _requests(made: Deployment) -> str:
    return f"{made.requests:,}" if made.certain == made.requests else f"{made.certain:,} to {made.requests:,}"


def _engine(made: Deployment, rows: Sequence[Deployment]) -> str:
    """The engine, with its release where rows are of several."""
    releases = {row.served.version for row in rows if row.engine is made.engine}
    return made.engine.title if len(releases) == 1 else f"{made.engine.title} {made.served.version}"


def _idle(made: Deployment) -> str:
    """The share of the pool that does not bind which no request can use."""
    idle = made.plan.idle_percent
    return "" if idle is None else f"{idle:.0f} %"


def _launch_lines(width: int, made: Deployment) -> list[str]:
    """The launch line, as a shell reads it."""
    return continued(command_text(made.launch), width - len(_lead(made)))


def _lead(made: Deployment) -> str:
    """What stands before a launch line: how often it is started, where that is not once."""
    label = "start" if made.launches == 1 else f"{made.launches} times"
    return f"{INDENT}{label:<{LABEL}} "


def print_launch(out: Console, made: Deployment) -> None:
    """The launch line under its label."""
    lead = _lead(made)
    lines = f"\n{' ' * len(lead)}".join(_launch_lines(out.width, made))
    out.print(Text.assemble(lead, (lines, "bold")), soft_wrap=True)


def _print_told(out: Console, told: Sequence[tuple[str, str]]) -> None:
    """Lines under a label of their own."""
    for label, text in told:
        lead = f"{INDENT}{label:<{LABEL}} "
        if out.width - len(lead) < LEAST_WIDTH:
            out.print(Padding(Text(f"{label}: {text}"), (0, 0, 0, len(INDENT))))
            continue
        for number, line in enumerate(wrap(text, out.width - len(lead))):
            out.print(Text((" " * len(lead) if number else lead) + line))


def _print_none(out: Console, fit: Fit, asked: str, *, explain: bool) -> None:
    near = fit.nearest or Nearest("no combination is known", "")
    out.print(Text(f"nothing here serves {asked}", style=TROUBLE))
    out.print()
    told = [("nearest", near.text), ("lacks", near.lacks)] if near.lacks else [("since", near.text)]
    if near.more is not None:
        may, certain = ("", " for certain") if fit.question.pace is None else ("may ", "")
        enough = gpus_text(near.more.gpus, near.more.offer)
        told.append(("enough", f"{enough} {may}run {requests_text(near.more.certain)}{certain}"))
    _print_told(out, told)
    for made in filter(None, (near.more or near.made,)):
        print_launch(out, made)
    _print_told(out, _footer(fit, explain=explain))


def _footer(fit: Fit, *, explain: bool) -> list[tuple[str, str]]:
    """What a step takes, that prices are not known, what would be bolder, how replicas are spread, how many lose for
    what.
    """
    said, bold, first = list[tuple[str, str]](), fit.bolder, next(iter(fit.deployments), None)
    pace = None if first is None else pace_of_one(first)
    if pace is not None:
        said.append(("a step", pace_text(pace)))
    kinds = list(dict.fromkeys(made.offer.name for made in fit.deployments))
    if len(fit.question.offers) > 1 and first is not None and first.offer.price is None:
        each = ",".join(f"{name}=P" for name in kinds[:MOST_PRICED])
        said.append(("price", f"unknown: every GPU counts the same; --price {each}"))
    if bold is not None:
        said.append(("bold", f"--allow accuracy: {gpus_text(bold.gpus, bold.offer)}; check accuracy first"))
    if first is not None and first.shape.copied and first.servers > 1 and first.gpus > GPUS_OF_A_MACHINE:
        said.append(("spread", f"{first.servers} replicas: on each machine the line with its share of them"))
    if fit.losers and not explain:
        said.append(("else", f"{counted(fit.losers)}: --explain"))
    return said


def _print_losers(out: Console, fit: Fit) -> None:
    header = ("GPU", "engine", "checkpoint", "why not")
    rows = [
        (
            lost.candidate.offer.name,
            lost.candidate.served.engine.title,
            lost.candidate.model.asked or lost.candidate.model.name,
            lost.reason + (f"; lacks {lost.lacks_gib:.2f} GiB" if lost.lacks_gib else ""),
        )
        for lost in (loser.nearest for loser in fit.losers)
    ]
    if rows:
        out.print()
        listing(out, header, rows)


SIZE, ENGINE = 2, 3
"""Columns of the table of models that a short answer leaves out: names say sizes, the launch line the one engine."""


def print_models(fit: FitModels, *, verbose: bool, explain: bool) -> None:
    """Which models fit, and what the others lack."""
    out = console()
    offer, rows = fit.question.offers[0], fit.deployments
    asked = f"{requests_text(fit.least)} of {fit.question.workload.describe()}{_each(fit.question)}"
    kinds = len({made.model.name for made in rows})
    serve = _serve(offer.most) if fit.question.pace is None else "may serve"
    said = f"{gpus_text(offer.most, offer)} {serve} {asked} of {kinds} model{'' if kinds == 1 else 's'}"
    out.print(Text(said if rows else f"no model here serves {asked} on {gpus_text(offer.most, offer)}", style="bold"))
    out.print()
    shown = rows if verbose else rows[:MOST_MODELS]
    header = (f"{INDENT}model", "stored", "size", "engine", "layout", "requests", "longest")
    cells = [
        (
            INDENT + made.model.name,
            stored(made),
            f"{parameters_of(made) / 1e9:,.1f} B",
            made.engine.title,
            layout(made),
            _requests(made),
            f"{fit.longest(made):,}",
        )
        for made in shown
    ]
    several = len({made.served.engine.name for made in shown}) > 1
    kept = [
        verbose or (at != SIZE and (several or at != ENGINE)) for at in range(len(header))
    ]  # long names need the room
    if cells:
        right = tuple(compress((False, False, True, False, False, True, True), kept))
        columns = tuple(at for at, each in enumerate(right) if each)
        listing(out, tuple(compress(header, kept)), [tuple(compress(row, kept)) for row in cells], right=columns)
        out.print()
    for made in shown if verbose else shown[:1]:
        print_launch(out, made)
    more = [f"{len(rows) - len(shown)} more fit: -v"] if len(rows) > len(shown) else []
    if fit.lost:
        near = fit.lost[0]
        name = (near.candidate.model.asked or near.candidate.model.name).rpartition("/")[2]
        more += [] if explain else [f"{len(fit.lost)} do not: --explain"]
        more += [f"{name} lacks {near.lacks_gib:.2f} GiB"] if near.lacks_gib else []
    _print_told(out, [("else", "; ".join(more))] if more else [])
    if explain:
        out.print()
        listing(
            out,
            ("checkpoint", "lacks a GPU", "why not"),
            [
                (
                    lost.candidate.model.asked or lost.candidate.model.name,
                    f"{lost.lacks_gib:.2f} GiB" if lost.lacks_gib else "",
                    lost.reason,
                )
                for lost in fit.lost
            ],
            right=(1,),
        )
