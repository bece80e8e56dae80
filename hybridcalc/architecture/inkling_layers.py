"""Every tensor of Inkling and Inkling 2: attention with a bias of distances, four convolutions a layer, experts.

Named as their checkpoints name them. Inkling's sum equals what the Hub counts (952,377,623,626: text, the towers and
eight draft layers), Inkling 2's that of transformers 5.24.0 on the meta device.
"""

from collections.abc import Iterator
from itertools import pairwise
from math import log

from hybridcalc.architecture import Architecture, GroupedQueryKV
from hybridcalc.architecture.fields import Fields
from hybridcalc.architecture.layers import first_of, last_of, mlp, routed
from hybridcalc.architecture.tensors import DRAFT, LAST, VISION, Block, Part, Tensor, linear, vector

LARGEST_PATCH = 4096


def inkling(model: Architecture, fields: Fields) -> Iterator[Block]:
    """Attention with a learned bias of distances instead of rotary angles, four convolutions a layer, experts of
    which the shared ones have a row in the router; towers of images and sound, and draft layers with a dense MLP.
    """
    root, hidden = "model.llm", model.hidden_size or 0
    yield from _inkling_towers(model, fields)
    yield from first_of(model, root, fields, "embed_norm")
    local = tuple(i for i, letter in enumerate(model.layers) if letter == "v")
    full = tuple(i for i, letter in enumerate(model.layers) if letter == "b")
    for layers, windowed in ((local, True), (full, False)):
        if layers:
            yield Block(f"{root}.layers.{{}}.attn.", _inkling_attention(model, fields, windowed), layers)
    dense = fields.optional("dense_mlp_idx", at_least=0) or 0
    experts, shared = fields.number("n_routed_experts"), fields.optional("n_shared_experts", at_least=0) or 0
    width = fields.number("moe_intermediate_size", "intermediate_size")
    whole = tuple(range(model.num_layers))
    if dense:
        yield Block(f"{root}.layers.{{}}.mlp.", _inkling_dense(fields, hidden), whole[:dense])
    yield Block(
        f"{root}.layers.{{}}.mlp.",
        (
            Tensor("gate.weight", "router", (Part(experts + shared),), hidden),
            vector("gate.bias", "router", experts, dtype="float32"),
            vector("gate.global_scale", "mlp", 1, dtype="float32"),
            *routed(hidden, width, experts),
            *(mlp("shared_experts", "shared_expert", hidden, shared * width, True, "shared") if shared else ()),
        ),
        whole[dense:],
    )
    yield Block(f"{root}.layers.{{}}.", _inkling_layer(fields, hidden), whole)
    yield from _inkling_draft(model, fields)
    yield from last_of(model, root, fields)


def _inkling_attention(model: Architecture, fields: Fields, windowed: bool) -> tuple[Tensor, ...]:
    hidden, kernel, rank = model.hidden_size or 0, _kernel(fields), fields.optional("d_rel") or 16
    kv = model.window_attention if windowed else model.attention
    assert isinstance(kv, GroupedQueryKV)  # noqa: S101  (its reader makes no other)
    queries = (fields.optional("swa_num_attention_heads") if windowed else None) or model.num_attention_heads or 0
    reach = (model.window if windowed else None) or fields.optional("rel_extent") or 1024
    wide, narrow = Part(queries * kv.head_dim, queries), Part(kv.kv_heads * kv.head_dim, kv.kv_heads, repeated=True)
    return (
        linear("wq_du", "attention", (wide,), hidden, "rows", "attention"),
        linear("wk_dv", "attention", (narrow,), hidden, "rows", "attention"),
        linear("wv_dv", "attention", (narrow,), hidden, "rows", "attention"),
        linear("wr_du", "attention", (Part(queries * rank, queries),), hidden, "rows", "attention"),
        linear("wo_ud", "attention", hidden, wide.size, "columns", "attention"),
        Tensor("rel_logits_proj.proj", "attention", (Part(rank),), reach),
        Tensor("k_sconv", "mixer", (narrow,), kernel, "rows"),
        Tensor("v_sconv", "mixer", (narrow,), kernel, "rows"),
        vector("q_norm", "attention", kv.head_dim),
        vector("k_norm", "attention", kv.head_dim),
    )


