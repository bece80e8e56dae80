"""Which tensors does a vLLM layer keep as its recurrent state, in which dtypes, and how many bytes are they?

Per layer and rank, S speculative tokens widen the convolution window by S rows (Mamba1 excepted; in 0.22 KDA and short
convolutions too). Shapes are (rows, width), or (width, rows) under VLLM_SSM_CONV_STATE_LAYOUT=DS. ReplaySSM appends
three rings to Mamba2. dtypes when nothing is set: conv in the model's dtype, temporal state like conv, but KDA float32,
Nemotron-H its config's mamba_ssm_cache_dtype or float32, Qwen3.5 its config's mamba_ssm_dtype.
Mirrors model_executor/layers/mamba/mamba_utils.py and models/config.py (0.33.0).
"""

from math import prod
from typing import NamedTuple

from hybridcalc.architecture.families import shard_groups
from hybridcalc.architecture.geometry import (
    Architecture,
    GatedDeltaNet,
    KimiDelta,
    Lightning,
    Mamba1,
    Mamba2,
    ShortConv,
)
from hybridcalc.engines.vllm.classes import CLASSES, ModelClass
from hybridcalc.engines.vllm.config import EngineArgs, rules_for
from hybridcalc.errors import IllegalCombination, InputError, ShardingError
from hybridcalc.units import DTYPE_BYTES

STATE_DTYPES = ("float32", "bfloat16", "float16")
KDA_STATE_DTYPES = ("auto", "float32", "bfloat16")
NEMOTRON = ("NemotronHForCausalLM", "NemotronHPuzzleForCausalLM", "NemotronH_Nano_VL_V2")
"""Classes whose state is float32 unless their config names another dtype."""
QWEN3_5 = (
    "Qwen3_5ForConditionalGeneration", "Qwen3_5MoeForConditionalGeneration",
    "Qwen3_5ForCausalLM", "Qwen3_5MoeForCausalLM",
)  # fmt: skip


class StateTensor(NamedTuple):
    """One tensor of a layer's state: shape in elements and dtype."""

    shape: tuple[int, ...]
    dtype: str

    @property
    def bytes(self) -> int:
        """Bytes of the tensor."""
        return prod(self.shape) * DTYPE_BYTES[self.dtype]


