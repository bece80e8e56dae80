"""token_equiv, r*, and the requests that fit when both pools run out together."""

from fractions import Fraction
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hybridcalc.formulas import balanced_ratio, balanced_requests, memory_of, split, token_equiv
from hybridcalc.units import GIB, KIB, MIB

K3_STATE, K3_KV = 56_171_520, 13_824
"""Kimi-K3 on 8 ranks: fp32 state and bf16 conv of a slot, fp8 KV of a token."""


def test_a_state_slot_of_kimi_k3_weighs_4063_tokens() -> None:
    """SGLang's sizing note (B3) reads about 4,080 off a log; exactly 56,171,520 / 13,824 = 4063.33."""
    assert token_equiv(K3_STATE, K3_KV) == Fraction(12_190, 3)


def test_the_ratio_of_the_sizing_note() -> None:
    """SGLang's sizing note (B4): 4 x 4080 / 9216, about 1.8 on 8 ranks; times 8 under context parallelism of 8."""
    assert float(balanced_ratio(4080, 1, slots_per_request=4, length_tokens=9216)) == pytest.approx(1.7708, abs=5e-5)
    exact = balanced_ratio(K3_STATE, K3_KV, slots_per_request=4, length_tokens=9216)
    assert float(exact) == pytest.approx(1.7636, abs=5e-5)
    assert float(balanced_ratio(K3_STATE, K3_KV, slots_per_request=4, length_tokens=9216, dcp=8)) == pytest.approx(
        14.1088
    )


def test_86_requests_of_9216_tokens_share_28_55_gib_beside_the_slot_that_pads() -> None:
    """Kimi-K3 on 8 ranks, lazy strategy: 87 requests would fit but for the padding slot."""
    rest, weight = int(28.55 * GIB), {"slots_per_request": 4, "length_tokens": 9216}
    assert balanced_requests(rest, K3_STATE, K3_KV, **weight) == 86
    assert balanced_requests(rest + K3_STATE, K3_STATE, K3_KV, **weight) == 87


@pytest.mark.parametrize(("length", "kv_gib"), [(2048, 10), (8192, 40)])
def test_256_requests_of_60_mib_state_and_20_kib_a_token(length: int, kv_gib: int) -> None:
    """Recurrent-state article (D3): 15 GiB of state; 10 GiB of KV at 2,048 tokens and 40 GiB at 8,192."""
    assert memory_of([length] * 256, 60 * MIB, 0) == 15 * GIB
    assert memory_of([length] * 256, 0, 20 * KIB) == kv_gib * GIB


def test_131072_tokens_of_a_hybrid_and_of_llama_3_8b() -> None:
    """Hybrid SSM chapter (C3): 16 GiB of KV against 2.095 GiB of state and KV, 7.64 times less."""
    llama, hybrid = memory_of([131_072], 0, 131_072), memory_of([131_072], 102_137_856, 16_384)
    assert (llama, round(hybrid / GIB, 6), round(llama / hybrid, 5)) == (16 * GIB, 2.095123, 7.63678)


def test_today_s_ratio_splits_28_55_gib_in_the_engine_s_order_of_operations() -> None:
    """rest * r / (1 + r) as SGLang writes it, float for float; the rest is KV."""
    state, kv = split(28.55, 0.9)
    assert state == 28.55 * 0.9 / (1 + 0.9)
    assert kv == 28.55 - state


sizes, lengths = st.integers(1, 2**36), st.integers(1, 2**24)
slot_counts, degrees, drafts = st.integers(1, 6), st.integers(1, 16), st.integers(0, 16)
weights = st.fixed_dictionaries({
    "slots_per_request": slot_counts, "length_tokens": lengths, "draft_states": drafts, "dcp": degrees,
    "draft_kv_bytes_per_token": st.integers(0, 2**16),
})  # fmt: skip


@given(sizes, sizes, weights, st.integers(1, 2**20))
def test_longer_requests_need_a_smaller_ratio(state: int, kv: int, weight: dict[str, int], more: int) -> None:
    """r* falls as L grows, in proportion to 1 / L."""
    longer = weight | {"length_tokens": weight["length_tokens"] + more}
    ratio, smaller = balanced_ratio(state, kv, **weight), balanced_ratio(state, kv, **longer)
    assert smaller < ratio
    assert smaller * longer["length_tokens"] == ratio * weight["length_tokens"]


@given(sizes, sizes, weights)
def test_each_draft_state_adds_the_same_to_the_ratio(state: int, kv: int, weight: dict[str, int]) -> None:
    """r* is linear in D, with the slope one slot has."""
    with_drafts = [balanced_ratio(state, kv, **weight | {"draft_states": d}) for d in range(4)]
    step = with_drafts[1] - with_drafts[0]
    assert [later - earlier for earlier, later in pairwise(with_drafts)] == [step] * 3
    assert with_drafts[0] == step * weight["slots_per_request"]


@given(sizes, sizes, weights, degrees)
def test_context_parallelism_multiplies_the_ratio(state: int, kv: int, weight: dict[str, int], dcp: int) -> None:
    """dcp ranks share the tokens, so the ratio grows by dcp; a draft model's KV, which is not shared, dampens that."""
    alone = weight | {"dcp": 1, "draft_kv_bytes_per_token": 0}
    assert balanced_ratio(state, kv, **alone | {"dcp": dcp}) == dcp * balanced_ratio(state, kv, **alone)
    drafted = weight | {"dcp": 1}
    assert balanced_ratio(state, kv, **drafted | {"dcp": dcp}) <= dcp * balanced_ratio(state, kv, **drafted)


@given(st.integers(1, 2**42), sizes, sizes, weights)
def test_ratio_balances_both_pools(rest: int, state: int, kv: int, weight: dict[str, int]) -> None:
    """At r* the state pool and the KV pool run out at the same concurrency, which balanced_requests names to one."""
    ratio = balanced_ratio(state, kv, **weight)
    state_pool, kv_pool = rest * ratio / (1 + ratio), rest / (1 + ratio)
    per_token = Fraction(kv, weight["dcp"]) + weight["draft_kv_bytes_per_token"]
    by_state = state_pool // ((weight["slots_per_request"] + weight["draft_states"]) * state)
    by_kv = kv_pool // (weight["length_tokens"] * per_token)
    assert by_state == by_kv
    assert balanced_requests(rest, state, kv, **weight) in (by_state, max(0, by_state - 1))


@given(sizes, sizes, weights)
def test_units_of_memory_do_not_matter(state: int, kv: int, weight: dict[str, int]) -> None:
    """r* is a ratio: bytes of all ranks or of one, it is the same."""
    scaled = weight | {"draft_kv_bytes_per_token": 8 * weight["draft_kv_bytes_per_token"]}
    assert balanced_ratio(8 * state, 8 * kv, **scaled) == balanced_ratio(state, kv, **weight)
    assert token_equiv(8 * state, 8 * kv) == token_equiv(state, kv)


@given(st.lists(lengths, max_size=20), sizes, sizes)
def test_memory_of_requests_adds_up_one_by_one(requests: list[int], state: int, kv: int) -> None:
    """Q x state + sum(T) x kv is the sum over single requests."""
    assert memory_of(requests, state, kv) == sum(memory_of([length], state, kv) for length in requests)
