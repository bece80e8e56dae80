"""What are the names of a Python module worth? Parsed as a tree, never run.

A name counts where it is bound once, to something written out; lists and mappings as what is added to them and set in
them leaves them. What a parser of arguments or a class of settings gives where nothing else is said counts too. Left
out: what functions return, loops, other modules.
"""

import ast
import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from hybridcalc.shell import spend
from hybridcalc.shell.variables import Outside

DEEPEST_VALUE = 20
_CHANGING = frozenset(("clear", "insert", "pop", "popitem", "remove", "reverse", "setdefault", "sort", "update"))
"""Methods that change what a name holds, beside those that add to a list."""
_SAME = frozenset(("Path", "abspath", "expanduser", "expandvars", "normpath", "realpath"))
"""Functions of a path after which it ends as before."""
_PARSED = frozenset(("parse_args", "parse_known_args"))
UNKNOWN = object()
"""The value of what is not written out."""


class Names:
    """What the names of a module hold."""

    def __init__(self, tree: ast.Module, outside: Outside) -> None:
        self.tree, self.outside = tree, outside
        self.bound: dict[str, ast.expr | None] = {}
        self.added: dict[str, list[tuple[ast.expr, bool]]] = {}
        self.changes: dict[str, list[_Change]] = {}
        self.scopes: dict[str, int] = {}
        self.plain: set[int] = set()
        self.nodes = list(_in_order(tree))
        spend(visits=len(self.nodes))
        self.within = {id(node): scope for node, _, scope in self.nodes if isinstance(node, ast.Name)}
        for node, conditional, scope in self.nodes:
            self._bind(node, conditional, scope)
            self._change(node, conditional, scope)
        self.fields = Attributes(node for node, _, _ in self.nodes)
        self.names = {id(bound): name for name, bound in self.bound.items() if bound is not None}

    def _bind(self, node: ast.AST, conditional: bool, scope: int) -> None:
        if isinstance(node, ast.Assign | ast.AnnAssign):
            for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                if isinstance(target, ast.Name):
                    self.bound[target.id] = None if target.id in self.bound else node.value
                    self.scopes[target.id] = scope
                    self.plain.add(id(target))
        elif isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Name) and isinstance(node.op, ast.Add):
            self._add(node.target.id, node.value, conditional, scope)
            self.plain.add(id(node.target))
        elif isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load) and id(node) not in self.plain:
            self.bound[node.id] = None  # loops, several at once, with, del
        elif isinstance(node, ast.arg):
            self.bound[node.arg] = None
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.args:
            held, item = node.func.value, node.args[0]
            if isinstance(held, ast.Name) and node.func.attr in ("extend", "append"):
                value = item if node.func.attr == "extend" else ast.copy_location(ast.List([item], ast.Load()), item)
                self._add(held.id, value, conditional, scope)

    def _add(self, name: str, value: ast.expr, conditional: bool, scope: int) -> None:
        """Something is added to a list; in another function, nobody knows whether."""
        elsewhere = scope != self.scopes.get(name, scope)
        other = self.bound.get(name)
        if isinstance(other, ast.Name) and other.id != name:  # one list of two names
            self.added.setdefault(other.id, []).append((value, True))
        self.added.setdefault(name, []).append((value, conditional or elsewhere))

    def _change(self, node: ast.AST, conditional: bool, scope: int) -> None:
        """Items that are set and methods that change a list or a mapping."""
        line = getattr(node, "lineno", 0)
        if isinstance(node, ast.Subscript) and not isinstance(node.ctx, ast.Load) and isinstance(node.value, ast.Name):
            if id(node) not in self.plain:
                self._changed(node.value.id, _Change(line, None, None), scope)
        elif isinstance(node, ast.Assign):
            for target in node.targets:
                if isinstance(target, ast.Subscript) and isinstance(target.value, ast.Name):
                    self.plain.add(id(target))
                    key = None if conditional else target.slice
                    self._changed(target.value.id, _Change(line, key, node.value), scope)
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _CHANGING:
            held = node.func.value
            for change in self._by_method(node, node.func.attr, conditional) if isinstance(held, ast.Name) else ():
                self._changed(getattr(held, "id", ""), change, scope)

    def _by_method(self, node: ast.Call, method: str, conditional: bool) -> list["_Change"]:
        """What a method changes: the items that ``update`` is given, else nobody knows what."""
        given = node.args[0] if len(node.args) == 1 and isinstance(node.args[0], ast.Dict) else None
        if method != "update" or conditional or (given is None and node.args):
            return [_Change(node.lineno, None, None)]
        pairs = [] if given is None else list(zip(given.keys, given.values, strict=True))
        pairs += [(ast.Constant(word.arg) if word.arg else None, word.value) for word in node.keywords]
        return [_Change(node.lineno, key, value) for key, value in pairs]

    def _changed(self, name: str, change: "_Change", scope: int) -> None:
        elsewhere = scope != self.scopes.get(name, scope)
        other = self.bound.get(name)
        if isinstance(other, ast.Name) and other.id != name:  # one list of two names
            self.changes.setdefault(other.id, []).append(change._replace(key=None))
        self.changes.setdefault(name, []).append(change._replace(key=None) if elsewhere else change)

    def _after_changes(self, node: ast.Name, held: Any, depth: int) -> Any:
        """What a name's list or mapping holds where it is used, behind the items that were set before."""
        if node.id not in self.changes or held is UNKNOWN:
            return held
        if self.within.get(id(node)) != self.scopes.get(node.id):
            return UNKNOWN
        held = held.copy() if isinstance(held, dict | list) else held
        for change in self.changes[node.id]:
            key, value = self.value(change.key, depth + 1), self.value(change.value, depth + 1)
            if change.key is not None and change.line > node.lineno:
                continue
            inside = isinstance(held, list) and type(key) is int and -len(held) <= key < len(held)
            if value is UNKNOWN or not (inside or (isinstance(held, dict) and isinstance(key, str))):
                return UNKNOWN
            held[key] = value
        return held

    def value(self, node: ast.expr | None, depth: int = 0) -> Any:
        """What an expression is worth: text, number, list or mapping; UNKNOWN for what is not written out."""
        spend(visits=1)
        if node is None or depth > DEEPEST_VALUE:
            return UNKNOWN
        if isinstance(node, ast.Constant):
            return node.value
        if isinstance(node, ast.Name):
            bound = self.bound.get(node.id)
            if bound is None or node.id in self.added:
                return UNKNOWN
            return self._after_changes(node, self.value(bound, depth + 1), depth)
        if isinstance(node, ast.JoinedStr):
            parts = [
                self.value(part.value if isinstance(part, ast.FormattedValue) else part, depth + 1)
                for part in node.values
            ]
            plain = all(not isinstance(p, ast.FormattedValue) or p.format_spec is None for p in node.values)
            return "".join(map(str, parts)) if plain and UNKNOWN not in parts else UNKNOWN
        if isinstance(node, ast.List | ast.Tuple):
            items = [self.value(item, depth + 1) for item in node.elts]
            return UNKNOWN if any(item is UNKNOWN for item in items) else items
        if isinstance(node, ast.Dict):
            pairs = [
                (self.value(k, depth + 1), self.value(v, depth + 1))
                for k, v in zip(node.keys, node.values, strict=True)
            ]
            known = all(isinstance(key, str) and value is not UNKNOWN for key, value in pairs)
            return dict(pairs) if known else UNKNOWN
        if isinstance(node, ast.BinOp):
            return self._operation(node, depth)
        if isinstance(node, ast.Attribute):
            held = self.value(self.fields.of(node, self.bound), depth + 1)
            return UNKNOWN if isinstance(held, list | dict) else held  # another line may change it
        if isinstance(node, ast.BoolOp) and isinstance(node.op, ast.Or):
            return self._first_true(node.values, depth)
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
            number = self.value(node.operand, depth + 1)
            return -number if isinstance(number, int | float) else UNKNOWN
        return self._called_value(node, depth) if isinstance(node, ast.Call) else UNKNOWN

    def _first_true(self, nodes: list[ast.expr], depth: int) -> Any:
        held: Any = UNKNOWN
        for node in nodes:
            held = self.value(node, depth + 1)
            if held is UNKNOWN or held:
                break
        return held

    def _operation(self, node: ast.BinOp, depth: int) -> Any:
        left, right = self.value(node.left, depth + 1), self.value(node.right, depth + 1)
        if isinstance(node.op, ast.Add) and type(left) is type(right) and isinstance(left, str | list):
            spend(characters=len(left) + len(right))
            joined: Any = left + right
            return joined
        if isinstance(node.op, ast.Div) and isinstance(left, str) and isinstance(right, str):
            return os.path.join(left, right)  # of a Path
        if isinstance(left, int) and isinstance(right, int) and max(abs(left), abs(right)) < 2**40:
            operations = {ast.Add: left + right, ast.Sub: left - right, ast.Mult: left * right}
            return operations.get(type(node.op), UNKNOWN)
        return UNKNOWN

    def _called_value(self, node: ast.Call, depth: int) -> Any:
        name = called(node)
        first = self.value(node.args[0], depth + 1) if node.args else UNKNOWN
        if name == "str" and isinstance(first, float):
            return str(first)
        if name in ("str", "int") and isinstance(first, int | str) and len(node.args) == 1:
            return str(first) if name == "str" else int(first) if str(first).isdecimal() else UNKNOWN
        if name in _SAME and len(node.args) == 1 and isinstance(first, str):
            return first
        if name == "float" and isinstance(first, int | float | str):
            return float(first) if re.fullmatch(r"[0-9]{1,9}(\.[0-9]{0,9})?", str(first)) else UNKNOWN
        if (
            name == "join"
            and isinstance(node.func, ast.Attribute)
            and ast.unparse(node.func.value) in ("os.path", "path")
        ):
            parts = [self.value(part, depth + 1) for part in node.args]
            known = bool(parts) and all(isinstance(part, str) for part in parts)
            return os.path.join(*parts) if known else UNKNOWN
        if name == "dumps" and first is not UNKNOWN:
            return json.dumps(first)
        if (
            name in ("getenv", "get")
            and isinstance(first, str)
            and ("environ" in ast.dump(node.func) or name == "getenv")
        ):
            if first in self.outside:
                return self.outside[first]
            return self.value(node.args[1], depth + 1) if len(node.args) > 1 else UNKNOWN
        if name == "dict" and not node.args:
            values = {keyword.arg: self.value(keyword.value, depth + 1) for keyword in node.keywords}
            return UNKNOWN if None in values or any(v is UNKNOWN for v in values.values()) else values
        return UNKNOWN


