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

from hybridcalc.errors import quoted
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
LONGEST_TEXT = 4096
BACKENDS = ("native", "cudaMallocAsync")
SIZES = {
    "max_split_size_mb": ("max_split", 20), "max_non_split_rounding_mb": ("max_non_split_rounding", 20),
    "large_segment_size_mb": ("large_segment", 11),
}  # fmt: skip
"""Settings in MiB: the field, and the least that torch takes."""
WITHOUT_SIZE = (
    "garbage_collection_threshold", "pinned_use_cuda_host_register", "pinned_num_register_threads",
    "pinned_use_hip_host_register", "pinned_use_background_threads", "pinned_reserve_segment_size_mb",
    "release_lock_on_cudamalloc", "release_lock_on_hipmalloc", "graph_capture_record_stream_reuse",
    "per_process_memory_fraction", "throw_on_cudamalloc_oom",
)  # fmt: skip
"""Settings that leave the size of every block and segment as it is."""


class Settings(NamedTuple):
    """Settings that change a size. ``max_split`` is None without a limit; ``text`` is what ``source`` says; ``refused``
    what torch does not start with, ``unread`` names that are not known here.
    """

    expandable_segments: bool = False
    max_split: int | None = None
    max_non_split_rounding: int = LARGE_SEGMENT
    power2_divisions: tuple[int, ...] = ()
    large_segment: int = LARGE_SEGMENT
    backend: str = "native"
    text: str = ""
    source: str = ""
    refused: tuple[str, ...] = ()
    unread: tuple[str, ...] = ()

    @property
    def predictable(self) -> bool:
        """Whether the rules above hold: not for the driver's own allocator."""
        return self.backend == "native"


class Block(NamedTuple):
    """A free block the allocator holds already. ``tail``: it ends an expandable segment, which can grow behind it."""

    size: int
    small: bool
    tail: bool = False


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
    """The settings in the environment. What torch refuses, or what is not known here, stays at its default and is said
    in ``refused`` and ``unread``. A variable that is set and empty counts as set: torch then reads no other.
    """
    source = next((name for name in VARIABLES if name in environment), "")
    if not source:
        return Settings()
    text = environment[source]
    found = Settings(text=text, source=source)
    refused, unread = [], []
    left = text[:LONGEST_TEXT]
    for match in re.finditer(r"(\w+)\s*:\s*(?:\[([^\]]*)\]|([^,\[\]]+))", left):
        key, listed, value = match[1], match[2] or "", (match[3] or "").strip().strip("'\"")
        said = f"{key}:{value or f'[{listed}]'}"[:60]
        if key == "expandable_segments":
            found = found._replace(expandable_segments=value == "True")
            refused += [f"{said} is neither True nor False"] * (value not in ("True", "False"))
        elif key == "backend":
            found = found._replace(backend=value)
            refused += [f"{said} is none of {', '.join(BACKENDS)}"] * (value not in BACKENDS)
        elif key == "roundup_power2_divisions":
            divisions = _divisions(listed, value)
            if divisions and all(part & (part - 1) == 0 for part in divisions):
                found = found._replace(power2_divisions=divisions)
            else:
                refused.append(f"{said} is no power of two, or list of them")
        elif key in SIZES:
            name, least = SIZES[key]
            if value.isascii() and value.isdecimal() and len(value) < 16 and int(value) >= least:
                found = Settings(**(found._asdict() | {name: int(value) * MIB}))
            else:
                refused.append(f"{said} is not {least} or more")
        elif key not in WITHOUT_SIZE:
            unread.append(said)
    rest = re.sub(r"\w+\s*:\s*(?:\[[^\]]*\]|[^,\[\]]+)", "", left).replace(",", " ").split()
    refused += [f"{quoted(word)} is no NAME:value" for word in rest[:3]]
    unread += ["all beyond its first 4,096 characters"] * (len(text) > LONGEST_TEXT)
    return found._replace(refused=tuple(refused), unread=tuple(unread))


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
    held: dict[bool, list[Block]] = {True: [], False: []}
    for block in free:
        held[block.small].append(block)
    blocks: list[int] = []
    segments: list[int] = []
    for size in sizes:
        if not size:
            blocks.append(0)
            continue
        wanted = round_size(size, settings)
        small = wanted <= LARGEST_SMALL
        pool = held[small]
        found = _best_fit(pool, wanted, settings)
        if found is None and settings.expandable_segments:
            found = _expand(pool, wanted, segments, settings)
        elif found is None:
            found = Block(segment_size(wanted, settings), small)
            segments.append(found.size)
        left = found.size - wanted
        if left and _splits(wanted, left, settings):
            pool.append(Block(left, small, found.tail))  # what is left lies behind what is taken
            blocks.append(wanted)
        else:
            blocks.append(found.size)
    return Prediction(tuple(blocks), tuple(segments))


def _best_fit(pool: list[Block], wanted: int, settings: Settings) -> Block | None:
    """The smallest free block that holds ``wanted``, taken out of the pool; None where none does or may."""
    fitting = [block for block in pool if block.size >= wanted]
    if not fitting:
        return None
    best, limit = min(fitting, key=lambda block: (block.size, block.tail)), settings.max_split
    if limit is not None:
        if wanted < limit <= best.size:
            return None
        if wanted >= limit and best.size >= wanted + settings.max_non_split_rounding:
            return None
    pool.remove(best)
    return best


def _expand(pool: list[Block], wanted: int, segments: list[int], settings: Settings) -> Block:
    """Grow the expandable segment behind its free tail; the block that results, whole pieces long. Holes between
    blocks in use are no part of it.
    """
    small = wanted <= LARGEST_SMALL
    piece = SMALL_SEGMENT if small else settings.large_segment
    tail = next((block for block in pool if block.tail), None)
    if tail is not None:
        pool.remove(tail)
    before = 0 if tail is None else tail.size
    grown = -(-(wanted - before) // piece) * piece
    segments.append(grown)
    return Block(before + grown, small, tail=True)


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
