"""Allocate every tensor of a rank at two sizes, and hold formula, storage and allocator against each other.

Of each tensor: the closed form's bytes, the bytes of the storage torch made for its shape, the bytes the allocator took
and those its rules say; then slope and intercept of the line through both sizes, and the bytes at full scale that line
gives, against the closed form at full scale. All are integers; all must be equal. Nothing stays allocated, whatever
happens in between.
"""

from collections.abc import Callable, Sequence
from fractions import Fraction
from math import ceil
from typing import Any, NamedTuple

from hybridcalc.crosscheck.backend import torch
from hybridcalc.crosscheck.devices import Check, Meter, Took, auto_budget
from hybridcalc.crosscheck.tensors import Builder, Sizes, Tensor, TensorView, scaled, second_size
from hybridcalc.errors import HybridcalcError, InputError, quoted
from hybridcalc.units import format_bytes

DTYPES = {
    "float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16, "int8": torch.int8,
    "uint8": torch.uint8, "int32": torch.int32, "int64": torch.int64, "fp8_e4m3": torch.float8_e4m3fn,
    "fp8_e5m2": torch.float8_e5m2,
}  # fmt: skip
LARGEST_DIVISOR, LONGEST_DIVISOR, AUTO_PARTS = 2**40, 13, 1000
Progress = Callable[[int], None]
"""Told the bytes of each tensor when it is done."""


class NoMemory(HybridcalcError):
    """The tensors do not fit where they should be allocated."""


class Reading(NamedTuple):
    """One tensor as it was found: bytes of its storage, what the allocator took, and what is wrong with its views."""

    storage_bytes: int
    took: Took
    view_problem: str


class Row(NamedTuple):
    """One tensor: formula, storage and allocator at the scale measured, and the line that leads to full scale."""

    tensor: Tensor
    units: int
    storage_bytes: int
    took: Took
    slope_bytes: Fraction | None
    intercept_bytes: Fraction | None
    full_units: int
    full_bytes: int
    full_formula_bytes: int
    other_problem: str

    @property
    def problems(self) -> list[str]:
        """What does not agree, with the difference; empty when everything does."""
        found = []
        if self.storage_bytes != self.tensor.formula_bytes:
            found.append(_differs("storage", self.storage_bytes, "formula", self.tensor.formula_bytes))
        if not self.took.ok:
            found.append(_differs("allocator", self.took.measured or 0, "its rules", self.took.expected or 0))
        if self.full_bytes != self.full_formula_bytes:
            found.append(_differs("at full scale the line", self.full_bytes, "formula", self.full_formula_bytes))
        return found + [self.other_problem] * bool(self.other_problem)

    @property
    def ok(self) -> bool:
        """Whether everything agrees."""
        return not self.problems

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        t = self.tensor
        return {
            "tensor": t.name,
            "figure": t.figure,
            "pool": t.pool,
            "shape": list(t.shape),
            "dtype": t.dtype,
            "formula_bytes": t.formula_bytes,
            "storage_bytes": self.storage_bytes,
            "expected_storage_bytes": t.formula_bytes,
            "storage_ok": self.storage_bytes == t.formula_bytes,
            "allocator_bytes": self.took.measured,
            "expected_allocator_bytes": self.took.expected,
            "allocator_ok": None if self.took.measured is None else self.took.ok,
            "grows_with": t.grows_with,
            "count": self.units,
            "slope_bytes": _plain(self.slope_bytes),
            "intercept_bytes": _plain(self.intercept_bytes),
            "full_count": self.full_units,
            "full_bytes": self.full_bytes,
            "full_formula_bytes": self.full_formula_bytes,
            "formula_ok": self.full_bytes == self.full_formula_bytes,
            "views": [
                {
                    "name": v.name,
                    "shape": list(v.shape),
                    "dtype": v.dtype,
                    "nominal_bytes": v.nominal_bytes,
                    "end_bytes": v.end_bytes,
                }
                for v in t.views
            ],
            "ok": self.ok,
            "problems": self.problems,
        }


