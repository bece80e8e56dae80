"""Where does a finding stand, and which text would mend it?

A finding is about a flag: the first of those its rule is about that is given, else one its words name, else a
variable that its rule is about, else the deployment. It stands at the flag's value. An edit replaces one value, and
only where the file holds exactly that text.
"""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from hybridcalc.checks.results import Edit, Line, Located
from hybridcalc.checks.rules import judged_rules
from hybridcalc.findings import Finding
from hybridcalc.manifests.records import Deployment
from hybridcalc.shell.source import Place, Source, Word

_REFERENCE = re.compile(r"\$\{?#?([A-Za-z_]\w*)|(?<![^\s\[,{])\*([\w-]+)(?![\w-])")
"""A use of a variable, or of a YAML anchor."""
_ANCHOR = re.compile(r"(?<!\S)&([\w-]+)[ \t]+['\"]?\Z")


class Given(NamedTuple):
    """A sizing flag of a launch with its value; ``name`` is the engine's own spelling."""

    name: str
    flag: Word
    value: Word | None
    joined: bool = False


def place_finding(finding: Finding, deployment: Deployment, given: Mapping[str, Given]) -> Located:
    """A finding at the flag it is about."""
    rule = judged_rules(deployment.engine).get(finding.rule)
    item = _flag_of(finding, rule.place if rule is not None else (), given)
    if item is None:
        named = [deployment.env[name] for name in (rule.place if rule is not None else ()) if name in deployment.env]
        place = next((setting.words[0].place for setting in named if setting.words), None) or deployment.place
        return located_at(finding, place, deployment)
    edit = None if rule is not None and rule.choice else _value_edit(finding, item, given)
    return located_at(finding, _value_place(item), deployment, edit=edit)


def _value_place(item: Given) -> Place:
    """Where a flag's value stands; the flag itself where it takes none."""
    if item.value is not None:
        return item.value.place
    chars = item.flag.chars if item.joined and not item.flag.why else None
    if chars is None or chars.text != item.flag:
        return _after_equals(item) if item.joined else item.flag.place
    begin = len(item.flag.partition("=")[0]) + 1
    return item.flag.source.place(chars.at(begin), chars.end(len(item.flag)))


def _after_equals(item: Given) -> Place:
    """Where the value of ``--flag=$N`` stands, which a variable gives."""
    place, name = item.flag.place, item.flag.partition("=")[0]
    written = item.flag.source.text[place.begin : place.end]
    quote = len(written) - len(written.lstrip("'\""))
    if not written.startswith(f"{name}=", quote):
        return place
    return item.flag.source.place(place.begin + quote + len(name) + 1, place.end - quote)


def _flag_of(finding: Finding, place: Sequence[str], given: Mapping[str, Given]) -> Given | None:
    for name in (*place, finding.flag):
        for item in given.values():
            if name == item.name.partition(".")[0] or item.flag.partition("=")[0] == name:
                return item
    return None


def _value_edit(finding: Finding, item: Given, given: Mapping[str, Given]) -> Edit | None:
    """The one value that mends it, where the fix is one."""
    if "." in item.name or finding.mend is None:
        return None
    flag, value = finding.mend
    if not flag:
        return _replace_value(item, value)
    target = next((g for g in given.values() if flag in (g.name, g.flag.partition("=")[0])), None)
    return _replace_value(target, value) if target is not None else None


def _replace_value(item: Given, text: str) -> Edit | None:
    if item.joined and not item.flag.why:
        _, _, value = item.flag.partition("=")
        chars = item.flag.chars
        if chars is None or chars.text != item.flag:
            return None
        return value_edit(_value_place(item), item.flag.source, value, text) if value else None
    if item.value is None or item.value.why:
        return None
    place = item.value.written or item.value.place
    return value_edit(place, item.value.source, str(item.value), text)


def image_place(deployment: Deployment) -> Place | None:
    """Where the image's tag stands, the nearest to the launch; None where the file does not say it in one piece."""
    source, near = deployment.source, deployment.place.begin
    tag = deployment.image.rpartition(":")[2] if ":" in deployment.image else ""
    for text in (deployment.image, tag):
        spots = [match.start() for match in re.finditer(re.escape(text), source.text)] if text else []
        if spots:
            begin = min(spots, key=lambda at: abs(at - near))
            return source.place(begin, begin + len(text))
    return None


def value_edit(place: Place, source: Source, before: str, text: str) -> Edit | None:
    """An edit of a span that holds exactly the text that is to go, quotes aside."""
    if place.path != source.path:
        return None
    raw = source.text[place.begin : place.end]
    begin, end = place.begin, place.end
    if raw[1:-1] == before and raw[:1] in ("'", '"'):
        begin, end = begin + 1, end - 1
    elif raw != before:
        return None
    first, last = source.place(begin), source.place(end)
    return Edit(source.path, begin, end, first.line, first.column, last.line, last.column, before, text, source.exact)


class SharedValues:
    """The values of a file that more than one setting takes: variables used again, anchors, what is merged into
    several services. No fix changes one, as it would change the others too.
    """

    def __init__(self, deployments: Sequence[Deployment]) -> None:
        self._uses = Counter[tuple[str, int]]()
        self._named: dict[tuple[str, int], str] = {}
        sources = {deployment.path: deployment.source for deployment in deployments}
        names = Counter[str]()
        for source in sources.values():
            names.update(next(filter(None, match.groups())) for match in _REFERENCE.finditer(source.text))
        for word in (word for deployment in deployments for word in deployment.words):
            place = word.written or word.place
            self._uses[place.path, place.begin] += 1
            used = _REFERENCE.search(word.source.text, word.begin, word.end) if word.written is not None else None
            anchor = _ANCHOR.search(word.source.text[max(0, place.begin - 80) : place.begin])
            name = next(filter(None, used.groups())) if used is not None else anchor[1] if anchor is not None else ""
            if names[name] > 1:
                self._named[place.path, place.begin] = name

    def left_alone(self, item: Located) -> Located:
        """A finding without its edit, where that is of a value that others share."""
        edit = item.edit
        if edit is None:
            return item
        spots = [(edit.path, edit.begin), (edit.path, edit.begin - 1)]  # with and without its quote
        shared = any(self._uses[spot] > 1 or spot in self._named for spot in spots)
        return item._replace(edit=None) if shared else item


def located_at(finding: Finding, place: Place, deployment: Deployment, *, edit: Edit | None = None) -> Located:
    """A finding at a place, with the line it stands on, and the flag's own line above it where that is another."""
    source = deployment.source if deployment.source.path == place.path else None
    source = source or next((word.source for word in deployment.words if word.source.path == place.path), None)
    quote: tuple[Line, ...] = ()
    width = 1
    if source is not None:
        line = source.line(place.line)
        quote = (Line.around(place.column, place.line, line),)
        if (
            place.line > 1
            and not line.strip().startswith("#")
            and "--" not in line
            and "--" in source.line(place.line - 1)
        ):
            quote = (Line.around(1, place.line - 1, source.line(place.line - 1)), *quote)
        width = max(1, min(place.end - place.begin, len(line) - place.column + 1))
    return Located(
        finding,
        place.path,
        place.line,
        place.column,
        place.column + width,
        deployment.name,
        quote,
        edit,
        deployment.place.line,
        heads=deployment.heads,
    )


def spelling_edit(instead: str, word: Word) -> Edit | None:
    """A flag written as ``instead``."""
    name, equals, _ = word.partition("=")
    if not name.startswith("--") or equals:
        return None
    return value_edit(word.place, word.source, name, instead)
