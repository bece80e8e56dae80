"""A launch written as a deployment file: a command, a compose file, a Kubernetes Deployment, an engine's own config.

What is written is read back by the readers of this package as the same launch. Texts are YAML by hand, every value of
which is quoted as JSON quotes it, so that no reader takes it for something else.
"""

import json
import re
import shlex
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from hybridcalc.engines import ENGINES
from hybridcalc.engines.engine import Engine
from hybridcalc.errors import InputError, quoted
from hybridcalc.hardware import shipped_gpus

PLAIN = ("cmd", "compose", "kubernetes")
CONFIG = "-yaml"
LONGEST_NAME = 50
_VALUE = re.compile(r"-(?![0-9.])")


class Emitted(NamedTuple):
    """A launch to write: its engine and release, words and variables, GPUs of one, the preset's id of these, how many
    are started, and what it is for.
    """

    engine: Engine
    version: str
    argv: tuple[str, ...]
    env: Mapping[str, str]
    gpus: int
    gpu: str | None = None
    replicas: int = 1
    about: str = ""


def forms() -> tuple[str, ...]:
    """The forms there are; an engine's own config file where it reads one."""
    return (*PLAIN, *(f"{name}{CONFIG}" for name, engine in ENGINES.items() if engine.flags.files))


def check_form(form: str) -> str:
    """The form. Raises InputError for one that is not known."""
    if form not in forms():
        raise InputError(f"--emit {quoted(form)} is not known", fix=f"write {', '.join(forms())}")
    return form


def emitted(form: str, launch: Emitted) -> str:
    """The text of a deployment. Raises InputError for a form of another engine, and for GPUs without a known image."""
    write = {"cmd": _command, "compose": _compose, "kubernetes": _kubernetes}.get(form)
    if write is None:
        own = f"{launch.engine.name}{CONFIG}"
        if form != own:
            raise InputError(f"--emit {form}: this is a launch of {launch.engine.title}", fix=f"write {own}")
        write = _config
    about = f"# {launch.about}\n" if launch.about else ""
    return about + write(launch)


def _command(launch: Emitted) -> str:
    """A shell command, a flag a line."""
    lines = [" ".join([*(f"{name}={shlex.quote(value)}" for name, value in launch.env.items()), *_head(launch)])]
    lines += [shlex.join(piece) for piece in _pieces(launch)]
    return " \\\n  ".join(lines) + "\n"


def _head(launch: Emitted) -> tuple[str, ...]:
    """The words that start the engine."""
    return launch.engine.command("MODEL")[: -2 if launch.engine.command("MODEL")[-2].startswith("-") else -1]


def _pieces(launch: Emitted) -> list[list[str]]:
    """What follows them, a flag with its value together."""
    pieces: list[list[str]] = []
    for word in launch.argv[len(_head(launch)) :]:
        if _VALUE.match(word) or not pieces or len(pieces[-1]) > 1 or not _VALUE.match(pieces[-1][0]):
            pieces.append([word])
        else:
            pieces[-1].append(word)
    return pieces


def _image(launch: Emitted) -> str:
    card = shipped_gpus().get(launch.gpu or "", {})
    own = ENGINES.rows[launch.engine.name].starter.own_images
    if "gfx" in card or not own:
        raise InputError(f"no image of {launch.engine.title} for this GPU is known here", fix="write --emit cmd")
    return f"{own[0]}:v{launch.version}"


def _name(launch: Emitted) -> str:
    """A name that a container may have, of the model."""
    model = next((word for word in launch.argv[len(_head(launch)) :] if not word.startswith("-")), "server")
    plain = re.sub(r"[^a-z0-9]+", "-", model.rpartition("/")[2].lower()).strip("-")
    return plain[:LONGEST_NAME].strip("-") or "server"


def _quoted(words: Sequence[str]) -> str:
    return ", ".join(json.dumps(word) for word in words)


def _listed(words: Sequence[Sequence[str]], indent: str) -> str:
    return "\n".join(f"{indent}- {json.dumps(word)}" for piece in words for word in piece)


def _in_container(launch: Emitted) -> list[str]:
    """The program's words as images have it: python3."""
    return ["python3" if word == "python" else word for word in _head(launch)]


def _compose(launch: Emitted) -> str:
    name = _name(launch)
    env = "".join(f"      {key}: {json.dumps(value)}\n" for key, value in launch.env.items())
    return (
        "services:\n"
        f"  {name}:\n"
        f"    image: {_image(launch)}\n"
        f"    entrypoint: [{_quoted(_in_container(launch))}]\n"
        f"    command:\n{_listed([*_pieces(launch), launch.engine.in_container], '      ')}\n"
        + (f"    environment:\n{env}" if env else "")
        + "    ipc: host\n"
        "    volumes:\n      - ~/.cache/huggingface:/root/.cache/huggingface\n"
        "    deploy:\n"
        + (f"      replicas: {launch.replicas}\n" if launch.replicas > 1 else "")
        + "      resources:\n        reservations:\n          devices:\n"
        f"            - {{driver: nvidia, count: {launch.gpus}, capabilities: [gpu]}}\n"
    )


def _kubernetes(launch: Emitted) -> str:
    name = _name(launch)
    label = next(iter(shipped_gpus().get(launch.gpu or "", {}).get("labels", ())), None)
    env = "".join(f"            - {{name: {key}, value: {json.dumps(value)}}}\n" for key, value in launch.env.items())
    return (
        "apiVersion: apps/v1\nkind: Deployment\n"
        f"metadata: {{name: {name}}}\n"
        f"spec:\n  replicas: {launch.replicas}\n"
        f"  selector: {{matchLabels: {{app: {name}}}}}\n"
        f"  template:\n    metadata: {{labels: {{app: {name}}}}}\n    spec:\n"
        + (f"      nodeSelector: {{nvidia.com/gpu.product: {label}}}\n" if label else "")
        + "      containers:\n        - name: server\n"
        f"          image: {_image(launch)}\n"
        f"          command: [{_quoted(_in_container(launch))}]\n"
        f"          args:\n{_listed([*_pieces(launch), launch.engine.in_container], '            ')}\n"
        + (f"          env:\n{env}" if env else "")
        + f'          resources: {{limits: {{nvidia.com/gpu: "{launch.gpus}"}}}}\n'
        "          volumeMounts:\n            - {name: shm, mountPath: /dev/shm}\n"
        "      volumes:\n        - {name: shm, emptyDir: {medium: Memory}}\n"
    )


def _config(launch: Emitted) -> str:
    """The engine's own file of flags; variables, which it cannot hold, stand in a comment."""
    flag = launch.engine.model_flag.removeprefix("--")
    lines = [f"# with {name}={value} in its environment" for name, value in launch.env.items()]
    for piece in _pieces(launch):
        if not piece[0].startswith("-"):
            piece = [f"--{flag}", *piece]
        name = piece[0].removeprefix("--")
        lines.append(f"{name}: {_plain(piece[1]) if len(piece) > 1 else 'true'}")
    return "\n".join(lines) + "\n"


def _plain(value: str) -> Any:
    """A value as YAML holds it: numbers as they are, texts quoted."""
    return value if re.fullmatch(r"-?[0-9]+(\.[0-9]+)?", value) else json.dumps(value)
