"""What is said about one boot: verdict, figures, constants, candidates, findings, and what to set."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from fractions import Fraction
from math import ceil, floor
from typing import Any, NamedTuple

from hybridcalc.bootlog.boots import Boot, figure_list, figures
from hybridcalc.diagnosis.rules import finding
from hybridcalc.findings import Finding, Step, Suggestion

MOST_NAMED = 4
"""Models of a list that are named; of the others the number is said."""
Range = tuple[Fraction, Fraction]


class Candidate(NamedTuple):
    """A model with the flags under which it would have printed the log, and its exact sizes (0 where unknown); ``tp`` 0
    where its caches do not depend on one.
    """

    model: str
    tp: int
    ssm_dtype: str
    kv_dtype: str
    state_bytes: int
    kv_bytes: int

    @property
    def sizes(self) -> tuple[int, int]:
        """What a plan rests on: candidates of equal sizes plan alike."""
        return self.state_bytes, self.kv_bytes

    def describe(self) -> str:
        """``kimi-k3 on TP8, fp32 state, fp8 KV``."""
        parts = [f"{self.model} on TP{self.tp}" if self.tp else self.model]
        parts += [f"{self.ssm_dtype} state"] if self.ssm_dtype else []
        parts += [f"{self.kv_dtype} KV"] if self.kv_dtype else []
        return ", ".join(parts)

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        return {
            "model": self.model,
            "tp_size": self.tp or None,
            "ssm_dtype": self.ssm_dtype,
            "kv_cache_dtype": self.kv_dtype,
            "state_bytes_per_slot": self.state_bytes or None,
            "kv_bytes_per_token": self.kv_bytes or None,
        }


class Row(NamedTuple):
    """One line of the answer: where it was read, what it says, and the arithmetic that ties it to the constants."""

    place: str
    what: str
    arithmetic: str


class Seen(NamedTuple):
    """What a running server was seen to do, over the lines that were read of it."""

    lines_read: int
    most_running: int
    most_queued: int
    queued_while_full: int
    most_slots: int
    peak_state_usage: float
    peak_kv_usage: float


@dataclass(slots=True)
class Derived:
    """What follows from the printed figures, of any engine's boot; None where it does not. Engines add their own.

    ``requests`` is how many run at once, ``idle_percent`` the share of the pool that does not bind which they leave.
    """

    requests: int | None = None
    idle_percent: float | None = None
    serving: Seen | None = None

    def to_dict(self) -> dict[str, Any]:
        """Plain data: what is known, by name."""
        known = {one.name: getattr(self, one.name) for one in fields(self)}
        shown = {name: list(v) if type(v) is tuple else v for name, v in known.items() if v is not None}
        return shown | ({"serving": self.serving._asdict()} if self.serving is not None else {})


@dataclass(slots=True)
class Constants:
    """Sizes that the log allows, [lowest, highest] in whole bytes of a rank, and those of the model that fits."""

    state_bytes_per_slot: list[int] | None = None
    conv_bytes_per_slot: list[int] | None = None
    ssm_bytes_per_slot: list[int] | None = None
    kv_bytes_per_token: list[int] | None = None
    exact: Exact | PageSizes | None = None

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        exact = self.exact._asdict() if self.exact is not None else None
        return {one.name: getattr(self, one.name) for one in fields(self)} | {"exact": exact}


class Exact(NamedTuple):
    """A slot and a token of the model that fits; ``certain`` where no other sizes fit."""

    model: str
    state_bytes_per_slot: int
    kv_bytes_per_token: int | None
    certain: bool


class PageSizes(NamedTuple):
    """The blocks of the model that fits; ``certain`` where no other model does."""

    model: str
    bytes_per_block: int
    padded_page_bytes: int | None
    group_sizes: list[int]
    certain: bool


@dataclass(slots=True)
class Diagnosis:
    """The answer for one boot; ``planned`` is the engine's plan that reproduces it, where one does."""

    boot: Boot
    version: str | None = None
    headline: str = ""
    meaning: str = ""
    model_guess: str | None = None
    candidates: tuple[Candidate, ...] = ()
    constants: Constants | None = None
    binding: str | None = None
    rows: list[Row] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    suggestions: list[Suggestion] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)
    derived: Derived = field(default_factory=Derived)
    planned: Any = None

    def row(self, place: str, what: str, arithmetic: str) -> None:
        """Add a line to the answer."""
        self.rows.append(Row(place, what, arithmetic))

    def find(self, rule: str, message: str, fix: str = "", *, severity: str | None = None) -> None:
        """Add a finding of ``rule``, with its own severity unless another is given."""
        self.findings.append(finding(rule, message, fix, severity=severity))

    def step(self, symbol: str, formula: str, numbers: str, value: Any, unit: str, source: str) -> None:
        """Note one piece of arithmetic."""
        self.steps.append(Step(symbol, formula, numbers, value, unit, source))

    def conclude(self, head: str, parts: list[str], failed: bool) -> None:
        """The verdict: the first error of a boot that failed, else what the parts say."""
        if not failed:
            self.headline, self.meaning = head, "; ".join(parts)
            return
        self.headline = f"{head}: {'failed while serving' if self.boot.served else 'does not start'}"
        self.meaning = next(found for found in self.findings if found.severity == "error").message

    @property
    def names(self) -> str:
        """The candidates' models, the first few by name."""
        names = list(dict.fromkeys(candidate.model for candidate in self.candidates))
        more = f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else ""
        return ", ".join(names[:MOST_NAMED]) + more

    def to_dict(self) -> dict[str, Any]:
        """One entry of ``boots`` in ``log --json``."""
        boot = self.boot
        return {
            "engine": boot.engine or None,
            "version": self.version,
            "line": boot.line,
            "verdict": ": ".join(part for part in (self.headline, self.meaning) if part),
            "model_guess": self.model_guess,
            "candidates": [candidate.to_dict() for candidate in self.candidates],
            "ranks": boot.ranks,
            "figures": figures(boot),
            "records": [figure.to_dict() for figure in figure_list(boot)],
            "constants": self.constants.to_dict() if self.constants is not None else None,
            "binding": self.binding,
            "derived": self.derived.to_dict(),
            "findings": [found.to_dict() for found in self.findings],
            "suggestions": [suggestion.to_dict() for suggestion in self.suggestions],
            "steps": [step.to_dict() for step in self.steps],
        }


def whole_range(bounds: Range | None) -> list[int] | None:
    """[lowest, highest] whole bytes of a range, both its ends included: "%.2f" rounds a half to the even digit."""
    if bounds is None:
        return None
    low, high = ceil(bounds[0]), floor(bounds[1])
    return [low, high] if low <= high else [floor(bounds[0]), ceil(bounds[1])]
