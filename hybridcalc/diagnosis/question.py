"""What does the caller know besides the log: the model, a launch line, the lengths to answer for?"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from hybridcalc.architecture.geometry import Architecture
from hybridcalc.bootlog.boots import Boot
from hybridcalc.bootlog.records import Printed, Value
from hybridcalc.deployment import Workload
from hybridcalc.engines.sglang.config import ServerArgs


@dataclass(frozen=True, slots=True)
class Question:
    """``model`` None: guessed from the log. ``sglang`` and ``vllm``: the words of a launch line, as fields by name."""

    model: Architecture | None = None
    workload: Workload = field(default_factory=Workload)
    command: Any = None


class Launch(NamedTuple):
    """The flags a boot was started with, as far as they are known, where from, and the model they name."""

    args: ServerArgs
    source: str
    model: str | None
    given: frozenset[str]


_DTYPES_NOT_SET = ("auto", "None")


def launch_of(boot: Boot, question: Question) -> Launch:
    """The flags of a boot: of the launch line that was handed over, or those the log echoes."""
    if isinstance(question.command, ServerArgs):
        given = frozenset(
            name
            for name in ServerArgs.__dataclass_fields__
            if getattr(question.command, name) != getattr(ServerArgs(), name)
        )
        return Launch(question.command, "the launch line", None, given)
    echoed: dict[str, Value] = {}
    for statement in boot.of("arguments"):
        echoed |= dict(statement.figures)
    if not echoed:
        return Launch(ServerArgs(), "", None, frozenset())
    fields: dict[str, Any] = {}
    for name, value in echoed.items():
        if name == "model_path" or value in _DTYPES_NOT_SET or (isinstance(value, int) and value < 1):
            continue
        fields[name] = (
            value.number
            if isinstance(value, Printed)
            else {"True": True, "False": False}.get(value, value)
            if isinstance(value, str)
            else value
        )
    path = echoed.get("model_path")
    return Launch(
        replace(ServerArgs(), **fields),
        "the echoed command",
        path if isinstance(path, str) else None,
        frozenset(fields),
    )
