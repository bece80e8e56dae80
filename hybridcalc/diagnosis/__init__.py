"""What happened in a boot, and what should change? Records, architectures and engines brought together.

Here: what does the caller know besides the log, and which presets may the log be of?
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, NamedTuple

from hybridcalc.architecture import Architecture
from hybridcalc.architecture.presets import find_preset, in_hub_cache, load_model, preset_begun, shipped_presets
from hybridcalc.bootlog import Printed, Record
from hybridcalc.deployment import Workload


class Launched(NamedTuple):
    """A launch line that was read: whose it is, the model it names, the engine's own arguments, and its words."""

    engine: str
    model: str | None
    args: Any
    words: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Question:
    """``model`` None: guessed from the log; ``launch`` None: as far as the log echoes it."""

    model: Architecture | None = None
    workload: Workload = field(default_factory=Workload)
    launch: Launched | None = None


def echoed(records: list[Record]) -> dict[str, int | float | str | bool]:
    """The arguments that a boot echoes, by name, without those that are left to the engine."""
    said: dict[str, int | float | str | bool] = {}
    for name, value in (figure for record in records for figure in record.figures):
        if value in ("auto", "None"):
            continue
        if isinstance(value, Printed):
            said[name] = value.number
        else:
            said[name] = {"True": True, "False": False}.get(value, value) if isinstance(value, str) else value
    return said


@lru_cache(maxsize=64)
def models_with_states(printed: str | None = None) -> tuple[Architecture, ...]:
    """Every preset that keeps recurrent states, or those of a ``printed`` class."""
    return tuple(
        load_model(name)
        for name, preset in shipped_presets().items()
        if preset.get("state") is not None and (printed is None or same_class(preset["architecture"], printed))
    )


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


def same_class(architecture: str, printed: str) -> bool:
    """Whether a printed class is a preset's: the text and the vision class of a model are one family."""
    return _stem(architecture) == _stem(printed)


def _stem(name: str) -> str:
    for ending in ("ForConditionalGeneration", "ForCausalLM"):
        name = name.removesuffix(ending)
    return name
