"""Which engine do these words start? A launcher anywhere in a command, or the arguments of an engine's own image.

    docker run --gpus all -e A=1 lmsysorg/sglang:v0.5 python3 -m sglang.launch_server --tp 8
    -> sglang, A=1, ("--tp", "8")

Words before the launcher are wrappers, or the options of a container runtime whose ``-e`` set the environment.
Commands that only speak of a launcher (``echo``, ``pkill``) start nothing; a shell with ``-c`` starts what its script
does. Knows no engine but those that `Launchers` is made of.
"""

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import cache
from typing import NamedTuple, Protocol

from hybridcalc.shell import ASKS, PRINTS, PYTHON, SAID, SILENT, Place, Setting, Text, Word, assignment, prose, spend
from hybridcalc.shell.flags import base, python_module

SHELLS = frozenset({"sh", "bash", "dash", "ash", "zsh"})
RUNTIMES = frozenset({"docker", "podman", "nerdctl", "apptainer", "singularity"})
HANDING_ON = frozenset({
    "tmux", "screen", "byobu", "zellij", "ssh", "su", "runuser", "sbatch", "srun", "parallel", "pdsh", "clush", "watch",
    "script", "gcloud", "kubectl", "mosh",
})  # fmt: skip
"""Commands that hand a text on to a shell."""
SCRIPT_OPTION = re.compile(r"-[a-zA-Z]*c[a-zA-Z]*")
"""The option of a shell whose value is a script."""
_NO_SERVER = re.compile(
    r"router|gateway|bench|test|prof|front|client|eval|check|offline|omni|train|tool", re.IGNORECASE
)
_PROGRAM = re.compile(r"\$\{?\w*(?:server|llama|vllm|sglang)\w*\}?", re.IGNORECASE)
"""A variable that may hold the program of a server."""
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+")


class Starter(Protocol):
    """What starts an engine."""

    @property
    def programs(self) -> tuple[tuple[str, ...], ...]:
        """First words of a command; an interpreter of any version and path counts as ``python``."""

    @property
    def images(self) -> str:
        """A pattern of the names of images whose entrypoint it is, or into which its arguments go."""

    @property
    def own_images(self) -> tuple[str, ...]:
        """Its own repositories, whose tags are its versions."""

    @property
    def configured(self) -> tuple[tuple[str, str], ...]:
        """Patterns of images that make its flags of variables, each with what the names of those begin with."""

    @property
    def model_flags(self) -> tuple[str, ...]:
        """The flags that name the model, the engine's own name for it first."""

    @property
    def verbs(self) -> frozenset[str]:
        """First words of programs whose second one, what they are to do, stays among the arguments."""

    @property
    def serving(self) -> tuple[tuple[str, tuple[str, ...]], ...]:
        """Patterns of images that serve without arguments, each with those that they then have."""

    @property
    def classes(self) -> frozenset[str]:
        """Classes of its Python package that start it."""


class Launch(NamedTuple):
    """A launch: the engine ("" where the command is arguments alone), its words, the environment it starts under, where
    its first word stands, the words that start it, and the image it runs in, where that is known. ``model`` is what is
    mounted where the engine looks for its model, ``orphan`` a line of flags behind it that no backslash joins to it,
    ``assumed`` the variables whose defaults decided conditions before it, as nothing sets them outside, ``gpus`` what a
    ``docker run`` gives its container, as typed, ``release`` the one of its engine that is installed for it.
    """

    engine: str
    words: tuple[Word, ...]
    env: Mapping[str, Setting]
    place: Place
    program: tuple[str, ...] = ()
    image: str = ""
    model: Word | None = None
    orphan: Word | None = None
    assumed: frozenset[str] = frozenset()
    gpus: Word | None = None
    release: str = ""

    @property
    def variables(self) -> dict[str, str]:
        """The environment as texts; one that is not known is a word with the reason why."""
        return {name: setting.known_or_why(name) for name, setting in self.env.items()}


class Inner(NamedTuple):
    """A script that a command hands to a shell: its positional arguments, the environment it runs under, the image of
    the container, what is mounted there, and its GPUs.
    """

    script: Text
    arguments: tuple[Word, ...]
    env: dict[str, Setting]
    image: str = ""
    mounts: tuple[tuple[str, Word], ...] = ()
    gpus: Word | None = None


