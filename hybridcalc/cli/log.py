"""``hybridcalc log``: what a boot log says happened, and what to change."""

import re
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from hybridcalc.architecture.presets import find_preset, load_model
from hybridcalc.bootlog.grammars import room
from hybridcalc.cli import answers, options
from hybridcalc.cli.app import command
from hybridcalc.deployment import Workload
from hybridcalc.diagnosis import Launched, Question, diagnose_log, document
from hybridcalc.engines import ENGINES
from hybridcalc.errors import InputError, printable
from hybridcalc.findings import at_or_above
from hybridcalc.units import MOST_SLOTS

if TYPE_CHECKING:
    from hybridcalc.diagnosis import LogAnswer
    from hybridcalc.diagnosis.answer import Diagnosis
    from hybridcalc.diagnosis.expectation import Compared, ExpectedPlan
    from hybridcalc.engines.engine import Engine

FEWEST_BOOTS = 5
"""Whose answers are shown without -v."""
_RELEASE = re.compile(r"[0-9]+(?:\.[0-9]+)+(?:\.post[0-9]+)?")
app = typer.Typer(rich_markup_mode=None, add_completion=False)


@command(app)
def log(
    *,
    files: Annotated[list[str], typer.Argument(metavar="FILE...", help="Boot logs, plain or gzip; - is stdin.")],
    length: options.Length = None,
    concurrency: Annotated[
        int | None,
        typer.Option("--concurrency", "-C", metavar="N", min=1, max=MOST_SLOTS, help="Requests that should run."),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option("--model", metavar="MODEL", help="The model of the log, where its figures leave doubt."),
    ] = None,
    command: Annotated[
        str | None,
        typer.Option("--command", metavar="LINE|FILE", help="The launch line of the boot, as text or in a file."),
    ] = None,
    expect: Annotated[
        str | None,
        typer.Option(
            "--expect", metavar="PLAN", help="Compare with a `plan --json` (- is stdin); exit 1 where they differ."
        ),
    ] = None,
    whole: Annotated[
        bool, typer.Option("--all", help="Read a long log to its end, not only until a boot is followed by serving.")
    ] = False,
    emit: options.Emit = None,
    fail_on: options.FailOn = "never",
    form: answers.Forms,
) -> None:
    """What happened in a boot of SGLang, vLLM or llama.cpp: pools, constants, what binds, why it failed, what to set.

    Logs are read as people paste them: prefixes, colours, wrapped lines, several boots. A failed boot is an answer too
    (exit 0) unless --fail-on says otherwise.
    """
    severity = options.severity("--fail-on", fail_on)
    asked_for = answers.wanted(form)
    if [*files, expect, command].count("-") > 1:
        raise InputError("stdin is named twice", fix="give - once")
    plan = _expected(expect) if expect is not None else None
    if emit is not None:
        answers.check_emit(emit, as_json=form.as_json)
    tokens = options.tokens("-L", length)
    launch = _launch(command) if command is not None else None
    architecture = options.model(model) if model is not None else None
    if architecture is None and launch is not None and launch.model and (preset := find_preset(launch.model)):
        architecture = load_model(preset[0])
    work = Workload(((tokens, 1),) if tokens else (), concurrency)
    question = Question(architecture, work, launch)
    found = [diagnose_log(name, question, whole=whole) for name in files]
    boots = [(answer, boot) for answer in found for boot in answer.boots]
    if emit is not None:
        _emit(emit, launch, boots[-1][1] if boots else None, work)
        return
    compared = (
        [plan.compare(boot.boot, [each.model for each in boot.candidates]) for _, boot in boots]
        if plan is not None
        else []
    )
    if not boots:
        asked_for = asked_for.undrawn("there is no boot in it")
    from hybridcalc.diagnosis.view import log_view

    text = partial(
        _print,
        found,
        explain=asked_for.explain,
        verbose=asked_for.verbose,
        length=tokens is not None,
        compared=compared,
    )
    answers.show("log", asked_for, partial(log_view, found), lambda: document(found, compared), text=text)
    findings = tuple(one for _, boot in boots for one in boot.findings)
    verdicts = [row.agrees for rows in compared for row in rows]
    parted = plan is not None and (False in verdicts or True not in verdicts)
    if not boots or parted or at_or_above(findings, severity):
        raise typer.Exit(1)


