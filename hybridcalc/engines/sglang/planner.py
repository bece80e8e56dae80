"""What will SGLang allocate, clamp and refuse? The engine's start-up, stage by stage, in its own order.

    arguments, strategy    flags that exclude each other; which strategy auto becomes; the default request limit
    shapes                 bytes of a state slot on a rank
    ratio                  S, slots a request holds
    solve                  K and the memory left for KV
    tokens                 T, the smallest over the pipeline stages
    max_running_requests   R
    alloc                  every tensor, and the log lines

`prepare` settles what does not depend on memory; `start` is the arithmetic of one plan and is all that a sweep repeats.
A refusal carries what the stages before it had settled.
"""

from collections.abc import Mapping
from fractions import Fraction
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

from hybridcalc.architecture import Architecture, LatentKV
from hybridcalc.engines.answer import Preparation, Slot
from hybridcalc.engines.arguments import Last
from hybridcalc.engines.sglang import ServerArgs, check_arguments, check_chain, check_together
from hybridcalc.engines.sglang.kv import KvCell, draft_row_bytes, stage_cell
from hybridcalc.engines.sglang.pools import (
    Rings,
    StatePool,
    asked_requests,
    capped_tokens,
    charged_rings,
    check_left_over,
    kv_tokens,
    more_room,
    per_worker_limit,
    request_limit,
    requests_early,
    ring_bytes,
    solve_state_pool,
    solve_state_pool_early,
)
from hybridcalc.engines.sglang.refusals import Unbuildable, check_index, check_release, shapes, unbuildable
from hybridcalc.engines.sglang.releases import RuleSet, rules_for
from hybridcalc.engines.sglang.sizes import NO_STATE, StateSlot, context_length, family_rule, replayed, replayssm_active
from hybridcalc.engines.sglang.stages import Stage, pipeline_stages
from hybridcalc.engines.sglang.strategy import Choice, judged_strategy, slots_of, with_defaults
from hybridcalc.errors import Refusal
from hybridcalc.formulas import Slots
from hybridcalc.units import GIB

if TYPE_CHECKING:
    from hybridcalc.engines.sglang.allocation import Allocation, Settled

NO_SLOTS = Slots(0, "no recurrent layer")
UNBOUNDED_TOKENS = 2**63 - 1
CHEAP_FIELDS = ("mamba_full_memory_ratio", "max_mamba_cache_size", "max_running_requests", "max_total_tokens")
"""Arguments that change only the arithmetic of a plan, not what is prepared for it."""


class Known(NamedTuple):
    """What `prepare` settles."""

    model: Architecture
    given: ServerArgs
    args: ServerArgs
    rules: RuleSet
    choice: Choice
    slots: Slots
    slot: StateSlot
    stages: tuple[Stage, ...]
    cells: tuple[KvCell, ...]
    stage_slot_bytes: int
    rings: Rings
    replay_active: bool
    context_length: int
    settled: Mapping[str, Any]
    unbuildable: Unbuildable | None = None


class Prepared(Preparation, Known):
    """All that a plan knows before memory is counted. ``typed``: the arguments as they are given, ``args``: with what
    start-up settles of them. ``settled``: outputs of the stage shapes; ``unbuildable``: what
    will be refused once the memory is.
    """

    @property
    def typed(self) -> ServerArgs:
        """As in every engine's."""
        return self.given

    @cached_property
    def limited_windows(self) -> int | None:
        """Tokens of the windows' pool where the request limit sizes it."""
        from hybridcalc.engines.sglang.windows import limited_windows

        return limited_windows(self.model, self.args, self.rules, overlap=self.choice.overlap)

    @cached_property
    def resolved(self) -> dict[str, Any]:
        """What start-up settled of the arguments beside the memory fraction, as far as it is known."""
        from hybridcalc.engines.sglang.fraction import SETTLED, settled_arguments

        found = settled_arguments(self.model, self.args, self.rules, self.choice)
        return {name: found[name] for name in SETTLED if found.get(name) is not None}

    @cached_property
    def stage_slot(self) -> Slot:
        """One state slot on a rank of the heaviest pipeline stage."""
        slot = self.slot
        layers = self.stage_slot_bytes * slot.layers // slot.bytes if slot.bytes else 0
        return Slot(layers * slot.conv_bytes_per_layer, layers * slot.ssm_bytes_per_layer)

    @cached_property
    def bytes_per_token(self) -> Fraction:
        """Bytes each further token of a request takes on a rank of the heaviest stage, the draft model's row whole."""
        cell, dcp = max(self.cells, key=lambda cell: cell.bytes), self.args.dcp_size
        return Fraction(cell.bytes - cell.draft_bytes + dcp * draft_row_bytes(cell, self.args), dcp)

    @cached_property
    def unified(self) -> bool:
        """Whether slots and KV share one pool."""
        return self.args.enable_unified_memory and len(self.stages) == 1 and not self.stateless

    @cached_property
    def stateless(self) -> bool:
        """Whether no layer keeps a state: all memory is KV, and only KV and the request limit bound the requests."""
        return self.model.state is None


