"""How the classes put their layers together: every tensor of a model, from its config and the geometry of its caches.

    GQA   H*d*(q + 2k) + q*d*H           MLA   H*rq + rq*q*(n + r) + H*(c + r) + c*q*(n + v) + q*v*H
    MLP   3*H*I, 2*H*I without a gate    MoE   E * MLP(H', I_e) + E*H + shared experts

H hidden size, d head width, q and k query and KV heads, c and rq latent ranks, n, r, v MLA widths, I an MLP's width. A
recurrent mixer's parameters are its family's (families/). `STYLES` says per model class how layers are put together
and named, as checkpoints name them. Counts equal those of transformers 5.24.0 on the meta device. Leaves out: LoRA,
vision towers other than Qwen's and GLM's, and classes without a row: they are unknown, never guessed.
"""

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from hybridcalc.architecture import Architecture, GroupedQueryKV, LatentKV
from hybridcalc.architecture.fields import DRAFT_FIELDS, Fields
from hybridcalc.architecture.tensors import DRAFT, FIRST, LAST, VISION, Block, Part, Tensor, linear, vector

EXPERT_FIELDS = ("num_experts", "n_routed_experts", "num_local_experts")
CHOSEN_FIELDS = ("num_experts_per_tok", "num_experts_per_token", "moe_top_k", "moe_topk")
"""How many routed experts a token takes, as classes call it."""


class Style(NamedTuple):
    """How a class puts a layer together and names it; the parts of a name are those of its checkpoints.

    ``form``: how its mixer is built (families/). ``norms``: vectors of the hidden size a layer. ``qk``: norms of q and
    k a "head", over all heads ("all") or none. ``bias``: of "qkv" or "qkvo". ``gate``: of the attention's output.
    ``gated``: whether an MLP has a gate; ``feeds``: whether there is one. ``router_bias``: a router's corrections.
    """

    root: str = "model"
    mixer: str = "linear_attn"
    form: str = ""
    attention: str = "self_attn"
    ffn: str = "mlp"
    experts: str = ""
    norms: int = 2
    qk: str = ""
    bias: str = ""
    gate: str = ""
    gated: bool = True
    feeds: bool = True
    router_bias: bool = False


_DEEPSEEK = Style(router_bias=True)
_KIMI = Style(mixer="self_attn", experts="block_sparse_moe", router_bias=True)
_QWEN35 = Style("model.language_model", form="split", qk="head", gate="attn_output_gate")
_BAILING = Style(mixer="attention", form="bailing", attention="attention", router_bias=True)
_PURE = Style("backbone", "mixer", norms=1, feeds=False)
_MINIMAX = Style(mixer="self_attn", form="minimax", experts="block_sparse_moe")
_LFM = Style(mixer="conv", ffn="feed_forward", qk="head", router_bias=True)
_MAMBA = Style(mixer="mamba", ffn="feed_forward")

