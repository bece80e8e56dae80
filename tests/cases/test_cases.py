"""Public reports, put to the commands as their authors would: an answer has what is right and nothing that is wrong."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from command_line import Ran, run

HOME = Path(__file__).resolve().parent.parent / "data" / "cases"
CASES: list[dict[str, Any]] = yaml.safe_load((HOME / "cases.yaml").read_text(encoding="utf-8"))
WRONG = ""
"""Cases that are answered wrongly: each leaves the list with the change that answers it rightly."""


def _answer(case: dict[str, Any], *options: str) -> Ran:
    command, *rest = (str(word) for word in case["argv"])
    given = (HOME / case["stdin"]).read_bytes() if "stdin" in case else b""
    return run(command, *options, *rest, stdin=given, COLUMNS="80", NO_COLOR="1")


def _at(document: Any, path: str) -> Any:
    """What stands at ``boots[0].figures.kv_tokens``, or None."""
    for part in re.findall(r"[^.\[\]]+|\[-?\d+\]", path):
        try:
            document = document[int(part[1:-1])] if part[0] == "[" else document[part]
        except (KeyError, IndexError, TypeError):
            return None
    return document


def _fits(got: Any, want: Any) -> bool:
    if isinstance(want, dict) and "in" in want:
        return got in want["in"]
    interval = isinstance(want, list) and len(want) == 2 and all(isinstance(bound, int | float) for bound in want)
    if interval and not isinstance(got, list):
        return isinstance(got, int | float) and bool(want[0] <= got <= want[1])
    if isinstance(want, float) and isinstance(got, int | float):
        return abs(got - want) <= 1e-6 * max(1, abs(want))
    return bool(got == want)


def _misses(case: dict[str, Any]) -> Iterator[str]:
    """What an answer lacks or says wrongly, a line each."""
    want, answer = case["want"], _answer(case)
    text = re.sub(r"\s+", " ", f"{answer.out}\n{answer.err}")
    allowed = want.get("exit", answer.code)
    if answer.code not in (allowed if isinstance(allowed, list) else [allowed]):
        yield f"exit {answer.code}, not {allowed}"
    if "Traceback" in text:
        yield "a traceback"
    yield from (f"lacks {one!r}" for one in want.get("has", ()) if not re.search(one, text, re.IGNORECASE))
    yield from (f"says {one!r}" for one in want.get("not", ()) if re.search(one, text, re.IGNORECASE))
    if want.get("json"):
        document = _answer(case, "--json").document
        places = ((path, _at(document, path), value) for path, value in want["json"].items())
        yield from (f"{path} is {got!r}, not {value}" for path, got, value in places if not _fits(got, value))


def _marked(case: dict[str, Any]) -> Any:
    wrong = case["id"] in WRONG.split()
    return pytest.param(case, id=case["id"], marks=[pytest.mark.xfail(strict=True, reason="waits")] if wrong else [])


@pytest.mark.parametrize("case", [_marked(case) for case in CASES])
def test_an_answer_has_what_is_right(case: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(HOME)
    misses = list(_misses(case))
    typed = " ".join(str(word) for word in case["argv"])
    assert not misses, f"\n$ hybridcalc {typed}\n  " + "\n  ".join([*misses, case["why"]])


def test_wrong_cases_are_cases() -> None:
    assert set(WRONG.split()) <= {case["id"] for case in CASES}
