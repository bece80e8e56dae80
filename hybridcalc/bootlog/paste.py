r"""What was the line, before terminals, loggers, mail programs and people had their way with it?

    plain(raw) -> Plain     the log's own text, and where each of its characters stood in the raw bytes

Everything else is blanked, which keeps each position, and the blanks are dropped last; so a record found in the text
can be placed in the file to the byte. Two characters stand for the end of a line: ``\n`` where the file has one,
``\v`` where only the text has one (a JSON "\n", a progress bar's carriage return). Words and numbers that a line end
cuts in half stay cut: mending them is the grammars' business, who know what may follow what.

Handled: colour codes, raw or escaped; CR and CRLF; JSON log lines; indentation; ``>`` quotes; ``#``, ``//`` comments,
bullets and string quotes; table pipes; grep's numbers and file names; prefixes of docker compose, containerd, kubectl,
journald, syslog, Ray and srun; backticks, bold, no-break spaces, fullwidth punctuation, HTML's ``&#58;``; lines that a
screen filled up with blanks.
Left out: prefixes not in that list, where they are repeated in the middle of a wrapped line.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Sequence
from itertools import compress
from typing import NamedTuple

_CODE = rb"(?:\[[0-?]{0,32}[ -/]{0,4}[@-~]|\][^\x07\x1b\n]{0,256}(?:\x07|\x1b\\)|\([0B])?"
_COLOUR = re.compile(
    rb"\x1b" + _CODE
    + rb"|\\\\{0,3}(?:u001[bB]|x1[bB]|033|e(?=\[))" + _CODE  # as JSON, Python and shells write the character
    + rb"|\#033" + _CODE  # rsyslog
    + rb"|\^\[(?=\[)" + _CODE  # cat -v
    + rb"|\[[0-9]{1,3}(?:;[0-9]{1,3}){0,5}m"  # where the character was lost on the way
)  # fmt: skip

_JSON_LINE = re.compile(
    rb'^(?P<opening>[^\n{"]{0,200}\{[^\n{}]{0,400}?"(?:log|message|msg|text|line|event|content)"\s{0,4}:\s{0,4}")'
    rb'[^"\\\n]*+(?:\\.[^"\\\n]*+)*(?P<closing>"[^\n]*?(?:\}(?=[\s,]*\{)|$))?',
    re.MULTILINE,
)

_ESCAPED = rb"""[nrt"'/_#*`|<>\[\]()-]"""
_BACKSLASHED = re.compile(rb"\\\\{0,3}" + _ESCAPED + rb"(?:\\{1,4}" + _ESCAPED + rb")*")
_BACKSLASHED_AS = bytes.maketrans(b"\\nrt", b"\0\v\v ")

_LOOKALIKES = {
    b"\xc2\xa0": b" ", b"\xe2\x80\xaf": b" ", b"\xe2\x80\x89": b" ", b"\xe3\x80\x80": b" ",
    b"\xef\xbc\x8c": b",", b"\xef\xbc\x9a": b":", b"\xe3\x80\x81": b",", b"\xe2\x94\x82": b"|",
    b"\xef\xbb\xbf": b"", b"\xe2\x80\x8b": b"", b"`": b"", b"**": b"",
}  # fmt: skip
_ENTITY = re.compile(rb"&(?:amp;)?(?:#([0-9]{1,6})|#[xX]([0-9a-fA-F]{1,5})|([a-z]{2,6}));")
_NAMED = {
    b"lt": b"<", b"gt": b">", b"amp": b"&", b"quot": b'"', b"apos": b"'", b"colon": b":", b"equals": b"=",
    b"comma": b",", b"num": b"#", b"lowbar": b"_", b"period": b".", b"lpar": b"(", b"rpar": b")", b"lsqb": b"[",
    b"rsqb": b"]", b"vert": b"|", b"nbsp": b" ",
}  # fmt: skip
_LOOKALIKE = re.compile(b"|".join(re.escape(seen) for seen in _LOOKALIKES))

_LINE_PREFIX = re.compile(
    rb"""[\n\v](?:(?P<empty>[\x20\t\0]++(?=[\n\v])(?:[\n\v][\x20\t\0]++(?=[\n\v]))*) | (?:  # lines of blanks
        [\x20\t\0]+                                                # indentation, and the blanks of a colour code
      | >                                                           # a quoted mail or answer
      | \#+(?=[\x20\t]) | //(?=[\x20\t]) | [-*](?=[\x20\t]) | \+   # comments, bullets, a diff
      | \|                                                          # the first cell of a table row
      | [frb]?["']                                                  # a string in a script or a list
      | [0-9]{1,7}(?:\t|[:-](?![0-9]))                              # cat -n, grep -n, srun --label
      | [\w./-]{1,200}\.(?:log|txt|out|err)[:-](?:[0-9]{1,7}[:-])?  # grep over files
      | (?![^|\n\v]{0,64}                                          # docker compose; a table's first cell is none
           (?:size|state|tokens|max_|_len|mem|cache|mamba|usage|dtype|buffer|concurrency|eights|slots|pool))
        [A-Za-z][\w.-]{0,63}[\x20\t\0]{1,64}\|(?!\|)
      | [0-9]{4}-[0-9]{2}-[0-9]{2}[T\x20]%(clock)s(?:Z|[+-][0-9]{2}:?[0-9]{2})?[\x20\t]       # docker logs -t, kubectl
        (?:std(?:out|err)\x20[FP]\x20                               # containerd
         | [\w.-]{1,64}\x20[\w.@/-]{1,64}\[[0-9]{1,9}\]:\x20)?     # journald
      | [A-Z][a-z]{2}\x20{1,2}[0-9]{1,2}\x20%(clock)s\x20           # journald, syslog
        [\w.-]{1,64}\x20[\w.@/-]{1,64}(?:\[[0-9]{1,9}\])?:\x20
      | %(clock)s\x20 | \[%(clock)s\]\x20                           # ts
      | \[(?:pod|container)/[^\]\n]{1,200}\]                       # kubectl --prefix
      | \((?:[\w.:-]{1,64}\x20)?pid=[0-9]{1,9}(?:,\x20ip=[0-9a-f.:]{1,40})?\)              # Ray and its like
    )+)"""
    % {b"clock": rb"[0-9]{2}:[0-9]{2}:[0-9]{2}(?:[.,][0-9]{1,9})?"},
    re.VERBOSE,
)
_PADDED = re.compile(rb"(?<=[0-9])[ ]{40,}(?=[0-9]{1,9},[ ][a-z_]{1,40}=)")
"""A screen's line filled up with blanks in the middle of a number, and what follows it: a line end that was lost."""
_BLANKS = bytes.maketrans(b" \t", b"\0\0")
_STRING_END = re.compile(rb"""["'],?[\x20\t]*(?=[\n\v]|\Z)""")


class Plain(NamedTuple):
    """The log's own text, and for each of its characters the index it had in the raw bytes."""

    text: bytes
    places: Sequence[int]


def plain(raw: bytes) -> Plain:
    """``raw`` without colour, prefixes, quotes, escapes and other wrapping; never raises, whatever the bytes."""
    text = _COLOUR.sub(_blank, raw)
    text = _JSON_LINE.sub(_without_json, text)
    text = _BACKSLASHED.sub(_unescaped, text)
    text = _ENTITY.sub(_unquoted, text)
    text = text.replace(b"\r", b"\v")
    text = _PADDED.sub(_line_end, text)
    text = _LOOKALIKE.sub(_in_ascii, text)
    text = _STRING_END.sub(_blank, text)  # first, or the quote behind a "\n" would pass for an opening one
    text = _LINE_PREFIX.sub(_without_prefix, b"\n" + text)[1:]
    return Plain(text.translate(None, b"\0"), array("Q", compress(range(len(text)), text)))


def _line_end(match: re.Match[bytes]) -> bytes:
    return b"\v".ljust(len(match[0]), b"\0")


def _blank(match: re.Match[bytes]) -> bytes:
    return bytes(len(match[0]))


def _without_json(match: re.Match[bytes]) -> bytes:
    """The message of a JSON log line alone: the keys around it would stand between the halves of a wrapped line."""
    opening, closing = match["opening"], match["closing"] or b""
    inner = match[0][len(opening) : len(match[0]) - len(closing)]
    return bytes(len(opening)) + inner + bytes(len(closing))


def _unescaped(match: re.Match[bytes]) -> bytes:
    """The characters that a row of escapes stands for, each after as many blanks as it had backslashes."""
    return match[0].translate(_BACKSLASHED_AS)


def _unquoted(match: re.Match[bytes]) -> bytes:
    """The character that HTML wrote as ``&#58;`` or ``&colon;``; what names none stays."""
    decimal, hexadecimal, name = match.groups()
    if name is not None:
        character = _NAMED.get(name)
    else:
        character = chr(int(decimal) if decimal else int(hexadecimal, 16)).encode(errors="replace")
    return match[0] if character is None else character.ljust(len(match[0]), b"\0")


def _without_prefix(match: re.Match[bytes]) -> bytes:
    if match["empty"] is not None:
        return match[0].translate(_BLANKS)
    return match[0][:1] + bytes(len(match[0]) - 1)


def _in_ascii(match: re.Match[bytes]) -> bytes:
    return _LOOKALIKES[match[0]].ljust(len(match[0]), b"\0")
