"""Which deployments does a file hold? Files are told apart by name, else by content (`FORMATS`).

A search for the names of engines comes first, so that other files cost nothing. Reading is bounded in size, never runs
anything, and what goes wrong with one file is that file's trouble alone.
"""

import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from collections.abc import Sequence as Listed
from contextlib import suppress
from functools import cache, lru_cache
from importlib import import_module
from typing import TYPE_CHECKING, NamedTuple

from hybridcalc.engines import ENGINES
from hybridcalc.engines.engine import Engine
from hybridcalc.errors import InputError
from hybridcalc.manifests import Deployment, Passed, Trouble, file_bytes, files_under, filled, head_of, reason
from hybridcalc.manifests.scripts import batch_variables, in_container, on_nodes, run_script, slurm
from hybridcalc.shell import FileError, Setting, Source, Text, Word, allowance, check_text, unrendered
from hybridcalc.shell.evaluate import Shell
from hybridcalc.shell.launch import Launch
from hybridcalc.shell.variables import Outside

if TYPE_CHECKING:
    from hybridcalc.manifests.yamltree import Mapping as Fields

LARGEST_FILE_BYTES = 4 * 2**20
_HINT = re.compile(
    rb"model[-_]?path|tensor[-_]?parallel|mem[-_]?fraction|max[-_]?model[-_]?len|max[-_]?running"
    rb"|ctx[-_]size|max[-_]?num[-_]?seqs|gpu[-_]?memory[-_]?util|n[-_]?gpu[-_]?layers|llama_arg_|engine_kwargs|llminferenceservice"
    rb"|expect:|deployments:", re.IGNORECASE
)  # fmt: skip
"""What a file must hold to be worth parsing, where it names no engine."""
JSON_HEAD_BYTES = 65_536
"""Where a JSON manifest says that it is one."""
_CONTAINER = re.compile(r"(?m)^[ \t-]*(?:command|args|image):")
"""What a template of a container has, and one of a service or a role beside it has not."""
TOLD = re.compile(r"(?i)\b(?:pkill|pgrep|killall|kill|grep|throw|write-\w+|rem|echo)\b")
PROSE = re.compile(r"\S+[ \t]+(?!serve\b)[a-z]+[ \t,.]")
"""Before and behind what starts an engine where a line only speaks of it."""
FOLLOWING = 400
"""Characters behind what starts an engine in which its flags are looked for."""
STARTS = "starts an engine, or runs its image"
PASSED_HEAD_BYTES = 65_536
"""How far a file that has to be named is looked into for a launch."""
_PATTERN_OF = re.compile(r"(?<=\w)(\.(j2|jinja2?|tmpl|tpl|template|example|sample|dist))+$")


class Contents(NamedTuple):
    """A file that was read: its source (None where that failed), its deployments, its troubles, and whether what it
    starts is ``told`` of the files that use it.
    """

    source: Source | None
    deployments: tuple[Deployment, ...]
    troubles: tuple[Trouble, ...]
    told: bool = False


def _template_at(text: str) -> int | None:
    """Where the first ``{{ ... }}`` on one line or ``{%`` begins; None where there is none."""
    block = text.find("{%")
    at = text.find("{{")
    while at >= 0 and (block < 0 or at < block):
        end = text.find("\n", at)
        end = len(text) if end < 0 else end
        if text.find("}}", at + 2, end) >= 0:
            return at
        at = text.find("{{", end)
    return block if block >= 0 else None


