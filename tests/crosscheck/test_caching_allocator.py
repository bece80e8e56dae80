"""The rules of torch's CUDA caching allocator, as a pure function: figures worked out by hand from its constants."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hybridcalc.crosscheck.backend import torch
from hybridcalc.crosscheck.caching_allocator import Block, Settings, predict, read_settings, round_size
from hybridcalc.units import KIB, MIB

sizes = st.integers(0, 200 * MIB)


@pytest.mark.parametrize(
    ("size", "block"), [(1, 512), (511, 512), (512, 512), (513, 1024), (MIB, MIB), (MIB + 1, MIB + 512)]
)
def test_blocks_round_up_to_512_bytes(size: int, block: int) -> None:
    assert round_size(size, Settings()) == block


def test_nothing_takes_nothing() -> None:
    """An empty tensor has no block: LFM2's temporal state is (1, hidden, 0)."""
    assert predict([0, 0]) == ((0, 0), ())


def test_small_allocations_share_a_segment_of_2_mib() -> None:
    """Up to 1 MiB: two fit a segment, the third asks for another."""
    found = predict([MIB, MIB, 512])
    assert found.blocks == (MIB, MIB, 512)
    assert found.segments == (2 * MIB, 2 * MIB)


def test_below_10_mib_a_segment_has_20() -> None:
    """3 MiB leave 17, split off; 16 more leave 1 MiB, which is not above 1 MiB: the block keeps it."""
    found = predict([3 * MIB, 16 * MIB])
    assert found.blocks == (3 * MIB, 17 * MIB)
    assert found.segments == (20 * MIB,)


def test_from_10_mib_a_segment_is_the_block_up_to_2_mib() -> None:
    """11 MiB and 512 B ask for 12 MiB; the rest, below 1 MiB, stays in the block."""
    found = predict([11 * MIB + 1])
    assert (found.blocks, found.segments) == ((12 * MIB,), (12 * MIB,))


def test_the_smallest_free_block_that_holds_it_is_taken() -> None:
    free = (Block(8 * MIB, False), Block(5 * MIB, False), Block(2 * MIB, True))
    assert predict([4 * MIB], free=free) == ((5 * MIB,), ())
    assert predict([6 * MIB + 1], free=free) == ((6 * MIB + 512,), ())


def test_small_and_large_blocks_do_not_mix() -> None:
    assert predict([KIB], free=[Block(8 * MIB, False)]).segments == (2 * MIB,)


def test_max_split_size_keeps_large_blocks_whole() -> None:
    """A block at or above the limit is not split, and only requests as large, within 20 MiB, may reuse one."""
    limited = Settings(max_split=32 * MIB)
    assert predict([33 * MIB], limited).blocks == (34 * MIB,)
    assert predict([4 * MIB], limited, [Block(40 * MIB, False)]).segments == (20 * MIB,)
    assert predict([36 * MIB], limited, [Block(40 * MIB, False)]) == ((40 * MIB,), ())
    assert predict([36 * MIB], limited, [Block(64 * MIB, False)]).segments == (36 * MIB,)


def test_expandable_segments_grow_by_pieces_and_reuse_their_tail() -> None:
    """30 MiB map 40; 15 more use the 10 that are left and one piece of 20; small ones grow by 2 MiB."""
    grown = predict([30 * MIB, 15 * MIB, 600], Settings(expandable_segments=True))
    assert grown.blocks == (30 * MIB, 15 * MIB, 1024)
    assert grown.segments == (40 * MIB, 20 * MIB, 2 * MIB)


def test_power_of_two_divisions() -> None:
    """1,200 KiB in quarters of the octave from 1 MiB: up to 1,280 KiB. A power of two stays."""
    settings = read_settings({"PYTORCH_CUDA_ALLOC_CONF": "roundup_power2_divisions:[256:4,512:2,>:1]"})
    assert settings.power2_divisions == (4,) * 9 + (2,) + (1,) * 6
    assert round_size(1200 * KIB, settings) == 1280 * KIB
    assert round_size(2 * MIB, settings) == 2 * MIB
    assert round_size(600 * MIB, settings) == 768 * MIB
    assert round_size(3000 * MIB, settings) == 3000 * MIB
    assert read_settings({"PYTORCH_ALLOC_CONF": "roundup_power2_divisions:8"}).power2_divisions == (8,) * 16


