"""What should be said beside the figures of a model: limits of what is known, and flags that do nothing here."""

from hybridcalc.architecture.geometry import Architecture
from hybridcalc.deployment import Workload
from hybridcalc.engines.sglang.config import KNOWN_ENVIRONMENT, ServerArgs
from hybridcalc.engines.sglang.kv import NO_DRAFT_KV
from hybridcalc.engines.sglang.strategy import RADIX_ARCHITECTURES

ARCHITECTURES_WITHOUT_RADIX = frozenset({
    "Mamba2ForCausalLM", "MambaForCausalLM", "FalconMambaForCausalLM", "NemotronH_Nano_VL_V2",
    "NemotronH_Nano_Omni_Reasoning_V3", "Lfm2VlForConditionalGeneration", "KimiK3LinearForCausalLM",
    "MiniCPMSALAForCausalLM",
})  # fmt: skip
"""Classes SGLang runs without a radix cache for their states."""


def model_notes(model: Architecture, args: ServerArgs, workload: Workload, *, draft_kv: int) -> list[str]:
    """Notes in the order a reader needs them; empty where there is nothing to say."""
    notes = [model.reading] if model.reading else []
    if model.architecture not in RADIX_ARCHITECTURES | ARCHITECTURES_WITHOUT_RADIX:
        notes.append(f"SGLang has no class for {model.architecture}: these figures follow from its geometry alone")
    if model.confidence == "second-hand":
        notes.append(f"geometry is second-hand: {model.source}")
    longest = int((model.max_context or 0) * model.rope_scaling_factor)
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
        notes.append("no KV of a draft model is counted: --draft-layers or --draft-kv-bytes-per-token adds it")
    unknown = sorted(name for name in args.env if name not in KNOWN_ENVIRONMENT)
    if unknown:
        notes.append(f"{', '.join(unknown)[:60]}: no switch that changes a figure here")
    return notes
