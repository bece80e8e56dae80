"""The answer's building blocks: every number with its formula, unit, reason and source.

A `Step` is one line of arithmetic; functions that compute return steps beside their result, ``--explain`` prints them
and ``--json`` always carries them. A `BudgetLine` keeps apart what an engine charges to its budget and what its
buffers really take. A `Suggestion` states a flag line with its predicted effect.
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
        if type(value) is Fraction:
            value = value.numerator if value.denominator == 1 else float(value)
        return {
            "symbol": self.symbol,
            "formula": self.formula,
            "with_numbers": self.with_numbers,
            "value": value,
            "unit": self.unit,
            "source": self.source,
        }


class BudgetLine(NamedTuple):
    """One buffer of one rank: bytes the engine charges for it, bytes it takes, and why it has that size.

    ``kind`` is "state", "kv", "scratch" (draft states and rings) or "other"; pictures and colours go by it.
    """

    name: str
    kind: str
    charged_bytes: int
    allocated_bytes: int
    why: str

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        return self._asdict()


class Suggestion(NamedTuple):
    """Flags to set, what they would change (from and to), and why that is so."""

    flags: str
    effect: str
    why: str
    gain: float = 0.0

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        return {"flags": self.flags, "effect": self.effect, "why": self.why}
