"""How long is a block, how large a page, how do layers share block tables, and how many blocks does a request hold?

    a      = KV heads of the rank x 2 x head_dim x bytes       bytes of a token in one attention layer (MLA: one row)
    q      = max(kernel block, b0), b0 = --block-size or 16; MLA: at least 128; align: also on the checkpoint grid
    block  = L x ceil(q x ceil(m / (q a)) / L), not below b0   tokens; m: the state as the model's class sizes it
    page   = block x a                                         bytes; every state is padded to it
    padding = (page - state) / state                           relative to the state, not to the page

In mode "all" a block is a multiple of the chunk: c = lcm(chunk, q), block = c x ceil(ceil(m / a) / c). Without
attention, or without a state, nothing is inflated.

Layers with the same cache form a bucket, buckets are cut into groups of one size, and a block ID is one page in every
layer slot of a group:

    size  = n_max where n_max < 1.5 n_min, else n_min           layers; n: layers of a bucket
    parts = ceil(n / size), part i holds layers i, i + parts, ... so that parts differ by one layer at most
    bytes per block = layers of the largest group x page        short groups waste the rest; on the heaviest stage

Groups are those of the whole model; a pipeline stage has of each the layers that are its own, and all stages have as
many blocks as the one with the largest.

    full attention   ceil(ceil(L / dcp) / block)                 blocks of a request of L tokens
    sliding window   ceil(min(W - 1 + in flight, L) / block) + 1
    state, none      1 + S                                        S: draft tokens (0 with ReplaySSM)
    state, align     2 + S + C                                    C: 1 where prefill exports checkpoints
    state, all       ceil(L / mamba block) + S
    index tail       1                                            the pool in progress of an indexer

`Prepared` is what start-up settles before it knows its memory, `Sizing` what memory then decides. Mirrors vLLM
platforms/interface.py, v1/core/kv_cache_planning.py, v1/kv_cache_interface.py (0.33.0). In packed.py: index caches
beside attention, groups of pages that differ; in drafts.py: draft layers. KV formats of single layers are left out.
"""

from bisect import bisect_right
from fractions import Fraction
from functools import cached_property
from math import ceil, lcm
from typing import Any, NamedTuple

from hybridcalc.architecture import (
    FULL_ATTENTION_LETTERS,
    STATE_LETTERS,
    WINDOW_LETTERS,
    Architecture,
    GroupedQueryKV,
    LatentKV,
    kv_elements_per_token,
    kv_heads_on_rank,
)
from hybridcalc.engines.answer import Preparation, Slot
from hybridcalc.engines.vllm import EngineArgs
from hybridcalc.engines.vllm.families import ModelClass, family_rule
from hybridcalc.engines.vllm.layers import (
    DEFAULT_BLOCK,
    PACKED,
    Backend,
    Index,
    StateTensor,
    kv_element_bytes,
    layer_state,
    records,
    state_parts,
)
from hybridcalc.engines.vllm.releases import RuleSet
from hybridcalc.errors import Refusal
from hybridcalc.formulas import aligned_block, blocks_for
from hybridcalc.units import DTYPE_BYTES

LATENT_BLOCK, LATENT_STEP, DEFAULT_CHUNK = 128, 64, 2048
WIDE_HEAD = 256
"""Dimensions of a head for which FlashInfer on Blackwell takes no block of 16."""
GDN_GRID, KDA_GRID = 64, 16
"""Tokens between the states that a prefill kernel can export."""


class Pages(NamedTuple):
    """``block`` and ``mamba_block`` in tokens, ``page`` and ``class_bytes`` (m) in bytes of one layer on one rank.

    ``preferred``: the block without a state. ``grown``: whether it became longer. ``padded``: the page where it is
    larger than m. ``attention_page``: that of an attention layer, which is not a state's where kernels keep other rows
    than the class counts; ``index_bytes``: of its index keys in a block, beside it; ``draft_bytes``: of
    a token in a layer of a draft that keeps rows of its own.
    """

    block: int
    mamba_block: int
    page: int
    class_bytes: int
    preferred: int
    grown: bool
    padded: int | None
    attention_page: int = 0
    index_bytes: int = 0
    draft_bytes: int = 0


