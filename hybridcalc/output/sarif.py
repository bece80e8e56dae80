"""Findings as SARIF 2.1.0, for code scanning: rules, results, places, fixes, and what was set aside."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

from hybridcalc import __version__
from hybridcalc.checks import IN_BASELINE, Edit, Located, all_rules, relative
from hybridcalc.checks.baseline import fingerprint
from hybridcalc.checks.run import Report
from hybridcalc.findings import Finding

LEVELS = {"error": "error", "warning": "warning", "note": "note"}
SCHEMA = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"


def sarif(report: Report) -> dict[str, Any]:
    """The SARIF log of a check."""
    located = [*report.findings, *unresolved(report)]
    used = sorted({item.finding.rule for item in located})
    known = all_rules()
    rules = [known[name] for name in used if name in known]
    index = {rule.id: number for number, rule in enumerate(rules)}
    driver = {
        "name": "hybridcalc",
        "version": __version__,
        "informationUri": "https://pypi.org/project/hybridcalc/",
        "rules": [
            {
                "id": rule.id,
                "name": "".join(word.capitalize() for word in rule.title.replace("-", " ").replace(",", "").split()),
                "shortDescription": {"text": rule.title},
                "fullDescription": {"text": f"{rule.reason} Source: {rule.source}."},
                "defaultConfiguration": {"level": LEVELS.get(rule.severity, "warning")},
            }
            for rule in rules
        ],
    }
    notifications = [
        {
            "level": "error" if trouble.unreadable else "warning",
            "message": {"text": f"{trouble.path}: {trouble.message}"},
            "locations": [_location(trouble.path, max(trouble.line, 1), 1, 2)],
        }
        for trouble in report.troubles
    ]
    run = {
        "tool": {"driver": driver},
        "columnKind": "unicodeCodePoints",
        "invocations": [
            {
                "executionSuccessful": not any(trouble.unreadable for trouble in report.troubles),
                "toolExecutionNotifications": notifications,
            }
        ],
        "results": [_result(item, index) for item in located],
    }
    return {"$schema": SCHEMA, "version": "2.1.0", "runs": [run]}


def unresolved(report: Report) -> list[Located]:
    """Unresolved values as findings of HC079, for reports that know findings alone."""
    found = []
    for one in report.checked:
        for item in one.opened:
            finding = Finding("HC079", "warning", f"{item.text}{item.effect}: {item.why}", item.fix)
            found.append(Located(finding, item.path, item.line, item.column, item.column + len(item.text), one.name))
    return found


def _result(item: Located, index: dict[str, int]) -> dict[str, Any]:
    finding = item.finding
    text = finding.message + (f". Fix: {finding.fix}" if finding.fix else "")
    result: dict[str, Any] = {
        "ruleId": finding.rule,
        "level": LEVELS[finding.severity],
        "message": {"text": text},
        "locations": [_location(item.path, item.line, item.column, item.end_column)],
        "partialFingerprints": {"hybridcalc/v1": fingerprint(item)},
    }
    if finding.rule in index:
        result["ruleIndex"] = index[finding.rule]
    if item.edit is not None and item.edit.exact:
        result["fixes"] = [_fix(item.edit, finding.fix)]
    if item.suppressed is not None:
        kind = "external" if item.suppressed == IN_BASELINE else "inSource"
        result["suppressions"] = [{"kind": kind, "justification": item.suppressed}]
    return result


def _fix(edit: Edit, text: str) -> dict[str, Any]:
    region = {
        "startLine": edit.line,
        "startColumn": edit.column,
        "endLine": edit.end_line,
        "endColumn": edit.end_column,
    }
    change = {
        "artifactLocation": {"uri": uri(edit.path)},
        "replacements": [{"deletedRegion": region, "insertedContent": {"text": edit.text}}],
    }
    return {"description": {"text": text}, "artifactChanges": [change]}


def _location(path: str, line: int, column: int, end_column: int) -> dict[str, Any]:
    region = {"startLine": line, "startColumn": column, "endLine": line, "endColumn": max(end_column, column + 1)}
    return {"physicalLocation": {"artifactLocation": {"uri": uri(path)}, "region": region}}


def uri(path: str) -> str:
    """A path as a relative reference, or as a file's address where it lies elsewhere."""
    near = relative(path)
    if near.startswith("/"):
        return "file://" + quote(_bytes_of(near))
    return quote(_bytes_of(near), safe="/~@!$&'()*+,;=._-")


def _bytes_of(path: str) -> bytes:
    """A path as the file system has it: a name need not be text."""
    try:
        return path.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return path.encode("utf-8", "replace")
