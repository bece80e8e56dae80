"""Do deployment files hold up? Rules run on every deployment that is found, and what to do with what they find.

judge.py runs the rules of one deployment, run.py those of many files; settings.py holds what a project configures;
suppress.py and baseline.py say which findings are known, fix.py rewrites values.

What does a check find? Findings with their place and what was left open, as plain data that crosses processes; and
every rule of ``check``: those of the engines' planners, and those about deployment files themselves.

HC001-HC039 are SGLang's, HC040-HC069 vLLM's, HC070-HC089 stand here (FILE_RULES), HC090-HC099 are about checkpoints. A
rule about files is added here and judged in judge.py.
"""

import os
from collections.abc import Iterable, Iterator
from functools import cache
from itertools import chain
from typing import Any, NamedTuple

from hybridcalc.engines import ENGINES
from hybridcalc.engines.checkpoints import RULES as CHECKPOINT_RULES
from hybridcalc.findings import SEVERITIES, Finding, Rule
from hybridcalc.manifests import Trouble

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
    count: a reason given in the file, or a baseline; ``unmade`` why its fix is not made.
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
    unmade: str = ""

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


class Explained(NamedTuple):
    """A rule as it is explained: ``severity`` as it is reported, ``reason`` with its arithmetic, ``source``, ``flags``:
    those that decide it, one of which is what to write otherwise.
    """

    id: str
    severity: str
    title: str
    reason: str
    source: str
    engine: str = ""
    flags: tuple[str, ...] = ()


FILE_RULES = (
    Rule("HC070", "error", "fewer GPUs than ranks",
         "A server takes tp x pp GPUs, times dp where data parallelism is separate workers; a node has as many as the "
         "resource limit says, times the nodes.", "Kubernetes resource limits; SGLang and vLLM launch arguments",
         place=("--tp-size", "--tensor-parallel-size")),
    Rule("HC071", "error", "a flag or value that the engine does not take",
         "A misspelt flag, a value outside its choices, two flags that exclude each other: the server stops at once.",
         "SGLang server_args.py, vLLM engine/arg_utils.py", rests_on=frozenset()),
    Rule("HC072", "note", "retired flag name",
         "Both names work in the release; the old one may not in the next.",
         "SGLang server_args.py", rests_on=frozenset()),
    Rule("HC073", "note", "more GPUs than ranks",
         "GPUs beyond tp x pp (x dp) are held and idle.", "Kubernetes resource limits",
         place=("--tp-size", "--tensor-parallel-size")),
    Rule("HC074", "error", "expected to fit, and does not", "`expect: fits` in hybridcalc.yaml.", "docs/check.md"),
    Rule("HC075", "error", "fewer requests than expected",
         "Requests that run at once, over all attention workers, against `expect: min_requests`.", "docs/check.md"),
    Rule("HC076", "error", "fewer KV tokens than expected", "KV tokens against `expect: min_tokens`.", "docs/check.md"),
    Rule("HC077", "error", "more of a pool idles than expected",
         "The share of the pool that does not bind which no request can use, against `expect: max_idle_percent`.",
         "docs/check.md"),
    Rule("HC078", "warning", "suppression without a reason or without effect",
         "`# hybridcalc: ignore=ID reason`: the reason is for whoever reads it next.", "docs/check.md"),
    Rule("HC079", "warning", "unresolved value",
         "A shell, an environment or another file decides a value that sizing needs. Exit code 3 where nothing failed; "
         "--set NAME=VALUE, --env-file and --model resolve it.", "docs/check.md"),
    Rule("HC080", "error", "a line of flags that belongs to no command",
         "The line above does not end in a backslash: the server starts without these flags, and the shell looks for a "
         "command of their name.", "POSIX shell command language"),
    Rule("HC081", "warning", "more GPUs than a node holds",
         "No node has them: a pod waits for ever, a container does not start. As many as the preset of the GPU says "
         "(gpus_per_node), else 8.", "docs/presets.md"),
)  # fmt: skip


@cache
def all_rules() -> dict[str, Explained]:
    """Every rule that is judged on a deployment, by id, in order."""
    return _by_id(
        (
            *chain.from_iterable(_of(name, ENGINES[name].rules()) for name in ENGINES),
            *_of("any", CHECKPOINT_RULES),
            *_of("", FILE_RULES),
        )
    )


@cache
def judged_rules(engine: str) -> dict[str, Rule]:
    """The rules that are judged on a deployment of one engine, by id."""
    return {rule.id: rule for rule in (*ENGINES[engine].rules(), *CHECKPOINT_RULES, *FILE_RULES)}


def explained_rules() -> dict[str, Explained]:
    """Every rule there is, those of boot logs included, by id, in order."""
    from hybridcalc.diagnosis.answer import RULES
    from hybridcalc.live.verdict import RULES as LIVE_RULES

    return _by_id((*all_rules().values(), *_of("logs", RULES), *_of("servers", LIVE_RULES)))


def _of(whose: str, rules: Iterable[Rule]) -> Iterator[Explained]:
    for rule in rules:
        yield Explained(rule.id, rule.severity, rule.title, rule.reason, rule.source, whose, rule.place)


def _by_id(rules: Iterable[Explained]) -> dict[str, Explained]:
    return {rule.id: rule for rule in sorted(rules)}