STYLES = {
    "LlamaForCausalLM": Style(), "MistralForCausalLM": Style(), "MixtralForCausalLM": Style(experts="block_sparse_moe"),
    "Qwen2ForCausalLM": Style(bias="qkv"), "Qwen2MoeForCausalLM": Style(bias="qkv"),
    "Qwen3ForCausalLM": Style(qk="head"), "Qwen3MoeForCausalLM": Style(qk="head"),
    "DeepseekV2ForCausalLM": Style(), "DeepseekV3ForCausalLM": _DEEPSEEK,
    "GptOssForCausalLM": Style(bias="qkvo", router_bias=True),
    "Qwen3NextForCausalLM": Style(form="fused", qk="head", gate="attn_output_gate"),
    "Qwen3_5ForConditionalGeneration": _QWEN35, "Qwen3_5MoeForConditionalGeneration": _QWEN35,
    "Qwen3_5ForCausalLM": _QWEN35._replace(root="model"), "Qwen3_5MoeForCausalLM": _QWEN35._replace(root="model"),
    "OlmoHybridForCausalLM": Style(form="apart", qk="all"),
    "LaraMiniForCausalLM": Style(form="split", qk="head"),
    "JetNemotronForCausalLM": Style(mixer="self_attn", form="jet", bias="qkv"),
    "KimiLinearForCausalLM": _KIMI,
    "KimiK3LinearForCausalLM": _KIMI._replace(form="g"),
    "KimiK3ForConditionalGeneration": _KIMI._replace(root="language_model.model", form="g"),
    "Glm5NextForConditionalGeneration": Style("model.language_model", "self_attn", router_bias=True),
    "BailingMoeV3ForCausalLM": Style(mixer="self_attn", form="fg", router_bias=True),
    "BailingMoeV2_5ForCausalLM": _BAILING,
    "BailingMoeLinearV2ForCausalLM": _BAILING._replace(qk="head"),
    "MiniMaxText01ForCausalLM": _MINIMAX, "MiniMaxM1ForCausalLM": _MINIMAX, "MiniMaxForCausalLM": _MINIMAX,
    "MiniCPMSALAForCausalLM": Style(mixer="self_attn", form="minicpm", gate="o_gate"),
    "NemotronHForCausalLM": Style(
        "backbone", "mixer", attention="mixer", ffn="mixer", norms=1, gated=False, router_bias=True
    ),
    "FalconH1ForCausalLM": _MAMBA, "BambaForCausalLM": _MAMBA,
    "JambaForCausalLM": _MAMBA._replace(form="normed"),
    "GraniteMoeHybridForCausalLM": Style(mixer="mamba", ffn="shared_mlp", experts="block_sparse_moe"),
    "Zamba2ForCausalLM": Style(mixer="mamba", norms=1, feeds=False),
    "Mamba2ForCausalLM": _PURE, "MambaForCausalLM": _PURE, "FalconMambaForCausalLM": _PURE,
    "Lfm2ForCausalLM": _LFM, "Lfm2MoeForCausalLM": _LFM,
    "Lfm3ForCausalLM": _LFM._replace(norms=4, gate="g_proj"),
}  # fmt: skip
"""Model class -> how it is built. A class without a row has no closed form here."""


def blocks(model: Architecture, style: Style, fields: Fields) -> Iterator[Block]:
    """All blocks of a model; ``fields`` collects what its config lacks."""
    hidden, layers = model.hidden_size or 0, model.layers
    yield from of_vision(model, fields)
    yield from first_of(model, style.root, fields)
    if model.state is not None:
        form = "bare" if fields.raw("mamba_rms_norm") is False else style.form
        mixers = tuple(i for i, letter in enumerate(layers) if letter in "sbv")
        yield Block(_at(style, style.mixer), model.state.parameters(hidden, form, fields), mixers)
    if "Zamba2" in model.architecture:
        yield from _zamba_shared(model, fields)
    else:
        attending = tuple(i for i, letter in enumerate(layers) if letter in "abwv")
        yield Block(_at(style, style.attention), attention(model, style, fields), attending)
    if style.feeds:
        yield from feeds(model, style, fields)
    yield Block(_at(style, ""), _layer_vectors(model, style, fields), tuple(range(len(layers))))
    yield from _draft(model, style, fields)
    yield from last_of(model, style.root, fields)


def first_of(model: Architecture, root: str, fields: Fields, norm: str = "") -> Iterator[Block]:
    """The embedding, and a norm of it where ``norm`` names one."""
    hidden, rows = model.hidden_size or 0, (Part(fields.number("vocab_size")),)
    table = Tensor("embed_tokens.weight", "embedding", rows, hidden, "rows", "embedding")
    yield Block(f"{root}.", (table,), place=FIRST)
    if norm:
        yield Block(f"{root}.", (vector(norm, "embedding", hidden),), place=FIRST)


def last_of(model: Architecture, root: str, fields: Fields, norm: str = "norm", rows: int = 0) -> Iterator[Block]:
    """The head, of ``rows`` where it has fewer than the embedding, unless it is the embedding; and the last norm."""
    hidden, tokens = model.hidden_size or 0, (Part(rows or fields.number("vocab_size")),)
    if fields.outer("tie_word_embeddings") is not True:
        yield Block("lm_head.", (Tensor("weight", "lm_head", tokens, hidden, "rows", "head", linear=True),), place=LAST)
    if norm:
        yield Block(f"{root}.", (vector(norm, "norm", hidden),), place=LAST)


def routed(hidden: int, width: int, count: int, *, gated: bool = True) -> tuple[Tensor, Tensor]:
    """Routed experts: gate and up in one matrix, and down."""
    rows = (Part(width), Part(width)) if gated else (Part(width),)
    return (
        Tensor("experts.gate_up_proj", "routed_experts", rows, hidden, "rows", "experts", count, linear=True),
        Tensor("experts.down_proj", "routed_experts", (Part(hidden),), width, "columns", "experts", count, linear=True),
    )


