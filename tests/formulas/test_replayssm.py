"""ReplaySSM rings: their bytes, what they grow with, and which lengths are legal."""

from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hybridcalc.formulas import Ring, replay_rings, ring_length_problem, smallest_ring
from hybridcalc.units import MIB

KIMI_K3: dict[str, Any] = {
    "layers": 69, "v_heads": 12, "v_head_dim": 128, "k_heads": 12, "k_head_dim": 128, "cache_len": 16,
    "conv_dtype": "bfloat16",
}  # fmt: skip
QWEN: dict[str, Any] = {"layers": 30, "v_heads": 8, "v_head_dim": 128, "k_heads": 4, "k_head_dim": 64, "cache_len": 16}


def total(rings: tuple[Ring, ...]) -> int:
    """Bytes of all rings together."""
    return sum(ring.bytes for ring in rings)


def test_six_rings_of_kimi_k3_take_2_28_gib_for_120_slots() -> None:
    """Write-up A says 1.4 GB (A7); its own shapes sum to 2,448,230,400 B."""
    rings = replay_rings("inputs", slots=120, **KIMI_K3)
    assert {ring.name: ring.bytes / MIB for ring in rings if ring.name != "beta"} == {
        "d": 388.125,
        "k": 388.125,
        "rawv": 388.125,
        "rawk": 388.125,
        "g": 776.25,
    }
    assert total(rings) == 2_448_230_400


def test_one_slot_of_kimi_k3_rings() -> None:
    """SGLang's own figure on 8 ranks at length 16: 20,401,920 B."""
    assert total(replay_rings("inputs", slots=1, **KIMI_K3)) == 20_401_920


def test_shapes_and_dtypes_of_kda_rings() -> None:
    """(layers, slots, heads, L, width); gates are fp32 and beta has no width."""
    rings = {ring.name: (ring.shape, ring.dtype) for ring in replay_rings("inputs", slots=2, **KIMI_K3)}
    wide = (69, 2, 12, 16, 128)
    assert rings == {
        "d": (wide, "bfloat16"),
        "k": (wide, "bfloat16"),
        "g": (wide, "float32"),
        "rawv": (wide, "bfloat16"),
        "rawk": (wide, "bfloat16"),
        "beta": (wide[:-1], "float32"),
    }


@pytest.mark.parametrize(
    ("conv_dtype", "names", "per_head"),
    [
        ("bfloat16", ["d", "k", "g", "rawv", "rawk"], 2 * (2 * 8 * 128 + 2 * 4 * 64)),
        ("float32", ["d", "k", "g"], 4 * (8 * 128 + 4 * 64)),
    ],
    ids=["bf16", "fp32 keeps no raw values"],
)
def test_gdn_rings_by_hand(conv_dtype: str, names: list[str], per_head: int) -> None:
    """Hv * dv and Hk * dk in the conv dtype, twice unless it is fp32, and one fp32 gate a value head."""
    rings = replay_rings("pairs", slots=1, conv_dtype=conv_dtype, **QWEN)
    assert [ring.name for ring in rings] == names
    assert total(rings) == 30 * 16 * (per_head + 8 * 4)


def test_ring_length_16_is_the_least_for_8_draft_tokens() -> None:
    """Write-up A (A9): a power of two, at least 2 x 8."""
    assert smallest_ring(8) == 16
    assert ring_length_problem(16, 8) == ""


@pytest.mark.parametrize(
    ("cache_len", "draft_tokens", "problem"),
    [
        (12, 4, "the ring length must be a power of two, 12 is not"),
        (8, 8, "the ring length must be at least 2 x D = 16 for 8 draft tokens, 8 is not"),
        (0, 0, "the ring length must be a power of two, 0 is not"),
        (-16, 0, "the ring length must be a power of two, -16 is not"),
    ],
)
def test_an_illegal_ring_length_is_explained(cache_len: int, draft_tokens: int, problem: str) -> None:
    """The words of the refusal; SGLang's pool raises ValueError for both reasons."""
    assert ring_length_problem(cache_len, draft_tokens) == problem


@given(st.integers(-8, 600), st.integers(0, 300))
def test_the_legality_rule_is_what_brute_force_finds(cache_len: int, draft_tokens: int) -> None:
    """Legal lengths are the powers of two from 2D on."""
    legal = cache_len in {2**i for i in range(12)} and cache_len >= 2 * draft_tokens
    assert (ring_length_problem(cache_len, draft_tokens) == "") == legal


@given(st.integers(0, 2**20))
def test_the_smallest_ring_is_legal_and_half_of_it_is_not(draft_tokens: int) -> None:
    """No shorter legal length exists."""
    least = smallest_ring(draft_tokens)
    assert ring_length_problem(least, draft_tokens) == ""
    assert least == 1 or ring_length_problem(least // 2, draft_tokens) != ""


dims = st.integers(1, 64)
geometry = st.fixed_dictionaries({
    "layers": dims, "v_heads": dims, "v_head_dim": dims, "k_heads": st.integers(0, 64), "k_head_dim": dims,
    "conv_dtype": st.sampled_from(["bfloat16", "float32"]),
})  # fmt: skip


@pytest.mark.parametrize("kept", ["inputs", "pairs"])
@given(sizes=geometry, slots=st.integers(1, 500), cache_len=st.integers(1, 64))
def test_ring_bytes_are_linear_in_slots_and_in_length(
    kept: Literal["inputs", "pairs"], sizes: dict[str, Any], slots: int, cache_len: int
) -> None:
    """Every buffer is a rectangle: twice the slots or twice the length is twice the bytes."""
    one = total(replay_rings(kept, slots=1, cache_len=1, **sizes))
    assert total(replay_rings(kept, slots=slots, cache_len=cache_len, **sizes)) == slots * cache_len * one
