"""What do a boot log's figures say about the model's constants, and do they fit the model that was named?

    state slot = (conv + ssm printed) / (K + 1)          SGLang's pool holds one slot more than it prints
    KV token   = (K + V printed) / (tokens + page)       and one page more

A printed figure is an interval ("13.04" GiB is [13.035, 13.045)), so both constants are intervals; a model fits when
its exact sizes lie in all of them. Knows the records (bootlog/) and the engine's sizes (engines/sglang/).
"""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from fractions import Fraction
from itertools import islice, product
from typing import NamedTuple

from hybridcalc.architecture.geometry import Architecture
from hybridcalc.bootlog import KvPoolAllocated, Printed, Record, StatePoolAllocated, read_log
from hybridcalc.deployment import Workload
from hybridcalc.engines.sglang.balance import Balance, Observed, balance_constants, balance_model
from hybridcalc.engines.sglang.config import RuleSet, ServerArgs, rules_for
from hybridcalc.engines.sglang.constants import Constants, Range, architecture_constants
from hybridcalc.errors import HybridcalcError, InputError
from hybridcalc.findings import Finding
from hybridcalc.units import GIB

MOST_RECORDS = 100_000
"""Allocation lines read from one log; a boot of 1,024 ranks prints 2,048."""
UNKNOWN_PAGE = (1, 64)
"""Tokens of the padding page when --page-size is not given: SGLang's smallest and largest usual page."""
LIKELY_TP = (1, 2, 4, 8, 16, 32)


class Boot(NamedTuple):
    """One start of a server: its state pools and KV pools, of every rank, in the order of the log."""

    states: tuple[StatePoolAllocated, ...]
    kvs: tuple[KvPoolAllocated, ...]


def balance_log(
    source: str, model: Architecture | None, args: ServerArgs, workload: Workload, *, rest_gib: float | None = None
) -> tuple[Balance, tuple[Finding, ...]]:
    """r* from the boot log ``source`` (a path, or ``-``), checked against ``model`` when one is named.

    A model that fits gives its exact constants; one that does not is a finding, and the log's constants are used.
    Without ``rest_gib`` the memory for both pools is what the log printed. Raises InputError when the log
    lacks a line that is needed.
    """
    name = "stdin" if source == "-" else source
    boots = list(split_boots(islice(read_log(source), MOST_RECORDS)))
    if not boots:
        raise InputError(
            f"{name}: no SGLang pool allocation in it",
            fix="wanted: the lines `Mamba Cache is allocated. ...` and `KV Cache is allocated. ...`",
        )
    boot = next((boot for boot in reversed(boots) if _complete(boot)), boots[-1])
    findings = [*_boot_findings(boots, boot)]
    state, kv = _state_with_sizes(boot), _kv_with_sizes(boot)
    if state is None or (kv is None and model is None):
        missing = "state pool" if state is None else "KV pool"
        raise InputError(
            f"{name}: no {missing} line with its sizes", fix="give the whole boot log, or name the MODEL without --log"
        )
    observed, printed_gib = _observations(state, kv)
    rest_gib = rest_gib if rest_gib is not None else printed_gib
    if model is None:
        measured = log_constants(state, kv, args)
        answer = balance_constants(measured, args, workload, rest_gib=rest_gib, observed=observed)
        return answer, tuple(findings)
    rules, _ = rules_for(args.engine_version)
    exact = architecture_constants(model, args, rules)
    problems = mismatches(exact, state, kv, args)
    replaced = None
    if problems:
        findings.append(_mismatch(problems, model, state, kv, args, rules))
        replaced = log_constants(state, kv, args) if kv is not None else None
    else:
        findings.append(_agreement(exact, state, kv))
    answer = balance_model(model, args, workload, rest_gib=rest_gib, observed=observed, constants=replaced)
    return answer, tuple(findings)


def split_boots(records: Iterable[Record]) -> Iterator[Boot]:
    """Boots in a log: a new one starts where a rank allocates its state pool again."""
    states: list[StatePoolAllocated] = []
    kvs: list[KvPoolAllocated] = []
    ranks: set[str] = set()
    for record in records:
        if isinstance(record, KvPoolAllocated):
            kvs.append(record)
            continue
        if record.rank in ranks:
            yield Boot(tuple(states), tuple(kvs))
            states, kvs, ranks = [], [], set()
        ranks.add(record.rank)
        states.append(record)
    if states or kvs:
        yield Boot(tuple(states), tuple(kvs))


