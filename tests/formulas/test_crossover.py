"""T*: where KV outweighs the state, and where a hybrid starts to beat a baseline."""

import itertools
from fractions import Fraction
from math import ceil

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hybridcalc.engines.crossover import curve_lengths
from hybridcalc.formulas import KvCurve, crossover_tokens, lighter_spans, total_crossover_tokens
from hybridcalc.units import KIB, MIB

NEMOTRON_H_8B, NEMOTRON_H_8B_BF16 = 102_137_856, 51_806_208
"""State bytes of one sequence: 24 Mamba2 layers, fp32 or bf16 state, bf16 conv."""
NEMOTRON_KV, LLAMA_KV = 16_384, 131_072


@pytest.mark.parametrize(
    ("state", "tokens"), [(NEMOTRON_H_8B, 779.25), (NEMOTRON_H_8B_BF16, 395.25)], ids=["fp32", "bf16"]
)
def test_the_state_of_nemotron_h_against_llama_s_kv(state: int, tokens: float) -> None:
    """Hybrid SSM chapter (C2): 779 tokens, 395 with a bf16 state."""
    assert crossover_tokens(state, LLAMA_KV) == Fraction(tokens)


def test_the_whole_hybrid_against_llama_s_kv() -> None:
    """Hybrid SSM chapter (C2): about 891 tokens, since the hybrid has KV of its own."""
    total = total_crossover_tokens(NEMOTRON_H_8B, KvCurve(NEMOTRON_KV), KvCurve(LLAMA_KV))
    assert total == Fraction(NEMOTRON_H_8B, LLAMA_KV - NEMOTRON_KV)
    assert float(total) == pytest.approx(890.571, abs=5e-4)


def test_one_layer_pair_of_nemotron_nano_is_not_the_model() -> None:
    """Recurrent-state article (D1): 658 tokens for one pair; 28 Mamba and 6 attention layers make it 3,071."""
    assert crossover_tokens(2_695_168, 4096) == 658
    assert crossover_tokens(28 * 2_695_168, 6 * 4096) == Fraction(9212, 3)


def test_60_mib_of_state_weigh_3072_tokens_of_20_kib() -> None:
    """Recurrent-state article (D3)."""
    assert crossover_tokens(60 * MIB, 20 * KIB) == 3072


def test_a_model_without_growing_kv_never_crosses() -> None:
    """Pure state-space models have no KV; sliding windows alone stop growing."""
    assert crossover_tokens(NEMOTRON_H_8B, 0) is None
    assert total_crossover_tokens(1000, KvCurve(0), KvCurve(0, 9, 100)) is None


def test_a_full_window_changes_the_slope() -> None:
    """By hand: 10 B a token against 2 B and a window of 8 B: level for 100 tokens, then 8 B apart."""
    assert total_crossover_tokens(80, KvCurve(2, 8, 100), KvCurve(10)) == 110


tiny, windows = st.integers(0, 12), st.integers(0, 30)
curves = st.builds(KvCurve, tiny, tiny, windows)


@given(st.integers(-200, 200), curves, curves)
def test_the_total_crossover_is_the_whole_length_a_search_finds(state: int, hybrid: KvCurve, baseline: KvCurve) -> None:
    """Brute force over whole tokens, windows of both sides included: the baseline weighs as much from there on."""
    leads = [baseline.at(tokens) - hybrid.at(tokens) - state for tokens in range(1500)]
    behind = [tokens for tokens, lead in enumerate(leads) if lead < 0]
    found = behind[-1] + 1 if behind else 0
    met = total_crossover_tokens(state, hybrid, baseline)
    if found == len(leads) or not any(leads):
        assert met is None
    else:
        assert met is not None and ceil(met) == found


@given(st.integers(-200, 200), curves, curves)
def test_the_lighter_spans_are_the_whole_lengths_a_search_finds(state: int, hybrid: KvCurve, baseline: KvCurve) -> None:
    """Brute force over whole tokens, windows of both sides included; spans are apart, and only the last may not end."""
    spans = lighter_spans(state, hybrid, baseline)
    found = {tokens for first, last in spans for tokens in range(first, (last or 1499) + 1)}
    assert found == {t for t in range(1, 1500) if baseline.at(t) - hybrid.at(t) - state > 0}
    assert all(one.last is not None and one.last + 1 < other.first for one, other in itertools.pairwise(spans))


@pytest.mark.parametrize(
    ("state", "hybrid", "baseline", "spans"),
    [
        (80, KvCurve(2), KvCurve(10), ((11, None),)),
        (-80, KvCurve(10), KvCurve(2), ((1, 9),)),
        (-9, KvCurve(2, 8, 100), KvCurve(9), ((1, 8), (114, None))),
        (0, KvCurve(9), KvCurve(9), ()),
        (50, KvCurve(1), KvCurve(0, 8, 10), ((8, 29),)),
        (-1, KvCurve(1), KvCurve(1), ((1, None),)),
    ],
)
def test_a_hybrid_may_be_lighter_below_above_between_or_never(
    state: int, hybrid: KvCurve, baseline: KvCurve, spans: tuple[tuple[int, int | None], ...]
) -> None:
    """By hand; a length at which both weigh the same belongs to no span."""
    assert lighter_spans(state, hybrid, baseline) == spans


