"""A log's answer as text: for every boot a verdict, the lines it rests on, findings, and what to set."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from hybridcalc.diagnosis.answer import Diagnosis
from hybridcalc.diagnosis.boot import LogAnswer
from hybridcalc.engines.engine import ENGINES
from hybridcalc.errors import printable
from hybridcalc.output import terminal
from hybridcalc.steps import safest_first

if TYPE_CHECKING:
    from rich.console import Console

    from hybridcalc.diagnosis.expectation import Compared

MOST_SUGGESTIONS = 3
"""Shown of a boot; those that leave accuracy alone come first."""
MOST_BOOTS = 20
LONGEST_CELL = 24
NEEDS_LENGTH = "-L TOKENS shows what the pools admit, what idles, and what to set"


def print_log(
    answers: Sequence[LogAnswer], *, explain: bool, length: bool, compared: Sequence[Sequence[Compared]] = ()
) -> None:
    """The whole answer."""
    out = terminal.console()
    several, number = sum(len(answer.boots) for answer in answers) > 1, 0
    for answer in answers:
        if len(answers) > 1:
            out.print(printable(answer.source), style="bold")
        if not answer.boots:
            terminal.verdict(out, "no boot in it", "no line of SGLang, vLLM or llama.cpp that sizes memory")
        for boot in answer.boots[:MOST_BOOTS]:
            if several:
                out.print(f"boot from line {boot.boot.line}", style=terminal.QUIET)
            _print_boot(out, boot, explain=explain, length=length)
            if compared:
                _print_comparison(out, compared[number])
            number += 1
            out.print()
        number += max(0, len(answer.boots) - MOST_BOOTS)
        notes = [finding.message for finding in answer.findings] + list(answer.remarks)
        if len(answer.boots) > MOST_BOOTS:
            notes.append(f"{len(answer.boots) - MOST_BOOTS} more boots: see --json")
        terminal.notes(out, notes)


def _print_boot(out: Console, answer: Diagnosis, *, explain: bool, length: bool) -> None:
    terminal.verdict(out, answer.headline, answer.meaning)
    if answer.rows:
        terminal.evidence(out, answer.rows)
    for severity in ("error", "warning"):
        texts = [
            f"{f.rule} {f.message}{'; ' + f.fix if f.fix else ''}" for f in answer.findings if f.severity == severity
        ]
        terminal.notes(out, texts, label=severity, style=terminal.TROUBLE)
    if answer.suggestions:
        out.print()
        for suggestion in safest_first(answer.suggestions)[:MOST_SUGGESTIONS]:
            terminal.choice(out, suggestion.flags, f"{suggestion.effect}: {suggestion.why}")
    notes = [f"{f.rule} {f.message}{'; ' + f.fix if f.fix else ''}" for f in answer.findings if f.severity == "note"]
    starts = not any(finding.severity == "error" for finding in answer.findings)
    if not length and answer.rows and starts and answer.boot.engine in ENGINES:
        notes.append(NEEDS_LENGTH)
    terminal.notes(out, notes)
    if explain and answer.steps:
        terminal.explanation(out, answer.steps)


def _print_comparison(out: Console, compared: Sequence[Compared]) -> None:
    out.print()
    words = {True: "as planned", False: "differs", None: "not printed"}
    rows = [
        (f"  {c.name}", _shown(c.expected), "-" if c.printed is None else _shown(c.printed), words[c.agrees])
        for c in compared
    ]
    terminal.listing(out, ("  figure", "planned", "printed", ""), rows, right=(1, 2))
    if not any(c.agrees is not None for c in compared):
        terminal.notes(out, ["the boot prints nothing that the plan predicts"], label="error", style=terminal.TROUBLE)


def _shown(value: Any) -> str:
    """A figure in a cell: one that is too long for any machine, by its length."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    text = ", ".join(map(str, value)) if isinstance(value, list) else str(value)
    return text if len(text) <= LONGEST_CELL else text[: LONGEST_CELL - 3] + "..."
