"""What are a script's variables worth, and which words does a word become?

    A=(--tp 8); B="$A --pp $P"      "${A[@]}"   ->   --tp  8      $B   ->   --tp  --pp  and one that is not known

Assignments, the environment, positional arguments and what the caller gives; a text that is known in part comes apart
into its words, those that are known among them. A default is taken where nothing sets its variable, which is noted.
What a condition, a loop or another program sets has no value but a reason; ``--set`` and ``--env-file`` give those and
the variables from outside one, and never overrule what the script says itself.
"""

import re
from collections.abc import Iterator, Mapping, Sequence

from hybridcalc.shell import FromOutside, Place, Setting, Text, Word, spend
from hybridcalc.shell.parse import Token, as_script, placed, tokens

Outside = Mapping[str, str]
"""What the caller says about variables: ``--set`` and ``--env-file``."""
FROM_CALLER = "the script is started with it"
A_TEMPLATE = "a template decides it"
A_VARIABLE = "a variable decides it"
"""Why a word is not known that nobody has looked up yet."""
LONGEST_VALUE = 32_768
LONGEST_CUT = 300
"""Characters of a value of which an end is cut off."""
DEEPEST_DEFAULT = 4
"""Defaults inside defaults."""
NESTED = r"[^{}]*"
for _ in range(3):  # braces inside braces, as a default in JSON has them
    NESTED = rf"[^{{}}]*(?:\{{{NESTED}\}}[^{{}}]*)*"
REFERENCE = re.compile(
    rf"\$(?:([A-Za-z_]\w*|[0-9@*#?!$-])|\{{({NESTED})\}}|\(\(((?:[^()]|\([^()]*\))*)\)\)|(\())|(`)|\$\[([^\[\]\n]*)\]"
)
"""One expansion: a name, braces, arithmetic, a command, backticks or arithmetic as it was written once."""
PARAMETER = re.compile(r"([A-Za-z_]\w*|[0-9]+|[@*#])(\[[@*]\])?(?:(:?[-=?+])(.*)|(:[0-9]+)?)", re.DOTALL)
"""What stands in braces: a name, ``[@]``, an operator and its word."""
_BRACES = re.compile(rf"\$\{{{NESTED}\}}")
_PLAIN = re.compile(r"\$(?:([A-Za-z_]\w*)|\{([A-Za-z_]\w*)\})")
"""A variable as it stands, with nothing done to its value."""
_LENGTH = re.compile(r"#([A-Za-z_]\w*)(\[[@*]\])?")
_CHANGED = re.compile(r"([A-Za-z_]\w*)(\^\^?|,,?|##?|%%?|//?)(.*)", re.DOTALL)
"""A name, and what is done with its value: cases, what is cut off at an end, what is replaced."""
_OWN = re.compile(r"(?:\(\s*)?\"?\$(?:([A-Za-z_]\w*)(?![\w\[])|\{([A-Za-z_]\w*)(?:\[[@*]\])?\})\"?(?=[\s)])")
"""What a value may begin with: another variable, quoted or not."""


_NAME = re.compile(r"[\w.-]*[A-Za-z][\w.-]*")


def is_path_to(text: str) -> bool:
    """Whether a text is a path of which the last part is known, and not where it begins."""
    end = max(text.rfind("/"), text.rfind("\\"))
    name = text[end + 1 :]
    return "$" in text[: max(end, 0)] and len(name) <= LONGEST_CUT and _NAME.fullmatch(name) is not None


