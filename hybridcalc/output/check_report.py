"""The report of check in any form: text, JSON, SARIF, JUnit, and what GitHub's workflows read.

Each form is imported where it is asked for.
"""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from hybridcalc.checks.run import Report
from hybridcalc.checks.settings import Settings

FORMATS = ("text", "json", "sarif", "junit", "github", "markdown")


def write_report(
    report: Report, form: str, into: str | None, settings: Settings, code: int, *, verbose: bool = False
) -> None:
    """Write the report in a form of FORMATS to the file ``into``, or to stdout."""
    text = ""
    if form == "json":
        from hybridcalc.output.check_json import check_document
        from hybridcalc.output.document import json_text

        text = json_text("check", check_document(report, code))
    elif form == "sarif":
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
    if form in ("text", "github") and into is None:
        from hybridcalc.output.check_text import print_report

        sys.stdout.write(text)
        with _no_commands():
            print_report(report, exit_code=code, verbose=verbose)
    elif into is not None:
        Path(into).write_text(text, encoding="utf-8", errors="backslashreplace")
    else:
        sys.stdout.write(text)


@contextmanager
def _no_commands() -> Iterator[None]:
    """Keep what files hold from being taken for commands of a GitHub workflow, which a line of a log may be."""
    if not in_workflow():
        yield
        return
    from secrets import token_hex

    token = token_hex(16)
    sys.stdout.write(f"::stop-commands::{token}\n")
    yield
    sys.stdout.write(f"::{token}::\n")


def in_workflow() -> bool:
    """Whether a workflow of GitHub runs this."""
    return os.environ.get("GITHUB_ACTIONS") == "true"


def _step_summary(text: str) -> None:
    """Append to the summary page of a GitHub job, where it has one."""
    target = os.environ.get("GITHUB_STEP_SUMMARY")
    if target and in_workflow():
        with Path(target).open("a", encoding="utf-8", errors="backslashreplace") as stream:
            stream.write(text)
