"""What does vLLM do in its own way for each model class, and for each family of recurrent layers?

`CLASSES` has the classes whose layers hold a recurrent state; those of attention alone need no entry. A class that is
not there yet or removed is refused, and so is a hybrid that no registry has; `NOT_MODELLED` are those that vLLM has and
nobody can plan here. Source: vLLM model_executor/models/registry.py, models/ (0.33.0, 0.22.1, and the registries of the
releases between them for the bounds).

`FAMILY_RULES` has a row for each family that vLLM runs: the tensors of a layer. Per layer and rank, S speculative
tokens widen the convolution window by S rows (not Mamba1's nor PLaMo-2's; KDA's and short ones from a release on that
says so). Windows are (rows, width). Divisors are the engine's own: GDN replicates no groups, Mamba2 takes no ranks that
neither divide its groups nor share one, lightning rounds down. Mirrors model_executor/layers/mamba/mamba_utils.py.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from hybridcalc.architecture import Architecture
from hybridcalc.architecture.families import rule_for, shard_groups
from hybridcalc.engines.vllm.releases import RuleSet
from hybridcalc.errors import NotModelled, Refusal, ShardingError, with_release
from hybridcalc.formulas import blocks_for
from hybridcalc.units import is_later

if TYPE_CHECKING:
    from hybridcalc.architecture.families.gdn import GatedDeltaNet
    from hybridcalc.architecture.families.kda import KimiDelta
    from hybridcalc.architecture.families.lightning import Lightning
    from hybridcalc.architecture.families.mamba1 import Mamba1
    from hybridcalc.architecture.families.mamba2 import Mamba2
    from hybridcalc.architecture.families.shortconv import ShortConv


class ModelClass(NamedTuple):
    """What vLLM does for one class.

    ``first`` and ``last`` bound the releases that have it ("" where no known release lies beyond). ``attention_first``:
    its attention layers register before its recurrent ones. ``caches_all``: 0.22.1 can keep a state at every block.
    ``class_omits_drafts``: in 0.22.1 the class sizes the page without the rows that drafts add to the layer;
    ``without_draft_rows``: they add none. ``layers_unlisted``: its config names no layers of full attention.
    ``checkpoint``: the prefill kernel that exports states between blocks, by its name in ``checkpoints`` of a release
    ("" for none). ``state_dtype_obeyed``: a KDA layer that takes --mamba-ssm-cache-dtype; ``keeps_records``: one that
    keeps the records of drafts that its class counts. ``default_chunk``: 2,048 tokens, whatever the config says.
    ``ignores_window``: its window layers keep full KV. ``mtp_layers``: attention layers of its own draft model, where
    the config names no number; ``mtp_first``: the release that drafts with them first, where it is not the class's own;
    ``mtp_whole``: they are not cut into pipeline stages, in releases that cut drafts as their target.
    ``runner_v2``: model runner V2 serves it in the releases where V1 is the default; ``states_undeclared``: its class
    does not say that it has states, for which releases refuse that runner.
    ``indexed``: it may keep an index beside attention; ``embedded_state``: and a state of n-gram embeddings.
    ``fp8_on_blackwell``: auto is fp8 for its KV on compute capability 10.x, in the releases that say so.
    ``conv_windows``: convolutions are kept as windows of a few tokens, not as states. ``state_backend``: its own, where
    that is not the family's; ``beside``: backends of other caches.
    """

    first: str = ""
    last: str = ""
    attention_first: bool = False
    caches_all: bool = False
    class_omits_drafts: bool = False
    without_draft_rows: bool = False
    layers_unlisted: bool = False
    checkpoint: str = ""
    state_dtype_obeyed: bool = False
    keeps_records: bool = False
    default_chunk: bool = False
    ignores_window: bool = False
    mtp_layers: int = 0
    mtp_first: str = ""
    mtp_whole: bool = False
    runner_v2: bool = False
    states_undeclared: bool = False
    indexed: bool = False
    embedded_state: bool = False
    fp8_on_blackwell: bool = False
    conv_windows: bool = False
    state_backend: str = ""
    beside: tuple[str, ...] = ()


_MAMBA2 = ModelClass(caches_all=True, checkpoint="mamba2")
_MAMBA1 = ModelClass(caches_all=True, default_chunk=True)
_QWEN = ModelClass(checkpoint="gdn", mtp_layers=1, mtp_whole=True)
_GLM = ModelClass(
    first="0.30.0", checkpoint="kda of GLM-5.3", mtp_layers=1, indexed=True, fp8_on_blackwell=True,
    beside=("DEEPSEEK_V32_INDEXER", "KPOOL_TAIL"),
)  # fmt: skip
_INKLING = ModelClass(first="0.26.0", mtp_whole=True, conv_windows=True, beside=("INKLING_SCONV_SWA",))
_QWEN4 = _QWEN._replace(
    first="0.29.0", mtp_whole=False, indexed=True, embedded_state=True,
    beside=("PLE_SHORT_CONV_ATTN", "QWEN4_EXP_EXP_QSA_STATE"),
)  # fmt: skip

CLASSES: dict[str, ModelClass] = {
    "NemotronHForCausalLM": _MAMBA2,
    "NemotronHPuzzleForCausalLM": _MAMBA2,
    "NemotronH_Nano_VL_V2": _MAMBA2,
    "NemotronH_Nano_Omni_Reasoning_V3": _MAMBA2,
    "GraniteMoeHybridForCausalLM": _MAMBA2._replace(class_omits_drafts=True),
    "FalconH1ForCausalLM": _MAMBA2._replace(class_omits_drafts=True, attention_first=True),
    "Zamba2ForCausalLM": _MAMBA2._replace(class_omits_drafts=True, attention_first=True),
    "BambaForCausalLM": _MAMBA2._replace(class_omits_drafts=True, last="0.23.0"),
    "Mamba2ForCausalLM": _MAMBA2,
    "MambaForCausalLM": _MAMBA1,
    "FalconMambaForCausalLM": _MAMBA1,
    "JambaForCausalLM": _MAMBA1,
    "Plamo2ForCausalLM": ModelClass(last="0.26.0", ignores_window=True, without_draft_rows=True, layers_unlisted=True),
    "Qwen3NextForCausalLM": _QWEN,
    "Qwen3_5ForConditionalGeneration": _QWEN._replace(states_undeclared=True),
    "Qwen3_5MoeForConditionalGeneration": _QWEN._replace(states_undeclared=True),
    "Qwen3_5ForCausalLM": _QWEN._replace(first="0.27.0", mtp_first="0.28.0"),
    "Qwen3_5MoeForCausalLM": _QWEN._replace(first="0.27.0", mtp_first="0.28.0"),
    "Qwen4ExpForConditionalGeneration": _QWEN4,
    "Qwen4ExpForCausalLM": _QWEN4,
    "InklingForConditionalGeneration": _INKLING,
    "InklingForCausalLM": _INKLING,
    "OlmoHybridForCausalLM": ModelClass(),
    "Qwen3ForCausalLM": ModelClass(ignores_window=True),
    "KimiLinearForCausalLM": ModelClass(),
    "KimiK3ForConditionalGeneration": ModelClass(
        first="0.27.0",
        checkpoint="kda",
        state_dtype_obeyed=True,
        keeps_records=True,
        mtp_whole=True,
        runner_v2=True,
        state_backend="KIMI_K3_KDA",
    ),
    "Glm5NextForConditionalGeneration": _GLM,
    "Glm5NextForCausalLM": _GLM,
    "BailingMoeV2_5ForCausalLM": ModelClass(
        mtp_layers=1, mtp_first="0.26.0", mtp_whole=True, state_backend="BAILING_LINEAR_ATTN"
    ),
    "BailingMoeV3ForCausalLM": ModelClass(first="0.28.0", mtp_layers=1),
    "MiniMaxForCausalLM": ModelClass(last="0.23.0"),
    "MiniMaxText01ForCausalLM": ModelClass(last="0.23.0"),
    "MiniMaxM1ForCausalLM": ModelClass(last="0.23.0"),
    "Lfm2ForCausalLM": ModelClass(),
    "Lfm2MoeForCausalLM": ModelClass(),
    "Lfm2VlForConditionalGeneration": ModelClass(states_undeclared=True),
}
"""Every class with a recurrent state that is modelled here. A new one is added here."""


NOT_MODELLED = {
    "AliceAIForCausalLM": "",
    "MiniCPMV4_6ForConditionalGeneration": "", "BailingMoeV3VLForConditionalGeneration": "",
}  # fmt: skip
"""Classes that vLLM has and whose caches no plan here knows (index caches, several kinds of state), each with its first
release where that is known.
"""


def model_class(model: Architecture, version: str) -> ModelClass:
    """What the version does for the model's class. Raises Refusal for a class that it does not have, InputError
    for one that is not modelled.
    """
    name = model.architecture
    found, first = CLASSES.get(name), NOT_MODELLED.get(name, "")
    if first and is_later(first, version):
        raise _too_early(name, version, first)
    if found is None:
        if model.state is None:
            return ModelClass()
        from hybridcalc.engines.elsewhere import elsewhere

        if name in NOT_MODELLED:
            raise NotModelled(
                f"the hybrid class {name} is not modelled for vLLM",
                lacking=f"the hybrid class {name}",
                fix=elsewhere("vllm", model),
            )
        raise Refusal(
            f"vLLM {version} has no hybrid class {name}",
            stage="create_engine_config",
            rule="HC043",
            fix=elsewhere("vllm", model),
        )
    if found.last and is_later(version, found.last):
        raise Refusal(
            f"vLLM {version} no longer has {name}: the last version that had it is {found.last}",
            stage="create_engine_config",
            rule="HC043",
            fix=with_release(found.last),
            release=found.last,
        )
    if found.first and is_later(found.first, version):
        raise _too_early(name, version, found.first)
    return found


def _too_early(name: str, version: str, first: str) -> Refusal:
    return Refusal(
        f"vLLM {version} has no class {name} yet: the first version that has it is {first}",
        stage="create_engine_config",
        rule="HC043",
        fix=with_release(first),
        release=first,
    )


class Layer(NamedTuple):
    """One layer's state on a rank, in elements: convolution windows as (rows, width), and the temporal state."""

    windows: tuple[tuple[int, int], ...]
    temporal: tuple[int, ...] = ()