def read_file(
    path: str,
    outside: Outside,
    *,
    stdin: Callable[[int], bytes] | None = None,
    instead: bytes | None = None,
    checked: Iterable[str] = (),
) -> Contents:
    """The deployments of a file, or of what is to stand in it ``instead``; kustomizations of the folders that are
    ``checked`` say what its ConfigMaps hold. Never raises: what goes wrong comes back as its trouble.
    """
    shown = "<stdin>" if path == "-" else path
    try:
        if instead is not None:
            data = instead
        elif path == "-" and stdin is not None:
            data = stdin(LARGEST_FILE_BYTES + 1)
        else:
            data = file_bytes(path, LARGEST_FILE_BYTES)
        if len(data) > LARGEST_FILE_BYTES:
            raise InputError(f"larger than {LARGEST_FILE_BYTES // 2**20} MiB")
        check_text(data)
    except (InputError, OSError, ValueError) as error:
        return Contents(None, (), (Trouble(shown, 0, f"cannot be read: {reason(error)}"),))
    named = _by_name(_bare(path.rpartition("/")[2]))
    spoken = named is not None and named.name == "modelfile"  # it names no engine
    if (
        not spoken
        and not _HINT.search(data)
        and not any(name.encode() in data.lower() for name in ENGINES.launchers.names)
    ):
        return Contents(None, (), ())
    source = Source.of_bytes(shown, data)
    try:
        with allowance(len(source.text)):
            beside = _Beside(path, _tree(path, checked))
            return Contents(source, _read(source, outside, beside), (), beside.told)
    except InputError as error:
        template = _template_at(source.text) if format_of(source).name != "script" else None
        if template is not None:
            line = source.place(template).line
            engine = ENGINES.launchers.spoken.search(source.text.lower()) is not None
            engine = engine and (_CONTAINER.search(source.text) or mention(source.text)) is not None
            engine = engine and "kind: CustomResourceDefinition" not in source.text
            trouble = Trouble(shown, line, "a template", "render it: `helm template ... | hybridcalc check -`", False)
            return Contents(source, (), (trouble,) if engine else ())
        if not _is_known(source):
            return Contents(source, (), ())
        line, message = 0, error.message
        if isinstance(error, FileError) and error.path == shown:
            line, message = error.line, error.problem
        return Contents(source, (), (Trouble(shown, line, message, error.fix),))
    except RecursionError:
        return Contents(source, (), (Trouble(shown, 0, "nested too deep to be read"),))


def plain_launch(text: str) -> tuple[int, str] | None:
    """Where a text starts an engine or runs its image and sizing flags follow, and how."""
    for begin in ENGINES.launchers.starts_in(text):
        line = text[text.rfind("\n", 0, begin) + 1 : begin + FOLLOWING]
        if TOLD.search(line[: line.find(text[begin : begin + 5])]) or PROSE.match(text, begin):
            continue
        words = re.findall(r"(?<![\w-])--?[A-Za-z][\w-]+", text[begin : begin + FOLLOWING])
        if any(not engine.flags.by_spelling.keys().isdisjoint(words) for engine in ENGINES.values()):
            return begin, STARTS
    return None


def mention(text: str) -> tuple[int, str] | None:
    """Where a text speaks of a launch, and how: an engine's module or image, else two of its sizing flags."""
    begin = next(ENGINES.launchers.starts_in(text), None)
    if begin is not None:
        return begin, STARTS
    for engine in ENGINES.values():
        seen: set[str] = set()
        for match in _sizing_flags(engine).finditer(text):
            seen.add(re.sub("[-_]", "", match[1]))
            if len(seen) == 2:
                return match.start(), f"has sizing flags of {engine.title}"
    return None


@cache
def _sizing_flags(engine: Engine) -> re.Pattern[str]:
    """The flags of an engine that a plan needs, as they are typed and as keys; short names say nothing."""
    names = {name.strip("-") for name in engine.flags.by_spelling if name.count("-") > 3}
    spelled = "|".join(sorted(re.escape(name).replace(r"\-", "[-_]") for name in names))
    return re.compile(rf"(?<![\w-])(?:--)?({spelled})(?=[\s\"':=])")


def find_files(paths: Listed[str]) -> Iterator[str | Trouble | Passed]:
    """Every file under the paths that may hold a deployment, in order, once; a Trouble for a path that has none, Passed
    for a file of a folder that has to be named and may start an engine.
    """
    return files_under(paths, _may_hold)


def _may_hold(name: str, path: str) -> bool | Passed:
    """Whether a file in a folder is one to read: by its name, else by how it begins."""
    lowered = _bare(name)
    if lowered.endswith(".json"):
        return b'"apiVersion"' in head_of(path, JSON_HEAD_BYTES)
    if (form := _by_name(lowered)) is not None:
        return form.walked or (_speaks(form, path) and Passed(path))
    if lowered != name.lower() and "." not in lowered:  # a template without a kind of its own
        text = head_of(path, PASSED_HEAD_BYTES).decode("utf-8", errors="replace")
        return any(form.looks(text) for form in FORMATS)
    return "." not in lowered and head_of(path, 2) == b"#!"


