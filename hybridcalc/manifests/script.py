r"""Which engines does a shell script launch, with which words? Read as bash would, and never run.

    TP=8; ARGS=(--tp "$TP"); exec python3 -m sglang.launch_server "${ARGS[@]}"   ->   sglang  --tp 8

Simple assignments, literal arrays, ``${X:-default}``, whole-number arithmetic, ``bash -c`` and here-documents are
followed. A variable that a condition, a loop or another program sets, or that comes from outside, stays `Unknown`:
no branch is guessed. Left out: pattern substitution, sourced files, ``eval``.
"""

import re
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from hybridcalc.errors import InputError
from hybridcalc.manifests.launches import Found, find_launch
from hybridcalc.manifests.source import AnyWord, Place, Setting, Text, Unknown, Word, matched
from hybridcalc.manifests.variables import LONGEST_VALUE, PARAMETER, REFERENCE, Outside, Variables
from hybridcalc.shell import Operator, is_unresolved, split_placed

MOST_LAUNCHES = 2_000
DEEPEST_SHELL = 4
MOST_EXPANSIONS = 200_000
"""Words one script may expand to: arrays of arrays must not grow without end."""

DEEPEST_BLOCKS = 50
LONGEST_SCRIPT = 256 * 1024
"""Characters of a script; long ones that are launched have some 30,000."""
UNCONDITIONAL = ("args", "plain")
"""Blocks that say nothing of whether their commands run: a loop over arguments that nobody gave, braces, functions."""
SHELLS = frozenset({"sh", "bash", "dash", "ash", "zsh"})
_OPENING = {"if": "if", "while": "loop", "until": "loop", "for": "loop", "select": "loop", "case": "case"}
_CLOSING = {"fi", "done", "esac"}
_GLUE = {"then", "else", "elif", "do", "!", "time", "{", "}", "function", "in"}
_DECLARING = {"export", "declare", "typeset", "local", "readonly"}
_TESTS = {"[", "[[", "test", "command", "which", "grep", "type", "!", "((", "nvidia-smi"}
_FUNCTION = re.compile(r"[A-Za-z_][\w-]*\(\)")
_ASSIGNMENT = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)(\[[^\]]*\])?(\+?)=")
_SCRIPT_OPTION = re.compile(r"-[a-zA-Z]*c[a-zA-Z]*")
_SHELL_DOCUMENT = re.compile(r"\b(ba|z|k|da)?sh\b")
"""A command that takes a here-document for a script, or a file that is named as one."""
_MANIFEST = re.compile(r"\bkubectl\b|\boc\b|\.ya?ml\b")
"""A command that takes a here-document for a Kubernetes manifest, or a file that is named as one."""
_HEREDOC = re.compile(r"(?<!<)<<-?[ \t]*(['\"\\]?)([A-Za-z_]\w*)\1")


def read_script(
    text: Text, env: Mapping[str, Setting], outside: Outside, arguments: Sequence[AnyWord] = (), *, depth: int = 0
) -> list[Found]:
    """Every launch of a script, which starts under ``env`` with positional ``arguments``.

    Raises InputError for a script that no shell could split where the launcher stands.
    """
    return _Shell(text, env, outside, arguments, depth).launches()


def manifests_in(text: Text, outside: Outside) -> list[Text]:
    """The manifests that a script applies from here-documents, their variables replaced where they are known."""
    if "<<" not in text.text:
        return []
    shell = _Shell(text, {}, outside, (), 0)
    if not shell.manifests:
        return []
    shell.launches()

    def value(match: re.Match[str]) -> str | None:
        return shell.known.resolved(match[0])[0]

    return [body.replaced(REFERENCE, value) if expanded else body for body, expanded in shell.manifests]


class _Command(NamedTuple):
    words: list[tuple[str, int, int]]
    after: str


