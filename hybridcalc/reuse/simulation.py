"""What does a prefix cache do for a workload? Requests through it, one after another or R at a time, and counted.

A request is hit when at least one token of its prompt is not computed again. Of ``running`` requests each runs while
those after it start; the oldest ends first. Where the pool lacks room for one more, it waits for the oldest to end;
where an answer lacks KV, the youngest other request is preempted: it starts anew from the deepest of its states that is
still there, and what it computes again counts as replayed. Requests of the first rounds, the warm-up, are not counted.
"""

import gc
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

from hybridcalc.errors import InputError
from hybridcalc.reuse.cache import NoRoom, PrefixCache, Run
from hybridcalc.reuse.policy import Policy
from hybridcalc.reuse.requests import BlockPool, Request, Workload
from hybridcalc.reuse.server_slots import SlotCache, SlotServer

HELD_POINTS = 64
"""Points of the course of held slots; twice as many are kept before every second is left out."""
RESUMED = -1
"""In place of ``Request.preempted``: the request starts anew after a preemption."""
Progress = Callable[[int], None]
"""Called now and then with the requests simulated so far."""


class Setup(NamedTuple):
    """A cache to simulate: slots and what else bounds it (cache.PrefixCache), and the requests that run at once.

    ``running`` 0: one at a time, its slots beside ``slots``; else they come out of ``slots``.
    """

    policy: Policy
    slots: int
    checkpoint_slots: int | None = None
    running: int = 0
    kv_tokens: int | None = None
    host_slots: int = 0
    pool: BlockPool | None = None
    host_kv_tokens: int | None = None
    host_chunks: BlockPool | None = None
    server: SlotServer | None = None

    @property
    def cached_slots(self) -> int:
        """Slots left for states in the tree while all requests run that may."""
        if self.checkpoint_slots is not None:
            return self.checkpoint_slots
        return self.slots - self.running * self.policy.own_slots

    def with_cached(self, slots: int) -> "Setup":
        """The same with ``slots`` for states in the tree."""
        if self.checkpoint_slots is not None:
            return self._replace(checkpoint_slots=slots)
        return self._replace(slots=slots + self.running * self.policy.own_slots)

    @property
    def bounds_kv(self) -> bool:
        """Whether anything bounds KV."""
        return self.kv_tokens is not None or self.pool is not None

    def with_free_kv(self) -> "Setup":
        """The same where nothing bounds KV."""
        return self._replace(kv_tokens=None, pool=None)

    @property
    def has_host(self) -> bool:
        """Whether a host tier lies behind."""
        cached = self.server is not None and self.server.cache_bytes != 0
        return bool(self.host_slots) or self.host_chunks is not None or cached

    def without_host(self) -> "Setup":
        """The same with nothing behind the GPU."""
        server = None if self.server is None else self.server._replace(cache_bytes=0)
        return self._replace(host_slots=0, host_kv_tokens=None, host_chunks=None, server=server)

    def cache(self) -> PrefixCache:
        """An empty cache of this kind."""
        if self.server is not None:
            return SlotCache(
                self.policy, self.slots, self.server, count_running=self.running > 0, context=self.kv_tokens
            )
        behind = None
        if self.host_chunks is not None:
            from hybridcalc.reuse.block_pool import offloaded

            behind = offloaded(self.policy, self.host_chunks)
        if self.pool is not None:
            from hybridcalc.reuse.block_pool import PooledCache

            beside = 0 if self.running else self.policy.own_slots
            return PooledCache(self.policy, self.slots + beside, self.pool, behind=behind)
        given: dict[str, Any] = {
            "checkpoint_slots": self.checkpoint_slots,
            "count_running": self.running > 0,
            "kv_tokens": self.kv_tokens,
        }
        if not self.host_slots:
            return PrefixCache(self.policy, self.slots, **given, behind=behind)
        from hybridcalc.reuse.tiers import TieredCache

        return TieredCache(
            self.policy, self.slots, **given, host_slots=self.host_slots, host_kv_tokens=self.host_kv_tokens
        )


class Held(NamedTuple):
    """The pools after so many ``requests``: slots that hold states, slots of running requests, KV tokens; and the
    states lost until then to slots and to KV that lacked.
    """

    requests: int
    cached: int
    running: int
    kv_tokens: int
    lost_to_slots: int
    lost_to_kv: int