def layer_state(model: Architecture, args: EngineArgs) -> tuple[StateTensor, ...]:
    """State tensors of one recurrent layer on one rank, in the engine's order.

    Raises InputError for a model without recurrent layers, ShardingError where the layer refuses the rank count.
    """
    state, tp = model.state, args.tensor_parallel_size
    if state is None:
        raise InputError(f"{model.name} has no recurrent layer: it keeps no state")
    conv_dtype, ssm_dtype = _dtypes(model, args)
    extra = args.num_speculative_tokens
    conv: list[tuple[int, int]]
    temporal: tuple[int, ...]
    match state:
        case Mamba1():
            width = _divide(state.inner_size, tp)
            conv, temporal = [(state.conv_kernel - 1, width)], (width, state.state_size)
        case Mamba2():
            conv, temporal = [(state.conv_kernel - 1 + extra, _mamba2_width(state, tp))], _mamba2_temporal(state, tp)
        case GatedDeltaNet():
            channels = 2 * state.k_head_dim * state.num_k_heads + state.v_head_dim * state.num_v_heads
            conv = [(state.conv_kernel - 1 + extra, _divide(channels, tp))]
            temporal = (_divide(state.num_v_heads, tp), state.v_head_dim, state.k_head_dim)
        case KimiDelta():
            part = _divide(state.num_heads * state.head_dim, tp)
            conv = [(state.conv_kernel - 1 + extra, 3 * part)]
            if not rules_for(args.engine_version)[0].kda_draft_rows:
                conv = [(state.conv_kernel - 1, part)] * 3
            temporal = (_divide(state.num_heads, tp), state.head_dim, state.head_dim)
        case Lightning():
            return (StateTensor((state.num_heads // tp, state.head_dim, state.head_dim), conv_dtype),)
        case ShortConv():
            rows = extra if rules_for(args.engine_version)[0].shortconv_draft_rows else 0
            return tuple(
                StateTensor(_laid_out((s.rows + rows, _divide(s.width, tp)), args), conv_dtype) for s in state.streams
            )
    tensors = [StateTensor(_laid_out(shape, args), conv_dtype) for shape in conv]
    return (*tensors, StateTensor(temporal, ssm_dtype), *_replay_rings(model, args))


def state_bytes_per_layer(model: Architecture, args: EngineArgs) -> int:
    """Bytes of one layer's state on one rank: the Mamba page before padding."""
    return sum(tensor.bytes for tensor in layer_state(model, args))


def _dtypes(model: Architecture, args: EngineArgs) -> tuple[str, str]:
    model_dtype = model.model_dtype if args.dtype == "auto" else args.dtype
    conv = model_dtype if args.mamba_cache_dtype == "auto" else args.mamba_cache_dtype
    if isinstance(model.state, KimiDelta):
        if args.mamba_ssm_cache_dtype not in KDA_STATE_DTYPES:
            raise IllegalCombination(
                f"vLLM keeps no KDA state in {args.mamba_ssm_cache_dtype}", fix=f"one of {', '.join(KDA_STATE_DTYPES)}"
            )
        obeyed = (
            CLASSES.get(model.architecture, ModelClass()).state_dtype_obeyed and args.mamba_ssm_cache_dtype != "auto"
        )
        return conv, args.mamba_ssm_cache_dtype if obeyed else "float32"
    if args.mamba_ssm_cache_dtype != "auto":
        return conv, args.mamba_ssm_cache_dtype
    if model.architecture in NEMOTRON:
        return conv, _declared(model, model.declared_ssm_cache_dtype or "float32")
    if model.architecture in QWEN3_5 and model.declared_ssm_dtype is not None:
        return conv, _declared(model, model.declared_ssm_dtype)
    return conv, conv


def _declared(model: Architecture, dtype: str) -> str:
    """A state dtype that a config names. Raises InputError for one that is none."""
    if dtype not in STATE_DTYPES:
        raise InputError(f"{model.name} declares a state dtype {dtype[:40]!r}", fix=f"one of {', '.join(STATE_DTYPES)}")
    return dtype


def _divide(total: int, tp: int) -> int:
    if total % tp:
        raise ShardingError(f"tensor parallel size {tp} does not divide {total:,}", total=total, parts=tp)
    return total // tp


def _mamba2_width(state: Mamba2, tp: int) -> int:
    if state.n_groups % tp and state.n_groups != 1:
        raise ShardingError(
            f"vLLM runs {state.n_groups} Mamba2 groups only on rank counts that divide them, not {tp}",
            total=state.n_groups,
            parts=tp,
        )
    return _divide(state.inner_size + 2 * shard_groups(state.n_groups, tp) * state.state_size, tp)


def _mamba2_temporal(state: Mamba2, tp: int) -> tuple[int, ...]:
    return (_divide(state.num_heads, tp), state.head_dim, state.state_size)


def _laid_out(shape: tuple[int, int], args: EngineArgs) -> tuple[int, int]:
    return shape[::-1] if args.env.get("VLLM_SSM_CONV_STATE_LAYOUT") == "DS" else shape


def _replay_rings(model: Architecture, args: EngineArgs) -> tuple[StateTensor, ...]:
    """ReplaySSM's x, dt and B rings; the FlashInfer backend keeps 1 + S steps more."""
    state, tp = model.state, args.tensor_parallel_size
    if not args.use_replayssm or not isinstance(state, Mamba2):
        return ()
    steps = args.replayssm_buffer_len
    if args.mamba_backend == "flashinfer":
        steps += 1 + args.num_speculative_tokens
    heads, groups = _divide(state.num_heads, tp), shard_groups(state.n_groups, tp) // tp
    dtype = model.model_dtype if args.dtype == "auto" else args.dtype
    return (
        StateTensor((heads, steps, state.head_dim), dtype),
        StateTensor((heads, steps), "float32"),
        StateTensor((groups, steps, state.state_size), dtype),
    )
