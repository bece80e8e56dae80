"""vLLM's start-up on a memory: blocks, capacity, boundaries, refusals with what they say, block sizes."""

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hybridcalc import load_model, vllm
from hybridcalc.architecture.presets import model_names
from hybridcalc.engines.vllm import EngineArgs
from hybridcalc.engines.vllm.configuration import longest_of
from hybridcalc.engines.vllm.families import CLASSES
from hybridcalc.engines.vllm.pages import Sizing
from hybridcalc.engines.vllm.planner import prepare, size
from hybridcalc.errors import HybridcalcError, InputError, Refusal
from hybridcalc.units import GIB

NEMOTRON = "nemotron-h-8b"
BLOCK = 17_039_360
"""Bytes of a block of Nemotron-H-8B: 4 layers of 4,259,840 B."""


def sized(gib: float = 40.0, model: str = NEMOTRON, *, available: int | None = None, **flags: Any) -> Sizing:
    args = EngineArgs(**{"max_model_len": 8192, **flags})
    return size(prepare(load_model(model), args), int(gib * GIB) if available is None else available)


def refusal(*given: Any, **flags: Any) -> Refusal:
    with pytest.raises(Refusal) as caught:
        sized(*given, **flags)
    return caught.value


@pytest.mark.parametrize(
    ("flags", "blocks", "each", "printed"),
    [
        ({}, 2520, 26, "96.92"),
        ({"enable_prefix_caching": False}, 2520, 14, "180.00"),
        ({"engine_version": "0.22.1", "enable_prefix_caching": True}, 2048, 49, "41.80"),
        ({"engine_version": "0.22.1", "enable_prefix_caching": True, "mamba_cache_mode": "align"}, 2520, 20, "126.00"),
        ({"engine_version": "0.22.1"}, 2520, 14, "180.00"),
        ({"kv_cache_dtype": "fp8"}, 2520, 22, "114.55"),
    ],
)
def test_nemotron_h_8b_on_40_gib_at_8192_tokens(flags: dict[str, Any], blocks: int, each: int, printed: str) -> None:
    """align 6 x 3 + 8 blocks a request, none 6 x 1 + 8; all 7 x 7 longer ones."""
    found = sized(**flags)
    assert (found.blocks, found.per_request) == (blocks, each)
    assert f"{found.concurrency:.2f}" == printed
    assert found.tokens == int(blocks / each * 8192)


def test_a_request_needs_the_null_block_beside_its_own() -> None:
    """26 blocks hold one request and are refused, since block 0 is not handed out; 27 start and print 1.04x."""
    found = refusal(available=26 * BLOCK, max_num_seqs=1)
    assert (found.stage, found.rule) == ("get_kv_cache_configs", "HC041")
    assert found.reason == "one request of 8,192 tokens takes 26 blocks (0.41 GiB); 25 are free"
    assert found.fix == "write --max-model-len 7280, or give it more memory"
    assert f"{sized(available=27 * BLOCK, max_num_seqs=1).concurrency:.2f}" == "1.04"
    older: dict[str, Any] = {
        "engine_version": "0.22.1",
        "enable_prefix_caching": True,
        "mamba_cache_mode": "align",
        "max_num_seqs": 1,
    }
    assert sized(available=20 * BLOCK, **older).blocks == 20


def test_a_length_that_does_not_fit_is_told_the_limit_that_starts_with_it() -> None:
    """256 sequences by default are more than 26 blocks: both are written, and both together start."""
    assert refusal(available=26 * BLOCK).fix == ("write --max-model-len 7280 --max-num-seqs 26, or give it more memory")
    assert sized(available=26 * BLOCK, max_model_len=7280, max_num_seqs=26).blocks == 26
    assert refusal(available=26 * BLOCK, max_model_len=7280, max_num_seqs=27).rule == "HC044"


