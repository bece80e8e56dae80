"""Which engines does Python source start? Parsed as a tree, never run.

    llm = LLM(model="org/m", max_model_len=8192)               ->   vllm  --model org/m --max-model-len 8192
    cmd = ["vllm", "serve", MODEL, "--max-num-seqs", str(N)]   ->   vllm  MODEL --max-num-seqs N, where known

Calls of an engine's own classes, lists of words that begin with a launcher, and texts that are command lines. A name
counts where it is bound once, to something written out. Left out: what functions return, loops, other modules.
"""

import ast
import json
import re
from collections.abc import Iterator

from hybridcalc.engines import ENGINES
from hybridcalc.errors import InputError
from hybridcalc.manifests import Deployment, Hardware
from hybridcalc.manifests.pythonvalues import DEEPEST_VALUE, UNKNOWN, Names, called
from hybridcalc.manifests.scripts import launches_of_words, run_script
from hybridcalc.shell import Text, Word, spend
from hybridcalc.shell.launch import Launch
from hybridcalc.shell.variables import A_VARIABLE, Outside

LONGEST_SOURCE = 512 * 1024
_PRINTED = re.compile(
    r"print|log\w*|debug|info|warn(ing)?|error|exception|critical|echo|add_argument|\w*Parser|\w*Error|Exception|write"
)
"""Functions whose texts are said to somebody."""
_GPU = re.compile(r"([A-Za-z][\w-]*)(?::([0-9]{1,3}))?")
SET_BY_ITEM = "an item of it is set elsewhere"


def seems_to_start(text: str) -> bool:
    """Whether source seems to start an engine, or to configure one that Ray Serve starts."""
    configures = "|".join(name for row in ENGINES.rows.values() for name in row.starter.controllers)
    configured = "engine_kwargs" in text and re.search(rf"\b(?:{configures})\(", text) is not None
    return configured or ENGINES.launchers.calls_engine(text)


def read_python(text: Text, outside: Outside, beside: object = None) -> Iterator[Deployment]:
    """Every engine that a module starts. Raises InputError for a text that is no Python of this release."""
    if len(text.text) > LONGEST_SOURCE:
        raise InputError(f"more than {LONGEST_SOURCE:,} characters of Python")
    try:
        tree = ast.parse(text.text)
    except SyntaxError as error:
        raise text.source.error(text.at(0), f"no Python: {error.msg} (line {error.lineno})") from None
    except (ValueError, RecursionError, MemoryError):
        raise text.source.error(text.at(0), "no Python: nested too deep") from None
    yield from _Module(text, tree, outside).deployments()


