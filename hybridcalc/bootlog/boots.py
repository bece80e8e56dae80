"""Which records belong to one boot, and what are its figures called?

    assemble(records) -> boots, in the order of the log     several engines, several starts and all ranks kept apart

A boot ends where its engine starts again: it prints its arguments or begins to load weights after it was done, a
process of the same name has another pid, or a rank repeats a line that a boot prints once with other figures. Lines
may come in any order and twice. A boot's memory is bounded: what a running server repeats is summed up (Serving).

`figures` names what a boot printed, one value or a list where ranks, buffers or captures differ (docs/log.md).
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import NamedTuple

from hybridcalc.bootlog.records import KvPoolAllocated, Pool, Printed, Record, Statement, StatePoolAllocated, Value

MOST_BOOTS = 1000
MOST_RECORDS = 20_000
"""Of one boot: the largest that ran had 1,024 ranks with a dozen lines each. What is more is left out."""
LARGEST_GPU_GIB = 1024
"""No rank's memory is larger: a figure beyond is a slip, and counts only where no other is printed."""

_ALIKE = ("VllmWorkerProcess", "RayWorkerWrapper")
"""What all workers of a boot are called, before vLLM gave them ranks."""
_SERVING = frozenset({"running", "prefilling", "serving"})
_STARTS = frozenset({"arguments", "weights_begin", "engine_started", "server_version", "loading"})
ERRORS = {
    "refused_hybrid": "not_enough_memory_hybrid",
    "refused_small": "mamba_cache_too_small",
    "refused_tokens": "not_enough_memory_kv",
    "refused_weights": "no_memory_after_weights",
    "ping_pong": "mamba_ping_pong_exhausted",
    "slots_exhausted": "mamba_cache_exhausted",
    "no_host_memory": "no_host_memory",
    "oom": "cuda_oom",
    "alloc_failed": "cuda_oom",
    "no_memory": "no_available_memory_for_cache_blocks",
    "seqs_exceed_blocks": "max_num_seqs_exceeds_mamba_blocks",
    "one_request_too_big": "kv_cache_below_one_request",
    "no_auto_fit": "no_token_fits",
    "startup_refused": "",
    "compute_failed": "",
    "weights_failed": "",
    "exception": "",
    "engine_failed": "",
}
"""What each refusal is called in ``figures``; "" where the line says no more than that it failed."""
_UNSAID = ("exception", "engine_failed")
"""What a boot ends with whatever the reason: it says something only where nothing else does."""
_REFUSALS = ("refused_hybrid", "refused_small", "refused_tokens", "refused_weights")
_FATAL = ("oom", "ping_pong", "slots_exhausted", "no_host_memory")
"""What a process may die of after its pools stood: another rank's unnamed words say nothing of this one."""
_STEPS_OF_A_START = frozenset({
    "arguments", "weights_begin", "weights_loaded", "kv_dtype", "pools_done", "graph_begin", "graph_captured",
    "summary", "capped", "ready",
})  # fmt: skip
"""Lines of SGLang that a process which refused to start does not come to."""
_DRAFT_CLASS = re.compile(r"NextN|MTP|Draft|Eagle", re.IGNORECASE)
_DONE = frozenset({"summary", "ready", "kv_size", *ERRORS})
_MANY = frozenset({
    "weights_begin", "weights_loaded", "pools_done", "graph_captured", "graph_begin", "oom", "exception", "ready",
    "arguments", "mm_reserve", "loading", "draft_context", "weights_buffer", "kv_buffer", "state_buffer", "kv_total",
    "compute_buffer", "hicache_kv", "hicache_mamba", "kv_dtype", "state_total", "post_capture", "engine_started",
    "server_version", "unified_pool", "context", "engine_failed", "alloc_failed", "compute_failed",
})  # fmt: skip
"""Kinds that a boot may print more than once with different figures: draft models, captures, devices."""


