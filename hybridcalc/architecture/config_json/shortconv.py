"""Configs of models whose only state is short convolutions: LFM2 and LFM3, ZAYA1, Inkling."""

from hybridcalc.architecture import GroupedQueryKV
from hybridcalc.architecture.config_json.parts import Parts, grouped_query, heads, state_or_attention
from hybridcalc.architecture.families.shortconv import ConvStream, ShortConv
from hybridcalc.architecture.fields import MOST_LAYERS, Fields
from hybridcalc.errors import quoted


def lfm2(fields: Fields) -> Parts:
    """LFM2 and LFM3: short convolutions of conv_L_cache taps; attention from layer_types or full_attn_idxs."""
    count = fields.layer_count()
    kinds = {"conv": "s", "short_conv": "s", "full_attention": "a", "sliding_attention": "w"}
    layers = fields.row("layer_types", kinds, count=count)
    if layers is None:
        full = fields.indices("full_attn_idxs", count)
        if full is None:
            fields.missing.append("layer_types or full_attn_idxs")
        layers = state_or_attention(count, set(range(count)) - (full or set()))
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
