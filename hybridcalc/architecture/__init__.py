"""What a model stores per token and per sequence, in the field's words; no engine, no dtype.

A model is a row of layers. Each layer may hold a recurrent state (fixed per sequence), attention KV (grows with every
token), KV of a sliding window (grows until the window is full), or nothing. `Architecture.layers` spells that row with
one letter a layer:

    s  recurrent state                 b  both: state and full attention (Falcon-H1, Zamba2's hybrid layers)
    a  full attention                  v  both: state and sliding-window attention (Inkling's local layers)
    w  sliding-window attention        .  no cache (MLP, MoE)

The sizes behind the letters are one RecurrentState and one AttentionKV for the whole model: in every released hybrid
all layers of a kind are alike. Leaves out: weights, activations and everything an engine adds (see engines/).
"""

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from hybridcalc.architecture.families import NO_FAMILY, PleConv, RecurrentState


class CompressedIndex(NamedTuple):
    """Keys of a sparse-attention indexer (QSA): heads of head_dim values, one set for ``ratio`` tokens; a query selects
    ``budget`` tokens by them.
    """

    heads: int
    head_dim: int
    ratio: int
    budget: int


class GroupedQueryKV(NamedTuple):
    """Keys and values of kv_heads heads a token and layer. Multi-head attention is kv_heads == attention heads."""

    kv_heads: int
    head_dim: int
    v_head_dim: int
    compressed: CompressedIndex | None = None

    @property
    def kind(self) -> str:
        """Name of the kind, as presets spell it."""
        return "gqa"


class IndexCache(NamedTuple):
    """Keys of a sparse-attention indexer (DSA): head_dim values a pooled token, one pooled token for kpool tokens."""

    head_dim: int
    kpool: int = 1


class LatentKV(NamedTuple):
    """MLA: one compressed row of kv_lora_rank + qk_rope_head_dim a token and layer, shared by all heads."""

    kv_lora_rank: int
    qk_rope_head_dim: int
    indexer: IndexCache | None = None

    @property
    def kind(self) -> str:
        """Name of the kind, as presets spell it."""
        return "mla"


AttentionKV = GroupedQueryKV | LatentKV


