"""ReplaySSM's rings as text."""

from collections.abc import Mapping
from typing import Any

from hybridcalc.formulas.replayssm import smallest_ring
from hybridcalc.output import terminal
from hybridcalc.units import format_bytes, short_dtype


def print_rings(answer: Mapping[str, Any]) -> None:
    """Every ring, and whether their length is legal."""
    out = terminal.console()
    per_slot, total, slots = answer["ring_bytes_per_slot"], answer["total_bytes"], answer["slots"]
    if not answer["buffers"]:
        terminal.verdict(out, "0 B", answer["reason"])
        return
    if answer["legal"]:
        many = "a slot" if slots == 1 else f"{slots:,} slots"
        terminal.verdict(out, f"{total:,} B", f"{format_bytes(total)}: rings of {answer['cache_len']} steps for {many}")
    else:
        terminal.verdict(out, "refused", answer["reason"], style=terminal.TROUBLE)
    rows = [
        (f"  {b['name']}", " x ".join(f"{n:,}" for n in b["shape"]), short_dtype(b["dtype"]), f"{b['bytes']:,} B")
        for b in answer["buffers"]
    ]
    terminal.listing(out, ("  ring", "layers x slots x heads x steps x width", "dtype", "bytes"), rows, right=(1, 3))
    if slots > 1:
        out.print()
        terminal.figures(out, [("per slot", f"{per_slot:,} B", format_bytes(per_slot), "all rings of one slot")])
    if answer["legal"]:
        terminal.notes(out, [answer["reason"]])
    else:
        fitting = max(smallest_ring(answer["draft_tokens"] or 1), 16)
        terminal.notes(out, [f"--linear-replayssm-cache-len {fitting}"], label="use")