class Sizing(NamedTuple):
    """K, T and R of one worker, and the state pool they rest on. Tokens per rank, the smallest stage's."""

    state: StatePool
    stage_tokens: tuple[int, ...]
    tokens: int
    window_tokens: int | None
    asked: int
    requests: int


def prepare(model: Architecture, args: ServerArgs) -> Prepared:
    """Stages arguments to ratio. Raises Refusal and InputError.

    What calls in a row share is kept: a search, a sweep over memory or limits, and whoever asks again.
    """
    ready = _LAST.same(model, args)
    if ready is not None:
        return ready  # of another memory
    check_arguments(args)
    check_together(args)
    check_chain(args)
    ready = _LAST.but_for(CHEAP_FIELDS, model, args)
    if ready is None:
        ready = _prepare(model, args)
    else:
        ready = ready._replace(args=with_defaults(model, args, ready.rules), given=args)
    return _LAST.keep(model, args, ready)


_LAST = Last[Prepared]()


def _prepare(model: Architecture, args: ServerArgs) -> Prepared:
    rules, _ = rules_for(args.engine_version)
    check_release(model, args, rules)
    typed, args = args, with_defaults(model, args, rules)
    outputs: dict[str, Any] = {}
    try:
        if args.max_running_requests is None and args.speculative:
            outputs["max_running_requests_defaulted"] = request_limit(args)
        choice = judged_strategy(model, typed, args, rules)
        outputs |= {"strategy": choice.strategy, "overlap": choice.overlap}
        slot = NO_STATE if model.state is None else shapes(model, args)
    except Refusal as refusal:
        refusal.outputs = outputs
        raise
    settled = shape_outputs(model, args, slot, rules)
    try:
        slots = NO_SLOTS if model.state is None else slots_of(choice, model, args, rules)
        check_index(model, args)
    except Refusal as refusal:
        refusal.outputs = outputs | settled
        raise
    stages = pipeline_stages(model, args)
    most = max(stage.state_layers for stage in stages)
    share = (
        (lambda size: size)
        if len(stages) == 1 or not rules.stage_share_charged or not slot.layers
        else (lambda size: int(size * (most / slot.layers)))
    )
    rings, active = charged_rings(model, slot, args, rules), replayssm_active(model, args, rules)
    return Prepared(
        model=model,
        given=typed,
        args=args,
        rules=rules,
        choice=choice,
        slots=slots,
        slot=slot,
        stages=stages,
        cells=tuple(stage_cell(model, args, rules, s.kv_layers, s.window_layers) for s in stages),
        stage_slot_bytes=share(slot.bytes),
        rings=Rings(share(rings.per_slot), share(rings.per_request)),
        replay_active=active,
        context_length=args.context_length or context_length(model),
        settled=settled,
        unbuildable=unbuildable(model, args, rules, replay_active=active),
    )