def _at(style: Style, part: str) -> str:
    return f"{style.root}.layers.{{}}.{part}." if part else f"{style.root}.layers.{{}}."


def _layer_vectors(model: Architecture, style: Style, fields: Fields) -> tuple[Tensor, ...]:
    """Norms of the hidden size, and what some classes keep beside them: mHC streams, attention residuals."""
    hidden = model.hidden_size or 0
    norms = [vector(f"norm{n}", "norm", hidden) for n in range(style.norms)]
    if fields.raw("attn_res_block_size") is not None:
        norms.append(vector("attn_res", "norm", 4 * hidden))
    if model.architecture.startswith("Glm5Next"):
        streams = fields.optional("hc_mult") or 4
        mixes = streams * (2 + streams)
        for name in ("attn_hc", "ffn_hc"):
            norms.append(Tensor(f"{name}.fn", "norm", (Part(mixes),), streams * hidden, dtype="float32"))
            norms.append(vector(f"{name}.base", "norm", mixes + 3, dtype="float32"))
    return tuple(norms)


def attention(model: Architecture, style: Style, fields: Fields) -> tuple[Tensor, ...]:
    """The tensors of a layer's attention; none where a model has none."""
    if isinstance(model.attention, LatentKV):
        return _latent(model, style, fields)
    if model.attention is None:
        return ()
    return _grouped(model, style, fields, model.attention)


def _grouped(model: Architecture, style: Style, fields: Fields, kv: GroupedQueryKV) -> tuple[Tensor, ...]:
    """Grouped-query attention: q, k, v and o; in some classes biases, norms of q and k, an output gate, sinks."""
    hidden, queries, width = model.hidden_size or 0, model.num_attention_heads or 0, kv.head_dim
    doubled = 2 if style.gate == "attn_output_gate" and fields.raw(style.gate) is not False else 1
    query = Part(doubled * queries * width, queries)
    key, value = (Part(kv.kv_heads * size, kv.kv_heads, repeated=True) for size in (width, kv.v_head_dim))
    inputs = (("q_proj", query), ("k_proj", key), ("v_proj", value))
    out = [linear(name, "attention", (part,), hidden, "rows", "attention") for name, part in inputs]
    out.append(linear("o_proj", "attention", hidden, queries * kv.v_head_dim, "columns", "attention"))
    biased = style.bias or ("qkvo" if fields.raw("attention_bias") is True else "")
    if biased:
        out += [vector(f"{name}.bias", "attention", part, cut="rows") for name, part in inputs]
    if biased == "qkvo":
        out.append(vector("o_proj.bias", "attention", hidden))
    if model.architecture.startswith("GptOss"):
        out.append(vector("sinks", "attention", Part(queries, queries), cut="rows"))
    if style.qk == "head":
        out += [vector(name, "attention", width) for name in ("q_norm", "k_norm")]
    elif style.qk == "all":
        out += [vector("q_norm", "attention", queries * width), vector("k_norm", "attention", kv.kv_heads * width)]
    if style.gate in ("o_gate", "g_proj"):
        rows = Part(queries * (width if style.gate == "o_gate" else 1), queries)
        out.append(linear(style.gate, "attention", (rows,), hidden, "rows", "attention"))
    return tuple(out)


def _latent(model: Architecture, style: Style, fields: Fields) -> tuple[Tensor, ...]:
    """Multi-head latent attention; the down projections and their norms are whole on every rank."""
    kv = model.attention
    assert isinstance(kv, LatentKV)  # noqa: S101  (what the caller asked)
    hidden, queries, rank = model.hidden_size or 0, model.num_attention_heads or 0, kv.kv_lora_rank
    nope, value = fields.number("qk_nope_head_dim"), fields.number("v_head_dim")
    rope = fields.optional("qk_rope_head_dim", at_least=0)
    rope = kv.qk_rope_head_dim if rope is None else rope
    query, low = Part(queries * (nope + rope), queries), fields.optional("q_lora_rank")
    out = [linear("q_proj", "attention", (query,), hidden, "rows", "attention")]
    if low:
        out = [
            linear("q_a_proj", "attention", low, hidden, "", "attention"),
            vector("q_a_layernorm", "attention", low),
            linear("q_b_proj", "attention", (query,), low, "rows", "attention"),
        ]
    out += [
        linear("kv_a_proj_with_mqa", "attention", rank + rope, hidden, "", "attention"),
        vector("kv_a_layernorm", "attention", rank),
        linear("kv_b_proj", "attention", (Part(queries * (nope + value), queries),), rank, "rows", "attention"),
        linear("o_proj", "attention", hidden, queries * value, "columns", "attention"),
    ]
    if fields.raw("mla_use_output_gate") is True or model.architecture == "BailingMoeV3ForCausalLM":
        wide = 1 if model.architecture.startswith("Bailing") else value
        out.append(linear("g_proj", "attention", (Part(queries * wide, queries),), hidden, "rows", "attention"))
    if kv.indexer is not None and low:
        pool = fields.optional("index_kpool") or kv.indexer.kpool
        out += _indexer(hidden, low, kv.indexer.head_dim, pool, fields.number("index_n_heads"))
    return tuple(out)


