"""Which words does a word of a script become? Variables, arrays and quotes, each word with its place.

    A=(--tp 8); B="$A --pp $P"      "${A[@]}"   ->   --tp  8      $B   ->   --tp  --pp  and one that is not known

A text that is known in part comes apart into its words, those that are known among them.
"""

import re
from collections.abc import Iterator

from hybridcalc.shell.bounds import spend
from hybridcalc.shell.commands import PlacedWord
from hybridcalc.shell.parse import Operator, Unresolved, is_unresolved, split_placed
from hybridcalc.shell.source import AnyWord, Place, Setting, Text, Unknown, Word, matched
from hybridcalc.shell.variables import FROM_CALLER, LONGEST_VALUE, PARAMETER, REFERENCE, Variables

_OWN = re.compile(r"(?:\(\s*)?\"?\$(?:([A-Za-z_]\w*)(?![\w\[])|\{([A-Za-z_]\w*)(?:\[[@*]\])?\})\"?(?=[\s)])")
"""What a value may begin with: another variable, quoted or not."""


class Expansion:
    """The words of one script, whose variables are ``known``."""

    def __init__(self, text: Text, known: Variables) -> None:
        self.text, self.known = text, known

    def word(self, text: str, begin: int, end: int) -> Word:
        """A word as it is written between two offsets of the script."""
        raw = self.text.text[begin:end]
        quoted = len(raw) > 1 and raw[0] == raw[-1] and raw[0] in "'\""
        shift = 1 if quoted else 0
        chars = self.text.part(begin + shift, end - shift)
        return Word(
            text,
            self.text.source,
            self.text.at(begin + shift),
            self.text.end(end - shift),
            chars if chars.text == text else matched(chars, text),
        )

    def place(self, begin: int) -> Place:
        """Where an offset of the script stands in its file."""
        return self.text.source.place(self.text.at(begin))

    def expand(self, word: str, begin: int, end: int) -> list[AnyWord]:
        """A word as the words it becomes."""
        spend(words=1)
        if not is_unresolved(word):
            return [self.word(word, begin, end)]
        array = self._array(word, begin, end)
        if array is not None:
            spend(words=len(array))
            return array
        text, why = self.known.resolved(word)
        raw = self.text.text[begin:end]
        if text is None:
            return [self._unknown(word, begin, end, why)]
        written = self._written(word)
        at, until = self.text.at(begin), self.text.end(end)
        source = self.text.source
        if '"' not in raw and "'" not in raw and (len(text.split()) != 1 or text != text.strip()):
            parts = text.split()
            spend(words=len(parts))
            return [Word(part, source, at, until) for part in parts]
        return [Word(text, source, at, until, None, written.place if written is not None else None)]

    def value(self, word: str, begin: int, end: int, match: re.Match[str]) -> tuple[Setting, bool]:
        """The value of an assignment without what it repeats of its variable, and whether it adds to that."""
        own = self._own_reference(word, match)
        return self._value(word, begin, end, match, own), bool(match[3]) or own > 0

    def appended(self, name: str, more: Setting) -> Setting:
        """What a variable holds with ``more`` behind it."""
        before = self.known.lookup(name)
        if before.why:
            return more._replace(words=(), why=before.why) if name in self.known.values else more
        if before.text is not None and more.text is not None and not before.array and not more.array:
            joined = f"{before.text}{more.text}"
            if not more.words or len(joined) > LONGEST_VALUE:
                return Setting((), "its value grows too long", more.place)
            spend(characters=len(joined))
            word = more.words[0]
            return Setting((Word(joined, word.source, word.begin, word.end),), "", more.place)
        parts = (*before.parts, *more.parts)
        spend(visits=len(parts))
        return Setting(parts, "", more.place, array=True, more=before.more or more.more or more.why)

    def joined(self, words: list[PlacedWord]) -> Text:
        """Words as one text, as ``eval`` joins them."""
        pieces: list[str] = []
        spots: list[int] = []
        for text, begin, end in words:
            word = self.word(text, begin, end)
            chars = word.characters
            pieces += (text, " ")
            spots += [*(chars.at(index) for index in range(len(text))), word.end]
        return Text(self.text.source, "".join(pieces), self.text.at(words[0][1]) if words else 0, spots)

    def _unknown(self, text: str, begin: int, end: int, why: str) -> Unknown:
        return Unknown(text, self.text.source, self.text.at(begin), self.text.end(end), why)

    def _own_reference(self, word: str, match: re.Match[str]) -> int:
        """How many characters of a value repeat what the variable held: ``A="$A --x"``, ``A=("${A[@]}" --x)``."""
        own = _OWN.match(word, match.end()) if not match[2] and not match[3] else None
        return own.end() - match.end() if own is not None and match[1] in own.groups() else 0

    def _value(self, word: str, begin: int, end: int, match: re.Match[str], own: int) -> Setting:
        raw = self.text.text[begin:end]
        if match[2]:
            return Setting((), f"{match[1]} is set item by item", self.place(begin))
        start = begin + match.end()
        place = self.text.source.place(self.text.at(start), self.text.end(end))
        if raw[match.end() : match.end() + 1] == "(" and raw.endswith(")"):
            items: list[AnyWord] = []
            inner = start + max(own, 1)
            for item, left, right in split_placed(self.text.text[inner : end - 1]):
                if not isinstance(item, Operator):
                    items += self.expand(item, inner + left, inner + right)
            return Setting(tuple(items), "", place, array=True)
        value = word[match.end() + own :]
        if not is_unresolved(word):
            return Setting((self.word(value, start, end),), "", place)
        text, why = self.known.resolved(value)
        if text is not None:
            return Setting((self.word(text, start, end),), "", place)
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
            yield from self.expand(Unresolved(match[0]), left, right)

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
            return [self._unknown(word, begin, end, FROM_CALLER)]
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
