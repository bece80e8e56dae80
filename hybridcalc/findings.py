"""What an answer is made of: figures with their reasons and sources, findings and their rules, the answer as shown.

A `Step` is one line of arithmetic; functions that compute return steps beside their result, ``--explain`` prints them
and ``--json`` always carries them. A `BudgetLine` keeps apart what an engine charges to its budget and what its
buffers really take. A `Finding` is something a user should know, with a rule id, a severity, and what to write instead;
a `Rule` makes findings and has its reason and source. A `Suggestion` states a flag line with its predicted effect. A
`View` is an answer as people read it, from which text and pages are made.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from enum import StrEnum
from fractions import Fraction
from itertools import chain
from types import MappingProxyType
from typing import Any, NamedTuple

from hybridcalc.errors import HybridcalcError, Write, flags_of

SEVERITIES = ("note", "warning", "error")

Check = Callable[[Any], Iterator[tuple[str, str]]]
"""Looks at an engine's plan and yields (message, fix) for what it finds."""


class Finding(NamedTuple):
    """``rule`` is stable and documented; ``severity`` is one of SEVERITIES; ``fix`` may be empty.

    ``flag`` and ``release`` are those of the error it was, where it was one. ``mend``: where the fix is one value, its
    flag, empty for the one that the finding is about, and the value; other flags that
    belong to it may follow the value. ``sets``: the flags that the fix sets, as a launch has them.
    """

    rule: str
    severity: str
    message: str
    fix: str = ""
    flag: str = ""
    release: str = ""
    mend: tuple[str, str] | None = None
    sets: str = ""

    @classmethod
    def of(cls, error: HybridcalcError, *, rule: str = "", severity: str = "error") -> "Finding":
        """An error as a finding, of ``rule`` where it breaks none of its own."""
        return cls.made(error.rule or rule, severity, error.message, error.fix)._replace(
            flag=error.flag, release=error.release
        )

    @classmethod
    def made(cls, rule: str, severity: str, message: str, fix: str) -> "Finding":
        """A finding as plain data, of a fix that may say itself which value it is."""
        mend = (fix.flag, fix.value) if isinstance(fix, Write) else None
        return cls(rule, severity, message, str(fix), mend=mend, sets=flags_of(fix))

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
    several, left to whoever reads it. ``settles``: rules that are left out where this one has spoken. ``given``: the
    argument without which it has nothing to say.
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
    given: str = ""

    def needs_of(self, plan: Any) -> Needs | None:
        """The figures it needs of a launch, whose plan is not sized yet; None where there is nothing to judge."""
        if self.given and self.given not in vars(plan.args):
            return None
        return self.needs if self.asks is None else self.asks(plan)


def find(rules: Iterable[Rule], plan: Any, known: Iterable[tuple[Finding, ...]] = ()) -> tuple[Finding, ...]:
    """Every trap a plan walks into, and what is ``known`` already, that first and errors before all."""
    given, lengths = vars(plan.args), plan.workload.lengths
    said = [
        (rule, Finding.made(rule.id, rule.severity, message, fix))
        for rule in rules
        if rule.check is not None and (not rule.given or rule.given in given) and (lengths or LENGTH not in rule.needs)
        for message, fix in rule.check(plan)
    ]
    told = {other for rule, _ in said for other in rule.settles}
    found = [*chain.from_iterable(known), *(finding for rule, finding in said if rule.id not in told)]
    return tuple(sorted(found, key=lambda finding: -SEVERITIES.index(finding.severity)))


def settled(rules: Mapping[str, Rule], found: Iterable[str]) -> frozenset[str]:
    """The rules that those which were ``found`` leave nothing to say."""
    return frozenset(chain.from_iterable(rules[rule].settles for rule in found if rule in rules))


