r"""How does a table of line forms become a grammar?

A form is an opening, the figures that may follow it, each with its label and the name it is reported under, and what
the line says of a start:

    Form("pools_done", "Memory pool end", (("avail", "avail mem={size}", "mem_pool_end_avail_gib"),), repeats=True)

A statement reaches from its opening to the next opening, the next logger's prefix, or ``reach`` bytes. Figures are
looked for by their labels in between, so it does not matter which a version prints, in what order, what people left
out, or where a line end falls. Text that quotes a line to say that it is absent is no statement.

What belongs to no form is not read. A form without figures is a mark: that it was printed is all it says.

A line end may fall inside a word or a number; a number is mended only if what comes after it proves that it goes on:
its unit, or the words that must follow. So 25|7 is 257 before ", conv_state", and 37 before a line that opens with 4.

Kinds of figures: ``{size}`` with its unit (GB, MB, GiB, MiB), ``{gib}`` and ``{mib}`` one whose unit stands elsewhere,
``{count}`` a whole number, ``{number}`` one with decimals, ``{word}`` a name, ``{path}`` one with slashes, ``{file}`` a
GGUF file's, ``{dtype}`` and ``{mode}`` one of a few, ``{error}`` the exception that a line opens with and what it says,
``{device}`` a name as llama.cpp has them, ``{text}`` a few words, ``{rest}`` all up to the line's end, ``{flag}`` the
end of a flag that takes no value, which is "True" then; ``{*}`` skips a few characters. A figure that is cut off,
replaced by dots or by a ``{placeholder}`` matches none of them.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from functools import cache
from typing import NamedTuple, TypeAlias

from hybridcalc.bootlog import Found, Printed, Record, Value
from hybridcalc.units import GIB, MIB

CUT = rb"[\n\v]*+"
SPACE = rb"[ \t\n\v]*+"
IS = rb"[\"']?" + SPACE + rb"[=:|]" + SPACE
ASIDE = rb"[^():]{0,20}"
LINE_END = re.compile(rb"[\n\v]")

COUNT = rb"[0-9]{1,12}+(?:[,_'][0-9]{3}(?![0-9]))*+"
COUNT_ENDS = rb"(?![A-Za-z_%{]|[^\s]?[0-9]|[ \t]+[0-9]|[\x80-\xff]+[0-9])"
"""No unit, no decimals, no further digits behind whatever byte got in between: then it would be another number."""
CUT_COUNT = rb"[0-9](?:" + CUT + rb"[0-9,_']){0,16}?"

_ONE_END = rb"(?:\v?\n|\v)"
_LINE_IS_OVER = rb"(?=[ \t]*(?:[\"'`]?[ \t]*(?:[\n\v]|\Z)|,?[ \t]*\.\.\.|->|\(=))"
SPLIT_COUNT = (
    rb"[0-9][0-9,_']{0,14}+(?:" + _ONE_END + rb"[0-9,_']{0,12}[0-9](?![0-9_']|,[0-9])" + _LINE_IS_OVER + rb")++"
)
"""A count at a line's end whose last digits are the next line, or open it before dots or an arrow: none else does."""
_SPLIT_NUMBER = (
    rb"[0-9]{1,9}(?:\.[0-9]{0,9})?+(?:"
    + _ONE_END
    + rb"[0-9.]{0,9}[0-9](?![0-9.])(?=[ \t]*,|"
    + _LINE_IS_OVER
    + rb"))++"
)

_CUT_DIGITS = rb"[0-9](?:" + CUT + rb"[0-9,]){0,12}+"
_CUT_NUMBER = _CUT_DIGITS + rb"(?:" + CUT + rb"\." + CUT + _CUT_DIGITS + rb")?+"
SIZE = _CUT_NUMBER + SPACE + rb"[GM]" + CUT + rb"(?:i" + CUT + rb")?B"
SIZE_ENDS = rb"(?![A-Za-z0-9]|/s)"
_NUMBER_ENDS = rb"(?![A-Za-z0-9_%{]|\.[\n\v]*[0-9]|,[0-9]{3}|[\x80-\xff]+[0-9])"
_NUMBER = rb"[0-9]{1,9}(?:,[0-9]{3})*+(?:\.[0-9]{1,9})?"

_DIGITS = re.compile(rb"-?[0-9][0-9,_'.]*")
_GROUPED = re.compile(rb"[0-9]{1,3}(?:[,_'][0-9]{3})+(?:\.[0-9]+)?|[0-9]+(?:\.[0-9]+)?")
_MOST_DIGITS = 3000
"""Of a number; a longer one is none: the stretch of text that is read may have cut it."""
DTYPES = ("bfloat16", "float16", "float32", "float8_e4m3fnuz", "float8_e4m3fn", "float8_e5m2", "float4_e2m1fn_x2",
           "fp8_e4m3", "fp8_e5m2", "fp8", "int8", "uint8")  # fmt: skip
