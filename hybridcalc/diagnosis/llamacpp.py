"""A llama.cpp load: what a sequence's state and a cell of KV weigh.

state of a sequence = (R + S) / cells / (1 + rs_seq)     fp32 both; rs_seq extra copies serve drafts
KV of a cell        = (K + V) / cells
"""

from __future__ import annotations

from fractions import Fraction

from hybridcalc.bootlog.boots import Boot
from hybridcalc.bootlog.records import Printed, Statement
from hybridcalc.diagnosis.answer import Diagnosis, Row
from hybridcalc.diagnosis.failures import failures
from hybridcalc.diagnosis.question import Question
from hybridcalc.diagnosis.rules import finding
from hybridcalc.units import format_bytes


def diagnose_llamacpp(boot: Boot, question: Question) -> Diagnosis:
    """The answer for one llama.cpp load."""
    answer = Diagnosis(boot)
    failed = failures(answer)
    parts = list[str]()
    state = next(iter(boot.of("state_total")), None)
    kv = next(iter(boot.of("kv_total")), None)
    if state is not None and _rolls_back(boot, state):
        size = state.get("size")
        answer.rows.append(
            Row(
                f"line {state.line}",
                f"states of {_count(state, 'cells')} sequences",
                f"{size.text if isinstance(size, Printed) else ''} MiB",
            )
        )
        answer.findings.append(
            finding(
                "HC150",
                "a draft context is there: the state buffer holds copies to roll back to, and how many is not printed",
            )
        )
    elif state is not None and (each := _per_sequence(state)) is not None:
        copies, cells = 1 + _count(state, "rs_seq"), _count(state, "cells")
        answer.derived["state_bytes_per_sequence"] = int(each)
        times = f"{cells} cells x {copies} copies" if copies > 1 else f"{cells}"
        text = f"{times} x {format_bytes(each)}"
        answer.rows.append(Row(f"line {state.line}", f"states of {cells} sequences", text))
        answer.findings.append(finding("HC150", f"a sequence's state is {format_bytes(each)}, all of it fp32"))
        parts.append(f"{format_bytes(each)} of state a sequence")
    if kv is not None and (cell := _per_cell(kv)) is not None:
        cells = _count(kv, "cells")
        answer.derived["kv_bytes_per_cell"] = int(cell)
        answer.rows.append(Row(f"line {kv.line}", f"{cells:,} KV cells", f"{format_bytes(cell)} each"))
        parts.append(f"{format_bytes(cell)} of KV a token")
        if "state_bytes_per_sequence" in answer.derived and cell:
            equal = Fraction(answer.derived["state_bytes_per_sequence"]) / cell
            parts.append(f"a state weighs {float(equal):,.0f} tokens")
    for kind, name in (("kv_buffer", "KV"), ("state_buffer", "state")):
        sizes = [size for s in boot.of(kind) if isinstance(size := s.get("size"), Printed)]
        if sizes and not parts:
            total = sum((size.value for size in sizes), start=Fraction(0))
            parts.append(f"{format_bytes(total)} of {name} buffers")
    length = question.workload.mean_length
    if kv is not None and length is not None and 0 < (cells := _count(kv, "cells")) < length:
        answer.findings.append(
            finding(
                "HC151",
                f"a request of {int(length):,} tokens does not fit {cells:,} cells",
                f"-c {int(length)} at least for each sequence",
            )
        )
        parts.insert(0, f"requests of {int(length):,} tokens do not fit {cells:,} cells")
    answer.headline = "llama.cpp: does not start" if failed else "llama.cpp"
    answer.meaning = answer.findings[0].message if failed else "; ".join(parts) or "no cache line in it"
    return answer


def _rolls_back(boot: Boot, state: Statement) -> bool:
    """Whether a draft runs beside the states, and the line does not say how many copies it keeps."""
    return state.get("rs_seq") is None and (bool(boot.of("draft_context")) or len(boot.of("kv_total")) > 1)


def _count(statement: Statement, name: str) -> int:
    value = statement.get(name)
    return value if isinstance(value, int) else 0


def _per_sequence(statement: Statement) -> Fraction | None:
    size, cells = statement.get("size"), _count(statement, "cells")
    if not isinstance(size, Printed) or not cells:
        return None
    return size.value / cells / (1 + _count(statement, "rs_seq"))


def _per_cell(statement: Statement) -> Fraction | None:
    size, cells = statement.get("size"), _count(statement, "cells")
    return size.value / cells if isinstance(size, Printed) and cells else None
