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
from hybridcalc.manifests.fields import RETURN
from hybridcalc.manifests.growth import allowance, spend
from hybridcalc.manifests.launches import Found, find_launch
from hybridcalc.manifests.source import AnyWord, Place, Setting, Text, Unknown, Word, matched
from hybridcalc.manifests.variables import LONGEST_VALUE, PARAMETER, REFERENCE, Outside, Variables
from hybridcalc.shell import Operator, is_unresolved, split_placed, substitutions

MOST_LAUNCHES = 2_000
DEEPEST_SHELL = 4
DEEPEST_BLOCKS = 50
DEEPEST_CALLS = 20
"""Functions that call functions."""
CALL_WORDS = 10
"""Words that a call counts for."""
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
_HEREDOC = re.compile(r"(?<!<)<<-?[ \t]*(?:'([^'\n]{1,200})'|\"([^\"\n]{1,200})\"|(\\?)([A-Za-z_]\w*))")
_END_OF_COMMAND = re.compile(r";|&&|\|\|")
_PIPES = ("|", "|&")
_CALCULATED = re.compile(r"([A-Za-z_]\w*)\s*(?:[-+*/%&|^]?=(?!=)|\+\+|--)|(?:\+\+|--)\s*([A-Za-z_]\w*)")
"""What ``((...))`` and ``let`` assign to."""
_FROM_CALLER = "the script is started with it"


def read_script(
    text: Text, env: Mapping[str, Setting], outside: Outside, arguments: Sequence[AnyWord] = (), *, depth: int = 0
) -> list[Found]:
    """Every launch of a script, which starts under ``env`` with positional ``arguments``.

    Raises InputError for a script that no shell could split where the launcher stands.
    """
    with allowance():
        return _Shell(text, env, outside, arguments, depth).launches()


def manifests_in(text: Text, outside: Outside) -> list[Text]:
    """The manifests that a script applies from here-documents, their variables replaced where they are known."""
    if "<<" not in text.text:
        return []
    shell = _Shell(text, {}, outside, (), 0)
    if not shell.manifests:
        return []
    with allowance():
        shell.launches()

    def value(match: re.Match[str]) -> str | None:
        return shell.known.resolved(match[0])[0]

    return [body.replaced(REFERENCE, value) if expanded else body for body, expanded in shell.manifests]


def comments_in(text: Text, starts: Sequence[int]) -> list[tuple[int, int]]:
    """Where the comments of a script stand in its file. A quoted text is a script too where one of the offsets
    ``starts`` lies in it: there a deployment was found.
    """
    try:
        shell = _Shell(text, {}, Outside({}), (), 0)
    except InputError:
        return []
    applied = (
        body for body, _ in shell.manifests if any(body.at(0) <= start < body.end(len(body.text)) for start in starts)
    )
    return [place for part in (shell.text, *shell.inner, *applied) for place in _comments(part, starts, 0)]


def _comments(text: Text, starts: Sequence[int], depth: int) -> Iterator[tuple[int, int]]:
    comments: list[tuple[int, int]] = []
    for word, begin, end in _split(text, comments):
        raw = text.text[begin:end]
        if "#" not in raw or depth > DEEPEST_SHELL or isinstance(word, Operator):
            continue
        array = _ASSIGNMENT.match(raw)
        if array is not None and raw[array.end() : array.end() + 1] == "(" and raw.endswith(")"):
            yield from _comments(text.part(begin + array.end() + 1, end - 1), starts, depth + 1)
        elif raw[:1] in ("'", '"') and any(text.at(begin) <= start < text.end(end) for start in starts):
            yield from _comments(text.part(begin + 1, end - 1), starts, depth + 1)
    yield from ((text.at(begin), text.end(end)) for begin, end in comments)


class _Command(NamedTuple):
    """Words between operators: the one after them, and all since the command before."""

    words: list[tuple[str, int, int]]
    after: str
    before: tuple[str, ...] = ()


class _Block(NamedTuple):
    """A block that is open: its kind, and the changes made before it; ``piped``, all after them are its own."""

    kind: str
    changes: int
    piped: bool


