"""A third engine, as small as one can be: a state takes a block of its own, KV takes the others.

It lies in one package with the file names of every engine, and is known by one row (test_third_engine.py). What it has
no module for (crossovers, sweeps, tensors, reuse, words and pictures of its own) it does not offer.
"""

from typing import Any

from hybridcalc.engines.engine import Engine


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
