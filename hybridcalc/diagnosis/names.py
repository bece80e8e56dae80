"""Which model does a printed path or id name, and which model and release does the text around a log tell of?

What a log prints of itself counts; what people write around it (bootlog/prose.py) fills what it leaves out.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple, TypeVar

from hybridcalc.architecture import Architecture
from hybridcalc.architecture.presets import find_preset, in_hub_cache, load_model, preset_begun
from hybridcalc.bootlog import Record
from hybridcalc.bootlog.prose import HOW, MODEL, RELEASE, STATED
from hybridcalc.diagnosis.answer import Diagnosis


class Named(NamedTuple):
    """A model as a log or a launch line names it, and the preset of that name; None where there is none."""

    name: str
    preset: Architecture | None


_COMMIT = re.compile(r"(?:/snapshots)?/?[0-9a-f]{7,64}$")


def named_model(path: str | None, served: str | None = None) -> Named | None:
    """What a printed path or id names; None where it names nothing, as ``/model`` does.

    A folder of the Hugging Face cache names its model. Where the path says nothing, the name that is ``served`` does.
    """
    said = _COMMIT.sub("", in_hub_cache((path or "").rstrip("/")))
    name = said.rpartition("/")[2]
    for spelling in (said, name):
        if spelling and (found := find_preset(spelling)):
            return Named(name, load_model(found[0]))
    also = named_model(served) if served else None
    if also is not None and (also.preset is not None or not _says(name)):
        return also
    begun = preset_begun(name) if _says(name) else None
    if begun is not None:
        return Named(name, load_model(begun))
    return Named(name, None) if _says(name) else None


def _says(name: str) -> bool:
    return any(letter.isdigit() for letter in name)


class Hint(NamedTuple):
    """What the text around a log says, where, and whether it says what it is; else it is but mentioned."""

    said: str
    line: int
    stated: bool


class Hints(NamedTuple):
    """What the text around a log tells, where it is of one mind: the release of an engine, by its name, and the model.

    ``presets``: all that it speaks of; ``names``: all of it.
    """

    releases: dict[str, Hint] = {}  # noqa: RUF012 - never changed
    model: Hint | None = None
    presets: frozenset[str] = frozenset()
    names: tuple[Record, ...] = ()

    def between(self, first: int, last: int) -> Hints:
        """The same, and what is told between two lines alone where the whole text is of several minds."""
        if not self.names:
            return self
        near = hints_of(one for one in self.names if first <= one.line <= last)
        return self._replace(releases=near.releases | self.releases, model=self.model or near.model)

    def release(self, engine: str, allowed: Callable[[str], bool]) -> str | None:
        """The release of ``engine`` that is told, where it is ``allowed``."""
        hint = self.releases.get(engine)
        return hint.said if hint is not None and allowed(hint.said) else None

    def named(self) -> Named | None:
        """The model that is told."""
        return named_model(self.model.said) if self.model is not None else None

    def note(self, answer: Diagnosis, *, title: str, release: bool, model: bool, by_log: Named | None) -> None:
        """Say what was read from the text around the log: the ``release`` and the ``model`` that were taken from it,
        and what the log has otherwise.
        """
        told, model_told = self.releases.get(answer.boot.engine), self.model
        parts = [f"line {told.line} says {title} {told.said}"] if release and told is not None else []
        parts += [f"line {model_told.line} names {model_told.said}"] if model and model_told is not None else []
        if parts:
            answer.find("HC117", f"{', '.join(parts)}: read from the text around the log")
        if not release and told is not None and told.stated and answer.version and not alike(told.said, answer.version):
            log_is = answer.version if answer.version.startswith("by ") else f"of {answer.version}"
            answer.find("HC117", f"line {told.line} says {title} {told.said}, the log is {log_is}: it counts")
        ours = self.named() if model_told is not None and model_told.stated and not model else None
        if ours is None or model_told is None or ours.preset is None:
            return
        says = f"line {model_told.line} says {model_told.said}"
        if by_log is not None and by_log.preset not in (None, ours.preset):
            answer.find("HC117", f"{says}, the log names {by_log.name}: the log counts")
        elif by_log is None and ours.preset.name not in {one.model for one in answer.candidates}:
            answer.find("HC117", f"{says}, whose sizes are not those of the log")


def alike(one: str, other: str) -> bool:
    """Whether two releases may be the same, as 0.29 and 0.29.0 are."""
    short, long = sorted((one.removeprefix("v"), other.removeprefix("v")), key=len)
    return long == short or long.startswith((f"{short}.", f"{short},"))


def hints_of(names: Iterable[Record]) -> Hints:
    """What the names that stand around a log tell, each kind by those that say what they are, else by all."""
    names = list(names)
    engines = {engine for one in names if one.kind == RELEASE and (engine := one.word("release_of"))}
    releases = {}
    for engine in sorted(engines):
        told = [_hint(one, "release") for one in names if one.kind == RELEASE and one.word("release_of") == engine]
        if (only := _only(told, lambda hint: hint.said, alike)) is not None:
            releases[engine] = only
    said = [_hint(one, "named") for one in names if one.kind == MODEL]
    models = [(hint, preset) for hint in said if (preset := _preset(hint.said))]
    model = _only([hint for hint, _ in models], lambda hint: _preset(hint.said), lambda one, other: one == other)
    return Hints(releases, model, frozenset(preset for _, preset in models), tuple(names))


def _hint(record: Record, figure: str) -> Hint:
    return Hint(record.word(figure) or "", record.line, record.word(HOW) == STATED)


def _preset(name: str) -> str | None:
    found = find_preset(name)
    return found[0] if found is not None else preset_begun(name.rpartition("/")[2])


Key = TypeVar("Key")


def _only(hints: Sequence[Hint], key: Callable[[Hint], Key], same: Callable[[Key, Key], bool]) -> Hint | None:
    """The longest of hints that all say the same; None where they do not, or there are none."""
    told = [hint for hint in hints if hint.stated] or list(hints)
    best = max(told, key=lambda hint: len(hint.said), default=None)
    return best if best is not None and all(same(key(best), key(hint)) for hint in told) else None
