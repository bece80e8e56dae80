r"""Which engines does a shell script launch, with which words? Read as bash would, and never run.

    TP=8; ARGS=(--tp "$TP"); exec python3 -m sglang.launch_server "${ARGS[@]}"   ->   sglang  --tp 8

Simple assignments, literal arrays, ``${X:-default}``, whole-number arithmetic, functions, ``eval``, ``bash -c`` and
here-documents are followed. A variable that a condition, a loop or another program sets, or that comes from outside,
stays `Unknown`: no branch is guessed. Left out: pattern substitution, sourced files.
"""

import re
from collections.abc import Mapping, Sequence

from hybridcalc.errors import InputError
from hybridcalc.manifests.commands import (
    ASSIGNMENT,
    FUNCTION,
    GLUE,
    Command,
    PlacedWord,
    commands_of,
    comments_of,
    definition_at,
)
from hybridcalc.manifests.expansion import Expansion
from hybridcalc.manifests.growth import allowance, spend
from hybridcalc.manifests.heredocs import ESCAPE, HereDocument, without_documents
from hybridcalc.manifests.launches import ENGINE_FLAGS, HANDING_ON, Found, find_launch
from hybridcalc.manifests.nested import SCRIPT_OPTION, SHELLS, handed_on, is_command_line, nested_script, takes_script
from hybridcalc.manifests.scopes import APART, Scopes
from hybridcalc.manifests.source import AnyWord, Setting, Text, Unknown
from hybridcalc.manifests.variables import FROM_CALLER, REFERENCE, Outside, Variables
from hybridcalc.shell.parse import is_unresolved, substitutions

MOST_LAUNCHES = 2_000
DEEPEST_SHELL = 4
DEEPEST_CALLS = 20
"""Functions that call functions."""
CALL_WORDS = 10
"""Words that a call counts for."""
LONGEST_SCRIPT = 256 * 1024
"""Characters of a script; long ones that are launched have some 30,000."""
_OPENING = {"if": "if", "while": "loop", "until": "loop", "for": "loop", "select": "loop", "case": "case"}
_CLOSING = {"fi", "done", "esac"}
_EXPANDED = re.compile(rf"(?:{ESCAPE.pattern})|(?:{REFERENCE.pattern})")
_DECLARING = {"export", "declare", "typeset", "local", "readonly"}
_TESTS = {"[", "[[", "test", "command", "which", "grep", "type", "!", "((", "nvidia-smi"}
_CALCULATED = re.compile(r"([A-Za-z_]\w*)\s*(?:[-+*/%&|^]?=(?!=)|\+\+|--)|(?:\+\+|--)\s*([A-Za-z_]\w*)")
"""What ``((...))`` and ``let`` assign to."""


def read_script(
    text: Text, env: Mapping[str, Setting], outside: Outside, arguments: Sequence[AnyWord] = (), *, depth: int = 0
) -> list[Found]:
    """Every launch of a script, which starts under ``env`` with positional ``arguments``.

    Raises InputError for a script that no shell could split where the launcher stands.
    """
    with allowance():
        return _Shell(text, env, outside, arguments, depth).launches()


def files_in(text: Text, outside: Outside) -> list[HereDocument]:
    """The files that a script writes or applies from here-documents, their variables replaced where they are known."""
    if "<<" not in text.text:
        return []
    shell = _Shell(text, {}, outside, (), 0)
    files = [document for document in shell.documents if document.kind != "script"]
    if not files:
        return []

    def value(match: re.Match[str]) -> str | None:
        if match[0].startswith("\\"):
            return match[0][1:].strip()
        return shell.known.resolved(match[0])[0]

    with allowance():
        shell.launches()
        return [one._replace(text=one.text.replaced(_EXPANDED, value)) if one.expanded else one for one in files]


def comments_in(text: Text, starts: Sequence[int]) -> list[tuple[int, int]]:
    """Where the comments of a script stand in its file. A here-document that is written as a file, and a quoted text,
    count where one of the offsets ``starts`` lies in them: there a deployment was found.
    """
    read, documents = without_documents(text)
    parts = [read]
    for document in documents:
        body = document.text
        within = any(body.at(0) <= start < body.end(len(body.text)) for start in starts)
        if document.kind == "script" or within:
            parts.append(body)
    return [place for part in parts for place in comments_of(part, starts)]


