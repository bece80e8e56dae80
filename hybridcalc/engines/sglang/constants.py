"""What does one state slot weigh, and one token of KV? The two sizes that every answer rests on.

From the architecture they are exact; a boot log gives intervals (diagnosis.py). Both are bytes of one rank, over all
layers of the model.
"""

from dataclasses import replace
from fractions import Fraction
from typing import Any, NamedTuple

from hybridcalc.architecture.geometry import Architecture
from hybridcalc.engines.sglang.config import ServerArgs
from hybridcalc.engines.sglang.kv import NO_DRAFT_KV, draft_layers, kv_cell
from hybridcalc.engines.sglang.releases import RuleSet, check_model, rules_for
from hybridcalc.engines.sglang.states import slot_parts, state_slot
from hybridcalc.errors import InputError, UnknownFamily

Range = tuple[Fraction, Fraction]


class Constants(NamedTuple):
    """The two sizes, and what they are made of: in words (``_why``) and as arithmetic (``_numbers``).

    ``origin`` is "architecture" (exact) or "log"; then the ranges say what the printed figures allow, and the single
    values are their middles.
    """

    origin: str
    state_bytes: Fraction
    conv_bytes: Fraction
    ssm_bytes: Fraction
    kv_bytes_per_token: Fraction
    state_why: str
    kv_why: str
    state_numbers: str
    kv_numbers: str
    state_range: Range | None = None
    kv_range: Range | None = None


def architecture_constants(model: Architecture, args: ServerArgs, rules: RuleSet) -> Constants:
    """Both sizes of a model, exact, without a draft model's KV.

    Raises InputError for a model that has only one of the two caches, ShardingError for a tp that does not divide.
    """
    check_model(rules, model.architecture)
    if model.state is None:
        raise InputError(f"{model.name} has no recurrent layer: there is no state pool to size")
    slot, cell = state_slot(model, args), kv_cell(model, replace(args, speculative_algorithm=None), rules)
    if not cell.layers:
        kind = "sliding-window layers alone" if model.window_layers else "no attention layer"
        raise InputError(
            f"{model.name} has {kind}: there is no growing KV to balance the state against",
            fix="its concurrency is K // S: see `hybridcalc slots`",
        )
    layer = f"{slot.conv_bytes_per_layer:,} + {slot.ssm_bytes_per_layer:,}"
    return Constants(
        origin="architecture",
        state_bytes=Fraction(slot.bytes),
        conv_bytes=Fraction(slot.conv_bytes),
        ssm_bytes=Fraction(slot.ssm_bytes),
        kv_bytes_per_token=Fraction(cell.target_bytes),
        state_why=f"{model.describe_layers.split(' + ')[0]} layers: {slot_parts(slot)}",
        kv_why=f"{cell.layers} attention layers: {cell.row}",
        state_numbers=f"{slot.layers} x ({layer}); {slot.ssm_dtype}: {slot.ssm_dtype_reason}",
        kv_numbers=f"{cell.layers} x {Fraction(cell.target_bytes, cell.layers)}; {cell.row}",
    )


def draft_states(args: ServerArgs, *, active: bool) -> tuple[int, str]:
    """D, states charged to a request for its drafts, and where it comes from. ``active``: ReplaySSM verifies them."""
    if not args.speculative:
        return 0, "no speculation"
    if active:
        return 0, "ReplaySSM verification keeps rings, not draft states"
    reason = f"{args.speculative_algorithm}: {args.draft_tokens} draft tokens"
    if args.enable_linear_replayssm_spec:
        reason += "; --enable-linear-replayssm-spec has no effect on this model"
    return args.draft_tokens, reason


def draft_kv_bytes(model: Architecture, args: ServerArgs, rules: RuleSet) -> int:
    """The draft model's bytes per token and rank: as given, or the target's row for each of its layers."""
    if not args.speculative or args.speculative_algorithm in NO_DRAFT_KV:
        return 0
    if args.draft_kv_bytes_per_token is not None:
        return args.draft_kv_bytes_per_token
    cell = kv_cell(model, replace(args, speculative_algorithm=None), rules)
    return cell.target_bytes * draft_layers(model, args) // cell.layers if cell.layers else 0


def model_sizes(model: Architecture, tp: int = 1) -> dict[str, Any]:
    """What a model stores on one of ``tp`` ranks: layers, a state slot in the engine's default dtype, a token of KV.

    The state is None where the engine does not run its family.
    """
    args = ServerArgs(tp_size=tp)
    try:
        slot = state_slot(model, args) if model.state is not None else None
    except UnknownFamily:  # the engine may not run it yet; its geometry is known all the same
        slot = None
    no_slot = 0 if model.state is None else None
    cell = kv_cell(model._replace(window_attention=None), args, rules_for(None)[0])
    return {
        "name": model.name,
        "architecture": model.architecture,
        "family": model.family,
        "num_layers": model.num_layers,
        "state_layers": model.state_layers,
        "attention_layers": model.attention_layers,
        "window_layers": model.window_layers,
        "layers": model.layers,
        "tp_size": tp,
        "ssm_dtype": slot.ssm_dtype if slot else None,
        "state_bytes_per_slot": slot.bytes if slot else no_slot,
        "conv_bytes_per_slot": slot.conv_bytes if slot else no_slot,
        "ssm_bytes_per_slot": slot.ssm_bytes if slot else no_slot,
        "kv_bytes_per_token": cell.target_bytes,
        "max_context": model.max_context,
        "source": model.source,
        "confidence": model.confidence or "as given",
    }


def kv_of(model: Architecture) -> tuple[int, str]:
    """Bytes of KV that a token takes on a single rank, and in words how they come about."""
    cell = kv_cell(model, ServerArgs(), rules_for(None)[0])
    return cell.bytes, f"{cell.layers} layers, {cell.row}"
