"""The glossary names what is there."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
ROWS = [
    [cell.strip() for cell in line.strip("|").split("|")]
    for line in (ROOT / "docs" / "glossary.md").read_text(encoding="utf-8").splitlines()
    if line.startswith("|") and not line.startswith(("|---", "| word"))
]


def test_each_word_is_explained_once() -> None:
    words = [word for row in ROWS for word in re.split(r", ", row[0])]
    assert len(words) > 50
    assert sorted(words) == sorted(set(words))


def test_each_name_of_the_glossary_is_one_of_the_code() -> None:
    """A key, a class or a flag that is gone would leave the reader looking for it."""
    source = "\n".join(path.read_text(encoding="utf-8") for path in (ROOT / "hybridcalc").rglob("*.py"))
    names = {name for row in ROWS if len(row) == 3 for name in re.findall(r"`([^`]+)`", row[2])}
    assert len(names) > 30
    assert [name for name in sorted(names) if not re.search(rf"(?<![\w-]){re.escape(name)}(?![\w-])", source)] == []
