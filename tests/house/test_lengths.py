"""A module is short enough to be read: none of the package or its tests is over 450 lines."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
MOST_LINES = 450


def test_no_module_is_over_450_lines() -> None:
    lines = {
        path.relative_to(ROOT): len(path.read_text(encoding="utf-8").splitlines())
        for folder in ("hybridcalc", "tests", "tools", "benchmarks")
        for path in (ROOT / folder).rglob("*.py")
        if "data" not in path.parts
    }
    assert len(lines) > 400
    assert {str(path): many for path, many in lines.items() if many > MOST_LINES} == {}
