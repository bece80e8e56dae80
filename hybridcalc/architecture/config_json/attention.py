"""Configs without recurrent layers, read for baselines: grouped-query, latent and sliding-window attention."""

from hybridcalc.architecture import AttentionKV, GroupedQueryKV, LatentKV
from hybridcalc.architecture.config_json.parts import Parts
from hybridcalc.architecture.fields import Fields

LAYER_KINDS = {
    "full_attention": "a", "attention": "a", "global_attention": "a",
    "sliding_attention": "w", "local_attention": "w",
}  # fmt: skip


def heads(fields: Fields) -> int:
    """Attention (query) heads."""
    return fields.number("num_attention_heads")


def grouped_query(fields: Fields, *, head_dim_fields: tuple[str, ...] = ("head_dim",)) -> GroupedQueryKV:
    """KV heads (all heads where the field is absent) and head_dim (hidden_size // heads where it is absent)."""
    count = heads(fields)
    head_dim = fields.optional(*head_dim_fields)
    if head_dim is None:
        hidden = fields.number("hidden_size")
        head_dim = hidden // count or 1
        if hidden % count and not fields.missing:
            fields.disagree(f"hidden_size = {hidden} is no multiple of num_attention_heads = {count}, and no head_dim")
    v_head_dim = fields.optional("v_head_dim", at_least=0) or head_dim
    return GroupedQueryKV(fields.optional("num_key_value_heads") or count, head_dim, v_head_dim)


def latent(fields: Fields, *, nope: bool = False) -> LatentKV:
    """MLA row. ``nope`` drops the rotary part, where a model's flag really removes it from the cache."""
    rope = 0 if nope else fields.number("qk_rope_head_dim", at_least=0)
    return LatentKV(fields.number("kv_lora_rank"), rope)


def dense(fields: Fields, *, default_pattern: int = 0) -> Parts:
    """A pure attention model.

    ``default_pattern`` is the class's own: every n-th layer is full where the file states a window and no list.
    """
    count = fields.layer_count()
    attention: AttentionKV = latent(fields) if fields.raw("kv_lora_rank") is not None else grouped_query(fields)
    layers = fields.row("layer_types", LAYER_KINDS, count=count) or _pattern(fields, count, default_pattern)
    window = fields.number("sliding_window") if "w" in layers else None
    return Parts(layers, None, attention, window)


def _pattern(fields: Fields, count: int, default_pattern: int) -> str:
    """Layers of a model that states its window and no list: all, none, or every n-th layer full."""
    if fields.raw("sliding_window") is None or fields.raw("use_sliding_window") is False:
        return "a" * count
    every = fields.optional("sliding_window_pattern", "_sliding_window_pattern") or default_pattern
    if every:
        return "".join("a" if (i + 1) % every == 0 else "w" for i in range(count))
    if fields.raw("use_sliding_window"):
        first = fields.number("max_window_layers", at_least=0)
        return "".join("w" if i >= first else "a" for i in range(count))
    return "w" * count
