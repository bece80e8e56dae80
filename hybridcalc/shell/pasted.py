"""Which one launch does a text make that somebody pasted? As a script is read, and refused where it makes none or more.

export A=1; docker run --gpus all lmsysorg/sglang:v0.5.12 python3 -m sglang.launch_server --tp 8   ->   that launch
"""

import re
from collections.abc import Mapping, Sequence

from hybridcalc.errors import InputError, quoted
from hybridcalc.shell import Setting, Source, Text, Word, allowance, assignment, is_unresolved, words_of
from hybridcalc.shell.evaluate import Shell
from hybridcalc.shell.launch import Launch, Launchers

_JOINED = re.compile(r"(?<=[ \t])[`^][ \t]*\r?\n")
"""How PowerShell and cmd go on with a line."""
_QUOTES = frozenset("\u2018\u2019\u201a\u201b\u201c\u201d\u201e\u201f\u00ab\u00bb\u2032\u2033")
_BLANKS = frozenset("\u00a0\u2007\u2009\u200a\u202f\u3000")
_HYPHENS = frozenset("-\u00ad\u2010\u2011\u2012\u2013\u2014\u2015\u2212")


def read_launch(line: str | Sequence[str], launchers: Launchers) -> Launch:
    """The one launch of a text that somebody pasted, or of an argument list that a shell has split already.

    Commands that start no engine are passed over; a command that begins with a flag is an engine's arguments alone.
    Raises InputError when nothing or more than one thing is launched.
    """
    line = _JOINED.sub("\\\\\n", line) if isinstance(line, str) else line
    source = Source("", line if isinstance(line, str) else " ".join(line))
    with allowance():
        shell = Shell(Text(source, line if isinstance(line, str) else ""), {}, {}, launchers)
        if isinstance(line, str):
            shell.run()
        else:
            shell.command(words_of(line))
    env = shell.variables.exported()
    bare = next((launch for words in shell.idle if (launch := _arguments_alone(words, env)) is not None), None)
    if bare is not None and len(shell.launches) + len(shell.idle) > 1:
        message = f"{quoted(bare.words[0])} starts a command of its own"
        raise InputError(message, fix="end the line before it with a backslash")
    if len(shell.launches) > 1:
        raise InputError(f"{len(shell.launches)} launch commands are given", fix="give one of them")
    if shell.launches:
        return _typed(shell.launches[0])
    if bare is not None:
        return _typed(bare)
    if shell.errors:
        raise shell.errors[0]
    fix = f"begin with {launchers.commands}"
    if not shell.idle:
        raise InputError("there is no launch command", fix=fix)
    if is_unresolved(shell.idle[0][0]):
        raise InputError(f"{quoted(shell.idle[0][0])} is a value the shell decides", fix="give it literally")
    program = str(shell.idle[0][0]).rpartition("/")[2]
    raise InputError(f"{quoted(' '.join(shell.idle[0][:3]))} starts no engine known here", fix=FRONTS.get(program, fix))


FRONTS = {"lms": "LM Studio runs llama.cpp: write llama-server -m FILE.gguf -c TOKENS -np SLOTS as it loads it"}
"""Programs that start an engine of their own with settings that their command lines do not have: what to write."""


def _typed(launch: Launch) -> Launch:
    """The same launch. Raises InputError for a character in it that a word processor or a page has put there."""
    for word in launch.words:
        mark = next((mark for mark in (word[:1], word[-1:]) if mark and mark in _QUOTES), None)
        if mark is not None:
            message = f"{quoted(word, 60)}: {mark} (U+{ord(mark):04X}) is a typographic quote, which no shell takes off"
            raise InputError(message, fix="write ' or \" instead")
        blank = next((char for char in word if char in _BLANKS), None)
        if blank is not None:
            message = f"{quoted(word, 60)}: U+{ord(blank):04X} is a blank that parts no words"
            raise InputError(message, fix="write a plain blank instead")
        name = word.partition("=")[0]
        odd = next((char for char in name if ord(char) > 127), None) if word.startswith("-") else None
        if odd is not None:
            plain = "".join("-" if char in _HYPHENS else char if ord(char) < 128 else "" for char in name)
            message = f"{quoted(name, 60)}: U+{ord(odd):04X} is no character of a flag"
            raise InputError(message, fix=f"write --{plain.lstrip('-')}", flag=str(name))
    return launch


def _arguments_alone(words: Sequence[Word], env: Mapping[str, Setting]) -> Launch | None:
    """A command that is an engine's arguments, variables before them; None for any other."""
    own: dict[str, Setting] = {}
    for at, word in enumerate(words):
        assigned = assignment(word)
        if assigned is None:
            return Launch("", tuple(words[at:]), {**env, **own}, word.place) if word.startswith("-") else None
        own[assigned[0]] = assigned[1]
    return None
