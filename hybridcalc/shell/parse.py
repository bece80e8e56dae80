r"""Which words does a shell see in a text?

    numactl -N 0 sglang serve "a b" \
      --tp 8  # ranks      ->   numactl  -N  0  sglang  serve  a b  --tp  8

POSIX rules for quotes, backslashes, comments and continued lines, and nothing is run or expanded: a word that a shell
would expand keeps its text and comes marked. Here-documents are not read.
"""

import re
from collections.abc import Iterator
from functools import lru_cache
from typing import NamedTuple

from hybridcalc.errors import InputError, quoted
from hybridcalc.shell import SHELL_DECIDES, Source, Text, Word, matched

LONGEST_SCRIPT = 256 * 1024
"""Characters of a script; long ones that are launched have some 30,000."""

_RUN = re.compile(r"[^ \t\n\\'\"$`#|&;<>()]+")
_QUOTED_RUN = re.compile(r"[^\"\\$`]+")
_CONTINUED = re.compile(r"\\[ \t]*(?:\n|\Z)")
_OPERATOR = re.compile(r"[0-9]{0,3}(?:>>|>&|>\||<<<|<<|<&|<>|[<>])|&>>?|&&|\|\||\|&|;;|[|&;()\n]")
_VARIABLE = re.compile(r"\$(?:[A-Za-z_][A-Za-z0-9_]*|[0-9@*#?!$-])")
_QUOTED = re.compile(r"'([^']*)'|\"(?:[^\"\\]|\\[\s\S])*\"|\\[\s\S]")
_NAME = re.compile(r"[A-Za-z_][\w-]*")
_DOTTED = re.compile(r"\$\{[A-Za-z_]\w*\.[\w.]+\}")
"""A reference that no shell has, and a template puts its value in the place of, quoted or not."""
_OLD_ARITHMETIC = re.compile(r"\$\[[^\]\n]*\]")
"""``$[1 + 2]``, as ``$((1 + 2))``."""
_NESTING = re.compile(r"\\[\s\S]?|\$'(?:[^'\\]|\\[\s\S])*'|['\"]|\$?\(|\)|(?<![^\s;&|(])#[^\n]*")
"""What opens and closes, or hides, a bracket."""
_ESCAPED_QUOTE = re.compile(r"\$'((?:[^'\\]|\\[\s\S])*)'")
_ESCAPE = re.compile(r"\\(?:x([0-9A-Fa-f]{1,2})|([0-7]{1,3})|[uU]([0-9A-Fa-f]{1,8})|([\s\S]))")
_ESCAPES = {
    "a": "\a", "b": "\b", "e": "\x1b", "E": "\x1b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v",
    "\\": "\\", "'": "'", '"': '"', "?": "?",
}  # fmt: skip


class Token(NamedTuple):
    """What stands in a script, where, and which ``kind`` it is.

    "operator" separates commands (``;`` also for a new line) or redirects them, unquoted; "live" is a word of which the
    shell would expand a part, so that a ``$`` of any other "word" stands for itself; "comment" is one.
    """

    text: str
    begin: int
    end: int
    kind: str


def split_command(text: str) -> list[Word]:
    r"""The words of a command as the shell splits them, comments gone and continued lines joined.

    A backslash continues its line also before CRLF or trailing blanks. Unquoted ``;``, ``|``, ``>`` and their like are
    words too; those the shell would expand have a ``why``. Raises InputError for an unbalanced quote or bracket and for
    a text longer than LONGEST_SCRIPT.
    """
    text = text.replace("\r\n", "\n")
    source, found = Source("", text), [token for token in tokens(text) if token.kind != "comment"]
    while found and found[-1].kind == "operator" and found[-1].text == ";":
        found.pop()
    return [Word(t.text, source, t.begin, t.end, why=SHELL_DECIDES if t.kind == "live" else "") for t in found]


