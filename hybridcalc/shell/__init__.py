"""A command line, read and never run: parsed as bash splits it, which engine it starts, and what its flags say.

Here: where does a word stand, and how much may the text of one file grow to?

A `Source` is a file; a `Text` a piece of one, decoded, which knows for each of its characters where it stands in the
file; a `Word` what an engine gets, with the file and the span it was written at. Spans are character offsets; lines and
columns count from 1.

Aliases, variables and arrays say in few characters what has many:

    A="a a a ..."; vllm serve x $A; vllm serve x $A; ...        args: *flags        value: "$(A)$(A)$(A)..."

Whatever copies, splits or visits something once more pays for it (`spend`) from the `allowance` of the file that is
read; a file that asks for more than an honest one could is refused. Memory and time are bounded so, however the growth
is made.
"""

import codecs
import re
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import NamedTuple

from hybridcalc.errors import InputError, printable

MOST_WORDS = 200_000
"""Words of commands, items of lists and variables that one file may come to, whatever its size."""
CHARACTERS_A_WORD = 8
"""Characters of a file for each of which it may come to a word more: those that stand in it are its own."""
MOST_CHARACTERS = 8 * 2**20
"""Characters of values in whose text a variable was replaced."""
MOST_VISITS = 1_000_000
"""Entries of merged mappings, environments and growing arrays that are gone through, each time counted."""
MOST_SCRIPTS = 2**20
"""Characters of texts in scripts that are scripts themselves."""

VISIBLE = frozenset({"CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES"})
"""Variables that say which GPUs a process sees."""

_left: ContextVar[list[int] | None] = ContextVar("left", default=None)


@contextmanager
def allowance(characters: int = 0) -> Iterator[None]:
    """What a file of so many characters may grow to, within; inside another allowance, that one counts."""
    if _left.get() is not None:
        yield
        return
    words = MOST_WORDS + characters // CHARACTERS_A_WORD
    token = _left.set([words, MOST_CHARACTERS, MOST_VISITS, MOST_SCRIPTS, words])
    try:
        yield
    finally:
        _left.reset(token)


def spend(words: int = 0, characters: int = 0, visits: int = 0, scripts: int = 0) -> None:
    """Take from the allowance. Raises InputError where nothing is left of it."""
    left = _left.get()
    if left is None:
        return
    left[0] -= words
    left[1] -= characters
    left[2] -= visits
    left[3] -= scripts
    if left[0] < 0:
        raise InputError(f"its words and arrays come to more than {left[4]:,} words")
    if left[1] < 0:
        raise InputError(f"its variables come to more than {MOST_CHARACTERS:,} characters")
    if left[2] < 0:
        raise InputError(f"its merged, shared and copied entries come to more than {MOST_VISITS:,}")
    if left[3] < 0:
        raise InputError(f"the scripts inside it come to more than {MOST_SCRIPTS:,} characters")


SHELL_DECIDES = "the shell decides it"
"""Why a word is not known that a shell was to expand."""
_ASSIGNMENT = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)=(.*)", re.DOTALL)
_EXPANSION = re.compile(r"\$[A-Za-z0-9_@*{(]|`")


TEMPLATE = re.compile(r"(?<!\$)\{\{-?\s*[\w.$('\"][^{}]{0,500}\}\}")
"""What a template engine puts a value in the place of."""
_STATEMENT = re.compile(
    r"(?<!\$)\{%-?\s*(?:if|for)\b[^%{}]{0,200}%\}"
    r"((?:(?!(?<!\$)\{%-?\s*(?:if|for|end))[\s\S]){0,2000}?)\{%-?\s*end(?:if|for)\s*-?%\}"
)
_TAG = re.compile(r"(?<!\$)(?:\{%[^%]{0,500}%\}|\{#[^#]{0,500}#\})")
_JOINING = re.compile(r"\\\r?\n[ \t]*\Z")
_DEEPEST_STATEMENT = 3
ELISIONS = frozenset({"...", "\u2026", "[...]", "<...>"})
"""What stands in a guide for flags that are left out."""


class Place(NamedTuple):
    """A place in a file, and the span of characters that stands there."""

    path: str
    line: int
    column: int
    begin: int
    end: int


