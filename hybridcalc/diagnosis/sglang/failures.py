"""Why did a boot of SGLang fail, and which flag changes that? Every refusal with the figures the log gives for it."""

from __future__ import annotations

from hybridcalc.bootlog.boots import Boot
from hybridcalc.bootlog.records import Record
from hybridcalc.diagnosis.failures import Causes, moment_before, out_of_memory
from hybridcalc.diagnosis.rules import finding
from hybridcalc.findings import Finding
from hybridcalc.units import GIB

MORE_MEMORY = "raise --mem-fraction-static, use more GPUs or smaller weights"


def _refused_hybrid(boot: Boot, error: Record) -> Finding:
    slots, rest, per = error.count("max_mamba_cache_size"), error.size("total_rest_memory"), error.size("per_slot")
    message, fix = "no memory for the state pool", MORE_MEMORY
    if rest is not None:
        message += f": {rest.text} GiB are left for both pools"
        message += f", K comes out at {slots:,}" if slots is not None else ""
        message += f" of slots of {per.text} MiB" if per is not None else ""
    before = boot.size("weights_begin", "avail")
    if rest is not None and rest.value < 0:
        fix = f"{float(-rest.value / GIB):.2f} GiB and more are missing: {fix}"
        if before is not None and before.value > 0:
            fix = f"raise --mem-fraction-static by more than {float(-rest.value / before.value):.2f}, or use more GPUs"
    return finding("HC120", message, fix)


def _serves_none(error: Record) -> str:
    slots, per = error.count("max_mamba_cache_size"), error.count("slots_per_request")
    numbers = f": {slots} slots at {per} a request" if slots is not None and per is not None else ""
    return f"the state pool serves no request{numbers}"


def _refused_small(boot: Boot, error: Record) -> Finding:
    per = error.count("slots_per_request")
    fix = f"--max-mamba-cache-size {per + 1} at least, " if per is not None else ""
    return finding("HC121", _serves_none(error), fix + "or more memory for the pools")


def _clamped_to_none(boot: Boot, error: Record) -> Finding:
    per = error.count("slots_per_request")
    least = f"--max-mamba-cache-size {per}" if per is not None else "a larger --max-mamba-cache-size"
    fix = f"{least} at least, a higher --mamba-full-memory-ratio, or --mamba-ssm-dtype bfloat16"
    return finding("HC121", _serves_none(error), fix)


def _refused_tokens(boot: Boot, error: Record) -> Finding:
    message, fix = "nothing is left for KV tokens", "raise --mem-fraction-static"
    rest, free, total = (boot.size("profiled", name) for name in ("rest", "available", "total"))
    asked = error.size("mem_fraction_static") or boot.size("profiled", "mem_fraction_static")
    message += f": {rest.text} GiB" if rest is not None else ""
    message += f" at --mem-fraction-static {asked.number:g}" if asked is not None else ""
    if free is not None and total is not None and 0 < free.value < total.value:
        message += f", {free.text} of {total.text} GiB are free after the weights"
        fix = f"--mem-fraction-static above {1 - float(free.value / total.value):.2f}"
    if boot.of("state_pool") or boot.of("capped"):
        fix += ", or lower the state's share: --mamba-full-memory-ratio or --max-mamba-cache-size"
    else:
        fix += ", more GPUs or smaller weights"
    return finding("HC122", message, fix)


def _refused_weights(boot: Boot, error: Record) -> Finding:
    return finding("HC122", "weights and slack leave no memory for the pools", MORE_MEMORY)


def _ping_pong(boot: Boot, error: Record) -> Finding:
    usage = boot.serving.peak_state_usage
    seen = f" at {usage:.0%} of the pool with {boot.serving.most_running} running" if usage else ""
    return finding(
        "HC123",
        f"no free slot for a request's tracking states{seen}",
        "raise --max-mamba-cache-size where it is set (the ratio the message names has no effect then), else "
        "--mamba-full-memory-ratio; or lower --max-running-requests, or use extra_buffer_lazy",
    )


def _slots_exhausted(boot: Boot, error: Record) -> Finding:
    return finding(
        "HC123",
        "no free state slot for a request",
        "raise --max-mamba-cache-size or --mamba-full-memory-ratio, or lower --max-running-requests",
    )


def _host(boot: Boot, error: Record) -> Finding:
    return finding("HC124", "no host memory is left for HiCache", "lower --hicache-size or --hicache-ratio")


def _oom(boot: Boot, error: Record) -> Finding:
    return out_of_memory(boot, error, "--mem-fraction-static")


def _exception(boot: Boot, error: Record) -> Finding:
    pages, (step, _) = error.count("page_size"), moment_before(boot, error)
    message = f"line {error.line}: {error.word('raised') or 'an exception'} ended the scheduler {step}".rstrip()
    if pages is not None:
        return finding("HC128", f"{message}: it wants pages of {pages}", f"--page-size {pages}")
    return finding("HC128", message, "the traceback's last lines say what it lacked")


CAUSES: Causes = {
    "refused_hybrid": _refused_hybrid,
    "refused_small": _refused_small,
    "refused_tokens": _refused_tokens,
    "refused_weights": _refused_weights,
    "ping_pong": _ping_pong,
    "slots_exhausted": _slots_exhausted,
    "no_host_memory": _host,
    "oom": _oom,
    "capped": _clamped_to_none,
    "exception": _exception,
}
