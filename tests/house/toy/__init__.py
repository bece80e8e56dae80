"""A third engine, as small as one can be: a state takes a block of its own, KV takes the others.

It lies in one package with the file names of every engine, and is known by one row (test_third_engine.py). What it has
no module for (crossovers, sweeps, tensors, reuse, words and pictures of its own) it does not offer.
"""

from collections.abc import Mapping
from dataclasses import field
from typing import Any, ClassVar

from hybridcalc.engines.arguments import Arguments, Bounds, arguments
from hybridcalc.engines.engine import Engine

KNOWN_ENVIRONMENT = frozenset({"TOY_BLOCK"})


@arguments
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


class Toy(Engine):
    """Toy's server."""

    name, title = "toy", "Toy"
    model_flag = "--model"
    memory_option = "rest"
    options = frozenset({"rest", "engine_version", "env"})

    def ranks(self, args: Any) -> Any:
        """As every engine."""
        return 1


ENGINE = Toy()
