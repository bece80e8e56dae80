"""Formula, storage and allocator against each other: what agrees, what is found out, and that nothing stays behind."""

from __future__ import annotations

import gc
from fractions import Fraction
from typing import Any

import pytest
from present import present

from hybridcalc import load_model
from hybridcalc.crosscheck.backend import torch
from hybridcalc.crosscheck.caching_allocator import Settings, predict
from hybridcalc.crosscheck.devices import Check, CpuMeter, CudaMeter, MetaMeter, Took, free_blocks, resident_bytes
from hybridcalc.crosscheck.sglang import subject as sglang_subject
from hybridcalc.crosscheck.tensors import ELEMENT_BYTES, Sizes, Tensor, TensorView, contiguous, scaled, second_size
from hybridcalc.crosscheck.verification import DTYPES, NoMemory, find_scale, measure, verify_shard
from hybridcalc.deployment import exact_rest
from hybridcalc.engines.sglang import ServerArgs
from hybridcalc.errors import InputError
from hybridcalc.units import GIB, MIB

SLOT = 1000


def pool(sizes: Sizes, *, extra: int = 0, views: tuple[TensorView, ...] = ()) -> tuple[Tensor, ...]:
    """A pool of slots with one that pads; ``extra`` bytes that the formula does not know."""
    formula = SLOT * (sizes.slots + 1)
    return (Tensor("pool", "pool", "state", (sizes.slots + 1, SLOT), "uint8", formula - extra, "slot", views),)


def bytes_alive() -> int:
    gc.collect()
    return sum(found.untyped_storage().nbytes() for found in gc.get_objects() if type(found) is torch.Tensor)


def test_two_sizes_give_slope_and_intercept() -> None:
    """1,000 B a slot and one that pads: measured at 40 slots, exact for 4,000."""
    shard = verify_shard(pool, Sizes(slots=4000), 1, CpuMeter(), scale="100")
    (row,) = shard.rows
    assert row.units == 40 and (row.slope_bytes, row.intercept_bytes) == (Fraction(1000), Fraction(1000))
    assert (row.full_units, row.full_bytes, shard.ok) == (4000, 4_001_000, True)


def test_a_fraction_of_a_byte_a_token_is_a_slope_too() -> None:
    """Four tokens share a row of 33 B: 8.25 a token."""

    def pooled(sizes: Sizes) -> tuple[Tensor, ...]:
        rows = sizes.tokens // 4
        return (Tensor("index", "kv", "kv", (rows, 33), "uint8", rows * 33, "token"),)

    (row,) = verify_shard(pooled, Sizes(tokens=64), 4, MetaMeter()).rows
    assert (row.slope_bytes, row.to_dict()["slope_bytes"], row.ok) == (Fraction(33, 4), 8.25, True)


def test_a_formula_that_is_off_is_found_with_its_difference() -> None:
    shard = verify_shard(lambda sizes: pool(sizes, extra=24), Sizes(slots=9), 1, MetaMeter())
    assert not shard.ok
    row = shard.rows[0].to_dict()
    assert (row["storage_ok"], row["formula_ok"], row["allocator_ok"], row["ok"]) == (False, False, None, False)
    assert shard.rows[0].problems == [
        "storage 10,000 B, formula 9,976 B: 24 B more",
        "at full scale the line 10,000 B, formula 9,976 B: 24 B more",
    ]


def test_a_tensor_that_does_not_grow_on_a_line_is_found() -> None:
    """Rows doubled above ten slots: both sizes agree with the formula, the line to full scale does not."""

    def bent(sizes: Sizes) -> tuple[Tensor, ...]:
        rows = sizes.slots if sizes.slots <= 10 else 2 * sizes.slots
        return (Tensor("pool", "pool", "state", (rows, SLOT), "uint8", rows * SLOT, "slot"),)

    shard = verify_shard(bent, Sizes(slots=100), 1, MetaMeter(), scale="10")
    assert shard.rows[0].problems == ["at full scale the line 100,000 B, formula 200,000 B: 100,000 B less"]


def test_an_allocator_that_takes_more_than_its_rules_is_found() -> None:
    class Greedy(MetaMeter):
        def took(self, tensor: Tensor) -> Took:
            return Took(4096, 3584)

    shard = verify_shard(pool, Sizes(slots=2), 1, Greedy())
    second = "at a second size the allocator took 4,096 B, its rules say 3,584 B"
    assert shard.rows[0].problems == ["allocator 4,096 B, its rules 3,584 B: 512 B more", second]


