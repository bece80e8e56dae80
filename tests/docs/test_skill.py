"""The agent's guide: each command of its table answers, and the key to read is in the document."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
from command_line import run

ROOT = Path(__file__).resolve().parents[2]
TEXT = (ROOT / "SKILL.md").read_text(encoding="utf-8")
ROWS = re.findall(r"^\| ([^|]+\?) \| `hybridcalc (.+?)` \| `(\S+)` \|$", TEXT, re.MULTILINE)


def value(document: Any, path: str) -> Any:
    """What stands at a path as `a[0].b`."""
    for name in re.findall(r"\w+", path):
        document = document[int(name) if name.isdigit() else name]
    return document


def test_the_guide_opens_as_guides_do() -> None:
    head = re.match(r"---\nname: hybridcalc\ndescription: (.+)\n---\n", TEXT)
    assert head is not None
    assert len(head[1]) < 1024


@pytest.mark.parametrize(("question", "line", "path"), ROWS, ids=[question for question, _, _ in ROWS])
def test_the_command_of_a_question_has_the_key(
    question: str, line: str, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    command, *words = shlex.split(line)
    if command == "live":
        pytest.importorskip("prometheus_client")
    ran = run(command, "--json", *words)
    assert (ran.code in (0, 1), ran.err) == (True, "")
    assert value(ran.document, path)


def test_every_question_has_a_row() -> None:
    assert len(ROWS) == 11
    assert {line.split()[0] for _, line, _ in ROWS} == {
        "fit",
        "plan",
        "compare",
        "log",
        "live",
        "check",
        "ratio",
        "weights",
        "reuse",
    }
