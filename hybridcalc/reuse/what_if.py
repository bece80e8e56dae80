"""What would another setting change? The same workload through caches that differ in one thing, and the best split.

Each `Variant` is one change of `Settings` with the flags that make it, and has a knee and a need of KV of its own;
changes that help are tried two at a time. `best_split` shares K slots between running
requests and states: with R running, at most K // S, K - R * own slots are left for
states, and the work of a workload is

    work(R) = tokens computed + step * answer tokens / R

where ``step`` is how many prompt tokens are computed in the time of one decode step, which answers all R at once. More
running requests share a step, fewer leave more states to reuse. It leaves out that a larger batch makes a step longer.
Units: slots, tokens, prompt tokens of work.
"""

from collections.abc import Callable, Iterator
from itertools import combinations, islice
from typing import Any, NamedTuple

from hybridcalc.errors import HybridcalcError
from hybridcalc.reuse.knee import COARSE_KV_STEPS, Bar, Knee, find_knee, find_kv
from hybridcalc.reuse.requests import Workload
from hybridcalc.reuse.settings import Cost, Settings, Variant
from hybridcalc.reuse.simulation import Outcome, simulate

STEP_TOKENS = 256
"""A decode step of 25 ms beside a prefill of 10,000 tokens a second."""
MOST_SPLITS, FINEST_SPLIT = 24, 16
"""Splits that are tried; steps of a sixteenth of the running requests are fine enough."""


SLOTS = "twice the slots"
SHARES = 16
"""Shares of the memory that slots are given, evenly up to twice what they have."""
MOST_JOINED = 3
"""Changes that are tried with each other, and pairs of them."""


