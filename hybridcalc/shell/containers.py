"""What do the words around a launch say of where it runs? The image, environment, mounts, GPUs, an installed release.

    run --gpus all -e A=1 -v /data:/models lmsysorg/sglang:v0.5 serve --tp 8
    -> the image, ("serve", "--tp", "8"), A=1, /models is /data, all GPUs

What stands in an array that nobody knows is taken for options. ``pip install vllm==0.24.0`` and ``uvx vllm@0.24.0`` say
the release of what runs behind them.
"""

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from hybridcalc.shell import VISIBLE, Place, Setting, Word, assignment, spend

RUNTIME_VALUES = frozenset({
    "--add-host", "--annotation", "--arch", "--attach", "--authfile", "--blkio-weight", "--blkio-weight-device",
    "--cap-add", "--cap-drop", "--cgroup-conf", "--cgroup-parent", "--cgroupns", "--cgroups", "--cidfile",
    "--conmon-pidfile", "--cpu-period", "--cpu-quota", "--cpu-rt-period", "--cpu-rt-runtime", "--cpu-shares",
    "--cpus", "--cpuset-cpus", "--cpuset-mems", "--creds", "--detach-keys", "--device", "--device-cgroup-rule",
    "--device-read-bps", "--device-read-iops", "--device-write-bps", "--device-write-iops", "--dns", "--dns-option",
    "--dns-search", "--domainname", "--entrypoint", "--env", "--env-file", "--expose", "--gidmap", "--gpus",
    "--group-add", "--health-cmd", "--health-interval", "--health-retries", "--health-start-interval",
    "--health-start-period", "--health-timeout", "--hooks-dir", "--hostname", "--image-volume", "--init-path", "--ip",
    "--ip6", "--ipc", "--isolation", "--kernel-memory", "--label", "--label-file", "--link", "--link-local-ip",
    "--log-driver", "--log-level", "--log-opt", "--mac-address", "--memory", "--memory-reservation", "--memory-swap",
    "--memory-swappiness", "--mount", "--name", "--net", "--network", "--network-alias", "--oom-score-adj", "--os",
    "--personality", "--pid", "--pidfile", "--pids-limit", "--platform", "--pod", "--preserve-fds", "--publish",
    "--pull", "--requires", "--restart", "--runtime", "--sdnotify", "--seccomp-policy", "--secret", "--security-opt",
    "--shm-size", "--stop-signal", "--stop-timeout", "--storage-opt", "--subgidname", "--subuidname", "--sysctl",
    "--systemd", "--tmpfs", "--uidmap", "--ulimit", "--umask", "--unsetenv", "--user", "--userns", "--uts",
    "--variant", "--volume", "--volume-driver", "--volumes-from", "--workdir", "-a", "-c", "-e", "-h", "-l", "-m",
    "-p", "-u", "-v", "-w",
})  # fmt: skip
"""Options of ``docker run``, ``podman run`` and their like that take the next word as value."""
APPTAINER_VALUES = frozenset({
    "--env", "--env-file", "-B", "--bind", "-H", "--home", "--pwd", "--cwd", "-W", "--workdir", "--mount", "-o",
    "--overlay", "-S", "--scratch", "--network", "--app", "--cpus", "--memory",
})  # fmt: skip
APPTAINER = frozenset({"apptainer", "singularity"})
MOST_OPTIONS = 6
"""Words between a container runtime and its ``run``, at most."""
CDI = "nvidia.com/gpu="
"""How a container's device names a GPU."""
_VERBS = frozenset({"run", "exec", "create"})
_OTHERS = frozenset({
    "manifest", "buildx", "imagetools", "network", "volume", "context", "secret", "config", "plugin", "secrets", "pod",
})  # fmt: skip
"""What a runtime creates beside containers."""
_IMAGE_NAME = re.compile(r"\$\{?\w*(?:IMAGE|IMG)\w*\}?", re.IGNORECASE)
"""A variable that holds an image, by its name."""
_ENV_VALUES = frozenset({"-u", "--unset", "-C", "--chdir"})
"""Options of ``env`` that take the next word as value."""
LONGEST_PIN = 200
LONGEST_GPUS = 1000
_PIN = re.compile(r"(?:--[a-z-]+=)?([a-z][a-z0-9._-]*)(?:\[[^\]]*\])?(?:===?|@)v?([0-9]+(?:\.[0-9]+){1,2})(?![0-9]).*")
"""A package of one release, as Python's installers take it."""
_INSTALLING = frozenset({"install", "add", "sync"})
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


