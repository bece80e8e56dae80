"""What do a boot log's figures say about the model's constants, and do they fit the model that was named?

    state slot = (conv + ssm printed) / (K + 1)          SGLang's pool holds one slot more than it prints
    KV token   = (K + V printed) / (tokens + page)       and one page more

A printed figure is an interval ("13.04" GiB is [13.035, 13.045)), so both constants are intervals; a model fits when
its exact sizes lie in all of them. Knows the records (bootlog/) and the engine's sizes (engines/sglang/).
"""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from fractions import Fraction
from itertools import product
from math import ceil
from typing import NamedTuple

from hybridcalc.architecture.geometry import Architecture
from hybridcalc.bootlog import KvPoolAllocated, Printed, Record, Statement, StatePoolAllocated, read_log
from hybridcalc.deployment import Workload
from hybridcalc.engines.sglang.balance import Balance, Observed, balance_constants, balance_model
from hybridcalc.engines.sglang.config import ServerArgs
from hybridcalc.engines.sglang.constants import Constants, Range, architecture_constants
from hybridcalc.engines.sglang.releases import RuleSet, rules_for
from hybridcalc.errors import HybridcalcError, InputError
from hybridcalc.findings import Finding
from hybridcalc.units import GIB, LARGEST_BYTES, LARGEST_TOKENS, MOST_SLOTS

MOST_RANKS = 16_384
"""Ranks of one boot; the largest that ran had 1,024. All that is held of a log is one boot."""
UNKNOWN_PAGE = (1, 64)
"""Tokens of the padding page when --page-size is not given: SGLang's smallest and largest usual page."""
LIKELY_TP = (1, 2, 4, 8, 16, 32)


class Boot(NamedTuple):
    """One start of a server: of every rank its state pool and its KV pools, in the order of the log.

    Of a rank's KV pools only the first is kept, and the first with its sizes: later ones belong to a draft model.
    """

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
    remarks: list[str] = []
    count, last, complete = 0, None, None
    for one in split_boots(read_log(source, remarks)):
        count, last, complete = count + 1, one, one if _complete(one) else complete
    boot = complete or last
    if boot is None:
        raise InputError(
            "; ".join([f"{name}: no SGLang pool allocation in it", *remarks]),
            fix="wanted: the lines `Mamba Cache is allocated. ...` and `KV Cache is allocated. ...`",
        )
    findings = [Finding("HC104", "warning", remark) for remark in remarks]
    findings += _boot_findings(count, boot)
    state, kv = _state_with_sizes(boot), _kv_with_sizes(boot)
    if state is None or (kv is None and model is None):
        missing = "state pool" if state is None else "KV pool"
        raise InputError(
            "; ".join([f"{name}: no {missing} line with its sizes", *remarks]),
            fix="give the whole boot log, or name the MODEL without --log",
        )
    _refuse_absurd(name, state, kv, args)
    observed, printed_gib = _observations(state, kv)
    rest_gib = rest_gib if rest_gib is not None else printed_gib
    if model is None:
        measured = log_constants(state, kv, args)
        answer = balance_constants(measured, args, workload, rest_gib=rest_gib, observed=observed)
        return answer, tuple(findings)
    rules, _ = rules_for(args.engine_version)
    exact = architecture_constants(model, args, rules)
    problems = mismatches(exact_sizes(exact), state, kv, args)
    replaced = None
    if problems:
        findings.append(_mismatch(problems, model, state, kv, args, rules))
        replaced = log_constants(state, kv, args) if kv is not None else None
    else:
        findings.append(_agreement(exact, state, kv))
    answer = balance_model(model, args, workload, rest_gib=rest_gib, observed=observed, constants=replaced)
    return answer, tuple(findings)


