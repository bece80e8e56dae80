"""Why did a boot of vLLM fail, and which flag changes that? Every refusal with the figures the log gives for it."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

from hybridcalc.bootlog import Record
from hybridcalc.bootlog.boots import Boot
from hybridcalc.deployment import Workload
from hybridcalc.diagnosis import Causes, moment_before, out_of_memory
from hybridcalc.diagnosis.answer import both_ends, finding, sure_bound
from hybridcalc.diagnosis.vllm.candidates import Figures, Fit, prepared, printed_rest
from hybridcalc.engines.vllm.server_plan import plan
from hybridcalc.errors import Refusal, flags_of
from hybridcalc.findings import Finding
from hybridcalc.units import GIB

_TOO_SMALL = ("no_memory", "one_request_too_big", "no_auto_fit")
"""Refusals that a lower fraction of the GPU's memory would only make worse."""
_BOTH_SIDES = (
    "lower --max-num-batched-tokens, use more GPUs or smaller weights: memory lacks on both sides of the fraction"
)


_LOWER = "lower --gpu-memory-utilization, --max-num-seqs, or the largest batch that is captured"
_PROFILED = (
    "the batch that is profiled beside the weights does not fit: lower --max-num-seqs or --max-num-batched-tokens, "
    "or use more GPUs; the cache comes later, so --gpu-memory-utilization changes nothing"
)


def _oom(boot: Boot, error: Record) -> Finding:
    fix = _BOTH_SIDES if any(boot.of(kind) for kind in _TOO_SMALL) else _LOWER
    step, _ = moment_before(boot, error)
    if fix == _LOWER and step == boot.form("weights_loaded").moment:
        fix = _PROFILED
    return out_of_memory(boot, error, "--gpu-memory-utilization", fix)


def _not_free(boot: Boot, error: Record) -> Finding:
    free, total = boot.size("free_memory", "free"), boot.size("free_memory", "total")
    asked, requested = error.size("utilization"), error.size("requested")
    message = "less memory is free at the start than the fraction asks for"
    if free is not None and requested is not None:
        message = f"{free} GiB are free at the start, {requested} are asked for"
        message += f" by --gpu-memory-utilization {asked.number:g}" if asked is not None else ""
    fix, mend = "lower --gpu-memory-utilization, or free the GPU", None
    if free is not None and total is not None and 0 < free.value < total.value:
        ends = free.interval[0] / total.interval[1], free.interval[1] / total.interval[0]
        most, other = sure_bound(*ends, least=False)
        if most == "0":
            most, _ = sure_bound(free.value / total.value, ends[1], least=False)
        fix = f"--gpu-memory-utilization {most} at most{other}, or free the GPU of what else runs on it"
        mend = "--gpu-memory-utilization", most
    return finding("HC129", message, fix, mend=mend)


_NO_CAUSE = (
    "Engine core initialization failed",
    "Worker failed with error",
    "WorkerProc",
    "Executor failed",
    "EngineDeadError",
)
"""Exceptions that pass on what another one says."""


def _ended(boot: Boot, error: Record) -> Finding:
    available = boot.size("available", "available")
    if available is not None and available.value <= 0:
        return _no_blocks(boot, error)
    raised = [(one.line, what) for one in boot.of("raised") if (what := one.word("what"))]
    said = next((pair for pair in raised if not any(words in pair[1] for words in _NO_CAUSE)), None)
    if said is not None:
        return finding("HC128", f"line {said[0]}: {said[1]}", "the traceback above it says where")
    off = next(iter(boot.of("manager_off")), None)
    if off is not None:
        return _manager_off(f"line {off.line}: the hybrid KV cache manager is off, and the engine failed to start")
    return finding("HC128", "the engine failed to start", "the lines above it say why")


def _specs_differ(boot: Boot, error: Record) -> Finding:
    message = "the hybrid KV cache manager is off, and layers of several kinds cannot do without it (failed to convert)"
    return _manager_off(f"line {error.line}: {message}")


def _manager_off(message: str) -> Finding:
    fix = "a connector without hybrid caches turns it off (--kv-transfer-config, --kv-offloading-backend), as does "
    return finding("HC128", message, f"{fix}--disable-hybrid-kv-cache-manager: drop it")


def _pages_differ(boot: Boot, error: Record) -> Finding:
    message = "layers of two kinds have pages that are no multiples of each other (page_size_bytes == max_page_size)"
    fix = "a draft model's page above the state's does that: another draft or none, or a --block-size that both share"
    return finding("HC128", f"line {error.line}: {message}", fix)


