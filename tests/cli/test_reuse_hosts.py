"""``hybridcalc reuse`` over host tiers, and what computed and moved tokens cost."""

from __future__ import annotations

import json
from typing import Any

import pytest
from command_line import run
from jsonschema import Draft202012Validator


def reuse(*arguments: str, code: int = 0) -> dict[str, Any]:
    ran = run("reuse", *arguments, "--json")
    assert (ran.code, ran.err) == (code, "")
    return ran.document


def test_a_host_tier_has_two_pools_and_says_which_loses_the_prefix() -> None:
    """A size is shared as the pools on the GPU are: few slots there, few states on the host."""
    line = ("qwen3.5-397b-a17b", "--tp", "8", "--rest", "68GiB", "--workload", "cyclic:prefixes=100,tokens=20000")
    few = reuse(*line, "--slots", "40", "--hicache-size", "60", "--no-what-if")
    assert few["lost_to"] == "host_state"
    assert few["host_needed"]["slots"] > few["host_slots"]
    both = few["memory"]["host_bytes"]
    assert 60e9 <= both < 60.1e9
    held = few["memory"]
    assert held["host_kv_tokens"] / held["kv_tokens"] == pytest.approx(few["host_slots"] / 41, rel=0.05)
    many = reuse(*line, "--slots", "40", "--hicache-size", "60", "--hicache-mamba-size-gb", "12", "--no-what-if")
    assert many["lost_to"] is None
    assert many["host_hits"] > 0
    assert many["transfers"]["loaded_bytes"] > 0
    assert many["transfers"]["floor_seconds"] is None


def test_a_named_gpu_prices_what_is_computed_and_moved() -> None:
    """Qwen3.5-35B-A3B on one H100: 2 x 3 x 10^9 operations a token at least, 4,000 tokens at 10^15 a second."""
    line = ("qwen3.5-35b-a3b", "--gpu", "h100", "--engine", "vllm", "--workload", "cyclic:prefixes=40,tokens=4000")
    answer = reuse(*line, "--kv-offloading-size", "100", "--no-what-if")
    cost = answer["recomputed_cost"]
    assert 4 < cost["gpu_seconds"] / (answer["recomputed_tokens"] * 1e-6) < 20
    assert cost["band_gpu_seconds"][0] > cost["gpu_seconds"]
    assert answer["host_chunks"] > 1000
    assert answer["transfers"]["floor_seconds"] > 0
    assert reuse("--slots", "9", "--workload", "cyclic:prefixes=3", "--no-what-if")["recomputed_cost"] is None


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--hicache-size", "10", "--slots", "9"), "a host tier of a size holds as many states as they weigh"),
        (("--hicache-ratio", "2"), "a host tier is as large as the pools on the GPU are"),
        (("--hicache-ratio", "2", "--host-slots", "9", "--slots", "9"), "say how large the host tier is"),
        (("--hicache-ratio", "2", "--enable-int8-mamba-checkpoint", "--slots", "9"), "do not run with a host tier"),
        (("--engine", "vllm", "--kv-offloading-size", "9"), "holds as many blocks as they weigh"),
        (("--engine", "vllm", "--host-slots", "9"), "--host-slots is SGLang's"),
        (("--engine", "vllm", "--hicache-ratio", "2"), "--hicache-ratio is no flag of vLLM"),
        (("--hicache-ratio", "nan", "--slots", "9"), "--hicache-ratio nan is not a number"),
        (("--host-kv-tokens", "9", "--slots", "9"), "--host-kv-tokens has no effect alone"),
        (("--kv-offloading-size", "9"), "--kv-offloading-size is no flag of SGLang"),
        (("--hicache-mamba-ratio", "2", "--hicache-mamba-size-gb", "3", "--slots", "9"), "exclude each other"),
    ],
)
def test_host_tiers_that_cannot_be_are_refused(flags: tuple[str, ...], message: str) -> None:
    ran = run("reuse", "--workload", "cyclic:prefixes=3", *flags)
    assert ran.code == (1 if "--enable-int8-mamba-checkpoint" in flags else 2)
    assert message in ran.err


def test_an_answer_over_a_host_tier_is_of_its_schema() -> None:
    """With a GPU, a model, a host tier and GPUs that would hold it: every key is there."""
    ran = run("schema", "reuse")
    assert ran.code == 0
    judge = Draft202012Validator(json.loads(ran.out))
    workload = "cyclic:prefixes=100,tokens=20000,rounds=2"
    for flags in (
        ("qwen3.5-397b-a17b", "--tp", "8", "--gpu", "8xh200", "--slots", "100", "--hicache-size", "60"),
        ("qwen3.5-35b-a3b", "--gpu", "h100", "--engine", "vllm", "--kv-offloading-size", "20"),
    ):
        judge.validate(reuse(*flags, "--workload", workload, "--no-what-if"))
