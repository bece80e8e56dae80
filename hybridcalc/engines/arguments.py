"""What do the arguments of all engines have in common, and what does each release do its own way?

`Arguments`: what was given, and whether a command line would take it. An engine's flags say what each may be: the kind,
the bounds and the choices. A command line is held to them as it is read (shell/flags.py); here arguments from Python or
from a saved plan are. What arguments do to each other is the planner's business. Arguments at their defaults cost next
to nothing, since every plan passes here.

`Releases`: rows of changes, folded into one rule set a release, which the argument ``engine_version`` names.

    Change("0.5.23", "padding_slot_charged", True, "mem_cache/kv_cache_configurator.py _handle_max_mamba_cache")

An engine's releases.py has its rules as a NamedTuple, one field a fact, whose defaults are what its oldest release
does, and `CHANGES`, oldest first. A release is known as soon as a row names it, and does what the rows up to its own
say; one that changed nothing has the row `RECORDED` alone. A version between two releases takes the lower one's rules,
one without its last number (0.33) those of the newest of its series, and one that was never released but is the name of
an engine's builds (`builds`) those of the release that these came to.
"""

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, fields
from functools import cached_property, lru_cache
from importlib import import_module
from itertools import compress, count, groupby
from operator import attrgetter, is_not
from types import ModuleType
from typing import TYPE_CHECKING, Any, ClassVar, Generic, NamedTuple, Protocol, TypeVar, cast, get_args

from hybridcalc.errors import InputError, quoted
from hybridcalc.units import version_numbers

if TYPE_CHECKING:
    from hybridcalc.shell.flags import Flag


Own = TypeVar("Own", bound="Arguments")


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Arguments:
    """Base of an engine's arguments: a frozen dataclass under the engine's own names and with its own defaults.

    Comparing and printing them stands here once: written by dataclass for sixty fields it costs 3 ms at each start.
    ``env`` holds environment switches, ``engine_version`` is the release, where one is named.
    """

    engine: ClassVar[str]

    @classmethod
    def from_command(cls: type[Own], text: str) -> Own:
        """The arguments that a launch command gives, or its arguments alone; the model that it names is left out.

        Nothing is run and no variable is expanded. Raises InputError for what cannot be read, for a misspelt flag and
        for a value the shell decides.
        """
        from hybridcalc.engines.ask import read_command

        args: Own = read_command(cls.engine, text)[1]
        return args

    def __eq__(self, other: object) -> bool:
        """Whether they ask for the same."""
        return type(other) is type(self) and self.given() == other.given()

    def __repr__(self) -> str:
        """What it takes to make them again."""
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in self.given().items())})"

    def changed(self: Own, **fields: Any) -> Own:
        """These arguments with some of them changed: as dataclasses.replace, in a fifth of its time."""
        names, values, _ = _defaults(type(self))
        made, put = object.__new__(type(self)), object.__setattr__
        for name, value in zip(names, values(self)):  # noqa: B905  one of each
            put(made, name, value)
        for name, value in fields.items():
            put(made, name, value)
        if hasattr(made, "__post_init__"):
            made.__post_init__()
        return made

    def given(self) -> dict[str, Any]:
        """The arguments that differ from their defaults, as plain data: what it takes to ask the same again.

        Left out is where they were read, which is no argument.
        """
        names, values, own = _defaults(type(self))
        held = values(self)
        found = ((names[at], held[at]) for at in _changed(held, own) if held[at] != own[at])
        return {
            name: dict(value) if isinstance(value, Mapping) else value for name, value in found if name not in READ_FROM
        }


class Bounds:
    """What each argument of an engine may be: the flags that set it, the first of a field where several do.

    They stand in the module flags of the engine's folder: `FLAGS`, and `ELSEWHERE` for arguments that no flag of the
    engine's own sets. It is loaded when an argument is first met that is not at its default.
    """

    def __init__(self, kind: type[Arguments]) -> None:
        self._folder = kind.__module__
        names, _, own = _defaults(kind)
        checked = [(name, value) for name, value in zip(names, own, strict=True) if name not in ELSEWHERE]
        self.names = tuple(name for name, _ in checked)
        self._own = tuple(value for _, value in checked)
        self._values = attrgetter(*self.names)
        self._optional = {field.name for field in fields(kind) if type(None) in get_args(field.type)}

    @cached_property
    def flags(self) -> "dict[str, Flag]":
        """The flag of each argument."""
        found = import_module(f"{self._folder}.flags")
        return {flag.field: flag for flag in reversed((*found.ELSEWHERE, *found.FLAGS))}

    def check(self, args: Any) -> None:
        """Raise InputError for an argument whose type, bound or choice the command line would refuse."""
        values = self._values(args)
        for at in _changed(values, self._own):
            name, value, own = self.names[at], values[at], self._own[at]
            if (value is None and name in self._optional) or (type(value) is type(own) and value == own):
                continue
            flag = self.flags[name]
            if not self._rules.holds(flag, value):
                raise InputError(f"{name} {quoted(value)} is not {self._rules.wanted(flag)}", flag=flag.spellings[0])
        if args.engine_version is not None and not isinstance(args.engine_version, str):
            raise InputError(f"engine_version {quoted(args.engine_version)} is not text", fix="write one like 0.5.23")
        told = getattr(args, "uncounted", ())
        if not isinstance(told, tuple) or not all(isinstance(flag, str) for flag in told):
            raise InputError(f"uncounted {quoted(told)} is not flags", fix="leave it out")
        env = args.env
        if type(env) is not dict and not isinstance(env, Mapping):
            raise InputError(f"env {quoted(env)} is not a mapping", fix='write one like {"NAME": "value"}')
        for name, value in env.items():
            if not isinstance(name, str) or not isinstance(value, str):
                raise InputError(f"env: {quoted(name)}: {quoted(value)} is not text", fix="variables hold text")

    @cached_property
    def _rules(self) -> ModuleType:
        return import_module("hybridcalc.shell.flags")


READ_FROM = ("command_line", "uncounted")
"""What is kept of the words that arguments were read from, and is no argument."""
ELSEWHERE = ("env", "engine_version", "uncounted")
"""Arguments that no flag sets."""


@lru_cache(maxsize=64)
def capability_of(text: str) -> tuple[int, int]:
    """A compute capability as typed: (9, 0) of "9.0" is Hopper. Raises InputError for what is none."""
    if not re.fullmatch(r"[0-9]{1,2}(?:\.[0-9]{1,2})?", text):
        raise InputError(f"{quoted(text, 20)} is no compute capability", fix="write 9.0 for Hopper")
    major, _, minor = text.partition(".")
    return int(major), int(minor or 0)


def uncounted(plan: Any) -> Iterator[tuple[str, str]]:
    """What a plan says of flags whose memory is not modelled."""
    for flag in plan.args.uncounted:
        yield f"{flag} is not modelled: the memory that it takes or frees is not counted", ""


def _changed(values: tuple[Any, ...], own: tuple[Any, ...]) -> Iterator[int]:
    """Where values are not their defaults themselves: nearly all are, and those cost nothing more."""
    return compress(count(), map(is_not, values, own))


_KNOWN: dict[type[Arguments], tuple[tuple[str, ...], Any, tuple[Any, ...]]] = {}


def _defaults(kind: type[Arguments]) -> tuple[tuple[str, ...], Any, tuple[Any, ...]]:
    """The names of a class of arguments, what reads their values, and the values they have where none is given."""
    if kind not in _KNOWN:
        names = tuple(field.name for field in fields(kind))
        values = attrgetter(*names)
        _KNOWN[kind] = names, values, values(kind())
    return _KNOWN[kind]


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
