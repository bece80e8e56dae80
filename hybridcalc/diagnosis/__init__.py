"""What happened in each boot of a log, and what should change? Records, architectures and engines brought together.

Here: what the caller knows besides the log, and which presets it may be of; the log is read, its boots are told apart,
and each engine's diagnosis is asked. Why a boot failed, and at which step: each engine knows the causes of its own
refusals (`Causes`, by the kind of line); here is what they share. An out-of-memory error names no step: the line before
it does. What a running server's chatter says of its pools is shared too.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any, NamedTuple

from hybridcalc.architecture import Architecture
from hybridcalc.architecture.presets import load_model, shipped_presets
from hybridcalc.bootlog import About, Printed, Record, Value
from hybridcalc.bootlog.boots import Boot, impossible_figures, merged
from hybridcalc.bootlog.grammars import assemble, room
from hybridcalc.bootlog.reader import read_log
from hybridcalc.deployment import Workload, requests_text
from hybridcalc.diagnosis.answer import Diagnosis, Seen, finding
from hybridcalc.diagnosis.names import Hints, hints_of
from hybridcalc.engines import ENGINES
from hybridcalc.engines.spelling import in_names
from hybridcalc.findings import Finding
from hybridcalc.units import LARGEST_TOKENS, format_bytes

if TYPE_CHECKING:
    from hybridcalc.diagnosis.expectation import Compared


class Launched(NamedTuple):
    """A launch line that was read: whose it is, the model it names, the engine's own arguments, and its words."""

    engine: str
    model: str | None
    args: Any
    words: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Question:
    """``model`` None: guessed from the log; ``launch`` None: as far as the log echoes it; ``hints``: what the text
    around the log tells.
    """

    model: Architecture | None = None
    workload: Workload = field(default_factory=Workload)
    launch: Launched | None = None
    hints: Hints = field(default_factory=Hints)


def echoed(records: list[Record]) -> dict[str, int | float | str | bool]:
    """The arguments that a boot echoes, by name, without those that are left to the engine."""
    said: dict[str, int | float | str | bool] = {}
    for name, value in (figure for record in records for figure in record.figures):
        if value in ("auto", "None"):
            continue
        if isinstance(value, Printed):
            said[name] = value.number
        else:
            said[name] = {"True": True, "False": False}.get(value, value) if isinstance(value, str) else value
    return said


_WORKER = re.compile(r"DP([0-9]{1,4})")


class Shared(NamedTuple):
    """Requests that are asked of a deployment, and what of them comes to each of its data-parallel workers."""

    wanted: int
    each: int
    workers: int

    @property
    def said(self) -> str:
        """``100 requests``, and what of them a worker has."""
        share = f" ({self.each} on each of {self.workers} workers)" if self.workers > 1 else ""
        return f"{requests_text(self.wanted)}{share}"


