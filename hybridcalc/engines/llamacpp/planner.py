"""What does a context of llama.cpp allocate, before memory counts?

    n_ctx_seq = pad256(n_ctx)                 unified: one stream that all sequences share
              = pad256(pad256(n_ctx) // n)    else: n streams, and n_ctx becomes n_ctx_seq x n
    slot  = min(n_ctx_seq, trained length)    of the server; cells beyond it are allocated all the same
    KV    = layers x n_ctx_seq x streams x (row(K) + row(V))      a window's cells: pad256(min(n_ctx_seq, w + n_ubatch))
    state = layers x sequences x (1 + copies) x (r + s) x 4       always f32; copies for drafts to roll back to

In the engine's order: llama_init_from_model, llama_context, create_memory. Source: src/llama-context.cpp,
llama-kv-cache.cpp, llama-kv-cache-iswa.cpp, llama-memory-recurrent.cpp, llama-memory-hybrid-idx.cpp,
tools/server/server-context.cpp load_model (b11434).
"""

from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

from hybridcalc.architecture import Architecture, GroupedQueryKV, LatentKV
from hybridcalc.engines.answer import Preparation
from hybridcalc.engines.arguments import Last
from hybridcalc.engines.llamacpp import (
    BLOCK,
    MOST_SEQUENCES,
    PLAIN,
    ROWS,
    ContextParams,
    check_arguments,
    check_together,
    padded,
)
from hybridcalc.engines.llamacpp.releases import RuleSet, rules_for
from hybridcalc.errors import InputError, NotModelled, Refusal, Write

if TYPE_CHECKING:
    from hybridcalc.engines.llamacpp.ollama import Front

ELEMENT = 4
"""Bytes of an element of a state, and of a logit."""
POOLED_LATENT, POOLED = 3, 2
"""Keys' widths in a row of an indexer that pools keys: key, gate and pooled key (glm5-next); key and pooled key
(qwen4exp): llama-memory-hybrid-idx.cpp indexer_kpool_row.
"""
CHECKPOINT_HEAD, CHECKPOINT_LAYER = 20, 24
"""Bytes of a saved state beside its rows: of the sequence, and of a layer that has one."""
ROLLING_BACK = frozenset({
    "KimiK3ForConditionalGeneration", "KimiK3LinearForCausalLM", "Qwen3_5ForConditionalGeneration",
    "Qwen3_5ForCausalLM", "Qwen3_5MoeForConditionalGeneration", "Qwen3_5MoeForCausalLM",
    "Qwen4ExpForConditionalGeneration", "Glm5NextForConditionalGeneration", "NemotronHForCausalLM",
    "NemotronH_Nano_VL_V2", "NemotronH_Nano_Omni_Reasoning_V3", "Lfm2ForCausalLM", "Lfm2MoeForCausalLM",
    "Lfm2VlForConditionalGeneration", "BailingMoeV3ForCausalLM",
})  # fmt: skip
"""Classes whose states can be rolled back, and are kept in copies: llm_arch_supports_rs_rollback."""
UNKNOWN = frozenset({
    "OlmoHybridForCausalLM", "LaraMiniForCausalLM", "GigaChat35ForCausalLM", "JetNemotronForCausalLM",
    "JetVLMForConditionalGeneration", "BambaForCausalLM", "Zamba2ForCausalLM", "ZayaForCausalLM",
    "MiniCPMSALAForCausalLM", "InklingForConditionalGeneration", "Inkling2ForConditionalGeneration",
    "BailingMoeV2_5ForCausalLM", "BailingMoeLinearV2ForCausalLM", "Lfm3ForCausalLM",
})  # fmt: skip
"""Hybrid classes that src/llama-arch.cpp has no name for."""


class CellCache(NamedTuple):
    """One KV cache: cells of one stream, layers, and bytes of a row of K and of V in a layer."""

    name: str
    cells: int
    streams: int
    layers: int
    k_row: int
    v_row: int

    @property
    def k_bytes(self) -> int:
        """Bytes of K."""
        return self.cells * self.streams * self.layers * self.k_row

    @property
    def v_bytes(self) -> int:
        """Bytes of V."""
        return self.cells * self.streams * self.layers * self.v_row


class Known(NamedTuple):
    """What `prepare` settles. ``copies``: of a state, beside itself; ``r`` and ``s``: elements of a state in a layer;
    ``extra``: those of a sequence beside its layers; ``front``: what Ollama made of a launch.
    """

    model: Architecture
    args: ContextParams
    rules: RuleSet
    n_ctx: int
    n_ctx_seq: int
    streams: int
    n_batch: int
    n_ubatch: int
    flash: bool
    caches: tuple[CellCache, ...]
    draft: CellCache | None
    copies: int
    r: int
    s: int
    extra: int
    front: "Front | None" = None