class Shard(NamedTuple):
    """What one rank of one stage came to."""

    stage: int
    sizes: Sizes
    full: Sizes
    scale: Fraction
    rows: tuple[Row, ...]
    memory_stats: dict[str, Any]
    checks: tuple[Check, ...]

    @property
    def ok(self) -> bool:
        """Whether every row and check holds."""
        return all(row.ok for row in self.rows) and all(check.ok for check in self.checks)

    def figure(self, name: str) -> int:
        """Bytes at full scale of a figure of the plan, as the tensors have it."""
        return sum(row.full_bytes for row in self.rows if row.tensor.figure == name)

    @property
    def totals(self) -> dict[str, Any]:
        """Sums over the rows, and what every figure comes to at full scale."""
        measured = [row.took.measured for row in self.rows]
        expected = [row.took.expected for row in self.rows]
        figures = dict.fromkeys(row.tensor.figure for row in self.rows)
        return {
            "formula_bytes": sum(row.tensor.formula_bytes for row in self.rows),
            "storage_bytes": sum(row.storage_bytes for row in self.rows),
            "allocator_bytes": None if None in measured else sum(size or 0 for size in measured),
            "expected_allocator_bytes": None if None in expected else sum(size or 0 for size in expected),
            "full_bytes": sum(row.full_bytes for row in self.rows),
            "full_formula_bytes": sum(row.full_formula_bytes for row in self.rows),
            "figures": {name: self.figure(name) for name in figures},
        }


def verify_shard(
    build: Builder,
    full: Sizes,
    page: int,
    meter: Meter,
    *,
    scale: str = "auto",
    limit: int | None = None,
    sharers: int = 1,
    stage: int = 0,
    watch: Callable[[int], Progress] | None = None,
) -> Shard:
    """Measure the tensors of one rank. ``scale`` is auto, full or a divisor; ``limit`` the most bytes to take, which
    ``sharers`` processes share like the device's free memory.

    ``watch`` is told the bytes to come and gives what is told of each tensor. Raises NoMemory when they do not fit;
    nothing stays allocated then.
    """
    part = find_scale(build, full, page, meter, scale, limit, sharers)
    sizes = scaled(full, part, page)
    other = second_size(sizes, page)
    first, second = build(sizes), build(other)
    needed = meter.needs([tensor.shape_bytes for tensor in first])
    progress = (
        None
        if watch is None or meter.device == "meta"
        else watch(sum(tensor.shape_bytes for tensor in (*first, *second)))
    )  # both sizes are written; on meta neither is
    try:
        readings, stats, checks = measure(first, meter, progress)
        others, _, more = measure(second, meter, progress)
    except torch.OutOfMemoryError as error:
        raise _no_memory(needed, meter, part, str(error)) from None
    except RuntimeError as error:
        if "alloc" not in str(error).lower():
            raise
        raise _no_memory(needed, meter, part, str(error)) from None
    at_full = build(full)
    rows = tuple(
        _row(tensor, reading, other_reading, whole, (sizes, other, full))
        for tensor, reading, other_reading, whole in zip(first, readings, others, at_full, strict=True)
    )
    return Shard(stage, sizes, full, part, rows, stats, (*checks, *more))


def measure(
    tensors: Sequence[Tensor], meter: Meter, progress: Progress | None = None
) -> tuple[list[Reading], dict[str, Any], list[Check]]:
    """Make every tensor, read what it took, and let all of them go again."""
    held: list[Any] = []
    readings: list[Reading] = []
    try:
        meter.begin([tensor.shape_bytes for tensor in tensors])
        for tensor in tensors:
            held.append(torch.empty(tensor.shape, dtype=DTYPES[tensor.dtype], device=meter.device))
            meter.touch(held[-1])
            problems = [problem for view in tensor.views if (problem := _view_problem(held[-1], view))]
            storage = held[-1].untyped_storage().nbytes()
            readings.append(Reading(storage, meter.took(held[-1]), "; ".join(problems[:3])))
            if progress is not None:
                progress(tensor.shape_bytes)
        stats, checks = meter.held()
    finally:
        for real in held:
            real.untyped_storage().resize_(0)  # frees it even where a traceback still holds the tensor
        held.clear()
        after, freed = meter.freed()
    return readings, stats | after, checks + freed


def find_scale(
    build: Builder, full: Sizes, page: int, meter: Meter, scale: str, limit: int | None, sharers: int = 1
) -> Fraction:
    """The part of full scale that --scale asks for; auto is all that fits the limit, or the device's share of its
    free memory. Raises NoMemory with what is needed and what fits.
    """
    room = None if (free := meter.room()) is None else free // sharers
    limit = None if limit is None else limit // sharers
    number = int(scale) if scale.isascii() and scale.isdecimal() and len(scale) <= LONGEST_DIVISOR else 0
    if scale not in ("auto", "full") and not 0 < number <= LARGEST_DIVISOR:
        raise InputError(
            f"--scale {quoted(scale)} is not a scale", fix="write auto, full, or N for an N-th of all slots and tokens"
        )

    def needs(part: Fraction) -> int:
        sizes = scaled(full, part, page)
        both = (sizes, second_size(sizes, page))
        return max(meter.needs([tensor.shape_bytes for tensor in build(size)]) for size in both)

    most = room if limit is None else limit if room is None else min(limit, room)
    if scale == "auto":
        if most is not None and limit is None:
            most = auto_budget(meter.device, most)
        return Fraction(1) if most is None else _largest_fitting(needs, most, meter, AUTO_PARTS)
    part = Fraction(1, 1 if scale == "full" else number)
    if most is not None and needs(part) > most:
        fitting = _smallest_divisor(needs, most, meter)
        raise NoMemory(
            f"--scale {scale} needs {format_bytes(needs(part))} of {meter.device} memory, and {format_bytes(most)} "
            + ("may be taken" if most == limit else "are free")
            + (f" by each of the {sharers} processes that share it" if sharers > 1 else ""),
            fix=f"--scale {fitting} needs {format_bytes(needs(Fraction(1, fitting)))} and fits",
        )
    return part


