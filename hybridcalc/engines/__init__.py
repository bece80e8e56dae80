"""HOW an engine allocates what a model stores: one folder an engine, each reads the same way, none knows another.

    ENGINES["vllm"].plan(model, args, rest, workload)        for name, row in ENGINES.rows.items(): row.title

An engine is one object, ENGINE of the package engines/<name>, loaded when it is first asked for; the rows here say
what can be said without it: its title, what starts it, and its modules in rooms that lie above (a grammar of its logs,
its tensors). A new engine is added here with a row.
"""

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from hybridcalc.errors import InputError, printable, quoted

if TYPE_CHECKING:
    from hybridcalc.engines.engine import Engine
    from hybridcalc.shell.launch import Launch, Launchers

Offered = TypeVar("Offered")


class Starter(NamedTuple):
    """What starts an engine, in commands and in manifests.

    ``programs``: first words of a command; an interpreter of any version and path counts as ``python``.
    ``model_flags`` name the model, the engine's own name for it first. ``images``: a pattern of names of images whose
    entrypoint it is, or into which its arguments go; ``own_images`` are its own, whose tags are its versions.
    ``appended``: variables whose words images append to its arguments; ``configured``: patterns of images that make its
    flags of variables, each with what those begin with; ``classes``: what a program constructs that serves with it.
    ``controllers``: kinds and formats for which a controller starts it unnamed; ``parallelism``: the flags that KServe
    makes of the fields of that name. ``verbs``: first words of programs whose second one stays among the arguments;
    ``serving``: patterns of images that serve without arguments, each with those that they then have. ``forked``: it is
    built under other names with flags of their own. ``forks``: patterns of images of programs that are known to be made
    of it, each with that program's name. ``joining``: flags with which a launch only joins a server of
    another node. ``image``: that of a release, as its publisher names it; ``in_image``: the words that start it there,
    where those outside do not; ``port``: where it listens unless --port says otherwise. ``gguf``: it is what GGUF
    files are for.
    """

    programs: tuple[tuple[str, ...], ...] = ()
    model_flags: tuple[str, ...] = ("--model",)
    images: str = r"(?!)"
    own_images: tuple[str, ...] = ()
    appended: tuple[str, ...] = ()
    configured: tuple[tuple[str, str], ...] = ()
    classes: frozenset[str] = frozenset()
    controllers: frozenset[str] = frozenset()
    parallelism: Mapping[str, str] = {}
    verbs: frozenset[str] = frozenset()
    serving: tuple[tuple[str, tuple[str, ...]], ...] = ()
    forked: bool = False
    forks: tuple[tuple[str, str], ...] = ()
    joining: frozenset[str] = frozenset()
    image: str = ""
    in_image: tuple[str, ...] = ()
    port: int = 0
    gguf: bool = False


class Row(NamedTuple):
    """What is known of an engine without loading it.

    ``home``: the package whose ENGINE it is. ``starter``: what starts it. ``rooms``: its modules in rooms above the
    engines, by the room's name.
    """

    title: str
    home: str
    starter: Starter = Starter()
    rooms: Mapping[str, str] = {}


def loaded(name: str) -> ModuleType:
    """A module, without the ways of an import where it is loaded already: every plan passes here."""
    return sys.modules.get(name) or import_module(name)


