"""Configs of hybrid and recurrent models: which layers hold what, and the sizes, one reader per architecture.

Layer counts always come from the config's own layer list or from the expansion the engines make of its interval
field; index bases differ (Kimi counts from 1, GLM and Bamba from 0). Mirrors the config classes of SGLang
(srt/configs) and vLLM (model_executor/models/config.py). A reader returns the parts; it refuses nothing itself, since
`Fields` collects what is missing or contradictory.
"""

from typing import NamedTuple

from hybridcalc.architecture.config_json.attention import grouped_query, heads, latent
from hybridcalc.architecture.config_json.fields import LARGEST_NUMBER, MOST_LAYERS, Fields
from hybridcalc.architecture.geometry import (
    AttentionKV,
    ConvStream,
    GatedDeltaNet,
    GroupedQueryKV,
    IndexCache,
    KimiDelta,
    LatentKV,
    Lightning,
    Mamba1,
    Mamba2,
    PleConv,
    RecurrentState,
    ShortConv,
)
from hybridcalc.errors import quoted

LINEAR_KINDS = {
    "linear_attention": "s", "full_attention": "a", "qwen_sparse_attention": "a", "indexed_attention": "a",
}  # fmt: skip
WINDOWED_LINEAR_KINDS = LINEAR_KINDS | {"sliding_attention": "w"}
MAMBA_KINDS = {"mamba": "s", "attention": "a"}


class Parts(NamedTuple):
    """What a reader makes of a config."""

    layers: str
    state: RecurrentState | None
    attention: AttentionKV | None
    window: int | None = None
    window_attention: GroupedQueryKV | None = None
    ple_conv: PleConv | None = None


def kimi(fields: Fields) -> Parts:
    """Kimi-Linear and Kimi-K3: kda_layers counts from 1, every other layer is MLA; 64 rope dims stay in the row."""
    count = fields.layer_count()
    linear = fields.table("linear_attn_config")
    if linear.raw("kda_layers") is None:
        linear.missing.append("linear_attn_config.kda_layers")
    recurrent = linear.indices("kda_layers", count, base=1) or set()
    state = KimiDelta(linear.number("num_heads"), linear.number("head_dim"), linear.number("short_conv_kernel_size"))
    return Parts(_letters(count, recurrent), state, latent(fields))


def glm5_next(fields: Fields) -> Parts:
    """GLM-5-Next: KDA layers from 0, else layer_types, else all but every fourth; MLA with a DSA indexer."""
    count = fields.layer_count()
    inner = fields.table("linear_attn_config") if fields.raw("linear_attn_config") is not None else None
    recurrent = inner.indices("kda_layers", count) if inner is not None else None
    layers = (
        _letters(count, recurrent) if recurrent is not None else fields.row("layer_types", LINEAR_KINDS, count=count)
    )
    layers = layers or "".join("a" if i % 4 == 3 else "s" for i in range(count))
    state = KimiDelta(
        fields.optional("linear_num_heads") or 64,
        fields.optional("linear_head_dim") or 128,
        fields.optional("linear_conv_kernel_dim") or 4,
    )
    index = None
    if fields.raw("index_topk") is not None:
        index = IndexCache(fields.number("index_head_dim"), fields.optional("index_kpool") or 1)
    row = LatentKV(fields.optional("kv_lora_rank") or 512, fields.optional("qk_rope_head_dim", at_least=0) or 0, index)
    return Parts(layers, state, row)


def bailing_v3(fields: Fields) -> Parts:
    """Ling-3: KDA, every layer_group_size-th layer MLA; use_mla_nope drops the rotary part."""
    state = KimiDelta(heads(fields), fields.number("head_dim"), fields.number("short_conv_kernel_size"))
    return Parts(_layer_groups(fields), state, latent(fields, nope=fields.raw("use_mla_nope") is True))


def bailing_v2_5(fields: Fields) -> Parts:
    """Ling/Ring 2.5 and 2.6: lightning attention, every layer_group_size-th layer MLA."""
    return Parts(_layer_groups(fields), Lightning(heads(fields), fields.number("head_dim")), latent(fields))


def bailing_linear_v2(fields: Fields) -> Parts:
    """Ring 2.0 linear: lightning with GQA layers; layers after the last whole group are attention too."""
    layers = _layer_groups(fields)
    if not isinstance(fields.raw("layer_group_size"), list):
        size = fields.optional("layer_group_size") or 1
        whole = len(layers) // size * size
        layers = layers[:whole] + "a" * (len(layers) - whole)
    return Parts(layers, Lightning(heads(fields), fields.number("head_dim")), grouped_query(fields))


