"""What do these files come to? Every file found, read and judged, in processes where there are many.

A file's trouble is its own: the others are still checked. Files without a deployment leave nothing behind.
"""

import fnmatch
import os
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import NamedTuple

from hybridcalc.checks import Checked, FileResult, Located, order
from hybridcalc.checks.answer import STOPS
from hybridcalc.checks.judge import PARALLEL, judge
from hybridcalc.checks.settings import Settings
from hybridcalc.checks.words import LEFT_EMPTY, SharedValues, located_at
from hybridcalc.engines import ENGINES
from hybridcalc.errors import HybridcalcError
from hybridcalc.findings import SEVERITIES, Finding
from hybridcalc.manifests import FILLED_IN, Deployment, Passed, Trouble
from hybridcalc.manifests.find import Contents, find_files, mention, plain_launch, read_file
from hybridcalc.shell import Source
from hybridcalc.shell.variables import FROM_CALLER

FILES_A_PROCESS = 60
MOST_PROCESSES = 8
LEADER, WORKER = "/leaderTemplate", "/workerTemplate"
"""In the names of those that start one server together."""
UNREAD_FIX = "give its launch as a script"


class Report(NamedTuple):
    """Everything a check found, in the order of the files; ``unread`` are those that speak of a launch and hold none
    that was read, ``passed`` those of folders that have to be named and may start an engine.
    """

    files: int
    checked: tuple[Checked, ...]
    findings: tuple[Located, ...]
    troubles: tuple[Trouble, ...]
    unread: tuple[str, ...] = ()
    passed: tuple[str, ...] = ()

    @property
    def counting(self) -> tuple[Located, ...]:
        """Findings that nobody set aside."""
        return tuple(item for item in self.findings if item.suppressed is None)

    @property
    def unresolved(self) -> int:
        """Values that stayed unknown, and templates that were not rendered."""
        return sum(len(c.opened) for c in self.checked) + sum(not t.unreadable for t in self.troubles)

    def count(self, severity: str) -> int:
        """Findings of a severity that count."""
        return sum(item.finding.severity == severity for item in self.counting)

    def exit_code(self, fail_on: str, *, allow_unresolved: bool) -> int:
        """2 for a file that was named and could not be read, 1 for a finding that counts, 3 for a value that stayed
        unknown or a file of a folder that was not read.
        """
        if any(trouble.unreadable and trouble.given for trouble in self.troubles):
            return 2
        if fail_on != "never":
            least = SEVERITIES.index(fail_on)
            if any(SEVERITIES.index(item.finding.severity) >= least for item in self.counting):
                return 1
        left = self.unresolved or self.passed or any(trouble.unreadable for trouble in self.troubles)
        return 3 if left and not allow_unresolved else 0

    @property
    def not_checked(self) -> int:
        """Rules that were not checked; where none of an engine's was, all of them."""
        return sum(_waiting(one) for one in self.checked)

    @property
    def stopped(self) -> dict[str, tuple[int, int]]:
        """Rule -> the launches that it stops, and the rules that were not checked for that."""
        found: dict[str, tuple[int, int]] = {}
        for one in self.checked:
            for need in dict.fromkeys(need for _, needs in one.waiting for need in needs if need.endswith(STOPS)):
                launches, rules = found.get(need.removesuffix(STOPS), (0, 0))
                found[need.removesuffix(STOPS)] = launches + 1, rules + _waiting(one)
        return found

    def waiting(self) -> Counter[tuple[str, ...]]:
        """How many rules wait for which figures."""
        return Counter(needs for c in self.checked for _, needs in c.waiting)


def _waiting(one: Checked) -> int:
    """How many rules were not checked on a deployment."""
    return sum(len(ENGINES[one.engine].rules()) if rule == "all" else 1 for rule, _ in one.waiting)


