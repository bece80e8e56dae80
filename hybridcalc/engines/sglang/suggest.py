"""Which flags would serve the workload better, and by how much?

Each candidate is a change of arguments, planned exactly, at the ratio that balances its pools. It is worth saying when
more requests of the workload run at once. Effects are predictions of the engine's own solver, from and to.
"""

from collections.abc import Iterator
from fractions import Fraction
from typing import Any

from hybridcalc.architecture import LatentKV
from hybridcalc.deployment import Rest
from hybridcalc.engines.better import Change, Served, better, larger_share, most_gain, reaching, suggestion
from hybridcalc.engines.sglang import ServerArgs
from hybridcalc.engines.sglang.figures import Figures, even_ratio
from hybridcalc.engines.sglang.kv import kv_dtype
from hybridcalc.engines.sglang.planner import Prepared, prepare, start
from hybridcalc.engines.sglang.pools import limit_is_slots
from hybridcalc.engines.sglang.settings import Evaluate, Setting, balance_ratio, by_model, most_served, unified_requests
from hybridcalc.engines.sglang.sizes import replayssm_active
from hybridcalc.errors import HybridcalcError
from hybridcalc.findings import Suggestion, safest_first
from hybridcalc.formulas import pin, smallest_ring
from hybridcalc.units import GIB, MOST_SLOTS, rounded_up

LARGEST_FRACTION = 0.95
"""Where activations are left too little."""
LIMIT = "--max-running-requests"
SHORT = ("HC001", "HC002")
"""Rules that refuse what has too little memory."""


def share_of(args: ServerArgs, rest: Rest | None) -> tuple[str, float | None, float]:
    """The argument that sets the share of the memory, what it is today, and its largest value that is advised."""
    return "mem_fraction_static", args.mem_fraction_static or (rest and rest.fraction), LARGEST_FRACTION


def suggest(plan: Figures) -> tuple[Suggestion, ...]:
    """Suggestions for a plan's workload, the safest first; none without a length, and for one beyond the context."""
    if plan.workload.mean_length is None or plan.too_long:
        return ()

    def serve(args: ServerArgs, *, more_gib: float = 0.0) -> Served | None:
        setting = balanced(plan, args, more_gib=more_gib)
        return None if setting is None else _served(setting)

    def why(larger: float, before: float) -> str:
        today = plan.args.mem_fraction_static or plan.rest.fraction or 0.0
        return f"{(1 - larger) * before:.2f} GiB are left for activations and graphs, of {(1 - today) * before:.2f}"

    found, even = list[Suggestion](), balanced(plan, plan.args) if plan.ready.stateless else plan.balanced
    if even is not None and even.running > plan.concurrency:
        limited = plan.binding == "limit"
        reason = "the request limit is what binds" if limited else "both pools run out together"
        found = [suggestion(plan, "", _served(even), reason), *_pinned(plan, even)]
    best = max(plan.concurrency, even.running if even is not None else 0)
    found += better(plan, _candidates(plan), serve, best)
    found += _unified(plan)
    found += larger_share(plan, *share_of(plan.args, plan.rest), serve, best, why)
    most = most_gain(found)
    most += reaching(plan, _candidates(plan), serve, most)
    return safest_first([*most, *(s for s in _for_kind(plan) if s.flags not in {r.flags for r in most})])


def _served(setting: Setting) -> Served:
    return Served(setting.running, setting.flags)


