"""Configs of the gated delta net: Qwen3-Next to Qwen4-Exp, OLMo-Hybrid, Lara, GigaChat3.5, Jet-Nemotron."""

from hybridcalc.architecture import CompressedIndex, GroupedQueryKV, LatentKV
from hybridcalc.architecture.config_json.parts import (
    LINEAR_KINDS,
    Parts,
    grouped_query,
    required_row,
    state_or_attention,
)
from hybridcalc.architecture.families import PleConv
from hybridcalc.architecture.families.gdn import GatedDeltaNet
from hybridcalc.architecture.fields import Fields


def qwen_gdn(fields: Fields) -> Parts:
    """Qwen3-Next, Qwen3.5, 3.6, 3.8: GDN; layer_types, or every full_attention_interval-th layer full."""
    return Parts(_linear_layers(fields), _gdn_state(fields), _stated_grouped_query(fields))


def linear_hybrid(fields: Fields) -> Parts:
    """OLMo-Hybrid and Lara: GDN by the same fields, with plain attention and, in Lara, sliding windows."""
    layers = _linear_layers(fields, LINEAR_KINDS | {"sliding_attention": "w"})
    window = fields.number("sliding_window") if "w" in layers else None
    return Parts(layers, _gdn_state(fields), grouped_query(fields), window)


def qwen4_exp(fields: Fields) -> Parts:
    """Qwen4-Exp: as Qwen3.5, plus a short convolution for the layers with per-layer embeddings, and an index of
    compressed keys where the config has one.
    """
    ple = None
    listed = fields.numbers("ple_layer_ids")
    if listed:
        channels = fields.number("hidden_size") * (fields.optional("hc_count") or 4)
        columns = ((fields.optional("ple_conv_kernel_size") or 4) - 1) * (fields.optional("ngram_size") or 3)
        ple = PleConv(len(set(listed)), channels, columns)
    attention = _stated_grouped_query(fields)
    if fields.optional("indexer_n_heads"):
        numbers = ("indexer_kv_heads", "indexer_head_dim", "indexer_compress_ratio", "indexer_budget")
        attention = attention._replace(compressed=CompressedIndex(*map(fields.number, numbers)))
    return Parts(_linear_layers(fields), _gdn_state(fields), attention, ple_conv=ple)


def gigachat(fields: Fields) -> Parts:
    """GigaChat3.5: GDN with MLA; layer_types, else full_attention_layers counted from 0."""
    count = fields.layer_count()
    layers = fields.row("layer_types", LINEAR_KINDS, count=count)
    if layers is None:
        full = fields.indices("full_attention_layers", count)
        if full is None:
            fields.missing.append("layer_types or full_attention_layers")
        layers = state_or_attention(count, set(range(count)) - (full or set()))
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
    layers = required_row(fields, "layer_types", {"jet": "s", "attn": "a", "swa": "w"}, count=fields.layer_count())
    tables = fields.table("efficient_attention_config")
    jet = tables.table("jet")
    num_heads, head_dim = jet.number("num_heads"), jet.number("head_dim")
    value_dim = int(head_dim * (jet.real("expand_v") or 1.0)) or 1
    if jet.raw("expand_v") is None:
        fields.missing.append("efficient_attention_config.jet.expand_v")
    state = GatedDeltaNet(num_heads, num_heads, value_dim, head_dim, jet.number("conv_size"))
    window = tables.table("swa").number("window_size") if "w" in layers else None
    return Parts(layers, state, grouped_query(fields), window)


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
