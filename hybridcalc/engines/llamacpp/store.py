"""Which file does Ollama's local store hold for a name of its library?

    qwen3.5:27b -> manifests/registry.ollama.ai/library/qwen3.5/27b -> blobs/sha256-...     of OLLAMA_MODELS

The store is that of this machine, ~/.ollama/models where OLLAMA_MODELS does not say. A manifest is read to
LARGEST_MANIFEST; of a blob the header alone. Source: Ollama types/model/name.go, server/modelpath.go (v0.33.0-rc2).
"""

import json
import os
import re
from contextlib import suppress
from pathlib import Path

from hybridcalc.errors import HybridcalcError

LARGEST_MANIFEST = 2**20
HUBS = ("hf.co", "huggingface.co")
_NAME = re.compile(r"(?:[\w.-]{1,80}/){0,3}[\w.-]{1,80}(?::[\w.-]{1,80})?", re.ASCII)
_DIGEST = re.compile(r"sha256:([0-9a-f]{64})")


def stored(name: str) -> str | None:
    """The GGUF file of a model; None where the store has none that is read here."""
    if not _NAME.fullmatch(name) or ".." in name:
        return None
    path, _, tag = name.removeprefix("registry.ollama.ai/").partition(":")
    parts = path.split("/")
    where = parts if parts[0] in HUBS else ["registry.ollama.ai", *(["library"] if len(parts) == 1 else []), *parts]
    models = Path(os.environ.get("OLLAMA_MODELS") or os.path.join(os.path.expanduser("~"), ".ollama", "models"))
    with suppress(OSError, ValueError, KeyError, TypeError, RecursionError, HybridcalcError):
        from hybridcalc.architecture.gguf_model import load_gguf

        with models.joinpath("manifests", *where, tag or "latest").open("rb") as stream:
            manifest = json.loads(stream.read(LARGEST_MANIFEST))
        for layer in manifest["layers"]:
            if layer["mediaType"] == "application/vnd.ollama.image.model":
                digest = _DIGEST.fullmatch(layer["digest"])
                blob = models / "blobs" / f"sha256-{digest[1]}" if digest is not None else None
                if blob is not None and load_gguf(blob):
                    return str(blob)
    return None