_FIGURE = re.compile(r"\{(size|gib|mib|count|number|word|path|file|dtype|mode|error|device|text|rest|flag)\}")
RAISED = rb"[A-Za-z_][\w.]{0,60}(?:Error|Exception|Interrupt)(?=[:\s]|\Z)"
"""The name of an exception, as a traceback's last line opens with it."""
_DEVICE = rb"(?<!\w)(?![KMG]i?B)[A-Z][A-Za-z]{1,11}(?:[0-9]{1,3}|[_-][A-Z]\w{1,11})?+(?:\[[\w.:]{1,40}\])?(?!\w)"
_BETWEEN = rb"[^():\n\v]{0,24}"


def spelt(words: str) -> bytes:
    """A pattern for ``words`` where a line end may fall between any two letters, or take a space's place."""
    pattern = CUT.join(re.escape(letter.encode()) for letter in words)
    return pattern.replace(CUT + rb"\ " + CUT, SPACE)


def any_of(names: tuple[str, ...]) -> bytes:
    """One of the names, wherever a line end cuts it; where one begins another, the longer stands first."""
    return rb"(?:" + b"|".join(spelt(name) for name in names) + rb")(?!\w)"


def word(name: str) -> bytes:
    """``name`` spelt, where no longer word ends in it. The first letter comes first: see ``either``."""
    return re.escape(name[0].encode()) + rb"(?<![A-Za-z0-9_].)" + (CUT + spelt(name[1:]) if name[1:] else b"")


_NAMES = {"dtype": any_of(DTYPES), "mode": any_of(("align", "all", "none"))}
"""Kinds that are one of a few names, which proves them where a line end cuts."""


def either(patterns: dict[str, bytes]) -> re.Pattern[bytes]:
    """One pattern for all, which names the one that matched.

    Each begins with one character, kept in front of its group: so the engine passes over all others at once, where a
    group in front would have it try every pattern at every character (ten times slower).
    """
    alternatives = []
    for name, pattern in patterns.items():
        first = 2 if pattern.startswith(b"\\") else 1
        alternatives.append(pattern[:first] + b"(?P<%s>%s)" % (name.encode(), pattern[first:]))
    return re.compile(b"|".join(alternatives))


@cache
def field(template: str) -> tuple[re.Pattern[bytes], str]:
    """The pattern of a labelled figure and its kind: ``"avail mem={size}"``, ``"size: {count} tokens"``.

    The figure is the pattern's group "figure". What follows it in the template proves a figure that a line end cuts.
    """
    match = _FIGURE.search(template)
    if match is None:
        raise ValueError(template)
    before, kind, after = template[: match.start()].rstrip(), match[1], template[match.end() :].strip()
    free = rb"(?<![A-Za-z0-9_])" if before[:1].isalnum() else rb"(?<![0-9.,-])" if not before else b""
    label = free + _labelled(before) + (SPACE if before and kind != "flag" else b"")
    behind = SPACE + _BETWEEN.join(spelt(part) for part in after.split("{*}")) if after else b""
    pattern = label + rb"(?P<figure>" + _figure(kind, after) + rb")" + behind
    return re.compile(pattern), kind


def _labelled(words: str) -> bytes:
    """A label as it is spelt; ``=`` and ``:`` at its end may be each other, or the edge of a table's cell."""
    ends = IS if words[-1:] in ("=", ":") else b""
    words = words.rstrip("=: ") if ends else words
    return ASIDE.join(spelt(part) for part in words.split("{*}")) + ends


def _figure(kind: str, after: str) -> bytes:
    if kind in _NAMES:
        return rb"'?(?:" + (spelt("torch.") + CUT if kind == "dtype" else rb"(?:)") + rb")?" + _NAMES[kind]
    if kind == "size":
        return rb"-?" + SIZE + SIZE_ENDS
    if kind == "path":
        return rb"[\w./@~][\w./@:~+-]{0,200}"
    if kind == "file":
        return rb"(?<=[\s=\v])[\w./@~][\w./@:~+-]{0,200}\.gguf"
    if kind == "device":
        return _DEVICE
    if kind == "flag":
        return rb"(?![\w=-])"
    if kind == "rest":
        return rb"[^\n\v]{1,240}"
    if kind == "text":
        return rb"[^\s=:|,][^\n\v=|,]{0,80}"
    if kind == "word":
        return rb"\w(?:[\w-]|\.(?=\w))*+(?![{}(])"
    if kind == "error":
        return rb"(?<=[\n\v])" + RAISED + rb"(?::[^\n\v]{0,200})?"
    if kind == "mib":
        return _NUMBER + _NUMBER_ENDS + rb"(?!" + SPACE + rb"[A-LN-Za-z]*B)"
    if kind in ("number", "gib"):
        mended = _CUT_NUMBER.replace(b"[0-9,]", b"[0-9]") if after.startswith(",") else _CUT_NUMBER
        return rb"-?" + (mended if after else rb"(?:" + _SPLIT_NUMBER + rb"|" + _NUMBER + _NUMBER_ENDS + rb")")
    if after:
        return rb"-?" + CUT_COUNT
    proof = SPACE + rb"[,)]" + SPACE + rb"(?:(?:#" + CUT + rb")?[a-z]|[0-9]{1,2}" + SPACE + spelt("state") + rb")"
    proof = rb"(?:" + proof + rb"|" + SPACE + spelt("(total_rest_memory") + rb")"
    return rb"(?:-" + CUT + rb")?" + count_before(proof)


