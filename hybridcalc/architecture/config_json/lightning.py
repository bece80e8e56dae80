"""Configs of lightning attention: Ling and Ring 2.5, Ring 2.0 linear, MiniMax-Text-01 and M1, MiniCPM-SALA."""

from hybridcalc.architecture.config_json.parts import (
    LINEAR_KINDS,
    Parts,
    grouped_query,
    heads,
    latent,
    layer_groups,
    required_row,
)
from hybridcalc.architecture.families.lightning import Lightning
from hybridcalc.architecture.fields import Fields


def bailing_v2_5(fields: Fields) -> Parts:
    """Ling/Ring 2.5 and 2.6: lightning attention, every layer_group_size-th layer MLA."""
    return Parts(layer_groups(fields), Lightning(heads(fields), fields.number("head_dim")), latent(fields))


def bailing_linear_v2(fields: Fields) -> Parts:
    """Ring 2.0 linear: lightning with GQA layers; layers after the last whole group are attention too."""
    layers = layer_groups(fields)
    if not isinstance(fields.raw("layer_group_size"), list):
        size = fields.optional("layer_group_size") or 1
        whole = len(layers) // size * size
        layers = layers[:whole] + "a" * (len(layers) - whole)
    return Parts(layers, Lightning(heads(fields), fields.number("head_dim")), grouped_query(fields))


def minimax(fields: Fields) -> Parts:
    """MiniMax-Text-01 and M1: attn_type_list, 1 = full attention, 0 = lightning; newer files use layer_types."""
    count = fields.layer_count()
    listed = fields.numbers("attn_type_list")
    if listed is None:
        layers = required_row(fields, "layer_types", LINEAR_KINDS, count=count)
    else:
        if len(listed) != count or set(listed) - {0, 1}:
            fields.disagree(f"attn_type_list must be {count} entries of 0 or 1")
        layers = "".join("a" if kind == 1 else "s" for kind in listed)
    attention = grouped_query(fields)
    return Parts(layers, Lightning(heads(fields), attention.head_dim), attention)


def minicpm_sala(fields: Fields) -> Parts:
    """MiniCPM-SALA: mixer_types repeated to the layer count; the state uses lightning_nkv heads."""
    count = fields.layer_count()
    mixers = required_row(fields, "mixer_types", {"minicpm4": "a", "lightning-attn": "s", "lightning_attn": "s"})
    if len(mixers) > count:
        fields.disagree(f"mixer_types has {len(mixers)} entries for {count} layers")
    attention = grouped_query(fields)
    state = Lightning(
        fields.optional("lightning_nkv") or attention.kv_heads,
        fields.optional("lightning_head_dim") or attention.head_dim,
    )
    return Parts((mixers * count)[:count], state, attention)
