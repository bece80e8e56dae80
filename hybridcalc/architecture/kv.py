"""What one attention layer keeps of a token, and a rank of that: keys and values of heads, or one latent row."""

from typing import NamedTuple


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
