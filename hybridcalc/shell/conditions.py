"""Is a condition of a shell true? Tests, patterns of ``case`` and whole-number arithmetic, on operands that are known.

    [ "$n" -gt 0 ]  with n = 3   ->   True            [ -f /x ], [ -n "$OUTSIDE" ]   ->   None: nobody here knows

Of a chain of conditions each is decided by itself: one that is false makes ``&&`` false, whatever the others are. Left
out: what asks about files, and regular expressions beyond classes, repetition and anchors.
"""

import re
from collections.abc import Callable, Sequence
from fnmatch import fnmatchcase
from typing import NamedTuple

from hybridcalc.shell.scopes import both, either, opposite

LONGEST_OPERAND = 1_000
"""Characters of a text that is matched with a pattern."""
LONGEST_EXPRESSION = 400
_COMPARED: dict[str, Callable[[int, int], bool]] = {
    "-eq": int.__eq__, "-ne": int.__ne__, "-lt": int.__lt__, "-le": int.__le__, "-gt": int.__gt__, "-ge": int.__ge__,
}  # fmt: skip
_TEXTS = ("=", "==", "!=", "=~", "<", ">")
_NUMBER = re.compile(r"\s*[+-]?[0-9]{1,18}\s*")
_ARITHMETIC = re.compile(r"\s*[+-]?(?:0|[1-9][0-9]{0,17})\s*")
"""Numbers that are the same in arithmetic, where a leading 0 is octal, as what ``[[`` compares."""
_PLAIN_REGEX = re.compile(r"\^?(?:(?:[\w ./:,@-]|\[[^\[\]]+\])[+*?]?)*\$?")
"""Regular expressions that cannot take long, and mean the same in bash and here."""
_LEVELS = (
    ("||",), ("&&",), ("|",), ("^",), ("&",), ("==", "!="), ("<=", ">=", "<", ">"), ("<<", ">>"), ("+", "-"),
    ("*", "/", "%"),
)  # fmt: skip
"""Operators of arithmetic, those that bind least first."""
_SYMBOL = re.compile(r"\s*([0-9]+|\*\*|<<|>>|<=|>=|==|!=|&&|\|\||[-+*/%()<>!~&|^?:])")


class Operand(NamedTuple):
    """A word of a condition: as it is typed, and what it is worth; None where nobody knows."""

    typed: str
    value: str | None


def decided(operands: Sequence[Operand], *, extended: bool) -> bool | None:
    """What stands between ``[`` and ``]``, or ``[[`` and ``]]`` (``extended``); None where nobody knows."""
    reader = _Reader(list(operands), extended=extended)
    verdict = reader.any_of(0)
    return verdict if reader.at == len(reader.operands) and not reader.odd else None


class _Reader:
    """Reads a condition from left to right; ``odd`` once something stands where nothing was expected."""

    def __init__(self, operands: list[Operand], *, extended: bool) -> None:
        self.operands, self.extended = operands, extended
        self.at, self.odd = 0, False

    def _next(self, *typed: str) -> bool:
        found = self.at < len(self.operands) and self.operands[self.at].typed in typed
        self.at += found
        return found

    def any_of(self, depth: int) -> bool | None:
        verdict = self._all_of(depth)
        while self._next("||", "-o"):
            verdict = either(verdict, self._all_of(depth))
        return verdict

    def _all_of(self, depth: int) -> bool | None:
        verdict = self._one(depth)
        while self._next("&&", "-a"):
            verdict = both(verdict, self._one(depth))
        return verdict

    def _one(self, depth: int) -> bool | None:
        left = self.operands[self.at :]
        if not left or depth > 10:
            self.odd = True
            return None
        operator = left[1].typed if len(left) > 1 else ""
        if operator in _COMPARED or operator in _TEXTS:
            if len(left) < 3:
                self.odd = True
                return None
            self.at += 3
            return self._compared(left[0], operator, left[2])
        if self._next("!"):
            return opposite(self._one(depth + 1))
        if self._next("("):
            verdict = self.any_of(depth + 1)
            self.odd = self.odd or not self._next(")")
            return verdict
        if re.fullmatch(r"-[a-zA-Z]", left[0].typed) and len(left) > 1 and operator not in ("&&", "||", "-a", "-o"):
            self.at += 2
            value = left[1].value
            if value is None or left[0].typed not in ("-n", "-z"):
                return None
            return (value != "") == (left[0].typed == "-n")
        self.at += 1
        return None if left[0].value is None else left[0].value != ""

    def _compared(self, left: Operand, operator: str, right: Operand) -> bool | None:
        if left.value is None or right.value is None or max(len(left.value), len(right.value)) > LONGEST_OPERAND:
            return None
        compared = _COMPARED.get(operator)
        if compared is not None:
            number = _ARITHMETIC if self.extended else _NUMBER
            known = number.fullmatch(left.value) and number.fullmatch(right.value)
            return compared(int(left.value), int(right.value)) if known else None
        if operator == "=~":
            safe = _PLAIN_REGEX.fullmatch(right.value) is not None and len(left.value) < 200
            try:
                return re.search(right.value, left.value) is not None if safe else None
            except re.error:
                return None
        if operator in ("<", ">"):
            return (left.value < right.value) == (operator == "<")
        same = matches(left.value, right.value) if self.extended else left.value == right.value
        return opposite(same) if operator == "!=" else same


