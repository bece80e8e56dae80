"""One command line, run in this process or in one of its own, and what came of it."""

from __future__ import annotations

import contextlib
import io
import json
import os
import subprocess
import sys
from typing import Any, NamedTuple

from hybridcalc.cli.app import execute


class Ran(NamedTuple):
    code: int
    out: str
    err: str

    @property
    def document(self) -> dict[str, Any]:
        loaded: dict[str, Any] = json.loads(self.out)
        return loaded


def run(*arguments: str, stdin: bytes = b"") -> Ran:
    """The command line in this process: fast, and enough for what it prints."""
    out, err = io.StringIO(), io.StringIO()
    standard_input, sys.stdin = sys.stdin, io.TextIOWrapper(io.BytesIO(stdin))
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = execute(list(arguments))
    finally:
        sys.stdin = standard_input
    return Ran(code, out.getvalue(), err.getvalue())


def process(*arguments: str, stdin: bytes = b"", **environment: str) -> Ran:
    """The command line as a process of its own: exit code, pipes and environment are real."""
    ran = subprocess.run(
        [sys.executable, "-m", "hybridcalc", *arguments],
        input=stdin,
        capture_output=True,
        check=False,
        timeout=60,
        env={k: v for k, v in os.environ.items() if k not in ("COLUMNS", "NO_COLOR", "FORCE_COLOR")} | environment,
    )
    return Ran(ran.returncode, ran.stdout.decode(), ran.stderr.decode())


def plan(*arguments, code=0, stdin=b""):
    """The document of a plan."""
    ran = run("plan", "--json", *arguments, stdin=stdin)
    assert (ran.code, ran.err) == (code, "")
    return ran.document
