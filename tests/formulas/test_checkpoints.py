"""int8 checkpoints, snapshots over a sequence, and the bytes of a hand-over."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hybridcalc.formulas import cyclic_hit_rate, decode_snapshots, handover_bytes, int8_slot_bytes, prefill_snapshots
from hybridcalc.units import gib_text

QWEN3_5_35B_TP4: dict[str, Any] = {"layers": 30, "temporal": (8, 128, 128), "conv_bytes": 12_288}
KIMI_K3_TP8: dict[str, Any] = {"layers": 69, "temporal": (12, 128, 128), "conv_bytes": 27_648}


def test_1024_int8_slots_of_qwen3_5_take_4_16_gib() -> None:
    """int8 checkpoint write-up (E2): about 4 MB a slot with two-byte scales; the pool holds one slot more."""
    slot = int8_slot_bytes(**QWEN3_5_35B_TP4, scale_dtype="bfloat16")
    assert (slot, gib_text(1025 * slot)) == (4_362_240, "4.16")


def test_256_active_slots_of_qwen3_5_take_3_85_gib() -> None:
    """int8 checkpoint write-up (E2): fp32 state and bf16 conv of 30 layers on 4 ranks, 257 slots."""
    slot = 30 * (8 * 128 * 128 * 4 + 12_288)
    assert gib_text(257 * slot) == "3.85"


@pytest.mark.parametrize(
    ("geometry", "scale_dtype", "slot_bytes"),
    [
        (QWEN3_5_35B_TP4, "float32", 4_423_680),
        (KIMI_K3_TP8, "float32", 15_897_600),
        (KIMI_K3_TP8, "bfloat16", 15_685_632),
        ({"layers": 10, "temporal": (1, 2048, 0), "conv_bytes": 8192}, "float32", 81_920),
        ({"layers": 10, "temporal": (), "conv_bytes": 8192}, "float32", 81_920),
    ],
    ids=["qwen3.5-35b fp32", "kimi-k3 fp32", "kimi-k3 bf16", "lfm2 empty temporal", "no temporal"],
)
def test_scales_take_the_ssm_dtype_and_an_empty_state_has_none(
    geometry: dict[str, Any], scale_dtype: str, slot_bytes: int
) -> None:
    """SGLang mamba_checkpoint_pool (0.5.23): H*dv*dk values, H*dk scales, the windows as they are."""
    assert int8_slot_bytes(**geometry, scale_dtype=scale_dtype) == slot_bytes


def test_snapshots_of_a_prompt_and_of_its_answer() -> None:
    """One at each chunk boundary of the prompt; one each track interval of the answer."""
    assert prefill_snapshots(13_600, 6144) == 3
    assert [decode_snapshots(tokens, 256) for tokens in (255, 256, 1000)] == [0, 1, 3]


def test_a_hand_over_moves_the_state_and_the_kv_of_the_prompt() -> None:
    """Kimi-K3 on 8 ranks, 9,216 tokens: 56,171,520 + 9216 x 13,824 B."""
    assert handover_bytes(56_171_520, 13_824, 9216) == 183_573_504


@pytest.mark.parametrize(("slots", "rates"), [(256, [1, 0, 0]), (512, [1, 1, 0])], ids=["256 slots", "512 slots"])
def test_reuse_collapses_when_prefixes_exceed_the_pool(slots: int, rates: list[int]) -> None:
    """int8 checkpoint write-up (E4): 128, 384 and 640 prefixes probed in turn."""
    assert [cyclic_hit_rate(prefixes, slots) for prefixes in (128, 384, 640)] == rates


@given(st.integers(1, 60), st.integers(1, 60))
def test_the_cyclic_hit_rate_is_that_of_a_simulated_lru(prefixes: int, slots: int) -> None:
    """Brute force: three rounds against an LRU, the first left out."""
    cached: list[int] = []
    hits = 0
    for probe in [*range(prefixes)] * 3:
        hits += probe in cached
        cached = [prefix for prefix in cached if prefix != probe][-(slots - 1) :] if slots > 1 else []
        cached.append(probe)
    assert hits == 2 * prefixes * cyclic_hit_rate(prefixes, slots)


@given(st.integers(1, 64), st.tuples(*[st.integers(1, 64)] * 3), st.integers(0, 4096))
def test_an_int8_slot_is_never_larger_than_the_bf16_state_it_keeps(
    layers: int, temporal: tuple[int, int, int], conv_bytes: int
) -> None:
    """One byte a value and two bytes a row of dv values, once a row has two values or more."""
    heads, value_dim, key_dim = temporal
    int8 = int8_slot_bytes(layers=layers, temporal=temporal, conv_bytes=conv_bytes, scale_dtype="bfloat16")
    bf16 = layers * (2 * heads * value_dim * key_dim + conv_bytes)
    assert (int8 <= bf16) == (value_dim >= 2)
