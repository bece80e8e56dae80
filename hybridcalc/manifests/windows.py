r"""Which engines do .cmd and .bat files start? Said anew as a shell's script, line by line, and read as one.

    set N=4                               ->   export N="4"
    if defined X set N=9                  ->   export N=$(a_condition)
    if not defined N set N=4              ->   export N="${N:-4}"
    vllm serve org/m --tp %N%             ->   vllm serve org/m --tp ${N}

A value holds from its line on. What a condition, a loop or a jump sets, or what is calculated, is not known. Names
ignore case and are said in capitals. Left out: `call` of labels, other files.
"""

import re
from collections.abc import Iterator

from hybridcalc.manifests import Deployment
from hybridcalc.manifests.scripts import run_script
from hybridcalc.shell import Setting, Text
from hybridcalc.shell.variables import Outside

REASONS = {
    "a_condition": "a condition, a loop or a jump decides it", "a_loop": "a loop decides it",
    "a_delayed_value": "it is expanded when the command runs", "a_changed_value": "an expansion decides it",
    "an_argument": "the script is started with it", "a_calculation": "a calculation decides it",
    "an_expression": "an expression decides it", "quotes": "its value holds quotes",
}  # fmt: skip
"""What stands where nobody knows a value, and why."""
_BATCH_LINE = re.compile(r"(?:[^^\n]|\^[ \t]*\r?\n|\^.)*(?:\n|\Z)")
_OPERAND = r"(?:\"[^\"\n]*\"|[^\s\"()=])+"
_BATCH_PREFIX = re.compile(
    r"[ \t@]+|(?P<open>\()|(?P<close>\))|(?P<condition>else\b|for\b[^\n]*?\bdo\b"
    r"|if[ \t]+(?:/i[ \t]+)?(?:not[ \t]+)?(?:/i[ \t]+)?"
    rf"(?:(?:exist|defined|errorlevel|cmdextversion)[ \t]+{_OPERAND}"
    rf"|{_OPERAND}[ \t]*(?:==|[ \t](?:equ|neq|lss|leq|gtr|geq)[ \t])[ \t]*{_OPERAND})"
    r")|call\b|start\b(?:[ \t]+\"[^\"\n]*\")?(?:[ \t]+/\w+)*",
    re.I,
)
_LACKING = re.compile(r"if[ \t]+(?:/i[ \t]+)?(?:not[ \t]+defined[ \t]+(\w+)|\"%(\w+)%\"[ \t]*==[ \t]*\"\")", re.I)
"""A condition that holds where a variable has no value."""
_EQUAL = re.compile(r"if[ \t]+(not[ \t]+)?\"%(\w+)%\"[ \t]*==[ \t]*\"([\w.-]+)\"", re.I)
"""A condition that a shell has too."""
_BATCH_SET = re.compile(r"set[ \t]+(?P<option>/\w[ \t]+)?(?P<quote>\"?)(?P<name>[A-Za-z_]\w*)(?P<rest>[^\r\n]*)", re.I)
_CALCULATED = re.compile(r"([A-Za-z_]\w*)[ \t]*[-+*/%&|^]?=")
_ODD = re.compile(r"(if|for)\b|endlocal\b", re.I)
_SETS = re.compile(r"\bset[ \t]+\"?([A-Za-z_]\w*)=", re.I)
_BATCH_SILENT = re.compile(r"(?:rem|echo|title)\b|:|echo\.", re.I)
_JUMP = re.compile(r"(?im)\bgoto\b(?![ \t]*:?eof)|\bcall[ \t]+:")
_BATCH_TOKEN = re.compile(
    r"(?P<quoted>\\\")|(?P<quote>\")|(?P<joined>\^[ \t]*\r?\n[ \t]*)|\^(?P<escaped>.)|%%(?P<loop>~?\w*)"
    r"|%(?P<position>[0-9*])|%~\w*(?P<part>[0-9])|%(?P<name>[A-Za-z_]\w*)%|%[A-Za-z_]\w*(?P<changed>:[^%\n]*)%"
    r"|!(?P<late>[A-Za-z_]\w*(?::[^!\n]*)?)!|(?P<special>[\\$`])|(?P<outside>['#;()])|(?P<end>\r)"
)
_BATCH_END = re.compile(r"\"[^\"\n]*(?:\"|(?=\n)|\Z)|\^[ \t]*\r?\n|\^.|>&|(&&|\|\|?|&|\))|\r?\n")


class Script:
    """A shell's script that is put together: its characters, and where each stands in the file."""

    def __init__(self, text: Text) -> None:
        self.text = text
        self.pieces: list[str] = []
        self.spots: list[int] = []

    def put(self, new: str, at: int) -> None:
        """Characters that stand for what is at an offset of the text."""
        self.pieces.append(new)
        self.spots += [self.text.at(at)] * len(new)

    def keep(self, begin: int, end: int) -> None:
        """Characters as they are in the text."""
        self.pieces.append(self.text.text[begin:end])
        self.spots += [self.text.at(index) for index in range(begin, end)]

    def unknown(self, name: str, reason: str, at: int, *, exported: bool) -> None:
        """A variable from here on is not known."""
        self.put(f"{'export ' if exported else ''}{name}=$({reason})\n", at)

    def launches(self, kind: str, outside: Outside) -> Iterator[Deployment]:
        """What the script starts."""
        env = {name: Setting((), why) for name, why in REASONS.items()}
        names = {**{n.upper(): v for n, v in outside.items()}, **{n.lower(): v for n, v in outside.items()}, **outside}
        script = Text(self.text.source, "".join(self.pieces), self.text.at(0), self.spots)
        for launch in run_script(script, env, names).launches:
            held = {name: setting for name, setting in launch.env.items() if name not in REASONS}
            yield Deployment(self.text.source, kind, "", launch._replace(env=held))


