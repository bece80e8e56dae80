"""Under which name does a release take a flag? `Renamed` is a row a name; an engine's rows are `RENAMED` in its flags.

Everything here says flags as the newest release calls them. What is said or written of another release goes through
`respelled`, and what is typed for one through `misnamed`.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import lru_cache, partial, wraps
from typing import Any, NamedTuple, TypeVar

from hybridcalc.errors import Drop, Either, InputError, MisspeltFlag, OneOf, Refusal, Write, WriteAll, with_release
from hybridcalc.findings import Finding, Suggestion
from hybridcalc.units import is_later


class Renamed(NamedTuple):
    """``new`` is a flag's name from release ``since`` on, and ``old`` up to ``until`` (empty: in all that are known).

    ``old`` is empty of a flag that releases before ``since`` do not have under any name. ``first`` is the first release
    that has ``old``, where the oldest known does not. ``retiring``: the engine calls ``old`` deprecated.
    """

    old: str
    new: str
    since: str
    until: str = ""
    first: str = ""
    retiring: bool = True

    @property
    def said(self) -> str:
        """That the old name is one, in words."""
        until = f", {self.until} the last with both" if self.until else ""
        return f"{self.old} is an old name of {self.new}: {self.since} is the first release with both{until}"

    def has_new(self, version: str) -> bool:
        """Whether a release has the new name."""
        return not is_later(self.since, version)

    def has_old(self, version: str) -> bool:
        """Whether a release has the old name."""
        gone = bool(self.until) and is_later(version, self.until)
        return bool(self.old) and not gone and not (self.first and is_later(self.first, version))


Rows = tuple[Renamed, ...]


def rows_of(engine: Any) -> Rows:
    """What releases of an engine call otherwise."""
    return getattr(engine.part("flags"), "RENAMED", ())


_FLAG = re.compile(r"(?<![\w-])--?[A-Za-z][\w-]*")


@lru_cache(maxsize=64)
def _names(rows: Rows, version: str) -> dict[str, str]:
    """The names that a release lacks -> its own ones."""
    to_old = {row.new: row.old for row in rows if row.has_old(version) and not row.has_new(version)}
    return to_old | {row.old: row.new for row in rows if row.has_new(version) and row.old and not row.has_old(version)}


def respelled(text: str, rows: Rows, version: str, typed: Mapping[str, str] | None = None) -> str:
    """The text with each flag under the name that the release has, or under that which was ``typed`` for it; a fix that
    is flags stays one.
    """
    names = _names(rows, version)
    if typed:
        names = {**names, **typed}
    return _in_names(text, names) if names and any(name in text for name in names) else text


def _in_names(text: str, names: Mapping[str, str]) -> str:
    def own(found: re.Match[str]) -> str:
        return names.get(found[0], found[0])

    if isinstance(text, Write):
        return Write(_FLAG.sub(own, text.flag), text.value, _FLAG.sub(own, text.more))
    if isinstance(text, WriteAll):
        return WriteAll(_FLAG.sub(own, text.sets), _FLAG.sub(own, text.more))
    if isinstance(text, Drop):
        return Drop(*(_FLAG.sub(own, flag) for flag in text.flags))
    if isinstance(text, OneOf):
        return OneOf(_FLAG.sub(own, str(text)), _FLAG.sub(own, text.flag), text.values)
    if isinstance(text, Either):
        return Either(*(_in_names(way, names) for way in text.ways))
    return _FLAG.sub(own, text)


def as_typed(engine: Any, args: Any, text: str) -> str:
    """The text with flags as they were typed, else under the names that the release has."""
    rows = rows_of(engine)
    retired = {name for row in rows for name in (row.old, row.new)}
    typed = {name: own for name, own in getattr(args, "names", ()) if name not in retired}
    typed["--tp"] = typed.get(engine.tp_flag, engine.tp_flag)
    return respelled(text, rows, args.engine_version or engine.newest, typed)


UNKNOWN_FLAG = "HC071"
"""The rule of flags that an engine does not take, whose findings say them as typed."""

Said = TypeVar("Said", Finding, Suggestion, Refusal)


Spelt = Callable[[str], str]


def names_of(engine: Any, args: Any) -> tuple[Spelt, Spelt]:
    """How `in_names` says what is wrong and what to write of arguments."""
    return partial(engine.spelt, version=args.engine_version), partial(as_typed, engine, args)


def in_names(thing: Said, spelt: Spelt, fixed: Spelt | None = None) -> Said:
    """A finding, a suggestion or a refusal in the names of a release (``spelt``), what to write in those of a launch
    (``fixed``) where they are known: what is found keeps its words, by which it is known again.
    """
    fixed = fixed or spelt
    if isinstance(thing, Finding):
        if thing.rule == UNKNOWN_FLAG:
            return thing
        mend = None if thing.mend is None else (fixed(thing.mend[0]), thing.mend[1])
        said = {name: spelt(getattr(thing, name)) for name in ("message", "flag")}
        said |= {name: fixed(getattr(thing, name)) for name in ("fix", "sets")}
        return thing._replace(**said, mend=mend)
    if isinstance(thing, Suggestion):
        return thing._replace(flags=fixed(thing.flags), why=spelt(thing.why))
    thing.message, thing.reason, thing.fix = spelt(thing.message), spelt(thing.reason), fixed(thing.fix)
    thing.beside = tuple(in_names(each, spelt, fixed) for each in thing.beside)
    return thing


Result = TypeVar("Result")
Method = Callable[..., Result]


def in_release_names(method: Method[Result]) -> Method[Result]:
    """A method of an engine, of a model and arguments: what it refuses, in the names that their release has."""

    @wraps(method)
    def named(self: Any, model: Any, args: Any, *more: Any, **also: Any) -> Result:
        try:
            return method(self, model, args, *more, **also)
        except Refusal as refusal:
            in_names(refusal, *names_of(self, args))
            raise

    return named


def misnamed(engine: Any, words: Iterable[str], version: str | None) -> Iterator[InputError]:
    """What is wrong with flags that are typed under a name that the release lacks: MisspeltFlag, with the name that it
    has, where it has one. Nothing of a release that is not named or not known.
    """
    if version is None or not engine.knows(version):
        return
    typed = {engine.flags.spelling(word.partition("=")[0]): word.partition("=")[0] for word in words}
    for row in rows_of(engine):
        for name, has, other, has_other, first in (
            (row.new, row.has_new, row.old, row.has_old, row.since),
            (row.old, row.has_old, row.new, row.has_new, row.first),
        ):
            if name not in typed or has(version):
                continue
            lacks, flag = f"{engine.title} {version} has no {name}", typed[name]
            if has_other(version):
                yield MisspeltFlag(f"{lacks}: its name there is {other}", instead=other, flag=flag)
            else:
                later = f"{lacks} yet: the first release that has it is {first}"
                yield InputError(later, fix=f"leave it out, or {with_release(first)}", flag=flag)


def misspelt_names(engine: Any, words: Iterable[str], version: str | None) -> list[MisspeltFlag]:
    """Those that the release has under another name; raises the first that it has under none."""
    found = list[MisspeltFlag]()
    for error in misnamed(engine, words, version):
        if not isinstance(error, MisspeltFlag):
            raise error
        found.append(error)
    return found


def retired(name: str, engine: Any, version: str | None) -> Renamed | None:
    """The row of a name that is retired; None for any other. A release that is named has both names of it."""
    return next(
        (
            row
            for row in rows_of(engine)
            if row.old == name and row.retiring and (version is None or (row.has_new(version) and row.has_old(version)))
        ),
        None,
    )


def old_names(engine: Any, words: Iterable[str], version: str | None) -> list[str]:
    """What is said of words that are retired names."""
    rows = (retired(word.partition("=")[0], engine, version) for word in words)
    return list(dict.fromkeys(row.said for row in rows if row is not None))
