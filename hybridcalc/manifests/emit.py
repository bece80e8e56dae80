"""A launch written as a deployment: a command, a compose file, Kubernetes documents, an engine's own config.

A server on several nodes is a LeaderWorkerSet, or a command and a service for node 0 and one for each other node, with
the flags by which the engine's launches find each other (`engines/shapes.Nodes`). What is written is read back by the
readers of this package as the same launch. Texts are YAML by hand, every value of which is quoted as JSON quotes it, so
that no reader takes it for something else.
"""

import json
import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from itertools import product
from typing import Any, NamedTuple

from hybridcalc.architecture.presets import is_path
from hybridcalc.engines import ENGINES, Starter
from hybridcalc.engines.engine import Engine
from hybridcalc.engines.shapes import Nodes, fitting_of, nodes_of
from hybridcalc.errors import InputError, quoted
from hybridcalc.hardware import find_gpu, shipped_gpus

PLAIN = ("cmd", "compose", "kubernetes")
CONFIG = "-yaml"
LONGEST_NAME = 50
_VALUE = re.compile(r"-(?![0-9.])")
_VARIABLE = re.compile(r"[\w.:/{}-]*\$\w[\w.:/{}$-]*")
TOKENS = ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN")
"""Variables that hold a secret, which no file is written with."""
FOLDER = "/models"
"""Where a container finds the files of a model that is not downloaded by its name."""


class Emitted(NamedTuple):
    """A launch to write: its engine and release, words and variables, the preset's id of its GPUs, how many all its
    nodes have, how often it is started, what it is for, and the nodes that each of these stands on. ``more``: words
    that say nothing to a plan, as they were typed.
    """

    engine: Engine
    version: str
    argv: tuple[str, ...]
    env: Mapping[str, str]
    gpus: int
    gpu: str | None = None
    replicas: int = 1
    about: str = ""
    nodes: int = 1
    more: tuple[str, ...] = ()

    @property
    def pieces(self) -> list[list[str]]:
        """What follows the program, a flag with its value together; how nodes find each other is said anew."""
        linked = self.links.flags + self.links.beyond if self.nodes > 1 else ()
        words = (*self.argv[len(_head(self)) :], *self.more)
        return [piece for piece in _together(words) if piece[0].partition("=")[0] not in linked]

    @property
    def together(self) -> bool:
        """Whether one node holds it as often as it is started."""
        return self.nodes == 1 and self.gpu is not None and self.gpus * self.replicas <= find_gpu(self.gpu).node

    @property
    def seen(self) -> str | None:
        """The GPUs of a node, as an option names them."""
        return None if self.gpu is None else f"{self.gpus // self.nodes}x{self.gpu}"

    @property
    def starter(self) -> Starter:
        """What starts the engine."""
        return ENGINES.rows[self.engine.name].starter

    @property
    def links(self) -> Nodes:
        """How its nodes find each other."""
        return fitting_of(self.engine).nodes

    def option(self, flag: str) -> str | None:
        """The value of a flag among its words; None where it is not given."""
        found = [piece for piece in self.pieces if piece[0].partition("=")[0] == flag]
        return found[-1][0].partition("=")[2] or "".join(found[-1][1:]) if found else None


def forms() -> tuple[str, ...]:
    """The forms there are; an engine's own config file where it reads one."""
    return (*PLAIN, *(f"{name}{CONFIG}" for name, engine in ENGINES.items() if engine.flags.files))


def check_form(form: str) -> str:
    """The form. Raises InputError for one that is not known."""
    if form not in forms():
        raise InputError(f"--emit {quoted(form)} is not known", fix=f"write {', '.join(forms())}")
    return form


def emitted(form: str, launch: Emitted) -> str:
    """The text of a deployment. Raises InputError for a form of another engine, for GPUs without a known image, and for
    nodes of which only one runs the engine.
    """
    write = {"cmd": _command, "compose": _compose, "kubernetes": _kubernetes}.get(form)
    if write is None:
        own = f"{launch.engine.name}{CONFIG}"
        if form != own:
            fix = f"write {own if own in forms() else ', '.join(PLAIN)}"
            raise InputError(f"--emit {form}: this is a launch of {launch.engine.title}", fix=fix)
        write = _config
    about = f"# {launch.about}" if launch.about else ""
    if launch.replicas > 1 and form != "kubernetes" and not (form == "compose" and launch.together):
        where = "each on other GPUs (CUDA_VISIBLE_DEVICES) and another --port" if launch.together else "on other nodes"
        about += f"; start it {launch.replicas} times, {where}"
    about += "\n" if about else ""
    if launch.nodes > 1 and (write is _config or not launch.links.flags):
        about += f"# on {launch.nodes} nodes; node N adds {launch.links.text(launch.nodes)}\n"
    return about + write(launch)


