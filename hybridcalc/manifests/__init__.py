"""What do deployment files launch? Files on disk -> engine words, every word with its file, line and column.

Shell scripts, Dockerfiles, systemd units, compose files, Kubernetes and custom resources, engine configuration files
and hybridcalc's own are read, never run. What the files alone do not say comes out as a word with the reason.

What does a file say about one deployment? What it launches, on which hardware, what is asked of it, and which words
somebody fills in before an engine starts: ``${SLOTS}`` of envsubst or Flux, ``{tp}`` of a recipe.

    --max-running-requests=${SLOTS:-4}      --tp {tensor_parallel}, defaults: {tensor_parallel: 4}      --tp <TP>

No shell reads an argument list, so a reference in one is a template's. ``--set`` and ``--env-file`` give its value, and
so do the ``defaults`` of the same file and its own default; without any it is not known.

And which files do paths stand for? Files, folders and globs; no link to a folder is followed, and what .gitignore files
name is left out.
"""

import os
import re
import stat
from collections.abc import Callable, Iterator, Mapping, Sequence
from fnmatch import translate
from glob import glob, has_magic
from typing import Any, NamedTuple

from hybridcalc.engines import ENGINES
from hybridcalc.errors import InputError
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


MOST_FILES = 200_000
MOST_STARS = 4
"""Stars of a line in a .gitignore, ``**`` aside: a pattern of many takes time without end on a name made for it."""
NEVER_WALKED = frozenset({".git", ".hg", ".svn", "node_modules", "__pycache__", ".venv", "venv", ".tox", ".mypy_cache"})
Wanted = Callable[[str, str], bool | Passed]
"""Whether a file of a name, at a path, is to be read; Passed for one that is to be told of instead."""
_STAR = re.compile(r"(?<!\*)\*(?!\*)")


def file_bytes(path: str, largest: int) -> bytes:
    """A regular file of at most ``largest`` bytes. Raises InputError for any other: a pipe would be waited for."""
    descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))
    with open(descriptor, "rb") as stream:
        status = os.fstat(stream.fileno())
        if not stat.S_ISREG(status.st_mode):
            raise InputError("not a regular file")
        data = b"" if status.st_size > largest else stream.read(largest + 1)
        if status.st_size > largest or len(data) > largest:
            size = f"{largest // 2**20} MiB" if largest >= 2**20 else f"{largest:,} bytes"
            raise InputError(f"larger than {size}")
        return data


def head_of(path: str, length: int) -> bytes:
    """The first bytes of a regular file; none of any other."""
    try:
        with open(os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0)), "rb") as stream:
            return stream.read(length) if stat.S_ISREG(os.fstat(stream.fileno()).st_mode) else b""
    except OSError:
        return b""


def files_under(paths: Sequence[str], wanted: Wanted) -> Iterator[str | Trouble | Passed]:
    """Every file that is named, and under folders every ``wanted`` one, in order, once; a Trouble for a path that has
    none, and what ``wanted`` passes over.
    """
    seen: set[object] = set()
    for path in paths:
        for found in _under(path, wanted):
            if isinstance(found, Trouble | Passed):
                yield found
            elif (itself := _itself(found)) not in seen:
                seen.add(itself)
                yield found
                if len(seen) > MOST_FILES:
                    yield Trouble(path, 0, f"more than {MOST_FILES:,} files", "name the folders to check")
                    return


def _itself(path: str) -> object:
    """What tells a file from others, whatever name or link leads to it."""
    try:
        status = os.stat(path)
    except (OSError, ValueError):
        return path
    return (status.st_dev, status.st_ino) if status.st_ino else os.path.realpath(path)


def _under(path: str, wanted: Wanted) -> Iterator[str | Trouble | Passed]:
    if path == "-":
        yield path
        return
    if not path:
        yield Trouble("''", 0, "cannot be read: an empty path", "name a file or a folder")
        return
    try:
        if not os.path.lexists(path) and has_magic(path):
            matches = sorted(_deep(path) if "**" in path else glob(path))
            if not matches:
                yield Trouble(path, 0, "no file matches")
            for match in matches:
                yield from _walk(match, wanted) if os.path.isdir(match) else (match,)
        elif os.path.isdir(path):
            yield from _walk(path, wanted)
        else:
            yield path
    except (OSError, ValueError) as error:
        yield Trouble(path[:200], 0, f"cannot be read: {reason(error)}")


