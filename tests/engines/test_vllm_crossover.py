"""What `hybridcalc crossover` answers for vLLM: what the pool loses to a request, padding and empty slots counted."""

import re
from fractions import Fraction
from math import lcm
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from present import present

from hybridcalc import load_model
from hybridcalc.architecture.presets import model_names
from hybridcalc.engines.crossover import Crossover, Holdings
from hybridcalc.engines.vllm import EngineArgs
from hybridcalc.engines.vllm.crossover import compare, holdings, lighter_in_blocks
from hybridcalc.engines.vllm.families import CLASSES
from hybridcalc.engines.vllm.planner import prepare
from hybridcalc.errors import HybridcalcError, InputError, Refusal
from hybridcalc.formulas import KvCurve

NEMOTRON = "nemotron-h-8b"
BLOCK = 17_039_360


def crossover(name: str, baseline: str | None = None, longest: None = None, **flags: Any) -> Crossover:
    return compare(load_model(name), load_model(baseline) if baseline else None, EngineArgs(**flags), longest=longest)


@pytest.mark.parametrize(("flags", "blocks"), [({}, 18), ({"enable_prefix_caching": False}, 6)])
def test_nemotron_h_8b_against_llama_3_8b(flags: dict[str, Any], blocks: int) -> None:
    """Whole pages: 18 blocks of states with prefix caching, 6 without, against 16,384 B a token."""
    answer = crossover(NEMOTRON, "llama-3-8b", **flags)
    assert (answer.state_bytes, answer.kv_bytes_per_token) == (blocks * BLOCK, 16_384)
    assert answer.component_tokens == Fraction(blocks * BLOCK, 16_384)
    assert present(answer.baseline).kv_bytes_per_token == 131_072
    assert present(answer.baseline).total_tokens == Fraction(blocks * BLOCK, 131_072 - 16_384)


def test_padding_moves_the_crossover() -> None:
    """LFM2 states of 8,192 B take pages of 32,768 B: four times as far, and the note says what they are."""
    answer = crossover("lfm2-1.2b", enable_prefix_caching=False)
    assert answer.state_bytes == 2 * 6 * 32_768
    assert answer.notes[-1] == "physical: states in whole padded pages (themselves 81,920 B), KV by the token"


@pytest.mark.parametrize("asked", [None, 8192])
def test_a_model_that_names_no_length_crosses_where_it_would_with_one(asked: int | None) -> None:
    unnamed = load_model("lfm2-1.2b")._replace(max_context=None)
    found = compare(unnamed, None, EngineArgs(enable_prefix_caching=False, max_model_len=asked), longest=None)
    assert found.component_tokens == crossover("lfm2-1.2b", enable_prefix_caching=False).component_tokens


