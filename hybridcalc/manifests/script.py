r"""Which engines does a shell script launch, with which words? Read as bash would, and never run.

    TP=8; ARGS=(--tp "$TP"); exec python3 -m sglang.launch_server "${ARGS[@]}"   ->   sglang  --tp 8

Simple assignments, literal arrays, ``${X:-default}``, whole-number arithmetic, ``bash -c`` and here-documents are
followed. A variable that a condition, a loop or another program sets, or that comes from outside, stays `Unknown`:
no branch is guessed. Left out: pattern substitution, sourced files, ``eval``.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from hybridcalc.errors import InputError
from hybridcalc.manifests.branches import DEEPEST, Branches
from hybridcalc.manifests.heredocs import ESCAPE, HereDocument, without_documents
from hybridcalc.manifests.launches import ENGINE_FLAGS, Found, find_launch
from hybridcalc.manifests.nested import SHELLS, handed_on, is_command_line, nested_script, takes_script
from hybridcalc.manifests.source import AnyWord, Place, Setting, Text, Unknown, Word, matched
from hybridcalc.manifests.variables import LONGEST_VALUE, PARAMETER, REFERENCE, Outside, Variables
from hybridcalc.shell import Operator, Unresolved, is_unresolved, split_placed

MOST_LAUNCHES = 2_000
DEEPEST_SHELL = 4
MOST_EXPANSIONS = 200_000
"""Words one script may expand to: arrays of arrays must not grow without end."""

LONGEST_SCRIPT = 256 * 1024
"""Characters of a script; long ones that are launched have some 30,000."""
MOST_INSIDE = LONGEST_SCRIPT
"""Characters of all texts in a script that are scripts themselves."""
_OPENING = {"if": "if", "while": "loop", "until": "loop", "for": "loop", "select": "loop", "case": "case"}
_CLOSING = {"fi", "done", "esac"}
_EXPANDED = re.compile(rf"(?:{ESCAPE.pattern})|(?:{REFERENCE.pattern})")
_GLUE = {"then", "else", "elif", "do", "!", "time", "{", "}", "function", "in"}
_DECLARING = {"export", "declare", "typeset", "local", "readonly"}
_TESTS = {"[", "[[", "test", "command", "which", "grep", "type", "!", "((", "nvidia-smi"}
_FUNCTION = re.compile(r"[A-Za-z_][\w-]*\(\)")
_ASSIGNMENT = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)(\[[^\]]*\])?(\+?)=")


def read_script(
    text: Text, env: Mapping[str, Setting], outside: Outside, arguments: Sequence[AnyWord] = (), *, depth: int = 0
) -> list[Found]:
    """Every launch of a script, which starts under ``env`` with positional ``arguments``.

    Raises InputError for a script that no shell could split where the launcher stands.
    """
    return _Shell(text, env, outside, arguments, depth).launches()


def files_in(text: Text, outside: Outside) -> list[HereDocument]:
    """The files that a script writes or applies from here-documents, their variables replaced where they are known."""
    if "<<" not in text.text:
        return []
    shell = _Shell(text, {}, outside, (), 0)
    files = [document for document in shell.documents if document.kind != "script"]
    if not files:
        return []
    shell.launches()

    def value(match: re.Match[str]) -> str | None:
        if match[0].startswith("\\"):
            return match[0][1:].strip()
        return shell.known.resolved(match[0])[0]

    return [one._replace(text=one.text.replaced(_EXPANDED, value)) if one.expanded else one for one in files]


class _Command(NamedTuple):
    words: list[tuple[str, int, int]]
    after: str


class _Shell:
    """One script: its variables, and in which blocks it is."""

    def __init__(
        self, text: Text, env: Mapping[str, Setting], outside: Outside, arguments: Sequence[AnyWord], depth: int
    ) -> None:
        if len(text.text) > LONGEST_SCRIPT:
            raise InputError(f"a script of {len(text.text):,} characters is longer than {LONGEST_SCRIPT:,}")
        self.known = Variables(text, env, outside, arguments)
        self.depth = depth
        self.branches = Branches(self.known.values)
        self.found: list[Found] = []
        self.expanded = 0
        self.inside = 0
        self.text, self.documents = without_documents(text)

    def launches(self) -> list[Found]:
        chained = False
        for command in self._commands():
            chained = self._run(command.words, chained, command.after) and command.after in ("&&", "||")
            if command.after == "||":
                chained = True
            if command.after == ";;":
                self.branches.turn()
        for document in self.documents:
            if document.kind == "script":
                body = document.text
                self._read_inside(body.replaced(ESCAPE, lambda match: match[1]) if document.expanded else body)
        if len(self.found) > MOST_LAUNCHES:
            raise InputError(f"more than {MOST_LAUNCHES:,} launches")
        return self.found

    def _commands(self) -> Iterator[_Command]:
        words: list[tuple[str, int, int]] = []
        redirected = False
        for word, begin, end in self._split():
            if isinstance(word, Operator):
                redirected = "<" in word or ">" in word
                if redirected:
                    continue
                if words or word == ";;":
                    yield _Command(words, str(word))
                words = []
            elif redirected:
                redirected = False
            else:
                words.append((word, begin, end))
        if words:
            yield _Command(words, "")

    def _split(self) -> list[tuple[str, int, int]]:
        """The words of the script; line by line where something in it cannot be split as a whole."""
        try:
            return split_placed(self.text.text)
        except InputError:
            pass
        words: list[tuple[str, int, int]] = []
        for match in re.finditer(r"(?:[^\\\n]|\\[ \t]*\n|\\.)+", self.text.text):
            try:
                line = split_placed(match[0])
            except InputError as error:
                if "sglang" in match[0] or "vllm" in match[0]:
                    place = self.text.source.place(self.text.at(match.start()))
                    raise InputError(f"{place.path}:{place.line}: {error.message}", fix=error.fix) from None
                continue
            words += [(word, begin + match.start(), end + match.start()) for word, begin, end in line]
            words.append((Operator(";"), match.end(), match.end()))
        return words

    def _run(self, words: list[tuple[str, int, int]], chained: bool, after: str) -> bool:
        """Take one command in; whether it was a test, so that what ``&&`` appends depends on it."""
        depth = len(self.branches.kinds)
        words = self._enter(words, chained)
        chained = chained and len(self.branches.kinds) <= depth
        if not words:
            return False
        head = words[0][0]
        if head in _CLOSING:
            self.branches.leave()
            return False
        ignored = "args" in self.branches.kinds[-DEEPEST:]
        if head in _DECLARING or _ASSIGNMENT.match(head):
            rest = self._assign(words, chained, ignored)
            if not rest:
                return chained
            words = rest
        if head in ("read", "mapfile", "readarray", "getopts"):
            for word, begin, _ in words[1:]:
                if re.fullmatch(r"[A-Za-z_]\w*", word):
                    self.branches.assign(
                        word, Setting((), f"{head} sets it", self._place(begin)), maybe=False, appended=False
                    )
            return chained
        self._launch(words, after)
        return chained or head in _TESTS or head.startswith(("[", "((")) or head == "!"

    def _enter(self, words: list[tuple[str, int, int]], chained: bool) -> list[tuple[str, int, int]]:
        """The command without the keywords before it, which open and close blocks."""
        while words:
            head = words[0][0]
            if head in _OPENING:
                block = _OPENING[head]
                if block == "loop" and any("$#" in word for word, _, _ in words):
                    block = "args"
                self.branches.enter(block)
                if head in ("for", "select") and len(words) > 1:
                    setting = Setting((), "a loop sets it", self._place(words[1][1]))
                    self.branches.assign(words[1][0], setting, maybe=False, appended=False)
                    return []
                if head == "case":
                    return []
            elif head == "{":
                self.branches.enter("group" if chained else "plain")
            elif head == "}":
                self.branches.leave()
            elif head in ("else", "elif"):
                self.branches.turn()
            elif head not in _GLUE and not _FUNCTION.fullmatch(head):
                break
            words = words[1:]
        return words

    def _assign(self, words: list[tuple[str, int, int]], chained: bool, ignored: bool) -> list[tuple[str, int, int]]:
        """Take the assignments at the front of a command in; what is left where they stand before a command."""
        declaring = words[0][0] in _DECLARING
        exports = words[0][0] == "export" or (declaring and any(word == "-x" for word, _, _ in words[1:3]))
        rest = words[1:] if declaring else words
        pairs: list[tuple[str, Setting, bool]] = []
        while rest:
            word, begin, end = rest[0]
            match = _ASSIGNMENT.match(word)
            if match is None:
                if not declaring:
                    break
                if exports and re.fullmatch(r"[A-Za-z_]\w*", word):
                    self.known.exports.add(word)
                rest = rest[1:]
                continue
            own = self._own_reference(word, match)
            setting = self._value(word, begin, end, match, own)
            pairs.append((match[1], setting, bool(match[3]) or own > 0))
            rest = rest[1:]
        if rest and not declaring:
            return words  # they hold for this command alone: find_launch reads them
        for name, setting, appended in pairs:
            if ignored:
                continue
            if appended:
                setting = self._appended(name, setting)
            if exports:
                self.known.exports.add(name)
            self.branches.assign(name, setting, maybe=chained, appended=appended)
        return []

    def _own_reference(self, word: str, match: re.Match[str]) -> int:
        """How many characters of a value repeat what the variable held: ``A="$A --x"``, ``A=("${A[@]}" --x)``."""
        if match[1] not in word[match.end() : match.end() + len(match[1]) + 8]:
            return 0
        held = re.compile(rf"(\(\s*)?\"?\$(?:{match[1]}\b(?!\[)|\{{{match[1]}(\[[@*]\])?\}})\"?(?=[\s)])")
        own = held.match(word, match.end()) if not match[2] and not match[3] else None
        return own.end() - match.end() if own is not None else 0

    def _value(self, word: str, begin: int, end: int, match: re.Match[str], own: int) -> Setting:
        """The value of an assignment, without what it repeats of its variable."""
        raw = self.text.text[begin:end]
        if match[2]:
            return Setting((), f"{match[1]} is set item by item", self._place(begin))
        start = begin + match.end()
        place = self.text.source.place(self.text.at(start), self.text.end(end))
        if raw[match.end() : match.end() + 1] == "(" and raw.endswith(")"):
            items: list[AnyWord] = []
            inner = start + max(own, 1)
            for item, left, right in split_placed(self.text.text[inner : end - 1]):
                if not isinstance(item, Operator):
                    items += self._expand(item, inner + left, inner + right)
            return Setting(tuple(items), "", place, array=True)
        value = word[match.end() + own :]
        if not is_unresolved(word):
            return Setting((self._word(value, start, end),), "", place)
        text, why = self.known.resolved(value)
        if text is not None:
            return Setting((self._word(text, start, end),), "", place)
        if len(value.split()) < 2 or "$(" in value or "`" in value:
            return Setting((), why, place)
        return Setting(tuple(self._pieces(value, start, end)), "", place)

    def _pieces(self, value: str, begin: int, end: int) -> Iterator[AnyWord]:
        """The words of a text that is not known as a whole, each where it stands."""
        at = begin
        for match in re.finditer(r"(?:\$\{[^{}]*\}|\S)+", value):
            found = self.text.text.find(match[0], at, end)
            left, right = (found, found + len(match[0])) if found >= 0 else (begin, end)
            at = right if found >= 0 else at
            yield from self._expand(Unresolved(match[0]), left, right)

    def _appended(self, name: str, more: Setting) -> Setting:
        """What a variable holds with ``more`` behind it."""
        before = self.known.lookup(name)
        if before.why:
            return more._replace(words=(), why=before.why) if name in self.known.values else more
        if before.text is not None and more.text is not None and not before.array and not more.array:
            joined = f"{before.text}{more.text}"
            if not more.words or len(joined) > LONGEST_VALUE:
                return Setting((), "its value grows too long", more.place)
            word = more.words[0]
            return Setting((Word(joined, word.source, word.begin, word.end),), "", more.place)
        return Setting(
            (*before.parts, *more.parts), "", more.place, array=True, more=before.more or more.more or more.why
        )

    def _is_orphan(self, words: list[tuple[str, int, int]], after: str) -> bool:
        """Whether a command is the flags of the launch before it, with no backslash between them."""
        head, begin, end = words[0]
        in_case = "case" in self.branches.kinds[-DEEPEST:] and after in ("|", ")")
        if not self.found or in_case or after == ")" or head.partition("=")[0] not in ENGINE_FLAGS:
            return False
        launch = self.found[-1]
        if launch.orphan is None and launch.place.path == self.text.source.path:
            self.found[-1] = launch._replace(orphan=self._word(head, begin, end))
        return True

    def _launch(self, words: list[tuple[str, int, int]], after: str) -> None:
        if self._is_orphan(words, after):
            return
        if words[0][0] == "eval":
            self._read_inside(self._joined(words[1:]))
            return
        expanded: list[AnyWord] = []
        for word, begin, end in words:
            inner = is_unresolved(word) and bool(expanded) and (takes_script(expanded) or is_command_line(word))
            expanded += [self._word(word, begin, end)] if inner else self._expand(word, begin, end)
        if not expanded or not _may_launch(expanded):
            return
        shell = nested_script(expanded)
        if shell is not None:
            self._read_inside(*shell)
            return
        launch = find_launch(expanded, self.known.exported())
        if launch is not None:
            self.found.append(launch)
            return
        for text in handed_on(expanded):
            self._read_inside(text)

    def _read_inside(self, script: Text, arguments: Sequence[AnyWord] = ()) -> None:
        """Read a script inside the script, which sees its variables."""
        self.inside += len(script.text)
        if self.inside > MOST_INSIDE:
            raise InputError(f"the scripts inside it come to more than {MOST_INSIDE:,} characters")
        if self.depth < DEEPEST_SHELL:
            visible = self.known.visible()
            self.found += read_script(script, visible, self.known.outside, arguments, depth=self.depth + 1)

    def _joined(self, words: list[tuple[str, int, int]]) -> Text:
        """Words as one text, as ``eval`` joins them."""
        pieces: list[str] = []
        spots: list[int] = []
        for text, begin, end in words:
            word = self._word(text, begin, end)
            chars = word.chars or Text(word.source, text, word.begin, [word.begin] * len(text))
            pieces += (text, " ")
            spots += [*(chars.at(index) for index in range(len(text))), word.end]
        return Text(self.text.source, "".join(pieces), self.text.at(words[0][1]) if words else 0, spots)

    def _word(self, text: str, begin: int, end: int) -> Word:
        raw = self.text.text[begin:end]
        quoted = len(raw) > 1 and raw[0] == raw[-1] and raw[0] in "'\""
        shift = 1 if quoted else 0
        chars = self.text.part(begin + shift, end - shift)
        return Word(
            text, self.text.source, self.text.at(begin + shift), self.text.end(end - shift),
            chars if chars.text == text else matched(chars, text),
        )  # fmt: skip

    def _unknown(self, text: str, begin: int, end: int, why: str) -> Unknown:
        return Unknown(text, self.text.source, self.text.at(begin), self.text.end(end), why)

    def _place(self, begin: int) -> Place:
        return self.text.source.place(self.text.at(begin))

    def _expand(self, word: str, begin: int, end: int) -> list[AnyWord]:
        """A word as the words it becomes."""
        self.expanded += 1
        if self.expanded > MOST_EXPANSIONS:
            raise InputError(f"its words and arrays come to more than {MOST_EXPANSIONS:,} words")
        if not is_unresolved(word):
            return [self._word(word, begin, end)]
        array = self._array(word, begin, end)
        if array is not None:
            self.expanded += len(array)
            return array
        text, why = self.known.resolved(word)
        raw = self.text.text[begin:end]
        if text is None:
            return [self._unknown(word, begin, end, why)]
        written = self._written(word)
        at, until = self.text.at(begin), self.text.end(end)
        source = self.text.source
        if '"' not in raw and "'" not in raw and (len(text.split()) != 1 or text != text.strip()):
            return [Word(part, source, at, until) for part in text.split()]
        return [Word(text, source, at, until, None, written.place if written is not None else None)]

    def _array(self, word: str, begin: int, end: int) -> list[AnyWord] | None:
        """The items of ``${NAME[@]}`` or ``$@``; None where the word is neither."""
        match = REFERENCE.fullmatch(word) or re.match(r"()\$\{([^{}]*)", word)
        if match is None:
            return None
        parameter = PARAMETER.match(match[1] or match[2] or "")
        name = parameter[0] if parameter is not None else ""
        if name.isidentifier() and match.end() == len(word) and '"' not in self.text.text[begin:end]:
            setting = self.known.lookup(name)  # unquoted: a text that is known in part comes apart
            partly = not setting.why and setting.text is None
            return self._held(setting, word, begin, end) if partly else None
        if parameter is None or not (parameter[2] or parameter[1] in ("@", "*")):
            return None
        if REFERENCE.fullmatch(word) is None and parameter[3] is None:
            return None
        name = parameter[1]
        if name in ("@", "*"):
            if self.known.arguments and not parameter[5]:
                return list(self.known.arguments)
            return [self._unknown(word, begin, end, "the script is started with it")]
        setting = self.known.lookup(name)
        if setting.why:
            return [self._unknown(word, begin, end, setting.why)]
        if setting.array:
            return self._held(setting, word, begin, end)
        if setting.text is None:
            return [self._unknown(word, begin, end, setting.reason)]
        return [Word(part, self.text.source, self.text.at(begin), self.text.end(end)) for part in setting.text.split()]

    def _held(self, setting: Setting, word: str, begin: int, end: int) -> list[AnyWord]:
        """The words a variable holds, and one more that nobody knows where others may have been added."""
        more = [self._unknown(word, begin, end, setting.more)] if setting.more else []
        return [*setting.parts, *more]

    def _written(self, word: str) -> Word | None:
        """The literal a word's whole text comes from, where a variable holds it."""
        match = REFERENCE.fullmatch(word)
        name = (match[1] or match[2]) if match is not None else None
        setting = self.known.known(name) if name else None
        first = setting.words[0] if setting is not None and len(setting.words) == 1 else None
        return first if isinstance(first, Word) else None


def _may_launch(words: Sequence[AnyWord]) -> bool:
    return any("sglang" in word or "vllm" in word or word.rpartition("/")[2] in SHELLS for word in words)
