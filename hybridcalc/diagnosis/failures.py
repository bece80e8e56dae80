"""Why did a boot fail, at which step, and which flag changes that?

Every refusal that the engines print has its cause here, with the figures the log gives for it. An out-of-memory error
names no step: the line before it does.
"""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from math import floor

from hybridcalc.bootlog.boots import Boot
from hybridcalc.bootlog.records import Printed, Statement, Value
from hybridcalc.diagnosis.answer import Diagnosis
from hybridcalc.diagnosis.rules import finding
from hybridcalc.findings import Finding
from hybridcalc.units import GIB, format_bytes

MOST_ERRORS = 20
"""Of a boot that are explained."""
_STEPS = {
    "weights_begin": "while the weights were loaded",
    "weights_loaded": "between the weights and the pools",
    "pool": "after the pools were allocated",
    "pools_done": "after the pools were allocated",
    "graph_begin": "while graphs were captured",
    "graph_captured": "after graphs were captured",
    "summary": "after start-up",
    "ready": "while serving",
    "available": "after the cache was sized",
    "kv_size": "after the cache was allocated",
    "block_size": "before the cache was sized",
    "free_memory": "after start-up",
    "graph_pool": "after graphs were captured",
    "running": "while serving",
    "prefilling": "while serving",
    "serving": "while serving",
}
"""What the last line before a failure says about when it happened."""


def failures(answer: Diagnosis) -> bool:
    """Add what the boot died of to the findings; whether it did."""
    boot = answer.boot
    for error in _distinct(boot.errors):
        explain = _CAUSES.get(error.kind)
        if explain is not None:
            answer.findings.append(explain(boot, error))
    answer.findings = list(dict.fromkeys(answer.findings))
    return bool(boot.errors)


def _distinct(errors: list[Statement]) -> list[Statement]:
    """The first of each kind and rank's figures, so many of them: a thousand ranks die of the same."""
    return list({(e.kind, e.figures): e for e in reversed(errors)}.values())[::-1][:MOST_ERRORS]


def _refused_hybrid(boot: Boot, error: Statement) -> Finding:
    slots, rest, per = error.get("max_mamba_cache_size"), error.get("total_rest_memory"), error.get("per_slot")
    message = "no memory for the state pool"
    if isinstance(rest, Printed):
        message += f": {rest.text} GiB are left for both pools"
        message += f", K comes out at {slots:,}" if isinstance(slots, int) else ""
        if isinstance(per, Printed):
            message += f" of slots of {per.text} MiB"
    fix = "raise --mem-fraction-static, use more GPUs or smaller weights"
    before = boot.first("weights_begin", "avail")
    if isinstance(rest, Printed) and isinstance(before, Printed) and rest.value < 0 and before.value > 0:
        fix = f"raise --mem-fraction-static by more than {float(-rest.value / before.value):.2f}, or use more GPUs"
    elif isinstance(rest, Printed) and rest.value < 0:
        fix = f"{float(-rest.value / GIB):.2f} GiB and more are missing: {fix}"
    return finding("HC120", message, fix)


def _refused_small(boot: Boot, error: Statement) -> Finding:
    slots, per = error.get("max_mamba_cache_size"), error.get("slots_per_request")
    numbers = f": {slots} slots at {per} a request" if isinstance(slots, int) and isinstance(per, int) else ""
    fix = f"--max-mamba-cache-size {per + 1} at least, " if isinstance(per, int) else ""
    return finding("HC121", f"the state pool serves no request{numbers}", fix + "or more memory for the pools")


def _clamped_to_none(boot: Boot, error: Statement) -> Finding:
    slots, per = error.get("max_mamba_cache_size"), error.get("slots_per_request")
    numbers = f": {slots} slots at {per} a request" if isinstance(slots, int) and isinstance(per, int) else ""
    least = f"--max-mamba-cache-size {per}" if isinstance(per, int) else "a larger --max-mamba-cache-size"
    return finding(
        "HC121",
        f"the state pool serves no request{numbers}",
        f"{least} at least, a higher --mamba-full-memory-ratio, or --mamba-ssm-dtype bfloat16",
    )


def _refused_tokens(boot: Boot, error: Statement) -> Finding:
    message, fix = "nothing is left for KV tokens", "raise --mem-fraction-static"
    rest, free = boot.first("profiled", "rest"), boot.first("profiled", "available")
    total = boot.first("profiled", "total")
    asked = error.get("mem_fraction_static") or boot.first("profiled", "mem_fraction_static")
    message += f": {rest.text} GiB" if isinstance(rest, Printed) else ""
    message += f" at --mem-fraction-static {asked.number:g}" if isinstance(asked, Printed) else ""
    if isinstance(free, Printed) and isinstance(total, Printed) and 0 < free.value < total.value:
        message += f", {free.text} of {total.text} GiB are free after the weights"
        fix = f"--mem-fraction-static above {1 - float(free.value / total.value):.2f}"
    if boot.states or boot.of("capped"):
        fix += ", or lower the state's share: --mamba-full-memory-ratio or --max-mamba-cache-size"
    else:
        fix += ", more GPUs or smaller weights"
    return finding("HC122", message, fix)


