"""The answers of `fit` as text: the verdict, a ranked table, the launch line of the first row, what would be bolder."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from itertools import compress
from textwrap import wrap

from rich.console import Console
from rich.padding import Padding
from rich.text import Text

from hybridcalc.deployment import requests_text
from hybridcalc.fitting.answer import DEFAULT_TOP, Fit, Nearest, command_text, counted, gpus_text, layout
from hybridcalc.fitting.candidates import Deployment
from hybridcalc.fitting.models import UNLIMITED, FitModels, parameters_of
from hybridcalc.fitting.pace import pace_of_one
from hybridcalc.fitting.question import Question, left_out
from hybridcalc.fitting.search import Lost
from hybridcalc.output.terminal import INDENT, LEAST_WIDTH, TROUBLE, console, continued, listing, table, verdict
from hybridcalc.speed.plans import rate_text
from hybridcalc.speed.rows import pace_text, prompt_text, times
from hybridcalc.units import percent_text, short_dtype

LINES, HEAD, LEAST_ROWS = 12, 4, 2
"""Lines of an answer, those of its headline, of the table's header and between them, and rows shown at least."""
LABEL = 8
"""Columns of what stands before a line."""
SPARE = ("else", "stored", "price", "a prompt", "nodes")
"""Labels of lines that are left out where there is no room for them."""
COLUMNS = 80
TOLD = COLUMNS - len(INDENT) - LABEL - 1
HOURLY, EACH, RATE = "an hour", "each", "tokens/s"
MOST_PRICED = 2
CENT = 0.01
SHOWN = ("warning", "error")
"""Findings of the first row that an answer has a line for."""
MOST_MODELS = 5
"""Rows of models shown where nobody asks for all."""


def print_fit(fit: Fit, *, verbose: bool, explain: bool) -> None:
    """The whole answer."""
    out = console()
    question = fit.question
    asked = f"{requests_text(question.wanted or 1)} of {question.workload.describe()}"
    if not fit.deployments:
        _print_none(out, fit, f"{asked}{_each(question)}", verbose=verbose, explain=explain)
    else:
        first, told = fit.deployments[0], _footer(fit, verbose=verbose, explain=explain)
        gpus = gpus_text(first.gpus, first.offer)
        serve = _serve(first.gpus) if question.pace is None else "may serve"
        said = f"{_price(first)}{gpus} {serve} {asked}{_each(question)}"
        said = said if len(said) <= COLUMNS else said.removesuffix(" each")
        rest = f"{_requests(first)} at once{_each_hour(first)}"
        used = _used(said, first, told)
        while not verbose and used + LEAST_ROWS > LINES and (spare := [each for each in told if each[0] in SPARE]):
            told.remove(min(spare, key=lambda each: SPARE.index(each[0])))
            used = _used(said, first, told)
        if len(f"{said}   {rest}") > COLUMNS:
            rest = rest if verbose or used + LEAST_ROWS < LINES else ""  # the first row has the same figures
            used += bool(rest)
        verdict(out, said, rest)
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


def _used(said: str, first: Deployment | None, told: Sequence[tuple[str, str]]) -> int:
    """Lines of an answer beside the rows of its table, at 80 columns."""
    launch = 0 if first is None else len(_launch_lines(COLUMNS, first))
    return HEAD - 1 + len(wrap(said, COLUMNS)) + launch + sum(len(_wrapped(text, TOLD)) for _, text in told)


def _each(question: Question) -> str:
    return "" if question.pace is None else f" at {rate_text(question.pace)} tokens/s each"


def _serve(gpus: int) -> str:
    return "serves" if gpus == 1 else "serve"


def _price(made: Deployment) -> str:
    return "" if made.offer.price is None else f"{_cost(made)} an hour: "


def _cost(made: Deployment) -> str:
    """The price of all of it, to the cent or to three figures below one."""
    return f"{made.cost:,.2f}" if made.cost >= CENT else f"{made.cost:.3g}"


def _each_hour(made: Deployment) -> str:
    return "" if made.offer.price is None else f", {_hourly(made)} an hour each"


def _hourly(made: Deployment) -> str:
    """The price of one request and hour, where all that certainly run do."""
    return f"{made.cost / made.certain:,.3g}"