class _Batch(Script):
    """A .cmd or .bat said as a shell's script."""

    def __init__(self, text: Text) -> None:
        super().__init__(text)
        self.depth = 0
        self.lacking = ""  # the variable that has no value where this line or this block runs
        self.test = ""  # the condition of this line, as a shell says it
        self.names: dict[str, bool] = {}
        self.jumps = _JUMP.search(text.text) is not None
        for line in _BATCH_LINE.finditer(text.text):
            self._line(line.start(), line.end())

    def _line(self, at: int, end: int) -> None:
        conditional = False
        while at < end:
            while (match := _BATCH_PREFIX.match(self.text.text, at, end)) is not None:
                if match["condition"] is not None:
                    lacking = _LACKING.fullmatch(match["condition"])
                    only = lacking is not None and not (conditional or self.depth or self.jumps)
                    self.lacking = (lacking[1] or lacking[2]).upper() if lacking is not None and only else ""
                    equal = (
                        _EQUAL.fullmatch(match["condition"]) if not (conditional or self.depth or self.jumps) else None
                    )
                    sign = "" if equal is None else "!=" if equal[1] else "="
                    self.test = f'[ "${{{equal[2].upper()}}}" {sign} "{equal[3]}" ] && ' if equal is not None else ""
                    conditional = True
                self.depth = max(0, self.depth + (match["open"] is not None) - (match["close"] is not None))
                at = match.end()
            begin, operator = at, ""
            for found in _BATCH_END.finditer(self.text.text, at, end):
                if found[1] is not None and (found[1] != ")" or self.depth):
                    operator = found[1]
                    break
            stop = found.start() if operator else end
            if _BATCH_SILENT.match(self.text.text, at, end) and self.text.text[at : at + 4].lower() != "echo":
                return
            self._command(begin, stop, conditional=conditional or self.depth > 0 or self.jumps)
            self.put(" | " if operator == "|" else "\n", begin)
            if operator in ("&&", "||"):
                conditional, self.lacking, self.test = True, "", ""
            at = stop + (len(operator) if operator != ")" else 0)

    def _command(self, begin: int, end: int, *, conditional: bool) -> None:
        text = self.text.text
        if _BATCH_SILENT.match(text, begin, end) or not text[begin:end].strip():
            return
        match = _BATCH_SET.match(text, begin, end)
        if match is None:
            odd = _ODD.match(text, begin, end)  # a condition that was not understood, or the end of a scope
            for name in self.names if odd is not None and odd[1] is None else ():
                self.unknown(name, "a_condition", begin, exported=True)
            for found in _SETS.finditer(text, begin, end):
                self.unknown(found[1].upper(), "a_condition", begin, exported=True)
            if re.match(r"set\b", text[begin:end], re.I) is None:
                self.put("\\" if odd is not None else "", begin)  # no condition of a shell's
                self._words(begin, end)
            return
        name, rest = match["name"].upper(), match["rest"]
        self.names[name] = True
        if match["option"]:
            for calculated in {name, *(found[1].upper() for found in _CALCULATED.finditer(rest))}:
                self.unknown(calculated, "a_calculation", begin, exported=True)
            return
        if not rest.startswith("="):
            return
        first, last = match.start("rest") + 1, match.end("rest")
        if match["quote"]:
            last = text.rfind('"', first, last) if '"' in text[first:last] else last
        elif text[first:last].rstrip()[:1] == '"' and re.fullmatch(r'"[^"\s]*"', text[first:last].rstrip()):
            first, last = first + 1, first + len(text[first:last].rstrip()) - 1
        default = conditional and name == self.lacking
        test = self.test if conditional and not self.depth else ""
        if (
            (conditional and not default and not test)
            or '"' in text[first:last]
            or (default and "}" in text[first:last])
        ):
            self.unknown(name, "a_condition" if conditional else "quotes", begin, exported=True)
            return
        self.put(f'export {name}="${{{name}:-' if default else f'{test}export {name}="', first)
        self._words(first, last, quoted=True)
        self.put('}"\n' if default else '"\n', last - 1)

    def _words(self, begin: int, end: int, *, quoted: bool = False) -> None:
        at = begin
        for match in _BATCH_TOKEN.finditer(self.text.text, begin, end):
            if match.start() < at:
                continue
            self.keep(at, match.start())
            at = match.end()
            kind, held = match.lastgroup or "", match[match.lastgroup or 0]
            if kind == "quote" and quoted and self.text.text.startswith('"', at, end):
                kind, held, at = "escaped", '"', at + 1  # two of them within quotes are one
            elif kind == "quote":
                quoted = not quoted
            unknown = {"loop": "a_loop", "late": "a_delayed_value", "changed": "a_changed_value", "part": "an_argument"}
            new = {
                "joined": " \\\n",
                "escaped": f"\\{held}",
                "name": f"${{{held.upper()}}}",
                "special": f"\\{held}",
                "position": f"${held.replace('*', '@')}",
                "outside": held if quoted else f"\\{held}",
                "end": "",
            }.get(kind, match[0])
            self.put(f"$({unknown[kind]})" if kind in unknown else new, match.start())
        self.keep(at, end)


def read_batch(text: Text, outside: Outside, beside: object = None) -> Iterator[Deployment]:
    """Every engine that a .cmd or .bat starts."""
    yield from _Batch(text).launches("batch", outside)
