"""What does a YAML file hold, and where? Documents as nodes whose scalars know the place of each character.

Built from the parser's events, never from Python objects: tags construct nothing, an alias is its anchor's own node
(shared, not copied, so that no bomb unfolds), and size, number and depth of nodes are bounded. Every value is text.
"""

import re
from collections.abc import Iterator

import yaml

from hybridcalc.engines import ENGINES
from hybridcalc.shell import TEMPLATE, Source, Text, Word, spend, unrendered

MOST_NODES = 200_000
"""Nodes of one file; a file of 1 MiB has some 60,000."""
DEEPEST = 100
MOST_MERGES = 32
"""Mappings that ``<<`` may bring into one, all together."""

_ESCAPE = re.compile(
    r"\\(u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|U[0-9a-fA-F]{8}"
    r"|\r?\n[ \t]*|.)", re.DOTALL,
)  # fmt: skip
_JSON = re.compile(r"\"(?:[^\"\\]|\\.)*+(?:\"|\Z)|\t", re.DOTALL)
_SURROGATES = re.compile(
    r"\\(?:(u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2})|(u[dD][89a-fA-F][0-9a-fA-F]{2})|.)", re.DOTALL
)
_CHART = re.compile(r"\{\{-|\{\{\s*(?:\.|include\b|template\b|toYaml\b|end\b|if\b|range\b|with\b)")
_TAG_LINE = re.compile(r"(?m)^[ \t]*(?:\{%[^%\n]*%\}|\{#[^\n]*#\})[ \t]*$")
_VALUE = re.compile(r"(?m)(?<=[:-] )\{\{[^\n]*$")
"""What a template engine leaves of a document: lines of tags alone, and values that begin with what it puts in."""
_BLANKS = re.compile(r"[ \t\r\n]+")
"""In a quoted text a line end with the blanks around it is a space, more of them are one line end less."""
_PROPERTIES = re.compile(r"(?:[!&]\S*\s+)+")
_Loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class Node:
    """A node: ``begin`` and ``end`` are its span in the file, ``tag`` the tag that was written, if any."""

    __slots__ = ("begin", "end", "source", "tag")

    def __init__(self, source: Source, begin: int, end: int, tag: str | None) -> None:
        self.source, self.begin, self.end, self.tag = source, begin, end, tag


class Scalar(Node):
    """A text. ``style`` is None for a plain one, else its first character: ``'``, ``"``, ``|`` or ``>``."""

    __slots__ = ("style", "value")

    def __init__(self, source: Source, begin: int, end: int, tag: str | None, value: str, style: str | None) -> None:
        self.source, self.begin, self.end, self.tag = source, begin, end, tag  # a file has thousands: no super()
        self.value, self.style = value, style

    @property
    def empty(self) -> bool:
        """Whether it is null or nothing."""
        return self.style is None and self.value in ("", "~", "null", "Null", "NULL")

    def text(self) -> Text:
        """The value, with the place of each character; a template's ``{{ x }}`` as an expansion nobody knows."""
        text = self._text()
        return unrendered(text, ENGINES.launchers.starting) if "{{" in self.value or "{%" in self.value else text

    def _text(self) -> Text:
        raw = self.source.text[self.begin : self.end]
        if self.style in ("'", '"') and raw[1:-1] == self.value:
            return Text(self.source, self.value, self.begin + 1)
        if raw == self.value:
            return Text(self.source, self.value, self.begin)
        spots = _unescaped(raw, self.begin) if self.style in ("'", '"') else None
        if spots is None or len(spots) != len(self.value):
            spots = _lined_up(self.value, raw, self.begin, block=self.style in ("|", ">"))
        return Text(self.source, self.value, self.begin, spots)

    def word(self) -> Word:
        """The value as one word; unknown where a tag of somebody's own would make something of it."""
        if self.tag is not None and not self.tag.startswith("tag:yaml.org,2002:"):
            return Word(
                self.value,
                self.source,
                self.begin,
                self.end,
                why=self.tag[1:] if self.tag.startswith("=") else f"the tag {self.tag[:20]} decides it",
            )
        if "{{" in self.value and self.style not in ("|", ">") and TEMPLATE.search(self.value):
            return Word(self.value, self.source, self.begin, self.end, why="a template decides it")
        inner = 1 if self.style in ("'", '"') else 0
        text = self.text()
        begin, end = self.begin + inner, self.end - inner
        if self.style in ("|", ">") and text.text:
            begin, end = text.at(0), text.end(len(text.text.rstrip("\n")))
        return Word(self.value, self.source, begin, end, text)

    def known(self) -> Word | None:
        """The value as one word; None where that is not known, or it is null."""
        word = None if self.empty else self.word()
        return word if word is not None and not word.why else None