def _table(out: Console, rows: Sequence[Deployment]) -> None:
    """A row for each deployment: with prices, what it and each of its requests cost an hour, else requests on a GPU;
    tokens a second of a request where 80 columns have room for them.
    """
    priced = any(made.offer.price is not None for made in rows)
    share = EACH if priced else "a GPU"
    header, right = ["GPUs", "engine", "stored", "layout", "requests", share, "idle"], {"requests", share, "idle"}
    cells = [_cells(made, rows, priced=priced) for made in rows]
    if priced:
        header.insert(1, HOURLY)
        cells = [(line[0], _cost(made), *line[1:]) for made, line in zip(rows, cells, strict=True)]
    rates = [_rate(made) for made in rows]
    if any(rates):
        wider, timed = [*header, RATE], [(*line, rate) for line, rate in zip(cells, rates, strict=True)]
        widths = [max(len(line[n]) for line in [wider, *timed]) + len(INDENT) for n in range(len(wider))]
        if sum(widths) <= COLUMNS:
            header, cells = wider, timed
    numbers = [place for place, name in enumerate(header) if name in right | {HOURLY, RATE}]
    lines = [(INDENT + line[0], *line[1:]) for line in cells]
    listing(out, (INDENT + header[0], *header[1:]), lines, right=numbers)


def _cells(made: Deployment, rows: Sequence[Deployment], *, priced: bool) -> tuple[str, ...]:
    gpus, each = gpus_text(made.gpus, made.offer), _hourly(made) if priced else f"{made.certain / made.gpus:,.1f}"
    return gpus, _engine(made, rows), stored(made), layout(made), _requests(made), each, _idle(made)


def _rate(made: Deployment) -> str:
    """Tokens a second that a request gets at most; empty where no rates of the GPU are known."""
    pace = pace_of_one(made)
    return "" if pace is None else rate_text(pace.step.tokens_per_second())


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
    return "" if idle is None else f"{percent_text(idle)} %"


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


def _wrapped(text: str, width: int) -> list[str]:
    """Lines of a text, flags whole."""
    return wrap(text, width, break_on_hyphens=False)


def _print_told(out: Console, told: Sequence[tuple[str, str]]) -> None:
    """Lines under a label of their own."""
    for label, text in told:
        lead = f"{INDENT}{label:<{LABEL}} "
        if out.width - len(lead) < LEAST_WIDTH:
            out.print(Padding(Text(f"{label}: {text}"), (0, 0, 0, len(INDENT))))
            continue
        for number, line in enumerate(_wrapped(text, out.width - len(lead))):
            out.print(Text((" " * len(lead) if number else lead) + line))


def _print_none(out: Console, fit: Fit, asked: str, *, verbose: bool, explain: bool) -> None:
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
    _print_told(out, _footer(fit, verbose=verbose, explain=explain))


def _footer(fit: Fit, *, verbose: bool, explain: bool) -> list[tuple[str, str]]:
    """What a step takes, that prices are not known, what would be bolder, how replicas are spread, what a prompt takes,
    how many lose for what.
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
    launched = first if fit.nearest is None else fit.nearest.more or fit.nearest.made
    if launched is not None and launched.served.version != launched.engine.newest:
        version = launched.served.version
        said.append(("release", f"{version}: plan --engine-version {version} -- LINE has its figures"))
    said += _cautions(launched, verbose=verbose, worst=("error",) if fit.nearest is not None and not verbose else SHOWN)
    if pace is not None and (fit.question.pace is not None or fit.question.workload.tells_prompts):
        said.append(("a prompt", prompt_text(pace)))
    preset, others = left_out(fit.question.models)
    if others:
        more = f" and {len(others) - 1} more" if len(others) > 1 else ""
        said.append(("stored", f"as named; fit {preset} tries {others[0]}{more} too"))
    if fit.losers and not explain:
        said.append(("else", f"{counted(fit.losers)}: --explain"))
    return said


def _cautions(made: Deployment | None, *, verbose: bool, worst: Collection[str] = SHOWN) -> Iterator[tuple[str, str]]:
    """How a launch is spread over nodes, in a line where nobody asks for more; what its plan finds of the ``worst``."""
    if made is None:
        return
    if made.spread:
        short = f"{made.spread.partition('; ')[0]}; what each adds: -v"
        yield "nodes", made.spread if verbose or len(_wrapped(made.spread, TOLD)) == 1 else short
    for finding in made.plan.findings:
        if finding.severity in worst:
            yield finding.rule, finding.message


def _why(lost: Lost) -> str:
    """Why something is no answer, and what a GPU lacks."""
    return lost.reason + (f"; lacks {lost.lacks_gib:.2f} GiB" if lost.lacks_gib else "")


def _print_losers(out: Console, fit: Fit) -> None:
    header = ("GPU", "engine", "checkpoint", "why not")
    rows = [
        (
            lost.candidate.offer.name,
            lost.candidate.served.engine.title,
            lost.candidate.model.asked or lost.candidate.model.name,
            _why(lost),
        )
        for lost in (loser.nearest for loser in fit.losers)
    ]
    if rows:
        out.print()
        listing(out, header, rows)


SIZE, ENGINE, LAYOUT, PACE = 2, 3, 4, 7
"""Columns of the table of models that a short answer may leave out: names say sizes, the launch line the one engine;
ranks where there is a pace, without which there is no column of it.
"""


def _checkpoint(made: Deployment | Lost) -> str:
    """A checkpoint's own name, which tells apart those that are stored alike."""
    model = made.model if isinstance(made, Deployment) else made.candidate.model
    return (model.asked or model.name).rpartition("/")[2]


