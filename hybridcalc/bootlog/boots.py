"""What did one start of an engine say, and what are its printed figures called?

    Grammar     the log of an engine: its forms, and what differs from other engines
    Boot        one start: its statements in the order of the log, and the serving after it

A boot ends where its engine starts again: it prints its arguments or begins to load weights after it was done, a
process of the same name has another pid, or a rank repeats a line that a boot prints once with other figures; an
engine's grammar knows more such signs. Lines may come in any order and twice. A boot's memory is bounded: what a
running server repeats is summed up (Serving).

Figures are one dictionary a boot, one value a name, or the list of distinct values in order of appearance where ranks,
buffers or captures differ. Suffixes are units: ``_gib`` 2**30, ``_mib`` 2**20, ``_gb`` 10**9, ``_pct`` 0 to 100. A
figure is there only if the text prints it, and its form (forms.py) gives it a name; docs/log.md lists them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple, TypeAlias

from hybridcalc.bootlog import Found, Printed, Record, Value
from hybridcalc.bootlog.forms import Form, spelt
from hybridcalc.bootlog.paste import TableRow
from hybridcalc.bootlog.prose import find as find_names
from hybridcalc.units import GIB, MIB

MOST_RECORDS = 20_000
"""Of one boot: the largest that ran had 1,024 ranks with a dozen lines each. What is more is left out."""


class Needle(NamedTuple):
    """A literal, and a letter of its lines that is rare in what a running server says (b"" where none is)."""

    literal: bytes
    rare: bytes = b""


Find: TypeAlias = Callable[[bytes], Iterator[Found]]


def _of_none(_: Boot) -> set[int]:
    return set()


@dataclass(frozen=True)
class Grammar:
    """The log of one engine: its forms, and what differs from other engines in how a log is searched and split.

    ``elsewhere`` are openings that only end the statement before them: of lines that ``find`` reads, or nobody.
    ``needles``: every line of the engine that sizes memory holds one of these literals, or stands beside one that does.
    ``fragments``: pieces of the lines' own words, a pattern; they decide where a chunk holds so many needles that these
    must be somebody's prose. ``samples``: literals of lines that a running server repeats without end. ``starts_anew``:
    what starts another boot beside the forms that say so. ``of_draft``: the records of a boot that are a draft model's,
    by id. ``rehearsed``: kinds of lines that a boot printed of a rehearsal, once the record given is of the real thing;
    with None, those of a boot that is nothing else. ``workers``: names that all worker processes of a start share.
    ``rows``: what is read in a table that somebody wrote.
    """

    name: str
    title: str
    forms: tuple[Form, ...]
    elsewhere: tuple[Form, ...] = ()
    find: Find | None = None
    needles: tuple[Needle, ...] = ()
    fragments: bytes = b""
    samples: tuple[bytes, ...] = ()
    starts_anew: Callable[[Boot, Record], bool] | None = None
    of_draft: Callable[[Boot], set[int]] = _of_none
    rehearsed: Callable[[Boot, Record | None], tuple[str, ...]] | None = None
    workers: tuple[str, ...] = ()
    rows: tuple[TableRow, ...] = ()

    @cached_property
    def kinds(self) -> dict[str, Form]:
        """The form that says what a kind of line means, by kind."""
        return {form.kind: form for form in reversed((*self.forms, *self.elsewhere))}

    @cached_property
    def reported(self) -> dict[tuple[str, str], str]:
        """(kind, figure) -> the name that the figure is reported under. What is not here is not reported."""
        listed = [(form.kind, figure) for form in (*self.forms, *self.elsewhere) for figure in form.figures]
        return {(kind, figure[0]): figure[2] for kind, figure in listed if len(figure) == 3}


_OOM = (
    ("tried", "Tried to allocate {size}"), ("total", "total capacity of {size}"), ("left", "of which {size} is free"),
    ("total", "{size} total"), ("left", "{size} free"),
)  # fmt: skip
_OOMS = rb"O(?=OMs?\b(?:(?!OOM)[^\n\v]|[\n\v](?![\n\v])){0,200}?" + spelt("to allocate") + rb")"
COMMON = Grammar(
    "",
    "",
    (
        Form("oom", "CUDA out of memory.", _OOM, 200, bare=True, repeats=True, error="cuda_oom"),
        Form("oom", "HIP out of memory.", _OOM, 200, bare=True),
        Form("oom", "CUDA error: out of memory", (), 60),
        Form("oom", "NPU out of memory.", _OOM, 200, bare=True),
        Form("oom", "XPU out of memory.", _OOM, 200, bare=True),
        Form("oom", "OOMs ... trying to allocate N", (("tried", "to allocate {size}"),), 300, _OOMS, told=True),
        Form("stopped", "Shutting down", (), 40, repeats=True, mark=True, stops=True),
        Form("stopped", "shutdown triggered", (), 40),
        Form("stopped", "SIGTERM received", (), 40),
        Form("stopped", "Received SIGTERM", (), 40),
        Form("stopped", "Received SIGINT", (), 40),
        Form("gpu_fault", "Memory access fault by GPU", (("why", "Reason: {rest}"),), 300, bare=True, error=""),
        Form("gpu_fault", "an illegal memory access was encountered", (), 60),
    ),
    find=find_names,
    needles=(Needle(b"size", b"z"), Needle(b"GB", b"B"), Needle(b"iB", b"B"), Needle(b"memory", b"E")),
    fragments=rb"GB|GiB|MiB|MB|Loaded w",
)
"""Lines that any engine may print. Sizes with their units, "size" and "memory": every line that sizes memory holds one
of them, or stands right beside one that does; "memory" without a unit is a refusal, and stands behind the name of an
exception. A line that holds none of them has a literal of its own. Logs of a few pages are read as a whole.
"""


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
        """What it died of: refusals and failures, unless it went on as if they had not been."""
        stopped = min((s.line for kind in self._by_kind if self.form(kind).stops for s in self.of(kind)), default=None)
        failed = [s for s in self.statements if s.line > self._mended and self.form(s.kind).failed(s)]
        failed = [s for s in failed if stopped is None or s.line < stopped or not self.form(s.kind).aftermath]
        if not failed:
            return []
        said = [s for s in failed if not self.form(s.kind).aftermath]
        forms = ((record, self.form(record.kind)) for record in self.records())
        went_on = max((record.line for record, form in forms if form.settled or form.serving), default=0)
        return said or [s for s in failed if s.line >= went_on][:1]

    @property
    def recovered(self) -> list[Record]:
        """Failures that it got over."""
        mended = self._mended
        return [s for s in self.statements if s.line <= mended and self.form(s.kind).failed(s)]

    @property
    def _mended(self) -> int:
        """The last line that shows that all failures before it were made good."""
        return max((s.line for kind in self._by_kind if self.form(kind).mends for s in self.of(kind)), default=0)

    @property
    def served(self) -> bool:
        """Whether it was up, and requests may have been answered, before it failed."""
        failed = min((record.line for record in self.errors), default=None)
        up = [s.line for kind in self._by_kind if self.form(kind).up and self.form(kind).mends for s in self.of(kind)]
        return bool(self.serving.lines) or any(failed is None or line < failed for line in up)

    @property
    def empty(self) -> bool:
        """Whether nothing but marks was read, or a rehearsal."""
        only = self.grammar.rehearsed(self, None) if self.grammar.rehearsed is not None else ()
        return not self.serving.lines and all(self.form(kind).mark or kind in only for kind in self._by_kind)

    def begins_anew(self, record: Record) -> bool:
        """Whether ``record`` can only belong to a later start of this engine."""
        form = self.form(record.kind)
        if form.serving:
            return False
        if record.sorted:
            first = self.firsts(record.kind).get(record.rank)
            return first is not None and not form.repeats and not first.agrees(record)
        if self.grammar.starts_anew is not None and self.grammar.starts_anew(self, record):
            return True
        if form.starts and any(self.form(kind).up or self.form(kind).error is not None for kind in self._by_kind):
            return not self._pasted_again(record) and not self._pasted_late(record)
        name, _, pid = record.process.partition(" pid=")
        if name not in self.grammar.workers and self._pids.get(name, pid) != pid:
            return True
        if record.told and pid and name not in self._pids and self.errors:
            return True  # a table behind a refusal
        before = None if form.repeats else self.firsts(record.kind).get(record.rank)
        if before is None or before.said == record.said:
            return False
        return not (record.told and not pid and before.agrees(record))  # a sentence that goes on

    def _pasted_again(self, record: Record) -> bool:
        """Whether a mark of a start is an old one: the same line, from another rank or pasted twice, starts nothing."""
        if record.kind != "weights_begin":
            return False
        return any(s.rank != record.rank and s.figures == record.figures for s in self.of(record.kind))

    def _pasted_late(self, record: Record) -> bool:
        """Whether a mark of a start is this one's, pasted behind its figures: its clock is older than all of them."""
        clocks = [s.clock for s in self.statements if s.clock and not self.form(s.kind).starts]
        return bool(record.clock and clocks) and record.clock < min(clocks) and not self.of(record.kind)

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

    def changed(self, change: Callable[[Record], Record | None]) -> Boot:
        """The same boot with other statements, or without those of which None is made."""
        other = Boot(self.grammar)
        for record in self.statements:
            if (changed := change(record)) is not None:
                other.add(changed)
        other.serving, other.left_out = self.serving, self.left_out
        return other