def kv_bytes_per_token(model: Architecture, args: EngineArgs, model_dtype: str) -> int:
    """Bytes one attention layer keeps of a token on one rank, as the class counts them; 0 without attention. Not cut
    by context parallelism.
    """
    attention = model.attention or model.window_attention
    if attention is None:
        return 0
    tp = args.tensor_parallel_size
    if args.kv_cache_dtype in PACKED:
        assert isinstance(attention, GroupedQueryKV)  # noqa: S101  (no backend packs latent rows)
        head = PACKED[args.kv_cache_dtype].bytes_of_head(attention.head_dim, attention.v_head_dim)
        return kv_heads_on_rank(attention.kv_heads, tp) * head
    return kv_elements_per_token(attention, tp) * kv_element_bytes(args, DTYPE_BYTES[model_dtype])


def checkpoint_grid(model: Architecture, args: EngineArgs, kind: ModelClass, rules: RuleSet) -> int | None:
    """Tokens between the states that prefill can export; None where it exports none, 1 for anywhere.

    GDN on the FlashInfer kernel: 64. KDA on FlashKDA (a bounded gate, which Kimi-K3 has) in bfloat16: 16. Mamba2:
    anywhere.
    """
    if kind.checkpoint not in rules.checkpoints:
        return None
    major, _ = args.capability
    if kind.checkpoint == "mamba2":
        return 1
    recurrence = model.state.recurrence if model.state is not None else None
    if recurrence is None or model.family != kind.checkpoint.split()[0]:
        return None
    if kind.checkpoint == "gdn":
        asked = args.gdn_prefill_backend or str((args.additional_config or {}).get("gdn_prefill_backend", "auto"))
        narrow = major in (10, 12) and recurrence.k_dim == 128
        return GDN_GRID if asked in ("auto", "flashinfer") and (args.capability == (9, 0) or narrow) else None
    if kind.checkpoint.split()[0] == "kda":
        asked = args.kda_prefill_backend or "auto"
        runs = major in (9, 10, 12) and recurrence.k_dim == 128 and asked in ("auto", "flashkda")
        dtype = model.model_dtype if args.dtype == "auto" else args.dtype
        return KDA_GRID if runs and dtype == "bfloat16" else None
    return None


def class_state(model: Architecture, args: EngineArgs, kind: ModelClass, rules: RuleSet) -> tuple[StateTensor, ...]:
    """The state as the model's class sizes it for the page, which is not always what the layer keeps."""
    from dataclasses import replace

    rule = family_rule(model)
    if rule.pages_omit_drafts or (kind.class_omits_drafts and not rules.class_counts_drafts):
        args = replace(args, speculative_config=None, num_speculative_tokens=0)
    tensors = layer_state(model, args)
    if rule.kernel_dtypes and rules.kda_dtype_obeyed and args.mamba_ssm_cache_dtype == "bfloat16":
        at = len(rule.layer(model.state, args.tensor_parallel_size, args.num_speculative_tokens, rules).windows)
        tensors = (*tensors[:at], StateTensor(tensors[at].shape, "bfloat16"), *tensors[at + 1 :])
    return tensors if kind.keeps_records else (*tensors, *records(model, args, rules))


