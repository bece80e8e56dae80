r"""How is a line matched that a line end may cut anywhere, and when is a number whole?

    spelt("avail mem=")     the words, a line end allowed between any two letters and in a space's place
    field("{size}", ...)    a labelled figure of a statement, as a pattern with one group

A line end may fall inside a word or a number; a number is mended only if what comes after it proves that it goes on:
its unit, or the words that must follow. So 25|7 is 257 before ", conv_state", and 37 before a line that opens with 4.

Kinds of figures: ``{size}`` with its unit (GB, MB, GiB, MiB), ``{gib}`` and ``{mib}`` one whose unit stands elsewhere,
``{count}`` a whole number, ``{number}`` one with decimals, ``{word}`` a name, ``{path}`` one with slashes, ``{dtype}``
and ``{mode}`` one of a few, ``{error}`` the exception that a line opens with; ``{*}`` skips a few characters. A
figure that is cut off, replaced by dots or by a ``{placeholder}`` matches none of them.
"""

from __future__ import annotations

import re
from functools import cache

CUT = rb"[\n\v]*+"
SPACE = rb"[ \t\n\v]*+"
IS = rb"[\"']?" + SPACE + rb"[=:|]" + SPACE
ASIDE = rb"[^():]{0,20}"
LINE_END = re.compile(rb"[\n\v]")

COUNT = rb"[0-9]{1,12}+(?:[,_'][0-9]{3}(?![0-9]))*+"
COUNT_ENDS = rb"(?![A-Za-z_%{}]|[^\s]?[0-9]|[ \t]+[0-9]|[\x80-\xff]+[0-9])"
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
_NUMBER_ENDS = rb"(?![A-Za-z0-9_%{}]|\.[\n\v]*[0-9]|,[0-9]{3}|[\x80-\xff]+[0-9])"
_NUMBER = rb"[0-9]{1,9}(?:,[0-9]{3})*+(?:\.[0-9]{1,9})?"

_DIGITS = re.compile(rb"-?[0-9][0-9,_'.]*")
_GROUPED = re.compile(rb"[0-9]{1,3}(?:[,_'][0-9]{3})+(?:\.[0-9]+)?|[0-9]+(?:\.[0-9]+)?")
_MOST_DIGITS = 3000
"""Of a number; a longer one is none: the stretch of text that is read may have cut it."""
DTYPES = ("bfloat16", "float16", "float32", "float8_e4m3fnuz", "float8_e4m3fn", "float8_e5m2", "float4_e2m1fn_x2",
           "fp8_e4m3", "fp8_e5m2", "fp8", "int8", "uint8")  # fmt: skip
_FIGURE = re.compile(r"\{(size|gib|mib|count|number|word|path|dtype|mode|error)\}")


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
    label = free + _labelled(before) + (SPACE if before else b"")
    pattern = label + rb"(?P<figure>" + _figure(kind, after) + rb")" + (SPACE + spelt(after) if after else b"")
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
        return rb"[\w./@~-][\w./@:~+-]{0,200}"
    if kind == "word":
        return rb"\w(?:[\w-]|\.(?=\w))*+(?![{}(])"
    if kind == "error":
        return rb"(?<=[\n\v])[A-Za-z_][\w.]{0,60}(?:Error|Exception|Interrupt)(?=[:\s]|\Z)"
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