def _number(record: Record, name: str) -> float:
    value = record.size(name)
    return value.number if value is not None else 0.0


LARGEST_GPU_GIB, LARGEST_WEIGHTS_GIB = 1024, 512
"""No rank's memory is larger: a figure beyond is a slip, and counts only where no other is printed."""
_OF_DRAFTS = frozenset({
    "avail_mem_after_weights_gib", "weights_gib", "mem_pool_end_avail_gib", "kv_tokens", "k_gib", "v_gib", "kv_gib",
    "kv_buffer_mib",
})  # fmt: skip
"""Figures of a draft model, reported with "draft_" in front; what it shares with the target is not said twice."""


class Figure(NamedTuple):
    """A figure under its reported name, with where it was printed."""

    name: str
    value: Value
    rank: str
    line: int
    told: bool = False

    def to_dict(self) -> dict[str, Any]:
        """Plain data; what a size or number was printed as stands beside its value."""
        entry: dict[str, Any] = {"key": self.name, "value": plain_value(self.value, self.name)}
        if isinstance(self.value, Printed):
            entry |= {"text": self.value.text, "decimals": self.value.decimals}
            if self.value.unit_bytes > 1 and not self.name.endswith("_gb"):
                entry["interval_bytes"] = [int(bound) for bound in self.value.interval]
        return entry | {"rank": self.rank, "line": self.line} | ({"told": True} if self.told else {})