def _kernel(fields: Fields) -> int:
    return fields.number("sconv_kernel_size", "conv_kernel_size")


def _inkling_layer(fields: Fields, hidden: int) -> tuple[Tensor, ...]:
    streams = tuple(Tensor(name, "mixer", (Part(hidden),), _kernel(fields)) for name in ("attn_sconv", "mlp_sconv"))
    return (*(vector(name, "norm", hidden) for name in ("attn_norm", "mlp_norm")), *streams)


def _inkling_dense(fields: Fields, hidden: int) -> tuple[Tensor, ...]:
    width = fields.number("dense_intermediate_size", "intermediate_size")
    return (*mlp("", "mlp", hidden, width, True, "mlp"), vector("global_scale", "mlp", 1))


def _inkling_draft(model: Architecture, fields: Fields) -> Iterator[Block]:
    said = fields.table("mtp_config") if fields.raw("mtp_config") is not None else fields
    count = model.draft_layers or said.optional("num_nextn_predict_layers", "num_mtp_layers", at_least=0) or 0
    hidden = model.hidden_size or 0
    local = len(set(said.numbers("local_layer_ids") or ()))
    if not count:
        return
    joined = linear("input_proj", "mtp", hidden, 2 * hidden, "", "attention")
    norms = (vector("hidden_norm", "mtp", hidden), vector("embed_norm", "mtp", hidden))
    yield Block("model.mtp.layers.{}.", (joined, *norms), place=DRAFT, times=count)
    for times, windowed in ((local, True), (count - local, False)):
        inside = (*_inkling_attention(model, fields, windowed), *_inkling_dense(fields, hidden))
        block = (*inside, *_inkling_layer(fields, hidden))
        if times > 0:
            yield Block("model.mtp.layers.{}.transformer_block.", block, place=DRAFT, times=times)