class FileError(InputError):
    """What is wrong at a line of a file, or with all of it (line 0); ``problem`` is the message without the place.

    A text without a path is somebody's own line and has no places.
    """

    kind = "file"

    def __init__(self, path: str, line: int, problem: str, *, fix: str = "") -> None:
        where = f"{path}:{line}" if line else path
        super().__init__(f"{where}: {problem}" if path else problem, fix=fix)
        self.path, self.line, self.problem = path, line, printable(problem)


class Source:
    """A file: its path as it was given, its text, and where its lines begin. ``exact`` is false where bytes of it are
    no UTF-8, so that its text is not the file's.
    """

    __slots__ = ("_starts", "exact", "path", "text")

    def __init__(self, path: str, text: str, *, exact: bool = True) -> None:
        self.path, self.text, self.exact = path, text, exact
        self._starts: list[int] = []

    @classmethod
    def of_bytes(cls, path: str, data: bytes) -> "Source":
        """The source of a file's bytes; a byte order mark is no part of its text."""
        try:
            return cls(path, data.decode("utf-8").removeprefix("\ufeff"))
        except UnicodeDecodeError:
            return cls(path, data.decode("utf-8", errors="replace").removeprefix("\ufeff"), exact=False)

    def place(self, begin: int, end: int | None = None) -> Place:
        """Line and column of a character offset."""
        if not self._starts:
            self._starts = [0, *(match.end() for match in re.finditer("\n", self.text))]
        line = bisect_right(self._starts, begin)
        return Place(self.path, line, begin - self._starts[line - 1] + 1, begin, begin if end is None else end)

    def offset(self, line: int, column: int) -> int:
        """Character offset of a line and column."""
        if not self._starts:
            self.place(0)
        return self._starts[line - 1] + column - 1

    def line(self, number: int) -> str:
        """The text of a line, without its end."""
        if not self._starts:
            self.place(0)
        begin = self._starts[number - 1]
        end = self._starts[number] if number < len(self._starts) else len(self.text)
        return self.text[begin:end].rstrip("\r\n")

    def error(self, at: int | None, problem: str, fix: str = "") -> "FileError":
        """What is wrong at a character offset, None for the whole of the file."""
        return FileError(self.path, 0 if at is None else self.place(at).line, problem, fix=fix)


class Text:
    """Characters of a source: the one at ``i`` stands at ``base + i``, or at ``spots[i]`` where those are given."""

    __slots__ = ("base", "source", "spots", "text")

    def __init__(self, source: Source, text: str, base: int = 0, spots: Sequence[int] | None = None) -> None:
        self.source, self.text, self.base, self.spots = source, text, base, spots

    def at(self, index: int) -> int:
        """Offset in the file of a character; just after the last one for the length."""
        if self.spots is None:
            return self.base + index
        if not self.spots:
            return self.base
        return self.spots[index] if index < len(self.spots) else self.spots[-1] + 1

    def end(self, index: int) -> int:
        """Offset in the file just after the character before ``index``."""
        return self.at(index - 1) + 1 if index else self.at(0)

    def part(self, begin: int, end: int) -> "Text":
        """The characters from ``begin`` to ``end``."""
        spots = None if self.spots is None else self.spots[begin:end]
        return Text(self.source, self.text[begin:end], self.at(begin), spots)

    def replaced(self, pattern: re.Pattern[str], value: Callable[[re.Match[str]], str | None]) -> "Text":
        """With what ``value`` makes of each match (None leaves it); replacements stand where the match stood."""
        parts: list[str] = []
        spots: list[int] = []
        at = 0
        for match in pattern.finditer(self.text):
            new = value(match)
            if new is None:
                continue
            begin, end = match.span()
            parts += (self.text[at:begin], new)
            spots += [self.at(index) for index in range(at, begin)]
            spots += [self.at(begin)] * len(new)
            at = end
        if not parts:
            return self
        parts.append(self.text[at:])
        spots += [self.at(index) for index in range(at, len(self.text))]
        return Text(self.source, "".join(parts), self.at(0), spots)