def test_two_models_of_equal_weight_have_no_crossover() -> None:
    """A model against itself."""
    assert total_crossover_tokens(0, KvCurve(10, 5, 100), KvCurve(10, 5, 100)) is None


def test_a_lead_that_does_not_last_is_no_crossover() -> None:
    """By hand: a baseline window of 8 B leads the hybrid's 5 B a token until 100 tokens, and falls behind after 160."""
    assert total_crossover_tokens(0, KvCurve(5), KvCurve(0, 8, 100)) is None


@given(st.integers(1, 2**40), st.integers(0, 2**24), st.integers(1, 2**24))
def test_the_total_crossover_solves_its_equation(state: int, hybrid: int, gain: int) -> None:
    """state + hybrid KV(T) = baseline KV(T), exactly, with plain KV on both sides."""
    met = total_crossover_tokens(state, KvCurve(hybrid), KvCurve(hybrid + gain))
    assert met is not None
    assert state + hybrid * met == (hybrid + gain) * met


@given(st.integers(1, 2**40), st.integers(1, 2**24))
def test_at_the_crossover_kv_weighs_exactly_the_state(state: int, kv: int) -> None:
    """T* x KV per token = state."""
    met = crossover_tokens(state, kv)
    assert met is not None and met * kv == state


@given(curves, st.integers(0, 100))
def test_kv_grows_token_by_token_and_windows_stop(curve: KvCurve, tokens: int) -> None:
    """Each token adds its bytes; one of a full window replaces another."""
    added = curve.at(tokens + 1) - curve.at(tokens)
    assert added == curve.bytes_per_token + (curve.window_bytes_per_token if tokens < curve.window_tokens else 0)


@given(st.lists(st.none() | st.fractions(0, 2**20), max_size=3), st.integers(1, 2**20))
def test_curve_lengths_rise_from_one_to_the_longest_and_hold_each_mark(
    marks: list[Fraction | None], longest: int
) -> None:
    """Powers of two, the end, and the whole token at or below each crossover that lies inside."""
    lengths = curve_lengths(marks, longest)
    assert (lengths[0], lengths[-1], lengths) == (1, longest, sorted(set(lengths)))
    assert {int(mark) for mark in marks if mark is not None and 1 <= mark <= longest} <= set(lengths)


@pytest.mark.parametrize(
    ("state", "hybrid", "baseline"),
    [
        (-8, KvCurve(0, 8, 1), KvCurve(0)),
        (0, KvCurve(0, 4, 2), KvCurve(0, 8, 1)),
        (0, KvCurve(5, 0, 7), KvCurve(5, 1, 3)),
    ],
)
def test_models_that_weigh_the_same_but_for_a_few_tokens_meet_at_none(
    state: int, hybrid: KvCurve, baseline: KvCurve
) -> None:
    """The baseline is heavier at one length or some, and never lighter: from no tokens on, unlike equal models."""
    assert total_crossover_tokens(state, hybrid, baseline) == 0


@given(curves, st.integers(0, 100))
def test_the_piece_of_a_curve_that_leads_to_a_length_is_a_line_through_it(curve: KvCurve, tokens: int) -> None:
    """Up to the window's last token both parts grow; behind it the window is full."""
    full, slope = curve.line(tokens)
    assert full + tokens * slope == curve.at(tokens)
    assert (full == 0 and slope == curve.bytes_per_token + curve.window_bytes_per_token) is (
        tokens <= curve.window_tokens or curve.window_bytes_per_token == 0
    )


@pytest.mark.parametrize(
    ("state", "hybrid", "baseline", "met", "spans"),
    [
        (0, KvCurve(0, 8, 1), KvCurve(4), 2, ((3, None),)),
        (0, KvCurve(4), KvCurve(0, 8, 1), None, ((1, 1),)),
        (0, KvCurve(0, 8, 1), KvCurve(5), Fraction(8, 5), ((2, None),)),
        (5, KvCurve(0), KvCurve(10), Fraction(1, 2), ((1, None),)),
        (10, KvCurve(0), KvCurve(10), 1, ((2, None),)),
    ],
)
def test_a_window_of_one_token_and_a_crossover_below_one(
    state: int,
    hybrid: KvCurve,
    baseline: KvCurve,
    met: Fraction | int | None,
    spans: tuple[tuple[int, int | None], ...],
) -> None:
    """By hand."""
    assert total_crossover_tokens(state, hybrid, baseline) == met
    assert lighter_spans(state, hybrid, baseline) == spans
