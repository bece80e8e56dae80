"""Starts a real llama-server of the wheel xllamacpp on the CPU, in a process of its own, and gives its log back.

As a script: one JSON object names the file and the server's parameters; with ``serve`` it prints its address and serves
until its input ends. Its figures are those of tests/data/llamacpp: of every kind of model the metadata and the shapes
of a tiny one, as the loader asks for them.
"""

import json
import random
import subprocess
import sys
from array import array
from collections.abc import Iterator
from contextlib import contextmanager
from math import prod
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))  # where this is run as a script
from gguf_files import ALIGNMENT, header

TINY: dict[str, Any] = json.loads((Path(__file__).parents[1] / "data" / "llamacpp" / "tiny.json").read_text("utf-8"))
VOCABULARY = 256
GGML_TYPES = {"f32": 0, "f16": 1, "q4_0": 2, "q8_0": 8}
LAST = "~llama_context: "
"""Of the last line of a log that is whole."""
PROMPT = "! ! ! ! ! ! ! ! ! ! ! ! ! ! ! ! "


def write_tiny(kind: str, path: Path, **changed: Any) -> Path:
    """A model of a kind with random weights, about a megabyte; ``changed`` are keys of its metadata."""
    words = [chr(33 + number) if number < 94 else f"t{number}" for number in range(VOCABULARY)]
    metadata = {
        "general.architecture": kind,
        **{f"{kind}.{key}": held for key, held in (TINY[kind]["metadata"] | changed).items()},
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "default",
        "tokenizer.ggml.tokens": words,
        "tokenizer.ggml.merges": ["! !"],
        "tokenizer.ggml.token_type": [1] * VOCABULARY,
        "tokenizer.ggml.bos_token_id": 0,
        "tokenizer.ggml.eos_token_id": 1,
    }
    shapes = {name: tuple(shape) for name, shape in TINY[kind]["tensors"].items()}
    sizes = [4 * prod(shape) for shape in shapes.values()]
    data = header(metadata, {name: (shape, 0) for name, shape in shapes.items()}, sizes)
    some = array("f", (random.Random(0).gauss(0, 0.05) for _ in range(4096))).tobytes()
    body = b"".join((some * -(-size // len(some)))[:size] + bytes(-size % ALIGNMENT) for size in sizes)
    path.write_bytes(data + bytes(-len(data) % ALIGNMENT) + body)
    return path


def boot(path: Path, **settings: Any) -> tuple[bool, str]:
    """Whether a server starts on a file, and its log.

    On a busy machine one process in hundreds ends before the end of its log is written, or by a signal while its server
    stops, which says nothing of a start: it is run again.
    """
    command = [sys.executable, __file__, json.dumps({"file": str(path), **settings})]
    for _ in range(3):
        found = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
        if found.returncode > 0 or (not found.returncode and LAST in found.stderr + found.stdout):
            break
    return found.returncode == 0, found.stderr + found.stdout


@contextmanager
def serving(path: Path, **settings: Any) -> Iterator[str]:
    """The address of a server on a file, until the block ends."""
    asked = json.dumps({"file": str(path), **settings})
    with subprocess.Popen(
        [sys.executable, __file__, asked, "serve"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as process:
        try:
            assert process.stdout is not None
            yield next(line.strip() for line in process.stdout if line.startswith("http://"))
        finally:
            process.kill()


def _server(settings: dict[str, Any]) -> Any:
    import xllamacpp

    params = xllamacpp.CommonParams()
    params.model.path = settings.pop("file")
    params.port, params.warmup, params.verbosity = 0, False, 9
    params.fit_params = settings.pop("fit_params", False)
    params.cpuparams.n_threads = 1
    for name, value in settings.items():
        setattr(params, name, value)
    return xllamacpp.Server(params)


def _ask(settings: dict[str, Any]) -> None:
    prompts = settings.pop("prompts", [PROMPT])
    server = _server(settings)
    for prompt in prompts:
        server.handle_completions({"prompt": prompt, "max_tokens": 1})
    del server  # stops it, and writes what its log still holds


def _serve(settings: dict[str, Any]) -> None:
    server = _server(
        {"verbosity": 1, "endpoint_metrics": True, "endpoint_slots": True, "endpoint_props": True} | settings
    )
    print(server.listening_address, flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    (_serve if "serve" in sys.argv else _ask)(json.loads(sys.argv[1]))
