"""`hybridcalc verify` in this process, for tests of it: its document, its text, what it complains of."""

from __future__ import annotations

from typing import Any

from command_line import run


def answer(*arguments: str, code: int = 0) -> dict[str, Any]:
    ran = run("verify", "--json", *arguments)
    assert ran.code == code, ran.err
    return ran.document


def text(*arguments: str, code: int = 0) -> str:
    ran = run("verify", *arguments)
    assert ran.code == code, ran.err
    return ran.out


def complaint(*arguments: str, code: int = 2) -> str:
    ran = run("verify", *arguments)
    assert (ran.code, ran.out) == (code, "")
    return ran.err
