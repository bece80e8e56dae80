"""How do pipeline stages share out the layers, and what does each stage keep?

    n layers over pp stages: n // pp each, and one more for each of the last n mod pp
    SGLANG_PP_LAYER_PARTITION=46,47 sets them by hand

Mirrors get_pp_indices (0.5.23). A stage keeps the states and the KV of its own layers; a slot is priced at the share
of the stage with the most recurrent layers, on every stage.
"""

from itertools import pairwise
from typing import NamedTuple

from hybridcalc.architecture.geometry import STATE_LETTERS, Architecture
from hybridcalc.engines.sglang.config import ServerArgs
from hybridcalc.engines.sglang.kv import FULL_LENGTH_WINDOWS
from hybridcalc.errors import InputError


class Stage(NamedTuple):
    """One pipeline stage: layers [first, end), and how many of them keep state, full-length KV and windowed KV."""

    first: int
    end: int
    state_layers: int
    kv_layers: int
    window_layers: int


def pipeline_stages(model: Architecture, args: ServerArgs) -> tuple[Stage, ...]:
    """The stages of a model; one for pp 1. Raises InputError for more stages than layers or a partition that is off."""
    bounds = _bounds(model.num_layers, args)
    return tuple(_stage(model, first, end) for first, end in pairwise(bounds))


def _bounds(layers: int, args: ServerArgs) -> list[int]:
    partition = args.env.get("SGLANG_PP_LAYER_PARTITION")
    if args.pp_size > 1 and partition:
        counts = [_count(part.strip()) for part in partition.split(",")]
        if len(counts) != args.pp_size or min(counts) < 0 or sum(counts) != layers:
            raise InputError(
                f"SGLANG_PP_LAYER_PARTITION={partition[:40]} does not share {layers} layers over {args.pp_size} stages",
                fix="write one count a stage; they add up to the layers of the model",
            )
    else:
        if args.pp_size > layers:
            raise InputError(
                f"--pp-size {args.pp_size} is more than the {layers} layers of the model", flag="--pp-size"
            )
        base, more = divmod(layers, args.pp_size)
        counts = [base + (stage >= args.pp_size - more) for stage in range(args.pp_size)]
    bounds = [0]
    for count in counts:
        bounds.append(bounds[-1] + count)
    return bounds


def _count(text: str) -> int:
    """Layers of a stage; -1 for what is no count."""
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 8 else -1


def _stage(model: Architecture, first: int, end: int) -> Stage:
    part = model.layers[first:end]
    state = sum(part.count(letter) for letter in STATE_LETTERS)
    full, windowed = part.count("a") + part.count("b"), part.count("w") + part.count("v")
    if model.architecture in FULL_LENGTH_WINDOWS:
        full, windowed = full + windowed, 0
    return Stage(first, end, state, full, windowed)
