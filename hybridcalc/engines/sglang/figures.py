"""The figures of an SGLang start-up for a workload: pools, clamps, budget, capacity; of one rank, and of one worker.

`budget_lines` has a line a buffer, of one rank of the first pipeline stage. Charged is what the solver takes off the
rest; allocated is what the buffers take. They part where the engine prices dense windows and keeps overlapping ones,
prices D and keeps the adaptive maximum, pads KV by a page, or does not price a pool at all. `Figures` only
derives: what to make of them (findings, suggestions, steps) builds upon it, and `server_plan.Plan` joins both.
"""

from fractions import Fraction
from functools import cached_property
from typing import TYPE_CHECKING

from hybridcalc.architecture import Architecture
from hybridcalc.deployment import Rest, Workload
from hybridcalc.engines.answer import SharedFigures, Slot
from hybridcalc.engines.sglang import ServerArgs
from hybridcalc.engines.sglang.kv import draft_layers, draft_row_bytes
from hybridcalc.engines.sglang.planner import Prepared, Sizing, log_lines, prepare
from hybridcalc.engines.sglang.pools import check_rings, per_worker_limit
from hybridcalc.engines.sglang.sizes import dense_windows, draft_states, family_rule
from hybridcalc.findings import BudgetLine
from hybridcalc.formulas import balanced_ratio
from hybridcalc.units import format_bytes

if TYPE_CHECKING:
    from hybridcalc.engines.sglang.allocation import Allocation
    from hybridcalc.engines.sglang.settings import Setting


def budget_lines(ready: Prepared, sizing: Sizing, pools: "Allocation") -> tuple[BudgetLine, ...]:
    """Every buffer that takes or is charged memory, the largest pools first."""
    lines = [_states(ready, sizing, pools), *_drafts(ready, sizing, pools), *_rings(ready, sizing, pools)]
    lines += [_kv(ready, sizing, pools), *_draft_kv(ready, sizing)]
    if pools.int8 is not None:
        why = f"{pools.int8.slots:,} + 1 slots of {pools.int8.per_slot:,} B, out of the headroom"
        lines.append(BudgetLine("int8 checkpoints", "state", 0, pools.int8.bytes, why))
    if pools.ple_conv:
        lines.append(
            BudgetLine("PLE convolutions", "state", 0, pools.ple_conv, "of per-layer embeddings, a set a state slot")
        )
    entries = pools.request_table // 4 // pools.request_rows
    why = f"{pools.request_rows:,} rows x {entries:,} entries, int32"
    lines.append(BudgetLine("request table", "other", 0, pools.request_table, why))
    return tuple(line for line in lines if line.charged_bytes or line.allocated_bytes)


def uncharged_bytes(lines: tuple[BudgetLine, ...]) -> int:
    """Bytes the buffers take beyond what was charged for them, line by line: one's surplus does not pay another."""
    return sum(more for line in lines if (more := line.allocated_bytes - line.charged_bytes) > 0)


def _states(ready: Prepared, sizing: Sizing, pools: "Allocation") -> BudgetLine:
    rings = _ring_charge(ready, sizing)
    allocated = pools.conv_state + pools.ssm_state
    padding = " + 1 that pads" if ready.rules.padding_slot_charged else ", and 1 uncharged that pads"
    why = f"{pools.pool_slots:,} slots{padding}, {ready.stage_slot_bytes:,} B each"
    if pools.raised_from is not None:
        why += f"; raised from {pools.raised_from:,} for requests held ahead"
    return BudgetLine("state pool", "state", sizing.state.charged_bytes - rings, allocated, why)


def _drafts(ready: Prepared, sizing: Sizing, pools: "Allocation") -> list[BudgetLine]:
    allocated = pools.intermediate_ssm + pools.intermediate_conv
    args = ready.args
    if not allocated and not sizing.state.draft_bytes:
        return []
    why = f"{pools.request_rows:,} rows x {args.most_draft_tokens} draft tokens"
    if args.most_draft_tokens > args.draft_tokens:
        why += f" (priced for {args.draft_tokens})"
    if not dense_windows(ready.model, args, ready.rules):
        why += "; convolution windows overlap"
    if ready.replay_active:
        why = f"convolution windows alone, {why}: ReplaySSM keeps no draft states"
    return [BudgetLine("draft states", "scratch", sizing.state.draft_bytes, allocated, why)]


def _rings(ready: Prepared, sizing: Sizing, pools: "Allocation") -> list[BudgetLine]:
    charged = _ring_charge(ready, sizing)
    if not charged and not pools.ring_bytes:
        return []
    per_slot = family_rule(ready.model).kimi_pool or ready.args.enable_linear_replayssm
    per = "slot of the pool" if per_slot else "running request"
    why = f"{ready.args.linear_replayssm_cache_len} steps for each {per}"
    return [BudgetLine("ReplaySSM rings", "scratch", charged, pools.ring_bytes, why)]