class _Module(Names):
    """A module: the names it binds once, what it imports from an engine, and where its lines begin."""

    def __init__(self, text: Text, tree: ast.Module, outside: Outside) -> None:
        self.text = text
        self.lines = [0, *(match.end() for match in re.finditer("\n", text.text))]
        self.gpus: list[tuple[int, int, Hardware]] = []
        self.imported: dict[str, str] = {}
        super().__init__(tree, outside)
        for node, _, _ in self.nodes:
            self._declared(node)

    def _declared(self, node: ast.AST) -> None:
        """What is imported from an engine, and the GPUs that a function asks for."""
        if isinstance(node, ast.ImportFrom | ast.Import):
            for alias in node.names:
                root = ((node.module or "") if isinstance(node, ast.ImportFrom) else alias.name).partition(".")[0]
                if root in ENGINES:
                    self.imported[(alias.asname or alias.name).partition(".")[0]] = root
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            for decorator in node.decorator_list:
                self._decorated(decorator, node)

    def deployments(self) -> Iterator[Deployment]:
        """What the calls, lists and texts of the module start."""
        said: set[int] = set()
        for node, _, _ in self.nodes:
            if isinstance(node, ast.Call) and _PRINTED.fullmatch(called(node)):
                said.update(id(inner) for inner in ast.walk(node))
            if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
                said.add(id(node.value))
        for node, _, _ in self.nodes:
            if id(node) in said:
                continue
            launches = self._call(node) if isinstance(node, ast.Call) else []
            if isinstance(node, ast.List | ast.Tuple):
                launches = self._list(node)
            elif isinstance(node, ast.Constant | ast.JoinedStr) and self._is_command(node):
                said.update(id(inner) for inner in ast.walk(node))
                launches = self._text(node)
            for launch in launches:
                yield Deployment(self.text.source, "python", "", launch, self._hardware(node))

    def _decorated(self, decorator: ast.expr, function: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        """The GPUs that a decorator asks for, as clouds of functions write them: ``gpu="H100:2"``."""
        for keyword in decorator.keywords if isinstance(decorator, ast.Call) else ():
            value = self.value(keyword.value) if keyword.arg == "gpu" else None
            match = _GPU.fullmatch(value) if isinstance(value, str) else None
            if match is not None:
                begin, end = self._span(keyword.value)
                hardware = Hardware(match[1], int(match[2] or 1), self.text.source.place(begin, end))
                self.gpus.append((function.lineno, function.end_lineno or function.lineno, hardware))

    def _hardware(self, node: ast.AST) -> Hardware:
        line = getattr(node, "lineno", 0)
        return next((found for first, last, found in self.gpus if first <= line <= last), Hardware())

    def _span(self, node: ast.expr | ast.keyword) -> tuple[int, int]:
        """Where an expression or a keyword stands in the file."""

        def offset(line: int, column: int) -> int:
            begin = self.lines[line - 1]
            near = self.text.text[begin : begin + column]
            if not near.isascii():  # columns count bytes
                near = near.encode("utf-8", "replace")[:column].decode("utf-8", "ignore")
            return self.text.at(begin + len(near))

        return offset(node.lineno, node.col_offset), offset(
            node.end_lineno or node.lineno, node.end_col_offset or node.col_offset
        )

    def word(self, node: ast.expr) -> Word:
        """An expression as one word."""
        begin, end = self._span(node)
        value = self.value(node)
        if _is_interpreter(node):
            value = "python"
        if not isinstance(value, str | int | float):
            shown = self.text.text[begin - self.text.base : end - self.text.base] if self.text.spots is None else "..."
            return Word(shown[:80], self.text.source, begin, end, why=A_VARIABLE)
        raw = self.text.source.text[begin:end]
        chars = Text(self.text.source, raw[1:-1], begin + 1) if raw[1:-1] == value and raw[:1] in "'\"" else None
        shift = 1 if chars is not None else 0
        return Word(str(value), self.text.source, begin + shift, end - shift, chars)

    def _items(self, node: ast.expr, depth: int = 0) -> Iterator[Word]:
        """The words of a list, those of lists inside it and of what is added to it too."""
        spend(words=1)
        if isinstance(node, ast.Starred):
            yield from self._items(node.value, depth + 1)
        elif isinstance(node, ast.List | ast.Tuple):
            spend(words=len(node.elts))
            for item in node.elts:
                yield from self._items(item, depth + 1) if isinstance(item, ast.Starred) else (self.word(item),)
        elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add) and depth < DEEPEST_VALUE:
            yield from self._items(node.left, depth + 1)
            yield from self._items(node.right, depth + 1)
        elif isinstance(node, ast.Name) and depth < DEEPEST_VALUE and self.bound.get(node.id) is not None:
            held = self.bound[node.id]
            words = list(self._items(held, depth + 1)) if held is not None else []
            yield from self._set_by_item(node.id, [*words, *self._additions(node.id)], 0)
        else:
            begin, end = self._span(node)
            yield Word("$@", self.text.source, begin, end, why=A_VARIABLE)

    def _additions(self, name: str) -> Iterator[Word]:
        for value, conditional in self.added.get(name, ()):
            if conditional:
                begin, end = self._span(value)
                yield Word("$@", self.text.source, begin, end, why="a condition adds to it")
            else:
                yield from self._items(value, DEEPEST_VALUE - 1)

    def _set_by_item(self, name: str, words: list[Word], first: int) -> list[Word]:
        """The words of a list, of which items may be set elsewhere: one that is plain is, else any may be another."""
        changes = self.changes.get(name, ())
        known = not any(word.why and word == "$@" for word in words) and name not in self.added
        for change in changes:
            index = self.value(change.key)
            if known and type(index) is int and change.value is not None and -len(words) <= index < len(words):
                words[index] = self.word(change.value)
                continue
            others = [word if word.startswith("--") else word.instead(word, SET_BY_ITEM) for word in words[first:]]
            any_ = [words[-1].instead("$@", SET_BY_ITEM)] if words else []
            return [*words[:first], *others, *any_]
        return words

    def _list(self, node: ast.List | ast.Tuple) -> list[Launch]:
        first = node.elts[0] if node.elts else None
        text = "" if first is None else "python" if _is_interpreter(first) else self.value(first)
        if not isinstance(text, str) or not ENGINES.launchers.may_begin(text):
            return []
        name = self.names.get(id(node), "")
        words = [*self._items(node), *self._additions(name)]
        words = self._set_by_item(name, words, 3 if words[1:2] == ["-m"] else 2)
        return launches_of_words(words, {}, self.outside)

    def _is_command(self, node: ast.expr) -> bool:
        text = node.value if isinstance(node, ast.Constant) else None
        if isinstance(node, ast.JoinedStr):
            text = "".join(str(p.value) if isinstance(p, ast.Constant) else "{}" for p in node.values)
        return isinstance(text, str) and ENGINES.launchers.is_command_line(text)

    def _text(self, node: ast.expr) -> list[Launch]:
        """What a text launches; what a format puts into it is an expansion nobody knows, unless it is written out."""
        begin, _ = self._span(node)
        parts = node.values if isinstance(node, ast.JoinedStr) else [node]
        text = ""
        for part in parts:
            value = self.value(part.value if isinstance(part, ast.FormattedValue) else part)
            text += str(value) if value is not UNKNOWN else "${{ a value }}"
        raw = self.text.source.text[begin : begin + len(text) + 8]
        found = raw.find(text[:40])
        spots = [begin + max(0, found)] * len(text)
        held = Text(self.text.source, text, begin, spots)
        if found >= 0 and self.text.source.text.startswith(text, begin + found):
            held = Text(self.text.source, text, begin + found)
        return run_script(held, {}, self.outside).launches

    def _call(self, node: ast.Call) -> list[Launch]:
        """What a call of an engine's class starts, or of what configures one."""
        for name, row in ENGINES.rows.items():
            if called(node) in row.starter.controllers:
                return self._configured(node, name)
        root = node.func.value if isinstance(node.func, ast.Attribute) else node.func
        engine = self.imported.get(root.id) if isinstance(root, ast.Name) else None
        starter = ENGINES.rows[engine].starter if engine is not None else None
        if engine is None or starter is None or called(node) not in starter.classes:
            return []
        begin, end = self._span(node)
        words: list[Word] = []
        if node.args and not isinstance(node.args[0], ast.Starred):
            words += self._flag(starter.model_flags[0].removeprefix("--"), node.args[0], engine)
        for keyword in node.keywords:
            if keyword.arg is not None:
                words += self._keyword(keyword, engine)
            elif isinstance(held := self.value(keyword.value), dict):
                for name, value in held.items():
                    constant = ast.copy_location(ast.Constant(value), keyword.value)
                    words += self._flag(str(name).replace("_", "-"), constant, engine)
            elif (pairs := self._pairs(keyword.value)) is not None:
                for name, entry in pairs:
                    words += self._flag(name.replace("_", "-"), entry, engine)
            else:
                at, until = self._span(keyword.value)
                words.append(Word("$@", self.text.source, at, until, why=A_VARIABLE))
        return [Launch(engine, tuple(words), {}, self.text.source.place(begin, end))]

    def _configured(self, node: ast.Call, engine: str) -> list[Launch]:
        """What Ray Serve starts: ``LLMConfig(model_loading_config=dict(model_source=M), engine_kwargs=dict(...))``."""
        fields = {word.arg: word.value for word in node.keywords if word.arg is not None}
        for word in node.keywords:
            fields |= dict(self._pairs(word.value) or ()) if word.arg is None else {}
        if "engine_kwargs" not in fields:
            return []
        loading = dict(self._pairs(fields["model_loading_config"]) or ()) if "model_loading_config" in fields else {}
        source = loading.get("model_source", loading.get("model_id"))
        if source is not None and isinstance(self.value(source), dict):  # a mirror of it
            source = loading.get("model_id")
        model = ENGINES.rows[engine].starter.model_flags[0].removeprefix("--")
        words = list(self._flag(model, source, engine)) if source is not None else []
        pairs = self._pairs(fields["engine_kwargs"])
        for name, entry in pairs or ():
            words += self._flag(name.replace("_", "-"), entry, engine)
        if pairs is None:
            words.append(Word("$@", self.text.source, *self._span(fields["engine_kwargs"]), why=A_VARIABLE))
        return [Launch(engine, tuple(words), {}, self.text.source.place(*self._span(node)))]

    def _pairs(self, node: ast.expr) -> list[tuple[str, ast.expr]] | None:
        """The entries of a mapping that is written out, whatever their values; None where its keys are not known."""
        if isinstance(node, ast.Name) and node.id not in self.changes and node.id not in self.added:
            node = self.bound.get(node.id) or node
        if isinstance(node, ast.Call) and not node.args and re.fullmatch(r"dict|\w+Config", called(node)):
            given = [(word.arg, word.value) for word in node.keywords if word.arg is not None]
            return given if len(given) == len(node.keywords) else None
        if not isinstance(node, ast.Dict):
            return None
        keys = [self.value(key) for key in node.keys]
        return list(zip(keys, node.values, strict=True)) if all(isinstance(key, str) for key in keys) else None

    def _keyword(self, keyword: ast.keyword, engine: str) -> Iterator[Word]:
        """One keyword of a call as a flag; one the engine does not list stands for itself, as it may be misspelt."""
        name = str(keyword.arg).replace("_", "-")
        if f"--{name}" in ENGINES.launchers.flags(engine):
            yield from self._flag(name, keyword.value, engine)
            return
        at, _ = self._span(keyword)
        yield Word(f"--{name}", self.text.source, at, at + len(name))
        yield self.word(keyword.value)

    def _flag(self, name: str, node: ast.expr, engine: str) -> Iterator[Word]:
        """One argument of a call as a flag."""
        if f"--{name}" not in ENGINES.launchers.flags(engine):
            return
        begin, end = self._span(node)
        flag = Word(f"--{name}", self.text.source, begin, end)
        value = self.value(node)
        if value is None or value is False:
            if value is False and f"--no-{name}" in ENGINES.launchers.flags(engine):
                yield flag.instead(f"--no-{name}")
            return
        yield flag
        if value is True:
            return
        if isinstance(value, list | dict):
            yield flag.instead(json.dumps(value, default=str))
        else:
            yield self.word(node)


def _is_interpreter(node: ast.expr) -> bool:
    return isinstance(node, ast.Attribute) and node.attr == "executable"