def figures(boot: Boot) -> dict[str, Any]:
    """A boot's figures: name -> value, or the list of its distinct values."""
    found: dict[str, dict[Any, None]] = {}
    impossible: dict[str, dict[Any, None]] = {}
    for figure in figure_list(boot):
        into = impossible if _impossible(figure) else found
        into.setdefault(figure.name, {})[plain_value(figure.value, figure.name)] = None
    found |= {name: values for name, values in impossible.items() if name not in found}
    return {name: next(iter(values)) if len(values) == 1 else list(values) for name, values in found.items()}


def merged(boots: Iterable[Boot]) -> dict[str, Any]:
    """The figures of several boots together, in the same form."""
    found: dict[str, dict[Any, None]] = {}
    for boot in boots:
        for name, value in figures(boot).items():
            found.setdefault(name, {}).update(dict.fromkeys(value if isinstance(value, list) else [value]))
    return {name: next(iter(values)) if len(values) == 1 else list(values) for name, values in found.items()}


def figure_list(boot: Boot) -> list[Figure]:
    """Every figure a boot printed, rank by rank, in the order of the log; a draft model's under its own name."""
    drafts = boot.grammar.of_draft(boot)
    reported, said = boot.grammar.reported, list[Figure]()
    for record in sorted(boot.statements, key=lambda record: record.line):
        draft, named = id(record) in drafts, set[str]()
        for figure, value in record.figures:
            name = reported.get((record.kind, figure))
            if name is None or name in named or (draft and name not in _OF_DRAFTS):
                continue
            named.add(name)
            said.append(Figure(f"draft_{name}" if draft else name, value, record.rank, record.line, record.told))
    for figure, (value, record) in boot.serving.last_figures().items():
        if name := reported.get((record.kind, figure)):
            said.append(Figure(name, value, record.rank, record.line))
    for record in boot.errors:
        if error := boot.form(record.kind).error:
            said.append(Figure("error", error, record.rank, record.line))
    return said


def impossible_figures(boot: Boot) -> list[Figure]:
    """Figures that no machine can have."""
    return [figure for figure in figure_list(boot) if _impossible(figure)]


def plain_value(value: Value, name: str) -> int | float | str:
    """A figure as JSON has it: a size in the unit its name ends in."""
    if not isinstance(value, Printed):
        return value
    if name.endswith("_mib") and value.unit_bytes == GIB:
        return value.number * (GIB // MIB)
    if name.endswith("_gib") and value.unit_bytes == MIB:
        return value.number / (GIB // MIB)
    return value.number


def _impossible(figure: Figure) -> bool:
    if not isinstance(figure.value, Printed) or not figure.name.endswith("_gib"):
        return False
    return figure.value.value > (LARGEST_WEIGHTS_GIB if figure.name == "weights_gib" else LARGEST_GPU_GIB) * GIB
