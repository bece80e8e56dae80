"""One deployment, checked: for tests of what is said of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hybridcalc.checks import Checked
from hybridcalc.checks.run import check_file
from hybridcalc.checks.settings import Settings


def check(
    tmp_path: Path, text: str, name: str = "run.sh", variables: dict[str, str] | tuple[Any, ...] = (), **settings: Any
) -> Checked:
    """The only deployment of a file with this text."""
    path = tmp_path / name
    path.write_text(text)
    result = check_file(str(path), Settings(**settings), dict(variables))
    assert result is not None
    assert result.troubles == ()
    (checked,) = result.checked
    return checked


def found(checked: Checked) -> dict[str, tuple[int, int, str, str]]:
    """``rule -> (line, column, message, fix)``."""
    return {f.finding.rule: (f.line, f.column, f.finding.message, f.finding.fix) for f in checked.findings}


K3 = "python3 -m sglang.launch_server --model-path moonshotai/Kimi-K3 --tp 8 "
