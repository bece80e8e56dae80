"""What does each release of an engine do its own way? Rows of changes, folded into one rule set a release.

    Change("0.5.23", "padding_slot_charged", True, "mem_cache/kv_cache_configurator.py _handle_max_mamba_cache")

An engine's releases.py has its rules as a NamedTuple, one field a fact, whose defaults are what its oldest release
does, and `CHANGES`, oldest first. A release is known as soon as a row names it, and does what the rows up to its own
say; one that changed nothing has the row `RECORDED` alone. A version between two releases takes the lower one's rules,
one without its last number (0.33) those of the newest of its series, and one that was never released but is the name of
an engine's builds (`builds`) those of the release that these came to.
"""

from collections.abc import Collection, Iterable, Mapping
from functools import lru_cache
from itertools import groupby
from operator import attrgetter
from typing import Any, Generic, NamedTuple, Protocol, TypeVar, cast

from hybridcalc.errors import InputError
from hybridcalc.units import version_numbers

Value = bool | int | str | tuple[str, ...] | frozenset[str]
RECORDED = "recorded"
"""The one rule that is of its release alone: whether its figures are held against the engine's own results."""


class Change(NamedTuple):
    """From ``release`` on ``rule`` is ``value``; ``source`` is the engine's file and function, or where it was seen."""

    release: str
    rule: str
    value: Value
    source: str


class RuleSet(Protocol):
    """What the rule sets of all engines have, beside one field a rule; each is a NamedTuple."""

    @property
    def version(self) -> str:
        """The release."""

    @property
    def recorded(self) -> bool:
        """Whether its figures are held against the engine's own results."""


Rules = TypeVar("Rules", bound=RuleSet)


def rule_sets(oldest: Rules, changes: Iterable[Change]) -> tuple[Rules, ...]:
    """The rules of every release that a row names, oldest first; ``oldest`` is what the first one starts from."""
    sets, rules = list[Any](), cast(Any, oldest)
    for release, own in groupby(changes, key=attrgetter("release")):
        changed = {change.rule: change.value for change in own}
        rules = rules._replace(**{"version": release, RECORDED: False, **changed})
        sets.append(rules)
    return tuple(sets)


class Releases(Generic[Rules]):
    """The releases of one engine; ``title`` is its name in words, ``builds`` has versions that only builds between two
    releases are called by, each with the release whose rules they have.
    """

    def __init__(
        self, title: str, oldest: Rules, changes: Iterable[Change], builds: Mapping[str, str] | None = None
    ) -> None:
        self.title = title
        self._builds = {version_numbers(version): release for version, release in (builds or {}).items()}
        self.rule_sets = rule_sets(oldest, changes)
        self._numbers = [version_numbers(rules.version) for rules in self.rule_sets]
        self.rules_for = lru_cache(maxsize=64)(self._rules_for)

    @property
    def versions(self) -> tuple[str, ...]:
        """Every release that is known, oldest first."""
        return tuple(rules.version for rules in self.rule_sets)

    @property
    def oldest(self) -> str:
        """The oldest release."""
        return self.rule_sets[0].version

    @property
    def newest(self) -> str:
        """The release that is meant where none is named."""
        return self.rule_sets[-1].version

    def newest_with(self, rule: str, value: Value) -> str:
        """The newest release in which ``rule`` is ``value``."""
        return next(rules.version for rules in reversed(self.rule_sets) if getattr(rules, rule) == value)

    def oldest_with(self, rule: str, value: Value) -> str:
        """The oldest release in which ``rule`` is ``value``."""
        return next(rules.version for rules in self.rule_sets if getattr(rules, rule) == value)

    def unlike(self, rule: str, value: Value, *, apart: Collection[str]) -> tuple[str, ...]:
        """The releases in which ``rule`` is ``value``, newest first; of those that differ in ``apart`` alone one:
        that whose results are recorded, or the newest.
        """
        found = dict[tuple[Any, ...], Rules]()
        for rules in reversed(self.rule_sets):
            fields = rules._asdict()  # type: ignore[attr-defined]  # a NamedTuple
            key = tuple(held for name, held in fields.items() if name not in {*apart, "version", RECORDED})
            if getattr(rules, rule) == value and (key not in found or rules.recorded):
                found[key] = rules
        return tuple(rules.version for rules in found.values())

    @property
    def recorded(self) -> tuple[str, ...]:
        """The releases whose figures are held against their own results, newest first."""
        return tuple(rules.version for rules in reversed(self.rule_sets) if rules.recorded)

    def newer(self, version: str | None) -> str:
        """That a version is newer than every release here, and what it is planned by; nothing for one that is not.

        Raises InputError for what is no version.
        """
        if version is None or not is_later(version, self.newest):
            return ""
        return f"{self.title} {version} is newer than the releases known here: the rules of {self.newest} are used"

    def counted(self, version: str) -> str:
        """The version that counts in comparisons: of builds that no release is called by, their release."""
        return self._builds.get(version_numbers(version), version)

    def _rules_for(self, version: str | None) -> tuple[Rules, str]:
        """The rules of a version, of the newest where none is named, and a note where they rest on other grounds than
        that version's own results.

        Raises InputError for a version that is none, or older than every release.
        """
        if version is None:
            return self.rule_sets[-1], ""
        wanted = version_numbers(self.counted(version))
        held = sum(numbers[: len(wanted)] <= wanted for numbers in self._numbers)
        if not held:
            raise InputError(
                f"{self.title} {version} is older than every version known here",
                fix=f"known: {self.oldest} to {self.newest}",
            )
        rules = self.rule_sets[held - 1]
        if rules.version != version.removeprefix("v"):
            said = f"{self.title} {version}: the rules of {rules.version} are used"
            if version_numbers(version) in self._builds:
                said = f"{self.title} {version} names builds of its main branch: the rules of {rules.version} are used"
            return rules, self.newer(version) or said
        if not rules.recorded:
            return rules, f"{self.title} {version}: rules read in its source, not checked by its results"
        return rules, ""


def is_later(version: str, than: str) -> bool:
    """Whether a version is later than another; a series (0.33) is not later than a release of it, nor one than it.

    Raises InputError for one that is none.
    """
    one, other = version_numbers(version), version_numbers(than)
    return one[: len(other)] > other[: len(one)]