def shared(boot: Boot, wanted: int, workers: int) -> Shared:
    """What each worker has of ``wanted`` requests: of as many as are stated, or as name themselves in the log."""
    numbers = (int(found[1]) + 1 for rank in boot.ranks if (found := _WORKER.search(rank)))
    many = max(workers, *numbers, 1)
    return Shared(wanted, -(-wanted // many), many)


@lru_cache(maxsize=64)
def models_with_states(printed: str | None = None) -> tuple[Architecture, ...]:
    """Every preset that keeps recurrent states, or those of a ``printed`` class."""
    return tuple(
        load_model(name)
        for name, preset in shipped_presets().items()
        if preset.get("state") is not None and (printed is None or same_class(preset["architecture"], printed))
    )


def same_class(architecture: str, printed: str) -> bool:
    """Whether a printed class is a preset's: the text and the vision class of a model are one family."""
    return _stem(architecture) == _stem(printed)


def _stem(name: str) -> str:
    for ending in ("ForConditionalGeneration", "ForCausalLM"):
        name = name.removesuffix(ending)
    return name


MOST_DIAGNOSED = 100
"""Boots of a log that are answered in full, from both its ends: each takes a planner's run or two."""
MOST_OF_A_RULE = 5
"""Findings of one rule in a boot, which may have a thousand ranks; what is beyond is counted."""


class LogAnswer(NamedTuple):
    """The boots of one log, what there is to say about the log itself, and all its figures together."""

    source: str
    boots: tuple[Diagnosis, ...]
    findings: tuple[Finding, ...]
    figures: dict[str, Any]
    remarks: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """One entry of ``files`` in ``log --json``: all but its boots."""
        return {
            "file": self.source,
            "figures": self.figures,
            "findings": [found.to_dict() for found in self.findings],
            "remarks": list(self.remarks),
        }


def document(answers: Sequence[LogAnswer], compared: Sequence[Sequence[Compared]]) -> dict[str, Any]:
    """``log --json``: the boots of all files, each with its comparison where a plan was given, and the files."""
    boots = [{"file": answer.source, **boot.to_dict()} for answer in answers for boot in answer.boots]
    for boot, rows_of in zip(boots, compared, strict=False):
        boot["expected"] = [row.to_dict() for row in rows_of]
    figures = answers[0].figures if len(answers) == 1 else {}
    return {"boots": boots, "figures": figures, "files": [answer.to_dict() for answer in answers]}


def diagnose_log(source: str | os.PathLike[str], question: Question, *, whole: bool = False) -> LogAnswer:
    """The answer for the log ``source`` (a path, or ``-``). Raises InputError where it cannot be read."""
    said: list[str] = []
    boots, dropped, names = assemble(read_log(source, said, whole=whole))
    question = replace(question, hints=hints_of(names))
    damage = [text for text in said if "gzip" in text]
    findings = [finding("HC104", text) for text in damage]
    if dropped:
        left = f"{dropped:,} in the middle are left out"
        findings.append(finding("HC102", f"{dropped + len(boots):,} boots are in the log: {left}"))
    if len(boots) > MOST_DIAGNOSED:
        only = f"the first {MOST_DIAGNOSED // 2} and the last {MOST_DIAGNOSED // 2} are diagnosed"
        findings.append(finding("HC102", f"{len(boots):,} boots are read: {only}, of the others the figures are given"))
    name = "stdin" if os.fspath(source) == "-" else os.fspath(source)
    answers = tuple(diagnose(boots, question))
    for engine in dict.fromkeys(boot.engine for boot in boots if len(boots) > 1):
        together = getattr(room(engine, "diagnosis"), "together", None)
        if together is not None:
            together([answer for answer in answers if answer.boot.engine == engine])
    return LogAnswer(name, answers, tuple(findings), merged(boots), tuple(text for text in said if text not in damage))


def diagnose(boots: Sequence[Boot], question: Question) -> Iterable[Diagnosis]:
    """The answer for each boot, in order; where they are very many, those in the middle have their figures alone."""
    left_out, hints, passed = range(MOST_DIAGNOSED // 2, len(boots) - MOST_DIAGNOSED // 2), question.hints, 0
    for number, boot in enumerate(boots):
        if len(boots) > 1:
            last = max((record.line for record in boot.records()), default=passed)
            question, passed = replace(question, hints=hints.between(passed, last)), last + 1
        if number in left_out:
            yield Diagnosis(boot, headline=f"{boot.engine or 'a boot'}: not diagnosed", meaning="its figures are read")
            continue
        credible, dropped = _credible(boot)
        module = room(boot.engine, "diagnosis")
        answer: Diagnosis = (_undiagnosed if module is None else module.diagnose)(credible, question)
        answer.boot = boot
        answer.findings += dropped
        for figure in impossible_figures(boot):
            size = figure.value.text if isinstance(figure.value, Printed) else figure.value
            what = f"line {figure.line}: {figure.name} of {size} GiB is in no GPU"
            answer.find("HC106", what, "nothing is derived from it")
        told = sorted({record.line for record in boot.statements if record.told and not boot.form(record.kind).mark})
        if told:
            lines = f"line {told[0]}" if len(told) == 1 else f"lines {told[0]} to {told[-1]}"
            answer.find(
                "HC117", f"{lines}: read from a table or a sentence that somebody wrote, not as an engine prints it"
            )
        _about(answer)
        if boot.left_out:
            answer.find("HC104", f"{boot.left_out:,} lines of this boot are left out, beyond those that are held")
        launch = question.launch
        if launch is not None and boot.engine not in ("", launch.engine):
            other = f"the launch line is of {launch.engine}, the log of {boot.engine}"
            answer.find("HC108", other, "this log is of another start")
        answer.findings = list(_no_more_than(answer.findings))
        _spell(answer)
        yield answer


def _spell(answer: Diagnosis) -> None:
    """Names flags as the release does whose rules are used."""
    version = getattr(answer.derived, "rules_of_version", "") or None
    if version is not None:
        spelt = partial(ENGINES[answer.boot.engine].spelt, version=version)
        answer.findings = [in_names(found, spelt) for found in answer.findings]
        answer.suggestions = [in_names(one, spelt) for one in answer.suggestions]


def _about(answer: Diagnosis) -> None:
    """Say which figures somebody gave as about so much: nothing exact follows from them."""
    for record in answer.boot.statements:
        for _, value in record.figures:
            if isinstance(value, About) or (isinstance(value, Printed) and value.about):
                text = f"{int(value):,}" if isinstance(value, About) else value.text
                message = f"line {record.line}: somebody gave about {text}: what follows is about so much too"
                answer.find("HC117", message)


def _undiagnosed(boot: Boot, question: Question) -> Diagnosis:
    """The answer for a boot of no engine that is known well: its figures, and what it died of."""
    answer = Diagnosis(boot)
    failed = add_failures(answer, {})
    answer.conclude(boot.grammar.title or "a server", ["its figures are read"], failed)
    return answer


def _no_more_than(findings: Iterable[Finding]) -> Iterator[Finding]:
    """The findings, of each rule the first few; the last of these says how many there are beyond."""
    by_rule: dict[str, list[Finding]] = {}
    for found in findings:
        by_rule.setdefault(found.rule, []).append(found)
    for group in by_rule.values():
        more = len(group) - MOST_OF_A_RULE
        yield from group[: MOST_OF_A_RULE - (more > 0)]
        if more > 0:
            last = group[MOST_OF_A_RULE - 1]
            yield last._replace(message=f"{last.message} ({more:,} more of this kind)")


def _credible(boot: Boot) -> tuple[Boot, list[Finding]]:
    """The boot without counts that no machine can have: nothing may be derived from them. They stay in its figures."""
    absurd = [(record, len(str(value))) for record in boot.statements for _, value in record.figures if _absurd(value)]
    if not absurd:
        return boot, []
    found = (f"line {record.line}: a count of {many} digits is none of a real boot" for record, many in absurd)
    return boot.changed(_without_absurd), [finding("HC106", text) for text in dict.fromkeys(found)]


def _absurd(value: Value) -> bool:
    return isinstance(value, int) and abs(value) > LARGEST_TOKENS


def _without_absurd(record: Record) -> Record:
    return replace(record, figures=tuple(figure for figure in record.figures if not _absurd(figure[1])))


MOST_ERRORS = 20
"""Of a boot that are explained."""
Causes = Mapping[str, Callable[[Boot, Record], Finding]]
"""A kind of refusal -> what to say about it."""


def add_failures(answer: Diagnosis, causes: Causes) -> bool:
    """Add what the boot died of to the findings; whether it did."""
    boot = answer.boot
    errors = boot.errors
    for error in _distinct(errors):
        explain = causes.get(error.kind) or _SHARED.get(error.kind, unexplained)
        answer.findings.append(explain(boot, error))
    answer.findings = list(dict.fromkeys(answer.findings))
    return bool(errors)


def _distinct(errors: list[Record]) -> list[Record]:
    """The first of each kind and rank's figures, so many of them: a thousand ranks die of the same. An exception that
    passes on a part of what another said says nothing more.
    """
    first = list({(e.kind, e.figures): e for e in reversed(errors)}.values())[::-1][:MOST_ERRORS]
    return [e for e in first if not any(e.kind == o.kind and set(e.figures) < set(o.figures) for o in first)]


def unexplained(boot: Boot, error: Record) -> Finding:
    """A refusal of which no more is known than that it was printed."""
    said = boot.form(error.kind).opening.rstrip(" .:=(")
    step, _ = moment_before(boot, error)
    return finding("HC128", f"line {error.line}: {said} {step}".rstrip(), "the lines around it say more")


def out_of_memory(boot: Boot, error: Record, lower: str = "the server's share of the memory", fix: str = "") -> Finding:
    """A device out of memory; ``lower`` is the flag that leaves more of it free, ``fix`` overrules all else."""
    tried, total, unused = error.size("tried"), error.size("total"), error.size("left")
    what = f" on {format_bytes(tried.value)}" if tried is not None else ""
    if total is not None and unused is not None:
        what += f" ({format_bytes(unused.value)} of {format_bytes(total.value)} free)"
    step, left = moment_before(boot, error)
    free = f", with {left} GiB free before it" if left is not None else ""
    if not fix and step and step == boot.form("weights_begin").moment:
        fix = "the weights do not fit: more GPUs or smaller weights"
    fix = fix or f"lower {lower}, the largest batch that is captured, or what is not charged (draft states, rings)"
    return finding("HC124", f"out of memory{what} {step}{free}".rstrip(), fix)


def moment_before(boot: Boot, error: Record) -> tuple[str, Printed | None]:
    """When it failed, by the last line before, and the free memory that was printed last."""
    step, left = "", None
    for record in boot.records():
        if record is error or record.line > error.line:
            break
        step = boot.form(record.kind).moment or step
        left = record.size("avail") or left
    return step, left


def _gpu_fault(boot: Boot, error: Record) -> Finding:
    step, _ = moment_before(boot, error)
    why = f": {said.rstrip('.')}" if (said := error.word("why")) else ""
    message = f"line {error.line}: a memory access fault of the GPU ended it {step}".rstrip() + why
    return finding("HC128", message, "no setting of memory mends it: try another release of the engine or the driver")


_SHARED: Causes = {"oom": out_of_memory, "gpu_fault": _gpu_fault}
"""Causes that no engine needs to say more about."""


FULL = 0.95
"""Share of a pool from which on requests that wait are taken to wait for it."""


def serving_findings(answer: Diagnosis, slots_per_request: int | None, *, more_state: str, more_kv: str) -> None:
    """Add what was seen of serving, and what follows; the flags that make room in either pool are the engine's."""
    serving = answer.boot.serving
    if not serving.lines:
        return
    answer.derived.serving = Seen(
        serving.lines,
        serving.most_running,
        serving.most_queued,
        serving.queued_while_full,
        serving.most_slots,
        serving.peak_state_usage,
        serving.peak_kv_usage,
    )
    if serving.most_slots and serving.most_running:
        each = serving.most_slots / max(1, serving.running_at_most_slots)
        reserved = f"; {slots_per_request} are reserved for each" if slots_per_request else ""
        seen = f"{serving.most_slots:,} slots in use with {serving.running_at_most_slots:,} running requests"
        answer.find("HC131", f"{seen}: {each:.1f} each, cached prefixes included{reserved}")
    wait = f"{serving.most_queued:,} requests wait"
    if serving.peak_state_usage >= FULL and serving.most_queued:
        kv = f"{serving.peak_kv_usage:.0%} of KV in use"
        answer.find("HC130", f"the state pool is {serving.peak_state_usage:.0%} full with {kv}, and {wait}", more_state)
    elif serving.peak_kv_usage >= FULL and serving.most_queued:
        answer.find("HC130", f"KV is {serving.peak_kv_usage:.0%} full and {wait}", more_kv)
