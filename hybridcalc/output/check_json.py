"""A check as the document of ``check --json``."""

from __future__ import annotations

from typing import Any

from hybridcalc.checks.run import Report
from hybridcalc.engines.engine import ENGINES


def check_document(report: Report, exit_code: int) -> dict[str, Any]:
    """The keys of ``check --json``."""
    needed: dict[str, int] = {}
    for one in report.checked:
        for _, needs in one.waiting:
            for need in needs:
                needed[need] = needed.get(need, 0) + 1
    engines = sorted({one.engine for one in report.checked})
    return {
        "deployments": [one.to_dict() for one in report.checked],
        "findings": [item.to_dict() for item in report.findings],
        "unreadable": [
            {"file": t.path, "line": t.line, "message": t.message, "fix": t.fix}
            for t in report.troubles
            if t.unreadable
        ],
        "templates": [
            {"file": t.path, "line": t.line, "message": t.message, "fix": t.fix}
            for t in report.troubles
            if not t.unreadable
        ],
        "summary": {
            "files": report.files,
            "deployments": len(report.checked),
            "errors": report.count("error"),
            "warnings": report.count("warning"),
            "notes": report.count("note"),
            "suppressed": len(report.findings) - len(report.counting),
            "unresolved": report.unresolved,
            "unread": list(report.unread),
            "unreadable": sum(trouble.unreadable for trouble in report.troubles),
            "not_checked": report.not_checked,
            "not_checked_for_want_of": needed,
            "engine_versions": {name: ENGINES[name].newest for name in engines},
            "exit_code": exit_code,
        },
    }
