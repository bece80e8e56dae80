"""What do the arguments of all engines have in common? What was given, and whether a command line would take it.

An engine's flags say what each may be: the kind, the bounds and the choices. A command line is held to them
as it is read (shell/flags.py); here arguments from Python or from a saved plan are. What arguments do to each other is
the planner's business. Arguments at their defaults cost next to nothing, since every plan passes here.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, fields
from functools import cached_property
from importlib import import_module
from itertools import compress, count
from operator import attrgetter, is_not
from types import ModuleType
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar, get_args

from hybridcalc.errors import InputError, quoted

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
            name: dict(value) if isinstance(value, Mapping) else value
            for name, value in found
            if name != "command_line"
        }


class Bounds:
    """What each argument of an engine may be: the flags that set it, the first of a field where several do.

    The flags are read when an argument is first met that is not at its default.
    """

    def __init__(self, kind: type[Arguments], flags: "Callable[[], Iterable[Flag]]") -> None:
        self._read = flags
        names, _, own = _defaults(kind)
        checked = [(name, value) for name, value in zip(names, own, strict=True) if name not in ELSEWHERE]
        self.names = tuple(name for name, _ in checked)
        self._own = tuple(value for _, value in checked)
        self._values = attrgetter(*self.names)
        self._optional = {field.name for field in fields(kind) if type(None) in get_args(field.type)}

    @cached_property
    def flags(self) -> "dict[str, Flag]":
        """The flag of each argument."""
        return {flag.field: flag for flag in reversed(tuple(self._read()))}

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
        env = args.env
        if type(env) is not dict and not isinstance(env, Mapping):
            raise InputError(f"env {quoted(env)} is not a mapping", fix='write one like {"NAME": "value"}')
        for name, value in env.items():
            if not isinstance(name, str) or not isinstance(value, str):
                raise InputError(f"env: {quoted(name)}: {quoted(value)} is not text", fix="variables hold text")

    @cached_property
    def _rules(self) -> ModuleType:
        return import_module("hybridcalc.shell.flags")


ELSEWHERE = ("env", "engine_version")
"""Arguments that no flag sets."""


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