class _Shell:
    """One script: its variables, and in which blocks it is."""

    def __init__(
        self, text: Text, env: Mapping[str, Setting], outside: Outside, arguments: Sequence[AnyWord], depth: int
    ) -> None:
        if len(text.text) > LONGEST_SCRIPT:
            raise InputError(f"a script of {len(text.text):,} characters is longer than {LONGEST_SCRIPT:,}")
        self.known = Variables(text, env, outside, arguments)
        self.depth = depth
        self.blocks: list[_Block] = []
        self.conditions = 0
        self.changes: list[tuple[dict[str, Setting], str, Setting | None]] = []
        self.subshells: list[tuple[int, int]] = []
        self.functions: dict[str, list[_Command]] = {}
        self.called: set[str] = set()
        self.active: list[tuple[str, dict[str, Setting | None]]] = []
        self.unclosed = False
        self.found: list[Found] = []
        self.inner: list[Text] = []
        self.manifests: list[tuple[Text, bool]] = []
        self.text = self._without_documents(text)

    def launches(self) -> list[Found]:
        self._execute(list(self._commands()))
        for body in self.inner:
            if self.depth < DEEPEST_SHELL:
                self._add(read_script(body, self.known.visible(), self.known.outside, depth=self.depth + 1))
        for name, commands in list(self.functions.items()):  # who sources the script may call them
            said = (word for command in commands for word, _, _ in command.words)
            if name not in self.called and any("sglang" in word or "vllm" in word for word in said):
                before = len(self.changes)
                self._call(name, (), chained=False)
                self._undo(before)
        return self.found

    def _add(self, launches: Sequence[Found]) -> None:
        self.found += launches
        if len(self.found) > MOST_LAUNCHES:
            raise InputError(f"more than {MOST_LAUNCHES:,} launches")

    def _execute(self, commands: list[_Command]) -> None:
        """Commands one after the other. What a subshell, a part of a pipe or a background job sets, ends with it."""
        chained = False
        at = 0
        while at < len(commands):
            command = commands[at]
            at += 1
            calculated = "((" in command.before
            if calculated:
                self._calculated(command.words)
            self._brackets(command.before)
            defined = None if self.unclosed or calculated else self._defined(commands, at - 1)
            if defined is not None:
                name, self.functions[name], at = defined
                self.called.discard(name)
                continue
            if calculated or self._is_pattern(command):
                continue
            piped = command.before[-1:] in (("|",), ("|&",))
            before, blocks = len(self.changes), len(self.blocks)
            test = self._run(command, chained, piped)
            if (piped or command.after in (*_PIPES, "&")) and len(self.blocks) == blocks:
                self._undo(before)
            chained = command.after == "||" or (test and command.after == "&&")

    def _brackets(self, operators: tuple[str, ...]) -> None:
        """Enter and leave subshells; the bracket after the pattern of a ``case`` closes none."""
        for operator in operators:
            if operator == "(":
                self.subshells.append((len(self.changes), len(self.blocks)))
            elif operator == ")" and self.subshells and self.subshells[-1][1] == len(self.blocks):
                self._undo(self.subshells.pop()[0])

    def _is_pattern(self, command: _Command) -> bool:
        in_case = bool(self.blocks) and self.blocks[-1].kind == "case"
        return in_case and len(command.words) == 1 and command.after in ("|", ")")

    def _calculated(self, words: list[tuple[str, int, int]]) -> None:
        for match in _CALCULATED.finditer(" ".join(word for word, _, _ in words)):
            self._set(match[1] or match[2], Setting((), "arithmetic decides it", self._place(words[0][1])), False)

    def _undo(self, count: int) -> None:
        """Take back all changes to variables but the first ``count``."""
        while len(self.changes) > count:
            table, name, before = self.changes.pop()
            if before is None:
                table.pop(name, None)
            else:
                table[name] = before

    def _defined(self, commands: list[_Command], at: int) -> tuple[str, list[_Command], int] | None:
        """The function that a command defines: its name, its body, and where the commands go on; None for no function,
        or one whose body is not in braces.
        """
        words = commands[at].words
        following = commands[at + 1] if at + 1 < len(commands) else None
        if not words:
            return None
        if words[0][0] == "function" and len(words) > 1:
            name, rest = words[1][0].removesuffix("()"), words[2:]
        elif _FUNCTION.fullmatch(words[0][0]):
            name, rest = words[0][0][:-2], words[1:]
        elif len(words) == 1 and following is not None and following.before[:2] == ("(", ")"):
            name, rest = words[0][0], []
        else:
            return None
        if not rest and following is not None:
            at, rest = at + 1, following.words
        if not rest or rest[0][0] != "{":
            return None
        body: list[_Command] = []
        depth = 0
        while at < len(commands):
            depth += _braces(rest)
            if depth <= 0:
                return name, body, at + 1
            body.append(commands[at]._replace(words=rest) if body else _Command(rest[1:], commands[at].after))
            at += 1
            rest = commands[at].words if at < len(commands) else []
        self.unclosed = True
        return None

    def _call(self, name: str, arguments: Sequence[AnyWord], *, chained: bool) -> None:
        """Run a function's body; what it declares local ends with it."""
        self.called.add(name)
        if len(self.active) >= DEEPEST_CALLS or any(name == running for running, _ in self.active):
            return
        spend(words=CALL_WORDS)
        if all(isinstance(word, Unknown) and word.why == _FROM_CALLER for word in arguments):
            arguments = ()
        outer, self.known.arguments = self.known.arguments, arguments
        height, subshells, local = len(self.blocks), len(self.subshells), dict[str, Setting | None]()
        self.active.append((name, local))
        self._open("group" if chained else "plain", piped=False)
        self._execute(self.functions[name])
        while len(self.blocks) > height:
            self._close("")
        del self.subshells[subshells:]
        self.active.pop()
        self.known.arguments = outer
        for own, before in local.items():
            self._change(self.known.values, own, before)

    def _change(self, table: dict[str, Setting], name: str, setting: Setting | None) -> None:
        self.changes.append((table, name, table.get(name)))
        if setting is None:
            table.pop(name, None)
        else:
            table[name] = setting

    def _without_documents(self, text: Text) -> Text:
        """The script with its here-documents blanked out; those that launch something are read on their own."""
        content = RETURN.sub(" ", text.text)
        lines = content.split("\n")
        ends: dict[str, list[int]] = {}
        offset, number = 0, 0
        while number < len(lines):
            opening = lines[number]
            matches = list(_HEREDOC.finditer(opening)) if not opening.lstrip().startswith("#") else []
            offset += len(opening) + 1
            number += 1
            for match, following in zip(matches, [*matches[1:], None][: len(matches)], strict=True):
                if not ends:
                    for index, line in enumerate(lines):
                        ends.setdefault(line.strip(), []).append(index)
                later = ends.get((match[1] or match[2] or match[4]).strip(), [])
                found = bisect_left(later, number)
                if found == len(later):  # it was no here-document
                    continue
                end = later[found]
                body = "\n".join(lines[number:end])
                begin = max((m.end() for m in _END_OF_COMMAND.finditer(opening, 0, match.start())), default=0)
                until = _END_OF_COMMAND.search(opening, match.end())
                command = opening[begin : until.start() if until is not None else len(opening)]
                read = following is None or (until is not None and until.start() < following.start())
                if read and _MANIFEST.search(command) and ("sglang" in body or "vllm" in body):
                    self.manifests.append(
                        (text.part(offset, offset + len(body)), match[4] is not None and not match[3])
                    )
                elif read and _SHELL_DOCUMENT.search(command) and ("sglang" in body or "vllm" in body):
                    self.inner.append(text.part(offset, offset + len(body)))
                for index in range(number, end + 1):
                    offset += len(lines[index]) + 1
                    lines[index] = " " * len(lines[index])
                number = end + 1
        return Text(text.source, "\n".join(lines), text.base, text.spots)

    def _commands(self) -> Iterator[_Command]:
        words: list[tuple[str, int, int]] = []
        before: list[str] = []
        redirected = False
        last = -1
        for word, begin, end in _split(self.text):
            if isinstance(word, Operator):
                redirected = "<" in word or ">" in word
                if redirected:
                    continue
                if words:
                    yield _Command(words, str(word), tuple(before))
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
            yield _Command(words, "", tuple(before))

    def _run(self, command: _Command, chained: bool, piped: bool) -> bool:
        """Take one command in; whether it was a test, so that what ``&&`` appends depends on it."""
        words = self._enter(command, chained, piped)
        if not words:
            return chained and not command.words
        head = words[0][0]
        if head in _CLOSING:
            self._close(command.after)
            return False
        conditional = chained or self.conditions > 0
        ignored = any(block.kind == "args" for block in self.blocks[-DEEPEST_BLOCKS:])
        self._substituted(words)
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
        if head == "let":
            self._calculated(words[1:])
        elif head == "printf" and len(words) > 2 and words[1][0] == "-v":
            self._set(words[2][0], Setting((), "printf sets it", self._place(words[2][1])), False)
        elif head == "unset":
            self._unset(words[1:], conditional)
        elif head == "shift":
            count = words[1][0] if len(words) > 1 else "1"
            known = not conditional and count.isdecimal() and len(count) < 4
            self.known.arguments = self.known.arguments[int(count) :] if known else ()
        elif head in self.functions:
            arguments = [item for word, begin, end in words[1:] for item in self._expand(word, begin, end)]
            self._call(head, arguments, chained=conditional)
        else:
            self._launch(words)
        return chained or head in _TESTS or head.startswith(("[", "((")) or head == "!"

    def _substituted(self, words: list[tuple[str, int, int]]) -> None:
        """Launches inside ``$(...)``; a script for another shell expands its own."""
        if self.depth >= DEEPEST_SHELL or any(_SCRIPT_OPTION.fullmatch(word) for word, _, _ in words[1:-1]):
            return
        for word, begin, end in words:
            if is_unresolved(word) and ("sglang" in word or "vllm" in word):
                for first, last in substitutions(self.text.text[begin:end]):
                    part = self.text.part(begin + first, begin + last)
                    if "sglang" in part.text or "vllm" in part.text:
                        visible = self.known.visible()
                        arguments = self.known.arguments
                        self._add(read_script(part, visible, self.known.outside, arguments, depth=self.depth + 1))

    def _unset(self, words: list[tuple[str, int, int]], conditional: bool) -> None:
        if any(word == "-f" for word, _, _ in words):
            return
        for word, begin, _ in words:
            name = re.match(r"[A-Za-z_]\w*", word)
            if name is None:
                continue
            if conditional or name[0] != word:
                self._set(name[0], Setting((), "an unset takes it away", self._place(begin)), conditional)
                continue
            self._change(self.known.values, word, None)
            self._change(self.known.env, word, None)
            self.known.gone.add(word)

    def _open(self, block: str, *, piped: bool) -> None:
        self.blocks.append(_Block(block, len(self.changes), piped))
        self.conditions += block not in UNCONDITIONAL

    def _close(self, after: str) -> None:
        if self.blocks:
            block = self.blocks.pop()
            self.conditions -= block.kind not in UNCONDITIONAL
            if block.piped or after in (*_PIPES, "&"):
                self._undo(block.changes)

    def _enter(self, command: _Command, chained: bool, piped: bool) -> list[tuple[str, int, int]]:
        """The command without the keywords before it, which open and close blocks."""
        words = command.words
        while words:
            head = words[0][0]
            if head in _OPENING:
                block = _OPENING[head]
                if block == "loop" and not self.known.arguments and any("$#" in word for word, _, _ in words):
                    block = "args"
                self._open(block, piped=piped)
                if head in ("for", "select") and len(words) > 1:
                    self._set(words[1][0], Setting((), "a loop sets it", self._place(words[1][1])), False)
                    return []
                if head == "case":
                    return []
            elif head == "{":
                self._open("group" if chained else "plain", piped=piped)
            elif head == "}":
                self._close(command.after)
            elif head not in _GLUE and not _FUNCTION.fullmatch(head):
                break
            words = words[1:]
        return words

    def _assign(
        self, words: list[tuple[str, int, int]], conditional: bool, ignored: bool
    ) -> list[tuple[str, int, int]]:
        """Take the assignments at the front of a command in; what is left where they stand before a command."""
        declaring = words[0][0] in _DECLARING
        local = declaring and words[0][0] in ("local", "declare", "typeset") and bool(self.active)
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
            if local:
                self.active[-1][1].setdefault(name, self.known.values.get(name))
            self._set(name, setting, conditional and not local)
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
        self._change(self.known.values, name, setting)

    def _launch(self, words: list[tuple[str, int, int]]) -> None:
        expanded: list[AnyWord] = []
        for word, begin, end in words:
            inner = is_unresolved(word) and len(expanded) > 1 and _takes_script(expanded)
            expanded += [self._word(word, begin, end)] if inner else self._expand(word, begin, end)
        if not expanded or not _may_launch(expanded):
            return
        shell = nested_script(expanded)
        if shell is not None and self.depth < DEEPEST_SHELL:
            visible = self.known.visible()
            script, arguments = shell
            self._add(read_script(script, visible, self.known.outside, arguments, depth=self.depth + 1))
            return
        launch = find_launch(expanded, self.known.exported())
        if launch is not None:
            self._add([launch])

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
        spend(words=1)
        if not is_unresolved(word):
            return [self._word(word, begin, end)]
        array = self._array(word, begin, end)
        if array is not None:
            spend(words=len(array))
            return array
        text, why = self.known.resolved(word)
        raw = self.text.text[begin:end]
        if text is None:
            return [self._unknown(word, begin, end, why)]
        written = self._written(word)
        at, until = self.text.at(begin), self.text.end(end)
        source = self.text.source
        if '"' not in raw and "'" not in raw and (len(text.split()) != 1 or text != text.strip()):
            parts = text.split()
            spend(words=len(parts))
            return [Word(part, source, at, until) for part in parts]
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
            return [self._unknown(word, begin, end, _FROM_CALLER)]
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


def _split(text: Text, comments: list[tuple[int, int]] | None = None) -> list[tuple[str, int, int]]:
    """The words of a script; line by line where something in it cannot be split as a whole."""
    try:
        return split_placed(text.text, comments)
    except InputError:
        if comments is not None:
            comments.clear()
    words: list[tuple[str, int, int]] = []
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


def _braces(words: list[tuple[str, int, int]]) -> int:
    """Braces that the words before a command open, less those they close."""
    count = 0
    for word, _, _ in words:
        if word not in _GLUE and word not in ("if", "while", "until") and not _FUNCTION.fullmatch(word):
            break
        count += (word == "{") - (word == "}")
    return count


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
