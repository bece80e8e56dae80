"""Real boot logs of three engines: every figure that a log prints is found, and none that it does not."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hybridcalc.bootlog.boots import merged
from hybridcalc.bootlog.grammars import assemble
from hybridcalc.bootlog.reader import read_log

LOGS = Path(__file__).resolve().parent.parent / "data" / "bootlogs"
EXPECTED: dict[str, dict[str, object]] = json.loads((LOGS / "figures.json").read_text())


@pytest.mark.parametrize("name", EXPECTED)
def test_every_printed_figure_is_found_and_no_other(name: str) -> None:
    boots = assemble(read_log(LOGS / name)).boots
    assert merged(boots) == EXPECTED[name]


def test_every_log_has_its_figures() -> None:
    assert sorted(EXPECTED) == sorted(path.name for path in LOGS.glob("*.log"))
