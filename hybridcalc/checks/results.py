"""What a check comes to, as plain data that crosses processes: findings with their place, and what was left open."""

import os
from typing import Any, NamedTuple

from hybridcalc.findings import SEVERITIES, Finding
from hybridcalc.manifests.records import Trouble

IN_BASELINE = "in the baseline"
"""Why a finding that a baseline knows does not count."""
EXPECT = "expect"
"""The flag of an expectation that nothing is known to hold against."""

QUOTED_AROUND = 500
"""Characters of a quoted line that are kept on either side of a finding."""


class Edit(NamedTuple):
    """Text to put in place of the characters from ``begin`` to ``end`` of a file; ``exact`` is false for a file that is
    not UTF-8, which is not rewritten.
    """

    path: str
    begin: int
    end: int
    line: int
    column: int
    end_line: int
    end_column: int
    before: str
    text: str
    exact: bool = True


class Line(NamedTuple):
    """A line of a file to quote: its number, and its text from character ``cut`` on, no more of it than is shown."""

    number: int
    text: str
    cut: int = 0

    @classmethod
    def around(cls, column: int, number: int, text: str) -> "Line":
        """A line with the characters around a column: lines of machines have millions."""
        cut = max(0, column - 1 - QUOTED_AROUND)
        return cls(number, text[cut : column - 1 + QUOTED_AROUND], cut)


class Located(NamedTuple):
    """A finding at its place; ``start`` is the line its deployment starts on,
    ``heads`` where what holds it begins. ``suppressed`` says why it does not
    count: a reason given in the file, or a baseline.
    """

    finding: Finding
    path: str
    line: int
    column: int
    end_column: int
    deployment: str
    quote: tuple[Line, ...] = ()
    edit: Edit | None = None
    start: int = 0
    suppressed: str | None = None
    heads: tuple[int, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        document: dict[str, Any] = {
            "rule": self.finding.rule,
            "severity": self.finding.severity,
            "file": self.path,
            "line": self.line,
            "column": self.column,
            "deployment": self.deployment,
            "message": self.finding.message,
            "fix": self.finding.fix,
            "suppressed": self.suppressed,
        }
        if self.edit is not None and self.edit.exact:
            document["edit"] = {
                "line": self.edit.line,
                "column": self.edit.column,
                "before": self.edit.before,
                "text": self.edit.text,
            }
        return document


class Open(NamedTuple):
    """A value that sizing needs and no file decides: as written, the flag it is for, why, and what resolves it."""

    text: str
    flag: str
    why: str
    fix: str
    path: str
    line: int
    column: int
    deployment: str = ""

    @property
    def effect(self) -> str:
        """What it does, as words behind its text."""
        if self.flag == EXPECT:
            return " cannot be judged"
        return f" decides {self.flag}" if self.flag else " may hold any flag"

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return {
            "name": self.text,
            "flag": self.flag,
            "reason": self.why,
            "fix": self.fix,
            "file": self.path,
            "line": self.line,
            "column": self.column,
        }


class Value(NamedTuple):
    """A flag as it was read, and where."""

    flag: str
    value: str | None
    path: str
    line: int
    column: int

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return {"flag": self.flag, "value": self.value, "file": self.path, "line": self.line, "column": self.column}


class Checked(NamedTuple):
    """One deployment: what it launches, what was found, and what waits for a figure. ``assumed`` are the variables
    whose defaults decide conditions of its script, as nothing is known to set them; ``assumed_release`` says so where
    the image names no release, or a newer one than is known (among the ``notes`` too).
    """

    path: str
    line: int
    kind: str
    name: str
    engine: str
    model: str | None
    model_preset: str | None
    values: tuple[Value, ...]
    opened: tuple[Open, ...]
    findings: tuple[Located, ...]
    waiting: tuple[tuple[str, tuple[str, ...]], ...]
    env: tuple[tuple[str, str], ...] = ()
    gpu: str | None = None
    gpus: int | None = None
    nodes: int = 1
    replicas: int | None = None
    notes: tuple[str, ...] = ()
    version: str = ""
    assumed: tuple[str, ...] = ()
    assumed_release: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return {
            "file": self.path,
            "line": self.line,
            "kind": self.kind,
            "name": self.name,
            "engine": self.engine,
            "engine_version": self.version,
            "model": self.model,
            "preset": self.model_preset,
            "resolved": [value.to_dict() for value in self.values],
            "unresolved": [value.to_dict() for value in self.opened],
            "env": dict(self.env),
            "gpu": self.gpu,
            "gpus": self.gpus,
            "nodes": self.nodes,
            "replicas": self.replicas,
            "not_checked": [{"rule": rule, "needs": list(needs)} for rule, needs in self.waiting],
            "notes": list(self.notes),
            "assumed_unset": list(self.assumed),
        }


class FileResult(NamedTuple):
    """All of one file; ``stray`` are findings of the file itself, ``unread`` says that it speaks of a launch and that
    none was read in it.
    """

    path: str
    checked: tuple[Checked, ...]
    troubles: tuple[Trouble, ...]
    stray: tuple[Located, ...] = ()
    unread: bool = False


def relative(path: str) -> str:
    """A path as a repository knows it: relative to the working directory where it lies in it, with plain slashes."""
    if path == "<stdin>":
        return path
    if os.path.isabs(path):
        near = os.path.relpath(path)
        path = path if near.startswith("..") else near
    return os.path.normpath(path).replace(os.sep, "/")


def order(located: Located) -> tuple[str, int, int, int]:
    """By file and place, the worst first at one place."""
    return located.path, located.line, located.column, -SEVERITIES.index(located.finding.severity)
