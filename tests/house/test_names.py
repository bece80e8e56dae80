"""No engine's name stands outside engines/ and the modules that are an engine's own in a room above."""

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hybridcalc.engines import ENGINES

PACKAGE = Path(__file__).resolve().parent.parent.parent / "hybridcalc"
NAMES = (*ENGINES, "llamacpp", "llama.cpp")
OWN = tuple(name.replace(".", "") for name in NAMES)

EXCEPTIONS = {"__init__.py": "the public modules hybridcalc.sglang and hybridcalc.vllm are named"}
ROOMS = ("bootlog", "checks", "cli", "crosscheck", "diagnosis", "manifests", "output", "reuse", "shell")


def named(module: Path) -> Iterator[tuple[int, Any]]:
    """Lines of a module in which a text is an engine's name, docstrings apart."""
    for node in ast.walk(ast.parse(module.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Constant) and node.value in NAMES:
            yield node.lineno, node.value


def shared_modules() -> Iterator[str]:
    """Every module that is no engine's own."""
    for module in sorted(PACKAGE.rglob("*.py")):
        path = module.relative_to(PACKAGE)
        if path.parts[0] in (*ROOMS, path.name) and not any(part.startswith(OWN) for part in path.parts[1:]):
            yield path.as_posix()


def test_no_shared_module_names_an_engine() -> None:
    found = {path: list(named(PACKAGE / path)) for path in shared_modules()}
    found = {path: lines for path, lines in found.items() if lines}
    assert {path: lines for path, lines in found.items() if path not in EXCEPTIONS} == {}
    assert set(EXCEPTIONS) <= set(found), "an exception that is none any more"