class Attributes:
    """What attributes hold: arguments by the defaults of their parser, settings by those of their class, and what a
    method sets once.
    """

    def __init__(self, nodes: Iterable[ast.AST]) -> None:
        self.arguments: dict[str, ast.expr | None] = {}
        self.classes: dict[str, dict[str, ast.expr | None]] = {}
        self.own: dict[int, str] = {}
        self.set: dict[str, list[tuple[str, ast.expr | None]]] = {}
        self.assigned: dict[str, list[ast.expr]] = {}
        stored: dict[int, ast.expr] = {}
        for node in nodes:
            if isinstance(node, ast.Assign):
                for target in node.targets:
                    stored[id(target)] = node.value
                    if isinstance(target, ast.Name):
                        self.assigned.setdefault(target.id, []).append(node.value)
            elif isinstance(node, ast.Attribute) and not isinstance(node.ctx, ast.Load):
                holder = node.value.id if isinstance(node.value, ast.Name) else ""
                self.set.setdefault(node.attr, []).append((holder, stored.get(id(node))))
            elif isinstance(node, ast.ClassDef):
                self._class(node)
            elif isinstance(node, ast.Call) and called(node) == "add_argument":
                self._argument(node)
            elif isinstance(node, ast.Call) and called(node) == "set_defaults":
                self.arguments |= {word.arg: None for word in node.keywords if word.arg}

    def of(self, node: ast.Attribute, bound: Mapping[str, ast.expr | None]) -> ast.expr | None:
        """What an attribute holds; None where nobody knows."""
        name = node.value.id if isinstance(node.value, ast.Name) else ""
        times = self.set.get(node.attr, [])
        if name == "self":
            fields = self.classes.get(self.own.get(id(node), ""), {})
            one = times[0] if len(times) == 1 and node.attr not in fields else ("", None)
            return one[1] if one[0] == "self" else None if times else fields.get(node.attr)
        if times or not name:
            return None
        made = self.assigned.get(name, [])
        if made and all(_is_parsed(value) for value in made):
            return self.arguments.get(node.attr)
        if name in self.classes and not made:
            return self.classes[name].get(node.attr)
        value = bound.get(name)
        return self._made(value, node.attr) if isinstance(value, ast.Call) else None

    def _made(self, call: ast.Call, field: str) -> ast.expr | None:
        """A field of what a call makes: of a class, or of a class that a function is given."""
        own = next((word.value for word in call.keywords if word.arg == field), None)
        given = call.args[0] if len(call.args) == 1 and not call.keywords else None
        name = given.id if isinstance(given, ast.Name) else called(call) if not call.args else ""
        open_ = any(word.arg is None for word in call.keywords)
        return None if open_ or name not in self.classes else own or self.classes[name].get(field)

    def _class(self, node: ast.ClassDef) -> None:
        fields: dict[str, ast.expr | None] = {}
        for line in node.body:
            if isinstance(line, ast.AnnAssign | ast.Assign):
                for target in line.targets if isinstance(line, ast.Assign) else [line.target]:
                    if isinstance(target, ast.Name):
                        fields[target.id] = None if target.id in fields else _default(line.value)
        self.classes[node.name] = {} if node.name in self.classes else fields
        self.own |= {id(inner): node.name for inner in ast.walk(node) if isinstance(inner, ast.Attribute)}

    def _argument(self, node: ast.Call) -> None:
        words = {word.arg: word.value for word in node.keywords}
        names = [name.value for name in node.args if isinstance(name, ast.Constant) and isinstance(name.value, str)]
        own = next((name for name in names if name.startswith("--")), names[0] if names else "")
        name = own.lstrip("-").replace("-", "_")
        if (dest := words.get("dest")) is not None:
            name = str(dest.value) if isinstance(dest, ast.Constant) else ""
        action = words.get("action")
        held = words.get("default")
        if held is None and isinstance(action, ast.Constant) and action.value in ("store_true", "store_false"):
            held = ast.copy_location(ast.Constant(action.value == "store_false"), node)
        self.arguments[name] = None if name in self.arguments or "required" in words else held