def _indexer(hidden: int, low: int, width: int, pool: int, heads: int) -> list[Tensor]:
    """The sparse-attention indexer, whole on every rank."""
    return [
        linear("indexer.wq_b", "attention", heads * width, low, "", "attention"),
        linear("indexer.wk", "attention", width, hidden, "", "attention"),
        linear("indexer.weights_proj", "attention", heads, hidden, "", "attention"),
        vector("indexer.k_norm", "attention", 2 * width),
        *(
            (
                Tensor("indexer.ape", "attention", (Part(pool),), width),
                linear("indexer.gate", "attention", width, hidden, "", "attention"),
            )
            if pool > 1
            else ()
        ),
    ]


def mlp(name: str, group: str, hidden: int, width: int, gated: bool, over: str) -> tuple[Tensor, ...]:
    """A dense MLP: gate and up as two matrices, and down."""
    rows = ("gate_proj", "up_proj") if gated else ("up_proj",)
    prefix = f"{name}." if name else ""
    return (
        *(linear(f"{prefix}{each}", group, width, hidden, "rows", over) for each in rows),
        linear(f"{prefix}down_proj", group, hidden, width, "columns", over),
    )


def feeds(model: Architecture, style: Style, fields: Fields) -> Iterator[Block]:
    """What follows the mixer in each layer: a dense MLP, or a router with experts."""
    kinds = _feed_kinds(model, style, fields)
    hidden = model.hidden_size or 0
    dense = tuple(i for i, kind in enumerate(kinds) if kind == "-")
    if dense:
        yield Block(_at(style, style.ffn), mlp("", "mlp", hidden, _width(fields), style.gated, "mlp"), dense)
    sparse = tuple(i for i, kind in enumerate(kinds) if kind == "E")
    if sparse:
        yield Block(_at(style, style.experts or style.ffn), _experts(model, style, fields), sparse)
    if model.architecture.startswith("Granite"):
        width = fields.number("shared_intermediate_size")
        shared = mlp("", "shared_expert", hidden, width, True, "shared")
        yield Block(_at(style, style.ffn), shared, tuple(range(len(kinds))))


def _feed_kinds(model: Architecture, style: Style, fields: Fields) -> str:
    """One letter a layer: "-" a dense MLP, "E" experts, "." neither."""
    count = model.num_layers
    if model.architecture.startswith("NemotronH"):
        pattern = fields.text("hybrid_override_pattern")
        listed = fields.words("layers_block_type")
        if pattern is None and listed is None:
            fields.missing.append("hybrid_override_pattern or layers_block_type")
        spelt = pattern or "".join({"mlp": "-", "moe": "E"}.get(kind, ".") for kind in listed or ())
        return "".join(letter if letter in "-E" else "." for letter in spelt)
    experts = _expert_count(fields)
    if model.architecture.startswith("Granite"):
        return ("E" if experts else ".") * count
    if not experts:
        return "-" * count
    if model.architecture.startswith("Jamba"):
        period, offset = fields.optional("expert_layer_period") or 2, fields.optional("expert_layer_offset", at_least=0)
        return "".join("E" if i % period == (1 if offset is None else offset) else "-" for i in range(count))
    first = fields.optional("first_k_dense_replace", "num_dense_layers", at_least=0) or 0
    step = fields.optional("decoder_sparse_step", "moe_layer_freq") or 1
    only = set(fields.numbers("mlp_only_layers") or ())
    sparse = [i >= first and (i + 1) % step == 0 and i not in only for i in range(count)]
    return "".join("E" if each else "-" for each in sparse)