def size(ready: Prepared, rest_gib: float) -> Sizing:
    """Stages solve to max_running_requests: K, T and R for ``rest_gib``. Raises Refusal with what came before."""
    args, rules = ready.args, ready.rules
    state: StatePool | None = None
    try:
        state = _state_pool(ready, rest_gib)
        if rules.automatic_strategy and not ready.stateless:  # before, tokens alone were looked at
            check_left_over(state, rest_gib)
        stage_tokens = tuple(_stage_tokens(ready, cell, state.kv_bytes) for cell in ready.cells)
        tokens = capped_tokens(min(stage_tokens), args)
        least = min(*stage_tokens, args.max_total_tokens or UNBOUNDED_TOKENS)
        capped = None if least == stage_tokens[0] else least
        windows = None
        if ready.model.window_layers:
            from hybridcalc.engines.sglang.windows import window_tokens

            windows = window_tokens(ready.model, args, rules, tokens, ready.limited_windows, capped)
        asked, served = _asked(ready, tokens)
        requests = served if ready.stateless else min(served, state.slots // ready.slots.count)
        sizing = Sizing(state, stage_tokens, tokens, windows, asked, requests)
        if requests <= 0 and rules.empty_pool_refused and not ready.stateless:
            refusal = Refusal(
                f"{state.slots:,} slots at {ready.slots.count} a request and {tokens:,} KV tokens serve no request",
                stage="max_running_requests",
                rule="HC002",
                fix=more_room(args, state.slots, ready.slots.count, min(stage_tokens)),
            )
            refusal.outputs = _size_outputs(ready, sizing)
            from hybridcalc.engines.sglang.allocation import limit_lines

            refusal.outputs["log"] = limit_lines(_settled(ready, sizing), rules)
            del refusal.outputs["max_running_requests"]
            raise refusal
    except Refusal as refusal:
        if not refusal.outputs and state is not None:
            refusal.outputs = _state_outputs(ready, state)
        raise
    return sizing


def start(ready: Prepared, rest_gib: float) -> Sizing:
    """The sizing of a server that starts: `size`, and Refusal as well for pools that the last stage refuses."""
    sizing = size(ready, rest_gib)
    check_built(ready, sizing)
    return sizing


def allocation(ready: Prepared, sizing: Sizing) -> "Allocation":
    """Stage alloc: every tensor of the first stage. Raises Refusal with the figures and the lines printed so far."""
    check_built(ready, sizing)
    return _allocate(ready, sizing)


def check_built(ready: Prepared, sizing: Sizing) -> None:
    """Raise Refusal for pools that the engine refuses once they are sized, with what came before."""
    if ready.unbuildable is None:
        return
    refusal = ready.unbuildable.refusal()
    refusal.outputs = _size_outputs(ready, sizing)
    if ready.unbuildable.states_built:
        pools = _allocate(ready, sizing)
        refusal.outputs |= pools.outputs(kv=False)
        refusal.outputs["log"] = log_lines(ready, sizing, pools, kv=False)
    raise refusal


def _allocate(ready: Prepared, sizing: Sizing) -> "Allocation":
    from hybridcalc.engines.sglang.allocation import allocate

    return allocate(
        ready.model,
        ready.slot,
        ready.stages[0].state_layers,
        ready.cells[0],
        ready.args,
        ready.rules,
        slots=sizing.state.slots,
        tokens=sizing.tokens,
        requests=sizing.requests,
        context_length=ready.context_length,
        replay_active=ready.replay_active,
    )


def outputs(ready: Prepared, sizing: Sizing, pools: "Allocation") -> dict[str, Any]:
    """Every figure under the engine's own names, and the lines of the log."""
    return figures(ready, sizing, pools) | {"log": log_lines(ready, sizing, pools, kv=ready.rules.kv_line_recorded)}


def figures(ready: Prepared, sizing: Sizing, pools: "Allocation") -> dict[str, Any]:
    """Every figure under the engine's own names."""
    return ready_outputs(ready) | _size_outputs(ready, sizing) | pools.outputs()


def log_lines(ready: Prepared, sizing: Sizing, pools: "Allocation", *, kv: bool = True) -> list[str]:
    """The lines about pools that the engine will print, in its order."""
    from hybridcalc.engines.sglang.allocation import kv_lines, limit_lines, state_lines, window_lines

    settled = _settled(ready, sizing)
    lines = window_lines(settled) + limit_lines(settled, ready.rules)
    if not ready.stateless:
        lines += state_lines(ready.model, pools, settled, ready.args, ready.rules)
    return lines + (kv_lines(pools, settled) if kv else [])


def shape_outputs(model: Architecture, args: ServerArgs, slot: StateSlot, rules: RuleSet) -> dict[str, Any]:
    """What the stage "shapes" settles."""
    kda = family_rule(model).kimi_pool
    return {
        "arch": model.architecture,
        "is_kda": kda,
        "is_gdn": replayed(model) and not kda,
        "kda_config": kda,
        "mla": isinstance(model.attention, LatentKV),
        "conv_shape": [list(shape) for shape in slot.conv_shape],
        "temporal_shape": list(slot.temporal_shape),
        "conv_dtype": slot.conv_dtype,
        "ssm_dtype": slot.ssm_dtype,
        "linear_layers": slot.layers,
        "full_attn_layers": model.attention_layers + model.window_layers,  # as the engine counts them
        "bytes_per_slot": slot.bytes,
        "conv_bytes_per_slot": slot.conv_bytes,
        "ssm_bytes_per_slot": slot.ssm_bytes,
        "context_len": args.context_length or context_length(model),
        "ring_bytes_per_req": ring_bytes(model, slot, args, rules),
    }


def ready_outputs(ready: Prepared) -> dict[str, Any]:
    """What the stages up to "ratio" settle."""
    args, slot = ready.args, ready.slot
    found: dict[str, Any] = {"strategy": ready.choice.strategy, "overlap": ready.choice.overlap}
    if args.max_running_requests is None and args.speculative:
        found["max_running_requests_defaulted"] = request_limit(args)
    found |= ready.settled
    found["conv_shape"], found["temporal_shape"] = [list(shape) for shape in slot.conv_shape], list(slot.temporal_shape)
    found["S"] = ready.slots.count
    found["resolved_inputs"] = {
        "max_running_requests": request_limit(args),
        "overlap": ready.choice.overlap,
        "strategy": ready.choice.strategy,
        "ratio": args.memory_ratio,
    }
    return found


def _state_pool(ready: Prepared, rest_gib: float) -> StatePool:
    """Stage solve. Raises Refusal for an empty pool."""
    args, rules = ready.args, ready.rules
    if ready.stateless:
        return StatePool(0, 0, 0, rest_gib, int(rest_gib * GIB), "")
    if not rules.automatic_strategy:
        return solve_state_pool_early(rest_gib, ready.stage_slot_bytes, ready.slots.count, args, rules)
    return solve_state_pool(
        rest_gib,
        ready.stage_slot_bytes,
        ready.slots.count,
        args,
        rules,
        replay_active=ready.replay_active,
        rings=ready.rings,
    )


def _asked(ready: Prepared, tokens: int) -> tuple[int, int]:
    """Requests a worker is to run, and those of them that KV serves."""
    if not ready.rules.automatic_strategy:
        asked = requests_early(tokens, ready.context_length, ready.args, ready.rules)
        return asked, asked
    asked = asked_requests(tokens, ready.context_length, per_worker_limit(ready.args, ready.rules))
    return asked, min(asked, tokens // 2)


def _stage_tokens(ready: Prepared, cell: KvCell, kv_bytes: int) -> int:
    if cell.window_bytes and ready.limited_windows is not None:
        from hybridcalc.engines.sglang.windows import tokens_beside

        return tokens_beside(ready.limited_windows, cell, kv_bytes, ready.args)
    if cell.price:
        return kv_tokens(kv_bytes, cell.price, ready.args)
    if len(ready.cells) > 1 and any(other.price for other in ready.cells):
        return UNBOUNDED_TOKENS // ready.args.tokens_per_page * ready.args.tokens_per_page
    page = ready.args.tokens_per_page
    return (ready.args.max_total_tokens or ready.context_length) // page * page


def _settled(ready: Prepared, sizing: Sizing) -> "Settled":
    from hybridcalc.engines.sglang.allocation import Settled

    return Settled(
        slots=sizing.state.slots,
        slots_per_request=ready.slots.count,
        tokens=sizing.tokens,
        requests=sizing.requests,
        asked=sizing.asked,
        asked_by_user=request_limit(ready.args) is not None,
        kv_dtype=ready.cells[0].dtype,
        window_tokens=sizing.window_tokens,
    )


def _state_outputs(ready: Prepared, state: StatePool) -> dict[str, Any]:
    per_worker = per_worker_limit(ready.args, ready.rules)
    return {
        "solver_branch": state.branch,
        "max_mamba_cache_size": state.slots,
        "stage_bytes_per_slot": ready.stage_slot_bytes,
        "ring_fixed_bytes": 0 if per_worker is None else ready.rings.per_request * (per_worker + 1),
        "ring_bytes_per_slot": ready.rings.per_slot,
        "priced_state_bytes": state.charged_bytes,
        "priced_intermediate_bytes": state.draft_bytes,
        "rest_after_gib": state.rest_after_gib,
    }


def _size_outputs(ready: Prepared, sizing: Sizing) -> dict[str, Any]:
    prices = [cell.bytes for cell in ready.cells]
    found = _state_outputs(ready, sizing.state) | {
        "kv_available_bytes": sizing.state.kv_bytes,
        "cell_size": prices[0] if len(set(prices)) == 1 else prices,
        "max_total_num_tokens": sizing.tokens,
        "logical_token_capacity": sizing.tokens * (ready.args.dcp_size if sizing.window_tokens is None else 1),
        "max_running_requests": sizing.requests,
    }
    if len(ready.stages) > 1:
        found["tokens_per_stage"] = list(sizing.stage_tokens)
    if sizing.window_tokens is not None:
        found["full_max_total_num_tokens"] = sizing.tokens
        found["swa_max_total_num_tokens"] = sizing.window_tokens
    return found