def by_counting(mine: Holdings, block: int, theirs: Holdings, other_block: int, longest: int) -> int | None:
    """The length from which on the first always holds less than the second, up to ``longest``; None for never."""

    def holds(side: Holdings, unit: int, tokens: int) -> int:
        return side.state_bytes + -(-tokens // unit) * unit * side.curve.bytes_per_token

    period = lcm(block, other_block)
    worse = [t for t in range(1, longest + 1) if holds(mine, block, t) >= holds(theirs, other_block, t)]
    last = max(worse, default=0)
    return last + 1 if last <= longest - period else None


def side(state: int, per_token: int) -> Holdings:
    return Holdings("", "", state, 1, "", KvCurve(per_token), 1, "")


@given(
    st.integers(0, 300),
    st.integers(0, 20),
    st.integers(1, 12),
    st.integers(0, 300),
    st.integers(1, 20),
    st.integers(1, 12),
)
@settings(max_examples=400)
def test_lighter_in_blocks_is_what_counting_every_length_gives(
    state: int, mine: int, block: int, other_state: int, theirs: int, other_block: int
) -> None:
    """Whole blocks on both sides; beyond the crossing by the token, plus a block of each, nothing changes any more."""
    hybrid, other = side(state, mine), side(other_state, theirs)
    found = lighter_in_blocks(hybrid, block, other, other_block)
    period = lcm(block, other_block)
    end = (state + other_state + (mine + theirs) * period) // (abs(theirs - mine) or 1) + 4 * period
    assert found == by_counting(hybrid, block, other, other_block, end)


@pytest.mark.parametrize(
    ("name", "baseline"),
    [("nemotron-h-8b", "llama-3-8b"), ("lfm2-1.2b", "llama-3-8b"), ("kimi-linear-48b-a3b", "deepseek-v3")],
)
def test_the_note_on_whole_blocks_is_what_the_planner_counts(name: str, baseline: str) -> None:
    """The pool loses blocks: at that length the hybrid takes fewer bytes of them, one token before it does not."""
    answer = crossover(name, baseline)
    found = re.search(r"^counted in whole blocks, .* holds less than .* from ([\d,]+) tokens on$", answer.notes[-1])
    first = int(present(found)[1].replace(",", ""))

    def bytes_of(model: str, tokens: int) -> int:
        ready = prepare(load_model(model), EngineArgs())
        return ready.blocks_at(tokens) * ready.bytes_per_block

    assert bytes_of(name, first) < bytes_of(baseline, first)
    assert bytes_of(name, first - 1) >= bytes_of(baseline, first - 1)
    assert all(bytes_of(name, tokens) < bytes_of(baseline, tokens) for tokens in range(first, first + 20_000, 997))


def test_a_hybrid_whose_tokens_take_more_is_lighter_from_no_length_on() -> None:
    """Falcon-H1's KV outweighs the latent rows of DeepSeek-V3; short or long, there is no such length."""
    assert crossover("falcon-h1-34b", "deepseek-v3").notes[-1] == (
        "counted in whole blocks, falcon-h1-34b holds less than deepseek-v3 from no length on"
    )


PRESETS = [
    name
    for name in model_names()
    if load_model(name).architecture in CLASSES and not CLASSES[load_model(name).architecture].last
]


@pytest.mark.parametrize("name", PRESETS)
def test_what_is_held_is_what_the_planner_counts(name: str) -> None:
    """State: blocks at one token less the one of KV; KV: what ten thousand blocks more of length add."""
    args = EngineArgs()
    try:
        held, ready = holdings(load_model(name), args), prepare(load_model(name), args)
    except HybridcalcError as refused:
        pytest.skip(str(refused))
    growing = sum(1 for group in ready.groups if group.kind == "full attention")
    assert held.state_bytes == (ready.blocks_at(1) - growing) * ready.bytes_per_block
    span = 10_000 * ready.pages.block
    more = (ready.blocks_at(span + 1) - ready.blocks_at(1)) * ready.bytes_per_block
    assert 0 <= held.curve.bytes_per_token * span - more < span  # whole bytes a token


@pytest.mark.parametrize("baseline", ["llama-3-8b", "deepseek-v3", "kimi-linear-48b-a3b"])
@pytest.mark.parametrize("name", ["nemotron-h-8b", "qwen3-next-80b-a3b", "lfm2-1.2b", "falcon-h1-34b"])
def test_the_curve_and_the_steps_agree_with_the_meeting(name: str, baseline: str) -> None:
    """The hybrid holds no less before it and less from it on; printed numbers compute to the value."""
    answer = crossover(name, baseline)
    total = present(answer.baseline).total_tokens
    for point in answer.curve:
        assert (point.kv_bytes >= point.state_bytes) == (point.tokens >= present(answer.component_tokens))
        if total is not None:
            assert (present(point.baseline_bytes) >= point.state_bytes + point.kv_bytes) == (
                point.tokens >= present(total)
            )
    for step in answer.steps:
        numbers = re.sub(r"[\d,]+", lambda m: f"Fraction({m[0].replace(',', '')})", step.with_numbers)
        assert eval(numbers.replace(" x ", " * ")) == step.value, step


@pytest.mark.parametrize(
    ("name", "flags", "message"),
    [
        ("llama-3-8b", {}, "llama-3-8b has no recurrent layer: it keeps no state"),
        (
            NEMOTRON,
            {"engine_version": "0.22.1", "enable_prefix_caching": True},
            "mode all keeps states for every block: they grow with the length",
        ),
    ],
)
def test_what_has_no_crossover_is_refused(name: str, flags: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError) as caught:
        crossover(name, **flags)
    assert caught.value.message == message


def test_a_baseline_with_windows_is_refused_and_so_is_what_the_engine_refuses() -> None:
    with pytest.raises(InputError, match=r"(?m)^gpt-oss-120b: blocks of sliding windows have no crossover here$"):
        crossover(NEMOTRON, "gpt-oss-120b")
    with pytest.raises(Refusal, match=r"does not divide the 32 attention heads"):
        crossover(NEMOTRON, tensor_parallel_size=3)


def test_a_pure_state_space_model_has_no_crossover_of_its_own() -> None:
    answer = crossover("codestral-mamba-7b", "llama-3-8b")
    assert (answer.component_tokens, answer.per_layer_tokens) == (None, None)
    assert present(answer.baseline).total_tokens == Fraction(answer.state_bytes, 131_072)
