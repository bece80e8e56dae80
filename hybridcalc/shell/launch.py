"""Which engine does a pasted launch command start, with which words, under which environment?

    export A=1; numactl -N 0 python3 -u -m sglang.launch_server --tp 8 2>&1 | tee log
    -> env {"A": "1"}, program ("python", "-m", "sglang.launch_server"), words ("--tp", "8")

Read as a POSIX shell would split it, and only read: nothing runs. ``$NAME`` becomes the value that the text itself
gives NAME; any other word the shell would decide stays `Unresolved`, for the engine's side to refuse where it matters.
Knows no engine but the words that start one (`LAUNCHERS`). Leaves out what runs in another shell or machine
(``bash -c``, ``docker run``), functions, arrays, conditions and here-documents.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from hybridcalc.errors import InputError, quoted
from hybridcalc.shell.parse import Operator, Unresolved, is_unresolved, split_command

__all__ = ["LAUNCHERS", "WRAPPERS", "Launch", "program_of", "read_launch", "split_command"]

LAUNCHERS: dict[tuple[str, ...], str] = {
    ("python", "-m", "sglang.launch_server"): "sglang",
    ("sglang", "serve"): "sglang",
    ("python", "-m", "dynamo.sglang"): "sglang",
    ("python", "-m", "vllm.entrypoints.openai.api_server"): "vllm",
    ("vllm", "serve"): "vllm",
    ("python", "-m", "dynamo.vllm"): "vllm",
}
"""First words of a command -> the engine they start. An interpreter of any version and path counts as ``python``."""

WRAPPERS: dict[str, frozenset[str]] = {
    "$": frozenset(),  # a prompt that was copied along
    "command": frozenset(),
    "env": frozenset({"-u", "--unset", "-C", "--chdir"}),
    "exec": frozenset({"-a"}),
    "export": frozenset(),
    "nice": frozenset({"-n", "--adjustment"}),
    "nohup": frozenset(),
    "numactl": frozenset({
        "-C", "-N", "-i", "-m", "-p", "-P", "-w", "--cpunodebind", "--interleave", "--membind", "--physcpubind",
        "--preferred", "--preferred-many", "--weighted-interleave",
    }),
    "setsid": frozenset(),
    "stdbuf": frozenset({"-i", "-o", "-e", "--input", "--output", "--error"}),
    "sudo": frozenset({
        "-C", "-D", "-R", "-T", "-U", "-g", "-h", "-p", "-r", "-t", "-u", "--chdir", "--group", "--user",
    }),
    "time": frozenset({"-f", "-o", "--format", "--output"}),
}  # fmt: skip
"""Words that may stand before a launcher -> those of their options that take the next word as value."""

LONGEST_WORD = 4096
"""Characters a word may grow to by the values of its variables."""

_ASSIGNMENT = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)=")
_REFERENCE = re.compile(r"\$(?:([A-Za-z_][A-Za-z0-9_]*)|\{([A-Za-z_][A-Za-z0-9_]*)\})")
_PYTHON = re.compile(r"python[0-9]*(?:\.[0-9]+)*")
_PYTHON_MODULE = re.compile(r"-[bBdEiIOPqRsSuvx]*m(.*)", re.DOTALL)


class Launch(NamedTuple):
    """A launch command: the environment it sets, the words that start the engine (a key of LAUNCHERS; none where the
    command is arguments alone), and the words the engine gets.
    """

    env: dict[str, str]
    program: tuple[str, ...]
    words: tuple[str, ...]

    @property
    def engine(self) -> str | None:
        """The engine's name; None where the command is arguments alone."""
        return LAUNCHERS.get(self.program)


class _Command(NamedTuple):
    """One command of the text: what it sets, the variables from before that it hides (None: all of them), whether
    ``export`` makes it last, and the words that follow.
    """

    env: dict[str, str]
    cleared: set[str] | None
    exported: bool
    rest: list[str]


def read_launch(words: Sequence[str]) -> Launch:
    """The one launch among the commands of ``words``, which come from `split_command` or are an argument list.

    ``export`` reaches the commands after it, ``VAR=x`` its own command. Commands that start no engine are passed over.
    Raises InputError when nothing or more than one thing is launched. Words and values may be `Unresolved`.
    """
    exported: dict[str, str] = {}
    known: dict[str, str] = {}
    launches: list[Launch] = []
    others: list[list[str]] = []
    for command in _commands(words):
        env, cleared, exports, rest = _unwrap([_substituted(word, known) for word in command])
        program, arguments = program_of(rest)
        if program or (rest and rest[0].startswith("-")):
            kept = {} if launches or cleared is None else {k: v for k, v in exported.items() if k not in cleared}
            launches.append(Launch(kept | env, program, tuple(arguments)))
        elif exports or not rest:
            known |= {name: value for name, value in env.items() if not is_unresolved(value)}
            exported |= env if exports else {name: env[name] for name in env if name in exported}
        else:
            others.append(rest)
    return _only(launches, others)


