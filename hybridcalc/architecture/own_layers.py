"""Classes whose layers no row of `layers.STYLES` describes: PLaMo-2, ZAYA1, Qwen4-Exp; Inkling is in inkling_layers.

Each function gives every tensor of its class, named as checkpoints name them. Their sums equal what the Hub counts of
PLaMo-2-1B and ZAYA1, and of Qwen4-Exp what its GGUF release states: 125.7 billion, and a table of 320,001,536 x 160.
"""

from collections.abc import Iterator
from math import isqrt

from hybridcalc.architecture import Architecture, GroupedQueryKV
from hybridcalc.architecture.fields import Fields
from hybridcalc.architecture.inkling_layers import inkling, inkling2
from hybridcalc.architecture.layers import Style, attention, feeds, first_of, last_of, of_vision, routed
from hybridcalc.architecture.tensors import DRAFT, FIRST, HOST, LAST, Block, Part, Tensor, linear, vector

QWEN4 = Style("model.language_model", form="split", qk="head", gate="attn_output_gate")
MOST_NGRAM_HEADS, MOST_NGRAM_ROWS = 64, 2**30


def plamo2(model: Architecture, fields: Fields) -> Iterator[Block]:
    """Mamba2 without groups whose B, C and step are projected from the convolved inner size, and windowed attention
    with learned scales of q and k heads; four norms a layer.
    """
    root, hidden = "model", model.hidden_size or 0
    yield from first_of(model, root, fields)
    heads, width = fields.number("mamba_num_heads"), fields.number("hidden_size_per_head")
    state, kernel = fields.number("mamba_d_state"), fields.number("mamba_d_conv")
    inner, head, step = Part(heads * width, heads), Part(heads, heads), max(64, hidden // 16)
    recurrent = tuple(i for i, letter in enumerate(model.layers) if letter == "s")
    yield Block(
        f"{root}.layers.layers.{{}}.mixer.",
        (
            linear("in_proj", "mixer", (inner, inner), hidden, "rows", "attention"),
            Tensor("conv1d", "mixer", (inner,), kernel, "rows"),
            linear("bcdt_proj", "mixer", step + 2 * state, inner.size, "columns", "attention"),
            linear("dt_proj", "mixer", (head,), step, "rows", "attention"),
            vector("dt_bias", "mixer", head, cut="rows", dtype="float32"),
            vector("A_log", "mixer", head, cut="rows", dtype="float32"),
            vector("D", "mixer", head, cut="rows", dtype="float32"),
            *(vector(name, "mixer", size) for name, size in (("dt_norm", step), ("B_norm", state), ("C_norm", state))),
            linear("out_proj", "mixer", hidden, inner.size, "columns", "attention"),
        ),
        recurrent,
    )
    kv, queries = model.attention, model.num_attention_heads or 0
    assert isinstance(kv, GroupedQueryKV)  # noqa: S101  (its reader makes no other)
    wide, narrow = Part(queries * width, queries), Part(kv.kv_heads * width, kv.kv_heads, repeated=True)
    yield Block(
        f"{root}.layers.layers.{{}}.mixer.",
        (
            linear("qkv_proj", "attention", (wide, narrow, narrow), hidden, "rows", "attention"),
            linear("o_proj", "attention", hidden, wide.size, "columns", "attention"),
            Tensor("q_weight", "attention", (wide,), 1, "rows"),
            Tensor("k_weight", "attention", (narrow,), 1, "rows"),
        ),
        tuple(i for i in range(model.num_layers) if i not in recurrent),
    )
    names = ("pre_mixer_norm", "post_mixer_norm", "pre_mlp_norm", "post_mlp_norm")
    both = (Part(fields.number("intermediate_size")),) * 2
    yield Block(
        f"{root}.layers.layers.{{}}.",
        (
            linear("mlp.gate_up_proj", "mlp", both, hidden, "rows", "mlp"),
            linear("mlp.down_proj", "mlp", hidden, both[0].size, "columns", "mlp"),
            *(vector(name, "norm", hidden) for name in names),
        ),
        tuple(range(model.num_layers)),
    )
    yield from last_of(model, root, fields)


def zaya(model: Architecture, fields: Fields) -> Iterator[Block]:
    """Attention whose q and k pass two convolutions, half of v taken from the token before; a router that is an MLP
    with a class for no expert at all; scales and shifts of both streams.
    """
    root, hidden = "model", model.hidden_size or 0
    yield from first_of(model, root, fields)
    attending = tuple(i for i, letter in enumerate(model.layers) if letter == "b")
    sparse = tuple(i for i, letter in enumerate(model.layers) if letter == ".") or attending
    kv, queries = model.attention, model.num_attention_heads or 0
    assert isinstance(kv, GroupedQueryKV)  # noqa: S101  (its reader makes no other)
    wide, narrow = Part(queries * kv.head_dim, queries), Part(kv.kv_heads * kv.head_dim, kv.kv_heads)
    first, second = fields.optional("cca_time0") or 2, fields.optional("cca_time1") or 2
    scales = tuple(vector(f"res_scale.{n}", "norm", 2 * hidden) for n in ("hidden_states", "residual"))
    yield Block(
        f"{root}.layers.{{}}.self_attn.",
        (
            linear("qkv.linear_q", "attention", (wide,), hidden, "rows", "attention"),
            linear("qkv.linear_k", "attention", (narrow,), hidden, "rows", "attention"),
            *(linear(f"qkv.val_proj{n}", "attention", narrow.size // 2, hidden, "", "attention") for n in (1, 2)),
            Tensor("qkv.conv_qk.0", "mixer", (wide, narrow), first + 1, "rows"),
            Tensor("qkv.conv_qk.1", "mixer", (wide, narrow), second * kv.head_dim + 1, "rows"),
            vector("qkv.temp", "attention", Part(kv.kv_heads, kv.kv_heads), cut="rows"),
            linear("o_proj", "attention", hidden, wide.size, "columns", "attention"),
            vector("input_norm", "norm", hidden),
            *scales,
        ),
        attending,
    )
    experts, size = fields.number("num_experts"), fields.optional("router_hidden_size", "zaya_mlp_expansion") or 256
    merged = fields.optional("moe_intermediate_size")
    width = merged if merged is not None else fields.number("ffn_hidden_size") // 2
    classes = experts + (0 if fields.raw("zaya_use_mod") is False else 1)
    yield Block(
        f"{root}.layers.{{}}.zaya_block.",
        (
            Tensor("router.down_proj.weight", "router", (Part(size),), hidden + 1),
            *(Tensor(f"router.router_mlp.{n}.weight", "router", (Part(size),), size + 1) for n in (0, 2)),
            Tensor("router.router_mlp.4.weight", "router", (Part(classes),), size),
            vector("router.rmsnorm_eda", "router", size),
            vector("router.balancing_biases", "router", classes, dtype="float32"),
            *routed(hidden, width, experts),
            vector("input_norm", "norm", hidden),
            *scales,
        ),
        sparse,
    )
    yield Block(f"{root}.layers.{{}}.zaya_block.", (vector("router.router_states_scale", "router", size),), sparse[1:])
    yield Block(f"{root}.", (vector("res_scale", "norm", 2 * hidden),), place=FIRST)
    yield from last_of(model, root, fields)


def qwen4_exp(model: Architecture, fields: Fields) -> Iterator[Block]:
    """Qwen3.5's layers between residual streams that a low-rank gate mixes, and a table of n-grams that some layers
    read; engines keep it in host memory.
    """
    root, hidden = QWEN4.root, model.hidden_size or 0
    yield from of_vision(model, fields)
    yield from first_of(model, root, fields)
    state = model.state
    assert state is not None  # noqa: S101  (its reader makes no other)
    recurrent = tuple(i for i, letter in enumerate(model.layers) if letter == "s")
    attending = tuple(i for i, letter in enumerate(model.layers) if letter == "a")
    yield Block(f"{root}.layers.{{}}.linear_attn.", state.parameters(hidden, QWEN4.form, fields), recurrent)
    full = (*attention(model, QWEN4, fields), *_qwen4_indexer(hidden, fields))
    yield Block(f"{root}.layers.{{}}.self_attn.", full, attending)
    yield from feeds(model, QWEN4, fields)
    streams, rank = fields.optional("hc_count") or 4, fields.optional("hc_lowrank") or 320
    names = ("attn_hyper_connection", "mlp_hyper_connection")
    mixed = tuple(tensor for name in names for tensor in _mixed(name, hidden, streams, rank))
    yield Block(f"{root}.layers.{{}}.", mixed, tuple(range(model.num_layers)))
    yield from _ngrams(root, hidden, streams, fields)
    last = _mixed("hyper_connection_mixer", hidden, streams, rank, inject=False)
    yield Block(f"{root}.", last, place=LAST)
    yield from last_of(model, root, fields, "")
    if model.draft_layers:
        joined = [linear(f"fc_{name}", "mtp", hidden, hidden, "", "attention") for name in ("embedding", "hidden")]
        norms = vector("pre_fc_norms", "mtp", (1 + streams) * hidden)
        inner = next(block.tensors for block in feeds(model, QWEN4, fields) if block.tensors[0].group == "router")
        yield Block("mtp.", (*joined, norms, *last), place=DRAFT)
        yield Block("mtp.layers.{}.", (*full, *inner, *mixed), place=DRAFT, times=model.draft_layers)


def _qwen4_indexer(hidden: int, fields: Fields) -> tuple[Tensor, ...]:
    heads = fields.optional("indexer_n_heads")
    if not heads:
        return ()
    width, keys = fields.number("indexer_head_dim"), fields.number("indexer_kv_heads")
    return (
        linear("indexer.index_qk_proj", "attention", (heads + keys) * width, hidden, "", "attention"),
        vector("indexer.norms", "attention", 2 * width),
    )


def _mixed(name: str, hidden: int, streams: int, rank: int, *, inject: bool = True) -> tuple[Tensor, ...]:
    """How one of the streams' mixers is stored: whole on every rank, never quantised."""
    wide = streams * hidden
    return (
        vector(f"{name}.hc_norm", "norm", wide),
        Tensor(f"{name}.input_mix_weight_down.weight", "norm", (Part(rank),), wide),
        Tensor(f"{name}.input_mix_weight_up.weight", "norm", (Part(wide),), rank),
        *((Tensor(f"{name}.block_inject_weight.weight", "norm", (Part(streams),), wide),) if inject else ()),
    )


def _ngrams(root: str, hidden: int, streams: int, fields: Fields) -> Iterator[Block]:
    """The table has as many rows as the primes after ``ngram_vocab_size_base`` that its heads take, in a row."""
    layers = sorted({layer - 1 for layer in fields.numbers("ple_layer_ids") or () if layer > 0})
    if not layers:
        return
    wide, embedded = streams * hidden, fields.optional("ple_embed_dim") or hidden
    heads = ((fields.optional("ngram_size") or 3) - 1) * (fields.optional("heads_per_ngram") or 8)
    least, multiple = (
        fields.number("ngram_vocab_size_base"),
        fields.optional("make_ngram_vocab_size_divisible_by") or 128,
    )
    if not 0 < heads * len(layers) <= MOST_NGRAM_HEADS or least > MOST_NGRAM_ROWS:
        fields.disagree(f"{heads} n-gram heads of {least:,} rows in {len(layers)} layers")
        return
    yield Block(
        f"{root}.layers.{{}}.ple.",
        (
            linear("key_proj", "mixer", wide, embedded, "", "attention"),
            linear("value_proj", "mixer", hidden, embedded, "", "attention"),
            vector("norms", "norm", 3 * wide),
            Tensor("conv1d", "mixer", (Part(wide),), fields.optional("ple_conv_kernel_size") or 4),
        ),
        tuple(layers),
    )
    sizes = _primes_from(least, heads * len(layers))
    for n in range(len(layers)):
        rows = -(-sum(sizes[n * heads : (n + 1) * heads]) // multiple) * multiple
        name = f"{root}.layers.{layers[n]}.ple.ple_embedding."
        table = Tensor("ngram_embedding", "ngram_table", (Part(rows),), embedded // heads, "rows", "embedding")
        yield Block(name, (table,), place=HOST)


def _primes_from(least: int, count: int) -> list[int]:
    found, number = list[int](), max(2, least)
    while len(found) < count:
        if number == 2 or (number % 2 and all(number % odd for odd in range(3, isqrt(number) + 1, 2))):
            found.append(number)
        number += 1
    return found


OWN = {
    "InklingForConditionalGeneration": inkling, "Inkling2ForConditionalGeneration": inkling2,
    "Plamo2ForCausalLM": plamo2, "ZayaForCausalLM": zaya, "Qwen4ExpForConditionalGeneration": qwen4_exp,
}  # fmt: skip
"""Model class -> all its blocks; ``fields`` collects what a config lacks."""
