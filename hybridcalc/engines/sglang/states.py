"""How many bytes does SGLang keep for one state slot, in which shapes and dtypes, family by family?

    slot = layers * (sum over conv windows of rows * width * sizeof(conv) + prod(temporal) * sizeof(ssm))

layers counts the whole model's recurrent layers, shapes are those of one rank. conv dtype: SGLANG_MAMBA_CONV_DTYPE,
else bfloat16. ssm dtype: --mamba-ssm-dtype, else SGLANG_MAMBA_SSM_DTYPE, else the config's mamba_ssm_dtype where the
model class reads it, else float32. Shapes are ordered as the engine orders them: (width, rows), but (rows, width) for
KDA and Inkling; temporal states have three axes, and families without one of the two parts an empty shape in its place.
FAMILY_RULES has a row for each family that the engine runs, and one for models without a state.
Mirrors configs/mamba_utils.py, mem_cache/memory_pool.py (0.5.23).
"""

from collections.abc import Callable
from typing import Any, NamedTuple

from hybridcalc.architecture import Architecture
from hybridcalc.architecture.families import StateShapes, rule_for
from hybridcalc.engines.sglang.config import ServerArgs
from hybridcalc.engines.sglang.releases import RuleSet
from hybridcalc.errors import InputError, NotModelled, printable
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