def qwen_gdn(fields: Fields) -> Parts:
    """Qwen3-Next, Qwen3.5, 3.6, 3.8: GDN; layer_types, or every full_attention_interval-th layer full."""
    return Parts(_linear_layers(fields), _gdn_state(fields), _stated_grouped_query(fields))


def linear_hybrid(fields: Fields) -> Parts:
    """OLMo-Hybrid and Lara: GDN by the same fields, with plain attention and, in Lara, sliding windows."""
    layers = _linear_layers(fields, WINDOWED_LINEAR_KINDS)
    window = fields.number("sliding_window") if "w" in layers else None
    return Parts(layers, _gdn_state(fields), grouped_query(fields), window)


def qwen4_exp(fields: Fields) -> Parts:
    """Qwen4-Exp: as Qwen3.5, plus a short convolution for the layers with per-layer embeddings."""
    ple = None
    listed = fields.numbers("ple_layer_ids")
    if listed:
        channels = fields.number("hidden_size") * (fields.optional("hc_count") or 4)
        columns = ((fields.optional("ple_conv_kernel_size") or 4) - 1) * (fields.optional("ngram_size") or 3)
        ple = PleConv(len(set(listed)), channels, columns)
    return Parts(_linear_layers(fields), _gdn_state(fields), _stated_grouped_query(fields), ple_conv=ple)


def gigachat(fields: Fields) -> Parts:
    """GigaChat3.5: GDN with MLA; layer_types, else full_attention_layers counted from 0."""
    count = fields.layer_count()
    layers = fields.row("layer_types", LINEAR_KINDS, count=count)
    if layers is None:
        full = fields.indices("full_attention_layers", count)
        if full is None:
            fields.missing.append("layer_types or full_attention_layers")
        layers = _letters(count, set(range(count)) - (full or set()))
    state = GatedDeltaNet(
        fields.number("linear_num_value_heads"),
        fields.number("linear_num_key_heads"),
        fields.optional("linear_value_head_dim") or 128,
        fields.optional("linear_key_head_dim") or 128,
        fields.optional("linear_conv_kernel_dim") or 4,
    )
    rope = fields.optional("qk_rope_head_dim", at_least=0)
    return Parts(layers, state, LatentKV(fields.optional("kv_lora_rank") or 512, 64 if rope is None else rope))


def jet_nemotron(fields: Fields) -> Parts:
    """Jet-Nemotron: GDN-shaped jet layers; value width is int(head_dim * expand_v)."""
    layers = _required_row(fields, "layer_types", {"jet": "s", "attn": "a", "swa": "w"}, count=fields.layer_count())
    tables = fields.table("efficient_attention_config")
    jet = tables.table("jet")
    num_heads, head_dim = jet.number("num_heads"), jet.number("head_dim")
    value_dim = int(head_dim * (jet.real("expand_v") or 1.0)) or 1
    if jet.raw("expand_v") is None:
        fields.missing.append("efficient_attention_config.jet.expand_v")
    state = GatedDeltaNet(num_heads, num_heads, value_dim, head_dim, jet.number("conv_size"))
    window = tables.table("swa").number("window_size") if "w" in layers else None
    return Parts(layers, state, grouped_query(fields), window)


def nemotron_h(fields: Fields) -> Parts:
    """Nemotron-H and -3: pattern letters M * - E, or layers_block_type; the list's length is the layer count."""
    kinds = {"mamba": "s", "attention": "a", "mlp": ".", "moe": "."}
    layers = fields.row("layers_block_type", kinds)
    pattern = fields.text("hybrid_override_pattern")
    if layers is None and pattern is None:
        fields.missing.append("hybrid_override_pattern or layers_block_type")
    if pattern is not None:
        letters = {"M": "s", "*": "a", "-": ".", "E": "."}
        unknown = sorted(set(pattern) - set(letters))
        if unknown or len(pattern) > 4096:
            fields.disagree(f"hybrid_override_pattern has unknown letters {' '.join(unknown[:6])}")
        spelt = "".join(letters.get(letter, ".") for letter in pattern)
        if layers is not None and layers != spelt:
            fields.disagree("hybrid_override_pattern and layers_block_type differ")
        layers = spelt
    layers = layers or "."
    stated = fields.optional("num_hidden_layers")
    if stated is not None and stated != len(layers) and not fields.missing:
        fields.disagree(f"num_hidden_layers = {stated}, the layer list has {len(layers)}")
    num_heads, head_dim = fields.number("mamba_num_heads"), fields.number("mamba_head_dim")
    state = Mamba2(
        num_heads,
        head_dim,
        fields.number("ssm_state_size"),
        fields.number("n_groups"),
        num_heads * head_dim,
        fields.number("conv_kernel"),
    )
    return Parts(layers, state, grouped_query(fields, head_dim_fields=("head_dim", "attention_head_dim")))