_SCRIPT = re.compile(r"-[a-z]*c")
"""What a shell has before a script."""
_GPUS = re.compile(r"(?:count=)?([0-9]{1,3})|device=([\w.:-]+(?:,[\w.:-]+)*)(?:,capabilities=.*)?")
_IDS = re.compile(r"(?:[0-9]{1,3}|(?:GPU|MIG)-[\w/-]+)(?:,(?:[0-9]{1,3}|(?:GPU|MIG)-[\w/-]+))*")


class Visible(NamedTuple):
    """How many GPUs a launch sees, and where that is said."""

    gpus: int
    place: Place


def visible(gpus: Word | None, env: Mapping[str, Setting]) -> Visible | None:
    """The GPUs of ``docker run --gpus`` (``2``, ``count=2``, ``"device=0,1"``; ``all`` says nothing), or the fewest
    that a variable names: ``CUDA_VISIBLE_DEVICES=0,1``.
    """
    found: list[Visible] = []
    if gpus is not None and not gpus.why and len(gpus) <= LONGEST_GPUS:
        match = _GPUS.fullmatch(gpus.replace('"', "").replace("'", ""))
        if match is not None:
            found.append(Visible(int(match[1]) if match[1] else match[2].count(",") + 1, gpus.place))
    for name in VISIBLE & env.keys():
        setting = env[name]
        text = setting.text or ""
        if len(text) <= LONGEST_GPUS and _IDS.fullmatch(text) is not None:
            found.append(Visible(text.count(",") + 1, setting.place or setting.words[0].place))
    return min(found, default=None)


class Container(NamedTuple):
    """An image with the words behind it (its entrypoint first, where an option names one), what is mounted at which
    path, and its GPUs, as typed.
    """

    image: Word
    words: tuple[Word, ...]
    mounts: tuple[tuple[str, Word], ...]
    gpus: Word | None


def container(
    words: Sequence[Word],
    at: int,
    env: dict[str, Setting],
    runtime: str,
    starts: Callable[[int], bool] = lambda _: False,
) -> Container | None:
    """The container that a ``runtime`` starts whose words begin there, and what they set in its environment; None where
    no image follows them. ``starts``: whether a program begins at a word, before which an image stands.
    """
    verb = next((i for i in range(at, min(at + MOST_OPTIONS - 1, len(words))) if words[i] in _VERBS), None)
    if verb is None or not _OTHERS.isdisjoint(words[at:verb]):
        return None
    at = verb + 1
    taking = APPTAINER_VALUES if runtime in APPTAINER else RUNTIME_VALUES
    mounts: list[tuple[str, Word]] = []
    gpus = entrypoint = None
    while at < len(words) and (words[at].startswith("-") or words[at].why):
        if words[at].why and not words[at].startswith("-"):
            follows = at + 1 < len(words)
            run = follows and (starts(at + 1) or (entrypoint is not None and _SCRIPT.fullmatch(words[at + 1])))
            path = not words[at].startswith(("$(", "`")) and "/" in _REFERENCE.sub("", words[at])
            if run or path or _IMAGE_NAME.fullmatch(words[at]):
                break  # an image of which a part is not known, or nothing
            at += 1  # options from an array nobody knows
            continue
        name, equals, value = words[at].partition("=")
        held = words[at] if equals else words[at + 1] if at + 1 < len(words) else words[at]
        text = value if equals else str(held)
        own = held.ending(len(text)) if equals else held
        if name in ("-e", "--env") and name in taking and (assigned := assignment(own)) is not None:
            env[assigned[0]] = assigned[1]
        if name == "--gpus":
            gpus = held.instead(text) if equals and not held.why else held
        if name == "--device" and text.startswith(CDI) and text != f"{CDI}all":
            ids = [text.removeprefix(CDI), *(gpus.partition("=")[2:] if gpus is not None else ())]
            gpus = held.instead(f"device={','.join(ids)}")
        if name == "--entrypoint":
            entrypoint = held if held.why else own
        if name in ("-v", "--volume", "--mount") and name in taking:
            mounts += mounted(text, held)
        elif name in ("-B", "--bind"):
            mounts += [mount for part in text.split(",") for mount in mounted(part, held)]
        at += 2 if name in taking and not equals else 1
    if at >= len(words):
        return None
    behind = words[at + 1 :]
    inside = (entrypoint, *behind) if entrypoint else tuple(behind)
    return Container(_unprefixed(words[at]), inside, tuple(mounts), gpus)


