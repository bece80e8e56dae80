"""Which commands does a shell script consist of, which functions does it define, and what in it is a comment?

    f() { vllm serve "$1"; }; f kimi-k3      ->   f, defined with one command, then called
    cat > compose.yaml <<EOF ... EOF         ->   cat, with a here-document of YAML

A command keeps the operators around it, which open subshells and pipes, and its here-documents, which are told apart by
the command that takes them or the name of the file they go to; one that is only printed is left out.
"""

import re
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from hybridcalc.errors import InputError
from hybridcalc.shell import Text
from hybridcalc.shell.parse import Token, tokens
from hybridcalc.shell.variables import REFERENCE

DEEPEST_TEXT = 4
"""Texts inside texts in which comments are looked for."""
GLUE = {"then", "else", "elif", "do", "!", "time", "{", "}", "function", "in"}
"""Words before a command that are none of it."""
FUNCTION = re.compile(r"[A-Za-z_][\w-]*\(\)")
ASSIGNMENT = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)(\[[^\]]*\])?(\+?)=")
RETURN = re.compile(r"\r(?=\n|\Z)")
"""A carriage return that belongs to the end of a line."""
ESCAPE = re.compile(r"\\(?:([\\$`])|\r?\n)")
"""What a backslash hides from the shell in a here-document that it expands."""
_KINDS = (
    ("documents", re.compile(r"\bkubectl\b|\boc\b|\.ya?ml\b")),
    ("unit", re.compile(r"\.(service|container)\b")),
    ("dockerfile", re.compile(r"\b(Docker|Container)file\b|\bdocker\s+build\b")),
    ("script", re.compile(r"\b(ba|z|k|da|s)?sh\b|\b(sbatch|srun)\b")),
)
"""What a command or a file's name makes of a here-document, the first that fits."""
_HEREDOC = re.compile(r"(?<!<)<<-?[ \t]*(?:'([^'\n]{1,200})'|\"([^\"\n]{1,200})\"|(\\?)([A-Za-z_]\w*))")
_EXPANDED = re.compile(rf"(?:{ESCAPE.pattern})|(?:{REFERENCE.pattern})")
_PASSING = frozenset({"cat", "envsubst"})
"""Commands that hand a here-document on through a pipe."""
_WRITTEN = re.compile(r"(?:>>?\|?|\btee\b(?:\s+-a)?)\s*[\"']?(?:[^\s\"'<>|&]*/)?([\w.${}-]+)")
_BLANKS = re.compile(r"\\[ \t]+\n")
_END_OF_COMMAND = re.compile(r";|&&|\|\|")


class HereDocument(NamedTuple):
    """A here-document: ``kind`` is "documents" (YAML), "unit", "dockerfile", "script" or "" for one that starts
    nothing, ``expanded`` whether the shell replaces the variables in it, ``file`` the name of the one it goes to.
    """

    kind: str
    text: Text
    expanded: bool
    file: str = ""

    def read(self, value: Callable[[str], str | None]) -> "HereDocument":
        """As the shell passes it on, which knows the ``value`` of some expansions; a script's are its own shell's."""
        if not self.expanded:
            return self
        if self.kind == "script":
            return self._replace(text=self.text.replaced(ESCAPE, lambda match: match[1]))
        return self._replace(
            text=self.text.replaced(
                _EXPANDED, lambda match: match[0][1:].strip() if match[0].startswith("\\") else value(match[0])
            )
        )


class Command(NamedTuple):
    """Words between operators: the one after them, all since the command before, and the here-documents."""

    words: list[Token]
    after: str
    before: tuple[str, ...] = ()
    documents: tuple[HereDocument, ...] = ()


class Definition(NamedTuple):
    """A function: its name and body, and the index of the command ``after`` it; 0 for one that is never closed."""

    name: str
    body: list[Command]
    after: int


