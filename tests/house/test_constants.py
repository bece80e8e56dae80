"""A constant has one value: a module that binds the same name twice has lost the first."""

import ast
from collections import Counter
from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[2] / "hybridcalc"


def bound(module: ast.Module) -> list[str]:
    """Names in capitals that are bound at the top of a module, as often as they are."""
    plain = [target for line in module.body if isinstance(line, ast.Assign) for target in line.targets]
    plain += [line.target for line in module.body if isinstance(line, ast.AnnAssign)]
    names = (name for target in plain for name in ast.walk(target) if isinstance(name, ast.Name))
    return [name.id for name in names if isinstance(name.ctx, ast.Store) and name.id.isupper()]


def test_no_constant_is_bound_twice() -> None:
    twice = dict[str, list[str]]()
    for path in sorted(PACKAGE.rglob("*.py")):
        found = [
            name for name, count in Counter(bound(ast.parse(path.read_text(encoding="utf-8")))).items() if count > 1
        ]
        twice |= {str(path.relative_to(PACKAGE)): found} if found else {}
    assert twice == {}


def test_a_second_binding_is_seen() -> None:
    assert bound(ast.parse("A, B = 1, 2\nA: int = 3\nA.b = 4\nc = 5")) == ["A", "B", "A"]