def unrendered(text: Text, starting: re.Pattern[str]) -> Text:
    """A template as a shell would read it: what it fills in, and what it puts there on a condition, as expansions that
    nobody knows. What ``starting`` finds a launch in stays.
    """

    def statement(match: re.Match[str]) -> str | None:
        if starting.search(match[1]) is not None:
            return None
        return f"${{{match[0].partition('%}')[0][1:]}%}}" + (" \\" if match[1].rstrip(" \t\n").endswith("\\") else "")

    def tag(match: re.Match[str]) -> str:
        whole, (begin, end) = match.string, match.span()
        joins = whole[end : end + 1] in ("\n", "\r") and _JOINING.search(whole[max(0, begin - 200) : begin])
        return "\\" if joins else ""

    if "{%" in text.text or "{#" in text.text:
        for _ in range(_DEEPEST_STATEMENT):
            text, before = text.replaced(_STATEMENT, statement), text
            if text is before:
                break
        text = text.replaced(_TAG, tag)
    return text.replaced(TEMPLATE, lambda match: "$" + match[0]) if "{{" in text.text else text


class Word(str):
    """A word of a command. ``begin`` to ``end`` is where it is used, ``chars`` its characters where they stand one by
    one in a file; ``written`` is where its text is to be changed, if that is elsewhere. ``why`` nobody knows it, "" for
    one that is known; the text of an unknown word is as written. What is cut off a word is plain text.
    """

    __slots__ = ("begin", "chars", "end", "source", "why", "written")

    source: Source
    begin: int
    end: int
    chars: Text | None
    written: Place | None
    why: str

    def __new__(
        cls,
        text: str,
        source: Source,
        begin: int,
        end: int,
        chars: Text | None = None,
        *,
        written: Place | None = None,
        why: str = "",
    ) -> "Word":
        """A word of ``text`` at a span of ``source``."""
        word = str.__new__(cls, text)
        word.source, word.begin, word.end = source, begin, end
        word.chars, word.written, word.why = chars, written, why
        return word

    @property
    def place(self) -> Place:
        """Where the word stands."""
        return self.source.place(self.begin, self.end)

    @property
    def characters(self) -> Text:
        """Its characters; all at its begin where they do not stand one by one in the file."""
        return self.chars or Text(self.source, str(self), self.begin, [self.begin] * len(self))

    def instead(self, text: str, why: str = "", *, written: Place | None = None) -> "Word":
        """Another text at the same place."""
        return Word(text, self.source, self.begin, self.end, written=written, why=why)

    def ending(self, length: int) -> "Word":
        """The last characters of the word, as the value of ``NAME=VALUE``."""
        begin = max(self.end - length, self.begin)
        return Word(self[len(self) - length :], self.source, begin, self.end, why=self.why)

    def partition(self, separator: str) -> tuple[str, str, str]:
        """As of any text; one without the separator would give back the word itself."""
        return str(self).partition(separator)

    def rpartition(self, separator: str) -> tuple[str, str, str]:
        """As of any text; one without the separator would give back the word itself."""
        return str(self).rpartition(separator)


def check_text(data: bytes) -> None:
    """Raise InputError for a file that is no text in ASCII or UTF-8."""
    if data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)) or bytes(4) in (data[:8:2], data[1:8:2]):
        raise InputError("text in UTF-16: save it in UTF-8")
    if b"\0" in data:
        raise InputError("a binary file")


def is_unresolved(word: str) -> bool:
    """Whether somebody still has to decide a word: nobody knows it, or, in a list that no shell has read, it holds
    ``$VAR``, ``${VAR}``, ``$(...)`` or a backtick.
    """
    return bool(word.why) if isinstance(word, Word) else _EXPANSION.search(word) is not None


class FromOutside(str):
    """Why a value is not known that ``variable`` decides, which comes from outside of all that was read."""

    __slots__ = ("variable",)

    variable: str

    def __new__(cls, variable: str) -> "FromOutside":
        """The reason of the variable's name."""
        why = str.__new__(cls, f"{variable} comes from outside")
        why.variable = variable
        return why


