"""Which GPU does a label name? Node labels, accelerator names and instance types -> the GPU presets.

    NVIDIA-H100-80GB-HBM3, nvidia-h100-80gb, p5.48xlarge, ND96isr_H100_v5   ->   h100

Slices of a GPU (MIG, time slicing) and boards that come with another memory are not guessed.
"""

import re
from functools import cache

from hybridcalc.hardware import shipped_gpus

_INSTANCES = (
    (r"p5\.", "h100"), (r"p5en?\.", "h200"), (r"p4d\.", "a100-40gb"), (r"p4de\.", "a100-80gb"), (r"p6-b200\.", "b200"),
    (r"g5\.", "a10g"), (r"g6\.", "l4"), (r"g6e\.", "l40s"), (r"g4dn\.", "t4"),
    (r"a3-(high|mega|edge)gpu-", "h100"), (r"a3-ultragpu-", "h200"), (r"a2-highgpu-", "a100-40gb"),
    (r"a2-ultragpu-", "a100-80gb"), (r"a4-highgpu-", "b200"), (r"g2-standard-", "l4"),
    (r"(standard_)?nd96is[rf]?_h100_v5", "h100"), (r"(standard_)?nd96is[rf]?_h200_v5", "h200"),
    (r"(standard_)?nc\d+ads_a100_v4", "a100-80gb"), (r"(standard_)?nd96amsr_a100_v4", "a100-80gb"),
    (r"(standard_)?nd96asr_v4", "a100-40gb"), (r"(standard_)?nc\d+ads_h100_v5", None),
)  # fmt: skip
"""Instance types, by how they begin."""
_KINDS = re.compile(r"gb300|gb200|b300|b200|h200|h100|h20|a100|a10g|l40s|l4|t4|gb10|mi300x|mi325x|mi355x")
_SEVERAL = frozenset({"a100"})
"""Names of boards that come with one memory or another."""
_SLICED = re.compile(r"mig|shared|nvl\b|slice|vgpu|\d+g\.\d+gb")


@cache
def _names() -> dict[str, str]:
    return {
        _plain(name): gpu["id"]
        for gpu in shipped_gpus().values()
        for name in (gpu["id"], gpu["name"], *gpu.get("aliases", ()))
    }


def gpu_of(label: str) -> str | None:
    """The id of the GPU preset a label names; None where it names none for certain."""
    plain = _plain(label)
    if len(plain) > 100:
        return None
    known = _names()
    if plain in known and plain not in _SEVERAL:
        return known[plain]
    for pattern, preset in _INSTANCES:
        if re.match(pattern, label.strip().lower()):
            return preset
    if _SLICED.search(plain):
        return None
    kinds = {token for token in re.split(r"[^a-z0-9]+", plain) if _KINDS.fullmatch(token)}
    if len(kinds) != 1:
        return None
    kind = kinds.pop()
    if kind == "a100":
        memory = re.search(r"(40|80)g", plain)
        return f"a100-{memory[1]}gb" if memory else None
    if kind == "h20":
        return "h20-141gb" if re.search(r"141g|3e", plain) else "h20-96gb"
    return kind if kind in known.values() else None


def names_gpu(label: str) -> bool:
    """Whether a label speaks of a GPU, known here or not."""
    plain = _plain(label[:100])
    return gpu_of(label) is not None or any(_KINDS.fullmatch(token) for token in re.split(r"[^a-z0-9]+", plain))


def _plain(name: str) -> str:
    """A GPU's name without its maker, case and separators apart."""
    return "-".join(name.lower().replace("_", " ").replace("-", " ").split()).removeprefix("nvidia-")