def _ring_charge(ready: Prepared, sizing: Sizing) -> int:
    """Ring bytes inside the charge of the state pool."""
    if not ready.replay_active:
        return 0
    rows = sizing.state.charged_bytes - (sizing.state.slots + 1) * ready.stage_slot_bytes
    return max(0, rows)


def _kv(ready: Prepared, sizing: Sizing, pools: "Allocation") -> BudgetLine:
    cell = ready.cells[0]
    charged = int(sizing.tokens * (cell.price - cell.draft_bytes))
    index = 0 if pools.compressed is None else pools.compressed.bytes
    allocated = sum(pools.kv) + index if pools.kv else charged
    page = ready.args.tokens_per_page
    why = f"{sizing.tokens:,} tokens + a page of {page}, {cell.target_bytes:,} B each"
    if pools.kv and cell.dtype == "fp4_mx_block16" and allocated > charged + page * cell.target_bytes:
        why += "; priced as fp4, kept in a plain pool"
    if index:
        why += f"; {format_bytes(index)} of them index keys and rings"
    return BudgetLine("KV pool", "kv", charged, allocated, why)


def _draft_kv(ready: Prepared, sizing: Sizing) -> list[BudgetLine]:
    """The draft model's KV: rows for the tokens of all context-parallel ranks."""
    cell, args = ready.cells[0], ready.args
    if not cell.draft_bytes:
        return []
    charged = sizing.tokens * cell.draft_bytes
    per_row = draft_row_bytes(cell, args)
    rows = (sizing.tokens + args.tokens_per_page) * args.dcp_size
    layers = draft_layers(ready.model, args)
    why = f"{layers} layers x {rows:,} rows" if layers else f"{rows:,} rows of {per_row:,} B"
    return [BudgetLine("draft KV", "kv", charged, rows * per_row, why)]


