"""A vLLM plan as a whole: where the blocks go to the byte, what runs at once, the document, steps and notes."""

import json
import re
from fractions import Fraction
from math import ceil
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hybridcalc import load_model, vllm
from hybridcalc.architecture.presets import model_names
from hybridcalc.deployment import Rest, Workload
from hybridcalc.engines import ENGINES
from hybridcalc.engines.document import refusal_document
from hybridcalc.engines.vllm import EngineArgs
from hybridcalc.engines.vllm.families import CLASSES
from hybridcalc.errors import HybridcalcError, InputError, Refusal
from hybridcalc.units import GIB

NEMOTRON = "nemotron-h-8b"


def planned(
    model: str = NEMOTRON, *, gib: float = 40.0, work: Workload | None = None, rest: Rest | None = None, **flags: Any
) -> vllm.Plan:
    args = EngineArgs(**{"max_model_len": 8192, **flags})
    available = None if rest is not None else int(gib * GIB)
    return vllm.plan(load_model(model), args, available_bytes=available, rest=rest, workload=work)


def test_nemotron_h_8b_runs_109_requests_of_4200_tokens() -> None:
    """2,519 usable blocks over 18 of states and 5 of KV."""
    plan = planned(work=Workload.at(4200))
    assert (plan.fixed_blocks, plan.usable_blocks) == (18, 2519)
    assert plan.running.blocks_each == 23
    assert (plan.concurrency, plan.binding) == (109, "blocks")
    assert plan.fixed_bytes_per_request == 18 * 17_039_360
    assert plan.marginal_bytes_per_token == 16_384


def test_mode_all_holds_a_state_for_every_block() -> None:
    """Nothing is fixed; each token takes its share of seven groups."""
    plan = planned(engine_version="0.22.1", enable_prefix_caching=True)
    assert plan.fixed_blocks == 0
    assert plan.marginal_bytes_per_token == Fraction(7 * plan.bytes_per_block, 1280)
    assert plan.padding_pct == pytest.approx(23.19538)


def test_the_limit_binds_where_the_blocks_hold_more() -> None:
    plan = planned(work=Workload.at(4200), max_num_seqs=100)
    assert (plan.concurrency, plan.running.fits, plan.binding) == (100, 109, "limit")
    assert plan.running.idle_percent == pytest.approx(100 * (1 - 100 * 23 / 2519))


