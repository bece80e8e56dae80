"""How do layers share a block where their pages differ: index caches beside attention, rings, states of two kinds?

GLM-5.3 and Qwen4-Exp keep keys of an indexer beside each attention page: a key for so many tokens, whose pool in
progress lies in a ring of one block a request. Qwen4-Exp keeps a convolution of its n-gram embeddings as well, a state
of its own on every rank.

    key bytes   GLM-5.3: head_dim + head_dim / 128 x 4; Qwen4-Exp: head_dim x 2
    ring        GLM-5.3: kpool x 2^ceil(log2(ceil((kpool + S) / kpool))) tokens of 2 x head_dim x 2 bytes
                Qwen4-Exp: ratio x ceil((ratio + S) / ratio) tokens of head_dim x 2 bytes, and 24 more for positions
    block       bytes of the largest group, rounded up to whole rows and kernel pages

From 0.32 for GLM-5.3, and for Qwen4-Exp in all releases, groups are cut by the number of layers that the kinds repeat:
d >= the attention layers with the least padding, and states to as many as a block of attention holds; 0.30 and 0.31
give GLM-5.3 groups of their own. Mirrors vLLM v1/core/kv_cache_planning.py _get_packed_kv_cache_groups,
models/glm5next/common/attention.py, models/qwen4_exp/common/qsa_cache.py (0.33.0), v1/core/kv_cache_utils.py (0.30.0).
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import ceil, gcd, lcm
from typing import NamedTuple, NoReturn

from hybridcalc.architecture import Architecture, GroupedQueryKV, LatentKV
from hybridcalc.engines.vllm import EngineArgs
from hybridcalc.engines.vllm.families import ModelClass
from hybridcalc.engines.vllm.layers import Backend, Index, StateTensor
from hybridcalc.engines.vllm.pages import EMBEDDED, FULL, LETTERS, STATE, STATES, TAIL, Group, Pages
from hybridcalc.engines.vllm.releases import RELEASES, RuleSet
from hybridcalc.errors import NotModelled, Refusal, with_release

INDEX_PAGES, INDEX_SCALED = (32, 64), 128
"""Keys of the pages that the kernels of GLM-5.3's indexer read; values of a key that share a scale."""
POSITIONS = 12
"""Values of 2 bytes that hold the three positions of a token beside its raw key, in models of pictures."""
SCALED_ROWS, SCALED_ROW = "FLASHINFER_MLA_SPARSE_SM120", 656
"""A backend that keeps rows of quantised values, scales and positions whatever the KV dtype, and their bytes."""
COMPRESSED_KV = ("auto", "bfloat16", "fp8", "fp8_e4m3")
"""KV dtypes of Qwen4-Exp."""
BROAD_ROWS = {"FLASHINFER_MLA_SPARSE": 32}
"""Rows that a backend of sparse MLA reads as a page; others read one."""


