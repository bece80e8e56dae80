"""The formatter lays out all code; only a table of data may keep the columns that its author gave it."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
EXCEPTION = "# fmt: skip"


def tables(tree: ast.Module) -> set[int]:
    """The last lines of what may be a table: a value bound at the top of a module, and the rows of a decorator."""
    bound = [node for node in tree.body if isinstance(node, ast.Assign | ast.AnnAssign)]
    rows = [row for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) for row in node.decorator_list]
    return {node.end_lineno or node.lineno for node in (*bound, *rows)}


@pytest.mark.parametrize("folder", ["hybridcalc", "tests", "tools", "benchmarks", "examples"])
def test_only_tables_are_kept_from_the_formatter(folder: str) -> None:
    kept = []
    for path in sorted((ROOT / folder).rglob("*.py")):
        text = path.read_text()
        if EXCEPTION in text and path != Path(__file__):
            allowed = tables(ast.parse(text))
            lines = enumerate(text.splitlines(), 1)
            kept += [f"{path.relative_to(ROOT)}:{n}" for n, line in lines if EXCEPTION in line and n not in allowed]
    assert kept == []