class Prepared(Preparation, Known):
    """What a context allocates."""

    @property
    def sequences(self) -> int:
        """Slots of the server."""
        return self.args.n_seq_max

    @property
    def slot_tokens(self) -> int:
        """Tokens of the longest request that a slot takes."""
        return min(self.n_ctx_seq, self.model.max_context or self.n_ctx_seq)

    @cached_property
    def kv_bytes(self) -> int:
        """All KV of the context, a draft's left out."""
        return sum(cache.k_bytes + cache.v_bytes for cache in self.caches)

    @cached_property
    def draft_bytes(self) -> int:
        """KV of the draft's own context."""
        return self.draft.k_bytes + self.draft.v_bytes if self.draft is not None else 0

    @cached_property
    def state_layers(self) -> int:
        """Layers with a state."""
        return self.model.state_layers if self.model.state is not None else 0

    @cached_property
    def r_bytes(self) -> int:
        """Convolution columns of all sequences and copies."""
        return self.state_layers * self.sequences * (1 + self.copies) * self.r * ELEMENT

    @cached_property
    def s_bytes(self) -> int:
        """Recurrent matrices of all sequences and copies."""
        return self.state_layers * self.sequences * (1 + self.copies) * self.s * ELEMENT

    @cached_property
    def state_bytes(self) -> int:
        """All states."""
        return self.r_bytes + self.s_bytes + self.sequences * (1 + self.copies) * self.extra * ELEMENT

    @cached_property
    def sequence_state_bytes(self) -> int:
        """The state of one sequence, without copies."""
        return (self.state_layers * (self.r + self.s) + self.extra) * ELEMENT

    @cached_property
    def checkpoint_bytes(self) -> int:
        """One context checkpoint: the state of a sequence as it is saved; 0 for a model without one."""
        if not self.state_layers:
            return 0
        return self.sequence_state_bytes + CHECKPOINT_HEAD + CHECKPOINT_LAYER * self.state_layers

    @cached_property
    def kv_bytes_per_token(self) -> int:
        """Bytes of a token in all layers whose KV grows, a draft's included."""
        caches = [*self.caches, *([self.draft] if self.draft is not None else [])]
        return sum(each.layers * (each.k_row + each.v_row) for each in caches if each.name != "window")


def prepare(model: Architecture, args: ContextParams) -> Prepared:
    """What a context allocates, kept for whoever asks the same again.

    Raises Refusal for what llama.cpp does not start with, NotModelled for a model whose caches are not known.
    """
    kept = _LAST.same(model, args)
    return kept if kept is not None else _LAST.keep(model, args, _prepare(model, args))


_LAST = Last[Prepared]()


