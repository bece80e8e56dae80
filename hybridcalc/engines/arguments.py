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
from dataclasses import MISSING, dataclass, field, fields
from functools import cached_property, lru_cache
from importlib import import_module
from itertools import groupby
from operator import attrgetter
from types import MappingProxyType, ModuleType
from typing import (
    TYPE_CHECKING,
    Any,
    ClassVar,
    Generic,
    NamedTuple,
    Protocol,
    TypeVar,
    cast,
    dataclass_transform,
    get_args,
)

from hybridcalc.errors import InputError, quoted
from hybridcalc.units import is_later, version_numbers

if TYPE_CHECKING:
    from hybridcalc.shell.flags import Flag


Own = TypeVar("Own", bound="Arguments")


@dataclass_transform(frozen_default=True, eq_default=False, field_specifiers=(field,))
def arguments(kind: type[Own]) -> type[Own]:
    """A class of arguments: a frozen dataclass whose defaults stay with the class."""
    made = dataclass(frozen=True, init=False, eq=False, repr=False)(kind)
    for each in fields(cast(Any, made)):
        if each.default_factory is not MISSING:
            setattr(made, each.name, MappingProxyType(each.default_factory()))
    made.defaults = {each.name: (at, getattr(made, each.name)) for at, each in enumerate(fields(cast(Any, made)))}
    return made


class Arguments:
    """Base of an engine's arguments (`arguments`), under the engine's own names and with its own defaults.

    An object holds what was given alone: of ninety arguments a launch gives five, and what is asked of them all, are
    they allowed, are they the same, costs what those five cost. ``env`` holds environment switches, ``engine_version``
    is the release, where one is named.
    """

    engine: ClassVar[str]
    defaults: ClassVar[dict[str, tuple[int, Any]]]
    """The arguments by name: which field it is, and the value where none is given."""

    def __init__(self, *values: Any, **given: Any) -> None:
        own = self.defaults
        given = dict(zip(own, values)) | given if values else given  # noqa: B905  the first of them
        unknown = given.keys() - own.keys()
        if unknown:
            raise TypeError(f"{type(self).__name__} has no argument {sorted(unknown)[0]!r}")
        vars(self).update({name: value for name, value in given.items() if value is not own[name][1]})
        self.__post_init__()

    def __post_init__(self) -> None:
        """What an engine takes out of an argument."""

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
        return type(self)(**(vars(self) | fields))

    def held(self) -> list[tuple[str, Any, Any]]:
        """Name, value and default of the arguments that were given something else, in the order of the fields."""
        own = self.defaults
        found = sorted((own[name][0], name, value) for name, value in vars(self).items()) if vars(self) else ()
        return [(name, value, own[name][1]) for _, name, value in found]

    def given(self) -> dict[str, Any]:
        """The arguments that differ from their defaults, as plain data: what it takes to ask the same again.

        Left out is where they were read, which is no argument.
        """
        return {
            name: dict(value) if isinstance(value, Mapping) else value
            for name, value, own in self.held()
            if value != own and name not in READ_FROM
        }


