"""What is a variable worth inside a branch, a subshell or a function, and after it? The scopes of one script.

    N=4; if x; then N=8; serve $N; fi; serve $N      ->   8, then unknown
    A=(--tp 8); if x; then A+=(--pp 2); fi           ->   --tp 8, and perhaps more
    N=8; (N=40); N=40 | cat; serve $N                ->   8

In its own branch a value is what the branch sets it to; the next branch sees what was there before, and after the last
one nobody knows: unless branches only add to it, then what it held is still there. Which branch runs is not guessed;
where a condition is decided, its branch runs as if it stood alone, and the others leave nothing behind.
What a subshell, a part of a pipe or a background job sets ends with it, and so do the locals of a function.
"""

from typing import Any, NamedTuple

from hybridcalc.shell import Setting

DEEPEST = 50
"""Blocks inside blocks whose values are kept apart; deeper down a value counts as unknown at once."""
PIPES = ("|", "|&")
APART = (*PIPES, "&")
"""What stands behind commands that another process runs."""
_ABSENT = Setting((), "nothing sets it")


class _Branches:
    """A condition, loop or case: the values ``before`` it, what the branch that is open set, and what any did."""

    __slots__ = ("after", "before", "touched")

    def __init__(self) -> None:
        self.before: dict[str, Setting] = {}
        self.touched: dict[str, bool] = {}
        self.after: dict[str, tuple[Setting, bool]] = {}


class Block:
    """A block that is open: its kind, and the ``changes`` made before it; ``piped``, all after them are its own.

    ``unsure`` blocks may not run. Of a condition or ``case``: whether a branch that surely runs was ``taken``, and what
    is compared (``subject``). ``branch`` are the changes made before the branch that is open, ``dead`` says that it
    does not run, ``gone`` that no branch does, ``kept`` what was there before it, for whoever opened the block, and
    ``compared`` the variables whose defaults decided so far.
    """

    __slots__ = ("branch", "changes", "compared", "dead", "gone", "kept", "kind", "piped", "subject", "taken", "unsure")

    def __init__(self, kind: str, changes: int, *, piped: bool, unsure: bool) -> None:
        self.kind, self.changes, self.piped, self.unsure = kind, changes, piped, unsure
        self.branch, self.dead, self.gone, self.taken = changes, False, False, False
        self.subject: str | None = None
        self.kept: Any = None
        self.compared: set[str] = set()


class _Call(NamedTuple):
    """A function that runs: how many blocks, branches and subshells were open, and its locals' values before it."""

    name: str
    blocks: int
    branches: int
    subshells: int
    local: dict[str, Setting]