class FamilyRule(NamedTuple):
    """``backend``: name of the state backend. ``layer``: the state for (sizes, ranks, draft tokens, release's rules).

    ``ssm_dtype``: the temporal state has a dtype of its own; without one it is in the convolution's. ``kernel_dtypes``:
    values of --mamba-ssm-cache-dtype that the kernels take, where they do not take all (``kda_dtype_obeyed`` of the
    release); such a state is float32 unless the class obeys the flag, and the class sizes the page by the flag in any
    case. ``pages_omit_drafts``: the class sizes the page without the rows of drafts. ``context_parallel``: the rule of
    a release that lets it run context parallelism ("" for all); ``float32``: that lets --mamba-cache-dtype be float32;
    ``draft_graphs``: that runs drafts in full CUDA graphs.
    ``rings``: the shapes of ReplaySSM's x, dt and B rings
    for (sizes, ranks, steps). ``records``: those of what drafts are recovered from, float32 first and then in the
    model's dtype, for (sizes, ranks, drafts).
    """

    backend: str
    layer: Callable[[Any, int, int, RuleSet], Layer]
    ssm_dtype: bool = True
    kernel_dtypes: tuple[str, ...] = ()
    pages_omit_drafts: bool = False
    context_parallel: str = ""
    float32: str = ""
    draft_graphs: str = ""
    rings: Callable[[Any, int, int], tuple[tuple[int, ...], ...]] | None = None
    records: Callable[[Any, int, int], tuple[tuple[int, ...], ...]] | None = None