def tokens(text: str) -> list[Token]:
    """As `split_command`, with where everything stands, comments too; CRLF is the caller's business."""
    if len(text) > LONGEST_SCRIPT:
        raise InputError(f"a script of {len(text):,} characters is longer than {LONGEST_SCRIPT:,}")
    found: list[Token] = []
    at, after_word = 0, False
    while at < len(text):
        begin = at
        if text[at] in " \t":
            at += 1
        elif text[at] == "#":
            at = _find(text, "\n", at)
            found.append(Token(text[begin:at], begin, at, "comment"))
        elif continued := _CONTINUED.match(text, at):
            at = continued.end()
        elif operator := _OPERATOR.match(text, at):
            at = operator.end()
            if operator[0] != "\n" or after_word:
                found.append(Token(operator[0].replace("\n", ";"), begin, at, "operator"))
            after_word = False
        else:
            found.append(_word(text, at))
            at, after_word = found[-1].end, True
    return found


def as_script(word: Word) -> Word:
    """A word in double quotes that is a script: what it holds in single quotes is expanded before the script is read,
    so ``'$NAME'`` there is not the text that it would be in a file.
    """

    def live(match: re.Match[str]) -> str | None:
        inner = match[1]
        if inner is None or re.search(r"\$[A-Za-z_{(]", inner) is None:
            return None
        return '"' + re.sub(r'(["\\`])', r"\\\1", inner) + '"'

    if word.chars is None or "$" not in word or "'" not in word:
        return word
    text = word.chars.replaced(_QUOTED, live)
    return Word(text.text, word.source, word.begin, word.end, text, written=word.written)


def placed(text: Text, token: Token) -> Word:
    """A token of a text as a word, as it is written."""
    raw = text.text[token.begin : token.end]
    shift = 1 if len(raw) > 1 and raw[0] == raw[-1] and raw[0] in "'\"" else 0
    part = text.part(token.begin + shift, token.end - shift)
    chars = part if part.text == token.text else matched(part, token.text)
    return Word(token.text, text.source, part.at(0), text.end(token.end - shift), chars)


def substitutions(text: str) -> Iterator[tuple[int, int]]:
    """Where the commands in ``$(...)`` and backticks of a text begin and end; single quotes and comments hold none."""
    at, quoted = 0, False
    while at < len(text):
        char = text[at]
        if char == "\\":
            at += 2
        elif char == "'" and not quoted:
            at = _closing(text, "'", at + 1)
        elif char == "#" and not quoted and text[max(0, at - 1) : at].isspace():
            at = _find(text, "\n", at)
        elif char == "`":
            begin, at = at + 1, _closing(text, "`", at + 1)
            yield begin, at - 1
        elif text.startswith("$(", at):
            begin, at = at + 2, _balanced(text, at + 1)
            if text[begin : begin + 1] != "(":
                yield begin, at - 1
        else:
            quoted = quoted != (char == '"')
            at += 1


def _word(text: str, at: int) -> Token:
    """The word that begins at ``at``."""
    parts: list[str] = []
    live, first = False, at
    while at < len(text):
        char, begin = text[at], at
        if run := _RUN.match(text, at):
            parts.append(run[0])
            at = run.end()
        elif continued := _CONTINUED.match(text, at):
            at = continued.end()
            if continued[0] not in ("\\\n", "\\"):
                break  # blanks after the backslash: they still part two words
        elif char == "\\":
            parts.append(text[at + 1])
            at += 2
        elif char == "'":
            at = _closing(text, "'", at + 1)
            parts.append(text[begin + 1 : at - 1])
            live = live or _DOTTED.search(parts[-1]) is not None
        elif char == '"':
            piece, at, expands = _double_quoted(text, at + 1)
            parts.append(piece)
            live = live or expands
        elif text.startswith("$'", at):
            piece, at = _escaped_quote(text, at)
            parts.append(piece)
        elif text.startswith('$"', at):
            at += 1  # a text to translate: as any other
        elif text.startswith("()", at) and _NAME.fullmatch(text, first, at):
            return Token(text[first : at + 2], first, at + 2, "live")  # a function, whose brace needs no blank
        elif char in "$`(":
            at = _expansion(text, at)
            live = live or at > begin + 1
            parts.append(text[begin:at])
        elif char == "#":
            parts.append(char)
            at += 1
        else:
            break
    return Token("".join(parts), first, at, "live" if live else "word")


