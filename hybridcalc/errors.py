"""The few errors hybridcalc raises: each says what is wrong, where and why, and what to write instead.

The command line prints ``error: <message>`` and, when there is one, the fix on a second line, and exits with 2
(the input is at fault) or 1 (the question is understood and the answer is no).
"""

from collections.abc import Iterable, Sequence
from typing import Any, ClassVar


class HybridcalcError(Exception):
    """Base of every error a user can cause. What is not known of it, or does not apply, is an empty string.

    ``fix`` is what to write instead, ``flag`` the argument of a command line at fault: as it was typed, or the flag's
    first spelling. ``rule`` is the id of the rule it breaks, ``release`` the engine's release that would take it.
    """

    exit_code = 2
    kind: ClassVar[str] = ""

    def __init__(self, message: str, *, fix: str = "", flag: str = "", rule: str = "", release: str = "") -> None:
        self.message = printable(message)
        self.fix = printable(fix)
        self.flag, self.rule, self.release = flag, rule, release
        super().__init__(self.message)

    @property  # follows ``fix``, which may be set later
    def __notes__(self) -> list[str]:  # type: ignore[override]
        """What Python shows below the error where nothing catches it: what to write instead."""
        return [f"fix: {self.fix}"] if self.fix else []


class Write(str):
    """A fix that is one value: of ``flag``, or of the flag at fault where that is empty; ``more`` is said behind it."""

    __slots__ = ("flag", "more", "value")

    flag: str
    value: str
    more: str

    def __new__(cls, flag: str, value: object, more: str = "") -> "Write":
        """The fix as it is said."""
        fix = str.__new__(cls, f"write {flag} {value}{more}" if flag else f"write {value}{more}")
        fix.flag, fix.value, fix.more = flag, str(value), more
        return fix

    @property
    def sets(self) -> str:
        """Its flag as a launch has it; empty where that is the flag at fault."""
        return f"{self.flag} {self.value}" if self.flag else ""

    @staticmethod
    def flags(flags: str, more: str = "") -> str:
        """The fix that sets ``flags``, which may be several; ``more`` is said behind them."""
        flag, _, value = flags.partition(" ")
        one = flag.startswith("--") and value and " " not in value
        return Write(flag, value, more) if one else WriteAll(flags, more)


class WriteAll(str):
    """A fix that is several flags (``sets``), as a launch has them; ``more`` is said behind them."""

    __slots__ = ("more", "sets")

    sets: str
    more: str

    def __new__(cls, flags: str, more: str = "") -> "WriteAll":
        """The fix as it is said."""
        fix = str.__new__(cls, f"write {flags}{more}")
        fix.sets, fix.more = flags, more
        return fix


class OneOf(str):
    """A fix that is any one of ``values`` of ``flag``."""

    __slots__ = ("flag", "values")

    flag: str
    values: tuple[str, ...]

    def __new__(cls, said: str, flag: str, values: Iterable[object]) -> "OneOf":
        """The fix as it is ``said``."""
        fix = str.__new__(cls, said)
        fix.flag, fix.values = flag, tuple(map(str, values))
        return fix


class Drop(str):
    """A fix that leaves flags out (``flags``, as a launch has them), all of them together."""

    __slots__ = ("flags",)

    flags: tuple[str, ...]

    def __new__(cls, *flags: str) -> "Drop":
        """The fix as it is said."""
        said = f"{', '.join(flags[:-1])} and {flags[-1]}" if len(flags) > 1 else flags[0]
        fix = str.__new__(cls, f"drop {said}")
        fix.flags = flags
        return fix


class Either(str):
    """A fix that is any one of ``ways``, each a fix."""

    __slots__ = ("ways",)

    ways: tuple[str, ...]

    def __new__(cls, *ways: str) -> "Either":
        """The fix as it is said."""
        fix = str.__new__(cls, ", or ".join(ways))
        fix.ways = ways
        return fix


def flags_of(fix: str) -> str:
    """The flags that a fix sets, as a launch has them; empty for one that sets none."""
    return fix.sets if isinstance(fix, Write | WriteAll) else ""


def fix_with(fix: str, told: str) -> str:
    """A fix with what its flags come to, said behind them."""
    more = fix.more if isinstance(fix, Write | WriteAll) else ""
    return f"{fix.removesuffix(more)}{told}{more}"