def _refused_weights(boot: Boot, error: Statement) -> Finding:
    return finding(
        "HC122",
        "weights and slack leave no memory for the pools",
        "raise --mem-fraction-static, use more GPUs or smaller weights",
    )


def _ping_pong(boot: Boot, error: Statement) -> Finding:
    usage = boot.serving.peak_state_usage
    seen = f" at {usage:.0%} of the pool with {boot.serving.most_running} running" if usage else ""
    return finding(
        "HC123",
        f"no free slot for a request's tracking states{seen}",
        "raise --max-mamba-cache-size where it is set (the ratio the message names has no effect then), else "
        "--mamba-full-memory-ratio; or lower --max-running-requests, or use extra_buffer_lazy",
    )


def _slots_exhausted(boot: Boot, error: Statement) -> Finding:
    return finding(
        "HC123",
        "no free state slot for a request",
        "raise --max-mamba-cache-size or --mamba-full-memory-ratio, or lower --max-running-requests",
    )


def _host(boot: Boot, error: Statement) -> Finding:
    return finding("HC124", "no host memory is left for HiCache", "lower --hicache-size or --hicache-ratio")


def _oom(boot: Boot, error: Statement) -> Finding:
    tried = error.get("tried")
    what = f" on {format_bytes(tried.value)}" if isinstance(tried, Printed) else ""
    step, left = _step_before(boot, error)
    free = f", with {left.text} GiB free before it" if left is not None else ""
    lower = "--gpu-memory-utilization" if boot.engine == "vllm" else "--mem-fraction-static"
    if boot.engine == "llama.cpp":
        return _llamacpp_buffer(boot, tried, error.get("device"))
    if any(boot.of(kind) for kind in _TOO_SMALL):
        fix = "lower --max-num-batched-tokens, use more GPUs or smaller weights: memory lacks on both sides of the "
        fix += "fraction"
    elif step == _STEPS["weights_begin"]:
        fix = "the weights do not fit: more GPUs or smaller weights"
    else:
        fix = f"lower {lower}, the largest batch that is captured, or what is not charged (draft states, rings)"
    return finding("HC124", f"out of memory{what} {step}{free}".rstrip(), fix)


_TOO_SMALL = ("no_memory", "one_request_too_big", "no_auto_fit")
"""Refusals that a lower fraction of the GPU's memory would only make worse."""


def _llamacpp_buffer(boot: Boot, tried: Value | None, device: Value | None) -> Finding:
    """Which buffer did not fit: each has its own flag."""
    size = f" on {format_bytes(tried.value)}" if isinstance(tried, Printed) else ""
    where = f" of device {device}" if isinstance(device, int) else ""
    batch = boot.first("context", "n_ubatch")
    if boot.of("compute_failed"):
        at = f" at n_ubatch = {batch:,}" if isinstance(batch, int) else ""
        less = f"-ub {batch // 2}" if isinstance(batch, int) and batch > 1 else "a smaller -ub"
        return finding(
            "HC124",
            f"out of memory{size}{where}: the compute buffer{at}",
            f"{less}: the buffer grows with the batch; else offload fewer layers (-ngl)",
        )
    if boot.of("weights_failed"):
        return finding("HC124", f"out of memory{size}{where}: the weights", "offload fewer layers (-ngl)")
    return finding(
        "HC124",
        f"out of memory{size}{where}",
        "offload fewer layers (-ngl), or a shorter context (-c) or fewer sequences (-np)",
    )


def _buffer_alone(boot: Boot, error: Statement) -> Finding:
    """A buffer that failed, by the allocation that failed for it where one is printed."""
    failed = next((s for s in boot.of("alloc_failed") if s.get("tried") is not None), error)
    return _llamacpp_buffer(boot, failed.get("tried"), failed.get("device"))


def _not_free(boot: Boot, error: Statement) -> Finding:
    free, total = boot.first("free_memory", "free"), boot.first("free_memory", "total")
    asked, requested = error.get("utilization"), error.get("requested")
    message = "less memory is free at the start than the fraction asks for"
    if isinstance(free, Printed) and isinstance(requested, Printed):
        message = f"{free.text} GiB are free at the start, {requested.text} are asked for"
        message += f" by --gpu-memory-utilization {asked.number:g}" if isinstance(asked, Printed) else ""
    fix = "lower --gpu-memory-utilization, or free the GPU"
    if isinstance(free, Printed) and isinstance(total, Printed) and 0 < free.value < total.value:
        most = floor(1000 * free.value / total.value) / 1000
        fix = f"--gpu-memory-utilization {most:g} at most, or free the GPU of what else runs on it"
    return finding("HC129", message, fix)


