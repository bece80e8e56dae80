"""Which findings does a file itself set aside? ``# hybridcalc: ignore=HC013,HC018 reason``.

On the finding's line, on a comment line right above it, or right above the line that starts the deployment or what
holds it, as ``kind:`` or ``- name:`` (it then holds for all of it); ``ignore-file=`` anywhere holds for the file. A
reason is asked for, and so is an effect.
"""

import re
from collections.abc import Callable, Iterable
from typing import NamedTuple

from hybridcalc.checks.results import Located
from hybridcalc.checks.rules import all_rules
from hybridcalc.findings import Finding
from hybridcalc.manifests.source import Source

_COMMENT = re.compile(r"#[ \t]*hybridcalc:[ \t]*ignore(-file)?[ \t]*=[ \t]*([\w-]+(?:[ \t]*,[ \t]*[\w-]+)*)?[ \t]*(.*)")

_ID = re.compile(r"HC[0-9]{0,3}")


class Suppression(NamedTuple):
    """A comment: the rules it sets aside, where it counts (0: the whole file), and why."""

    rules: frozenset[str]
    line: int
    own_line: bool
    whole_file: bool
    reason: str
    column: int = 1

    def names(self, rule: str) -> bool:
        """Whether it sets a rule aside: by its id, or by a prefix of it."""
        return any(rule.startswith(name) for name in self.rules if _ID.fullmatch(name))


def suppressions(source: Source) -> list[Suppression]:
    """Every suppression of a file."""
    if "hybridcalc:" not in source.text:
        return []
    found = []
    for number, line in enumerate(source.text.split("\n"), 1):
        match = _COMMENT.search(line)
        if match is not None:
            rules = frozenset(part.strip() for part in (match[2] or "").split(",") if part.strip())
            alone = not line[: match.start()].strip()
            found.append(Suppression(rules, number, alone, match[1] is not None, match[3].strip(), match.start() + 1))
    return found


def apply(
    source: Source, located: Iterable[Located], known: list[Suppression], judged: Callable[[str], bool]
) -> tuple[list[Located], list[Located]]:
    """Findings with what is set aside marked, and findings about the suppressions; one of a rule that was not
    ``judged`` may yet have its effect.
    """
    used: set[int] = set()
    marked: list[Located] = []
    for item in located:
        reason = None
        for index, suppression in enumerate(known):
            if suppression.names(item.finding.rule) and _covers(source, suppression, item):
                used.add(index)
                reason = suppression.reason or "no reason given"
        marked.append(item._replace(suppressed=reason))
    stray = []
    for index, suppression in enumerate(known):
        known_rules = [rule for rule in all_rules() if suppression.names(rule)]
        idle = index not in used and all(map(judged, known_rules))
        problem, fix = "gives no reason", "write ignore=ID and why"
        unknown = sorted(name for name in suppression.rules if not any(map(_prefixed(name), all_rules())))
        if unknown or not suppression.rules:
            problem, fix = "names no rule", "write ignore=ID and why; `hybridcalc rules` lists the ids"
        elif suppression.reason and idle:
            problem, fix = "has no effect", "leave it out"
        elif suppression.reason:
            continue
        names = ", ".join(unknown or sorted(suppression.rules)) or "nothing"
        finding = Finding("HC078", "warning", f"the suppression of {names} {problem}", fix)
        line = source.line(suppression.line)
        quote = ((suppression.line, line),)
        at = suppression.column
        stray.append(Located(finding, source.path, suppression.line, at, len(line.rstrip()) + 1, "", quote))
    return marked, stray


def _prefixed(name: str) -> Callable[[str], bool]:
    return lambda rule: _ID.fullmatch(name) is not None and rule.startswith(name)


def _covers(source: Source, suppression: Suppression, item: Located) -> bool:
    if suppression.whole_file:
        return True
    if item.path != source.path:
        return False
    if suppression.line == item.line:
        return True
    if not suppression.own_line:
        return False
    below = suppression.line + 1
    while below < min(item.line, item.start or item.line) and source.line(below).lstrip().startswith("#"):
        below += 1
    return below in (item.line, item.start, *item.heads)
