"""Which pool binds on a running server, and what to set.

    requests wait and running >= K // S             the state pool binds, though slots read 4 of 5 in use
    requests wait and KV, or blocks, above 95 %     KV binds; so too where requests are retracted, or preempted
                                                    since the last scrape
    requests wait and running >= the limit          the limit binds; so where they wait for a slot of llama.cpp
    requests wait, and none of these                no pool: adapters, grammars, transfers, a router

Requests that wait for a grammar, an adapter or KV of another server wait for no pool, however full it is. Workers of
one engine and model are judged together; of several kinds that with the most waiting comes first. With the model known,
the start is planned again (replan.py), and suggestions are the planner's, at the length that a request has.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from hybridcalc.architecture import Architecture
from hybridcalc.architecture.presets import find_preset, load_model
from hybridcalc.bootlog.grammars import room
from hybridcalc.deployment import requests_text
from hybridcalc.engines.answer import Answer
from hybridcalc.findings import Finding, Rule, Suggestion
from hybridcalc.live.replan import GIVEN, LiveQuestion, Planner, agreed
from hybridcalc.live.worker import BLOCKS, CAPACITY, KV, LIMIT, OTHER, PLACE, STATE, Worker

FULL = 0.95
"""Share of KV from which a waiting request no longer fits: the last blocks are never all in use."""
LIKELY_SLOTS = range(1, 10)
"""Slots that a request may hold, where nothing says how many."""
NAMES = {STATE: "the state pool", KV: "KV", BLOCKS: "the blocks", LIMIT: "the limit of requests", OTHER: "no pool"}
BLOCK_TOKENS = "attn_block_size"
"""The figure of a plan that is the tokens of a block."""

RULES = (
    Rule("HC300", "warning", "requests wait for the state pool",
         "K // S requests run, whatever share of the slots is in use: a request keeps S slots and fills fewer.",
         "SGLang mem_cache/memory_pool.py"),
    Rule("HC301", "warning", "requests wait for KV", "Tokens, or blocks, are in use but for a few.", ""),
    Rule("HC302", "warning", "requests wait for a limit",
         "--max-running-requests, max_num_seqs, -np. llama.cpp defers no request but for a slot.", ""),
    Rule("HC303", "note", "requests wait, and no pool is full",
         "Adapters, grammars, transfers of KV or a router hold them back; no memory would help.", ""),
    Rule("HC304", "warning", "running requests lose their place",
         "They are retracted or preempted and computed again: KV was promised twice.", ""),
    Rule("HC305", "note", "no prefix is found again", "No request found a token of its prompt cached.", ""),
    Rule("HC306", "note", "what is not known of this server", "No counts are exported, or no model is named.", ""),
    Rule("HC307", "error", "pools are not as planned",
         "The engine, the model, K, T, blocks or the limit differ from the plan, or none of them is exported.", ""),
    Rule("HC308", "error", "a server is not read", "Of several one gives no metrics, or impossible ones.", ""),
)  # fmt: skip
"""Every rule of ``hybridcalc live``."""
_BY_ID = {rule.id: rule for rule in RULES}


def percent(share: float) -> str:
    """``35 %``."""
    return f"{100 * share:.0f} %"


def finding(rule: str, message: str, fix: str = "") -> Finding:
    """A finding of a rule of this room."""
    return Finding(rule, _BY_ID[rule].severity, message, fix)


@dataclass(frozen=True, slots=True)
class Live:
    """The answer of ``hybridcalc live`` for one scrape of the workers of one engine and model, the ``others`` apart.

    ``told``: findings of a plan that they are held to, and of servers that were not read; ``held``: what is as planned;
    ``since`` when counters grew; ``fix``: what would let the start be planned.
    """

    workers: tuple[Worker, ...]
    verdicts: tuple[str | None, ...]
    plan: Answer | None
    how: str
    planned: Mapping[str, Any]
    suggestions: tuple[Suggestion, ...]
    others: tuple["Live", ...] = ()
    told: tuple[Finding, ...] = ()
    held: tuple[str, ...] = ()
    since: str = "the start"
    fix: str = ""

    @property
    def findings(self) -> tuple[Finding, ...]:
        """What is told of these workers: what follows from their figures, and what was found beside them."""
        return (*self.told, *_findings(self))

    @property
    def engine(self) -> str:
        """Of the first worker."""
        return self.workers[0].engine

    @property
    def running(self) -> int:
        """Requests that run, on all workers."""
        return round(sum(worker.running for worker in self.workers))

    @property
    def queued(self) -> int:
        """Requests that wait, on all workers."""
        return round(sum(worker.queued for worker in self.workers))

    def total(self, pool: str, what: str = "size") -> int | None:
        """All units of a pool over the workers, or those ``used`` or ``cached``; None where one does not say."""
        figures = [getattr(worker.pools[pool], what) for worker in self.workers if pool in worker.pools]
        return round(sum(figures)) if figures and None not in figures else None

    def share(self, pool: str) -> float | None:
        """The part of a pool in use, of the fullest worker."""
        shares = [worker.pools[pool].share for worker in self.workers if pool in worker.pools]
        return max((share for share in shares if share is not None), default=None)

    def each(self, pool: str) -> float | None:
        """What a running request holds of a pool, over the workers."""
        holding = [worker for worker in self.workers if worker.each(pool) is not None]
        running = sum(worker.running for worker in holding)
        return sum(worker.pools[pool].used or 0 for worker in holding) / running if running else None

    def counter(self, name: str) -> float | None:
        """A counter over the workers; None where none has it."""
        counts = [worker.counters[name] for worker in self.workers if name in worker.counters]
        return sum(counts) if counts else None

    def rate(self, name: str, part: str, whole: str) -> float | None:
        """The share that one counter is of another, over the workers; else the mean of what they say of themselves."""
        of = self.counter(whole)
        if of:
            return (self.counter(part) or 0.0) / of
        said = [worker.rates[name] for worker in self.workers if name in worker.rates]
        return sum(said) / len(said) if said else None

    @property
    def hit_rate(self) -> float | None:
        """The share of tokens of prompts that were cached."""
        return self.rate("hit_rate", "prefix_hits", "prefix_queries")

    @property
    def accept_rate(self) -> float | None:
        """The share of drafts that were accepted."""
        drafted = self.rate("accept_rate", "accepted", "drafted")
        return drafted or None if self.counter("drafted") is None else drafted

    @property
    def binding(self) -> str | None:
        """What binds: on the worker with the most waiting."""
        return self.verdicts[self.first]

    @property
    def first(self) -> int:
        """The place of the worker with the most waiting."""
        return max(range(len(self.workers)), key=lambda place: self.workers[place].queued)

    @property
    def most(self) -> int | None:
        """Requests that the state slots of all workers let run; None where it is not known how many each takes."""
        slots, sizes = self.planned.get("slots_per_request"), [worker.pools.get(STATE) for worker in self.workers]
        known = [pool.size for pool in sizes if pool is not None and pool.size is not None]
        return sum(int(size // slots) for size in known) if slots and len(known) == len(sizes) else None

    def to_dict(self) -> dict[str, Any]:
        """The keys of ``live --json``."""
        more = {"others": [other.to_dict() for other in self.others]} if self.others else {}
        return {
            "engine": self.engine,
            "engine_version": self.workers[0].version,
            "model": self.workers[0].model,
            "workers": len(self.workers),
            "K": self.total(STATE),
            "T": self.total(KV),
            "num_blocks": self.total(BLOCKS),
            "requests_running": self.running,
            "requests_queued": self.queued,
            "slots_per_request_held": rounded(self.each(STATE)),
            "slots_per_request": self.planned.get("slots_per_request"),
            "tokens_per_request": rounded(self.each(KV)),
            "usage": {pool: rounded(share) for pool in (STATE, KV, BLOCKS) if (share := self.share(pool)) is not None},
            "cached": {pool: count for pool in (STATE, KV) if (count := self.total(pool, "cached")) is not None},
            "binding": self.binding,
            "ratio": self.planned.get("ratio"),
            "planned_from": self.how or None,
            "hit_rate": rounded(self.hit_rate),
            "accept_rate": rounded(self.accept_rate),
            "counters": {
                name: self.counter(name) for name in dict.fromkeys(n for one in self.workers for n in one.counters)
            },
            "per_worker": [_of_worker(*pair) for pair in zip(self.workers, self.verdicts, strict=True)],
            "findings": [found.to_dict() for found in self.findings],
            "suggestions": [one.to_dict() for one in self.suggestions],
            **more,
        }


def _of_worker(worker: Worker, verdict: str | None) -> dict[str, Any]:
    """One worker of ``live --json``."""
    return {
        "source": worker.source,
        "name": worker.name or None,
        "requests_running": round(worker.running),
        "requests_queued": round(worker.queued),
        "limit": worker.limit,
        "usage": {pool: rounded(held.share) for pool, held in worker.pools.items() if held.share is not None},
        "binding": verdict,
    }


def rounded(value: float | None) -> float | None:
    """To four digits behind the point."""
    return None if value is None else round(value, 4)


def judge(workers: Sequence[Worker], planner: Planner) -> Live:
    """What binds on each of ``workers``, with the planner where the model is known."""
    kinds: dict[tuple[str, str | None], list[Worker]] = {}
    for worker in workers:
        kinds.setdefault((worker.engine, worker.model), []).append(worker)
    first, *others = sorted(
        (_judged(own, planner) for own in kinds.values()), key=lambda one: (-one.queued, -one.running)
    )
    return replace(first, others=tuple(others))


def _judged(workers: Sequence[Worker], planner: Planner) -> Live:
    first = max(workers, key=lambda worker: (worker.queued, worker.running))
    model = model_of(first, planner.asked)
    plans, how = planner.plans(first, model)
    plan = plans[0] if plans else None
    planned = {} if plan is None else plan.to_dict()
    given = how == GIVEN
    workers = [_sized(worker, planned.get("engine_figures", {}), limited=given) for worker in workers]
    verdicts = tuple(binding(worker, planned.get("slots_per_request")) for worker in workers)
    found = Live(tuple(workers), verdicts, plan, how, planned, agreed(plans), fix=_wanted(model, planner.asked))
    more = () if plan is None or found.binding != LIMIT else planner.more(first, plan, found.running + found.queued)
    return replace(found, suggestions=(*more, *found.suggestions))


def _wanted(model: Architecture | None, asked: LiveQuestion) -> str:
    """What would let a start be planned that is not."""
    if asked.args is not None:
        return "name --model" if model is None else "is it the launch line of this server, and its model?"
    own = "name --model and" if model is None else "name another --model, or"
    return f"{own} the launch line, --command LINE"


def planned_names(worker: Worker) -> Mapping[str, str]:
    """Pools and the limit of requests -> the figure of a plan that each is held against, as the engine has them."""
    names: Mapping[str, str] = getattr(room(worker.engine, "live"), "PLANNED", {})
    return names


def _sized(worker: Worker, figures: Mapping[str, Any], *, limited: bool) -> Worker:
    """With the size of a pool that the server does not say, as it is planned; of a launch line the limit too."""
    pools = dict(worker.pools)
    names = planned_names(worker)
    limit = figures.get(names.get(LIMIT, ""))
    if limited and worker.limit is None and isinstance(limit, int) and limit >= worker.running:
        worker = worker._replace(limit=float(limit))
    for pool, name in names.items():
        held = pools.get(pool)
        if held is not None and held.size is None and held.part is None and isinstance(figures.get(name), int):
            pools[pool] = held._replace(size=float(figures[name]))
    return worker._replace(pools=pools)


def model_of(worker: Worker, asked: LiveQuestion) -> Architecture | None:
    """The model that is given, else that whose preset has a name that the worker says."""
    if asked.model is not None:
        return asked.model
    for name in (worker.model, worker.settings.get("model_path")):
        if isinstance(name, str) and (preset := find_preset(name)):
            return load_model(preset[0])
    return None


def binding(worker: Worker, slots: int | None, *, preempted: bool = False) -> str | None:
    """What the requests that wait on a worker wait for; None where none waits. ``slots``: those of a request, where
    they are known; ``preempted``: some were since the last scrape.
    """
    if not worker.queued:
        return None
    if worker.waiting <= 0:
        return OTHER
    if worker.reasons.get(PLACE):
        return LIMIT
    states, kv = worker.pools.get(STATE), worker.pools.get(KV) or worker.pools.get(BLOCKS)
    if states is not None and states.size and states.used is not None and worker.running:
        held = states.used / worker.running
        each = (slots,) if slots else [number for number in LIKELY_SLOTS if number >= held]
        reached = [states.size // number for number in each]
        if (slots and worker.running >= reached[0]) or (not slots and worker.running in reached):
            return STATE
    if states is not None and (states.share or 0) > FULL:
        return STATE
    if worker.retracted or preempted or (kv is not None and (kv.share or 0) > FULL):
        return BLOCKS if BLOCKS in worker.pools else KV
    if worker.limit is not None and worker.running >= worker.limit:
        return LIMIT
    if worker.reasons.get(CAPACITY, 0) and BLOCKS in worker.pools:
        return LIMIT
    return OTHER


def _findings(live: Live) -> Iterator[Finding]:
    first, bound = live.workers[live.first], live.binding
    waiting, verb = requests_text(live.queued), "waits" if live.queued == 1 else "wait"
    running = f"{live.running:,} run{'s' if live.running == 1 else ''}"
    if bound == STATE:
        pool, each = first.pools[STATE], first.each(STATE)
        share = (
            f"{percent(pool.share or 0)} of the slots are in use, {each:.1f} a running request"
            if each
            else "its slots are full"
        )
        yield finding("HC300", f"{waiting} {verb} and {running}: {share}")
    elif bound in (KV, BLOCKS):
        what = "KV is" if bound == KV else "the blocks are"
        yield finding("HC301", f"{waiting} {verb}: {what} in use to {percent(live.share(bound) or 0)}")
    elif bound == LIMIT:
        limit = f" of {first.limit * len(live.workers):,.0f}" if first.limit else ""
        why = "each waits for a slot" if first.reasons.get(PLACE) else "with memory to spare"
        yield finding("HC302", f"{waiting} {verb} and {live.running:,}{limit} run, {why}")
    elif bound == OTHER:
        told = [f"{count:,.0f} {reason}" for reason, count in first.reasons.items() if count] + list(first.hints)
        if not told and first.limit is None:
            told = ["the limit of requests is not known here"]
        reasons = f": {', '.join(told)}" if told else ""
        yield finding("HC303", f"{waiting} {verb}, and no pool is full{reasons}")
    yield from _losses(live)
    if live.hit_rate == 0 and live.running:
        yield finding("HC305", "no token of a prompt was found cached")
    counted = {STATE: "slots", KV: "tokens", BLOCKS: "blocks"}
    unknown = [
        name
        for pool, name in counted.items()
        if pool in first.pools and first.pools[pool].part is not None and first.pools[pool].size is None
    ]
    if unknown:
        yield finding("HC306", f"this release exports shares of its {' and '.join(unknown)}, no counts")
    if first.reasons.get(PLACE) and first.limit is None:
        yield finding("HC306", "neither /props nor /slots says how many slots there are", fix="add --command LINE")
    yield from _unplanned(live)


def _unplanned(live: Live) -> Iterator[Finding]:
    """Why nothing is suggested, or of what else than this server."""
    if live.plan is None:
        if live.how:
            yield finding("HC306", live.how, fix=live.fix)
        return
    if live.how and live.plan.workload.mean_length is None and not live.suggestions:
        why = "it is not exported how long requests are: nothing is suggested"
        yield finding("HC306", why, fix="add -L LENGTH, the tokens of a request")
    here, planned = live.workers[live.first].block_tokens, live.planned.get("engine_figures", {}).get(BLOCK_TOKENS)
    if here and isinstance(planned, int) and here not in (planned, getattr(live.plan.args, "block_size", None)):
        differ = f"a block has {here:,.0f} tokens here, planned {planned:,}: this is another launch, model or release"
        yield finding("HC306", differ)


def _losses(live: Live) -> Iterator[Finding]:
    """Requests that lost their place."""
    retracted = round(sum(worker.retracted for worker in live.workers))
    if retracted:
        yield finding("HC304", f"{requests_text(retracted)} lost {'its' if retracted == 1 else 'their'} place")
    for name in ("preempted", "retracted"):
        if count := live.counter(name):
            times = "once" if count == 1 else f"{count:,.0f} times"
            yield finding("HC304", f"{times} since {live.since} a request lost its place")