def index_of(model: Architecture, args: EngineArgs) -> Index | None:
    """The index cache of a model; None without one. Raises NotModelled where its sizes are not known."""
    attention = model.attention
    if isinstance(attention, LatentKV) and attention.indexer is not None:
        width, keys = attention.indexer.head_dim, INDEX_PAGES[1:] if args.capability[0] == 12 else INDEX_PAGES
        return Index(attention.indexer.kpool, width + width // INDEX_SCALED * 4, 2 * width * 2, keys, rounded=True)
    if not isinstance(attention, GroupedQueryKV):
        return None
    if attention.compressed is not None:
        width, ratio = attention.compressed.head_dim, attention.compressed.ratio
    else:
        sizes = _stated(model)
        if sizes is None:
            return None
        width, ratio = sizes
    positions = POSITIONS if model.multimodal and not args.language_model_only else 0
    return Index(ratio, 2 * width, 2 * (width + positions))


def _stated(model: Architecture) -> tuple[int, int] | None:
    """Width and tokens of a key, as the config of the model says them; None for a model without an index."""
    from hybridcalc.architecture.presets import shipped_config

    config: Mapping[str, object] = model.config if model.config is not None else shipped_config(model.name)
    text = config.get("text_config")
    text = text if isinstance(text, Mapping) else config
    if not text.get("indexer_n_heads"):
        return None
    width, ratio = text.get("indexer_head_dim"), text.get("indexer_compress_ratio")
    if not (isinstance(width, int) and isinstance(ratio, int) and width > 0 and ratio > 0):
        lacking = f"the index of {model.name}"
        raise NotModelled(f"{lacking} has no sizes here", lacking=lacking, fix="give its config.json")
    return width, ratio


def embedding_state(model: Architecture, args: EngineArgs) -> tuple[StateTensor, ...]:
    """The convolution window of a layer with n-gram embeddings, whole on every rank; nothing without one."""
    ple = model.ple_conv
    if ple is None:
        return ()
    dtype = model.model_dtype if args.dtype == "auto" else args.dtype
    dtype = dtype if args.mamba_cache_dtype == "auto" else args.mamba_cache_dtype
    return (StateTensor((ple.columns + args.num_speculative_tokens, ple.channels), dtype),)


def with_kv_of_class(model: Architecture, args: EngineArgs, kind: ModelClass, rules: RuleSet) -> EngineArgs:
    """``args`` with --kv-cache-dtype auto as the class has it on this GPU."""
    sparse = isinstance(model.attention, LatentKV) and model.attention.indexer is not None
    blackwell = kind.fp8_on_blackwell and rules.sparse_fp8_default and args.capability[0] == 10
    return replace(args, kv_cache_dtype="fp8") if sparse and blackwell and args.kv_cache_dtype == "auto" else args


def checked(
    model: Architecture, args: EngineArgs, rules: RuleSet, backend: Backend | None, index: Index | None
) -> tuple[Backend | None, Index | None]:
    """The backend of attention with an index, and the index with the rows of its kernels. Raises Refusal for what
    classes with an index do not run.
    """

    def refuse(reason: str, fix: str, flag: str, stage: str = "create_engine_config") -> NoReturn:
        raise Refusal(reason, stage=stage, rule="HC049", fix=fix, flag=flag)

    method = args.speculative_method
    if model.ple_conv is not None and args.pipeline_parallel_size > 1:
        refuse(f"{model.architecture} embeds n-grams on the first pipeline stage alone", "write -pp 1", "-pp")
    if not isinstance(model.attention, GroupedQueryKV):
        scaled = backend is not None and (
            backend.name == SCALED_ROWS or (backend.name == "FLASHMLA_SPARSE" and args.kv_cache_dtype.startswith("fp8"))
        )
        return backend, index._replace(row=SCALED_ROW) if scaled and index is not None else index
    if method is not None and not method.endswith("mtp") and method not in ("ngram", "ngram_gpu"):
        refuse(
            f"{model.architecture} drafts by its own layers or by n-grams, not by {method[:40]}",
            "use the method mtp",
            "--speculative-config",
        )
    if index is None:
        return backend, None
    taken = COMPRESSED_KV if rules.compressed_fp8 else COMPRESSED_KV[:2]
    if args.kv_cache_dtype not in taken:
        refuse(
            f"{model.architecture} keeps no KV in {args.kv_cache_dtype[:40]} in this release",
            f"one of {', '.join(taken)}",
            "--kv-cache-dtype",
            "initialize_model",
        )
    return Backend("QWEN4_EXP_QSA_TRITON", 16, ("BLNHC", "BLHNC")), index


def groups_of(
    model: Architecture,
    args: EngineArgs,
    rules: RuleSet,
    pages: Pages,
    index: Index,
    counts: Mapping[str, int],
    letters: str,
    bounds: Sequence[tuple[int, int]],
) -> tuple[Group, ...]:
    """The groups of the whole model, as its release forms them. Raises Refusal."""
    caches = caches_of(model, args, pages, index, counts)
    if rules.index_packed or not index.kernel_keys:
        return packed_groups(caches)
    shares = [
        [sum(letters[a:b].count(letter) for letter in LETTERS[kind]) for kind in (STATE, FULL)] for a, b in bounds
    ]
    if pages.class_bytes > pages.attention_page:
        raise Refusal(
            f"a layer's state of {pages.class_bytes:,} B does not fit the page of {pages.attention_page:,} B that "
            "attention keeps",
            stage="layout+groups",
            rule="HC046",
            fix=f"{with_release(RELEASES.oldest_with('index_packed', True))}, or more ranks",
        )
    return glm_groups(caches, pages.index_bytes, shares)


class PackedLayers(NamedTuple):
    """Layers of one kind: how many, the bytes that each of its caches has in a block, tokens of a block."""

    kind: str
    layers: int
    pages: tuple[int, ...]
    block: int


def caches_of(
    model: Architecture, args: EngineArgs, pages: Pages, index: Index, counts: Mapping[str, int]
) -> tuple[PackedLayers, ...]:
    """The kinds of caches of a model with an index, in the order in which the engine meets them; Qwen4-Exp has the ring
    first.

    Raises Refusal for a ring that does not divide the block.
    """
    ring = index.ring(args.num_speculative_tokens)
    if pages.block % ring:
        raise Refusal(
            f"the ring of {ring} tokens that {args.num_speculative_tokens} drafts want does not divide the block of "
            f"{pages.block:,}",
            stage="get_kv_cache_spec",
            rule="HC049",
            fix="write fewer speculative tokens",
            flag="--speculative-config",
        )
    found = list[PackedLayers]()
    for kind, count in counts.items():
        if kind == FULL:
            attention = PackedLayers(FULL, count, (pages.attention_page, pages.index_bytes), pages.block)
            tail = PackedLayers(TAIL, count, (ring * index.raw_bytes,), ring)
            found += (attention, tail) if index.kernel_keys else (tail, attention)
        else:
            found.append(PackedLayers(kind, count, (pages.page,), pages.mamba_block))
            if kind == STATE and model.ple_conv is not None:
                found.append(PackedLayers(EMBEDDED, model.ple_conv.layers, (pages.page,), pages.mamba_block))
    return tuple(found)


def packed_groups(caches: Sequence[PackedLayers]) -> tuple[Group, ...]:
    """The groups of layers whose pages differ, in the engine's order."""
    repeats = _least_padding([cache.layers for cache in caches], max(c.layers for c in caches if len(c.pages) > 1))
    widest = max(
        sum(cache.pages) * (1 if cache.kind in (*STATES, TAIL) else ceil(cache.layers / ceil(cache.layers / repeats)))
        for cache in caches
    )
    groups = list[Group]()
    for cache in caches:
        parts, page = ceil(cache.layers / repeats), sum(cache.pages)
        if cache.kind in (*STATES, TAIL):
            parts = max(parts, ceil(cache.layers / max(widest // page, 1)))
        own = [len(range(part, cache.layers, parts)) for part in range(parts)]
        groups += [Group(cache.kind, layers, cache.block, page, len(cache.pages)) for layers in own]
    return tuple(groups)


def _least_padding(counts: Sequence[int], least: int) -> int:
    """The number of layers, ``least`` or more, to whose multiples the counts are raised by the fewest; of several the
    largest.
    """
    return min(
        range(least, max(counts) + 1), key=lambda size: (sum(-count % size for count in counts), -size), default=least
    )


def glm_groups(caches: Sequence[PackedLayers], index_bytes: int, stages: Sequence[Sequence[int]]) -> tuple[Group, ...]:
    """Groups of GLM-5.3 in 0.30 and 0.31: all attention with its indexes, the rings in their place, and states as many
    as there are attention layers, on each of the ``stages`` (states, attention layers without drafts) as well.

    Raises Refusal for a stage that has states and no attention.
    """
    by_kind = {cache.kind: cache for cache in caches}
    full, state, tail = by_kind[FULL], by_kind[STATE], by_kind[TAIL]
    parts = ceil(state.layers / full.layers)
    for states, attention in stages if len(stages) > 1 else ():
        if states and not attention:
            raise Refusal(
                "a pipeline stage has recurrent layers and no attention whose pages they could lie in",
                stage="layout+groups",
                rule="HC050",
                fix="write -pp 1",
            )
        parts = max(parts, ceil(states / attention) if states else 0)
    held = [Group(STATE, len(range(p, state.layers, parts)), state.block, sum(state.pages)) for p in range(parts)]
    return (
        Group(FULL, full.layers, full.block, sum(full.pages), len(full.pages)),
        Group(TAIL, tail.layers, tail.block, index_bytes),
        *held,
    )


def stride_unit(index: Index, backend: Backend, pages: Pages, rules: RuleSet) -> int:
    """Bytes of which a block is a multiple: whole rows of attention, whole kernel pages of an index."""
    if not index.kernel_keys or not rules.index_packed:
        return 1
    row = pages.attention_page // pages.block
    rows, kernel = row * BROAD_ROWS.get(backend.name, 1), gcd(index.pool * index.kernel_keys[-1], pages.block)
    return lcm(rows, index.in_block(kernel)) if kernel != pages.block else rows