class Sequence(Node):
    """A list of nodes."""

    __slots__ = ("items",)

    def __init__(self, source: Source, begin: int, end: int, tag: str | None) -> None:
        super().__init__(source, begin, end, tag)
        self.items: list[Node] = []


class Mapping(Node):
    """Keys and values in their order; `get` also finds what ``<<`` merges in."""

    __slots__ = ("_others", "_own", "pairs")

    def __init__(self, source: Source, begin: int, end: int, tag: str | None) -> None:
        super().__init__(source, begin, end, tag)
        self.pairs: list[tuple[Node, Node]] = []
        self._own: dict[str, tuple[Scalar, Node]] | None = None
        self._others: list[Mapping] | None = None

    def entries(self) -> Iterator[tuple[Scalar, Node]]:
        """Every entry with a text for a key, merged ones last; a key once. The last of doubled keys counts."""
        own = self._table()
        yield from own.values()
        others = self._merged()
        if not others:
            return
        seen = set(own)
        for merged in others:
            held = merged._table()
            spend(visits=len(held))
            for name, pair in held.items():
                if name not in seen:
                    seen.add(name)
                    yield pair

    def get(self, name: str) -> Node | None:
        """The value of a key; None where there is none or it is null."""
        pair = self._table().get(name)
        if pair is not None:
            value = pair[1]
            return None if isinstance(value, Scalar) and value.empty else value
        for merged in self._merged():
            pair = merged._table().get(name)
            if pair is not None:
                return pair[1]
        return None

    def mapping(self, *names: str) -> "Mapping | None":
        """The mapping at a path of keys; None where there is none."""
        node: Node | None = self
        for name in names:
            node = node.get(name) if isinstance(node, Mapping) else None
        return node if isinstance(node, Mapping) else None

    def scalar(self, *names: str) -> Scalar | None:
        """The scalar at a path of keys; None where there is none."""
        holder = self.mapping(*names[:-1])
        node = holder.get(names[-1]) if holder is not None else None
        return node if isinstance(node, Scalar) else None

    def string(self, *names: str) -> str:
        """The text at a path of keys; empty where there is none."""
        scalar = self.scalar(*names)
        return "" if scalar is None else scalar.value

    def items(self, *names: str) -> list[Node]:
        """The items of the list at a path of keys."""
        holder = self.mapping(*names[:-1])
        node = holder.get(names[-1]) if holder is not None else None
        return node.items if isinstance(node, Sequence) else []

    def _table(self) -> dict[str, tuple[Scalar, Node]]:
        """The entries of its own by their keys, the last of doubled ones; made once, as what is read stays."""
        if self._own is None:
            self._own = {
                key.value: (key, value) for key, value in self.pairs if type(key) is Scalar and key.value != "<<"
            }
        return self._own

    def _merged(self) -> list["Mapping"]:
        """Mappings that ``<<`` brings in, the nearest first, each once."""
        if self._others is None:
            self._others = [] if len(self._table()) == len(self.pairs) else self._found()
        return self._others

    def _found(self) -> list["Mapping"]:
        found: list[Mapping] = []
        seen = {id(self)}
        waiting = [self]
        while waiting and len(found) < MOST_MERGES:
            for key, value in waiting.pop(0).pairs:
                if isinstance(key, Scalar) and key.value == "<<":
                    others = value.items if isinstance(value, Sequence) else [value]
                    fresh = [other for other in others if isinstance(other, Mapping) and id(other) not in seen]
                    seen.update(map(id, fresh))
                    fresh = list(dict.fromkeys(fresh))
                    found += fresh
                    waiting += fresh
        return found


