"""Configs of Kimi delta attention: Kimi-Linear, Kimi-K3, GLM-5-Next, Ling-3."""

from hybridcalc.architecture import IndexCache, LatentKV
from hybridcalc.architecture.config_json.parts import (
    LINEAR_KINDS,
    Parts,
    heads,
    latent,
    layer_groups,
    state_or_attention,
)
from hybridcalc.architecture.families.kda import KimiDelta
from hybridcalc.architecture.fields import Fields


def kimi(fields: Fields) -> Parts:
    """Kimi-Linear and Kimi-K3: kda_layers counts from 1, every other layer is MLA; 64 rope dims stay in the row."""
    count = fields.layer_count()
    linear = fields.table("linear_attn_config")
    if linear.raw("kda_layers") is None:
        linear.missing.append("linear_attn_config.kda_layers")
    recurrent = linear.indices("kda_layers", count, base=1) or set()
    state = KimiDelta(linear.number("num_heads"), linear.number("head_dim"), linear.number("short_conv_kernel_size"))
    return Parts(state_or_attention(count, recurrent), state, latent(fields))


def glm5_next(fields: Fields) -> Parts:
    """GLM-5-Next: KDA layers from 0, else layer_types, else all but every fourth; MLA with a DSA indexer."""
    count = fields.layer_count()
    inner = fields.table("linear_attn_config") if fields.raw("linear_attn_config") is not None else None
    recurrent = inner.indices("kda_layers", count) if inner is not None else None
    layers = fields.row("layer_types", LINEAR_KINDS, count=count) if recurrent is None else None
    if recurrent is None:
        recurrent = {i for i in range(count) if i % 4 != 3}
    layers = layers or state_or_attention(count, recurrent)
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
    return Parts(layer_groups(fields), state, latent(fields, nope=fields.raw("use_mla_nope") is True))
