"""Settings that go together, other settings to compare, the best split, and what slots weigh."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from hybridcalc import load_model, sglang, vllm
from hybridcalc.errors import IllegalCombination, InputError
from hybridcalc.formulas import Strategy, int8_slot_bytes, slots_per_request
from hybridcalc.reuse.settings import Settings
from hybridcalc.reuse.sglang import cost, sglang_policy
from hybridcalc.reuse.simulation import simulate
from hybridcalc.reuse.vllm import cost as vllm_cost
from hybridcalc.reuse.vllm import vllm_policy, vllm_settings
from hybridcalc.reuse.what_if import best_split, compare, variants
from hybridcalc.reuse.workloads import parse_workload

QUIET: dict[str, Any] = {"warmup_rounds": 1, "bar": lambda _: None}


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: sglang_policy(Strategy.NO_BUFFER, page=64), "no_buffer needs --page-size 1, not 64"),
        (lambda: sglang_policy(page=48), "--page-size 48 neither divides the kernel's chunk of 64 tokens nor"),
        (
            lambda: sglang_policy(page=64, track_interval=100),
            "--mamba-track-interval 100 is no multiple of --page-size 64",
        ),
        (lambda: vllm_policy(1040, unit=32), "--prefix-match-unit 32 does not divide the block of 1040 tokens"),
        (
            lambda: vllm_policy(1040, retention=1000),
            "--prefix-cache-retention-interval 1000 is no multiple of the block of 1040 tokens",
        ),
        (
            lambda: Settings("sglang", 39, running=8).setup,
            "8 running requests need 40 slots, 5 each under SGLang extra_buffer; 39 admit 7",
        ),
        (
            lambda: Settings("sglang", 1, running=1).setup,
            "1 running request needs 5 slots, 5 each under SGLang extra_buffer; 1 admits 0",
        ),
    ],
)
def test_settings_that_do_not_go_together_are_named(make: Callable[..., Any], message: str) -> None:
    with pytest.raises(InputError) as refused:
        make()
    assert refused.value.message.startswith(message)
    assert refused.value.fix


def test_lazy_buffers_without_overlap_are_what_the_engine_refuses() -> None:
    with pytest.raises(IllegalCombination):
        sglang_policy(Strategy.EXTRA_BUFFER_LAZY, overlap=False)


@pytest.mark.parametrize("strategy", Strategy)
def test_slots_of_a_request_are_those_of_the_planner(strategy: Strategy) -> None:
    assert sglang_policy(strategy).slots_per_request == slots_per_request(strategy).count


@pytest.mark.parametrize(
    "now",
    [
        Settings("sglang", 40),
        Settings("sglang", 40, running=2),
        Settings("sglang", 40, int8_slots=80),
        Settings("sglang", 40, strategy=Strategy.NO_BUFFER, overlap=False),
        Settings("sglang", 40, host_slots=9),
        Settings("sglang", 40, page_size=64, max_states_per_path=3),
        Settings("vllm", 40, block_size=256),
        Settings("vllm", 40, block_size=256, every_block=True),
        Settings("vllm", 40, block_size=512, retention=None),
    ],
)
def test_every_variant_changes_something_and_can_be_simulated(now: Settings) -> None:
    workload = parse_workload("chat:sessions=30,turns=3,system=300")
    base = simulate(workload, now.setup, warmup_rounds=1)
    changed = list(variants(now))
    assert len({variant.flags for variant in changed}) == len(changed) > 1
    rows, left = compare(workload, now, **QUIET)
    assert (len(rows), left) == (len(changed), [])
    for row in rows:
        assert row.variant.settings != now
        assert row.outcome.requests == base.requests
        assert row.outcome.prompt_tokens == base.prompt_tokens


def test_what_an_int8_pool_a_host_tier_and_twice_the_slots_change_is_the_same_here() -> None:
    rows, _ = compare(parse_workload("cyclic:prefixes=60"), Settings("sglang", 40), **QUIET)
    by_name = {row.variant.name: row.outcome.hit_rate for row in rows}
    assert by_name["twice the slots"] == by_name["int8 checkpoints"] == by_name["host tier"] == 1
    assert by_name["page"] == by_name["track interval"] == 0


def test_a_smaller_block_finds_a_shorter_prefix() -> None:
    rows, _ = compare(parse_workload("shared:tokens=600,private=900"), Settings("vllm", 40, block_size=1056), **QUIET)
    by_flags = {row.variant.flags: row.outcome.hits for row in rows}
    assert by_flags["a block of 528 tokens"] > 0 == by_flags["a block of 2,112 tokens"]


def test_the_best_split_does_the_least_work_of_all_splits() -> None:
    """Against every number of running requests; a split holds what its requests may."""
    workload, now = parse_workload("chat:sessions=40,turns=4,think=10"), Settings("sglang", 100)
    splits = best_split(workload, now, step_tokens=32, **QUIET)
    answers = sum(request.ends[-1] - request.prompt for request in workload.stream() if request.round)
    work = {}
    for running in range(1, 21):
        outcome = simulate(workload, now._replace(running=running).setup, warmup_rounds=1)
        work[running] = outcome.recomputed_tokens + 32 * answers // running
    assert splits[0].work_tokens == work[splits[0].running]
    assert splits[0].work_tokens <= min(work.values()) * 1.02
    assert all(split.cached_slots == 100 - 3 * split.running for split in splits)


@pytest.mark.parametrize(
    "now",
    [
        Settings("sglang", 40, running=10, strategy=Strategy.EXTRA_BUFFER_LAZY),
        Settings("sglang", 3, running=1, strategy=Strategy.NO_BUFFER, overlap=False),
        Settings("vllm", 1, running=1, every_block=True),
    ],
)
def test_a_variant_that_the_slots_have_no_room_for_is_left_out_and_named(now: Settings) -> None:
    """The settings as asked have room; a strategy or mode that holds more slots for a request has none."""
    rows, left = compare(parse_workload("chat:sessions=3,user=1000"), now, **QUIET)
    assert len(rows) + len(left) == len(list(variants(now)))
    assert [variant.name for variant, _ in left] == ["align mode" if now.engine == "vllm" else "buffers"]
    assert all("running request" in why and " each under " in why for _, why in left)


def test_what_is_refused_as_impossible_names_nothing_that_is_impossible_too() -> None:
    for slots in (1, 4):
        with pytest.raises(InputError) as refused:
            _ = Settings("sglang", slots, running=1).setup
        assert refused.value.fix == "write --slots 5"


@pytest.mark.parametrize(
    ("text", "most"),
    [
        ("chat:sessions=2,turns=3", 2),
        ("shared:rounds=3", 3),
        ("fanout:parents=2,agents=2,rounds=1", 4),
        ("cyclic:prefixes=2,rounds=4", 8),
        ("chat:sessions=40,turns=2", 12),
    ],
)
def test_no_split_runs_more_requests_than_the_workload_sends_at_once(text: str, most: int) -> None:
    """A turn follows on the answer before it; what remains is bounded by the requests there are, or by the slots."""
    splits = best_split(parse_workload(text), Settings("sglang", 64), warmup_rounds=0, bar=lambda _: None)
    assert max(split.running for split in splits) == most


def test_no_split_where_no_request_fits() -> None:
    assert best_split(parse_workload("cyclic:prefixes=3"), Settings("sglang", 4), **QUIET) == ()


def test_slots_weigh_what_the_planner_says() -> None:
    """Published figure E2: 256 active slots and 1,024 int8 slots of Qwen3.5-35B-A3B on TP4, an fp32 state."""
    model, args = load_model("qwen3.5-35b-a3b"), sglang.ServerArgs(tp_size=4)
    plain = cost(model, args, Settings("sglang", 256), 40.0)
    int8 = cost(model, args, Settings("sglang", 256, int8_slots=1024), 40.0)
    assert (plain.state_bytes, plain.int8_bytes, plain.host_bytes) == (257 * 16_097_280, 0, 0)
    slot = int8_slot_bytes(layers=30, temporal=(8, 128, 128), conv_bytes=12_288, scale_dtype="float32")
    assert int8.int8_bytes == 1025 * slot == 1025 * 4_423_680
    planned = sglang.plan(model, sglang.ServerArgs(tp_size=4, max_mamba_cache_size=256), rest_gib=40.0)
    assert plain.kv_tokens == int8.kv_tokens == planned.max_total_num_tokens
    assert cost(model, args, Settings("sglang", 256, host_slots=512)).host_bytes == 512 * 16_097_280
    assert cost(model, args, Settings("sglang", 10_000), 40.0).kv_tokens == 0


def test_vllms_block_and_what_its_states_weigh_come_from_its_planner() -> None:
    """Nemotron-H-8B TP1: blocks of 1,040 tokens, six groups of four state layers and one of attention layers."""
    model, args = load_model("nemotron-h-8b"), vllm.EngineArgs(max_model_len=8192)
    planned = vllm.plan(model, args, available_bytes=40 * 2**30)
    settings = vllm_settings(model, args, Settings("vllm", 100))
    assert (settings.block_size, settings.retention, settings.checkpoints) == (planned.attn_block_size, 0, 1)
    weighs = vllm_cost(model, args, settings, 40.0)
    assert weighs.state_bytes == 100 * 6 * planned.bytes_per_block
    assert weighs.kv_tokens == (planned.num_blocks - 1 - 600) * 1040
    assert settings.setup.policy.slots_per_request == 3


def test_a_vllm_without_prefix_caching_saves_no_states() -> None:
    args = vllm.EngineArgs(enable_prefix_caching=False)
    with pytest.raises(IllegalCombination, match="saves no states of"):
        vllm_settings(load_model("nemotron-h-8b"), args, Settings("vllm", 100))
