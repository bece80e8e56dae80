"""What would another setting change? The same workload through caches that differ in one thing, and the best split.

Each `Variant` is one change of `Settings` with the flags that make it. `best_split` shares K slots between running
requests and states: with R running, at most K // S, K - R * own slots are left for
states, and the work of a workload is

    work(R) = tokens computed + step * answer tokens / R

where ``step`` is how many prompt tokens are computed in the time of one decode step, which answers all R at once. More
running requests share a step, fewer leave more states to reuse. It leaves out that a larger batch makes a step longer.
Units: slots, tokens, prompt tokens of work.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

from hybridcalc.errors import HybridcalcError
from hybridcalc.reuse.knee import Bar
from hybridcalc.reuse.requests import Workload
from hybridcalc.reuse.settings import Settings, Variant
from hybridcalc.reuse.simulation import Outcome, simulate

STEP_TOKENS = 256
"""A decode step of 25 ms beside a prefill of 10,000 tokens a second."""
MOST_SPLITS, FINEST_SPLIT = 24, 16
"""Splits that are tried; steps of a sixteenth of the running requests are fine enough."""


class Row(NamedTuple):
    """A variant and what it came to."""

    variant: Variant
    outcome: Outcome

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        settings = self.variant.settings
        return {
            "name": self.variant.name,
            "flags": self.variant.flags,
            "slots": settings.slots,
            "checkpoint_slots": settings.int8_slots,
            "host_slots": settings.host_slots,
            **self.outcome.to_dict(),
        }


class Left(NamedTuple):
    """A variant that cannot be, and why."""

    variant: Variant
    why: str


class Split(NamedTuple):
    """R running requests, the slots that leaves for states, and the work."""

    running: int
    cached_slots: int
    outcome: Outcome
    work_tokens: int

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        return {
            "running": self.running,
            "cached_slots": self.cached_slots,
            "hit_rate": self.outcome.hit_rate,
            "token_hit_rate": self.outcome.token_hit_rate,
            "recomputed_tokens": self.outcome.recomputed_tokens,
            "work_tokens": self.work_tokens,
        }


def variants(now: Settings) -> Iterator[Variant]:
    """Changes worth a look, none of which is the settings as they are."""
    yield Variant("twice the slots", f"--slots {2 * now.slots}", now._replace(slots=2 * now.slots))
    yield from (change for change in now.room.variants(now) if change.settings != now)


def compare(workload: Workload, now: Settings, *, warmup_rounds: int, bar: Bar) -> tuple[list[Row], list[Left]]:
    """Every variant through the workload; and those that the slots or the KV have no room for."""
    rows, left = [], []
    for variant in variants(now):
        name = f"{variant.name}: {variant.flags}"
        try:
            outcome = simulate(workload, variant.settings.setup, warmup_rounds=warmup_rounds, progress=bar(name))
        except HybridcalcError as error:
            left.append(Left(variant, error.message))
        else:
            rows.append(Row(variant, outcome))
    return rows, left


def best_split(
    workload: Workload, now: Settings, *, warmup_rounds: int, step_tokens: int = STEP_TOKENS, bar: Bar
) -> tuple[Split, ...]:
    """Ways to share ``now.slots`` between running requests and states, least work first; empty where none fits one.

    No more run than the workload sends at once: its requests, and of those that follow on each other one.
    """
    requests = answers = 0
    for request in workload.stream():
        if request.round >= warmup_rounds:
            requests += 1
            answers += request.ends[-1] - request.prompt
    most = min(now.slots // now.policy.slots_per_request, workload.at_once or requests, requests)
    found: dict[int, Split] = {}

    def split(running: int) -> Split:
        if running not in found:
            setup = now._replace(running=running).setup
            outcome = simulate(workload, setup, warmup_rounds=warmup_rounds, progress=bar(f"{running:,} running"))
            work = outcome.recomputed_tokens + step_tokens * answers // running
            found[running] = Split(running, setup.cached_slots, outcome, work)
        return found[running]

    if most < 1:
        return ()
    grid = sorted({min(2**power, most) for power in range(most.bit_length() + 1)})
    best = min(grid, key=lambda running: split(running).work_tokens)
    step = max(best // 4, 1)
    while len(found) < MOST_SPLITS:
        near = [running for running in (best - step, best + step) if 1 <= running <= most]
        better = min([best, *near], key=lambda running: split(running).work_tokens)
        if better == best:
            if step <= best // FINEST_SPLIT or step == 1:
                break
            step //= 2
        best = better
    return tuple(sorted(found.values(), key=lambda split: (split.work_tokens, split.running)))
