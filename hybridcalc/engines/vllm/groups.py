"""How do layers fall into groups that share a block table, and how many blocks does a request hold in each?

Layers with the same cache form a bucket, buckets are cut into groups of one size, and a block ID is one page in every
layer slot of a group:

    size  = n_max where n_max < 1.5 n_min, else n_min           layers; n: layers of a bucket
    parts = ceil(n / size), part i holds layers i, i + parts, ... so that parts differ by one layer at most
    bytes per block = layers of the largest group x page        short groups waste the rest

    full attention   ceil(ceil(L / dcp) / block)                 blocks of a request of L tokens
    sliding window   ceil(min(W - 1 + in flight, L) / block) + 1
    state, none      1 + S                                        S: draft tokens (0 with ReplaySSM)
    state, align     2 + S + C                                    C: 1 where prefill exports checkpoints
    state, all       ceil(L / mamba block) + S

Mirrors vLLM v1/core/kv_cache_planning.py, v1/kv_cache_interface.py (0.33.0). Leaves out draft layers of other pages.
"""

from math import ceil
from typing import NamedTuple

from hybridcalc.architecture.geometry import FULL_ATTENTION_LETTERS, STATE_LETTERS, WINDOW_LETTERS
from hybridcalc.formulas.pages import blocks_for

FULL, STATE, WINDOW = "full attention", "state", "sliding window"
LETTERS = {FULL: FULL_ATTENTION_LETTERS, STATE: STATE_LETTERS, WINDOW: WINDOW_LETTERS}


class Group(NamedTuple):
    """Layers that share a block table: what they keep, how many they are, and the tokens of one block."""

    kind: str
    layers: int
    block: int


class Padding(NamedTuple):
    """Layer slots that a bucket of ``layers`` leaves empty."""

    slots: int
    layers: int

    @property
    def share(self) -> float:
        """Empty slots over layers."""
        return self.slots / self.layers


class Residency(NamedTuple):
    """What decides the blocks of a request: cache mode, S, C, context-parallel ranks, window and tokens in flight."""

    mode: str
    drafts: int
    checkpoints: int
    dcp: int
    window: int
    in_flight_tokens: int


def buckets(layers: str, *, attention_first: bool, draft_layers: int) -> dict[str, int]:
    """Layers of each kind, in the order in which the engine meets the first of each; drafts join full attention.

    A layer that holds both (``b``, ``v``) registers its recurrent part first unless the class says otherwise.
    """
    order = (FULL, WINDOW, STATE) if attention_first else (STATE, FULL, WINDOW)
    counts = {kind: sum(layers.count(letter) for letter in LETTERS[kind]) for kind in order}

    def first_layer(kind: str) -> int:
        return min(layers.find(letter) for letter in LETTERS[kind] if letter in layers)

    kinds = [kind for kind in order if counts[kind]]
    if not attention_first:
        kinds.sort(key=first_layer)  # stable: a layer that holds both keeps the order above
    found = {kind: counts[kind] for kind in kinds}
    if draft_layers:
        found[FULL] = found.get(FULL, 0) + draft_layers
    return found


def form_groups(
    counts: dict[str, int], *, block: int, mamba_block: int
) -> tuple[tuple[Group, ...], tuple[Padding, ...]]:
    """Groups in the engine's order, and the padding that it warns of."""
    if len(counts) == 1:
        ((kind, count),) = counts.items()
        return (Group(kind, count, mamba_block if kind == STATE else block),), ()
    least, most = min(counts.values()), max(counts.values())
    size = most if most < 1.5 * least else least
    groups, paddings = list[Group](), list[Padding]()
    for kind, count in counts.items():
        if count % size:
            paddings.append(Padding(size - count % size, count))
        parts = ceil(count / size)
        groups += [
            Group(kind, len(range(part, count, parts)), mamba_block if kind == STATE else block)
            for part in range(parts)
        ]
    return tuple(groups), tuple(paddings)


def blocks_held(group: Group, length: int, held: Residency) -> int:
    """Blocks of one group that a request of ``length`` tokens holds."""
    if group.kind == STATE:
        if held.mode == "all":
            return blocks_for(length, group.block) + held.drafts
        return (2 + held.checkpoints if held.mode == "align" else 1) + held.drafts
    if group.kind == WINDOW:
        return blocks_for(min(held.window - 1 + held.in_flight_tokens, length), group.block) + 1
    return blocks_for(blocks_for(length, held.dcp), group.block)


def table_row(group: Group, length: int, held: Residency) -> int:
    """Entries of a request's row in the block table of a group (0.33)."""
    if group.kind == STATE and held.mode == "align":
        return blocks_for(length, group.block) + held.drafts
    if group.kind == WINDOW:
        return blocks_for(length, group.block)
    return blocks_held(group, length, held)
