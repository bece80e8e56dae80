"""Which records belong to one boot, and what are its figures called?

    assemble(records) -> boots, in the order of the log     several engines, several starts and all ranks kept apart

A boot ends where its engine starts again: it prints its arguments or begins to load weights after it was done, a
process of the same name has another pid, or a rank repeats a line that a boot prints once with other figures. Lines
may come in any order and twice. A boot's memory is bounded: what a running server repeats is summed up (Serving).

`figures` names what a boot printed, one value or a list where ranks, buffers or captures differ (docs/log.md).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from hybridcalc.bootlog.records import KvPoolAllocated, Pool, Printed, Record, Statement, StatePoolAllocated, Value

MOST_BOOTS = 1000
MOST_RECORDS = 20_000
"""Of one boot: the largest that ran had 1,024 ranks with a dozen lines each. What is more is left out."""
LARGEST_GPU_GIB = 1024
"""No rank's memory is larger: a figure beyond is a slip, and counts only where no other is printed."""

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
}
"""What each refusal is called in ``figures``."""
_DONE = frozenset({"summary", "ready", "kv_size", *ERRORS})
_MANY = frozenset({
    "weights_begin", "weights_loaded", "pools_done", "graph_captured", "graph_begin", "oom", "exception", "ready",
    "arguments", "mm_reserve", "loading", "draft_context", "weights_buffer", "kv_buffer", "state_buffer", "kv_total",
    "compute_buffer", "hicache_kv", "hicache_mamba", "kv_dtype", "state_total", "post_capture", "engine_started",
    "server_version", "unified_pool",
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
        return [s for s in self.statements if s.kind in ERRORS and s.line > ready]

    @property
    def empty(self) -> bool:
        """Whether nothing but marks was read."""
        marks = {"arguments", "ready", "exception", "graph_begin", "loading", "draft_context", "oom", "refused_tokens"}
        failed = any(s.kind in ("oom", "refused_tokens") for s in self.statements)
        said = any(s.kind not in marks for s in self.statements)
        return not (self.states or self.kvs or self.serving.lines or said or failed)

    def begins_anew(self, record: Record) -> bool:
        """Whether ``record`` can only belong to a later start of this engine."""
        if not isinstance(record, Statement):
            return self._repeats(record, "state" if isinstance(record, StatePoolAllocated) else "")
        if record.kind in _SERVING:
            return False
        done = any(statement.kind in _DONE for statement in self.statements)
        if record.kind in _STARTS and done and self.engine != "llama.cpp":
            return _not_repeated(record, self.statements)
        if record.kind == "loading" and self.of("kv_buffer") and not self.of("draft_context"):
            return True
        name, _, pid = record.process.partition(" pid=")
        if self._pids.get(name, pid) != pid:
            return True
        return record.kind not in _MANY and self._repeats(record, record.kind)

    def _repeats(self, record: Record, kind: str) -> bool:
        before = self._once.get((kind, record.rank)) if kind else None
        return before is not None and before != _said(record)

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


def _said(record: Record) -> object:
    """A record without its place."""
    if isinstance(record, Statement):
        return (record.kind, record.figures, record.rank, record.process)
    return replace(record, line=0)


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
            "max_mamba_cache_size": pool.slots, "conv_gib": pool.conv, "ssm_gib": pool.ssm,
            "intermediate_ssm_gib": pool.intermediate_ssm, "intermediate_conv_gib": pool.intermediate_conv,
            "max_running_requests": pool.limit,
        }  # fmt: skip
    return {
        "kv_tokens": pool.tokens, "kv_dtype": pool.dtype, "k_gib": pool.k, "v_gib": pool.v, "kv_gib": pool.kv,
    }  # fmt: skip
