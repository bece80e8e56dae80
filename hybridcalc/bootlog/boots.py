"""Which records belong to one boot?

    assemble(records) -> boots, in the order of the log     several engines, several starts and all ranks kept apart

A boot ends where its engine starts again: it prints its arguments or begins to load weights after it was done, a
process of the same name has another pid, or a rank repeats a line that a boot prints once with other figures; an
engine's grammar knows more such signs. Lines may come in any order and twice. A boot's memory is bounded: what a
running server repeats is summed up (Serving).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from hybridcalc.bootlog.forms import Form, Grammar
from hybridcalc.bootlog.grammars import COMMON, grammar
from hybridcalc.bootlog.records import Printed, Record, Value

MOST_BOOTS = 1000
MOST_RECORDS = 20_000
"""Of one boot: the largest that ran had 1,024 ranks with a dozen lines each. What is more is left out."""


@dataclass(slots=True)
class Serving:
    """What a running server said, summed up over the lines that were read."""

    lines: int = 0
    last: dict[str, Record] = field(default_factory=dict)
    most_running: int = 0
    most_queued: int = 0
    queued_while_full: int = 0
    most_slots: int = 0
    running_at_most_slots: int = 0
    peak_state_usage: float = 0.0
    peak_kv_usage: float = 0.0

    def add(self, record: Record) -> None:
        """Take one more line in."""
        self.lines += 1
        self.last[record.kind] = record
        running, queued = record.count("running_req") or 0, record.count("queue_req") or 0
        state, kv, percent = (_number(record, name) for name in ("mamba_usage", "full_token_usage", "kv_usage_pct"))
        self.most_running, self.most_queued = max(self.most_running, running), max(self.most_queued, queued)
        self.queued_while_full += state >= 0.95 and queued > 0
        slots = record.count("mamba_num") or 0
        if slots > self.most_slots:
            self.most_slots, self.running_at_most_slots = slots, running
        self.peak_state_usage = max(self.peak_state_usage, state)
        self.peak_kv_usage = max(self.peak_kv_usage, kv, percent / 100)

    def last_figures(self) -> dict[str, tuple[Value, Record]]:
        """The last printed value of each figure; one that the newest line of its kind leaves out is not known."""
        said: dict[str, tuple[Value, Record]] = {}
        for record in sorted(self.last.values(), key=lambda record: record.line):
            said |= {name: (value, record) for name, value in record.figures}
        return said


class Boot:
    """One start of one engine: what it said in the order of the log, and the serving after it."""

    def __init__(self, grammar: Grammar) -> None:
        self.grammar, self.serving = grammar, Serving()
        self.statements: list[Record] = []
        self.left_out = 0
        self._seen: set[object] = set()
        self._by_kind: dict[str, list[Record]] = {}
        self._firsts: dict[str, dict[str, Record]] = {}
        self._places: dict[int, int] = {}
        self._pids: dict[str, str] = {}

    @property
    def engine(self) -> str:
        """The engine's name; "" where no line says which it is."""
        return self.grammar.name

    @property
    def line(self) -> int:
        """The first line that belongs to it."""
        return min((record.line for record in self.records()), default=1)

    @property
    def ranks(self) -> list[str]:
        """The ranks that are named, in their order of appearance."""
        return list(dict.fromkeys(record.rank for record in self.records() if record.rank))

    def records(self) -> list[Record]:
        """Everything it printed, by line."""
        return sorted([*self.statements, *self.serving.last.values()], key=lambda record: record.line)

    def form(self, kind: str) -> Form:
        """What a kind of line says of a start."""
        return self.grammar.kinds.get(kind) or COMMON.kinds.get(kind) or Form(kind, "")

    def of(self, kind: str) -> list[Record]:
        """Statements of one kind."""
        return self._by_kind.get(kind, [])

    def firsts(self, kind: str) -> dict[str, Record]:
        """The first record of a kind that each rank printed, by rank."""
        return self._firsts.get(kind, {})

    def first_of(self, kind: str, rank: str) -> Record | None:
        """The first record of a kind that the rank printed, or, where one of the two is not named, may have."""
        firsts = self.firsts(kind)
        return (firsts.get(rank) or firsts.get("")) if rank else next(iter(firsts.values()), None)

    def place(self, record: Record) -> int:
        """The number of statements before this one."""
        return self._places[id(record)]

    def first(self, kind: str, figure: str) -> Value | None:
        """The first value that a kind of statement prints."""
        return next((value for record in self.of(kind) if (value := record.get(figure)) is not None), None)

    def count(self, kind: str, figure: str) -> int | None:
        """The first value that a kind of statement prints, where it is a count."""
        value = self.first(kind, figure)
        return value if isinstance(value, int) else None

    def size(self, kind: str, figure: str) -> Printed | None:
        """The first value that a kind of statement prints, where it is a printed size or number."""
        value = self.first(kind, figure)
        return value if isinstance(value, Printed) else None

    def word(self, kind: str, figure: str) -> str | None:
        """The first value that a kind of statement prints, where it is a word."""
        value = self.first(kind, figure)
        return value if isinstance(value, str) else None

    @property
    def started(self) -> bool | None:
        """Whether it got up; None where the log does not say."""
        if self.errors:
            return False
        return True if any(self.form(kind).up for kind in self._by_kind) else None

    @property
    def errors(self) -> list[Record]:
        """What it died of: refusals and failures, unless it was up and running after them."""
        ready = max((record.line for record in self.of("ready")), default=0)
        failed = [s for s in self.statements if s.line > ready and self.form(s.kind).failed(s)]
        if not failed:
            return []
        said = [s for s in failed if not self.form(s.kind).aftermath]
        forms = ((record, self.form(record.kind)) for record in self.records())
        went_on = max((record.line for record, form in forms if form.settled or form.serving), default=0)
        return said or [s for s in failed if s.line >= went_on][:1]

    @property
    def empty(self) -> bool:
        """Whether nothing but marks was read."""
        return not self.serving.lines and all(self.form(kind).mark for kind in self._by_kind)

    def begins_anew(self, record: Record) -> bool:
        """Whether ``record`` can only belong to a later start of this engine."""
        form = self.form(record.kind)
        if form.serving:
            return False
        if self.grammar.starts_anew is not None and self.grammar.starts_anew(self, record):
            return True
        if form.starts and any(self.form(kind).up or self.form(kind).error is not None for kind in self._by_kind):
            return not self._pasted_again(record)
        name, _, pid = record.process.partition(" pid=")
        if name not in self.grammar.workers and self._pids.get(name, pid) != pid:
            return True
        before = None if form.repeats else self.firsts(record.kind).get(record.rank)
        return before is not None and before.said != record.said

    def _pasted_again(self, record: Record) -> bool:
        """Whether a mark of a start is an old one: the same line, from another rank or pasted twice, starts nothing."""
        if record.kind != "weights_begin":
            return False
        return any(s.rank != record.rank and s.figures == record.figures for s in self.of(record.kind))

    def add(self, record: Record) -> None:
        """Take a record in; one that says what was said before adds nothing."""
        if self.form(record.kind).serving:
            self.serving.add(record)
            return
        said = record.said
        if said in self._seen:
            return
        if len(self._seen) >= MOST_RECORDS:
            self.left_out += 1
            return
        self._seen.add(said)
        self._places[id(record)] = len(self.statements)
        self.statements.append(record)
        self._by_kind.setdefault(record.kind, []).append(record)
        self._firsts.setdefault(record.kind, {}).setdefault(record.rank, record)
        name, _, pid = record.process.partition(" pid=")
        if pid:
            self._pids.setdefault(name, pid)

    def changed(self, change: Callable[[Record], Record]) -> Boot:
        """The same boot with other statements."""
        other = Boot(self.grammar)
        for record in self.statements:
            other.add(change(record))
        other.serving, other.left_out = self.serving, self.left_out
        return other


class Assembly(NamedTuple):
    """The boots of a log, and how many there were beyond those that are kept."""

    boots: list[Boot]
    dropped: int


def assemble(records: Iterable[Record]) -> Assembly:
    """Boots in the order of their first lines. Records of no engine (an OOM) go to the boot that spoke last."""
    boots: list[Boot] = []
    current: dict[str, Boot] = {}
    latest, dropped, waiting = "", 0, list[Record]()
    for record in records:
        engine = record.engine or latest
        if not engine:
            waiting.append(record)
            continue
        boot = current.get(engine)
        if boot is None or boot.begins_anew(record):
            if boot is not None and boot.empty:
                boots.remove(boot)
            boot = current[engine] = Boot(grammar(engine))
            if len(boots) >= MOST_BOOTS:
                dropped += 1
                del boots[MOST_BOOTS // 2]
            boots.append(boot)
        latest = engine
        boot.add(record)
    if waiting and not boots:
        boots.append(Boot(COMMON))
    for record in waiting:
        boots[0].add(record)
    return Assembly([boot for boot in boots if not boot.empty], dropped)


def _number(record: Record, name: str) -> float:
    value = record.size(name)
    return value.number if value is not None else 0.0
