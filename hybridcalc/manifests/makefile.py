r"""Which engines do the recipes of a Makefile start?

    MODEL ?= org/m                        ->   vllm  org/m  --max-model-len  8192
    serve:
        vllm serve $(MODEL) \
          --max-model-len 8192

As make reads it: `=` is expanded where it is used, `:=` where it stands, `+=` appends, `?=` sets what nothing has set;
values are text that the shell reads; each recipe line is a shell of its own, under the variables that are exported.
What a condition, a target, `define` or a command sets is not known. Left out: functions, other files, dependencies.
"""

import re
from collections.abc import Iterator
from typing import NamedTuple

from hybridcalc.errors import InputError
from hybridcalc.manifests import Deployment
from hybridcalc.manifests.scripts import run_script
from hybridcalc.shell import FromOutside, Setting, Text, Word, spend
from hybridcalc.shell.variables import LONGEST_VALUE, Outside

MOST_LINES = 20_000
DEEPEST = 20
"""Variables whose values name variables."""
_LINE = re.compile(r"(?:[^\\\n]|\\\r?\n|\\[\s\S])*(?:\n|\Z)")
"""A line, and those that a backslash joins to it."""
_CONTINUED = re.compile(r"[ \t]*\\\r?\n[ \t]*")
_RECIPE_CONTINUED = re.compile(r"(?<=\n)\t")
_MODIFIERS = r"(?:(?:export|override|private)[ \t]+)*"
_ASSIGNMENT = re.compile(
    rf" *(?P<modifiers>{_MODIFIERS})(?P<name>[A-Za-z_]\w*)[ \t]*(?P<operator>\?|\+|!|:{{1,3}})?=[ \t]*"
    r"(?P<value>(?:[^#\\\r\n]|\\[^\r\n]|\\\r?\n|\r(?!\n))*)"
)
_OF_TARGET = re.compile(rf"[^\s#:=][^#:=\n]*::?[ \t]*{_MODIFIERS}([A-Za-z_]\w*)[ \t]*(?:[?+!]|:{{1,3}})?=")
_DEFINE = re.compile(rf" *{_MODIFIERS}define[ \t]+([A-Za-z_]\w*)")
_UNDEFINE = re.compile(r" *(?:override[ \t]+)?undefine[ \t]+([A-Za-z_]\w*)")
_EXPORT = re.compile(r" *export\b([^=#\n]*)(?:#|\n|\Z)")
_REFERENCE = re.compile(r"\$\$|\$\(([A-Za-z_]\w*)\)|\$\{([A-Za-z_]\w*)\}|\$([A-Za-z_])")
_PREFIX = re.compile(r"\A\t[@+ \t-]*")
_PREFIXES = re.compile(r"(?m)(?<!\\\n)(?<!\\\r\n)^\t[@+ \t-]*")
_PLAIN = re.compile(r"[\w./:=,+@ -]*")
"""Values that a shell leaves as they are."""


class _Made(NamedTuple):
    """A variable: its text, or ``why`` nobody knows it; ``later``: expanded where it is used; where it is written."""

    text: str
    why: str = ""
    later: bool = True
    begin: int = 0
    end: int = 0


