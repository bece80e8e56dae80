"""Where tensors are made, how much room there is, and what the allocator says it took.

    meta   shapes and element sizes alone: no memory, any scale; nothing to measure but the storage torch states
    cpu    allocated and touched; what a tensor takes are the resident pages it spans, asked of the kernel (mincore),
           and what it should take follows from its address; the process's resident memory is read too
    cuda   memory_allocated before and after each tensor, against the caching allocator's rules; memory_reserved in all

A `Meter` is one device for one measurement: `begin` with the sizes to come, `touch` and `took` after each tensor,
`held` while all are there, `freed` when they are gone. HIP builds of torch answer to "cuda" as well. Unit: bytes.
"""

import ctypes
import mmap
import os
import resource
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from hybridcalc.crosscheck.backend import torch
from hybridcalc.crosscheck.caching_allocator import Block, Prediction, Settings, predict, read_settings
from hybridcalc.errors import InputError, quoted
from hybridcalc.units import MIB

DEVICES = ("meta", "cpu", "cuda")
PIECE = 256 * MIB
"""Bytes touched at a time, so that an interrupt is answered between two pieces."""
CPU_SHARE, CUDA_SHARE = 0.25, 0.9
"""Of the free memory, what auto takes: a GPU is for this, a host has other work to do."""
CUDA_RESERVE, HOST_PART = 512 * MIB, 0.95
"""What is kept back for a GPU's driver, and the part of a host's free memory that may be taken at all."""


class Took(NamedTuple):
    """Bytes the allocator took for a tensor and bytes it should take; None where the device does not say."""

    measured: int | None
    expected: int | None

    @property
    def ok(self) -> bool:
        """Whether they agree, as far as both are known."""
        return None in (self.measured, self.expected) or self.measured == self.expected


class Check(NamedTuple):
    """A figure beside the rows: what it should be and what it is. ``bound`` is "=" or "<="."""

    name: str
    expected: float
    found: float
    bound: str = "="

    @property
    def ok(self) -> bool:
        """Whether it holds."""
        return self.found == self.expected if self.bound == "=" else self.found <= self.expected

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        return {**self._asdict(), "ok": self.ok}


class Meter(Protocol):
    """One device, and its readings over one measurement."""

    device: str

    def room(self) -> int | None:
        """Bytes that may be allocated now; None where there is no limit."""

    def needs(self, sizes: Sequence[int]) -> int:
        """Bytes that tensors of ``sizes`` need beside what is in use."""

    def begin(self, sizes: Sequence[int]) -> None:
        """Take the readings before, and predict."""

    def touch(self, tensor: Any) -> None:
        """Make the memory real."""

    def took(self, tensor: Any) -> Took:
        """What the tensor made last took."""

    def held(self) -> tuple[dict[str, Any], list[Check]]:
        """Readings while every tensor is held."""

    def freed(self) -> tuple[dict[str, Any], list[Check]]:
        """Readings after the last tensor is gone."""


def find_device(name: str | None) -> str:
    """``name``, or cuda where torch has it and meta where not. Raises InputError for a device that is not there."""
    has_cuda = torch.cuda.is_available()
    if name is None:
        return "cuda" if has_cuda else "meta"
    if name not in DEVICES:
        raise InputError(f"--device {quoted(name)} is not known", fix=f"write {', '.join(DEVICES)}")
    if name == "cuda" and not has_cuda:
        raise InputError(
            f"--device cuda: torch {torch.__version__} finds no GPU",
            fix="write --device meta, or cpu to really allocate",
        )
    return name


def meter(device: str) -> "Meter":
    """The meter of a device; a GPU is that of this process (torch.cuda.current_device)."""
    if device == "cuda":
        settings = read_settings(os.environ)
        if settings.refused:
            raise InputError(f"{settings.source}: torch refuses {settings.refused[0]}", fix="mend it, or unset it")
        return CudaMeter(torch.cuda, settings)
    return CpuMeter() if device == "cpu" else MetaMeter()