class Scopes:
    """The blocks, subshells and functions that are open, and what they set in ``values``."""

    def __init__(self, values: dict[str, Setting]) -> None:
        self._values = values
        self._changes: list[tuple[dict[str, Any], str, Any]] = []
        self._blocks: list[Block] = []
        self._branches: list[_Branches] = []
        self._subshells: list[tuple[int, int]] = []
        self._calls: list[_Call] = []
        self.conditions = 0

    @property
    def depth(self) -> int:
        """How many blocks are open."""
        return len(self._blocks)

    @property
    def changes(self) -> int:
        """How many changes were made: what `undo` takes."""
        return len(self._changes)

    @property
    def calls(self) -> int:
        """How many functions run, one inside the other."""
        return len(self._calls)

    @property
    def certain(self) -> bool:
        """Whether what stands here surely runs, in the shell itself."""
        return not self._subshells and not any(block.unsure or block.dead or block.gone for block in self._blocks)

    def within(self, kind: str) -> bool:
        """Whether a block of a kind is open."""
        return any(block.kind == kind for block in self._blocks[-DEEPEST:])

    @property
    def innermost(self) -> Block | None:
        """The innermost block."""
        return self._blocks[-1] if self._blocks else None

    def enter(self, kind: str, *, piped: bool = False, unsure: bool = False) -> Block:
        """A block begins."""
        self._blocks.append(Block(kind, len(self._changes), piped=piped, unsure=False))
        if unsure:
            self.doubt()
        return self._blocks[-1]

    def doubt(self) -> None:
        """From here on nobody knows whether the commands of the innermost block run."""
        if self._blocks and not self._blocks[-1].unsure:
            self._blocks[-1].unsure = True
            self.conditions += 1
            if self.conditions <= DEEPEST:
                self._branches.append(_Branches())

    def turn(self) -> None:
        """The next branch of the innermost block begins: it sees what was there before the block."""
        if not self._blocks:
            return
        block = self._blocks[-1]
        if block.dead:
            self.undo(block.branch)
        if block.unsure and self.conditions <= DEEPEST:
            branches = self._branches[-1]
            for name in branches.touched:
                self._restore(name, branches.before[name])
            branches.touched.clear()
        block.branch, block.dead = len(self._changes), False

    def leave(self, after: str = "") -> None:
        """The innermost block ends, with an operator ``after`` it: what it set is not known any more."""
        if not self._blocks:
            return
        block = self._blocks.pop()
        if block.dead:
            self.undo(block.branch)
        if block.unsure:
            self.conditions -= 1
            if self.conditions < DEEPEST:
                branches = self._branches.pop()
                for name, (set_to, appended) in branches.after.items():
                    before = _present(branches.before[name])
                    self.change(self._values, name, perhaps(before, set_to, appended=appended))
                    self._record(name, before, set_to, appended)
        if block.piped or block.gone or after in APART:
            self.undo(block.changes)

    def bracket(self, operator: str) -> None:
        """Enter or leave a subshell; the bracket after the pattern of a ``case`` closes none."""
        if operator == "(":
            self._subshells.append((len(self._changes), len(self._blocks)))
        elif operator == ")" and self._subshells and self._subshells[-1][1] == len(self._blocks):
            self.undo(self._subshells.pop()[0])

    def calling(self, name: str) -> bool:
        """Whether a function of that name runs."""
        return any(call.name == name for call in self._calls)

    def call(self, name: str, *, chained: bool) -> None:
        """A function begins; ``chained``, it may not run."""
        blocks, subshells = len(self._blocks), len(self._subshells)
        self.enter("call", unsure=chained)
        self._calls.append(_Call(name, blocks, len(self._branches), subshells, {}))

    def back(self) -> None:
        """The function ends, and with it what it declared local."""
        call = self._calls[-1]
        while len(self._blocks) > call.blocks:
            self.leave()
        del self._subshells[call.subshells :]
        self._calls.pop()
        for name, before in call.local.items():
            self._restore(name, before)

    def localize(self, name: str) -> None:
        """A variable is the running function's own."""
        if self._calls:
            self._calls[-1].local.setdefault(name, self._values.get(name, _ABSENT))

    def assign(self, name: str, setting: Setting, *, maybe: bool = False, appended: bool = False) -> None:
        """A variable is set; ``maybe`` by a command that may not run, ``appended`` where what it held is kept."""
        before = self._values.get(name)
        self._record(name, before, setting, appended)
        unsure = maybe or self.conditions > DEEPEST
        self.change(self._values, name, perhaps(before, setting, appended=appended) if unsure else setting)

    def change(self, table: dict[str, Any], name: str, value: Any) -> None:
        """Set an entry of a table, or take it away (None), so that `undo` can take that back."""
        self._changes.append((table, name, table.get(name)))
        if value is None:
            table.pop(name, None)
        else:
            table[name] = value

    def undo(self, count: int) -> None:
        """Take back all changes but the first ``count``."""
        while len(self._changes) > count:
            table, name, before = self._changes.pop()
            if before is None:
                table.pop(name, None)
            else:
                table[name] = before

    def _record(self, name: str, before: Setting | None, set_to: Setting, appended: bool) -> None:
        """Tell the innermost branch that it sets a variable, unless a function inside it has it for itself."""
        own = max((call.branches for call in self._calls if name in call.local), default=0)
        if len(self._branches) <= own:
            return
        block = self._branches[-1]
        if name not in block.before:
            self.change(block.before, name, before if before is not None else _ABSENT)
        self.change(block.touched, name, True)
        earlier = block.after.get(name)
        self.change(block.after, name, (set_to, appended and (earlier is None or earlier[1])))

    def _restore(self, name: str, before: Setting) -> None:
        self.change(self._values, name, _present(before))


def _present(setting: Setting) -> Setting | None:
    return None if setting is _ABSENT else setting


def perhaps(before: Setting | None, setting: Setting, *, appended: bool) -> Setting:
    """A value that may or may not have been set, or added to."""
    line = setting.place.line if setting.place else 0
    held = before if before is not None else Setting((), array=True) if setting.array else None
    if appended and held is not None and not held.why:
        return held._replace(more=f"a condition adds to it (line {line})")
    return Setting((), f"a condition sets it (line {line})", setting.place)


def both(left: bool | None, right: bool | None) -> bool | None:
    """``&&`` of two conditions."""
    return False if False in (left, right) else None if None in (left, right) else True


def opposite(verdict: bool | None) -> bool | None:
    """``!`` of a condition."""
    return None if verdict is None else not verdict


def either(left: bool | None, right: bool | None) -> bool | None:
    """``||`` of two conditions."""
    return opposite(both(opposite(left), opposite(right)))