def matches(text: str, pattern: str) -> bool | None:
    """Whether a text is of a shell's pattern; None for a pattern that is not read here."""
    if max(len(text), len(pattern)) > LONGEST_OPERAND or re.search(r"[?*+@!]\(", pattern):
        return None
    return fnmatchcase(text, pattern.replace("[^", "[!"))


def calculate(text: str) -> int | None:
    """The value of whole-number arithmetic as a shell calculates it; None for what is none, or too large."""
    symbols: list[str] = []
    at = 0
    text = text.strip()
    while at < len(text):
        match = _SYMBOL.match(text, at)
        if match is None or len(text) > LONGEST_EXPRESSION or len(match[1]) > 18:
            return None
        symbols.append(match[1])
        at = match.end()
    try:
        value, rest = _choice(symbols, 0)
    except (IndexError, ValueError, ZeroDivisionError, RecursionError):
        return None
    return value if rest == len(symbols) else None


def _choice(symbols: list[str], at: int) -> tuple[int, int]:
    """``a ? b : c``, or what binds closer."""
    value, at = _binary(symbols, at, 0)
    if symbols[at : at + 1] != ["?"]:
        return value, at
    first, at = _choice(symbols, at + 1)
    if symbols[at] != ":":
        raise ValueError
    second, at = _choice(symbols, at + 1)
    return (first if value else second), at


def _binary(symbols: list[str], at: int, level: int) -> tuple[int, int]:
    if level == len(_LEVELS):
        return _power(symbols, at)
    value, at = _binary(symbols, at, level + 1)
    while at < len(symbols) and symbols[at] in _LEVELS[level]:
        operator = symbols[at]
        other, at = _binary(symbols, at + 1, level + 1)
        value = _applied(operator, value, other)
    return value, at


def _power(symbols: list[str], at: int) -> tuple[int, int]:
    value, at = _unary(symbols, at)
    if symbols[at : at + 1] == ["**"]:
        exponent, at = _power(symbols, at + 1)
        value = _applied("**", value, exponent)
    return value, at


def _unary(symbols: list[str], at: int) -> tuple[int, int]:
    """A number, brackets, or a sign before one: it binds closer than a power, so that ``-2**2`` is 4."""
    symbol = symbols[at]
    if symbol in ("-", "+", "!", "~"):
        value, at = _unary(symbols, at + 1)
        return {"-": -value, "+": value, "!": int(not value), "~": ~value}[symbol], at
    if symbol == "(":
        value, at = _choice(symbols, at + 1)
        if symbols[at] != ")":
            raise ValueError
        at += 1
    else:
        octal = len(symbol) > 1 and symbol[0] == "0"  # 08 is none, which int() refuses
        value, at = int(symbol, 8 if octal else 10), at + 1
    return value, at


def _applied(operator: str, left: int, right: int) -> int:
    if operator in ("**", "<<", ">>"):
        if not 0 <= right < 64:
            raise ValueError
        value = left**right if operator == "**" else left << right if operator == "<<" else left >> right
    elif operator in ("/", "%"):  # towards zero, as in C
        quotient = abs(left) // abs(right) * (1 if (left < 0) == (right < 0) else -1)
        value = quotient if operator == "/" else left - quotient * right
    else:
        value = {
            "+": left + right,
            "-": left - right,
            "*": left * right,
            "&": left & right,
            "|": left | right,
            "^": left ^ right,
            "<": int(left < right),
            ">": int(left > right),
            "<=": int(left <= right),
            ">=": int(left >= right),
            "==": int(left == right),
            "!=": int(left != right),
            "&&": int(bool(left and right)),
            "||": int(bool(left or right)),
        }[operator]
    if abs(value) >= 2**63:
        raise ValueError
    return value
