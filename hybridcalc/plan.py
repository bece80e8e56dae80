"""The answer's building blocks: every number with its formula, unit, reason and source.

A `Step` is one line of arithmetic. Functions that compute return steps beside their result; ``--explain`` prints them
and ``--json`` always carries them.
"""

from fractions import Fraction
from typing import Any, NamedTuple

Number = int | float | Fraction


class Step(NamedTuple):
    """One figure: ``symbol = formula``, the same ``with_numbers``, value, unit, and where the rule comes from."""

    symbol: str
    formula: str
    with_numbers: str
    value: Number
    unit: str
    source: str

    def to_dict(self) -> dict[str, Any]:
        """Plain data; a fraction becomes the nearest float."""
        value = self.value
        if isinstance(value, Fraction):
            value = value.numerator if value.denominator == 1 else float(value)
        return {
            "symbol": self.symbol,
            "formula": self.formula,
            "with_numbers": self.with_numbers,
            "value": value,
            "unit": self.unit,
            "source": self.source,
        }
