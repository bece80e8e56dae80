"""What a reader makes of a config, and the ways of writing a layer list that families share.

Layer counts always come from the config's own layer list or from the expansion the engines make of its interval field;
index bases differ (Kimi counts from 1, GLM and Bamba from 0). Mirrors the config classes of SGLang (srt/configs) and
vLLM (model_executor/models/config.py). A reader returns the parts; it refuses nothing itself, since `Fields` collects
what is missing or contradictory.

Configs without recurrent layers are read here too, for baselines: grouped-query, latent and sliding-window attention.
"""

from typing import NamedTuple

from hybridcalc.architecture import AttentionKV, GroupedQueryKV, LatentKV
from hybridcalc.architecture.families import PleConv, RecurrentState
from hybridcalc.architecture.fields import Fields

LINEAR_KINDS = {
    "linear_attention": "s", "full_attention": "a", "qwen_sparse_attention": "a", "indexed_attention": "a",
}  # fmt: skip


class Parts(NamedTuple):
    """What a reader makes of a config."""

    layers: str
    state: RecurrentState | None
    attention: AttentionKV | None
    window: int | None = None
    window_attention: GroupedQueryKV | None = None
    ple_conv: PleConv | None = None


def state_or_attention(count: int, recurrent: set[int]) -> str:
    """Layers of which those in ``recurrent`` keep a state and the others KV."""
    return "".join("s" if i in recurrent else "a" for i in range(count))


def required_row(fields: Fields, name: str, letters: dict[str, str], *, count: int | None = None) -> str:
    """Layers of a list that the config must have; it counts as missing where it is not there or empty."""
    layers = fields.row(name, letters, count=count)
    if not layers:
        fields.missing.append(name)
    return layers or "."


def layer_groups(fields: Fields) -> str:
    """layer_group_size: a number n (every n-th layer is attention), or a list with 1 for a linear layer."""
    count = fields.layer_count()
    if isinstance(fields.raw("layer_group_size"), list):
        listed = fields.numbers("layer_group_size") or []
        if len(listed) != count or set(listed) - {0, 1}:
            fields.disagree(f"layer_group_size must be a number or {count} entries of 0 or 1")
        return "".join("s" if kind == 1 else "a" for kind in listed)
    size = fields.number("layer_group_size")
    return "".join("a" if (i + 1) % size == 0 else "s" for i in range(count))


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
