"""How did SGLang settle its flags and split its memory before there was an automatic strategy (0.5.9 to 0.5.13)?

    flags     auto is no_buffer, which turns the overlap scheduler off and, with drafts, the prefix cache; some classes
              have no prefix cache at all
    drafts    state * (limit // dp) * D comes off the rest first; or, once slots and drafts are solved together,
              state * min(limit // dp, K // S) * D after K
    K         --max-mamba-cache-size // dp; limit // dp without a prefix cache; else
              int(rest * r / (1 + r) * 2**30 // state), // (state * (1 + D / S)) with drafts solved together
    T         int((rest - K * state / 2**30) * 2**30) // cell, down to whole pages
    R         limit // dp and the estimate, or the estimate and T // 2 where no limit is set; then at most K // S

No slot pads the pool. Mirrors server_args.py _handle_mamba_radix_cache, model_executor/model_runner_kv_cache_mixin.py.
"""

from hybridcalc.architecture import Architecture
from hybridcalc.engines.sglang.config import ServerArgs
from hybridcalc.engines.sglang.pools import StatePool, asked_requests, request_limit
from hybridcalc.engines.sglang.releases import RuleSet
from hybridcalc.errors import Refusal
from hybridcalc.units import GIB


def settle_early(model: Architecture, args: ServerArgs, rules: RuleSet) -> ServerArgs:
    """The arguments as a class and no_buffer settle them; what they refuse is left as it is (refusals.py)."""
    if not args.radix_cache:
        return args
    if model.architecture in rules.prefix_cache_off_classes:
        return args.changed(disable_radix_cache=True)
    keeps = model.architecture in rules.extra_buffer_classes or model.architecture in rules.no_buffer_classes
    if model.architecture == "GraniteMoeHybridForCausalLM":
        keeps = model.state_layers > 0
    if not keeps or args.mamba_radix_cache_strategy not in ("auto", "no_buffer"):
        return args
    if rules.single_token_pages and args.tokens_per_page != 1:
        args = args.changed(page_size=1)
    if args.speculative:
        off = not rules.drafts_need_buffers or args.platform == "hip"
        return args.changed(disable_radix_cache=True) if off else args
    if args.attention_backend == "trtllm_mha":
        return args.changed(disable_radix_cache=True, disable_overlap_schedule=False)
    return args.changed(disable_overlap_schedule=True)


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
