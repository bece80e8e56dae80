"""Which attention backend serves, how short may its blocks be, and which cache layouts can it read?

The backend follows from the GPU, the KV dtype, the model's dtype and the head size. Its smallest kernel block is what a
KV block is a multiple of. Layouts are named by their axes: block B, layer L, position N, head H, channel C.
Source: vLLM platforms/cuda.py, v1/attention/backends/ (0.33.0). Leaves out platforms other than CUDA, packed KV formats
(nvfp4, turboquant, int4), which are refused, and kernels that an installation may add: with FlashMLA a Hopper runs fp8
MLA on blocks of 64 and prints so, which changes no size since MLA blocks are multiples of 128.
"""

from typing import NamedTuple

from hybridcalc.architecture.geometry import Architecture, GroupedQueryKV, LatentKV
from hybridcalc.engines.vllm.config import EngineArgs
from hybridcalc.engines.vllm.families import family_rule
from hybridcalc.engines.vllm.releases import RuleSet
from hybridcalc.errors import NotModelled, Refusal

DEFAULT_BLOCK = 16
"""Tokens of a block where nothing asks for another."""
FREE_LAYOUTS = ("LBNHC", "LBHNC", "BLNHC", "BLHNC")
FLASHINFER_LAYOUTS = ("LBHNC", "BLHNC")
PURE_STATE_LAYOUTS = (*FREE_LAYOUTS, "BHLNC", "LHBNC")
LAYOUT_ALIASES = {"NHD": "LBNHC", "HND": "LBHNC"}
FLASHINFER_HEADS = (64, 128, 256, 512)

KV_DTYPES = {
    "auto": 0, "float16": 2, "bfloat16": 2, "fp8": 1, "fp8_e4m3": 1, "fp8_e5m2": 1, "fp8_inc": 1,
    "int8_per_token_head": 1, "fp8_per_token_head": 1,
}  # fmt: skip
"""--kv-cache-dtype values that are modelled -> bytes of an element; 0 is the model's own dtype."""
SCALE_BYTES = 8
"""A token's scales of one head, fp32, for keys and values, where they are kept per token and head."""
FIXED_BACKENDS = {
    "FLASH_ATTN": 16, "FLASHINFER": 16, "TRITON_ATTN": 16, "FLEX_ATTENTION": 16,
    "FLASH_ATTN_MLA": 16, "TRITON_MLA": 16, "FLASHINFER_MLA": 32, "FLASHMLA": 64, "CUTLASS_MLA": 128,
}  # fmt: skip
"""Backends one can ask for -> their smallest kernel block in tokens."""


class Backend(NamedTuple):
    """An attention backend: its name, the smallest block of its kernels, the layouts it reads, the default first."""

    name: str
    kernel_block: int
    layouts: tuple[str, ...]


def attention_backend(model: Architecture, args: EngineArgs, rules: RuleSet, model_dtype: str) -> Backend | None:
    """The backend of the attention layers; None for a model that has none. Raises InputError for an unknown one."""
    if model.attention is None and model.window_attention is None:
        return None
    if args.attention_backend is not None:
        name = args.attention_backend.upper()
        if name not in FIXED_BACKENDS:
            asked = f"--attention-backend {args.attention_backend[:40]}"
            raise NotModelled(f"{asked} is not modelled", lacking=asked, fix=f"one of {', '.join(FIXED_BACKENDS)}")
        return Backend(name, FIXED_BACKENDS[name], FLASHINFER_LAYOUTS if name == "FLASHINFER" else FREE_LAYOUTS)
    major, kv = args.capability[0], args.kv_cache_dtype
    if isinstance(model.attention, LatentKV):
        if major == 10:
            return Backend("FLASHINFER_MLA", 32, FREE_LAYOUTS)
        if kv.startswith("fp8") and rules.latent_fp8_triton:
            return Backend("TRITON_MLA", 16, FREE_LAYOUTS)
        return Backend("FLASH_ATTN_MLA", 16, FREE_LAYOUTS)
    heads = model.attention if isinstance(model.attention, GroupedQueryKV) else model.window_attention
    if model_dtype == "float32" or kv == "fp8_e5m2" or kv.endswith("per_token_head"):
        return Backend("TRITON_ATTN", 16, FREE_LAYOUTS)
    if major == 10 and heads is not None and heads.head_dim in FLASHINFER_HEADS:
        return Backend("FLASHINFER", 16, FLASHINFER_LAYOUTS)
    return Backend("FLASH_ATTN", 16, FREE_LAYOUTS)


def backend_names(model: Architecture, backend: Backend | None, args: EngineArgs) -> list[str]:
    """Names of the attention and the state backend, sorted, as the engine lists them."""
    names = [backend.name] if backend is not None else []
    if model.state is not None:
        name = family_rule(model).backend
        bailing = name == "LINEAR_ATTN" and model.architecture.startswith("Bailing")
        names.append("BAILING_LINEAR_ATTN" if bailing else name)
    return sorted(names)


def resolve_layout(args: EngineArgs, backend: Backend | None) -> str:
    """The cache layout: VLLM_KV_CACHE_LAYOUT, or the backend's default. Raises Refusal for one it cannot read."""
    candidates = backend.layouts if backend is not None else PURE_STATE_LAYOUTS
    asked = args.env.get("VLLM_KV_CACHE_LAYOUT")
    if asked is None:
        return candidates[0]
    layout = LAYOUT_ALIASES.get(asked, asked)
    if layout not in candidates:
        raise Refusal(
            f"VLLM_KV_CACHE_LAYOUT={layout[:20]} is no layout that both caches can be kept in",
            stage="layout+groups",
            rule="HC047",
            fix=f"one of {', '.join(candidates)}",
        )
    return layout


def kv_element_bytes(args: EngineArgs, dtype_bytes: int) -> int:
    """Bytes of one KV element. Raises InputError for a packed format."""
    if args.kv_cache_dtype not in KV_DTYPES:
        asked = f"--kv-cache-dtype {args.kv_cache_dtype[:40]}"
        raise NotModelled(f"{asked} is not modelled", lacking=asked, fix=f"one of {', '.join(KV_DTYPES)}")
    return KV_DTYPES[args.kv_cache_dtype] or dtype_bytes