class _Shell:
    """One script: its variables, and the scopes it is in."""

    def __init__(
        self, text: Text, env: Mapping[str, Setting], outside: Outside, arguments: Sequence[AnyWord], depth: int
    ) -> None:
        if len(text.text) > LONGEST_SCRIPT:
            raise InputError(f"a script of {len(text.text):,} characters is longer than {LONGEST_SCRIPT:,}")
        self.known = Variables(text, env, outside, arguments)
        self.depth = depth
        self.scopes = Scopes(self.known.values)
        self.functions: dict[str, list[Command]] = {}
        self.called: set[str] = set()
        self.unclosed = False
        self.found: list[Found] = []
        self.text, self.documents = without_documents(text)
        self.words = Expansion(self.text, self.known)

    def launches(self) -> list[Found]:
        self._execute(list(commands_of(self.text)))
        for document in self.documents:
            if document.kind == "script":
                body = document.text
                self._read_inside(body.replaced(ESCAPE, lambda match: match[1]) if document.expanded else body)
        for name, commands in list(self.functions.items()):  # who sources the script may call them
            said = (word for command in commands for word, _, _ in command.words)
            if name not in self.called and any("sglang" in word or "vllm" in word for word in said):
                before = self.scopes.changes
                self._call(name, (), chained=False)
                self.scopes.undo(before)
        return self.found

    def _add(self, launches: Sequence[Found]) -> None:
        self.found += launches
        if len(self.found) > MOST_LAUNCHES:
            raise InputError(f"more than {MOST_LAUNCHES:,} launches")

    def _execute(self, commands: list[Command]) -> None:
        """Commands one after the other. What a subshell, a part of a pipe or a background job sets, ends with it."""
        chained = False
        at = 0
        while at < len(commands):
            command = commands[at]
            at += 1
            calculated = "((" in command.before
            if calculated:
                self._calculated(command.words)
            for operator in command.before:
                if operator == ";;":
                    self.scopes.turn()
                self.scopes.bracket(operator)
            defined = None if self.unclosed or calculated else definition_at(commands, at - 1)
            if defined is not None and defined.after:
                self.functions[defined.name], at = defined.body, defined.after
                self.called.discard(defined.name)
                continue
            self.unclosed = self.unclosed or defined is not None
            if calculated or self._is_pattern(command):
                continue
            piped = command.before[-1:] in (("|",), ("|&",))
            before, blocks = self.scopes.changes, self.scopes.depth
            test = self._run(command, chained, piped)
            if (piped or command.after in APART) and self.scopes.depth == blocks:
                self.scopes.undo(before)
            chained = command.after == "||" or (test and command.after == "&&")

    def _is_pattern(self, command: Command) -> bool:
        return self.scopes.innermost() == "case" and len(command.words) == 1 and command.after in ("|", ")")

    def _calculated(self, words: list[PlacedWord]) -> None:
        for match in _CALCULATED.finditer(" ".join(word for word, _, _ in words)):
            self._unclear(match[1] or match[2], words[0][1], "arithmetic decides it")

    def _unclear(self, name: str, begin: int, why: str, *, maybe: bool = False) -> None:
        """A variable is set to something that nobody here works out."""
        self.scopes.assign(name, Setting((), why, self.words.place(begin)), maybe=maybe)

    def _call(self, name: str, arguments: Sequence[AnyWord], *, chained: bool) -> None:
        """Run a function's body; what it declares local ends with it."""
        self.called.add(name)
        if self.scopes.calls >= DEEPEST_CALLS or self.scopes.calling(name):
            return
        spend(words=CALL_WORDS)
        if all(isinstance(word, Unknown) and word.why == FROM_CALLER for word in arguments):
            arguments = ()
        outer, self.known.arguments = self.known.arguments, arguments
        self.scopes.call(name, chained=chained)
        self._execute(self.functions[name])
        self.scopes.back()
        self.known.arguments = outer

    def _run(self, command: Command, chained: bool, piped: bool) -> bool:
        """Take one command in; whether it was a test, so that what ``&&`` appends depends on it."""
        depth = self.scopes.depth
        words = self._enter(command, chained, piped)
        if not words:
            return chained and not command.words
        chained = chained and self.scopes.depth <= depth
        head = words[0][0]
        if head in _CLOSING:
            self.scopes.leave(command.after)
            return False
        self._substituted(words)
        if head in _DECLARING or ASSIGNMENT.match(head):
            rest = self._assign(words, chained)
            if not rest:
                return chained
            words = rest
        if head in ("read", "mapfile", "readarray", "getopts"):
            for word, begin, _ in words[1:]:
                if re.fullmatch(r"[A-Za-z_]\w*", word):
                    self._unclear(word, begin, f"{head} sets it")
            return chained
        if head == "let":
            self._calculated(words[1:])
        elif head == "printf" and len(words) > 2 and words[1][0] == "-v":
            self._unclear(words[2][0], words[2][1], "printf sets it")
        elif head == "unset":
            self._unset(words[1:], chained)
        elif head == "shift":
            count = words[1][0] if len(words) > 1 else "1"
            known = not chained and not self.scopes.conditions and count.isdecimal() and len(count) < 4
            self.known.arguments = self.known.arguments[int(count) :] if known else ()
        elif head in self.functions:
            arguments = [item for word, begin, end in words[1:] for item in self.words.expand(word, begin, end)]
            self._call(head, arguments, chained=chained)
        else:
            self._launch(words, command.after)
        return chained or head in _TESTS or head.startswith(("[", "((")) or head == "!"

    def _substituted(self, words: list[PlacedWord]) -> None:
        """Launches inside ``$(...)``; a script for another shell expands its own."""
        head = words[0][0].rpartition("/")[2]
        if head == "eval" or head in HANDING_ON or any(SCRIPT_OPTION.fullmatch(word) for word, _, _ in words[1:-1]):
            return
        for word, begin, end in words:
            if is_unresolved(word) and ("sglang" in word or "vllm" in word):
                for first, last in substitutions(self.text.text[begin:end]):
                    part = self.text.part(begin + first, begin + last)
                    if "sglang" in part.text or "vllm" in part.text:
                        self._read_inside(part, self.known.arguments)

    def _unset(self, words: list[PlacedWord], chained: bool) -> None:
        if any(word == "-f" for word, _, _ in words):
            return
        for word, begin, _ in words:
            name = re.match(r"[A-Za-z_]\w*", word)
            if name is None:
                continue
            if chained or self.scopes.conditions or name[0] != word:
                self._unclear(name[0], begin, "an unset takes it away", maybe=chained)
                continue
            self.scopes.change(self.known.values, word, None)
            self.scopes.change(self.known.env, word, None)
            self.scopes.change(self.known.gone, word, True)

    def _enter(self, command: Command, chained: bool, piped: bool) -> list[PlacedWord]:
        """The command without the keywords before it, which open and close blocks."""
        words = command.words
        while words:
            head = words[0][0]
            if head in _OPENING:
                block = _OPENING[head]
                if block == "loop" and not self.known.arguments and any("$#" in word for word, _, _ in words):
                    block = "args"
                self.scopes.enter(block, piped=piped)
                if head in ("for", "select") and len(words) > 1:
                    self._unclear(words[1][0], words[1][1], "a loop sets it")
                    return []
                if head == "case":
                    return []
            elif head == "{":
                self.scopes.enter("group" if chained else "plain", piped=piped)
            elif head == "}":
                self.scopes.leave(command.after)
            elif head in ("else", "elif"):
                self.scopes.turn()
            elif head not in GLUE and not FUNCTION.fullmatch(head):
                break
            words = words[1:]
        return words

    def _assign(self, words: list[PlacedWord], chained: bool) -> list[PlacedWord]:
        """Take the assignments at the front of a command in; what is left where they stand before a command."""
        declaring = words[0][0] in _DECLARING
        exports = words[0][0] == "export" or (declaring and any(word == "-x" for word, _, _ in words[1:3]))
        rest = words[1:] if declaring else words
        pairs: list[tuple[str, Setting, bool]] = []
        while rest:
            word, begin, end = rest[0]
            match = ASSIGNMENT.match(word)
            if match is None:
                if not declaring:
                    break
                if exports and re.fullmatch(r"[A-Za-z_]\w*", word):
                    self.known.exports.add(word)
                rest = rest[1:]
                continue
            pairs.append((match[1], *self.words.value(word, begin, end, match)))
            rest = rest[1:]
        if rest and not declaring:
            return words  # they hold for this command alone: find_launch reads them
        ignored = self.scopes.within("args")
        for name, setting, appended in pairs:
            if ignored:
                continue
            if appended:
                setting = self.words.appended(name, setting)
            if exports:
                self.known.exports.add(name)
            if declaring and words[0][0] in ("local", "declare", "typeset"):
                self.scopes.localize(name)
            self.scopes.assign(name, setting, maybe=chained, appended=appended)
        return []

    def _is_orphan(self, words: list[PlacedWord], after: str) -> bool:
        """Whether a command is the flags of the launch before it, with no backslash between them."""
        head, begin, end = words[0]
        in_case = self.scopes.within("case") and after in ("|", ")")
        if not self.found or in_case or after == ")" or head.partition("=")[0] not in ENGINE_FLAGS:
            return False
        launch = self.found[-1]
        if launch.orphan is None and launch.place.path == self.text.source.path:
            self.found[-1] = launch._replace(orphan=self.words.word(head, begin, end))
        return True

    def _launch(self, words: list[PlacedWord], after: str) -> None:
        if self._is_orphan(words, after):
            return
        if words[0][0] == "eval":
            self._read_inside(self.words.joined(words[1:]), self.known.arguments)
            return
        expanded: list[AnyWord] = []
        for word, begin, end in words:
            inner = is_unresolved(word) and bool(expanded) and (takes_script(expanded) or is_command_line(word))
            expanded += [self.words.word(word, begin, end)] if inner else self.words.expand(word, begin, end)
        if not expanded or not _may_launch(expanded):
            return
        shell = nested_script(expanded)
        if shell is not None:
            self._read_inside(*shell)
            return
        launch = find_launch(expanded, self.known.exported())
        if launch is not None:
            self._add([launch])
            return
        for text in handed_on(expanded):
            self._read_inside(text)

    def _read_inside(self, script: Text, arguments: Sequence[AnyWord] = ()) -> None:
        """Read a script inside the script, which sees its variables."""
        spend(scripts=len(script.text))
        if self.depth < DEEPEST_SHELL:
            visible = self.known.visible()
            self._add(read_script(script, visible, self.known.outside, arguments, depth=self.depth + 1))


def _may_launch(words: Sequence[AnyWord]) -> bool:
    return any("sglang" in word or "vllm" in word or word.rpartition("/")[2] in SHELLS for word in words)