def family_rule(model: Architecture) -> FamilyRule:
    """What vLLM does with the family of ``model``, which has one. Raises UnknownFamily where it has no rule for it."""
    return rule_for(model.family, FAMILY_RULES, "vLLM")


VOCABULARY_ROWS = 64
"""What the rows of the vocabulary are rounded up to."""


def splits_vocabulary(model: Architecture, ranks: int) -> bool:
    """Whether ``ranks`` divide the vocabulary, as rounded up to 64 rows; no objection where its size is not known.

    Source: vLLM model_executor/layers/vocab_parallel_embedding.py, the same from 0.18.0 to 0.33.0 in all classes.
    """
    if VOCABULARY_ROWS % ranks == 0:
        return True
    from hybridcalc.architecture.weights import config_numbers

    (tokens,) = config_numbers(model, ("vocab_size",))
    return not tokens or blocks_for(tokens, VOCABULARY_ROWS) * VOCABULARY_ROWS % ranks == 0


CHANNELS, HEADS = "channels of the convolution", "heads of the state"
NORMED = "BailingMoeV2_5"
"""How classes begin whose linear layers norm heads in groups that ranks must divide."""


def splits_norm_groups(model: Architecture, ranks: int) -> bool:
    """Whether ``ranks`` divide the groups of a linear layer's norm, one where a config names none; no objection where
    the config is not known. Source: vLLM model_executor/layers/mamba/linear/bailing_linear_attn.py (0.18.0: models/).
    """
    if not model.architecture.startswith(NORMED):
        return True
    from hybridcalc.architecture.weights import config_numbers

    (groups,) = config_numbers(model, ("group_norm_size",))
    return (groups or ranks if model.config is None else groups or 1) % ranks == 0


