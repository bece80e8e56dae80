"""Which flags would serve the workload better on vLLM, by how much, and how much of a shared prefix is reused?

Each candidate is a change of arguments, planned exactly, with max_num_seqs at what then fits. It is worth saying when
more requests of the workload run at once. Effects are predictions of the engine's own arithmetic, from and to.

    reused = floor(min(N, N + M - 1) / unit) x unit, one unit less where drafts need the block before
    unit   = the block, or prefix_match_unit where hits may land between blocks (align, 0.26 on)

N: shared tokens, M: private ones. A hit ends where every group has something to continue from: whole attention blocks
and a state. With sparse retention the first request keeps the state at its own end only; the second one computes the
shared part again and leaves the state at the junction, so that the third is served. Source: vLLM
v1/core/kv_cache_utils.py, kv_cache_coordinator.py, single_type_kv_cache_manager.py (0.33.0).
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, NamedTuple

from hybridcalc.deployment import Rest
from hybridcalc.engines.better import Change, Served, better, larger_share, most_gain, reaching, suggestion
from hybridcalc.engines.vllm import EngineArgs
from hybridcalc.engines.vllm.configuration import context_parallel_sizes
from hybridcalc.engines.vllm.families import family_rule
from hybridcalc.engines.vllm.figures import Figures, running
from hybridcalc.engines.vllm.layers import DEFAULT_BLOCK
from hybridcalc.engines.vllm.planner import Prepared, Sizing, prepare, size
from hybridcalc.errors import HybridcalcError
from hybridcalc.findings import Suggestion, safest_first
from hybridcalc.formulas import divisors, reused_tokens
from hybridcalc.units import GIB, MOST_SLOTS

BLOCK_DROPPERS = ("mtp", "eagle", "eagle3")
SMALLEST_UNIT = 16
"""Tokens of the shortest unit that is suggested: an unpadded block of attention."""


class PrefixReuse(NamedTuple):
    """Tokens of a request that come from the cache and that are computed, and the unit in which hits land."""

    shared: int
    private: int
    unit: int
    reused: int
    why: str

    @property
    def computed(self) -> int:
        """Tokens that are computed."""
        return self.shared + self.private - self.reused

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        return {
            "shared_tokens": self.shared,
            "private_tokens": self.private,
            "unit_tokens": self.unit,
            "reused_tokens": self.reused,
            "computed_tokens": self.computed,
            "why": self.why,
        }


def prefix_reuse(ready: Prepared, sizing: Sizing, shared: int, private: int) -> PrefixReuse:
    """What a request of ``shared`` + ``private`` tokens reuses once requests like it have been served."""
    unit = sizing.hit_tokens
    if not ready.prefix_caching:
        return PrefixReuse(shared, private, unit, 0, "prefix caching is off")
    reused = reused_tokens(min(shared, shared + private - 1), unit)
    method = ready.args.speculative_method or ""
    dropped = unit if any(method.endswith(name) for name in BLOCK_DROPPERS) else 0
    reused = max(0, reused - dropped)
    if not reused:
        return PrefixReuse(shared, private, unit, 0, f"a hit needs {unit + dropped:,} shared tokens")
    why = f"{reused // unit:,} x {unit:,} tokens"
    sparse = ready.rules.sparse_retention and ready.args.prefix_cache_retention_interval == 0
    if sparse and any(group.recurrent for group in ready.groups):
        why += ", from the third request on: the second leaves the state where the prefix ends"
    return PrefixReuse(shared, private, unit, reused, why)


def finest_reuse(ready: Prepared, sizing: Sizing, shared: int, private: int) -> PrefixReuse:
    """The most that any --prefix-match-unit reuses, by the longest unit that does; today's where none reuses more."""
    best = prefix_reuse(ready, sizing, shared, private)
    if not ready.prefix_caching or ready.mode != "align" or not ready.rules.fine_hits:
        return best
    block = ready.pages.block
    for unit in (n for n in divisors(block) if n % SMALLEST_UNIT == 0):
        try:
            finer = prepare(ready.model, replace(ready.args, prefix_match_unit=unit))
            reuse = prefix_reuse(finer, size(finer, sizing.available_bytes), shared, private)
        except HybridcalcError:
            continue
        if reuse.reused > best.reused or (reuse.reused == best.reused > 0 and best.unit < reuse.unit < block):
            best = reuse
    return best


LARGEST_SHARE = 0.96
"""Where graphs and activations are left too little."""
SHORT = ("HC040",)
"""Rules that refuse what has too little memory."""


