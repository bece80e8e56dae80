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
from hybridcalc.formulas.slots import Strategy
from hybridcalc.reuse.knee import Bar
from hybridcalc.reuse.policy import NO_CAP
from hybridcalc.reuse.requests import Workload
from hybridcalc.reuse.settings import INT8_FACTOR, Settings
from hybridcalc.reuse.simulation import Outcome, simulate

STEP_TOKENS = 256
"""A decode step of 25 ms beside a prefill of 10,000 tokens a second."""
PATH_CAP = 2
MOST_SPLITS, FINEST_SPLIT = 24, 16
"""Splits that are tried; steps of a sixteenth of the running requests are fine enough."""


class Variant(NamedTuple):
    """One changed setting: a name, the flags, the settings."""

    name: str
    flags: str
    settings: Settings


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
    changes = _sglang(now) if now.engine == "sglang" else _vllm(now)
    yield from (change for change in changes if change.settings != now)


def _sglang(now: Settings) -> Iterator[Variant]:
    pool = INT8_FACTOR * now.slots
    if now.int8_slots is None and not now.host_slots:
        yield Variant("int8 checkpoints", "--enable-int8-mamba-checkpoint", now._replace(int8_slots=pool))
    if not now.host_slots and now.int8_slots is None:
        yield Variant("host tier", f"--enable-hierarchical-cache ({pool:,} states)", now._replace(host_slots=pool))
    cap = now._replace(max_states_per_path=PATH_CAP if now.max_states_per_path == NO_CAP else NO_CAP)
    yield Variant("path cap", f"--mamba-max-states-per-path {cap.max_states_per_path}", cap)
    if now.strategy is not Strategy.NO_BUFFER:
        for interval in (64, 1024):
            if interval % now.page_size == 0 and interval != now.track_interval:
                changed = now._replace(track_interval=interval)
                yield Variant("track interval", f"--mamba-track-interval {interval}", changed)
        if now.running and now.overlap:
            other = Strategy.EXTRA_BUFFER if now.strategy is Strategy.EXTRA_BUFFER_LAZY else Strategy.EXTRA_BUFFER_LAZY
            yield Variant("buffers", f"--strategy {other.value}", now._replace(strategy=other))
        for page in (1, 64, 256):
            if (
                page != now.page_size
                and now.track_interval % page == 0
                and max(now.chunk, page) % min(now.chunk, page) == 0
            ):
                yield Variant("page", f"--page-size {page}", now._replace(page_size=page))
    if now.page_size == 1:
        other = Strategy.NO_BUFFER if now.strategy is not Strategy.NO_BUFFER else Strategy.EXTRA_BUFFER
        flags = f"--strategy {other.value}" + (" --disable-overlap-schedule" if other is Strategy.NO_BUFFER else "")
        yield Variant("buffers", flags, now._replace(strategy=other, overlap=other is not Strategy.NO_BUFFER))


def _vllm(now: Settings) -> Iterator[Variant]:
    if now.every_block:
        yield Variant("align mode", "--mamba-cache-mode align", now._replace(every_block=False))
        return
    dense = now._replace(retention=None)
    yield Variant("dense retention", "--prefix-cache-retention-interval dense", dense)
    sparse = now._replace(retention=4 * now.block_size)
    yield Variant("retention", f"--prefix-cache-retention-interval {sparse.retention}", sparse)
    for block in (now.block_size // 2, 2 * now.block_size):
        free = now.match_unit is None and not now.retention and not now.block_fixed
        if free and block and now.block_size % 2 == 0:
            yield Variant("block", f"a block of {block:,} tokens", now._replace(block_size=block))
    if now.block_size % 16 == 0:
        yield Variant("match unit", "--prefix-match-unit 16", now._replace(match_unit=16))


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