def split_boots(records: Iterable[Record]) -> Iterator[Boot]:
    """Boots in a log, one held at a time: a new one starts where a rank allocates its state pool again.

    Raises InputError where more than MOST_RANKS ranks seem to start at once: no server does.
    """
    states: dict[str, StatePoolAllocated] = {}
    kvs: dict[tuple[str, bool], KvPoolAllocated] = {}
    for record in records:
        if isinstance(record, Statement):
            continue
        if isinstance(record, KvPoolAllocated):
            kvs.setdefault((record.rank, _has_sizes(record)), record)
        elif record.rank in states:
            yield Boot(tuple(states.values()), tuple(kvs.values()))
            states, kvs = {record.rank: record}, {}
        else:
            states[record.rank] = record
        if len(states) > MOST_RANKS or len(kvs) > 2 * MOST_RANKS:
            raise InputError(
                f"line {record.line}: more than {MOST_RANKS:,} ranks in one boot, this is no boot log",
                fix="give the log of one server",
            )
    if states or kvs:
        yield Boot(tuple(states.values()), tuple(kvs.values()))


def log_constants(state: StatePoolAllocated, kv: KvPoolAllocated | None, args: ServerArgs) -> Constants:
    """Both constants as intervals, their middles as values. ``kv`` must have sizes. Units: bytes per rank."""
    conv, ssm, per_token = slot_range(state, "conv"), slot_range(state, "ssm"), token_range(kv, args)
    if conv is None or ssm is None or per_token is None or kv is None:
        raise InputError("the log does not print the sizes of both pools")
    both = (conv[0] + ssm[0], conv[1] + ssm[1])
    slots, sizes = (state.slots or 0) + 1, _sizes(state.conv, state.ssm)
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


class PoolBounds(NamedTuple):
    """What printed pools say of a slot's two parts and of a token: [low, high) in whole bytes of a rank."""

    conv: tuple[int, int] | None
    ssm: tuple[int, int] | None
    token: tuple[int, int] | None


def pool_bounds(state: StatePoolAllocated, kv: KvPoolAllocated | None, args: ServerArgs) -> PoolBounds:
    """The bounds that a boot's pools set, worked out once for however many models are held against them."""
    ranges = slot_range(state, "conv"), slot_range(state, "ssm"), token_range(kv, args)
    return PoolBounds(*(one and (ceil(one[0]), ceil(one[1])) for one in ranges))


class ExactSizes(NamedTuple):
    """A model's own sizes on a rank: whole bytes of a slot, of its two parts, and of a token."""

    state: int
    conv: int
    ssm: int
    token: int


def exact_sizes(constants: Constants) -> ExactSizes:
    """The sizes of an architecture, which are whole."""
    both, conv, ssm, token = constants[1:5]
    return ExactSizes(int(both), int(conv), int(ssm), int(token))


def fits(exact: ExactSizes, bounds: PoolBounds) -> bool:
    """Whether pools of these exact sizes would have been printed as they were."""
    conv, ssm, token = bounds
    return (
        (conv is None or conv[0] <= exact.conv < conv[1])
        and (ssm is None or ssm[0] <= exact.ssm < ssm[1])
        and (token is None or token[0] <= exact.token < token[1])
    )


