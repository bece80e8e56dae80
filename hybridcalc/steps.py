"""The answer's building blocks: every number with its formula, unit, reason and source; and the answer as it is shown.

A `Step` is one line of arithmetic; functions that compute return steps beside their result, ``--explain`` prints them
and ``--json`` always carries them. A `BudgetLine` keeps apart what an engine charges to its budget and what its
buffers really take. A `Suggestion` states a flag line with its predicted effect. A `View` is an answer as people read
it, from which text and pages are made.
"""

from collections.abc import Callable, Iterable, Mapping
from fractions import Fraction
from types import MappingProxyType
from typing import Any, NamedTuple

from hybridcalc.findings import Finding

Number = int | float | Fraction


class Step(NamedTuple):
    """One figure: ``symbol = formula``, the same ``with_numbers``, value, unit, and where the rule comes from."""

    symbol: str
    formula: str
    with_numbers: str
    value: Number
    unit: str
    source: str

    def to_dict(self) -> dict[str, Any]:
        """Plain data; a fraction becomes the nearest float."""
        value = self.value
        if type(value) is Fraction:
            value = value.numerator if value.denominator == 1 else float(value)
        return {
            "symbol": self.symbol,
            "formula": self.formula,
            "with_numbers": self.with_numbers,
            "value": value,
            "unit": self.unit,
            "source": self.source,
        }


class BudgetLine(NamedTuple):
    """One buffer of one rank: bytes the engine charges for it, bytes it takes, and why it has that size.

    ``kind`` is "state", "kv", "scratch" (draft states and rings) or "other"; pictures and colours go by it.
    """

    name: str
    kind: str
    charged_bytes: int
    allocated_bytes: int
    why: str

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        return self._asdict()


RISKS = ("none", "memory", "latency", "accuracy")
"""What a suggestion may cost, the safest first: nothing that a user notices, memory kept free for activations, speed
or reuse of prefixes, exactness of the answers."""


CARE = {"accuracy": "; check accuracy first"}


class Suggestion(NamedTuple):
    """Flags to set, variables in front, and what they would change.

    ``before`` and ``after`` are requests of the workload that run at once on the whole deployment; ``of`` what one is
    (``requests of 8,192 tokens``), or what else changes where they stay the same.
    """

    flags: str
    before: int
    after: int
    of: str
    why: str
    risk: str = "none"

    @property
    def effect(self) -> str:
        """From and to, in words."""
        if self.before == self.after:
            return self.of
        return f"{self.before:,} -> {self.after:,} request{'' if self.after == 1 else 's'} of {self.of}"

    def to_dict(self) -> dict[str, Any]:
        """Plain data: flags apart from variables, as words that a shell needs no quotes for."""
        words = self.flags.split()
        count = next((n for n, word in enumerate(words) if word.startswith("-")), len(words))
        return {
            "flags": words[count:],
            "env": dict(word.split("=", 1) for word in words[:count]),
            "requests_before": self.before,
            "requests_after": self.after,
            "risk": self.risk,
            "effect": self.effect,
            "why": self.why,
        }


def safest_first(found: Iterable[Suggestion]) -> tuple[Suggestion, ...]:
    """By what they may cost, and among equals by what they gain."""
    return tuple(sorted(found, key=lambda each: (RISKS.index(each.risk), each.before - each.after)))


class Choice(NamedTuple):
    """Flags to paste, and what they would do."""

    label: str
    flags: str
    effect: str


class Table(NamedTuple):
    """A table: title, header, rows, and the columns that hold numbers."""

    title: str
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    numbers: tuple[int, ...] = ()


class View(NamedTuple):
    """An answer: what it comes to in a line, the figures it rests on (label, value, human unit, reason), what to set.

    ``roles``: what the first figures are of, for their colour; ``evidence``: where figures were read, what they say,
    the arithmetic behind. ``starts`` is false of flags that are refused, ``fix`` is what to write instead. ``memory``
    is where one GPU's memory goes (charts.Part). ``pictures`` are drawn (charts.Picture) when they are asked for, the
    usual one first; ``curve``: the text shows that one in place of the tables, where something draws it. ``play``
    makes the settings that a page recomputes (play.Play), or None where it cannot. ``subject``: what the answer is of,
    in a line under it.
    """

    title: str
    headline: str
    meaning: str = ""
    starts: bool = True
    figures: tuple[tuple[str, str, str, str], ...] = ()
    roles: tuple[str, ...] = ()
    evidence: tuple[tuple[str, str, str], ...] = ()
    findings: tuple[Finding, ...] = ()
    fix: str = ""
    choices: tuple[Choice, ...] = ()
    tables: tuple[Table, ...] = ()
    memory: tuple[Any, ...] = ()
    log_lines: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    steps: tuple[Step, ...] = ()
    pictures: Mapping[str, Callable[[], Any]] = MappingProxyType({})
    play: Callable[[], Any] | None = None
    curve: bool = False
    subject: str = ""


def suggested(suggestions: Iterable[Suggestion]) -> tuple[Choice, ...]:
    """Suggestions as flags to paste."""
    return tuple(Choice("", each.flags, f"{each.effect}: {each.why}") for each in suggestions)
