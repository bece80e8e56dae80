"""The figures of an SGLang start-up for a workload: pools, clamps, budget, capacity; of one rank, and of one worker.

`Figures` only derives: what to make of them (findings, suggestions) builds upon it, and `server_plan.Plan` joins both.
"""

from fractions import Fraction
from functools import cached_property

from hybridcalc.architecture.geometry import Architecture
from hybridcalc.deployment import Rest, Workload
from hybridcalc.engines.document import Slot
from hybridcalc.engines.sglang.allocation import Allocation
from hybridcalc.engines.sglang.budget import budget_lines, draft_row_bytes, uncharged_bytes
from hybridcalc.engines.sglang.config import ServerArgs
from hybridcalc.engines.sglang.constants import draft_states
from hybridcalc.engines.sglang.planner import Prepared, Sizing, log_lines, prepare
from hybridcalc.engines.sglang.pools import check_rings, per_worker_limit
from hybridcalc.engines.sglang.settings import Setting, binding_limit, is_unified, settle
from hybridcalc.formulas.balance import balanced_ratio
from hybridcalc.steps import BudgetLine, Suggestion


class Figures:
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
        pools: Allocation,
        rest: Rest,
        workload: Workload,
    ) -> None:
        self.ready, self.sizing, self.low, self.high = ready, sizing, low, high
        self.pools, self.rest, self.workload = pools, rest, workload
        self.model, self.args = ready.model, ready.args

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
        cell = max(self.ready.cells, key=lambda cell: cell.bytes)
        return Fraction(cell.bytes - cell.draft_bytes, self.args.dcp_size) + draft_row_bytes(cell, self.args)

    @cached_property
    def capacity(self) -> Setting:
        """What these flags come to for the workload; without a length, the requests the engine lets run."""
        length = self.workload.mean_length
        if length is None:
            return self._without_length()
        return settle("plan", "", self.ready, self.sizing, length)

    @property
    def unified(self) -> bool:
        """Whether slots and KV share one pool whose split floats."""
        return is_unified(self.ready)

    @property
    def concurrency(self) -> int:
        """Requests of the workload that run at once in one worker."""
        return min(self.capacity.requests, self.sizing.requests)

    @property
    def binding(self) -> str:
        """What caps concurrency: "state", "kv" or "limit"."""
        return self.capacity.binding

    @cached_property
    def budget(self) -> tuple[BudgetLine, ...]:
        """Every buffer, charged and allocated."""
        return budget_lines(self.ready, self.sizing, self.pools)

    @cached_property
    def uncharged_bytes(self) -> int:
        """Bytes the buffers take beyond what was charged for them."""
        return uncharged_bytes(self.budget)

    @property
    def balanced(self) -> Setting | None:
        """What these flags come to at the ratio that balances them; None without a length, or where nothing starts."""
        raise NotImplementedError

    @property
    def version(self) -> str:
        """The release whose rules were used."""
        return self.ready.rules.version

    @property
    def workers(self) -> int:
        """Attention workers of a server, or its replicas."""
        return self.args.dp_size

    @property
    def requests(self) -> int:
        """Requests of the workload that run at once, over all workers."""
        return self.concurrency * self.workers

    @property
    def slot(self) -> Slot:
        """One state slot on a rank of the heaviest pipeline stage."""
        slot = self.ready.slot
        layers = self.ready.stage_slot_bytes * slot.layers // slot.bytes if slot.bytes else 0
        return Slot(layers * slot.conv_bytes_per_layer, layers * slot.ssm_bytes_per_layer)

    @property
    def kv_bytes_per_token(self) -> int:
        """Bytes of a token on a rank of the heaviest pipeline stage, draft included."""
        return max(self.kv_bytes_by_stage)

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
    def suggestions(self) -> tuple[Suggestion, ...]:
        """Flags that serve the workload better, the most gain first."""
        raise NotImplementedError

    @cached_property
    def log_lines(self) -> list[str]:
        """The lines about pools that the boot will print."""
        return log_lines(self.ready, self.sizing, self.pools)

    def _without_length(self) -> Setting:
        slots, tokens = self.sizing.state.slots, self.logical_token_capacity
        by_state, by_kv = slots // self.slots_per_request, tokens // 2
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
        self.ready, self.model, self.args = ready, ready.model, ready.args
        self.workload = workload

    @property
    def max_mamba_cache_size(self) -> int:
        """K as it is given; 0 where it is not."""
        return (self.args.max_mamba_cache_size or 0) // self.args.attn_dp_size

    @property
    def balanced(self) -> None:
        """Not known without memory."""

    @property
    def suggestions(self) -> tuple[Suggestion, ...]:
        """None without memory."""
        return ()


def unsized(model: Architecture, args: ServerArgs, workload: Workload) -> Unsized:
    """The figures of a launch without memory. Raises Refusal for what does not start, whatever the memory."""
    ready = prepare(model, args)
    check_rings(ready.rings, per_worker_limit(ready.args, ready.rules))
    if ready.unbuildable is not None:
        raise ready.unbuildable.refusal()
    return Unsized(ready, workload)