@pytest.mark.parametrize(
    ("meter", "said"),
    [(MetaMeter, "view outside ends 1,501 B behind the storage"), (CpuMeter, "view outside leaves the storage: setSt")],
)
def test_a_view_that_leaves_its_storage_is_found(meter: type[CpuMeter | MetaMeter], said: str) -> None:
    """On meta torch lays any view; on cpu it refuses this one itself."""
    inside = TensorView("inside", (2, 500), (1000, 1), 0, "uint8")
    outside = TensorView("outside", (4, 500), (1000, 1), 1001, "uint8")
    (row,) = verify_shard(lambda sizes: pool(sizes, views=(inside, outside)), Sizes(slots=2), 1, meter()).rows
    assert not row.ok
    assert row.other_problem.startswith(said)
    assert inside.end_bytes == 1500


def test_pages_on_cpu_are_resident_and_the_process_gives_them_back() -> None:
    """128 MiB: every page is there while it is held, and the resident set is back below half of it afterwards."""
    before = resident_bytes()
    tensor = Tensor("big", "big", "kv", (128, MIB), "uint8", 128 * MIB, "token")
    readings, stats, _ = measure((tensor,), CpuMeter())
    assert readings[0].took.measured == present(readings[0].took.expected) >= 128 * MIB
    assert stats["resident_held_bytes"] - stats["resident_before_bytes"] >= 120 * MIB
    assert resident_bytes() - before < 64 * MIB


@pytest.mark.parametrize("failure", [KeyboardInterrupt, torch.OutOfMemoryError, RuntimeError])
def test_nothing_stays_allocated_when_it_breaks_off(failure: type[Any]) -> None:
    """Ctrl-C or no more memory at the third tensor: the first two are gone."""

    class Breaking(CpuMeter):
        touched = 0

        def touch(self, tensor: Tensor) -> None:
            self.touched += 1
            if self.touched == 3:
                raise failure("not enough memory: you tried to allocate 5 bytes")

    def several(sizes: Sizes) -> tuple[Tensor, ...]:
        return tuple(pool(sizes)[0]._replace(name=f"pool {i}") for i in range(4))

    before = bytes_alive()
    wanted = KeyboardInterrupt if failure is KeyboardInterrupt else NoMemory
    with pytest.raises(wanted) as stopped:
        verify_shard(several, Sizes(slots=1000), 1, Breaking(), scale="full", limit=GIB)
    assert bytes_alive() == before
    if isinstance(stopped.value, NoMemory):
        assert "--device cpu ran out of memory at 100 % of full scale, which needs 3.8" in stopped.value.message
        assert stopped.value.fix == "write --scale 2, or --memory SIZE"


class Room(CpuMeter):
    """A host with so much memory."""

    def __init__(self, room: int) -> None:
        super().__init__()
        self._room = room

    def room(self) -> int:
        return self._room


def test_too_little_memory_says_what_is_needed_and_what_fits() -> None:
    with pytest.raises(NoMemory) as refused:
        find_scale(pool, Sizes(slots=10**6), 1, Room(100 * 10**6), "full", None)
    assert refused.value.message == "--scale full needs 953.68 MiB of cpu memory, and 95.37 MiB are free"
    assert refused.value.fix == "--scale 11 needs 86.70 MiB and fits"


def test_auto_takes_a_quarter_of_a_host_and_shares_it_out() -> None:
    """1,000 MB free: 250 MB alone, 62.5 MB for each of four; never more than --memory."""
    full = Sizes(slots=10**6)

    def slots(**limits: int) -> int:
        return scaled(
            full, find_scale(pool, full, 1, Room(10**9), "auto", limits.pop("limit", None), **limits), 1
        ).slots

    assert (slots(), slots(sharers=4), slots(limit=10**7)) == (249_000, 62_000, 9_000)


def test_not_even_one_slot() -> None:
    with pytest.raises(NoMemory, match=r"two of each to draw the line, need 4\.00 KiB"):
        find_scale(pool, Sizes(slots=7), 1, Room(1000), "auto", None)


@pytest.mark.parametrize("scale", ["0", "-1", "half", "1.5", "²", "1" * 50, "9" * 5000])
def test_scales_that_are_none(scale: str) -> None:
    with pytest.raises(InputError, match="is not a scale"):
        find_scale(pool, Sizes(slots=7), 1, MetaMeter(), scale, None)


def test_scaling_keeps_whole_pages_and_one_of_each() -> None:
    assert scaled(Sizes(10, 5, 640, 0, 3, 7), Fraction(1, 4), 64) == Sizes(2, 1, 128, 0, 1, 1)
    assert second_size(Sizes(10, 1, 64, 0, 3, 1), 64) == Sizes(5, 2, 128, 0, 1, 2)


