"""What may be varied of an SGLang server to make a model fit: its ranks, how states are kept, dtypes; and the ratio of
its pools that then admits the most.

And what one combination of a sweep comes to: points that only differ in ratio, K, limits, memory or length share all
that does not depend on them.
"""

from collections.abc import Iterator
from fractions import Fraction

from hybridcalc.architecture import Architecture, LatentKV
from hybridcalc.deployment import Rest, Workload
from hybridcalc.engines.better import Change
from hybridcalc.engines.sglang import ServerArgs
from hybridcalc.engines.sglang.figures import even_ratio
from hybridcalc.engines.sglang.kv import kv_dtype
from hybridcalc.engines.sglang.planner import CHEAP_FIELDS, Prepared, prepare, start
from hybridcalc.engines.sglang.settings import balance_ratio, binding_limit, by_model, most_served, settle
from hybridcalc.engines.sglang.strategy import with_defaults
from hybridcalc.engines.shapes import (
    ACCURACY,
    AS_IT_IS,
    CONTEXT,
    REUSE,
    Axes,
    Fitting,
    Nodes,
    Shape,
    has_experts,
    stages_of,
)
from hybridcalc.engines.sweep import Outcome, Sweeping
from hybridcalc.errors import Refusal
from hybridcalc.formulas import pin
from hybridcalc.units import GIB, MOST_SLOTS


def _shapes(model: Architecture, ranks: int, most_tp: int) -> Iterator[Shape]:
    """Tensor-parallel ranks in stages; experts cut or shared out whole; attention shared by all ranks, by none, or each
    sequence's rows.
    """
    experts, latent = has_experts(model), isinstance(model.attention, LatentKV)
    for stages in stages_of(ranks):
        tp, over = divmod(ranks, stages)
        if over or not 0 < tp <= most_tp:
            continue
        risk = "latency" if stages > 1 else "none"
        for ep in (1, tp) if experts and tp > 1 else (1,):
            fields = {"tp_size": tp, "pp_size": stages, "ep_size": ep}
            yield Shape(fields, ranks, risk=risk)
            if tp == 1:
                continue
            if experts and stages == 1:
                spread = {**fields, "dp_size": tp, "enable_dp_attention": True}
                yield Shape(spread, ranks, workers=tp, copied=False)
            if latent:
                yield Shape({**fields, "dcp_size": tp}, ranks, risk="latency")


def _axes(model: Architecture, args: ServerArgs, allowed: frozenset[str]) -> Axes:
    """How states are kept for prefixes, the lock of decoding, and dtypes."""
    ready = prepare(model, args)
    axes = list(_of_states(ready, allowed)) if ready.stage_slot_bytes else []
    if ACCURACY in allowed and kv_dtype(model, args) in ("bfloat16", "float16"):
        halved = Change("--kv-cache-dtype fp8_e4m3", {"kv_cache_dtype": "fp8_e4m3"}, "halves the KV", "accuracy")
        axes.append((AS_IT_IS, halved))
    return tuple(axes)


def _of_states(ready: Prepared, allowed: frozenset[str]) -> Axes:
    """The settings of a model that has states."""
    kept = [AS_IT_IS]
    for strategy, why, risk in (
        ("extra_buffer", "states are tracked beside those that run", "none"),
        ("extra_buffer_lazy", "one tracking slot less a request", "none"),
        ("no_buffer", "no tracking slots; the overlap scheduler is off", "latency"),
    ):
        if strategy != ready.choice.strategy:
            fields = {"mamba_radix_cache_strategy": strategy}
            kept.append(Change(f"--mamba-radix-cache-strategy {strategy}", fields, why, risk))
    if REUSE in allowed:
        off = {"disable_radix_cache": True}
        kept.append(Change("--disable-radix-cache", off, "one slot a request; no prefix is reused", "latency"))
    lock = [AS_IT_IS]
    if ready.rules.decode_lock_skip:
        name = "SGLANG_OPT_MAMBA_SKIP_DECODE_LOCK"
        lock.append(Change(f"{name}=1", {"env": {name: "1"}}, "decoding holds one slot less a request"))
    axes = [tuple(kept), tuple(lock)]
    if ACCURACY in allowed:
        state = {"mamba_ssm_dtype": "bfloat16"}
        if ready.slot.ssm_dtype == "float32" and ready.slot.ssm_bytes:
            halved = Change("--mamba-ssm-dtype bfloat16", state, "halves the temporal state", "accuracy")
            axes.append((AS_IT_IS, halved))
        int8 = {"enable_int8_mamba_checkpoint": True}
        kept8 = Change("--enable-int8-mamba-checkpoint", int8, "keeps states of prefixes in int8", "accuracy")
        axes.append((AS_IT_IS, kept8))
    return tuple(axes)


def _started(args: ServerArgs, workload: Workload) -> ServerArgs:
    return args


def _leanest(args: ServerArgs) -> ServerArgs:
    """Of what is tuned, the request limit alone moves the memory: decode graphs are captured for no more requests than
    it allows (`fraction.by_memory`), the reserve grows with their number, and the fraction falls with the reserve.
    """
    return args.changed(max_running_requests=1)


