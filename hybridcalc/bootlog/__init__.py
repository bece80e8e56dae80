"""What did a boot print? Text to records, for logs of any size and as people paste them. Knows no engine arithmetic.

What can a boot log say, once its text is read?

    Printed     a figure as it stands in the text: "13.04" GiB means 13.035 to 13.045 GiB
    Record      a line that says something: its kind, and its figures by name

A record repeats what was printed and adds nothing: what the text leaves out is absent, never zero, and nothing is
summed or divided here. What the figures mean together is diagnosis, not reading.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from fractions import Fraction
from typing import NamedTuple, TypeAlias


@dataclass(frozen=True, slots=True)
class Printed:
    """A printed size: its digits, the bytes of its unit, and how many decimals it was rounded to.

    ``text`` holds digits and at most one point ("13.04"; thousands separators are gone), and a minus where one is
    printed. ``unit_bytes`` is 2**30 where an engine prints "GB" and counts GiB, 1 for a number without a unit (a ratio,
    a percentage); ``decimals`` is the number of digits behind the point. A sum is of several ``roundings``. Where
    somebody gave it as ``about`` so much, it is written so.
    """

    text: str
    unit_bytes: int
    decimals: int
    roundings: int = 1
    about: bool = field(default=False, compare=False)

    def __str__(self) -> str:
        return f"~{self.text}" if self.about else self.text

    @property
    def value(self) -> Fraction:
        """The figure itself, exactly as printed. Unit: bytes."""
        return Fraction(self.text) * self.unit_bytes

    @property
    def interval(self) -> tuple[Fraction, Fraction]:
        """Every size that rounds to this figure, both ends included: "%.2f" takes a half to the even digit, up or down.

        Below zero only where the figure is. Unit: bytes.
        """
        half_step = Fraction(self.roundings * self.unit_bytes, 2 * 10**self.decimals)
        low, high = self.value - half_step, self.value + half_step
        return (low, high) if self.text.startswith("-") else (max(Fraction(0), low), high)

    @property
    def number(self) -> float:
        """The figure as printed, in its own unit, as a float for JSON."""
        return float(self.text)


class About(int):
    """A count that somebody gave as about so much: it is written so wherever it is said. What is reckoned of it is a
    plain count.
    """

    def __format__(self, spec: str) -> str:
        return f"~{int(self):{spec}}"


Value: TypeAlias = int | Printed | str
"""What a figure can be: a count, a printed size or number, a word."""


@dataclass(frozen=True, slots=True)
class Record:
    """A line of a log: ``kind`` names the form it has (forms.py), ``figures`` what it prints, in that order.

    ``engine`` is whose line it is, "" where any engine may print it; ``rank`` is the printed rank ("TP0",
    "DP1 TP0 EP0", or "" where none is named), ``line`` the line of the file it starts on, from 1, ``process`` the
    process named in front of it ("EngineCore pid=90"), "" where none is; ``told``: no engine printed it, somebody tells
    it in a table or a sentence; ``clock``: month, day and time in front of it ("07-09 02:58:11"), "" where none is;
    ``sorted``: its lines are in the order of the alphabet, which says nothing of what came first; ``source``: the
    service whose line it is, as docker compose, kubectl or stern name it ("sglang"), "" where none is; ``quoted``: a
    code span of a sentence or a list ends with it, maybe before the line did. A form may have no figures: that it was
    printed is what it says.
    """

    engine: str
    kind: str
    figures: tuple[tuple[str, Value], ...]
    rank: str
    line: int
    process: str = ""
    told: bool = False
    clock: str = field(default="", compare=False)
    sorted: bool = field(default=False, compare=False)
    source: str = field(default="", compare=False)
    quoted: bool = field(default=False, compare=False)

    def get(self, name: str) -> Value | None:
        """The figure ``name``, or None."""
        return next((value for key, value in self.figures if key == name), None)

    def count(self, name: str) -> int | None:
        """The figure ``name`` where it is a count, or None."""
        value = self.get(name)
        return value if isinstance(value, int) else None

    def size(self, name: str) -> Printed | None:
        """The figure ``name`` where it is a printed size or number, or None."""
        value = self.get(name)
        return value if isinstance(value, Printed) else None

    def sizes(self, *names: str) -> list[Printed]:
        """Those of the named sizes that are printed."""
        return [size for name in names if (size := self.size(name)) is not None]

    def word(self, name: str) -> str | None:
        """The figure ``name`` where it is a word, or None."""
        value = self.get(name)
        return value if isinstance(value, str) else None

    def agrees(self, other: Record) -> bool:
        """Whether two records differ in nothing that both print."""
        said = dict(self.figures)
        return all(said.get(name, value) == value for name, value in other.figures)

    @property
    def said(self) -> tuple[object, ...]:
        """All of it but its place."""
        return self.kind, self.figures, self.rank, self.process


class Found(NamedTuple):
    """A record and the stretch of text it was read from: ``text[start:end]``, its line counted within that text."""

    start: int
    end: int
    record: Record