class FakeCuda:
    """torch.cuda's counters over tensors that are not there: blocks as a caching allocator gives them."""

    def __init__(self, blocks: tuple[int, ...], reserved: int, *, leaks: int = 0) -> None:
        self._blocks, self._reserved, self._leaks = list(blocks), reserved, leaks
        self._held = 0

    def memory_allocated(self) -> int:
        return 7 * MIB + self._held

    def memory_reserved(self) -> int:
        return 20 * MIB + (self._reserved if self._held else 0)

    def give(self) -> None:
        self._held += self._blocks.pop(0)

    def empty_cache(self) -> None:
        if not self._blocks:
            self._held = self._leaks

    def mem_get_info(self) -> tuple[int, int]:
        return 10 * GIB, 80 * GIB

    def memory_stats(self) -> dict[str, int]:
        return {"segment.all.current": 2, "num_alloc_retries": 0, "requested_bytes.all.current": 1}

    def memory_snapshot(self) -> list[dict[str, Any]]:
        blocks = [{"size": 7 * MIB, "state": "active_allocated"}, {"size": 13 * MIB, "state": "inactive"}]
        return [
            {"device": 0, "segment_type": "large", "segment_pool_id": (0, 0), "blocks": blocks},
            {"device": 0, "segment_type": "large", "segment_pool_id": (0, 7), "blocks": blocks},
            {"device": 1, "segment_type": "small", "segment_pool_id": (0, 0), "blocks": blocks},
        ]

    def current_device(self) -> int:
        return 0

    def max_memory_allocated(self) -> int:
        return self._held

    def get_device_name(self) -> str:
        return "a GPU"

    def synchronize(self) -> None:
        pass

    reset_peak_memory_stats = synchronize


class OnFake(CudaMeter):
    def __init__(self, cuda: FakeCuda) -> None:
        super().__init__(cuda, Settings(), device="meta")

    def touch(self, tensor: Tensor) -> None:
        self._cuda.give()


def on_gpu(blocks: tuple[int, int], reserved: int, **options: int) -> tuple[list[Took], dict[str, Any], list[Check]]:
    tensors = tuple(
        Tensor(f"t{i}", "t", "kv", (size,), "uint8", size, "token") for i, size in enumerate((12 * MIB, 31 * MIB + 1))
    )
    readings, stats, checks = measure(tensors, OnFake(FakeCuda(blocks, reserved, **options)))
    return [reading.took for reading in readings], stats, checks


def test_a_gpu_s_counters_are_held_against_the_prediction() -> None:
    """12 MiB fit the 13 that are free in a segment in use, whole since 1 MiB is left; 31 and a byte keep all of 32."""
    took, stats, checks = on_gpu((13 * MIB, 32 * MIB), 32 * MIB)
    assert took == [Took(13 * MIB, 13 * MIB), Took(32 * MIB, 32 * MIB)]
    assert all(check.ok for check in checks)
    assert [check.name for check in checks] == ["memory_reserved", "memory_allocated after freeing"]
    assert (stats["predicted_reserved_bytes"], stats["gpu"]) == (32 * MIB, "a GPU")


def test_a_gpu_that_takes_more_or_keeps_some_is_found() -> None:
    took, _, checks = on_gpu((14 * MIB, 32 * MIB), 40 * MIB, leaks=512)
    assert took[0] == Took(14 * MIB, 13 * MIB)
    assert [check.ok for check in checks] == [False, False]


def test_room_on_a_gpu_keeps_some_for_the_driver() -> None:
    meter = OnFake(FakeCuda((), 0))
    assert meter.room() == 10 * GIB - 512 * MIB
    assert meter.needs([12 * MIB, 1]) == predict([12 * MIB, 1]).reserved == 14 * MIB


def test_free_blocks_are_those_of_this_device_outside_private_pools() -> None:
    assert [tuple(block) for block in free_blocks(FakeCuda((), 0).memory_snapshot(), 0)] == [(13 * MIB, False, False)]


def test_contiguous_strides() -> None:
    assert contiguous((2, 3, 4)) == tuple(torch.empty(2, 3, 4, device="meta").stride())


def test_kimi_k3_is_258_slots_of_56_171_520_bytes() -> None:
    """K = 257 of the published boot log (13.50 GiB of states), from tensors on meta."""
    args = ServerArgs(tp_size=8, kv_cache_dtype="fp8_e4m3", max_mamba_cache_size=257)
    subject = sglang_subject(load_model("kimi-k3"), args, exact_rest(28.55))
    shard = verify_shard(subject.stages[0], subject.full, subject.page, MetaMeter())
    states = [row for row in shard.rows if row.tensor.pool == "state"]
    assert sum(row.storage_bytes for row in states) == 258 * 56_171_520
    assert sum(present(row.slope_bytes) for row in states) == 56_171_520
    assert shard.ok


def test_dtypes_are_all_there() -> None:
    assert all(
        torch.empty(1, dtype=dtype, device="meta").element_size() == ELEMENT_BYTES[name]
        for name, dtype in DTYPES.items()
    )
