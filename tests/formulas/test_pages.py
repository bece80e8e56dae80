"""Attention blocks inflated to hold a state, what that wastes, and what a shared prefix can reuse."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hybridcalc.formulas import aligned_block, blocks_for, padding_share, reused_tokens
from hybridcalc.units import GIB

STATE, KV = 4_255_744, 4096
"""Nemotron-H-8B: one Mamba2 layer's state, one attention layer's KV of a token."""


@pytest.mark.parametrize(
    ("alignment", "block", "padding"), [(16, 1040, 0.000962), (256, 1280, 0.231954)], ids=["align", "all"]
)
def test_blocks_of_nemotron_h_8b_inflate(alignment: int, block: int, padding: float) -> None:
    """Hybrid SSM chapter (C5): 1040 tokens, and 1280 with 23.2 % padding where every block keeps a state."""
    assert aligned_block(STATE, KV, alignment) == block
    assert float(padding_share(STATE, block * KV)) == pytest.approx(padding, abs=5e-7)


def test_131072_tokens_take_103_blocks_of_1280() -> None:
    """Hybrid SSM chapter (C6): 24 Mamba layers hold 9.80 GiB in pages of 12.07 GiB."""
    blocks = blocks_for(131_072, 1280)
    assert blocks == 103
    assert (round(blocks * 24 * STATE / GIB, 4), round(blocks * 24 * 1280 * KV / GIB, 4)) == (9.7977, 12.0703)


@pytest.mark.parametrize(
    ("shared", "private", "reused", "computed"), [(4000, 200, 3840, 360), (900, 200, 0, 1100)], ids=["long", "short"]
)
def test_only_whole_blocks_of_a_shared_prompt_are_reused(shared: int, private: int, reused: int, computed: int) -> None:
    """Hybrid SSM chapter (C7), blocks of 1280 tokens."""
    assert reused_tokens(shared, 1280) == reused
    assert shared + private - reused_tokens(shared, 1280) == computed


@given(st.integers(1, 2**30), st.integers(1, 2**16), st.integers(1, 512))
def test_a_block_is_the_smallest_aligned_one_that_holds_the_state(state: int, kv: int, alignment: int) -> None:
    """Its page covers the state, and one alignment less would not."""
    block = aligned_block(state, kv, alignment)
    assert block % alignment == 0
    assert (block - alignment) * kv < state <= block * kv
    assert padding_share(state, block * kv) >= 0
