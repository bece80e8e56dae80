"""A finding: something a user should know, with a rule id, a severity, and what to write instead; and the rules that
make findings, each with its reason and source.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from enum import StrEnum
from itertools import chain
from typing import Any, NamedTuple

from hybridcalc.errors import HybridcalcError, Write

SEVERITIES = ("note", "warning", "error")

Check = Callable[[Any], Iterator[tuple[str, str]]]
"""Looks at an engine's plan and yields (message, fix) for what it finds."""


class Finding(NamedTuple):
    """``rule`` is stable and documented; ``severity`` is one of SEVERITIES; ``fix`` may be empty.

    ``flag`` and ``release`` are those of the error it was, where it was one. ``mend``: where the fix is one value, its
    flag, empty for the one that the finding is about, and the value.
    """

    rule: str
    severity: str
    message: str
    fix: str = ""
    flag: str = ""
    release: str = ""
    mend: tuple[str, str] | None = None

    @classmethod
    def of(cls, error: HybridcalcError, *, rule: str = "", severity: str = "error") -> "Finding":
        """An error as a finding, of ``rule`` where it breaks none of its own."""
        return cls.made(error.rule or rule, severity, error.message, error.fix)._replace(
            flag=error.flag, release=error.release
        )

    @classmethod
    def made(cls, rule: str, severity: str, message: str, fix: str) -> "Finding":
        """A finding as plain data, of a fix that may say itself which value it is."""
        return cls(rule, severity, message, str(fix), mend=(fix.flag, fix.value) if isinstance(fix, Write) else None)

    def to_dict(self) -> dict[str, str]:
        """Plain data for JSON."""
        return {"rule": self.rule, "severity": self.severity, "message": self.message, "fix": self.fix}


class Need(StrEnum):
    """A figure, beyond flags and model, without which a rule cannot be judged; its text says it to a user."""

    MEMORY = "the memory for the caches"
    LENGTH = "the length of requests"
    WANTED = "the concurrency wanted"
    PREFIX = "the prefix that requests share"


MEMORY, LENGTH, WANTED, PREFIX = Need.MEMORY, Need.LENGTH, Need.WANTED, Need.PREFIX
Needs = tuple[Need, ...]


class Rule(NamedTuple):
    """A rule of an engine. ``check`` is None for a refusal, which the stage of the engine's start-up raises itself.

    ``needs``: the figures without which it cannot be judged; ``asks``: the same of one launch, where its flags decide
    it, None where they leave nothing to judge. ``place``: the flags that a finding is about, of which the first that is
    given counts. ``rests_on``: the flags that a finding follows from, None for all. ``choice``: its fix is one of
    several, left to whoever reads it. ``settles``: rules that are left out where this one has spoken.
    """

    id: str
    severity: str
    title: str
    reason: str
    source: str
    check: Check | None = None
    needs: Needs = ()
    asks: Callable[[Any], Needs | None] | None = None
    place: tuple[str, ...] = ()
    rests_on: frozenset[str] | None = None
    choice: bool = False
    settles: tuple[str, ...] = ()

    def needs_of(self, plan: Any) -> Needs | None:
        """The figures it needs of a launch, whose plan is not sized yet; None where there is nothing to judge."""
        return self.needs if self.asks is None else self.asks(plan)


def find(rules: Iterable[Rule], plan: Any, known: Iterable[tuple[Finding, ...]] = ()) -> tuple[Finding, ...]:
    """Every trap a plan walks into, and what is ``known`` already, errors first; one finding for one cause."""
    said = [
        (rule, Finding.made(rule.id, rule.severity, message, fix))
        for rule in rules
        if rule.check is not None
        for message, fix in rule.check(plan)
    ]
    told = {other for rule, _ in said for other in rule.settles}
    found = [finding for rule, finding in said if rule.id not in told]
    found += chain.from_iterable(known)
    return tuple(sorted(found, key=lambda finding: -SEVERITIES.index(finding.severity)))


def settled(rules: Mapping[str, Rule], found: Iterable[str]) -> frozenset[str]:
    """The rules that those which were ``found`` leave nothing to say."""
    return frozenset(chain.from_iterable(rules[rule].settles for rule in found if rule in rules))


def at_or_above(findings: tuple[Finding, ...], threshold: str) -> bool:
    """Whether any finding is at least as severe as ``threshold``; "never" is above all of them."""
    if threshold == "never":
        return False
    return any(SEVERITIES.index(f.severity) >= SEVERITIES.index(threshold) for f in findings)
