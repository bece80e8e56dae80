"""What does a llama.cpp load store, and which model stores just that?

    state of a sequence = state layers x (r + s) x 4 B          fp32 both; n_rs_seq extra copies serve drafts
    KV of a token       = KV layers x (K row + V row)           a row by its type, in blocks; MLA has K alone

A printed size is an interval; a model fits where all that is printed lies in it: layers, layers with KV, bytes of a
token and of a state. Where copies of the state are not printed, a whole number of them must. Source: llama.cpp
src/llama-memory-recurrent.cpp, llama-kv-cache.cpp (b11434).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from fractions import Fraction
from math import ceil, floor
from typing import NamedTuple

from hybridcalc.architecture import Architecture, GroupedQueryKV
from hybridcalc.architecture.presets import find_preset
from hybridcalc.bootlog import Printed, Record
from hybridcalc.bootlog.boots import Boot
from hybridcalc.diagnosis import models_with_states
from hybridcalc.diagnosis.answer import Candidate, Range
from hybridcalc.engines.llamacpp import ROWS
from hybridcalc.units import MIB

MOST_COPIES = 33
"""Of a state: one, and as many to roll back to as drafts may have tokens."""
FEWEST_FACTS = 2
DRAFT_LAYERS = 2
"""Layers that a draft head has at most: a cache of so few, beside a larger one, is its."""
_FILE = re.compile(
    r"(?:[-.](?:UD-)?(?:I?Q[0-9]\w*|BF16|F16|F32|MXFP4\w*|[0-9]{5}-of-[0-9]{5}))*(?:\.gguf)?$", re.IGNORECASE
)


class Cache(NamedTuple):
    """A KV cache: its size, the cells of one of its streams, and what else is printed of it."""

    line: int
    size: Printed
    cells: int
    streams: int
    sequences: int | None
    layers: int | None
    types: tuple[str, str] | None

    @property
    def tokens(self) -> int:
        """Tokens that all streams hold."""
        return self.cells * self.streams

    @property
    def per_token(self) -> Fraction:
        """Bytes of a token, by the size as printed."""
        return self.size.value / self.tokens


class States(NamedTuple):
    """The states: their size, of how many sequences, how many copies each has (None: not printed), of which layers.

    Where they are not ``counted``, all sequences' are the copies of one. ``by_difference``: no line prints them.
    """

    line: int
    size: Printed
    sequences: int
    copies: int | None
    layers: int | None
    parts: tuple[Printed, Printed] | None
    counted: bool = True
    by_difference: bool = False


def caches(boot: Boot) -> list[Cache]:
    """Every KV cache with its cells, a draft's left out."""
    drafts = boot.grammar.of_draft(boot)
    kinds = ("kv_total", "kv_self", "kv_buffer")
    found = [
        cache
        for kind in kinds
        for one in boot.of(kind)
        if id(one) not in drafts and (cache := _cache(one, _context_of(boot, one) if kind == "kv_self" else None))
    ]
    most = max((cache.layers or 0 for cache in found), default=0)
    return [one for one in found if not one.layers or one.layers > DRAFT_LAYERS or one.layers == most]


def of_a_token(found: list[Cache]) -> list[Cache]:
    """The caches that hold each token of the first: as many cells of as many layers, as an indexer's keys have."""
    return [one for one in found if one[2:4] == found[0][2:4] and one.layers == found[0].layers]


def _context_of(boot: Boot, total: Record) -> int | None:
    """Tokens of the context that prints a total without its cells; None where it does not say, or says two."""
    said = {one.count("n_ctx") for one in boot.of("context") if boot.place(one) < boot.place(total)} - {None}
    of_states = total.word("k_type") == "f32"  # before there were hybrids, states alone were kept in place of KV
    return said.pop() if len(said) == 1 and not of_states else None


def _cache(record: Record, context: int | None) -> Cache | None:
    size, cells = record.size("size"), record.count("cells") or context
    if size is None or not cells or not size.value:
        return None
    k, v = record.word("k_type"), record.word("v_type")
    types = (k, v or k) if k in ROWS and (v is None or v in ROWS) else None
    streams = record.count("streams") or 1
    return Cache(record.line, size, cells, streams, record.count("seqs"), record.count("layers"), types)