def mismatches(exact: ExactSizes, state: StatePoolAllocated, kv: KvPoolAllocated | None, args: ServerArgs) -> list[str]:
    """What the log prints that the exact sizes cannot have printed, in words; empty when all of it fits."""
    checks = [
        ("conv state per slot", exact.conv, slot_range(state, "conv")),
        ("SSM state per slot", exact.ssm, slot_range(state, "ssm")),
        ("KV per token", exact.token, token_range(kv, args)),
    ]
    return [
        f"{name} is {size:,} B by the model, {_between(bounds)} by the log"
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
    given, bounds = (args.tp_size, args.mamba_ssm_dtype, args.kv_cache_dtype), pool_bounds(state, kv, args)
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


def _observations(state: StatePoolAllocated, kv: KvPoolAllocated | None) -> tuple[Observed | None, float | None]:
    """The boot's own pools, and the memory they took together, GiB; None where a line is missing."""
    if kv is None or kv.tokens is None or state.slots is None:
        return None, None
    printed = (state.conv, state.ssm, state.intermediate_conv, state.intermediate_ssm, kv.kv, kv.k, kv.v)
    total = sum((p.value for p in printed if p is not None), start=Fraction(0))
    return Observed(state.slots, kv.tokens), float(total / GIB)


def _refuse_absurd(name: str, state: StatePoolAllocated, kv: KvPoolAllocated | None, args: ServerArgs) -> None:
    """Raise InputError naming line and figure where a count or size is beyond any machine, or leaves less than a byte.

    Whoever edits a log, or a disk that flips its bits, may leave any figure.
    """
    counts = [(state.line, "max_mamba_cache_size", state.slots, MOST_SLOTS)]
    sizes = [(state.line, part) for part in (state.conv, state.ssm, state.intermediate_conv, state.intermediate_ssm)]
    if kv is not None:
        counts.append((kv.line, "#tokens", kv.tokens, LARGEST_TOKENS))
        sizes += [(kv.line, part) for part in (kv.k, kv.v, kv.kv)]
    for line, label, count, most in counts:
        if count is not None and count > most:
            raise InputError(f"{name}, line {line}: {label}: {_counted(count)} is no count of a real boot")
    for line, size in sizes:
        if size is not None and size.value > LARGEST_BYTES:
            raise InputError(f"{name}, line {line}: a size of {size.text} GB is none of a real boot")
    conv, ssm, per_token = slot_range(state, "conv"), slot_range(state, "ssm"), token_range(kv, args)
    if conv is not None and ssm is not None and round(_middle(conv) + _middle(ssm)) < 1:
        what = f"{_sizes(state.conv, state.ssm)} GB for {state.slots:,} slots"
        raise InputError(f"{name}, line {state.line}: {what} leave less than a byte for each")
    if kv is not None and per_token is not None and round(_middle(per_token)) < 1:
        what = f"{_kv_text(kv)} GB for {kv.tokens:,} tokens"
        raise InputError(f"{name}, line {kv.line}: {what} leave less than a byte for each")


def _counted(count: int) -> str:
    """A count, or its first digits and how many there are."""
    text = str(count)
    return f"{count:,}" if len(text) <= 24 else f"{text[:12]}... ({len(text):,} digits)"


def _boot_findings(count: int, used: Boot) -> Iterator[Finding]:
    if count > 1:
        records: list[Record] = [*used.states, *used.kvs]
        line = min(record.line for record in records)
        yield Finding("HC102", "note", f"{count:,} boots in the log: the one from line {line} is used")
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
    problems: list[str],
    model: Architecture,
    state: StatePoolAllocated,
    kv: KvPoolAllocated | None,
    args: ServerArgs,
    rules: RuleSet,
) -> Finding:
    flags = fitting_flags(model, state, kv, args, rules)
    fix = f"with {flags} it fits" if flags else "another model, another tp or other dtypes made this log"
    return Finding("HC101", "error", f"the log does not match {model.name}: {'; '.join(problems)}", fix)


def _complete(boot: Boot) -> bool:
    return _state_with_sizes(boot) is not None and _kv_with_sizes(boot) is not None


def _state_with_sizes(boot: Boot) -> StatePoolAllocated | None:
    return next((s for s in boot.states if s.slots is not None and s.conv is not None and s.ssm is not None), None)


def _kv_with_sizes(boot: Boot) -> KvPoolAllocated | None:
    return next((kv for kv in boot.kvs if _has_sizes(kv)), None)


def _has_sizes(kv: KvPoolAllocated) -> bool:
    return bool(kv.tokens) and (kv.kv is not None or (kv.k is not None and kv.v is not None))


def _middle(bounds: Range) -> Fraction:
    return (bounds[0] + bounds[1]) / 2


def _between(bounds: Range) -> str:
    return f"{int(bounds[0]):,} to {int(bounds[1]):,} B"


def _kv_text(kv: KvPoolAllocated) -> str:
    return _sizes(kv.kv, kv.k, kv.v)


def _sizes(*parts: Printed | None) -> str:
    return " + ".join(part.text for part in parts if part is not None)