class Outcome(NamedTuple):
    """What came of a workload. Tokens are of prompts; ``held`` is the course of the pools."""

    requests: int
    hits: int
    prompt_tokens: int
    hit_tokens: int
    replayed_tokens: int
    evictions: int
    capped: int
    kv_evictions: int
    host_hits: int
    preemptions: int
    most_cached: int
    held: tuple[Held, ...]
    stored_tokens: int = 0
    stored_states: int = 0
    loaded_tokens: int = 0
    loaded_states: int = 0

    @property
    def hit_rate(self) -> float:
        """Share of requests that were hit."""
        return self.hits / self.requests if self.requests else 0.0

    @property
    def token_hit_rate(self) -> float:
        """Share of prompt tokens that were not computed again."""
        return self.hit_tokens / self.prompt_tokens if self.prompt_tokens else 0.0

    @property
    def most_kv(self) -> int:
        """KV tokens held at most, as far as the course shows."""
        return max((point.kv_tokens for point in self.held), default=0)

    @property
    def recomputed_tokens(self) -> int:
        """Prompt tokens computed, and tokens computed again after a preemption."""
        return self.prompt_tokens - self.hit_tokens + self.replayed_tokens

    def to_dict(self) -> dict[str, Any]:
        """The figures under the keys of ``reuse --json``."""
        return {
            "requests": self.requests,
            "hits": self.hits,
            "prompt_tokens": self.prompt_tokens,
            "hit_tokens": self.hit_tokens,
            "hit_rate": self.hit_rate,
            "token_hit_rate": self.token_hit_rate,
            "recomputed_tokens": self.recomputed_tokens,
            "replayed_tokens": self.replayed_tokens,
            "evictions": self.evictions,
            "capped_states": self.capped,
            "evicted_kv_tokens": self.kv_evictions,
            "host_hits": self.host_hits,
            "preemptions": self.preemptions,
            "most_cached_slots": self.most_cached,
            "stored_kv_tokens": self.stored_tokens,
            "stored_states": self.stored_states,
            "loaded_kv_tokens": self.loaded_tokens,
            "loaded_states": self.loaded_states,
        }


class Counter:
    """Hits and misses of the requests that count, and the course of held slots."""

    def __init__(self, warmup_rounds: int, progress: Progress | None = None) -> None:
        self.warmup, self.progress = warmup_rounds, progress
        self.seen = self.requests = self.hits = self.prompt = self.hit = self.replayed = self.preemptions = 0
        self.step = 1
        self.held: list[Held] = []
        self.before: tuple[int, ...] | None = None

    def count(self, cache: PrefixCache, request: Request, hit: int) -> None:
        """One request that has started with ``hit`` tokens; one that starts anew only counts what it replays."""
        counts = request.round >= self.warmup
        if request.preempted == RESUMED:
            if counts:
                self.replayed += request.prompt - hit
                self.preemptions += 1
            return
        if counts:
            self.requests += 1
            self.hits += hit > 0
            self.prompt += request.prompt
            self.hit += hit
        self.seen += 1
        if self.seen % self.step == 0:
            self.sample(cache)

    def mark(self, cache: PrefixCache, request: Request) -> None:
        """Note what the cache has counted before the first request that counts."""
        if self.before is None and request.round >= self.warmup:
            self.before = _marks(cache)

    def sample(self, cache: PrefixCache) -> None:
        """Note the slots held now, thinning out the course where it grows long."""
        to_slots = cache.evictions - cache.lost_to_kv
        self.held.append(Held(self.seen, len(cache.states), cache.own, cache.kv_held, to_slots, cache.lost_to_kv))
        if len(self.held) >= 2 * HELD_POINTS:
            self.held = self.held[1::2]
            self.step *= 2
        if self.progress is not None:
            self.progress(self.seen)

    def outcome(self, cache: PrefixCache) -> Outcome:
        """The sum of it."""
        after = _marks(cache)
        evictions, capped, kv, host, *moved = (
            now - then for now, then in zip(after, after if self.before is None else self.before, strict=True)
        )
        return Outcome(
            self.requests,
            self.hits,
            self.prompt,
            self.hit,
            self.replayed,
            evictions,
            capped,
            kv,
            host,
            self.preemptions,
            cache.most_cached,
            tuple(self.held),
            *moved,
        )


def _marks(cache: PrefixCache) -> tuple[int, ...]:
    counted = cache.evictions, cache.capped, cache.kv_evictions, cache.host_hits
    return (*counted, cache.stored_tokens, cache.stored_states, cache.loaded_tokens, cache.loaded_states)


def simulate(workload: Workload, setup: Setup, *, warmup_rounds: int = 0, progress: Progress | None = None) -> Outcome:
    """Run a workload through a cache. Raises InputError where a request fits by no means."""
    cache, counter = setup.cache(), Counter(warmup_rounds, progress)
    requests = resuming(workload)
    collects = gc.isenabled()
    gc.disable()  # what leaves the tree is freed by its count of references: it has no children, and drops its parent
    try:
        if cache.alone:
            _alone(requests, cache, counter)
        else:
            _together(requests, cache, setup.running, counter)
    finally:
        if collects:
            gc.enable()
    outcome = counter.outcome(cache)
    cache.tree.clear()
    if cache.behind is not None:
        cache.behind.tree.clear()
    return outcome


