"""Which tensors does a vLLM layer keep as its recurrent state, in which dtypes, and how many bytes are they?

Convolution windows come first, then the temporal state (families.py); windows are (rows, width), or (width, rows) under
VLLM_SSM_CONV_STATE_LAYOUT=DS. ReplaySSM appends three rings to Mamba2. dtypes when nothing is set: conv in the model's
dtype, temporal state like conv, but KDA float32, Nemotron-H its config's mamba_ssm_cache_dtype or float32, Qwen3.5 its
config's mamba_ssm_dtype. Mirrors model_executor/layers/mamba/mamba_utils.py and models/config.py (0.33.0).
"""

from math import prod
from typing import NamedTuple

from hybridcalc.architecture.geometry import Architecture
from hybridcalc.engines.vllm.classes import CLASSES, ModelClass
from hybridcalc.engines.vllm.config import EngineArgs
from hybridcalc.engines.vllm.families import family_rule
from hybridcalc.engines.vllm.releases import rules_for
from hybridcalc.errors import IllegalCombination, InputError, NotModelled, quoted
from hybridcalc.units import DTYPE_BYTES

STATE_DTYPES = ("float32", "bfloat16", "float16")
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

    Raises InputError for a model without recurrent layers or of a family that vLLM has no rule for, ShardingError where
    the layer refuses the rank count.
    """
    if model.state is None:
        raise NotModelled(f"{model.name} has no recurrent layer: it keeps no state")
    rule = family_rule(model)
    conv_dtype, ssm_dtype = _dtypes(model, args)
    release = rules_for(args.engine_version)[0]
    layer = rule.layer(model.state, args.tensor_parallel_size, args.num_speculative_tokens, release)
    tensors = [StateTensor(_laid_out(window, args), conv_dtype) for window in layer.windows]
    if layer.temporal:
        tensors.append(StateTensor(layer.temporal, ssm_dtype if rule.ssm_dtype else conv_dtype))
    return (*tensors, *_replay_rings(model, args))


def state_parts(model: Architecture, args: EngineArgs, tensors: tuple[StateTensor, ...]) -> tuple[int, int]:
    """Bytes of one layer's convolution windows, and of its temporal state; rings of ReplaySSM are in neither."""
    assert model.state is not None  # noqa: S101  (who has tensors of a state has a state)
    release = rules_for(args.engine_version)[0]
    layer = family_rule(model).layer(model.state, args.tensor_parallel_size, args.num_speculative_tokens, release)
    windows = len(layer.windows)
    temporal = tensors[windows].bytes if layer.temporal else 0
    return sum(tensor.bytes for tensor in tensors[:windows]), temporal


def state_bytes_per_layer(model: Architecture, args: EngineArgs) -> int:
    """Bytes of one layer's state on one rank: the Mamba page before padding."""
    return sum(tensor.bytes for tensor in layer_state(model, args))


def _dtypes(model: Architecture, args: EngineArgs) -> tuple[str, str]:
    model_dtype = model.model_dtype if args.dtype == "auto" else args.dtype
    conv = model_dtype if args.mamba_cache_dtype == "auto" else args.mamba_cache_dtype
    if takes := family_rule(model).kernel_dtypes:
        if args.mamba_ssm_cache_dtype not in takes:
            label = model.state.label if model.state is not None else ""
            raise IllegalCombination(
                f"vLLM keeps no {label} state in {args.mamba_ssm_cache_dtype}",
                fix=f"one of {', '.join(takes)}",
                flag="--mamba-ssm-cache-dtype",
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
        raise InputError(
            f"{model.name} declares a state dtype {quoted(dtype)}", fix=f"one of {', '.join(STATE_DTYPES)}"
        )
    return dtype


def _laid_out(shape: tuple[int, int], args: EngineArgs) -> tuple[int, int]:
    return shape[::-1] if args.env.get("VLLM_SSM_CONV_STATE_LAYOUT") == "DS" else shape


def _replay_rings(model: Architecture, args: EngineArgs) -> tuple[StateTensor, ...]:
    """ReplaySSM's x, dt and B rings; the FlashInfer backend keeps 1 + S steps more."""
    rings = family_rule(model).rings
    if not args.use_replayssm or rings is None:
        return ()
    steps = args.replayssm_buffer_len
    if args.mamba_backend == "flashinfer":
        steps += 1 + args.num_speculative_tokens
    x, dt, b = rings(model.state, args.tensor_parallel_size, steps)
    dtype = model.model_dtype if args.dtype == "auto" else args.dtype
    return StateTensor(x, dtype), StateTensor(dt, "float32"), StateTensor(b, dtype)
