"""Which flags would serve the workload better on vLLM, and by how much?

Each candidate is a change of arguments, planned exactly, with max_num_seqs at what then fits. It is worth saying when
more requests of the workload run at once. Effects are predictions of the engine's own arithmetic, from and to.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from hybridcalc.deployment import requests_text
from hybridcalc.engines.vllm.backends import DEFAULT_BLOCK
from hybridcalc.engines.vllm.config import EngineArgs
from hybridcalc.engines.vllm.families import family_rule
from hybridcalc.engines.vllm.figures import Figures, running
from hybridcalc.engines.vllm.planner import prepare, size
from hybridcalc.engines.vllm.prefix import finest_reuse, prefix_reuse
from hybridcalc.errors import HybridcalcError
from hybridcalc.steps import Suggestion
from hybridcalc.units import GIB, MOST_SLOTS

MOST = 8
SHARE_STEP, LARGEST_SHARE = 0.02, 0.96
"""How far a share of memory is raised in one go, and where graphs and activations are left too little."""


class Change(NamedTuple):
    """A candidate: the flags as they are typed, the fields they set, and why one would."""

    flags: str
    fields: Mapping[str, Any]
    why: str


def suggest(plan: Figures) -> tuple[Suggestion, ...]:
    """Suggestions for a plan's workload, the most gain first; none without a length."""
    if plan.workload.mean_length is None:
        return ()
    today, found, helpful = plan.concurrency, list[Suggestion](), list[tuple[int, Change]]()
    if plan.binding == "limit":
        found.append(
            _suggestion(plan, f"--max-num-seqs {plan.running.fits}", plan.running.fits, "the blocks hold more")
        )
    best = max(today, plan.running.fits)
    for change in _candidates(plan):
        served = serves(plan, replace(plan.args, **change.fields))
        if served is not None and served > best:
            found.append(_suggestion(plan, _with_seqs(plan, change.flags, served), served, change.why))
            helpful.append((served, change))
    found += _together(plan, [change for _, change in sorted(helpful, key=lambda pair: -pair[0])])
    found += _larger_share(plan, best)
    ranked = sorted(found, key=lambda suggestion: -suggestion.gain)[:MOST]
    return (*ranked, *_prefix_unit(plan))


def serves(plan: Figures, args: EngineArgs, *, more_gib: float = 0.0) -> int | None:
    """Requests of the workload that ``args`` run, max_num_seqs raised to what fits; None where the engine refuses."""
    available = int((plan.rest.likely_gib + more_gib) * GIB)
    try:
        ready = prepare(plan.model, replace(args, max_num_seqs=1))
        sizing = size(ready, available)
        fits = running(ready._replace(args=replace(ready.args, max_num_seqs=MOST_SLOTS)), sizing, plan.workload).fits
    except HybridcalcError:
        return None
    too_long = plan.workload.longest > sizing.length
    return None if too_long or not fits else min(fits, MOST_SLOTS)


def _candidates(plan: Figures) -> Iterator[Change]:
    """Changes that may admit more requests, each with its own reason."""
    args, ready = plan.args, plan.ready
    obeyed = ready.state and (not family_rule(plan.model).kernel_dtypes or ready.kind.state_dtype_obeyed)
    if obeyed and ready.state[-1].dtype == "float32" and args.mamba_ssm_cache_dtype != "bfloat16":
        yield Change(
            "--mamba-ssm-cache-dtype bfloat16",
            {"mamba_ssm_cache_dtype": "bfloat16"},
            "halves the temporal state, and the page with it; check accuracy first",
        )
    if args.kv_cache_dtype == "auto" and ready.kv_bytes:
        yield Change("--kv-cache-dtype fp8", {"kv_cache_dtype": "fp8"}, "halves the KV of a token")
    if ready.prefix_caching and ready.state and not plan.workload.shared_prefix:
        yield Change(
            "--no-enable-prefix-caching",
            {"enable_prefix_caching": False},
            f"one block of states a group, not {ready.held.checkpoints + 2}; nothing is reused",
        )
    if ready.mode == "all":
        yield Change(
            "--mamba-cache-mode align", {"mamba_cache_mode": "align"}, "two states a group, not one for every block"
        )
    if args.block_size is not None and ready.backend is not None:
        least = max(DEFAULT_BLOCK, ready.backend.kernel_block)
        why = "the block is as long as a state needs and no longer"
        yield Change(f"--block-size {least}", {"block_size": least}, why)


def _together(plan: Figures, changes: list[Change]) -> list[Suggestion]:
    """As many of the changes as help on top of one another, the strongest first."""
    taken, args, best = list[Change](), plan.args, 0
    for change in changes:
        served = serves(plan, replace(args, **change.fields))
        if served is not None and served > best:
            taken, args, best = [*taken, change], replace(args, **change.fields), served
    if len(taken) < 2:
        return []
    why = f"{len(taken)} changes together, each of which helps alone; check accuracy first"
    return [_suggestion(plan, _with_seqs(plan, " ".join(change.flags for change in taken), best), best, why)]


def _larger_share(plan: Figures, best: int) -> list[Suggestion]:
    """A little more of the GPU, where it is known what the share is taken of."""
    total, share = plan.rest.before_gib, plan.args.gpu_memory_utilization
    if total is None or share + SHARE_STEP > LARGEST_SHARE:
        return []
    larger = round(share + SHARE_STEP, 4)
    served = serves(plan, replace(plan.args, gpu_memory_utilization=larger), more_gib=(larger - share) * total)
    if served is None or served <= best:
        return []
    flags = _with_seqs(plan, f"--gpu-memory-utilization {larger:g}", served)
    return [_suggestion(plan, flags, served, f"{(1 - larger) * total:.2f} GiB of the GPU stay free")]


def _prefix_unit(plan: Figures) -> list[Suggestion]:
    """A finer unit for hits, where the workload shares a prefix and the engine can match inside a block."""
    shared, private = plan.workload.shared_prefix, plan.workload.private
    if not shared:
        return []
    today = prefix_reuse(plan.ready, plan.sizing, shared, private)
    best = finest_reuse(plan.ready, plan.sizing, shared, private)
    if best.reused <= today.reused:
        return []
    effect = f"{today.reused:,} -> {best.reused:,} of {shared + private:,} tokens reused"
    return [Suggestion(f"--prefix-match-unit {best.unit}", effect, "hits may land between blocks")]


def _with_seqs(plan: Figures, flags: str, served: int) -> str:
    """``flags`` with the max_num_seqs that lets ``served`` run, where today's would not."""
    return flags if served <= plan.args.seqs else f"{flags} --max-num-seqs {served}"


def _suggestion(plan: Figures, flags: str, served: int, why: str) -> Suggestion:
    effect = f"{plan.concurrency:,} -> {requests_text(served)} of {plan.workload.describe()}"
    return Suggestion(flags, effect, why, float(served - plan.concurrency))