class Script:
    """The commands of a text, redirections left out, and the here-documents of no command (inside ``$(...)``).

    Raises InputError for a script that no shell could split where ``telling`` finds a launch; ``errors`` are those
    elsewhere. Here-documents that ``named`` finds an engine in are kept.
    """

    def __init__(self, text: Text, named: re.Pattern[str], telling: re.Pattern[str]) -> None:
        self.text, documents = _without_documents(text, named)
        self.errors: list[InputError] = []
        self.commands = list(self._commands(documents, telling))
        self.loose = list(documents.values())

    def _commands(self, documents: dict[int, HereDocument], telling: re.Pattern[str]) -> Iterator[Command]:
        words: list[Token] = []
        before: list[str] = []
        held: list[HereDocument] = []
        redirected = False
        last = -1
        for token in split(self.text, telling, self.errors):
            if token.kind == "operator":
                redirected = "<" in token.text or ">" in token.text
                if redirected:
                    if words and token.end in documents:
                        held.append(documents.pop(token.end))
                    continue
                if words:
                    passed = held if token.text in ("|", "|&") and words[0].text in _PASSING else []
                    yield Command(words, token.text, tuple(before), () if passed else tuple(held))
                    words, before, held = [], [], passed
                if token.text == "(" and token.begin == last and before[-1:] == ["("]:
                    before.append("((")  # arithmetic, and no subshell in a subshell
                before.append(token.text)
                last = token.end
            elif token.kind != "comment":
                if not redirected:
                    words.append(token)
                redirected = False
        if words or before:
            yield Command(words, "", tuple(before), tuple(held))


def split(text: Text, telling: re.Pattern[str] | None, errors: list[InputError]) -> list[Token]:
    """The tokens of a script; line by line where something in it cannot be split as a whole (the first of ``errors``).

    Raises InputError for a line that cannot be split and in which ``telling`` finds a launch.
    """
    try:
        return tokens(text.text)
    except InputError as error:
        errors.append(error)
    found: list[Token] = []
    for match in re.finditer(r"(?:[^\\\n]|\\[ \t]*\n|\\.)+", text.text):
        start = match.start()
        try:
            line = tokens(match[0])
        except InputError as error:
            if telling is not None and telling.search(match[0]):
                raise text.source.error(text.at(start), error.message, error.fix) from None
            continue
        found += [token._replace(begin=token.begin + start, end=token.end + start) for token in line]
        found.append(Token(";", match.end(), match.end(), "operator"))
    return found


def cut_between(text: Text, before: Token, after: Token) -> bool:
    """Whether a line ends between two words: a backslash with blanks behind it continues none."""
    between = text.text[before.end : after.begin]
    found = _BLANKS.search(between) if "\\" in between else None
    if found is None:
        return False
    first, last = (text.at(before.end + at) for at in found.span())
    return "\r" not in text.source.text[first:last]


def definition_at(commands: Sequence[Command], at: int) -> Definition | None:
    """The function that a command defines; None for no function, or one whose body is not in braces."""
    words = commands[at].words
    following = commands[at + 1] if at + 1 < len(commands) else None
    if not words:
        return None
    if words[0].text == "function" and len(words) > 1:
        name, rest = words[1].text.removesuffix("()"), words[2:]
    elif FUNCTION.fullmatch(words[0].text):
        name, rest = words[0].text[:-2], words[1:]
    elif len(words) == 1 and following is not None and following.before[:2] == ("(", ")"):
        name, rest = words[0].text, []
    else:
        return None
    if not rest and following is not None:
        at, rest = at + 1, following.words
    if not rest or rest[0].text != "{":
        return None
    body: list[Command] = []
    depth = 0
    while at < len(commands):
        depth += _braces(rest)
        if depth <= 0:
            return Definition(name, body, at + 1)
        body.append(commands[at]._replace(words=rest) if body else commands[at]._replace(words=rest[1:], before=()))
        at += 1
        rest = commands[at].words if at < len(commands) else []
    return Definition(name, body, 0)