def write_one_of(flag: str, values: Sequence[object], more: str = "", *, behind: str = "") -> str:
    """A fix that is one of several values of a flag, and ``more`` that are not listed; empty for none. ``behind`` is
    said behind it.
    """
    *others, last = [*map(str, values), *([more] if more else [])] or [""]
    listed = f"{', '.join(others)} or {last}" if others else last
    return OneOf(f"write {flag} {listed}{behind}", flag, values) if last else ""


def with_release(release: str) -> str:
    """A fix that is another release of the engine."""
    return f"use --engine-version {release}"


def printable(text: str, most: int | None = None) -> str:
    """The text on one line without control characters, since answers and messages quote what users and files hold.

    Of a name or path of more than ``most`` characters, the beginning and the end.
    """
    shown = text if text.isprintable() else "".join(c if c.isprintable() else "?" for c in text)
    if most is None or len(shown) <= most:
        return shown
    kept = most - 3
    return shown[: kept // 2] + "..." + shown[-(kept - kept // 2) :]


def quoted(value: object, most: int = 40) -> str:
    """A user's text in quotes, or any other value as Python writes it; of a long one, the first ``most`` characters.

    Numbers of thousands of digits have no text.
    """
    if isinstance(value, str):
        return repr(str(value) if len(value) <= most else value[: most - 3] + "...")
    if isinstance(value, int) and value.bit_length() > 1024:
        return "a number of hundreds of digits"
    try:
        text = repr(value)
    except (ValueError, RecursionError):  # a long number, or a list without end, inside something
        text = f"a {type(value).__name__}"
    return text if len(text) <= most else text[: most - 3] + "..."


class InputError(HybridcalcError):
    """A file, a flag or a value that cannot be read as what it should be."""

    kind = "input"


class AmbiguousFlag(InputError):
    """The beginning of several flags' names; a release that is not known may have a flag of that very name."""

    kind = "ambiguous flag"


class MisspeltFlag(InputError):
    """A name that all but spells a flag; ``instead`` is the flag."""

    kind = "misspelt flag"

    def __init__(self, message: str, *, instead: str, flag: str = "") -> None:
        super().__init__(message, fix=f"write {instead}", flag=flag)
        self.instead = instead


class ModelNotFound(InputError):
    """MODEL is neither a preset nor a readable config."""

    kind = "model"


class ConfigError(InputError):
    """A model config whose fields are missing, unknown or contradictory; it is refused whole, never half-read."""

    kind = "config"


class NotModelled(InputError):
    """What no plan here knows, although the engine may well take it. ``lacking`` is what rules are lacking for."""

    kind = "not modelled"

    def __init__(self, message: str, *, lacking: str = "", fix: str = "", flag: str = "") -> None:
        super().__init__(message, fix=fix, flag=flag)
        self.lacking = lacking or f"this model: {self.message}"


class UnknownFamily(NotModelled):
    """A family of recurrent layers that an engine has no rule for."""


class ShardingError(HybridcalcError):
    """A tensor-parallel size that does not divide what it must divide.

    ``total`` is the number the engine tries to divide (it names it in its own assertion), ``parts`` the divisor. The
    question is clear and the answer is no: exit code 1. ``of_model``: whether its fix holds for the whole model, not
    for the part alone that was asked.
    """

    exit_code = 1
    kind = "sharding"
    of_model = False

    def __init__(self, message: str, *, total: int, parts: int, fix: str = "") -> None:
        super().__init__(message, fix=fix)
        self.total = total
        self.parts = parts


class IllegalCombination(HybridcalcError):
    """Flags that the engine itself refuses together. The question is clear and the answer is no: exit code 1."""

    exit_code = 1
    kind = "combination"


class Refusal(IllegalCombination):
    """A configuration that an engine does not start with: the ``stage`` of its start-up, the ``reason``, the fix.

    ``rule`` is its id among the engine's rules, ``outputs`` what the stages before it had settled, ``beside`` what
    is wrong with the arguments besides, where a later stage would say it. ``undecided``: another memory within the
    estimate would start.
    """

    kind = "refusal"

    def __init__(self, reason: str, *, stage: str, rule: str, fix: str = "", flag: str = "", release: str = "") -> None:
        super().__init__(reason, fix=fix, rule=rule, flag=flag, release=release)
        self.stage = stage
        self.reason = self.message
        self.outputs: dict[str, Any] = {}
        self.beside: tuple[Refusal, ...] = ()
        self.undecided = False


class MemoryUnknown(InputError):
    """The memory that a plan needs follows from nothing given. ``figures``: what is missing for it, in words."""

    kind = "memory"

    def __init__(self, message: str, *, figures: tuple[str, ...], fix: str = "") -> None:
        super().__init__(message, fix=fix)
        self.figures = figures