def test_auto_fit_takes_the_longest_that_fits() -> None:
    """24 blocks - the null block - 18 of states: 5 of attention, 5,200 tokens."""
    assert sized(available=24 * BLOCK, max_model_len=-1, max_num_seqs=1).length == 5200
    assert sized(max_model_len=-1).length == load_model(NEMOTRON).max_context
    found = refusal(available=19 * BLOCK, max_model_len=-1, max_num_seqs=1)
    assert (found.rule, found.reason) == (
        "HC041",
        "no length fits: the memory does not hold a request of a single token",
    )


@pytest.mark.parametrize("available", [-1, 0, 1, BLOCK])
def test_less_than_a_block_beside_the_null_block_is_no_memory(available: int) -> None:
    found = refusal(available=available, max_num_seqs=1)
    assert (found.stage, found.rule) == ("get_kv_cache_configs", "HC040")
    assert found.reason == (f"no memory for the cache: a block takes {BLOCK:,} B of {max(0, available):,} B")


def test_a_memory_of_no_token_names_no_length() -> None:
    found = refusal(available=18 * BLOCK, max_num_seqs=1)
    assert (found.rule, found.fix) == ("HC041", "no length fits: more memory")


def test_sequences_are_bounded_by_blocks_under_full_graphs_alone() -> None:
    """Equality passes; B counts all blocks, the null block and those of attention too."""
    assert sized(max_num_seqs=2520).blocks == 2520
    found = refusal(max_num_seqs=2521)
    assert (found.stage, found.rule) == ("cudagraph_mamba_check", "HC044")
    assert found.reason == "max_num_seqs 2,521 exceeds the 2,520 blocks: full CUDA graphs need one a sequence"
    assert found.fix == "write --max-num-seqs 2520"
    for off in ({"enforce_eager": True}, {"compilation_config": {"cudagraph_mode": "PIECEWISE"}}):
        assert sized(max_num_seqs=10_000, **off).blocks == 2520
    assert sized(model="llama-3-8b", max_num_seqs=10**6).blocks > 0
    assert "1,024, the default, exceeds the 1,008 blocks" in refusal(16.0, gpu_memory_gib=80.0).reason
    assert sized(16.0).blocks == 1008


@pytest.mark.parametrize(
    ("release", "drafts", "checked"), [("0.24.0", 3, False), ("0.24.0", 0, True), ("0.25.0", 3, True)]
)
def test_drafts_of_lightning_attention_run_without_full_graphs_before_0_25(
    release: str, drafts: int, checked: bool
) -> None:
    """So that max_num_seqs is not held against the blocks there. Source: a run of the classes of 0.22.1."""
    asked: dict[str, Any] = {"engine_version": release, "max_model_len": 2048, "max_num_seqs": 512}
    if drafts:
        asked["speculative_config"] = {"method": "ngram", "num_speculative_tokens": drafts}
    ready = prepare(load_model("ling-2.6-flash"), EngineArgs(tensor_parallel_size=4, **asked))
    if not checked:
        assert size(ready, 300 * ready.bytes_per_block).blocks == 300
        return
    with pytest.raises(Refusal) as caught:
        size(ready, 300 * ready.bytes_per_block)
    assert (caught.value.rule, caught.value.stage) == ("HC044", "cudagraph_mamba_check")


def test_an_override_decides_blocks_and_checks() -> None:
    assert sized(num_gpu_blocks_override=300).blocks == 300
    assert refusal(num_gpu_blocks_override=26, max_num_seqs=1).rule == "HC041"
    assert sized(available=0, num_gpu_blocks_override=27, max_num_seqs=1).blocks == 27


@pytest.mark.parametrize(("unit", "hit"), [(16, 16), (208, 208), (520, 520), (1040, 1040), (None, 1040)])
def test_a_match_unit_divides_the_block(unit: int | None, hit: int) -> None:
    """Hits then land on the unit; on the block without one."""
    found = sized(prefix_match_unit=unit)
    assert (found.hash_block, found.hit_tokens, found.scheduler_block) == (hit, hit, 1040)