def _inkling_towers(model: Architecture, fields: Fields) -> Iterator[Block]:
    """A patch is folded step by step into one vector (hMLP); sound is one table of quantised mel bins."""
    hidden = model.hidden_size or 0
    if fields.raw("audio_config") is not None:
        sound = fields.table("audio_config")
        bins = sound.number("n_mel_bins") * sound.number("mel_vocab_size")
        table = Tensor("encoder.weight", "vision", (Part(bins),), hidden, over="vision")
        yield Block("model.audio.", (table, vector("final_norm", "vision", hidden)), place=VISION)
    if fields.raw("vision_config") is None:
        return
    tower = fields.table("vision_config")
    side, frames = tower.number("patch_size"), tower.optional("temporal_patch_size") or 2
    steps, channels = tower.number("n_layers", "num_hidden_layers"), tower.optional("num_channels", "n_channels") or 3
    if side > LARGEST_PATCH or frames > LARGEST_PATCH or steps > LARGEST_PATCH:
        fields.disagree(f"vision_config with patches of {side} and {steps} layers")
        return
    scales = _scales(side, frames, steps, channels)
    out: list[Tensor] = []
    for step, ((start, width), (end, wider)) in enumerate(pairwise(scales)):
        last = step == steps - 1
        rows = hidden if last else wider
        out.append(linear(f"linear_{step}", "vision", rows, width * (end // start), "", "vision"))
        out += [] if last else [vector(f"norm_{step}", "vision", rows)]
    yield Block("model.visual.", (*out, vector("final_norm", "vision", hidden)), place=VISION)


def _scales(side: int, frames: int, steps: int, channels: int) -> list[tuple[int, int]]:
    """(elements folded, channels) after each step: of the sizes that prime factors give, those whose folds are nearest
    to even steps; each once, in order, where there are fewer steps than sizes.
    """
    sizes, area, time = [(1, channels)], 1, 1
    for factor in _primes(side):
        area *= factor * factor
        sizes.append((area, -(-area * channels // 64) * 64))
    for factor in _primes(frames):
        time *= factor
        sizes.append((area * time, -(-area * channels * time // 64) * 64))
    even = [log(side * side * frames * channels) * step / steps for step in range(steps + 1)]
    folds = [log(folded) for folded, _ in sizes]
    if steps >= len(sizes):
        chosen = [min((abs(wanted - fold), at) for at, fold in enumerate(folds))[1] for wanted in even]
    else:
        chosen = _nearest_in_order(even, folds)
    chosen[0], chosen[-1] = 0, len(sizes) - 1
    return [sizes[at] for at in chosen]


def _nearest_in_order(wanted: list[float], given: list[float]) -> list[int]:
    """For each of ``wanted`` one of ``given``, each once and in order, that lie nearest in sum."""
    best: dict[int, tuple[float, list[int]]] = {-1: (0.0, [])}
    for each in wanted:
        following: dict[int, tuple[float, list[int]]] = {}
        for last, (cost, taken) in best.items():
            for at in range(last + 1, len(given)):
                total = cost + abs(each - given[at])
                if at not in following or total < following[at][0]:
                    following[at] = (total, [*taken, at])
        best = following
    return min(best.values())[1]


def _primes(number: int) -> list[int]:
    """Prime factors, largest first."""
    found, factor = list[int](), 2
    while number > 1:
        if factor * factor > number:
            factor = number
        while number % factor == 0:
            found.append(factor)
            number //= factor
        factor += 1
    return found[::-1]


def inkling2(model: Architecture, fields: Fields) -> Iterator[Block]:
    """As Inkling without shared experts, with a gate of the output, sinks from the input, scales a head instead of
    norms, and queries that pick from earlier blocks; full layers make the taps of k and v from their input.
    """
    root, hidden, kernel = "model.language_model", model.hidden_size or 0, _kernel(fields)
    yield from _inkling2_tower(model, fields)
    yield from first_of(model, root, fields, "embed_norm")
    for letter in "vb":
        layers = tuple(i for i, each in enumerate(model.layers) if each == letter)
        if not layers:
            continue
        full, norms = letter == "b", ("q_input_layernorm", "k_input_layernorm", "v_input_layernorm")
        yield Block(f"{root}.layers.{{}}.self_attn.", _inkling2_attention(model, fields, letter == "v"), layers)
        inputs = norms if full else ("input_layernorm",)
        yield Block(f"{root}.layers.{{}}.", tuple(vector(name, "norm", hidden) for name in inputs), layers)
        later = tuple(i for i in layers if i)
        query = Tensor("attention_input.query", "attention", (Part(len(inputs)),), hidden, dtype="float32")
        yield Block(f"{root}.layers.{{}}.", (query,), later)
    experts = fields.number("n_routed_experts")
    yield Block(
        f"{root}.layers.{{}}.mlp.",
        (
            Tensor("gate.weight", "router", (Part(experts),), hidden, dtype="float32"),
            vector("gate.e_score_correction_bias", "router", experts, dtype="float32"),
            *routed(hidden, fields.number("moe_intermediate_size", "intermediate_size"), experts),
        ),
        tuple(range(model.num_layers)),
    )
    streams = ("post_attention_convolution", "post_mlp_convolution")
    yield Block(
        f"{root}.layers.{{}}.",
        (
            vector("post_attention_layernorm", "norm", hidden),
            vector("mlp_input.query", "mlp", hidden, dtype="float32"),
            *(Tensor(name, "mixer", (Part(hidden),), kernel) for name in streams),
        ),
        tuple(range(model.num_layers)),
    )
    yield Block(f"{root}.final_input.", (vector("query", "mlp", hidden, dtype="float32"),), place=LAST)
    yield from last_of(model, root, fields, rows=fields.optional("unpadded_vocab_size") or 0)


def _inkling2_attention(model: Architecture, fields: Fields, windowed: bool) -> tuple[Tensor, ...]:
    hidden, kernel, rank = model.hidden_size or 0, _kernel(fields), fields.optional("d_rel") or 16
    kv = (model.window_attention if windowed else None) or model.attention
    assert isinstance(kv, GroupedQueryKV)  # noqa: S101  (its reader makes no other)
    queries = (fields.optional("swa_num_attention_heads") if windowed else None) or model.num_attention_heads or 0
    reach = (model.window if windowed else None) or fields.optional("rel_extent") or 1024
    heads, wide = Part(queries, queries), Part(queries * kv.head_dim, queries)
    narrow = Part(kv.kv_heads * kv.head_dim, kv.kv_heads, repeated=True)
    taps = Part(kv.kv_heads * kernel, kv.kv_heads, repeated=True)
    made = [
        (Tensor(f"{name}.sconv.static_weight", "mixer", (narrow,), kernel, "rows"),)
        + (() if windowed else (Tensor(f"{name}.sconv.weight_proj.weight", "attention", (taps,), hidden, "rows"),))
        for name in ("k_proj", "v_proj")
    ]
    return (
        linear("q_proj.linear", "attention", (wide,), hidden, "rows", "attention"),
        Tensor("q_proj.norm.scale", "attention", (heads,), kv.head_dim, "rows"),
        linear("k_proj.linear", "attention", (narrow,), hidden, "rows", "attention"),
        linear("v_proj.linear", "attention", (narrow,), hidden, "rows", "attention"),
        *(tensor for pair in made for tensor in pair),
        linear("o_proj.gate_proj", "attention", (wide,), hidden, "rows", "attention"),
        linear("o_proj.linear", "attention", hidden, wide.size, "columns", "attention"),
        Tensor("sink_proj.weight", "attention", (heads,), hidden, "rows"),
        Tensor("relative_position_bias.proj", "attention", (Part(rank),), reach),
        linear(
            "relative_position_bias.linear", "attention", (Part(queries * rank, queries),), hidden, "rows", "attention"
        ),
        Tensor("relative_position_bias.norm.scale", "attention", (heads,), rank, "rows"),
    )


def _inkling2_tower(model: Architecture, fields: Fields) -> Iterator[Block]:
    if fields.raw("vision_config") is None:
        return
    tower, hidden = fields.table("vision_config"), model.hidden_size or 0
    width = tower.number("hidden_size")
    deep = tower.optional("intermediate_size") or int(width * (tower.real("mlp_ratio") or 4))
    patch = (tower.optional("num_channels") or 3) * tower.number("patch_size", "native_patch_size") ** 2
    merged = (tower.optional("spatial_merge_size", "adapter_merge_size") or 2) ** 2 * width
    grid, middle = tower.number("posemb_grid_size") ** 2, tower.number("projection_hidden_dim")
    head, inner = Part(width, tower.number("num_attention_heads")), Part(deep)
    yield Block(
        "model.vision_tower.layers.{}.",
        (
            *(linear(f"attention.{name}_proj", "vision", (head,), width, "rows", "vision") for name in "qkv"),
            linear("attention.out_proj", "vision", width, width, "columns", "vision"),
            linear("mlp.fc1", "vision", (inner,), width, "rows", "vision"),
            linear("mlp.fc2", "vision", width, deep, "columns", "vision"),
            vector("biases", "vision", 5 * width + deep),
            vector("norms and scales", "vision", 6 * width),
        ),
        place=VISION,
        times=tower.number("num_hidden_layers"),
    )
    yield Block(
        "model.vision_tower.",
        (
            Tensor("embeddings.patch_embedding.weight", "vision", (Part(width),), patch),
            Tensor("embeddings.position_embedding.weight", "vision", (Part(grid),), width),
            vector("embeddings.class_embedding and its position", "vision", 2 * width),
            vector("pre_layernorm", "vision", 2 * width),
            linear("merger.linear_1", "vision", middle, merged, "", "vision"),
            linear("merger.linear_2", "vision", hidden, middle, "", "vision"),
        ),
        place=VISION,
    )
