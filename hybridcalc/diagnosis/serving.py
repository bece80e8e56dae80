"""What does a running server's chatter say: how many slots a request holds, and whether requests queue for them?"""

from __future__ import annotations

from hybridcalc.diagnosis.answer import Diagnosis
from hybridcalc.diagnosis.rules import finding
from hybridcalc.findings import Finding


def serving_findings(answer: Diagnosis, slots: int | None, slots_per_request: int | None) -> list[Finding]:
    """Findings about serving; what was seen also goes into ``answer.derived``."""
    serving = answer.boot.serving
    if not serving.lines:
        return []
    answer.derived["serving"] = {
        "lines_read": serving.lines,
        "most_running": serving.most_running,
        "most_queued": serving.most_queued,
        "queued_while_full": serving.queued_while_full,
        "most_slots": serving.most_slots,
        "peak_state_usage": serving.peak_state_usage,
        "peak_kv_usage": serving.peak_kv_usage,
    }
    said = list[Finding]()
    if serving.most_slots:
        usage = serving.peak_state_usage
        if slots is None and usage > 0:
            answer.derived["slots_from_usage"] = round(serving.most_slots / usage)
        each = serving.most_slots / max(1, serving.running_at_most_slots)
        reserved = f"; {slots_per_request} are reserved for each" if slots_per_request else ""
        seen = f"{serving.most_slots:,} slots in use with {serving.running_at_most_slots:,} running requests"
        if serving.most_running:
            said.append(finding("HC131", f"{seen}: {each:.1f} each, cached prefixes included{reserved}"))
    if serving.peak_state_usage >= 0.95 and serving.most_queued:
        said.append(
            finding(
                "HC130",
                f"the state pool is {serving.peak_state_usage:.0%} full with {serving.peak_kv_usage:.0%} of KV in "
                f"use, and {serving.most_queued:,} requests wait",
                "raise --mamba-full-memory-ratio, or use --mamba-ssm-dtype bfloat16 or extra_buffer_lazy",
            )
        )
    elif serving.peak_kv_usage >= 0.95 and serving.most_queued:
        wait = f"{serving.most_queued:,} requests wait"
        said.append(
            finding(
                "HC130",
                f"KV is {serving.peak_kv_usage:.0%} full and {wait}",
                "lower --mamba-full-memory-ratio, or use fp8 KV",
            )
        )
    return said