def _is_parsed(value: ast.expr) -> bool:
    """Whether a value is what a parser of arguments makes of a command line."""
    return isinstance(value, ast.Call) and called(value) in _PARSED


def _default(value: ast.expr | None) -> ast.expr | None:
    """The value of a field: as it is written, or the default that ``Field(...)`` names."""
    if isinstance(value, ast.Call) and called(value) in ("Field", "field"):
        named = next((word.value for word in value.keywords if word.arg == "default"), None)
        return named or (value.args[0] if value.args else None)
    return value


class _Change(NamedTuple):
    """An item that a line sets: its key, None where nobody knows which or whether, and its value."""

    line: int
    key: ast.expr | None
    value: ast.expr | None


def _in_order(tree: ast.AST) -> Iterator[tuple[ast.AST, bool, int]]:
    """Every node as it stands in the file, whether a condition or a loop is around it, and the function it is in: the
    line where that begins.
    """
    waiting: list[tuple[ast.AST, bool, int]] = [(tree, False, 0)]
    branching = ast.If | ast.For | ast.AsyncFor | ast.While | ast.Try | ast.IfExp | ast.Match | ast.BoolOp
    while waiting:
        node, conditional, scope = waiting.pop()
        yield node, conditional, scope
        inside = conditional or isinstance(node, branching)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            scope = node.lineno
        waiting += [(child, inside, scope) for child in reversed(list(ast.iter_child_nodes(node)))]


def called(node: ast.Call) -> str:
    """The last name of what a call calls."""
    function = node.func
    return (
        function.attr if isinstance(function, ast.Attribute) else function.id if isinstance(function, ast.Name) else ""
    )
