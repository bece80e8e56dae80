"""Which findings does a file itself set aside? ``# hybridcalc: ignore=HC013,HC018 reason``.

On the finding's line, on a comment line right above it, or right above the line that starts the deployment or what
holds it, as ``kind:`` or ``- name:`` (it then holds for all of it); ``ignore-file=`` anywhere holds for the file. A
reason is asked for, and so is an effect. Only a comment counts: what stands in a string or a here-document is said to
somebody else.
"""

import re
from bisect import bisect_right
from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import NamedTuple

from hybridcalc.checks import Line, Located, all_rules
from hybridcalc.engines import ENGINES
from hybridcalc.errors import InputError
from hybridcalc.findings import Finding
from hybridcalc.manifests import Deployment
from hybridcalc.manifests.find import format_of
from hybridcalc.manifests.yamltree import documents, scalars
from hybridcalc.shell import Source, Text
from hybridcalc.shell.commands import comments_in

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
        return _within(comments_in(Text(source, source.text), starts, ENGINES.launchers.spoken))
    try:
        texts = [node for node in scalars(documents(source)) if "hybridcalc:" in node.value]
    except InputError:
        return lambda offset: True
    spans = [(node.begin, node.end) for node in texts]
    scripts = [node for node in texts if any(node.begin <= start < node.end for start in starts)]
    inner = _within([span for node in scripts for span in comments_in(node.text(), starts, ENGINES.launchers.spoken)])
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
    covering = _covering(source, known)
    marked: list[Located] = []
    for item in located:
        reason = None
        for index in covering(item):
            if known[index].names(item.finding.rule):
                used.add(index)
                reason = known[index].reason or "no reason given"
        marked.append(item._replace(suppressed=reason))
    stray = []
    for index, suppression in enumerate(known):
        unknown, named = _rules_of(suppression.rules)
        idle = index not in used and all(map(judged, named))
        problem, fix = "gives no reason", "write ignore=ID and why"
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


@lru_cache(maxsize=256)
def _rules_of(names: frozenset[str]) -> tuple[list[str], list[str]]:
    """Of what a suppression names: what is no rule, and the rules."""
    prefixes = tuple(name for name in names if _ID.fullmatch(name))
    known = [rule for rule in all_rules() if rule.startswith(prefixes)] if prefixes else []
    return sorted(n for n in names if n not in prefixes or not any(r.startswith(n) for r in known)), known


def _covering(source: Source, known: list[Suppression]) -> Callable[[Located], list[int]]:
    """The suppressions that cover a finding: on its line, on comment lines above that or above what it stands in."""
    whole = [index for index, suppression in enumerate(known) if suppression.whole_file]
    beside: dict[int, list[int]] = {}
    above: dict[int, list[int]] = {}
    for index, suppression in enumerate(known):
        if not suppression.whole_file:
            beside.setdefault(suppression.line, []).append(index)
    below = 0
    lines = source.text.split("\n")
    for number in range(len(lines), 0, -1):  # a comment is above the first line below it that is none
        for index in beside.get(number, ()):
            if known[index].own_line:
                above.setdefault(below, []).append(index)
        if not lines[number - 1].lstrip().startswith("#"):
            below = number

    def covering(item: Located) -> list[int]:
        if item.path != source.path:
            return whole
        near = [above.get(line, []) for line in dict.fromkeys((item.line, item.start, *item.heads))]
        return sorted({*whole, *beside.get(item.line, ()), *(index for found in near for index in found)})

    return covering
