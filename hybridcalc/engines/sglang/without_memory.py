"""What do the flags alone decide, with no figure of memory known?

    --max-mamba-cache-size 8 --max-running-requests 4, S = 5      8 // 5 = 1 request of 4; 4 x 5 + 1 = 21 slots

Start-up is run up to the point where memory is counted: refusals of strategy, page, shapes and rings. Then come the
traps that need no memory. `NEEDS` says which figure every other rule waits for.
"""

from dataclasses import replace
from typing import Any, NamedTuple

from hybridcalc.architecture.geometry import Architecture
from hybridcalc.deployment import Workload
from hybridcalc.engines.sglang.config import ServerArgs
from hybridcalc.engines.sglang.figures import Figures
from hybridcalc.engines.sglang.planner import Prepared, prepare
from hybridcalc.engines.sglang.rules import RULES
from hybridcalc.errors import HybridcalcError, Refusal
from hybridcalc.findings import Finding
from hybridcalc.formulas.slots import pin
from hybridcalc.steps import Suggestion

MEMORY, LENGTH, WANTED = "the memory left for the pools", "the length of requests", "the concurrency wanted"
NEEDS: dict[str, tuple[str, ...]] = {
    "HC001": (MEMORY,), "HC002": (MEMORY, WANTED), "HC010": (MEMORY, LENGTH), "HC011": (MEMORY, LENGTH),
    "HC012": (MEMORY, LENGTH), "HC016": (MEMORY,), "HC017": (MEMORY,), "HC022": (LENGTH,), "HC023": (MEMORY,),
}  # fmt: skip
"""Rule -> the figures it waits for, beyond flags and model."""
LAZY = "extra_buffer_lazy"


class Decided(NamedTuple):
    """What is certain: findings, and for every rule that waits the figures it waits for."""

    findings: tuple[Finding, ...]
    waiting: tuple[tuple[str, tuple[str, ...]], ...]


class _NeedsMemory(Exception):
    """A rule asks for a figure that memory decides."""


class _Unsized(Figures):
    """The part of a plan that memory does not change; a rule that asks for more waits for the memory."""

    def __init__(self, ready: Prepared, workload: Workload) -> None:
        self.ready, self.model, self.args = ready, ready.model, ready.args
        self.workload = workload

    def __getattr__(self, name: str) -> Any:
        raise _NeedsMemory(name)

    @property
    def max_mamba_cache_size(self) -> int:
        """K as it is given; only rules about a given K ask for it."""
        return (self.args.max_mamba_cache_size or 0) // self.args.attn_dp_size

    @property
    def balanced(self) -> None:
        """Not known without memory."""

    @property
    def suggestions(self) -> tuple[Suggestion, ...]:
        """None without memory."""
        return ()


def decide(model: Architecture, args: ServerArgs, workload: Workload) -> Decided:
    """The refusals and traps of ``args`` that hold whatever the memory. Raises InputError for what makes no sense."""
    known = {figure for figure, has in ((LENGTH, workload.lengths), (WANTED, workload.wanted)) if has}
    waiting = {rule: tuple(need for need in needs if need not in known) for rule, needs in NEEDS.items()}
    try:
        ready = prepare(model, args)
        if ready.unbuildable is not None:
            raise ready.unbuildable.refusal()
    except Refusal as refusal:
        found = (Finding(refusal.rule, "error", refusal.reason, refusal.fix),)
        return Decided(found, ())  # it does not start: nothing else is asked of it
    plan = _Unsized(ready, workload)
    findings = [*_explicit_slots(plan)]
    asked = workload.wanted or args.max_running_requests
    if findings or (args.max_mamba_cache_size is not None and asked):
        del waiting["HC002"], waiting["HC023"]
    elif args.max_running_requests is None:
        waiting.pop("HC023")
    for rule in RULES:
        if rule.check is None or MEMORY in NEEDS.get(rule.id, ()) or waiting.get(rule.id):
            continue
        if rule.id == "HC013" and findings:
            continue
        try:
            findings += [Finding(rule.id, rule.severity, message, fix) for message, fix in rule.check(plan)]
        except _NeedsMemory:
            waiting[rule.id] = (MEMORY,)
    return Decided(tuple(findings), tuple(sorted((rule, needs) for rule, needs in waiting.items() if needs)))


def _explicit_slots(plan: _Unsized) -> list[Finding]:
    """K given by hand against the requests it must admit, one at least: C x S slots, and one a worker to spare."""
    args, per_request, dp = plan.args, plan.slots_per_request, plan.args.attn_dp_size
    wanted = plan.workload.wanted or args.max_running_requests
    asked = args.max_mamba_cache_size
    if asked is None:
        return []
    admitted = plan.max_mamba_cache_size // per_request * dp
    if admitted >= (wanted or 1):
        return []
    wanted = wanted or dp
    needed = pin(wanted, per_request, dp=dp)
    message = (
        f"{asked:,} slot{'s admit' if asked != 1 else ' admits'} {_requests(admitted) if admitted else 'no request'}"
        f"{f' on {dp} workers' if dp > 1 else ''}; {_requests(wanted)} x {per_request} slots + {dp} = {needed:,} are "
        "needed"
    )
    return [Finding("HC002", "error", message, f"write {needed}{_lazy(plan, wanted)}")]


def _requests(count: int) -> str:
    return f"{count:,} request{'' if count == 1 else 's'}"


def _lazy(plan: _Unsized, wanted: int) -> str:
    """The strategy that takes fewer slots, where the engine takes it."""
    if plan.ready.choice.strategy != "extra_buffer" or not plan.args.radix_cache:
        return ""
    try:
        lazy = prepare(plan.model, replace(plan.args, mamba_radix_cache_strategy=LAZY))
    except HybridcalcError:
        return ""
    needed = pin(wanted, lazy.slots.count, dp=plan.args.attn_dp_size)
    return (
        f", or {needed} with --mamba-radix-cache-strategy {LAZY}" if lazy.slots.count < plan.slots_per_request else ""
    )
