"""Which pool binds on a running server, and what to set.

    requests wait and running >= K // S             the state pool binds, though slots read 4 of 5 in use
    requests wait and KV, or blocks, above 95 %     KV binds; so too where requests are retracted, or preempted
                                                    since the last scrape
    requests wait and running >= the limit          the limit binds
    requests wait, and none of these                no pool: adapters, grammars, transfers, a router

With the model known, the start is planned again: its memory is what makes the pools as they are; without a launch line
ranks and KV dtype are those at which the default ratio gives just these pools. Suggestions are the planner's, at the
length that a request really has.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import product
from typing import Any, NamedTuple

from hybridcalc.architecture.geometry import Architecture
from hybridcalc.deployment import Workload, exact_rest, requests_text
from hybridcalc.engines import ENGINES
from hybridcalc.engines.answer import Answer
from hybridcalc.engines.engine import Engine
from hybridcalc.engines.sweep import Outcome, Sweeping
from hybridcalc.errors import HybridcalcError
from hybridcalc.findings import Finding, Rule
from hybridcalc.live.worker import BLOCKS, KV, LIMIT, OTHER, STATE, Worker
from hybridcalc.steps import Suggestion

FULL = 0.95
"""Share of KV from which a waiting request no longer fits: the last blocks are never all in use."""
LIKELY_SLOTS = range(1, 10)
"""Slots that a request may hold, where nothing says how many."""
LIKELY_TP, LIKELY_KV = (1, 2, 4, 8, 16), (None, "fp8_e4m3")
MOST_GIB = 2.0**12
HALVINGS = 60
NAMES = {STATE: "the state pool", KV: "KV", BLOCKS: "the blocks", LIMIT: "the limit of requests", OTHER: "no pool"}

RULES = (
    Rule("HC300", "warning", "requests wait for the state pool",
         "K // S requests run, whatever share of the slots is in use: a request keeps S slots and fills fewer.",
         "SGLang mem_cache/memory_pool.py"),
    Rule("HC301", "warning", "requests wait for KV", "Tokens, or blocks, are in use but for a few.", ""),
    Rule("HC302", "warning", "requests wait for a limit", "--max-running-requests, max_num_seqs, -np.", ""),
    Rule("HC303", "note", "requests wait, and no pool is full",
         "Adapters, grammars, transfers of KV or a router hold them back; no memory would help.", ""),
    Rule("HC304", "warning", "running requests lose their place",
         "They are retracted or preempted and computed again: KV was promised twice.", ""),
    Rule("HC305", "note", "no prefix is found again", "No request found a token of its prompt cached.", ""),
    Rule("HC306", "note", "what is not known of this server", "No counts are exported, or no model is named.", ""),
    Rule("HC307", "error", "pools are not as planned", "K, T, blocks or the limit differ from the plan.", ""),
)  # fmt: skip
"""Every rule of ``hybridcalc live``."""
_BY_ID = {rule.id: rule for rule in RULES}


def percent(share: float) -> str:
    """``35 %``."""
    return f"{100 * share:.0f} %"


def finding(rule: str, message: str, fix: str = "") -> Finding:
    """A finding of a rule of this room."""
    return Finding(rule, _BY_ID[rule].severity, message, fix)


class LiveQuestion(NamedTuple):
    """What is known beside the metrics: the model, the launch (its engine and arguments), and the length."""

    model: Architecture | None = None
    engine: str | None = None
    args: Any = None
    length: int | None = None


@dataclass(frozen=True, slots=True)
class Live:
    """The answer of ``hybridcalc live`` for one scrape of all workers."""

    workers: tuple[Worker, ...]
    verdicts: tuple[str | None, ...]
    plan: Answer | None
    how: str
    planned: Mapping[str, Any]
    suggestions: tuple[Suggestion, ...]
    findings: tuple[Finding, ...]

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

    def size(self, pool: str) -> int | None:
        """All units of a pool, over the workers; None where one does not say."""
        sizes = [worker.pools[pool].size for worker in self.workers if pool in worker.pools]
        return round(sum(size or 0 for size in sizes)) if sizes and None not in sizes else None

    def share(self, pool: str) -> float | None:
        """The part of a pool in use, of the fullest worker."""
        shares = [worker.pools[pool].share for worker in self.workers if pool in worker.pools]
        return max(shares, default=None)

    def each(self, pool: str) -> float | None:
        """What a running request holds of a pool, over the workers."""
        holding = [worker for worker in self.workers if worker.each(pool) is not None]
        running = sum(worker.running for worker in holding)
        return sum(worker.pools[pool].used for worker in holding) / running if running else None

    @property
    def binding(self) -> str | None:
        """What binds: on the worker with the most waiting."""
        waiting = max(range(len(self.workers)), key=lambda place: self.workers[place].queued)
        return self.verdicts[waiting]

    @property
    def most(self) -> int | None:
        """Requests that run at most, as far as that follows from the pools."""
        return None if self.plan is None else self.plan.requests

    def to_dict(self) -> dict[str, Any]:
        """The keys of ``live --json``."""
        return {
            "engine": self.engine,
            "engine_version": self.workers[0].version,
            "model": self.workers[0].model,
            "workers": len(self.workers),
            "K": self.size(STATE),
            "T": self.size(KV),
            "num_blocks": self.size(BLOCKS),
            "requests_running": self.running,
            "requests_queued": self.queued,
            "slots_per_request_held": _rounded(self.each(STATE)),
            "slots_per_request": self.planned.get("slots_per_request"),
            "tokens_per_request": _rounded(self.each(KV)),
            "usage": {pool: _rounded(share) for pool in (STATE, KV, BLOCKS) if (share := self.share(pool)) is not None},
            "binding": self.binding,
            "ratio": self.planned.get("ratio"),
            "planned_from": self.how or None,
            "counters": dict(self.workers[0].counters),
            "findings": [found.to_dict() for found in self.findings],
            "suggestions": [one.to_dict() for one in self.suggestions],
        }


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 4)


def judge(workers: Sequence[Worker], asked: LiveQuestion) -> Live:
    """What binds on each of ``workers``, with the planner where the model is known."""
    first = max(workers, key=lambda worker: (worker.queued, worker.running))
    plans, how = replanned(first, asked)
    plan = plans[0] if plans else None
    planned = {} if plan is None else plan.to_dict()
    verdicts = tuple(binding(worker, planned.get("slots_per_request")) for worker in workers)
    found = Live(tuple(workers), verdicts, plan, how, planned, _agreed(plans), ())
    return replace(found, findings=tuple(_findings(found, first)))


def _agreed(plans: Sequence[Answer]) -> tuple[Suggestion, ...]:
    """The suggestions of a plan that every other one makes as well, with the same gain."""
    others = [{(each.flags, each.after) for each in plan.suggestions} for plan in plans[1:]]
    first = plans[0].suggestions if plans else ()
    return tuple(each for each in first if all((each.flags, each.after) in own for own in others))


def binding(worker: Worker, slots: int | None, *, preempted: bool = False) -> str | None:
    """What the requests that wait on a worker wait for; None where none waits. ``slots``: those of a request, where
    they are known; ``preempted``: some were since the last scrape.
    """
    if not worker.queued:
        return None
    states, kv = worker.pools.get(STATE), worker.pools.get(KV) or worker.pools.get(BLOCKS)
    if states is not None and states.size and worker.running:
        held = states.used / worker.running
        each = (slots,) if slots else [number for number in LIKELY_SLOTS if number >= held]
        reached = [states.size // number for number in each]
        if (slots and worker.running >= reached[0]) or (not slots and worker.running in reached):
            return STATE
    if states is not None and states.share > FULL:
        return STATE
    if worker.retracted or preempted or (kv is not None and kv.share > FULL):
        return BLOCKS if BLOCKS in worker.pools else KV
    if worker.limit is not None and worker.running >= worker.limit:
        return LIMIT
    if worker.reasons.get("capacity", 0) and BLOCKS in worker.pools:
        return LIMIT
    return OTHER


def _findings(live: Live, first: Worker) -> Iterator[Finding]:
    bound, waiting = live.binding, requests_text(live.queued)
    verb = "waits" if live.queued == 1 else "wait"
    if bound == STATE:
        pool = first.pools[STATE]
        each = first.each(STATE)
        share = (
            f"{percent(pool.share)} of the slots are in use, {each:.1f} a running request"
            if each
            else "its slots are full"
        )
        yield finding("HC300", f"{waiting} {verb} and {first.running:,.0f} run: {share}")
    elif bound in (KV, BLOCKS):
        what = "KV is" if bound == KV else "the blocks are"
        yield finding("HC301", f"{waiting} {verb}: {what} in use to {percent(live.share(bound) or 0)}")
    elif bound == LIMIT:
        limit = f" of {first.limit:,.0f}" if first.limit else ""
        yield finding("HC302", f"{waiting} {verb} and {first.running:,.0f}{limit} run, with memory to spare")
    elif bound == OTHER:
        reasons = ", ".join(f"{count:,.0f} {reason}" for reason, count in first.reasons.items() if count)
        yield finding("HC303", f"{waiting} {verb}, and no pool is full{f': {reasons}' if reasons else ''}")
    retracted = round(sum(worker.retracted for worker in live.workers))
    preempted = sum(worker.counters.get("preempted", 0) for worker in live.workers)
    if retracted:
        yield finding("HC304", f"{requests_text(retracted)} lost {'its' if retracted == 1 else 'their'} place")
    if preempted:
        yield finding("HC304", f"{preempted:,.0f} times since the start a request lost its place")
    rates = [worker.counters["hit_rate"] for worker in live.workers if "hit_rate" in worker.counters]
    if rates and not max(rates) and live.running:
        yield finding("HC305", "no token of a prompt was found cached")
    counted = {STATE: "slots", KV: "tokens", BLOCKS: "blocks"}
    unknown = [name for pool, name in counted.items() if pool in first.pools and first.pools[pool].size is None]
    if unknown:
        yield finding("HC306", f"this release exports shares of its {' and '.join(unknown)}, no counts")
    if live.plan is None and live.how:
        yield finding("HC306", live.how, fix="name --model and the launch line, --command LINE")


def replanned(worker: Worker, asked: LiveQuestion) -> tuple[tuple[Answer, ...], str]:
    """Plans of the starts whose pools are those of a worker, and how they were found; or none, and why not."""
    served = ENGINES.get(worker.engine)
    if served is None or served.sweeping is None:
        return (), ""
    if asked.model is None:
        return (), "no model is known here: nothing is planned"
    length = asked.length or _length(worker)
    workload = Workload.at(length) if length else Workload()
    found: list[tuple[Answer, str]] = []
    for args, how in _candidates(served, worker, asked):
        try:
            rest = memory_of(served, asked.model, args, worker, workload)
            if rest is not None:
                found.append((served.plan(asked.model, args, exact_rest(rest, "what makes its pools"), workload), how))
        except HybridcalcError:
            continue
    if not found:
        return (), f"no start of {asked.model.name} gives these pools"
    if len({plan.requests for plan, _ in found}) > 1:
        return (), f"{len(found)} starts of {asked.model.name} give these pools, with other figures each"
    return tuple(plan for plan, _ in found), " or ".join(how for _, how in found)


def _length(worker: Worker) -> int | None:
    tokens = worker.each(KV)
    return max(1, round(tokens)) if tokens else None


def _candidates(served: Engine, worker: Worker, asked: LiveQuestion) -> Iterator[tuple[Any, str]]:
    """Arguments that the server may have been started with: its own, or the likely ones."""
    if asked.args is not None:
        yield asked.args, "the launch line"
        return
    if worker.launch:
        try:
            line = ENGINES.launch(worker.launch)
            yield served.read(line.words, line.variables, unknown=[])[1], "its own launch command"
        except HybridcalcError:
            pass
        else:
            return
    base = served.read([], {})[1]
    known = {
        name: value for name, value in worker.settings.items() if name in served.flags.by_field and hasattr(base, name)
    }
    if served.renamed.get("tp_size", "tp_size") in known:
        with suppress(HybridcalcError, TypeError):
            args = replace(base, **known)
            served.check_arguments(args)
            yield args, "what the server says of its arguments"
        return
    for tp, dtype in product(LIKELY_TP, LIKELY_KV if "kv_cache_dtype" not in known else (None,)):
        given: dict[str, Any] = {"tp_size": tp} | ({"kv_cache_dtype": dtype} if dtype else {})
        try:
            args = served.with_options(replace(base, **known), given)
            served.check_arguments(args)
        except (HybridcalcError, TypeError):
            continue
        yield args, f"--tp {tp}{f' --kv-cache-dtype {dtype}' if dtype else ''}"


def memory_of(served: Engine, model: Architecture, args: Any, worker: Worker, workload: Workload) -> float | None:
    """The memory, GiB, with which a start makes the pools of a worker; None where there is none.

    Slots, or blocks, never fall with the memory; between two of their steps tokens do not either. So halving finds
    first the memories with just so many slots, and among them the one with just so many tokens.
    """
    sweeping: Sweeping = served.sweeping
    units, tokens = worker.pools.get(BLOCKS) or worker.pools.get(STATE), worker.pools.get(KV)
    prepared = sweeping.prepare(model, args)

    def at(gib: float) -> Outcome:
        try:
            return sweeping.solve(prepared, args, gib, workload)
        except HybridcalcError:
            return Outcome(0, 0, 0, "")

    low, high = 0.0, MOST_GIB
    if units is not None and units.size:
        wanted = round(units.size)
        low = _least(lambda gib: at(gib).units >= wanted, low, high)
        high = _least(lambda gib: at(gib).units > wanted, low, high)
        if at(low).units != wanted:
            return None
    if tokens is None or not tokens.size:
        return low if units is not None and units.size else None
    count = round(tokens.size)
    found = _least(lambda gib: at(gib).tokens >= count, low, high)
    return found if at(found).tokens == count and at(found).units == at(low).units else None


def _least(reached: Callable[[float], bool], low: float, high: float) -> float:
    """The least of the memories between the two that has what is wanted, or the greatest where none has."""
    if reached(low):
        return low
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        low, high = (low, middle) if reached(middle) else (middle, high)
    return high


PLANNED = {STATE: "max_mamba_cache_size", KV: "max_total_num_tokens", BLOCKS: "num_blocks"}
"""The figure of a plan that is the size of a pool."""


def expected(live: Live, figures: Mapping[str, Any]) -> Live:
    """With a finding for each pool of a worker that is not of the planned size."""
    found = list(live.findings)
    for worker in live.workers:
        for pool, name in PLANNED.items():
            planned, size = figures.get(name), worker.pools[pool].size if pool in worker.pools else None
            if isinstance(planned, int) and size is not None and round(size) != planned:
                where = worker.name or "the server"
                found.append(finding("HC307", f"{where}: {NAMES[pool]} has {size:,.0f}, planned {planned:,}"))
    return replace(live, findings=tuple(found))