def _request_bytes(model: Architecture, args: ServerArgs, workload: Workload) -> Fraction:
    """Slots with their rings, and KV rows, on a rank of the heaviest stages: K slots of a worker hold K / S requests,
    T tokens T / L, and K slots and T tokens are no more than the memory left.
    """
    ready = prepare(model, args)
    _check(model, ready, workload)
    length = workload.mean_length or Fraction(1)
    slots = ready.slots.count * (ready.stage_slot_bytes + ready.rings.per_slot)
    return slots + Fraction(max(cell.bytes for cell in ready.cells), args.dcp_size) * length


def _check(model: Architecture, ready: Prepared, workload: Workload) -> None:
    """Raise Refusal for requests beyond the context, and for tensors that cannot be made."""
    if workload.longest > ready.context_length:
        raise Refusal(
            f"{workload.longest:,} tokens are beyond the context of {model.name}, {ready.context_length:,}",
            stage=CONTEXT,
            rule="",
        )
    if ready.unbuildable is not None:
        raise ready.unbuildable.refusal()


def _tuned(
    model: Architecture, args: ServerArgs, rest: Rest, workload: Workload, limit: int | None = None
) -> ServerArgs:
    """The ratio that admits the most requests on the likely memory; where the request limit binds, slots and a limit
    that admit more; where more would run than may, a limit that says so.
    """
    length, ready = workload.mean_length or Fraction(1), prepare(model, args)
    _check(model, ready, workload)
    if not any(cell.bytes for cell in ready.cells):
        return _without_kv(args, ready, rest, workload, limit)
    tuned = _admitting(model, args, ready, rest.likely_gib, length)
    if limit is None:
        return tuned
    most = rest.high_gib if args.radix_cache else rest.likely_gib  # without a radix cache a limit is a number of slots
    running = by_model(model, most, length)("", "", tuned).running
    return tuned if running <= limit else tuned.changed(max_running_requests=args.attn_dp_size * limit)


def _without_kv(args: ServerArgs, ready: Prepared, rest: Rest, workload: Workload, limit: int | None) -> ServerArgs:
    """States alone: all the memory but a slot for those, and as many tokens, which take none, as their requests
    hold.
    """
    slots = int(rest.low_gib * GIB) // ready.stage_slot_bytes - 2
    requests = min(slots // ready.slots.count, limit or MOST_SLOTS)
    if requests < 1:
        raise Refusal(f"{rest.low_gib:.2f} GiB hold no request's states for certain", stage="solve", rule="HC001")
    dp, page = args.attn_dp_size, args.tokens_per_page
    return args.changed(
        max_mamba_cache_size=dp * requests * ready.slots.count,
        max_running_requests=dp * requests,
        max_total_tokens=(requests * workload.longest // page + 1) * page,
    )


def _admitting(model: Architecture, args: ServerArgs, ready: Prepared, gib: float, length: Fraction) -> ServerArgs:
    """The arguments that admit the most requests."""
    evaluate = by_model(model, gib, length)
    if not ready.stage_slot_bytes:  # KV alone, and no ratio
        whole = evaluate("", "", args)
        limited = whole.binding == "limit"
        return args.changed(max_running_requests=args.attn_dp_size * whole.requests) if limited else args
    setting, found = balance_ratio(evaluate, args, even_ratio(ready, length)), args
    ratio = float(setting.flags.rpartition(" ")[2])
    found = args.changed(mamba_full_memory_ratio=ratio)
    if setting.binding != "limit":
        return found
    dp, per_request = args.attn_dp_size, ready.slots.count

    def pinned(requests: int) -> ServerArgs:
        slots = pin(dp * requests, per_request, dp=dp)
        return args.changed(max_mamba_cache_size=slots, max_running_requests=dp * requests)

    high = int(gib * GIB) // max(1, per_request * ready.stage_slot_bytes) + 1
    most = most_served(
        lambda requests: evaluate("set", "", pinned(requests)),
        setting.running,
        min(high, MOST_SLOTS // (dp * (per_request + 1))),
    )
    return found if most is None else pinned(most.running)


NODES = Nodes(("--nnodes", "{nodes}", "--node-rank", "{rank}", "--dist-init-addr", "{head}:20000"), outer="pp_size")
"""As docs.sglang.io has it (references/multi_node_deployment), for every node alike; whole pipeline stages stand on a
node, or whole nodes share one (SGLang entrypoints/engine.py _calculate_rank_ranges).
"""
FITTING = Fitting(_shapes, _axes, _started, _tuned, _request_bytes, _leanest, "dp_size", NODES)


def _solve(shared: Prepared, args: ServerArgs, gib: float, work: Workload) -> Outcome:
    """Slots, tokens of sequences and requests. Raises Refusal for what does not start."""
    ready = shared._replace(args=with_defaults(shared.model, args, shared.rules), given=args)
    sizing = start(ready, gib)
    slots, tokens = sizing.state.slots, sizing.tokens * args.dcp_size
    length = work.mean_length
    if length is None:
        binding = binding_limit(slots, tokens, ready.slots.count, sizing.requests)
        return Outcome(slots, tokens, sizing.requests, binding)
    if work.longest > ready.context_length:
        return Outcome(slots, tokens, 0, "context")
    setting = settle("", "", ready, sizing, length)
    return Outcome(slots, tokens, setting.running, setting.binding)


SWEEPING = Sweeping(prepare, _solve, CHEAP_FIELDS, ("max_mamba_cache_size", "logical_token_capacity"), "slots")
