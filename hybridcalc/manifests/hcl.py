"""What does a file in HCL hold? Blocks and attributes of Nomad and Terraform as the nodes of a YAML file.

    task "vllm" { config { image = "vllm/vllm-openai", args = ["--model", "org/m"] } }
    ->   {vllm: {config: {image: vllm/vllm-openai, args: [--model, org/m]}}}

A block is named by its last label, else by its kind. Interpolations and calls are values that nobody knows here, but
for ``jsonencode(...)``, whose argument counts.
"""

import re
from collections.abc import Iterator, Set

from hybridcalc.manifests import Deployment
from hybridcalc.manifests.documents import Beside
from hybridcalc.manifests.kubernetes import read_documents
from hybridcalc.manifests.yamltree import DEEPEST, MOST_NODES, Mapping, Node, Scalar, Sequence
from hybridcalc.shell import Text
from hybridcalc.shell.variables import Outside

UNKNOWN = "=another part of the file decides it"
"""The tag of a value that is not written out."""
_TOKEN = re.compile(
    r"(?P<gap>(?:[ \t\r]|#[^\n]*|//[^\n]*|/\*[\s\S]*?(?:\*/|\Z))+)|(?P<string>\"(?:[^\"\\\n]|\\.)*\")"
    r"|<<[-~]?(?P<mark>[A-Za-z_]\w*)\r?\n|(?P<name>[A-Za-z_][\w.-]*)|(?P<number>-?[0-9][\w.]*)|(?P<sign>[\s\S])"
)
_REFERENCE = re.compile(r"\$\{\s*((?:var|local)\.\w+)\s*\}")
_ESCAPE = re.compile(r"\\(.)")


def read_hcl(text: Text, outside: Outside, beside: Beside) -> Iterator[Deployment]:
    """What the blocks of a file start."""
    given = beside("terraform.tfvars")
    elsewhere = {key.value for key, _ in body_of(Text(given, given.text)).entries()} if given is not None else set()
    yield from read_documents([body_of(text, elsewhere)], outside, beside)


def body_of(text: Text, elsewhere: Set[str] = frozenset()) -> Mapping:
    """The whole of a file, its ``locals`` and the defaults of its variables filled in, but for those set elsewhere."""
    reader = _Reader(text)
    body = reader.body(0)
    known = {name: value for name, value in reader.known.items() if name.removeprefix("var.") not in elsewhere}
    for scalar in reader.open:
        value = known.get(scalar.value, _REFERENCE.sub(lambda match: known.get(match[1], match[0]), scalar.value))
        if value != scalar.value and "${" not in value:
            scalar.tag, scalar.value = None, value
    return body


