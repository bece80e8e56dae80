"""What does one layer keep: which attention backend serves, how large is a KV element, which tensors are a state?

The backend follows from the GPU, the KV dtype, the model's dtype and the head size. Its smallest kernel block is what a
KV block is a multiple of. Layouts are named by their axes: block B, layer L, position N, head H, channel C. Leaves out
platforms other than CUDA, and kernels that an installation may add: with FlashMLA a Hopper runs fp8 MLA on blocks of 64
and prints so, which changes no size since MLA blocks are multiples of 128.

Of a state, convolution windows come first, then the temporal state (families.py); windows are (rows, width), or (width,
rows) under VLLM_SSM_CONV_STATE_LAYOUT=DS. ReplaySSM appends three rings to Mamba2. dtypes when nothing is set: conv in
the model's dtype, temporal state like conv, but KDA float32, Nemotron-H its config's mamba_ssm_cache_dtype or float32,
Qwen3.5 its config's mamba_ssm_dtype. Mirrors vLLM platforms/cuda.py, v1/attention/backends/, model_executor/layers/
mamba/mamba_utils.py, models/config.py (0.33.0).
"""

from collections.abc import Callable
from math import prod
from typing import NamedTuple

from hybridcalc.architecture import Architecture, GroupedQueryKV, LatentKV
from hybridcalc.engines.vllm import EngineArgs
from hybridcalc.engines.vllm.families import CLASSES, ModelClass, family_rule
from hybridcalc.engines.vllm.releases import RELEASES, RuleSet, rules_for
from hybridcalc.errors import IllegalCombination, InputError, NotModelled, Refusal, Write, quoted, with_release
from hybridcalc.units import DTYPE_BYTES

DEFAULT_BLOCK = 16
"""Tokens of a block where nothing asks for another."""
FREE_LAYOUTS = ("LBNHC", "LBHNC", "BLNHC", "BLHNC")
FLASHINFER_LAYOUTS = ("LBHNC", "BLHNC")
PURE_STATE_LAYOUTS = (*FREE_LAYOUTS, "BHLNC", "LHBNC")
LAYOUT_ALIASES = {"NHD": "LBNHC", "HND": "LBHNC"}
FLASHINFER_HEADS = (64, 128, 256, 512)
NARROW_HEAD = 64
"""Dimensions of a head whose nvfp4 KV is read on compute capability 10.x alone."""

KV_DTYPES = {
    "auto": 0, "float16": 2, "bfloat16": 2, "fp8": 1, "fp8_e4m3": 1, "fp8_e5m2": 1, "fp8_inc": 1,
}  # fmt: skip
"""--kv-cache-dtype values of whole elements -> bytes of one; 0 is the model's own dtype."""


class Packed(NamedTuple):
    """A KV format of scaled or packed values: the backend that reads it, and the bytes of a head's keys and values.

    ``capability``: the major compute capability that it needs, 0 for any; ``first``: the first release that has it.
    """

    backend: str
    bytes_of_head: Callable[[int, int], int]
    capability: int = 0
    first: str = "0.20.0"


def _scaled(bits: int) -> Callable[[int, int], int]:
    """Values of so many bits, and a scale in fp32 each for a token's keys and values."""
    return lambda key, value: key * bits // 8 + value * bits // 8 + 8


