"""What do the commands do that a shell carries out itself? Assignments, tests, arithmetic, and what takes a value away.

    N=8   export A=1   read X   set -- --tp 8   shift   unset N   ((N += 1))   [ "$N" -gt 4 ]   [[ -n $N ]]

They change the variables of the script's scopes, or decide a condition whose operands are known.
"""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from hybridcalc.errors import InputError
from hybridcalc.shell import Setting, Text
from hybridcalc.shell.commands import ASSIGNMENT
from hybridcalc.shell.parse import Token, placed, tokens
from hybridcalc.shell.scopes import Scopes, opposite
from hybridcalc.shell.variables import FROM_CALLER, PARAMETER, REFERENCE, Variables

if TYPE_CHECKING:
    from hybridcalc.shell.conditions import Operand

LONGEST_CONDITION = 2_000
"""Characters between ``[[`` and ``]]``."""
DECLARING = {"export", "declare", "typeset", "local", "readonly"}
_NAME = re.compile(r"[A-Za-z_]\w*")
_TESTS = {"[": "]", "[[": "]]", "test": ""}
"""What begins a condition, and what ends it."""
_READING = {"read", "mapfile", "readarray", "getopts"}
_OTHERS = {"true", ":", "false", "let", "unset", "shift"}
RAN = "ran"
"""The status of a command that is taken to have succeeded."""
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


class Builtins:
    """The commands that the shell of one script carries out itself.

    ``compared``: the variables whose defaults decided the condition that was read last, ``assumed``: those of all;
    ``read_to``: up to where the script was read as a condition.
    """

    def __init__(self, text: Text, variables: Variables, scopes: Scopes) -> None:
        self.text, self.variables, self.scopes = text, variables, scopes
        self.read_to = 0
        self.assumed: set[str] = set()
        self.compared: set[str] = set()

    def knows(self, words: list[Token]) -> bool:
        """Whether a command is one of them, beside assignments."""
        head = words[0].text
        if head == "printf":
            return len(words) > 2 and words[1].text == "-v"
        if head == "set":
            return len(words) > 1 and words[1].text == "--"
        return head in _TESTS or head in _READING or head in _OTHERS

    def run(self, words: list[Token], unsure: bool) -> Status:
        """Carry it out, where it may not run (``unsure``); how it ended."""
        head = words[0].text
        if head in _TESTS:
            return self._condition(words)
        if head in ("true", ":", "false"):
            self._set_by_default(words[1:], unsure)
            return head != "false"
        if head in _READING:
            for token in words[1:]:
                if _NAME.fullmatch(token.text):
                    self.unclear(token.text, token, f"{head} sets it")
            return None
        if head == "let":
            self._calculated(words[1:])
        elif head == "printf":
            self.unclear(words[2].text, words[2], "printf sets it")
        elif head == "unset":
            self._unset(words[1:], unsure)
        elif head == "set":
            self._set(words[2:], unsure)
        else:
            self._shift(words, unsure)
        return RAN

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
        from hybridcalc.shell.conditions import decided

        with self.comparing():
            operands = [self.operand(token) for token in inner if token.kind != "comment" and token.text != ";"]
            return decided(operands, extended=head == "[[")

    @contextmanager
    def comparing(self) -> Iterator[None]:
        """What is read within is compared: it says which defaults decide."""
        variables = self.variables
        before, variables.used, variables.read = variables.used, set(), set()
        yield
        self.assumed |= variables.used
        self.compared |= {name for name in variables.read if name in variables.used or variables.assumed.get(name)}
        variables.used = before

    def operand(self, token: Token) -> "Operand":
        """A word of a condition, as typed and as it comes out."""
        from hybridcalc.shell.conditions import Operand

        raw = self.text.text[token.begin : token.end]
        typed = token.text if raw == token.text else f"'{token.text}'"
        value = token.text if token.kind != "live" else self.variables.resolved(token.text)[0]
        return Operand(typed, value)

    def arithmetic(self, words: list[Token]) -> Status:
        """What ``(( ... ))`` comes to; a variable that it assigns to is not known any more."""
        begin = words[0].begin if words else self.read_to
        end = self.text.text.find("))", begin, begin + LONGEST_CONDITION)
        expression = self.text.text[begin:end] if end >= 0 else ""
        self.read_to = max(self.read_to, begin + len(expression))
        assigned = self._calculated(words) or any(_CALCULATED.finditer(expression))
        if assigned or not expression:
            return None
        with self.comparing():
            value = self.variables.number(expression)[0]
        return None if value is None else value != 0

    def _calculated(self, words: list[Token]) -> bool:
        found = list(_CALCULATED.finditer(" ".join(token.text for token in words)))
        for match in found:
            self.unclear(match[1] or match[2], words[0], "arithmetic decides it")
        return bool(found)

    def unclear(self, name: str, where: Token, why: str, *, maybe: bool = False) -> None:
        """A variable is set to something that nobody here works out."""
        self.scopes.assign(name, Setting((), why, self.variables.place(where.begin)), maybe=maybe)

    def assign(self, words: list[Token], unsure: bool) -> list[Token]:
        """Take the assignments at the front of a command in; what is left where they stand before a command."""
        head = words[0].text
        declaring = head in DECLARING
        exports = head == "export" or (declaring and any(token.text == "-x" for token in words[1:3]))
        pairs: list[tuple[str, Setting, bool]] = []
        for token in words[1:] if declaring else words:
            match = ASSIGNMENT.match(token.text)
            if match is not None:
                pairs.append((match[1], *self.variables.assigned(token, match)))
            elif not declaring:
                return words  # they hold for this command alone, and `Launchers.find` reads them
            elif exports and _NAME.fullmatch(token.text):
                self.variables.exports.add(token.text)
        for name, setting, appended in pairs if not self.scopes.within("args") else ():
            if appended:
                setting = self.variables.appended(name, setting)
            if exports:
                self.variables.exports.add(name)
            if head in ("local", "declare", "typeset"):
                self.scopes.localize(name)
            self.scopes.assign(name, setting, maybe=unsure, appended=appended)
        return []

    def _set_by_default(self, words: list[Token], unsure: bool) -> None:
        """``: ${N:=8}``: what an expansion sets where nothing has."""
        for token in words:
            match = REFERENCE.fullmatch(token.text) if token.kind == "live" else None
            parameter = PARAMETER.fullmatch(match[2] or "") if match is not None else None
            if parameter is None or parameter[3] not in (":=", "=") or self.variables.known(parameter[1]):
                continue
            name, before, self.variables.used = parameter[1], self.variables.used, set()
            text, why = self.variables.parameter(parameter[0])
            self.variables.assumed[name], self.variables.used = frozenset(self.variables.used), before
            words_of = () if text is None else (placed(self.text, token._replace(text=text)),)
            self.scopes.assign(name, Setting(words_of, why, self.variables.place(token.begin)), maybe=unsure)

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

    def _unset(self, words: list[Token], unsure: bool) -> None:
        if any(token.text == "-f" for token in words):
            return
        for token in words:
            name = _NAME.match(token.text)
            if name is None:
                continue
            if unsure or self.scopes.conditions or name[0] != token.text:
                self.unclear(name[0], token, "an unset takes it away", maybe=unsure)
                continue
            self.scopes.change(self.variables.values, name[0], None)
            self.scopes.change(self.variables.env, name[0], None)
            self.scopes.change(self.variables.gone, name[0], True)
