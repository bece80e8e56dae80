"""Which commands does a shell script consist of, which functions does it define, and what in it is a comment?

    f() { vllm serve "$1"; }; f kimi-k3      ->   f, defined with one command, then called

A command keeps the operators around it: they open subshells and pipes.
"""

import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from hybridcalc.errors import InputError
from hybridcalc.manifests.source import Text
from hybridcalc.shell.parse import Operator, split_placed

DEEPEST_TEXT = 4
"""Texts inside texts in which comments are looked for."""
GLUE = {"then", "else", "elif", "do", "!", "time", "{", "}", "function", "in"}
"""Words before a command that are none of it."""
FUNCTION = re.compile(r"[A-Za-z_][\w-]*\(\)")
ASSIGNMENT = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)(\[[^\]]*\])?(\+?)=")
PlacedWord = tuple[str, int, int]


class Command(NamedTuple):
    """Words between operators: the one after them, and all since the command before."""

    words: list[PlacedWord]
    after: str
    before: tuple[str, ...] = ()


class Definition(NamedTuple):
    """A function: its name and body, and the index of the command ``after`` it; 0 for one that is never closed."""

    name: str
    body: list[Command]
    after: int


def commands_of(text: Text) -> Iterator[Command]:
    """The commands of a script, redirections left out.

    Raises InputError for a script that no shell could split where the launcher stands.
    """
    words: list[PlacedWord] = []
    before: list[str] = []
    redirected = False
    last = -1
    for word, begin, end in split(text):
        if isinstance(word, Operator):
            redirected = "<" in word or ">" in word
            if redirected:
                continue
            if words:
                yield Command(words, str(word), tuple(before))
                words, before = [], []
            if word == "(" and begin == last and before[-1:] == ["("]:
                before.append("((")  # arithmetic, and no subshell in a subshell
            before.append(str(word))
            last = end
        elif redirected:
            redirected = False
        else:
            words.append((word, begin, end))
    if words or before:
        yield Command(words, "", tuple(before))


def split(text: Text, comments: list[tuple[int, int]] | None = None) -> list[PlacedWord]:
    """The words of a script; line by line where something in it cannot be split as a whole."""
    try:
        return split_placed(text.text, comments)
    except InputError:
        if comments is not None:
            comments.clear()
    words: list[PlacedWord] = []
    for match in re.finditer(r"(?:[^\\\n]|\\[ \t]*\n|\\.)+", text.text):
        own: list[tuple[int, int]] = []
        try:
            line = split_placed(match[0], own)
        except InputError as error:
            if ("sglang" in match[0] or "vllm" in match[0]) and comments is None:
                place = text.source.place(text.at(match.start()))
                raise InputError(f"{place.path}:{place.line}: {error.message}", fix=error.fix) from None
            continue
        if comments is not None:
            comments += [(begin + match.start(), end + match.start()) for begin, end in own]
        words += [(word, begin + match.start(), end + match.start()) for word, begin, end in line]
        words.append((Operator(";"), match.end(), match.end()))
    return words


def definition_at(commands: Sequence[Command], at: int) -> Definition | None:
    """The function that a command defines; None for no function, or one whose body is not in braces."""
    words = commands[at].words
    following = commands[at + 1] if at + 1 < len(commands) else None
    if not words:
        return None
    if words[0][0] == "function" and len(words) > 1:
        name, rest = words[1][0].removesuffix("()"), words[2:]
    elif FUNCTION.fullmatch(words[0][0]):
        name, rest = words[0][0][:-2], words[1:]
    elif len(words) == 1 and following is not None and following.before[:2] == ("(", ")"):
        name, rest = words[0][0], []
    else:
        return None
    if not rest and following is not None:
        at, rest = at + 1, following.words
    if not rest or rest[0][0] != "{":
        return None
    body: list[Command] = []
    depth = 0
    while at < len(commands):
        depth += _braces(rest)
        if depth <= 0:
            return Definition(name, body, at + 1)
        body.append(commands[at]._replace(words=rest) if body else Command(rest[1:], commands[at].after))
        at += 1
        rest = commands[at].words if at < len(commands) else []
    return Definition(name, body, 0)


def _braces(words: list[PlacedWord]) -> int:
    """Braces that the words before a command open, less those they close."""
    count = 0
    for word, _, _ in words:
        if word not in GLUE and word not in ("if", "while", "until") and not FUNCTION.fullmatch(word):
            break
        count += (word == "{") - (word == "}")
    return count


def comments_of(text: Text, starts: Sequence[int], depth: int = 0) -> Iterator[tuple[int, int]]:
    """Where the comments of a script stand in its file. A quoted text is a script too where one of the offsets
    ``starts`` lies in it.
    """
    comments: list[tuple[int, int]] = []
    for word, begin, end in split(text, comments):
        raw = text.text[begin:end]
        if "#" not in raw or depth > DEEPEST_TEXT or isinstance(word, Operator):
            continue
        array = ASSIGNMENT.match(raw)
        if array is not None and raw[array.end() : array.end() + 1] == "(" and raw.endswith(")"):
            yield from comments_of(text.part(begin + array.end() + 1, end - 1), starts, depth + 1)
        elif raw[:1] in ("'", '"') and any(text.at(begin) <= start < text.end(end) for start in starts):
            yield from comments_of(text.part(begin + 1, end - 1), starts, depth + 1)
    yield from ((text.at(begin), text.end(end)) for begin, end in comments)
