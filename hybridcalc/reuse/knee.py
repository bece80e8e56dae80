"""How many slots does a workload want? The knee: the fewest at which reuse reaches 95 % of what any number would give.

    limit   hit rates of requests and of tokens with more slots than the workload ever fills
    knee    the smallest number of slots at which both rates are at least 0.95 * limit

One pass with that many slots notes how recently each state hit was used before: its stack distance, the number of
distinct states used since, itself included. A cache of C slots that gives up the least recently used state still has
those at distances up to C (Mattson et al. 1970), which gives the rates at every C at once. It holds where a miss saves
what a hit would have found; so the knee found is simulated, and one slot fewer. Where they disagree, or where locks, a
limit on KV, a host tier or a path cap make the cache no such stack, the knee is searched from there.
Units: slots.
"""

from collections import OrderedDict
from collections.abc import Callable
from itertools import islice
from typing import Any, NamedTuple

from hybridcalc.errors import InputError
from hybridcalc.reuse.policy import NO_CAP
from hybridcalc.reuse.requests import Workload
from hybridcalc.reuse.simulation import RESUMED, Counter, Outcome, Progress, Setup, resuming, simulate
from hybridcalc.reuse.tree import Node
from hybridcalc.units import MIB

SHARE = 0.95
MOST_LIMIT_SLOTS = 2**18
"""Slots that stand for any number of them, unless the question has more: 262,144 states are some 200 MB here."""
TRACE_BYTES, STATE_BYTES, RUN_BYTES = 50_000_000, 700, 80
"""What the limit of a trace may take here, and what a state does, with its node, and a run of it."""
FIRST_REQUESTS, LEAST_LIMIT_SLOTS = 256, 2**10
KV_STEPS, COARSE_KV_STEPS, FINE_KV_STEPS = 256, 32, 2**14
"""KV that suffices is found to so small a part of it: of settings compared, coarsely; of few requests, finely."""
FEW_REQUESTS, MANY_REQUESTS = 5_000, 50_000
MOST_KV_STEPS = 2**40
"""Stands for any number of them."""
_FIRST_STAMPS = 2**12
MOST_LEFT = 32
"""Checkpoints of a prompt that room on the host is looked for, twice."""
CURVE_POINTS = 48
Bar = Callable[[str], Progress | None]
"""Starts a progress bar under a name."""


class Knee(NamedTuple):
    """Fewest slots for states in the tree (``cached_slots``), and of the pool with running requests (``slots``).

    ``at_knee`` is what they give, ``limit`` what any number would; ``limited``: the workload fills even that many.
    None where the workload reuses nothing with any number of slots. ``method`` is "stack distance" or "search".
    ``curve``: slots for states that were looked at, ascending, and the share of tokens that they reuse.
    """

    slots: int | None
    cached_slots: int | None
    limit: Outcome
    at_knee: Outcome | None
    method: str
    limited: bool
    curve: tuple[tuple[int, float], ...] = ()

    def reached_by(self, outcome: Outcome) -> bool:
        """Whether ``outcome`` is at least as good as what the knee asks for."""
        return _near(outcome, self.limit)

    def to_dict(self) -> dict[str, Any]:
        """The figures under the keys of ``reuse --json``."""
        return {
            "slots": self.slots,
            "cached_slots": self.cached_slots,
            "method": self.method,
            "limit_hit_rate": self.limit.hit_rate,
            "limit_token_hit_rate": self.limit.token_hit_rate,
            "limit_slots": self.limit.most_cached,
            "limit_reached": not self.limited,
            "curve": [{"slots": slots, "token_hit_rate": rate} for slots, rate in self.curve],
        }


class HostNeed(NamedTuple):
    """What a host tier must hold for the knee's reuse: states and KV tokens, or chunks (vLLM), or bytes
    (llama.cpp), the others None.
    """

    slots: int | None
    kv_tokens: int | None
    chunks: int | None
    bytes: int | None = None