def names_of_modules(package: str, homes: Mapping[str, str]) -> Callable[[str], Any]:
    """The ``__getattr__`` of a package some of whose names stand in modules of it, loaded when one is asked for."""

    def found(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(loaded(f"{package}.{homes[name]}"), name)
        setattr(sys.modules[package], name, value)
        return value

    return found


class Engines(Mapping[str, "Engine"]):
    """The engines by name; one is loaded when it is first asked for. The first is what is meant where none is named."""

    def __init__(self, rows: dict[str, Row]) -> None:
        self.rows = rows
        self._launchers: Launchers | None = None

    def __getitem__(self, name: str) -> "Engine":
        engine: Engine = loaded(self.rows[name].home).ENGINE
        return engine

    def __iter__(self) -> Iterator[str]:
        return iter(self.rows)

    def __len__(self) -> int:
        return len(self.rows)

    def __contains__(self, name: object) -> bool:
        return name in self.rows

    @property
    def usual(self) -> str:
        """The engine that is meant where none is named."""
        return next(iter(self.rows))

    def meant_by(self, words: Iterable[str]) -> str:
        """The engine that is meant where none is named: that of GGUF files where a word names one, else the usual."""
        near = [word for word in words if ":" in word or "gguf" in word.lower()]
        if near:
            from hybridcalc.architecture.presets import names_gguf

            if any(map(names_gguf, near)):
                return next(name for name, row in self.rows.items() if row.starter.gguf)
        return self.usual

    @property
    def launchers(self) -> "Launchers":
        """What starts each of them."""
        if self._launchers is None or len(self._launchers.starters) != len(self.rows):
            from hybridcalc.shell.launch import Launchers

            starters = {name: row.starter for name, row in self.rows.items()}
            self._launchers = Launchers(
                starters, lambda name: self[name].flags.names, lambda name: self[name].environment
            )
        return self._launchers

    def launch(self, line: str | Sequence[str]) -> "Launch":
        """The one launch of a text that somebody pasted, or of an argument list. Raises InputError for none or more."""
        from hybridcalc.shell import words_of
        from hybridcalc.shell.launch import Launch

        started = self.launchers.find(words_of(line), {}) if not isinstance(line, str) else None
        if isinstance(started, Launch) and all(map(str.isascii, started.words)):  # no shell has anything left to do
            return started
        from hybridcalc.shell.pasted import read_launch

        return read_launch(line, self.launchers)

    def release(self, launch: "Launch") -> str | None:
        """The release that a launch installs, or in the tag of the image that it runs in, where its rules are known."""
        version = launch.release or self.launchers.image_version(launch.image)
        return version if version is not None and self[launch.engine].knows(version) else None

    def older(self, launch: "Launch") -> str:
        """The release that a launch says, where it is older than every one that is known; else nothing."""
        version = launch.release or self.launchers.image_version(launch.image)
        return version if version is not None and not self[launch.engine].knows(version) else ""

    def assumed(self, launch: "Launch") -> str:
        """That the newest release is assumed, where a launch installs one that is not known here, or runs in its
        engine's own image and the tag says none.
        """
        tag = self.launchers.own_tag(launch.image)
        if (tag is None and not launch.release) or self.release(launch) is not None:
            return ""
        newest = self[launch.engine].newest
        if old := self.older(launch):
            return f"{self[launch.engine].older(old)}: {newest} is assumed"
        if launch.release or tag is None:
            return f"no rules are known here for {launch.release}, which is installed: {newest} is assumed"
        return f"the image's tag {printable(tag[:40])} names no release known here: {newest} is assumed"

    def named(self, text: str, *, flag: str = "--engine") -> str:
        """The name of an engine as typed in any case. Raises InputError naming the flag."""
        if text.lower() not in self.rows:
            raise InputError(f"{flag} {quoted(text)} is not planned", fix=f"write {' or '.join(self.rows)}")
        return text.lower()

    def room(self, name: str, room: str, part: str = "") -> ModuleType | None:
        """The module that an engine has in a room above the engines, or a part of it; None where it has none there."""
        home = self.rows[name].rooms.get(room)
        return None if home is None else import_module(f"{home}.{part}" if part else home)


def offered(capability: Offered | None, what: str, title: str) -> Offered:
    """A capability of an engine. Raises InputError where the engine lacks it."""
    if capability is None:
        raise InputError(f"{what} is not for {title}", fix="name another engine")
    return capability


ROOMS = ("bootlog", "diagnosis", "crosscheck", "reuse", "live")


def _in_all_rooms(name: str) -> Mapping[str, str]:
    """The modules of an engine that every room here knows."""
    return {room: f"hybridcalc.{room}.{name}" for room in ROOMS}


ENGINES = Engines({
    "sglang": Row(
        "SGLang",
        "hybridcalc.engines.sglang",
        Starter(
            (("python", "-m", "sglang.launch_server"), ("sglang", "serve"), ("python", "-m", "dynamo.sglang")),
            ("--model-path", "--model"),
            images=r"(^|[/.-])sglang($|[:@/-])|sglang-runtime",
            own_images=("lmsysorg/sglang",),
            image="lmsysorg/sglang:v{}",
            in_image=("python3", "-m", "sglang.launch_server"),
            port=30000,
            classes=frozenset({"Engine", "ServerArgs"}),
            appended=("SGLANG_EXTRA_ARGS",),
        ),
        _in_all_rooms("sglang"),
    ),
    "vllm": Row(
        "vLLM",
        "hybridcalc.engines.vllm",
        Starter(
            (
                ("vllm", "serve"), ("python", "-m", "vllm.entrypoints.openai.api_server"),
                ("python", "-m", "dynamo.vllm"),
            ),
            ("--model",),
            images=r"vllm-openai|vllm-runtime|(^|/)vllm(-[a-z-]+)?($|[:@/])|lmcache/vllm|llm-d(-cuda)?($|[:@])",
            own_images=("vllm/vllm-openai",),
            forks=((r"vllm-omni", "vLLM-Omni"),),
            image="vllm/vllm-openai:v{}",
            port=8000,
            classes=frozenset({"LLM", "EngineArgs", "AsyncEngineArgs"}),
            appended=("VLLM_ADDITIONAL_ARGS", "VLLM_EXTRA_ARGS", "NIM_PASSTHROUGH_ARGS"),
            configured=((r"(^|/)nim/", "NIM_"), (r"worker-(v[0-9]+-)?vllm|vllm-worker", "")),
            controllers=frozenset({"LLMInferenceService", "Workspace", "vllmServe", "huggingface", "LLMConfig"}),
            joining=frozenset({"--headless"}),
            parallelism={
                "tensor": "--tensor-parallel-size", "data": "--data-parallel-size",
                "pipeline": "--pipeline-parallel-size",
            },
        ),
        _in_all_rooms("vllm"),
    ),
    "llama.cpp": Row(
        "llama.cpp",
        "hybridcalc.engines.llamacpp",
        Starter(
            (("llama-server",), ("llama-cli",), ("ollama", "serve"), ("ollama", "run"), ("ollama", "start")),
            ("--model", "-m", "--hf-repo", "-hf"),
            images=r"(^|/)(ik[-_]llama[-.]cpp|beellama[-.]cpp|llama\.cpp)($|[:@])",
            own_images=("ghcr.io/ggml-org/llama.cpp", "ghcr.io/ggerganov/llama.cpp", "ollama/ollama"),
            image="ghcr.io/ggml-org/llama.cpp:server-cuda-{}",
            in_image=("/app/llama-server",),
            port=8080,
            configured=((r"(^|/)llama\.cpp($|[:@])", "LLAMA_ARG_"),),
            verbs=frozenset({"ollama"}),
            serving=((r"(^|/)ollama/ollama($|[:@])", ("serve",)),),
            forked=True,
            forks=((r"ik[-_]llama", "ik_llama.cpp"), (r"beellama", "beellama.cpp")),
            gguf=True,
        ),
        {part: f"hybridcalc.{part}.llamacpp" for part in ROOMS},
    ),
})  # fmt: skip
"""Every engine. The first is meant where none is named."""
