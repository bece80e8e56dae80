"""The answer for a text that a server printed: what `hybridcalc log` comes to, before it is written."""

from __future__ import annotations

import io
from typing import Any

from hybridcalc.bootlog.grammars import assemble
from hybridcalc.bootlog.reader import scan
from hybridcalc.diagnosis import Question, diagnose
from hybridcalc.diagnosis.names import hints_of


def diagnosed(text: str, **question: Any) -> Any:
    """The answer for the first boot of a text."""
    found = assemble(scan(io.BytesIO(text.encode())))
    return next(iter(diagnose(found.boots, Question(hints=hints_of(found.names), **question))))
