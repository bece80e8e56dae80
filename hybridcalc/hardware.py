"""Which GPU is meant, how much memory does it have, and how much of it do a checkpoint's weights take?

GPUs come from presets by name or alias, by what a cluster calls them, or as a size. Their memory is known twice: the
driver's total (nvidia-smi, amd-smi), and the lesser total that the CUDA or HIP runtime gives to engines. Weights come
from ``model.safetensors.index.json``: its total over the ranks, which assumes that they share it evenly.
"""

import json
import re
from functools import cache, lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from hybridcalc.errors import InputError, quoted
from hybridcalc.resources import package_file
from hybridcalc.units import GIB, MIB, parse_bytes

LEAST_GIB = 1.1
LARGEST_INDEX_BYTES = 8 * MIB


class Gpu(NamedTuple):
    """A GPU's memory in GiB: the driver's total (where a driver prints none, the runtime's), where it is from, its CUDA
    compute capability, and the total that the runtime gives (None where no output of it is known).
    """

    gib: float
    source: str
    capability: str | None = None
    runtime_gib: float | None = None

    @property
    def engine_gib(self) -> float:
        """The total that an engine multiplies its share with: the runtime's, else the driver's."""
        return self.gib if self.runtime_gib is None else self.runtime_gib


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
            runtime: float | None = gpu.get("runtime_gib")
            gib = gpu["driver_mib"] / 1024 if "driver_mib" in gpu else runtime
            return Gpu(gib or 0.0, gpu["name"], gpu.get("compute_capability"), runtime)
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


LONGEST_LABEL = 100
_SLICED = re.compile(r"mig|shared|slice|vgpu|\d+g\.\d+gb")
_MEMORY = re.compile(r"\d+gb?|\d+g?b?i?b")


@cache
def _labels() -> tuple[dict[str, str], list[tuple[frozenset[str], str]], list[tuple[re.Pattern[str], str]]]:
    """What labels are held against: names as a whole, the words of a name, and the families of instance types."""
    whole: dict[str, str] = {}
    words: list[tuple[frozenset[str], str]] = []
    families: dict[str, set[str]] = {}
    boards = [gpu_id.split("-") for gpu_id in shipped_gpus()]
    for gpu in shipped_gpus().values():
        for name in (gpu["id"], gpu["name"], *gpu.get("aliases", ()), *gpu.get("labels", ())):
            plain = _plain(name)
            several = sum(board[:-1] == plain.split("-") and bool(_MEMORY.fullmatch(board[-1])) for board in boards) > 1
            if several and name not in gpu.get("labels", ()):
                continue  # a board that comes with one memory or another
            whole[plain] = gpu["id"]
            if not plain.replace("-", "").isdigit():
                words.append((frozenset(plain.split("-")), gpu["id"]))
        for instance in gpu.get("instances", ()):
            families.setdefault(_family(instance), set()).add(gpu["id"])
    certain = [(re.compile(family), ids.pop()) for family, ids in families.items() if len(ids) == 1]
    return whole, sorted(words, key=lambda entry: -len(entry[0])), certain


def _family(instance: str) -> str:
    """A pattern of the instance types that carry the same GPU: other sizes of p5., a2-highgpu-, NC..ads_A100_v4."""
    name = re.escape(instance.lower())
    if name.startswith("standard_"):
        return "(standard_)?" + re.sub(r"^(n[a-z])[0-9]+", r"\1[0-9]+", name.removeprefix("standard_")) + "$"
    head, dot, _ = name.partition("\\.")
    return head + dot if dot else re.sub(r"[0-9]+g?$", "", name)


def gpu_of_label(label: str) -> str | None:
    """The id of the GPU preset that a cluster's label names: a node label, a device plugin's product, an accelerator
    name, an instance type (NVIDIA-H100-80GB-HBM3, nvidia-h100-80gb, p5.48xlarge -> h100). None where it names none for
    certain: slices of a GPU (MIG, time slicing), boards that come with another memory.
    """
    plain = _plain(label[: LONGEST_LABEL + 1])
    if len(plain) > LONGEST_LABEL:
        return None
    whole, words, families = _labels()
    if plain in whole:
        return whole[plain]
    for family, gpu_id in families:
        if family.match(label.strip().lower()):
            return gpu_id
    if _SLICED.search(plain):
        return None
    spoken = frozenset(re.split(r"[^a-z0-9]+", plain))
    fitting = [(len(name), gpu_id) for name, gpu_id in words if name <= spoken]
    best = {gpu_id for count, gpu_id in fitting if count == fitting[0][0]}
    return best.pop() if len(best) == 1 else None


def names_gpu(label: str) -> bool:
    """Whether a label speaks of a GPU, known for certain or not."""
    kinds = {gpu_id.partition("-")[0] for gpu_id in shipped_gpus()} - {"arc", "max", "strix"}
    words = re.split(r"[^a-z0-9]+", _plain(label[:LONGEST_LABEL]))
    return gpu_of_label(label) is not None or not kinds.isdisjoint(words)


def _plain(name: str) -> str:
    """A GPU's name without its maker, case and separators apart."""
    plain = "-".join(name.lower().replace("_", " ").replace("-", " ").split())
    return re.sub(r"^(nvidia|amd|intel|huawei)-", "", plain)


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
