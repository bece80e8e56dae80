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

Before there was an automatic strategy (0.5.9 to 0.5.13; the functions ``_early``) no slot pads the pool:

    drafts    P * (M // dp) * D comes off the rest first; or, once slots and drafts are solved together,
              P * min(M // dp, K // S) * D after K
    K         X // dp; M // dp without a prefix cache; else
              int(rest * r / (1 + r) * 2**30 // P), // (P * (1 + D / S)) with drafts solved together
    T         int((rest - K * P / 2**30) * 2**30) // cell, down to whole pages
    R         M // dp and the estimate, or the estimate and T // 2 where no limit is set; then at most K // S

--enable-linear-replayssm-spec takes effect on KDA models and on the GDN models of Qwen and Jet; elsewhere it is inert
and draft states are kept as if it were not there. KDA rings come with every state slot, GDN rings with every running
request; 0.5.16 prices none.

Floats are kept where the engine keeps them and in its order, since its int() truncates them.
Mirrors mem_cache/kv_cache_configurator.py _handle_max_mamba_cache (0.5.23; 0.5.16 does not charge the padding slot),
model_executor/model_runner_kv_cache_mixin.py, memory_pool.py. Leaves out: what the pools really take (allocation.py),
and unified memory.
"""

from typing import Any, NamedTuple

from hybridcalc.architecture import Architecture
from hybridcalc.engines.sglang import DEFAULT_RATIO, ServerArgs
from hybridcalc.engines.sglang.releases import RuleSet, rules_for
from hybridcalc.engines.sglang.served import check_model
from hybridcalc.engines.sglang.sizes import (
    StateSlot,
    family_rule,
    keeps_drafts,
    replayed,
    replayssm_active,
    state_ranks,
    state_slot,
)
from hybridcalc.errors import InputError, Refusal, Write
from hybridcalc.formulas import Ring, pin, replay_rings, ring_length_problem
from hybridcalc.units import GIB, format_bytes

SPECULATIVE_REQUEST_LIMIT = 48
"""max_running_requests the engine sets when speculation is on and none is given."""


class Rings(NamedTuple):
    """ReplaySSM bytes the solver charges: ``per_slot`` with every slot, ``per_request`` for the running ones."""

    per_slot: int = 0
    per_request: int = 0


class StatePool(NamedTuple):
    """K and what it costs, per worker. ``kv_bytes`` is what is left for KV; ``branch`` how K was found."""

    slots: int
    charged_bytes: int
    draft_bytes: int
    rest_after_gib: float
    kv_bytes: int
    branch: str


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


def limit_is_slots(args: ServerArgs) -> bool:
    """Whether K is the request limit itself, and no ratio has an effect: without a radix cache, where one is set."""
    return not args.radix_cache and request_limit(args) is not None and args.max_mamba_cache_size is None


def check_rings(rings: Rings, per_worker: int | None) -> None:
    """Raise Refusal for rings of running requests where none are limited."""
    if rings.per_request and per_worker is None:
        raise Refusal(
            "ReplaySSM verification without speculation sizes its rings by a request limit, and none is given",
            stage="solve",
            rule="HC006",
            fix="add --max-running-requests, or drop --enable-linear-replayssm-spec",
        )


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
    """K and the memory left for KV. Raises Refusal when not a slot fits."""
    rings = rings or Rings()
    per_worker = per_worker_limit(args, rules)
    reserved = args.draft_tokens if keeps_drafts(args, rules) and not replay_active else 0
    check_rings(rings, per_worker)
    fixed_ring = rings.per_request * (per_worker + 1) if per_worker is not None else 0
    each = slot_bytes + rings.per_slot
    if args.max_mamba_cache_size is not None:
        branch, slots = "per_dp_shard", args.max_mamba_cache_size // args.attn_dp_size
    elif not args.radix_cache and per_worker is not None:
        branch, slots = "from_max_running_requests", per_worker
    else:
        branch = "memory_budget_spec" if reserved else "memory_budget"
        slots = _by_ratio(rest_gib, slot_bytes, slots_per_request, reserved, each, fixed_ring, args, rules)
    if slots <= 0:
        memory = f"{_memory(rest_gib, slot_bytes)} give"
        if rest_gib < 0:
            memory = f"weights and what is kept take {-rest_gib:.2f} GiB more than there is, which gives"
        raise Refusal(
            f"no room for a state slot: {memory} {slots:,} slots of {slot_bytes:,} B",
            stage="solve",
            rule="HC001",
            fix=more_room(args, 0, slots_per_request, 0)
            if rest_gib > 0
            else "raise --mem-fraction-static, use more GPUs, or load a smaller checkpoint",
        )
    requests = slots if branch == "from_max_running_requests" else slots // slots_per_request
    if per_worker is not None:
        requests = min(per_worker, requests)
    padding = 1 if rules.padding_slot_charged else 0
    drafts = slot_bytes * (requests + padding) * reserved
    charged = (slots + 1) * each + fixed_ring if rules.padding_slot_charged else slots * slot_bytes
    rest_after = rest_gib - drafts / GIB if reserved else rest_gib
    rest_after -= charged / GIB
    return StatePool(slots, charged, drafts, rest_after, int(rest_after * GIB), f"mamba_pool.{branch}")


def _memory(rest_gib: float, slot_bytes: int) -> str:
    """The memory in words: one that the engine's two decimals would round away is named."""
    if not 0 < rest_gib * GIB < slot_bytes:
        return f"{rest_gib:.2f} GiB"
    return f"{format_bytes(int(rest_gib * GIB))}, less than one, by the engine's own arithmetic"


def more_room(args: ServerArgs, slots: int, slots_per_request: int, tokens: int) -> str:
    """What makes room for a request where its slots or tokens are too few: the flag that leaves none, where one is
    typed. ``tokens``: those that the memory holds.
    """
    if slots >= slots_per_request:
        return _more_tokens(args, tokens)
    if args.max_mamba_cache_size is not None:
        return Write("--max-mamba-cache-size", pin(args.attn_dp_size, slots_per_request, dp=args.attn_dp_size))
    if args.mamba_full_memory_ratio is not None and args.mamba_full_memory_ratio < DEFAULT_RATIO:
        return "raise --mamba-full-memory-ratio, or leave it out"
    return "raise --mem-fraction-static or --mamba-full-memory-ratio, or use more GPUs"


def _more_tokens(args: ServerArgs, tokens: int) -> str:
    if args.max_total_tokens is not None and tokens > args.max_total_tokens:
        return "raise --max-total-tokens, or leave it out"
    return "raise --mem-fraction-static, or lower the share of the state pool"


def check_left_over(pool: StatePool, rest_gib: float) -> None:
    """Raise Refusal when a state pool leaves nothing for KV."""
    if pool.rest_after_gib <= 0:
        taken = pool.charged_bytes + pool.draft_bytes
        raise Refusal(
            f"{pool.slots:,} state slots take {taken:,} B of {rest_gib:.2f} GiB and leave nothing for KV",
            stage="solve",
            rule="HC001",
            fix="lower --max-mamba-cache-size or --mamba-full-memory-ratio",
        )


def kv_tokens(kv_bytes: int, cell_bytes: int | float, args: ServerArgs) -> int:
    """T, tokens one rank holds: whole pages of what fits. Unit: tokens."""
    page = args.tokens_per_page
    return int(kv_bytes // cell_bytes) // page * page


def capped_tokens(tokens: int, args: ServerArgs) -> int:
    """T under --max-total-tokens, again in whole pages. Raises Refusal when not a page is left."""
    page, uncapped = args.tokens_per_page, tokens
    if args.max_total_tokens is not None:
        tokens = min(tokens, args.max_total_tokens) // page * page
    if tokens <= 0:
        raise Refusal(
            f"the KV pool holds no page of {page} tokens",
            stage="tokens",
            rule="HC001",
            fix=_more_tokens(args, uncapped),
        )
    return tokens


def running_requests(tokens: int, slots: int, slots_per_request: int, context_length: int, limit: int | None) -> int:
    """R: the request limit, or the engine's estimate, under what KV (two tokens a request) and slots admit."""
    return min(asked_requests(tokens, context_length, limit), tokens // 2, slots // slots_per_request)


def asked_requests(tokens: int, context_length: int, limit: int | None) -> int:
    """The request limit of a worker, or the engine's estimate where none is set: 2,048 to 4,096 by the KV's size."""
    return min(max(int(tokens / context_length * 512), 2048), 4096) if limit is None else limit


def solve_pools(
    rest_gib: float,
    slot_bytes: int,
    slots_per_request: int,
    cell_bytes: int | float,
    context_length: int,
    args: ServerArgs,
    rules: RuleSet,
    *,
    replay_active: bool = False,
    rings: Rings | None = None,
) -> Pools:
    """Both pools of a single stage and the running requests they admit."""
    state = solve_state_pool(
        rest_gib, slot_bytes, slots_per_request, args, rules, replay_active=replay_active, rings=rings
    )
    check_left_over(state, rest_gib)
    tokens = capped_tokens(kv_tokens(state.kv_bytes, cell_bytes, args), args)
    limit = per_worker_limit(args, rules)
    return Pools(state, tokens, running_requests(tokens, state.slots, slots_per_request, context_length, limit))


def per_worker_limit(args: ServerArgs, rules: RuleSet) -> int | None:
    """m: the request limit of one attention worker."""
    limit = request_limit(args)
    if limit is None:
        return None
    share = limit // args.attn_dp_size
    return max(1, share) if rules.worker_limit_at_least_one else share


def _by_ratio(
    rest_gib: float,
    slot_bytes: int,
    slots_per_request: int,
    reserved: int,
    each: int,
    fixed_ring: int,
    args: ServerArgs,
    rules: RuleSet,
) -> int:
    ratio = args.memory_ratio
    budget = rest_gib * ratio / (1 + ratio) * GIB
    extra = each - slot_bytes
    if not rules.padding_slot_charged:
        return int(budget // (slot_bytes * (1 + reserved / slots_per_request)) if reserved else budget // slot_bytes)
    if reserved:
        first = budget - slot_bytes * (1 + reserved) - extra
        return int(first // (slot_bytes * (1 + reserved / slots_per_request) + extra))
    return int((budget - fixed_ring - each) // each)


def solve_state_pool_early(
    rest_gib: float, slot_bytes: int, slots_per_request: int, args: ServerArgs, rules: RuleSet
) -> StatePool:
    """K and the memory left for KV. Raises Refusal for an empty pool in the releases that refuse one."""
    per_worker, drafts = _per_worker(args), args.draft_tokens
    taken = 0
    if drafts and not rules.drafts_solved_with_slots:
        taken = slot_bytes * (per_worker or 0) * drafts
        rest_gib -= taken / GIB
    if args.max_mamba_cache_size is not None:
        branch, slots = "per_dp_shard", args.max_mamba_cache_size // args.attn_dp_size
    elif not args.radix_cache and per_worker is not None:
        branch, slots = "from_max_running_requests", per_worker
    else:
        branch = "memory_budget_spec" if drafts else "memory_budget"
        each: float = slot_bytes
        if drafts and rules.drafts_solved_with_slots:
            each = slot_bytes * (1 + drafts / slots_per_request)
        slots = int(rest_gib * args.memory_ratio / (1 + args.memory_ratio) * GIB // each)
    if drafts and rules.drafts_solved_with_slots:
        requests = slots if branch == "from_max_running_requests" else slots // slots_per_request
        taken = slot_bytes * min(per_worker or 0, requests) * drafts
        rest_gib -= taken / GIB
    if slots <= 0 and rules.empty_pool_refused:
        raise Refusal(
            f"no room for a state slot: {rest_gib:.2f} GiB give {slots:,} slots of {slot_bytes:,} B",
            stage="solve",
            rule="HC001",
            fix="raise --mem-fraction-static or --mamba-full-memory-ratio, or use more GPUs",
        )
    rest_gib -= slots * slot_bytes / GIB
    return StatePool(slots, slots * slot_bytes, taken, rest_gib, int(rest_gib * GIB), f"mamba_pool.{branch}")


def requests_early(tokens: int, context_length: int, args: ServerArgs, rules: RuleSet) -> int:
    """Requests that a worker asks slots for."""
    limit = request_limit(args)
    if not rules.limit_shared_out:
        asked = asked_requests(tokens, context_length, limit)
        return min(asked, (limit or 0) // args.dp_size) if args.speculative and args.enable_dp_attention else asked
    estimate = asked_requests(tokens, context_length, None)
    return min(estimate, tokens // 2) if limit is None else min(limit // args.dp_size, estimate)


def _per_worker(args: ServerArgs) -> int | None:
    limit = request_limit(args)
    return None if limit is None else limit // args.attn_dp_size


def decode_rings(model: Architecture, slot: StateSlot, args: ServerArgs, *, slots: int) -> tuple[Ring, ...]:
    """Rings of ReplaySSM decoding: d and k in the SSM dtype, g in float32 and per channel for KDA."""
    rings = replayssm_rings(model, slot._replace(conv_dtype=slot.ssm_dtype), args, slots=slots) or ()
    return tuple(ring for ring in rings if ring.name in ("d", "k", "g"))


def ring_bytes(model: Architecture, slot: StateSlot, args: ServerArgs, rules: RuleSet) -> int | None:
    """Ring bytes of one slot over all layers, active or not; None where there is no state to replay."""
    rings = replayssm_rings(model, slot, args, slots=1, window=rules.rings_of_drafts)
    return None if rings is None else sum(ring.bytes for ring in rings)


def rings_per_slot(model: Architecture, rules: RuleSet) -> bool:
    """Whether verification keeps rings with every slot, and not with the running requests alone."""
    return family_rule(model).kimi_pool or rules.rings_of_drafts


def ring_length(model: Architecture, args: ServerArgs, rules: RuleSet) -> int:
    """Steps a ring of verification keeps: as given, or the most drafts."""
    if rules.rings_of_drafts and not family_rule(model).kimi_pool and args.most_draft_tokens:
        return args.most_draft_tokens
    return args.linear_replayssm_cache_len


def charged_rings(model: Architecture, slot: StateSlot, args: ServerArgs, rules: RuleSet) -> Rings:
    """Ring bytes over all layers that the solver takes off the state pool; none where ReplaySSM is not active."""
    rings = verification_rings(model, slot, args, rules, slots=1) if replayssm_active(model, args, rules) else None
    if rings is None:
        return Rings()
    size = sum(ring.bytes for ring in rings)
    return Rings(per_slot=size) if rings_per_slot(model, rules) else Rings(per_request=size)


def ring_problem(model: Architecture, cache_len: int, draft_tokens: int) -> str:
    """Why the engine would refuse this ring length, empty when it would not: only KDA pools check it (0.5.23)."""
    return ring_length_problem(cache_len, draft_tokens) if family_rule(model).kimi_pool else ""


def verification_rings(
    model: Architecture, slot: StateSlot, args: ServerArgs, rules: RuleSet, *, slots: int
) -> tuple[Ring, ...] | None:
    """Rings of verification in a release, for ``slots`` slots; None where there is nothing to replay."""
    length = ring_length(model, args, rules)
    return replayssm_rings(model, slot, args, slots=slots, length=length, window=rules.rings_of_drafts)


def replayssm_rings(
    model: Architecture,
    slot: StateSlot,
    args: ServerArgs,
    *,
    slots: int,
    length: int | None = None,
    window: bool = False,
) -> tuple[Ring, ...] | None:
    """Rings of ``slots`` slots, ``length`` steps long (as given where it is None); None without a temporal state to
    replay, as for Inkling.

    The pool of KDA keeps the inputs of its steps; every other family takes the form of GDN, a ``window`` of inputs in
    the releases that had one, with its temporal shape as (Hv, dv, dk) and ceil(groups / ranks) key heads.
    """
    if model.state is None or model.architecture.startswith("Inkling"):
        return None
    heads, value_dim, key_dim = slot.temporal_shape
    rule = family_rule(model)
    return replay_rings(
        "inputs" if rule.kimi_pool else "window" if window else "pairs",
        layers=slot.layers,
        slots=slots,
        v_heads=heads,
        v_head_dim=value_dim,
        k_heads=-(-rule.key_heads(model.state) // state_ranks(model, args)),
        k_head_dim=key_dim,
        cache_len=args.linear_replayssm_cache_len if length is None else length,
        conv_dtype=slot.conv_dtype,
    )


def rings_answer(model: Architecture, args: ServerArgs, slots: int, draft_tokens: int) -> dict[str, Any]:
    """The keys of ``replayssm --json``: every ring of ``slots`` slots, and whether the ring length is legal.

    Raises Refusal for a class that the release lacks, InputError for a model with nothing to replay.
    """
    rules, _ = rules_for(args.engine_version)
    check_model(rules, model.architecture)
    rings = verification_rings(model, state_slot(model, args), args, rules, slots=slots)
    if rings is None:
        raise InputError(f"{model.name} keeps no temporal state: there is nothing to replay")
    if not replayed(model):
        rings = ()  # the flag is inert there
    total = sum(ring.bytes for ring in rings)
    problem = ring_problem(model, args.linear_replayssm_cache_len, draft_tokens)
    return {
        "model": model.name,
        "family": model.family,
        "cache_len": args.linear_replayssm_cache_len,
        "draft_tokens": draft_tokens or None,
        "slots": slots,
        "buffers": [{"name": r.name, "shape": list(r.shape), "dtype": r.dtype, "bytes": r.bytes} for r in rings],
        "total_bytes": total,
        "ring_bytes_per_slot": total // slots,
        "legal": not problem,
        "reason": problem or _why_legal(model, args, draft_tokens),
    }


def _why_legal(model: Architecture, args: ServerArgs, draft_tokens: int) -> str:
    if family_rule(model).kimi_pool:
        enough = f" and at least 2 x {draft_tokens}" if draft_tokens else "; give D to check that it is at least 2 x D"
        return f"{args.linear_replayssm_cache_len} is a power of two{enough}"
    if replayed(model):
        return "the engine checks the ring length for KDA models only"
    return f"--enable-linear-replayssm-spec has no effect on {model.architecture}: no ring is allocated"