def _expert_count(fields: Fields) -> int:
    return fields.optional(*EXPERT_FIELDS, at_least=0) or 0


def _width(fields: Fields) -> int:
    """The width of a dense MLP; LFM2 states two thirds of it before rounding."""
    stated = fields.optional("block_ff_dim")
    if stated is None:
        return fields.number("intermediate_size")
    if fields.raw("block_auto_adjust_ff_dim") is False:
        return stated
    width = int((fields.real("block_ffn_dim_multiplier") or 1.0) * int(2 * stated / 3))
    multiple = fields.optional("block_multiple_of") or 256
    return -(-width // multiple) * multiple


def _experts(model: Architecture, style: Style, fields: Fields) -> tuple[Tensor, ...]:
    """A router, its experts, and what all tokens pass through: shared experts, projections to a latent width."""
    hidden, count = model.hidden_size or 0, _expert_count(fields)
    width = fields.optional("moe_intermediate_size") or fields.number("intermediate_size")
    latent = fields.optional("moe_latent_size", "routed_expert_hidden_size")
    inner = latent or hidden
    out = [Tensor("gate.weight", "router", (Part(count),), hidden), *routed(inner, width, count, gated=style.gated)]
    if style.router_bias and fields.raw("use_expert_bias") is not False:
        out.append(vector("gate.e_score_correction_bias", "router", count, dtype="float32"))
    if model.architecture.startswith("GptOss"):
        both = (Part(width), Part(width))
        out.append(Tensor("experts.gate_up_proj_bias", "routed_experts", both, 1, "rows", "experts", count))
        out.append(Tensor("experts.down_proj_bias", "routed_experts", (Part(inner),), 1, "", "experts", count))
    if latent:
        kimi = fields.raw("routed_expert_hidden_size") is not None  # both engines and all releases leave it in 16 bits
        names = ("routed_expert_down_proj", "routed_expert_up_proj") if kimi else ("fc1_latent_proj", "fc2_latent_proj")
        for name, rows, columns in zip(names, (latent, hidden), (hidden, latent), strict=True):
            out.append(Tensor(name, "mlp", (Part(rows),), columns, over="mlp", linear=not kimi))
        if fields.raw("latent_moe_use_norm") is True:
            out.append(vector("routed_expert_norm", "norm", latent))
    shared = _shared_width(fields, width)
    if shared and not model.architecture.startswith("Granite"):
        name = "shared_expert" if model.architecture.startswith(("Qwen", "Lara")) else "shared_experts"
        out += mlp(name, "shared_expert", hidden, shared, style.gated, "shared")
        if model.architecture.startswith("Qwen"):
            out.append(Tensor("shared_expert_gate.weight", "shared_expert", (Part(1),), hidden))
    return tuple(out)


def _shared_width(fields: Fields, width: int) -> int:
    """Width of all shared experts together; 0 without any."""
    stated = fields.optional("shared_expert_intermediate_size", at_least=0)
    if stated is not None:
        return stated
    count = fields.optional("num_shared_experts", "n_shared_experts", at_least=0) or 0
    return count * (fields.optional("moe_shared_expert_intermediate_size") or width)


def _draft(model: Architecture, style: Style, fields: Fields) -> Iterator[Block]:
    """Multi-token-prediction layers that the checkpoint carries, each a projection of two hidden states, norms and a
    layer with full attention.
    """
    hidden = model.hidden_size or 0
    count = model.draft_layers or fields.optional(*DRAFT_FIELDS, at_least=0)
    if not count:
        return
    nemotron = model.architecture.startswith("NemotronH")
    project = "fc" if model.architecture.startswith("Qwen") else "eh_proj"
    joined = linear(project, "mtp", hidden, 2 * hidden, "", "attention")
    yield Block("mtp.", (joined, vector("norms", "mtp", 3 * hidden)), place=DRAFT)
    letters = _draft_layers(fields) if nemotron else ""
    feed = _experts(model, style, fields) if _expert_count(fields) else None
    inner = (
        *_layer_vectors(model, style, fields),
        *((vector("norm1", "norm", hidden),) if len(letters) > 1 else ()),
        *attention(model, style, fields),
        *(mlp("", "mlp", hidden, _width(fields), style.gated, "mlp") if feed is None else feed),
    )
    yield Block("mtp.layers.{}.", inner, place=DRAFT, times=count)


def _draft_layers(fields: Fields) -> str:
    """Nemotron's draft as letters: one attention and one expert layer unless it says otherwise."""
    listed = fields.words("mtp_layers_block_type")
    return fields.text("mtp_hybrid_override_pattern") or "".join(kind[:1] for kind in listed or ("attention", "moe"))


def of_vision(model: Architecture, fields: Fields) -> Iterator[Block]:
    """The vision tower of Qwen3-VL and its successors: one block a depth, patches, positions and a merger."""
    if not model.multimodal or not isinstance(fields.raw("vision_config"), Mapping):
        return
    if not model.architecture.startswith(("Qwen3_5", "Qwen4")):
        return
    tower = fields.table("vision_config")
    width, deep, heads = tower.number("hidden_size"), tower.number("intermediate_size"), tower.number("num_heads")
    merged = (tower.optional("spatial_merge_size") or 2) ** 2 * width
    patch = tower.optional("in_channels") or 3
    patch *= (tower.optional("temporal_patch_size") or 2) * (tower.optional("patch_size") or 16) ** 2
    out = tower.optional("out_hidden_size") or model.hidden_size or 0
    head, inner = Part(width, heads), Part(deep)

    def cut(name: str, rows: tuple[Part, ...], columns: int, axis: str) -> tuple[Tensor, Tensor]:
        bias = Tensor(f"{name}.bias", "vision", rows, 1, "rows" if axis == "rows" else "", "vision")
        return linear(name, "vision", rows, columns, axis, "vision"), bias

    yield Block(
        "model.visual.blocks.{}.",
        (
            *cut("attn.qkv", (head, head, head), width, "rows"),
            *cut("attn.proj", (Part(width),), width, "columns"),
            *cut("mlp.linear_fc1", (inner,), width, "rows"),
            *cut("mlp.linear_fc2", (Part(width),), deep, "columns"),
            vector("norms", "vision", 4 * width),
        ),
        place=VISION,
        times=tower.number("depth"),
    )
    yield Block(
        "model.visual.",
        (
            Tensor("patch_embed.proj.weight", "vision", (Part(width),), patch),
            vector("patch_embed.proj.bias", "vision", width),
            Tensor("pos_embed.weight", "vision", (Part(tower.number("num_position_embeddings")),), width),
            vector("merger.norm", "vision", 2 * width),
            *cut("merger.linear_fc1", (Part(merged),), merged, "rows"),
            *cut("merger.linear_fc2", (Part(out),), merged, "columns"),
        ),
        place=VISION,
    )


def _zamba_shared(model: Architecture, fields: Fields) -> Iterator[Block]:
    """Zamba2's shared attention and MLP blocks, on twice the hidden width, with what each use of one adds."""
    kv, hidden = model.attention, model.hidden_size or 0
    assert isinstance(kv, GroupedQueryKV)  # noqa: S101  (Zamba2 has no other)
    queries, width = model.num_attention_heads or 0, fields.number("intermediate_size")
    rank = fields.optional("adapter_rank") or 128
    wide, uses = queries * kv.head_dim, tuple(i for i, letter in enumerate(model.layers) if letter == "b")
    blocks = fields.optional("num_mem_blocks") or 1
    inputs = [linear(f"{n}_proj", "attention", (Part(wide, queries),), 2 * hidden, "rows", "attention") for n in "qkv"]
    shared = (
        *inputs,
        linear("o_proj", "attention", hidden, wide, "columns", "attention"),
        *(linear(f"{name}_proj", "mlp", width, hidden, "rows", "mlp") for name in ("gate", "up")),
        linear("down_proj", "mlp", hidden, width, "columns", "mlp"),
        vector("input_layernorm", "norm", 2 * hidden),
        vector("pre_ff_layernorm", "norm", hidden),
    )
    yield Block("model.shared.", shared, place=FIRST, times=blocks)
    adapted = fields.raw("use_shared_attention_adapter") is True
    yield Block(
        "model.layers.{}.",
        (
            linear("linear", "mixer", hidden, hidden, "", "attention"),
            Tensor("mlp_adapter.0", "mlp", (Part(rank),), hidden),
            Tensor("mlp_adapter.1", "mlp", (Part(width), Part(width)), rank, "rows", "mlp"),
            *(Tensor(f"{n}_adapter.0", "attention", (Part(rank),), 2 * hidden) for n in "qkv" if adapted),
            *(Tensor(f"{n}_adapter.1", "attention", (Part(wide, queries),), rank, "rows") for n in "qkv" if adapted),
        ),
        uses,
    )