class StackOrder(OrderedDict[Node, None]):
    """States in the order of their use, which also says how many have been used since the one that is used now.

    A Fenwick tree counts the stamps in use; when they run out, the states in use are stamped anew.
    """

    def __init__(self) -> None:
        super().__init__()
        self.stamps: dict[Node, int] = {}
        self.counts = [0] * (_FIRST_STAMPS + 1)
        self.last = self.used = 0

    def move_to_end(self, node: Node, last: bool = True) -> None:
        """Use a state that is there. ``used`` is the distance of the first one since it was set to 0: the state hit."""
        super().move_to_end(node, last)
        stamp = self.stamps[node]
        self.used = self.used or len(self) - self._used_up_to(stamp) + 1
        self._change(stamp, -1)
        self._stamp(node)

    def __setitem__(self, node: Node, value: None) -> None:
        super().__setitem__(node, value)
        self._stamp(node)

    def __delitem__(self, node: Node) -> None:
        super().__delitem__(node)
        self._change(self.stamps.pop(node), -1)

    def add(self, node: Node) -> int:
        """A state that is used for the first time; how many there are."""
        self[node] = None
        return len(self)

    def pop_oldest(self) -> Node:
        """Give up the state used longest ago."""
        node = next(iter(self))
        del self[node]
        return node

    def _stamp(self, node: Node) -> None:
        if self.last == len(self.counts) - 1:
            self._renew()
            if node in self.stamps:
                del self.stamps[node]
        self.last += 1
        self.stamps[node] = self.last
        self._change(self.last, 1)

    def _renew(self) -> None:
        """Stamp all states 1, 2, ... in their order but the newest, which is being stamped."""
        self.stamps = {node: stamp for stamp, node in enumerate(self, 1)}
        newest = next(reversed(self))
        self.last = self.stamps.pop(newest) - 1
        size = max(_FIRST_STAMPS, 4 * self.last)
        self.counts = [0] * (size + 1)
        for stamp in range(1, self.last + 1):
            self._change(stamp, 1)

    def _change(self, stamp: int, by: int) -> None:
        counts, size = self.counts, len(self.counts)
        while stamp < size:
            counts[stamp] += by
            stamp += stamp & -stamp

    def _used_up_to(self, stamp: int) -> int:
        counts, total = self.counts, 0
        while stamp:
            total += counts[stamp]
            stamp -= stamp & -stamp
        return total