class Row(NamedTuple):
    """A variant, what it came to, and what it wants: its knee, and KV tokens there."""

    variant: Variant
    outcome: Outcome
    knee: Knee
    kv_needed: int | None

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        settings = self.variant.settings
        return {
            "name": self.variant.name,
            "flags": self.variant.flags,
            "slots": settings.slots,
            "checkpoint_slots": settings.int8_slots,
            "host_slots": settings.host_slots,
            "knee_slots": self.knee.slots,
            "kv_tokens_needed": self.kv_needed,
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
    yield Variant(SLOTS, f"--slots {2 * now.slots}", now._replace(slots=2 * now.slots))
    yield from (change for change in now.room.variants(now) if change.settings != now)


def compare(
    workload: Workload,
    now: Settings,
    *,
    warmup_rounds: int,
    bar: Bar,
    within: Callable[[Settings], Settings] = lambda settings: settings,
    given: Row | None = None,
    cost: Callable[[Settings], Cost | None] = lambda _: None,
) -> tuple[list[Row], list[Left]]:
    """Every variant through the workload; and those that the slots or the KV have no room for.

    ``within`` bounds settings by the memory, ``cost`` is what they weigh. ``given`` is what ``now`` came to: changes
    that better it are then tried two at a time.
    """
    rows, left = list[Row](), list[Left]()

    def tried(variant: Variant) -> Row | None:
        try:
            setup = within(variant.settings).setup
            outcome = simulate(workload, setup, warmup_rounds=warmup_rounds, progress=bar(variant.flags))
            return wants(workload, variant, outcome, setup.bounds_kv, warmup_rounds=warmup_rounds, bar=bar)
        except HybridcalcError as error:
            left.append(Left(variant, error.message))
        return None

    rows += filter(None, map(tried, variants(now)))
    if given is not None and (shared := _other_share(workload, now, within, given, warmup_rounds, bar)) is not None:
        rows.append(shared)
    if given is not None and (sized := _sized_host(now, given, cost)) is not None:
        rows += filter(None, [tried(sized)])
    if given is not None:
        better = sorted((row for row in rows if _betters(row, given) and row.variant.name != SLOTS), key=_merit)
        for one, other in islice(combinations(better[:MOST_JOINED], 2), MOST_JOINED):
            if (joined := _joined(now, one.variant, other.variant)) is not None:
                row = tried(joined)
                if row is not None and _betters(row, one) and _betters(row, other):
                    rows.append(row)
    return rows, left


def _sized_host(now: Settings, given: Row, cost: Callable[[Settings], Cost | None]) -> Variant | None:
    """A host tier as large as what the knee keeps; None where there is one, the knee is reached, or what it would
    weigh is not known.
    """
    needed, knee = given.kv_needed, given.knee
    if now.has_host or needed is None or knee.slots is None or knee.reached_by(given.outcome):
        return None
    tiers = (change.settings for change in now.room.variants(now) if change.settings.has_host)
    weighs = next((cost(settings) for settings in tiers), None)
    return None if weighs is None else now.room.host_for(now, knee.slots, needed, weighs)


def _other_share(
    workload: Workload, now: Settings, within: Callable[[Settings], Settings], given: Row, warmup_rounds: int, bar: Bar
) -> Row | None:
    """The slots that share the memory best, of SHARES that are tried; None where KV does not follow from slots, or
    those there are do as well.
    """
    if given.knee.reached_by(given.outcome) or within(now).kv_tokens == now.kv_tokens:
        return None
    wanted = (given.knee.slots or 0, *(now.slots * share // (SHARES // 2) for share in range(1, SHARES)))
    best, least = None, max(1, now.running * now.policy.slots_per_request)
    for slots in sorted({slots for slots in wanted if slots >= least and slots != now.slots}):
        settings = now.room.wanted(now, slots)[0]
        try:
            setup = within(settings).setup
            outcome = simulate(workload, setup, warmup_rounds=warmup_rounds, progress=bar(f"{slots:,} slots"))
        except HybridcalcError:  # a request has no room beside so many
            continue
        if best is None or outcome.hit_tokens > best.outcome.hit_tokens:
            variant = Variant("another share of the memory", now.room.wanted(now, slots)[2], settings)
            best = Row(variant, outcome, given.knee, given.kv_needed)
    return best if best is not None and best.outcome.hit_tokens > given.outcome.hit_tokens else None


def wants(
    workload: Workload, variant: Variant, outcome: Outcome, bounded: bool, *, warmup_rounds: int, bar: Bar
) -> Row:
    """A variant with the slots and the KV that it wants, whatever is given; ``bounded``: its KV was."""
    setup = variant.settings.setup.with_free_kv()
    known = None if bounded or setup.has_host else outcome
    setup = setup.without_host()
    knee = find_knee(workload, setup, warmup_rounds=warmup_rounds, progress=bar, given=known)
    kv_needed = find_kv(workload, setup, knee, warmup_rounds=warmup_rounds, progress=bar, steps=COARSE_KV_STEPS)
    return Row(variant, outcome, knee, kv_needed)


def _merit(row: Row) -> tuple[int, int]:
    return -row.outcome.hit_tokens, row.knee.slots or 0


def _betters(row: Row, other: Row) -> bool:
    """Whether one reuses more, or as much with fewer slots wanted."""
    fewer = row.knee.slots is not None and row.knee.slots < (other.knee.slots or 0)
    mine, theirs = row.outcome.hit_tokens, other.outcome.hit_tokens
    return mine > theirs or (mine == theirs and fewer)


def _joined(now: Settings, one: Variant, other: Variant) -> Variant | None:
    """Both changes at once; None where they change the same thing, or the engine does not take both."""
    first, second = (_changed(now, variant.settings) for variant in (one, other))
    if first.keys() & second.keys():
        return None
    both = now._replace(**first, **second)
    try:
        _ = both.policy
    except HybridcalcError:
        return None
    return Variant(f"{one.name}, {other.name}", f"{one.flags} {other.flags}", both)


def _changed(now: Settings, then: Settings) -> dict[str, Any]:
    return {name: value for name, value in then._asdict().items() if value != getattr(now, name)}


def best_split(
    workload: Workload,
    now: Settings,
    *,
    warmup_rounds: int,
    step_tokens: int = STEP_TOKENS,
    bar: Bar,
    within: Callable[[Settings], Settings] = lambda settings: settings,
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
            setup = within(now._replace(running=running)).setup
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
