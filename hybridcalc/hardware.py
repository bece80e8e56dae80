"""Which GPU is meant, how much memory does it have, and how much of it do a checkpoint's weights take?

GPUs come from presets by name or alias, or as a size. Weights come from ``model.safetensors.index.json``: its
total over the ranks, which assumes that they share it evenly.
"""

import json
from functools import cache, lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from hybridcalc.errors import InputError, quoted
from hybridcalc.resources import package_file
from hybridcalc.units import GIB, MIB, parse_bytes

LEAST_GIB = 1.1
LARGEST_INDEX_BYTES = 8 * MIB


class Gpu(NamedTuple):
    """A GPU's memory as its driver reports it, GiB, where the figure is from, and its CUDA compute capability."""

    gib: float
    source: str
    capability: str | None = None


@cache
def shipped_gpus() -> dict[str, dict[str, Any]]:
    """Every shipped GPU preset by id, as plain data."""
    loaded: dict[str, dict[str, Any]] = json.loads(package_file("presets/gpus.json"))
    return loaded


def find_gpu(name_or_size: str) -> Gpu:
    """A GPU by the name or an alias of its preset, or by its size. Raises InputError with the nearest names."""
    gpus = shipped_gpus()
    wanted = _plain(name_or_size)
    for gpu in gpus.values():
        if wanted in map(_plain, (gpu["id"], gpu["name"], *gpu.get("aliases", ()))):
            return Gpu(gpu["memory_mib"] / 1024, gpu["name"], gpu.get("compute_capability"))
    if wanted[:1].isdigit():
        size = parse_bytes(name_or_size) / GIB
        if size <= LEAST_GIB:
            raise InputError(f"--gpu {name_or_size[:40]}: no GPU has so little", fix=f"write {name_or_size[:20]}GiB")
        return Gpu(size, "as given")
    import difflib

    kin = [name for name in gpus if name.partition("-")[0] == wanted.partition("-")[0]]
    near = list(dict.fromkeys([*kin, *difflib.get_close_matches(wanted[:40], gpus, n=3, cutoff=0.5)]))
    known = f"nearest: {', '.join(near[:4])}; or a size" if near else f"one of {', '.join(gpus)}; or a size"
    raise InputError(f"no GPU {quoted(name_or_size)}", fix=known)


def _plain(name: str) -> str:
    """A GPU's name without its maker, case and separators apart."""
    return "-".join(name.lower().replace("_", " ").replace("-", " ").split()).removeprefix("nvidia-")


def weights_from_index(checkpoint: Path, ranks: int) -> float | None:
    """GiB of weights on one rank from the ``model.safetensors.index.json`` of a folder, or beside a file in it: total
    over ``ranks``; None without one.
    """
    index = (checkpoint.parent if checkpoint.is_file() else checkpoint) / "model.safetensors.index.json"
    if not index.is_file() or index.stat().st_size > LARGEST_INDEX_BYTES:
        return None
    return _total_bytes(index) / ranks / GIB


@lru_cache(maxsize=8)
def _total_bytes(index: Path) -> float:
    """metadata.total_size of an index, read once for a whole sweep."""
    try:
        total = json.loads(index.read_bytes())["metadata"]["total_size"]
    except (ValueError, KeyError, TypeError, RecursionError):
        raise InputError(f"{index}: not a safetensors index", fix="give --weights SIZE") from None
    if isinstance(total, bool) or not isinstance(total, int | float) or not 0 < total < 2**60:
        raise InputError(f"{index}: metadata.total_size is not a size", fix="give --weights SIZE")
    return float(total)