class Variables:
    """The variables of one script: ``values`` as it sets them, ``env`` as it finds them.

    ``used`` collects the variables whose defaults were taken, as nothing sets them outside; ``assumed`` says of others
    on which of those they rest, and ``read`` collects what is looked up.
    """

    def __init__(self, text: Text, env: Mapping[str, Setting], outside: Outside, arguments: Sequence[Word]) -> None:
        self.text, self.env, self.outside, self.arguments = text, dict(env), outside, arguments
        self.values: dict[str, Setting] = {}
        self.exports: set[str] = set()
        self.gone: dict[str, bool] = {}
        self.assumed: dict[str, frozenset[str]] = {}
        self.used: set[str] = set()
        self.read: set[str] = set()

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

    @property
    def positional(self) -> tuple[Word, ...]:
        """What ``$@`` holds: what ``set --`` says, else the arguments; nothing where nobody knows."""
        held = self.values.get("@")
        spend(visits=len(self.arguments if held is None else held.words))
        if held is None or not held.words:
            return tuple(self.arguments if held is None else ())
        return tuple(self._held(held, held.words[0], "$@"))

    def lookup(self, name: str) -> Setting:
        """A variable's value, or why it has none."""
        setting = self.known(name)
        self.used |= self.assumed.get(name, frozenset())
        self.read.add(name)
        open_word = setting is not None and len(setting.words) == 1 and bool(setting.words[0].why)
        if setting is not None and not setting.why and not setting.more and not open_word:
            return setting
        given = self.outside.get(name) if name not in self.gone else None
        if given is not None:
            word = Word(given, self.text.source, self.text.at(0), self.text.at(0))
            if setting is not None and setting.more:  # the part that is known stays
                return setting._replace(words=(*setting.parts, *Setting((word,)).parts), more="", array=True)
            return Setting((word,))
        return setting or Setting((), FromOutside(name))

    def place(self, begin: int, end: int | None = None) -> Place:
        """Where a span of the script stands in its file."""
        return self.text.source.place(self.text.at(begin), None if end is None else self.text.end(end))

    def expand(self, token: Token) -> list[Word]:
        """A word as the words it becomes."""
        spend(words=1)
        if token.kind != "live":
            return [placed(self.text, token)]
        array = self._array(token)
        if array is not None:
            spend(words=len(array))
            return array
        text, why = self.resolved(token.text)
        here = self._here(token)
        if text is None:
            return [here.instead(self._path(token.text), why)]
        whole = self.text.text[token.begin : token.end]
        raw = _BRACES.sub("", whole)  # quotes inside them hold nothing else together
        if '"' not in raw and "'" not in raw and text.split() != [text]:
            parts = text.split()
            spend(words=len(parts))
            inner = '"' in whole or "'" in whole
            return [here.instead(_unquoted(part) if inner else part) for part in parts]
        literal = self._literal(token.text)
        return [here.instead(text, written=literal.place if literal is not None else None)]

    def script(self, token: Token) -> Word:
        """A script in double quotes, with the values in it that hold quotes: the shell that reads it takes them off."""
        script = placed(self.text, token)
        text = script.characters

        def value(match: re.Match[str]) -> str | None:
            at = text.at(match.start())
            held = None if text.source.text[at - 1 : at] == "\\" else self.lookup(match[1] or match[2]).text
            if held is None or not ("'" in held or '"' in held):
                return None
            spend(characters=len(held))
            return held

        new = text.replaced(_PLAIN, value) if "$" in script else text
        return as_script(script if new is text else Word(new.text, script.source, script.begin, script.end, new))

    def assigned(self, token: Token, match: re.Match[str]) -> tuple[Setting, bool]:
        """The value of an assignment without what it repeats of its variable, and whether it adds to that.

        ``match`` is the name and its operator: ``A=``, ``A+=``, ``A[0]=``.
        """
        own = _OWN.match(token.text, match.end()) if not match[2] and not match[3] else None
        kept = own.end() - match.end() if own is not None and match[1] in own.groups() else 0
        appended, before = bool(match[3]) or kept > 0, self.used
        self.used = set(self.assumed.get(match[1], ())) if appended else set()
        value = self._value(token, match, kept)
        self.assumed[match[1]], self.used = frozenset(self.used), before
        return value, appended

    def appended(self, name: str, more: Setting) -> Setting:
        """What a variable holds with ``more`` behind it."""
        before = self.lookup(name)
        if before.why:
            return more._replace(words=(), why=before.why) if name in self.values else more
        if before.text is not None and more.text is not None and not before.array and not more.array:
            joined = f"{before.text}{more.text}"
            if not more.words or len(joined) > LONGEST_VALUE:
                return Setting((), "its value grows too long", more.place)
            spend(characters=len(joined))
            return Setting((more.words[0].instead(joined),), "", more.place)
        parts = (*before.parts, *more.parts)
        spend(visits=len(parts))
        return Setting(parts, "", more.place, array=True, more=before.more or more.more or more.why)

    def joined(self, words: Sequence[Token]) -> Text:
        """Words as one text, as ``eval`` joins them."""
        pieces: list[str] = []
        spots: list[int] = []
        for word in (placed(self.text, token) for token in words):
            chars = word.characters
            pieces += (word, " ")
            spots += [*(chars.at(index) for index in range(len(word))), word.end]
        return Text(self.text.source, "".join(pieces), self.text.at(words[0].begin) if words else 0, spots)

    def _here(self, token: Token) -> Word:
        """A word without a text where a token stands."""
        return Word("", self.text.source, self.text.at(token.begin), self.text.end(token.end))

    def _value(self, token: Token, match: re.Match[str], own: int) -> Setting:
        """The value behind ``match``, without the ``own`` characters that repeat what the variable held."""
        raw = self.text.text[token.begin : token.end]
        if match[2]:
            return Setting((), f"{match[1]} is set item by item", self.place(token.begin))
        start, end = token.begin + match.end(), token.end
        place = self.place(start, end)
        if raw[match.end() : match.end() + 1] == "(" and raw.endswith(")"):
            inner = start + max(own, 1)
            items = [
                word
                for item in tokens(self.text.text[inner : end - 1])
                if item.kind in ("word", "live")
                for word in self.expand(item._replace(begin=inner + item.begin, end=inner + item.end))
            ]
            return Setting(tuple(items), "", place, array=True)
        value = token.text[match.end() + own :]
        text, why = (value, "") if token.kind != "live" else self.resolved(value)
        if text is not None:
            return Setting((placed(self.text, Token(text, start, end, "word")),), "", place)
        value = self._default(value)
        if len(value.split()) == 1 and is_path_to(value):  # what its last part names is known
            return Setting((placed(self.text, Token(value, start, end, "word")).instead(value, why),), "", place)
        if len(value.split()) < 2 or "$(" in value or "`" in value:
            return Setting((), why, place)
        return Setting(tuple(self._pieces(value, start, end)), "", place, array=True)

    def _default(self, value: str) -> str:
        """The default that a variable has which nothing sets; any other text as it is."""
        match = REFERENCE.fullmatch(value)
        parameter = PARAMETER.fullmatch(match[2] or "") if match is not None else None
        if parameter is None or parameter[3] not in (":-", "-", ":=", "=") or self.known(parameter[1]) is not None:
            return value
        return value if parameter[1] in self.outside else _unquoted(parameter[4])

    def _pieces(self, value: str, begin: int, end: int) -> Iterator[Word]:
        """The words of a text that is not known as a whole, each where it stands."""
        at = begin
        for match in re.finditer(r"(?:\$\{[^{}]*\}|'[^']*'|\S)+", value):
            found = self.text.text.find(match[0], at, end)
            left, right = (found, found + len(match[0])) if found >= 0 else (begin, end)
            at = right if found >= 0 else at
            text = match[0][1:-1] if re.fullmatch(r"'[^']*'", match[0]) else match[0]  # somebody will ``eval`` it
            yield from self.expand(Token(text, left, right, "live"))

    def _array(self, token: Token) -> list[Word] | None:
        """The items of ``${NAME[@]}`` or ``$@``; None where the word is neither."""
        word, here = token.text, self._here(token)
        match = REFERENCE.fullmatch(word) or re.match(r"()\$\{([^{}]*)", word)
        if match is None:
            return None
        parameter = PARAMETER.match(match[1] or match[2] or "")
        name = parameter[0] if parameter is not None else ""
        if name.isidentifier() and match.end() == len(word) and '"' not in self.text.text[token.begin : token.end]:
            setting = self.lookup(name)  # unquoted: a text that is known in part comes apart
            partly = not setting.why and setting.text is None
            return self._held(setting, here, word) if partly else None
        if parameter is None or not (parameter[2] or parameter[1] in ("@", "*")):
            return None
        if REFERENCE.fullmatch(word) is None and parameter[3] is None:
            return None
        name = parameter[1]
        if name in ("@", "*"):
            held = list(self.positional)
            if "@" in self.values and not parameter[5]:
                return held or ([] if not self.values["@"].why else [here.instead(word, self.values["@"].why)])
            return held if held and not parameter[5] else [here.instead(word, FROM_CALLER)]
        setting = self.lookup(name)
        if setting.array and not setting.why:
            return self._held(setting, here, word)
        if setting.text is None:
            return [here.instead(word, setting.reason)]
        return [here.instead(part) for part in setting.text.split()]

    def _held(self, setting: Setting, here: Word, word: str) -> list[Word]:
        """The words a variable holds, and one more that nobody knows where others may have been added."""
        return [*setting.parts, *([here.instead(word, setting.more)] if setting.more else [])]

    def _path(self, word: str) -> str:
        """A variable as the path that it holds, of which the end is known; any other word as it is."""
        match = REFERENCE.fullmatch(word)
        setting = self.known(match[1] or match[2] or "") if match is not None else None
        first = setting.words[0] if setting is not None and len(setting.words) == 1 else word
        return first if is_path_to(first) else word

    def _literal(self, word: str) -> Word | None:
        """The literal a word's whole text comes from, where a variable holds it."""
        match = REFERENCE.fullmatch(word)
        setting = self.known(match[1] or match[2] or "") if match is not None else None
        first = setting.words[0] if setting is not None and len(setting.words) == 1 else None
        return first if first is not None and not first.why else None

    def resolved(self, text: str, depth: int = 0) -> tuple[str | None, str]:
        """A text with its variables replaced, or None and why not."""
        parts: list[str] = []
        at = 0
        for match in REFERENCE.finditer(text):
            if match.start() < at:
                continue
            if match[4] or match[5]:
                return None, self._command_reason(text[match.start() :])
            expression = match[6] if match[3] is None else match[3]
            if expression is not None:
                value, why = self._calculated(expression)
            else:
                value, why = self.parameter(match[1] or match[2], depth)
            if value is None:
                return None, why
            parts += (text[at : match.start()], value)
            at = match.end()
        if "${" in text[at:] or "$[" in text[at:]:
            return None, "an expansion decides it"
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

    def parameter(self, inside: str, depth: int = 0) -> tuple[str | None, str]:
        """What stands for ``${inside}``, or None and why nobody knows."""
        parameter = PARAMETER.fullmatch(inside)
        if inside.startswith(("{", "<", "%")):
            return None, A_TEMPLATE
        if parameter is None or depth > DEEPEST_DEFAULT:
            return self._changed(inside, depth)
        name, operator, default = parameter[1], parameter[3], parameter[4]
        if name.isdigit() and int(name) < 100:
            position, held = int(name) - 1, self.positional
            if 0 <= position < len(held) and not any(item.why for item in held[: position + 1]):
                return str(held[position]), ""
            setting = Setting((), FROM_CALLER)
        elif name in ("#", "@", "*") or name.isdigit():
            held = self.positional
            if name == "#" and not any(item.why for item in held) and (held or "@" in self.values):
                return str(len(held)), ""
            return None, FROM_CALLER
        else:
            setting = self.lookup(name)
        absent = bool(setting.why) and name not in self.values and name not in self.env  # nothing sets it outside
        if operator in (":-", "-", ":=", "=") and default is not None:
            if absent or (setting.text == "" and operator.startswith(":")):
                self.used |= {name} if absent else set()
                return self.resolved(_unquoted(default), depth + 1)
        elif operator in (":+", "+") and default is not None:
            if absent:
                self.used.add(name)
                return "", ""
            if not setting.why:
                empty = setting.text == "" and (operator == ":+" or setting.array)
                return ("", "") if empty else self.resolved(_unquoted(default), depth + 1)
        return setting.text, setting.reason

    def _changed(self, inside: str, depth: int) -> tuple[str | None, str]:
        """What stands for a length, or a value that is cut, replaced in or written in another case."""
        counted, changed = _LENGTH.fullmatch(inside), _CHANGED.fullmatch(inside)
        if counted is not None:
            setting = self.lookup(counted[1])
            if setting.text is None:
                return None, setting.reason
            return str(len(setting.parts) if counted[2] else len(setting.text)), ""
        if changed is None or depth > DEEPEST_DEFAULT:
            return None, "an expansion decides it"
        setting = self.lookup(changed[1])
        operand, why = self.resolved(_unquoted(changed[3]), depth + 1)
        if setting.text is None or operand is None:
            return None, setting.reason or why
        value = _rewritten(setting.text, changed[2], operand)
        return (None, "an expansion decides it") if value is None else (value, "")

    def _calculated(self, expression: str) -> tuple[str | None, str]:
        """Whole-number arithmetic on known variables."""
        value, why = self.number(expression)
        return (None, why) if value is None else (str(value), "")

    def number(self, expression: str) -> tuple[int | None, str]:
        """The value of whole-number arithmetic, or why nobody knows it."""
        text, why = self.resolved(expression)
        if text is None:
            return None, why
        reasons: list[str] = []

        def value(match: re.Match[str]) -> str:
            known, reason = self.parameter(match[0])
            if known is None or not re.fullmatch(r"-?[0-9]{1,12}", known):
                reasons.append(reason or "arithmetic decides it")
                return "1"
            return f"({known})"

        from hybridcalc.shell.conditions import calculate

        numbers = re.sub(r"(?<![0-9A-Za-z_])[A-Za-z_]\w*", value, text)
        result = None if reasons else calculate(numbers)
        return result, "" if result is not None else next(iter(reasons), "arithmetic decides it")


def _rewritten(text: str, operator: str, operand: str) -> str | None:
    """A value in another case, cut at an end or with a part replaced; None for a pattern that is not read here."""
    if operator in ("^", "^^", ",", ",,"):
        changed = text.upper() if operator[0] == "^" else text.lower()
        return None if operand else changed if len(operator) == 2 else changed[:1] + text[1:]
    if operator in ("/", "//"):
        old, _, new = operand.partition("/")
        plain = bool(old) and not re.search(r"[*?\[#%]", old[:1] + old)
        return text.replace(old, new, -1 if operator == "//" else 1) if plain else None
    if len(text) > LONGEST_CUT:
        return None
    from hybridcalc.shell.conditions import matches

    ends = range(len(text) + 1)
    for count in ends if len(operator) == 1 else reversed(ends):
        cut = text[:count] if operator[0] == "#" else text[len(text) - count :]
        fits = matches(cut, operand)
        if fits is None:
            return None
        if fits:
            return text[count:] if operator[0] == "#" else text[: len(text) - count]
    return text


def _unquoted(text: str) -> str:
    return text[1:-1] if len(text) > 1 and text[0] == text[-1] and text[0] in "'\"" else text