def undivided(model: Architecture, ranks: int) -> str:
    """What of a model, beside heads and states, ``ranks`` do not divide; empty for nothing."""
    if not splits_vocabulary(model, ranks):
        return "rows of the vocabulary"
    return "" if splits_norm_groups(model, ranks) else "groups of the norm"


def _gdn(state: "GatedDeltaNet", tp: int, drafts: int, rules: RuleSet) -> Layer:
    channels = 2 * state.k_head_dim * state.num_k_heads + state.v_head_dim * state.num_v_heads
    window = (state.conv_kernel - 1 + drafts, _divide(channels, tp))
    return Layer((window,), (_divide(state.num_v_heads, tp, HEADS), state.v_head_dim, state.k_head_dim))


def _kda(state: "KimiDelta", tp: int, drafts: int, rules: RuleSet) -> Layer:
    part = _divide(state.num_heads * state.head_dim, tp)
    rows = state.conv_kernel - 1 + (drafts if rules.kda_draft_rows else 0)
    windows: tuple[tuple[int, int], ...] = ((rows, 3 * part),) if rules.kda_joined else ((rows, part),) * 3
    return Layer(windows, (_divide(state.num_heads, tp, HEADS), state.head_dim, state.head_dim))


def _kda_records(state: "KimiDelta", tp: int, drafts: int) -> tuple[tuple[int, ...], ...]:
    heads = _divide(state.num_heads, tp, HEADS)
    return (heads, 1 + drafts, state.head_dim), (heads, 1 + drafts, 2 * state.head_dim)


def _mamba2(state: "Mamba2", tp: int, drafts: int, rules: RuleSet) -> Layer:
    if state.n_groups % tp and state.n_groups != 1:
        raise ShardingError(
            f"vLLM runs {state.n_groups} Mamba2 groups only on rank counts that divide them, not {tp}",
            total=state.n_groups,
            parts=tp,
        )
    width = _divide(state.inner_size + 2 * shard_groups(state.n_groups, tp) * state.state_size, tp)
    return Layer(
        ((state.conv_kernel - 1 + drafts, width),),
        (_divide(state.num_heads, tp, HEADS), state.head_dim, state.state_size),
    )


def _mamba2_rings(state: "Mamba2", tp: int, steps: int) -> tuple[tuple[int, ...], ...]:
    heads, groups = _divide(state.num_heads, tp, HEADS), shard_groups(state.n_groups, tp) // tp
    return (heads, steps, state.head_dim), (heads, steps), (groups, steps, state.state_size)


def _mamba1(state: "Mamba1", tp: int, drafts: int, rules: RuleSet) -> Layer:
    width = _divide(state.inner_size, tp)
    return Layer(((state.conv_kernel - 1, width),), (width, state.state_size))


def _lightning(state: "Lightning", tp: int, drafts: int, rules: RuleSet) -> Layer:
    return Layer((), (state.num_heads // tp, state.head_dim, state.head_dim))


def _shortconv(state: "ShortConv", tp: int, drafts: int, rules: RuleSet) -> Layer:
    more = drafts if rules.shortconv_draft_rows else 0
    return Layer(tuple((stream.rows + more, _divide(stream.width, tp)) for stream in state.streams))


def _divide(total: int, tp: int, what: str = CHANNELS) -> int:
    if total % tp:
        raise ShardingError(f"tensor parallel size {tp} does not divide {total:,} {what}", total=total, parts=tp)
    return total // tp


FAMILY_RULES = {
    "gdn": FamilyRule("GDN_ATTN", _gdn),
    "kda": FamilyRule(
        "GDN_ATTN",
        _kda,
        kernel_dtypes=("auto", "float32", "bfloat16"),
        context_parallel="kda_context_parallel",
        records=_kda_records,
    ),
    "mamba2": FamilyRule("MAMBA2_ATTN", _mamba2, rings=_mamba2_rings),
    "mamba1": FamilyRule("MAMBA1_ATTN", _mamba1),
    "lightning": FamilyRule(
        "LINEAR_ATTN", _lightning, ssm_dtype=False, float32="lightning_float32", draft_graphs="lightning_draft_graphs"
    ),
    "shortconv": FamilyRule("SHORT_CONV_ATTN", _shortconv, ssm_dtype=False, pages_omit_drafts=True),
}
