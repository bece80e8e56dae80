"""The bar of long computations: on a terminal only, and on stderr."""

from __future__ import annotations

import io
import sys

import pytest
from present import present

from hybridcalc.output.progress import bars
from hybridcalc.reuse.settings import Settings
from hybridcalc.reuse.simulation import HELD_POINTS, simulate
from hybridcalc.reuse.workloads import parse_workload


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_terminal_shows_a_bar_under_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    with bars(100) as bar:
        move = bar("a pass")
        assert move is not None
        move(50)
        bar("another pass")
        shown = terminal.getvalue()
    assert "another pass" in shown


def test_a_file_or_a_closed_stderr_shows_none(monkeypatch: pytest.MonkeyPatch) -> None:
    for stream in (io.StringIO(), None):
        monkeypatch.setattr(sys, "stderr", stream)
        with bars(100) as bar:
            assert bar("a pass") is None


def test_a_simulation_moves_the_bar_now_and_then_and_never_back() -> None:
    steps: list[float] = []
    workload = parse_workload("cyclic:prefixes=500,rounds=20")
    simulate(workload, Settings("sglang", 64).setup, progress=steps.append)
    assert steps == sorted(steps)
    assert HELD_POINTS < len(steps) < 20 * HELD_POINTS
    assert steps[-1] > present(workload.requests) * 0.9
