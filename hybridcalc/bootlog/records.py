"""What can a boot log say, once its text is read?

    Printed             a figure as it stands in the text: "13.04" GiB means [13.035, 13.045) GiB
    StatePoolAllocated  the recurrent states' pool: slots K, conv and SSM parts, speculative scratch
    KvPoolAllocated     the KV cache's pool: tokens, dtype, K and V parts or both in one

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

    ``text`` holds digits and at most one point ("13.04"; thousands separators are gone), ``unit_bytes`` is 2**30
    where an engine prints "GB" and counts GiB, ``decimals`` the number of digits behind the point.
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
        """[low, high): every size that rounds to this figure; low is never below zero. Unit: bytes."""
        half_step = Fraction(self.unit_bytes, 2 * 10**self.decimals)
        return max(Fraction(0), self.value - half_step), self.value + half_step


@dataclass(frozen=True, slots=True)
class StatePoolAllocated:
    """A pool of recurrent states, as one rank printed it.

    ``slots`` is K as printed (the pool holds K + 1; None where the text elides it). ``conv`` and ``ssm`` are the two
    parts of all K + 1 slots; the ``intermediate`` ones are the scratch of speculative decoding. ``rank`` is the
    printed rank ("TP0", "DP1 TP0 EP0", or "" where none is named), ``line`` the line of the file it starts on, from 1.
    """

    slots: int | None
    conv: Printed | None
    ssm: Printed | None
    intermediate_ssm: Printed | None
    intermediate_conv: Printed | None
    rank: str
    line: int


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


Record: TypeAlias = StatePoolAllocated | KvPoolAllocated
"""Anything a log line can become. A grammar that adds a kind of record adds it here."""


class Found(NamedTuple):
    """A record and the stretch of text it was read from: ``text[start:end]``, its line counted within that text."""

    start: int
    end: int
    record: Record
