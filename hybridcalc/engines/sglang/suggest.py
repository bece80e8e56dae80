"""Which flags would serve the workload better, and by how much?

Each candidate is a change of arguments, planned exactly, at the ratio that balances its pools. It is worth saying when
more requests of the workload run at once. Effects are predictions of the engine's own solver, from and to.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from fractions import Fraction
from typing import Any, NamedTuple

from hybridcalc.architecture.attention import LatentKV
from hybridcalc.deployment import requests_text
from hybridcalc.engines.sglang.config import ServerArgs
from hybridcalc.engines.sglang.constants import draft_states
from hybridcalc.engines.sglang.figures import Figures
from hybridcalc.engines.sglang.kv import kv_dtype
from hybridcalc.engines.sglang.planner import Prepared, prepare, size
from hybridcalc.engines.sglang.pools import limit_is_slots
from hybridcalc.engines.sglang.settings import Evaluate, Setting, balance_ratio, by_model, most_served
from hybridcalc.engines.sglang.strategy import replayssm_active
from hybridcalc.engines.sglang.unified import unified_requests
from hybridcalc.errors import HybridcalcError
from hybridcalc.formulas.balance import balanced_ratio
from hybridcalc.formulas.replayssm import smallest_ring
from hybridcalc.formulas.slots import pin
from hybridcalc.steps import Suggestion
from hybridcalc.units import GIB, MOST_SLOTS

MOST = 8
FRACTION_STEP, LARGEST_FRACTION = 0.02, 0.95
"""How far a fraction is raised in one go, and where activations are left too little."""


class Change(NamedTuple):
    """A candidate: the flags as they are typed, the fields they set, and why one would."""

    flags: str
    fields: Mapping[str, Any]
    why: str


def suggest(plan: Figures) -> tuple[Suggestion, ...]:
    """Suggestions for a plan's workload, the most gain first; none without a length."""
    if plan.workload.mean_length is None:
        return ()
    today, found = plan.concurrency, list[Suggestion]()
    even = plan.balanced
    if even is not None and even.running > today:
        why = "the request limit is what binds" if plan.binding == "limit" else "both pools run out together"
        found.append(_suggestion(plan, even.flags, even, why))
        found += _pinned(plan, even)
    best = max(today, even.running if even is not None else 0)
    changes = list[tuple[int, Change]]()
    for change in _candidates(plan):
        setting = balanced(plan, replace(plan.args, **change.fields))
        if setting is not None and setting.running > best:
            found.append(_suggestion(plan, f"{change.flags} {setting.flags}", setting, change.why))
            changes.append((setting.running, change))
    found += _together(plan, [change for _, change in sorted(changes, key=lambda pair: -pair[0])])
    found += _unified(plan)
    found += _larger_fraction(plan, best)
    ranked = _ranked(found)[:MOST]
    return tuple(_ranked([*ranked, *(s for s in _for_kind(plan) if s.flags not in {r.flags for r in ranked})]))


def _ranked(found: list[Suggestion]) -> list[Suggestion]:
    return sorted(found, key=lambda suggestion: -suggestion.gain)


def balanced(plan: Figures, args: ServerArgs, *, more_gib: float = 0.0) -> Setting | None:
    """What ``args`` come to at the ratio that balances them; None where the engine refuses.

    Where K is given or the request limit binds or is K, no ratio helps: then at the K, and the limit, that admit the
    most. None as well where one pool is bounded by a token limit: there every slot more makes it larger.
    """
    if args.enable_unified_memory and args.max_total_tokens is not None:
        return None
    length, rest_gib = plan.workload.mean_length or Fraction(1), plan.rest.likely_gib + more_gib
    evaluate = by_model(plan.model, rest_gib, length)
    try:
        ready = prepare(plan.model, args)
        if ready.unbuildable is not None:
            return None
        if plan.binding == "limit" or args.max_mamba_cache_size is not None or limit_is_slots(args):
            return _most(plan, args, evaluate, ready, rest_gib)
        drafts, _ = draft_states(args, active=ready.replay_active)
        guess = balanced_ratio(
            ready.stage_slot_bytes + ready.rings.per_slot,
            max(1, *(cell.bytes for cell in ready.cells)),
            slots_per_request=ready.slots.count,
            length_tokens=length,
            draft_states=drafts,
            dcp=args.dcp_size,
        )
        return balance_ratio(evaluate, args, guess)
    except HybridcalcError:
        return None


