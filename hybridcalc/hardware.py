"""Which GPUs are meant, and how much memory do they have?

GPUs come from presets by name or alias, by what a cluster calls them, or as a size, several as 8xh200. Their memory is
known twice: the driver's total (nvidia-smi, amd-smi), and the lesser total that the CUDA or HIP runtime gives to
engines.
"""

import json
import re
from collections.abc import Mapping
from functools import cache
from typing import Any, NamedTuple

from hybridcalc.architecture.presets import package_file
from hybridcalc.errors import InputError, quoted
from hybridcalc.units import GIB, in_gib, parse_bytes

LEAST_GIB = 1.1
RUNTIME_LACKS = ((36.0, 0.45), (100.0, 0.60), (200.0, 0.75), (float("inf"), 0.90))
"""GiB to which a CUDA card's memory goes -> what the runtime gives less than the driver; off by 0.1 at most on 31 cards
of which both are known (V100: 0.25).
"""
LEAST_LINK_GBS = 100
"""Bandwidth of a link between cards that is NVLink of a server; bridges of workstation cards are slower."""
MOST_GPUS = 4096
_SEVERAL = re.compile(r"\s*([0-9]{1,18})\s*x\s*(?=[A-Za-z0-9])", re.IGNORECASE)


class Gpu(NamedTuple):
    """A GPU's memory in GiB: the driver's total (where a driver prints none, the runtime's), where it is from, its CUDA
    compute capability, and the total that the runtime gives (None where no output of it is known); how many there are,
    None where nobody says.
    ``unified``: memory is the host's as well; ``linked``: cards of a machine are joined by NVLink, not by PCIe alone;
    ``amd``: its runtime is HIP, which gives all that the driver has; ``node``: how many of it a machine holds at most.
    """

    gib: float
    source: str
    capability: str | None = None
    runtime_gib: float | None = None
    cards: int | None = None
    unified: bool = False
    linked: bool = False
    amd: bool = False
    node: int = 8

    @property
    def engine_gib(self) -> float:
        """The total that an engine multiplies its share with: the runtime's, else the driver's less what runtimes of
        such cards lack of it.
        """
        if self.runtime_gib is not None:
            return self.runtime_gib
        if self.capability is None or self.unified:
            return self.gib
        return self.gib - next(lacking for most, lacking in RUNTIME_LACKS if self.gib <= most)


def gpu_id(name: str) -> str | None:
    """The id of the preset with that very name; None where none has it."""
    return next((key for key, each in shipped_gpus().items() if each["name"] == name), None)


def gpus_in_words(count: int) -> str:
    """1 GPU, 8 GPUs."""
    return f"{count:,} GPU{'' if count == 1 else 's'}"


def few_in_words(ranks: int, gpus: str) -> str:
    """What is said of fewer GPUs than ranks."""
    return f"{ranks} ranks, and {gpus} to run them on" if ranks > 1 else f"1 rank, and {gpus} to run it on"


def idle_in_words(ranks: int, gpus: str) -> str:
    """What is said of more GPUs than ranks."""
    return f"{ranks} rank{'' if ranks == 1 else 's'} on {gpus}: the others idle"


def beyond_node(gpus: int | None, card: "Gpu | None") -> tuple[str, str] | None:
    """What is said of more GPUs for one node than it holds of that preset, and what to write; None where it holds them,
    or nobody knows.
    """
    if gpus is None or card is None or gpu_id(card.source) is None or gpus <= card.node:
        return None
    said = f"{gpus} GPUs are asked for on one node, which holds {card.node} of {card.source}"
    return said, f"ask for {gpus_in_words(card.node)} a node, on {-(-gpus // card.node)} nodes"


@cache
def shipped_gpus() -> dict[str, dict[str, Any]]:
    """Every shipped GPU preset by id, as plain data."""
    loaded: dict[str, dict[str, Any]] = json.loads(package_file("presets/gpus.json"))
    return loaded


@cache
def kinds_of_gpus() -> tuple[Gpu, ...]:
    """A GPU of NVIDIA's of each compute capability, and of less and of more than the 70 GiB that engines tell apart."""
    found = {(gpu.capability, gpu.gib < 70): gpu for gpu in map(find_gpu, shipped_gpus()) if gpu.capability}
    return tuple(found.values())