def share_of(args: EngineArgs, rest: Rest | None) -> tuple[str, float | None, float]:
    """The argument that sets the share of the memory, what it is today, and its largest value that is advised."""
    return "gpu_memory_utilization", args.utilization, LARGEST_SHARE


def suggest(plan: Figures) -> tuple[Suggestion, ...]:
    """Suggestions for a plan's workload, the safest first; none without a length."""
    if plan.workload.mean_length is None:
        return ()

    def serve(args: EngineArgs, *, more_gib: float = 0.0) -> Served | None:
        requests = serves(plan, args, more_gib=more_gib)
        return None if requests is None else _served(plan, requests)

    found, best = list[Suggestion](), plan.concurrency
    if plan.binding == "limit":
        raised = serve(plan.args)
        if raised is not None and raised.requests > best:
            found.append(suggestion(plan, "", raised, "the blocks hold more"))
            best = raised.requests
    found += better(plan, _candidates(plan), serve, best)
    found += larger_share(
        plan,
        *share_of(plan.args, plan.rest),
        serve,
        best,
        lambda larger, whole: f"{(1 - larger) * whole:.2f} GiB of the GPU stay free",
    )
    found = most_gain(found)
    return safest_first([*found, *reaching(plan, _candidates(plan), serve, found), *_prefix_unit(plan)])


def _served(plan: Figures, requests: int) -> Served:
    """With the flags that let so many run, where today's would not."""
    return Served(requests, "" if requests <= plan.args.seqs else plan.args.seqs_flags(requests))


def serves(plan: Figures, args: EngineArgs, *, more_gib: float = 0.0) -> int | None:
    """Requests of the workload that ``args`` run, max_num_seqs raised to what fits; None where the engine refuses.

    Each sequence more takes some of the memory, so that the blocks hold fewer: the most is sought that still fit.
    """

    def fit(ready: Prepared, limit: int) -> int:
        left = plan.rest.left_gib(args.of_seqs(limit), more_gib)
        sizing = size(ready, int(left * GIB))
        if plan.workload.longest > sizing.length:
            return 0
        raised = ready._replace(args=ready.args.changed(max_num_seqs=MOST_SLOTS))
        return min(running(raised, sizing, plan.workload).fits, MOST_SLOTS)

    try:
        ready, today = prepare(plan.model, args.changed(max_num_seqs=1)), args.seqs
        fits = fit(ready, today)
        if fits <= today or plan.rest.again is None:
            return fits or None
        low, high = today, fits + 1
        while low + 1 < high:
            middle = (low + high) // 2
            low, high = (middle, high) if fit(ready, middle) >= middle else (low, middle)
    except HybridcalcError:
        return None
    return low


def _candidates(plan: Figures) -> Iterator[Change]:
    """Changes that may admit more requests, each with its own reason."""
    args, ready = plan.args, plan.ready
    obeyed = ready.state and (not family_rule(plan.model).kernel_dtypes or ready.kind.state_dtype_obeyed)
    if obeyed and ready.state[-1].dtype == "float32" and args.mamba_ssm_cache_dtype != "bfloat16":
        yield Change(
            "--mamba-ssm-cache-dtype bfloat16",
            {"mamba_ssm_cache_dtype": "bfloat16"},
            "halves the temporal state, and the page with it",
            "accuracy",
        )
    if args.kv_cache_dtype == "auto" and ready.kv_bytes:
        yield Change("--kv-cache-dtype fp8", {"kv_cache_dtype": "fp8"}, "halves the KV of a token", "accuracy")
    if ready.prefix_caching and ready.state and not plan.workload.shared_prefix:
        yield Change(
            "--no-enable-prefix-caching",
            {"enable_prefix_caching": False},
            f"one block of states a group, not {ready.held.checkpoints + 2}; nothing is reused",
            "latency",
        )
    if ready.mode == "all":
        yield Change(
            "--mamba-cache-mode align", {"mamba_cache_mode": "align"}, "two states a group, not one for every block"
        )
    contexts = context_parallel_sizes(plan.model, args.tensor_parallel_size)[-1]
    if args.decode_context_parallel_size == 1 and contexts > 1:
        yield Change(
            f"--decode-context-parallel-size {contexts}",
            {"decode_context_parallel_size": contexts},
            "KV rows are no longer whole on every rank",
            "latency",
        )
    if args.block_size is not None and ready.backend is not None:
        least = max(DEFAULT_BLOCK, ready.backend.kernel_block)
        why = "the block is as long as a state needs and no longer"
        yield Change(f"--block-size {least}", {"block_size": least}, why)


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
    why = "hits may land between blocks"
    return [Suggestion(f"--prefix-match-unit {best.unit}", plan.requests, plan.requests, effect, why)]
