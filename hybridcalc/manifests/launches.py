"""Which engine do these words start? A launcher anywhere in a command, or the arguments of an engine's own image.

    docker run --gpus all -e A=1 lmsysorg/sglang:v0.5 python3 -m sglang.launch_server --tp 8
    -> sglang, A=1, ("--tp", "8")

Words before the launcher are wrappers, or the options of a container runtime whose ``-e`` set the environment. Commands
that only speak of a launcher (``echo``, ``pkill``) start nothing.
"""

import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from hybridcalc.commandline import LAUNCHERS, program_of
from hybridcalc.engines.sglang.command import TABLE as SGLANG
from hybridcalc.engines.vllm.command import TABLE as VLLM
from hybridcalc.manifests.growth import spend
from hybridcalc.manifests.source import AnyWord, Place, Setting, Unknown, Word

IMAGES = (
    (re.compile(r"(^|[/.-])sglang($|[:@/-])|sglang-runtime"), "sglang"),
    (re.compile(r"vllm-openai|vllm-runtime|(^|/)vllm(-[a-z-]+)?($|[:@/])|lmcache/vllm|llm-d(-cuda)?($|[:@])"), "vllm"),
)  # fmt: skip
"""Names of images whose entrypoint is an engine, or into which an engine's arguments go."""
SILENT = frozenset({
    "alias", "awk", "cat", "curl", "echo", "egrep", "fgrep", "git", "grep", "kill", "less", "ls", "man", "pgrep", "pip",
    "pip3", "pkill", "printf", "ps", "rm", "sed", "tail", "tee", "test", "trap", "type", "which", "[", "[[",
})  # fmt: skip
"""Commands whose words are no launch."""
RUNTIMES = frozenset({"docker", "podman", "nerdctl"})
RUNTIME_VALUES = frozenset({
    "-e", "--env", "-v", "--volume", "-p", "--publish", "--name", "--gpus", "--ipc", "--network", "--net", "--shm-size",
    "--mount", "-w", "--workdir", "-u", "--user", "--device", "--ulimit", "--entrypoint", "--env-file", "--restart",
    "--cap-add", "--security-opt", "--group-add", "--runtime", "-h", "--hostname", "-m", "--memory", "--cpus", "--pull",
    "--label", "-l", "--log-opt", "--log-driver", "--platform", "--health-cmd", "--tmpfs", "--add-host",
})  # fmt: skip
MOST_BEFORE = 24
"""Words from an interpreter to the module it runs, at most."""
_WRAPPED = re.compile(r"(sglang|vllm)", re.IGNORECASE)
_NO_SERVER = re.compile(
    r"router|gateway|bench|test|prof|front|client|eval|check|offline|omni|train|tool", re.IGNORECASE
)
_OWN_IMAGE = re.compile(r"(?:^|/)(?:lmsysorg/sglang|vllm/vllm-openai):v?([0-9]{1,3}(?:\.[0-9]{1,3}){2})(?![0-9.])")
_ASSIGNMENT = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)=(.*)", re.DOTALL)
_SGLANG_NAMES = frozenset(SGLANG.names)
_VLLM_NAMES = frozenset(VLLM.names)


class Found(NamedTuple):
    """A launch: the engine, its words, the environment it starts under, where its first word stands, and the image it
    runs in, where that is known.
    """

    engine: str
    words: tuple[AnyWord, ...]
    env: dict[str, Setting]
    place: Place
    program: tuple[str, ...] = ()
    image: str = ""


def find_launch(words: Sequence[AnyWord], env: Mapping[str, Setting]) -> Found | None:
    """The launch a command makes; None where it starts no engine."""
    if not words or (not isinstance(words[0], Unknown) and words[0].rpartition("/")[2] in SILENT):
        return None
    spend(visits=len(env))
    own = dict(env)
    for at, word in enumerate(words):
        program, arguments = _program_at(words, at)
        if program:
            return Found(LAUNCHERS[program], tuple(arguments), own, words[at].place, program)
        if isinstance(word, Unknown):
            continue
        assigned = _ASSIGNMENT.fullmatch(word)
        if assigned is not None:
            own[assigned[1]] = _setting(word, assigned)
        elif word in RUNTIMES and at + 1 < len(words) and words[at + 1] in ("run", "exec", "create"):
            inner = _in_container(words, at + 2, own)
            if inner is not None:
                return inner
    return None