class MetaMeter:
    """Nothing is allocated; what a CUDA allocator would take is predicted."""

    device = "meta"

    def __init__(self) -> None:
        self._settings = read_settings(os.environ)
        self._expected: list[int] = []
        self._prediction: Prediction | None = None

    def room(self) -> int | None:
        """No limit."""
        return None

    def needs(self, sizes: Sequence[int]) -> int:
        """Nothing."""
        return 0

    def begin(self, sizes: Sequence[int]) -> None:
        """Predict what a GPU's allocator would take."""
        self._prediction = predict(sizes, self._settings) if self._settings.predictable else None
        self._expected = list(self._prediction.blocks) if self._prediction else []

    def touch(self, tensor: Any) -> None:
        """There is nothing to touch."""

    def took(self, tensor: Any) -> Took:
        """Nothing measured; the block a GPU's allocator would give."""
        return Took(None, self._expected.pop(0) if self._expected else None)

    def held(self) -> tuple[dict[str, Any], list[Check]]:
        """The prediction in all."""
        stats: dict[str, Any] = {"allocator_settings": settings_dict(self._settings)}
        if self._prediction is not None:
            stats["predicted_allocated_bytes"] = self._prediction.allocated
            stats["predicted_reserved_bytes"] = self._prediction.reserved
        return stats, []

    def freed(self) -> tuple[dict[str, Any], list[Check]]:
        """Nothing was taken."""
        return {}, []


class CpuMeter:
    """Host memory: each tensor's pages, and the process's resident set."""

    device = "cpu"

    def __init__(self) -> None:
        self._resident_before = 0
        self._mincore = _mincore()

    def room(self) -> int | None:
        """Most of what the system and the control group have left; None where neither says."""
        return None if (left := _host_room()) is None else int(left * HOST_PART)

    def needs(self, sizes: Sequence[int]) -> int:
        """Their pages."""
        return sum(_span(0, size) for size in sizes)

    def begin(self, sizes: Sequence[int]) -> None:
        """Read the resident set."""
        self._resident_before = resident_bytes()

    def touch(self, tensor: Any) -> None:
        """Write every byte."""
        write_all(tensor)

    def took(self, tensor: Any) -> Took:
        """Resident pages of the tensor, and pages that its address and size span."""
        storage = tensor.untyped_storage()
        address, size = storage.data_ptr(), storage.nbytes()
        if not size or self._mincore is None:
            return Took(0, 0) if not size else Took(None, None)
        return Took(self._mincore(address, size), _span(address, size))

    def held(self) -> tuple[dict[str, Any], list[Check]]:
        """The resident set with every tensor in it."""
        return {"resident_before_bytes": self._resident_before, "resident_held_bytes": resident_bytes()}, []

    def freed(self) -> tuple[dict[str, Any], list[Check]]:
        """The resident set without them; the C library may keep pages of small ones."""
        return {"resident_freed_bytes": resident_bytes()}, []


class CudaMeter:
    """A GPU: the caching allocator's own counters. ``cuda`` is torch.cuda, ``device`` where tensors are made."""

    def __init__(self, cuda: Any, settings: Settings, device: str = "cuda") -> None:
        self._cuda, self._settings, self.device = cuda, settings, device
        self._before = self._reserved_before = self._last = 0
        self._prediction: Prediction | None = None
        self._expected: list[int] = []

    def room(self) -> int | None:
        """Memory the driver has left, some of it kept back for the driver itself."""
        free, _ = self._cuda.mem_get_info()
        return max(0, int(free) - CUDA_RESERVE)

    def needs(self, sizes: Sequence[int]) -> int:
        """Segments asked of the driver."""
        return predict(sizes, self._settings).reserved if self._settings.predictable else sum(sizes)

    def begin(self, sizes: Sequence[int]) -> None:
        """Empty the cache, read the counters, and predict next to the blocks that stay free in segments in use."""
        self._cuda.synchronize()
        self._cuda.empty_cache()
        self._cuda.reset_peak_memory_stats()
        self._before = self._last = self._cuda.memory_allocated()
        self._reserved_before = self._cuda.memory_reserved()
        free = free_blocks(self._cuda.memory_snapshot(), self._cuda.current_device())
        self._prediction = predict(sizes, self._settings, free) if self._settings.predictable else None
        self._expected = list(self._prediction.blocks) if self._prediction else []

    def touch(self, tensor: Any) -> None:
        """Write every byte."""
        write_all(tensor)

    def took(self, tensor: Any) -> Took:
        """What memory_allocated grew by."""
        now = self._cuda.memory_allocated()
        grown, self._last = now - self._last, now
        return Took(grown, self._expected.pop(0) if self._expected else None)

    def held(self) -> tuple[dict[str, Any], list[Check]]:
        """The counters with every tensor held."""
        self._cuda.synchronize()
        stats = self._cuda.memory_stats()
        reserved = self._cuda.memory_reserved() - self._reserved_before
        found = {
            "allocated_before_bytes": self._before,
            "allocated_held_bytes": self._cuda.memory_allocated(),
            "requested_held_bytes": stats.get("requested_bytes.all.current"),
            "peak_allocated_bytes": self._cuda.max_memory_allocated(),
            "reserved_before_bytes": self._reserved_before,
            "reserved_held_bytes": self._cuda.memory_reserved(),
            "segments": stats.get("segment.all.current"),
            "allocator_retries": stats.get("num_alloc_retries"),
            "allocator_settings": settings_dict(self._settings),
            "gpu": self._cuda.get_device_name(),
        }
        if self._prediction is None:
            return found, []
        found["predicted_allocated_bytes"] = self._prediction.allocated
        found["predicted_reserved_bytes"] = self._prediction.reserved
        return found, [Check("memory_reserved", self._prediction.reserved, reserved)]

    def freed(self) -> tuple[dict[str, Any], list[Check]]:
        """The counters when nothing is held: as before."""
        self._cuda.synchronize()
        self._cuda.empty_cache()
        now = self._cuda.memory_allocated()
        return {"allocated_freed_bytes": now}, [Check("memory_allocated after freeing", self._before, now)]