def _blocked(key: int, value: int) -> int:
    """Two values a byte and a scale of one byte for 16, for keys and values of the same size."""
    return 2 * (key // 2 + key // 16)


def _turbo(key_bits: int, value_bits: int) -> Callable[[int, int], int]:
    """Keys of 8 bits as they are, fewer with 2 bytes beside; values with 4 beside; an even number of bytes in all."""

    def bytes_of_head(key: int, value: int) -> int:
        keys = key if key_bits == 8 else -(-key * key_bits // 8) + 2
        both = keys + -(-value * value_bits // 8) + 4
        return both + both % 2

    return bytes_of_head


PACKED = {
    "int8_per_token_head": Packed("TRITON_ATTN", _scaled(8)), "fp8_per_token_head": Packed("TRITON_ATTN", _scaled(8)),
    "int4_per_token_head": Packed("TRITON_ATTN", _scaled(4), first="0.25.0"),
    "nvfp4": Packed("FLASHINFER", _blocked, 10), "nvfp4_4over6": Packed("FLASHINFER", _blocked, 10, "0.28.0"),
    "turboquant_k8v4": Packed("TURBOQUANT", _turbo(8, 4)), "turboquant_4bit_nc": Packed("TURBOQUANT", _turbo(4, 4)),
    "turboquant_k3v4_nc": Packed("TURBOQUANT", _turbo(3, 4)), "turboquant_3bit_nc": Packed("TURBOQUANT", _turbo(3, 3)),
}  # fmt: skip
"""--kv-cache-dtype values whose bytes are no multiple of the elements."""
UNFLASHED = "turboquant"
"""How those begin that FlashAttention never took."""
FIXED_BACKENDS = {
    "FLASH_ATTN": 16, "FLASHINFER": 16, "TRITON_ATTN": 16, "FLEX_ATTENTION": 16, "TURBOQUANT": 16,
    "FLASH_ATTN_MLA": 16, "TRITON_MLA": 16, "FLASHINFER_MLA": 32, "FLASHMLA": 64, "CUTLASS_MLA": 128,
}  # fmt: skip
"""Backends one can ask for -> their smallest kernel block in tokens."""


CAPABILITIES = {"FLASH_ATTN_MLA": (9,), "FLASHMLA": (9, 10), "CUTLASS_MLA": (10,), "FLASHINFER_MLA": (10,)}
"""Backends that some GPUs alone run -> their major compute capabilities."""


class Backend(NamedTuple):
    """An attention backend: its name, the smallest block of its kernels, the layouts it reads, the default first."""

    name: str
    kernel_block: int
    layouts: tuple[str, ...]


class Index(NamedTuple):
    """What an indexer keeps beside attention: a key of ``key_bytes`` for ``pool`` tokens, and ``raw_bytes`` of each
    token of the pool in progress. ``kernel_keys``: keys of the pages that its kernels read; ``rounded``: pools of its
    ring are a power of two; ``row``: bytes that the kernels of attention keep of a token, where the class says others.
    """

    pool: int
    key_bytes: int
    raw_bytes: int
    kernel_keys: tuple[int, ...] = ()
    rounded: bool = False
    row: int = 0

    def ring(self, drafts: int) -> int:
        """Tokens of the ring: whole pools, with room for drafts."""
        pools = -(-(self.pool + drafts) // self.pool)
        return self.pool * (1 << (pools - 1).bit_length() if self.rounded else pools)

    @property
    def kernel_tokens(self) -> int:
        """Tokens of the smallest page that its kernels read."""
        return self.pool * self.kernel_keys[0] if self.kernel_keys else 1

    def in_block(self, tokens: int) -> int:
        """Bytes of its keys in a block of so many tokens."""
        return tokens // self.pool * self.key_bytes


def attention_backend(model: Architecture, args: EngineArgs, rules: RuleSet, model_dtype: str) -> Backend | None:
    """The backend of the attention layers; None for a model that has none. Raises InputError for an unknown one."""
    if model.attention is None and model.window_attention is None:
        return None
    if args.attention_backend is not None:
        name = args.attention_backend.upper()
        if name not in FIXED_BACKENDS:
            asked = f"--attention-backend {args.attention_backend[:40]}"
            fix = f"one of {', '.join(FIXED_BACKENDS)}"
            raise NotModelled(f"{asked} is not modelled", lacking=asked, fix=fix, flag="--attention-backend")
        latent = isinstance(model.attention, LatentKV)
        if latent != name.endswith("MLA"):
            raise Refusal(
                f"{name} reads {'plain heads' if latent else 'latent rows'} alone, which {model.name} has none of",
                stage="initialize_model",
                rule="HC047",
                fix="leave out --attention-backend",
                flag="--attention-backend",
            )
        _check_asked(name, args)
        return _named(name, args)
    major, kv = args.capability[0], args.kv_cache_dtype
    if major == 9 and not isinstance(model.attention, LatentKV) and _flash_takes(kv, rules, model_dtype):
        return _named("FLASH_ATTN", args)
    if kv == "fp8_inc":
        raise Refusal(
            "--kv-cache-dtype fp8_inc does not start here: no backend on GPUs reads it",
            stage="initialize_model",
            rule="HC047",
            fix=Write("--kv-cache-dtype", "fp8"),
            flag="--kv-cache-dtype",
        )
    if kv in PACKED:
        if PACKED[kv].backend == "TURBOQUANT" and model.state is None:  # pages of two sizes
            lacking = f"--kv-cache-dtype {kv} of {model.name}, whose two layers at either end keep their own dtype,"
            raise NotModelled(f"{lacking} is not modelled", lacking=lacking, fix="write fp8 or auto")
        heads = model.attention if isinstance(model.attention, GroupedQueryKV) else model.window_attention
        narrow, latent = heads is None or heads.head_dim == NARROW_HEAD, isinstance(model.attention, LatentKV)
        on_any = kv == "nvfp4" and (rules.nvfp4_taken_anywhere or (rules.nvfp4_on_fa2 and not narrow))
        unread = PACKED[kv].capability and not (rules.nvfp4_taken and (on_any or major == PACKED[kv].capability))
        if latent or unread:
            why = "the latent rows of MLA are not packed" if latent else "its kernels need compute capability 10.x"
            why = why if latent or rules.nvfp4_taken else "no backend reads it in this release"
            raise Refusal(
                f"--kv-cache-dtype {kv} does not start here: {why}",
                stage="create_engine_config" if latent and PACKED[kv].capability else "initialize_model",
                rule="HC047",
                fix=Write("--kv-cache-dtype", "fp8"),
                flag="--kv-cache-dtype",
            )
        return _named(PACKED[kv].backend, args)
    if isinstance(model.attention, LatentKV):
        if model.attention.indexer is not None:
            return _sparse_backend(model.attention, kv, major, rules, model_dtype)
        if kv == "fp8_e5m2":
            raise Refusal(
                "--kv-cache-dtype fp8_e5m2 does not start here: no backend of MLA reads it",
                stage="initialize_model",
                rule="HC047",
                fix=Write("--kv-cache-dtype", "fp8"),
                flag="--kv-cache-dtype",
            )
        if major == 10 and (args.block_size or 0) % FIXED_BACKENDS["FLASHINFER_MLA"] == 0:
            return _named("FLASHINFER_MLA", args)
        triton = major != 9 or (kv.startswith("fp8") and rules.latent_fp8_triton)
        return _named("TRITON_MLA" if triton else "FLASH_ATTN_MLA", args)
    heads = model.attention if isinstance(model.attention, GroupedQueryKV) else model.window_attention
    if model_dtype == "float32" or kv == "fp8_e5m2":
        return _named("TRITON_ATTN", args)
    wide = major == 10 and heads is not None and heads.head_dim in FLASHINFER_HEADS
    return _named("FLASHINFER" if wide or (kv.startswith("fp8") and major != 9) else "FLASH_ATTN", args)


def _flash_takes(kv: str, rules: RuleSet, model_dtype: str) -> bool:
    """Whether FlashAttention takes a format of KV on Hopper that it does not read (see HC047)."""
    packed = rules.flash_takes_packed and kv in PACKED and not kv.startswith(UNFLASHED)
    return model_dtype != "float32" and (packed or (rules.flash_takes_fp8 and KV_DTYPES.get(kv) == 1))


def _check_asked(name: str, args: EngineArgs) -> None:
    """Raise Refusal for a backend that the GPU does not run, or that does not read the KV format."""
    kv, majors = args.kv_cache_dtype, CAPABILITIES.get(name, (args.capability[0],))
    if args.capability[0] not in majors:
        reason = f"{name} runs on compute capability {' and '.join(f'{major}.x' for major in majors)} alone"
    elif PACKED[kv].backend != name if kv in PACKED else kv.startswith("fp8") and not _reads_fp8(name, args):
        reason = f"{name} does not read --kv-cache-dtype {kv}"
    else:
        return
    raise Refusal(
        reason, stage="initialize_model", rule="HC047", fix="leave out --attention-backend", flag="--attention-backend"
    )


def check_mixed(model: Architecture, args: EngineArgs, rules: RuleSet) -> None:
    """Raise Refusal for ModelOpt's mixed precision on a GPU that the release does not load it on."""
    from hybridcalc.engines.checkpoints import mixed_precision

    major, minor = args.capability
    if args.rocm or 10 * major + minor >= rules.mixed_from or not mixed_precision(model, args.quantization):
        return
    first = RELEASES.oldest_with("mixed_from", RELEASES.rule_sets[-1].mixed_from)
    older = rules.mixed_from > RELEASES.rule_sets[-1].mixed_from
    raise Refusal(
        f"modelopt_mixed needs compute capability {rules.mixed_from / 10}, not {args.gpu_capability}",
        stage="create_engine_config",
        rule="HC047",
        fix=with_release(first) if older else "load another checkpoint",
        release=first if older else "",
    )


def _reads_fp8(name: str, args: EngineArgs) -> bool:
    """Whether a backend that one asks for reads the fp8 format. FlashAttention reads e4m3, on Hopper and Blackwell."""
    if name == "FLASH_ATTN":
        return args.kv_cache_dtype != "fp8_e5m2" and args.capability[0] in (9, 10)
    return name not in ("FLASH_ATTN_MLA", "FLEX_ATTENTION")


def _named(name: str, args: EngineArgs) -> Backend:
    """A backend by its name. FlashInfer reads heads first on compute capability 10.x alone."""
    heads_first = name == "FLASHINFER" and args.capability[0] == 10
    return Backend(name, FIXED_BACKENDS[name], FLASHINFER_LAYOUTS if heads_first else FREE_LAYOUTS)


def _sparse_backend(attention: LatentKV, kv: str, major: int, rules: RuleSet, model_dtype: str) -> Backend:
    """The backend of sparse MLA, whose index says where layers lie."""
    layouts = ("BLHNC",) if rules.index_packed else ("LBHNC",)
    whole = attention.qk_rope_head_dim == 0
    if major == 12:
        return Backend("FLASHINFER_MLA_SPARSE_SM120", 64, layouts)
    if major == 10 and (kv.startswith("fp8") or whole):
        return Backend("FLASHINFER_MLA_SPARSE", 32, layouts)
    if whole:
        half = model_dtype == "float16"
        return Backend("FLASH_ATTN_MLA_SPARSE" if half else "FLASHINFER_MLA_SPARSE_SM90", 64, layouts)
    return Backend("FLASHMLA_SPARSE", 64, layouts)


def backend_names(model: Architecture, backend: Backend | None, kind: ModelClass) -> list[str]:
    """Names of the attention and the state backend and of what the class keeps beside, sorted as the engine does."""
    names = [*kind.beside, *((backend.name,) if backend is not None else ())]
    if model.state is not None:
        names.append(kind.state_backend or family_rule(model).backend)
    return sorted(names)


def resolve_layout(args: EngineArgs, rules: RuleSet, backend: Backend | None) -> str:
    """The cache layout: VLLM_KV_CACHE_LAYOUT, or the backend's default. Raises Refusal for one it cannot read, which
    releases before that ignore.
    """
    candidates = backend.layouts if backend is not None else PURE_STATE_LAYOUTS
    asked = args.env.get("VLLM_KV_CACHE_LAYOUT")
    if asked is None:
        return candidates[0]
    layout = LAYOUT_ALIASES.get(asked, asked)
    if layout not in candidates and not rules.layouts_refused:
        return candidates[0]
    if layout not in candidates:
        raise Refusal(
            f"VLLM_KV_CACHE_LAYOUT={layout[:20]} is no layout that both caches can be kept in",
            stage="layout+groups",
            rule="HC047",
            fix=f"one of {', '.join(candidates)}",
        )
    return layout


def kv_element_bytes(args: EngineArgs, dtype_bytes: int) -> int:
    """Bytes of one KV element. Raises InputError for a format that is not known."""
    if args.kv_cache_dtype not in KV_DTYPES:
        asked = f"--kv-cache-dtype {args.kv_cache_dtype[:40]}"
        raise NotModelled(f"{asked} is not modelled", lacking=asked, fix=f"one of {', '.join((*KV_DTYPES, *PACKED))}")
    return KV_DTYPES[args.kv_cache_dtype] or dtype_bytes


STATE_DTYPES = ("float32", "bfloat16", "float16")
NEMOTRON = ("NemotronHForCausalLM", "NemotronHPuzzleForCausalLM", "NemotronH_Nano_VL_V2")
"""Classes whose state is float32 unless their config names another dtype."""
QWEN3_5 = (
    "Qwen3_5ForConditionalGeneration", "Qwen3_5MoeForConditionalGeneration",
    "Qwen3_5ForCausalLM", "Qwen3_5MoeForCausalLM", "Qwen4ExpForConditionalGeneration", "Qwen4ExpForCausalLM",
)  # fmt: skip
"""Classes whose state takes the dtype that their config declares."""


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
    rule, release = family_rule(model), rules_for(args.engine_version)[0]
    conv_dtype, ssm_dtype = _dtypes(model, args, release)
    layer = rule.layer(model.state, args.tensor_parallel_size, draft_rows(model, args), release)
    turned = release.conv_layout_switch and args.env.get("VLLM_SSM_CONV_STATE_LAYOUT") == "DS"
    tensors = [StateTensor(window[::-1] if turned else window, conv_dtype) for window in layer.windows]
    if layer.temporal:
        tensors.append(StateTensor(layer.temporal, ssm_dtype if rule.ssm_dtype else conv_dtype))
    recovered = records(model, args, release) if CLASSES.get(model.architecture, ModelClass()).keeps_records else ()
    return (*tensors, *_replay_rings(model, args), *recovered)


def draft_rows(model: Architecture, args: EngineArgs) -> int:
    """Draft tokens that a layer of the class has rows for."""
    return 0 if CLASSES.get(model.architecture, ModelClass()).without_draft_rows else args.num_speculative_tokens


def records(model: Architecture, args: EngineArgs, rules: RuleSet) -> tuple[StateTensor, ...]:
    """What a KDA layer recovers rejected drafts from, where ReplaySSM keeps it in the pool."""
    shapes = family_rule(model).records
    if shapes is None or not (args.use_replayssm and args.num_speculative_tokens and rules.kda_records_in_pool):
        return ()
    whole, own = shapes(model.state, args.tensor_parallel_size, args.num_speculative_tokens)
    return StateTensor(whole, "float32"), StateTensor(own, model.model_dtype if args.dtype == "auto" else args.dtype)


def dtypes_taken(model: Architecture, args: EngineArgs, rules: RuleSet) -> tuple[str, ...]:
    """The values that --mamba-ssm-cache-dtype may have instead of its own; none where the kernels take that one."""
    taken = family_rule(model).kernel_dtypes if model.state is not None and rules.kda_dtype_obeyed else ()
    return () if args.mamba_ssm_cache_dtype in taken else taken


def state_parts(model: Architecture, args: EngineArgs, tensors: tuple[StateTensor, ...]) -> tuple[int, int]:
    """Bytes of one layer's convolution windows, and of its temporal state; rings of ReplaySSM are in neither."""
    assert model.state is not None  # noqa: S101  (who has tensors of a state has a state)
    release = rules_for(args.engine_version)[0]
    layer = family_rule(model).layer(model.state, args.tensor_parallel_size, draft_rows(model, args), release)
    windows = len(layer.windows)
    temporal = tensors[windows].bytes if layer.temporal else 0
    return sum(tensor.bytes for tensor in tensors[:windows]), temporal


def state_bytes_per_layer(model: Architecture, args: EngineArgs) -> int:
    """Bytes of one layer's state on one rank: the Mamba page before padding."""
    return sum(tensor.bytes for tensor in layer_state(model, args))


def _dtypes(model: Architecture, args: EngineArgs, rules: RuleSet) -> tuple[str, str]:
    model_dtype = model.model_dtype if args.dtype == "auto" else args.dtype
    conv = model_dtype if args.mamba_cache_dtype == "auto" else args.mamba_cache_dtype
    if takes := dtypes_taken(model, args, rules):
        label = model.state.label if model.state is not None else ""
        raise IllegalCombination(
            f"vLLM keeps no {label} state in {args.mamba_ssm_cache_dtype}",
            fix=f"one of {', '.join(takes)}",
            flag="--mamba-ssm-cache-dtype",
        )
    if family_rule(model).kernel_dtypes:
        kind = CLASSES.get(model.architecture, ModelClass())
        obeyed = kind.state_dtype_obeyed and rules.kda_dtype_obeyed and args.mamba_ssm_cache_dtype != "auto"
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