def check_paths(
    paths: Sequence[str], settings: Settings, variables: Mapping[str, str], baseline: Counter[str] | None = None
) -> Report:
    """Check every file under the paths."""
    troubles: list[Trouble] = []
    files: list[str] = []
    passed: list[str] = []
    for found in find_files(paths):
        if isinstance(found, Trouble):
            troubles.append(found)
        elif isinstance(found, Passed):
            passed += [] if _excluded(found.path, settings.exclude) else [found.path]
        elif found in paths or not _excluded(found, settings.exclude):
            files.append(found)
    checked: list[Checked] = []
    findings: list[Located] = []
    unread: list[str] = []
    named = frozenset(paths)
    for result in _results(files, named, settings, variables):
        unread += [result.path] if result.unread else []
        checked += result.checked
        findings += result.stray
        findings += [item for one in result.checked for item in one.findings]
        troubles += result.troubles
    findings.sort(key=order)
    if baseline is not None:
        from hybridcalc.checks.baseline import mark_known

        findings = mark_known(findings, baseline)
    return Report(len(files), tuple(checked), tuple(findings), tuple(troubles), tuple(unread), tuple(passed))


def _excluded(path: str, patterns: Iterable[str]) -> bool:
    shown = os.path.relpath(path) if path != "-" else path
    return any(
        fnmatch.fnmatch(shown, pattern) or fnmatch.fnmatch(shown, f"{pattern.rstrip('/')}/*") for pattern in patterns
    )


