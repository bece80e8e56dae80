r"""How does a table of line forms become a grammar?

A form is an opening and the figures that may follow it, each with its label:

    Form("weights_loaded", "Load weight end", (("avail", "avail mem={size}"), ("usage", "mem usage={size}")))

A statement reaches from its opening to the next opening, the next logger's prefix, or ``reach`` bytes. Figures are
looked for by their labels in between, so it does not matter which a version prints, in what order, what people left
out, or where a line end falls (spelling.py). Text that quotes a line to say that it is absent is no statement.

What belongs to no form is not read. A form without figures is a mark: that it was printed is all it says.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from hybridcalc.bootlog.records import Found, Printed, Statement, Value
from hybridcalc.bootlog.spelling import IS, LINE_END, digits, either, field, spelt
from hybridcalc.units import GIB, MIB

DEFAULT_REACH = 600


class Form(NamedTuple):
    """One kind of line: ``opening`` in plain words, ``figures`` as (name, template) pairs.

    A form with figures says nothing where none of them can be read; one without is a mark. ``pattern`` replaces the
    opening where plain words do not do; its first character stands outside every group. A ``bare`` form says something
    without any of its figures too: that an engine gave up is worth knowing. ``before`` is how many bytes in front of
    the opening, and behind the statement before it, may hold a figure.
    """

    kind: str
    opening: str
    figures: tuple[tuple[str, str], ...] = ()
    reach: int = DEFAULT_REACH
    pattern: bytes | None = None
    bare: bool = False
    before: int = 0

    @property
    def opens(self) -> bytes:
        """The opening as a pattern."""
        if self.pattern:
            return self.pattern
        if self.opening.endswith(("=", ":")):
            return spelt(self.opening[:-1]) + IS
        return spelt(self.opening)


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


class Grammar:
    """The forms of all engines, compiled. ``find`` is what a reader calls; ``elsewhere`` are openings that only end
    the statement before them.
    """

    def __init__(self, forms: Mapping[str, tuple[Form, ...]], elsewhere: tuple[Form, ...]) -> None:
        listed = [(engine, form) for engine, group in forms.items() for form in group]
        self._forms = {f"f{number}": pair for number, pair in enumerate(listed)}
        ends = {f"e{number}": form for number, form in enumerate(elsewhere)}
        self._figures = {
            name: tuple((figure, *field(template)) for figure, template in form.figures)
            for name, (_, form) in self._forms.items()
        }
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
        for figure, pattern, kind in self._figures[name]:
            match = pattern.search(text, low, end)
            value = _value(match["figure"], kind) if match else None
            if match is not None and value is not None:
                figures.append((figure, value))
                last = max(last, match.end())
        if (form.figures and not figures and not form.bare) or denied(text, start, max(last, start + 1), end):
            return None
        rank = ""
        if prefix is not None and start - prefix.end() <= _NEAR_PREFIX:
            rank = rank_in(prefix[0]) or ""
        return Found(start, max(last, start + 1), Statement(engine, form.kind, tuple(figures), rank, number))


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


def _value(token: bytes, kind: str) -> Value | None:
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
