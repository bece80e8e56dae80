"""The figures of a llama.cpp context for a workload: what runs at once, what binds, where the memory goes.

`Figures` only derives: what to make of them (findings) builds upon it, and `server_plan.Plan` joins both.
"""

from contextlib import suppress
from fractions import Fraction
from functools import cached_property
from math import ceil
from typing import NamedTuple

from hybridcalc.architecture import Architecture
from hybridcalc.architecture.weights import parameters
from hybridcalc.deployment import GIVEN, Rest, Workload
from hybridcalc.engines.answer import SharedFigures, Slot
from hybridcalc.engines.llamacpp import ContextParams
from hybridcalc.engines.llamacpp.memory import (
    NO_SIZES,
    UNBOUNDED,
    Weighed,
    compute_buffer,
    header_of,
    vocabulary_of,
    weighed,
    weights_of,
)
from hybridcalc.engines.llamacpp.overrides import NotPlain, names_known, read_overrides, unfound
from hybridcalc.engines.llamacpp.placement import Device, Devices, layers_in_all, placed
from hybridcalc.engines.llamacpp.planner import ELEMENT, CellCache, Prepared, prepare
from hybridcalc.findings import BudgetLine
from hybridcalc.units import GIB, MIB


class Lack(NamedTuple):
    """A card that is to hold more than it has: its name, and GiB."""

    name: str
    held: float
    card: float

    def __str__(self) -> str:
        return f"{self.name} lacks {self.held - self.card:.2f} GiB: it is to hold {self.held:.2f} of {self.card:.2f}"


