"""What does a running server's chatter say: how many slots a request holds, and whether requests queue for them?"""

from __future__ import annotations

from hybridcalc.diagnosis.answer import Diagnosis, Seen

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
