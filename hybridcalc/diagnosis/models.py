"""Which presets may a log be of?"""

from __future__ import annotations

from functools import lru_cache

from hybridcalc.architecture.geometry import Architecture
from hybridcalc.architecture.presets import load_model, model_names


@lru_cache(maxsize=1)
def models_with_states() -> tuple[Architecture, ...]:
    """Every preset that keeps recurrent states."""
    return tuple(model for name in model_names() if (model := load_model(name)).state is not None)


def same_class(architecture: str, printed: str) -> bool:
    """Whether a printed class is a preset's: the text and the vision class of a model are one family."""
    return _stem(architecture) == _stem(printed)


def _stem(name: str) -> str:
    for ending in ("ForConditionalGeneration", "ForCausalLM"):
        name = name.removesuffix(ending)
    return name
