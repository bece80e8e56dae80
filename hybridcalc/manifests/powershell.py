r"""Which engines do scripts of PowerShell start? Said anew as a shell's script, by statements, and read as one.

    $n = 4                                ->   n='4'
    if ($x) { $n = 9 }                    ->   n=$(a_condition)
    $env:N = '4'                          ->   export N='4'
    $a = '--tp', '8'; vllm serve m @a     ->   a=('--tp' '8'); vllm serve m "${a[@]}"
    Start-Process vllm -ArgumentList "serve m --tp 8"   ->   vllm serve m --tp 8

A value holds from its statement on. Names ignore case: the environment's are said in capitals, the script's own in
small letters, and are not handed on. Left out: functions, what expressions come to, other files.
"""

import re
from collections.abc import Iterator

from hybridcalc.engines import ENGINES
from hybridcalc.manifests import Deployment
from hybridcalc.manifests.windows import Script
from hybridcalc.shell import Text
from hybridcalc.shell.variables import Outside

_STRING = r"(?:\"(?:[^\"`]|`[\s\S]|\"\")*\"|'(?:[^']|'')*')"
_NUMBER = r"(?:0|[1-9][0-9]{0,17})(?:\.[0-9]{1,9})?"
_PART = re.compile(
    rf"(?P<text>@\"[ \t]*\r?\n[\s\S]*?\n\"@|@'[ \t]*\r?\n[\s\S]*?\n'@|{_STRING}|`[ \t]*\r?\n|`.|\$\{{[\w:]+\}})"
    r"|(?P<comment><\#[\s\S]*?\#>|(?:(?<=[\s;{}()])|\A)\#[^\n]*)|(?P<open>@\{|[({])|(?P<close>[)}])|(?P<end>[;\n|]|&&)"
)
"""What the statements of a script are told apart by."""
_SET = re.compile(
    r"\s*(?:\[[^\]\n]*\]+\s*)?\$(?:(?P<scope>env|global|script|local|private):)?(?P<name>[A-Za-z_]\w*)\s*"
    r"(?P<operator>[-+*/%?]{0,2}=(?!=)|\+\+|--|[.\[][^=\n]*=|\.\w+\()\s*",
    re.I,
)
_ALSO_SET = re.compile(r"(\$[A-Za-z_]\w*(?:\s*,\s*\$[A-Za-z_]\w*)*)\s*(?:[-+*/%?]{0,2}=(?!=)|\+\+|--(?!\w))")
"""What else a statement sets, within it or several at once."""
_OTHER_SET = re.compile(
    r"\s*(?:(?:set|new|remove|clear)-variable\s+(?:-name\s+)?[\"']?(?P<name>[A-Za-z_]\w*)"
    r"|(?:set|new|remove|clear)-(?:item|content)\s+(?:-path\s+)?[\"']?env:[\\/]?(?P<env>[A-Za-z_]\w*))",
    re.I,
)
_PARAMETERS = re.compile(r"\s*(?:\[[^\[\]\n]*\]\s*)*param\s*\(", re.I)
_PARAMETER = re.compile(rf"\$([A-Za-z_]\w*)\s*=\s*({_STRING}|{_NUMBER})(?=\s*[,)])")
_LOOP = re.compile(r"\s*foreach\s*\(\s*\$([A-Za-z_]\w*)", re.I)
_VALUE = re.compile(rf"\s*(?P<value>{_STRING}|{_NUMBER}|\$(?:env:)?[A-Za-z_]\w*)\s*\Z", re.I)
_ITEM = re.compile(rf"\s*(?P<value>{_STRING}|{_NUMBER}(?![\w.])|\$(?:env:)?[A-Za-z_]\w*)\s*(?:,\s*|\n\s*|\Z)", re.I)
_JOINED = re.compile(
    rf"\s*\(?\s*join-path\s+(?:-path\s+)?(?P<base>{_STRING}|\$(?:env:)?[A-Za-z_]\w*)\s+(?:-childpath\s+)?(?P<part>{_STRING})\s*\)?"
    r"\s*\Z",
    re.I,
)
_HEAD = re.compile(
    r"\s*(?:if|elseif|else|while|for|foreach|switch|try|catch|finally|function|do|begin|process|end)\b", re.I
)
_SILENT = re.compile(
    r"\s*(?:echo|throw|(?:write|get|stop|test|copy|move|remove|new|join|wait|select|out|add)-\w+)\b", re.I
)
_CALL = re.compile(r"\s*(?:[&.](?=[\s\"'$]))?\s*")
_START = re.compile(rf"\s*(?:start-process|saps)\s+(?:-filepath\s+)?(?P<file>{_STRING}|[^\s\"'-]\S*)", re.I)
_LISTED = re.compile(r"\s*(?:-a\w*\s+)?(?P<at>@\(\s*)?", re.I)
_TOKEN = re.compile(
    r"(?P<joined>`[ \t]*\r?\n\s*)|`(?P<escaped>.)|(?P<double>\"\")|(?P<quote>\")|(?P<single>'(?:[^']|'')*')"
    r"|(?P<back>\\)|@(?P<splat>[A-Za-z_]\w*)|\$\((?P<inner>\$(?:env:)?[A-Za-z_]\w*)\)|(?P<code>\$\(|@\(|\()"
    r"|(?P<variable>\$(?:\w+:)?[A-Za-z_]\w*|\$\{(?:env:)?\w+\})|(?P<mark>[#!$;)])|(?P<end>\r)",
    re.I,
)