class Bounds:
    """What each argument of an engine may be: the flags that set it, the first of a field where several do.

    They stand in the module flags of the engine's folder: `FLAGS`, and `ELSEWHERE` for arguments that no flag of the
    engine's own sets. It is loaded when an argument is first met that is not at its default.
    """

    def __init__(self, kind: type[Arguments]) -> None:
        self._folder = kind.__module__
        checked = [each for each in fields(cast(Any, kind)) if each.name not in ELSEWHERE]
        self.names = tuple(each.name for each in checked)
        self._optional = {each.name for each in checked if type(None) in get_args(each.type)}

    @cached_property
    def flags(self) -> "dict[str, Flag]":
        """The flag of each argument."""
        found = import_module(f"{self._folder}.flags")
        return {flag.field: flag for flag in reversed((*found.ELSEWHERE, *found.FLAGS))}

    def check(self, args: Any) -> None:
        """Raise InputError for an argument whose type, bound or choice the command line would refuse."""
        for name, value, own in args.held():
            if name in ELSEWHERE or (value is None and name in self._optional):
                continue
            if type(value) is type(own) and value == own:
                continue
            flag = self.flags[name]
            if not self._rules.holds(flag, value):
                raise InputError(f"{name} {quoted(value)} is not {self._rules.wanted(flag)}", flag=flag.spellings[0])
        if args.engine_version is not None and not isinstance(args.engine_version, str):
            raise InputError(f"engine_version {quoted(args.engine_version)} is not text", fix="write one like 0.5.23")
        for name, kind in (("uncounted", str), ("names", tuple)):
            told = getattr(args, name, ())
            if not isinstance(told, tuple) or not all(isinstance(each, kind) for each in told):
                raise InputError(f"{name} {quoted(told)} is not flags", fix="leave it out")
        env = args.env
        if type(env) is not dict and not isinstance(env, Mapping):
            raise InputError(f"env {quoted(env)} is not a mapping", fix='write one like {"NAME": "value"}')
        for name, value in env.items():
            if not isinstance(name, str) or not isinstance(value, str):
                raise InputError(f"env: {quoted(name)}: {quoted(value)} is not text", fix="variables hold text")

    @cached_property
    def _rules(self) -> ModuleType:
        return import_module("hybridcalc.shell.flags")


READ_FROM = ("command_line", "uncounted", "names")
"""What is kept of the words that arguments were read from, and is no argument."""
ELSEWHERE = ("env", "engine_version", "uncounted", "names")
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


Made = TypeVar("Made")


class Last(Generic[Made]):
    """What was made last of a model and arguments, for whoever asks the same again: a search, a sweep over memory."""

    def __init__(self) -> None:
        self._last: tuple[Any, Any, dict[str, str], Made] | None = None

    def same(self, model: Any, args: Arguments) -> Made | None:
        """What it made of the very same; None of values that somebody can have changed within."""
        last = self._last
        if last is None or last[0] is not model or not _alike(vars(args), vars(last[1])):
            return None
        return last[3] if last[2] == args.env else None  # type: ignore[attr-defined]  # every engine's have them

    def but_for(self, names: Collection[str], model: Any, args: Arguments) -> Made | None:
        """What it made of the same model and of arguments that differ in these alone, if at all."""
        last = self._last
        if last is None or last[0] is not model:
            return None
        one, other = ({n: v for n, v in vars(each).items() if n not in names} for each in (args, last[1]))
        return last[3] if one == other and last[2] == args.env else None  # type: ignore[attr-defined]

    def keep(self, model: Any, args: Any, made: Made) -> Made:
        """Keep it in place of what was there."""
        self._last = model, args, dict(args.env), made
        return made


def _alike(one: dict[str, Any], other: dict[str, Any]) -> bool:
    """Whether the values are the same objects, and none that changes but the environment."""
    return one.keys() == other.keys() and all(
        name == "env" or (value is other[name] and not isinstance(value, dict)) for name, value in one.items()
    )


Value = bool | int | str | tuple[int, ...] | tuple[str, ...] | frozenset[str]
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

    def with_rule(self, release: str, rule: str, other: str) -> str:
        """What a version is called that has the rules of ``release``, but for ``rule``, which is that of ``other``."""
        return f"{release}+{other}.{rule}"

    def _mixed(self, version: str) -> Rules | None:
        """The rules of such a version; None for any other."""
        release, _, more = version.partition("+")
        other, _, rule = more.rpartition(".")
        if other not in self.versions or rule not in cast(Any, self.rule_sets[0])._fields:
            return None
        rules = cast(Any, self.rules_for(release)[0])
        return cast(Rules, rules._replace(**{rule: getattr(self.rules_for(other)[0], rule)}))

    def _rules_for(self, version: str | None) -> tuple[Rules, str]:
        """The rules of a version, of the newest where none is named, and a note where they rest on other grounds than
        that version's own results.

        Raises InputError for a version that is none, or older than every release.
        """
        if version is None:
            return self.rule_sets[-1], ""
        mixed = self._mixed(version) if "+" in version else None
        if mixed is not None:
            return mixed, ""
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
