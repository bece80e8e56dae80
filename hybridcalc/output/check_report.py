"""The report of check in a form for machines: JSON, SARIF, JUnit, what GitHub's workflows read; and its fixes, made.

Each form is imported where it is asked for.
"""

import os
import stat
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, TextIO

from hybridcalc.checks.run import Report
from hybridcalc.checks.settings import Settings
from hybridcalc.engines import ENGINES
from hybridcalc.errors import InputError, printable
from hybridcalc.output import in_workflow, no_commands


def write_report(report: Report, form: str, into: str | None, settings: Settings, code: int, *, verbose: bool) -> None:
    """Write the report in a form for machines to the file ``into``, or to stdout; GitHub's has the text behind it,
    ``verbose`` with what was read.
    """
    text = ""
    if form == "json":
        from hybridcalc.output.document import json_pieces

        pieces = json_pieces("check", check_document(report, code))
        if into is None:
            sys.stdout.writelines(pieces)
        else:
            with Path(into).open("w", encoding="utf-8", errors="backslashreplace") as stream:
                stream.writelines(pieces)
        return
    if form == "sarif":
        import json

        from hybridcalc.output.sarif import sarif

        text = json.dumps(sarif(report), indent=1) + "\n"
    elif form == "junit":
        from hybridcalc.output.junit import junit

        text = junit(report, settings.fail_on)
    elif form in ("github", "markdown"):
        from hybridcalc.output.annotations import markdown, workflow_commands

        text = workflow_commands(report) if form == "github" else markdown(report)
        if form == "github":
            _step_summary(markdown(report))
    if form == "github" and into is None:
        from hybridcalc.output.check_text import print_report

        sys.stdout.write(text)
        with no_commands():
            print_report(report, exit_code=code, verbose=verbose, whole=True)
    elif into is not None:
        Path(into).write_text(text, encoding="utf-8", errors="backslashreplace")
    else:
        sys.stdout.write(text)


def _step_summary(text: str) -> None:
    """Append to the summary page of a GitHub job, where it has one."""
    target = os.environ.get("GITHUB_STEP_SUMMARY")
    if target and in_workflow():
        with Path(target).open("a", encoding="utf-8", errors="backslashreplace") as stream:
            stream.write(text)


def check_document(report: Report, exit_code: int) -> dict[str, Any]:
    """The keys of ``check --json``; what there may be thousands of is made one by one."""
    needed: dict[str, int] = {}
    for one in report.checked:
        for _, needs in one.waiting:
            for need in needs:
                needed[need] = needed.get(need, 0) + 1
    engines = sorted({one.engine for one in report.checked})
    return {
        "deployments": (one.to_dict() for one in report.checked),
        "findings": (item.to_dict() for item in report.findings),
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
            "passed_over": list(report.passed),
            "unreadable": sum(trouble.unreadable for trouble in report.troubles),
            "not_checked": report.not_checked,
            "not_checked_for_want_of": needed,
            "engine_versions": {name: ENGINES[name].newest for name in engines},
            "exit_code": exit_code,
        },
    }


MOST_ROUNDS = 5
"""How often fixes are made that others have made possible."""


def fixed(report: Report, again: Callable[[], Report], *, apply: bool, patch: TextIO) -> Report:
    """Show the edits as a diff, and apply them: then the report of what is left."""
    changed = 0
    for _ in range(MOST_ROUNDS if apply else 1):
        made = _made(report, apply=apply, patch=patch)
        changed += made
        if not apply or not made:
            break
        report = again()
    done = "made" if apply else "possible"
    for item in report.counting:
        several = "it is not one value" if item.finding.sets and item.finding.mend is None else ""
        if why := item.unmade or several:
            place = f"{printable(item.path)}:{item.line}"
            print(f"not made: {place} {item.finding.rule} {item.finding.fix}: {why}", file=sys.stderr)
    print(f"{changed} fix{'' if changed == 1 else 'es'} {done}", file=sys.stderr)
    return report


def _made(report: Report, *, apply: bool, patch: TextIO) -> int:
    """How many edits were shown, and applied, of those of a report."""
    from hybridcalc.checks.fix import diff, edits_by_file, mended, write

    changed = 0
    for path, edits in edits_by_file(report.findings).items():
        if not edits:
            continue
        try:
            before, after = mended(path, edits)
            exact = _is_file(patch)
            shown = diff(path, before, after, exact=exact)
            harmless = shown.replace("::", ":\u200b:").replace("##[", "##\u200b[")
            patch.write(harmless if in_workflow() and not exact else shown)
            if apply:
                write(path, after)
        except (InputError, OSError) as error:
            message = error.message if isinstance(error, InputError) else f"{printable(path)}: cannot be rewritten"
            fix = error.fix if isinstance(error, InputError) else (error.strerror or str(error)).lower()
            print(f"error: {message}\n       {fix}", file=sys.stderr)
            continue
        changed += len(edits)
    return changed


def _is_file(stream: TextIO) -> bool:
    """Whether a stream ends in a file, which takes any character, rather than in a terminal or a log."""
    try:
        return stat.S_ISREG(os.fstat(stream.fileno()).st_mode)
    except (OSError, ValueError):
        return False