@dataclass(slots=True)
class Serving:
    """What a running server said, summed up over the lines that were read."""

    lines: int = 0
    last: dict[str, Statement] = field(default_factory=dict)
    most_running: int = 0
    most_queued: int = 0
    queued_while_full: int = 0
    most_slots: int = 0
    running_at_most_slots: int = 0
    peak_state_usage: float = 0.0
    peak_kv_usage: float = 0.0

    def add(self, record: Statement) -> None:
        """Take one more line in."""
        self.lines += 1
        self.last[record.kind] = record
        running, queued = _int(record, "running_req", "running"), _int(record, "queue_req", "waiting")
        state, kv = _float(record, "mamba_usage"), _float(record, "full_token_usage")
        self.most_running, self.most_queued = max(self.most_running, running), max(self.most_queued, queued)
        self.queued_while_full += state >= 0.95 and queued > 0
        slots = _int(record, "mamba_num")
        if slots > self.most_slots:
            self.most_slots, self.running_at_most_slots = slots, running
        self.peak_state_usage = max(self.peak_state_usage, state)
        self.peak_kv_usage = max(self.peak_kv_usage, kv, _float(record, "usage") / 100)

    def last_figures(self) -> dict[str, Value]:
        """The last printed value of each figure; one that the newest line of its kind leaves out is not known."""
        said: dict[str, Value] = {}
        for record in sorted(self.last.values(), key=lambda record: record.line):
            said |= dict(record.figures)
        return said


