"""Which findings does a file itself set aside? ``# hybridcalc: ignore=HC013,HC018 reason``.

On the finding's line, on a comment line right above it, or right above the line that starts the deployment or what
holds it, as ``kind:`` or ``- name:`` (it then holds for all of it); ``ignore-file=`` anywhere holds for the file. A
reason is asked for, and so is an effect. Only a comment counts: what stands in a string or a here-document is said to
somebody else.
"""

import re
from bisect import bisect_right
from collections.abc import Callable, Iterable
from typing import NamedTuple

from hybridcalc.checks.results import Line, Located
from hybridcalc.checks.rules import all_rules
from hybridcalc.engines.engine import ENGINES
from hybridcalc.errors import InputError
from hybridcalc.findings import Finding
from hybridcalc.manifests.find import format_of
from hybridcalc.manifests.records import Deployment
from hybridcalc.manifests.yamltree import documents, scalars
from hybridcalc.shell.commands import comments_in
from hybridcalc.shell.source import Source, Text

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


def suppressions(source: Source, deployments: Iterable[Deployment], located: Iterable[Located]) -> list[Suppression]:
    """Every suppression of a file; the places of its deployments and findings tell scripts in it from other texts."""
    if _COMMENT.search(source.text) is None:
        return []
    starts = [item.place.begin for item in deployments if item.place.path == source.path]
    starts += [source.offset(item.line, item.column) for item in located if item.path == source.path]
    is_comment = _comments(source, sorted(set(starts)))
    found = []
    for number, line in enumerate(source.text.split("\n"), 1):
        match = _COMMENT.search(line)
        if match is not None and is_comment(source.offset(number, 1) + match.start()):
            rules = frozenset(part.strip() for part in (match[2] or "").split(",") if part.strip())
            alone = not line[: match.start()].strip()
            found.append(Suppression(rules, number, alone, match[1] is not None, match[3].strip(), match.start() + 1))
    return found


def _comments(source: Source, starts: list[int]) -> Callable[[int], bool]:
    """Whether a comment stands at an offset of a file."""
    if format_of(source).name != "documents":
        return _within(comments_in(Text(source, source.text), starts, ENGINES.launchers.named))
    try:
        texts = [node for node in scalars(documents(source)) if "hybridcalc:" in node.value]
    except InputError:
        return lambda offset: True
    spans = [(node.begin, node.end) for node in texts]
    scripts = [node for node in texts if any(node.begin <= start < node.end for start in starts)]
    inner = _within([span for node in scripts for span in comments_in(node.text(), starts, ENGINES.launchers.named)])
    return lambda offset: inner(offset) or not any(begin <= offset < end for begin, end in spans)


def _within(spans: list[tuple[int, int]]) -> Callable[[int], bool]:
    begins = sorted(begin for begin, _ in spans)
    ends = dict(spans)

    def within(offset: int) -> bool:
        at = bisect_right(begins, offset) - 1
        return at >= 0 and offset < ends[begins[at]]

    return within


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
        at = suppression.column
        quote = (Line.around(at, suppression.line, line),)
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
