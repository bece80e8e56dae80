"""A llama.cpp load: what a sequence's state and a cell of KV weigh, and which buffer did not fit.

state of a sequence = (R + S) / cells / (1 + rs_seq)     fp32 both; rs_seq extra copies serve drafts
KV of a cell        = (K + V) / cells
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from hybridcalc.bootlog.boots import Boot
from hybridcalc.bootlog.records import Record
from hybridcalc.diagnosis.answer import Derived, Diagnosis
from hybridcalc.diagnosis.failures import Causes, failures
from hybridcalc.diagnosis.question import Question
from hybridcalc.diagnosis.rules import finding
from hybridcalc.findings import Finding
from hybridcalc.units import format_bytes


@dataclass(slots=True)
class LlamaDerived(Derived):
    """What follows from a load's figures: whole bytes, None where they do not say."""

    state_bytes_per_sequence: int | None = None
    kv_bytes_per_cell: int | None = None


def diagnose(boot: Boot, question: Question) -> Diagnosis:
    """The answer for one llama.cpp load."""
    derived = LlamaDerived()
    answer = Diagnosis(boot, derived=derived)
    failed = failures(answer, CAUSES)
    parts = [*_states(answer, derived), *_cells(answer, derived)]
    if derived.state_bytes_per_sequence is not None and derived.kv_bytes_per_cell:
        equal = Fraction(derived.state_bytes_per_sequence) / derived.kv_bytes_per_cell
        parts.append(f"a state weighs {float(equal):,.0f} tokens")
    for kind, name in (("kv_buffer", "KV"), ("state_buffer", "state")):
        sizes = [size for record in boot.of(kind) if (size := record.size("size")) is not None]
        if sizes and not parts:
            parts.append(f"{format_bytes(sum((size.value for size in sizes), start=Fraction(0)))} of {name} buffers")
    length, cells = question.workload.mean_length, boot.count("kv_total", "cells")
    if length is not None and cells is not None and 0 < cells < length:
        said = f"{int(length):,} tokens"
        fix = f"-c {int(length)} at least for each sequence"
        answer.find("HC151", f"a request of {said} does not fit {cells:,} cells", fix)
        parts.insert(0, f"requests of {said} do not fit {cells:,} cells")
    answer.conclude("llama.cpp", parts or ["no cache line in it"], failed)
    return answer


def _states(answer: Diagnosis, derived: LlamaDerived) -> list[str]:
    """The state pool: what a sequence holds of it."""
    boot = answer.boot
    state = next(iter(boot.of("state_total")), None)
    if state is None:
        return []
    size, cells, copies = state.size("size"), state.count("cells") or 0, state.count("rs_seq")
    drafts = bool(boot.of("draft_context")) or len(boot.of("kv_total")) > 1
    if drafts and copies is None:
        answer.row(f"line {state.line}", f"states of {cells} sequences", f"{size.text if size else ''} MiB")
        held = "the state buffer holds copies to roll back to, and how many is not printed"
        answer.find("HC150", f"a draft context is there: {held}")
        return []
    if size is None or not cells:
        return []
    copies = 1 + (copies or 0)
    each = size.value / cells / copies
    derived.state_bytes_per_sequence = int(each)
    times = f"{cells} cells x {copies} copies" if copies > 1 else f"{cells}"
    answer.row(f"line {state.line}", f"states of {cells} sequences", f"{times} x {format_bytes(each)}")
    answer.find("HC150", f"a sequence's state is {format_bytes(each)}, all of it fp32")
    return [f"{format_bytes(each)} of state a sequence"]


def _cells(answer: Diagnosis, derived: LlamaDerived) -> list[str]:
    """The KV cache: what a cell takes of it."""
    kv = next(iter(answer.boot.of("kv_total")), None)
    size, cells = (kv.size("size"), kv.count("cells")) if kv is not None else (None, None)
    if kv is None or size is None or not cells:
        return []
    cell = size.value / cells
    derived.kv_bytes_per_cell = int(cell)
    answer.row(f"line {kv.line}", f"{cells:,} KV cells", f"{format_bytes(cell)} each")
    return [f"{format_bytes(cell)} of KV a token"]


def _out_of_memory(boot: Boot, error: Record) -> Finding:
    """Which buffer did not fit: each has its own flag."""
    tried, device = error.size("tried"), error.count("device")
    what = f"out of memory on {format_bytes(tried.value)}" if tried is not None else "out of memory"
    what += f" of device {device}" if device is not None else ""
    batch = boot.count("context", "n_ubatch")
    if boot.of("compute_failed"):
        at = f" at n_ubatch = {batch:,}" if batch is not None else ""
        less = f"-ub {batch // 2}" if batch is not None and batch > 1 else "a smaller -ub"
        fix = f"{less}: the buffer grows with the batch; else offload fewer layers (-ngl)"
        return finding("HC124", f"{what}: the compute buffer{at}", fix)
    if boot.of("weights_failed"):
        return finding("HC124", f"{what}: the weights", "offload fewer layers (-ngl)")
    return finding("HC124", what, "offload fewer layers (-ngl), or a shorter context (-c) or fewer sequences (-np)")


def _buffer_alone(boot: Boot, error: Record) -> Finding:
    """A buffer that failed, by the allocation that failed for it where one is printed."""
    failed = next((record for record in boot.of("alloc_failed") if record.size("tried") is not None), error)
    return _out_of_memory(boot, failed)


CAUSES: Causes = {
    "oom": _out_of_memory,
    "alloc_failed": _buffer_alone,
    "compute_failed": _buffer_alone,
    "weights_failed": _buffer_alone,
}