def _models_told(fit: FitModels, *, verbose: bool, explain: bool, shown: int = MOST_MODELS) -> list[tuple[str, str]]:
    """What the GPUs cost an hour, cautions of the first row, how many more fit, and what the others lack."""
    rows, offer = fit.deployments, fit.question.offers[0]
    told = [("price", f"{offer.cost(offer.most):,.2f} an hour")] if offer.price is not None else []
    told += _cautions(next(iter(rows), None), verbose=verbose)
    more = [f"{len(rows) - shown} more fit: -v"] if len(rows) > shown and not verbose else []
    if fit.lost:
        near = fit.lost[0]
        more += [] if explain else [f"{len(fit.lost)} do not: --explain"]
        more += [f"{_checkpoint(near)} lacks {near.lacks_gib:.2f} GiB"] if near.lacks_gib else []
    return told + ([("else", "; ".join(more))] if more else [])


def print_models(fit: FitModels, *, verbose: bool, explain: bool) -> None:
    """Which models fit, and what the others lack."""
    out = console()
    offer, rows = fit.question.offers[0], fit.deployments
    asked = f"{requests_text(fit.least)} of {fit.question.workload.describe()}{_each(fit.question)}"
    kinds = len({made.model.name for made in rows})
    gpus, may = gpus_text(offer.most, offer), "" if fit.question.pace is None else "may "
    fitting = f"{may}fit" if may or kinds > 1 else "fits"
    named = f"{kinds} model{'' if kinds == 1 else 's'}"
    if kinds < len(rows):
        named += f" ({len(rows)} checkpoints)"
    said = f"{named} {fitting} {gpus}: {fit.least:,} or more requests"
    said += f" of {fit.question.workload.describe()}{_each(fit.question)}"
    said = said if len(said) <= COLUMNS else said.removesuffix(" each").replace("more requests of", "more of")
    said = said if rows else f"no model here serves {asked} on {gpus}"
    out.print(Text(said, style="bold"))
    out.print()
    told = _models_told(fit, verbose=verbose, explain=explain)
    used = _used(said, rows[0] if rows else None, told)
    most = max(LEAST_ROWS, min(MOST_MODELS, LINES - used)) if fit.top == DEFAULT_TOP else fit.top
    shown = rows if verbose else rows[:most]
    if not verbose and len(shown) < len(rows):
        told = _models_told(fit, verbose=verbose, explain=explain, shown=len(shown))
    twice = Counter((made.model.name, stored(made)) for made in rows)
    header = (f"{INDENT}model", "stored", "size", "engine", "layout", "requests", "longest", RATE)
    cells = [
        (
            INDENT + (made.model.name if twice[made.model.name, stored(made)] == 1 else _checkpoint(made)),
            stored(made),
            f"{parameters_of(made) / 1e9:,.1f} B",
            made.engine.title,
            layout(made),
            _requests(made),
            "any" if (longest := fit.longest(made)) == UNLIMITED else f"{longest:,}",
            _rate(made),
        )
        for made in shown
    ]
    several = len({made.served.engine.name for made in shown}) > 1
    paced = fit.question.pace is not None
    left_out = {SIZE, *([] if several else [ENGINE]), *([LAYOUT] if paced else [])}  # long names need the room
    left_out = (set() if verbose else left_out) | ({PACE} if not paced else set())
    kept = [at not in left_out for at in range(len(header))]
    if cells:
        right = tuple(compress((False, False, True, False, False, True, True, True), kept))
        columns = tuple(at for at, each in enumerate(right) if each)
        listing(out, tuple(compress(header, kept)), [tuple(compress(row, kept)) for row in cells], right=columns)
        out.print()
    for made in shown if verbose else shown[:1]:
        print_launch(out, made)
    _print_told(out, told)
    if explain:
        out.print()
        listing(
            out,
            ("checkpoint", "why not"),
            [(lost.candidate.model.asked or lost.candidate.model.name, _why(lost)) for lost in fit.lost],
        )