@dataclass(slots=True)
class Boot:
    """One start of one engine: pools and statements in the order of the log, and the serving after it."""

    engine: str
    states: list[StatePoolAllocated] = field(default_factory=list)
    kvs: list[KvPoolAllocated] = field(default_factory=list)
    statements: list[Statement] = field(default_factory=list)
    serving: Serving = field(default_factory=Serving)
    left_out: int = 0
    _seen: set[object] = field(default_factory=set, repr=False)
    _once: dict[tuple[str, str], object] = field(default_factory=dict, repr=False)
    _pids: dict[str, str] = field(default_factory=dict, repr=False)
    _firsts: dict[str, dict[str, Record]] = field(default_factory=dict, repr=False)
    _kinds: set[str] = field(default_factory=set, repr=False)

    @property
    def line(self) -> int:
        """The first line that belongs to it."""
        return min((record.line for record in self.records()), default=1)

    @property
    def ranks(self) -> list[str]:
        """The ranks that are named, in their order of appearance."""
        return list(dict.fromkeys(record.rank for record in self.records() if record.rank))

    @property
    def target_kvs(self) -> list[KvPoolAllocated]:
        """The first KV pool of each rank: later ones are a draft model's."""
        return list({pool.rank: pool for pool in reversed(self.kvs)}.values())[::-1]

    @property
    def draft_kvs(self) -> list[KvPoolAllocated]:
        """KV pools of a draft model."""
        targets = {id(pool) for pool in self.target_kvs}
        return [pool for pool in self.kvs if id(pool) not in targets]

    def records(self) -> list[Record]:
        """Everything it printed, by line."""
        both: list[Record] = [*self.states, *self.kvs, *self.statements, *self.serving.last.values()]
        return sorted(both, key=lambda record: record.line)

    def of(self, kind: str) -> list[Statement]:
        """Statements of one kind."""
        return [statement for statement in self.statements if statement.kind == kind]

    def first(self, kind: str, figure: str) -> Value | None:
        """The first value that a kind of statement prints."""
        return next((v for s in self.of(kind) if (v := s.get(figure)) is not None), None)

    @property
    def errors(self) -> list[Statement]:
        """What it died of: refusals and failures, unless it was up and running after them."""
        ready = max((s.line for s in self.of("ready")), default=0)
        failed = [s for s in self.statements if s.line > ready and (s.kind in ERRORS or _admits_none(s))]
        said = [s for s in failed if s.kind not in _UNSAID]
        went_on = max((r.line for r in self.records() if _goes_on(r)), default=0)
        return said or [s for s in failed if s.line >= went_on][:1]

    @property
    def empty(self) -> bool:
        """Whether nothing but marks was read."""
        marks = {"arguments", "ready", "graph_begin", "loading", "draft_context", "oom", "refused_tokens", "context"}
        failed = any(s.kind in ("oom", "refused_tokens") for s in self.statements)
        said = any(s.kind not in marks for s in self.statements)
        return not (self.states or self.kvs or self.serving.lines or said or failed)

    def begins_anew(self, record: Record) -> bool:
        """Whether ``record`` can only belong to a later start of this engine."""
        if isinstance(record, Statement) and record.kind in _SERVING:
            return False
        if self.engine == "sglang" and (self._refused(record) or self._of_another_model(record)):
            return True
        if self.engine == "llama.cpp" and isinstance(record, Statement) and self._behind_the_draft(record):
            return True
        if not isinstance(record, Statement):
            return self._repeats(record, "state" if isinstance(record, StatePoolAllocated) else "")
        done = not self._kinds.isdisjoint(_DONE)
        if record.kind in _STARTS and done and self.engine != "llama.cpp":
            return _not_repeated(record, self.statements)
        if record.kind == "loading" and self.of("kv_buffer") and not self.of("draft_context"):
            return True
        name, _, pid = record.process.partition(" pid=")
        if name not in _ALIKE and self._pids.get(name, pid) != pid:
            return True
        return record.kind not in _MANY and self._repeats(record, record.kind)

    def _repeats(self, record: Record, kind: str) -> bool:
        before = self._once.get((kind, record.rank)) if kind else None
        if before is not None:
            return before != _said(record)
        other = self._first(kind, record.rank) if kind and self.engine == "sglang" else None
        return other is not None and not _may_be_one(other, record)

    def _first(self, kind: str, rank: str) -> Record | None:
        """The first record of a kind that the rank printed, or, where one of the two is not named, may have."""
        firsts = self._firsts.get(kind, {})
        if not rank:
            return next(iter(firsts.values()), None)
        return firsts.get(rank) or firsts.get("")

    def _refused(self, record: Record) -> bool:
        """Whether a rank that gave up goes on, which only a later start does."""
        if isinstance(record, Statement) and record.kind not in _STEPS_OF_A_START:
            return False
        if any(self._first(kind, record.rank) is not None for kind in _REFUSALS if kind in self._kinds):
            return True
        begins = not isinstance(record, Statement) or record.kind == "weights_loaded"
        fatal = [self._firsts[kind] for kind in _FATAL if kind in self._kinds] if begins else []
        return any(not record.rank or record.rank in ranks for ranks in fatal)

    def _of_another_model(self, record: Record) -> bool:
        """Whether weights or a KV pool are neither the target's nor a draft's: a draft is smaller, loads into what the
        target left, and is there before the rank is up.
        """
        kind = _kind(record)
        first = self._first(kind, record.rank) if kind in ("kv", "weights_loaded") else None
        if first is None:
            return False
        if isinstance(record, KvPoolAllocated) and isinstance(first, KvPoolAllocated):
            bare = record.tokens is None and not _bytes(record)
            if bare and record.dtype and not first.dtype:
                return True  # its dtype alone: a draft's line has sizes
        if _may_be_one(first, record):
            return False
        if isinstance(record, Statement) and isinstance(first, Statement):
            if is_draft(record) or same_model(first, record):
                return False
            size, target = _size(record, "usage"), _size(first, "usage")
            left, before = _size(record, "avail"), _size(first, "avail")
            if size is not None and target is not None and 2 * size > target:
                return True
            if target is None and size is not None and (record.get("model_class") or not first.figures):
                return True
            if left is not None and before is not None and left > before:
                return True
        elif isinstance(record, KvPoolAllocated) and isinstance(first, KvPoolAllocated):
            other_tokens = record.tokens is not None and first.tokens is not None and record.tokens != first.tokens
            if other_tokens and _bytes(record) >= _bytes(first):
                return True
            if record.dtype and first.dtype and record.dtype != first.dtype and record.tokens != first.tokens:
                return True
        up = self._first("summary", record.rank) or self._first("ready", "")
        return up is not None and up.line > first.line

    def _behind_the_draft(self, record: Statement) -> bool:
        """Whether a load of llama.cpp follows the draft context of the one before, which is the last it creates."""
        opened = self._first("draft_context", "")
        drafts = self._firsts.get("draft_kv")
        if opened is None or drafts is None:
            return False
        if record.kind in ("loading", "weights_buffer"):
            return True
        largest = max((_size(s, "size") or 0 for s in self.of("kv_buffer") if s.line < opened.line), default=0)
        return record.kind == "kv_buffer" and (_size(record, "size") or 0) >= largest > 0

    def add(self, record: Record) -> None:
        """Take a record in; one that says what was said before adds nothing."""
        if isinstance(record, Statement) and record.kind in _SERVING:
            self.serving.add(record)
            return
        said = _said(record)
        if said in self._seen:
            return
        if len(self._seen) >= MOST_RECORDS:
            self.left_out += 1
            return
        self._seen.add(said)
        kind = _kind(record)
        if kind == "kv_buffer" and "draft_context" in self._kinds:
            kind = "draft_kv"
        self._kinds.add(kind)
        self._firsts.setdefault(kind, {}).setdefault(record.rank, record)
        if isinstance(record, Statement):
            self.statements.append(record)
            self._once.setdefault((record.kind, record.rank), said)
            name, _, pid = record.process.partition(" pid=")
            if pid:
                self._pids.setdefault(name, pid)
        elif isinstance(record, StatePoolAllocated):
            self.states.append(record)
            self._once.setdefault(("state", record.rank), said)
        else:
            self.kvs.append(record)


