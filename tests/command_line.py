"""One command line, run in this process or in one of its own, and what came of it."""

from __future__ import annotations

import contextlib
import io
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from typing import Any, NamedTuple

from hybridcalc.cli.app import execute

SETTINGS = ("COLUMNS", "LINES", "NO_COLOR", "FORCE_COLOR", "GITHUB_ACTIONS", "GITHUB_STEP_SUMMARY", "HF_HUB_CACHE")
"""Variables that change what is printed: of the caller's, a command line gets none."""


class Ran(NamedTuple):
    code: int
    out: str
    err: str

    @property
    def document(self) -> dict[str, Any]:
        loaded: dict[str, Any] = json.loads(self.out)
        return loaded


def run(*arguments: str, stdin: bytes = b"", encoding: str = "utf-8", **environment: str) -> Ran:
    """The command line in this process: fast, and enough for what it prints to pipes of an encoding."""
    given = io.TextIOWrapper(io.BytesIO(stdin), encoding="utf-8")
    written = io.BytesIO(), io.BytesIO()
    out, err = (io.TextIOWrapper(stream, encoding, errors="backslashreplace") for stream in written)
    before, sys.stdin = sys.stdin, given
    try:
        with _environment(environment), contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = execute(list(arguments))
    finally:
        sys.stdin = before
    out.flush()
    err.flush()
    return Ran(code, *(stream.getvalue().decode(encoding) for stream in written))


def process(*arguments: str, stdin: bytes = b"", **environment: str) -> Ran:
    """The command line as a process of its own, for what only a process has: its start, its streams, its exit code."""
    with _environment(environment):
        ran = subprocess.run(
            [sys.executable, "-m", "hybridcalc", *arguments], input=stdin, capture_output=True, check=False
        )
    return Ran(ran.returncode, ran.stdout.decode(), ran.stderr.decode())


def plan(*arguments: str, code: int = 0, stdin: bytes = b"") -> dict[str, Any]:
    """The document of a plan."""
    ran = run("plan", "--json", *arguments, stdin=stdin)
    assert (ran.code, ran.err) == (code, "")
    answer = ran.document
    sides = answer.get("compare", [])
    whole = _with_own_figures(answer)
    return whole | {"compare": [_with_own_figures(side) for side in sides]} if sides else whole


def _with_own_figures(answer: dict[str, Any]) -> dict[str, Any]:
    """A document with the engine's own figures beside the common ones, by their names."""
    return {**answer.get("engine_figures", {}), **answer}


@contextlib.contextmanager
def _environment(given: dict[str, str]) -> Iterator[None]:
    before = dict(os.environ)
    for name in SETTINGS:
        os.environ.pop(name, None)
    os.environ.update(given)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def pasted(suggestion: dict[str, Any]) -> str:
    """A suggestion of a document as it is typed: variables in front, then flags."""
    return " ".join([*(f"{name}={value}" for name, value in suggestion["env"].items()), *suggestion["flags"]])