@pytest.mark.parametrize(("unit", "near"), [(32, 26), (100, 80), (2080, 1040), (7, 5)])
def test_a_match_unit_that_does_not_is_refused_with_the_nearest(unit: int, near: int) -> None:
    found = refusal(prefix_match_unit=unit)
    assert (found.stage, found.rule) == ("resolve_kv_cache_block_sizes", "HC045")
    assert found.reason == f"prefix_match_unit {unit} does not divide the block of 1,040 tokens"
    assert found.fix == f"write --prefix-match-unit {near}, or leave it out"
    assert sized(prefix_match_unit=near).hash_block == near


def test_a_unit_for_a_block_of_a_million_tokens_is_answered_at_once(steps: Callable[..., Any]) -> None:
    """The nearest divisor is found without trying every number up to it."""
    found = refusal(1000.0, block_size=2**20, prefix_match_unit=999_983)
    assert steps(lambda: refusal(1000.0, block_size=2**20, prefix_match_unit=999_983)) < 10_000
    assert (found.rule, found.fix) == ("HC045", "write --prefix-match-unit 524288, or leave it out")


def test_one_group_takes_its_own_block_for_a_unit() -> None:
    """Codestral-Mamba with prefix caching: blocks of 16."""
    pure: dict[str, Any] = {"model": "codestral-mamba-7b", "enable_prefix_caching": True}
    assert sized(prefix_match_unit=16, **pure).hash_block == 16
    found = refusal(prefix_match_unit=8, **pure)
    assert (found.rule, found.fix) == ("HC045", "leave it out, or write --prefix-match-unit 16")


@pytest.mark.parametrize(
    ("flags", "interval", "reason", "fix"),
    [
        (
            {},
            100,
            "prefix_cache_retention_interval 100 is no multiple of the block of 1,040 tokens",
            "write --prefix-cache-retention-interval 1040",
        ),
        (
            {"enable_prefix_caching": False},
            1040,
            "prefix_cache_retention_interval 1,040 is no multiple of the block of 532,480 tokens",
            "write --prefix-cache-retention-interval 532480",
        ),
        (
            {},
            3000,
            "prefix_cache_retention_interval 3,000 is no multiple of the block of 1,040 tokens",
            "write --prefix-cache-retention-interval 2080",
        ),
        (
            {"model": "llama-3-8b"},
            16,
            "prefix_cache_retention_interval is set, but no layer keeps a state or a window",
            "leave it out",
        ),
    ],
)
def test_a_retention_interval_is_whole_blocks_of_a_model_with_a_state(
    flags: dict[str, Any], interval: int, reason: str, fix: str
) -> None:
    found = refusal(prefix_cache_retention_interval=interval, **flags)
    assert (found.stage, found.rule, found.reason, found.fix) == ("retention", "HC048", reason, fix)


@pytest.mark.parametrize(
    "flags",
    [
        {"prefix_cache_retention_interval": 2080},
        {"prefix_cache_retention_interval": None},
        {"prefix_cache_retention_interval": 0, "model": "llama-3-8b"},
        {"prefix_cache_retention_interval": 1040 * 512, "enable_prefix_caching": False},
    ],
)
def test_an_interval_that_is_none_of_this_starts(flags: dict[str, Any]) -> None:
    assert sized(**flags).blocks > 0


def test_attention_and_states_of_one_kind_are_refused() -> None:
    found = refusal(disable_hybrid_kv_cache_manager=True)
    assert (found.stage, found.rule, found.fix) == ("layout+groups", "HC052", "leave it out")
    assert sized(model="codestral-mamba-7b", disable_hybrid_kv_cache_manager=True).blocks > 0