def _speaks(form: "Format", path: str) -> bool:
    """Whether the head of a file that has to be named says that it may start an engine."""
    text = head_of(path, PASSED_HEAD_BYTES).decode("utf-8", errors="replace")
    if ENGINES.launchers.spoken.search(text) is None and "engine_kwargs" not in text:
        return False
    if form.name == "notebook":  # lines of cells, as JSON holds them
        text = re.sub(r'(?m)^\s*"[!%]*(?:bash|sh)?\s*|\\n",?$', "", text)
        return ENGINES.launchers.shows_launch(text) or ENGINES.launchers.calls_engine(text.replace('\\"', '"'))
    if form.name != "python":
        return ENGINES.launchers.shows_launch(text)
    return bool(import_module("hybridcalc.manifests.pythonsource").seems_to_start(text))


def _tree(path: str, checked: Iterable[str]) -> str:
    """The checked folder that a file lies in; its own where it was named itself."""
    whole = os.path.abspath(path)
    trees = (one for one in checked if whole.startswith(os.path.join(os.path.abspath(one), "")))
    return min(trees, key=lambda one: (len(os.path.abspath(one)), one), default=os.path.dirname(path) or ".")


def _read(source: Source, outside: Outside, beside: "_Beside") -> tuple[Deployment, ...]:
    form = format_of(source)
    text = Text(source, source.text)
    if form.shell:
        text = unrendered(text, ENGINES.launchers.starting)
    found: list[Deployment] = []
    for deployment in form.read(text, outside, beside):
        whole = filled(deployment, outside, beside.role_values(), variables=False)
        whole = whole._replace(launch=_configured(whole.launch, beside))
        found.append(whole._replace(hardware=in_container(whole.launch, whole.hardware)))
    return tuple(on_nodes(found))


def with_config(launch: Launch, path: str) -> Launch:
    """A launch with the fields of its ``--config`` file, where that lies beside ``path``."""
    return _configured(launch, _Beside(path))


def _configured(launch: Launch, beside: "_Beside") -> Launch:
    if not any(word.startswith("--config") for word in launch.words):
        return launch
    from hybridcalc.manifests.documents import configured

    return configured(launch, beside)


def _read_script(text: Text, outside: Outside, beside: "_Beside") -> Iterator[Deployment]:
    yield from _started(run_script(text, batch_variables(text), outside), text, outside, beside)


def _started(script: Shell, text: Text, outside: Outside, beside: "_Beside") -> Iterator[Deployment]:
    """What a script starts, and the files that it writes."""
    gpus = slurm(text.text)
    for launch in script.launches:
        yield Deployment(text.source, "script", "", launch, gpus)
    for document in script.files:
        with suppress(InputError):  # what a script writes need not be whole
            yield from _NAMED[document.kind].read(document.text, outside, beside)


def _read_guide(text: Text, outside: Outside, beside: "_Beside") -> Iterator[Deployment]:
    from hybridcalc.manifests import guides

    if not guides.is_guide(text.text):
        yield from _read_script(guides.script(text), outside, beside)
        return
    known: dict[str, Setting] = {}
    for block in guides.blocks(text):
        kind = block.kind or next((form.name for form in FORMATS if form.looks(block.text.text)), "script")
        if kind == "script":
            held = guides.script(block.text)
            script = run_script(held, known, outside)
            yield from _started(script, held, outside, beside)
            known = script.variables.visible()
        elif kind in _NAMED and next(ENGINES.launchers.starts_in(block.text.text), None) is not None:
            with suppress(InputError):  # a part of a manifest is none
                yield from _NAMED[kind].read(block.text, outside, beside)


