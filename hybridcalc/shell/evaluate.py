r"""Which engines does a shell script launch, with which words? Read as bash would, and never run.

    TP=8; ARGS=(--tp "$TP"); exec python3 -m sglang.launch_server "${ARGS[@]}"   ->   sglang  --tp 8

A file's script and a pasted line are read alike. Simple assignments, literal arrays, ``${X:-default}``, whole-number
arithmetic, functions, ``eval``, ``bash -c`` and here-documents are followed, and conditions whose operands are known.
A variable that another condition, a loop or another program sets, or that comes from outside, stays unknown: no branch
is guessed. What does not run leaves nothing behind; launches in it count where it is a default that decides, and a
caller may say otherwise. Left out: sourced files.
"""

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager

from hybridcalc.errors import InputError, quoted
from hybridcalc.shell.bounds import allowance, spend
from hybridcalc.shell.commands import ASSIGNMENT, ESCAPE, FUNCTION, GLUE, Command, HereDocument, Script, definition_at
from hybridcalc.shell.conditions import Operand, both, decided, either, matches, opposite
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
from hybridcalc.shell.parse import LONGEST_SCRIPT, Token, placed, substitutions, tokens
from hybridcalc.shell.scopes import APART, Block, Scopes
from hybridcalc.shell.source import Setting, Source, Text, Word, is_unresolved
from hybridcalc.shell.variables import FROM_CALLER, REFERENCE, Outside, Variables

MOST_LAUNCHES = 2_000
DEEPEST_SHELL = 4
DEEPEST_CALLS = 20
"""Functions that call functions."""
LONGEST_CONDITION = 2_000
"""Characters between ``[[`` and ``]]``."""
CALL_WORDS = 10
"""Words that a call counts for."""
_NAME = re.compile(r"[A-Za-z_]\w*")
_OPENING = {"if": "if", "while": "loop", "until": "loop", "for": "loop", "select": "loop", "case": "case"}
_CLOSING = {"fi", "done", "esac"}
_EXPANDED = re.compile(rf"(?:{ESCAPE.pattern})|(?:{REFERENCE.pattern})")
_DECLARING = {"export", "declare", "typeset", "local", "readonly"}
_ASKING = {"command", "which", "grep", "type", "nvidia-smi", "getent", "pgrep", "curl"}
"""Commands that are run for what they answer; others are taken to succeed."""
_TESTS = {"[": "]", "[[": "]]", "test": ""}
"""What begins a condition, and what ends it."""
RAN = "ran"
"""The status of a command that is taken to have succeeded."""
ELSEWHERE = "it runs only where this is something else"
"""Why a variable has no value in a branch that its default does not take."""
Status = bool | str | None
"""How a command ended: a condition that is decided, RAN, or None where nobody knows."""
_CALCULATED = re.compile(r"([A-Za-z_]\w*)\s*(?:[-+*/%&|^]?=(?!=)|\+\+|--)|(?:\+\+|--)\s*([A-Za-z_]\w*)")
"""What ``((...))`` and ``let`` assign to."""