def _print(
    logs: "Sequence[LogAnswer]",
    *,
    explain: bool,
    verbose: bool,
    length: bool,
    compared: "Sequence[Sequence[Compared]]" = (),
) -> None:
    """The answer of each boot, of many those of the first, and what there is to say of the logs themselves."""
    from hybridcalc.diagnosis.view import MOST_BOOTS, NO_BOOT, boot_view
    from hybridcalc.output import terminal
    from hybridcalc.output.text import print_view

    out = terminal.console()
    boots, number = sum(len(answer.boots) for answer in logs), 0
    most = left = MOST_BOOTS if verbose else FEWEST_BOOTS
    for answer in logs if verbose else logs[:most]:
        if answer is not logs[0]:
            out.print()
        if len(logs) > 1:
            out.print(printable(answer.source), style="bold")
        if not answer.boots:
            terminal.verdict(out, *NO_BOOT, gap=False)
        for at, boot in enumerate(answer.boots[:left], number):
            view = boot_view(boot, length=length, compared=compared[at] if compared else None)
            if at > number:
                out.print()
            if boots > 1:
                out.print(view.title, style=terminal.QUIET)
            print_view(view, explain=explain, verbose=verbose, out=out)
        number, left = number + len(answer.boots), max(left - len(answer.boots), 0)
        terminal.notes(out, [finding.message for finding in answer.findings] + list(answer.remarks))
        if not left:
            break
    if boots > most:
        told = f"{boots - most:,} more boot{'' if boots == most + 1 else 's'}"
        terminal.notes(out, [told], label="--json" if verbose else "-v", style=terminal.QUIET)


def _printed(last: "Diagnosis | None") -> Launched:
    """The launch that the arguments of the last boot are of. Raises InputError where none are printed."""
    if last is None:
        raise InputError("--emit: no boot is in the log, of which a launch would be written")
    found: Launched | None = getattr(room(last.boot.engine, "diagnosis"), "launched", lambda _: None)(last.boot)
    if found is None:
        raise InputError("--emit: the log prints no arguments that name its launch: add --command LINE")
    return found


def _to_set(last: "Diagnosis | None") -> tuple[str, str]:
    """The flags that are to be set, and why: what a boot that failed needs, else the first suggestion, the safest."""
    failed = [one for one in last.findings if one.severity == "error"] if last is not None else []
    if mend := next((one for one in failed if one.mend), None):
        flags = " ".join(mend.mend or ())
        return flags, f"{flags}: {mend.message}"
    if failed:
        return "", f"nothing to set is known that mends this: {failed[0].message}"
    if last is None or not last.suggestions:
        return "", "nothing to set is known"
    first = last.suggestions[0]
    return first.flags, f"{first.flags}: {first.effect}{first.price}"


def _released(engine: "Engine", form: str, named: str | None, last: "Diagnosis | None") -> tuple[str, str]:
    """The release of the image, and what is to be said of it: the one that is named, else the newest that is known."""
    said = named or (last.version if last is not None else None) or ""
    release = said.removeprefix("v")
    if _RELEASE.fullmatch(release) and engine.knows(release):
        return release, ""
    newest = engine.releases[-1]
    of = f"the log is of {engine.title} {said}" if said else "the log names no release"
    return newest, "" if form == "cmd" else f"; {of}: the image is {newest}, the newest known here"


def _emit(form: str, given: Launched | None, last: "Diagnosis | None", work: Workload) -> None:
    """The launch line of the last boot, as it is given or else printed, with what is to be set, as a deployment file;
    of the release that the log names, where it names one.
    """
    launch = given or _printed(last)
    from hybridcalc.engines.document import launch_named
    from hybridcalc.manifests.emit import of_launch

    engine, (flags, about) = ENGINES[launch.engine], _to_set(last)
    args = engine.changed(launch.args, flags) if flags else launch.args
    about += "; of the arguments in the log, those that bear on memory" if given is None else ""
    if launch.model is None:
        raise InputError("--emit: the launch line names no model: write it in --command")
    line = launch_named(engine, launch.model, args.given())
    version, assumed = _released(engine, form, args.engine_version, last)
    about += assumed
    answers.write_out(form, of_launch(engine, args, line, None, launch.words, about, version), work)


def _expected(path: str) -> "ExpectedPlan":
    from hybridcalc.diagnosis.expectation import read_plan

    return read_plan(path)


def _launch(text: str) -> Launched:
    from hybridcalc.cli.launch_text import started_by

    return Launched(*started_by(text))
