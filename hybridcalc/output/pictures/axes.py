"""Where do the ticks of an axis stand, and what range does it show?"""

from collections.abc import Sequence
from math import ceil, floor, log, log10

from hybridcalc.engines.charts import Axis

MOST_TICKS = 9
BASES = (2, 4, 8, 16, 64, 256, 4096, 2**20)


def powers(low: float, high: float, *, most: int = MOST_TICKS) -> list[float]:
    """Powers of 2, 4, 16, ... within [low, high]: at most ``most``; both ends where there are fewer than two."""
    if not 0 < low < high:
        return [low] if low == high else []
    for base in BASES:
        first, last = ceil(log(low, base) - 1e-9), floor(log(high, base) + 1e-9)
        if last - first < most:
            ticks = [float(base) ** exponent for exponent in range(first, last + 1)]
            return ticks if len(ticks) > 1 else [low, high]
    return [low, high]


def decimals(low: float, high: float, *, most: int = 12) -> list[float]:
    """1, 2 and 5 times powers of ten within [low, high]; powers alone, or every so many, where there would be more."""
    if not 0 < low <= high:
        return []
    first, last = floor(log10(low) + 1e-9), ceil(log10(high) - 1e-9)
    step = max(1, -(-(last - first) // most))
    factors = (1, 2, 5) if 3 * (last - first) <= most + 3 else (1,)
    ticks = [m * 10**e if e >= 0 else m / 10**-e for e in range(first, last + 1, step) for m in factors]
    return [tick for tick in ticks if low * (1 - 1e-9) <= tick <= high * (1 + 1e-9)]


def round_steps(low: float, high: float, *, most: int = 5) -> list[float]:
    """Whole multiples of 1, 2 or 5 times a power of ten within [low, high], at most ``most`` and one."""
    if not low < high:
        return [low]
    ten = max(1.0, 10.0 ** floor(log10((high - low) / most)))
    step = next(m * ten for m in (1, 2, 5, 10) if m * ten * most >= high - low)
    return [i * step for i in range(ceil(low / step - 1e-9), floor(high / step + 1e-9) + 1)]


def bounds(axis: Axis, values: Sequence[float]) -> tuple[float, float]:
    """The range of an axis: as it says, else that of the values it can show."""
    shown = [value for value in values if value > 0 or not axis.log] or [1.0]
    low = axis.low if axis.low is not None else (min(shown) if axis.log else 0.0)
    high = axis.high if axis.high is not None else max(shown)
    return low, high if high > low else low * 2 or 1.0