def test_settings_are_read_from_the_variable_that_counts() -> None:
    read = read_settings(
        {
            "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:False",
            "PYTORCH_ALLOC_CONF": "expandable_segments:True, max_split_size_mb:64,large_segment_size_mb:40",
        }
    )
    assert (read.source, read.expandable_segments) == ("PYTORCH_ALLOC_CONF", True)
    assert (read.max_split, read.large_segment) == (64 * MIB, 40 * MIB)
    assert read_settings({}) == Settings()
    assert read_settings({"PYTORCH_HIP_ALLOC_CONF": "expandable_segments:True"}).expandable_segments


def test_the_driver_s_own_allocator_is_not_predicted() -> None:
    settings = read_settings({"PYTORCH_CUDA_ALLOC_CONF": "backend:cudaMallocAsync"})
    assert not settings.predictable
    with pytest.raises(ValueError, match="cudaMallocAsync"):
        predict([1], settings)


@given(st.lists(sizes, max_size=30), st.booleans())
def test_no_block_is_smaller_than_asked_and_segments_hold_them_all(asked: list[int], expandable: bool) -> None:
    """At least the request, at most 1 MiB more than its rounding; what is allocated lies in what is reserved."""
    settings = Settings(expandable_segments=expandable)
    found = predict(asked, settings)
    for size, block in zip(asked, found.blocks, strict=True):
        rounded = round_size(size, settings) if size else 0
        assert block == rounded if expandable else rounded <= block <= rounded + MIB
    assert found.allocated <= found.reserved


@pytest.mark.parametrize("size", [15 * MIB, 30 * MIB])
def test_a_hole_does_not_grow_and_a_tail_does(size: int) -> None:
    """5 MiB free between blocks in use are no part of what grows; at the end of the segment they are."""
    expandable = Settings(expandable_segments=True)
    hole, tail = Block(5 * MIB, False), Block(5 * MIB, False, tail=True)
    whole = -(-size // (20 * MIB)) * 20 * MIB
    assert predict([size], expandable, [hole]) == ((size,), (whole,))
    assert predict([size], expandable, [hole, tail]) == ((size,), (-(-(size - 5 * MIB) // (20 * MIB)) * 20 * MIB,))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "expandable_segments:True",
        "expandable_segments:true",
        "expandable_segments:maybe",
        "max_split_size_mb:1",
        "max_split_size_mb:19",
        "max_split_size_mb:20",
        "max_non_split_rounding_mb:19",
        "max_non_split_rounding_mb:20",
        "roundup_power2_divisions:7",
        "roundup_power2_divisions:8",
        "roundup_power2_divisions:[256:1,512:2,>:4]",
        "roundup_power2_divisions:[256:3,>:4]",
        "large_segment_size_mb:0",
        "large_segment_size_mb:10",
        "large_segment_size_mb:11",
        "large_segment_size_mb:40",
        "nonsense",
        "expandable_segments:True,max_split_size_mb:64",
        "garbage_collection_threshold:0.8, max_split_size_mb : 64",
    ],
)
def test_what_torch_refuses_is_refused(text: str) -> None:
    """torch's own reader is the judge, where it can be asked without a GPU; what it refuses stays at its default."""
    judge = getattr(torch._C, "_accelerator_setAllocatorSettings", None)
    if judge is None:
        pytest.skip("this torch cannot be asked")
    try:
        judge(text)
        taken = True
    except (ValueError, RuntimeError):
        taken = False
    finally:
        judge("expandable_segments:False")
    found = read_settings({"PYTORCH_ALLOC_CONF": text})
    assert (not found.refused) == taken
    if not taken:
        assert found._replace(text="", source="", refused=()) == Settings()


def test_a_variable_that_is_set_and_empty_counts() -> None:
    """torch asks whether it is set, and reads no other then."""
    found = read_settings({"PYTORCH_ALLOC_CONF": "", "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"})
    assert (found.source, found.expandable_segments) == ("PYTORCH_ALLOC_CONF", False)


def test_names_that_are_not_known_are_said() -> None:
    found = read_settings({"PYTORCH_ALLOC_CONF": "foo:1,garbage_collection_threshold:0.8"})
    assert (found.unread, found.refused) == (("foo:1",), ())