def log_constants(state: StatePoolAllocated, kv: KvPoolAllocated | None, args: ServerArgs) -> Constants:
    """Both constants as intervals, their middles as values. ``kv`` must have sizes. Units: bytes per rank."""
    conv, ssm, per_token = slot_range(state, "conv"), slot_range(state, "ssm"), token_range(kv, args)
    if conv is None or ssm is None or per_token is None or kv is None:
        raise InputError("the log does not print the sizes of both pools")
    both = (conv[0] + ssm[0], conv[1] + ssm[1])
    slots, sizes = (state.slots or 0) + 1, " + ".join(p.text for p in (state.conv, state.ssm) if p is not None)
    return Constants(
        origin="log",
        state_bytes=_middle(both),
        conv_bytes=_middle(conv),
        ssm_bytes=_middle(ssm),
        kv_bytes_per_token=_middle(per_token),
        state_why=f"line {state.line}: ({sizes}) GiB / {slots:,} slots, {_between(both)}",
        kv_why=f"line {kv.line}: {_kv_text(kv)} GiB / {kv.tokens or 0:,} tokens, {_between(per_token)}",
        state_numbers=f"({sizes}) GiB / ({state.slots:,} + 1)",
        kv_numbers=f"{_kv_text(kv)} GiB / ({kv.tokens or 0:,} + page)",
        state_range=both,
        kv_range=per_token,
    )


def slot_range(state: StatePoolAllocated, part: str) -> Range | None:
    """Bytes of one slot's "conv" or "ssm" part: the printed interval over K + 1 slots."""
    printed: Printed | None = getattr(state, part)
    if printed is None or state.slots is None:
        return None
    low, high = printed.interval
    return low / (state.slots + 1), high / (state.slots + 1)


def token_range(kv: KvPoolAllocated | None, args: ServerArgs) -> Range | None:
    """Bytes of one token's KV: the printed interval over the tokens and the padding page."""
    if kv is None or kv.tokens is None:
        return None
    parts = [kv.kv] if kv.kv is not None else [kv.k, kv.v]
    intervals = [part.interval for part in parts if part is not None]
    if len(intervals) < len(parts):
        return None
    pages = (args.page_size, args.page_size) if args.page_size else UNKNOWN_PAGE
    low, high = sum(i[0] for i in intervals), sum(i[1] for i in intervals)
    return Fraction(low) / (kv.tokens + pages[1]), Fraction(high) / (kv.tokens + pages[0])


def mismatches(exact: Constants, state: StatePoolAllocated, kv: KvPoolAllocated | None, args: ServerArgs) -> list[str]:
    """What the log prints that the exact constants cannot have printed, in words; empty when all of it fits."""
    checks = [
        ("conv state per slot", exact.conv_bytes, slot_range(state, "conv")),
        ("SSM state per slot", exact.ssm_bytes, slot_range(state, "ssm")),
        ("KV per token", exact.kv_bytes_per_token, token_range(kv, args)),
    ]
    return [
        f"{name} is {int(size):,} B by the model, {_between(bounds)} by the log"
        for name, size, bounds in checks
        if bounds is not None and not bounds[0] <= size < bounds[1]
    ]


