"""Slots of a request as text: every strategy and scheduler, and what they admit."""

from collections.abc import Mapping
from typing import Any

from hybridcalc.formulas.slots import Strategy
from hybridcalc.output import terminal


def print_slots(answer: Mapping[str, Any], prompt: int | None, chunk: int | None) -> None:
    """S and why, the table, what the slots admit; ``prompt`` and ``chunk``: the tokens that were asked about."""
    out, chosen = terminal.console(), answer["selected"]
    count = chosen["slots"]
    terminal.verdict(out, f"S = {count} state slot{'' if count == 1 else 's'} per request", chosen["reason"])
    cells = {(r["strategy"], r["overlap"], r["skip_decode_lock"]): r for r in answer["table"] if r["radix_cache"]}
    rows = []
    for strategy in Strategy:
        row = [f"  {strategy.value}"]
        for overlap, skip in ((True, False), (False, False), (True, True), (False, True)):
            cell = cells[strategy.value, overlap, skip]
            row.append(str(cell["slots"]) if cell["allowed"] else "refused")
        rows.append(row)
    rows.append(["  radix cache off", "1", "1", "1", "1"])
    header = ("  strategy", "overlap", "no overlap", "overlap, skip*", "no overlap, skip*")
    terminal.listing(out, header, rows, right=(1, 2, 3, 4))
    out.print("  * with SGLANG_OPT_MAMBA_SKIP_DECODE_LOCK=1", style=terminal.QUIET)
    notes = []
    if answer["max_concurrent"] is not None:
        slots, admitted = answer["max_mamba_cache_size"], answer["max_concurrent"]
        notes.append(f"{slots:,} slots // {count} ({chosen['strategy']}) admit {admitted:,} requests")
    if prompt and chunk:
        touched = f"ceil({prompt:,} / {chunk:,}) + 2 = {answer['prefill_slots']} slots"
        notes.append(f"a prompt of {prompt:,} tokens in chunks of {chunk:,} touches {touched}")
    terminal.notes(out, notes)
