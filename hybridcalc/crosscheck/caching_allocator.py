"""What will torch's CUDA caching allocator take for a row of allocations? Its rules, without a GPU.

    block      bytes rounded up to 512; with roundup_power2_divisions D, to a D-th between two powers of two
    pool       small up to 1 MiB, large above
    segment    small 2 MiB; large 20 MiB below 10 MiB, else up to 2 MiB: what cudaMalloc is asked for
    reuse      the smallest free block that holds it, of the same pool; what is left over is split off when it is at
               least 512 B (small), or above 1 MiB and the block below max_split_size (large); else it stays inside
    expandable one segment a pool that grows by whole pieces of 2 MiB (small) or 20 MiB (large); splits from 512 B

`memory_allocated` counts whole blocks, an unsplit remainder included; `memory_reserved` counts segments. Sizes in
bytes. HIP builds use the same rules. Leaves out: frees between allocations, private pools, garbage collection, and the
cudaMallocAsync backend, whose rounding is the driver's.
Source: torch c10/core/AllocatorConfig.h, c10/cuda/CUDACachingAllocator.cpp (2.13).
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from hybridcalc.units import MIB

MIN_BLOCK = 512
LARGEST_SMALL = 1 * MIB
SMALL_SEGMENT = 2 * MIB
LARGE_SEGMENT = 20 * MIB
LEAST_OWN_SEGMENT = 10 * MIB
ROUND_LARGE = 2 * MIB
POWER_INTERVALS = 16
"""roundup_power2_divisions knows the powers of two from 1 MiB to 64 GiB, the last one for all above."""
VARIABLES = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF")
"""The first that is set counts."""


class Settings(NamedTuple):
    """Settings that change a size. ``max_split`` is None without a limit; ``text`` is what ``source`` says."""

    expandable_segments: bool = False
    max_split: int | None = None
    max_non_split_rounding: int = LARGE_SEGMENT
    power2_divisions: tuple[int, ...] = ()
    large_segment: int = LARGE_SEGMENT
    backend: str = "native"
    text: str = ""
    source: str = ""

    @property
    def predictable(self) -> bool:
        """Whether the rules above hold: not for the driver's own allocator."""
        return self.backend == "native"


class Block(NamedTuple):
    """A free block the allocator holds already."""

    size: int
    small: bool


class Prediction(NamedTuple):
    """Bytes of the block each allocation gets, in their order, and the segments asked of the driver."""

    blocks: tuple[int, ...]
    segments: tuple[int, ...]

    @property
    def allocated(self) -> int:
        """What memory_allocated grows by."""
        return sum(self.blocks)

    @property
    def reserved(self) -> int:
        """What memory_reserved grows by."""
        return sum(self.segments)


def read_settings(environment: Mapping[str, str]) -> Settings:
    """The settings in the environment; what cannot be read is left at its default, as text that torch itself judges."""
    source = next((name for name in VARIABLES if environment.get(name)), "")
    if not source:
        return Settings()
    text = environment[source]
    found = Settings(text=text, source=source)
    for key, listed, value in re.findall(r"(\w+)\s*:\s*(?:\[([^\]]*)\]|([^,\[\]]+))", text[:4096]):
        value = value.strip()
        if key == "expandable_segments":
            found = found._replace(expandable_segments=value.lower() == "true")
        elif key == "backend":
            found = found._replace(backend=value)
        elif key == "roundup_power2_divisions":
            found = found._replace(power2_divisions=_divisions(listed, value))
        elif key == "max_split_size_mb" and value.isdecimal():
            found = found._replace(max_split=int(value) * MIB)
        elif key == "max_non_split_rounding_mb" and value.isdecimal():
            found = found._replace(max_non_split_rounding=int(value) * MIB)
        elif key == "large_segment_size_mb" and value.isdecimal():
            found = found._replace(large_segment=int(value) * MIB)
    return found