class _Shell:
    """One script: its variables, and in which blocks it is."""

    def __init__(
        self, text: Text, env: Mapping[str, Setting], outside: Outside, arguments: Sequence[AnyWord], depth: int
    ) -> None:
        if len(text.text) > LONGEST_SCRIPT:
            raise InputError(f"a script of {len(text.text):,} characters is longer than {LONGEST_SCRIPT:,}")
        self.known = Variables(text, env, outside, arguments)
        self.depth = depth
        self.blocks: list[str] = []
        self.conditions = 0
        self.found: list[Found] = []
        self.expanded = 0
        self.inner: list[Text] = []
        self.manifests: list[tuple[Text, bool]] = []
        self.text = self._without_documents(text)

    def launches(self) -> list[Found]:
        chained = False
        for command in self._commands():
            chained = self._run(command.words, chained) and command.after in ("&&", "||")
            if command.after == "||":
                chained = True
        for body in self.inner:
            if self.depth < DEEPEST_SHELL:
                self.found += read_script(body, self.known.visible(), self.known.outside, depth=self.depth + 1)
        if len(self.found) > MOST_LAUNCHES:
            raise InputError(f"more than {MOST_LAUNCHES:,} launches")
        return self.found

    def _without_documents(self, text: Text) -> Text:
        """The script with its here-documents blanked out; those that launch something are read on their own."""
        content = text.text.replace("\r\n", " \n")
        lines = content.split("\n")
        ends: dict[str, list[int]] = {}
        offset, number = 0, 0
        while number < len(lines):
            opening = lines[number]
            match = _HEREDOC.search(opening) if not opening.lstrip().startswith("#") else None
            offset += len(opening) + 1
            number += 1
            if match is None:
                continue
            if not ends:
                for index, line in enumerate(lines):
                    ends.setdefault(line.strip(), []).append(index)
            later = ends.get(match[2], [])
            end = next(iter(later[bisect_left(later, number) :][:1]), None)
            if end is None:  # it was no here-document
                continue
            body = "\n".join(lines[number:end])
            if _MANIFEST.search(opening) and ("sglang" in body or "vllm" in body):
                self.manifests.append((text.part(offset, offset + len(body)), not match[1]))
            elif _SHELL_DOCUMENT.search(opening) and ("sglang" in body or "vllm" in body):
                self.inner.append(text.part(offset, offset + len(body)))
            for index in range(number, end + 1):
                offset += len(lines[index]) + 1
                lines[index] = " " * len(lines[index])
            number = end + 1
        return Text(text.source, "\n".join(lines), text.base, text.spots)

    def _commands(self) -> Iterator[_Command]:
        words: list[tuple[str, int, int]] = []
        redirected = False
        for word, begin, end in self._split():
            if isinstance(word, Operator):
                redirected = "<" in word or ">" in word
                if redirected:
                    continue
                if words:
                    yield _Command(words, str(word))
                words = []
            elif redirected:
                redirected = False
            else:
                words.append((word, begin, end))
        if words:
            yield _Command(words, "")

    def _split(self) -> list[tuple[str, int, int]]:
        """The words of the script; line by line where something in it cannot be split as a whole."""
        try:
            return split_placed(self.text.text)
        except InputError:
            pass
        words: list[tuple[str, int, int]] = []
        for match in re.finditer(r"(?:[^\\\n]|\\[ \t]*\n|\\.)+", self.text.text):
            try:
                line = split_placed(match[0])
            except InputError as error:
                if "sglang" in match[0] or "vllm" in match[0]:
                    place = self.text.source.place(self.text.at(match.start()))
                    raise InputError(f"{place.path}:{place.line}: {error.message}", fix=error.fix) from None
                continue
            words += [(word, begin + match.start(), end + match.start()) for word, begin, end in line]
            words.append((Operator(";"), match.end(), match.end()))
        return words

    def _run(self, words: list[tuple[str, int, int]], chained: bool) -> bool:
        """Take one command in; whether it was a test, so that what ``&&`` appends depends on it."""
        words = self._enter(words, chained)
        if not words:
            return False
        head = words[0][0]
        if head in _CLOSING:
            self._close()
            return False
        conditional = chained or self.conditions > 0
        ignored = "args" in self.blocks[-DEEPEST_BLOCKS:]
        if head in _DECLARING or _ASSIGNMENT.match(head):
            rest = self._assign(words, conditional, ignored)
            if not rest:
                return chained
            words = rest
        if head in ("read", "mapfile", "readarray", "getopts"):
            for word, begin, _ in words[1:]:
                if re.fullmatch(r"[A-Za-z_]\w*", word):
                    self._set(word, Setting((), f"{head} sets it", self._place(begin)), False)
            return chained
        self._launch(words)
        return chained or head in _TESTS or head.startswith(("[", "((")) or head == "!"

    def _open(self, block: str) -> None:
        self.blocks.append(block)
        self.conditions += block not in UNCONDITIONAL

    def _close(self) -> None:
        if self.blocks:
            self.conditions -= self.blocks.pop() not in UNCONDITIONAL

    def _enter(self, words: list[tuple[str, int, int]], chained: bool) -> list[tuple[str, int, int]]:
        """The command without the keywords before it, which open and close blocks."""
        while words:
            head = words[0][0]
            if head in _OPENING:
                block = _OPENING[head]
                if block == "loop" and any("$#" in word for word, _, _ in words):
                    block = "args"
                self._open(block)
                if head in ("for", "select") and len(words) > 1:
                    self._set(words[1][0], Setting((), "a loop sets it", self._place(words[1][1])), False)
                    return []
                if head == "case":
                    return []
            elif head == "{":
                self._open("group" if chained else "plain")
            elif head == "}":
                self._close()
            elif head not in _GLUE and not _FUNCTION.fullmatch(head):
                break
            words = words[1:]
        return words

    def _assign(
        self, words: list[tuple[str, int, int]], conditional: bool, ignored: bool
    ) -> list[tuple[str, int, int]]:
        """Take the assignments at the front of a command in; what is left where they stand before a command."""
        declaring = words[0][0] in _DECLARING
        exports = words[0][0] == "export" or (declaring and any(word == "-x" for word, _, _ in words[1:3]))
        rest = words[1:] if declaring else words
        pairs: list[tuple[str, Setting, bool]] = []
        while rest:
            word, begin, end = rest[0]
            match = _ASSIGNMENT.match(word)
            if match is None:
                if not declaring:
                    break
                if exports and re.fullmatch(r"[A-Za-z_]\w*", word):
                    self.known.exports.add(word)
                rest = rest[1:]
                continue
            pairs.append((match[1], self._value(word, begin, end, match), bool(match[3])))
            rest = rest[1:]
        if rest and not declaring:
            return words  # they hold for this command alone: find_launch reads them
        for name, setting, appended in pairs:
            if ignored:
                continue
            if appended:
                setting = self._appended(name, setting)
            if exports:
                self.known.exports.add(name)
            self._set(name, setting, conditional)
        return []

    def _value(self, word: str, begin: int, end: int, match: re.Match[str]) -> Setting:
        raw = self.text.text[begin:end]
        if match[2]:
            return Setting((), f"{match[1]} is set item by item", self._place(begin))
        start = begin + match.end()
        place = self.text.source.place(self.text.at(start), self.text.end(end))
        if raw[match.end() : match.end() + 1] == "(" and raw.endswith(")"):
            items: list[AnyWord] = []
            inner = self.text.text[start + 1 : end - 1]
            for item, left, right in split_placed(inner):
                if not isinstance(item, Operator):
                    items += self._expand(item, start + 1 + left, start + 1 + right)
            return Setting(tuple(items), "", place, array=True)
        value = word[match.end() :]
        if not is_unresolved(word):
            return Setting((self._word(value, start, end),), "", place)
        text, why = self.known.resolved(value)
        if text is None:
            return Setting((), why, place)
        return Setting((self._word(text, start, end),), "", place)

    def _appended(self, name: str, more: Setting) -> Setting:
        before = self.known.lookup(name)
        if before.why or more.why:
            return more._replace(words=(), why=before.why or more.why) if name in self.known.values else more
        if before.array or more.array:
            return Setting(before.words + more.words, "", more.place, array=True)
        if before.text is None or more.text is None:
            return Setting((), before.reason or more.reason, more.place)
        joined = f"{before.text}{more.text}"
        word = more.words[0] if more.words else None
        if word is None or len(joined) > LONGEST_VALUE:
            return Setting((), "its value grows too long", more.place)
        return Setting((Word(joined, word.source, word.begin, word.end),), "", more.place)

    def _set(self, name: str, setting: Setting, conditional: bool) -> None:
        if conditional:
            line = setting.place.line if setting.place else 0
            setting = Setting((), f"a condition sets it (line {line})", setting.place)
        self.known.values[name] = setting

    def _launch(self, words: list[tuple[str, int, int]]) -> None:
        expanded: list[AnyWord] = []
        for word, begin, end in words:
            inner = is_unresolved(word) and len(expanded) > 1 and _takes_script(expanded)
            expanded += [self._word(word, begin, end)] if inner else self._expand(word, begin, end)
        if not expanded or not _may_launch(expanded):
            return
        visible = self.known.visible()
        shell = nested_script(expanded)
        if shell is not None and self.depth < DEEPEST_SHELL:
            script, arguments = shell
            self.found += read_script(script, visible, self.known.outside, arguments, depth=self.depth + 1)
            return
        launch = find_launch(expanded, self.known.exported())
        if launch is not None:
            self.found.append(launch)

    def _word(self, text: str, begin: int, end: int) -> Word:
        raw = self.text.text[begin:end]
        quoted = len(raw) > 1 and raw[0] == raw[-1] and raw[0] in "'\""
        shift = 1 if quoted else 0
        chars = self.text.part(begin + shift, end - shift)
        return Word(
            text, self.text.source, self.text.at(begin + shift), self.text.end(end - shift),
            chars if chars.text == text else matched(chars, text),
        )  # fmt: skip

    def _unknown(self, text: str, begin: int, end: int, why: str) -> Unknown:
        return Unknown(text, self.text.source, self.text.at(begin), self.text.end(end), why)

    def _place(self, begin: int) -> Place:
        return self.text.source.place(self.text.at(begin))

    def _expand(self, word: str, begin: int, end: int) -> list[AnyWord]:
        """A word as the words it becomes."""
        self.expanded += 1
        if self.expanded > MOST_EXPANSIONS:
            raise InputError(f"its words and arrays come to more than {MOST_EXPANSIONS:,} words")
        if not is_unresolved(word):
            return [self._word(word, begin, end)]
        array = self._array(word, begin, end)
        if array is not None:
            self.expanded += len(array)
            return array
        text, why = self.known.resolved(word)
        raw = self.text.text[begin:end]
        if text is None:
            return [self._unknown(word, begin, end, why)]
        written = self._written(word)
        at, until = self.text.at(begin), self.text.end(end)
        source = self.text.source
        if '"' not in raw and "'" not in raw and (len(text.split()) != 1 or text != text.strip()):
            return [Word(part, source, at, until) for part in text.split()]
        return [Word(text, source, at, until, None, written.place if written is not None else None)]

    def _array(self, word: str, begin: int, end: int) -> list[AnyWord] | None:
        """The items of ``${NAME[@]}`` or ``$@``; None where the word is neither."""
        match = REFERENCE.fullmatch(word) or re.match(r"()\$\{([^{}]*)", word)
        if match is None:
            return None
        parameter = PARAMETER.match(match[1] or match[2] or "")
        if parameter is None or not (parameter[2] or parameter[1] in ("@", "*")):
            return None
        if REFERENCE.fullmatch(word) is None and parameter[3] is None:
            return None
        name = parameter[1]
        if name in ("@", "*"):
            if self.known.arguments and not parameter[5]:
                return list(self.known.arguments)
            return [self._unknown(word, begin, end, "the script is started with it")]
        setting = self.known.lookup(name)
        if setting.why:
            return [self._unknown(word, begin, end, setting.why)]
        if not setting.array:
            return (
                [self._unknown(word, begin, end, setting.reason)]
                if setting.text is None
                else [
                    Word(part, self.text.source, self.text.at(begin), self.text.end(end))
                    for part in setting.text.split()
                ]
            )
        return list(setting.words)

    def _written(self, word: str) -> Word | None:
        """The literal a word's whole text comes from, where a variable holds it."""
        match = REFERENCE.fullmatch(word)
        name = (match[1] or match[2]) if match is not None else None
        setting = self.known.known(name) if name else None
        first = setting.words[0] if setting is not None and len(setting.words) == 1 else None
        return first if isinstance(first, Word) else None