def at_or_above(findings: tuple[Finding, ...], threshold: str) -> bool:
    """Whether any finding is at least as severe as ``threshold``; "never" is above all of them."""
    if threshold == "never":
        return False
    return any(SEVERITIES.index(f.severity) >= SEVERITIES.index(threshold) for f in findings)


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
        symbol, formula, with_numbers, value, unit, source = self
        if type(value) is Fraction:
            value = value.numerator if value.denominator == 1 else float(value)
        return {
            "symbol": symbol,
            "formula": formula,
            "with_numbers": with_numbers,
            "value": value,
            "unit": unit,
            "source": source,
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
        return {
            "name": self.name,
            "kind": self.kind,
            "charged_bytes": self.charged_bytes,
            "allocated_bytes": self.allocated_bytes,
            "why": self.why,
        }


RISKS = ("none", "memory", "latency", "accuracy")
"""What a suggestion may cost, the safest first: nothing that a user notices, memory kept free for activations, speed
or reuse of prefixes, exactness of the answers."""


def costs(risks: Iterable[str]) -> tuple[int, ...]:
    """How many of several changes cost accuracy, latency and memory."""
    many = Counter(risks)
    return tuple(many[risk] for risk in RISKS[:0:-1])


CARE = {"accuracy": "; check accuracy first"}


class Suggestion(NamedTuple):
    """Flags to set, variables in front, and what they would change.

    ``before`` and ``after`` are requests of the workload that run at once on the whole deployment; ``of`` what one is
    (``requests of 8,192 tokens``), or what else changes where they stay the same. ``ends``: the least and the most that
    ``after`` may be, where it rests on figures that are intervals. ``cost``: how many of its changes cost accuracy,
    latency and memory; empty where it is one change, of ``risk``.
    """

    flags: str
    before: int
    after: int
    of: str
    why: str
    risk: str = "none"
    ends: tuple[int, int] | None = None
    cost: tuple[int, ...] = ()

    @property
    def price_paid(self) -> tuple[int, ...]:
        """How many of its changes cost accuracy, latency and memory."""
        return self.cost or costs([self.risk])

    @property
    def gain(self) -> str:
        """From and to, in words."""
        if self.before == self.after:
            return self.of
        least, most = self.ends or (self.after, self.after)
        after = f"{least:,} to {most:,}" if least != most else f"{self.after:,}"
        return f"{self.before:,} -> {after} request{'' if most == 1 else 's'}"

    @property
    def effect(self) -> str:
        """From and to, and of what."""
        return self.gain if self.before == self.after else f"{self.gain} of {self.of}"

    @property
    def price(self) -> str:
        """What it costs, said after its gain; nothing where a user notices nothing."""
        return "" if self.risk == "none" else CARE.get(self.risk, f"; {self.why}")

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
            **({"requests_after_ends": list(self.ends)} if self.ends is not None else {}),
        }


def safest_first(found: Iterable[Suggestion]) -> tuple[Suggestion, ...]:
    """By what they may cost, and among equals by what they gain."""
    return tuple(sorted(found, key=lambda each: (RISKS.index(each.risk), each.before - each.after)))


def changes_in(flags: str) -> int:
    """How many flags and variables are set."""
    return sum(word.startswith("-") or "=" in word for word in flags.split())


SAFE, BOLD = "safe", "bold"


class Choice(NamedTuple):
    """Flags to paste, and what they would do: with their price in a few words, and in ``full``.

    Those that are suggested are called safe or bold, and come to ``after`` requests at a ``cost`` (Suggestion).
    """

    label: str
    flags: str
    effect: str
    full: str = ""
    after: int = 0
    cost: tuple[int, ...] = ()


LONGEST_REASON = 44
"""Columns that a reason has beside a figure in one unit."""


class Quantity(NamedTuple):
    """A figure of an answer: its name, the exact value, its unit or a human one, the reason, and what the whole answer
    adds to that.
    """

    label: str
    value: str
    unit: str = ""
    why: str = ""
    more: str = ""
    joined: str = "; "

    @classmethod
    def of(cls, label: str, value: str, unit: str, reason: str, joined: str = ": ") -> "Quantity":
        """Of a reason that says most of it before ``joined``."""
        why, _, more = reason.partition(joined)
        return cls(label, value, unit, why, more, joined)

    @property
    def brief(self) -> tuple[str, str, str]:
        """Its name, the figure in one unit (the human one), the reason, and the exact figure where it fits."""
        if not self.unit[:1].isdigit():
            return self.label, f"{self.value} {self.unit}".strip(), self.why
        told = f"{self.value}: {self.why}" if self.why else self.value
        return self.label, self.unit, told if len(told) <= LONGEST_REASON else self.why

    @property
    def reason(self) -> str:
        """The whole of it."""
        return self.joined.join(text for text in (self.why, self.more) if text)


class Table(NamedTuple):
    """A table: title, header, rows, and the columns that hold numbers; ``asked``: it is what was asked for. A short
    answer shows what it has room for of such a table and of one that ``fills`` it: the most telling rows, which
    ``telling`` counts off where they are not in that order.
    """

    title: str
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    numbers: tuple[int, ...] = ()
    asked: bool = False
    fills: bool = False
    telling: tuple[int, ...] = ()

    def most_telling(self, count: int) -> "Table":
        """The table with that many of its rows, in their order."""
        kept = sorted(self.telling[:count]) if self.telling else range(min(count, len(self.rows)))
        return self._replace(rows=tuple(self.rows[number] for number in kept), telling=())


