"""What a shell offers for the word under the cursor, without loading what a command needs.

Scripts of `hybridcalc --install-completion` ask through the environment, as typer has it. The names come from
completion.json, which tools/compile_completion.py writes from the commands, the engines' flags and the presets; so an
answer takes less time than importing typer does. Shells that are not answered here are left to typer.
"""

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any

from hybridcalc.architecture.presets import package_file


def answer() -> int | None:
    """Answer the shell on stdout: the exit code. None where this is no question, or of another shell."""
    asked = os.environ.get("_HYBRIDCALC_COMPLETE", "")
    if asked == "complete_bash":
        line = os.environ.get("COMP_WORDS", "")
        words = line.split("\n") if "\n" in line else line.split(" ")  # the first where the script sets IFS
        at = os.environ.get("COMP_CWORD", "")
        place = int(at) if at.isascii() and at.isdecimal() and 0 < len(at) < 7 else 0
        # bash parts a word at its "=": as `--flag value`
        before = [word for word in words[1:place] if word != "="]
        typed = words[place] if 0 < place < len(words) and words[place] != "=" else ""
        print("\n".join(offered(before, typed)))
        return 0
    if asked not in ("complete_zsh", "complete_fish"):
        return None
    line = os.environ.get("_TYPER_COMPLETE_ARGS", "")
    words = line.split()[1:]
    typed = words.pop() if words and not line.endswith(" ") else ""
    found = offered(words, typed)
    if asked == "complete_zsh":
        quoted = "\n".join('"' + name.replace(":", r"\\:") + '"' for name in found)
        print(f"_arguments '*: :(({quoted}))'" if found else "_files")
        return 0
    if os.environ.get("_TYPER_COMPLETE_FISH_ACTION") == "is-args":
        return 0 if found else 1
    print("\n".join(found))
    return 0


def offered(before: Sequence[str], typed: str) -> list[str]:
    """What may stand where ``typed`` was begun, after the words ``before`` it; nothing where only files fit."""
    known: dict[str, Any] = json.loads(package_file("cli/completion.json"))
    node, words = known["root"], list(before)
    while words and words[0] in node.get("commands", ()):
        node = node["commands"][words.pop(0)]
    options: dict[str, Any] = dict(node["options"])
    launched = "--" in words
    if node.get("engine"):
        flags = known["engines"][_engine(words, known)]
        options = flags if launched else flags | options
    name, equals, value = typed.partition("=")
    if equals and name in options:
        return [f"{name}={each}" for each in _named(value, options[name], known)]
    awaited: Any = options.get(words[-1], False) if words else False
    if awaited is not False:
        return _named(typed, awaited, known)
    if words and words[-1] == "--":
        return _beginning(typed, known["programs"])
    if typed.startswith("-"):
        return _beginning(typed, options)
    if "commands" in node:
        return _beginning(typed, node["commands"])
    lists, may_be = known["lists"], node.get("words")
    if may_be == "models" and set(words) & {*lists["models"], *lists["ids"]}:
        return []
    return _named(typed, may_be, known)


def _engine(words: Sequence[str], known: Mapping[str, Any]) -> str:
    """The engine whose flags are typed: that of the launch line, that of --engine, or the usual one."""
    for word, value in pairwise((*words, "")):
        if word == "--engine" and value in known["engines"]:
            return value
        if word in known["programs"]:
            return str(known["programs"][word])
    return str(known["usual"])


def _named(typed: str, names: str | list[str] | None, known: Mapping[str, Any]) -> list[str]:
    """Names that begin as ``typed``: of a list, of the one that is named, or none where any may be written; where no
    short name of a model begins so, the ids.
    """
    lists = known["lists"]
    found = _beginning(typed, lists[names] if isinstance(names, str) else names or [])
    return found or (_beginning(typed, lists["ids"]) if names == "models" and typed[1:] else [])


def _beginning(typed: str, names: Iterable[str]) -> list[str]:
    """Names that begin as ``typed``; behind a comma, or a count as in 8xh200, the name that begins there."""
    names = list(names)
    found = [name for name in names if name.startswith(typed)]
    if found or not names:
        return found
    at = typed.rfind(",") + 1
    count, times, _ = typed[at:].partition("x")
    at += len(count) + 1 if times and count.isdecimal() else 0
    return [typed[:at] + name for name in names if at and name.startswith(typed[at:])]