def resolve_pages(
    model: Architecture,
    args: EngineArgs,
    rules: RuleSet,
    kind: ModelClass,
    backend: Backend | None,
    *,
    mode: str,
    kv_bytes: int,
    length: int,
    index: Index | None = None,
    embedded_bytes: int = 0,
) -> Pages:
    """Block, page and padding, in the engine's order. ``mode`` is the cache mode, ``length`` max_model_len;
    ``embedded_bytes``: a state of n-gram embeddings.
    """
    first = args.block_size or DEFAULT_BLOCK
    if args.block_size is None and backend is not None and DEFAULT_BLOCK % backend.kernel_block:
        first = backend.kernel_block
    if model.state is None:
        return Pages(first, 0, first * kv_bytes, 0, first, False, None, first * kv_bytes)
    mamba_block = (args.mamba_block_size or first) if mode != "none" else length
    needed = sum(tensor.bytes for tensor in class_state(model, args, kind, rules))
    needed = max(needed, embedded_bytes)
    if backend is None or not needed:
        return Pages(first, mamba_block, needed, needed, first, False, None)
    unit = _least_unit(model, args, backend) if rules.least_block else max(backend.kernel_block, first)
    if rules.latent_block and isinstance(model.attention, LatentKV):
        unit = max(unit, LATENT_BLOCK)
    if mode == "align" and rules.checkpoint_grid:
        unit = lcm(unit, _common_grid(model, args, kind, rules))
    if mode == "all":
        chunk = DEFAULT_CHUNK if kind.default_chunk else model.chunk_size or DEFAULT_CHUNK
        chunk = lcm(args.mamba_block_size or chunk, unit)
        block = aligned_block(needed, kv_bytes, chunk)
        mamba_block = block
    else:
        kernels = backend.kernel_block if rules.kernel_blocks else 1
        if index is not None:
            kernels = lcm(kernels, index.kernel_tokens)
        block = kernels * -(-aligned_block(needed, kv_bytes, unit) // kernels)
    grown = block > first
    block = max(first, block)
    if mode == "align":
        mamba_block = block
    page, keys = block * kv_bytes, 0 if index is None else index.in_block(block)
    padded = page if page != needed else None
    row = kv_bytes if index is None or not index.row else index.row
    return Pages(block, mamba_block, page, needed, first, grown, padded, block * row, keys)


def _least_unit(model: Architecture, args: EngineArgs, backend: Backend) -> int:
    """What the block was a multiple of while --block-size was only the least: of kernels, by the kind of attention."""
    if isinstance(model.attention, LatentKV):
        return max(LATENT_STEP, backend.kernel_block) if backend.name == "CUTLASS_MLA" else LATENT_STEP
    wide = args.capability[0] == 10 and getattr(model.attention, "head_dim", 0) == WIDE_HEAD
    return 2 * DEFAULT_BLOCK if wide and args.attention_backend in (None, "FLASHINFER") else DEFAULT_BLOCK


def check_layer_fits(model: Architecture, args: EngineArgs, pages: Pages, layer_bytes: int) -> None:
    """Raise Refusal where the layer keeps more than the page that its class asked for."""
    if pages.block and layer_bytes > pages.page:
        flag = "--mamba-ssm-cache-dtype" if family_rule(model).kernel_dtypes else "--speculative-config"
        raise Refusal(
            f"a layer's state of {layer_bytes:,} B does not fit the page of {pages.page:,} B that its class sizes",
            stage="get_kv_cache_spec",
            rule="HC046",
            fix=f"leave out {flag}: the class counts less than the layer keeps",
        )


def _common_grid(model: Architecture, args: EngineArgs, kind: ModelClass, rules: RuleSet) -> int:
    """What the grid of the prefill checkpoints adds to the block's alignment; Mamba2 declares none."""
    grid = checkpoint_grid(model, args, kind, rules)
    return grid if grid is not None and kind.checkpoint != "mamba2" else 1


FULL, STATE, WINDOW, TAIL = "full attention", "state", "sliding window", "index tail"
EMBEDDED, DRAFT, DRAFT_WINDOW = "state of n-gram embeddings", "draft model", "window of the draft model"
CONVOLUTION, LOCAL_CONVOLUTION = "convolution window", "convolution window of local layers"
EVERY_CONVOLUTION = "convolution window of all layers"
ALONE = "state of a stage without attention"
LETTERS = {
    FULL: FULL_ATTENTION_LETTERS, STATE: STATE_LETTERS, WINDOW: WINDOW_LETTERS, TAIL: FULL_ATTENTION_LETTERS,
    EMBEDDED: "", DRAFT: "", DRAFT_WINDOW: "", CONVOLUTION: FULL_ATTENTION_LETTERS, LOCAL_CONVOLUTION: WINDOW_LETTERS,
    EVERY_CONVOLUTION: FULL_ATTENTION_LETTERS + WINDOW_LETTERS, ALONE: "S",
}  # fmt: skip
STATES = (STATE, ALONE, EMBEDDED)
WINDOWS = (WINDOW, CONVOLUTION, LOCAL_CONVOLUTION, EVERY_CONVOLUTION, DRAFT_WINDOW)
DRAFTS = (DRAFT, DRAFT_WINDOW)
SHARED_OUT = (FULL, DRAFT)
"""Kinds of which ranks of context parallelism keep a share of the tokens each."""
WHOLE = (*STATES, TAIL)
"""Kinds of which a request holds as many blocks whatever its length."""


class Group(NamedTuple):
    """Layers that share a block table: what they keep, how many they are, the tokens of one block, the bytes that a
    layer has in it, and in how many caches; ``copied``: every rank of context parallelism keeps all of it.
    """

    kind: str
    layers: int
    block: int
    page: int = 0
    caches: int = 1
    copied: bool = False

    @property
    def bytes(self) -> int:
        """What its layers have of a block."""
        return self.layers * self.page

    @property
    def recurrent(self) -> bool:
        """Whether its layers keep the states of recurrent layers."""
        return self.kind in (STATE, ALONE)

    @property
    def names(self) -> int:
        """Its caches, each of which the engine has a layer's name for."""
        return self.layers * self.caches

    def span(self, dcp: int) -> int:
        """Tokens that a block stands for, on all ranks of context parallelism."""
        return self.block * dcp if self.kind in SHARED_OUT and not self.copied else self.block


class Padding(NamedTuple):
    """Layer slots that a bucket of ``layers`` leaves empty."""

    slots: int
    layers: int

    @property
    def share(self) -> float:
        """Empty slots over layers."""
        return self.slots / self.layers


class Residency(NamedTuple):
    """What decides the blocks of a request: cache mode, S, C, context-parallel ranks, window, tokens in flight, and the
    windows of a convolution and of a draft model; ``retained``: tokens that windows keep beside, for drafts.
    """

    mode: str
    drafts: int
    checkpoints: int
    dcp: int
    window: int
    in_flight_tokens: int
    kernel: int = 0
    draft_window: int = 0
    retained: int = 0

    def window_of(self, kind: str) -> int:
        """The window of a kind of layers, in tokens."""
        return {WINDOW: self.window, DRAFT_WINDOW: self.draft_window}.get(kind, self.kernel)


def form_groups(
    counts: dict[str, int], *, block: int, mamba_block: int, page: int = 0, alone: int = 0
) -> tuple[tuple[Group, ...], tuple[Padding, ...]]:
    """Groups in the engine's order, and the padding that it warns of. ``alone``: the block of `ALONE`."""
    blocks = {STATE: mamba_block, ALONE: alone}
    if len(counts) == 1:
        ((kind, count),) = counts.items()
        return (Group(kind, count, blocks.get(kind, block), page),), ()
    least, most = min(counts.values()), max(counts.values())
    size = most if most < 1.5 * least else least
    groups, paddings = list[Group](), list[Padding]()
    for kind, count in counts.items():
        if count % size:
            paddings.append(Padding(size - count % size, count))
        parts = ceil(count / size)
        groups += [Group(kind, len(range(part, count, parts)), blocks.get(kind, block), page) for part in range(parts)]
    return tuple(groups), tuple(paddings)


def blocks_held(group: Group, length: int, held: Residency) -> int:
    """Blocks of one group that a request of ``length`` tokens holds."""
    if group.kind in STATES:
        if held.mode == "all":
            return blocks_for(length, group.block) + held.drafts
        return (2 + held.checkpoints if held.mode == "align" else 1) + held.drafts
    if group.kind == TAIL:
        return 1
    if group.kind in WINDOWS:
        behind = held.window_of(group.kind) - 1 + held.retained
        return blocks_for(min(behind + held.in_flight_tokens, length), group.block) + 1
    return blocks_for(blocks_for(length, 1 if group.copied else held.dcp), group.block)


def table_row(group: Group, length: int, held: Residency) -> int:
    """Entries of a request's row in the block table of a group (0.33)."""
    if group.kind in STATES and held.mode == "align":
        return blocks_for(length, group.block) + held.drafts
    if group.kind in WINDOWS:
        return blocks_for(length, group.block)
    return blocks_held(group, length, held)


class Known(NamedTuple):
    """What `prepare` settles. ``length`` is max_model_len before it may be fitted, ``log`` the lines so far.

    ``stages`` are the groups of each pipeline stage, ``groups`` those of the stage with the largest blocks.
    ``kv_of_checkpoint``: the checkpoint's own quantisation decided the KV dtype. ``embedded_bytes``: of the state of
    n-gram embeddings in one layer. ``seqs_checked``: max_num_seqs may not exceed the blocks.
    """

    model: Architecture
    args: EngineArgs
    rules: RuleSet
    kind: ModelClass
    model_dtype: str
    prefix_caching: bool
    mode: str
    length: int
    state: tuple[StateTensor, ...]
    state_bytes: int
    kv_bytes: int
    backend: Backend | None
    layout: str
    pages: Pages
    groups: tuple[Group, ...]
    stages: tuple[tuple[Group, ...], ...]
    paddings: tuple[Padding, ...]
    bytes_per_block: int
    held: Residency
    settled: dict[str, Any]
    log: tuple[str, ...]
    kv_of_checkpoint: bool = False
    embedded_bytes: int = 0
    seqs_checked: bool = False


class Prepared(Preparation, Known):
    """What no memory decides."""

    @cached_property
    def hashed_in_blocks(self) -> bool:
        """Whether prefixes are hashed in the blocks that groups have in common, where there are several."""
        if not self.prefix_caching or self.mode == "all" or (self.mode == "none" and self.state):
            return False
        return self.rules.states_hashed_apart or ALONE not in (group.kind for group in self.groups)

    @cached_property
    def slot(self) -> Slot:
        """What the state of one sequence takes in all layers of a GPU, before it is padded to pages."""
        if self.model.state is None or not self.state:
            return Slot(0, 0)
        conv, ssm = state_parts(self.model, self.args, self.state)
        layers = max(sum(group.layers for group in own if group.recurrent) for own in self.stages)
        return Slot(layers * conv, layers * ssm)

    @cached_property
    def bytes_per_token(self) -> Fraction:
        """Bytes each further token takes on a GPU, in whole blocks of all groups that grow."""
        growing = Fraction(0)
        for group in self.groups:
            if group.kind in SHARED_OUT or (group.recurrent and self.held.mode == "all"):
                growing += Fraction(self.bytes_per_block, group.span(self.held.dcp))
        return growing

    def blocks_at(self, length: int) -> int:
        """Blocks that one request of ``length`` tokens holds in all groups."""
        return sum(blocks_held(group, length, self.held) for group in self.groups)

    def blocks_checked(self, length: int) -> int:
        """Those that the memory check of the release counts."""
        counted = self.groups if self.rules.all_groups_checked else self.groups[:1]
        return sum(blocks_held(group, length, self.held) for group in counted)


def longest_length(ready: Prepared, usable_bytes: int, most: int) -> int:
    """The longest request of at most ``most`` tokens that the memory check lets start; 0 where none does."""
    room, counted = usable_bytes // ready.bytes_per_block, ready.blocks_checked
    return most if counted(most) <= room else max(0, bisect_right(range(most), room, key=counted) - 1)


class Sizing(NamedTuple):
    """What the memory decides: blocks, the length served, blocks of a request of that length, and block sizes.

    ``tokens`` is the token figure that the engine prints.
    """

    available_bytes: int
    blocks: int
    length: int
    per_request: int
    tokens: int
    scheduler_block: int
    hash_block: int
    hit_tokens: int

    @property
    def concurrency(self) -> float:
        """Requests of max_model_len that fit, as the engine divides: block 0 counts although nothing uses it."""
        return self.blocks / self.per_request
