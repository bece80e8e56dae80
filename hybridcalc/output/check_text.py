"""Findings on deployment files as text: grouped by file, the line quoted, a caret at the value, the fix beside it.

deploy/k3.yaml:42:16 error HC002  8 slots admit 1 request; 4 requests x 5 slots + 1 = 21 are needed
41 |             - --max-mamba-cache-size
42 |             - "8"
^ write 21, or 17 with --mamba-radix-cache-strategy extra_buffer_lazy
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable
from functools import partial
from textwrap import wrap
from typing import NamedTuple

from rich.console import Console
from rich.text import Text

from hybridcalc.checks import Checked, Located, Open
from hybridcalc.checks.answer import STOPS
from hybridcalc.checks.run import Report
from hybridcalc.errors import printable
from hybridcalc.manifests import Trouble
from hybridcalc.output import terminal
from hybridcalc.output.terminal import LINES, height_of

STYLES = {"error": terminal.TROUBLE, "warning": terminal.KV, "note": terminal.QUIET}
MOST_WAITING = 4
MOST_UNREAD = 6
MOST_ASSUMED = 8
MOST_LISTED = 6
TAB = "    "
RANKS = {"error": 1, "unresolved": 2, "warning": 3, "note": 4}
"""What is worse than what; a file that cannot be read is worse than all."""


def print_report(report: Report, *, exit_code: int, verbose: bool = False, whole: bool = False) -> None:
    """What counts, then the summary: all of it, or the worst of it in twelve lines; ``verbose``: what was read too."""
    out = terminal.console()
    parts = _parts(report)
    if not verbose and not whole and height_of(lambda on: _print(on, report, parts, exit_code)) > LINES:
        _print_worst(out, report, parts, exit_code)
        return
    _print(out, report, parts, exit_code, verbose=verbose)


Part = Callable[[Console], None]


class Told(NamedTuple):
    """What a report says of files, in the order of files: how bad it is, and how it is printed, whole and brief."""

    weights: list[int]
    whole: list[Part]
    brief: list[Part]

    def add(self, weight: int, whole: Part, brief: Part) -> None:
        """One more."""
        self.weights.append(weight)
        self.whole.append(whole)
        self.brief.append(brief)


def _parts(report: Report) -> Told:
    parts = Told([], [], [])
    for trouble in sorted(report.troubles, key=lambda trouble: (trouble.path, trouble.line)):
        shown = partial(_trouble, trouble)
        parts.add(0 if trouble.unreadable else 2, shown, shown)
    opened: dict[str, list[Open]] = {}
    for one in report.checked:
        for item in one.opened:
            opened.setdefault(item.path, []).append(item)
    by_path: dict[str, list[Located]] = {}
    for located in report.counting:
        by_path.setdefault(located.path, []).append(located)
    for path in sorted({*by_path, *opened}):
        for located in by_path.get(path, ()):
            weight = RANKS[located.finding.severity]
            parts.add(weight, partial(_finding, located), partial(_finding, located, brief=True))
        for item in dict.fromkeys(opened.get(path, ())):
            parts.add(RANKS["unresolved"], partial(_open, item), partial(_open, item))
    return parts


def _print(out: Console, report: Report, parts: Told, exit_code: int, *, verbose: bool = False) -> None:
    for part in parts.whole:
        part(out)
    for one in report.checked if verbose else ():
        _deployment(out, one)
    _summary(out, report, exit_code)


def _print_worst(out: Console, report: Report, parts: Told, exit_code: int) -> None:
    """The worst, as many as there is room for, without the lines they are in; then the first line of the summary."""
    room = LINES - height_of(lambda on: _counts(on, report, exit_code)) - 1
    shown = dict[int, Part]()
    for number in sorted(range(len(parts.whole)), key=lambda n: parts.weights[n]):
        for part in (parts.whole[number], parts.brief[number]) if not shown else (parts.brief[number],):
            if (height := height_of(part)) <= room:
                shown[number] = part
                room -= height
                break
    for number in sorted(shown):
        shown[number](out)
    _counts(out, report, exit_code)
    left = len(parts.whole) - len(shown)
    told = [f"{left:,} more", "the lines they are in"] if left else ["the lines they are in"]
    told += ["what is not checked"] if report.not_checked else []
    terminal.notes(out, [", ".join([*told, "what was read"])], label="-v", style=terminal.QUIET, gap=False)


def _finding(located: Located, out: Console, *, brief: bool = False) -> None:
    finding = located.finding
    head = f"{printable(located.path)}:{located.line}:{located.column} "
    if brief:
        message = f"{finding.message}{'; ' + finding.fix if finding.fix else ''}"
        _headline(out, head, f"{finding.severity} {finding.rule}", message, STYLES[finding.severity])
        return
    _headline(out, head, f"{finding.severity} {finding.rule}", finding.message, STYLES[finding.severity])
    number_width = max((len(str(line.number)) for line in located.quote), default=0) + 3
    shift = 0
    for line in located.quote:
        own = line.number == located.line
        column = located.column - line.cut if own else 1
        shown, before = _window(line.text, column, out.width - number_width - 3)
        shift = before if own else shift
        number = Text(f"{line.number:>{number_width}} | ", style=terminal.QUIET)
        out.print(number.append(shown, style="default"), soft_wrap=True)
    if not finding.fix:
        return
    if not located.quote:
        out.print(Text(f"{terminal.INDENT}{finding.fix}"))
        return
    last = located.quote[-1]
    column = len(_plain(last.text[: located.column - 1 - last.cut])) - shift
    indent = number_width + 3 + max(column, 0)
    caret = Text(" " * min(indent, out.width - 1)).append("^", style=STYLES[finding.severity])
    if indent + 2 + len(finding.fix) <= out.width:
        out.print(caret.append(f" {finding.fix}", style="default"), soft_wrap=True)
        return
    out.print(caret, soft_wrap=True)
    for text in _wrapped(finding.fix, out.width - number_width - 3):
        out.print(Text(" " * (number_width + 3) + text), soft_wrap=True)


def _wrapped(text: str, width: int) -> list[str]:
    return wrap(text, max(width, 20), break_on_hyphens=False, break_long_words=False)


def _headline(out: Console, head: str, label: str, message: str, style: str) -> None:
    line = Text(head, style="bold").append(label, style=style)
    if line.cell_len + 2 + len(message) <= out.width:
        out.print(line.append(f"  {message}", style="default"), soft_wrap=True)
        return
    out.print(line, soft_wrap=True)
    for text in _wrapped(message, out.width - 2 * len(terminal.INDENT)):
        out.print(Text(terminal.INDENT * 2 + text), soft_wrap=True)


def _open(item: Open, out: Console) -> None:
    message = f"{printable(item.text)}{item.effect}: {item.why}; {item.fix}"
    _headline(out, f"{printable(item.path)}:{item.line}:{item.column} ", "unresolved", message, terminal.KV)


def _trouble(trouble: Trouble, out: Console) -> None:
    where = f"{printable(trouble.path)}:{trouble.line} " if trouble.line else f"{printable(trouble.path)} "
    message = trouble.message + (f"; {trouble.fix}" if trouble.fix else "")
    label = "unreadable" if trouble.unreadable else "unresolved"
    _headline(out, where, label, printable(message), terminal.TROUBLE if trouble.unreadable else terminal.KV)


def _deployment(out: Console, one: Checked) -> None:
    """What was read of a deployment, and which of its rules wait for what."""
    gpu = f", {one.gpu}" if one.gpu else ""
    count = f" x {one.gpus}" if one.gpus else ""
    out.print(
        Text(f"{printable(one.path)}:{one.line} ", style="bold")
        .append(
            f"{' '.join(filter(None, (one.kind, printable(one.name))))}: {one.engine} {one.version}, ", style="default"
        )
        .append(printable(one.model_preset or one.model or "no model"), style="default")
        .append(f"{gpu}{count}", style="default"),
        soft_wrap=True,
    )
    flags = " ".join(f"{value.flag} {value.value}" if value.value is not None else value.flag for value in one.values)
    for text in _wrapped(printable(flags), out.width - 4):
        out.print(Text(terminal.INDENT * 2 + text), soft_wrap=True)
    for note in one.notes:
        out.print(Text(terminal.INDENT * 2 + note), soft_wrap=True)
    waiting = [f"{rule} ({', '.join(needs)})" for rule, needs in one.waiting]
    for text in _wrapped("not checked: " + "; ".join(waiting), out.width - 4) if waiting else ():
        out.print(Text(terminal.INDENT * 2 + text, style=terminal.QUIET), soft_wrap=True)


def _counts(out: Console, report: Report, exit_code: int) -> None:
    first, *more = _wrapped(summary_line(report), out.width - len("   exit 0"))
    end = Text(f"   exit {exit_code}", style="bold" if exit_code else "default")
    out.print(Text("\n".join([first, *(terminal.INDENT + line for line in more)])).append(end), soft_wrap=True)


def _summary(out: Console, report: Report, exit_code: int) -> None:
    _counts(out, report, exit_code)
    lines = waiting_lines(report)
    if not report.checked and not report.troubles:
        lines = [f"no launch of an engine known here in {_number(report.files, 'file')} read"]
        if not report.files:
            lines = ["no file here is of a kind that may start an engine (--help names them)"]
    lines += [*listed_lines(report), *assumed_lines(report), *unread_lines(report)]
    for text in lines:
        for line in _wrapped(text, out.width - 2):
            out.print(Text(terminal.INDENT + line, style=terminal.QUIET), soft_wrap=True)


def summary_line(report: Report) -> str:
    """What a check came to, in one line."""
    parts = [_number(len(report.checked), "deployment")]
    parts += [
        _number(count, severity) for severity in ("error", "warning", "note") if (count := report.count(severity))
    ]
    if report.unresolved:
        parts.append(f"{report.unresolved:,} unresolved")
    unreadable = sum(trouble.unreadable for trouble in report.troubles)
    if unreadable:
        parts.append(f"{unreadable:,} unreadable")
    suppressed = len(report.findings) - len(report.counting)
    if suppressed:
        parts.append(f"{suppressed:,} suppressed")
    if report.not_checked:
        parts.append(f"{_number(report.not_checked, 'rule')} not checked")
    return ", ".join(parts)


def waiting_lines(report: Report) -> list[str]:
    """What stops launches, and which figures the rules that were not checked wait for, the most wanted first."""
    needed: Counter[str] = Counter()
    for one in report.checked:
        wanted = (need for _, needs in one.waiting for need in needs if not need.endswith(STOPS))
        needed.update(list(dict.fromkeys(wanted)))
    stopped = [
        f"{_number(rules, 'rule')} not checked: {rule} stops {'the launch' if count == 1 else f'{count:,} launches'}"
        for rule, (count, rules) in report.stopped.items()
    ]
    if not needed:
        return stopped
    shown = [f"{need} ({_number(count, 'deployment')})" for need, count in needed.most_common(MOST_WAITING)]
    more = ", ..." if len(needed) > MOST_WAITING else ""
    return [*stopped, f"not checked for want of {', '.join(shown)}{more}"]


def listed_lines(report: Report) -> list[str]:
    """Lists of flags that are read as launches of their own."""
    names = [printable(one.name) for one in report.checked if one.kind == "flags" and one.name]
    if not names:
        return []
    more = ", ..." if len(names) > MOST_LISTED else ""
    return [f"lists of flags, each read as a launch of its own: {', '.join(names[:MOST_LISTED])}{more}"]


def assumed_lines(report: Report) -> list[str]:
    """Releases that images do not name, and variables whose defaults decide conditions, as nothing sets them."""
    releases = Counter(one.assumed_release for one in report.checked if one.assumed_release)
    said = [f"{text} ({_number(count, 'deployment')})" for text, count in releases.most_common(MOST_ASSUMED)]
    names = sorted({name for one in report.checked for name in one.assumed})
    if not names:
        return said
    more = ", ..." if len(names) > MOST_ASSUMED else ""
    conditions = f"conditions are read as if nothing set {', '.join(names[:MOST_ASSUMED])}{more}"
    return [*said, f"{conditions}; --set NAME=VALUE says other"]


def unread_lines(report: Report) -> list[str]:
    """Files that speak of a launch and hold none that was read."""
    said = {trouble.path for trouble in report.troubles}
    unread = [path for path in report.unread if path not in said]
    lines = passed_lines(report)
    if not unread:
        return lines
    shown = [printable(path) for path in unread[:MOST_UNREAD]]
    more = ", ..." if len(unread) > MOST_UNREAD else ""
    verb = "looks like a launch and is" if len(unread) == 1 else "look like launches and are"
    return [*lines, f"{verb} not read: {', '.join(shown)}{more}"]


def passed_lines(report: Report) -> list[str]:
    """Files of folders that have to be named and may start an engine, by the ends of their names."""
    lines = []
    by_end: dict[str, list[str]] = {}
    for path in report.passed:
        by_end.setdefault(os.path.splitext(path)[1], []).append(printable(path))
    for end, paths in by_end.items():
        verb = "starts" if len(paths) == 1 else "start"
        more = ", ..." if len(paths) > MOST_UNREAD else ""
        them = "it" if len(paths) == 1 else "them"
        shown = f"name {them} to have {them} read: {', '.join(paths[:MOST_UNREAD])}{more}"
        lines.append(f"{_number(len(paths), f'{printable(end)} file')} that {verb} an engine not read; {shown}")
    return lines


def _number(count: int, name: str) -> str:
    return f"{count:,} {name}{'' if count == 1 else 's'}"


def _plain(line: str) -> str:
    return "".join(char if char.isprintable() else "?" for char in line.replace("\t", TAB))


def _window(line: str, column: int, width: int) -> tuple[str, int]:
    """The part of a long line around a column, and how many characters were cut before it."""
    plain = _plain(line)
    width = max(width, 20)
    at = len(_plain(line[: column - 1]))
    if len(plain) <= width:
        return plain, 0
    start = max(0, min(at - width // 2, len(plain) - width))
    return plain[start : start + width], start
