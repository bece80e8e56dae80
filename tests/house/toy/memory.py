"""The memory for Toy's blocks."""

from hybridcalc.deployment import exact_rest
from hybridcalc.errors import MemoryUnknown


def check_memory(known):
    """Nothing excludes anything."""


def rest_of(model, args, known):
    """As given."""
    if known.rest is None:
        raise MemoryUnknown("Toy needs the memory for its blocks", figures=("the memory",), fix="add --rest SIZE")
    return exact_rest(known.rest)
