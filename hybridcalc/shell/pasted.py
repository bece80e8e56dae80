"""Which one launch does a text make that somebody pasted? As a script is read, and refused where it makes none or more.

export A=1; docker run --gpus all lmsysorg/sglang:v0.5.12 python3 -m sglang.launch_server --tp 8   ->   that launch
"""

from collections.abc import Mapping, Sequence

from hybridcalc.errors import InputError, quoted
from hybridcalc.shell import Setting, Source, Text, Word, allowance, assignment, is_unresolved, words_of
from hybridcalc.shell.evaluate import Shell
from hybridcalc.shell.launch import Launch, Launchers


def read_launch(line: str | Sequence[str], launchers: Launchers) -> Launch:
    """The one launch of a text that somebody pasted, or of an argument list that a shell has split already.

    Commands that start no engine are passed over; a command that begins with a flag is an engine's arguments alone.
    Raises InputError when nothing or more than one thing is launched.
    """
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
        return shell.launches[0]
    if bare is not None:
        return bare
    if shell.errors:
        raise shell.errors[0]
    fix = f"begin with {launchers.commands}"
    if not shell.idle:
        raise InputError("there is no launch command", fix=fix)
    if is_unresolved(shell.idle[0][0]):
        raise InputError(f"{quoted(shell.idle[0][0])} is a value the shell decides", fix="give it literally")
    raise InputError(f"{quoted(' '.join(shell.idle[0][:3]))} starts no engine known here", fix=fix)


def _arguments_alone(words: Sequence[Word], env: Mapping[str, Setting]) -> Launch | None:
    """A command that is an engine's arguments, variables before them; None for any other."""
    own: dict[str, Setting] = {}
    for at, word in enumerate(words):
        assigned = assignment(word)
        if assigned is None:
            return Launch("", tuple(words[at:]), {**env, **own}, word.place) if word.startswith("-") else None
        own[assigned[0]] = assigned[1]
    return None