def _results(
    files: Sequence[str], named: frozenset[str], settings: Settings, variables: Mapping[str, str]
) -> Iterator[FileResult]:
    check = partial(_check_apart, settings=settings, variables=dict(variables), named=named)
    processes = min(_processors(), MOST_PROCESSES, len(files) // FILES_A_PROCESS)
    if processes > 1:
        from hybridcalc.checks.processes import answers

    results = answers(files, check, _failed, processes) if processes > 1 else map(check, files)
    return (result for result in results if result is not None)


def _processors() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _check_apart(
    path: str, settings: Settings, variables: Mapping[str, str], named: frozenset[str]
) -> FileResult | None:
    """As `check_file`; a defect that one file brings to light keeps no other from being checked."""
    try:
        return check_file(path, settings, variables, named=path in named, folders=named)
    except Exception as failure:  # whatever it is: it is said, and the exit code is 2
        from hybridcalc.checks.processes import DEFECT_FIX, described

        return _failed(path, described(failure), DEFECT_FIX)


def _failed(path: str, message: str, fix: str) -> FileResult | None:
    return FileResult(path, (), (Trouble(path, 0, message, fix),))


def check_file(
    path: str,
    settings: Settings,
    variables: Mapping[str, str],
    *,
    named: bool = True,
    instead: bytes | None = None,
    folders: frozenset[str] = frozenset(),
) -> FileResult | None:
    """Check one file, which somebody ``named`` or a walk of ``folders`` found, or what is to stand in it ``instead``;
    None where it holds nothing.
    """
    contents = read_file(path, variables, stdin=_stdin, instead=instead, checked=folders)
    if not contents.deployments and not contents.troubles:
        source = None if contents.told else contents.source
        return _unread(path, source, named=named) if source is not None else None
    checked: list[Checked] = []
    troubles = [trouble._replace(given=named) for trouble in contents.troubles]
    for deployment in contents.deployments:
        try:
            checked.append(judge(deployment, settings))
        except HybridcalcError as error:
            troubles.append(Trouble(deployment.path, deployment.place.line, error.message, error.fix, given=named))
    if len(checked) == len(contents.deployments):
        checked = _without_shared(_grouped(checked, contents.deployments), contents.deployments)
    if any(item.edit is not None for one in checked for item in one.findings):
        shared = SharedValues(contents.deployments)
        checked = [one._replace(findings=tuple(map(shared.left_alone, one.findings))) for one in checked]
        if contents.source is not None and len(checked) == len(contents.deployments):
            checked = _that_hold(
                contents.source,
                checked,
                lambda data: read_file(path, variables, instead=data, checked=folders),
                settings,
            )
    if not named:
        patterns = {at: found for at, one in enumerate(checked) if (found := _pattern(one)) is not None}
        troubles += sorted(_each_once(list(patterns.values())), key=lambda trouble: trouble.line)
        checked = [one for at, one in enumerate(checked) if at not in patterns]
    stray: list[Located] = []
    source = contents.source
    flat = [item for one in checked for item in one.findings]
    if source is not None and "hybridcalc:" in source.text:
        checked, stray = _set_aside(source, contents.deployments, checked, flat, settings)
    return FileResult(contents.source.path if contents.source else path, tuple(checked), tuple(troubles), tuple(stray))


def _that_hold(
    source: Source, checked: list[Checked], read: Callable[[bytes], Contents], settings: Settings
) -> list[Checked]:
    """With those fixes of values alone that hold: of several for one value the worst finding's, and none after which a
    rule stops the launch, finds another error or writes that value again.
    """
    checked = [one._replace(findings=tuple(_one_a_value(one.findings))) for one in checked]
    edits = sorted({item.edit for one in checked for item in one.findings if item.edit is not None})
    own = [
        edit
        for at, edit in enumerate(edits)
        if edit.path == source.path and (not at or edit.begin >= edits[at - 1].end)
    ]
    if not any(item.edit in own and item.finding.mend is not None for one in checked for item in one.findings):
        return checked
    text, moved, grown = source.text, {}, 0
    for edit in own:
        moved[edit.begin] = edit.begin + grown
        text = text[: edit.begin + grown] + edit.text + text[edit.end + grown :]
        grown += len(edit.text) - (edit.end - edit.begin)
    deployments = read(text.encode("utf-8", errors="replace")).deployments
    if len(deployments) != len(checked):
        return checked
    kept: list[Checked] = []
    for one, deployment in zip(checked, deployments, strict=True):
        after = judge(deployment, settings)
        again = {item.edit.begin for item in after.findings if item.edit is not None and item.finding.mend is not None}
        spots = {moved.get(item.edit.begin) for item in one.findings if item.edit is not None}
        why = _why_not(one, after) or ("" if again.isdisjoint(spots) else "the value that it writes is found again")
        if why:
            without = (
                item._replace(edit=None, unmade=why) if item.finding.mend and item.edit else item
                for item in one.findings
            )
            one = one._replace(findings=tuple(without))
        kept.append(one)
    return kept


def _why_not(one: Checked, after: Checked) -> str:
    """Why the fixes of a launch do not hold, by what is found ``after`` them; "" where nothing says so."""
    stops = sorted({need for _, needs in after.waiting for need in needs if need.endswith(STOPS)})
    if stops:
        return f"{stops[0].removesuffix(STOPS)} stops the launch then"
    before = Counter(item.finding.rule for item in one.findings)
    left = Counter(item.finding.rule for item in after.findings if item.finding.severity == "error")
    mended = {item.finding.rule for item in one.findings if item.edit is not None and item.finding.mend is not None}
    for rule, many in sorted(left.items()):
        if rule not in before or (rule in mended and many >= before[rule]):
            return f"{rule} is found then"
    return ""


def _one_a_value(findings: Sequence[Located]) -> Iterator[Located]:
    """Findings of a deployment, where one text at most is to stand for a value: the worst one's."""
    first: dict[tuple[str, int], Located] = {}
    for item in sorted(findings, key=order):
        if item.edit is not None:
            first.setdefault((item.edit.path, item.edit.begin), item)
    for item in findings:
        worst = first[item.edit.path, item.edit.begin] if item.edit is not None else item
        if worst.edit is not None and item.edit is not None and worst.edit.text != item.edit.text:
            finding = item.finding._replace(fix=f"mend {worst.finding.rule} first", mend=None, sets="")
            yield item._replace(finding=finding, edit=None)
        else:
            yield item


def _pattern(one: Checked) -> Trouble | None:
    """What a walk found that is no deployment, but what others make one of: the model is said where it is used."""
    starter = ENGINES.rows[one.engine].starter
    open_model = any(item.flag in starter.model_flags for item in one.opened)
    if one.findings or not open_model:
        return None
    message, fix = "", "give the file, and --model PRESET"
    if one.kind in FILLED_IN or one.kind.endswith("Runtime"):
        message, fix = (f"a {one.kind}, which its controller fills in", "check what the controller makes of it")
    elif one.kind == f"{one.engine} --config":
        message = "a --config file of a model that is named elsewhere"
    elif one.kind == "script" and any(item.why in (FROM_CALLER, LEFT_EMPTY) for item in one.opened):
        message, fix = ("a launcher: whoever starts it names the model and adds flags", "give the file, and --set")
    elif one.model is not None:
        return None
    elif one.kind == "Dockerfile":
        message, fix = "an image: whoever runs it names the model", "check what runs it"
    elif one.kind in ("flags", "values"):
        message = "flags of a model that is named elsewhere"
    if not message:
        return None
    return Trouble(one.path, one.line, message, fix, unreadable=False, given=False)


def _each_once(troubles: Sequence[Trouble]) -> Iterator[Trouble]:
    """What is to be said of a file, once for all places of which it is the same."""
    places = Counter(trouble.message for trouble in troubles)
    for message, trouble in {trouble.message: trouble for trouble in reversed(troubles)}.items():
        more = f" ({places[message] - 1:,} more in the file)" if places[message] > 1 else ""
        yield trouble._replace(message=message + more)


def _set_aside(
    source: Source, deployments: Sequence[Deployment], checked: list[Checked], flat: list[Located], settings: Settings
) -> tuple[list[Checked], list[Located]]:
    """What the file itself sets aside, marked; and findings about those comments."""
    from hybridcalc.checks.suppress import apply, suppressions

    known = suppressions(source, deployments, flat)
    if not known:
        return checked, []
    waiting = {rule for one in checked for rule, _ in one.waiting}
    judged = lambda rule: settings.counts(rule) and not {rule, "all"} & waiting  # noqa: E731
    marked, stray = apply(source, flat, known, judged)
    kept: list[Checked] = []
    for one in checked:
        own, marked = marked[: len(one.findings)], marked[len(one.findings) :]
        kept.append(one._replace(findings=tuple(own)))
    return kept, [item for item in stray if settings.counts(item.finding.rule)]


def _unread(path: str, source: Source, *, named: bool) -> FileResult | None:
    """What is to be said of a file in which no launch was read: where it speaks of one."""
    said = mention(source.text) if named else plain_launch(source.text)
    if said is None:
        speaks = not named and next(ENGINES.launchers.starts_in(source.text), None) is not None
        return FileResult(path, (), (), unread=True) if speaks else None
    line = source.place(said[0]).line
    message = f"{said[1]}, and no launch was read in it: {' '.join(source.line(line).split())[:60]}"
    trouble = Trouble(source.path, line, message, UNREAD_FIX, unreadable=False, given=named)
    return FileResult(path, (), (trouble,), unread=True)


def _grouped(checked: list[Checked], deployments: Sequence[Deployment]) -> list[Checked]:
    """With one server for a group of pods: a worker has its leader's ranks, and an error says where it names others."""
    leaders = {one.name.partition(LEADER)[0]: one for one in checked if LEADER in one.name}
    kept: list[Checked] = []
    for one, deployment in zip(checked, deployments, strict=True):
        group, of, _ = one.name.partition(WORKER)
        leader = leaders.get(group) if of else None
        if leader is not None:
            theirs = {value.flag: value.value for value in leader.values if value.flag in PARALLEL}
            findings = [item for item in one.findings if item.finding.rule not in ("HC070", "HC073")]
            for value in one.values:
                said = theirs.get(value.flag, value.value)
                if said != value.value:
                    message = f"{value.flag} {value.value} in a worker, and {said} in the leader of its group"
                    place = next(word.place for word in deployment.words if word.place[:3] == value[2:])
                    finding = Finding("HC070", "error", message, f"write {said} in both, or {value.value}")
                    findings.append(located_at(finding, place, deployment))
            one = one._replace(findings=tuple(findings))
        kept.append(one)
    return kept


def _without_shared(checked: list[Checked], deployments: Sequence[Deployment]) -> list[Checked]:
    """Without idle GPUs (HC073) where several servers share those of one container."""
    held = Counter(deployment.hardware.gpus_place for deployment in deployments)
    return [
        one
        if held[deployment.hardware.gpus_place] == 1
        else one._replace(findings=tuple(item for item in one.findings if item.finding.rule != "HC073"))
        for one, deployment in zip(checked, deployments, strict=True)
    ]


def _stdin(size: int) -> bytes:
    return sys.stdin.buffer.read(size)