def balanced(plan: Figures, args: ServerArgs, *, more_gib: float = 0.0) -> Setting | None:
    """What ``args`` come to at their best split (``_split``); where the engine's own limit under speculation then binds
    and more are wanted, with the limit that lets the most of these run.
    """
    found, dp = _split(plan, args, more_gib), args.attn_dp_size
    wanted = -(-(plan.workload.wanted or 0) // plan.workers)
    own = args.speculative and args.max_running_requests is None
    if not own or found is None or found.running != found.limit or found.running >= wanted or LIMIT in found.flags:
        return found

    def serve(requests: int) -> Setting:
        limit = requests * dp
        setting = _split(plan, args.changed(max_running_requests=limit), more_gib) or found
        return setting._replace(flags=f"{setting.flags} {LIMIT} {limit}".strip())

    return most_served(serve, found.running, wanted + 1) or found


def _split(plan: Figures, args: ServerArgs, more_gib: float) -> Setting | None:
    """What ``args`` come to at the ratio that balances them; None where the engine refuses.

    Where K is given or the request limit binds or is K, no ratio helps: then at the K, and the limit, that admit the
    most. None as well where one pool is bounded by a token limit: there every slot more makes it larger.
    """
    if args.enable_unified_memory and args.max_total_tokens is not None:
        return None
    if plan.ready.stateless:
        return _as_it_is(plan, args, more_gib)
    length = plan.workload.mean_length or Fraction(1)
    evaluate = by_model(plan.model, lambda changed: plan.rest.left_gib(changed, more_gib), length)
    try:
        ready = prepare(plan.model, args)
        if ready.unbuildable is not None:
            return None
        if plan.binding == "limit" or args.max_mamba_cache_size is not None or limit_is_slots(args):
            return _most(plan, args, evaluate, ready, plan.rest.left_gib(args, more_gib))
        guess = even_ratio(ready, length)
        return balance_ratio(evaluate, args, guess)
    except HybridcalcError:
        return None


def _as_it_is(plan: Figures, args: ServerArgs, more_gib: float) -> Setting | None:
    """What ``args`` come to where no layer keeps a state and nothing is balanced; None where they are refused."""
    length = plan.workload.mean_length or Fraction(1)
    try:
        return by_model(plan.model, lambda changed: plan.rest.left_gib(changed, more_gib), length)("", "", args)
    except HybridcalcError:
        return None


def _most(plan: Figures, args: ServerArgs, evaluate: Evaluate, ready: Prepared, rest_gib: float) -> Setting | None:
    """The most requests that a pinned K admits, the request limit raised with it where that binds today; None where no
    more than today run.
    """
    dp, per_request, raised = args.attn_dp_size, ready.slots.count, plan.binding == "limit"

    def serve(requests: int) -> Setting:
        slots, limit = pin(dp * requests, per_request, dp=dp), dp * requests if raised else args.max_running_requests
        flags = f"--max-mamba-cache-size {slots}" + (f" {LIMIT} {limit}" if raised else "")
        return evaluate("set", flags, args.changed(max_mamba_cache_size=slots, max_running_requests=limit))

    high = int(rest_gib * GIB) // max(1, per_request * ready.stage_slot_bytes) + 1
    return most_served(serve, plan.concurrency, min(high, MOST_SLOTS // (dp * (per_request + 1))))


def _candidates(plan: Figures) -> Iterator[Change]:
    """Changes that may admit more requests, each with its own reason."""
    args, model = plan.args, plan.model
    if (
        plan.ready.choice.strategy == "extra_buffer"
        and plan.ready.choice.overlap
        and args.disaggregation_mode == "null"
    ):
        lazy = {"mamba_radix_cache_strategy": "extra_buffer_lazy"}
        yield Change("--mamba-radix-cache-strategy extra_buffer_lazy", lazy, "one tracking slot less a request")
    skips = plan.ready.rules.decode_lock_skip and not args.skip_decode_lock
    if plan.ready.args.radix_cache and skips and plan.ready.choice.strategy.startswith("extra_buffer"):
        name = "SGLANG_OPT_MAMBA_SKIP_DECODE_LOCK"
        yield Change(f"{name}=1", {"env": {**args.env, name: "1"}}, "decoding holds one slot less a request")
    if plan.ready.slot.ssm_dtype == "float32" and plan.ready.slot.ssm_bytes:
        yield Change(
            "--mamba-ssm-dtype bfloat16", {"mamba_ssm_dtype": "bfloat16"}, "halves the temporal state", "accuracy"
        )
    if kv_dtype(model, args) in ("bfloat16", "float16"):
        yield Change(
            "--kv-cache-dtype fp8_e4m3", {"kv_cache_dtype": "fp8_e4m3"}, "halves the KV of a token", "accuracy"
        )
    if args.speculative and not plan.ready.replay_active:
        ring = max(16, smallest_ring(args.most_draft_tokens))
        fields: dict[str, Any] = {"enable_linear_replayssm_spec": True, "linear_replayssm_cache_len": ring}
        if replayssm_active(model, args.changed(**fields), plan.ready.rules):
            yield Change(
                f"--enable-linear-replayssm-spec --linear-replayssm-cache-len {ring}",
                fields,
                "verification replays its inputs and keeps no draft states",
                "latency",
            )
    if isinstance(model.attention, LatentKV) and args.dcp_size == 1 and args.attn_tp_size > 1:
        ranks = args.attn_tp_size
        yield Change(
            f"--dcp-size {ranks}", {"dcp_size": ranks}, "MLA rows are no longer whole on every rank", "latency"
        )


def _pinned(plan: Figures, even: Setting) -> list[Suggestion]:
    """The same by an explicit K, which no later change of memory moves."""
    if not even.flags.startswith("--mamba-full-memory-ratio"):
        return []
    dp, length = plan.args.attn_dp_size, plan.workload.mean_length or Fraction(1)
    evaluate = by_model(plan.model, plan.rest.likely_gib, length)
    spare = pin(dp * even.running, plan.slots_per_request, dp=dp)
    exact = dp * even.running * plan.slots_per_request
    for slots, spare_text in ((spare, "+ 1 slots"), (exact, "slots, none of which is spare")):
        try:
            setting = evaluate("or", f"--max-mamba-cache-size {slots}", plan.args.changed(max_mamba_cache_size=slots))
        except HybridcalcError:
            continue
        if setting.running >= even.running:
            why = f"pins {even.running:,} x {plan.slots_per_request} {spare_text}"
            return [suggestion(plan, "", _served(setting), why)]
    return []


def _unified(plan: Figures) -> list[Suggestion]:
    """One pool for both, whose split floats."""
    args, length = plan.args.changed(enable_unified_memory=True), plan.workload.mean_length or Fraction(1)
    if not plan.ready.rules.unified_memory or plan.args.enable_unified_memory or plan.ready.stateless:
        return []
    if len(plan.ready.stages) > 1 or plan.sizing.state.draft_bytes:
        return []
    if not plan.ready.cells[0].bytes or length > plan.ready.context_length or args.max_total_tokens is not None:
        return []
    try:
        ready = prepare(plan.model, args)
        sizing = start(ready, plan.rest.left_gib(args))
    except HybridcalcError:
        return []
    held = min(sizing.requests, unified_requests(ready, sizing, length))
    if held <= plan.concurrency:
        return []
    why = "one pool for both: KV takes the memory of idle slots as it needs it"
    return [suggestion(plan, "--enable-unified-memory", Served(held), why)]


def _for_kind(plan: Figures) -> list[Suggestion]:
    """What the kind of work asks for beside the pools."""
    page, args = plan.ready.args.tokens_per_page, plan.args
    if plan.workload.kind in ("long", "agent") and (plan.ready.stateless or not plan.ready.args.radix_cache):
        return []  # no state of a prefix is kept, so none is tracked
    if plan.workload.kind == "long":
        interval = rounded_up(1024, page)
        if (args.mamba_track_interval, args.mamba_max_states_per_path) == (interval, 4):
            return []
        flags = f"--mamba-track-interval {interval} --mamba-max-states-per-path 4"
        effect = f"a snapshot every {interval:,} tokens, four states a path at most"
        why = "long documents are reread from few depths: more snapshots fill the pool"
        return [Suggestion(flags, plan.requests, plan.requests, effect, why)]
    if plan.workload.kind == "agent":
        interval = rounded_up(max(64, args.draft_tokens), page)
        if interval >= args.mamba_track_interval:
            return []
        effect = f"at most {interval:,} tokens are recomputed at the next turn"
        why = "short turns end soon after a snapshot was due: a shorter interval keeps their tails"
        return [Suggestion(f"--mamba-track-interval {interval}", plan.requests, plan.requests, effect, why)]
    if plan.workload.kind == "batch":
        changed, flags = args.changed(disable_radix_cache=True), "--disable-radix-cache"
        return _kind_setting(plan, changed, flags, "requests that share no prefix need one slot each", "latency")
    if plan.workload.kind == "small":
        changed = args.changed(mamba_ssm_dtype="bfloat16", kv_cache_dtype="fp8_e4m3")
        flags = "--mamba-ssm-dtype bfloat16 --kv-cache-dtype fp8_e4m3"
        why = "small cards: halve both caches together; check accuracy first"
        return _kind_setting(plan, changed, flags, why, "accuracy")
    return []


def _kind_setting(plan: Figures, args: ServerArgs, flags: str, why: str, risk: str) -> list[Suggestion]:
    setting = balanced(plan, args)
    if setting is None or setting.running <= plan.concurrency or args == plan.args:
        return []
    return [suggestion(plan, flags, _served(setting), why, risk)]