class _Distances:
    """Hits and hit tokens by stack distance."""

    def __init__(self) -> None:
        self.hits: dict[int, int] = {}
        self.tokens: dict[int, int] = {}

    def add(self, distance: int, tokens: int) -> None:
        self.hits[distance] = self.hits.get(distance, 0) + 1
        self.tokens[distance] = self.tokens.get(distance, 0) + tokens

    def curve(self, prompt_tokens: int) -> dict[int, float]:
        """The share of tokens that so many slots reuse, at no more than CURVE_POINTS numbers of them."""
        hit, rates = 0, dict[int, float]()
        for distance in sorted(self.tokens):
            hit += self.tokens[distance]
            rates[distance] = hit / max(prompt_tokens, 1)
        kept = [*rates][:: -(-len(rates) // CURVE_POINTS) or 1]
        return {distance: rates[distance] for distance in {*kept, *[*rates][-1:]}}

    def knee(self) -> int:
        """The least distance up to which both hits and tokens are 95 % of all."""
        hits = tokens = 0
        wanted_hits, wanted_tokens = SHARE * sum(self.hits.values()), SHARE * sum(self.tokens.values())
        for distance in sorted(self.hits):
            hits += self.hits[distance]
            tokens += self.tokens[distance]
            if hits >= wanted_hits and tokens >= wanted_tokens:
                return distance
        return 0


def is_stack(setup: Setup) -> bool:
    """Whether the cache gives up nothing but the state least recently used."""
    plain = setup.running == 0 and not setup.bounds_kv and not setup.has_host
    return plain and setup.server is None and setup.policy.path_cap == NO_CAP


def find_knee(
    workload: Workload,
    setup: Setup,
    *,
    warmup_rounds: int = 0,
    progress: Bar = lambda _: None,
    given: Outcome | None = None,
) -> Knee:
    """The knee of a workload without a host tier; else all of ``setup`` but its slots stays. ``progress`` starts a bar
    for each pass.

    ``given`` is what ``setup`` itself came to, where that is known: the knee is never more than slots that reach it.
    """
    setup = setup.without_host()
    most, bar = max(limit_slots(workload), setup.cached_slots), progress
    alone = Setup(setup.policy, most)
    distances = _Distances()
    stack, limit = is_stack(setup), None
    if setup.server is None:
        limit = _measure(workload, alone, distances, warmup_rounds, bar("stack distances"))
    if limit is None or not stack:
        roomy = setup.with_cached(most)
        limit = simulate(workload, roomy, warmup_rounds=warmup_rounds, progress=bar("with any number of slots"))
    if not stack and given is not None and (given.hit_tokens, given.hits) > (limit.hit_tokens, limit.hits):
        limit = given  # a cap on paths may keep more of fewer
    limited = limit.most_cached >= most
    if not limit.hits:
        return Knee(None, None, limit, None, "stack distance" if stack else "search", limited)
    known: dict[int, Outcome] = {} if given is None else {setup.cached_slots: given}

    def reaches(slots: int) -> bool:
        if slots not in known:
            name = f"{slots:,} slots"
            setting = setup.with_cached(slots)
            known[slots] = simulate(workload, setting, warmup_rounds=warmup_rounds, progress=bar(name))
        return _near(known[slots], limit)

    least = least_cached(setup)
    found, high = max(distances.knee(), least), max(limit.most_cached, least)
    exact = stack and reaches(found) and (found == least or not reaches(found - 1))
    if limit is given:
        high = max(setup.cached_slots, least)
    guess = min(found, high)
    if given is not None and setup.cached_slots < guess and _near(given, limit):
        exact, guess, high = False, setup.cached_slots, setup.cached_slots
    cached = found if exact else _search(reaches, guess, high, least)
    method = "stack distance" if exact else "search"
    curve = distances.curve(limit.prompt_tokens) if exact else {}
    curve |= {slots: outcome.token_hit_rate for slots, outcome in known.items()}
    curve.setdefault(high, limit.token_hit_rate)
    points = tuple(sorted(curve.items()))
    return Knee(_pool(setup.with_cached(cached)), cached, limit, known.get(cached, limit), method, limited, points)


def find_kv(
    workload: Workload,
    setup: Setup,
    knee: Knee,
    *,
    warmup_rounds: int = 0,
    progress: Bar = lambda _: None,
    steps: int = KV_STEPS,
) -> int | None:
    """The fewest KV tokens with which the slots of ``knee`` still reach 95 % of its limit, rounded up by no more than
    one part in ``steps``; None where there is no knee. ``setup`` is what the knee is of.
    """
    if knee.cached_slots is None or knee.at_knee is None:
        return None
    held = knee.at_knee.most_kv
    step = max(held // min(steps, KV_STEPS), 1)

    def reaches(tokens: int) -> bool:
        limited = setup.with_cached(knee.cached_slots or 0)._replace(kv_tokens=tokens, pool=None)
        bar = progress(f"{tokens:,} KV tokens")
        try:
            return knee.reached_by(simulate(workload, limited, warmup_rounds=warmup_rounds, progress=bar))
        except InputError:  # a request has no room
            return False

    found = step * _search(lambda count: reaches(count * step), -(-held // step) or 1, MOST_KV_STEPS, 1)
    fine = max(held // steps, 1)
    if fine < step:
        most = -(-found // fine)
        found = min(fine * _search(lambda count: reaches(count * fine), most, most, (found - step) // fine + 1), found)
    return found


def limit_slots(workload: Workload) -> int:
    """Slots that stand for any number of them: of a trace as many as TRACE_BYTES hold, by its first requests."""
    if workload.requests is not None:
        return MOST_LIMIT_SLOTS
    first = [len(request.ids) for request in islice(workload.stream(), FIRST_REQUESTS)]
    each = STATE_BYTES + RUN_BYTES * sum(first) // max(len(first), 1)
    return min(MOST_LIMIT_SLOTS, max(TRACE_BYTES // each, LEAST_LIMIT_SLOTS))


def find_host(
    workload: Workload, setup: Setup, knee: Knee, *, warmup_rounds: int = 0, progress: Bar = lambda _: None
) -> HostNeed | None:
    """The smallest pools on the host with which ``setup`` reaches what ``knee`` asks for, to one part in
    COARSE_KV_STEPS; states first, with KV to spare. None where no host tier does it.
    """
    passes: dict[Setup, bool] = {}

    def reached(tier: Setup) -> bool:
        if tier not in passes:
            bar = progress("the host tier")
            passes[tier] = knee.reached_by(simulate(workload, tier, warmup_rounds=warmup_rounds, progress=bar))
        return passes[tier]

    def least(made: Callable[[int], Setup], most: int) -> int | None:
        step = max(most // COARSE_KV_STEPS, 1)
        highest = -(-most // step)
        if not reached(made(highest * step)):
            return None
        return step * _search(lambda count: reached(made(count * step)), highest, highest, 1)

    held = knee.limit
    if setup.server is not None:
        server = setup.server
        each = (1 + min(server.checkpoints, MOST_LEFT)) * server.state_bytes
        most = 2 * (held.most_kv * server.token_bytes + held.most_cached * each) // MIB + 1
        mib = least(lambda count: setup._replace(server=server._replace(cache_bytes=count * MIB)), most)
        return None if mib is None else HostNeed(None, None, None, mib * MIB)
    if setup.host_chunks is not None:
        pool, page = setup.host_chunks, setup.policy.grid
        most = pool.per_state * held.most_cached + pool.per_page * -(-held.most_kv // page) * 2
        chunks = least(lambda blocks: setup._replace(host_chunks=pool._replace(blocks=blocks)), max(most, 1))
        return None if chunks is None else HostNeed(None, None, chunks)
    slots = least(lambda count: setup._replace(host_slots=count, host_kv_tokens=None), max(held.most_cached, 1))
    if slots is None:
        return None
    tier = setup._replace(host_slots=slots)
    kv_tokens = least(lambda count: tier._replace(host_kv_tokens=count), 2 * max(held.most_kv, 1))
    return None if kv_tokens is None else HostNeed(slots, kv_tokens, None)


def kv_steps(requests: int) -> int:
    """How finely KV is looked for, which takes a pass of all requests for each halving."""
    return FINE_KV_STEPS if requests <= FEW_REQUESTS else KV_STEPS if requests <= MANY_REQUESTS else COARSE_KV_STEPS


def least_cached(setup: Setup) -> int:
    """The fewest slots for states that may be asked about: one, or what the running requests that must fit leave."""
    if setup.checkpoint_slots is not None or not setup.running:
        return 1
    return setup.running * (setup.policy.slots_per_request - setup.policy.own_slots)


def _pool(setup: Setup) -> int:
    return setup.slots if setup.checkpoint_slots is None else setup.checkpoint_slots


def _near(outcome: Outcome, limit: Outcome) -> bool:
    return outcome.hits >= SHARE * limit.hits and outcome.hit_tokens >= SHARE * limit.hit_tokens


def _search(reaches: Callable[[int], bool], guess: int, most: int, least: int) -> int:
    """The least number from ``least`` to ``most`` that reaches, where more never reach less; ``most`` does.

    Steps away from the guess, each twice the last, until the number lies between two; then halves what is between.
    """
    step = max(guess // 16, 1)
    low = high = guess
    if guess == most or reaches(guess):
        while high == low:
            low = max(low - step, least - 1)
            if low >= least and reaches(low):
                high = low
            step *= 2
    else:
        while high == low:
            high = min(high + step, most)
            if high < most and not reaches(high):
                low = high
            step *= 2
    while high - low > 1:
        middle = (low + high) // 2
        if reaches(middle):
            high = middle
        else:
            low = middle
    return high


def _measure(
    workload: Workload, setup: Setup, distances: _Distances, warmup_rounds: int, progress: Progress | None
) -> Outcome:
    """The roomy pass: its outcome, and into ``distances`` how deep each state hit lay."""
    cache, counter, order = setup.cache(), Counter(warmup_rounds, progress), StackOrder()
    cache.states = order
    for request in resuming(workload):
        counter.mark(cache, request)
        order.used = 0
        hit = cache.serve(request)
        counter.count(cache, request, hit)
        if hit and request.round >= warmup_rounds and request.preempted != RESUMED:
            distances.add(order.used, hit)
    outcome = counter.outcome(cache)
    cache.tree.clear()
    return outcome