def test_unequal_requests_weigh_by_the_blocks_they_hold() -> None:
    """20 of 8,000 tokens hold 18 + 8 blocks, 4 of 1,000 hold 18 + 1."""
    plan = planned(work=Workload(((8000, 20), (1000, 4))))
    assert plan.running.blocks_each == Fraction(20 * 26 + 4 * 19, 24)
    assert plan.concurrency == int(2519 // plan.running.blocks_each)


def test_the_budget_names_every_use_of_the_pool() -> None:
    """109 requests x (6 groups x 3 blocks x 4 layers of states, 5 blocks x 4 layers of KV)."""
    plan = planned(work=Workload.at(4200))
    lines = {line.name: line.allocated_bytes for line in plan.budget}
    assert lines == {
        "states": 109 * 18 * 4 * 4_255_744,
        "state padding": 109 * 18 * 4 * 4_096,
        "KV": 109 * 5 * 4 * 4_259_840,
        "free blocks": (2519 - 109 * 23) * 17_039_360,
        "null block": 17_039_360,
    }
    assert sum(lines.values()) == 2520 * 17_039_360


PRESETS = [name for name in model_names() if load_model(name).architecture in CLASSES or not load_model(name).state]
LENGTHS = st.lists(st.tuples(st.integers(1, 200_000), st.integers(1, 9)), max_size=3).map(tuple)


@given(
    st.sampled_from(PRESETS),
    LENGTHS,
    st.integers(2**26, 140 * GIB),
    st.fixed_dictionaries(
        {
            "tensor_parallel_size": st.sampled_from([1, 2, 8]),
            "max_model_len": st.just(131_072),
            "env": st.just({"VLLM_ALLOW_LONG_MAX_MODEL_LEN": "1"}),
            "kv_cache_dtype": st.sampled_from(["auto", "fp8"]),
            "enable_prefix_caching": st.sampled_from([None, False, True]),
            "max_num_seqs": st.sampled_from([1, 64]),
            "engine_version": st.sampled_from(["0.33.0", "0.22.1", "0.19.0"]),
            "speculative_config": st.sampled_from([None, {"method": "ngram", "num_speculative_tokens": 3}]),
        }
    ),
)
def test_budget_lines_add_up_to_the_blocks_exactly(
    model: str, lengths: tuple[tuple[int, int], ...], available: int, flags: dict[str, Any]
) -> None:
    """Blocks x bytes, for any mix of lengths; no line below zero; all blocks within the memory."""
    try:
        plan = planned(model, gib=available / GIB, work=Workload(lengths), **flags)
    except HybridcalcError:
        return
    assert sum(line.allocated_bytes for line in plan.budget) == plan.num_blocks * plan.bytes_per_block <= available
    assert all(line.allocated_bytes > 0 and line.charged_bytes == line.allocated_bytes for line in plan.budget)
    assert plan.concurrency * plan.running.blocks_each <= plan.usable_blocks
    if plan.binding == "blocks":
        assert (plan.concurrency + 1) * plan.running.blocks_each > plan.usable_blocks
    assert 0 <= plan.running.idle_percent <= 100
    document = json.loads(json.dumps(plan.to_dict()))
    assert document["num_blocks"] == plan.num_blocks and document["steps"]


def test_json_holds_every_promised_key() -> None:
    """Names and types that scripts rely on."""
    document = planned(work=Workload(((4200, 1),), None, None, 4000, 200)).to_dict()
    whole = (
        "attn_block_size",
        "mamba_block_size",
        "state_bytes_per_layer",
        "bytes_per_block",
        "num_blocks",
        "blocks_per_request",
        "kv_cache_size_tokens",
        "scheduler_block_size",
        "hash_block_size",
        "padded_page_bytes",
        "fixed_bytes_per_request",
        "marginal_bytes_per_token",
        "largest_max_num_seqs",
        "longest_max_model_len",
    )
    figures = document["engine_figures"] | document
    assert all(type(figures[name]) is int for name in whole)
    assert (document["starts"], document["refusal"], document["engine"]) == (True, None, "vllm")
    assert figures["prefix"]["reused_tokens"] == 3120
    assert document["requests"] == 109
    assert document["group_sizes"] == [4] * 7
    assert all(set(line) >= {"name", "charged_bytes", "allocated_bytes", "why"} for line in document["budget"])


def test_a_refused_document_names_rule_stage_and_what_was_settled() -> None:
    args = EngineArgs(max_model_len=8192, max_num_seqs=5000)
    with pytest.raises(Refusal) as caught:
        vllm.plan(load_model(NEMOTRON), args, available_bytes=40 * GIB)
    document = refusal_document(ENGINES["vllm"], load_model(NEMOTRON), args, caught.value)
    assert (document["starts"], document["refusal"]["rule"], document["engine_figures"]["num_blocks"]) == (
        False,
        "HC044",
        2520,
    )
    assert [finding["rule"] for finding in document["findings"]] == ["HC044"]
    json.dumps(document)


def test_a_plan_without_memory_asks_for_it() -> None:
    with pytest.raises(InputError, match=r"(?m)^a plan needs the memory free for the cache$"):
        vllm.plan(load_model(NEMOTRON), EngineArgs())
    plan = vllm.plan(load_model(NEMOTRON), EngineArgs(kv_cache_memory_bytes=40 * GIB, max_model_len=8192))
    assert plan.num_blocks == 2520


def test_an_uncertain_memory_is_planned_at_both_ends() -> None:
    plan = planned(rest=Rest(40.0, 38.0, 41.0, "an estimate"))
    assert plan.low.blocks < plan.num_blocks == 2520 < plan.high.blocks
    assert plan.to_dict()["intervals"] == {"rest_gib": [38.0, 41.0], "num_blocks": [plan.low.blocks, plan.high.blocks]}
    assert planned().to_dict()["intervals"] == {}


@pytest.mark.parametrize(
    ("rest", "work", "seqs"),
    [
        (Rest(40.0, 40.0, 40.0, ""), Workload(), 2520),
        (Rest(40.0, 38.0, 41.0, ""), Workload(), 2394),
        (Rest(40.0, 38.0, 41.0, ""), Workload.at(4200), 109),
        (Rest(40.0, 0.1, 41.0, ""), Workload(), 2520),
        (Rest(40.0, 38.0, 41.0, ""), Workload.at(9000), 2394),
    ],
)
def test_too_many_sequences_are_told_a_number_for_both_ends_of_the_memory(
    rest: Rest, work: Workload, seqs: int
) -> None:
    """The blocks of the low end, unless no request fits there, and no more than the workload can use."""
    with pytest.raises(Refusal) as caught:
        planned(rest=rest, work=work, max_num_seqs=9999)
    assert (caught.value.rule, caught.value.fix) == ("HC044", f"write --max-num-seqs {seqs}")
    plan = planned(rest=rest, work=work, max_num_seqs=seqs)
    assert plan.low.blocks >= seqs or not plan.low.blocks
    if work.lengths and plan.binding != "context":
        assert plan.concurrency == plan.running.fits == seqs


def test_requests_longer_than_the_server_takes_do_not_run() -> None:
    """None of them is served, however many would fit the blocks."""
    plan = planned(work=Workload.at(8193), max_num_seqs=64)
    assert (plan.concurrency, plan.running.fits, plan.binding) == (0, 0, "context")
    assert plan.to_dict()["requests"] == 0
    assert [finding.rule for finding in plan.findings if finding.severity == "error"] == ["HC062"]
    assert planned(work=Workload.at(8192), max_num_seqs=64).concurrency == 64
    mixed = planned(work=Workload(((100, 50), (8193, 1))))
    assert (mixed.concurrency, mixed.binding) == (0, "context")


@pytest.mark.parametrize("value", [40.0 * GIB, "40GiB", True, float("nan"), 10**30, [1]])
def test_a_memory_that_is_no_whole_number_of_bytes_is_an_input_error(value: Any) -> None:
    """Fractions of a byte would be cut in silence."""
    with pytest.raises(InputError, match=r"(?m) is not a whole number of bytes$"):
        vllm.plan(load_model(NEMOTRON), EngineArgs(), available_bytes=value)


@pytest.mark.parametrize(
    ("low", "flags", "rule", "fix"),
    [
        (0.1, {}, "HC041", "no length fits: more memory"),
        (1.0, {"max_num_seqs": 1024}, "HC044", "write --max-num-seqs 63"),
    ],
)
def test_an_end_that_does_not_start_is_an_error_of_the_rule_that_refuses_it(
    low: float, flags: dict[str, Any], rule: str, fix: str
) -> None:
    """40 GiB start and the least that the estimate leaves does not: no answer of yes is given for both."""
    args = EngineArgs(max_model_len=8192, **flags)
    plan = ENGINES["vllm"].plan(load_model(NEMOTRON), args, Rest(40.0, low, 41.0, "an estimate"), Workload())
    (found,) = [one for one in plan.findings if one.severity == "error"]
    assert (found.rule, found.fix) == (rule, fix)
    ending = f"; undecided by the estimate of memory: it starts with 40.00 GiB for the caches, not with {low:.2f}"
    assert found.message.endswith(ending)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({}, "max_num_seqs is not given: 256"),
        (
            {"max_model_len": 200_000, "env": {"VLLM_ALLOW_LONG_MAX_MODEL_LEN": "1"}},
            "max_model_len 200,000 is above the model's own 8,192",
        ),
        ({"data_parallel_size": 2}, "one of 2 data-parallel replicas"),
        ({"env": {"OTHER": "1"}}, "OTHER: no switch that changes a figure here"),
        ({"hf_overrides": {"a": 1}}, "of --hf-overrides only the context is applied here"),
        ({"model": "qwen3.5-27b", "mamba_ssm_cache_dtype": "bfloat16"}, "the model declares a float32 state"),
        ({"model": "codestral-mamba-7b", "max_model_len": None}, "max_model_len 2,048 is what vLLM assumes"),
        ({"model": "gpt-oss-120b", "max_model_len": 8192}, "a window holds the tokens in flight as well"),
    ],
)
def test_what_is_not_known_or_does_nothing_is_noted(given: dict[str, Any], words: str) -> None:
    assert any(words in note for note in planned(**given).notes)
    assert not any(words in note for note in planned(max_num_seqs=64).notes)


YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 262_144}


@pytest.mark.parametrize(
    ("overrides", "longest"),
    [
        ({"max_position_embeddings": 500_000}, 262_144),
        ({"text_config": {"max_position_embeddings": 500_000}}, 500_000),
        ({"text_config": {"rope_parameters": YARN}}, 1_048_576),
        ({"text_config": {"rope_scaling": {"rope_type": "linear", "factor": 2}}}, 524_288),
        ({"max_position_embeddings": "x"}, 262_144),
        ({"architectures": ["X"]}, 262_144),
    ],
)
def test_overrides_of_the_config_say_how_long_a_sequence_may_be(overrides: dict[str, Any], longest: int) -> None:
    """Qwen3.5's own limit is 262,144; its class reads the text_config alone, as the engine's configuration says."""
    given: dict[str, Any] = {"model": "qwen3.5-27b", "hf_overrides": overrides}
    assert planned(**given, max_model_len=longest, gib=80.0).max_model_len == longest
    with pytest.raises(Refusal, match=f"beyond the model's own {longest:,}"):
        planned(**given, max_model_len=longest + 1)


def test_the_steps_compute_to_their_values() -> None:
    """Those whose numbers are plain arithmetic."""
    every: tuple[dict[str, Any], ...] = (
        {},
        {"engine_version": "0.19.0"},
        {"kv_cache_dtype": "fp8"},
        {"model": "qwen3-next-80b-a3b"},
    )
    for flags in every:
        for step in planned(**flags).steps:
            if re.fullmatch(r"[\d,.\s/x()+int-]+", step.with_numbers):
                numbers = re.sub(r"(\d),(?=\d{3})", r"\1", step.with_numbers).replace(" x ", " * ")
                assert eval(numbers) == pytest.approx(step.value), step


