r"""Which engines does a shell script launch, with which words? Read as bash would, and never run.

    TP=8; ARGS=(--tp "$TP"); exec python3 -m sglang.launch_server "${ARGS[@]}"   ->   sglang  --tp 8

A file's script and a pasted line are read alike. Simple assignments, literal arrays, ``${X:-default}``, whole-number
arithmetic, functions, ``eval``, ``bash -c`` and here-documents are followed, and conditions whose operands are known.
A variable that another condition, a loop or another program sets, or that comes from outside, stays unknown: no branch
is guessed. What does not run leaves nothing behind; launches in it count where it is a default that decides, and a
caller may say otherwise. Left out: sourced files.
"""

from collections.abc import Collection, Mapping, Sequence

from hybridcalc.errors import InputError
from hybridcalc.shell import Setting, Text, Word, spend
from hybridcalc.shell.builtins import DECLARING, RAN, Builtins, Status, runs_after
from hybridcalc.shell.commands import (
    ASSIGNMENT,
    FUNCTION,
    GLUE,
    Command,
    HereDocument,
    Script,
    cut_between,
    definition_at,
)
from hybridcalc.shell.launch import HANDING_ON, SCRIPT_OPTION, Inner, Launch, Launchers, takes_script
from hybridcalc.shell.parse import LONGEST_SCRIPT, Token, placed, substitutions
from hybridcalc.shell.scopes import APART, Block, Scopes, both, either, opposite
from hybridcalc.shell.variables import FROM_CALLER, Outside, Variables

