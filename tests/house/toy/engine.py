"""Toy as an engine."""

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
