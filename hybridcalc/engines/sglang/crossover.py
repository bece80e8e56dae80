"""What a model holds of a sequence on SGLang, for its crossovers: dtypes, sharding, KV rows."""

from math import lcm
from typing import TYPE_CHECKING

from hybridcalc.architecture import Architecture
from hybridcalc.engines.crossover import Crossover, Holdings, StateGrid, Stream, moved_whole
from hybridcalc.engines.crossover import compare as compare_holdings
from hybridcalc.engines.sglang import ServerArgs, check_arguments, check_together
from hybridcalc.engines.sglang.kv import FULL_LENGTH_WINDOWS, check_dcp, kv_dtype, kv_layers, layer_bytes
from hybridcalc.engines.sglang.refusals import chunk_size
from hybridcalc.engines.sglang.releases import RuleSet, rules_for
from hybridcalc.engines.sglang.served import check_model
from hybridcalc.engines.sglang.sizes import replayssm_active, slot_parts, state_slot
from hybridcalc.engines.sglang.strategy import uses_radix_cache
from hybridcalc.formulas import KvCurve, Strategy

if TYPE_CHECKING:
    from hybridcalc.engines.sglang.planner import Prepared


def compare(
    model: Architecture, baseline: Architecture | None, args: ServerArgs, *, longest: int | None = None
) -> Crossover:
    """Crossovers of ``model`` with itself and with ``baseline``, up to ``longest`` tokens in the curve.

    Raises InputError for a model without a state, ShardingError for a tp that does not divide.
    """
    check_arguments(args)
    check_together(args)
    rules, note = rules_for(args.engine_version)
    check_model(rules, model.architecture)
    slot, own = state_slot(model, args), kv_curve(model, args, rules)
    notes = (note, model.reading, _window_note(model, own))
    hybrid = Holdings(
        model.name,
        model.describe_layers,
        slot.bytes,
        slot.layers,
        f"{model.describe_layers.split(' + ')[0]} layers: {slot_parts(slot)}",
        own,
        kv_layers(model),
        kv_row(model, args, rules),
        args.dcp_size,
        tuple(text for text in notes if text),
    )
    other = None if baseline is None else _other(baseline, args, rules)
    return compare_holdings(hybrid, other, moved_whole(model, stream(model, args)), longest=longest)


def kv_curve(model: Architecture, args: ServerArgs, rules: RuleSet) -> KvCurve:
    """KV bytes over the length of one sequence on one rank, without a draft; windows stop growing when full."""
    layers, dtype = kv_layers(model), kv_dtype(model, args)
    check_dcp(args)
    growing = layers * layer_bytes(model.attention, args, dtype, rules)[0] if model.attention is not None else 0
    if not model.window_layers or not model.window or model.architecture in FULL_LENGTH_WINDOWS:
        return KvCurve(growing)
    windowed = model.window_attention or model.attention
    assert windowed is not None  # noqa: S101  a window layer has KV
    return KvCurve(growing, model.window_layers * layer_bytes(windowed, args, dtype, rules)[0], model.window)


def stream(model: Architecture, args: ServerArgs) -> Stream:
    """What one request moves in a step on one rank."""
    rules, _ = rules_for(args.engine_version)
    curve, positions = kv_curve(model, args, rules), max(1, args.draft_tokens)
    if model.state is None:
        return Stream(0, 0, curve, args.dcp_size, positions)
    slot = state_slot(model, args)
    replays = args.enable_linear_replayssm or replayssm_active(model, args, rules)
    elements = slot.layers * slot.shapes.temporal_elements
    return Stream(slot.bytes, elements, curve, args.dcp_size, positions, 0 if replays else positions)


def saved(ready: "Prepared") -> StateGrid | None:
    """States of prompts lie on the grid of the kernel's chunk or the page, the larger; those of answers where that and
    the track interval meet. Without buffers both are kept where a request ends.
    """
    model, args = ready.model, ready.args
    if ready.stateless or not args.radix_cache or not uses_radix_cache(model, ready.rules):
        return None
    if ready.choice.strategy == Strategy.NO_BUFFER:
        return StateGrid(1, 1)
    grid = max(chunk_size(model), args.tokens_per_page)
    return StateGrid(grid, lcm(grid, args.mamba_track_interval), "--mamba-track-interval")


def kv_row(model: Architecture, args: ServerArgs, rules: RuleSet) -> str:
    """How the KV of a token comes about, in words: ``4 attention layers: 8 of 8 KV heads x 256 bfloat16``."""
    if model.attention is None or not kv_layers(model):
        return "no attention layer"
    row = layer_bytes(model.attention, args, kv_dtype(model, args), rules)[1]
    return f"{kv_layers(model)} attention layers: {row}"


def _other(model: Architecture, args: ServerArgs, rules: RuleSet) -> Holdings:
    state = state_slot(model, args).bytes if model.state is not None else 0
    return Holdings(
        model.name,
        model.describe_layers,
        state,
        model.state_layers,
        "",
        kv_curve(model, args, rules),
        kv_layers(model),
        kv_row(model, args, rules),
    )


def _window_note(model: Architecture, curve: KvCurve) -> str:
    if not curve.window_bytes_per_token:
        return ""
    most = curve.window_bytes_per_token * curve.window_tokens
    return f"{model.window_layers} sliding-window layers add up to {most:,} B, full at {curve.window_tokens:,} tokens"
