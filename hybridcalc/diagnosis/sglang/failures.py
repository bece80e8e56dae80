"""Why did a boot of SGLang fail, and which flag changes that? Every refusal with the figures the log gives for it."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from math import ceil

from hybridcalc.bootlog.boots import Boot
from hybridcalc.bootlog.records import Printed, Record
from hybridcalc.diagnosis.answer import Diagnosis
from hybridcalc.diagnosis.failures import Causes, moment_before, out_of_memory
from hybridcalc.diagnosis.rules import finding
from hybridcalc.findings import Finding
from hybridcalc.units import GIB

HIGHEST_FRACTION = 0.98
"""Beyond it the engine has nothing left for activations and graphs."""
FEWEST_SLOTS = 8
"""Slots, and as much KV, that a start needs at the very least."""
_NO_FRACTION, _LESS_WEIGHTS = "no --mem-fraction-static helps", "use smaller weights or more GPUs"
MORE_MEMORY = "raise --mem-fraction-static, use more GPUs or smaller weights"


def _refused_hybrid(boot: Boot, error: Record) -> Finding:
    slots, rest, per = error.count("max_mamba_cache_size"), error.size("total_rest_memory"), error.size("per_slot")
    message, fix = "no memory for the state pool", MORE_MEMORY
    if rest is not None:
        message += f": {rest.text} GiB are left for both pools"
        message += f", K comes out at {slots:,}" if slots is not None else ""
        message += f" of slots of {per.text} MiB" if per is not None else ""
    before, after = boot.size("weights_begin", "avail"), boot.size("weights_loaded", "avail")
    asked = _fraction(boot)
    if rest is not None and rest.value < 0:
        fix = f"{float(-rest.value / GIB):.2f} GiB and more are missing: {fix}"
        if before is not None and before.value > 0:
            more = float(-rest.value / before.value)
            fix = f"raise --mem-fraction-static by more than {more:.2f}, or use more GPUs"
            if asked is not None and asked + more >= HIGHEST_FRACTION:
                fix = f"{_NO_FRACTION}: {asked:g} + {more:.2f} would leave the engine nothing; {_LESS_WEIGHTS}"
            elif after is not None and after.value <= (1 - Fraction(HIGHEST_FRACTION)) * before.value:
                fix = f"{_NO_FRACTION}: {after.text} GiB are free after the weights; {_LESS_WEIGHTS}"
    return finding("HC120", message, fix)


def _fraction(boot: Boot) -> float | None:
    """The --mem-fraction-static that the boot echoes, or that its profile prints."""
    asked = boot.size("arguments", "mem_fraction_static") or boot.size("profiled", "mem_fraction_static")
    return asked.number if asked is not None else None


def together(answers: Sequence[Diagnosis]) -> None:
    """Refusals of one host solved against each other: what was free before and after the weights, and what that means.

    rest = after - before x (1 - fraction), twice; each rest is known to half a cent.
    """
    seen: dict[tuple[object, ...], dict[float, tuple[Printed, Diagnosis]]] = {}
    for answer in answers:
        boot, asked = answer.boot, _fraction(answer.boot)
        rest = boot.size("refused_hybrid", "total_rest_memory")
        if (
            rest is None
            or asked is None
            or any(boot.size(kind, "avail") for kind in ("weights_begin", "weights_loaded"))
        ):
            continue
        host = (boot.word("arguments", "model_path"), boot.count("arguments", "tp_size"),
                boot.count("arguments", "pp_size"), boot.word("arguments", "kv_cache_dtype"))  # fmt: skip
        seen.setdefault(host, {})[asked] = rest, answer
    for refusals in seen.values():
        if len(refusals) < 2:
            continue
        low, high = min(refusals), max(refusals)
        change = refusals[high][0].value - refusals[low][0].value
        before = change / Fraction(high - low).limit_denominator(10_000)
        after = refusals[high][0].value + before * (1 - Fraction(high).limit_denominator(10_000))
        if before <= 0 or not 0 < after < before:
            continue
        for _, answer in refusals.values():
            _solved(answer, before, after)


def _solved(answer: Diagnosis, before: Fraction, after: Fraction) -> None:
    """Say what two refusals come to together, in place of advice that knows of one."""
    shown, left = f"{float(before / GIB):.1f}", f"{float(after / GIB):.2f}"
    both = f"two refusals together say {shown} GiB free before the weights and {left} after them"
    per = answer.boot.size("refused_hybrid", "per_slot")
    needed = (per.value if per is not None else Fraction(0)) * FEWEST_SLOTS
    least = 1 - (after - needed) / before
    if least >= HIGHEST_FRACTION:
        fix = f"{both}: {_NO_FRACTION}, none leaves more than that; {_LESS_WEIGHTS}"
    else:
        fix = f"{both}: --mem-fraction-static {ceil(1000 * least) / 1000:g} at least"
    answer.findings = [one._replace(fix=fix) if one.rule == "HC120" else one for one in answer.findings]


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