def _no_blocks(boot: Boot, error: Record) -> Finding:
    available, total = boot.size("available", "available"), boot.size("free_memory", "total")
    asked, graphs = boot.size("utilization", "utilization"), boot.size("graph_estimate", "estimate")
    message = "no memory for the cache"
    message += f": {available} GiB" if available is not None else ""
    message += f" at --gpu-memory-utilization {asked.number:g}" if asked is not None else ""
    if graphs is not None and graphs.value > 0 and not boot.of("graphs_uncharged"):
        message += f", {graphs} GiB are kept for graphs"
    fix = "raise --gpu-memory-utilization, use more GPUs or smaller weights"
    if boot.of("startup_refused"):
        fix = "use more GPUs or smaller weights, or free the GPU: no more of it is free"
    elif available is not None and asked is not None and total is not None and total.value:
        ends = [Fraction(asked.text) - end / total.value for end in available.interval]
        least = asked.number - float(available.value / total.value)
        above = f"--gpu-memory-utilization above {least:.2f}{both_ends(ends[1], ends[0])}"
        fix = above if least < 1 else "the weights do not fit: use more GPUs"
    return finding("HC125", message, fix)


def _too_many_sequences(boot: Boot, error: Record) -> Finding:
    asked, blocks = error.count("max_num_seqs"), error.count("blocks")
    shown = f"{asked:,} sequences" if asked is not None else "the sequences"
    has = f", there are {blocks:,}" if blocks is not None else ""
    fix = f"--max-num-seqs {blocks}" if blocks is not None else "lower --max-num-seqs"
    more = f"{fix}, a higher --gpu-memory-utilization, or piecewise graphs"
    mend = ("--max-num-seqs", str(blocks)) if blocks else None
    return finding("HC126", f"{shown} need a block each{has}", more, mend=mend)


def _one_request(boot: Boot, error: Record) -> Finding:
    length, needed, has = error.count("max_model_len"), error.size("needed"), error.size("available")
    stored = error.count("stored")
    longest = error.count("estimated") or stored
    of = f" of {length:,} tokens" if length is not None else ""
    message = f"one request{of} does not fit"
    if needed is not None and has is not None:
        message += f": {needed} GiB are needed, {has} are there"
    elif needed is not None or has is not None:
        message += f": {needed} GiB are needed" if needed is not None else f": {has} GiB are there"
    elif stored is not None:
        message += f": {stored:,} tokens do"
    fix = f"--max-model-len {longest}" if longest is not None else "lower --max-model-len"
    full = boot.of("oom") or boot.of("startup_refused")
    fix += ": there is no more memory for the cache" if full else ", or raise --gpu-memory-utilization"
    return finding("HC127", message, fix, mend=("--max-model-len", str(longest)) if longest else None)


def _no_token(boot: Boot, error: Record) -> Finding:
    return finding("HC127", "not even one token fits", "raise --gpu-memory-utilization, or use more GPUs")


def that_serves(found: Finding, boot: Boot, fit: Fit, said: Figures, work: Workload) -> Finding:
    """A finding whose fix is a length: that of the requests and the sequences that start with it, where it is known;
    else the longest that fits, and a sequence for each block.
    """
    ready, loaded, rest = prepared(fit.model, fit.args), boot.size("weights_loaded", "usage"), printed_rest(fit, said)
    if found.mend is None or found.mend[0] != "--max-model-len" or ready is None or said.available is None:
        return found
    if work.longest and rest is not None:
        try:
            plan(fit.model, fit.args, rest=rest, workload=work)
        except Refusal as refusal:
            flag, _, value = (flags := flags_of(refusal.fix)).partition(" ")
            fix = f"{flags}, or raise --gpu-memory-utilization" if flags else str(refusal.fix)
            return found._replace(fix=fix, mend=(flag, value) if flag == found.mend[0] else None)
    blocks = int(said.available.interval[0]) // ready.bytes_per_block
    card = float((said.available.value + (loaded.value if loaded is not None else 0)) / GIB)
    seqs = replace(fit.args, gpu_memory_gib=fit.args.gpu_memory_gib or card).seqs
    if not ready.seqs_checked or seqs <= blocks:
        return found
    sequences = f"--max-num-seqs {blocks}"
    fix = found.fix.replace(found.mend[1], f"{found.mend[1]} {sequences}", 1)
    fix = f"{fix} and write {sequences}" if fix.endswith("utilization") else fix
    return found._replace(fix=fix, mend=(found.mend[0], f"{found.mend[1]} {sequences}"))


CAUSES: Causes = {
    "oom": _oom,
    "no_memory": _no_blocks,
    "seqs_exceed_blocks": _too_many_sequences,
    "one_request_too_big": _one_request,
    "no_auto_fit": _no_token,
    "startup_refused": _not_free,
    "engine_failed": _ended,
    "raised": _ended,
    "specs_differ": _specs_differ,
    "pages_differ": _pages_differ,
}