def scalars(nodes: list[Node]) -> Iterator[Scalar]:
    """Every scalar of documents, keys too, each once."""
    waiting, seen = list(nodes), set[int]()
    while waiting:
        node = waiting.pop()
        if id(node) in seen:
            continue
        seen.add(id(node))
        if isinstance(node, Scalar):
            yield node
        elif isinstance(node, Sequence):
            waiting += node.items
        elif isinstance(node, Mapping):
            waiting += [part for pair in node.pairs for part in pair]


def documents(source: Source, text: Text | None = None) -> list[Node]:
    """The documents of a file, or of a text inside it. Raises InputError naming the line for what is no YAML."""
    content = source.text if text is None else text.text
    if text is None and content.startswith("\ufeff"):
        text, content = Text(source, content[1:], 1), content[1:]
    try:
        try:
            return _build(source, content, text)
        except yaml.YAMLError:
            whole = text or Text(source, content)
            plain = _as_yaml(whole) or _as_document(whole)
            if plain is None:
                raise
            return _build(source, plain.text, plain)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        index = min(mark.index, len(content)) if mark is not None else 0
        problem = str(getattr(error, "problem", "") or getattr(error, "reason", "") or "cannot be parsed")
        raise source.error(index if text is None else text.at(index), f"no YAML: {problem[:120]}") from None


def _whole(match: re.Match[str]) -> str:
    """An escape as YAML knows it: both halves of a character as one, half a one as the mark of what is no character."""
    if match[1] is not None:
        high, low = int(match[0][2:6], 16), int(match[0][8:12], 16)
        return f"\\U{0x10000 + ((high - 0xD800) << 10) + (low - 0xDC00):08x}"
    return "\\ufffd" if match[2] is not None else match[0]


def _as_yaml(text: Text) -> Text | None:
    """JSON that YAML does not take as it is: halves of characters in escapes, tabs between values. None for no JSON."""
    if text.text.lstrip()[:1] not in ("{", "["):
        return None

    def value(match: re.Match[str]) -> str | None:
        if match[0] == "\t":
            return " "
        if "\\u" not in match[0]:
            return None
        return _SURROGATES.sub(_whole, match[0])

    new = text.replaced(_JSON, value)
    return None if new is text else new


def _as_document(text: Text) -> Text | None:
    """A template of a document, whose values are put in by name: its tags left out, its values in quotes. None for any
    other, and for one that a chart makes of more than names.
    """
    if ("{{" not in text.text and "{%" not in text.text) or _CHART.search(text.text) is not None:
        return None
    return text.replaced(_TAG_LINE, lambda match: "").replaced(
        _VALUE, lambda match: "'" + match[0].replace("'", "''") + "'"
    )


def _build(source: Source, content: str, text: Text | None) -> list[Node]:
    at = (lambda index: index) if text is None else text.at
    found: list[Node] = []
    anchors: dict[str, Node] = {}
    builder = _Builder(source, found)
    loader = _Loader(content)
    scalar, end_of_stream = yaml.ScalarEvent, yaml.StreamEndEvent
    try:
        while (kind := type(event := loader.get_event())) is not end_of_stream:
            if kind is scalar:
                begin = event.start_mark.index
                if event.tag is not None or event.anchor is not None:  # they stand before the value
                    properties = _PROPERTIES.match(content, begin, event.end_mark.index)
                    begin = properties.end() if properties is not None else begin
                node: Node = Scalar(
                    source, at(begin), at(event.end_mark.index), event.tag, event.value, event.style or None
                )
            elif kind in _STARTS:
                node = _STARTS[kind](source, at(event.start_mark.index), at(event.end_mark.index), event.tag)
            elif kind is yaml.AliasEvent:
                if event.anchor not in anchors:
                    raise source.error(None, f"*{event.anchor[:40]} names no anchor before it")
                builder.add(anchors[event.anchor])
                continue
            elif kind in _ENDS:
                builder.close(at(event.end_mark.index))
                continue
            else:
                if kind is yaml.DocumentStartEvent:
                    anchors = {}
                continue
            if event.anchor is not None:
                anchors[event.anchor] = node
            builder.add(node)
            if kind is not scalar:
                builder.open(node)
    finally:
        loader.dispose()
    return found