def of_launch(
    engine: Engine,
    args: Any,
    launch: Mapping[str, Any],
    gpu: str | None = None,
    typed: Sequence[str] = (),
    about: str = "",
    version: str = "",
) -> Emitted:
    """What is to be written of ``args``, whose ``launch`` line is known, with words that were ``typed`` of it that a
    plan passes over.
    """
    ranks, words = engine.ranks(args), tuple(launch["argv"])
    nodes = 1 if gpu is None else nodes_of(engine, args, ranks, find_gpu(gpu).node)
    own = _typed_model(engine, typed)
    words = (*words[: len(_started(engine))], *own, *words[len(engine.command("MODEL")) :]) if own else words
    version, more = (
        version or engine.release(args.engine_version),
        tuple(engine.spelt(str(word), args.engine_version) for word in engine.flags.passed_over(typed)),
    )
    return Emitted(engine, version, words, launch["env"], ranks, gpu, 1, about, nodes, more)


class Role(NamedTuple):
    """Launches of some of the nodes: which, the end of their name, and their words, a flag a piece."""

    where: str
    suffix: str
    pieces: list[list[str]]


def _roles(launch: Emitted, rank: str, head: str) -> list[Role]:
    """The launch of node 0 and that of the others, whose number is ``rank``; one where they do not differ but by it."""
    nodes, links = launch.nodes, launch.links
    if nodes == 1 or not links.flags:
        return [Role("", "", launch.pieces)]
    each = [*launch.pieces, *_together(links.words(nodes, rank, head))]
    if not links.beyond:
        return [Role(f"each node, NODE=0 to {nodes - 1}", "", each)]
    first = [*launch.pieces, *_together(links.words(nodes, "0", head))]
    others = "node 1, NODE=1" if nodes == 2 else f"the other nodes, NODE=1 to {nodes - 1}"
    return [Role("node 0", "", first), Role(others, "-worker", [*each, list(links.beyond)])]


def _command(launch: Emitted) -> str:
    """A shell command for each kind of node, a flag a line."""
    start = " ".join([*(f"{name}={shlex.quote(value)}" for name, value in launch.env.items()), *_head(launch)])
    texts = []
    for role in _roles(launch, "$NODE", "$HEAD"):
        where = f"# on {role.where}, HEAD being the address of node 0\n" if role.where else ""
        texts.append(where + " \\\n  ".join([start, *map(_joined, role.pieces)]) + "\n")
    return "\n".join(texts)


def _joined(piece: Iterable[str]) -> str:
    """Words of a shell; those that stand for a variable are not taken literally."""
    return " ".join(f'"{word}"' if _VARIABLE.fullmatch(word) else shlex.quote(word) for word in piece)


def _head(launch: Emitted) -> tuple[str, ...]:
    return _started(launch.engine)


def _started(engine: Engine) -> tuple[str, ...]:
    """The words that start the engine."""
    words = engine.command("MODEL")
    return words[: -2 if words[-2].startswith("-") else -1]


def _typed_model(engine: Engine, typed: Sequence[str]) -> tuple[str, ...]:
    """The model as a launch line names it, with its flag, where that is no name of a model alone: a path, a file of a
    hub (``-hf``). Nothing else.
    """
    flags = ENGINES.rows[engine.name].starter.model_flags
    for at, word in enumerate(typed):
        name, equals, value = word.partition("=")
        value = value if equals else "".join(typed[at + 1 : at + 2])
        if name in flags and (is_path(value) or (name != engine.model_flag and "hf" in name)):
            return name, value
    return (typed[0],) if typed and is_path(typed[0]) else ()


def _together(words: Iterable[str]) -> list[list[str]]:
    """Words, a flag with its values together."""
    pieces: list[list[str]] = []
    for word in words:
        if _VALUE.match(word) or not pieces or not _VALUE.match(pieces[-1][0]):
            pieces.append([word])
        else:
            pieces[-1].append(word)
    return pieces