def falcon_h1(fields: Fields) -> Parts:
    """Falcon-H1: every layer holds a Mamba2 state and KV; the inner size is mamba_d_ssm."""
    inner = fields.optional("mamba_d_ssm") or _expanded(fields, "mamba_expand")
    return Parts("b" * fields.layer_count(), _mamba2_state(fields, inner), grouped_query(fields))


def granite_hybrid(fields: Fields) -> Parts:
    """Granite-4-H: layer_types mamba/attention; a file whose layers are all attention has no state."""
    name = "layer_types" if fields.raw("layer_types") is not None else "layers_block_type"
    layers = _required_row(fields, name, MAMBA_KINDS, count=fields.layer_count())
    if "s" not in layers:
        return Parts(layers, None, grouped_query(fields))
    inner = _expanded(fields, "mamba_expand")
    state = _mamba2_state(fields, inner)
    if state.num_heads * state.head_dim != inner and not fields.missing:
        fields.disagree(
            f"mamba_n_heads x mamba_d_head = {state.num_heads * state.head_dim}, mamba_expand gives {inner}"
        )
    return Parts(layers, state, grouped_query(fields))


def bamba(fields: Fields) -> Parts:
    """Bamba: attention at attn_layer_indices, counted from 0."""
    count = fields.layer_count()
    full = fields.indices("attn_layer_indices", count)
    if full is None:
        fields.missing.append("attn_layer_indices")
    inner = _expanded(fields, "mamba_expand")
    return Parts(
        _letters(count, set(range(count)) - (full or set())), _mamba2_state(fields, inner), grouped_query(fields)
    )


def zamba2(fields: Fields) -> Parts:
    """Zamba2: every layer a Mamba2 state, hybrid layers KV as well, of width 2 x hidden."""
    count = fields.layer_count()
    hybrid = fields.indices("hybrid_layer_ids", count)
    if hybrid is not None:
        layers = "".join("b" if i in hybrid else "s" for i in range(count))
    else:
        kinds = {"mamba": "s", "m": "s", "hybrid": "b", "g": "b"}
        layers = _required_row(fields, "layers_block_type", kinds, count=count)
    count_heads = heads(fields)
    head_dim = fields.optional("attention_head_dim") or 2 * fields.number("hidden_size") // count_heads or 1
    attention = GroupedQueryKV(fields.optional("num_key_value_heads") or count_heads, head_dim, head_dim)
    inner = _expanded(fields, "mamba_expand")
    num_heads = fields.number("n_mamba_heads")
    state = Mamba2(
        num_heads,
        fields.optional("mamba_headdim") or inner // num_heads or 1,
        fields.number("mamba_d_state"),
        fields.optional("mamba_ngroups") or 1,
        inner,
        fields.number("mamba_d_conv"),
    )
    return Parts(layers, state, attention)


def mamba2(fields: Fields) -> Parts:
    """Pure Mamba2 (Codestral-Mamba): no KV at all."""
    inner = fields.optional("intermediate_size") or _expanded(fields, "expand")
    state = Mamba2(
        fields.number("num_heads"),
        fields.number("head_dim"),
        fields.number("state_size"),
        fields.number("n_groups"),
        inner,
        fields.number("conv_kernel"),
    )
    return Parts("s" * fields.layer_count(), state, None)


def mamba1(fields: Fields) -> Parts:
    """Pure Mamba1: intermediate_size wins over expand, which Falcon-Mamba's file states wrongly."""
    inner = fields.optional("intermediate_size") or _expanded(fields, "expand")
    state = Mamba1(inner, fields.number("state_size"), fields.number("conv_kernel"))
    return Parts("s" * fields.layer_count(), state, None)


def jamba(fields: Fields) -> Parts:
    """Jamba: attention where i % attn_layer_period == attn_layer_offset; Mamba1 elsewhere."""
    count, period = fields.layer_count(), fields.number("attn_layer_period")
    offset = fields.number("attn_layer_offset", at_least=0)
    inner = _expanded(fields, "mamba_expand")
    state = Mamba1(inner, fields.number("mamba_d_state"), fields.number("mamba_d_conv"))
    return Parts("".join("a" if i % period == offset else "s" for i in range(count)), state, grouped_query(fields))


