"""How does vLLM keep Inkling: its convolutions as windows of a few tokens, beside windows and full attention?

No layer keeps a state: all are kinds of KV, whose pages are made equal by longer blocks.

    convolution   kernel tokens of H heads x 2^ceil(log2(2 head_dim + 2 hidden / H)) values of 2 bytes, H of its layer,
                  H / tp of them on a rank; a window as long as the kernel
    attention     16 tokens or --block-size of H / tp heads x 2 head_dim values, whose windows are the model's
    page          the largest; blocks of the others are longer by the whole factor, or padded where there is none
    blocks        of a request: ceil(min(window - 1 + in flight, L) / block) + 1 in each group of windows
    drafts        min(MTP depths, S) layers more, each local or whole as mtp_config says, which join those of the model;
                  windows keep S - 1 tokens more where that is two depths and more (windows_retain_drafts)

Convolutions of local and of whole layers are one kind where both have the same heads. Attention runs on FlashAttention
whatever is asked for. Mirrors vLLM models/inkling/nvidia/sconv_swa_attn.py, attention.py and mtp.py,
v1/core/kv_cache_planning.py unify_kv_cache_spec_page_size (0.33.0; 0.28.0 says the same).
"""

from collections.abc import Mapping

from hybridcalc.architecture import Architecture, GroupedQueryKV
from hybridcalc.engines.vllm import EngineArgs
from hybridcalc.engines.vllm.layers import DEFAULT_BLOCK, FREE_LAYOUTS, Backend, kv_element_bytes
from hybridcalc.engines.vllm.pages import (
    CONVOLUTION,
    EVERY_CONVOLUTION,
    FULL,
    LOCAL_CONVOLUTION,
    WINDOW,
    Group,
    Padding,
    form_groups,
)
from hybridcalc.errors import Refusal

BACKEND = Backend("FLASH_ATTN", DEFAULT_BLOCK, FREE_LAYOUTS)
"""The backend of its attention on every GPU, whatever is asked for."""
ELEMENT = 2
"""Bytes of a value of a convolution window, which is bfloat16."""
CONVOLUTIONS = {WINDOW: LOCAL_CONVOLUTION, FULL: CONVOLUTION}
"""Kinds of attention -> the kind of their convolutions, where the two have heads of their own."""


def without_states(model: Architecture) -> Architecture:
    """The model as the engine sees it: layers of attention alone, and MTP depths to draft with."""
    depths, _ = _depths(model)
    return model._replace(state=None, layers=model.layers.replace("v", "w").replace("b", "a"), draft_layers=depths)


def _depths(model: Architecture) -> tuple[int, frozenset[int]]:
    """MTP depths of the checkpoint, and which of them read a window."""
    from hybridcalc.architecture.fields import Fields
    from hybridcalc.architecture.presets import shipped_config

    config: Mapping[str, object] = model.config if model.config is not None else shipped_config(model.name)
    said = config.get("mtp_config")
    fields = Fields(said, model.name) if isinstance(said, Mapping) else None
    count = fields.optional("num_nextn_predict_layers", at_least=0) if fields is not None else 0
    local = fields.indices("local_layer_ids", count) if fields is not None and count else None
    return count or 0, frozenset(local or ())


def drafts_of(original: Architecture, args: EngineArgs, draft_layers: int) -> dict[str, int]:
    """Layers of each kind that drafting adds: the first ``num_speculative_tokens`` depths at most."""
    if not draft_layers:
        return {}
    _, local = _depths(original)
    built = range(min(draft_layers, args.num_speculative_tokens))
    kinds = {WINDOW: sum(depth in local for depth in built), FULL: sum(depth not in local for depth in built)}
    return {kind: count for kind, count in kinds.items() if count}


def check(model: Architecture, args: EngineArgs, model_dtype: str, off: str) -> None:
    """Raise Refusal for what the class does not run."""
    heads = [kv.kv_heads for kv in _attention(model).values()]
    if model_dtype != "bfloat16":
        raise Refusal(
            f"convolution windows are kept in bfloat16 alone, not in {model_dtype}",
            stage="initialize_model",
            rule="HC049",
            fix="write --dtype bfloat16",
            flag="--dtype",
        )
    if args.tensor_parallel_size > min(heads):
        raise Refusal(
            f"tensor parallel size {args.tensor_parallel_size} is more than the {min(heads)} KV heads",
            stage="initialize_model",
            rule="HC050",
            fix=f"write -tp {min(heads)} or less",
        )
    if off:
        raise Refusal(
            f"{off} turns the hybrid manager off, which alone keeps windows of several lengths",
            stage="layout+groups",
            rule="HC052",
            fix="leave it out",
        )


def _attention(model: Architecture) -> dict[str, GroupedQueryKV]:
    found = {FULL: model.attention if model.attention_layers else None, WINDOW: model.window_attention}
    return {kind: kv for kind, kv in found.items() if isinstance(kv, GroupedQueryKV)}


def kernel_of(original: Architecture) -> int:
    """Tokens of a convolution's window."""
    rows = [int(stream.rows) for stream in getattr(original.state, "streams", ())]
    return 1 + max(rows)


def _convolution_of(kind: str, original: Architecture) -> str:
    """The kind of the convolutions of layers of a ``kind``."""
    heads = {kv.kv_heads: kv.head_dim for kv in _attention(original).values()}
    return CONVOLUTIONS[kind] if len(heads) > 1 else EVERY_CONVOLUTION


def page_of(tokens: int, heads: int, values: int, element: int) -> int:
    """Bytes of a page before it is made as large as the others."""
    return tokens * heads * values * element


def groups_of(
    original: Architecture, args: EngineArgs, counts: Mapping[str, int], dtype_bytes: int
) -> tuple[tuple[Group, ...], tuple[Padding, ...]]:
    """The groups of layers and what they leave empty; ``counts`` are the layers of each kind of attention, in their
    order and with drafts. ``original`` has the convolutions.
    """
    kernel = kernel_of(original)
    first, element, tp = (
        args.block_size or DEFAULT_BLOCK,
        kv_element_bytes(args, dtype_bytes),
        args.tensor_parallel_size,
    )
    sizes, blocks = dict[str, int](), dict[str, int]()
    layers = dict[str, int]()
    for kind, count in counts.items():
        kv, own = _attention(original)[kind], _convolution_of(kind, original)
        raw = 2 * kv.head_dim + 2 * ((original.hidden_size or 0) // kv.kv_heads)
        sizes[own] = page_of(kernel, kv.kv_heads // tp, 1 << (raw - 1).bit_length(), ELEMENT)
        sizes[kind] = page_of(first, kv.kv_heads // tp, kv.head_dim + kv.v_head_dim, element)
        blocks |= {own: kernel, kind: first}
        layers |= {own: layers.get(own, 0) + count, kind: count}
    page = max(sizes.values())
    groups, paddings = form_groups(layers, block=first, mamba_block=first, page=page)
    longer = {kind: page // size if page % size == 0 else 1 for kind, size in sizes.items()}
    return tuple(group._replace(block=blocks[group.kind] * longer[group.kind]) for group in groups), paddings
