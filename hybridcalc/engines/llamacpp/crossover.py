"""What a model holds of a sequence on llama.cpp, for its crossovers: states in f32 with their copies, KV by type."""

from hybridcalc.architecture import Architecture
from hybridcalc.engines.crossover import Crossover, Holdings, Stream, moved_whole
from hybridcalc.engines.crossover import compare as compare_holdings
from hybridcalc.engines.llamacpp import ContextParams
from hybridcalc.engines.llamacpp.planner import Prepared, prepare
from hybridcalc.formulas import KvCurve


def compare(
    model: Architecture, baseline: Architecture | None, args: ContextParams, *, longest: int | None = None
) -> Crossover:
    """Crossovers of ``model`` with itself and with ``baseline``, up to ``longest`` tokens in the curve.

    Raises InputError for a model without a state, and Refusal for types that llama.cpp refuses.
    """
    other = None if baseline is None else _holdings(prepare(baseline, args))
    moved = moved_whole(model, stream(model, args))
    return compare_holdings(_holdings(prepare(model, args)), other, moved, longest=longest)


def _holdings(ready: Prepared) -> Holdings:
    model, copies = ready.model, ready.copies
    each = f"({ready.r:,} + {ready.s:,}) x 4 B" + (f", {1 + copies} times" if copies else "")
    rows = [f"{cache.layers} layers: {cache.k_row:,} + {cache.v_row:,} B" for cache in ready.caches]
    return Holdings(
        model.name,
        model.describe_layers,
        ready.sequence_state_bytes * (1 + copies),
        ready.state_layers,
        f"{model.describe_layers.split(' + ')[0]} layers: {each}",
        _curve(ready),
        model.attention_layers,
        " and ".join(rows) or "no attention layer",
        1,
        tuple(text for text in (model.reading,) if text),
    )


def _curve(ready: Prepared) -> KvCurve:
    """KV bytes over the length of one sequence; windows stop growing when they are full."""
    windows = [cache for cache in ready.caches if cache.name == "window"]
    growing = sum(cache.layers * (cache.k_row + cache.v_row) for cache in ready.caches if cache.name != "window")
    if not windows or not ready.model.window:
        return KvCurve(growing)
    return KvCurve(growing, sum(each.layers * (each.k_row + each.v_row) for each in windows), ready.model.window)


def stream(model: Architecture, args: ContextParams) -> Stream:
    """What one request moves in a step: the state and its matrices, KV of its length."""
    ready = prepare(model, args)
    return Stream(ready.sequence_state_bytes, ready.state_layers * ready.s, _curve(ready), 1)
