"""How does SGLang split the memory that is left: K state slots, T KV tokens, R requests?

    rest      memory left after weights and slack, GiB, a float as the engine holds it
    P         bytes of a slot on the heaviest pipeline stage; S slots a request; D draft tokens; r the ratio
    explicit  K = X // dp                                   --max-mamba-cache-size X
    no radix  K = M // dp                                   radix cache off and a request limit M
    ratio     B = rest * r / (1 + r) * 2**30
              K = int((B - F - (P + x)) // (P + x))                                 one slot pads the pool
              K = int((B - P * (1 + D) - x) // (P * (1 + D / S) + x))               with draft states reserved
    charge    (K + 1) * (P + x) + F, drafts P * (min(m, K // S) + 1) * D          F, x: ReplaySSM rings
    T         int(rest after both * 2**30) // cell, down to whole pages; R = min(limit, T // 2, K // S)

Floats are kept where the engine keeps them and in its order, since its int() truncates them.
Mirrors mem_cache/kv_cache_configurator.py _handle_max_mamba_cache (0.5.23; 0.5.16 does not charge the padding slot).
Leaves out: pipeline stages, disaggregation, sliding-window pools, unified memory.
"""

from typing import NamedTuple

from hybridcalc.engines.sglang.config import RuleSet, ServerArgs
from hybridcalc.errors import IllegalCombination
from hybridcalc.units import GIB

SPECULATIVE_REQUEST_LIMIT = 48
"""max_running_requests the engine sets when speculation is on and none is given."""


class Rings(NamedTuple):
    """ReplaySSM bytes the solver charges: ``per_slot`` with every slot, ``per_request`` for the running ones."""

    per_slot: int = 0
    per_request: int = 0


class StatePool(NamedTuple):
    """K and what it costs, per worker. ``kv_bytes`` is what is left for KV."""

    slots: int
    charged_bytes: int
    draft_bytes: int
    rest_after_gib: float
    kv_bytes: int


class Pools(NamedTuple):
    """Both pools of one worker: slots, tokens of one rank, and requests each admits."""

    state: StatePool
    tokens: int
    running_requests: int


def request_limit(args: ServerArgs) -> int | None:
    """max_running_requests as given, or the engine's own limit under speculation."""
    if args.max_running_requests is None and args.speculative:
        return SPECULATIVE_REQUEST_LIMIT
    return args.max_running_requests


def solve_state_pool(
    rest_gib: float,
    slot_bytes: int,
    slots_per_request: int,
    args: ServerArgs,
    rules: RuleSet,
    *,
    replay_active: bool = False,
    rings: Rings | None = None,
) -> StatePool:
    """K and the memory left for KV. Raises IllegalCombination when nothing is left for either pool."""
    rings = rings or Rings()
    limit = request_limit(args)
    per_worker = _per_worker(limit, args, rules)
    reserved = args.draft_tokens if args.speculative and not replay_active else 0
    fixed_ring = rings.per_request * (per_worker + 1) if per_worker is not None else 0
    each = slot_bytes + rings.per_slot
    if args.max_mamba_cache_size is not None:
        slots = args.max_mamba_cache_size // args.attn_dp_size
    elif args.disable_radix_cache and per_worker is not None:
        slots = per_worker
    else:
        slots = _by_ratio(rest_gib, slot_bytes, slots_per_request, reserved, each, fixed_ring, args, rules)
    drafts = _draft_state_bytes(slots, slot_bytes, slots_per_request, reserved, per_worker, args, rules)
    if slots <= 0:
        raise IllegalCombination(
            f"no room for a single state slot: {rest_gib:.2f} GiB give {slots} slots of {slot_bytes:,} B",
            fix="raise --mem-fraction-static or --mamba-full-memory-ratio, or use more GPUs",
        )
    charged = (slots + 1) * each + fixed_ring if rules.padding_slot_charged else slots * slot_bytes
    rest_after = rest_gib - drafts / GIB if reserved else rest_gib
    rest_after -= charged / GIB
    if rest_after <= 0:
        raise IllegalCombination(
            f"{slots} state slots take {charged + drafts:,} B of {rest_gib:.2f} GiB and leave nothing for KV",
            fix="lower --max-mamba-cache-size or --mamba-full-memory-ratio",
        )
    return StatePool(slots, charged, drafts, rest_after, int(rest_after * GIB))


def kv_tokens(kv_bytes: int, cell_bytes: int, args: ServerArgs) -> int:
    """T, tokens one rank holds: whole pages of what fits, and no more than --max-total-tokens."""
    page = args.tokens_per_page
    tokens = kv_bytes // cell_bytes // page * page
    if args.max_total_tokens is not None:
        tokens = min(tokens, args.max_total_tokens) // page * page
    return tokens


def solve_pools(
    rest_gib: float, slot_bytes: int, slots_per_request: int, cell_bytes: int, context_length: int,
    args: ServerArgs, rules: RuleSet, *, replay_active: bool = False, rings: Rings | None = None,
) -> Pools:  # fmt: skip
    """Both pools and the running requests they admit."""
    state = solve_state_pool(
        rest_gib, slot_bytes, slots_per_request, args, rules, replay_active=replay_active, rings=rings
    )
    tokens = kv_tokens(state.kv_bytes, cell_bytes, args)
    if tokens <= 0:
        raise IllegalCombination(
            f"{state.kv_bytes:,} B hold no page of {args.tokens_per_page} tokens",
            fix="raise --mem-fraction-static, or lower the share of the state pool",
        )
    estimate = min(max(int(tokens / context_length * 512), 2048), 4096)
    limit = request_limit(args)
    asked = estimate if limit is None else _per_worker(limit, args, rules) or 0
    return Pools(state, tokens, min(asked, tokens // 2, state.slots // slots_per_request))


def _per_worker(limit: int | None, args: ServerArgs, rules: RuleSet) -> int | None:
    """m: the request limit of one attention worker, never below one since 0.5.23."""
    if limit is None:
        return None
    share = limit // args.attn_dp_size
    return max(1, share) if rules.padding_slot_charged else share


def _by_ratio(
    rest_gib: float, slot_bytes: int, slots_per_request: int, reserved: int, each: int, fixed_ring: int,
    args: ServerArgs, rules: RuleSet,
) -> int:  # fmt: skip
    ratio = args.mamba_full_memory_ratio
    budget = rest_gib * ratio / (1 + ratio) * GIB
    extra = each - slot_bytes
    if not rules.padding_slot_charged:
        return int(budget // (slot_bytes * (1 + reserved / slots_per_request)) if reserved else budget // slot_bytes)
    if reserved:
        first = budget - slot_bytes * (1 + reserved) - extra
        return int(first // (slot_bytes * (1 + reserved / slots_per_request) + extra))
    return int((budget - fixed_ring - each) // each)


def _draft_state_bytes(
    slots: int, slot_bytes: int, slots_per_request: int, reserved: int, per_worker: int | None,
    args: ServerArgs, rules: RuleSet,
) -> int:  # fmt: skip
    """Bytes of draft states charged: one set for each request that can run, and one that pads."""
    if not reserved:
        return 0
    without_radix = args.max_mamba_cache_size is None and args.disable_radix_cache and per_worker is not None
    requests = slots if without_radix else slots // slots_per_request
    if per_worker is not None and not without_radix:
        requests = min(per_worker, requests)
    return slot_bytes * (requests + (1 if rules.padding_slot_charged else 0)) * reserved
