"""What ratio balances the pools of a boot, and do its figures fit the model that was named? (``ratio --log``)"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction
from itertools import product

from hybridcalc.architecture import Architecture
from hybridcalc.bootlog import Record
from hybridcalc.bootlog.boots import Boot
from hybridcalc.bootlog.grammars import assemble
from hybridcalc.bootlog.reader import read_log
from hybridcalc.bootlog.sglang import differ, target_pools
from hybridcalc.deployment import Workload
from hybridcalc.diagnosis.answer import finding
from hybridcalc.diagnosis.sglang.candidates import LIKELY_TP
from hybridcalc.diagnosis.sglang.evidence import (
    KV_SIZES,
    SCRATCH_SIZES,
    STATE_SIZES,
    bounds_of,
    exact_sizes,
    fits,
    kv_sizes,
    log_constants,
    middle,
    mismatches,
    sizes_text,
    slot_range,
    token_range,
)
from hybridcalc.engines.sglang import ServerArgs
from hybridcalc.engines.sglang.balance import Balance, Observed, balance_constants, balance_model
from hybridcalc.engines.sglang.releases import RuleSet, rules_for
from hybridcalc.engines.sglang.sizes import Constants, architecture_constants
from hybridcalc.errors import HybridcalcError, InputError
from hybridcalc.findings import Finding
from hybridcalc.units import GIB, LARGEST_BYTES, LARGEST_TOKENS, MOST_SLOTS


def balance_log(
    source: str, model: Architecture | None, args: ServerArgs, workload: Workload, *, rest_gib: float | None = None
) -> tuple[Balance, tuple[Finding, ...]]:
    """r* from the boot log ``source`` (a path, or ``-``), checked against ``model`` when one is named.

    A model that fits gives its exact constants; one that does not is a finding, and the log's constants are used.
    Without ``rest_gib`` the memory for both pools is what the log printed. Raises InputError when the log
    lacks a line that is needed.
    """
    name = "stdin" if source == "-" else source
    remarks: list[str] = []
    read = assemble(read_log(source, remarks))
    boots = [boot for boot in read.boots if boot.of("state_pool") or boot.of("kv_pool")]
    if not boots:
        raise InputError(
            "; ".join([f"{name}: no SGLang pool allocation in it", *remarks]),
            fix="wanted: the lines `Mamba Cache is allocated. ...` and `KV Cache is allocated. ...`",
        )
    boot = next((one for one in reversed(boots) if None not in _sized_pools(one)), boots[-1])
    findings = [finding("HC104", remark) for remark in remarks]
    findings += _boot_findings(len(boots) + read.dropped, boot)
    state, kv = _sized_pools(boot)
    if state is None or (kv is None and model is None):
        missing = "state pool" if state is None else "KV pool"
        raise InputError(
            "; ".join([f"{name}: no {missing} line with its sizes", *remarks]),
            fix="give the whole boot log, or name the MODEL without --log",
        )
    _refuse_absurd(name, state, kv, args)
    observed = None
    if kv is not None:
        each = boot.count("capped", "slots_per_request")
        observed = Observed(state.count("slots") or 0, kv.count("tokens") or 0, each)
        printed = [*state.sizes(*STATE_SIZES, *SCRATCH_SIZES), *kv.sizes(*KV_SIZES)]
        rest_gib = float(sum((size.value for size in printed), Fraction(0)) / GIB) if rest_gib is None else rest_gib
    measured = log_constants(state, kv, args) if kv is not None else None
    if model is None and measured is not None:
        return balance_constants(measured, args, workload, rest_gib=rest_gib, observed=observed), tuple(findings)
    assert model is not None  # noqa: S101  (one of both was asked for above)
    rules, _ = rules_for(args.engine_version)
    exact = architecture_constants(model, args, rules)
    problems = mismatches(exact_sizes(exact), state, kv, args)
    constants = measured if problems else None
    answer = balance_model(model, args, workload, rest_gib=rest_gib, observed=observed, constants=constants)
    if problems:
        findings.append(_mismatch(problems, model, state, kv, args, rules))
    else:
        alone = answer
        if measured is not None:
            alone = balance_model(model, args, workload, constants=measured, observed=observed)
        ours, rounded = (f"{float(each.ratio):.2f}" for each in (answer, alone))
        findings.append(_agreement(exact, state, kv, "" if rounded == ours else rounded))
    return answer, tuple(findings)


def fitting_flags(model: Architecture, state: Record, kv: Record | None, args: ServerArgs, rules: RuleSet) -> str:
    """The flags under which this model would have printed the log, the smallest change first; empty when none would."""
    ssm_dtypes = (args.mamba_ssm_dtype, "float32", "bfloat16")
    kv_dtypes = (args.kv_cache_dtype, "auto", "fp8_e4m3")
    ranks = (args.tp_size, *(tp for tp in LIKELY_TP if tp != args.tp_size))
    tried = product(ranks, dict.fromkeys(ssm_dtypes), dict.fromkeys(kv_dtypes))
    given, bounds = (args.tp_size, args.mamba_ssm_dtype, args.kv_cache_dtype), bounds_of(state, kv, args)
    for tp, ssm, dtype in sorted(tried, key=lambda flags: sum(a != b for a, b in zip(flags, given, strict=True))):
        changed = replace(args, tp_size=tp, mamba_ssm_dtype=ssm, kv_cache_dtype=dtype)
        try:
            exact = exact_sizes(architecture_constants(model, changed, rules))
        except HybridcalcError:
            continue
        if fits(exact, bounds):
            flags = [f"--tp {tp}"] if tp != args.tp_size else []
            flags += [f"--mamba-ssm-dtype {ssm}"] if ssm != args.mamba_ssm_dtype else []
            flags += [f"--kv-cache-dtype {dtype}"] if dtype != args.kv_cache_dtype else []
            return " ".join(flags)
    return ""


def _refuse_absurd(name: str, state: Record, kv: Record | None, args: ServerArgs) -> None:
    """Raise InputError naming line and figure where a count or size is beyond any machine, or leaves less than a byte.

    Whoever edits a log, or a disk that flips its bits, may leave any figure.
    """
    counts = [(state, "max_mamba_cache_size", state.count("slots"), MOST_SLOTS)]
    if kv is not None:
        counts.append((kv, "#tokens", kv.count("tokens"), LARGEST_TOKENS))
    for pool, label, count, most in counts:
        if count is not None and count > most:
            raise InputError(f"{name}, line {pool.line}: {label}: {_counted(count)} is no count of a real boot")
        for size in pool.sizes(*STATE_SIZES, *SCRATCH_SIZES, *KV_SIZES):
            if size.value > LARGEST_BYTES:
                raise InputError(f"{name}, line {pool.line}: a size of {size} GB is none of a real boot")
    conv, ssm, cell = slot_range(state, "conv"), slot_range(state, "ssm"), token_range(kv, args)
    if conv is not None and ssm is not None and round(middle(conv) + middle(ssm)) < 1:
        what = f"{sizes_text(state, *STATE_SIZES)} GB for {state.count('slots'):,} slots"
        raise InputError(f"{name}, line {state.line}: {what} leave less than a byte for each")
    if kv is not None and cell is not None and round(middle(cell)) < 1:
        what = f"{sizes_text(kv, *KV_SIZES)} GB for {kv.count('tokens'):,} tokens"
        raise InputError(f"{name}, line {kv.line}: {what} leave less than a byte for each")


def _counted(count: int) -> str:
    """A count, or its first digits and how many there are."""
    text = str(count)
    return f"{count:,}" if len(text) <= 24 else f"{text[:12]}... ({len(text):,} digits)"


def _boot_findings(count: int, used: Boot) -> Iterator[Finding]:
    if count > 1:
        line = min(record.line for record in (*used.of("state_pool"), *used.of("kv_pool")))
        yield finding("HC102", f"{count:,} boots in the log: the one from line {line} is used")
    for kind, pools in (("state", used.of("state_pool")), ("KV", target_pools(used))):
        if differ(pools):
            yield finding("HC103", f"ranks differ in their {kind} pools: the first one printed is used")


def _agreement(exact: Constants, state: Record, kv: Record | None, rounded: str) -> Finding:
    """That the model's sizes round to the printed ones, and the r* that those would give, where it is another."""
    parts = [f"{(state.count('slots') or 0) + 1:,} slots x {int(exact.state_bytes):,} B"]
    if kv is not None:
        parts.append(f"{kv.count('tokens'):,} tokens x {int(exact.kv_bytes_per_token):,} B")
    text = f"the log matches the model: {' and '.join(parts)} give the printed sizes"
    return finding("HC100", f"{text}, which are rounded: r* of them is {rounded}" if rounded else text)


def _mismatch(
    problems: list[str], model: Architecture, state: Record, kv: Record | None, args: ServerArgs, rules: RuleSet
) -> Finding:
    flags = fitting_flags(model, state, kv, args, rules)
    fix = f"with {flags} it fits" if flags else "another model, another tp or other dtypes made this log"
    return finding("HC101", f"the log does not match {model.name}: {'; '.join(problems)}", fix)


def _sized_pools(boot: Boot) -> tuple[Record | None, Record | None]:
    """The first state pool and the first KV pool that are printed with their counts and sizes."""
    states, kvs = boot.of("state_pool"), boot.of("kv_pool")
    state = next((one for one in states if one.count("slots") is not None and len(one.sizes(*STATE_SIZES)) == 2), None)
    return state, next((one for one in kvs if one.count("tokens") and kv_sizes(one)), None)