class Figures(SharedFigures):
    """What llama.cpp does with ``args`` for ``model``, over all devices together; ``rest`` is None without memory.

    ``offloaded`` and ``experts_on_host``: layers that --fit leaves on the cards (None: as asked), and those whose
    experts it moves to the host.
    """

    rest: Rest | None = None
    offloaded: int | None = None
    experts_on_host: int = 0

    def __init__(self, ready: Prepared, workload: Workload) -> None:
        self.ready, self.model, self.args, self.workload = ready, ready.model, ready.args, workload
        self.asked = ready

    @property
    def tokens(self) -> int:
        """Tokens that the cells of all streams hold."""
        return self.ready.n_ctx

    @property
    def caches_bytes(self) -> int:
        """KV, a draft's too, and states."""
        return self.ready.kv_bytes + self.ready.draft_bytes + self.ready.state_bytes

    @cached_property
    def weighed(self) -> Weighed | None:
        """The weights by layer; None where nothing says them."""
        return weighed(self.ready)

    @cached_property
    def placement(self) -> Devices:
        """What each card holds, and the host."""
        found = self.weighed
        layers = found.layers if found is not None else None
        return placed(self.ready, layers, self.offloaded, self.experts_on_host)

    @property
    def by_card(self) -> bool:
        """Whether it is known what each card is to hold, and what it has."""
        rest = self.rest
        known = rest is not None and rest.total_gib is not None and all(part.how != GIVEN for part in rest.parts)
        return known and self.weighed is not None and self.placement.modelled

    @property
    def unmoved(self) -> bool:
        """Whether -ot moves tensors of which nothing says how large they are."""
        found = self.weighed
        return self.args.override_tensor is not None and (found is None or not found.layers.modelled)

    @property
    def unfound(self) -> list[str]:
        """Patterns of -ot that are found in no tensor's name."""
        text, found, header = self.args.override_tensor, self.weighed, header_of(self.model)
        if not text or found is None:
            return []
        if header is not None:
            names = [tensor.name for tensor in header.tensors]
        else:
            blocks = parameters(self.model).blocks
            experts = any(tensor.experts for block in blocks for tensor in block.tensors)
            names = list(names_known(layers_in_all(self.model), experts=experts))
        with suppress(NotPlain):
            return unfound(read_overrides(text, self.args.cards), names)
        return []

    def lacking(self, end: int) -> "Lack | None":
        """What the card lacks most that is to hold more than it has, with the low (0), likely (1) or high (2) end of
        the estimates; None where each has room, or its memory or its weights are not known.
        """
        found, rest = self.weighed, self.rest
        if not self.by_card or found is None or rest is None or rest.total_gib is None:
            return None
        scratch, card = compute_buffer(self.ready) or NO_SIZES, rest.total_gib / self.args.used_cards
        held = [
            (each.weights * found.bytes_of[end] + each.kv + each.state + scratch[end], each.name)
            for each in self.placement.cards
            if each.layers
        ]
        size, name = max(held, default=(0, ""))
        return Lack(name, size / GIB, card) if size > card * GIB else None

    @cached_property
    def by_context(self) -> int:
        """Requests of the workload that the cells hold at once: one a stream, or as many as share one."""
        length, ready = self.workload.mean_length, self.ready
        if length is None:
            return ready.sequences
        if self.workload.longest > ready.slot_tokens:
            return 0
        return ready.sequences if ready.streams > 1 else int(ready.n_ctx // length)

    @property
    def concurrency(self) -> int:
        """Requests of the workload that run at once."""
        return min(self.ready.sequences, self.by_context)

    @property
    def requests_at_ends(self) -> tuple[int, int]:
        """The same at both ends of an uncertain memory: slots are what they are."""
        return self.requests, self.requests

    @property
    def workers(self) -> int:
        """One."""
        return 1

    @property
    def binding(self) -> str:
        """What caps them: "limit" (the slots), "kv" (cells that the slots share) or "context"."""
        if not self.by_context:
            return "context"
        return "kv" if self.by_context < self.ready.sequences else "limit"

    @property
    def idle_percent(self) -> float | None:
        """The share of the cells that no request can use; None without a length."""
        length = self.workload.mean_length
        if length is None:
            return None
        return max(0.0, float(100 * (1 - self.concurrency * length / self.ready.n_ctx)))

    @property
    def checkpoints_bytes(self) -> int:
        """Host memory of all context checkpoints, at most."""
        return self.ready.sequences * self.args.ctx_checkpoints * self.ready.checkpoint_bytes

    @cached_property
    def output_bytes(self) -> int:
        """Logits of a token of every slot, on the host; 0 where the vocabulary is not known."""
        return vocabulary_of(self.model) * self.ready.sequences * ELEMENT

    @property
    def slot(self) -> Slot:
        """The state of one sequence: convolution columns and matrices, without copies."""
        ready = self.ready
        return Slot((ready.state_layers * ready.r + ready.extra) * ELEMENT, ready.state_layers * ready.s * ELEMENT)

    @property
    def kv_bytes_per_token(self) -> int:
        """Bytes of a token in all layers, a draft's included."""
        return self.ready.kv_bytes_per_token

    @property
    def kv_bytes_by_stage(self) -> list[int]:
        """The same: layers are shared out over devices, not stages."""
        return [self.kv_bytes_per_token]

    @property
    def slots_per_request(self) -> int:
        """States of a sequence: the one it is, and copies to roll back to."""
        return 1 + self.ready.copies if self.ready.state_layers else 0

    @property
    def slots_reason(self) -> str:
        """Why they are that many."""
        if not self.ready.state_layers:
            return "no recurrent layer"
        copies = self.ready.copies
        return f"the state and {copies} copies to roll {copies} draft tokens back" if copies else "one state a slot"

    @property
    def ratio(self) -> None:
        """Nothing splits the memory: every slot has its state, whatever its context."""

    @property
    def fixed_bytes_per_request(self) -> int:
        """States of a slot, copies included."""
        return self.ready.state_bytes // self.ready.sequences

    @property
    def marginal_bytes_per_token(self) -> Fraction:
        """Bytes of a further cell."""
        return Fraction(self.kv_bytes_per_token)

    @cached_property
    def budget(self) -> tuple[BudgetLine, ...]:
        """Every buffer of the context, and what the host keeps beside it."""
        ready, lines = self.ready, []
        for cache in (*ready.caches, *([ready.draft] if ready.draft is not None else [])):
            name = {"all": "KV", "window": "KV of windows", "draft": "KV of the draft", "index": "keys of the index"}[
                cache.name
            ]
            size = cache.k_bytes + cache.v_bytes
            streams = f" x {cache.streams} streams" if cache.streams > 1 else ""
            why = f"{cache.layers} layers x {cache.cells:,} cells{streams} x ({cache.k_row:,} + {cache.v_row:,}) B"
            lines.append(BudgetLine(name, "kv", size, size, why))
        if ready.state_layers:
            own = ready.state_bytes // (1 + ready.copies)
            each = f"{ready.state_layers} layers x {ready.sequences} sequences x ({ready.r:,} + {ready.s:,}) x 4 B"
            lines.append(BudgetLine("states", "state", own, own, each))
            if ready.copies:
                more = ready.state_bytes - own
                lines.append(
                    BudgetLine("copies of states", "scratch", more, more, f"{ready.copies} of each for drafts")
                )
        if self.output_bytes:
            size = self.output_bytes
            lines.append(BudgetLine("logits on the host", "other", 0, size, f"{ready.sequences} tokens of a step"))
        return tuple(lines)

    def _cache_line(self, cache: CellCache) -> str:
        """The line of a KV cache."""
        k, v = cache.k_bytes, cache.v_bytes
        return (
            f"llama_kv_cache: size = {(k + v) / MIB:7.2f} MiB ({cache.cells:6} cells, {cache.layers:3} layers, "
            f"{self.ready.sequences:2}/{cache.streams} seqs), K ({self.args.type_k}): {k / MIB:7.2f} MiB, "
            f"V ({self.args.type_v}): {v / MIB:7.2f} MiB"
        )

    @property
    def log_lines(self) -> list[str]:
        """The lines about caches that the server prints, to the digit."""
        ready, lines = self.ready, [self._cache_line(cache) for cache in self.ready.caches if cache.name != "index"]
        if ready.state_layers:
            r, s, p = ready.r_bytes, ready.s_bytes, ready.state_bytes - ready.r_bytes - ready.s_bytes
            lines.append(
                f"llama_memory_recurrent: size = {(r + s + p) / MIB:7.2f} MiB ({ready.sequences:6} cells, "
                f"{self.model.num_layers:3} layers, {ready.sequences:2} seqs {ready.copies:2} rs_seq), "
                f"R (f32): {r / MIB:7.2f} MiB, S (f32): {s / MIB:7.2f} MiB, P (f32): {p / MIB:7.2f} MiB"
            )
        lines += [self._cache_line(cache) for cache in ready.caches if cache.name == "index"]
        if self.output_bytes:
            lines.append(f"llama_context: output buffer size = {self.output_bytes / MIB:8.2f} MiB")
        return lines

    @property
    def engine_figures(self) -> dict[str, object]:
        """llama.cpp's own figures under its own names."""
        ready = self.ready
        compute, weights = compute_buffer(ready), weights_of(ready)
        return {
            "n_ctx": ready.n_ctx,
            "n_ctx_seq": ready.n_ctx_seq,
            "n_ctx_slot": ready.slot_tokens,
            "n_seq_max": ready.sequences,
            "streams": ready.streams,
            "kv_layers": sum(cache.layers for cache in ready.caches if cache.name != "index"),
            "kv_bytes": ready.kv_bytes,
            "k_bytes": sum(cache.k_bytes for cache in ready.caches),
            "v_bytes": sum(cache.v_bytes for cache in ready.caches),
            "draft_kv_bytes": ready.draft_bytes,
            "state_bytes": ready.state_bytes,
            "r_bytes": ready.r_bytes,
            "s_bytes": ready.s_bytes,
            "rs_copies": ready.copies,
            "host_checkpoint_bytes": ready.checkpoint_bytes,
            "host_checkpoints_bytes": self.checkpoints_bytes,
            "output_bytes": self.output_bytes or None,
            "compute_bytes": list(compute) if compute is not None else None,
            "weights_bytes": _weights(weights),
            "devices": [self._device(device) for device in (*self.placement.cards, self.placement.host)],
        }

    def _device(self, device: Device) -> dict[str, object]:
        """What a device holds, as plain data."""
        found = self.weighed
        part = found.part(device.weights) if found is not None else None
        return {
            "name": device.name,
            "layers": device.layers,
            "weights_bytes": _weights(part),
            "kv_bytes": device.kv,
            "state_bytes": device.state,
        }


def _weights(found: object) -> object:
    """Bytes of the weights, or their bounds and the likely one."""
    from hybridcalc.deployment import MemoryPart

    if not isinstance(found, MemoryPart):
        return None
    sizes = [ceil(gib * GIB) for gib in (found.low, found.likely, found.high)]
    return sizes[1] if sizes[0] == sizes[2] else sizes


def bounded(rest: Rest) -> bool:
    """Whether anything says how much memory there is."""
    return rest.why != UNBOUNDED


def unsized(model: Architecture, args: ContextParams, workload: Workload) -> Figures:
    """The figures of a launch without memory: all but whether it fits. Raises Refusal for what does not start."""
    return Figures(prepare(model, args), workload)