def kubectl_run(words: Sequence[Word], at: int) -> list[Word]:
    """``kubectl run NAME --image=IMAGE --env=A=1 -- WORDS`` as other runtimes say it; else its name alone."""
    end = next((after for after in range(at, len(words)) if words[after] == "--"), len(words))
    taken: dict[str, list[Word]] = {}
    for option in range(at, end):
        name, equals, value = words[option].partition("=")
        held = words[option].ending(len(value)) if equals else words[option + 1] if option + 1 < end else None
        if name in ("--image", "--env") and held is not None:
            taken.setdefault(name, []).append(held)
    run = next((word for word in words[at:end] if word == "run"), None)
    if run is None or "--image" not in taken:
        return list(words[at - 1 : at])
    env = [word for held in taken.get("--env", ()) for word in (held.instead("--env"), held)]
    return [words[at - 1], run, *env, taken["--image"][0], *words[end + 1 :]]


def _unprefixed(image: Word) -> Word:
    """An image without the ``docker://`` that says where it is from."""
    return image.ending(len(image) - len("docker://")) if image.startswith("docker://") else image


def image_before(words: Sequence[Word]) -> str:
    """The image that Slurm runs a command in, of the words before it; "" for none."""
    for at, word in enumerate(words):
        name, equals, value = word.partition("=")
        if name == "--container-image":
            return (value if equals else "".join(words[at + 1 : at + 2])).removeprefix("docker://").replace("#", "/")
    return ""


def pinned(words: Iterable[str]) -> dict[str, str]:
    """The releases of packages that words name one of: ``vllm==0.24.0``, ``--with=vllm[audio]==0.24.0``."""
    matches = (_PIN.fullmatch(word) for word in words if len(word) <= LONGEST_PIN)
    return {match[1]: match[2] for match in matches if match is not None}


def installed(words: Sequence[str]) -> dict[str, str]:
    """The releases of packages that a command installs."""
    return pinned(words) if not _INSTALLING.isdisjoint(words) else {}


def env_options(words: Sequence[Word], at: int, env: dict[str, Setting]) -> int:
    """Take the options of ``env``, which take variables away, and say where they end."""
    while at < len(words) and words[at].startswith("-"):
        option, equals, value = words[at].partition("=")
        at += 1
        if option in _ENV_VALUES and not equals:
            value, at = "".join(words[at : at + 1]), at + 1
        if option in ("-i", "-", "--ignore-environment"):
            env.clear()
        elif option in ("-u", "--unset"):
            env.pop(value, None)
    return at


def mounted(text: str, word: Word) -> Iterator[tuple[str, Word]]:
    """A mount as the path in the container, and the path that stands there: ``HOST:PATH:ro``, ``source=,target=``."""
    match = _VOLUME.fullmatch(text)
    fields = dict(part.partition("=")[::2] for part in text.split(","))
    host = match[1] if match is not None else fields.get("source") or fields.get("src")
    path = match[2] if match is not None else fields.get("target") or fields.get("dst") or fields.get("destination")
    if host and path and path.startswith("/"):
        yield path.rstrip("/"), word.instead(host)


def model_mounted(words: Sequence[Word], flags: Collection[str], mounts: Sequence[tuple[str, Word]]) -> Word | None:
    """What is mounted where an engine's arguments look for the model, which ``flags`` name."""
    spend(visits=len(words) + len(mounts))
    named = next((str(word) for word in words[:1] if word.startswith("/")), "")
    for at, word in enumerate(words):
        name, equals, value = word.partition("=")
        if name in flags:
            named = value if equals else str(words[at + 1]) if at + 1 < len(words) else ""
    return found_at(named, mounts)


def found_at(path: str, mounts: Sequence[tuple[str, Word]]) -> Word | None:
    """What stands at a path of a container by one of its mounts; None for none, and where its name is not known."""
    for inside, host in mounts:
        if path.rstrip("/") == inside or (inside and path.startswith(inside + "/")):
            held = f"{host.rstrip('/')}/{path[len(inside) :].strip('/')}".rstrip("/")
            if "$" not in held.rpartition("/")[2]:
                return host.instead(held if held.startswith(("/", ".", "~")) else f"./{held}")
    return None
