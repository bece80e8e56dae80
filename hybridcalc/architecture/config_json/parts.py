"""What a reader makes of a config, and the ways of writing a layer list that families share.

Layer counts always come from the config's own layer list or from the expansion the engines make of its interval field;
index bases differ (Kimi counts from 1, GLM and Bamba from 0). Mirrors the config classes of SGLang (srt/configs) and
vLLM (model_executor/models/config.py). A reader returns the parts; it refuses nothing itself, since `Fields` collects
what is missing or contradictory.
"""

from typing import NamedTuple

from hybridcalc.architecture import AttentionKV, GroupedQueryKV
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