def states(boot: Boot, launched: int | None = None) -> States | None:
    """The states, from their total, a buffer's line with sequences that people wrote, the buffers alone, or what KV
    leaves of buffers; ``launched``: the sequences of the launch line.
    """
    layers = [one.count("layers") for one in boot.of("kv_total")]
    others = len(layers) > 1 and (None in layers or len(set(layers)) > 1)
    drafts = others or bool(boot.of("draft_context") or boot.of("draft_estimate"))
    for record in (*boot.of("state_total"), *boot.of("state_buffer")):
        size, sequences = record.size("size"), record.count("cells") or record.count("seqs")
        if size is None or not sequences or not size.value:
            continue
        extra = record.count("rs_seq")
        copies = 1 + extra if extra is not None else None if drafts else 1
        r, s = record.size("r"), record.size("s")
        parts = (r, s) if r is not None and s is not None else None
        return States(record.line, size, sequences, copies, record.count("layers"), parts)
    sequences = boot.count("slots", "n_slots") or boot.count("context", "n_seq_max")
    sequences = sequences or launched or boot.count("arguments", "n_seq_max")
    buffers = [size for one in boot.of("state_buffer") if (size := one.size("size")) is not None and size.value]
    if buffers and sequences is not None and not boot.of("state_total"):
        size = _summed(sum(one.value for one in buffers), len(buffers))
        return States(boot.of("state_buffer")[0].line, size, sequences, None if drafts else 1, None, None)
    return _beside_kv(boot, sequences)


def _summed(size: Fraction | int, roundings: int) -> Printed:
    return Printed(f"{float(size / MIB):.2f}", MIB, 2, roundings)


def _beside_kv(boot: Boot, sequences: int | None) -> States | None:
    """ik_llama.cpp's: what its KV buffers hold beside the KV. It keeps no copies to roll back to."""
    own = next(iter(boot.of("kv_self")), None)
    total = own.size("size") if own is not None else None
    drafts = boot.grammar.of_draft(boot)
    buffers = [size for one in boot.of("kv_buffer") if id(one) not in drafts and (size := one.size("size"))]
    if own is None or total is None or not buffers:
        return None
    size = _summed(sum(size.value for size in buffers) - total.value, len(buffers) + 1)
    if size.interval[0] <= 0:
        return None
    copies = 1 if sequences is not None else None
    return States(own.line, size, sequences or 1, copies, None, None, sequences is not None, by_difference=True)


def named(boot: Boot) -> tuple[str, str | None] | None:
    """The name that the log has for its model, and the preset of that name; None where it has none."""
    named_by = (("model_name", "name"), ("loading", "file"), ("draft_context", "target"), ("arguments", "file"))
    said = [boot.word(*where) for where in named_by]
    for name in (one.rpartition("/")[2] for one in said if one):
        bare = _FILE.sub("", name.partition('"')[0].strip())
        spellings = bare, bare.replace(" ", "-"), bare.partition("_")[2]  # the maker's name may stand in front
        found = next((preset for one in spellings if one and (preset := find_preset(one))), None)
        if found is not None:
            return bare, found[0]
    return next(((_FILE.sub("", one.rpartition("/")[2]), None) for one in said if one), None)


class Fit(NamedTuple):
    """A model that has what is printed, how many copies of a state there are then, and how many facts say so."""

    candidate: Candidate
    copies: int | None
    facts: int


def fitting(kv: Cache | None, held: States | None, model: Architecture | None) -> list[Fit]:
    """The models that have what is printed of the caches, or the given one alone, by name."""
    found = [fit for one in ((model,) if model is not None else models_with_states()) if (fit := _fit(one, kv, held))]
    most = max((fit.facts for fit in found), default=0)
    single = [fit for fit in found if fit.copies in (None, 1)]
    enough = [fit for fit in found if fit.facts == most and (most >= FEWEST_FACTS or model is not None)]
    return [fit for fit in enough if fit in single] or enough if held is not None and held.copies == 1 else enough


