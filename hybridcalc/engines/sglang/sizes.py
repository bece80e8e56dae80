"""What do one state slot and one token of KV weigh? Shapes and dtypes of a slot, family by family, and both sizes.

    slot = layers * (sum over conv windows of rows * width * sizeof(conv) + prod(temporal) * sizeof(ssm))

layers counts the whole model's recurrent layers, shapes are those of one rank. conv dtype: SGLANG_MAMBA_CONV_DTYPE,
else bfloat16. ssm dtype: --mamba-ssm-dtype, else SGLANG_MAMBA_SSM_DTYPE, else the config's mamba_ssm_dtype where the
model class reads it, else float32. Shapes are ordered as the engine orders them: (width, rows), but (rows, width) for
KDA and Inkling; temporal states have three axes, and families without one of the two parts an empty shape in its place.
FAMILY_RULES has a row for each family that the engine runs, and one for models without a state.

`Constants` are the two sizes that answers rest on, bytes of one rank over all layers: exact from the architecture,
intervals from a boot log. `model_notes` says the limits of what is known of a model, and which flags do nothing for it.
Mirrors configs/mamba_utils.py, mem_cache/memory_pool.py (0.5.23); a token's cell is in kv.py.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from fractions import Fraction
from typing import Any, NamedTuple

from hybridcalc.architecture import Architecture
from hybridcalc.architecture.families import StateShapes, rule_for
from hybridcalc.deployment import Workload
from hybridcalc.engines.sglang import CHAINED_DRAFTS, KNOWN_ENVIRONMENT, ServerArgs, lacking_of_chain
from hybridcalc.engines.sglang.kv import (
    NO_DRAFT_KV,
    KvCell,
    draft_layers,
    kv_cell,
    kv_dtype,
    kv_layers,
    kv_of_checkpoint,
    stage_cell,
)
from hybridcalc.engines.sglang.releases import LISTED_CLASSES, RuleSet, rules_for
from hybridcalc.engines.sglang.served import check_model
from hybridcalc.errors import InputError, NotModelled, UnknownFamily, Write, printable
from hybridcalc.units import DTYPE_BYTES, short_dtype


class FamilyRule(NamedTuple):
    """``kimi_pool``: the pool is the one of KimiLinearCacheParams, which keeps (rows, width) windows, whole windows of
    drafts, and ReplaySSM rings for every slot, whose length it checks; the pool of Mamba2CacheParams keeps (width,
    rows), overlapping windows of drafts, and rings for running requests. ``replayed``: how names of the classes begin
    that --enable-linear-replayssm-spec takes effect on. ``key_heads``: key heads of a ring, over all ranks.
    """

    kimi_pool: bool = False
    replayed: tuple[str, ...] = ()
    key_heads: Callable[[Any], int] = lambda state: 1


ALL_CLASSES = ("",)

FAMILY_RULES = {
    "gdn": FamilyRule(replayed=("Qwen", "Jet"), key_heads=lambda state: state.num_k_heads),
    "kda": FamilyRule(kimi_pool=True, replayed=ALL_CLASSES, key_heads=lambda state: state.num_heads),
    "mamba2": FamilyRule(key_heads=lambda state: state.n_groups),
    "mamba1": FamilyRule(),
    "lightning": FamilyRule(key_heads=lambda state: 0),
    "shortconv": FamilyRule(),
    "attention": FamilyRule(),
}


def family_rule(model: Architecture) -> FamilyRule:
    """What SGLang does with the family of ``model``. Raises UnknownFamily for one that it has no rule for."""
    return rule_for(model.family, FAMILY_RULES, "SGLang")


def replayssm_active(model: Architecture, args: ServerArgs, rules: RuleSet) -> bool:
    """Whether --enable-linear-replayssm-spec takes effect for this model; it does without speculation too."""
    if not (args.enable_linear_replayssm_spec and rules.replayssm_priced) or model.state is None:
        return False
    return replayed(model)


def replayed(model: Architecture) -> bool:
    """Whether the class is one that ReplaySSM verifies: of GDN those of Qwen and Jet (GigaChat has the shape alone)."""
    return model.architecture.startswith(family_rule(model).replayed)


def keeps_drafts(args: ServerArgs, rules: RuleSet) -> bool:
    """Whether a server keeps states of drafts: prefill servers need none, but for those that may switch roles."""
    if not args.speculative:
        return False
    if rules.prefill_keeps_drafts or args.disaggregation_mode != "prefill":
        return True
    return args.enable_pd_role_switch or args.enable_unified_memory or args.platform == "npu"


SSM_DTYPES = ("float32", "bfloat16", "float16")
READS_DECLARED_SSM_DTYPE = frozenset({
    "Qwen3NextForCausalLM", "Qwen3_5ForConditionalGeneration", "Qwen3_5MoeForConditionalGeneration",
    "Qwen3_5ForCausalLM", "Qwen3_5MoeForCausalLM", "Qwen4ExpForConditionalGeneration", "NemotronHForCausalLM",
    "NemotronH_Nano_VL_V2", "NemotronH_Nano_Omni_Reasoning_V3", "FalconH1ForCausalLM", "JetNemotronForCausalLM",
    "JetVLMForConditionalGeneration", "Lfm2ForCausalLM", "ZayaForCausalLM", "GigaChat35ForCausalLM",
})  # fmt: skip
SHARDED_OVER_ALL_RANKS = frozenset(
    {"Mamba2ForCausalLM", "MambaForCausalLM", "FalconMambaForCausalLM", "ZayaForCausalLM"}
)
"""Classes whose state is divided by tp_size itself; the others divide by the ranks of one attention worker."""


class StateSlot(NamedTuple):
    """One state slot on one rank: shapes of one layer in elements, dtypes, bytes of its convolution windows and of its
    temporal state, and the same over all recurrent layers.
    """

    layers: int
    shapes: StateShapes
    conv_shape: tuple[tuple[int, ...], ...]
    temporal_shape: tuple[int, ...]
    conv_dtype: str
    ssm_dtype: str
    ssm_dtype_reason: str
    conv_bytes_per_layer: int
    ssm_bytes_per_layer: int

    @property
    def conv_bytes(self) -> int:
        """Convolution bytes of a slot."""
        return self.layers * self.conv_bytes_per_layer

    @property
    def ssm_bytes(self) -> int:
        """Temporal-state bytes of a slot."""
        return self.layers * self.ssm_bytes_per_layer

    @property
    def bytes(self) -> int:
        """Bytes of a slot."""
        return self.layers * (self.conv_bytes_per_layer + self.ssm_bytes_per_layer)


NO_STATE = StateSlot(0, StateShapes((), ()), (), (), "bfloat16", "float32", "no recurrent layer", 0, 0)
"""The slot of a model without recurrent layers: it takes nothing, and no request holds one."""


def slot_parts(slot: StateSlot) -> str:
    """What a slot is made of, in words: ``54,263,808 fp32 + 1,907,712 conv bf16``."""
    parts = [f"{slot.ssm_bytes:,} {short_dtype(slot.ssm_dtype)}"] if slot.ssm_bytes else []
    parts += [f"{slot.conv_bytes:,} conv {short_dtype(slot.conv_dtype)}"] if slot.conv_bytes else []
    return " + ".join(parts)


def state_slot(model: Architecture, args: ServerArgs) -> StateSlot:
    """The state slot of ``model`` under ``args``.

    Raises InputError for a model without recurrent layers or with a state of 0 bytes, and ShardingError for a tp that
    does not divide.
    """
    if model.state is None:
        raise NotModelled(f"{model.name} has no recurrent layer: it keeps no state")
    shapes = model.state.shapes(state_ranks(model, args))
    conv_dtype, ssm_dtype, reason = _dtypes(model, args)
    slot = StateSlot(
        layers=model.state_layers,
        shapes=shapes,
        conv_shape=_conv_shape(model, shapes),
        temporal_shape=_temporal_shape(model, shapes),
        conv_dtype=conv_dtype,
        ssm_dtype=ssm_dtype,
        ssm_dtype_reason=reason,
        conv_bytes_per_layer=shapes.conv_elements * DTYPE_BYTES[conv_dtype],
        ssm_bytes_per_layer=shapes.temporal_elements * DTYPE_BYTES[ssm_dtype],
    )
    if not slot.bytes:
        raise InputError(
            f"{model.name} keeps 0 B of state on a rank: its {model.family} sizes leave nothing",
            fix="check the sizes of its state",
        )
    return slot


def state_ranks(model: Architecture, args: ServerArgs) -> int:
    """Ranks that share one state."""
    return args.tp_size if model.architecture in SHARDED_OVER_ALL_RANKS else args.attn_tp_size


def dense_windows(model: Architecture, args: ServerArgs, rules: RuleSet) -> bool:
    """Whether draft convolution windows are kept whole rather than overlapping."""
    return (
        not rules.windows_overlap
        or family_rule(model).kimi_pool
        or model.architecture.startswith("Inkling")
        or (args.speculative_eagle_topk or 1) > 1
        or args.platform in ("npu", "cpu")
    )


def _dtypes(model: Architecture, args: ServerArgs) -> tuple[str, str, str]:
    if model.architecture.startswith("Inkling"):
        return "bfloat16", "bfloat16", "fixed by the model class"
    conv = args.env.get("SGLANG_MAMBA_CONV_DTYPE", "bfloat16")
    conv = conv if conv in SSM_DTYPES else "bfloat16"
    flag, variable = args.mamba_ssm_dtype, args.env.get("SGLANG_MAMBA_SSM_DTYPE")
    if flag is None and args.enable_linear_replayssm_spec:
        return conv, "float32", "--enable-linear-replayssm-spec sets it"
    if flag is not None or variable:
        stated = flag or variable or ""
        where = "--mamba-ssm-dtype" if flag is not None else "SGLANG_MAMBA_SSM_DTYPE"
        if stated in SSM_DTYPES:
            return conv, stated, where
        return conv, "float32", f"{where} {printable(stated[:40])} is not known: float32"
    declared = model.declared_ssm_dtype
    if declared in SSM_DTYPES and model.architecture in READS_DECLARED_SSM_DTYPE:
        return conv, declared, "the config's mamba_ssm_dtype"
    return conv, "float32", "the engine's default"


def _conv_shape(model: Architecture, shapes: StateShapes) -> tuple[tuple[int, ...], ...]:
    rows_first = family_rule(model).kimi_pool or model.architecture.startswith("Inkling")
    return tuple((w.rows, w.width) if rows_first else (w.width, w.rows) for w in shapes.conv) or ((0, 0),)


def _temporal_shape(model: Architecture, shapes: StateShapes) -> tuple[int, ...]:
    if not shapes.temporal:
        if model.architecture.startswith("Inkling"):
            return (0, 0, 0)
        return (1, 1, 0) if model.architecture == "ZayaForCausalLM" else (1, model.hidden_size or 0, 0)
    return shapes.temporal if len(shapes.temporal) == 3 else (shapes.temporal[0], 1, shapes.temporal[1])


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
    if cell.window_bytes:
        return kv_cell(model, args, rules).draft_bytes
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


DEFAULT_CONTEXT = 2048


def context_length(model: Architecture) -> int:
    """Tokens the engine takes for the model's context: as the config states it, stretched by its rope factor."""
    return int((model.max_context or DEFAULT_CONTEXT) * model.rope_scaling_factor)


