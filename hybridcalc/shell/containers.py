"""What does a ``docker run`` say of its container? The image and its arguments, environment, mounts and GPUs.

    run --gpus all -e A=1 -v /data:/models lmsysorg/sglang:v0.5 serve --tp 8
    -> the image, ("serve", "--tp", "8"), A=1, /models is /data, all GPUs

What stands in an array that nobody knows is taken for options.
"""

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from hybridcalc.shell.source import Place, Setting, Word, assignment

RUNTIME_VALUES = frozenset({
    "-e", "--env", "-v", "--volume", "-p", "--publish", "--name", "--gpus", "--ipc", "--network", "--net", "--shm-size",
    "--mount", "-w", "--workdir", "-u", "--user", "--device", "--ulimit", "--entrypoint", "--env-file", "--restart",
    "--cap-add", "--security-opt", "--group-add", "--runtime", "-h", "--hostname", "-m", "--memory", "--cpus", "--pull",
    "--label", "-l", "--log-opt", "--log-driver", "--platform", "--health-cmd", "--tmpfs", "--add-host",
})  # fmt: skip
_VOLUME = re.compile(r"(.+?):(/[^:,]*)(?::[\w,]+)?")
_REFERENCE = re.compile(r"\$\{[^{}]*\}|\$\w+")


class ByVariables(NamedTuple):
    """An engine that an image starts by variables alone: its arguments, where the first of these stands, its model."""

    engine: str
    words: tuple[Word, ...]
    place: Place
    model: Word | None


def of_variables(
    engines: Iterable[tuple[str, str]],
    env: Mapping[str, Setting],
    image: str,
    flags: Callable[[str], Collection[str]],
    read: Callable[[str], Collection[str]],
) -> ByVariables | None:
    """What an image starts that makes an engine's flags of variables (``NIM_MAX_MODEL_LEN``), or whose engine reads
    them (``LLAMA_ARG_CTX_SIZE``). ``engines``: those of the image, with what the names of their variables begin with.
    """
    for engine, prefix in engines:
        own = [env[name] for name in env if prefix and name in read(engine)]
        words: list[Word] = []
        model: Word | None = None
        for name, setting in env.items():
            flag = "--" + name.removeprefix(prefix).lower().replace("_", "-")
            if not name.startswith(prefix) or not setting.words:
                continue
            if flag in ("--model-name", "--model"):
                model = setting.words[0]
            elif flag in flags(engine) and setting not in own:
                words += (setting.words[0].instead(flag), setting.words[0])
        if own and own[0].words:
            return ByVariables(engine, (), own[0].words[0].place, model)
        if words:
            model = model or words[0].instead(image.rpartition("/")[2].partition(":")[0])
            return ByVariables(engine, tuple(words), words[0].place, model)
    return None


class Container(NamedTuple):
    """An image with the words behind it (its entrypoint first, where an option names one), what is mounted at which
    path, and its GPUs, as typed.
    """

    image: Word
    words: tuple[Word, ...]
    mounts: tuple[tuple[str, Word], ...]
    gpus: Word | None


def container(words: Sequence[Word], at: int, env: dict[str, Setting]) -> Container | None:
    """The container that a runtime starts whose options begin at a word, and what they set in its environment; None
    where no image follows them.
    """
    mounts: list[tuple[str, Word]] = []
    gpus = entrypoint = None
    while at < len(words) and (words[at].startswith("-") or words[at].why):
        if words[at].why and not words[at].startswith("-"):
            if "/" in _REFERENCE.sub("", words[at]):
                break  # an image of which a part is not known
            at += 1  # options from an array nobody knows
            continue
        name, equals, value = words[at].partition("=")
        held = words[at] if equals else words[at + 1] if at + 1 < len(words) else words[at]
        text = value if equals else str(held)
        own = held.ending(len(text)) if equals else held
        if name in ("-e", "--env") and (assigned := assignment(own)) is not None:
            env[assigned[0]] = assigned[1]
        if name == "--gpus":
            gpus = held.instead(text) if equals and not held.why else held
        if name == "--entrypoint":
            entrypoint = held if held.why else own
        if name in ("-v", "--volume", "--mount"):
            mounts += mounted(text, held)
        at += 2 if name in RUNTIME_VALUES and not equals else 1
    if at >= len(words):
        return None
    behind = words[at + 1 :]
    return Container(words[at], (entrypoint, *behind) if entrypoint else tuple(behind), tuple(mounts), gpus)


def mounted(text: str, word: Word) -> Iterator[tuple[str, Word]]:
    """A mount as the path in the container, and the path that stands there: ``HOST:PATH:ro``, ``source=,target=``."""
    match = _VOLUME.fullmatch(text)
    fields = dict(part.partition("=")[::2] for part in text.split(","))
    host = match[1] if match is not None else fields.get("source") or fields.get("src")
    path = match[2] if match is not None else fields.get("target") or fields.get("dst") or fields.get("destination")
    if host and path and path.startswith("/"):
        yield path.rstrip("/"), word.instead(host)


def found_at(path: str, mounts: Sequence[tuple[str, Word]]) -> Word | None:
    """What stands at a path of a container by one of its mounts; None for none, and where its name is not known."""
    for inside, host in mounts:
        if path.rstrip("/") == inside or (inside and path.startswith(inside + "/")):
            held = f"{host.rstrip('/')}/{path[len(inside) :].strip('/')}".rstrip("/")
            if "$" not in held.rpartition("/")[2]:
                return host.instead(held if held.startswith(("/", ".", "~")) else f"./{held}")
    return None
