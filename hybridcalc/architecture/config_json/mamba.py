"""Configs of Mamba1 and Mamba2: Nemotron-H, Falcon-H1, Granite-4-H, Bamba, Zamba2, Jamba, PLaMo-2, and pure Mamba."""

from hybridcalc.architecture import GroupedQueryKV
from hybridcalc.architecture.config_json.parts import Parts, grouped_query, heads, required_row, state_or_attention
from hybridcalc.architecture.families.mamba1 import Mamba1
from hybridcalc.architecture.families.mamba2 import Mamba2
from hybridcalc.architecture.fields import LARGEST_NUMBER, Fields


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
    inner = fields.optional("mamba_d_ssm") or _inner_size(fields, "mamba_expand")
    return Parts("b" * fields.layer_count(), _mamba2_state(fields, inner), grouped_query(fields))


def granite_hybrid(fields: Fields) -> Parts:
    """Granite-4-H: layer_types mamba/attention; a file whose layers are all attention has no state."""
    name = "layer_types" if fields.raw("layer_types") is not None else "layers_block_type"
    layers = required_row(fields, name, {"mamba": "s", "attention": "a"}, count=fields.layer_count())
    if "s" not in layers:
        return Parts(layers, None, grouped_query(fields))
    inner = _inner_size(fields, "mamba_expand")
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
    inner = _inner_size(fields, "mamba_expand")
    layers = state_or_attention(count, set(range(count)) - (full or set()))
    return Parts(layers, _mamba2_state(fields, inner), grouped_query(fields))


def zamba2(fields: Fields) -> Parts:
    """Zamba2: every layer a Mamba2 state, hybrid layers KV as well, of width 2 x hidden."""
    count = fields.layer_count()
    hybrid = fields.indices("hybrid_layer_ids", count)
    if hybrid is not None:
        layers = "".join("b" if i in hybrid else "s" for i in range(count))
    else:
        kinds = {"mamba": "s", "m": "s", "hybrid": "b", "g": "b"}
        layers = required_row(fields, "layers_block_type", kinds, count=count)
    count_heads = heads(fields)
    head_dim = fields.optional("attention_head_dim") or 2 * fields.number("hidden_size") // count_heads or 1
    attention = GroupedQueryKV(fields.optional("num_key_value_heads") or count_heads, head_dim, head_dim)
    inner = _inner_size(fields, "mamba_expand")
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
    inner = fields.optional("intermediate_size") or _inner_size(fields, "expand")
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
    inner = fields.optional("intermediate_size") or _inner_size(fields, "expand")
    state = Mamba1(inner, fields.number("state_size"), fields.number("conv_kernel"))
    return Parts("s" * fields.layer_count(), state, None)


def jamba(fields: Fields) -> Parts:
    """Jamba: attention where i % attn_layer_period == attn_layer_offset; Mamba1 elsewhere."""
    count, period = fields.layer_count(), fields.number("attn_layer_period")
    offset = fields.number("attn_layer_offset", at_least=0)
    inner = _inner_size(fields, "mamba_expand")
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


def _inner_size(fields: Fields, name: str) -> int:
    """Inner size: the factor (2 where it is not stated) x hidden_size."""
    factor = fields.real(name) or 2
    inner = int(factor * fields.number("hidden_size"))
    if not 0 < inner <= LARGEST_NUMBER:
        fields.disagree(f"{name} = {factor!r} makes an inner size of {inner}")
        return 1
    return inner


def _mamba2_state(fields: Fields, inner: int) -> Mamba2:
    return Mamba2(
        fields.number("mamba_n_heads"),
        fields.number("mamba_d_head"),
        fields.number("mamba_d_state"),
        fields.number("mamba_n_groups"),
        inner,
        fields.number("mamba_d_conv"),
    )
