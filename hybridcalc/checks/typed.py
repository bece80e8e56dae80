"""What is to be said of words as they are typed: names that are retired, and flags that belong to no command."""

import re

from hybridcalc.checks import Located
from hybridcalc.checks.forks import refused
from hybridcalc.checks.words import Words, located_at, spelling_edit, value_edit
from hybridcalc.engines.engine import Engine
from hybridcalc.engines.spelling import misnamed, retired
from hybridcalc.errors import MisspeltFlag, printable
from hybridcalc.findings import Finding
from hybridcalc.manifests import Deployment
from hybridcalc.shell import Word


def misnamed_flags(deployment: Deployment, engine: Engine, words: Words, version: str | None) -> list[Located]:
    """Flags under names that the release lacks, which mean what they mean elsewhere."""
    found = list[Located]()
    for error in misnamed(engine, words.kept, version):
        word = next(word for word in words.kept if word.partition("=")[0] == error.flag)
        edit = spelling_edit(error.instead, word) if isinstance(error, MisspeltFlag) else None
        found.append(located_at(refused(error, engine, deployment.image), word.place, deployment, edit=edit))
    return found


def retired_names(deployment: Deployment, engine: Engine, words: Words, version: str | None) -> list[Located]:
    """Flags under names that the engine calls deprecated; of no named release, under any that a later one lacks."""
    found = list[Located]()
    for word in words.kept:
        name, equals, _ = word.partition("=")
        row = retired(name, engine, version)
        if row is not None:
            edit = None if equals else value_edit(word.place, word.source, name, row.new)
            finding = Finding("HC072", "note", row.said, f"write {row.new}")
            found.append(located_at(finding, word.place, deployment, edit=edit))
    return found


def orphaned(deployment: Deployment, flag: Word) -> Located:
    """A line of flags with no backslash before it."""
    line = flag.place.line - 1
    while line > 1 and not flag.source.line(line).strip():
        line -= 1
    why, fix = f"line {line} does not end in a backslash", f"end line {line} in a backslash"
    above = flag.source.line(line)
    if above.lstrip().startswith("#"):
        why, fix = f"the comment on line {line} ends the one before it", "move the comment above the command"
    elif re.search(r"\\[ \t]+\Z", above):
        why, fix = f"blanks follow the backslash of line {line}", f"end line {line} in its backslash"
    elif re.search(r"\s#", above):
        why, fix = (
            f"the comment on line {line} ends it",
            f"take the comment out of line {line}, and end it in a backslash",
        )
    message = f"{printable(flag[:40])} belongs to no command: {why}"
    return located_at(Finding("HC080", "error", message, fix), flag.place, deployment)