def _largest_fitting(needs: Callable[[Fraction], int], most: int, meter: Meter, parts: int) -> Fraction:
    """The most of ``parts`` parts that fit, or an integer divisor where not one does."""
    if needs(Fraction(1)) <= most:
        return Fraction(1)
    if needs(Fraction(1, parts)) > most:
        return Fraction(1, _smallest_divisor(needs, most, meter))
    low, high = 1, parts
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if needs(Fraction(middle, parts)) > most else (middle, high)
    return Fraction(low, parts)


def _smallest_divisor(needs: Callable[[Fraction], int], most: int, meter: Meter) -> int:
    """The smallest N of which an N-th fits; the tensors only ever grow smaller with it."""
    low, high = 1, 2
    while needs(Fraction(1, high)) > most:
        if high >= LARGEST_DIVISOR:
            raise NoMemory(
                f"even one slot and one page, and two of each to draw the line, need "
                f"{format_bytes(needs(Fraction(1, high)))} of {meter.device} memory, and {format_bytes(most)} may be "
                f"taken",
                fix="free memory, or write --device meta",
            )
        low, high = high, high * 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if needs(Fraction(1, middle)) > most else (low, middle)
    return high


def _row(tensor: Tensor, reading: Reading, other: Reading, whole: Tensor, sizes: tuple[Sizes, Sizes, Sizes]) -> Row:
    """The line through two measurements: slope a unit, intercept of the padding, and what it gives at full scale."""
    count, second, full = (size.of(tensor.grows_with) for size in sizes)
    slope = intercept = None
    full_bytes = reading.storage_bytes
    if second != count:
        slope = Fraction(reading.storage_bytes - other.storage_bytes, count - second)
        intercept = reading.storage_bytes - slope * count
        full_bytes = ceil(slope * full + intercept)  # whole, where the tensor grows on a line
    problem = reading.view_problem or other.view_problem
    if not problem and not other.took.ok:
        problem = (
            f"at a second size the allocator took {other.took.measured:,} B, its rules say {other.took.expected:,} B"
        )
    return Row(
        tensor,
        count,
        reading.storage_bytes,
        reading.took,
        slope,
        intercept,
        full,
        full_bytes,
        whole.formula_bytes,
        problem,
    )


def _view_problem(real: Any, view: TensorView) -> str:
    """Why a view does not lie on its tensor's storage; empty when it does."""
    dtype = DTYPES[view.dtype]
    base = real if real.dtype == dtype else real.view(dtype)
    try:
        made = base.as_strided(view.shape, view.stride, view.offset)
    except RuntimeError as error:
        return f"view {view.name} leaves the storage: {' '.join(str(error).split())[:120]}"
    if made.untyped_storage().nbytes() != real.untyped_storage().nbytes() or tuple(made.shape) != view.shape:
        return f"view {view.name} has a storage of its own"
    behind = view.end_bytes - real.untyped_storage().nbytes()
    return f"view {view.name} ends {behind:,} B behind the storage" if behind > 0 else ""


def _plain(figure: Fraction | None) -> int | float | None:
    """A figure for JSON: index keys that several tokens share grow by a fraction of a byte."""
    return figure if figure is None else int(figure) if figure.denominator == 1 else float(figure)


def _differs(what: str, found: int, other: str, expected: int) -> str:
    more = found - expected
    return f"{what} {found:,} B, {other} {expected:,} B: {abs(more):,} B {'more' if more > 0 else 'less'}"


def _no_memory(needed: int, meter: Meter, part: Fraction, said: str) -> NoMemory:
    return NoMemory(
        f"--device {meter.device} ran out of memory at {percent(part)} of full scale, which needs "
        f"{format_bytes(needed)}: {' '.join(said.split())[:120]}",
        fix=f"write --scale {ceil(2 / part)}, or --memory SIZE",
    )


def percent(part: Fraction) -> str:
    """A part of full scale: ``31.4 %``."""
    return f"{float(part * 100):.3g} %"