def find_gpu(name_or_size: str) -> Gpu:
    """A GPU by the name, an alias or a label of its preset, or by its size, or several as 8xh200. Raises InputError
    with the nearest names.
    """
    several, gpus = _SEVERAL.match(name_or_size), shipped_gpus()
    many_of_one = several is not None and _plain(name_or_size[several.end() :]) in gpus
    preset = None if many_of_one else _preset(name_or_size)
    several = several if preset is None else None
    rest = name_or_size[several.end() :] if several is not None else ""
    if several is not None and (0 < int(several[1]) <= MOST_GPUS or _preset(rest) is not None):
        count = int(several[1])
        if not 0 < count <= MOST_GPUS:
            some = f"--gpu {quoted(name_or_size)}: {count:,} is no number of GPUs that is planned"
            raise InputError(some, fix=f"write 1 to {MOST_GPUS:,}, as in 8xh200")
        return find_gpu(rest)._replace(cards=count)
    if preset is not None:
        runtime: float | None = preset.get("runtime_gib")
        gib = preset["driver_mib"] / 1024 if "driver_mib" in preset else runtime
        return Gpu(
            gib or 0.0,
            preset["name"],
            preset.get("compute_capability"),
            runtime,
            unified=preset.get("unified", False),
            linked=(preset.get("nvlink_gbs") or 0) >= LEAST_LINK_GBS,
            amd="gfx" in preset,
            node=preset.get("gpus_per_node", 8),
        )
    if _plain(name_or_size)[:1].isdigit() and not _CARD.fullmatch(_plain(name_or_size)):
        size = parse_bytes(name_or_size) / GIB
        if size <= LEAST_GIB:
            raise InputError(f"--gpu {name_or_size[:40]}: no GPU has so little", fix=f"write {in_gib(name_or_size)}")
        return Gpu(size, f"{size:.4g} GiB as given")
    near = _nearest(_plain(name_or_size)[:40])
    some = f"as h100, h200, b200, l40s, rtx-4090 or mi300x: docs/presets.md has the {len(gpus)}"
    known = f"{'nearest: ' + ', '.join(near[:4]) if near else some}; or a size"
    raise InputError(f"no GPU {quoted(name_or_size)}", fix=known)


def _nearest(wanted: str) -> list[str]:
    """The ids of presets of the same family or number, or with nearly that name, the nearest first."""
    from difflib import SequenceMatcher

    number = re.match(r"(?:(?:geforce|radeon)-)?(?:rtx|rx)?-?([0-9]{4})", wanted)
    close = dict[str, float]()
    for name, gpu in shipped_gpus().items():
        if number and not name.startswith(("rt", "rx", "w", "r9")):
            continue
        spelt = (known.lower().replace("-", "") for known in _names(gpu))
        likeness = max(SequenceMatcher(None, wanted.replace("-", ""), known).ratio() for known in spelt)
        kin = number[1] in name if number else wanted.partition("-")[0] == name.partition("-")[0]
        if kin or likeness >= 0.5:
            close[name] = likeness + kin
    return sorted(close, key=lambda name: -close[name])


PCIE_LANE_GBS = {
    "3.0": 8 * 128 / 130 / 8, "4.0": 16 * 128 / 130 / 8, "5.0": 32 * 128 / 130 / 8, "6.0": 64 * 236 / 256 / 8,
}  # fmt: skip
"""GB/s of one lane one way, by generation: gigatransfers a second, 128 bits of 130 or 236 bytes of 256 being data."""


class Rates(NamedTuple):
    """What a GPU does at most, by its preset: bandwidth of its memory in GB/s (10^9), dense TFLOP/s by format, links in
    GB/s one way, each with its source.
    """

    name: str
    bandwidth_gbs: float
    dense_tflops: Mapping[str, float]
    nvlink_gbs: float | None
    sources: Mapping[str, str]
    pcie: str | None = None

    def link_gbs(self, name: str) -> float:
        """GB/s one way of ``nvlink`` or ``pcie``. Raises InputError for another, or where the preset has none."""
        generation, _, lanes = (self.pcie or "").partition(" x")  # without lanes: not how the host is joined
        links = {"nvlink": self.nvlink_gbs, "pcie": PCIE_LANE_GBS.get(generation, 0.0) * int(lanes or 0)}
        found = links.get(name)
        if found:
            return found
        known = (*(link for link, rate in links.items() if rate), "a number of GB/s")
        raise InputError(f"{self.name} has no link {quoted(name)} here", fix=f"write {' or '.join(known)}")

    def peak(self, bits: int) -> float:
        """The highest TFLOP/s of a model whose narrowest weights have so many bits: kernels may widen what they read,
        so that this is what no kernel passes.
        """
        wide = {"fp4": 4, "fp6": 6, "fp8": 8, "int8": 8}
        return max(rate for kind, rate in self.dense_tflops.items() if wide.get(kind, 16) >= bits)


def kind_of(name: str) -> str:
    """A GPU's name without how many there are: h200 of 8xh200."""
    several = _SEVERAL.match(name)
    return (name[several.end() :] if several else name).strip()


def rates_of(name: str) -> Rates:
    """Rates of a GPU by its preset, one of several as 8xh200. Raises InputError where they are not known."""
    preset = _preset(kind_of(name))
    if preset is None:
        find_gpu(name)  # raises with the nearest names, unless it is a size
        raise InputError(f"--gpu {quoted(name)}: a size has no bandwidth", fix="name the GPU, as in --gpu h200")
    if not preset.get("bandwidth_gbs") or not preset.get("dense_tflops"):
        raise InputError(f"{preset['name']}: neither bandwidth nor peak rates are known here")
    sources = {key: f"{said['source']} ({said['confidence']})" for key, said in preset["sources"].items()}
    rates = preset["name"], preset["bandwidth_gbs"], preset["dense_tflops"], preset.get("nvlink_gbs")
    return Rates(*rates, sources, preset.get("pcie"))