class Figures(SharedFigures):
    """What SGLang does with ``args`` and ``rest`` for ``model``: figures per rank of one attention worker.

    ``low`` and ``high`` bound K, T and R over an uncertain memory; equal to ``sizing`` where it is known. ``sized``:
    whether the memory is known at all.
    """

    sized = True

    def __init__(
        self,
        ready: Prepared,
        sizing: Sizing,
        low: Sizing,
        high: Sizing,
        pools: "Allocation",
        rest: Rest,
        workload: Workload,
    ) -> None:
        self.ready, self.sizing, self.low, self.high = ready, sizing, low, high
        self.pools, self.rest, self.workload = pools, rest, workload
        self.model, self.args = ready.model, ready.typed

    @property
    def max_mamba_cache_size(self) -> int:
        """K, state slots of one worker."""
        return self.sizing.state.slots

    @property
    def max_total_num_tokens(self) -> int:
        """T, KV tokens of one rank."""
        return self.sizing.tokens

    @property
    def logical_token_capacity(self) -> int:
        """Tokens of sequences that fit: T times the ranks that share a sequence."""
        return self.sizing.tokens * self.args.dcp_size

    @property
    def max_running_requests(self) -> int:
        """R, requests a worker runs at once at most."""
        return self.sizing.requests

    @property
    def slots_per_request(self) -> int:
        """S."""
        return self.ready.slots.count

    @property
    def bytes_per_slot(self) -> int:
        """Bytes of a state slot on one rank, over all layers of the model."""
        return self.ready.slot.bytes

    @property
    def fixed_bytes_per_request(self) -> int:
        """Bytes a request takes before its first token, on the heaviest stage: slots with rings, and draft states."""
        drafts = self.args.draft_tokens if self.sizing.state.draft_bytes else 0
        rings = self.slots_per_request * self.ready.rings.per_slot + self.ready.rings.per_request
        return (self.slots_per_request + drafts) * self.ready.stage_slot_bytes + rings

    @property
    def marginal_bytes_per_token(self) -> Fraction:
        """Bytes each further token of a request takes on a rank of the heaviest stage, the draft model's row whole."""
        return self.ready.bytes_per_token

    @cached_property
    def capacity(self) -> "Setting":
        """What these flags come to for the workload; without a length, the requests the engine lets run."""
        length = self.workload.mean_length
        if length is None:
            return self._without_length()
        from hybridcalc.engines.sglang.settings import settle

        return settle("plan", "", self.ready, self.sizing, length)

    @property
    def unified(self) -> bool:
        """Whether slots and KV share one pool whose split floats."""
        return self.ready.unified

    @property
    def too_long(self) -> bool:
        """Whether requests of the workload are longer than the context: none of them is served."""
        return self.workload.longest > self.ready.context_length

    @property
    def concurrency(self) -> int:
        """Requests of the workload that run at once in one worker."""
        return 0 if self.too_long else min(self.capacity.requests, self.sizing.requests)

    @property
    def binding(self) -> str:
        """What caps concurrency: "state", "kv", "limit" or, where requests are longer than it, "context"."""
        return "context" if self.too_long else self.capacity.binding

    @cached_property
    def budget(self) -> tuple[BudgetLine, ...]:
        """Every buffer, charged and allocated."""
        return budget_lines(self.ready, self.sizing, self.pools)

    @cached_property
    def uncharged_bytes(self) -> int:
        """Bytes the buffers take beyond what was charged for them."""
        return uncharged_bytes(self.budget)

    @property
    def balanced(self) -> "Setting | None":
        """What these flags come to at the ratio that balances them; None without a length, or where nothing starts."""
        raise NotImplementedError

    @property
    def workers(self) -> int:
        """Attention workers of a server, or its replicas."""
        return self.args.dp_size

    @property
    def requests_at_ends(self) -> tuple[int, int]:
        """The least and the most of them over an interval of memory; 0 for an end that does not start."""
        return self._requests_of(self.low), self._requests_of(self.high)

    def _requests_of(self, end: Sizing) -> int:
        length = self.workload.mean_length
        if self.too_long:
            return 0
        if not end.requests or length is None:
            return end.requests * self.workers
        from hybridcalc.engines.sglang.settings import settle

        return min(settle("plan", "", self.ready, end, length).requests, end.requests) * self.workers

    @property
    def slot(self) -> Slot:
        """One state slot on a rank of the heaviest pipeline stage."""
        return self.ready.stage_slot

    @property
    def kv_bytes_by_stage(self) -> list[int]:
        """Bytes of a token on a rank of each pipeline stage, draft included."""
        return [cell.bytes for cell in self.ready.cells]

    @property
    def slots_reason(self) -> str:
        """Why S is what it is."""
        return self.ready.slots.reason

    @property
    def ratio(self) -> float | None:
        """r* for the workload's mean length; None without one, and where a token or a slot takes nothing."""
        length = self.workload.mean_length
        return None if length is None or not self.slot.state_bytes else float(even_ratio(self.ready, length))

    @property
    def tokens(self) -> int:
        """Tokens of sequences that the KV of one worker holds."""
        return self.logical_token_capacity

    @property
    def idle_percent(self) -> float | None:
        """The share of the pool that does not bind which no request can use; None without a length."""
        return self.capacity.idle_percent if self.workload.lengths else None

    @property
    def log_lines(self) -> list[str]:
        """The lines about pools that the boot will print."""
        return log_lines(self.ready, self.sizing, self.pools)

    def _without_length(self) -> "Setting":
        from hybridcalc.engines.sglang.settings import Setting, binding_limit

        slots, tokens = self.sizing.state.slots, self.logical_token_capacity
        by_kv = tokens // 2
        by_state = by_kv if self.ready.stateless else slots // self.slots_per_request
        binding = binding_limit(slots, tokens, self.slots_per_request, self.sizing.requests)
        return Setting("plan", "", slots, by_state, tokens, by_kv, binding, 0.0)


def even_ratio(ready: Prepared, length: Fraction) -> Fraction:
    """r*, the ratio of state to KV memory at which both pools run out together at ``length`` tokens."""
    return balanced_ratio(
        ready.stage_slot_bytes + ready.rings.per_slot,
        max(1, *(cell.bytes for cell in ready.cells)),
        slots_per_request=ready.slots.count,
        length_tokens=length,
        draft_states=draft_states(ready.args, active=ready.replay_active)[0],
        dcp=ready.args.dcp_size,
    )


class Unsized(Figures):
    """The part of a plan that memory does not change: there is no sizing, and no figure that follows from one."""

    sized = False

    def __init__(self, ready: Prepared, workload: Workload) -> None:
        self.ready, self.model, self.args = ready, ready.model, ready.typed
        self.workload = workload

    @property
    def max_mamba_cache_size(self) -> int:
        """K as it is given; 0 where it is not."""
        return (self.args.max_mamba_cache_size or 0) // self.args.attn_dp_size

    @property
    def balanced(self) -> None:
        """Not known without memory."""


def unsized(model: Architecture, args: ServerArgs, workload: Workload) -> Unsized:
    """The figures of a launch without memory. Raises Refusal for what does not start, whatever the memory."""
    ready = prepare(model, args)
    check_rings(ready.rings, per_worker_limit(ready.args, ready.rules))
    if ready.unbuildable is not None:
        raise ready.unbuildable.refusal()
    return Unsized(ready, workload)
