"""What are a script's variables worth? Assignments, the environment, positional arguments, and what the caller gives.

    ${TP:-8}    $((NODES * 8))    ${ARGS[@]}

What a condition, a loop or another program sets has no value but a reason; ``--set`` and ``--env-file`` give those and
the variables from outside one, and never overrule what the script says itself.
"""

import re
from collections.abc import Mapping, Sequence

from hybridcalc.shell.bounds import spend
from hybridcalc.shell.source import AnyWord, Setting, Text, Unknown, Word

Outside = Mapping[str, str]
"""What the caller says about variables: ``--set`` and ``--env-file``."""
FROM_CALLER = "the script is started with it"
A_VARIABLE = "a variable decides it"
"""Why a word is not known that nobody has looked up yet."""
LONGEST_VALUE = 32_768
DEEPEST_DEFAULT = 4
"""Defaults inside defaults."""
REFERENCE = re.compile(r"\$(?:([A-Za-z_]\w*|[0-9@*#?!$-])|\{([^{}]*(?:\{[^{}]*\}[^{}]*)*)\}|\(\(([^()]*)\)\)|(\())|(`)")
"""One expansion: a name, braces, arithmetic, a command or backticks."""
PARAMETER = re.compile(r"([A-Za-z_]\w*|[0-9]+|[@*#])(\[[@*]\])?(?:(:?[-=?+])(.*)|(:[0-9]+)?)", re.DOTALL)
"""What stands in braces: a name, ``[@]``, an operator and its word."""
_ARITHMETIC = re.compile(r"[\s0-9A-Za-z_$+*/%()-]{1,200}")


class Variables:
    """The variables of one script: ``values`` as it sets them, ``env`` as it finds them."""

    def __init__(self, text: Text, env: Mapping[str, Setting], outside: Outside, arguments: Sequence[AnyWord]) -> None:
        self.text, self.env, self.outside, self.arguments = text, dict(env), outside, arguments
        self.values: dict[str, Setting] = {}
        self.exports: set[str] = set()
        self.gone: dict[str, bool] = {}

    def exported(self) -> dict[str, Setting]:
        """The environment of what is started."""
        spend(visits=len(self.env) + len(self.values))
        return self.env | {name: s for name, s in self.values.items() if name in self.exports or name in self.env}

    def visible(self) -> dict[str, Setting]:
        """What scripts inside the script see: a here-document is expanded before it is read."""
        spend(visits=len(self.env) + len(self.values))
        return self.env | self.values

    def known(self, name: str) -> Setting | None:
        """What is said of a variable here; None where it is set by nothing."""
        return self.values.get(name) or self.env.get(name)

    def lookup(self, name: str) -> Setting:
        """A variable's value, or why it has none."""
        setting = self.known(name)
        if setting is not None and not setting.why and not setting.more:
            return setting
        given = self.outside.get(name) if name not in self.gone else None
        if given is not None:
            word = Word(given, self.text.source, self.text.at(0), self.text.at(0))
            if setting is not None and setting.more:  # the part that is known stays
                return setting._replace(words=(*setting.parts, *Setting((word,)).parts), more="", array=True)
            return Setting((word,))
        return setting or Setting((), f"{name} comes from outside")

    def resolved(self, text: str, depth: int = 0) -> tuple[str | None, str]:
        """A text with its variables replaced, or None and why not."""
        parts: list[str] = []
        at = 0
        for match in REFERENCE.finditer(text):
            if match.start() < at:
                continue
            if match[4] or match[5]:
                return None, self._command_reason(text[match.start() :])
            if match[3] is not None:
                value, why = self._calculated(match[3])
            else:
                value, why = self._parameter(match[1] or match[2], depth)
            if value is None:
                return None, why
            parts += (text[at : match.start()], value)
            at = match.end()
        joined = "".join((*parts, text[at:]))
        if len(joined) > LONGEST_VALUE:
            return None, "its value grows too long"
        spend(characters=len(joined))
        return joined, ""

    def _command_reason(self, text: str) -> str:
        name = re.match(r"\$\(([A-Za-z_]\w*)\)", text)
        if name is not None and name[1] in self.env:
            return self.env[name[1]].reason or f"{name[1]} is not known"
        return "a command's output decides it"

    def _parameter(self, inside: str, depth: int) -> tuple[str | None, str]:
        parameter = PARAMETER.fullmatch(inside)
        if inside.startswith("{"):
            return None, "a template decides it"
        if parameter is None or depth > DEEPEST_DEFAULT:
            return None, "an expansion decides it"
        name, operator, default = parameter[1], parameter[3], parameter[4]
        if name.isdigit() and int(name) < 100:
            position = int(name) - 1
            if 0 <= position < len(self.arguments):
                item = self.arguments[position]
                return (None, item.why) if isinstance(item, Unknown) else (str(item), "")
            setting = Setting((), FROM_CALLER)
        elif name in ("#", "@", "*") or name.isdigit():
            return None, FROM_CALLER
        else:
            setting = self.lookup(name)
        outside = setting.why and name not in self.values
        if operator in (":-", "-", ":=", "=") and default is not None:
            if (outside and name not in self.env) or (setting.text == "" and operator.startswith(":")):
                return self.resolved(_unquoted(default), depth + 1)
        elif operator in (":+", "+") and default is not None:
            if outside and name not in self.env:
                return "", ""
            if not setting.why:
                return self.resolved(_unquoted(default), depth + 1) if setting.text else ("", "")
        return setting.text, setting.reason

    def _calculated(self, expression: str) -> tuple[str | None, str]:
        """Whole-number arithmetic on known variables."""
        if not _ARITHMETIC.fullmatch(expression) or "**" in expression:
            return None, "arithmetic decides it"
        reasons: list[str] = []

        def value(match: re.Match[str]) -> str:
            text, why = self._parameter(match[0].lstrip("$"), 0)
            if text is None or not text.isdecimal() or len(text) > 12:
                reasons.append(why or "arithmetic decides it")
                return "1"
            return text

        numbers = re.sub(r"\$?[A-Za-z_]\w*", value, expression)
        if reasons:
            return None, reasons[0]
        result = calculate(numbers)
        return (None, "arithmetic decides it") if result is None else (str(result), "")


def calculate(text: str) -> int | None:
    """The value of a sum of products of whole numbers, without brackets; None for anything else."""
    total, sign = 0, 1
    for term in re.split(r"([+-])", text.replace(" ", "")):
        if term in ("+", "-"):
            sign = 1 if term == "+" else -1
            continue
        factors = re.split(r"([*/%])", term)
        if not all(factor.isdecimal() and len(factor) < 13 for factor in factors[::2]):
            return None
        product = int(factors[0])
        for operator, factor in zip(factors[1::2], factors[2::2], strict=True):
            number = int(factor)
            if operator != "*" and not number:
                return None
            product = (
                product * number if operator == "*" else product // number if operator == "/" else product % number
            )
        total += sign * product
    return total


def _unquoted(text: str) -> str:
    return text[1:-1] if len(text) > 1 and text[0] == text[-1] and text[0] in "'\"" else text
