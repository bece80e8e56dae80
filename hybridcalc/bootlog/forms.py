r"""How does a table of line forms become a grammar?

A form is an opening, the figures that may follow it, each with its label and the name it is reported under, and what
the line says of a start:

    Form("pools_done", "Memory pool end", (("avail", "avail mem={size}", "mem_pool_end_avail_gib"),), repeats=True)

A statement reaches from its opening to the next opening, the next logger's prefix, or ``reach`` bytes. Figures are
looked for by their labels in between, so it does not matter which a version prints, in what order, what people left
out, or where a line end falls (spelling.py). Text that quotes a line to say that it is absent is no statement.

What belongs to no form is not read. A form without figures is a mark: that it was printed is all it says.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from hybridcalc.bootlog.records import Found, Printed, Record, Value
from hybridcalc.bootlog.spelling import IS, LINE_END, digits, either, field, spelt
from hybridcalc.units import GIB, MIB

if TYPE_CHECKING:
    from hybridcalc.bootlog.boots import Boot

DEFAULT_REACH = 600
Labels: TypeAlias = tuple[tuple[str, str] | tuple[str, str, str], ...]
"""Figures of a form: each a name, the template it is printed in, and the name it is reported under, if it is."""


class Form(NamedTuple):
    """One kind of line: ``opening`` in plain words, ``figures`` as (name, template, reported name).

    A form with figures says nothing where none of them can be read; one without is a mark. ``pattern`` replaces the
    opening where plain words do not do; its first character stands outside every group. A ``bare`` form says something
    without any of its figures too: that an engine gave up is worth knowing. ``before`` is how many bytes in front of
    the opening, and behind the statement before it, may hold a figure.

    What a kind says of a start stands in the first form of the kind:

    ``starts``      a start begins with it; behind the end of another start it opens a new one
    ``repeats``     one start may print it several times with other figures: draft models, captures, devices
    ``mark``        it sizes nothing: a start of marks alone is none
    ``settled``     memory is sized by then
    ``up``          the start is over and went well
    ``serving``     a running server repeats it without end
    ``error``       it says that the start failed; the name of the failure, "" where none is reported
    ``if_zero``     the figure that is zero where the line says so
    ``aftermath``   what an engine ends with whatever it failed of: it counts only where nothing else says more
    ``moment``      when a failure behind it happened, in words
    """

    kind: str
    opening: str
    figures: Labels = ()
    reach: int = DEFAULT_REACH
    pattern: bytes | None = None
    bare: bool = False
    before: int = 0
    starts: bool = False
    repeats: bool = False
    mark: bool = False
    settled: bool = False
    up: bool = False
    serving: bool = False
    error: str | None = None
    if_zero: str = ""
    aftermath: bool = False
    moment: str = ""

    @property
    def opens(self) -> bytes:
        """The opening as a pattern."""
        if self.pattern:
            return self.pattern
        if self.opening.endswith(("=", ":")):
            return spelt(self.opening[:-1]) + IS
        return spelt(self.opening)

    def failed(self, record: Record) -> bool:
        """Whether the line says that the start failed."""
        return self.error is not None and (not self.if_zero or record.count(self.if_zero) == 0)


class Needle(NamedTuple):
    """A literal, and a letter of its lines that is rare in what a running server says (b"" where none is)."""

    literal: bytes
    rare: bytes = b""


Find: TypeAlias = Callable[[bytes], Iterator[Found]]


@dataclass(frozen=True)
class Grammar:
    """The log of one engine: its forms, and what differs from other engines in how a log is searched and split.

    ``elsewhere`` are openings that only end the statement before them: of lines that ``find`` reads, or nobody.
    ``needles``: every line of the engine that sizes memory holds one of these literals, or stands beside one that does.
    ``fragments``: pieces of the lines' own words, a pattern; they decide where a chunk holds so many needles that these
    must be somebody's prose. ``samples``: literals of lines that a running server repeats without end. ``starts_anew``:
    what starts another boot beside the forms that say so. ``of_draft``: the records of a boot that are a draft model's,
    by id. ``workers``: names that all worker processes of a start share.
    """

    name: str
    title: str
    forms: tuple[Form, ...]
    elsewhere: tuple[Form, ...] = ()
    find: Find | None = None
    needles: tuple[Needle, ...] = ()
    fragments: bytes = b""
    samples: tuple[bytes, ...] = ()
    starts_anew: Callable[[Boot, Record], bool] | None = None
    of_draft: Callable[[Boot], set[int]] | None = None
    workers: tuple[str, ...] = ()

    @cached_property
    def kinds(self) -> dict[str, Form]:
        """The form that says what a kind of line means, by kind."""
        return {form.kind: form for form in reversed((*self.forms, *self.elsewhere))}

    @cached_property
    def reported(self) -> dict[tuple[str, str], str]:
        """(kind, figure) -> the name that the figure is reported under. What is not here is not reported."""
        listed = [(form.kind, figure) for form in (*self.forms, *self.elsewhere) for figure in form.figures]
        return {(kind, figure[0]): figure[2] for kind, figure in listed if len(figure) == 3}


RANK = re.compile(rb"(?:[A-Z]{2,4}_)?(?:DP|TP|PP|EP|CP)[0-9]+(?:(?:\.{2,3}|[-/])(?:[A-Z]{2})?[0-9]+)*")
_PREFIX_INSIDE = re.compile(rb"(?=.) *(?:[0-9]{2,4}[-/:][0-9.: ,/TZ+-]*|\.{3} *)?(?:" + RANK.pattern + rb" *)*")
_BOUNDARY = re.compile(
    rb"\[(?=[^\[\]]{0,40}(?:[0-9]:[0-9]{2}|[TDPE]P[0-9]|\.\.\.))[^\[\]]{3,64}\]"  # a clock or a rank, no list
    rb"|(?<![A-Za-z])(?:INFO|WARNING|ERROR|DEBUG)[ ]+(?:[0-9]{2}-[0-9]{2} [0-9]{2}:|\.\.\.|\[)"
)
_NEAR_PREFIX = 80
"""Bytes that may stand between a prefix and the statement it belongs to."""
_FILLING = rb"(?:[\s\"'`*\xe2\x80\x9c\x9d\x98\x99]|\b(?:the|a|an|any|such|this|line|message|warning|error|log|logs|more|longer|see|show|shows|print|prints)\b)*"  # noqa: E501
_DENIED_BEFORE = re.compile(
    rb"(?<![\w-])(?:no|without|never|not|absent|missing|isn't|doesn't|don't|nor)\b[ :]" + _FILLING + rb"\Z",
    re.IGNORECASE,
)
_DENIED_AFTER = re.compile(
    rb"[^\n\v.;]{0,60}?[\"'`\x9d\x99)]\s*(?:(?:line|message|warning|error)\s*)?(?:(?:must|should|may)\s+not\b|(?:is|was|are)\s+"
    rb"(?:absent|gone|missing|not\b)|does\s*n[o']t\s+(?:appear|show)|(?:is\s+|are\s+)?no\s+longer|never\b|not\s+(?:present|printed|logged))",
    re.IGNORECASE,
)


class FormReader:
    """The forms of several grammars, compiled into one search."""

    def __init__(self, grammars: Sequence[Grammar]) -> None:
        listed = [(grammar.name, form) for grammar in grammars for form in grammar.forms]
        self._forms = {f"f{number}": pair for number, pair in enumerate(listed)}
        ends = {f"e{number}": form for number, form in enumerate(form for one in grammars for form in one.elsewhere)}
        openings = {name: _at_word(form.opens) for name, (_, form) in self._forms.items()}
        self._opening = either(openings | {name: _at_word(form.opens) for name, form in ends.items()})

    def find(self, text: bytes) -> Iterator[Found]:
        """The statements in ``text``, in its order; lines are counted from 1 within it. Never raises."""
        openings = list(self._opening.finditer(text))
        if not openings:
            return
        boundaries = list(_BOUNDARY.finditer(text))
        number, counted, passed = 1, 0, 0
        for position, match in enumerate(openings):
            name, start = match.lastgroup or "", match.start()
            while passed < len(boundaries) and boundaries[passed].end() <= start:
                passed += 1
            if name not in self._forms:
                continue
            end = min(start + self._forms[name][1].reach, len(text))
            if position + 1 < len(openings):
                end = min(end, openings[position + 1].start())
            ahead = passed
            while ahead < len(boundaries) and boundaries[ahead].start() < match.end():
                ahead += 1
            if ahead < len(boundaries):
                end = min(end, boundaries[ahead].start())
            number, counted = number + text.count(b"\n", counted, start), start
            before = boundaries[passed - 1] if passed else None
            low = max(start - self._forms[name][1].before, openings[position - 1].end() if position else 0)
            low = max(low, before.end() if before else 0)
            found = self._statement(text, name, min(low, start), start, max(end, match.end()), before, number)
            if found is not None:
                yield found

    def _statement(
        self, text: bytes, name: str, low: int, start: int, end: int, prefix: re.Match[bytes] | None, number: int
    ) -> Found | None:
        engine, form = self._forms[name]
        figures, last = list[tuple[str, Value]](), start
        for figure, template, *_ in form.figures:
            pattern, kind = field(template)
            match = pattern.search(text, low, end)
            value = printed(match["figure"], kind) if match else None
            if match is not None and value is not None:
                figures.append((figure, value))
                last = max(last, match.end())
        if (form.figures and not figures and not form.bare) or denied(text, start, max(last, start + 1), end):
            return None
        rank = ""
        if prefix is not None and start - prefix.end() <= _NEAR_PREFIX:
            rank = rank_in(prefix[0]) or ""
        return Found(start, max(last, start + 1), Record(engine, form.kind, tuple(figures), rank, number))


def rank_in(bracket: bytes) -> str | None:
    """The ranks in ``[2026-02-01 00:05:02 DP1 TP0]`` or ``(TP0)``; None if the brackets hold something else."""
    inner = LINE_END.sub(b"", bracket[1:-1])
    if not _PREFIX_INSIDE.fullmatch(inner):
        return None
    return b" ".join(RANK.findall(inner)).decode()


def _at_word(pattern: bytes) -> bytes:
    """The pattern where no longer word ends in its first letter."""
    first = 2 if pattern.startswith(b"\\") else 1
    return pattern[:first] + rb"(?<![A-Za-z0-9_].)" + pattern[first:]


def printed(token: bytes, kind: str) -> Value | None:
    """The figure in ``token``; None where there is no whole number in it. ``kind`` as in a template."""
    if kind in ("word", "path", "dtype", "mode", "error"):
        return LINE_END.sub(b"", token).strip(b"'").decode().removeprefix("torch.")
    text = digits(token)
    if text is None:
        return None
    if kind == "count":
        return int(text) if "." not in text else None
    unit = {"gib": GIB, "mib": MIB}.get(kind, 1)
    if kind == "size":
        unit = MIB if b"M" in token else GIB
    return Printed(text, unit, len(text.partition(".")[2]))


def denied(text: bytes, start: int, last: int, end: int) -> bool:
    """Whether the words around a statement say that it is not there."""
    line = max(text.rfind(b"\n", 0, start), text.rfind(b"\v", 0, start)) + 1
    if _DENIED_BEFORE.search(text[max(line, start - 80) : start]):
        return True
    return _DENIED_AFTER.match(text, last, min(end + 80, len(text))) is not None
