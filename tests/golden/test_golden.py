"""Recorded command lines print what they printed: `python tools/golden.py --write` renews tests/golden/*.txt."""

from __future__ import annotations

import golden
import pytest

from hybridcalc.cli.app import COMMANDS

TRANSCRIPTS = golden.transcripts()


@pytest.mark.parametrize(
    ("transcript", "case"),
    [
        pytest.param(transcript, case, id=f"{transcript.path.stem}: {case.command[:100]}")
        for transcript in TRANSCRIPTS
        for case in transcript.cases
    ],
)
def test_a_recorded_command_line_prints_what_it_printed(transcript: golden.Transcript, case: golden.Case) -> None:
    """Standard output, standard error and exit code."""
    if transcript.missing:
        pytest.skip(f"needs {transcript.missing}")
    assert golden.shown(case.command) == case.shown


def test_every_command_is_recorded_with_its_help_page() -> None:
    commands = [case.command for transcript in TRANSCRIPTS for case in transcript.cases]
    for name in COMMANDS:
        assert f"hybridcalc {name} --help" in commands
        if name != "mcp":  # speaks a protocol: tests/cli/test_mcp.py
            assert sum(command.startswith(f"hybridcalc {name} ") for command in commands) > 5