class Assembly(NamedTuple):
    """The boots of a log, and how many there were beyond those that are kept."""

    boots: list[Boot]
    dropped: int


def assemble(records: Iterable[Record]) -> Assembly:
    """Boots in the order of their first lines. Records of no engine (an OOM) go to the boot that spoke last."""
    boots: list[Boot] = []
    current: dict[str, Boot] = {}
    latest, dropped, waiting = "", 0, list[Statement]()
    for record in records:
        engine = record.engine if isinstance(record, Statement) else "sglang"
        if not engine:
            engine = latest
        if not engine and isinstance(record, Statement):
            waiting.append(record)
            continue
        boot = current.get(engine)
        if boot is None or boot.begins_anew(record):
            if boot is not None and boot.empty:
                boots.remove(boot)
            boot = current[engine] = Boot(engine)
            if len(boots) >= MOST_BOOTS:
                dropped += 1
                del boots[MOST_BOOTS // 2]
            boots.append(boot)
        latest = engine
        boot.add(record)
    if waiting and not boots:
        boots.append(Boot(""))
    for record in waiting:
        boots[0].add(record)
    return Assembly([boot for boot in boots if not boot.empty], dropped)


def _admits_none(record: Statement) -> bool:
    """Whether a clamp leaves no request: the engine gives up there."""
    return record.kind == "capped" and record.get("max_running_requests") == 0


def _goes_on(record: Record) -> bool:
    """Whether a boot was still under way when it printed this."""
    return not isinstance(record, Statement) or record.kind in _SERVING or record.kind in ("summary", "kv_size")


def _said(record: Record) -> object:
    """A record without its place."""
    if isinstance(record, Statement):
        return (record.kind, record.figures, record.rank, record.process)
    return replace(record, line=0)


def _kind(record: Record) -> str:
    if isinstance(record, Statement):
        return record.kind
    return "state" if isinstance(record, StatePoolAllocated) else "kv"


def _may_be_one(first: Record, second: Record) -> bool:
    """Whether two records differ in nothing that both print: one may be what another rank or a quotation repeats."""
    said = [dict(r.figures) if isinstance(r, Statement) else pool_figures(r) for r in (first, second)]
    return all(
        said[0][name] in (None, value) for name, value in said[1].items() if value is not None and name in said[0]
    )


def _size(record: Statement, name: str) -> Fraction | None:
    value = record.get(name)
    return value.value if isinstance(value, Printed) else None


def _bytes(pool: KvPoolAllocated) -> Fraction:
    return sum((part.value for part in (pool.k, pool.v, pool.kv) if part is not None), Fraction(0))


def is_draft(record: Statement) -> bool:
    """Whether weights are a draft model's by the name of their class."""
    return _DRAFT_CLASS.search(str(record.get("model_class") or "")) is not None


def same_model(first: Statement, second: Statement) -> bool:
    """Whether two weight lines without a rank are two ranks of one model: the same class and about the same size."""
    one, other = _size(first, "usage"), _size(second, "usage")
    named = first.get("model_class") is not None and first.get("model_class") == second.get("model_class")
    return named and not first.rank and one is not None and other is not None and 2 * min(one, other) > max(one, other)


def _not_repeated(record: Statement, before: list[Statement]) -> bool:
    """Whether a mark is a new one: the same line, from another rank or pasted twice, starts nothing."""
    if record.kind in ("arguments", "engine_started", "server_version"):
        return True
    return not any(s.kind == record.kind and s.rank != record.rank and s.figures == record.figures for s in before)


def _int(record: Statement, *names: str) -> int:
    return next((v for name in names if isinstance(v := record.get(name), int)), 0)


def _float(record: Statement, name: str) -> float:
    value = record.get(name)
    return value.number if isinstance(value, Printed) else 0.0


def pool_figures(pool: Pool) -> dict[str, Value | None]:
    """A pool's figures under their names in ``figures``."""
    if isinstance(pool, StatePoolAllocated):
        return {
            "max_mamba_cache_size": pool.slots,
            "conv_gib": pool.conv,
            "ssm_gib": pool.ssm,
            "intermediate_ssm_gib": pool.intermediate_ssm,
            "intermediate_conv_gib": pool.intermediate_conv,
            "max_running_requests": pool.limit,
        }
    return {"kv_tokens": pool.tokens, "kv_dtype": pool.dtype, "k_gib": pool.k, "v_gib": pool.v, "kv_gib": pool.kv}