def count_before(proof: bytes) -> bytes:
    """A whole number: cut by line ends where ``proof`` follows, which shows that it goes on; else as it stands."""
    return rb"(?:" + CUT_COUNT + rb"(?=" + proof + rb")|" + SPLIT_COUNT + rb"|" + COUNT + COUNT_ENDS + rb")"


def digits(token: bytes) -> str | None:
    """The number in a token, without line ends and thousands separators; None if these do not stand between threes.

    None as well where it is endless: whether a number makes sense is not for a grammar to say, but it must be one.
    """
    found = _DIGITS.search(LINE_END.sub(b"", token))
    if not found:
        return None
    sign, number = (b"-", found[0][1:]) if found[0].startswith(b"-") else (b"", found[0])
    number = number.rstrip(b".,'_")
    if not _GROUPED.fullmatch(number):
        return None
    text = (sign + number.translate(None, b",_'")).decode()
    return text if len(text) <= _MOST_DIGITS else None


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
    ``mends``       what failed before it was made good: a retry went through
    ``serving``     a running server repeats it without end
    ``error``       it says that the start failed; the name of the failure, "" where none is reported
    ``if_zero``     the figure that is zero where the line says so
    ``aftermath``   what an engine ends with whatever it failed of: it counts only where nothing else says more
    ``stops``       somebody asked it to end: what ends it behind that line is no failure
    ``moment``      when a failure behind it happened, in words

    ``told`` is said of the form itself: its lines are somebody's sentences. So is ``aside``: its opening stands within
    other statements, as the files in a traceback do, and ends none.
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
    mends: bool = False
    serving: bool = False
    error: str | None = None
    if_zero: str = ""
    aftermath: bool = False
    stops: bool = False
    moment: str = ""
    told: bool = False
    aside: bool = False

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

    def __init__(self, grammars: Sequence[tuple[str, tuple[Form, ...], tuple[Form, ...]]]) -> None:
        """``grammars``: of each engine its name, its forms, and openings that only end the statement before them."""
        listed = [(name, form) for name, forms, _ in grammars for form in forms]
        self._forms = {f"f{number}": pair for number, pair in enumerate(listed)}
        ends = {f"e{number}": form for number, form in enumerate(form for *_, ends in grammars for form in ends)}
        openings = {name: _at_word(form.opens) for name, (_, form) in self._forms.items()}
        self._opening = either(openings | {name: _at_word(form.opens) for name, form in ends.items()})

    def find(self, text: bytes) -> Iterator[Found]:
        """The statements in ``text``, in its order; lines are counted from 1 within it. Never raises."""
        openings = list(self._opening.finditer(text))
        if not openings:
            return
        boundaries = list(_BOUNDARY.finditer(text))
        ends = [m.start() for m in openings if m.lastgroup not in self._forms or not self._forms[m.lastgroup][1].aside]
        number, counted, passed = 1, 0, 0
        for position, match in enumerate(openings):
            name, start = match.lastgroup or "", match.start()
            while passed < len(boundaries) and boundaries[passed].end() <= start:
                passed += 1
            if name not in self._forms:
                continue
            end = min(start + self._forms[name][1].reach, len(text))
            after = bisect_right(ends, start)
            if after < len(ends):
                end = min(end, ends[after])
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
            match = next((one for one in pattern.finditer(text, low, end) if one.end() > start), None)
            value = printed(match["figure"], kind) if match else None
            if match is not None and value is not None:
                figures.append((figure, value))
                last = max(last, match.end())
        if (form.figures and not figures and not form.bare) or denied(text, start, max(last, start + 1), end):
            return None
        rank = ""
        if prefix is not None and start - prefix.end() <= _NEAR_PREFIX:
            rank = rank_in(prefix[0]) or ""
        return Found(
            start, max(last, start + 1), Record(engine, form.kind, tuple(figures), rank, number, told=form.told)
        )


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
    if kind in ("word", "path", "file", "dtype", "mode", "error", "device", "text", "rest"):
        return (
            LINE_END.sub(b"", token)
            .strip(b" " if kind == "rest" else b"' ")
            .decode(errors="replace")
            .removeprefix("torch.")
        )
    if kind == "flag":
        return "True"
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