@pytest.mark.parametrize(
    ("version", "line"),
    [
        ("0.33.0", "GPU KV cache size: 793,993 tokens, Maximum concurrency for 8,192 tokens per request: 96.92x"),
        ("0.22.1", "GPU KV cache size: 1,474,560 tokens"),
        ("0.20.2", "GPU KV cache size: 1,474,560 tokens"),
        ("0.20.0", "GPU KV cache size: 374,400 tokens"),
        ("0.19.0", "GPU KV cache size: 374,400 tokens"),
    ],
)
def test_the_token_figure_of_a_version(version: str, line: str) -> None:
    """Up to 0.20.1: 2,520 // 7 groups x 1,040 tokens, whatever a request holds."""
    assert line in planned(engine_version=version).log_lines


@pytest.mark.parametrize("dcp", [1, 2, 4])
def test_ranks_of_context_parallelism_share_a_token_and_not_a_state(dcp: int) -> None:
    """Blocks of all attention layers hold dcp times the tokens; a request's states are those of any rank."""
    flags: dict[str, Any] = {"model": "nemotron-3-super-120b-a12b", "tensor_parallel_size": 8}
    flags["decode_context_parallel_size"] = dcp
    plan, alone = (
        planned(work=Workload.at(8000), **flags | more) for more in ({}, {"decode_context_parallel_size": 1})
    )
    assert plan.attn_block_size == alone.attn_block_size and plan.fixed_blocks == alone.fixed_blocks
    assert plan.marginal_bytes_per_token * dcp == alone.marginal_bytes_per_token
    groups = sum(group.kind == "full attention" for group in plan.ready.groups)
    assert plan.running.blocks_each == plan.fixed_blocks + groups * ceil(8000 / dcp / plan.attn_block_size)
    assert plan.slots_per_request == alone.slots_per_request == 3


@pytest.mark.parametrize(
    ("model", "dtype", "said"),
    [("qwen3.5-27b-awq", "auto", True), ("qwen3.5-27b-awq", "fp8", False), ("qwen3.5-27b", "auto", False)],
)
def test_a_checkpoint_that_may_name_its_kv_dtype_is_said_to(model: str, dtype: str, said: bool) -> None:
    """By its name it is quantised, and how is not known: auto may be FP8 then."""
    warning = (
        "--kv-cache-dtype auto is taken for bfloat16: whether the checkpoint says FP8 KV, which vLLM follows, is open"
    )
    assert (warning in [found.message for found in planned(model, kv_cache_dtype=dtype).findings]) is said