class Setting(NamedTuple):
    """A variable's value: the words of it (one, but for arrays); none where ``why`` says that it is not known.

    ``written`` is where the value is written, if not where its only word stands. ``more`` is why further words may
    follow those that are known.
    """

    words: tuple[Word, ...]
    why: str = ""
    written: Place | None = None
    array: bool = False
    more: str = ""

    @property
    def place(self) -> Place | None:
        """Where the value is written."""
        return self.words[0].place if self.written is None and len(self.words) == 1 else self.written

    @property
    def text(self) -> str | None:
        """The value as one text; None where it is not known."""
        if self.why or self.more or any(word.why for word in self.words):
            return None
        return " ".join(self.words)

    @property
    def reason(self) -> str:
        """Why it is not known."""
        return self.why or next((word.why for word in self.words if word.why), self.more)

    def known_or_why(self, name: str) -> str:
        """The value as one text, or a word with the reason why it is not known."""
        if self.text is not None:
            return self.text
        unknown = self.words[0] if len(self.words) == 1 and self.words[0].why else None
        return unknown or Word(f"${name}", Source("", ""), 0, 0, why=self.reason)

    @property
    def parts(self) -> tuple[Word, ...]:
        """The words it becomes where nothing quotes it."""
        if self.array:
            return self.words
        split = (
            [word] if word.why or word.split() == [word] else map(word.instead, word.split()) for word in self.words
        )
        return tuple(part for parts in split for part in parts)


def assignment(word: Word) -> tuple[str, Setting] | None:
    """Name and value of a word ``NAME=VALUE``; None for any other."""
    assigned = _ASSIGNMENT.fullmatch(word)
    return None if assigned is None else (assigned[1], Setting((word.ending(len(assigned[2])),)))


def matched(raw: Text, text: str) -> Text | None:
    """The characters of an unquoted or unescaped text where they stand in the raw one; None where they differ."""
    spots: list[int] = []
    at = 0
    for char in text:
        while at < len(raw.text) and raw.text[at] != char:
            if raw.text[at] not in "\\'\"\n":
                return None
            at += 1
        if at == len(raw.text):
            return None
        spots.append(raw.at(at))
        at += 1
    return Text(raw.source, text, raw.at(0), spots)


def words_of(arguments: Sequence[str]) -> list[Word]:
    """An argument list that a shell has split already, as words of one line."""
    source = Source("", " ".join(arguments))
    words: list[Word] = []
    begin = 0
    for text in arguments:
        why = SHELL_DECIDES if is_unresolved(text) else ""
        words.append(Word(text, source, begin, begin + len(text), Text(source, text, begin), why=why))
        begin += len(text) + 1
    return words


# Which commands only speak of a launch? Those that print, look for or build something, and flags that only ask.

SILENT = frozenset({
    "alias", "apt", "apt-get", "awk", "brew", "cat", "chmod", "chown", "cmake", "cp", "curl", "dnf", "echo", "egrep",
    "fgrep", "file", "git", "grep", "install", "kill", "killall", "launchctl", "less", "ln", "ls", "make", "man", "mv",
    "ninja", "pgrep", "pip", "pip3", "pkill", "printf", "ps", "rm", "sed", "strip", "systemctl", "tail", "tar", "tee",
    "test", "throw", "touch", "trap", "type", "wget", "which", "[", "[[",
})  # fmt: skip
"""Commands whose words are no launch."""
PRINTS = re.compile(
    r"(die|fail|step|warn|err|fatal|info|log|msg|note|say|show|print|banner|header|title|usage|abort|debug|stat)"
    r"(?!.*(run|exec|start|launch))\w*",
    re.IGNORECASE,
)
"""Functions that print what they are given, by their names."""


def prose(verbs: str) -> str:
    """A pattern of what follows a program in a message rather than in a command: words before no flag. Its ``verbs``
    are the second words of programs.
    """
    verb, word = rf"(?:{verbs})\s", "[a-z]+"
    return rf"(?:\(|(?!{verb}){word}\s*$|(?:{verb}+)?(?!{verb}){word}(?:[.,!:]|\s+[^-\s]))"


ASKS = frozenset({"--help", "--help=all", "-h", "--usage", "--version", "--list-devices"})
"""Flags with which a program says something of itself and ends."""
SAID = re.compile(r"\s*([-*]\s+)?(#|//|>|(echo|printf|say|log\w*|info|warn|die|description|message|name|title)\b)")
"""How a line begins that only speaks of something."""
PYTHON = re.compile(r"python[0-9]*(?:\.[0-9]+)*")