def _escaped_quote(text: str, at: int) -> tuple[str, int]:
    """What ``$'...'`` at ``at`` stands for, and where it ends."""
    match = _ESCAPED_QUOTE.match(text, at)
    if match is None:
        raise _unbalanced(text, at + 1)

    def char(found: re.Match[str]) -> str:
        number = found[1] or found[2] or found[3]
        if number is not None:
            return chr(min(int(number, 8 if found[2] else 16), 0x10FFFF) & (0xFF if found[2] else 0x1FFFFF))
        return _ESCAPES.get(found[4], found[0])

    return _ESCAPE.sub(char, match[1]), match.end()


def _double_quoted(text: str, at: int) -> tuple[str, int, bool]:
    """What stands in double quotes from ``at`` on, where it ends, and whether the shell would expand part of it."""
    parts: list[str] = []
    opened, live = at, False
    while at < len(text):
        char, begin = text[at], at
        if run := _QUOTED_RUN.match(text, at):
            parts.append(run[0])
            at = run.end()
        elif char == '"':
            return "".join(parts), at + 1, live
        elif char == "\\":
            escaped = text[at + 1 : at + 2]
            parts.append("" if escaped == "\n" else escaped if escaped in ("$", "`", '"', "\\") else char + escaped)
            at += 2
        else:
            at = _expansion(text, at)
            live = live or at > begin + 1
            parts.append(text[begin:at])
    raise _unbalanced(text, opened - 1)


def _expansion(text: str, at: int) -> int:
    """Where the expansion that begins at ``at`` ends; one character on for a ``$`` that stands for itself."""
    if text[at] == "`":
        return _closing(text, "`", at + 1)
    if text[at] == "(":
        return _balanced(text, at)
    if text[at + 1 : at + 2] in ("(", "{"):
        return _balanced(text, at + 1)
    if (arithmetic := _OLD_ARITHMETIC.match(text, at)) is not None:
        return arithmetic.end()
    variable = _VARIABLE.match(text, at)
    return variable.end() if variable else at + 1


@lru_cache(maxsize=16)
def _closings(text: str) -> dict[int, int]:
    """Where each round bracket of a text is closed, by where it opens: one pass that skips quotes and comments."""
    found: dict[int, int] = {}
    opened: list[tuple[str, int]] = []
    at = 0
    while (match := _NESTING.search(text, at)) is not None:
        at, what, quoted = match.end(), match[0], bool(opened) and opened[-1][0] == '"'
        if what == '"':
            if quoted:
                opened.pop()
            else:
                opened.append((what, at))
        elif what == "'" and not quoted:
            at = _find(text, what, at) + 1
        elif what[0] == "#" and quoted:
            at = match.start() + 1
        elif what == "$(" or (what == "(" and not quoted):
            opened.append(("(", at - 1))
        elif what == ")" and opened and not quoted:
            found[opened.pop()[1]] = at
    return found


def _balanced(text: str, at: int) -> int:
    """Where the bracket that opens at ``at`` is closed; where quotes and comments leave that open, by counting."""
    end = _closings(text).get(at) if text[at] == "(" else None
    if end is not None:
        return end
    depth = 0
    for bracket in re.compile(r"[()]" if text[at] == "(" else r"[{}]").finditer(text, at):
        depth += 1 if bracket[0] in "({" else -1
        if not depth:
            return bracket.end()
    raise _unbalanced(text, at)


def _closing(text: str, quote: str, at: int) -> int:
    """Just after the next ``quote``. Raises InputError where there is none."""
    end = text.find(quote, at)
    if end < 0:
        raise _unbalanced(text, at - 1)
    return end + 1


def _find(text: str, char: str, at: int) -> int:
    end = text.find(char, at)
    return len(text) if end < 0 else end


def _unbalanced(text: str, at: int) -> InputError:
    closing = {"(": ")", "{": "}"}.get(text[at], text[at])
    return InputError(f"no closing {closing} for {quoted(text[at:])}", fix="close it, or quote it")