def _most(plan: Figures, args: ServerArgs, evaluate: Evaluate, ready: Prepared, rest_gib: float) -> Setting | None:
    """The most requests that a pinned K admits, the request limit raised with it where that binds today; None where no
    more than today run.
    """
    dp, per_request, raised = args.attn_dp_size, ready.slots.count, plan.binding == "limit"

    def serve(requests: int) -> Setting:
        slots, limit = dp * requests * per_request, dp * requests if raised else args.max_running_requests
        flags = f"--max-mamba-cache-size {slots}" + (f" --max-running-requests {limit}" if raised else "")
        return evaluate("set", flags, replace(args, max_mamba_cache_size=slots, max_running_requests=limit))

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
    if args.radix_cache and not args.skip_decode_lock and plan.ready.choice.strategy.startswith("extra_buffer"):
        name = "SGLANG_OPT_MAMBA_SKIP_DECODE_LOCK"
        yield Change(f"{name}=1", {"env": {**args.env, name: "1"}}, "decoding holds one slot less a request")
    if plan.ready.slot.ssm_dtype == "float32" and plan.ready.slot.ssm_bytes:
        yield Change(
            "--mamba-ssm-dtype bfloat16",
            {"mamba_ssm_dtype": "bfloat16"},
            "halves the temporal state; check accuracy first",
        )
    if kv_dtype(model, args) in ("bfloat16", "float16"):
        yield Change("--kv-cache-dtype fp8_e4m3", {"kv_cache_dtype": "fp8_e4m3"}, "halves the KV of a token")
    if args.speculative and not plan.ready.replay_active:
        ring = max(16, smallest_ring(args.most_draft_tokens))
        fields: dict[str, Any] = {"enable_linear_replayssm_spec": True, "linear_replayssm_cache_len": ring}
        if replayssm_active(model, replace(args, **fields), plan.ready.rules):
            yield Change(
                f"--enable-linear-replayssm-spec --linear-replayssm-cache-len {ring}",
                fields,
                "verification replays its inputs and keeps no draft states",
            )
    if isinstance(model.attention, LatentKV) and args.dcp_size == 1 and args.attn_tp_size > 1:
        ranks = args.attn_tp_size
        yield Change(f"--dcp-size {ranks}", {"dcp_size": ranks}, "MLA rows are no longer whole on every rank")


def _together(plan: Figures, changes: list[Change]) -> list[Suggestion]:
    """As many of the changes as help on top of one another, the strongest first."""
    taken, args, best = list[Change](), plan.args, None
    for change in changes:
        more = replace(args, **change.fields)
        setting = balanced(plan, more)
        if setting is not None and (best is None or setting.running > best.running):
            taken, args, best = [*taken, change], more, setting
    if best is None or len(taken) < 2:
        return []
    flags = sorted((change.flags for change in taken), key=lambda flags: flags.startswith("-"))  # variables in front
    why = f"{len(taken)} changes together, each of which helps alone; check accuracy first"
    return [_suggestion(plan, " ".join([*flags, best.flags]), best, why)]


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
            setting = evaluate("or", f"--max-mamba-cache-size {slots}", replace(plan.args, max_mamba_cache_size=slots))
        except HybridcalcError:
            continue
        if setting.running >= even.running:
            return [
                _suggestion(
                    plan, setting.flags, setting, f"pins {even.running:,} x {plan.slots_per_request} {spare_text}"
                )
            ]
    return []