class View(NamedTuple):
    """An answer: what it comes to in a line, the figures it rests on, the most telling first, and what to set.

    ``roles``: what the first figures are of, for their colour; ``evidence``: where figures were read, what they say,
    the arithmetic behind. ``starts`` is false of flags that are refused, ``fix`` is what to write instead. ``memory``
    says where one GPU's memory goes (charts.Part). ``pictures`` are drawn (charts.Picture) when they are asked for, the
    usual one first; ``curve``: the text shows that one in place of the tables, where something draws it. ``play``
    makes the settings that a page recomputes (play.Play), or None where it cannot. ``subject``: what the answer is of,
    in a line under it; ``inputs``: the same, each by its name. ``said``: rules whose findings the headline and what to
    set hold already; ``asked``: those that answer what was asked beside. ``essential``: figures beyond which the first
    note tells more than another. ``kept``: labels of those that stay whatever is left out. ``fewest``: those that are
    worth more than a second thing to set. ``wanted``: requests that should run, where fewer do.
    """

    title: str
    headline: str
    meaning: str = ""
    starts: bool = True
    figures: tuple[Quantity, ...] = ()
    roles: tuple[str, ...] = ()
    evidence: tuple[tuple[str, str, str], ...] = ()
    findings: tuple[Finding, ...] = ()
    fix: str = ""
    choices: tuple[Choice, ...] = ()
    tables: tuple[Table, ...] = ()
    memory: Callable[[], Sequence[Any]] | None = None
    log_lines: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    steps: tuple[Step, ...] = ()
    pictures: Mapping[str, Callable[[], Any]] = MappingProxyType({})
    play: Callable[[], Any] | None = None
    curve: bool = False
    subject: str = ""
    inputs: Callable[[], tuple[tuple[str, str], ...]] = tuple
    said: tuple[str, ...] = ()
    asked: tuple[str, ...] = ()
    essential: int = 3
    fewest: int = 2
    kept: tuple[str, ...] = ()
    wanted: int = 0


def least_costly(found: "Iterable[Choice]", wanted: int) -> "Choice | None":
    """Of the settings that come to ``wanted`` requests, the one that costs least: with the fewest changes that cost
    accuracy, then latency, then memory, then with the fewest of all. None where none comes to as many.
    """
    reaching = (one for one in found if one.after >= wanted)
    return min(reaching, key=lambda one: (one.cost, changes_in(one.flags)), default=None)


def nearest(found: "Iterable[Choice]") -> "Choice | None":
    """The setting that comes to the most requests, of several the one that costs least; None for none."""
    return min(found, key=lambda one: (-one.after, one.cost, changes_in(one.flags)), default=None)


def two(choices: "Sequence[Choice]", wanted: int, columns: int) -> "tuple[Choice, ...]":
    """The safest that helps, and the boldest where it helps more; choices of another kind all.

    Where requests are ``wanted`` of which fewer run today, both are those that come to as many at the least cost; the
    one that comes nearest, where none does; and the boldest of all, where the safest is enough. Else the safest has
    the fewest changes of those that come within a tenth of the most. The boldest fits in so many ``columns``, or has
    the fewest changes.
    """
    safe = [choice for choice in choices if choice.label == SAFE]
    bold = [choice for choice in choices if choice.label == BOLD]
    if not safe and not bold:
        return tuple(choices)
    close = (c for c in safe if 10 * safe[0].after <= 11 * c.after)
    first = min(close, key=lambda choice: changes_in(choice.flags), default=None)
    if wanted:
        first = least_costly(safe, wanted) or nearest(safe)
    more = [choice for choice in bold if first is None or choice.after > first.after]
    short = [choice for choice in more if len(choice.flags) <= columns]
    if wanted and not (first is not None and first.after >= wanted):
        second = least_costly(more, wanted) or nearest(short or more)
    else:
        fewest = min(more, key=lambda choice: changes_in(choice.flags), default=None)
        second = max(short, key=lambda choice: choice.after) if short else fewest
    return tuple(choice for choice in (first, second) if choice is not None)


def suggested(suggestions: Iterable[Suggestion]) -> tuple[Choice, ...]:
    """Suggestions as flags to paste."""
    return tuple(
        Choice(
            SAFE if each.risk == "none" else BOLD,
            each.flags,
            each.gain + each.price,
            f"{each.effect}: {each.why}",
            each.after,
            each.price_paid,
        )
        for each in suggestions
    )
