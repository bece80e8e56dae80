"""How long is an attention block, how large a page, and how much of it does a state waste?

    a      = KV heads of the rank x 2 x head_dim x bytes       bytes of a token in one attention layer (MLA: one row)
    q      = max(kernel block, b0), b0 = --block-size or 16; MLA: at least 128; align: also on the checkpoint grid
    block  = L x ceil(q x ceil(m / (q a)) / L), not below b0   tokens; m: the state as the model's class sizes it
    page   = block x a                                         bytes; every state is padded to it
    padding = (page - state) / state                           relative to the state, not to the page

In 0.22.1's mode "all" a block is a multiple of the chunk: c = lcm(chunk, q), block = c x ceil(ceil(m / a) / c). Without
attention, or without a state, nothing is inflated. Mirrors vLLM platforms/interface.py (0.33.0, 0.22.1); leaves out KV
formats that are packed or differ from layer to layer.
"""

from math import lcm
from typing import NamedTuple

from hybridcalc.architecture.geometry import (
    Architecture,
    GroupedQueryKV,
    LatentKV,
    kv_elements_per_token,
    kv_heads_on_rank,
)
from hybridcalc.engines.vllm.backends import DEFAULT_BLOCK, SCALE_BYTES, Backend, kv_element_bytes
from hybridcalc.engines.vllm.classes import ModelClass
from hybridcalc.engines.vllm.config import EngineArgs
from hybridcalc.engines.vllm.families import family_rule
from hybridcalc.engines.vllm.releases import RuleSet
from hybridcalc.engines.vllm.states import StateTensor, layer_state
from hybridcalc.errors import NotModelled, Refusal
from hybridcalc.formulas.pages import aligned_block
from hybridcalc.units import DTYPE_BYTES

LATENT_BLOCK, DEFAULT_CHUNK = 128, 2048
GDN_GRID, KDA_GRID = 64, 16
"""Tokens between the states that a prefill kernel can export."""


class Pages(NamedTuple):
    """``block`` and ``mamba_block`` in tokens, ``page`` and ``class_bytes`` (m) in bytes of one layer on one rank.

    ``preferred``: the block without a state. ``grown``: whether it became longer. ``padded``: the page where it is
    larger than m.
    """

    block: int
    mamba_block: int
    page: int
    class_bytes: int
    preferred: int
    grown: bool
    padded: int | None


def kv_bytes_per_token(model: Architecture, args: EngineArgs, model_dtype: str) -> int:
    """Bytes one attention layer keeps of a token on one rank; 0 without attention. Not cut by context parallelism."""
    attention = model.attention or model.window_attention
    if attention is None:
        return 0
    if isinstance(attention, LatentKV) and attention.indexer is not None:
        cache = f"the index cache of {model.name}"
        raise NotModelled(f"{cache} is not modelled for vLLM", lacking=cache, fix="plan it for SGLang")
    tp = args.tensor_parallel_size
    size = kv_elements_per_token(attention, tp) * kv_element_bytes(args, DTYPE_BYTES[model_dtype])
    if args.kv_cache_dtype.endswith("per_token_head") and isinstance(attention, GroupedQueryKV):
        size += kv_heads_on_rank(attention.kv_heads, tp) * SCALE_BYTES
    return size


def checkpoint_grid(model: Architecture, args: EngineArgs, kind: ModelClass, rules: RuleSet) -> int | None:
    """Tokens between the states that prefill can export; None where it exports none, 1 for anywhere.

    GDN on the FlashInfer kernel: 64. KDA on FlashKDA (a bounded gate, which Kimi-K3 has): 16. Mamba2: anywhere.
    """
    if not rules.checkpoint_blocks:
        return None
    major, _ = args.capability
    if kind.checkpoint == "mamba2":
        return 1
    recurrence = model.state.recurrence if model.state is not None else None
    if recurrence is None or model.family != kind.checkpoint:
        return None
    if kind.checkpoint == "gdn":
        asked = args.gdn_prefill_backend or str((args.additional_config or {}).get("gdn_prefill_backend", "auto"))
        narrow = major in (10, 12) and recurrence.k_dim == 128
        return GDN_GRID if asked in ("auto", "flashinfer") and (args.capability == (9, 0) or narrow) else None
    if kind.checkpoint == "kda":
        asked = args.kda_prefill_backend or "auto"
        runs = major in (9, 10, 12) and recurrence.k_dim == 128 and asked in ("auto", "flashkda")
        return KDA_GRID if runs else None
    return None