def _unified(plan: Figures) -> list[Suggestion]:
    """One pool for both, whose split floats."""
    args, length = replace(plan.args, enable_unified_memory=True), plan.workload.mean_length or Fraction(1)
    if not plan.ready.rules.unified_memory or plan.args.enable_unified_memory:
        return []
    if len(plan.ready.stages) > 1 or plan.sizing.state.draft_bytes:
        return []
    if not plan.ready.cells[0].bytes or length > plan.ready.context_length or args.max_total_tokens is not None:
        return []
    try:
        ready = prepare(plan.model, args)
        sizing = size(ready, plan.rest.likely_gib)
    except HybridcalcError:
        return []
    held = min(sizing.requests, unified_requests(ready, sizing, length))
    if held <= plan.concurrency:
        return []
    effect = f"{plan.concurrency:,} -> {requests_text(held)} of {plan.workload.describe()}"
    why = "one pool for both: KV takes the memory of idle slots as it needs it"
    return [Suggestion("--enable-unified-memory", effect, why, float(held - plan.concurrency))]


def _larger_fraction(plan: Figures, best: int) -> list[Suggestion]:
    """A little more of the memory for the pools, where it is known what the fraction is taken of."""
    before, fraction = plan.rest.before_gib, plan.args.mem_fraction_static
    if before is None or fraction is None or fraction + FRACTION_STEP > LARGEST_FRACTION:
        return []
    larger = round(fraction + FRACTION_STEP, 4)
    setting = balanced(plan, replace(plan.args, mem_fraction_static=larger), more_gib=(larger - fraction) * before)
    if setting is None or setting.running <= best:
        return []
    why = f"{(1 - larger) * before:.2f} GiB are left for activations and graphs, of {(1 - fraction) * before:.2f}"
    return [_suggestion(plan, f"--mem-fraction-static {larger:g} {setting.flags}", setting, why)]


def _suggestion(plan: Figures, flags: str, setting: Setting, why: str) -> Suggestion:
    effect = f"{plan.concurrency:,} -> {requests_text(setting.running)} of {plan.workload.describe()}"
    return Suggestion(flags, effect, why, float(setting.running - plan.concurrency))


def _for_kind(plan: Figures) -> list[Suggestion]:
    """What the kind of work asks for beside the pools."""
    page, args = plan.args.tokens_per_page, plan.args
    if plan.workload.kind in ("long", "agent") and not args.radix_cache:
        return []  # no prefix is kept, so none is tracked
    if plan.workload.kind == "long":
        interval = _whole_pages(1024, page)
        if (args.mamba_track_interval, args.mamba_max_states_per_path) == (interval, 4):
            return []
        flags = f"--mamba-track-interval {interval} --mamba-max-states-per-path 4"
        effect = f"a snapshot every {interval:,} tokens, four states a path at most"
        return [Suggestion(flags, effect, "long documents are reread from few depths: more snapshots fill the pool")]
    if plan.workload.kind == "agent":
        interval = _whole_pages(max(64, args.draft_tokens), page)
        if interval >= args.mamba_track_interval:
            return []
        effect = f"at most {interval:,} tokens are recomputed at the next turn"
        why = "short turns end soon after a snapshot was due: a shorter interval keeps their tails"
        return [Suggestion(f"--mamba-track-interval {interval}", effect, why)]
    if plan.workload.kind == "batch":
        changed, flags = replace(args, disable_radix_cache=True), "--disable-radix-cache"
        return _kind_setting(plan, changed, flags, "requests that share no prefix need one slot each")
    if plan.workload.kind == "small":
        changed = replace(args, mamba_ssm_dtype="bfloat16", kv_cache_dtype="fp8_e4m3")
        flags = "--mamba-ssm-dtype bfloat16 --kv-cache-dtype fp8_e4m3"
        return _kind_setting(plan, changed, flags, "small cards: halve both caches together; check accuracy first")
    return []


def _kind_setting(plan: Figures, args: ServerArgs, flags: str, why: str) -> list[Suggestion]:
    setting = balanced(plan, args)
    if setting is None or setting.running <= plan.concurrency or args == plan.args:
        return []
    return [_suggestion(plan, f"{flags} {setting.flags}", setting, why)]


def _whole_pages(tokens: int, page: int) -> int:
    return -(-tokens // page) * page