_STARTS: dict[type, type[Sequence] | type[Mapping]] = {
    yaml.MappingStartEvent: Mapping, yaml.SequenceStartEvent: Sequence,
}  # fmt: skip
_ENDS = frozenset({yaml.MappingEndEvent, yaml.SequenceEndEvent})


class _Builder:
    """Puts nodes into the collections that are open."""

    __slots__ = ("_count", "_found", "_key", "_keys", "_open", "_source", "_top")

    def __init__(self, source: Source, found: list[Node]) -> None:
        self._source, self._found = source, found
        self._count = 0
        self._open: list[Node] = []
        self._keys: list[Node | None] = []
        self._top: Node | None = None
        self._key: Node | None = None

    def add(self, node: Node) -> None:
        """A node where the next one belongs."""
        self._count += 1
        if self._count > MOST_NODES:
            raise self._source.error(None, f"more than {MOST_NODES:,} nodes")
        top = self._top
        if type(top) is Mapping:
            if self._key is None:
                self._key = node
            else:
                top.pairs.append((self._key, node))
                self._key = None
        elif type(top) is Sequence:
            top.items.append(node)
        else:
            self._found.append(node)

    def open(self, node: Node) -> None:
        """What comes next belongs into ``node``."""
        if len(self._open) >= DEEPEST:
            raise self._source.error(None, f"deeper than {DEEPEST}")
        self._open.append(node)
        self._keys.append(self._key)
        self._top, self._key = node, None

    def close(self, end: int) -> None:
        """The innermost open collection ends."""
        self._open.pop().end = end
        self._key = self._keys.pop()
        self._top = self._open[-1] if self._open else None


def _unescaped(raw: str, begin: int) -> list[int]:
    """Offsets of the characters of a quoted text."""
    spots: list[int] = []
    double = raw[0] == '"'
    at = 1
    while at < len(raw) - 1:
        char = raw[at]
        blanks = _BLANKS.match(raw, at, len(raw) - 1)
        if blanks is not None:
            lines = blanks[0].count("\n")
            spots += [begin + at] * max(1, lines - 1) if lines else range(begin + at, begin + blanks.end())
            at = blanks.end()
            continue
        escape = _ESCAPE.match(raw, at) if double else None
        if escape is None or not escape[1].lstrip("\r").startswith("\n"):
            spots.append(begin + at)
        at = escape.end() if escape is not None else at + (2 if char == "'" and not double else 1)
    return spots


def _lined_up(value: str, raw: str, begin: int, *, block: bool) -> list[int]:
    """Offsets of a text that runs over lines: what each line holds is found in the value, in order."""
    spots: list[int] = []
    offset = raw.find("\n") + 1 if block else 0
    while offset < len(raw):
        end = raw.find("\n", offset)
        end = len(raw) if end < 0 else end
        line = raw[offset:end]
        content = line.strip()
        if not block:
            content = content.strip("'\"") if offset == 0 or end == len(raw) else content
        if content:
            found = value.find(content, len(spots))
            if found >= 0:
                first = begin + offset + line.find(content)
                spots += [first] * (found - len(spots))
                spots += range(first, first + len(content))
        offset = end + 1
    last = spots[-1] if spots else begin
    return (spots + [last] * (len(value) - len(spots)))[: len(value)]
