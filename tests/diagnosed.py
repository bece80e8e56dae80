"""The answer for a text that a server printed: what `hybridcalc log` comes to, before it is written."""

from __future__ import annotations

import io
from typing import Any

from hybridcalc.bootlog.grammars import assemble
from hybridcalc.bootlog.reader import scan
from hybridcalc.diagnosis import Question, diagnose


def diagnosed(text: str, **question: Any) -> Any:
    """The answer for the first boot of a text."""
    return next(iter(diagnose(assemble(scan(io.BytesIO(text.encode()))).boots, Question(**question))))
