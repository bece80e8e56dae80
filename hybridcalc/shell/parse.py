r"""Which words does a shell see in a text?

    numactl -N 0 sglang serve "a b" \
      --tp 8  # ranks      ->   numactl  -N  0  sglang  serve  a b  --tp  8

POSIX rules for quotes, backslashes, comments and continued lines, and nothing is run or expanded: a word that a shell
would expand keeps its text and comes marked. Here-documents and ``$'...'`` are not read.
"""

import re
from collections.abc import Iterator

from hybridcalc.errors import InputError, quoted

LONGEST_COMMAND = 256 * 1024
"""Characters a command may have; the longest real ones are some hundred times shorter."""

_RUN = re.compile(r"[^ \t\n\\'\"$`#|&;<>()]+")
_QUOTED_RUN = re.compile(r"[^\"\\$`]+")
_CONTINUED = re.compile(r"\\[ \t]*(?:\n|\Z)")
_OPERATOR = re.compile(r"[0-9]{0,3}(?:>>|>&|>\||<<<|<<|<&|<>|[<>])|&>>?|&&|\|\||\|&|;;|[|&;()\n]")
_VARIABLE = re.compile(r"\$(?:[A-Za-z_][A-Za-z0-9_]*|[0-9@*#?!$-])")
_EXPANSION = re.compile(r"\$[A-Za-z0-9_@*{(]|`")


class Operator(str):
    """What separates commands (``;`` also for a new line) or redirects them, unquoted."""

    __slots__ = ()


class Unresolved(str):
    """A word whose value the shell would decide."""

    __slots__ = ()


class Quoted(str):
    """A word whose ``$`` and backticks are quoted: they stand for themselves."""

    __slots__ = ()


def split_command(text: str) -> list[str]:
    r"""The words of a command as the shell splits them, comments gone and continued lines joined.

    A backslash continues its line also before CRLF or trailing blanks. Unquoted ``;``, ``|``, ``>`` and their like come
    as `Operator`, words the shell would expand as `Unresolved`. Raises InputError for an unbalanced quote or bracket
    and for a text longer than LONGEST_COMMAND.
    """
    words = [word for word, _, _ in split_placed(text.replace("\r\n", "\n"))]
    while words and isinstance(words[-1], Operator) and words[-1] == ";":
        words.pop()
    return words


def split_placed(text: str, comments: list[tuple[int, int]] | None = None) -> list[tuple[str, int, int]]:
    """As `split_command`, each word with where it begins and ends in ``text``; CRLF is the caller's business. Where the
    comments stand is added to ``comments``.
    """
    if len(text) > LONGEST_COMMAND:
        raise InputError(
            f"a command of {len(text):,} characters is too long", fix=f"give at most {LONGEST_COMMAND:,} characters"
        )
    words: list[tuple[str, int, int]] = []
    at = 0
    while at < len(text):
        if text[at] in " \t":
            at += 1
        elif text[at] == "#":
            begin, at = at, _find(text, "\n", at)
            if comments is not None:
                comments.append((begin, at))
        elif continued := _CONTINUED.match(text, at):
            at = continued.end()
        elif operator := _OPERATOR.match(text, at):
            begin, at = at, operator.end()
            if operator[0] != "\n":
                words.append((Operator(operator[0]), begin, at))
            elif words and not isinstance(words[-1][0], Operator):
                words.append((Operator(";"), begin, at))
        else:
            begin = at
            word, at = _word(text, at)
            words.append((word, begin, at))
    return words


def substitutions(text: str) -> Iterator[tuple[int, int]]:
    """Where the commands in ``$(...)`` and backticks of a text begin and end; single quotes hold none."""
    at, quoted = 0, False
    while at < len(text):
        char = text[at]
        if char == "\\":
            at += 2
        elif char == "'" and not quoted:
            at = _closing(text, "'", at + 1)
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


def is_unresolved(word: str) -> bool:
    """Whether a word holds ``$VAR``, ``${VAR}``, ``$(...)`` or a backtick that somebody still has to expand."""
    if isinstance(word, Unresolved):
        return True
    return not isinstance(word, Quoted) and _EXPANSION.search(word) is not None


def _word(text: str, at: int) -> tuple[str, int]:
    """The word that begins at ``at``, and where it ends."""
    parts: list[str] = []
    live = False
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
        elif char == '"':
            piece, at, expands = _double_quoted(text, at + 1)
            parts.append(piece)
            live = live or expands
        elif char in "$`(":
            at = _expansion(text, at)
            live = live or at > begin + 1 or text[at : at + 1] in ("'", '"')
            parts.append(text[begin:at])
        elif char == "#":
            parts.append(char)
            at += 1
        else:
            break
    word = "".join(parts)
    if live:
        return Unresolved(word), at
    return (Quoted(word) if "$" in word or "`" in word else word), at


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
    variable = _VARIABLE.match(text, at)
    return variable.end() if variable else at + 1


def _balanced(text: str, at: int) -> int:
    """Where the bracket that opens at ``at`` is closed."""
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
