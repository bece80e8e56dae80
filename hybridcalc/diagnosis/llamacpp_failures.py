"""Why did a load of llama.cpp fail, and which flag changes that? Each buffer has its own."""

from __future__ import annotations

from hybridcalc.bootlog import Printed, Record
from hybridcalc.bootlog.boots import Boot
from hybridcalc.diagnosis import Causes
from hybridcalc.diagnosis.answer import finding
from hybridcalc.findings import Finding
from hybridcalc.units import GIB, format_bytes


def as_reckoned(size: Printed) -> str:
    """A size of LM Studio, whose GB and MB are 10**9 and 10**6 bytes, as it is printed."""
    return f"{size} GB" if size.unit_bytes == GIB else f"{size} MB"


def _host_refused(boot: Boot, error: Record) -> Finding:
    """A model that the host's memory does not hold."""
    needed, free = error.size("needed"), error.size("free")
    message = "the host's memory does not hold the model"
    if needed is not None and free is not None:
        message += f": {format_bytes(needed.value)} are needed, {format_bytes(free.value)} are free"
    return finding("HC124", message, "a smaller quantization or num_ctx, or free the host of what else runs on it")


_OTHERS = (
    ("cache_failed", "the KV cache", "a shorter context (-c), -ctk q8_0 -ctv q8_0 or fewer sequences (-np); else "),
    ("states_failed", "the states", "fewer sequences (-np); else "),
    ("weights_failed", "the weights", ""),
)
"""Kinds of lines that name the buffer that failed, what it is, and what makes it smaller."""


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
    for kind, which, less in _OTHERS:
        if boot.of(kind):
            return finding("HC124", f"{what}: {which}", f"{less}offload fewer layers (-ngl)")
    return finding("HC124", what, "offload fewer layers (-ngl), or a shorter context (-c) or fewer sequences (-np)")


def _buffer_alone(boot: Boot, error: Record) -> Finding:
    """A buffer that failed, by the allocation that failed for it where one is printed."""
    failed = next((record for record in boot.of("alloc_failed") if record.size("tried") is not None), error)
    return _out_of_memory(boot, failed)


def _guardrail(boot: Boot, error: Record) -> Finding:
    """A load that LM Studio does not try, by what it reckons with."""
    estimates = boot.of("estimate")
    needed = error.size("needed") or (estimates[-1].size("total") if estimates else None)
    of = f" of {as_reckoned(needed)}" if needed is not None else ""
    fix = "a shorter context or a smaller quantization; where the estimate is wrong, its guardrails in the settings"
    return finding("HC124", f"LM Studio did not try to load the model: its estimate{of} is above its guardrail", fix)


def _unknown_class(boot: Boot, error: Record) -> Finding:
    """A build that is older than the model."""
    fix = "a newer llama.cpp; LM Studio and Ollama bring their own: update the runtime"
    return finding("HC128", f"line {error.line}: this build does not know the architecture {error.word('name')}", fix)


CAUSES: Causes = {
    "oom": _out_of_memory,
    "alloc_failed": _buffer_alone,
    "compute_failed": _buffer_alone,
    "weights_failed": _buffer_alone,
    "cache_failed": _buffer_alone,
    "states_failed": _buffer_alone,
    "host_refused": _host_refused,
    "guardrail": _guardrail,
    "unknown_class": _unknown_class,
}
