"""Why did a boot fail, and at which step? And what does a running server's chatter say of its pools?

Each engine knows the causes of its own refusals (`Causes`, by the kind of line); here is what they share. An
out-of-memory error names no step: the line before it does.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from hybridcalc.bootlog.boots import Boot
from hybridcalc.bootlog.records import Printed, Record
from hybridcalc.diagnosis.answer import Diagnosis, Seen
from hybridcalc.diagnosis.rules import finding
from hybridcalc.findings import Finding
from hybridcalc.units import format_bytes

MOST_ERRORS = 20
"""Of a boot that are explained."""
Causes = Mapping[str, Callable[[Boot, Record], Finding]]
"""A kind of refusal -> what to say about it."""


def failures(answer: Diagnosis, causes: Causes) -> bool:
    """Add what the boot died of to the findings; whether it did."""
    boot = answer.boot
    errors = boot.errors
    for error in _distinct(errors):
        explain = causes.get(error.kind) or _SHARED.get(error.kind, unexplained)
        answer.findings.append(explain(boot, error))
    answer.findings = list(dict.fromkeys(answer.findings))
    return bool(errors)


def _distinct(errors: list[Record]) -> list[Record]:
    """The first of each kind and rank's figures, so many of them: a thousand ranks die of the same."""
    return list({(e.kind, e.figures): e for e in reversed(errors)}.values())[::-1][:MOST_ERRORS]


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
    free = f", with {left.text} GiB free before it" if left is not None else ""
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