def _deep(pattern: str) -> Iterator[str]:
    """The files that a pattern with ``**`` matches; no link to a folder is followed, as one may lead back."""
    begin = re.search(r"[*?\[]", pattern)
    root = pattern[: begin.start() if begin is not None else 0].rpartition("/")[0]
    rest = pattern[len(root) + 1 :] if root or pattern.startswith("/") else pattern
    matched = re.compile("".join(map(_part, rest.split("/"))).removesuffix("/"))
    top = root or ("/" if pattern.startswith("/") else ".")
    for count, (here, folders, files) in enumerate(os.walk(top)):
        folders[:] = sorted(name for name in folders if name not in NEVER_WALKED)
        if count > MOST_FILES:
            return
        for name in files:
            path = os.path.relpath(os.path.join(here, name), top)
            if matched.fullmatch(path):
                yield os.path.join(root, path) if root or pattern.startswith("/") else path


def _part(name: str) -> str:
    """A part of a pattern as a regular expression; what begins with a dot is named by one alone."""
    if name == "**":
        return "(?:[^/.][^/]*/)*"
    hidden = "" if name.startswith(".") else r"(?!\.)"
    return hidden + translate(name)[4:-3].replace(".*", "[^/]*") + "/"


def _walk(folder: str, wanted: Wanted) -> Iterator[str | Trouble | Passed]:
    ignored = _Ignored(folder)
    troubles: list[Trouble] = []

    def fail(error: OSError) -> None:
        troubles.append(Trouble(str(error.filename), 0, f"cannot be read: {reason(error)}"))

    for here, folders, files in os.walk(folder, onerror=fail):
        yield from troubles
        troubles.clear()
        ignored.enter(here)
        folders[:] = sorted(
            name for name in folders if name not in NEVER_WALKED and not ignored.matches(os.path.join(here, name) + "/")
        )
        for name in sorted(files):
            path = os.path.normpath(os.path.join(here, name))
            held = wanted(name, path)
            if held and not ignored.matches(path):
                yield held if isinstance(held, Passed) else path
    yield from troubles


class _Ignored:
    """What the .gitignore files from a repository's root down to a folder leave out."""

    def __init__(self, folder: str) -> None:
        self._specs: list[tuple[str, Any]] = []
        top = os.path.abspath(folder)
        above: list[str] = []
        while not os.path.isdir(os.path.join(top, ".git")):
            parent = os.path.dirname(top)
            if parent == top:
                above = []
                break
            above.append(parent)
            top = parent
        for upper in reversed(above):
            self.enter(upper)
        if self._ignores(os.path.abspath(folder)):  # it is asked for by name
            self._specs = []

    def _ignores(self, folder: str) -> bool:
        """Whether a folder, or one that holds it, is left out."""
        while folder != os.path.dirname(folder):
            if self.matches(folder + "/"):
                return True
            folder = os.path.dirname(folder)
        return False

    def enter(self, folder: str) -> None:
        """Take in the .gitignore of a folder."""
        path = os.path.join(folder, ".gitignore")
        try:
            if not os.path.isfile(path):
                return
            text = file_bytes(path, 2**20).decode("utf-8", errors="replace")
        except (OSError, InputError):
            return  # as git does: it leaves nothing out then
        import pathspec

        lines = [line for line in text.split("\n") if len(_STAR.findall(line)) <= MOST_STARS]
        try:
            spec = pathspec.GitIgnoreSpec.from_lines(lines)
        except (ValueError, re.error):
            spec = pathspec.GitIgnoreSpec.from_lines(filter(_is_pattern, lines))
        self._specs.append((os.path.abspath(folder) + os.sep, spec))

    def matches(self, path: str) -> bool:
        """Whether a file, or a folder with a slash at its end, is left out."""
        if not self._specs:
            return False
        full = os.path.abspath(path) + ("/" if path.endswith("/") else "")
        verdict = False
        for base, spec in self._specs:
            if full.startswith(base):
                result = spec.check_file(full[len(base) :])
                verdict = verdict if result.include is None else bool(result.include)
        return verdict


def _is_pattern(line: str) -> bool:
    """Whether a line of a .gitignore is one that means something; git passes over others as well."""
    import pathspec

    try:
        pathspec.GitIgnoreSpec.from_lines([line])
    except (ValueError, re.error):
        return False
    return True


def reason(error: Exception) -> str:
    """Why a file cannot be read, in a few words."""
    if isinstance(error, InputError):
        return error.message
    return (getattr(error, "strerror", None) or str(error)).lower()
