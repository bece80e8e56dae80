"""``hybridcalc live``: which pool binds on a server that is running, and what to set."""

import json
import os
import re
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hybridcalc.bootlog.grammars import room
from hybridcalc.cli import answers, options
from hybridcalc.cli.app import command
from hybridcalc.engines import ENGINES
from hybridcalc.errors import InputError, ModelNotFound, quoted
from hybridcalc.findings import at_or_above
from hybridcalc.live import scrape, verdict
from hybridcalc.live.held import expected
from hybridcalc.live.replan import LiveQuestion, Planner
from hybridcalc.live.watch import Kept, Missed, Moment, Tally, watch
from hybridcalc.live.worker import Worker
from hybridcalc.units import MOST_SLOTS

if TYPE_CHECKING:
    from hybridcalc.output.watching import ShowsScrape

app = typer.Typer(rich_markup_mode=None, add_completion=False)
HEADER_VARIABLE = "HYBRIDCALC_LIVE_HEADER"
_HEADER = re.compile(r"[A-Za-z0-9-]{1,64}:[ \t]*[\x20-\x7e]{0,8000}")
_DURATION = re.compile(r"([0-9]{1,6}(?:\.[0-9]{1,3})?)(ms|s|m|h|)")
_SECONDS = {"ms": 0.001, "s": 1.0, "": 1.0, "m": 60.0, "h": 3600.0}


@command(app)
def live(
    *,
    sources: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="URL|FILE...",
            help="Servers, http://HOST:PORT, or saved texts of /metrics; - is stdin.",
            show_default=False,
        ),
    ] = None,
    length: options.Length = None,
    model: Annotated[
        str | None, typer.Option("--model", metavar="MODEL", help="The model, where the server's name is no preset's.")
    ] = None,
    command: Annotated[
        str | None,
        typer.Option("--command", metavar="LINE|FILE", help="The launch line of the server, as text or in a file."),
    ] = None,
    every: Annotated[
        str | None, typer.Option("--watch", metavar="TIME", help="Scrape again each 10s, until Ctrl-C or --scrapes.")
    ] = None,
    scrapes: Annotated[
        int | None, typer.Option("--scrapes", metavar="N", min=1, max=10**6, help="End the watch after as many.")
    ] = None,
    header: Annotated[
        list[str] | None,
        typer.Option("--header", metavar="NAME: VALUE", help=f"Sent to URLs; or set {HEADER_VARIABLE}. Never printed."),
    ] = None,
    expect: Annotated[
        str | None,
        typer.Option("--expect", metavar="PLAN", help="Compare pools with a `plan --json`; exit 1 where they differ."),
    ] = None,
    lines: Annotated[bool, typer.Option("--jsonl", help="A JSON document a scrape, each on a line.")] = False,
    rules: Annotated[
        str | None, typer.Option("--rules", metavar="prometheus", help="Print alerting and recording rules, and end.")
    ] = None,
    dashboard: Annotated[
        str | None, typer.Option("--dashboard", metavar="grafana", help="Print a dashboard, and end.")
    ] = None,
    slots: Annotated[
        int, typer.Option("--slots", metavar="S", min=1, max=MOST_SLOTS, help="Slots a request keeps, for the rules.")
    ] = 5,
    fail_on: options.FailOn = "never",
    form: answers.Forms,
) -> None:
    """Which pool binds on a server that is running: requests, slots and tokens that they really hold, and what to set.

    Reads the metrics of SGLang, vLLM and llama.cpp, and where offered /server_info, /props and /slots. A model that the
    server names, or --model, and a launch line give suggestions at the length that its requests really have.
    """
    if rules is not None or dashboard is not None:
        _print_files(rules, dashboard, slots)
        return
    severity = options.severity("--fail-on", fail_on)
    asked_for = answers.wanted(form)
    if not sources:
        raise InputError(
            "no server is named", fix="hybridcalc live http://localhost:30000, or a saved text of /metrics"
        )
    if every is None and scrapes is not None:
        raise InputError("--scrapes ends a watch, and none is asked for", fix="add --watch 10s")
    headers = _headers([*(header or []), *filter(None, [os.environ.get(HEADER_VARIABLE)])])
    planned = _saved_plan(expect) if expect is not None else None
    if sources.count("-") > 1 or (every is not None and "-" in sources):
        raise InputError("stdin is read once", fix="name a server or a file")
    planner = Planner(_asked(model, command, options.tokens("-L", length)))
    look = partial(_look, sources, headers, planner, planned)
    kept, tally = Kept(), Tally()
    if every is None:
        kept.add(Moment(0.0, look()))
    else:
        quiet = lines or asked_for.json or asked_for.figure is not None
        _watch(look, _seconds(every), scrapes, kept, tally, lines=lines, quiet=quiet)
    if not kept.moments:
        raise typer.Exit(1)
    last = kept.last.live
    if lines and every is None:
        _print_line(last)
    else:
        _show(last, kept.moments, asked_for, tally if every is not None else None, lines=lines)
    found = tuple(one for each in (last, *last.others) for one in each.findings)
    if at_or_above(found, severity) or any(one.severity == "error" for one in found):
        raise typer.Exit(1)