def runs_after(operator: str, status: Status) -> bool | None:
    """Whether a command runs behind an operator, where the one before it ended so; None where nobody knows."""
    if operator == ";" or (operator == "&&" and status == RAN):
        return True
    known = status if isinstance(status, bool) else None
    return known if operator == "&&" else opposite(known)


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
        self.status: Status = RAN
        self.negated = False
        self.fits: bool | None = False
        self.read_to = 0
        self.assumed: set[str] = set()
        self.compared: set[str] = set()
        self.launches: list[Launch] = []
        self.files: list[HereDocument] = []
        self.idle: list[Sequence[Word]] = []
        self.script = Script(text, launchers.named, launchers.telling)
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
                self._call(name, (), unsure=False)
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
        self.launches += [launch._replace(assumed=launch.assumed | self.assumed) for launch in launches]
        if len(self.launches) > MOST_LAUNCHES:
            raise InputError(f"more than {MOST_LAUNCHES:,} launches")

    def _execute(self, commands: list[Command]) -> None:
        """Commands one after the other. What a subshell, a part of a pipe or a background job sets, ends with it."""
        at = 0
        while at < len(commands):
            command = commands[at]
            at += 1
            if command.words and command.words[0].begin < self.read_to and "((" not in command.before:
                continue  # part of a condition that was read as a whole
            calculated = "((" in command.before
            if calculated:  # before its brackets open: they are no subshells
                value = self._arithmetic(command.words)
            for operator in command.before:
                if operator == ";;":
                    self._end_branch()
                self.scopes.bracket(operator)
            defined = None if self.unclosed or calculated else definition_at(commands, at - 1)
            if defined is not None and defined.after:
                self.scopes.change(self.functions, defined.name, defined.body)
                at = defined.after
                self.called.discard(defined.name)
                continue
            self.unclosed = self.unclosed or defined is not None
            joined = next((op for op in reversed(command.before) if op in ("&&", "||", ";")), ";")
            if calculated:
                self._joined(joined, runs_after(joined, self.status), value)
            elif not self._is_pattern(command):
                self._one(command, joined)

    def _one(self, command: Command, joined: str) -> None:
        """One command, behind an operator that says whether it runs."""
        runs = runs_after(joined, self.status)
        if joined == ";" and command.words and command.words[0].text not in GLUE:
            self.compared = set()
        piped = command.before[-1:] in (("|",), ("|&",))
        before, depth = self.scopes.changes, self.scopes.depth
        kept = self._kept()
        if runs is False:
            self._forget(self.compared)
        status = self._run(command, runs, piped)
        for document in command.documents:
            self._document(document)
        apart = piped or command.after in APART or runs is False
        if apart and self.scopes.depth == depth:
            self.scopes.undo(before)
            if runs is False:
                self._drop(kept, self.compared)
        self._joined(joined, runs, status)

    def _joined(self, joined: str, runs: bool | None, status: Status) -> None:
        """The status of a list, behind one more command of it."""
        if runs is None:
            known = status if isinstance(status, bool) else None
            status = both(None, known) if joined == "&&" else either(None, known)
        if runs is not False:
            self.status = status

    def _kept(self) -> tuple[int, int, Sequence[Word], Status]:
        """What is there before a part that does not run."""
        return len(self.launches), len(self.files), self.variables.arguments, self.status

    def _forget(self, compared: Collection[str]) -> None:
        """What does not run would run with other values: those that were just ``compared`` are none here."""
        for name in compared:
            self.scopes.change(self.variables.values, name, Setting((), ELSEWHERE))

    def _drop(self, kept: tuple[int, int, Sequence[Word], Status], compared: Collection[str]) -> None:
        """Without what a part that does not run has launched; where a default decides, what is known of it stays."""
        launches, files, self.variables.arguments, self.status = kept
        stay = self.launches[launches:] if compared else []
        self.launches[launches:] = [
            launch for launch in stay if not any(word.why == ELSEWHERE for word in launch.words)
        ]
        if not compared:
            del self.files[files:]

    def _begin_branch(self, block: Block, verdict: Status) -> None:
        """The branch begins that a condition leads to."""
        block.kept = self._kept()
        block.compared |= self.compared
        if block.taken or verdict is False:
            block.dead, block.branch = True, self.scopes.changes
            self._forget(block.compared)
        elif verdict is True:
            block.taken = True
        else:
            self.scopes.doubt()

    def _end_branch(self) -> None:
        block = self.scopes.innermost
        dead = block is not None and block.dead
        self.scopes.turn()
        if block is not None and dead:
            self._drop(block.kept, block.compared)

    def _leave(self, after: str) -> None:
        """The innermost block ends."""
        block = self.scopes.innermost
        if block is None:
            return
        unsure, dead = block.unsure, block.dead or block.gone
        self.scopes.leave(after)
        if block.kind != "group":
            self.status = RAN
        if unsure:
            self.status = None
        if dead:
            self._drop(block.kept, block.compared)
            self.status = self.status if block.gone else RAN

    def _condition(self, words: list[Token]) -> Status:
        """What ``[ ... ]``, ``[[ ... ]]`` or ``test ...`` comes to."""
        head = words[0].text
        inner = words[1:]
        if head == "[[":
            begin = words[0].end
            end = self.text.text.find("]]", begin, begin + LONGEST_CONDITION)
            if end < 0:
                return None
            self.read_to = max(self.read_to, end + 2)
            raw = self.text.text[begin:end]
            try:
                inner = [t._replace(begin=t.begin + begin, end=t.end + begin) for t in tokens(raw)]
            except InputError:
                return None
        elif head == "[" and (not inner or inner.pop().text != "]"):
            return None
        with self._comparing():
            operands = [self._operand(token) for token in inner if token.kind != "comment" and token.text != ";"]
            return decided(operands, extended=head == "[[")

    @contextmanager
    def _comparing(self) -> Iterator[None]:
        """What is read within is compared: it says which defaults decide."""
        variables = self.variables
        before, variables.used, variables.read = variables.used, set(), set()
        yield
        self.assumed |= variables.used
        self.compared |= {name for name in variables.read if name in variables.used or variables.assumed.get(name)}
        variables.used = before

    def _operand(self, token: Token) -> Operand:
        raw = self.text.text[token.begin : token.end]
        typed = token.text if raw == token.text else f"'{token.text}'"
        value = token.text if token.kind != "live" else self.variables.resolved(token.text)[0]
        return Operand(typed, value)

    def _arithmetic(self, words: list[Token]) -> Status:
        """What ``(( ... ))`` comes to; a variable that it assigns to is not known any more."""
        begin = words[0].begin if words else self.read_to
        end = self.text.text.find("))", begin, begin + LONGEST_CONDITION)
        expression = self.text.text[begin:end] if end >= 0 else ""
        self.read_to = max(self.read_to, begin + len(expression))
        assigned = self._calculated(words) or any(_CALCULATED.finditer(expression))
        if assigned or not expression:
            return None
        with self._comparing():
            value = self.variables.number(expression)[0]
        return None if value is None else value != 0

    def _is_pattern(self, command: Command) -> bool:
        """Whether a command is a pattern of a ``case``, which begins a branch."""
        block = self.scopes.innermost
        if block is None or block.kind != "case" or len(command.words) != 1 or command.after not in ("|", ")"):
            return False
        self._pattern(block, command.words[0], command.after)
        return True

    def _pattern(self, block: Block, token: Token, after: str) -> None:
        """One of the patterns of a branch; the last decides."""
        text = token.text if token.kind != "live" else self.variables.resolved(token.text)[0]
        known = block.subject is not None and text is not None
        fits = True if text == "*" else matches(block.subject or "", text or "") if known else None
        self.fits = either(self.fits, fits)
        if after == ")":
            verdict, self.fits = self.fits, False
            self._begin_branch(block, verdict)

    def _calculated(self, words: list[Token]) -> bool:
        found = list(_CALCULATED.finditer(" ".join(token.text for token in words)))
        for match in found:
            self._unclear(match[1] or match[2], words[0], "arithmetic decides it")
        return bool(found)

    def _unclear(self, name: str, where: Token, why: str, *, maybe: bool = False) -> None:
        """A variable is set to something that nobody here works out."""
        self.scopes.assign(name, Setting((), why, self.variables.place(where.begin)), maybe=maybe)

    def _call(self, name: str, arguments: Sequence[Word], *, unsure: bool) -> None:
        """Run a function's body; what it declares local ends with it."""
        self.called.add(name)
        if self.scopes.calls >= DEEPEST_CALLS or self.scopes.calling(name):
            return
        spend(words=CALL_WORDS)
        if all(word.why == FROM_CALLER for word in arguments):
            arguments = ()
        outer, self.variables.arguments = self.variables.arguments, arguments
        self.scopes.call(name, chained=unsure)
        self.scopes.localize("@")
        self.scopes.change(self.variables.values, "@", None)
        read_to, self.read_to = self.read_to, 0
        self._execute(self.functions[name])
        self.scopes.back()
        self.variables.arguments, self.read_to = outer, read_to

    def _run(self, command: Command, runs: bool | None, piped: bool) -> Status:
        """Take one command in, which ``runs`` or may not; how it ended."""
        depth, unsure = self.scopes.depth, runs is None
        words = self._enter(command, runs, piped)
        negated, self.negated = self.negated, False
        if not words:
            return self.status
        unsure = unsure and self.scopes.depth <= depth
        head = words[0].text
        if head in _CLOSING:
            self._leave(command.after)
            return RAN
        self._substituted(words)
        if head in _DECLARING or ASSIGNMENT.match(head):
            rest = self._assign(words, unsure)
            if not rest:
                return RAN
            words = rest
        status = self._builtin(words, unsure, command.after)
        return status if not negated else opposite(status) if isinstance(status, bool) else None

    def _builtin(self, words: list[Token], unsure: bool, after: str) -> Status:
        """A command that a shell carries out itself, a function, or any other; how it ended."""
        head = words[0].text
        if head in _TESTS:
            return self._condition(words)
        if head in ("true", ":", "false"):
            return head != "false"
        if head in ("read", "mapfile", "readarray", "getopts"):
            for token in words[1:]:
                if _NAME.fullmatch(token.text):
                    self._unclear(token.text, token, f"{head} sets it")
            return None
        if head == "let":
            self._calculated(words[1:])
        elif head == "printf" and len(words) > 2 and words[1].text == "-v":
            self._unclear(words[2].text, words[2], "printf sets it")
        elif head == "unset":
            self._unset(words[1:], unsure)
        elif head == "set" and len(words) > 1 and words[1].text == "--":
            self._set(words[2:], unsure)
        elif head == "shift":
            self._shift(words, unsure)
        elif head in self.functions:
            arguments = [word for token in words[1:] for word in self.variables.expand(token)]
            self._call(head, arguments, unsure=unsure)
        else:
            self._simple(words, after)
        return None if head in _ASKING else RAN

    def _set(self, words: list[Token], unsure: bool) -> None:
        """``set -- ...``: the positional arguments from here on."""
        added = [word for token in words for word in self.variables.expand(token)]
        here = self.variables.place(words[0].begin) if words else None
        adds = bool(words) and self.text.text[words[0].begin : words[0].end].strip('"') in ("$@", "${@}")
        if adds and unsure and self.variables.positional:
            added = added[len(self.variables.positional) :]
        self.scopes.assign("@", Setting(tuple(added), "", here, array=True), maybe=unsure, appended=adds)

    def _shift(self, words: list[Token], unsure: bool) -> None:
        count = words[1].text if len(words) > 1 else "1"
        known = not unsure and not self.scopes.conditions and count.isdecimal() and len(count) < 4
        left = self.variables.positional[int(count) :] if known else ()
        if "@" in self.variables.values:
            self.scopes.assign("@", Setting(left, "" if known else FROM_CALLER, array=True), maybe=unsure)
        else:
            self.variables.arguments = left

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

    def _unset(self, words: list[Token], unsure: bool) -> None:
        if any(token.text == "-f" for token in words):
            return
        for token in words:
            name = _NAME.match(token.text)
            if name is None:
                continue
            if unsure or self.scopes.conditions or name[0] != token.text:
                self._unclear(name[0], token, "an unset takes it away", maybe=unsure)
                continue
            self.scopes.change(self.variables.values, name[0], None)
            self.scopes.change(self.variables.env, name[0], None)
            self.scopes.change(self.variables.gone, name[0], True)

    def _enter(self, command: Command, runs: bool | None, piped: bool) -> list[Token]:
        """The command without the keywords before it, which open and close blocks."""
        words = command.words
        while words:
            head = words[0].text
            if head in _OPENING or head == "{":
                words = self._open(words, runs, piped, command.after)
                runs = True
                continue
            block = self.scopes.innermost
            if head == "}":
                self._leave(command.after)
            elif head == "then" and block is not None and block.kind == "if":
                self._begin_branch(block, self.status)
            elif head in ("else", "elif"):
                self._end_branch()
                if head == "else" and block is not None:
                    self._begin_branch(block, True)
            elif head == "!":
                self.negated = not self.negated
            elif head not in GLUE and not FUNCTION.fullmatch(head):
                break
            words = words[1:]
        return words

    def _open(self, words: list[Token], runs: bool | None, piped: bool, after: str) -> list[Token]:
        """A block begins with the first word; what is left of the command."""
        head = words[0].text
        kind = _OPENING.get(head, "group")
        if kind == "loop" and not self.variables.arguments and any("$#" in token.text for token in words):
            kind = "args"
        block = self.scopes.enter(kind, piped=piped, unsure=runs is None or kind == "loop")
        if runs is False:
            block.gone, block.kept, block.compared = True, self._kept(), set(self.compared)
        if head in ("for", "select") and len(words) > 1:
            self._unclear(words[1].text, words[1], "a loop sets it")
            return []
        if head == "case":
            self.fits, self.compared = False, set()
            if len(words) > 1:
                with self._comparing():
                    block.subject = self._operand(words[1]).value
            if len(words) == 4 and words[2].text == "in":
                self._pattern(block, words[3], after)
            return []
        return words[1:]

    def _assign(self, words: list[Token], unsure: bool) -> list[Token]:
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
            self.scopes.assign(name, setting, maybe=unsure, appended=appended)
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