def image_engine(image: str) -> str | None:
    """The engine in an image, by its name."""
    return next((engine for pattern, engine in IMAGES if pattern.search(image.lower())), None)


def image_version(image: str) -> str | None:
    """The engine's version in the tag of its own image; other images count their own versions."""
    match = _OWN_IMAGE.search(image.lower())
    return match[1] if match is not None else None


def bare_engine(words: Sequence[AnyWord], image: str = "") -> str | None:
    """The engine that arguments alone are for: by the image, else by flags that only one engine has."""
    known = image_engine(image)
    if known is not None:
        return known
    names = {word.partition("=")[0] for word in words if word.startswith("--")}
    sglang, vllm = len(names & (_SGLANG_NAMES - _VLLM_NAMES)), len(names & (_VLLM_NAMES - _SGLANG_NAMES))
    if "--model-path" in names or (sglang >= 2 and sglang > vllm):
        return "sglang"
    return "vllm" if vllm and ("--model" in names or vllm >= 2) else None


def _program_at(words: Sequence[AnyWord], at: int) -> tuple[tuple[str, ...], Sequence[AnyWord]]:
    head = words[at].rpartition("/")[2]
    if not head.startswith(("python", "sglang", "vllm")):
        return (), ()
    if not head.startswith("python") and words[at + 1 : at + 2] != ["serve"] and words[at + 1 : at + 2] != ("serve",):
        return (), ()
    window: list[str] = list(words[at : at + MOST_BEFORE])
    program, rest = program_of(window)
    if program or "-m" not in window:
        return program, words[at + len(window) - len(rest) :]
    module = window.index("-m") + 1
    return _own_module(words, at + module) if module < len(window) else ((), ())


def _own_module(words: Sequence[AnyWord], at: int) -> tuple[tuple[str, ...], Sequence[AnyWord]]:
    """The engine that a module of somebody's own wraps: its name has the engine's in it, and it is given a model."""
    name, rest = words[at], words[at + 1 :]
    named = _WRAPPED.search(name)
    if named is None or _NO_SERVER.search(name):
        return (), ()
    if rest and rest[0] == "serve":
        rest = rest[1:]
    elif not any(word.partition("=")[0] in ("--model-path", "--model") for word in rest):
        return (), ()
    engine = named[1].lower()
    return ("sglang", "serve") if engine == "sglang" else ("vllm", "serve"), rest


def _in_container(words: Sequence[AnyWord], at: int, env: dict[str, Setting]) -> Found | None:
    """What a ``docker run`` starts: its options up to the image are read, then the arguments of the image."""
    while at < len(words) and (words[at].startswith("-") or isinstance(words[at], Unknown)):
        if isinstance(words[at], Unknown) and not words[at].startswith("-"):
            at += 1  # options from an array nobody knows
            continue
        name, equals, value = words[at].partition("=")
        if name in ("-e", "--env"):
            pair = words[at] if equals else words[at + 1] if at + 1 < len(words) else words[at]
            text = value if equals else str(pair)
            assigned = _ASSIGNMENT.fullmatch(text)
            if assigned is not None:
                env[assigned[1]] = _setting(pair, assigned)
        at += 2 if name in RUNTIME_VALUES and not equals else 1
    if at >= len(words):
        return None
    image, rest = words[at], words[at + 1 :]
    for start in range(len(rest)):
        program, arguments = _program_at(rest, start)
        if program:
            return Found(LAUNCHERS[program], tuple(arguments), env, rest[start].place, program, str(image))
    engine = image_engine(image)
    if engine is not None and rest and rest[0].startswith("-"):
        return Found(engine, tuple(rest), env, image.place, image=str(image))
    return None


def _setting(word: AnyWord, assigned: re.Match[str]) -> Setting:
    place = word.place
    if isinstance(word, Unknown):
        return Setting((), word.why, place)
    begin = max(word.end - len(assigned[2]), word.begin)
    value = Word(assigned[2], word.source, begin, word.end)
    return Setting((value,))
