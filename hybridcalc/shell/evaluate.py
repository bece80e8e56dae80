r"""Which engines does a shell script launch, with which words? Read as bash would, and never run.

    TP=8; ARGS=(--tp "$TP"); exec python3 -m sglang.launch_server "${ARGS[@]}"   ->   sglang  --tp 8

A file's script and a pasted line are read alike. Simple assignments, literal arrays, ``${X:-default}``, whole-number
arithmetic, functions, ``eval``, ``bash -c`` and here-documents are followed. A variable that a condition, a loop or
another program sets, or that comes from outside, stays unknown: no branch is guessed. Left out: pattern substitution,
sourced files.
"""

import re
from collections.abc import Mapping, Sequence

from hybridcalc.errors import InputError, quoted
from hybridcalc.shell.bounds import allowance, spend
from hybridcalc.shell.commands import ASSIGNMENT, ESCAPE, FUNCTION, GLUE, Command, HereDocument, Script, definition_at
from hybridcalc.shell.launch import (
    HANDING_ON,
    SCRIPT_OPTION,
    Inner,
    Launch,
    Launchers,
    arguments_alone,
    takes_script,
    words_of,
)
from hybridcalc.shell.parse import LONGEST_SCRIPT, Token, placed, substitutions
from hybridcalc.shell.scopes import APART, Scopes
from hybridcalc.shell.source import Setting, Source, Text, Word, is_unresolved
from hybridcalc.shell.variables import FROM_CALLER, REFERENCE, Outside, Variables

MOST_LAUNCHES = 2_000
DEEPEST_SHELL = 4
DEEPEST_CALLS = 20
"""Functions that call functions."""
CALL_WORDS = 10
"""Words that a call counts for."""
_NAME = re.compile(r"[A-Za-z_]\w*")
_OPENING = {"if": "if", "while": "loop", "until": "loop", "for": "loop", "select": "loop", "case": "case"}
_CLOSING = {"fi", "done", "esac"}
_EXPANDED = re.compile(rf"(?:{ESCAPE.pattern})|(?:{REFERENCE.pattern})")
_DECLARING = {"export", "declare", "typeset", "local", "readonly"}
_TESTS = {"[", "[[", "test", "command", "which", "grep", "type", "!", "((", "nvidia-smi"}
_CALCULATED = re.compile(r"([A-Za-z_]\w*)\s*(?:[-+*/%&|^]?=(?!=)|\+\+|--)|(?:\+\+|--)\s*([A-Za-z_]\w*)")
"""What ``((...))`` and ``let`` assign to."""


def read_launch(line: str | Sequence[str], launchers: Launchers) -> Launch:
    """The one launch of a text that somebody pasted, or of an argument list that a shell has split already.

    Commands that start no engine are passed over; a command that begins with a flag is an engine's arguments alone.
    Raises InputError when nothing or more than one thing is launched.
    """
    source = Source("", line if isinstance(line, str) else " ".join(line))
    with allowance():
        shell = Shell(Text(source, line if isinstance(line, str) else ""), {}, {}, launchers)
        if isinstance(line, str):
            shell.run()
        else:
            shell.command(words_of(line))
    env = shell.variables.exported()
    bare = next((launch for words in shell.idle if (launch := arguments_alone(words, env)) is not None), None)
    if bare is not None and len(shell.launches) + len(shell.idle) > 1:
        message = f"{quoted(bare.words[0])} starts a command of its own"
        raise InputError(message, fix="end the line before it with a backslash")
    if len(shell.launches) > 1:
        raise InputError(f"{len(shell.launches)} launch commands are given", fix="give one of them")
    if shell.launches:
        return shell.launches[0]
    if bare is not None:
        return bare
    if shell.errors:
        raise shell.errors[0]
    fix = f"begin with {launchers.commands}"
    if not shell.idle:
        raise InputError("there is no launch command", fix=fix)
    if is_unresolved(shell.idle[0][0]):
        raise InputError(f"{quoted(shell.idle[0][0])} is a value the shell decides", fix="give it literally")
    raise InputError(f"{quoted(' '.join(shell.idle[0][:3]))} starts no engine known here", fix=fix)


