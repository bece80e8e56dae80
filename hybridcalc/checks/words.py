"""What do the words of a deployment say to its engine, and where does a finding about them stand?

Sizing flags with their values, and what is not known: unknown words are set aside first, and those that a sizing flag
takes or that may hold any flag are reported. A flag that the engine does not take is a finding (HC071) and is left out
of what follows.

A finding is about a flag: the first of those its rule is about that is given, else one its words name, else a
variable that its rule is about, else the deployment. It stands at the flag's value. An edit replaces one value, and
only where the file holds exactly that text.
"""

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from hybridcalc.checks import Edit, Line, Located, Open, Value, judged_rules
from hybridcalc.checks.forks import fork_of, is_fork, refused
from hybridcalc.engines import ENGINES
from hybridcalc.engines.engine import Engine
from hybridcalc.errors import InputError, MisspeltFlag, printable
from hybridcalc.findings import Finding
from hybridcalc.manifests import Deployment, names_in
from hybridcalc.shell import FromOutside, Place, Source, Word
from hybridcalc.shell.flags import advice_of
from hybridcalc.shell.variables import A_TEMPLATE, is_path_to

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
    several services, or what another file holds. No fix changes one, as it would change the others too.
    """

    def __init__(self, deployments: Sequence[Deployment]) -> None:
        uses = Counter[tuple[str, int, int]]()
        self._named: dict[tuple[str, int], str] = {}
        sources = {deployment.path: deployment.source for deployment in deployments}
        names = Counter[str]()
        for source in sources.values():
            names.update(next(filter(None, match.groups())) for match in _REFERENCE.finditer(source.text))
        for word in (word for deployment in deployments for word in deployment.words):
            place = word.written or word.place
            uses[place.path, place.begin, place.end] += 1
            used = _REFERENCE.search(word.source.text, word.begin, word.end) if word.written is not None else None
            anchor = _ANCHOR.search(word.source.text[max(0, place.begin - 80) : place.begin])
            name = next(filter(None, used.groups())) if used is not None else anchor[1] if anchor is not None else ""
            if names[name] > 1:
                self._named[place.path, place.begin] = name
        self._own = sources.keys()
        self._shared = [span for span, count in uses.items() if count > 1]

    def left_alone(self, item: Located) -> Located:
        """A finding without its edit, where that is of a value that others share."""
        edit = item.edit
        if edit is None:
            return item
        spots = [(edit.path, edit.begin), (edit.path, edit.begin - 1)]  # with and without its quote
        shared = any(path == edit.path and begin <= edit.begin <= end for path, begin, end in self._shared)
        shared = shared or edit.path not in self._own or any(spot in self._named for spot in spots)
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


MOST_REFUSED = 20
NO_VALUE = re.compile(r"--(no-|enable-|disable-|skip-|trust-|allow-|return-|is-|show-|use-|log-requests$|enforce-)")
"""Flags that no plan needs and that take no value, as far as their names tell."""
LEFT_EMPTY = "nothing sets it here"
"""Why a value is not known that a variable has left empty."""
_VARIABLE = re.compile(r"\$(?:(?=[A-Za-z_])|\{|\((?=\w+\)))([A-Za-z_]\w*)")
_UNFILLED = re.compile(r"\$\{[{%]|\$\([A-Z][A-Z0-9_]*\)")
"""What stands in quotes, which keep it from a shell, for whoever fills in the file."""
_FREE = re.compile(r"\$\{?[A-Za-z_]\w*\[[@*]\]|\$[@*]|\$\{[@*%]|\[?(\.\.\.|\u2026)\]?$")


class Words(NamedTuple):
    """The words of a launch, the unknown ones set aside."""

    kept: list[Word]
    given: dict[str, Given]
    opened: list[Open]
    free: bool
    refused: set[str]


def sort_out(deployment: Deployment, engine: Engine) -> Words:
    """The words an engine can read, the sizing flags among them, and what is unknown."""
    kept: list[Word] = []
    given: dict[str, Given] = {}
    opened: list[Open] = []
    free = False
    words = list(deployment.words)
    at = 0
    before: str | None = None
    may_be_model = engine.model_after_flags and bool(words) and words[0].startswith("-")
    positional = may_be_model
    if words and not words[0].startswith("-"):
        first = _by_its_end(_unless_empty(words[0]))
        words[0] = first
        if first.why and not _FREE.search(first):
            opened.append(_open(first, engine.model_flag))
            words, at = words[1:], 0
    while at < len(words):
        word = _unless_unfilled(words[at])
        at += 1
        name, equals, _ = word.partition("=")
        sized = engine.flags.known(name) if word.startswith("-") else None
        if word.why and sized is None:
            if word.startswith("--") and equals:  # a flag of no account
                before = None
            elif before is not None and not _FREE.search(word) and not NO_VALUE.match(before):
                before = None  # the value of one
            else:
                free = True
                opened.append(_open(word, ""))
            continue
        if sized is None:
            flag = _is_flag(word)
            if not flag and may_be_model and at > 1 and not word.why:  # MODEL after its flags
                kept.insert(0, word)
                may_be_model = False
                continue
            before = word if flag and not equals else None
            may_be_model = may_be_model and flag and (equals or NO_VALUE.match(word)) is not None
            if name in engine.flags.files:
                value = words[at] if not equals and at < len(words) else word
                opened.append(_open_file(word, value, name))
                at += 0 if equals else 1
                continue
            if not word.why:
                kept.append(word)
            continue
        before = None
        may_be_model = positional
        spelling, switch = sized.spellings[0], sized.kind in ("flag", "switch")
        key = spelling + "".join(name.partition(".")[1:])  # fields of a JSON flag are flags of their own
        if word.why and equals and name in ENGINES.rows[engine.name].starter.model_flags and is_path_to(word):
            word = word.instead(f"{name}={word.rpartition('/')[2]}")
        word = _unless_empty(word) if equals else word
        if word.why:
            opened.append(_opened(word.partition("=")[2] or str(word), spelling, word.why, word.place))
            continue
        if equals or switch or at == len(words) or _is_flag(words[at]):
            kept.append(word)
            given[key] = Given(key, word, None, bool(equals))
            continue
        value = _unless_empty(_unless_unfilled(words[at]))
        value = _by_its_end(value) if name in ENGINES.rows[engine.name].starter.model_flags else value
        at += 1
        if value.why:
            opened.append(_open(value, spelling))
            given.pop(key, None)
        else:
            kept += (word, value)
            given[key] = Given(key, word, value)
    return Words(kept, given, opened, free, set())


def _is_flag(word: str) -> bool:
    return re.match(r"-(?![0-9.])", word) is not None


def _unless_unfilled(word: Word) -> Word:
    """A word, not known where it holds what is filled in before anything starts."""
    return word.instead(word, A_TEMPLATE) if not word.why and _UNFILLED.search(word) else word


def _unless_empty(word: Word) -> Word:
    """A value, alone or behind ``--flag=``, not known where a variable has left it empty: who starts it gives it."""
    name, equals, value = word.partition("=")
    if word.why or (value if equals else word):
        return word
    written = word.source.text[word.begin : word.end].strip("\"'").removeprefix(name + equals).lstrip("\"'")
    return word.instead(name + equals + written, LEFT_EMPTY) if written.startswith("$") else word


def _by_its_end(model: Word) -> Word:
    """A model of whose path the beginning alone is not known: its last part names it."""
    return model.instead(model) if model.why and is_path_to(model) else model


def _open(word: Word, flag: str) -> Open:
    return _opened(word, flag, word.why, word.place)


def _open_file(word: Word, value: Word, name: str) -> Open:
    text, why = value.partition("=")[2] or str(value), "the file is not among those that were read"
    return _opened(text, name, why, word.place, "give its flags in its place")


def _opened(text: str, flag: str, why: str, place: Place, otherwise: str = "write it literally") -> Open:
    """An unknown value with what resolves it: a template rendered, a variable given, or ``otherwise``."""
    text = printable(re.sub(r"\$\{(<[^<>]*>|%.*%)\}|\$(?=\{\{)", lambda match: match[1] or "", text)[:80])
    variable = _VARIABLE.search(text)
    name = why.variable if isinstance(why, FromOutside) else variable[1] if variable else next(names_in(text), None)
    if name is not None:
        fix = f"give --set {name}=... or --env-file"
    else:
        fix = "render the template first" if "{{" in text or "%" in text[:1] else otherwise
    return Open(text, flag, str(why), fix, place.path, place.line, place.column)


def environment(deployment: Deployment, engine: Engine) -> tuple[dict[str, str], list[Open]]:
    """The variables that the engine reads, and those of them that nobody knows."""
    env: dict[str, str] = {}
    opened: list[Open] = []
    for name in sorted(engine.environment & deployment.env.keys()):
        setting = deployment.env[name]
        if setting.text is not None:
            env[name] = setting.text
        else:
            place = setting.place or deployment.place
            opened.append(_opened(f"${name}", name, setting.reason, place))
    return env, opened


def read(
    deployment: Deployment,
    engine: Engine,
    words: Words,
    env: Mapping[str, str],
    version: str | None,
    findings: list[Located],
) -> tuple[str | None, Any]:
    """The model and the arguments; flags that the engine refuses are reported and left out."""
    for _ in range(MOST_REFUSED):
        unknown: list[str] = []
        try:
            model, args = engine.read(words.kept, env, unknown)
            args = engine.with_options(args, {"engine_version": version})
            findings += _passed_over(unknown, deployment, engine, words)
            return (None if model is None else str(model)), args
        except InputError as error:
            at = engine.flags.place_of(error.flag, words.kept)
            finding = refused(error, engine, deployment.image)
            if at is None:
                findings.append(located_at(finding, deployment.place, deployment))
                return None, None
            word = words.kept[at]
            unlisted = isinstance(error, MisspeltFlag) and not engine.variants.keys().isdisjoint(words.kept)
            unlisted = unlisted or bool(fork_of(deployment, engine))
            flag = engine.flags.known(word.partition("=")[0])
            until = at + 1
            while until < len(words.kept) and not _is_flag(words.kept[until]):
                until += 1
            shown = words.kept[at + 1] if until > at + 1 else word
            edit = spelling_edit(error.instead, word) if isinstance(error, MisspeltFlag) else None
            findings += [] if unlisted else [located_at(finding, shown.place, deployment, edit=edit)]
            if flag is not None:
                words.given.pop(flag.spellings[0] + "".join(word.partition("=")[0].partition(".")[1:]), None)
                words.refused.add(flag.spellings[0])
            del words.kept[at:until]
    return None, None


def _passed_over(unknown: Sequence[str], deployment: Deployment, engine: Engine, words: Words) -> Iterator[Located]:
    """Flags that no list of the engine's has; nothing is said where a variant, a fork or a program that wraps it has
    flags of its own.
    """
    program = deployment.launch.program
    wrapped = len(program) == 3 and not program[2].startswith(engine.name)
    old = ENGINES.older(deployment.launch)  # it may have flags that are gone since
    if (
        fork_of(deployment, engine)
        or wrapped
        or old
        or not engine.variants.keys().isdisjoint(words.kept)
        or is_fork(engine, deployment.image)
    ):
        return
    for name in dict.fromkeys(unknown):
        at = engine.flags.place_of(name, words.kept)
        place = deployment.place if at is None else words.kept[at].place
        message = f"no {engine.title} known here takes {printable(name[:40])}: the server may not start"
        fix = advice_of(name, engine.flags.names)
        yield located_at(Finding("HC071", "warning", message, fix), place, deployment)


def values_of(words: Words) -> list[Value]:
    """Every sizing flag as it was read, with its place; a switch that is off as it is typed."""
    found = []
    for item in words.given.values():
        text = item.flag.partition("=")[2] if item.joined else str(item.value) if item.value is not None else None
        off = text is None and item.flag.startswith(("--no-", "--disable-"))
        found.append(Value(str(item.flag) if off else item.name, text, *item.flag.place[:3]))
    return found