def _exception(boot: Boot, error: Statement) -> Finding:
    if boot.engine == "vllm":
        available = boot.first("available", "available")
        if isinstance(available, Printed) and available.value <= 0:
            return _no_blocks(boot, error)
        return finding("HC128", "the engine failed to start", "the lines above it say why")
    raised, pages = error.get("raised"), error.get("page_size")
    step, _ = _step_before(boot, error)
    name = str(raised) if raised is not None else "an exception"
    message = f"line {error.line}: {name} ended the scheduler {step}".rstrip()
    if isinstance(pages, int):
        return finding("HC128", f"{message}: it wants pages of {pages}", f"--page-size {pages}")
    return finding("HC128", message, "the traceback's last lines say what it lacked")


def _step_before(boot: Boot, error: Statement) -> tuple[str, Printed | None]:
    """When it failed, by the last line before, and the free memory that was printed last."""
    step, left = "", None
    for record in boot.records():
        if record is error or record.line > error.line:
            break
        kind = record.kind if isinstance(record, Statement) else "pool"
        step = _STEPS.get(kind, step)
        if isinstance(record, Statement) and isinstance(found := record.get("avail"), Printed):
            left = found
    return step, left


def _no_blocks(boot: Boot, error: Statement) -> Finding:
    available = boot.first("available", "available")
    asked, total = boot.first("utilization", "utilization"), boot.first("free_memory", "total")
    graphs = boot.first("graph_estimate", "estimate")
    message = "no memory for the cache"
    if isinstance(available, Printed):
        message += f": {available.text} GiB"
    if isinstance(asked, Printed):
        message += f" at --gpu-memory-utilization {asked.number:g}"
    if isinstance(graphs, Printed) and graphs.value > 0:
        message += f", {graphs.text} GiB are kept for graphs"
    fix = "raise --gpu-memory-utilization, use more GPUs or smaller weights"
    if boot.of("startup_refused"):
        return finding("HC125", message, "use more GPUs or smaller weights, or free the GPU: no more of it is free")
    known = [value for value in (available, asked, total) if isinstance(value, Printed)]
    if len(known) == 3 and known[2].value:
        available, asked, total = known
        least = asked.number + float((Fraction(0) - available.value) / total.value)
        fix = f"--gpu-memory-utilization above {least:.2f}" if least < 1 else "the weights do not fit: use more GPUs"
    return finding("HC125", message, fix)


def _too_many_sequences(boot: Boot, error: Statement) -> Finding:
    asked, blocks = error.get("max_num_seqs"), error.get("blocks")
    shown = f"{asked:,} sequences" if isinstance(asked, int) else "the sequences"
    has = f", there are {blocks:,}" if isinstance(blocks, int) else ""
    fix = f"--max-num-seqs {blocks}" if isinstance(blocks, int) else "lower --max-num-seqs"
    return finding(
        "HC126", f"{shown} need a block each{has}", f"{fix}, a higher --gpu-memory-utilization, or piecewise graphs"
    )


def _one_request(boot: Boot, error: Statement) -> Finding:
    length, needed, has = error.get("max_model_len"), error.get("needed"), error.get("available")
    longest = error.get("estimated") or error.get("stored")
    of = f" of {length:,} tokens" if isinstance(length, int) else ""
    message = f"one request{of} does not fit"
    if isinstance(needed, Printed) and isinstance(has, Printed):
        message += f": {needed.text} GiB are needed, {has.text} are there"
    elif isinstance(stored := error.get("stored"), int):
        message += f": {stored:,} tokens do"
    fix = f"--max-model-len {longest}" if isinstance(longest, int) else "lower --max-model-len"
    if boot.of("oom") or boot.of("startup_refused"):
        return finding("HC127", message, f"{fix}: there is no more memory for the cache")
    return finding("HC127", message, f"{fix}, or raise --gpu-memory-utilization")


def _no_token(boot: Boot, error: Statement) -> Finding:
    return finding("HC127", "not even one token fits", "raise --gpu-memory-utilization, or use more GPUs")


_CAUSES: dict[str, Callable[[Boot, Statement], Finding]] = {
    "refused_hybrid": _refused_hybrid,
    "refused_small": _refused_small,
    "refused_tokens": _refused_tokens,
    "refused_weights": _refused_weights,
    "ping_pong": _ping_pong,
    "slots_exhausted": _slots_exhausted,
    "no_host_memory": _host,
    "oom": _oom,
    "alloc_failed": _buffer_alone,
    "no_memory": _no_blocks,
    "seqs_exceed_blocks": _too_many_sequences,
    "one_request_too_big": _one_request,
    "no_auto_fit": _no_token,
    "capped": _clamped_to_none,
    "startup_refused": _not_free,
    "exception": _exception,
    "engine_failed": _exception,
    "compute_failed": _buffer_alone,
    "weights_failed": _buffer_alone,
}
"""A kind of refusal -> what to say about it. A new one is added here and in boots.ERRORS."""