def class_state(model: Architecture, args: EngineArgs, kind: ModelClass, rules: RuleSet) -> tuple[StateTensor, ...]:
    """The state as the model's class sizes it for the page, which is not always what the layer keeps."""
    from dataclasses import replace

    rule = family_rule(model)
    if rule.pages_omit_drafts or (kind.class_omits_drafts and not rules.class_counts_drafts):
        args = replace(args, speculative_config=None, num_speculative_tokens=0)
    tensors = layer_state(model, args)
    if rule.kernel_dtypes and args.mamba_ssm_cache_dtype == "bfloat16":
        tensors = (*tensors[:-1], StateTensor(tensors[-1].shape, "bfloat16"))
    return tensors


def resolve_pages(
    model: Architecture,
    args: EngineArgs,
    rules: RuleSet,
    kind: ModelClass,
    backend: Backend | None,
    *,
    mode: str,
    kv_bytes: int,
    length: int,
) -> Pages:
    """Block, page and padding, in the engine's order. ``mode`` is the cache mode, ``length`` max_model_len."""
    first = args.block_size or DEFAULT_BLOCK
    if args.block_size is None and backend is not None and DEFAULT_BLOCK % backend.kernel_block:
        first = backend.kernel_block
    if model.state is None:
        return Pages(first, 0, first * kv_bytes, 0, first, False, None)
    mamba_block = (args.mamba_block_size or first) if mode != "none" else length
    needed = sum(tensor.bytes for tensor in class_state(model, args, kind, rules))
    if backend is None or not needed:
        return Pages(first, mamba_block, needed, needed, first, False, None)
    unit = max(backend.kernel_block, first)
    if rules.latent_block and isinstance(model.attention, LatentKV):
        unit = max(unit, LATENT_BLOCK)
    if mode == "align" and rules.checkpoint_grid:
        unit = lcm(unit, _common_grid(model, args, kind, rules))
    if mode == "all":
        chunk = lcm(args.mamba_block_size or _chunk(model, kind), unit)
        block = aligned_block(needed, kv_bytes, chunk)
        mamba_block = block
    else:
        block = aligned_block(needed, kv_bytes, unit)
        if rules.kernel_blocks:
            block = backend.kernel_block * -(-block // backend.kernel_block)
    grown = block > first
    block = max(first, block)
    if mode == "align":
        mamba_block = block
    page = block * kv_bytes
    return Pages(block, mamba_block, page, needed, first, grown, page if page != needed else None)


def check_layer_fits(model: Architecture, args: EngineArgs, pages: Pages, layer_bytes: int) -> None:
    """Raise Refusal where the layer keeps more than the page that its class asked for."""
    if pages.block and layer_bytes > pages.page:
        flag = "--mamba-ssm-cache-dtype" if family_rule(model).kernel_dtypes else "--speculative-config"
        raise Refusal(
            f"a layer's state of {layer_bytes:,} B does not fit the page of {pages.page:,} B that its class sizes",
            stage="get_kv_cache_spec",
            rule="HC046",
            fix=f"leave out {flag}: the class counts less than the layer keeps",
        )


def _common_grid(model: Architecture, args: EngineArgs, kind: ModelClass, rules: RuleSet) -> int:
    """What the grid of the prefill checkpoints adds to the block's alignment; Mamba2 declares none."""
    grid = checkpoint_grid(model, args, kind, rules)
    return grid if grid is not None and kind.checkpoint != "mamba2" else 1


def _chunk(model: Architecture, kind: ModelClass) -> int:
    return DEFAULT_CHUNK if kind.default_chunk else model.chunk_size or DEFAULT_CHUNK
