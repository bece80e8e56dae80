"""Questions as people ask them: one command answers each, and its first twelve lines hold what a right answer says."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml
from command_line import run

HOME = Path(__file__).resolve().parent.parent / "data" / "questions"
QUESTIONS: list[dict[str, Any]] = [
    question
    for name in ("questions.yaml", "more.yaml")
    for question in yaml.safe_load((HOME / name).read_text(encoding="utf-8"))
]
LINES = 12


@pytest.mark.parametrize("question", QUESTIONS, ids=[question["id"] for question in QUESTIONS])
def test_twelve_lines_answer(question: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(HOME)
    _, *arguments = shlex.split(question["command_v2"])
    ran = run(*arguments, COLUMNS="80", NO_COLOR="1")
    shown = " ".join("\n".join((ran.out + ran.err).splitlines()[:LINES]).split()) + f" exit {ran.code}"
    facts = {fact["id"]: fact["match"] for fact in question["facts"]}
    missing = [name for name in question["first_12_lines"] if not any(re.search(form, shown) for form in facts[name])]
    assert not missing
