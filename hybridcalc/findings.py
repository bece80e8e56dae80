"""A finding: something a user should know, with a rule id, a severity, and what to write instead; and the rules that
make findings, each with its reason and source.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

SEVERITIES = ("note", "warning", "error")

Check = Callable[[Any], Iterator[tuple[str, str]]]
"""Looks at an engine's plan and yields (message, fix) for what it finds."""


class Finding(NamedTuple):
    """``rule`` is stable and documented; ``severity`` is one of SEVERITIES; ``fix`` may be empty."""

    rule: str
    severity: str
    message: str
    fix: str = ""

    def to_dict(self) -> dict[str, str]:
        """Plain data for JSON."""
        return {"rule": self.rule, "severity": self.severity, "message": self.message, "fix": self.fix}


class Rule(NamedTuple):
    """A rule of an engine. ``check`` is None for a refusal, which the stage of the engine's start-up raises itself."""

    id: str
    severity: str
    title: str
    reason: str
    source: str
    check: Check | None = None


def find(rules: Iterable[Rule], plan: Any) -> tuple[Finding, ...]:
    """Every trap a plan walks into, errors first."""
    found = [
        Finding(rule.id, rule.severity, message, fix)
        for rule in rules
        if rule.check is not None
        for message, fix in rule.check(plan)
    ]
    return tuple(sorted(found, key=lambda finding: -SEVERITIES.index(finding.severity)))


def at_or_above(findings: tuple[Finding, ...], threshold: str) -> bool:
    """Whether any finding is at least as severe as ``threshold``; "never" is above all of them."""
    if threshold == "never":
        return False
    return any(SEVERITIES.index(f.severity) >= SEVERITIES.index(threshold) for f in findings)
