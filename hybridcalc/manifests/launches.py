"""Which engine do these words start? A launcher anywhere in a command, or the arguments of an engine's own image.

    docker run --gpus all -e A=1 lmsysorg/sglang:v0.5 python3 -m sglang.launch_server --tp 8
    -> sglang, A=1, ("--tp", "8")

Words before the launcher are wrappers, or the options of a container runtime whose ``-e`` set the environment. Commands
that only speak of a launcher (``echo``, ``pkill``) start nothing.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from hybridcalc.engines.sglang.command import TABLE as SGLANG
from hybridcalc.engines.vllm.command import TABLE as VLLM
from hybridcalc.manifests.growth import spend
from hybridcalc.manifests.source import AnyWord, Place, Setting, Unknown, Word
from hybridcalc.shell.launch import LAUNCHERS, program_of

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
MOST_OPTIONS = 6
"""Words between a container runtime and its ``run``, at most."""
LAUNCHER = re.compile(
    r"\bsglang\.launch_server\b|\bsglang\s+serve\b|\bvllm\s+serve\b|\bvllm\.entrypoints\b"
    r"|\bdynamo\.(sglang|vllm)\b"
)
"""A text that may start an engine."""
HANDING_ON = frozenset({
    "tmux", "screen", "byobu", "zellij", "ssh", "su", "runuser", "sbatch", "srun", "parallel", "pdsh", "clush", "watch",
    "script", "gcloud", "kubectl", "mosh",
})  # fmt: skip
"""Commands that hand a text on to a shell."""
MOST_BEFORE = 24
"""Words from an interpreter to the module it runs, at most."""
_SAID = re.compile(r"\s*([-*]\s+)?(#|//|>|(echo|printf|say|log\w*|info|warn|die|description|message|name|title)\b)")
"""How a line begins that only speaks of something."""
_VOLUME = re.compile(r"(.+?):(/[^:,]*)(?::[\w,]+)?")
_VERBS = frozenset({"run", "exec", "create"})
_WRAPPED = re.compile(r"(sglang|vllm)", re.IGNORECASE)
_NO_SERVER = re.compile(
    r"router|gateway|bench|test|prof|front|client|eval|check|offline|omni|train|tool", re.IGNORECASE
)
_OWN_IMAGE = re.compile(r"(?:^|/)(?:lmsysorg/sglang|vllm/vllm-openai):v?([0-9]{1,3}(?:\.[0-9]{1,3}){2})(?![0-9.])")
_ASSIGNMENT = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)=(.*)", re.DOTALL)
_SGLANG_NAMES = frozenset(SGLANG.names)
_VLLM_NAMES = frozenset(VLLM.names)
ENGINE_FLAGS = frozenset(name for name in _SGLANG_NAMES | _VLLM_NAMES if name.startswith("--"))
"""Flags of either engine."""


class Found(NamedTuple):
    """A launch: the engine, its words, the environment it starts under, where its first word stands, and the image it
    runs in, where that is known. ``model`` is what is mounted where the engine looks for its model, ``orphan`` a line
    of flags behind it that no backslash joins to it.
    """

    engine: str
    words: tuple[AnyWord, ...]
    env: dict[str, Setting]
    place: Place
    program: tuple[str, ...] = ()
    image: str = ""
    model: Word | None = None
    orphan: Word | None = None


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
        elif word.rpartition("/")[2] in RUNTIMES:
            verb = next((i for i in range(at + 1, min(at + MOST_OPTIONS, len(words))) if words[i] in _VERBS), None)
            inner = _in_container(words, verb + 1, own) if verb is not None else None
            if inner is not None:
                return inner
    return None


def speaks_of_launch(text: str) -> bool:
    """Whether a line of a text looks like a launch: neither a comment nor something that is printed."""
    return LAUNCHER.search(text) is not None and any(
        LAUNCHER.search(line) is not None and _SAID.match(line) is None for line in text.splitlines()
    )


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
    mounts: list[tuple[str, Word]] = []
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
        if name in ("-v", "--volume", "--mount"):
            held = words[at] if equals else words[at + 1] if at + 1 < len(words) else words[at]
            mounts += mounted(value if equals else str(held), held)
        at += 2 if name in RUNTIME_VALUES and not equals else 1
    if at >= len(words):
        return None
    image, rest = words[at], words[at + 1 :]
    for start in range(len(rest)):
        program, arguments = _program_at(rest, start)
        if program:
            model = model_of(arguments, mounts)
            return Found(LAUNCHERS[program], tuple(arguments), env, rest[start].place, program, str(image), model)
    engine = image_engine(image)
    if engine is not None and rest and rest[0].startswith("-"):
        return Found(engine, tuple(rest), env, image.place, image=str(image), model=model_of(rest, mounts))
    return None


def mounted(text: str, word: AnyWord) -> Iterator[tuple[str, Word]]:
    """A mount as the path in the container, and the path that stands there: ``HOST:PATH:ro``, ``source=,target=``."""
    match = _VOLUME.fullmatch(text)
    fields = dict(part.partition("=")[::2] for part in text.split(","))
    host = match[1] if match is not None else fields.get("source") or fields.get("src")
    path = match[2] if match is not None else fields.get("target") or fields.get("dst") or fields.get("destination")
    if host and path and path.startswith("/"):
        yield path.rstrip("/"), Word(host, word.source, word.begin, word.end)


def model_of(words: Sequence[AnyWord], mounts: Sequence[tuple[str, Word]]) -> Word | None:
    """What is mounted where an engine's arguments look for the model."""
    spend(visits=len(words) + len(mounts))
    named = next((str(word) for word in words[:1] if word.startswith("/")), "")
    for at, word in enumerate(words):
        name, equals, value = word.partition("=")
        if name in ("--model", "--model-path"):
            named = value if equals else str(words[at + 1]) if at + 1 < len(words) else ""
    for path, host in mounts:
        if named.rstrip("/") == path or (path and named.startswith(path + "/")):
            said = f"{host.rstrip('/')}/{named[len(path) :].strip('/')}".rstrip("/")
            if "$" not in said.rpartition("/")[2]:
                return Word(
                    said if said.startswith(("/", ".", "~")) else f"./{said}", host.source, host.begin, host.end
                )
    return None


def _setting(word: AnyWord, assigned: re.Match[str]) -> Setting:
    place = word.place
    if isinstance(word, Unknown):
        return Setting((), word.why, place)
    begin = max(word.end - len(assigned[2]), word.begin)
    value = Word(assigned[2], word.source, begin, word.end)
    return Setting((value,))