class _Reader:
    """Reads a text from front to back; what it does not understand it leaves out."""

    def __init__(self, text: Text) -> None:
        self.text, self.at, self.count = text, 0, 0
        self.open: list[Scalar] = []
        self.known: dict[str, str] = {}

    def _next(self, *, lines: bool = False) -> re.Match[str] | None:
        """The next token; line ends are one only where ``lines`` says so."""
        while self.at < len(self.text.text):
            match = _TOKEN.match(self.text.text, self.at)
            if match is None:
                return None
            self.at = match.end()
            if match["gap"] is None and (lines or match[0] != "\n"):
                return match
        return None

    def _peek(self, *, lines: bool = False) -> str:
        at = self.at
        match = self._next(lines=lines)
        self.at = at
        return match[0] if match is not None else ""

    def _counted(self, depth: int) -> None:
        self.count += 1
        if self.count > MOST_NODES or depth > DEEPEST:
            raise self.text.source.error(None, f"more than {MOST_NODES:,} nodes, or deeper than {DEEPEST}")

    def _key(self, match: re.Match[str]) -> Scalar:
        inner = 1 if match["string"] is not None else 0
        begin, end = match.start() + inner, match.end() - inner
        return Scalar(self.text.source, self.text.at(begin), self.text.end(end), None, self.text.text[begin:end], None)

    def body(self, depth: int) -> Mapping:
        """Attributes and blocks up to the bracket that closes them."""
        self._counted(depth)
        held = Mapping(self.text.source, self.text.at(self.at), self.text.at(self.at), None)
        while (match := self._next()) is not None and match[0] != "}":
            if match["name"] is None and match["string"] is None:
                continue
            key = last = self._key(match)
            while self._peek() and (label := self._next()) is not None:
                if label["name"] is not None or label["string"] is not None:
                    last = self._key(label)
                    continue
                if label[0] in ("=", ":"):
                    held.pairs.append((key, self.expression(depth + 1)))
                elif label[0] == "{":
                    held.pairs.append((last, block := self.body(depth + 1)))
                    self._named(key.value, last.value, block)
                break
        held.end = self.text.at(self.at)
        found = {key.value: value for key, value in held.pairs if isinstance(key, Scalar)}
        options, environment = found.get("config"), found.get("env")
        if isinstance(options, Mapping) and environment is not None:  # of a task and its driver
            options.pairs.append((Scalar(held.source, held.begin, held.begin, None, "env", None), environment))
        return held

    def _named(self, kind: str, name: str, block: Mapping) -> None:
        """What a block gives other parts of the file: the default of a ``variable``, the values of ``locals``."""
        for key, value in block.entries() if kind in ("variable", "locals") else ():
            if isinstance(value, Scalar) and value.tag is None and (kind == "locals" or key.value == "default"):
                self.known[f"local.{key.value}" if kind == "locals" else f"var.{name}"] = value.value

    def expression(self, depth: int) -> Node:
        """A value; what follows it on its line makes it one that nobody knows."""
        self._counted(depth)
        match = self._next()
        if match is None:
            return Scalar(self.text.source, self.text.at(self.at), self.text.at(self.at), None, "", None)
        begin = match.start()
        if match[0] == "[":
            items = Sequence(self.text.source, self.text.at(begin), self.text.at(begin), None)
            while self._peek() not in ("]", ""):
                if self._peek() == ",":
                    self._next()
                else:
                    items.items.append(self.expression(depth + 1))
            self._next()
            items.end = self.text.at(self.at)
            return items
        if match[0] == "{":
            return self.body(depth)
        if match["mark"] is not None:
            return self._document(match)
        if match["name"] == "jsonencode" and self._peek() == "(":
            self._next()
            inner = self.expression(depth + 1)
            while self._peek() not in (")", ""):
                self._next()
            self._next()
            return inner
        return self._scalar(match)

    def _scalar(self, match: re.Match[str]) -> Scalar:
        inner = 1 if match["string"] is not None else 0
        end = match.end()
        known = match["string"] is not None or match["number"] is not None or match[0] in ("true", "false")
        depth = 0
        while (following := self._peek(lines=True)) not in ("", "\n", ",", "]", "}") or depth:
            if following == "":
                break
            depth += (following in ("(", "[", "{")) - (following in (")", "]", "}"))
            if depth < 0:
                break
            self._next(lines=True)
            end, known = self.at, False
        begin, end = match.start() + inner, end - inner
        raw = self.text.text[begin:end]
        value = _ESCAPE.sub(lambda escape: {"n": "\n", "t": "\t"}.get(escape[1], escape[1]), raw) if inner else raw
        tag = None if known and "${" not in value else UNKNOWN
        begin, end = self.text.at(begin) - inner, self.text.end(end) + inner
        scalar = Scalar(self.text.source, begin, end, tag, value, '"' if inner else None)
        self.open += [scalar] if tag is not None else []
        return scalar

    def _document(self, match: re.Match[str]) -> Scalar:
        """A here-document."""
        closing = re.compile(rf"(?m)^[ \t]*{re.escape(match['mark'])}[ \t]*\r?$").search(self.text.text, self.at)
        begin, end = self.at, closing.start() if closing is not None else len(self.text.text)
        self.at = closing.end() if closing is not None else end
        source = self.text.source
        return Scalar(source, self.text.at(begin), self.text.end(end), None, self.text.text[begin:end], None)
