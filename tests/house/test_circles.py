"""No two files need each other: the imports of the package, lazy and typing ones too, form no circle."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
MODULES = {
    ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path
    for path in (ROOT / "hybridcalc").rglob("*.py")
}


def imported(module: str) -> Iterator[str]:
    """Modules of the package that a module imports anywhere; where it takes a module from a package, that module."""
    for node in ast.walk(ast.parse(MODULES[module].read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module:
            inner = [f"{node.module}.{alias.name}" for alias in node.names]
            yield from (name if name in MODULES else node.module for name in inner)
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)


def test_imports_form_no_circle() -> None:
    """A package's own __init__ aside, whose names its modules share."""
    graph = {
        module: {
            name for name in imported(module) if name in MODULES and name != module and not module.startswith(name)
        }
        for module in MODULES
    }
    assert len(graph) > 100 and sum(map(len, graph.values())) > 500
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        raise AssertionError(f"a circle of files: {' -> '.join(reversed(error.args[1]))}") from None