class _Makefile:
    """The variables of a Makefile as they are behind its last line, and its recipes."""

    def __init__(self, text: Text, outside: Outside) -> None:
        self.text, self.outside = text, outside
        self.made: dict[str, _Made] = {}
        self.exported: set[str] = set()
        self.all_exported = False
        self.one_shell = re.search(r"(?m)^\.ONESHELL[ \t]*:", text.text) is not None
        self.recipes: list[tuple[int, int]] = []
        self.set_in_file = {match["name"] for match in re.finditer(rf"(?m)^{_ASSIGNMENT.pattern}", text.text)}
        self._read()

    def _read(self) -> None:
        depth, defined, recipe = 0, False, -1
        for count, line in enumerate(_LINE.finditer(self.text.text)):
            begin, content = line.start(), line[0]
            word = content.strip().partition(" ")[0].partition("\t")[0].partition("(")[0]
            if count > MOST_LINES:
                raise InputError(f"a Makefile of more than {MOST_LINES:,} lines")
            if defined:
                defined = word != "endef"
            elif content.startswith("\t"):
                if self.one_shell and recipe >= 0:
                    self.recipes[-1] = (recipe, line.end())
                else:
                    recipe = begin
                    self.recipes.append((begin, line.end()))
            elif word in ("ifeq", "ifneq", "ifdef", "ifndef"):
                depth += 1
            elif word == "endif":
                depth = max(0, depth - 1)
            elif content.strip() and word != "else" and not word.startswith("#"):
                recipe = -1
                defined = self._directive(content, begin, depth > 0)

    def _directive(self, line: str, begin: int, conditional: bool) -> bool:
        """Take in a line that is no recipe's; whether it begins a ``define``."""
        where = f"(line {self.text.source.place(self.text.at(begin)).line})"
        if (match := _DEFINE.match(line)) is not None:
            self.made[match[1]] = _Made("", f"define sets it {where}")
        elif (match := _UNDEFINE.match(line)) is not None:
            self.made[match[1]] = _Made("", f"it is undefined {where}")
        elif (match := _ASSIGNMENT.match(line)) is not None:
            if "export" in match["modifiers"]:
                self.exported.add(match["name"])
            self._assign(match, begin, f"a condition sets it {where}" if conditional else "", where)
        elif (match := _OF_TARGET.match(line)) is not None:
            self.made[match[1]] = _Made("", f"a target sets it {where}")
        elif (match := _EXPORT.match(line)) is not None:
            self.exported.update(match[1].split())
            self.all_exported = self.all_exported or not match[1].strip()
        elif line.startswith(".EXPORT_ALL_VARIABLES"):
            self.all_exported = True
        return _DEFINE.match(line) is not None

    def _assign(self, match: re.Match[str], begin: int, why: str, where: str) -> None:
        name, operator, held = match["name"], match["operator"] or "", self.made.get(match["name"])
        if operator == "?" and held is not None:
            return
        if operator == "!":
            why = why or f"a command sets it {where}"
        value = _CONTINUED.sub(" ", match["value"]).replace("\\#", "#").strip()
        start = begin + match.start("value")
        made = _Made(value, why, not operator.startswith(":"), start, start + len(match["value"].rstrip()))
        given = self.outside.get(name)
        if operator == "?" and given is not None:
            made = _Made(given.replace("$", "$$"))
        if operator == "+" and (held is not None or given is not None):
            held = held or _Made((given or "").replace("$", "$$"))
            made = _Made(f"{held.text} {value}".strip(), held.why or why, held.later)
            if not held.later:
                made = self._at_once(made._replace(text=value), held.text)
        elif not made.later and not why:
            made = self._at_once(made)
        self.made[name] = made
        if len(self.made[name].text) > LONGEST_VALUE:
            self.made[name] = _Made("", "its value grows too long")

    def _at_once(self, made: _Made, before: str = "") -> _Made:
        """A value that is expanded where it stands; what is not known there, and is set elsewhere, leaves it open."""
        text = self.expanded(made.text, 0)
        unknown = [name for match in _REFERENCE.finditer(text) if (name := _name(match)) in self.set_in_file]
        if unknown:
            return _Made("", made.why or self.reason(unknown[0]), False)
        return made._replace(text=f"{before} {text}".strip())

    def reason(self, name: str) -> str:
        """Why a variable is not known."""
        made = self.made.get(name)
        return FromOutside(name) if made is None else made.why or f"{name} is not known"

    def expanded(self, text: str, depth: int) -> str:
        """A text with the variables that are known; those that are not, and ``$$``, stay."""

        def value(match: re.Match[str]) -> str:
            name = _name(match)
            known = self.value(name, depth + 1) if name else None
            return match[0] if known is None else known

        result = _REFERENCE.sub(value, text) if "$" in text else text
        spend(characters=len(result))
        return result

    def value(self, name: str, depth: int = 0) -> str | None:
        """A variable's text; None where nobody knows it."""
        spend(visits=1)
        made = self.made.get(name)
        if made is None or made.why:
            given = self.outside.get(name)
            return None if given is None else given.replace("$", "$$")
        text = made.text if depth > DEEPEST else self.expanded(made.text, depth)
        return text if len(text) <= LONGEST_VALUE and depth <= DEEPEST else None

    def deployments(self) -> Iterator[Deployment]:
        """What the recipes start."""
        env = {name: self._setting(name) for name in self.made if self.all_exported or name in self.exported}
        for begin, end in self.recipes:
            line = self.text.part(begin, end).replaced(_PREFIXES if self.one_shell else _PREFIX, lambda _: "")
            line = line.replaced(_RECIPE_CONTINUED, lambda _: "")
            named = self._named(line.text, env)
            unknown: dict[str, Setting] = {}

            def put(
                match: re.Match[str], named: dict[str, Setting] = named, open_: dict[str, Setting] = unknown
            ) -> str:
                name = _name(match)
                return f"${{{name}}}" if name in named else self._shown(match[0], open_)

            line = line.replaced(_REFERENCE, put)
            for launch in run_script(line, env | unknown | named, self.outside).launches:
                yield Deployment(self.text.source, "makefile", "", launch)

    def _named(self, line: str, env: dict[str, Setting]) -> dict[str, Setting]:
        """The variables of make that a recipe may find by name, and so where they are written: plain values whose names
        the shell does not use itself. Single quotes would hold the name.
        """
        if "'" in line:
            return {}
        names = {name for match in _REFERENCE.finditer(line) if (name := _name(match))} - set(env)
        own = re.compile(r"(?<!\w)([A-Za-z_]\w*)(?==|[ \t]+in\b)|\$\$\{?([A-Za-z_]\w*)")
        names -= {match[1] or match[2] for match in own.finditer(line)}
        return {name: self._setting(name) for name in names if _PLAIN.fullmatch(self.value(name) or "$")}

    def _shown(self, text: str, unknown: dict[str, Setting]) -> str:
        """A text as a recipe's shell gets it: what is not known is left as a command that nobody runs."""

        def left(match: re.Match[str]) -> str:
            name = _name(match)
            if not name:
                return "$"
            unknown.setdefault(name, Setting((), self.reason(name)))
            return f"$({name})"

        return _REFERENCE.sub(left, self.expanded(text, 0))

    def _setting(self, name: str) -> Setting:
        """A variable as the environment holds it."""
        made, value = self.made.get(name), self.value(name)
        if value is None or "$" in value:
            return Setting((), self.reason(name))
        if made is None or made.why or not made.end:
            return Setting((Word(value, self.text.source, self.text.at(0), self.text.at(0)),))
        written = self.text.part(made.begin, made.end)
        begin, end = self.text.at(made.begin), self.text.end(made.end)
        return Setting((Word(value, self.text.source, begin, end, written if written.text == value else None),))


def _name(match: re.Match[str]) -> str:
    return match[1] or match[2] or match[3] or ""


def read_makefile(text: Text, outside: Outside, beside: object = None) -> Iterator[Deployment]:
    """Every engine that the recipes of a Makefile start. Raises InputError for one of too many lines."""
    yield from _Makefile(text, outside).deployments()