def fitting_flags(
    model: Architecture, state: StatePoolAllocated, kv: KvPoolAllocated | None, args: ServerArgs, rules: RuleSet
) -> str:
    """The flags under which this model would have printed the log, the smallest change first; empty when none would."""
    ssm_dtypes = (args.mamba_ssm_dtype, "float32", "bfloat16")
    kv_dtypes = (args.kv_cache_dtype, "auto", "fp8_e4m3")
    ranks = (args.tp_size, *(tp for tp in LIKELY_TP if tp != args.tp_size))
    tried = product(ranks, dict.fromkeys(ssm_dtypes), dict.fromkeys(kv_dtypes))
    given = (args.tp_size, args.mamba_ssm_dtype, args.kv_cache_dtype)
    for tp, ssm, dtype in sorted(tried, key=lambda flags: sum(a != b for a, b in zip(flags, given, strict=True))):
        changed = replace(args, tp_size=tp, mamba_ssm_dtype=ssm, kv_cache_dtype=dtype)
        try:
            fits = not mismatches(architecture_constants(model, changed, rules), state, kv, changed)
        except HybridcalcError:
            continue
        if fits:
            flags = [f"--tp {tp}"] if tp != args.tp_size else []
            flags += [f"--mamba-ssm-dtype {ssm}"] if ssm != args.mamba_ssm_dtype else []
            flags += [f"--kv-cache-dtype {dtype}"] if dtype != args.kv_cache_dtype else []
            return " ".join(flags)
    return ""


def _observations(state: StatePoolAllocated, kv: KvPoolAllocated | None) -> tuple[Observed | None, float | None]:
    """The boot's own pools, and the memory they took together, GiB; None where a line is missing."""
    if kv is None or kv.tokens is None or state.slots is None:
        return None, None
    printed = (state.conv, state.ssm, state.intermediate_conv, state.intermediate_ssm, kv.kv, kv.k, kv.v)
    total = sum((p.value for p in printed if p is not None), start=Fraction(0))
    return Observed(state.slots, kv.tokens), float(total / GIB)


def _boot_findings(boots: list[Boot], used: Boot) -> Iterator[Finding]:
    if len(boots) > 1:
        records: list[Record] = [*used.states, *used.kvs]
        line = min(record.line for record in records)
        yield Finding("HC102", "note", f"{len(boots)} boots in the log: the one from line {line} is used")
    for kind, pools in (("state", used.states), ("KV", _target_pools(used.kvs))):
        sizes = {replace(pool, rank="", line=0) for pool in pools}
        if len(sizes) > 1:
            yield Finding("HC103", "warning", f"ranks differ in their {kind} pools: the first one printed is used")


def _target_pools(kvs: tuple[KvPoolAllocated, ...]) -> list[KvPoolAllocated]:
    """The first KV pool of each rank; later ones belong to a draft model."""
    return list({pool.rank: pool for pool in reversed(kvs)}.values())


def _agreement(exact: Constants, state: StatePoolAllocated, kv: KvPoolAllocated | None) -> Finding:
    slots = (state.slots or 0) + 1
    parts = [f"{slots:,} slots x {int(exact.state_bytes):,} B"]
    if kv is not None and kv.tokens is not None:
        parts.append(f"{kv.tokens:,} tokens x {int(exact.kv_bytes_per_token):,} B")
    return Finding("HC100", "note", f"the log matches the model: {' and '.join(parts)} give the printed sizes")


def _mismatch(
    problems: list[str], model: Architecture, state: StatePoolAllocated, kv: KvPoolAllocated | None, args: ServerArgs,
    rules: RuleSet,
) -> Finding:  # fmt: skip
    flags = fitting_flags(model, state, kv, args, rules)
    fix = f"with {flags} it fits" if flags else "another model, another tp or other dtypes made this log"
    return Finding("HC101", "error", f"the log does not match {model.name}: {'; '.join(problems)}", fix)


def _complete(boot: Boot) -> bool:
    return _state_with_sizes(boot) is not None and _kv_with_sizes(boot) is not None


def _state_with_sizes(boot: Boot) -> StatePoolAllocated | None:
    return next((s for s in boot.states if s.slots is not None and s.conv is not None and s.ssm is not None), None)


def _kv_with_sizes(boot: Boot) -> KvPoolAllocated | None:
    return next((k for k in boot.kvs if k.tokens and (k.kv is not None or (k.k is not None and k.v is not None))), None)


def _middle(bounds: Range) -> Fraction:
    return (bounds[0] + bounds[1]) / 2


def _between(bounds: Range) -> str:
    return f"{int(bounds[0]):,} to {int(bounds[1]):,} B"


def _kv_text(kv: KvPoolAllocated) -> str:
    return " + ".join(part.text for part in (kv.kv, kv.k, kv.v) if part is not None)
