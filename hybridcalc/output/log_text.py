"""A log's answer as text: every boot, and what there is to say of the log itself."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from hybridcalc.diagnosis.boot import LogAnswer
from hybridcalc.diagnosis.view import MOST_BOOTS, NO_BOOT, boot_view
from hybridcalc.errors import printable
from hybridcalc.output import terminal
from hybridcalc.output.text import print_view

if TYPE_CHECKING:
    from hybridcalc.diagnosis.expectation import Compared


def print_log(
    answers: Sequence[LogAnswer],
    *,
    explain: bool,
    verbose: bool,
    length: bool,
    compared: "Sequence[Sequence[Compared]]" = (),
) -> None:
    """The whole answer."""
    out = terminal.console()
    boots, number = sum(len(answer.boots) for answer in answers), 0
    for answer in answers:
        if answer is not answers[0]:
            out.print()
        if len(answers) > 1:
            out.print(printable(answer.source), style="bold")
        if not answer.boots:
            terminal.verdict(out, *NO_BOOT, gap=False)
        for at, boot in enumerate(answer.boots[:MOST_BOOTS], number):
            view = boot_view(boot, length=length, compared=compared[at] if compared else None)
            if at > number:
                out.print()
            if boots > 1:
                out.print(view.title, style=terminal.QUIET)
            print_view(view, explain=explain, verbose=verbose, out=out)
        number += len(answer.boots)
        notes = [finding.message for finding in answer.findings] + list(answer.remarks)
        if len(answer.boots) > MOST_BOOTS:
            notes.append(f"{len(answer.boots) - MOST_BOOTS} more boots: see --json")
        terminal.notes(out, notes)