def _looks_like_yaml(text: str) -> bool:
    first = next((line for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")), "")
    return re.match(r"(?!\[[A-Z]\w*\]\s*$)(?:---|[{\[]|[\w./-]+:(\s|$)|- )", first) is not None


class _Beside:
    """Files in the folder of a manifest; ``told``: they start what it holds."""

    def __init__(self, path: str, tree: str | None = None) -> None:
        self._folder = None if path == "-" else os.path.dirname(path) or "."
        self._path, self._tree = path, tree
        self.told = False

    def __call__(self, name: str) -> Source | None:
        """The file at a relative path; None where it is none, or not small."""
        if self._folder is None or os.path.isabs(name) or not name or "\0" in name or name.count("..") > 3:
            return None
        return _small_file(os.path.normpath(os.path.join(self._folder, name)))

    def config_map(self, name: str) -> "Fields | None":
        """The data of a ConfigMap in another file of the folder, by its name or (``key:``) by an entry's name."""
        if self._folder is None or not name:
            return None
        from hybridcalc.manifests.documents import config_maps

        for own, data in config_maps(self._folder):
            if name == own or (name.startswith("key:") and data.get(name[4:]) is not None):
                return data
        return None

    def generated(self, name: str) -> Mapping[str, Setting]:
        """The variables of a ConfigMap that kustomizations of the checked folder generate for the file."""
        if self._folder is None or self._tree is None:
            return {}
        from hybridcalc.manifests.kustomize import generated

        return generated(self._path, self._tree, name)

    def role_values(self) -> Mapping[str, Word]:
        """The variables that Ansible gives the file, where it is one of a role."""
        if not self._folder or self._tree is None or "defaults" not in _names_above(self._folder):
            return {}
        from hybridcalc.manifests.ansible import role_values

        return role_values(self._path, self._tree)

    def patched(self, kind: str, name: str) -> "Fields | None":
        """The document that the file changes, where kustomizations of the checked folder take it in as a patch."""
        if self._folder is None or self._tree is None:
            return None
        from hybridcalc.manifests.kustomize import patched

        return patched(self._path, self._tree, kind, name)

    def model_of(self, name: str) -> Word | None:
        """The model that another file of the folder names beside the name of a ``--config`` file."""
        if self._folder is None:
            return None
        from hybridcalc.manifests.documents import model_beside

        return model_beside(self._folder, name)


@lru_cache(maxsize=64)
def _names_above(folder: str) -> frozenset[str]:
    """What lies beside a folder and beside the one that it is in."""
    with suppress(OSError):
        return frozenset(name for up in ("..", "../..") for name in os.listdir(os.path.join(folder, up)))
    return frozenset()


@lru_cache(maxsize=64)
def _small_file(path: str) -> Source | None:
    try:
        data = file_bytes(path, LARGEST_FILE_BYTES)
    except (OSError, InputError, ValueError):
        return None
    return None if b"\0" in data else Source.of_bytes(path, data)


class Format(NamedTuple):
    """A kind of file: a pattern of its names in lower case, how its content looks where no name tells, its reader.

    ``walked``: taken from a folder too, and not only by name; ``shell``: its text is a shell's, or nearly.
    """

    name: str
    names: re.Pattern[str]
    looks: Callable[[str], object]
    read: Callable[[Text, Outside, _Beside], Iterator[Deployment]]
    walked: bool = True
    shell: bool = True


def _commands(kind: str) -> Callable[[Text, Outside, _Beside], Iterator[Deployment]]:
    """A reader of files that hold commands and are no shell's."""

    def read(text: Text, outside: Outside, beside: _Beside) -> Iterator[Deployment]:
        from hybridcalc.manifests.taskfiles import read_commands

        yield from read_commands(kind, text, outside)

    return read


def _lazy(module: str, reader: str) -> Callable[[Text, Outside, _Beside], Iterator[Deployment]]:
    """A reader that is loaded when its kind of file is met."""

    def read(text: Text, outside: Outside, beside: _Beside) -> Iterator[Deployment]:
        yield from getattr(import_module(f"hybridcalc.manifests.{module}"), reader)(text, outside, beside)

    return read


_NO_LOOK = re.compile(r"(?!)").match
_TASKS = (
    ("justfile", r"\.?justfile|.*\.just"),
    ("procfile", r"procfile(\..*)?"),
    ("tasks", r"\.?mise.*\.toml|pixi\.toml|makefile\.toml"),
)  # fmt: skip
"""Files that hold commands, by name (manifests/taskfiles.py)."""
_UNIT = re.compile(r"(?m)^\[(Service|Container)\]").search
FORMATS = (
    Format(
        "dockerfile", re.compile(r"(docker|container)file.*|.*\.(docker|container)file"),
        re.compile(r"(?:[ \t]*(?:#.*)?\n)*(?:FROM|ARG)\s").match, _lazy("dockerfile", "read_dockerfile"),
    ),
    Format(
        "modelfile", re.compile(r"modelfile([.-].*)?|.*\.modelfile"), _NO_LOOK, _lazy("modelfile", "read_modelfile"),
        shell=False,
    ),
    Format("script", re.compile(r".*\.(sh|bash|zsh|ksh|slurm|sbatch)"), re.compile("#!").match, _read_script),
    Format("unit", re.compile(r".*\.(service|container)"), _UNIT, _lazy("dockerfile", "read_unit")),
    Format(
        "makefile", re.compile(r"(gnu)?makefile(?!\.toml)(\..*)?|.*\.(mk|mak)"), _NO_LOOK,
        _lazy("makefile", "read_makefile"), shell=False,
    ),
    Format(
        "ini", re.compile(r"supervisord?.*|.*\.(conf|ini)"), _NO_LOOK, _lazy("taskfiles", "read_ini"), shell=False,
    ),
    Format("batch", re.compile(r".*\.(cmd|bat)"), _NO_LOOK, _lazy("windows", "read_batch"), shell=False),
    Format("powershell", re.compile(r".*\.ps1"), _NO_LOOK, _lazy("powershell", "read_powershell"), shell=False),
    *(Format(kind, re.compile(names), _NO_LOOK, _commands(kind), shell=False) for kind, names in _TASKS),
    Format("launchd", re.compile(r".*\.plist"), _NO_LOOK, _lazy("launchd", "read_plist"), shell=False),
    Format("hcl", re.compile(r".*\.(hcl|nomad|tf)"), _NO_LOOK, _lazy("hcl", "read_hcl"), shell=False),
    Format(
        "python", re.compile(r".*\.pyi?"), _NO_LOOK, _lazy("pythonsource", "read_python"), walked=False, shell=False,
    ),
    Format("notebook", re.compile(r".*\.ipynb"), _NO_LOOK, _lazy("documents", "read_yaml"), walked=False, shell=False),
    Format("guide", re.compile(r".*\.(md|mdx|markdown|rst|adoc|txt)"), _NO_LOOK, _read_guide, walked=False),
    Format(
        "others", re.compile(r".*\.(nix|toml|fish|nu|jsonnet|libsonnet|cue|cfg|properties)"), _NO_LOOK,
        lambda *_: iter(()), shell=False,
    ),
    Format(
        "documents", re.compile(r".*\.(ya?ml|json)"), _looks_like_yaml, _lazy("documents", "read_yaml"), shell=False,
    ),
)  # fmt: skip
"""Every kind of file, the first that fits by name, else by content; a file that is none of them is a script."""
_NAMED = {form.name: form for form in FORMATS}


def format_of(source: Source) -> Format:
    """What a file is, by its name, else by its content."""
    by_name = _by_name(_bare(source.path.rpartition("/")[2]))
    return by_name or next((form for form in FORMATS if form.looks(source.text)), _NAMED["script"])


def _is_known(source: Source) -> bool:
    """Whether a file is of a kind that is read here, rather than tried as a script for want of another."""
    name = source.path.rpartition("/")[2]
    return (
        "." not in name
        or source.path == "<stdin>"
        or _by_name(_bare(name)) is not None
        or any(form.looks(source.text) for form in FORMATS)
    )


def _bare(name: str) -> str:
    """A file's name in lower case, without what says that it is a template or an example of one."""
    return _PATTERN_OF.sub("", name.lower())


def _by_name(name: str) -> Format | None:
    return next((form for form in FORMATS if form.names.fullmatch(name)), None)