def resuming(workload: Workload) -> Iterable[Request]:
    """The requests, with what is preempted in two parts: up to its preemption, and after the next request, the rest."""
    return _resuming(workload.stream()) if workload.preempts else workload.stream()


def _resuming(requests: Iterable[Request]) -> Iterator[Request]:
    resumed: Request | None = None
    for request in requests:
        if request.preempted:
            yield _cut(request)
        else:
            yield request
        if resumed is not None:
            yield resumed
            resumed = None
        if request.preempted:
            resumed = request._replace(prompt=request.prompt + request.preempted, preempted=RESUMED)
    if resumed is not None:
        yield resumed


def _cut(request: Request) -> Request:
    """A request that makes no answer: it is preempted while it does, and saves nothing of it."""
    last = bisect_left(request.ends, request.prompt)
    ends = (*request.ends[:last], request.prompt)
    return request._replace(ids=request.ids[: last + 1], ends=ends, preempted=0)


def _alone(requests: Iterable[Request], cache: PrefixCache, counter: Counter) -> None:
    """One request at a time; what `Counter.count` does is spelt out, for speed."""
    serve, warmup = cache.pass_through, counter.warmup
    counted = hits = prompts = hit_tokens = seen = 0
    sampled = 1
    for request in requests:
        ids, ends, prompt, round, preempted = request
        counts = round >= warmup
        if counts and counter.before is None:
            counter.mark(cache, request)
        hit = serve(ids, ends, prompt)
        if preempted:
            counter.count(cache, request, hit)
            continue
        if counts:
            counted += 1
            prompts += prompt
            if hit:
                hits += 1
                hit_tokens += hit
        seen += 1
        if seen == sampled:
            counter.seen = seen
            counter.sample(cache)
            sampled = seen + counter.step
    counter.requests, counter.hits, counter.prompt, counter.hit = counted, hits, prompts, hit_tokens


def _together(requests: Iterable[Request], cache: PrefixCache, running: int, counter: Counter) -> None:
    """Up to ``running`` requests at once; the oldest ends first."""
    runs: deque[Run] = deque()
    waiting: deque[Request] = deque()
    for request in requests:
        waiting.append(request)
        while waiting:
            while len(runs) >= max(running, 1):
                _end_oldest(cache, runs, waiting)
            following = waiting.popleft()
            counter.mark(cache, following)
            run = _begin(cache, following, runs, waiting)
            counter.count(cache, following, run.hit)
            runs.append(run)
    while runs or waiting:
        if waiting and len(runs) < max(running, 1):
            following = waiting.popleft()
            run = _begin(cache, following, runs, waiting)
            counter.count(cache, following, run.hit)
            runs.append(run)
        else:
            _end_oldest(cache, runs, waiting)


def _begin(cache: PrefixCache, request: Request, runs: deque[Run], waiting: deque[Request]) -> Run:
    """Start a request as soon as there is room, and compute its prompt."""
    while True:
        try:
            run = cache.start(request)
        except NoRoom:
            if not runs:
                raise _too_large(cache, request.prompt, "a prompt") from None
            _end_oldest(cache, runs, waiting)
        else:
            cache.prefill(run)
            return run


def _too_large(cache: PrefixCache, tokens: int, what: str) -> InputError:
    """What to say where a request does not even fit alone: KV is what it lacks, unless that has no limit."""
    if cache.kv_tokens is not None:
        return InputError(
            f"{what} takes {tokens:,} tokens of KV, more than the {cache.kv_tokens:,} there are",
            fix=f"write --max-total-tokens {tokens} or more, give more memory or fewer --slots",
        )
    each = cache.policy.own_slots
    return InputError(
        f"a running request holds {each} slots, more than the {cache.slots:,} given",
        fix=f"write --slots {each} or more",
    )


def _end_oldest(cache: PrefixCache, runs: deque[Run], waiting: deque[Request]) -> None:
    """End the oldest request; the youngest others are preempted while its answer lacks KV."""
    while True:
        try:
            cache.finish(runs[0])
        except NoRoom:
            if len(runs) == 1:
                raise _too_large(cache, runs[0].request.ends[-1] - 1, "a request") from None
            youngest = runs.pop()
            cache.preempt(youngest)
            waiting.appendleft(youngest.request._replace(preempted=RESUMED))
        else:
            runs.popleft()
            return