def nested_script(words: Sequence[AnyWord]) -> tuple[Text, list[AnyWord]] | None:
    """The script of ``bash -c SCRIPT NAME ARGUMENTS...``, wherever it stands in a command; None without one."""
    for at, word in enumerate(words):
        if isinstance(word, Unknown) or word.rpartition("/")[2] not in SHELLS:
            continue
        option = at + 1
        while option < len(words) and words[option].startswith(("-", "+")):
            letters = words[option]
            if _SCRIPT_OPTION.fullmatch(letters) and option + 1 < len(words):
                script = words[option + 1]
                chars = script.chars if isinstance(script, Word) else None
                text = chars or Text(script.source, str(script), script.begin, [script.begin] * len(script))
                return text, list(words[option + 3 :])
            option += 2 if letters in ("-o", "+o", "-O") else 1
    return None


def _takes_script(words: Sequence[AnyWord]) -> bool:
    """Whether the next word is a script: the shell that reads it expands it, with the same variables."""
    return _SCRIPT_OPTION.fullmatch(words[-1]) is not None and any(w.rpartition("/")[2] in SHELLS for w in words[:-1])


def _may_launch(words: Sequence[AnyWord]) -> bool:
    return any("sglang" in word or "vllm" in word or word.rpartition("/")[2] in SHELLS for word in words)
