"""What is a variable worth inside a branch, and after it? Conditions, loops and cases of one script.

    N=4; if x; then N=8; serve $N; fi; serve $N      ->   8, then unknown
    A=(--tp 8); if x; then A+=(--pp 2); fi           ->   --tp 8, and perhaps more

In its own branch a value is what the branch sets it to; the next branch sees what was there before, and after the last
one nobody knows: unless branches only add to it, then what it held is still there. Which branch runs is not guessed.
"""

from hybridcalc.manifests.source import Setting

DEEPEST = 50
"""Blocks inside blocks whose values are kept apart; deeper down a value counts as unknown at once."""
UNCONDITIONAL = ("args", "plain")
"""Blocks that say nothing of whether their commands run: a loop over arguments that nobody gave, braces, functions."""


class _Block:
    """A condition, loop or case: the values ``before`` it, what the branch that is open set, and what any did."""

    __slots__ = ("after", "before", "touched")

    def __init__(self) -> None:
        self.before: dict[str, Setting | None] = {}
        self.touched: set[str] = set()
        self.after: dict[str, tuple[Setting, bool]] = {}

    def record(self, name: str, before: Setting | None, set_to: Setting, appended: bool) -> None:
        self.before.setdefault(name, before)
        self.touched.add(name)
        earlier = self.after.get(name)
        self.after[name] = (set_to, appended and (earlier is None or earlier[1]))


class Branches:
    """The blocks that are open, and the values they set in ``values``."""

    def __init__(self, values: dict[str, Setting]) -> None:
        self._values = values
        self._kinds: list[str] = []
        self._blocks: list[_Block] = []
        self._conditions = 0

    @property
    def kinds(self) -> list[str]:
        """The kinds of the blocks, the outermost first."""
        return self._kinds

    def enter(self, kind: str) -> None:
        """A block begins."""
        self._kinds.append(kind)
        if kind not in UNCONDITIONAL:
            self._conditions += 1
            if self._conditions <= DEEPEST:
                self._blocks.append(_Block())

    def turn(self) -> None:
        """The next branch of the innermost block begins: it sees what was there before the block."""
        if not self._kinds or self._kinds[-1] in UNCONDITIONAL or self._conditions > DEEPEST:
            return
        block = self._blocks[-1]
        for name in block.touched:
            self._restore(name, block.before[name])
        block.touched.clear()

    def leave(self) -> None:
        """The innermost block ends: what it set is not known any more."""
        if not self._kinds or self._kinds.pop() in UNCONDITIONAL:
            return
        self._conditions -= 1
        if self._conditions >= DEEPEST:
            return
        block = self._blocks.pop()
        for name, (set_to, appended) in block.after.items():
            before = block.before[name]
            self._values[name] = perhaps(before, set_to, appended=appended)
            if self._blocks:
                self._blocks[-1].record(name, before, set_to, appended)

    def assign(self, name: str, setting: Setting, *, maybe: bool, appended: bool) -> None:
        """A variable is set; ``maybe`` by a command that may not run, ``appended`` where what it held is kept."""
        before = self._values.get(name)
        if self._blocks:
            self._blocks[-1].record(name, before, setting, appended)
        unsure = maybe or self._conditions > DEEPEST
        self._values[name] = perhaps(before, setting, appended=appended) if unsure else setting

    def _restore(self, name: str, before: Setting | None) -> None:
        if before is None:
            self._values.pop(name, None)
        else:
            self._values[name] = before


def perhaps(before: Setting | None, setting: Setting, *, appended: bool) -> Setting:
    """A value that may or may not have been set, or added to."""
    line = setting.place.line if setting.place else 0
    held = before if before is not None else Setting((), array=True) if setting.array else None
    if appended and held is not None and not held.why:
        return held._replace(more=f"a condition adds to it (line {line})")
    return Setting((), f"a condition sets it (line {line})", setting.place)