def _preset(name: str) -> dict[str, Any] | None:
    """A GPU's preset by its name, an alias or a label, or by words around them that change nothing (80GB, SXM2)."""
    gpus, plain = shipped_gpus(), _plain(name)
    if plain in gpus:
        return gpus[plain]
    wanted = _squeezed(name)
    named = _ids().get(wanted) or (gpu_of_label(name) if not wanted[:1].isdigit() else None)
    if named is not None:
        return gpus[named]
    memory = _SAYS_MEMORY.search(name)
    found = _preset(name[: memory.start()]) if memory is not None and memory.start() else None
    return found if found is not None and memory is not None and _holds(found, memory[1]) else None


@cache
def _ids() -> dict[str, str]:
    """Names, aliases and labels as they are typed without separators, each with the first preset that has it."""
    ids: dict[str, str] = {}
    for gpu in shipped_gpus().values():
        for name in (*_names(gpu), *gpu.get("labels", ())):
            ids.setdefault(_squeezed(name), gpu["id"])
    return ids


def _holds(gpu: dict[str, Any], gigabytes: str) -> bool:
    """Whether a GPU has as much memory as is said of it."""
    gib: float = gpu["driver_mib"] / 1024 if "driver_mib" in gpu else gpu["runtime_gib"]
    return abs(gib / int(gigabytes) - 1) <= 0.1  # GB or GiB, with or without what the driver keeps


def _names(gpu: dict[str, Any]) -> tuple[str, ...]:
    return (gpu["id"], gpu["name"], *gpu.get("aliases", ()))


LONGEST_LABEL = 100
_SLICED = re.compile(r"mig|shared|slice|vgpu|\d+g\.\d+gb")
_MEMORY = re.compile(r"\d+gb?|\d+g?b?i?b")
_CARD = re.compile(r"[0-9]{4}-?(?:(?:ti|super|xtx?|gre|d|laptop|mobile|m)(?![a-z])-?)*(?:[0-9]{1,3}gb?)?")
"""A consumer card by its bare number, which is no size: 4070, 7900xt, 4060ti-8gb."""
_SAYS_MEMORY = re.compile(r"[\s_-]*(?<![0-9])([1-9][0-9]{0,2})\s?g(?:i?b)?\s*$", re.IGNORECASE)
_OTHER_CARDS = frozenset({
    "ti", "super", "laptop", "mobile", "notebook", "xtx", "gre", "ada", "pro", "d", "d2", "pcie", "nvl", "ultra",
})  # fmt: skip
"""Words that make another card of a name where they stand behind it."""


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
            whole[_squeezed(name)] = gpu["id"]
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
    if (named := whole.get(_squeezed(plain))) is not None:
        return named
    for family, gpu_id in families:
        if family.match(label.strip().lower()):
            return gpu_id
    if _SLICED.search(plain):
        return None
    spoken = frozenset(re.split(r"[^a-z0-9]+", plain))
    fitting = [(len(name), gpu_id) for name, gpu_id in words if name <= spoken and _same_card(gpu_id, spoken - name)]
    best = {gpu_id for count, gpu_id in fitting if count == fitting[0][0]}
    return best.pop() if len(best) == 1 else None


def _same_card(gpu_id: str, beside: frozenset[str]) -> bool:
    """Whether the words beside a name are still of that card, with its memory."""
    sizes = (size for word in beside if (size := re.fullmatch(r"([1-9][0-9]{1,2})gi?b?", word)))
    return not beside & _OTHER_CARDS and all(_holds(shipped_gpus()[gpu_id], size[1]) for size in sizes)


def names_gpu(label: str) -> bool:
    """Whether a label speaks of a GPU, known for certain or not."""
    kinds = {gpu_id.partition("-")[0] for gpu_id in shipped_gpus()} - {"arc", "max", "strix"}
    words = re.split(r"[^a-z0-9]+", _plain(label[:LONGEST_LABEL]))
    return gpu_of_label(label) is not None or not kinds.isdisjoint(words)


def _plain(name: str) -> str:
    """A GPU's name without its maker, case and separators apart."""
    plain = "-".join(name.lower().replace("_", " ").replace("-", " ").split())
    return re.sub(r"^(nvidia|amd|intel|huawei)-", "", plain)


def _squeezed(name: str) -> str:
    """A GPU's name as it is typed without separators and series: 7900xtx, 4060ti, 6000ada."""
    plain = re.sub(r"^(?:(?:geforce|radeon|tesla|instinct|quadro)-)?(?:rtx|rx)?(?=.)", "", _plain(name))
    return re.sub(r"[^a-z0-9]", "", plain)
