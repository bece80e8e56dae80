"""What does the caller know besides the log: the model, a launch line, the lengths to answer for?"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

from hybridcalc.architecture.geometry import Architecture
from hybridcalc.bootlog.records import Printed, Record
from hybridcalc.deployment import Workload


class Launched(NamedTuple):
    """A launch line that was read: whose it is, the model it names, and the engine's own arguments."""

    engine: str
    model: str | None
    args: Any


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
