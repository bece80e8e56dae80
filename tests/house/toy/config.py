"""Toy's arguments."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from hybridcalc.engines.arguments import Arguments, Bounds

KNOWN_ENVIRONMENT = frozenset({"TOY_BLOCK"})


@dataclass(frozen=True, slots=True)
class ToyArgs(Arguments):
    """Arguments of ``toy serve``: requests at once, and tokens of a block."""

    engine: ClassVar[str] = "toy"

    max_requests: int = 64
    block: int = 256
    env: Mapping[str, str] = field(default_factory=dict)
    engine_version: str | None = None


ARGUMENTS = ToyArgs
check_arguments = Bounds(ToyArgs).check


def check_together(args: Any) -> None:
    """No two arguments of Toy contradict each other."""
