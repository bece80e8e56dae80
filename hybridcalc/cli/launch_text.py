"""What follows ``--``: words of a launch line, a quoted text, the path of a script or deployment file, ``-`` for stdin.

It is read and never run. An error of a script says which file, and on which line it starts an engine. A deployment file
is read as `hybridcalc check` reads it: with the release of its image and with its environment.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hybridcalc.engines import ENGINES
from hybridcalc.errors import InputError, printable, quoted
from hybridcalc.shell.flags import values_after

if TYPE_CHECKING:
    from hybridcalc.engines.engine import Engine
    from hybridcalc.shell.launch import Launch

LARGEST_SCRIPT_BYTES = 2**20
MOST_NAMED = 6
"""Launches of a file that an error names."""


def launch_of(words: list[str]) -> Launch:
    """A launch line: its words, or the one word that is a text, the name of a script or deployment file, or ``-``:
    stdin. A shell may stand before a script. Raises InputError for a file with several launches.
    """
    words = _without_shell(words)
    text = _launch_text(words)
    if isinstance(text, str) and (words == ["-"] or script_of(words) is not None):
        deployed = _deployed(words[0], text)
        if deployed is not None:
            return deployed
    try:
        return _configured(ENGINES.launch(text), script_of(words))
    except InputError as error:
        if script_of(words) is None:
            raise
        error.message = f"{place_in(words[0])}: {error.message}"
        raise


def _deployed(path: str, text: str) -> Launch | None:
    """The launch of a deployment file; None for a script, which is read as a text that somebody pasted, and for a file
    in which nothing is known to start.
    """
    from hybridcalc.manifests.find import format_of, read_file

    found = read_file(path, {}, instead=text.encode())
    if found.source is None or (form := format_of(found.source).name) == "script":
        return None
    if form == "guide":
        from hybridcalc.manifests.guides import is_guide

        if not is_guide(text):
            return None
    for trouble in found.troubles[:1]:
        raise InputError(f"{printable(trouble.path, 60)}: {trouble.message}", fix=trouble.fix)
    if len(found.deployments) > 1:
        names = [f"{each.name or each.engine} in line {each.place.line}" for each in found.deployments]
        shown = printable(", ".join([*names[:MOST_NAMED], *(["..."] if names[MOST_NAMED:] else [])]))
        message = f"{printable(path, 60)} holds {len(names)} launches: {shown}"
        raise InputError(message, fix="give one of them, or the file to `hybridcalc compare`")
    return found.deployments[0].launch if found.deployments else None


def started_by(text: str) -> tuple[str, str | None, Any, tuple[str, ...]]:
    """What a launch line (``--command``) starts: the engine, the model it names, its arguments, of the release of its
    image, and its words; it may stand in a script or on stdin, as for ``plan``.
    """
    launch = launch_of([text])
    engine = launch.engine or ENGINES.usual
    named, args = ENGINES[engine].read(launch.words, launch.variables, unknown=[])
    known = replace(args, engine_version=args.engine_version or ENGINES.release(launch))
    return engine, named or launch.model, known, tuple(launch.words)


def _configured(launch: Launch, script: str | None) -> Launch:
    """With the flags of its ``--config`` file, which lies where a typed line says, or beside its script."""
    named = values_after(launch.words, ("--config",))
    if not named:
        return launch
    from hybridcalc.manifests.find import with_config

    return with_config(launch, script or named[0])


def overruled(engine: Engine, words: Sequence[str], before: int, env: Mapping[str, str]) -> Iterator[str]:
    """What the last words, so many of which stood ``before`` the ``--``, say in place of the launch line's own."""
    table, line = engine.flags.by_spelling, words[: len(words) - before]
    fields = {table[name].field: name for word in words[len(line) :] if (name := word.partition("=")[0]) in table}
    if not fields:
        return
    with contextlib.suppress(InputError):  # a line that says nothing without them
        said, counts = (engine.read(each, env, [])[1].given() for each in (line, words))
        for field, name in fields.items():
            if field in said and said[field] != counts.get(field):
                yield f"{name} before the -- counts, not the {said[field]} of the launch line"


def _without_shell(words: list[str]) -> list[str]:
    """The script alone that a shell is to run (``bash -x ./run.sh``)."""
    from hybridcalc.shell.launch import SCRIPT_OPTION, SHELLS

    if len(words) < 2 or words[0].rpartition("/")[2] not in SHELLS or script_of(words[-1:]) is None:
        return words
    plain = all(word.startswith("-") and SCRIPT_OPTION.fullmatch(word) is None for word in words[1:-1])
    return words[-1:] if plain else words


def script_of(words: Sequence[str]) -> str | None:
    """The file that what follows ``--`` names; None for words, a text or stdin."""
    with contextlib.suppress(OSError, ValueError):
        return words[0] if len(words) == 1 and Path(words[0]).is_file() else None
    return None


def place_in(script: str) -> str:
    """A script and the line of the first launch in it; without a line where it has none."""
    from hybridcalc.manifests.find import read_file

    found, shown = read_file(script, {}).deployments, printable(script, 60)
    return f"{shown}:{found[0].place.line}" if found else shown


def _launch_text(launch: list[str]) -> list[str] | str:
    """The words of a launch line, or the text, script or stdin that a single word stands for."""
    if len(launch) != 1:
        return launch
    if launch[0] == "-":
        return _bounded(sys.stdin.buffer, "stdin")
    if any(letter.isspace() for letter in launch[0]) and not os.path.lexists(launch[0]):
        return launch[0]
    try:
        script = Path(launch[0])
        if script.is_file():
            with script.open("rb") as stream:
                return _bounded(stream, launch[0][:60])
    except (OSError, ValueError) as error:
        raise InputError(f"{quoted(launch[0], 60)} cannot be read: {error.__class__.__name__}") from None
    return launch


def _bounded(stream: Any, where: str) -> str:
    data: bytes = stream.read(LARGEST_SCRIPT_BYTES + 1)
    if len(data) > LARGEST_SCRIPT_BYTES or b"\0" in data:
        raise InputError(f"{where} is no launch script", fix="give a text of at most 1 MiB")
    return data.decode("utf-8", errors="replace")