class Launchers:
    """Every engine that can be started, by name. ``flags`` gives the flags of one, which is loaded only for that, and
    ``variables`` those that it reads in place of flags.
    """

    def __init__(
        self,
        starters: Mapping[str, Starter],
        flags: Callable[[str], Collection[str]],
        variables: Callable[[str], Collection[str]] = lambda _: (),
    ) -> None:
        self.starters, self.variables = starters, variables
        self.flags = cache(lambda engine: frozenset(name for name in flags(engine) if name.startswith("--")))
        """The long flags of an engine."""
        self._programs = {program: name for name, starter in starters.items() for program in starter.programs}
        self._heads = tuple({program[0]: None for program in self._programs})
        self.model_flags = frozenset(flag for starter in starters.values() for flag in starter.model_flags)
        """Flags of any engine that name the model."""
        self.named = re.compile("|".join(map(re.escape, starters)))
        """The name of an engine."""
        own = (head for head in self._heads if not PYTHON.fullmatch(head))
        self.names = tuple(dict.fromkeys((*starters, *own)))
        """Names of engines and of programs that are theirs alone: a text with none of them starts none."""
        self.spoken = re.compile("|".join(map(re.escape, self.names)))
        """A text that may be about an engine."""
        self.starting = re.compile("|".join(dict.fromkeys(map(_as_text, self._programs))))
        """A text that may start an engine."""
        repositories = [re.escape(repository) for starter in starters.values() for repository in starter.own_images]
        self.telling = re.compile("|".join((self.starting.pattern, *repositories)))
        """The same, or one that runs an engine's own image."""
        said = prose("|".join({program[1]: None for program in self._programs if program[1:] and program[1].isalpha()}))
        self._command_line = re.compile(
            r"\s*((cd|export|source|\.|exec|env|nohup|sudo|\w+=)\b|[\w./${}-]*"
            rf"({'|'.join(map(re.escape, self._heads))})[0-9.]*\s(?!{said}))"
        )
        """How a text begins that is rather a command line than a message."""

    @property
    def commands(self) -> str:
        """How a launch command begins, in words."""
        return ", ".join(" ".join(program) for program in self._programs)

    def find(self, words: Sequence[Word], env: Mapping[str, Setting]) -> Launch | Inner | None:
        """The launch a command makes, or the script it hands to a shell; None where it starts no engine."""
        head = next((at for at, word in enumerate(words) if assignment(word) is None), None)
        if head is None or (not words[head].why and base(words[head]) in SILENT):
            return None
        spend(visits=len(env))
        own = dict(env)
        at = 0
        while at < len(words):
            word = words[at]
            started = self._starts(words, at, own)
            if started is not None and (at == head or self._is_run(started)):
                return self._told(started, words[: at + 1])
            at += 1
            assigned = assignment(word)
            if assigned is not None and not word.startswith(f"{assigned[0]}=="):
                own[assigned[0]] = assigned[1]
            elif not word.why and base(word) == "env":
                from hybridcalc.shell.containers import env_options

                at = env_options(words, at, own)
            elif not word.why and base(word) in (*RUNTIMES, "kubectl"):
                inside = self._in_container(words, at, own)
                if inside is not None:
                    return inside
        return None

    def _is_run(self, started: Launch | Inner) -> bool:
        """Whether what other words stand before is run by them: one word alone may be the name of a service or a file,
        unless arguments of its follow.
        """
        if isinstance(started, Inner) or len(started.program) > 1:
            return True
        word = next(iter(started.words), None)
        flag = "" if word is None else word.partition("=")[0]
        own = flag in self.flags(started.engine) or re.fullmatch("-[A-Za-z]{1,4}", flag) is not None
        return own or (word is not None and word.why != "")

    def surroundings(self, words: Sequence[Word], env: Mapping[str, Setting]) -> Inner | None:
        """The container that a command runs a script in, which is empty here: it comes from elsewhere."""
        from hybridcalc.shell.containers import container, image_before

        own = dict(env)
        nothing = Text(words[0].source, "")
        for at, word in enumerate(words):
            if not word.why and base(word) in RUNTIMES:
                found = container(words, at + 1, own, base(word))
                return found and Inner(nothing, (), own, str(found.image), found.mounts, found.gpus)
        image = image_before(words)
        return Inner(nothing, (), own, image) if image else None

    def _told(self, started: Launch | Inner, words: Sequence[Word]) -> Launch | Inner:
        """What is started, with the image and the release that the words up to it say."""
        if len(words) < 2 or not any("==" in word or "@" in word or "container-image" in word for word in words):
            return started
        from hybridcalc.shell.containers import image_before, pinned

        image = image_before(words)
        if isinstance(started, Inner):
            return started._replace(image=image)
        return started._replace(image=image, release=pinned(words).get(started.engine, ""))

    def handed_on(self, words: Sequence[Word]) -> Iterator[Text]:
        """Texts in a command that are command lines of their own: ``tmux new -d "vllm serve ..."``, ``--wrap=...``."""
        head = base(words[0])
        for word in words[1:] if head not in SILENT and not PRINTS.fullmatch(head) else ():
            if word.why or not self.is_command_line(word):
                continue
            text = word.characters
            option = re.match(r"--[a-z-]+=", word)
            if option is not None:
                text = text.part(option.end(), len(word))
            if head in HANDING_ON or option is not None or self._command_line.match(text.text):
                yield text

    def is_command_line(self, word: str) -> bool:
        """Whether a word is a text that starts an engine, rather than a part of a command."""
        return " " in word and self.starting.search(word) is not None

    def may_begin(self, word: str) -> bool:
        """Whether a command that begins with a word may start an engine, itself or in a container."""
        name = base(word)
        return name in SHELLS or name in RUNTIMES or name.startswith(self._heads)

    def may_start(self, words: Sequence[str]) -> bool:
        """Whether a command may start an engine, or a shell or a container that does."""
        if words and _PROGRAM.match(words[0]) is not None:
            return True
        return any(self.spoken.search(word) or base(word) in SHELLS | RUNTIMES for word in words)

    def starts_in(self, text: str) -> Iterator[int]:
        """The offsets at which lines of a text look like a launch: neither a comment nor something that is printed."""
        following = {name: text.find(name) for name in self.names}
        while near := [at for at in following.values() if at >= 0]:
            begin, end = text.rfind("\n", 0, min(near)) + 1, text.find("\n", min(near)) % (len(text) + 1)
            match = self.telling.search(text, begin, end)
            if match is not None and SAID.match(text, begin) is None:
                yield match.start()
            following = {name: text.find(name, end) if 0 <= at < end else at for name, at in following.items()}

    def calls_engine(self, text: str) -> bool:
        """Whether Python source seems to start an engine: by its class or its launcher, in a list of words too."""
        classes = "|".join(name for starter in self.starters.values() for name in starter.classes)
        imported = re.search(rf"(?m)^[ \t]*(?:from|import)[ \t]+(?:{self.named.pattern})\b", text) is not None
        if imported and re.search(rf"\b(?:{classes})\(", text) is not None:
            return True
        return next(self.starts_in(re.sub(r"""["'],\s*["']""", " ", text)), None) is not None

    def shows_launch(self, text: str) -> bool:
        """Whether a line of a guide is a launch, or says the image of one: it begins with it, behind a prompt,
        assignments and what runs it.
        """
        front = r"(?m)^[ \t]*(?:[$>#][ \t])?(?:(?:\w+=\S+|sudo|exec|nohup|uv|run|python[0-9.]*|-\S+)[ \t]+){0,12}"
        if re.search(rf"{front}(?:{self.starting.pattern})[ \t.]", text) is not None:
            return True
        images = re.finditer(r"(?m)^[ \t]*(?:-[ \t]+)?(?:(?:image|repository):[ \t]*)?[\"']?([\w.-]+/[\w./:@-]+)", text)
        return any(self.image_engine(match[1]) is not None for match in images)

    def image_engine(self, image: str) -> str | None:
        """The engine in an image, by its name."""
        lowered = image.lower()
        return next((name for name, starter in self.starters.items() if re.search(starter.images, lowered)), None)

    def configured(self, image: str) -> Iterator[tuple[str, str]]:
        """Engines whose flags an image makes of variables, with what the names of those begin with."""
        for name, starter in self.starters.items():
            for pattern, prefix in starter.configured:
                if re.search(pattern, image.lower()):
                    yield name, prefix

    def by_variables(self, env: Mapping[str, Setting], image: str) -> Launch | None:
        """What an image starts whose arguments are variables."""
        from hybridcalc.shell.containers import of_variables

        made = of_variables(self.configured(image), env, image, self.flags, self.variables)
        return made and Launch(made.engine, made.words, env, made.place, image=image, model=made.model)

    def serving(self, image: Word) -> Launch | None:
        """What an image starts without arguments, or with those alone that it then has; None for most images."""
        for name, starter in self.starters.items():
            for pattern, words in starter.serving:
                if re.search(pattern, image.lower()):
                    held = tuple(image.instead(word) for word in words)
                    return Launch(name, held, {}, image.place, image=str(image))
        return None

    def image_version(self, image: str) -> str | None:
        """The engine's version in the tag of its own image, without what follows its numbers (``-cu126``, ``.post1``),
        or the build that ends it (``server-cuda-b11549``); other images count their own versions.
        """
        match = re.search(r"^v?(\d{1,3}(?:\.\d{1,3}){1,2})(?!\d)|(?:^|-)(b\d{4,6})$", self.own_tag(image) or "")
        return None if match is None else match[1] or match[2]

    def own_tag(self, image: str) -> str | None:
        """The tag of an engine's own image, "latest" where it has none; None for other images."""
        own = [repository for starter in self.starters.values() for repository in starter.own_images]
        match = re.search(rf"(?:^|/)(?:{'|'.join(own)})(?::([^@]+))?(?:@.*)?$", image.lower())
        if match is None and image.endswith(".sif"):  # as Apptainer names what it pulls
            names = "|".join(repository.rpartition("/")[2] for repository in own)
            match = re.search(rf"(?:^|/)(?:{names})_([\w.-]+)\.sif$", image.lower())
        return None if match is None else match[1] or "latest"

    def engine_of_flags(self, names: Collection[str]) -> str | None:
        """The engine that flags are for: one with two that no other has, or one of them and its own for the model."""
        naming = {name: set(starter.model_flags) for name, starter in self.starters.items()}
        own = {name: len(self._own_flags(name).intersection(names) - naming[name]) for name in self.starters}
        engine = max(own, key=lambda name: own[name])
        return engine if own[engine] >= (1 if self.starters[engine].model_flags[0] in names else 2) else None

    def _serves(self, image: str, arguments: Sequence[Word]) -> bool:
        """Whether arguments of an engine's own image, or of one built on it under its name, begin with its model, and
        not with a program; so does one that nobody knows before a flag or others.
        """
        name = re.split("[:@]", image.rpartition("/")[2])[0]
        own = {repository.rpartition("/")[2] for starter in self.starters.values() for repository in starter.own_images}
        unknown = arguments[0].why and any(word.why or word.startswith("-") for word in arguments[1:2])
        return name in own and bool(unknown or _HUB_ID.fullmatch(arguments[0]))

    def model_of(self, words: Sequence[Word], mounts: Sequence[tuple[str, Word]]) -> Word | None:
        """What is mounted where an engine's arguments look for the model."""
        if not mounts:
            return None
        from hybridcalc.shell.containers import model_mounted

        return model_mounted(words, self.model_flags, mounts)

    def placed(self, launch: Launch, where: Inner) -> Launch:
        """A launch of a script, in the container that runs it."""
        image, model = launch.image or where.image, launch.model or self.model_of(launch.words, where.mounts)
        return launch._replace(image=image, model=model, gpus=launch.gpus or where.gpus)

    def _own_flags(self, engine: str) -> frozenset[str]:
        """Flags that only this engine has."""
        return self.flags(engine).difference(*(self.flags(other) for other in self.starters if other != engine))

    def _starts(self, words: Sequence[Word], at: int, env: dict[str, Setting]) -> Launch | Inner | None:
        """What the command that begins at a word starts: an engine, or a shell with a script."""
        head = base(words[at])
        if head in SHELLS and not words[at].why:
            return _script(words, at + 1, env)
        told = words[at].why or head == "torchrun" or head.startswith(self._heads)
        found = self._program(words, at, head) if told else None
        if found is None or not ASKS.isdisjoint(found[2]):
            return None
        engine, program, arguments = found
        return Launch(engine, tuple(arguments), env, words[at].place, program)

    def _program(self, words: Sequence[Word], at: int, head: str) -> tuple[str, tuple[str, ...], Sequence[Word]] | None:
        """The engine that a command starts which begins at a word, the words that do so, and its arguments."""
        if head == "torchrun":  # its own options, and then those of an interpreter
            at = next((after for after in range(at + 1, len(words)) if words[after] == "-m"), at + 1) - 1
        if head == "torchrun" or PYTHON.fullmatch(head) or (words[at].why and head.startswith("$")):  # which may be one
            return self._module(words, at + 1) or self._server(words, at)
        head = head.partition("@")[0]
        for program, engine in self._programs.items():
            if (head, *words[at + 1 : at + len(program)]) == program:
                kept = head in self.starters[engine].verbs
                return engine, program, words[at + len(program) - kept :]
        return None

    def _module(self, words: Sequence[Word], at: int) -> tuple[str, tuple[str, ...], Sequence[Word]] | None:
        """The same for the words after an interpreter: a module of an engine, or one with its name and a model."""
        name, at = python_module(words, at)
        program, rest = ("python", "-m", name), words[at:]
        if program in self._programs:
            return self._programs[program], program, rest
        named = self.named.search(name.lower())
        if named is None or _NO_SERVER.search(name):
            return None
        if rest and rest[0] == "serve":
            return named[0], program, rest[1:]
        given = any(word.partition("=")[0] in self.model_flags for word in rest)
        return (named[0], program, rest) if given else None

    def _server(self, words: Sequence[Word], at: int) -> tuple[str, tuple[str, ...], Sequence[Word]] | None:
        """The same for a program that a variable names, by its name and the flags behind it."""
        if (
            not words[at].why
            or _PROGRAM.search(words[at]) is None
            or not "".join(words[at + 1 : at + 2]).startswith("-")
        ):
            return None
        engine = self.engine_of_flags({word.partition("=")[0] for word in words[at + 1 :] if word.startswith("--")})
        return None if engine is None else (engine, (str(words[at]),), words[at + 1 :])

    def _in_container(self, words: Sequence[Word], at: int, env: dict[str, Setting]) -> Launch | Inner | None:
        """What a container's runtime starts, whose words begin there."""
        from hybridcalc.shell.containers import container, kubectl_run

        if base(words[at - 1]) == "kubectl":
            words, at = kubectl_run(words, at), 1
        found = container(words, at, env, base(words[at - 1]), lambda at: self._starts(words, at, {}) is not None)
        if found is None:
            return None
        rest, mounts, gpus, image = found.words, found.mounts, found.gpus, str(found.image)
        for start in range(len(rest)):
            started = self._starts(rest, start, env)
            if isinstance(started, Inner):
                return started._replace(image=image, mounts=mounts, gpus=gpus)
            if started is not None:
                return started._replace(image=image, model=self.model_of(started.words, mounts), gpus=gpus)
        serving = self.serving(found.image)
        if serving is not None and rest[:1] in ((), serving.words[:1]):
            return serving._replace(words=(*serving.words, *rest[1:]), env=env, gpus=gpus)
        if not rest and (made := self.by_variables(env, image)) is not None:
            return made._replace(model=made.model or self.model_of(made.words, mounts), gpus=gpus)
        engine = self.image_engine(image)
        if engine is None and rest and rest[0].startswith("-"):  # an image of somebody's own
            engine = self.engine_of_flags({word.partition("=")[0] for word in rest if word.startswith("--")})
        if engine is not None and rest and rest[0] == "serve":
            return Launch(engine, rest[1:], env, found.image.place, image=image, gpus=gpus)
        if engine is not None and rest and (rest[0].startswith("-") or self._serves(image, rest)):
            model = self.model_of(rest, mounts)
            return Launch(engine, rest, env, found.image.place, image=image, model=model, gpus=gpus)
        return None


def takes_script(words: Sequence[Word]) -> bool:
    """Whether the next word is a script: the shell that reads it expands it, with the same variables."""
    return SCRIPT_OPTION.fullmatch(words[-1]) is not None and any(base(word) in SHELLS for word in words[:-1])


def _script(words: Sequence[Word], at: int, env: dict[str, Setting]) -> Inner | None:
    """What a shell with these words runs: ``-c SCRIPT NAME ARGUMENTS...``; None for anything else."""
    while at + 1 < len(words) and words[at].startswith(("-", "+")):
        if SCRIPT_OPTION.fullmatch(words[at]):
            return Inner(words[at + 1].characters, tuple(words[at + 3 :]), env)
        at += 2 if words[at] in ("-o", "+o", "-O") else 1
    return None


def _as_text(program: tuple[str, ...]) -> str:
    """A pattern of texts that may start a program; of a module the first two names are enough."""
    blanks = r"\s+"
    if program[0] == "python":
        return rf"\b{re.escape('.'.join(program[2].split('.')[:2]))}\b"
    return rf"\b{blanks.join(map(re.escape, program))}\b"