def kv_heads_on_rank(kv_heads: int, tp: int) -> int:
    """KV heads one rank keeps: a share of them, and one whole head replicated where there are fewer than ranks."""
    return max(1, kv_heads // tp)


def uneven_heads(attention: "AttentionKV | None", heads: int | None, ranks: int) -> str:
    """Which heads ``ranks`` cannot share, in words; empty where they can: query heads divide, KV heads divide or are
    repeated whole.
    """
    if attention is None or ranks == 1:
        return ""
    if heads and heads % ranks:
        return f"{heads} attention heads"
    kv = attention.kv_heads if isinstance(attention, GroupedQueryKV) else ranks
    return f"{kv} KV heads" if max(kv, ranks) % min(kv, ranks) else ""


def kv_elements_per_token(attention: AttentionKV, tp: int) -> int:
    """Elements one attention layer keeps a token on one rank, an indexer's keys not included.

    GQA: KV heads of the rank x (head_dim + v_head_dim). MLA: one latent row, whole on every rank.
    """
    if isinstance(attention, GroupedQueryKV):
        return kv_heads_on_rank(attention.kv_heads, tp) * (attention.head_dim + attention.v_head_dim)
    return attention.kv_lora_rank + attention.qk_rope_head_dim


STATE_LETTERS, FULL_ATTENTION_LETTERS, WINDOW_LETTERS = "sbv", "ab", "wv"
LAYER_LETTERS = "sawbv."


class Config(dict[str, Any]):
    """The fields of a config.json beside its geometry, read-only by custom; what parameters follow from."""

    def __hash__(self) -> int:  # type: ignore[override]
        return len(self)


RETRAINED = "another training of it has"
"""How a name led to a model of which it is another training."""


class Architecture(NamedTuple):
    """Everything about a model that decides the size of its caches.

    ``architecture`` is the Hugging Face class name, which engines dispatch on. ``declared_ssm_dtype`` and
    ``declared_ssm_cache_dtype`` are the config fields mamba_ssm_dtype and mamba_ssm_cache_dtype, or None: whether
    an engine reads them is the engine's business. ``source`` says where the geometry comes from, ``reading`` how the
    name that was asked for led to it (empty when it was the model's own). ``config`` holds the fields that its
    parameters follow from; None for a shipped preset, whose own are loaded when they are asked for. ``asked`` is the
    name that led to a preset: a checkpoint of the model, maybe a quantised one.
    """

    name: str
    architecture: str
    layers: str
    state: RecurrentState | None
    attention: AttentionKV | None
    window: int | None = None
    window_attention: GroupedQueryKV | None = None
    num_attention_heads: int | None = None
    hidden_size: int | None = None
    max_context: int | None = None
    rope_scaling_factor: float = 1.0
    model_dtype: str = "bfloat16"
    declared_ssm_dtype: str | None = None
    declared_ssm_cache_dtype: str | None = None
    chunk_size: int | None = None
    draft_layers: int = 0
    draft_bands: tuple[int, ...] = ()
    multimodal: bool = False
    ple_conv: PleConv | None = None
    hf_id: str | None = None
    source: str = ""
    confidence: str = ""
    notes: str = ""
    reading: str = ""
    config: "Config | None" = None
    asked: str = ""

    @classmethod
    def from_hf_config(
        cls, config: Mapping[str, Any], *, name: str = "config.json", architecture: str | None = None
    ) -> "Architecture":
        """Read a Hugging Face config.json that has been parsed to a dict.

        ``architecture`` overrides the class name for a config that carries none. Raises ConfigError naming the
        fields that are missing, unknown or contradictory; nothing is half-read.
        """
        from hybridcalc.architecture.config_json import read_config

        return cls(**read_config(config, name=name, architecture=architecture), config=Config(config))

    @property
    def retrained(self) -> bool:
        """Whether the model of another date was asked for, whose longest context may be another."""
        return RETRAINED in self.reading and re.search(r"-[0-9]{4}(?![0-9])", self.asked) is not None

    @property
    def family(self) -> str:
        """Recurrent family, or "attention"."""
        return self.state.family if self.state is not None else NO_FAMILY

    @property
    def num_layers(self) -> int:
        """All layers, those without a cache included."""
        return len(self.layers)

    @property
    def state_layers(self) -> int:
        """Layers that hold a recurrent state."""
        return _count(self.layers, STATE_LETTERS)

    @property
    def attention_layers(self) -> int:
        """Layers whose KV grows with every token."""
        return _count(self.layers, FULL_ATTENTION_LETTERS)

    @property
    def window_layers(self) -> int:
        """Layers whose KV stops growing at the window."""
        return _count(self.layers, WINDOW_LETTERS)

    @property
    def describe_layers(self) -> str:
        """The cache-holding layers in a few words: ``69 KDA + 24 MLA``."""
        parts = []
        if self.state is not None and self.state_layers:
            parts.append(f"{self.state_layers} {self.state.label}")
        if self.attention_layers and self.attention is not None:
            parts.append(f"{self.attention_layers} {self.attention.kind.upper()}")
        if self.window_layers and self.window is not None:
            parts.append(f"{self.window_layers} sliding-window ({self.window:,})")
        return " + ".join(parts) or "no cache"


def heads_divide(model: Architecture, ranks: int) -> bool:
    """Whether a power of two of ``ranks`` shares all heads and groups of a model evenly: then they share its widths."""
    counts = [getattr(model.state, name, 0) for name in ("num_heads", "num_k_heads", "num_v_heads", "n_groups")]
    counts += [model.num_attention_heads or 0, getattr(model.attention, "kv_heads", 0)]
    return ranks & (ranks - 1) == 0 and not any(count % ranks for count in counts)


def _count(layers: str, letters: str) -> int:
    return sum(map(layers.count, letters))