def _only(launches: list[Launch], others: list[list[str]]) -> Launch:
    bare = [launch for launch in launches if not launch.program]
    if bare and len(launches) + len(others) > 1:
        raise InputError(
            f"{quoted(bare[0].words[0])} starts a command of its own", fix="end the line before it with a backslash"
        )
    if len(launches) > 1:
        raise InputError(f"{len(launches)} launch commands are given", fix="give one of them")
    if launches:
        return launches[0]
    fix = "begin with " + ", ".join(" ".join(program) for program in LAUNCHERS)
    if not others:
        raise InputError("there is no launch command", fix=fix)
    if is_unresolved(others[0][0]):
        raise InputError(f"{quoted(others[0][0])} is a value the shell decides", fix="give it literally")
    raise InputError(f"{quoted(' '.join(others[0][:3]))} starts no engine known here", fix=fix)


def _commands(words: Sequence[str]) -> Iterator[list[str]]:
    """The commands of a text that are not empty, redirections left out."""
    command: list[str] = []
    redirected = False
    for word in words:
        if isinstance(word, Operator):
            redirected = "<" in word or ">" in word
            if command and not redirected:
                yield command
                command = []
        elif redirected:
            redirected = False
        else:
            command.append(word)
    if command:
        yield command


def _unwrap(command: list[str]) -> _Command:
    """Take assignments and wrappers off the front of a command."""
    env: dict[str, str] = {}
    cleared: set[str] | None = set()
    exported = False
    at = 0
    while at < len(command):
        word = command[at]
        at += 1
        if assignment := _ASSIGNMENT.match(word):
            value = word[assignment.end() :]
            env[assignment[1]] = Unresolved(value) if is_unresolved(word) else str(value)
            continue
        name = word.rpartition("/")[2]
        if name not in WRAPPERS:
            at -= 1
            break
        exported = exported or name == "export"
        while at < len(command) and command[at].startswith("-"):
            option, equals, value = command[at].partition("=")
            at += 1
            if option in WRAPPERS[name] and not equals:
                value, at = "".join(command[at : at + 1]), at + 1
            if name == "env" and option in ("-i", "-", "--ignore-environment"):
                env, cleared = {}, None
            elif name == "env" and option in ("-u", "--unset"):
                env.pop(value, None)
                if cleared is not None:
                    cleared.add(value)
    return _Command(env, cleared, exported, command[at:])


def program_of(words: list[str]) -> tuple[tuple[str, ...], list[str]]:
    """The launcher that ``words`` begin with and the words after it; an empty launcher where they begin with none."""
    head, rest = [word.rpartition("/")[2] for word in words[:1]] + words[1:], words
    if words and _PYTHON.fullmatch(head[0]):
        module, rest = _python_module(words[1:])
        head = ["python", "-m", module]
    for program in LAUNCHERS:
        if tuple(head[: len(program)]) == program:
            return program, rest if head[0] == "python" else rest[len(program) :]
    return (), words


def _python_module(words: list[str]) -> tuple[str, list[str]]:
    """The module an interpreter runs and the module's own words; an empty name where it runs none."""
    at = 0
    while at < len(words) and words[at].startswith("-"):
        module = _PYTHON_MODULE.fullmatch(words[at])
        at += 1
        if module is not None:
            return (module[1], words[at:]) if module[1] else ("".join(words[at : at + 1]), words[at + 1 :])
        at += words[at - 1] in ("-X", "-W")
    return "", words


def _substituted(word: str, known: Mapping[str, str]) -> str:
    """A word with the values that the text gave its variables; as it was where it needs anything else expanded."""
    if isinstance(word, Operator) or not is_unresolved(word):
        return word
    names = [match[1] or match[2] for match in _REFERENCE.finditer(word)]
    if not names or any(name not in known for name in names):
        return word
    text = _REFERENCE.sub(lambda match: known[match[1] or match[2]], word)
    kept = len(text) > LONGEST_WORD or any(letter.isspace() or letter in "$`*?[{~" for letter in text)
    return word if kept else text
