"""Toy's start-up before memory counts."""

from typing import Any, NamedTuple

from hybridcalc.architecture import kv_elements_per_token
from hybridcalc.errors import Refusal
from toy.releases import RuleSet, rules_for


class Prepared(NamedTuple):
    """What no memory decides: bytes of a block."""

    model: Any
    args: Any
    rules: RuleSet
    block_bytes: int


def prepare(model: Any, args: Any) -> Any:
    """Raises Refusal for a model without attention."""
    if model.attention is None:
        raise Refusal("Toy serves attention only", stage="load", rule="TOY1", fix="name another model")
    row = 2 * kv_elements_per_token(model.attention, 1) * model.attention_layers
    return Prepared(model, args, rules_for(args.engine_version)[0], args.block * row)