def _prepare(model: Architecture, args: ContextParams) -> Prepared:
    check_arguments(args)
    check_together(args)
    rules, front = rules_for(args.engine_version)[0], None
    if args.ollama:
        from hybridcalc.engines.llamacpp.ollama import settled

        args, front = settled(model, args)
    _known(model)
    try:
        _check_types(model, args)
    except Refusal as refused:
        if front is None or refused.rule != "HC201":
            raise
        fix = "leave out OLLAMA_FLASH_ATTENTION, or OLLAMA_KV_CACHE_TYPE"
        raise Refusal(refused.reason, stage=refused.stage, rule=refused.rule, fix=fix) from None
    if args.n_seq_max > MOST_SEQUENCES:
        reason = f"{args.n_seq_max:,} slots: a context has {MOST_SEQUENCES} sequences at most"
        fix = Write("--parallel", MOST_SEQUENCES) if front is None else f"write OLLAMA_NUM_PARALLEL={MOST_SEQUENCES}"
        raise Refusal(reason, stage="llama_context", rule="HC202", fix=fix)
    n_ctx = args.n_ctx or (model.max_context or 0) * (args.n_seq_max if _fitted(args) else 1)
    if not n_ctx:
        raise InputError(f"{model.name} names no trained length", fix="add -c TOKENS", flag="--ctx-size")
    n_batch = min(n_ctx, args.n_batch)
    n_ubatch = min(n_batch, args.n_ubatch)
    n_ctx = padded(n_ctx)
    n_ctx_seq = n_ctx if args.kv_unified else padded(n_ctx // args.n_seq_max)
    streams = 1 if args.kv_unified else args.n_seq_max
    flash = args.flash_attn_type != 0
    shapes = model.state.shapes(1) if model.state is not None else None
    ple = model.ple_conv
    return Prepared(
        model,
        args,
        rules,
        n_ctx if args.kv_unified else n_ctx_seq * args.n_seq_max,
        n_ctx_seq,
        streams,
        n_batch,
        n_ubatch,
        flash,
        tuple(_caches(model, args, n_ctx_seq, streams, n_ubatch, flash)),
        _draft(model, args, n_ctx_seq, streams),
        args.copies_asked if model.architecture in ROLLING_BACK else 0,
        shapes.conv_elements if shapes is not None else 0,
        shapes.temporal_elements if shapes is not None else 0,
        ple.layers * ple.channels * ple.columns if ple is not None else 0,
        front,
    )


def _fitted(args: ContextParams) -> bool:
    """Whether --fit sets the context, which then has the trained length for every stream: common/fit.cpp n_ctx_max."""
    return args.command_line and args.fit and not args.kv_unified


def _known(model: Architecture) -> None:
    if model.architecture in UNKNOWN:
        raise NotModelled(f"{model.architecture} is no model of llama.cpp", lacking=f"{model.name} on llama.cpp")


def _check_types(model: Architecture, args: ContextParams) -> None:
    """What llama_init_from_model refuses of the types of K and V, in its order."""
    attention = model.attention
    if args.split_mode == "tensor" and args.flash_attn_type == 0:
        raise Refusal(
            "--split-mode tensor needs flash attention", stage="llama_init_from_model", rule="HC201", fix="write -fa on"
        )
    if isinstance(attention, LatentKV) and args.type_k != args.type_v:
        reason = f"{model.name} has one latent row: K in {args.type_k} and V in {args.type_v} exclude each other"
        raise Refusal(reason, stage="llama_init_from_model", rule="HC200", fix=Write("--cache-type-v", args.type_k))
    if args.type_v not in PLAIN and args.flash_attn_type == 0:
        reason = f"V in {args.type_v} needs flash attention, and -fa off is given"
        raise Refusal(reason, stage="llama_init_from_model", rule="HC201", fix="write -fa on, or -ctv f16")
    if args.flash_attn_type == 0:
        return
    if attention is None:
        return
    widths = (
        (attention.kv_lora_rank + attention.qk_rope_head_dim, attention.kv_lora_rank)
        if isinstance(attention, LatentKV)
        else (attention.head_dim, attention.v_head_dim)
    )
    for name, kind, width in zip("KV", (args.type_k, args.type_v), widths, strict=True):
        if kind not in PLAIN and width % BLOCK:
            reason = f"{name} in {kind} is in blocks of {BLOCK}, which do not divide heads of {width}"
            raise Refusal(
                reason, stage="llama_init_from_model", rule="HC203", fix=f"write --cache-type-{name.lower()} f16"
            )


def _row(elements: int, kind: str) -> int:
    """Bytes of a row. Raises Refusal for one that is no whole number of blocks."""
    if kind not in PLAIN and elements % BLOCK:
        reason = f"a row of {elements:,} values is no whole number of blocks of {kind}"
        raise Refusal(reason, stage="llama_kv_cache", rule="HC203", fix="write -ctk f16 -ctv f16")
    each = ROWS[kind]
    return elements * each.numerator // each.denominator


def _caches(
    model: Architecture, args: ContextParams, cells: int, streams: int, n_ubatch: int, flash: bool
) -> "list[CellCache]":
    """The caches of the context: of all tokens, and of a window."""
    wide = model.window_attention or model.attention
    values = [each.kv_heads * each.v_head_dim for each in (model.attention, wide) if isinstance(each, GroupedQueryKV)]
    widest = max(values, default=0)
    found = []
    for name, attention, layers in (
        ("all", model.attention, model.attention_layers),
        ("window", wide, model.window_layers),
    ):
        if attention is None or not layers:
            continue
        if isinstance(attention, GroupedQueryKV):
            k, v = attention.kv_heads * attention.head_dim, attention.kv_heads * attention.v_head_dim
            v = v if flash else widest
        else:
            k, v = attention.kv_lora_rank + attention.qk_rope_head_dim, 0
        held = cells
        if name == "window" and model.window is not None and not args.swa_full:
            shared = args.n_seq_max if args.kv_unified else 1
            held = padded(min(cells, model.window * shared + n_ubatch))
        found.append(CellCache(name, held, streams, layers, _row(k, args.type_k), _row(v, args.type_v) if v else 0))
    width = _index_width(model)
    if width and model.attention_layers:
        found.append(CellCache("index", cells, streams, model.attention_layers, _row(width, args.type_k), 0))
    return found


def _index_width(model: Architecture) -> int:
    """Values of a row of an indexer's cache, one key for all heads; beside it what pooling makes of several."""
    attention = model.attention
    if isinstance(attention, LatentKV):
        index = attention.indexer
        return 0 if index is None else index.head_dim * (POOLED_LATENT if index.kpool > 1 else 1)
    compressed = attention.compressed if attention is not None else None
    return 0 if compressed is None else compressed.head_dim * (POOLED if compressed.ratio > 1 else 1)


def _draft(model: Architecture, args: ContextParams, cells: int, streams: int) -> CellCache | None:
    """KV of the model's own draft layers, in a context of their own; None without drafting by them."""
    attention = model.attention
    if "draft-mtp" not in (args.spec_type or "").split(",") or not model.draft_layers or attention is None:
        return None
    if isinstance(attention, LatentKV):
        k, v = attention.kv_lora_rank + attention.qk_rope_head_dim + _index_width(model), 0
    else:
        k, v = attention.kv_heads * attention.head_dim, attention.kv_heads * attention.v_head_dim
    return CellCache("draft", cells, streams, model.draft_layers, _row(k, "f16"), _row(v, "f16"))