def round_size(size: int, settings: Settings) -> int:
    """Bytes of the block that ``size`` bytes ask for."""
    divisions = _divisions_of(size, settings.power2_divisions)
    if size >= MIN_BLOCK and divisions > 1 and size > MIN_BLOCK * divisions:
        floor = 1 << size.bit_length() - 1
        step = floor >> divisions.bit_length() - 1
        return size if size == floor else floor << 1 if not step else -(-size // step) * step
    return max(MIN_BLOCK, -(-size // MIN_BLOCK) * MIN_BLOCK)


def segment_size(block: int, settings: Settings) -> int:
    """Bytes asked of the driver for a block that no free one holds."""
    if block <= LARGEST_SMALL:
        return SMALL_SEGMENT
    if block < LEAST_OWN_SEGMENT:
        return settings.large_segment
    return -(-block // ROUND_LARGE) * ROUND_LARGE


def predict(sizes: Sequence[int], settings: Settings | None = None, free: Iterable[Block] = ()) -> Prediction:
    """Blocks and segments for allocations of ``sizes`` bytes in their order, next to blocks that are ``free`` already.

    An allocation of 0 bytes takes nothing. Raises ValueError for settings that are not predictable.
    """
    settings = settings or Settings()
    if not settings.predictable:
        raise ValueError(f"the sizes of backend {settings.backend} are the driver's")
    held: dict[bool, list[int]] = {True: [], False: []}
    for block in free:
        held[block.small].append(block.size)
    blocks: list[int] = []
    segments: list[int] = []
    for size in sizes:
        if not size:
            blocks.append(0)
            continue
        wanted = round_size(size, settings)
        pool = held[wanted <= LARGEST_SMALL]
        found = _best_fit(pool, wanted, settings)
        if found is None and settings.expandable_segments:
            found = _expand(pool, wanted, segments, settings)
        elif found is None:
            found = segment_size(wanted, settings)
            segments.append(found)
        left = found - wanted
        if left and _splits(wanted, left, settings):
            pool.append(left)
            blocks.append(wanted)
        else:
            blocks.append(found)
    return Prediction(tuple(blocks), tuple(segments))


def _best_fit(pool: list[int], wanted: int, settings: Settings) -> int | None:
    """The smallest free block that holds ``wanted``, taken out of the pool; None where none does or may."""
    fitting = [size for size in pool if size >= wanted]
    if not fitting:
        return None
    best, limit = min(fitting), settings.max_split
    if limit is not None:
        if wanted < limit <= best:
            return None
        if wanted >= limit and best >= wanted + settings.max_non_split_rounding:
            return None
    pool.remove(best)
    return best


def _expand(pool: list[int], wanted: int, segments: list[int], settings: Settings) -> int:
    """Grow the expandable segment behind its free tail; the block that results, whole pieces long."""
    piece = SMALL_SEGMENT if wanted <= LARGEST_SMALL else settings.large_segment
    tail = pool.pop() if pool else 0
    grown = -(-(wanted - tail) // piece) * piece
    segments.append(grown)
    return tail + grown


def _splits(wanted: int, left: int, settings: Settings) -> bool:
    if wanted <= LARGEST_SMALL or settings.expandable_segments:
        return left >= MIN_BLOCK
    return left > LARGEST_SMALL and (settings.max_split is None or wanted < settings.max_split)


def _divisions_of(size: int, divisions: tuple[int, ...]) -> int:
    if not divisions or not size:
        return 0
    interval = size.bit_length() - 1 - (MIB.bit_length() - 1)
    return divisions[min(max(interval, 0), POWER_INTERVALS - 1)]


def _divisions(listed: str, single: str) -> tuple[int, ...]:
    """roundup_power2_divisions: one number for all sizes, or ``256:1,512:2,>:4`` (MiB: divisions)."""
    if single.isdecimal():
        return (int(single),) * POWER_INTERVALS
    found = [0] * POWER_INTERVALS
    last = -1
    for bound, value in re.findall(r"(>|\d+)\s*:\s*(\d+)", listed):
        if bound == ">":
            found[last + 1 :] = [int(value)] * (POWER_INTERVALS - last - 1)
            continue
        index = min(max(int(bound).bit_length() - 1, 0), POWER_INTERVALS - 1)
        if last < 0:
            found[:index] = [int(value)] * index
        found[index] = int(value)
        last = index
    return tuple(found)
