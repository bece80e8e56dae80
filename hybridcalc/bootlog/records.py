"""What can a boot log say, once its text is read?

    Printed             a figure as it stands in the text: "13.04" GiB means [13.035, 13.045) GiB
    StatePoolAllocated  the recurrent states' pool: slots K, conv and SSM parts, speculative scratch
    KvPoolAllocated     the KV cache's pool: tokens, dtype, K and V parts or both in one
    Statement           any other line that says something: its kind, and its figures by name

A record repeats what was printed and adds nothing: what the text leaves out is None, never zero, and nothing is
summed or divided here. What the figures mean together is diagnosis, not reading.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import NamedTuple, TypeAlias


@dataclass(frozen=True, slots=True)
class Printed:
    """A printed size: its digits, the bytes of its unit, and how many decimals it was rounded to.

    ``text`` holds digits and at most one point ("13.04"; thousands separators are gone), and a minus where one is
    printed. ``unit_bytes`` is 2**30 where an engine prints "GB" and counts GiB, 1 for a number without a unit (a ratio,
    a percentage); ``decimals`` is the number of digits behind the point.
    """

    text: str
    unit_bytes: int
    decimals: int

    @property
    def value(self) -> Fraction:
        """The figure itself, exactly as printed. Unit: bytes."""
        return Fraction(self.text) * self.unit_bytes

    @property
    def interval(self) -> tuple[Fraction, Fraction]:
        """[low, high): every size that rounds to this figure; below zero only where it is. Unit: bytes."""
        half_step = Fraction(self.unit_bytes, 2 * 10**self.decimals)
        low, high = self.value - half_step, self.value + half_step
        return (low, high) if self.text.startswith("-") else (max(Fraction(0), low), high)

    @property
    def number(self) -> float:
        """The figure as printed, in its own unit, as a float for JSON."""
        return float(self.text)


@dataclass(frozen=True, slots=True)
class StatePoolAllocated:
    """A pool of recurrent states, as one rank printed it.

    ``slots`` is K as printed (the pool holds K + 1; None where the text elides it). ``conv`` and ``ssm`` are the two
    parts of all K + 1 slots; the ``intermediate`` ones are the scratch of speculative decoding. ``rank`` is the
    printed rank ("TP0", "DP1 TP0 EP0", or "" where none is named), ``line`` the line of the file it starts on, from 1.
    ``limit`` is the request limit where a person wrote it beside the slots.
    """

    slots: int | None
    conv: Printed | None
    ssm: Printed | None
    intermediate_ssm: Printed | None
    intermediate_conv: Printed | None
    rank: str
    line: int
    limit: int | None = None


@dataclass(frozen=True, slots=True)
class KvPoolAllocated:
    """A KV pool, as one rank printed it: ``k`` and ``v``, or ``kv`` where one tensor holds both (MLA).

    ``tokens`` is what the pool admits, ``dtype`` its element type without ``torch.``; either is None where the text
    does not print it. A draft model's pool has the same form: only the order tells it from the target's. ``rank``
    and ``line`` as for a state pool.
    """

    tokens: int | None
    dtype: str | None
    k: Printed | None
    v: Printed | None
    kv: Printed | None
    rank: str
    line: int


Value: TypeAlias = int | Printed | str
"""What a figure can be: a count, a printed size or number, a word."""


@dataclass(frozen=True, slots=True)
class Statement:
    """A line that is no pool: ``kind`` names the form it has (forms.py), ``figures`` what it prints, in that order.

    ``engine`` is "sglang", "vllm" or "llama.cpp", ``process`` the process named in front of the line ("EngineCore
    pid=90"), "" where none is; ``rank`` and ``line`` as for a state pool. A form may have no figures: that it was
    printed is what it says.
    """

    engine: str
    kind: str
    figures: tuple[tuple[str, Value], ...]
    rank: str
    line: int
    process: str = ""

    def get(self, name: str) -> Value | None:
        """The figure ``name``, or None."""
        return next((value for key, value in self.figures if key == name), None)


Pool: TypeAlias = StatePoolAllocated | KvPoolAllocated
Record: TypeAlias = StatePoolAllocated | KvPoolAllocated | Statement
"""Anything a log line can become. A grammar that adds a kind of record adds it here."""


class Found(NamedTuple):
    """A record and the stretch of text it was read from: ``text[start:end]``, its line counted within that text."""

    start: int
    end: int
    record: Record
