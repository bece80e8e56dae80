"""The memory for Toy's blocks."""

from typing import Any

from hybridcalc.deployment import exact_rest
from hybridcalc.errors import MemoryUnknown


def check_memory(known: Any) -> None:
    """Nothing excludes anything."""


def rest_of(model: Any, args: Any, known: Any) -> Any:
    """As given."""
    if known.rest is None:
        raise MemoryUnknown("Toy needs the memory for its blocks", figures=("the memory",), fix="add --rest SIZE")
    return exact_rest(known.rest)
