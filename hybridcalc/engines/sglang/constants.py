"""What does one state slot weigh, and one token of KV? The two sizes that answers rest on, and what to say of them.

From the architecture they are exact; a boot log gives intervals (diagnosis.py). Both are bytes of one rank, over all
layers of the model. `model_notes` says the limits of what is known of a model, and which flags do nothing for it.
"""

from dataclasses import replace
from fractions import Fraction
from typing import Any, NamedTuple

from hybridcalc.architecture import Architecture
from hybridcalc.deployment import Workload
from hybridcalc.engines.sglang.config import KNOWN_ENVIRONMENT, ServerArgs
from hybridcalc.engines.sglang.kv import NO_DRAFT_KV, KvCell, draft_layers, kv_cell, kv_layers, stage_cell, window_kv
from hybridcalc.engines.sglang.releases import LISTED_CLASSES, RuleSet, check_model, rules_for
from hybridcalc.engines.sglang.states import StateSlot, slot_parts, state_slot
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


def slot_and_cell(model: Architecture, args: ServerArgs, rules: RuleSet) -> tuple[StateSlot, KvCell]:
    """A model's slot and cell without a draft's KV; the cell is empty where no layer keeps a growing KV.

    Raises InputError without recurrent layers, ShardingError for a tp that does not divide.
    """
    check_model(rules, model.architecture)
    if model.state is None:
        raise InputError(f"{model.name} has no recurrent layer: there is no state pool to size")
    return state_slot(model, args), kv_cell(model, replace(args, speculative_algorithm=None), rules)


def architecture_constants(model: Architecture, args: ServerArgs, rules: RuleSet) -> Constants:
    """Both sizes of a model, exact, without a draft model's KV.

    Raises InputError for a model that has only one of the two caches, ShardingError for a tp that does not divide.
    """
    slot, cell = slot_and_cell(model, args, rules)
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
    cell = stage_cell(model, args, rules_for(None)[0], kv_layers(model), window_layers=0)
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


ARCHITECTURES_WITHOUT_RADIX = frozenset({
    "Mamba2ForCausalLM", "MambaForCausalLM", "FalconMambaForCausalLM", "NemotronH_Nano_VL_V2",
    "NemotronH_Nano_Omni_Reasoning_V3", "Lfm2VlForConditionalGeneration", "KimiK3LinearForCausalLM",
    "MiniCPMSALAForCausalLM",
})  # fmt: skip
"""Classes SGLang runs without a radix cache for their states."""


def longest_of(model: Architecture | None) -> int:
    """The longest request of a model by its own limit, in tokens; 0 where none is known."""
    return 0 if model is None else int((model.max_context or 0) * model.rope_scaling_factor)


def model_notes(model: Architecture, args: ServerArgs, workload: Workload, *, draft_kv: int) -> list[str]:
    """Notes in the order a reader needs them; empty where there is nothing to say."""
    notes = [model.reading] if model.reading else []
    listed = model.architecture in LISTED_CLASSES or model.architecture in ARCHITECTURES_WITHOUT_RADIX
    if model.state is not None and not listed:
        notes.append(f"SGLang has no class for {model.architecture}: these figures follow from its geometry alone")
    if model.confidence == "second-hand":
        notes.append(f"geometry is second-hand: {model.source}")
    longest = longest_of(model)
    if longest and workload.longest > longest:
        notes.append(f"{workload.longest:,} tokens exceed the model's own limit of {longest:,}")
    if args.pp_size > 1:
        notes.append(f"pp {args.pp_size}: sizes are those of all stages; pools are solved on each stage's own layers")
    if args.attn_dp_size > 1:
        notes.append(f"slots, tokens and requests are those of one of {args.attn_dp_size} attention workers")
    heads, ranks = getattr(model.attention, "kv_heads", None), args.attn_tp_size
    if heads is not None and heads % ranks and ranks % heads:
        notes.append(
            f"{heads} KV heads and {ranks} ranks do not divide one another, which attention layers often refuse"
        )
    if args.speculative and args.speculative_algorithm not in NO_DRAFT_KV and not draft_kv:
        windowed = model.window_layers and window_kv(model) is not None
        how = "beside window pools it is not modelled" if windowed else ""
        how = how or "--draft-layers or --draft-kv-bytes-per-token adds it"
        notes.append(f"no KV of a draft model is counted: {how}")
    unknown = sorted(name for name in args.env if name not in KNOWN_ENVIRONMENT)
    if unknown:
        notes.append(f"{', '.join(unknown)[:60]}: no switch that changes a figure here")
    return notes