class Shell:
    """One script as a shell would run it: its variables, the scopes it is in, and what came of it.

    ``launches`` are the engines it starts, ``files`` the here-documents that it writes or applies, their variables
    replaced where they are known, ``idle`` the commands that start no engine, and ``errors`` what could not be parsed.
    """

    def __init__(
        self,
        text: Text,
        env: Mapping[str, Setting],
        outside: Outside,
        launchers: Launchers,
        arguments: Sequence[Word] = (),
        *,
        depth: int = 0,
    ) -> None:
        if len(text.text) > LONGEST_SCRIPT:
            raise InputError(f"a script of {len(text.text):,} characters is longer than {LONGEST_SCRIPT:,}")
        self.launchers, self.depth = launchers, depth
        self.functions: dict[str, list[Command]] = {}
        self.called: set[str] = set()
        self.unclosed = False
        self.launches: list[Launch] = []
        self.files: list[HereDocument] = []
        self.idle: list[Sequence[Word]] = []
        self.script = Script(text, launchers.named)
        self.errors = self.script.errors
        self.text = self.script.text
        self.variables = Variables(self.text, env, outside, arguments)
        self.scopes = Scopes(self.variables.values)

    def run(self) -> None:
        """Go through the script. Raises InputError for one that grows beyond what is allowed."""
        self._execute(self.script.commands)
        for document in self.script.loose:
            self._document(document)
        for name, commands in list(self.functions.items()):  # who sources the script may call them
            if name not in self.called and any(self._speaks(command) for command in commands):
                before = self.scopes.changes
                self._call(name, (), chained=False)
                self.scopes.undo(before)

    def start(self, words: Sequence[Word]) -> bool:
        """Run a command, its words expanded; whether it starts an engine or a shell with a script."""
        started = self.launchers.find(words, self.variables.exported()) if self.launchers.may_start(words) else None
        if isinstance(started, Launch):
            self._add([started])
        elif started is not None:
            self._read_inside(started.script, started.arguments, started)
        return started is not None

    def command(self, words: Sequence[Word]) -> None:
        """Run a command, its words expanded, and the command lines that it hands on to a shell."""
        if not words:
            return
        count = len(self.launches)
        if not self.start(words):
            for text in self.launchers.handed_on(words):
                self._read_inside(text)
        if len(self.launches) == count:
            self.idle.append(words)

    def _speaks(self, command: Command) -> bool:
        """Whether a command or what it is given speaks of an engine."""
        return bool(command.documents) or any(self.launchers.named.search(token.text) for token in command.words)

    def _document(self, document: HereDocument) -> None:
        """Read the here-document of a command as a script, or keep it as a file."""
        body = document.text
        if document.kind == "script":
            self._read_inside(body.replaced(ESCAPE, lambda match: match[1]) if document.expanded else body)
        elif document.expanded:
            self.files.append(document._replace(text=body.replaced(_EXPANDED, self._escaped_or_known)))
        else:
            self.files.append(document)

    def _escaped_or_known(self, match: re.Match[str]) -> str | None:
        return match[0][1:].strip() if match[0].startswith("\\") else self.variables.resolved(match[0])[0]

    def _add(self, launches: Sequence[Launch]) -> None:
        self.launches += launches
        if len(self.launches) > MOST_LAUNCHES:
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
            for document in command.documents:
                self._document(document)
            if (piped or command.after in APART) and self.scopes.depth == blocks:
                self.scopes.undo(before)
            chained = command.after == "||" or (test and command.after == "&&")

    def _is_pattern(self, command: Command) -> bool:
        return self.scopes.innermost() == "case" and len(command.words) == 1 and command.after in ("|", ")")

    def _calculated(self, words: list[Token]) -> None:
        for match in _CALCULATED.finditer(" ".join(token.text for token in words)):
            self._unclear(match[1] or match[2], words[0], "arithmetic decides it")

    def _unclear(self, name: str, where: Token, why: str, *, maybe: bool = False) -> None:
        """A variable is set to something that nobody here works out."""
        self.scopes.assign(name, Setting((), why, self.variables.place(where.begin)), maybe=maybe)

    def _call(self, name: str, arguments: Sequence[Word], *, chained: bool) -> None:
        """Run a function's body; what it declares local ends with it."""
        self.called.add(name)
        if self.scopes.calls >= DEEPEST_CALLS or self.scopes.calling(name):
            return
        spend(words=CALL_WORDS)
        if all(word.why == FROM_CALLER for word in arguments):
            arguments = ()
        outer, self.variables.arguments = self.variables.arguments, arguments
        self.scopes.call(name, chained=chained)
        self._execute(self.functions[name])
        self.scopes.back()
        self.variables.arguments = outer

    def _run(self, command: Command, chained: bool, piped: bool) -> bool:
        """Take one command in; whether it was a test, so that what ``&&`` appends depends on it."""
        depth = self.scopes.depth
        words = self._enter(command, chained, piped)
        if not words:
            return chained and not command.words
        chained = chained and self.scopes.depth <= depth
        head = words[0].text
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
            for token in words[1:]:
                if _NAME.fullmatch(token.text):
                    self._unclear(token.text, token, f"{head} sets it")
            return chained
        if head == "let":
            self._calculated(words[1:])
        elif head == "printf" and len(words) > 2 and words[1].text == "-v":
            self._unclear(words[2].text, words[2], "printf sets it")
        elif head == "unset":
            self._unset(words[1:], chained)
        elif head == "shift":
            count = words[1].text if len(words) > 1 else "1"
            known = not chained and not self.scopes.conditions and count.isdecimal() and len(count) < 4
            self.variables.arguments = self.variables.arguments[int(count) :] if known else ()
        elif head in self.functions:
            arguments = [word for token in words[1:] for word in self.variables.expand(token)]
            self._call(head, arguments, chained=chained)
        else:
            self._simple(words, command.after)
        return chained or head in _TESTS or head.startswith(("[", "((")) or head == "!"

    def _substituted(self, words: list[Token]) -> None:
        """Launches inside ``$(...)``; a script for another shell expands its own."""
        head = words[0].text.rpartition("/")[2]
        if head == "eval" or head in HANDING_ON or any(SCRIPT_OPTION.fullmatch(token.text) for token in words[1:-1]):
            return
        for token in words:
            if token.kind == "live" and self.launchers.named.search(token.text):
                for first, last in substitutions(self.text.text[token.begin : token.end]):
                    part = self.text.part(token.begin + first, token.begin + last)
                    if self.launchers.named.search(part.text):
                        self._read_inside(part, self.variables.arguments)

    def _unset(self, words: list[Token], chained: bool) -> None:
        if any(token.text == "-f" for token in words):
            return
        for token in words:
            name = _NAME.match(token.text)
            if name is None:
                continue
            if chained or self.scopes.conditions or name[0] != token.text:
                self._unclear(name[0], token, "an unset takes it away", maybe=chained)
                continue
            self.scopes.change(self.variables.values, name[0], None)
            self.scopes.change(self.variables.env, name[0], None)
            self.scopes.change(self.variables.gone, name[0], True)

    def _enter(self, command: Command, chained: bool, piped: bool) -> list[Token]:
        """The command without the keywords before it, which open and close blocks."""
        words = command.words
        while words:
            head = words[0].text
            if head in _OPENING:
                block = _OPENING[head]
                if block == "loop" and not self.variables.arguments and any("$#" in token.text for token in words):
                    block = "args"
                self.scopes.enter(block, piped=piped)
                if head in ("for", "select") and len(words) > 1:
                    self._unclear(words[1].text, words[1], "a loop sets it")
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

    def _assign(self, words: list[Token], chained: bool) -> list[Token]:
        """Take the assignments at the front of a command in; what is left where they stand before a command."""
        head = words[0].text
        declaring = head in _DECLARING
        exports = head == "export" or (declaring and any(token.text == "-x" for token in words[1:3]))
        rest = words[1:] if declaring else words
        pairs: list[tuple[str, Setting, bool]] = []
        while rest:
            match = ASSIGNMENT.match(rest[0].text)
            if match is not None:
                pairs.append((match[1], *self.variables.assigned(rest[0], match)))
            elif not declaring:
                break
            elif exports and _NAME.fullmatch(rest[0].text):
                self.variables.exports.add(rest[0].text)
            rest = rest[1:]
        if rest and not declaring:
            return words  # they hold for this command alone, and `Launchers.find` reads them
        for name, setting, appended in pairs if not self.scopes.within("args") else ():
            if appended:
                setting = self.variables.appended(name, setting)
            if exports:
                self.variables.exports.add(name)
            if head in ("local", "declare", "typeset"):
                self.scopes.localize(name)
            self.scopes.assign(name, setting, maybe=chained, appended=appended)
        return []

    def _is_orphan(self, words: list[Token], after: str) -> bool:
        """Whether a command is the flags of the launch before it, with no backslash between them."""
        head = words[0].text
        launch = self.launches[-1] if self.launches else None
        if launch is None or after == ")" or not head.startswith("-") or (self.scopes.within("case") and after == "|"):
            return False
        if head.partition("=")[0] not in self.launchers.flags(launch.engine):
            return False
        if launch.orphan is None and launch.place.path == self.text.source.path:
            self.launches[-1] = launch._replace(orphan=placed(self.text, words[0]))
        return True

    def _simple(self, words: list[Token], after: str) -> None:
        """One command that is no assignment and no function."""
        if self._is_orphan(words, after):
            self.idle.append([placed(self.text, words[0])])
            return
        if words[0].text == "eval":
            self._read_inside(self.variables.joined(words[1:]), self.variables.arguments)
            return
        expanded: list[Word] = []
        for token in words:
            inner = token.kind == "live" and bool(expanded)
            inner = inner and (takes_script(expanded) or self.launchers.is_command_line(token.text))
            expanded += [placed(self.text, token)] if inner else self.variables.expand(token)
        self.command(expanded)

    def _read_inside(self, script: Text, arguments: Sequence[Word] = (), where: Inner | None = None) -> None:
        """Read a script inside the script, which sees its variables; ``where`` says what runs it."""
        spend(scripts=len(script.text))
        if self.depth >= DEEPEST_SHELL:
            return
        visible = self.variables.visible() | (where.env if where is not None else {})
        inner = Shell(script, visible, self.variables.outside, self.launchers, arguments, depth=self.depth + 1)
        inner.run()
        self.errors += inner.errors
        self._add([self.launchers.placed(launch, where) if where else launch for launch in inner.launches])
