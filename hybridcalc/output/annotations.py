"""Findings as GitHub workflow commands, which become annotations on a pull request, and as Markdown for people."""

from __future__ import annotations

from hybridcalc.checks import Located, relative
from hybridcalc.checks.run import Report
from hybridcalc.errors import printable
from hybridcalc.output.check_text import summary_line, unread_lines, waiting_lines
from hybridcalc.output.sarif import unresolved

COMMANDS = {"error": "error", "warning": "warning", "note": "notice"}
MOST_ROWS = 200
"""Rows of a Markdown table; a comment takes 65,536 characters."""


def workflow_commands(report: Report) -> str:
    """One workflow command a finding, unresolved values and unreadable files among them."""
    lines = [_command(item) for item in (*report.counting, *unresolved(report))]
    for trouble in report.troubles:
        place = f",line={trouble.line}" if trouble.line else ""
        command = "error" if trouble.unreadable else "warning"
        lines.append(
            f"::{command} file={_property(relative(trouble.path))}{place},title=hybridcalc::{_data(trouble.message)}"
        )
    return "".join(f"{line}\n" for line in lines)


def _command(item: Located) -> str:
    finding = item.finding
    text = finding.message + (f"\n{finding.fix}" if finding.fix else "")
    place = f"file={_property(relative(item.path))},line={item.line},col={item.column},endColumn={item.end_column}"
    return f"::{COMMANDS[finding.severity]} {place},title={_property(f'hybridcalc {finding.rule}')}::{_data(text)}"


def _data(text: str) -> str:
    """A text as a command carries it; control characters, and bytes of a name that are no text, as ``?``."""
    return "%0A".join(printable(line).replace("%", "%25") for line in text.split("\n"))


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")


def markdown(report: Report) -> str:
    """A comment for a pull request: the summary, and a table of what counts."""
    lines = [f"### hybridcalc check: {summary_line(report)}", ""]
    located = [*report.counting, *unresolved(report)]
    if located or report.troubles:
        lines += ["| where | rule | what | write instead |", "|---|---|---|---|"]
    for trouble in report.troubles:
        where = f"{trouble.path}:{trouble.line}" if trouble.line else trouble.path
        state = "unreadable" if trouble.unreadable else "unresolved"
        lines.append(f"| {_code(where)} | {state} | {_cell(trouble.message)} | {_cell(trouble.fix)} |")
    for item in located[:MOST_ROWS]:
        finding = item.finding
        where = _code(f"{item.path}:{item.line}")
        lines.append(
            f"| {where} | {finding.severity} {finding.rule} | {_cell(finding.message)} | {_cell(finding.fix)} |"
        )
    if len(located) > MOST_ROWS:
        lines.append(f"| | | and {len(located) - MOST_ROWS:,} more | |")
    lines += ["", *map(_cell, (*waiting_lines(report), *unread_lines(report)))]
    return "\n".join(lines).rstrip() + "\n"


def _cell(text: str) -> str:
    escaped = "".join(char if char.isprintable() else " " for char in text)
    for char in "\\`*_[]<>|~#":
        escaped = escaped.replace(char, f"\\{char}" if char not in "<>" else {"<": "&lt;", ">": "&gt;"}[char])
    return escaped.replace("@", "@\u200b")


def _code(text: str) -> str:
    plain = "".join(char if char.isprintable() else "?" for char in text).replace("`", "'").replace("|", "\\|")
    return f"`{plain}`"
