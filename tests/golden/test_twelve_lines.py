"""Of all recorded command lines, an answer takes twelve lines of eighty columns; what does not is listed, and why."""

from __future__ import annotations

import golden
import pytest

LINES, COLUMNS = 12, 80
WHOLE = ("-v", "--verbose", "--explain", "--help", "--json")
"""What asks for more than the answer."""
LONGER = {
    "check": "of files that are named one block for each finding, as a linter prints them",
    "schema": "a JSON Schema",
    "--emit": "a deployment file",
    "--csv": "rows for a spreadsheet",
    "--rules": "a file of alerts or a dashboard",
    "two-boots.log": "two boots: an answer for each",
}  # fmt: skip
"""A command, a flag or a file in the line, whose answers may be longer."""


def _answers() -> list[golden.Case]:
    """Recorded lines that print an answer as text, at 80 columns."""
    cases = [case for transcript in golden.transcripts() for case in transcript.cases]
    asked = [case for case in cases if case.command.startswith("hybridcalc ") and case.command != "hybridcalc"]
    return [case for case in asked if not set(WHOLE) & set(case.command.rpartition(" | ")[2].split())]


def _is_longer(command: str) -> bool:
    return any(
        word in (said, said.partition("=")[0], said.rpartition("/")[2]) for word in LONGER for said in command.split()
    )


@pytest.mark.parametrize(
    "case", [case for case in _answers() if not _is_longer(case.command)], ids=lambda c: c.command[:90]
)
def test_an_answer_takes_twelve_lines_of_eighty_columns(case: golden.Case) -> None:
    said = [line for line in case.shown.splitlines() if line != "[stderr]" and not line.startswith("[exit ")]
    assert len(said) <= LINES, "\n".join(said)
    assert max(map(len, said), default=0) <= COLUMNS


def test_every_exception_has_an_answer_that_needs_it() -> None:
    """No exception is listed for what takes twelve lines anyway."""
    for word in LONGER:
        having = [case.shown for case in _answers() if word in case.command.split() or f"/{word}" in case.command]
        assert any(
            len(shown.splitlines()) > LINES or len(max(shown.splitlines(), key=len)) > COLUMNS for shown in having
        ), word