MOST_LAUNCHES = 2_000
DEEPEST_SHELL = 4
DEEPEST_CALLS = 20
"""Functions that call functions."""
CALL_WORDS = 10
"""Words that a call counts for."""
_OPENING = {"if": "if", "while": "loop", "until": "loop", "for": "loop", "select": "loop", "case": "case"}
_CLOSING = {"fi", "done", "esac"}
_ASKING = {"command", "which", "grep", "type", "nvidia-smi", "getent", "pgrep", "curl"}
"""Commands that are run for what they answer; others are taken to succeed."""
ELSEWHERE = "it runs only where this is something else"
"""Why a variable has no value in a branch that its default does not take."""


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
        installed: Mapping[str, str] = {},
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
        self.launches: list[Launch] = []
        self.replaced = 0  # how many there are once ``exec`` surely took the shell's place
        self.files: list[HereDocument] = []
        self.idle: list[Sequence[Word]] = []
        self.ran: Sequence[Word] = ()  # what it ran last
        self.written: dict[str, Text] = {}
        self.installed = dict(installed)
        self.script = Script(text, launchers.spoken, launchers.telling)
        self.errors = self.script.errors
        self.text = self.script.text
        self.variables = Variables(self.text, env, outside, arguments)
        self.scopes = Scopes(self.variables.values)
        self.builtins = Builtins(self.text, self.variables, self.scopes)

    def run(self) -> None:
        """Go through the script. Raises InputError for one that grows beyond what is allowed."""
        self._execute(self.script.commands)
        if self.replaced:  # the rest runs where other values decide, and is told as far as it is known
            rest = self.launches[self.replaced :] if self.builtins.assumed else []
            self.launches[self.replaced :] = [one for one in rest if not any(word.why for word in one.words)]
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
        count, self.ran = len(self.launches), words
        if not self.start(words):
            for text in self.launchers.handed_on(words):
                self._read_inside(text)
        if len(self.launches) == count:
            self.idle.append(words)
        if self.written:
            self._run_written(words)
        if any("==" in word for word in words):
            from hybridcalc.shell.containers import installed

            self.installed |= installed(words)

    def _speaks(self, command: Command) -> bool:
        """Whether a command or what it is given speaks of an engine."""
        return bool(command.documents) or any(self.launchers.spoken.search(token.text) for token in command.words)

    def _document(self, document: HereDocument, where: Inner | None = None) -> None:
        """Read the here-document of a command as a script, which runs there, or keep it as a file."""
        document = document.read(lambda text: self.variables.resolved(text)[0])
        if document.kind != "script":
            self.files.append(document)
            return
        self._read_inside(document.text, where=where)
        if document.file:
            self.written[document.file] = document.text

    def _run_written(self, words: Sequence[Word]) -> None:
        """A script that was written before runs in the container of a command."""
        body = next((self.written[name] for w in words[1:] if (name := w.rpartition("/")[2]) in self.written), None)
        where = self.launchers.surroundings(words, self.variables.exported()) if body is not None else None
        if body is None or where is None:
            return
        for at, launch in enumerate(self.launches):
            if body.at(0) <= launch.place.begin < body.end(len(body.text)):
                placed = self.launchers.placed(launch, where)
                self.launches[at] = placed._replace(env={**where.env, **launch.env})

    def _add(self, launches: Sequence[Launch]) -> None:
        for launch in launches:
            release = launch.release or ("" if launch.image else self.installed.get(launch.engine, ""))
            self.launches.append(launch._replace(assumed=launch.assumed | self.builtins.assumed, release=release))
        if len(self.launches) > MOST_LAUNCHES:
            raise InputError(f"more than {MOST_LAUNCHES:,} launches")

    def _execute(self, commands: list[Command]) -> None:
        """Commands one after the other. What a subshell, a part of a pipe or a background job sets, ends with it."""
        at = 0
        while at < len(commands):
            command = commands[at]
            at += 1
            if command.words and command.words[0].begin < self.builtins.read_to and "((" not in command.before:
                continue  # part of a condition that was read as a whole
            calculated = "((" in command.before
            if calculated:  # before its brackets open: they are no subshells
                value = self.builtins.arithmetic(command.words)
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
            self.builtins.compared = set()
        piped = command.before[-1:] in (("|",), ("|&",))
        before, depth = self.scopes.changes, self.scopes.depth
        kept = self._kept()
        if runs is False:
            self._forget(self.builtins.compared)
        count, self.ran = len(self.launches), ()
        status = self._run(command, runs, piped)
        head = next((token.text for token in command.words if token.text not in GLUE), "")
        if head == "exec" and runs and not self.replaced and len(self.launches) > count and self.scopes.certain:
            self.replaced = 0 if piped or command.after in APART else len(self.launches)
        where = None
        if command.documents and self.ran:
            where = self.launchers.surroundings(self.ran, self.variables.exported())
        for document in command.documents:
            self._document(document, where)
        apart = piped or command.after in APART or runs is False
        if apart and self.scopes.depth == depth:
            self.scopes.undo(before)
            if runs is False:
                self._drop(kept, self.builtins.compared)
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
        block.compared |= self.builtins.compared
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
        from hybridcalc.shell.conditions import matches

        known = block.subject is not None and text is not None
        fits = True if text == "*" else matches(block.subject or "", text or "") if known else None
        self.fits = either(self.fits, fits)
        if after == ")":
            verdict, self.fits = self.fits, False
            self._begin_branch(block, verdict)

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
        read_to, self.builtins.read_to = self.builtins.read_to, 0
        self._execute(self.functions[name])
        self.scopes.back()
        self.variables.arguments, self.builtins.read_to = outer, read_to

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
        if head in DECLARING or ASSIGNMENT.match(head):
            rest = self.builtins.assign(words, unsure)
            if not rest:
                return RAN
            words = rest
        status = self._carried_out(words, unsure, command.after)
        return status if not negated else opposite(status) if isinstance(status, bool) else None

    def _carried_out(self, words: list[Token], unsure: bool, after: str) -> Status:
        """A command that a shell carries out itself, a function, or any other; how it ended."""
        head = words[0].text
        if self.builtins.knows(words):
            return self.builtins.run(words, unsure)
        if head in self.functions:
            arguments = [word for token in words[1:] for word in self.variables.expand(token)]
            self._call(head, arguments, unsure=unsure)
        else:
            self._simple(words, after)
        return None if head in _ASKING else RAN

    def _substituted(self, words: list[Token]) -> None:
        """Launches inside ``$(...)``; a script for another shell expands its own."""
        head = words[0].text.rpartition("/")[2]
        if head == "eval" or head in HANDING_ON or any(SCRIPT_OPTION.fullmatch(token.text) for token in words[1:-1]):
            return
        for token in words:
            if token.kind == "live" and self.launchers.spoken.search(token.text):
                for first, last in substitutions(self.text.text[token.begin : token.end]):
                    part = self.text.part(token.begin + first, token.begin + last)
                    if self.launchers.spoken.search(part.text):
                        self._read_inside(part, self.variables.arguments)

    def _enter(self, command: Command, runs: bool | None, piped: bool) -> list[Token]:
        """The command without the keywords before it, which open and close blocks."""
        words, at, asking = command.words, 0, -1
        while at < len(words):
            head = words[at].text
            if head in _OPENING or head == "{":
                if asking < at and _OPENING.get(head) == "loop":  # once for all loops that begin here
                    asking = max((n for n in range(at, len(words)) if "$#" in words[n].text), default=len(words))
                at = self._open(command, at, runs, piped, asks=at <= asking < len(words))
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
            at += 1
        return words[at:] if at else words

    def _open(self, command: Command, at: int, runs: bool | None, piped: bool, *, asks: bool) -> int:
        """A block begins with a word of a command; the first of those that are left. ``asks``: one speaks of ``$#``."""
        words, left = command.words, len(command.words) - at
        head = words[at].text
        kind = _OPENING.get(head, "group")
        if kind == "loop" and not self.variables.arguments and asks:
            kind = "args"
        block = self.scopes.enter(kind, piped=piped, unsure=runs is None or kind == "loop")
        if runs is False:
            block.gone, block.kept, block.compared = True, self._kept(), set(self.builtins.compared)
        if head in ("for", "select") and left > 1:
            self.builtins.unclear(words[at + 1].text, words[at + 1], "a loop sets it")
            return len(words)
        if head == "case":
            self.fits, self.builtins.compared = False, set()
            if left > 1:
                with self.builtins.comparing():
                    block.subject = self.builtins.operand(words[at + 1]).value
            if left == 4 and words[at + 2].text == "in":
                self._pattern(block, words[at + 3], command.after)
            return len(words)
        return at + 1

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
        cut = next((at for at in range(1, len(words)) if cut_between(self.text, *words[at - 1 : at + 1])), 0)
        if cut:
            self._simple(words[:cut], ";")
            words = words[cut:]
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
            expanded += [self.variables.script(token)] if inner else self.variables.expand(token)
        self.command(expanded)

    def _read_inside(self, script: Text, arguments: Sequence[Word] = (), where: Inner | None = None) -> None:
        """Read a script inside the script, which sees its variables; ``where`` says what runs it."""
        spend(scripts=len(script.text))
        if self.depth >= DEEPEST_SHELL:
            return
        visible = self.variables.visible() | (where.env if where is not None else {})
        installed = self.installed if where is None or not where.image else {}
        outside, depth = self.variables.outside, self.depth + 1
        inner = Shell(script, visible, outside, self.launchers, arguments, depth=depth, installed=installed)
        inner.run()
        self.errors += inner.errors
        self._add([self.launchers.placed(launch, where) if where else launch for launch in inner.launches])
