"""Each command as a process of its own: it starts, prints what it prints in this process, and leaves with its code."""

from __future__ import annotations

from pathlib import Path

import pytest
from command_line import process, run

from hybridcalc.cli.app import COMMANDS

LINES = {
    "plan": ("kimi-k3", "--tp", "8", "--rest", "0.1GiB"),
    "log": ("examples/kimi-k3-boot.log",),
    "fit": ("-L", "8k"),
    "compare": ("sglang serve kimi-k3 --tp 8", "--rest", "28GiB"),
    "init": ("--no-such-flag",),
    "mcp": ("--no-such-flag",),
    "live": ("examples/kimi-k3-metrics.txt",),
    "ratio": ("kimi-k3", "-L", "8k"),
    "slots": ("--strategy", "no_buffer"),
    "crossover": ("nemotron-h-8b", "--json"),
    "replayssm": ("kimi-k3",),
    "verify": ("kimi-k3", "--device", "tpu"),
    "reuse": ("--slots", "4", "--workload", "shared:rounds=2", "--no-what-if"),
    "check": ("examples/deployments/bad/deployment.yaml",),
    "rules": ("HC002",),
    "report": ("kimi-k3", "-o", "none.pdf"),
    "models": ("show", "kimi-k3"),
    "schema": ("rules",),
    "weights": ("kimi-k3", "--tp", "8"),
}


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_starts_and_ends_as_a_process(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same text on both streams and the same exit code, among them 0, 1 and 2."""
    monkeypatch.chdir(Path(__file__).parents[2])
    assert process(command, *LINES[command]) == run(command, *LINES[command])
