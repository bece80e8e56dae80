"""Findings as JUnit XML: one test case for each deployment and rule that was looked at, a failure for each finding."""

from __future__ import annotations

import re
from xml.etree.ElementTree import Element, SubElement, indent, tostring

from hybridcalc.checks import Checked, Located
from hybridcalc.checks.answer import STOPS
from hybridcalc.checks.run import Report
from hybridcalc.findings import SEVERITIES
from hybridcalc.output.sarif import unresolved

_ILLEGAL = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def junit(report: Report, fail_on: str) -> str:
    """The XML of a check."""
    least = len(SEVERITIES) if fail_on == "never" else SEVERITIES.index(fail_on)
    root = Element("testsuites", name="hybridcalc check")
    suites: dict[str, list[Element]] = {}
    by_deployment: dict[tuple[str, str, int], list[Located]] = {}
    for item in report.findings:
        by_deployment.setdefault((item.path, item.deployment, item.start), []).append(item)
    for one in report.checked:
        cases = suites.setdefault(one.path, [])
        found = by_deployment.get(_key(one), [])
        cases += [_case(item, least) for item in found]
        if not found:
            cases.append(_element(f"{one.name or one.kind}: {one.engine}", one.path, one.line))
        for rule, needs in one.waiting:
            case = _element(f"{one.name or one.kind} {rule}", one.path, one.line)
            needed = ", ".join(needs)
            SubElement(case, "skipped", message=_text(needed if needed.endswith(STOPS) else f"needs {needed}"))
            cases.append(case)
    known = {_key(one) for one in report.checked}
    for item in report.findings:
        if (item.path, item.deployment, item.start) not in known:
            suites.setdefault(item.path, []).append(_case(item, least))
    for item in unresolved(report):
        case = _element(f"{item.deployment} {item.finding.rule}", item.path, item.line)
        SubElement(case, "skipped", message=_text(item.finding.message))
        suites.setdefault(item.path, []).append(case)
    for trouble in report.troubles:
        case = _element("readable", trouble.path, trouble.line)
        SubElement(case, "error" if trouble.unreadable else "skipped", message=_text(trouble.message))
        suites.setdefault(trouble.path, []).append(case)
    for path, cases in suites.items():
        suite = SubElement(root, "testsuite", name=_text(path), tests=str(len(cases)))
        for kind, tag in (("failures", "failure"), ("errors", "error"), ("skipped", "skipped")):
            suite.set(kind, str(sum(case.find(tag) is not None for case in cases)))
        suite.extend(cases)
    indent(root)
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + tostring(root, encoding="unicode") + "\n"


def _key(one: Checked) -> tuple[str, str, int]:
    return one.path, one.name, one.line


def _case(item: Located, least: int) -> Element:
    case = _element(f"{item.deployment} {item.finding.rule}".strip(), item.path, item.line)
    text = f"{item.path}:{item.line}:{item.column} {item.finding.message}\n{item.finding.fix}".strip()
    if item.suppressed is not None:
        SubElement(case, "skipped", message=_text(f"suppressed: {item.suppressed}"))
    elif SEVERITIES.index(item.finding.severity) >= least:
        failure = SubElement(case, "failure", message=_text(item.finding.message), type=item.finding.severity)
        failure.text = _text(text)
    else:
        SubElement(case, "system-out").text = _text(text)
    return case


def _element(name: str, path: str, line: int) -> Element:
    return Element("testcase", name=_text(name), classname=_text(path), file=_text(path), line=str(max(line, 1)))


def _text(text: str) -> str:
    return _ILLEGAL.sub("?", text)