def _image(launch: Emitted) -> str:
    if "gfx" in shipped_gpus().get(launch.gpu or "", {}):
        raise InputError(f"no image of {launch.engine.title} for this GPU is known here", fix="write --emit cmd")
    if launch.nodes > 1 and not launch.links.flags:
        raise InputError(f"other programs serve beside {launch.engine.title} on more nodes", fix="write --emit cmd")
    return launch.starter.image.format(launch.version)


def _model(launch: Emitted) -> str:
    """The model as the launch names it."""
    return launch.pieces[0][-1]


def _name(launch: Emitted) -> str:
    """A name that a container may have, of the model."""
    plain = re.sub(r"[^a-z0-9]+", "-", _model(launch).rstrip("/").rpartition("/")[2].lower()).strip("-")
    return plain[:LONGEST_NAME].strip("-") or "server"


def _port(launch: Emitted) -> str:
    said = launch.option("--port") or ""
    return said if said.isdecimal() else f"{launch.starter.port}"


def _program(launch: Emitted) -> str:
    return ", ".join(json.dumps(word) for word in launch.starter.in_image or _head(launch))


def _listed(launch: Emitted, role: Role, indent: str) -> str:
    """The arguments of a container, a word a line; with what lets a server be reached from outside it."""
    reached = launch.engine.in_container
    reached = () if reached and launch.option(reached[0]) is not None else reached
    return "".join(f"{indent}- {json.dumps(word)}\n" for piece in (*role.pieces, reached) for word in piece)


def _variables(launch: Emitted) -> list[tuple[str, str]]:
    """Those of its environment that are no secret."""
    return [(key, value) for key, value in launch.env.items() if key not in TOKENS]


def _files(launch: Emitted) -> tuple[str, str]:
    """The folder that holds the model's files, and where a container has it; empty where it is loaded by its name."""
    model = _model(launch)
    if model.startswith("/"):
        folder = model.rstrip("/").rpartition("/")[0] or "/"
        return folder, folder
    return (".", FOLDER) if model.endswith(".gguf") or model.startswith(".") else ("", "")


def _compose(launch: Emitted) -> str:
    """A service for each kind of node, all in one file; those beyond node 0 are started by name alone."""
    name, port, (files, inside) = _name(launch), _port(launch), _files(launch)
    roles = _roles(launch, f"${{NODE:-{len(launch.links.beyond)}}}", "${HEAD:-127.0.0.1}")
    cache = "~/.cache/huggingface:/root/.cache/huggingface"
    text = "".join(
        f"# on {role.where}, HEAD being the address of node 0: docker compose up {name}{role.suffix}\n"
        for role in roles
        if role.where
    )
    text += "services:\n"
    each, copies = launch.gpus // launch.nodes, launch.replicas if launch.together else 1
    for role, number in product(roles, range(copies)):
        own = role.suffix or (f"-{number}" if copies > 1 else "")
        ids = ", ".join(f'"{gpu}"' for gpu in range(number * each, (number + 1) * each))
        text += (
            f"  {name}{own}:\n"
            f"    image: {_image(launch)}\n"
            f"    entrypoint: [{_program(launch)}]\n"
            f"    command:\n{_listed(launch, role, '      ')}"
            "    environment:\n"
            + "".join(f"      {key}: {json.dumps(value)}\n" for key, value in _variables(launch))
            + f"      {TOKENS[0]}:\n"
            + (f"    profiles: [{role.suffix[1:]}]\n" if role.suffix else "")
            + (f'    ports: ["{int(port) + number}:{port}"]\n' if launch.nodes == 1 else "    network_mode: host\n")
            + "    ipc: host\n"
            + (f"    working_dir: {inside}\n" if files == "." else "")
            + f"    volumes:\n      - {json.dumps(f'{files}:{inside}:ro' if files else cache)}\n"
            "    deploy:\n      resources:\n        reservations:\n          devices:\n            - {driver: nvidia, "
            + (f"device_ids: [{ids}]" if copies > 1 else f"count: {each}")
            + ", capabilities: [gpu]}\n"
        )
    return text


