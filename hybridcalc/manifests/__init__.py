"""What do deployment files launch? Files on disk -> engine words, every word with its file, line and column.

Shell scripts, Dockerfiles, systemd units, compose files, Kubernetes and custom resources, engine configuration files
and hybridcalc's own are read, never run. What the files alone do not say comes out as a word with the reason.

What does a file say about one deployment? What it launches, on which hardware, what is asked of it, and which words
somebody fills in before an engine starts: ``${SLOTS}`` of envsubst or Flux, ``{tp}`` of a recipe.

    --max-running-requests=${SLOTS:-4}      --tp {tensor_parallel}, defaults: {tensor_parallel: 4}      --tp <TP>

No shell reads an argument list, so a reference in one is a template's. ``--set`` and ``--env-file`` give its value, and
so do the ``defaults`` of the same file and its own default; without any it is not known.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from hybridcalc.engines import ENGINES
from hybridcalc.shell import ELISIONS, TEMPLATE, FromOutside, Place, Setting, Source, Word, spend
from hybridcalc.shell.launch import Launch
from hybridcalc.shell.variables import A_TEMPLATE, A_VARIABLE, Outside


class Hardware(NamedTuple):
    """GPUs of a deployment: the ``label`` that names their kind, how many a node has, and how many nodes."""

    label: str | None = None
    gpus: int | None = None
    gpus_place: Place | None = None
    nodes: int = 1


class Deployment(NamedTuple):
    """One engine that a file starts. ``native`` is what a hybridcalc.yaml adds (memory, workload, expectations),
    ``marks`` where it says so; ``heads`` the lines where the document and the mappings around the launch begin.
    """

    source: Source
    kind: str
    name: str
    launch: Launch
    hardware: Hardware = Hardware()
    replicas: int | None = None
    heads: tuple[int, ...] = ()
    native: Any = None
    marks: Mapping[str, Place] = {}

    @property
    def path(self) -> str:
        """The file it stands in."""
        return self.source.path

    @property
    def engine(self) -> str:
        """The engine's name."""
        return self.launch.engine

    @property
    def words(self) -> tuple[Word, ...]:
        """The engine's arguments."""
        return self.launch.words

    @property
    def env(self) -> Mapping[str, Setting]:
        """The environment it starts under."""
        return self.launch.env

    @property
    def place(self) -> Place:
        """Where the launch stands."""
        return self.launch.place

    @property
    def model(self) -> Word | None:
        """What the file says it serves where no flag does."""
        return self.launch.model

    @property
    def image(self) -> str:
        """The container's image."""
        return self.launch.image

    @property
    def orphan(self) -> Word | None:
        """A line of flags behind the launch that belongs to no command."""
        return self.launch.orphan


class Passed(NamedTuple):
    """A file of a walk of a kind that is read only where it is named, and that may start an engine."""

    path: str


class Trouble(NamedTuple):
    """Something about a file that is no deployment: why it could not be read, that a template is to be rendered, or
    that nothing was read in it. ``given``: somebody named the file.
    """

    path: str
    line: int
    message: str
    fix: str = ""
    unreadable: bool = True
    given: bool = True


PLACEHOLDER = re.compile(
    r"\$?\{\{-?\s*([A-Za-z_]\w*)\s*-?\}\}|(?<![\w$])(?:\$\{)?<([A-Za-z_][\w-]*)>\}?(?!\w)|(?<![\w${])\{([A-Za-z_]\w*)\}(?!\})|(?<!\w)@([A-Za-z_]\w*)@(?!\w)"
    r"|(?<!\w)__([A-Z][A-Z0-9_]*?)__(?!\w)"
)
"""A name between the marks that templates use."""
VARIABLE = re.compile(r"\$(?:([A-Za-z_]\w*)|\{([A-Za-z_]\w*)(?::?(?:[-=](?P<default>[^{}]*)|\?[^{}]*))?\})")
_EITHER = re.compile(f"{VARIABLE.pattern}|{PLACEHOLDER.pattern}")
FILLED_IN = frozenset({"LLMInferenceServiceConfig", "ServingRuntime", "ClusterServingRuntime"})
"""Kinds of documents that a controller fills in for each service that names them."""
Values = Mapping[str, Word]


def filled(deployment: Deployment, outside: Outside, defaults: Values, *, variables: bool) -> Deployment:
    """A deployment with what is known of its placeholders; ``variables`` says that ``$NAME`` is one as well."""
    pattern = _EITHER if variables else PLACEHOLDER
    words = tuple(_filled(word, pattern, outside, defaults) for word in deployment.words)
    model = _filled(deployment.model, pattern, outside, defaults) if deployment.model is not None else None
    if model is not None and model.why:
        names = ENGINES.rows[deployment.engine].starter.model_flags
        flag = Word(names[0], model.source, model.begin, model.end)
        named = bool(words) and not words[0].startswith("-")
        named = named or any(word.partition("=")[0] in names for word in words)
        words, model = words if named else (flag, model, *words), None
    env = deployment.env
    spend(visits=len(env))
    if variables and any("$" in word for setting in env.values() for word in setting.words):
        env = {name: _setting(setting, pattern, outside, defaults) for name, setting in env.items()}
    return deployment._replace(launch=deployment.launch._replace(words=words, model=model, env=env))


def names_in(text: str) -> Iterator[str]:
    """Names of the variables and placeholders in a text."""
    for match in _EITHER.finditer(text):
        yield next(name for name in match.groups() if name)


def _setting(setting: Setting, pattern: re.Pattern[str], outside: Outside, defaults: Values) -> Setting:
    return setting._replace(words=tuple(_filled(word, pattern, outside, defaults) for word in setting.words))


def _filled(word: Word, pattern: re.Pattern[str], outside: Outside, defaults: Values) -> Word:
    """A word with its placeholders replaced, as far as all of them are known."""
    if word in ELISIONS:
        return word.instead(word, "flags are left out here")
    if word.why not in ("", A_VARIABLE, A_TEMPLATE) or pattern.search(word) is None:
        return word if word.why or TEMPLATE.search(word) is None else word.instead(word, A_TEMPLATE)
    written: list[Word] = []
    missing: list[str] = []

    def value(match: re.Match[str]) -> str:
        name = next(group for group in match.groups() if group)
        given = outside.get(name)
        if given is None and name in defaults:
            written.append(defaults[name])
            given = str(defaults[name])
        if given is None and variables:
            given = match["default"] or None
        if given is None:
            missing.append(FromOutside(name) if VARIABLE.fullmatch(match[0]) else A_TEMPLATE)
        spend(characters=len(given or ""))
        return given or ""

    variables = "default" in pattern.groupindex
    text = pattern.sub(value, word)
    if missing or TEMPLATE.search(text) is not None:
        return word.instead(word, next(iter(missing), A_TEMPLATE))
    return word.instead(text, written=written[0].place if written and pattern.fullmatch(word) else None)