def _show(
    last: verdict.Live, moments: list[Moment], asked_for: answers.Wanted, tally: Tally | None, *, lines: bool
) -> None:
    """The answer at the end, and of a watch its summary: as text, a document or a picture."""
    from hybridcalc.live.view import view

    whole = {} if tally is None else {"summary": tally.to_dict()}
    if lines:
        sys.stdout.write(json.dumps({"schema": "hybridcalc.live/2", **whole}) + "\n")
        if not asked_for.drawn:
            return
    answers.show(
        "live", asked_for, partial(view, last, moments, whole.get("summary")), lambda: {**last.to_dict(), **whole}
    )


def _print_line(found: verdict.Live) -> None:
    sys.stdout.write(json.dumps({"schema": "hybridcalc.live/2", **found.to_dict()}) + "\n")
    sys.stdout.flush()


def _watch(
    look: Callable[[], verdict.Live],
    every: float,
    most: int | None,
    kept: Kept,
    tally: Tally,
    *,
    lines: bool,
    quiet: bool,
) -> None:
    """Scrape until the end or Ctrl-C. Each scrape is a line, of text or of JSON, or drawn anew on a terminal."""
    from hybridcalc.live.view import headline
    from hybridcalc.output.watching import watching

    def take(show: "ShowsScrape | None") -> None:
        for moment in watch(look, every, most=most):
            if isinstance(moment, Missed):
                tally.miss()
                line = f"not read: {moment.why}"
            else:
                kept.add(moment)
                tally.add(moment)
                line = headline(moment.live)
                if lines:
                    _print_line(moment.live)
            if show is not None:
                show(tally.seconds(moment.at), line, tally.now, tally.to_dict())

    try:
        if quiet:
            take(None)
        else:
            with watching() as show:
                take(show)
    except KeyboardInterrupt:
        if not kept.moments:
            raise


def _look(
    sources: list[str], headers: dict[str, str], planner: Planner, planned: dict[str, Any] | None
) -> verdict.Live:
    modules = [module for name in ENGINES.rows if (module := room(name, "live")) is not None]
    read, missed = scrape.read_all(sources, {module.PREFIX: module.DOCUMENTS for module in modules}, headers)
    documents: dict[str, Any] = {}
    for one in read:
        if not one.metrics:
            documents |= one.documents
    workers: list[Worker] = []
    for one in read:
        whole = one._replace(documents={**documents, **one.documents})
        for module in modules:
            if one.prefixed(module.PREFIX):
                try:
                    workers += module.workers(whole)
                except InputError as error:
                    missed.append(scrape.NotRead(error.message, fix=error.fix))
    if not workers:
        if missed:
            raise missed[0]
        raise InputError("none of these says how many requests run", fix="give the whole text of /metrics")
    found = verdict.judge(workers, planner)
    found = replace(found, told=tuple(verdict.finding("HC308", error.message, error.fix) for error in missed))
    return found if planned is None else expected(found, planned, planner.asked.model and planner.asked.model.name)


def _asked(model: str | None, command: str | None, length: int | None) -> LiveQuestion:
    found = LiveQuestion(None if model is None else options.model(model), length=length)
    if command is None:
        return found
    from hybridcalc.cli.launch_text import started_by

    engine, named, args, _ = started_by(command)
    if found.model is None and named:
        with suppress(ModelNotFound):  # the server may name one
            found = found._replace(model=options.model(named))
    return found._replace(engine=engine, args=args)


def _saved_plan(path: str) -> dict[str, Any]:
    from hybridcalc.saved_plan import read_saved_plan

    return dict(read_saved_plan(path, "--expect"))


def _print_files(rules: str | None, dashboard: str | None, slots: int) -> None:
    from hybridcalc.live import alerts

    if rules is not None and dashboard is not None:
        raise InputError("--rules and --dashboard are a file each", fix="run it twice")
    for flag, typed, name, make in (
        ("--rules", rules, "prometheus", alerts.prometheus),
        ("--dashboard", dashboard, "grafana", alerts.grafana),
    ):
        if typed is not None and typed != name:
            raise InputError(f"{flag} {quoted(typed)} is not known", fix=f"write {name}")
        if typed is not None:
            sys.stdout.write(make(slots))


def _headers(typed: list[str]) -> dict[str, str]:
    """Headers by name. Raises InputError that does not quote them: they may be secret."""
    for number, text in enumerate(typed, 1):
        if not _HEADER.fullmatch(text):
            raise InputError(f"header {number} is not NAME: VALUE", fix="--header 'Authorization: Bearer ...'")
    return {name.strip(): value.strip() for name, _, value in (text.partition(":") for text in typed)}


def _seconds(text: str) -> float:
    found = _DURATION.fullmatch(text.strip())
    if found is None:
        raise InputError(f"--watch {quoted(text)} is no time", fix="write 10s, 500ms or 1m")
    return float(found[1]) * _SECONDS[found[2]]
