"""What is said about one boot: verdict, figures, constants, candidates, findings, and what to set."""

from __future__ import annotations

from dataclasses import dataclass, field
from fractions import Fraction
from math import ceil, floor
from typing import Any, NamedTuple

from hybridcalc.bootlog.boots import Boot
from hybridcalc.bootlog.figures import figure_list, figures
from hybridcalc.engines.sglang.constants import Range
from hybridcalc.engines.sglang.server_plan import Plan
from hybridcalc.findings import Finding
from hybridcalc.steps import Step, Suggestion


class Candidate(NamedTuple):
    """A model with the flags under which it would have printed the log, and its exact sizes (0 where unknown)."""

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
        parts = [f"{self.model} on TP{self.tp}"]
        parts += [f"{self.ssm_dtype} state"] if self.ssm_dtype else []
        parts += [f"{self.kv_dtype} KV"] if self.kv_dtype else []
        return ", ".join(parts)

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        return {
            "model": self.model,
            "tp_size": self.tp,
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


@dataclass(slots=True)
class Diagnosis:
    """The answer for one boot. ``derived`` holds what follows from the printed figures, by name; ``planned`` is the
    plan that reproduces an SGLang boot, where one does.
    """

    boot: Boot
    version: str | None = None
    headline: str = ""
    meaning: str = ""
    model_guess: str | None = None
    candidates: tuple[Candidate, ...] = ()
    constants: dict[str, Any] | None = None
    binding: str | None = None
    rows: list[Row] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    suggestions: list[Suggestion] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)
    derived: dict[str, Any] = field(default_factory=dict)
    planned: Plan | None = None

    def step(self, symbol: str, formula: str, numbers: str, value: Any, unit: str, source: str) -> None:
        """Note one piece of arithmetic."""
        self.steps.append(Step(symbol, formula, numbers, value, unit, source))

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
            "constants": self.constants,
            "binding": self.binding,
            "derived": self.derived,
            "findings": [finding.to_dict() for finding in self.findings],
            "suggestions": [suggestion.to_dict() for suggestion in self.suggestions],
            "steps": [step.to_dict() for step in self.steps],
        }


def whole_range(bounds: Range | None) -> list[int] | None:
    """[lowest, highest] whole bytes that a range of sizes [low, high) allows."""
    if bounds is None:
        return None
    low, high = ceil(bounds[0]), ceil(bounds[1]) - 1
    return [low, high] if low <= high else [floor(bounds[0]), ceil(bounds[1])]


def total_range(parts: list[Range | None]) -> Range | None:
    """The range of a sum; None where a part is unknown or there is none."""
    known = [part for part in parts if part is not None]
    if len(known) < len(parts) or not known:
        return None
    return sum((part[0] for part in known), Fraction(0)), sum((part[1] for part in known), Fraction(0))