def _kubernetes(launch: Emitted) -> str:
    """A Deployment, or a LeaderWorkerSet of as many pods as nodes, and a Service before those that answer."""
    name, port = _name(launch), _port(launch)
    roles = _roles(launch, "$(LWS_WORKER_INDEX)", "$(LWS_LEADER_ADDRESS)")
    if launch.nodes == 1:
        text = (
            f"apiVersion: apps/v1\nkind: Deployment\nmetadata: {{name: {name}}}\n"
            f"spec:\n  replicas: {launch.replicas}\n  selector: {{matchLabels: {{app: {name}}}}}\n  template:\n"
            + _pod(launch, roles[0], name, "    ")
        )
        selected = f"app: {name}"
    else:
        text = (
            f"apiVersion: leaderworkerset.x-k8s.io/v1\nkind: LeaderWorkerSet\nmetadata: {{name: {name}}}\n"
            f"spec:\n  replicas: {launch.replicas}\n  leaderWorkerTemplate:\n    size: {launch.nodes}\n"
            "    restartPolicy: RecreateGroupOnPodRestart\n"
            + "".join(
                f"    {'workerTemplate' if role is roles[-1] else 'leaderTemplate'}:\n"
                f"{_pod(launch, role, name, '      ')}"
                for role in roles
            )
        )
        selected = f'leaderworkerset.sigs.k8s.io/name: {name}, leaderworkerset.sigs.k8s.io/worker-index: "0"'
    return (
        f"{text}---\napiVersion: v1\nkind: Service\nmetadata: {{name: {name}-http}}\n"
        f"spec:\n  selector: {{{selected}}}\n  ports: [{{name: http, port: {port}}}]\n"
    )


def _pod(launch: Emitted, role: Role, name: str, indent: str) -> str:
    """The template of a pod: one container, its GPUs and shared memory, the model's files where it is not loaded by its
    name, for which the token of its hub stands in a Secret.
    """
    label = next(iter(shipped_gpus().get(launch.gpu or "", {}).get("labels", ())), None)
    files, inside = _files(launch)
    source = (
        "persistentVolumeClaim: {claimName: models}" if files == "." else f"hostPath: {{path: {json.dumps(files)}}}"
    )
    secret = f"{{secretKeyRef: {{name: hf-token, key: {TOKENS[0]}, optional: true}}}}"
    lines = (
        f"metadata: {{labels: {{app: {name}}}}}\nspec:\n"
        + (f"  nodeSelector: {{nvidia.com/gpu.product: {label}}}\n" if label else "")
        + "  containers:\n    - name: server\n"
        f"      image: {_image(launch)}\n"
        f"      command: [{_program(launch)}]\n"
        f"      args:\n{_listed(launch, role, '        ')}"
        + (f"      workingDir: {inside}\n" if files == "." else "")
        + "      env:\n"
        + "".join(f"        - {{name: {key}, value: {json.dumps(value)}}}\n" for key, value in _variables(launch))
        + f"        - {{name: {TOKENS[0]}, valueFrom: {secret}}}\n"
        f"      ports: [{{containerPort: {_port(launch)}}}]\n"
        f'      resources: {{limits: {{nvidia.com/gpu: "{launch.gpus // launch.nodes}"}}}}\n'
        "      volumeMounts:\n        - {name: shm, mountPath: /dev/shm}\n"
        + (f"        - {{name: models, mountPath: {json.dumps(inside)}, readOnly: true}}\n" if files else "")
        + "  volumes:\n    - {name: shm, emptyDir: {medium: Memory}}\n"
        + (f"    - {{name: models, {source}}}\n" if files else "")
    )
    return "".join(indent + line for line in lines.splitlines(keepends=True))


def _config(launch: Emitted) -> str:
    """The engine's own file of flags; variables, which it cannot hold, stand in a comment."""
    flag = launch.engine.model_flag.removeprefix("--")
    lines = [f"# with {name}={value} in its environment" for name, value in launch.env.items()]
    for piece in launch.pieces:
        name, equals, value = piece[0].removeprefix("--").partition("=")
        values = [value] if equals else piece[1:]
        if not piece[0].startswith("-"):
            name, values = flag, piece
        shown = ", ".join(map(_plain, values))
        lines.append(f"{name}: {f'[{shown}]' if len(values) > 1 else shown or 'true'}")
    return "\n".join(lines) + "\n"


def _plain(value: str) -> str:
    """A value as YAML holds it: numbers as they are, texts quoted."""
    return value if re.fullmatch(r"-?[0-9]+(\.[0-9]+)?", value) else json.dumps(value)