def write_all(tensor: Any) -> None:
    """Zero every byte of a tensor's storage, piece by piece."""
    flat = torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(tensor.untyped_storage())
    for start in range(0, flat.numel(), PIECE):
        flat[start : start + PIECE].zero_()


def free_blocks(snapshot: Sequence[Mapping[str, Any]], device: int) -> list[Block]:
    """Free blocks of torch.cuda.memory_snapshot() on one device: what an allocation could reuse. Pools that somebody
    keeps for themselves (CUDA graphs) are left out.
    """
    return [
        Block(
            block["size"],
            segment["segment_type"] == "small",
            bool(segment.get("is_expandable")) and place == len(segment["blocks"]) - 1,
        )
        for segment in snapshot
        if segment.get("device", device) == device and tuple(segment.get("segment_pool_id", (0, 0))) == (0, 0)
        for place, block in enumerate(segment["blocks"])
        if block["state"] == "inactive"
    ]


def settings_dict(settings: Settings) -> dict[str, Any]:
    """The allocator's settings as they are reported."""
    return {
        "variable": settings.source or None,
        "text": settings.text[:400],
        "backend": settings.backend,
        "expandable_segments": settings.expandable_segments,
        "max_split_size_bytes": settings.max_split,
        "roundup_power2_divisions": list(settings.power2_divisions),
        "large_segment_bytes": settings.large_segment,
        "refused": list(settings.refused),
        "unread": list(settings.unread),
    }


def resident_bytes() -> int:
    """Resident memory of this process; where the system does not say, its peak."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * mmap.PAGESIZE
    except (OSError, ValueError, IndexError):
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak if sys.platform == "darwin" else peak * 1024


def _span(address: int, size: int) -> int:
    """Bytes of the pages that ``size`` bytes from ``address`` lie on."""
    page = mmap.PAGESIZE
    return -(-(address + size) // page) * page - address // page * page if size else 0


def _mincore() -> Any:
    """A function (address, size) -> resident bytes of the pages there; None where the system has none."""
    try:
        call = ctypes.CDLL(None, use_errno=True).mincore
    except (OSError, AttributeError, TypeError):
        return None
    call.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_char_p)

    def resident(address: int, size: int) -> int:
        span, page = _span(address, size), mmap.PAGESIZE
        pages = ctypes.create_string_buffer(span // page)
        if call(address // page * page, span, pages):
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
        return sum(flag & 1 for flag in pages.raw) * page

    return resident


def _host_room() -> int | None:
    """The least of what /proc/meminfo and the control group leave."""
    left = []
    try:
        lines = dict(line.split(":", 1) for line in Path("/proc/meminfo").read_text().splitlines() if ":" in line)
        left.append(int(lines["MemAvailable"].split()[0]) * 1024)
    except (OSError, ValueError, KeyError):
        pass
    for limit, usage in (
        ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"),
        ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.usage_in_bytes"),
    ):
        try:
            left.append(max(0, int(Path(limit).read_text()) - int(Path(usage).read_text())))
        except (OSError, ValueError):
            continue
    return min(left) if left else None


def auto_budget(device: str, room: int) -> int:
    """What --scale auto takes of the room on a device."""
    return int(room * (CUDA_SHARE if device == "cuda" else CPU_SHARE))