def _braces(words: list[Token]) -> int:
    """Braces that the words before a command open, less those they close."""
    count = 0
    for word in (token.text for token in words):
        if word not in GLUE and word not in ("if", "while", "until") and not FUNCTION.fullmatch(word):
            break
        count += (word == "{") - (word == "}")
    return count


def comments_in(text: Text, starts: Sequence[int], named: re.Pattern[str]) -> list[tuple[int, int]]:
    """Where the comments of a script stand in its file. A here-document that is written as a file, and a quoted text,
    count where one of the offsets ``starts`` lies in them: there a deployment was found.
    """
    read, documents = _without_documents(text, named)
    parts = [read]
    for document in documents.values():
        body = document.text
        within = any(body.at(0) <= start < body.end(len(body.text)) for start in starts)
        if document.kind == "script" or within:
            parts.append(body)
    return [place for part in parts for place in _comments(part, starts)]


def _comments(text: Text, starts: Sequence[int], depth: int = 0) -> Iterator[tuple[int, int]]:
    """The comments of one text, and of those in its arrays and quotes."""
    for _, begin, end, kind in split(text, None, []):
        raw = text.text[begin:end]
        if kind == "comment":
            yield text.at(begin), text.end(end)
        if "#" not in raw or depth > DEEPEST_TEXT or kind not in ("word", "live"):
            continue
        array = ASSIGNMENT.match(raw)
        if array is not None and raw[array.end() : array.end() + 1] == "(" and raw.endswith(")"):
            yield from _comments(text.part(begin + array.end() + 1, end - 1), starts, depth + 1)
        elif raw[:1] in ("'", '"') and any(text.at(begin) <= start < text.end(end) for start in starts):
            yield from _comments(text.part(begin + 1, end - 1), starts, depth + 1)


def _without_documents(text: Text, named: re.Pattern[str]) -> tuple[Text, dict[int, HereDocument]]:
    """A script with its here-documents blanked out, and those that may launch something, by where their operator ends;
    of several that one command takes it reads the last.
    """
    found: dict[int, HereDocument] = {}
    lines = RETURN.sub(" ", text.text).split("\n")
    ends: dict[str, list[int]] = {}
    offset, number = 0, 0
    while number < len(lines):
        opening = lines[number]
        matches = list(_HEREDOC.finditer(opening)) if not opening.lstrip().startswith("#") else []
        start = offset
        offset += len(opening) + 1
        number += 1
        for match, following in zip(matches, [*matches[1:], None][: len(matches)], strict=True):
            if not ends:
                for index, line in enumerate(lines):
                    ends.setdefault(line.strip(), []).append(index)
            later = ends.get((match[1] or match[2] or match[4]).strip(), [])
            place = bisect_left(later, number)
            if place == len(later):  # it was no here-document
                continue
            end = later[place]
            body = "\n".join(lines[number:end])
            begin = max((m.end() for m in _END_OF_COMMAND.finditer(opening, 0, match.start())), default=0)
            until = _END_OF_COMMAND.search(opening, match.end())
            command = opening[begin : until.start() if until is not None else len(opening)]
            read = following is None or (until is not None and until.start() < following.start())
            kind = _kind(command, body) if read and named.search(body) else ""
            if kind:
                held = text.part(offset, offset + len(body))
                expanded = match[4] is not None and not match[3]
                target = _WRITTEN.search(command)
                file = target[1] if target is not None else ""
                found[start + match.start() + 2] = HereDocument(kind, held, expanded, file)
            for index in range(number, end + 1):
                offset += len(lines[index]) + 1
                lines[index] = " " * len(lines[index])
            number = end + 1
    return Text(text.source, "\n".join(lines), text.base, text.spots), found


def _kind(command: str, body: str) -> str:
    named = next((kind for kind, pattern in _KINDS if pattern.search(command)), "")
    return named or ("script" if re.match(r"#!.*sh\b", body) else "")