class _PowerShell(Script):
    """A .ps1 said as a shell's script; ``kinds``: which variables hold a text or an array, if known."""

    def __init__(self, text: Text) -> None:
        super().__init__(text)
        self.kinds: dict[str, str] = {}
        self.started: int | None = None
        open_: list[str] = []
        blocks, begin = 0, 0
        for match in _PART.finditer(text.text):
            kind, within = match.lastgroup, bool(open_)
            if kind == "open" and (within or match[0] != "{"):
                open_.append(match[0])
            elif kind == "close" and within:
                open_.pop()
            elif not within and kind in ("open", "close", "end", "comment") and match[0] != ")":
                self._statement(begin, match.start(), conditional=blocks > 0)
                self.put(" | " if match[0] == "|" and self.pieces[-1:] != ["\n"] else "\n", match.start())
                blocks, begin = max(0, blocks + {"{": 1, "}": -1}.get(match[0], 0)), match.end()
        self._statement(begin, len(text.text), conditional=blocks > 0)

    def _statement(self, begin: int, end: int, *, conditional: bool) -> None:
        text = self.text.text
        if not text[begin:end].strip() or _SILENT.match(text, begin, end):
            return
        first = _SET.match(text, begin, end)
        for also in _ALSO_SET.finditer(text, begin if first is None else first.end(), end):
            for name in re.findall(r"\w+", also[1]) if _PARAMETERS.match(text, begin, end) is None else ():
                self._forget(name.lower(), "an_expression", begin)
        if _PARAMETERS.match(text, begin, end) is not None:
            for parameter in _PARAMETER.finditer(text, begin, end):
                self._parameter(parameter, conditional=conditional)
        elif (loop := _LOOP.match(text, begin, end)) is not None:
            self._forget(loop[1].lower(), "a_loop", begin)
        elif (match := _OTHER_SET.match(text, begin, end)) is not None:
            self._forget(match["name"].lower() if match["name"] else match["env"].upper(), "an_expression", begin)
        elif first is not None:
            self._set(first, end, conditional=conditional)
        elif _HEAD.match(text, begin, end) is not None:
            return
        elif (match := _START.match(text, begin, end)) is not None:
            self._started(match, end)
        else:
            called = _CALL.match(text, begin, end)
            at = called.end() if called is not None else begin
            if text[at : at + 1] not in ("'", '"') or re.search(r"[&.]", text[begin:at]):  # else it is a value
                self._words(at, end)

    def _forget(self, name: str, reason: str, at: int) -> None:
        self.kinds[name] = ""
        self.put("\n", at)
        self.unknown(name, reason, at, exported=name.isupper())

    def _parameter(self, match: re.Match[str], *, conditional: bool) -> None:
        """A parameter of the script holds its default, unless the script is started with another."""
        name = match[1].lower()
        value = match[2][1:-1] if match[2][0] in "'\"" else match[2]
        if conditional or not re.fullmatch(r"(?:[\w./:,=+@ -]|\\(?=\w))*", value):
            self._forget(name, "an_argument", match.start())
            return
        self.kinds[name] = "text"
        self.put(f'{name}="${{{name}:-', match.start())
        first = match.start(2) + (match[2][0] in "'\"")
        self.keep(first, first + len(value))
        self.put('}"\n', match.end() - 1)

    def _set(self, match: re.Match[str], end: int, *, conditional: bool) -> None:
        environment = (match["scope"] or "").lower() == "env"
        name = match["name"].upper() if environment else match["name"].lower()
        operator, begin, kind = match["operator"], match.end(), self.kinds.get(name, "")
        value = _VALUE.match(self.text.text, begin, end)
        items = None if value is not None else self._listed(begin, end)
        adds = operator == "+=" and kind in ("array", "text")
        joined = _JOINED.match(self.text.text, begin, end) if operator == "=" and not conditional else None
        if joined is not None:
            self._joined(f"{'export ' if environment else ''}{name}", joined)
            self.kinds[name] = "text"
            return
        if conditional or not (operator == "=" or adds) or (value is None and items is None):
            reason = "a_condition" if conditional else "a_calculation" if operator != "=" else "an_expression"
            if adds and kind == "array" and conditional:
                self.put(f"\n{name}+=($({reason}))\n", begin)
            else:
                self._forget(name, reason, begin)
            if operator == "=" and re.compile(r"[A-Za-z&]").match(self.text.text, begin, end) is not None:
                self._statement(begin, end, conditional=conditional)  # what a command says is kept
            return
        held = value["value"] if value is not None else ""
        unclear = not held.startswith(("'", '"')) if kind == "text" else held.startswith("$")
        if adds and unclear:
            self._forget(name, "a_calculation", begin)
            return
        self.put(f"\n{'export ' if environment else ''}{name}{'+' if adds else ''}=", begin)
        if items is not None or (adds and kind == "array"):
            self.kinds[name] = "array"
            self.put("(", begin)
            for first, last in items if items is not None else [value.span("value")] if value is not None else []:
                self._words(first, last)
                self.put(" ", first)
            self.put(")\n", begin)
            return
        source = held.lower().removeprefix("$") if held.startswith("$") else ""
        self.kinds[name] = "text" if not source else self.kinds.get(source, "")
        if source and not source.startswith("env:") and self.kinds[name] != "text":
            self.put(f'("${{{source}[@]}}")', begin)
        elif value is not None:
            self._words(*value.span("value"))
        self.put("\n", begin)

    def _joined(self, name: str, match: re.Match[str]) -> None:
        """A path of two parts."""
        self.put(f'\n{name}="', match.start())
        for mark, (begin, last) in (("/", match.span("base")), ('"\n', match.span("part"))):
            quoted = self.text.text[begin] in "'\""
            self._words(begin + quoted, last - quoted, quoted=True)
            self.put(mark, last - 1)

    def _listed(self, begin: int, end: int) -> list[tuple[int, int]] | None:
        """Where the items of ``@('a', 'b')`` or ``'a', 'b'`` stand; None for what is no list of values."""
        text = self.text.text
        stripped = text[begin:end].rstrip()
        head = re.match(r"@\(\s*", stripped)
        at, last = begin + (head.end() if head is not None else 0), begin + len(stripped) - (head is not None)
        if head is not None and not stripped.endswith(")"):
            return None
        items: list[tuple[int, int]] = []
        last = at + len(text[at:last].rstrip())
        while at < last:
            match = _ITEM.match(text, at, last)
            if match is None:
                return None
            items.append(match.span("value"))
            at = match.end()
        return items

    def _started(self, match: re.Match[str], end: int) -> None:
        """``Start-Process``: its list of arguments is joined by blanks, and read as a command line."""
        text = self.text.text
        self._words(*match.span("file"))
        if ENGINES.launchers.spoken.search(match["file"]):
            self.started = match.start("file")
        listed = _LISTED.match(text, match.end(), end)
        at = listed.end() if listed is not None else match.end()
        variable = re.compile(r"\$((?:env:)?[A-Za-z_]\w*)\s*(?=\Z|-\w)", re.I).match(text, at, end)
        if variable is not None:
            name = variable[1].lower() if ":" not in variable[1] else variable[1][4:].upper()
            self.put(f" ${{{name}[@]}}\n", match.start())
            return
        strings = re.compile(rf"({_STRING}|\$(?:env:)?[A-Za-z_]\w*(?![.\[]))\s*(?:(,)\s*|\n\s*)?", re.I)
        found: list[tuple[int, int]] = []
        more = True
        while more and (item := strings.match(text, at, end)) is not None:
            string = item[1][0] != "$"
            found.append((item.start(1) + string, item.end(1) - string))
            at, more = item.end(), item[2] is not None or (listed is not None and listed["at"] is not None)
        rest = text[at:end].strip()
        known = bool(found) and re.match(r"\)?\s*(?:-\w|\Z)", rest) is not None
        for begin, last in found if known else ():
            self.put(" ", begin)
            self._words(begin, last, quoted=True)
        self.put("\n" if known else ' "$@"\n', match.start())

    def _words(self, begin: int, end: int, *, quoted: bool = False) -> None:
        at, inside = begin, quoted
        while (match := _TOKEN.search(self.text.text, at, end)) is not None:
            self.keep(at, match.start())
            at, kind = match.end(), match.lastgroup or ""
            new = match[0]
            if kind == "quote" and not quoted:
                inside = not inside
            elif kind in ("escaped", "back"):
                new = "\\" + (match["escaped"] or "\\")
            elif kind == "splat" and not inside:
                new = f'"${{{match["splat"].lower()}[@]}}"'
            elif kind in ("variable", "inner"):
                new = self._reference(match[kind], inside)
                tail = re.compile(r"[.\[:]\w*").match(self.text.text, at, end) if not inside else None
                new, at = ("$(an_expression)", tail.end()) if tail is not None else (new, at)
            elif kind == "code" and (match[0] != "(" or not inside) and match[0] != ("@(" if inside else ""):
                new, at = "$(an_expression)", self._closed(match.end(), end)
            elif kind == "mark":
                new = match[0] if inside and match[0] != "$" else f"\\{match[0]}"
            elif kind == "single" and not inside:
                inner = match[0][1:-1]
                self.put("'", match.start())
                if "''" in inner:
                    self.put(inner.replace("''", "'\\''"), match.start())
                else:
                    self.keep(match.start() + 1, match.end() - 1)
                new = "'"
            elif kind == "double" and inside:
                new = '\\"'
            new = {"joined": " \\\n", "end": ""}.get(kind, new)
            self.put(new, match.start())
        self.keep(at, end)

    def _reference(self, written: str, inside: bool) -> str:
        """A variable as the shell names it; outside of quotes a text is one word, and an array one for each item."""
        scope, _, name = written.strip("${}").rpartition(":")
        name = name.upper() if scope.lower() == "env" else name.lower()
        kind = self.kinds.get(name, "")
        if name == "args" and not kind:
            return "$@" if inside else '"$@"'
        if inside:
            return f"${{{name}[*]}}" if kind == "array" else f"${{{name}}}"
        return f'"${{{name}[@]}}"' if kind == "array" else f'"${{{name}}}"' if kind == "text" else f"${{{name}}}"

    def _closed(self, at: int, end: int) -> int:
        """Just behind the bracket that closes what is open at ``at``."""
        depth = 1
        for match in re.compile(rf"{_STRING}|([(])|([)])").finditer(self.text.text, at, end):
            depth += (match[1] is not None) - (match[2] is not None)
            if not depth:
                return match.end()
        return end


def read_powershell(text: Text, outside: Outside, beside: object = None) -> Iterator[Deployment]:
    """Every engine that a .ps1 starts. Raises InputError where that is told by arguments that nobody knows."""
    script = _PowerShell(text)
    found = list(script.launches("powershell", outside))
    if not found and script.started is not None:
        raise text.source.error(text.at(script.started), "the arguments of Start-Process are not known")
    yield from found