def test_a_refusal_carries_what_the_stages_before_it_settled() -> None:
    """And the lines that were printed before it."""
    found = refusal(max_num_seqs=2521).outputs
    assert (found["num_blocks"], found["blocks_per_request"], found["attn_block_size"]) == (2520, 26, 1040)
    assert "GPU KV cache size: 793,993 tokens" in " ".join(found["log"])
    early = refusal(tensor_parallel_size=3).outputs
    assert set(early) == {"log"} and len(early["log"]) == 2


PRESETS = [name for name in model_names() if load_model(name).architecture in CLASSES or not load_model(name).state]
FLAGS = st.fixed_dictionaries({
    "tensor_parallel_size": st.sampled_from([1, 2, 4, 8]),
    "kv_cache_dtype": st.sampled_from(["auto", "fp8"]),
    "max_model_len": st.sampled_from([1, 4096, 8192, 131_072]),
    "env": st.sampled_from([{"VLLM_ALLOW_LONG_MAX_MODEL_LEN": "1"}, {"VLLM_ALLOW_LONG_MAX_MODEL_LEN": "1"}, {}]),
    "max_num_seqs": st.sampled_from([1, 16]),
    "enable_prefix_caching": st.sampled_from([None, True, False]),
    "mamba_cache_mode": st.sampled_from([None, "align"]),
    "enforce_eager": st.booleans(),
    "engine_version": st.sampled_from(["0.33.0", "0.25.0", "0.22.1"]),
    "speculative_config": st.sampled_from([None, {"method": "ngram", "num_speculative_tokens": 2}, {"method": "mtp"}]),
})  # fmt: skip


def started(model: str, flags: dict[str, Any], available: int) -> Any:
    """The plan, or the refusal."""
    try:
        return vllm.plan(load_model(model), EngineArgs(**flags), available_bytes=available)
    except Refusal as refused:
        return refused


@given(st.sampled_from(PRESETS), FLAGS, st.integers(2**26, 140 * GIB))
def test_the_longest_length_and_the_most_sequences_are_exact_boundaries(
    model: str, flags: dict[str, Any], available: int
) -> None:
    """Both start, one token or one sequence more is refused by the rule that says so."""
    try:
        plan = started(model, flags, available)
    except InputError:
        return
    if isinstance(plan, Refusal):
        return
    longest, own = plan.longest_model_len, max(longest_of(load_model(model)) or 2048, flags["max_model_len"])
    assert not isinstance(started(model, flags | {"max_model_len": longest}, available), Refusal)
    if longest < own:
        assert started(model, flags | {"max_model_len": longest + 1}, available).rule == "HC041"
    elif not flags["env"] and longest_of(load_model(model)):
        assert started(model, flags | {"max_model_len": longest + 1}, available).rule == "HC051"
    if plan.most_seqs:
        assert plan.most_seqs == plan.num_blocks
        assert not isinstance(started(model, flags | {"max_num_seqs": plan.most_seqs}, available), Refusal)
        assert started(model, flags | {"max_num_seqs": plan.most_seqs + 1}, available).rule == "HC044"
    else:
        assert not isinstance(started(model, flags | {"max_num_seqs": 10**6}, available), Refusal)


@given(st.sampled_from(PRESETS), FLAGS, st.integers(2**24, 140 * GIB), st.integers(0, 2**31))
def test_more_memory_never_serves_less(model: str, flags: dict[str, Any], available: int, more: int) -> None:
    """Blocks, tokens, requests, lengths; what starts, starts with more."""
    try:
        less, larger = started(model, flags, available), started(model, flags, available + more)
    except HybridcalcError:
        return
    if isinstance(less, Refusal):
        return
    assert not isinstance(larger, Refusal)
    for figure in ("num_blocks", "kv_cache_size_tokens", "concurrency", "longest_model_len", "most_seqs"):
        assert getattr(larger, figure) >= getattr(less, figure)
    assert larger.num_blocks == (available + more) // larger.bytes_per_block