def mismatches(model: Architecture, kv: Cache | None, held: States | None) -> Iterator[str]:
    """What is printed that the model has not, in words."""
    if kv is not None and kv.layers is not None and kv.layers != model.attention_layers:
        yield f"{kv.layers} layers with KV are printed, the model has {model.attention_layers}"
    elif kv is not None and (per := _kv_bytes(model, kv)) is None:
        yield f"{float(kv.per_token):,.0f} B of KV a token are none of its sizes"
    elif kv is not None and per:
        pass
    if held is not None and _copies(model, held) is None:
        yield f"{held.size} MiB hold no whole number of its states of {state_bytes(model):,} B"


def state_bytes(model: Architecture) -> int:
    """Bytes of one sequence's state, fp32: convolution and recurrence of all its layers, and what else it keeps."""
    return sum(_parts(model))


def _parts(model: Architecture) -> tuple[int, int, int]:
    """Bytes of a sequence in R, S and P: P holds the columns of a per-layer embedding's convolution."""
    if model.state is None:
        return 0, 0, 0
    shapes, ple = model.state.shapes(1), model.ple_conv
    r, s = (4 * model.state_layers * each for each in (shapes.conv_elements, shapes.temporal_elements))
    return r, s, 4 * ple.layers * ple.channels * ple.columns if ple is not None else 0


def _fit(model: Architecture, kv: Cache | None, held: States | None) -> Fit | None:
    facts, copies, per_token, name = 0, held.copies if held is not None else None, 0, ""
    if kv is not None and not model.window_layers:
        if kv.layers is not None and kv.layers != model.attention_layers:
            return None
        sized = _kv_bytes(model, kv)
        if sized is None:
            return None
        per_token, name = sized
        facts += 1 + (kv.layers is not None)
    if held is not None:
        layers = (model.num_layers, model.num_layers + model.draft_layers, model.num_layers + 1)
        found = _copies(model, held)
        if found is None or (held.layers is not None and held.layers not in layers):
            return None
        copies = found
        facts += 1 + (held.layers is not None)
    return Fit(Candidate(model.name, 0, "fp32", name, state_bytes(model), per_token), copies, facts) if facts else None


def _kv_bytes(model: Architecture, kv: Cache) -> tuple[int, str] | None:
    """Bytes of a token and the type of the cache, where they are the printed ones."""
    low, high = (bound / kv.tokens for bound in kv.size.interval)
    attention = model.attention
    if attention is None:
        return None
    if isinstance(attention, GroupedQueryKV):
        k, v = attention.kv_heads * attention.head_dim, attention.kv_heads * attention.v_head_dim
    else:
        k, v = attention.kv_lora_rank + attention.qk_rope_head_dim, 0
    for types in (kv.types,) if kv.types is not None else ((name, name) for name in ROWS):
        size = model.attention_layers * (k * ROWS[types[0]] + v * ROWS[types[1]])
        if low <= size <= high:
            return int(size), types[0] if types[0] == types[1] or not v else f"{types[0]} and {types[1]}"
    return None


def _copies(model: Architecture, held: States) -> int | None:
    """How many states of the model a sequence has, where the printed size holds a whole number of them."""
    r, s, _ = _parts(model)
    each = held.sequences * state_bytes(model)
    if not each:
        return None
    low, high = held.size.interval
    tried = range(max(1, ceil(low / each)), floor(high / each) + 1)
    wanted = [n for n in tried if n <= MOST_COPIES and held.copies in (None, 1, n)]
    if held.copies is not None and held.copies > 1:
        wanted = [n for n in wanted if n == held.copies]
    for copies in wanted:
        many = held.sequences * copies
        if held.parts is None or all(
            _within(many * size, part.interval) for size, part in zip((r, s), held.parts, strict=True)
        ):
            return copies
    return None


def _within(size: int, bounds: Range) -> bool:
    return bounds[0] <= size <= bounds[1]


def context(boot: Boot, slots: int | None) -> tuple[int, int]:
    """Tokens that a sequence may have by the context's own lines, 0 where they do not say; and of how many streams,
    0 where that is not said.
    """
    each = boot.count("slots", "n_ctx_slot") or boot.count("context", "n_ctx_seq") or 0
    for one in boot.of("context"):  # a runner of Ollama says both in one line, and shares the tokens out
        n_ctx, sequences = one.count("n_ctx"), one.count("n_seq_max")
        each = each or (n_ctx // sequences if n_ctx and sequences else 0)
    unified = "true" in (boot.word("context", "unified"), boot.word("slots", "unified"))
    return each, 1 if unified else slots or 0