def plamo2(fields: Fields) -> Parts:
    """PLaMo-2: Mamba2 without groups where i % mamba_step != mamba_step // 2; the other layers are windowed."""
    count, step = fields.layer_count(), fields.number("mamba_step")
    full = fields.indices("full_attention_idx", count) or set()
    few = count <= step // 2
    recurrent = {i for i in range(count) if (i != count - 1 if few else i % step != step // 2)}
    if fields.raw("mamba_enabled") is False:
        recurrent = set()
    window = fields.optional("attention_window_size")
    layers = "".join("s" if i in recurrent else "a" if i in full or not window else "w" for i in range(count))
    num_heads, head_dim = fields.number("mamba_num_heads"), fields.number("hidden_size_per_head")
    state = Mamba2(
        num_heads, head_dim, fields.number("mamba_d_state"), 0, num_heads * head_dim, fields.number("mamba_d_conv")
    )
    attention = GroupedQueryKV(fields.number("num_key_value_heads"), head_dim, head_dim)
    return Parts(layers, state if recurrent else None, attention, window if "w" in layers else None)


def minimax(fields: Fields) -> Parts:
    """MiniMax-Text-01 and M1: attn_type_list, 1 = full attention, 0 = lightning; newer files use layer_types."""
    count = fields.layer_count()
    listed = fields.numbers("attn_type_list")
    if listed is None:
        layers = _required_row(fields, "layer_types", LINEAR_KINDS, count=count)
    else:
        if len(listed) != count or set(listed) - {0, 1}:
            fields.disagree(f"attn_type_list must be {count} entries of 0 or 1")
        layers = "".join("a" if kind == 1 else "s" for kind in listed)
    attention = grouped_query(fields)
    return Parts(layers, Lightning(heads(fields), attention.head_dim), attention)


def minicpm_sala(fields: Fields) -> Parts:
    """MiniCPM-SALA: mixer_types repeated to the layer count; the state uses lightning_nkv heads."""
    count = fields.layer_count()
    mixers = _required_row(fields, "mixer_types", {"minicpm4": "a", "lightning-attn": "s", "lightning_attn": "s"})
    if len(mixers) > count:
        fields.disagree(f"mixer_types has {len(mixers)} entries for {count} layers")
    attention = grouped_query(fields)
    state = Lightning(
        fields.optional("lightning_nkv") or attention.kv_heads,
        fields.optional("lightning_head_dim") or attention.head_dim,
    )
    return Parts((mixers * count)[:count], state, attention)


def lfm2(fields: Fields) -> Parts:
    """LFM2 and LFM3: short convolutions of conv_L_cache taps; attention from layer_types or full_attn_idxs."""
    count = fields.layer_count()
    kinds = {"conv": "s", "short_conv": "s", "full_attention": "a", "sliding_attention": "w"}
    layers = fields.row("layer_types", kinds, count=count)
    if layers is None:
        full = fields.indices("full_attn_idxs", count)
        if full is None:
            fields.missing.append("layer_types or full_attn_idxs")
        layers = _letters(count, set(range(count)) - (full or set()))
    hidden = fields.number("hidden_size")
    width = fields.optional("conv_dim") or hidden
    if width != hidden:
        fields.disagree(f"conv_dim = {width}, hidden_size = {hidden}")
    state = ShortConv((ConvStream(width, fields.number("conv_L_cache", at_least=2) - 1),))
    window = fields.number("sliding_window") if "w" in layers else None
    return Parts(layers, state, grouped_query(fields), window)


def zaya(fields: Fields) -> Parts:
    """ZAYA1: attention layers (zaya_layers 'a', else even ones) hold KV and two convolutions, one never sharded."""
    count = fields.layer_count()
    listed = fields.raw("zaya_layers")
    layers = "b." * (count // 2) + "b" * (count % 2) if listed is None else _zaya_row(fields, listed)
    attention = grouped_query(fields)
    taps = (fields.optional("cca_time0") or 2) + (fields.optional("cca_time1") or 2) - 2
    width = (heads(fields) + attention.kv_heads) * attention.head_dim
    return Parts(
        layers, ShortConv((ConvStream(width, taps), ConvStream(fields.number("hidden_size"), 1, None))), attention
    )


def _zaya_row(fields: Fields, listed: object) -> str:
    """zaya_layers: "a" for attention, a number of experts for the rest."""
    kinds = listed if isinstance(listed, list) and 0 < len(listed) <= MOST_LAYERS else []
    if "a" not in kinds or any(kind != "a" and not _is_count(kind) for kind in kinds):
        fields.disagree(f"zaya_layers = {quoted(listed)}")
        return "b"
    return "".join("b" if kind == "a" else "." for kind in kinds)


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def inkling(fields: Fields) -> Parts:
    """Inkling: every layer KV and six convolutions (full k, v; local k, v; two hidden-wide ones never sharded)."""
    count = fields.layer_count()
    local = fields.indices("local_layer_ids", count)
    if local is None:
        fields.missing.append("local_layer_ids")
    rows = fields.number("sconv_kernel_size", "conv_kernel_size", at_least=2) - 1
    full = grouped_query(fields)
    swa_dim = fields.optional("swa_head_dim") or full.head_dim
    swa = GroupedQueryKV(fields.optional("swa_num_key_value_heads") or full.kv_heads, swa_dim, swa_dim)
    streams = [ConvStream(kv.kv_heads * kv.head_dim, rows, kv.kv_heads) for kv in (full, full, swa, swa)]
    streams += [ConvStream(fields.number("hidden_size"), rows, None)] * 2
    layers = "".join("v" if i in (local or ()) else "b" for i in range(count))
    window = fields.number("sliding_window_size", "sliding_window") if "v" in layers else None
    return Parts(layers, ShortConv(tuple(streams)), full, window, swa)


def _letters(count: int, recurrent: set[int]) -> str:
    return "".join("s" if i in recurrent else "a" for i in range(count))


def _required_row(fields: Fields, name: str, letters: dict[str, str], *, count: int | None = None) -> str:
    layers = fields.row(name, letters, count=count)
    if not layers:
        fields.missing.append(name)
    return layers or "."


def _expanded(fields: Fields, name: str) -> int:
    """Inner size: the factor (2 where it is not stated) x hidden_size."""
    factor = fields.real(name) or 2
    inner = int(factor * fields.number("hidden_size"))
    if not 0 < inner <= LARGEST_NUMBER:
        fields.disagree(f"{name} = {factor!r} makes an inner size of {inner}")
        return 1
    return inner


def _layer_groups(fields: Fields) -> str:
    """layer_group_size: a number n (every n-th layer is attention), or a list with 1 for a linear layer."""
    count = fields.layer_count()
    if isinstance(fields.raw("layer_group_size"), list):
        listed = fields.numbers("layer_group_size") or []
        if len(listed) != count or set(listed) - {0, 1}:
            fields.disagree(f"layer_group_size must be a number or {count} entries of 0 or 1")
        return "".join("s" if kind == 1 else "a" for kind in listed)
    size = fields.number("layer_group_size")
    return "".join("a" if (i + 1) % size == 0 else "s" for i in range(count))


def _linear_layers(fields: Fields, kinds: dict[str, str] = LINEAR_KINDS) -> str:
    """layer_types, or the expansion of full_attention_interval where there is no list."""
    count = fields.layer_count()
    layers = fields.row("layer_types", kinds, count=count)
    if layers is not None:
        return layers
    interval = fields.optional("full_attention_interval")
    if interval is None:
        fields.missing.append("layer_types or full_attention_interval")
        return "s" * count
    return "".join("a" if (i + 1) % interval == 0 else "s" for i in range(count))


def _gdn_state(fields: Fields) -> GatedDeltaNet:
    values, keys = fields.number("linear_num_value_heads"), fields.number("linear_num_key_heads")
    if values % keys and not fields.missing:
        fields.disagree(f"linear_num_value_heads = {values} is no multiple of linear_num_key_heads = {keys}")
    return GatedDeltaNet(
        values,
        keys,
        fields.number("linear_value_head_dim"),
        fields.number("linear_key_head_dim"),
        fields.number("linear_conv_kernel_dim"),
    )


def _stated_grouped_query(fields: Fields) -> GroupedQueryKV:
    """KV of a class whose defaults for these fields are not those of plain attention: both must be stated."""
    for name in ("num_key_value_heads", "head_dim"):
        if fields.raw(name) is None:
            fields.missing.append(name)
    return grouped_query(fields)


def _mamba2_state(fields: Fields, inner: int) -> Mamba2:
    return Mamba2(
        fields.number("mamba_n_heads"),
        fields.number("mamba_d_head"),
        fields.number("mamba_d_state"),
        fields.number("mamba_n_groups"),
        inner,
        fields.number("mamba_d_conv"),
    )