def longest_of(model: Architecture | None) -> int:
    """The longest request of a model by its own limit, in tokens; 0 where none is known."""
    return 0 if model is None else int((model.max_context or 0) * model.rope_scaling_factor)


def kv_not_known(model: Architecture, args: ServerArgs, *, draft_kv: int) -> Iterator[tuple[str, str]]:
    """What of the KV is taken for granted, or not counted at all, and what to do about it."""
    if args.kv_cache_dtype == "auto" and kv_layers(model) and kv_of_checkpoint(model, args.engine_version) is None:
        from hybridcalc.engines.checkpoints import kv_cache_open

        yield kv_cache_open("SGLang", kv_dtype(model, args)), "write --kv-cache-dtype fp8_e4m3 if it does"
    if args.speculative and args.speculative_algorithm not in NO_DRAFT_KV and not draft_kv:
        yield "no KV of a draft model is counted", "--draft-layers or --draft-kv-bytes-per-token adds it"


def draft_numbers(args: ServerArgs) -> Iterator[tuple[str, str]]:
    """Drafts that are not what is typed, or not enough: those of a chain follow from its steps."""
    lacking = lacking_of_chain(args)
    if lacking is not None:
        yield lacking.message, lacking.fix
    typed = args.speculative_num_draft_tokens
    if typed is None or args.speculative_algorithm not in CHAINED_DRAFTS or args.max_draft_tokens is not None:
        return
    if typed != args.draft_tokens:
        steps = f"--speculative-num-steps {args.speculative_num_steps} + 1"
        said = f"--speculative-num-draft-tokens {typed} is taken as {args.draft_tokens}: {steps} where topk is 1"
        yield said, Write("", args.draft_tokens)


def model_notes(model: Architecture, args: ServerArgs, workload: Workload) -> list[str]:
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
    if args.kv_cache_dtype == "auto" and kv_of_checkpoint(model, args.engine_version) == "fp8":
        notes.append(f"--kv-cache-dtype auto is {kv_dtype(model, args)}, as the checkpoint's quantization_config says")
    if args.speculative and args.drafts_unset and args.draft_tokens:
        notes.append(f"{args.draft_tokens} draft tokens, SGLang's default where none are given")
    unknown = sorted(name for name in args.env if name not in KNOWN_ENVIRONMENT)
    if unknown:
        notes.append(f"{', '.join(unknown)[:60]}: no switch that changes a figure here")
    return notes
