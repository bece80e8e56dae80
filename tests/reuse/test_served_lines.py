"""What a launch line says of prefixes: whether any are kept, the longest request, and what was typed beside it."""

from __future__ import annotations

import pytest
from command_line import run

from hybridcalc.reuse.requests import Within
from hybridcalc.reuse.workloads import parse_workload

MODEL = "qwen3.6-35b-a3b"
WORK = ("reuse", "--no-what-if", "--slots", "300", "--workload", "fanout:parents=4,agents=4")


@pytest.mark.parametrize(
    ("line", "flag"),
    [
        (("sglang", "serve", "--model-path", MODEL, "--disable-radix-cache"), "--disable-radix-cache"),
        (("sglang", "serve", "--model-path", MODEL, "--disaggregation-mode", "decode"), "--disaggregation-mode decode"),
        (("vllm", "serve", MODEL, "--no-enable-prefix-caching"), "--no-enable-prefix-caching"),
    ],
)
def test_a_line_that_keeps_no_prefixes_is_said_to_reuse_nothing(line: tuple[str, ...], flag: str) -> None:
    ran = run(*WORK, "--", *line)
    assert (ran.code, ran.out) == (1, "")
    assert ran.err.startswith(f"error: {flag} keeps no prefixes: nothing is reused\n")


def test_an_early_release_keeps_prefixes_of_hybrids_only_where_asked() -> None:
    line = ("--engine-version", "0.22.1", "--", "vllm", "serve", MODEL)
    assert "only with --enable-prefix-caching" in run(*WORK, *line).err
    assert run(*WORK, *line, "--enable-prefix-caching").code == 0


@pytest.mark.parametrize(
    "line",
    [
        ("sglang", "serve", "--model-path", MODEL, "--context-length", "4096"),
        ("vllm", "serve", MODEL, "--max-model-len", "4096"),
    ],
)
def test_requests_that_the_context_does_not_hold_are_left_out(line: tuple[str, ...]) -> None:
    """4,000 + 200 + 100 tokens are too many from the first step on; 3,000 + 200 + 100 from the third, each 500 more."""
    none = run(*WORK, "--", *line)
    assert (none.code, none.out) == (1, "")
    assert none.err.startswith("error: every request is longer than the context of 4,096 tokens\n")
    some = run("reuse", "--no-what-if", "--slots", "300", "--workload", "fanout:tokens=3000,rounds=1", "--", *line)
    assert some.code == 0
    assert "128 requests are longer than the context of 4,096 tokens" in " ".join(some.out.split())


def test_the_models_own_context_counts_too() -> None:
    ran = run("reuse", "--no-what-if", MODEL, "--slots", "9", "--workload", "agents:n=4,history=300k,turns=2")
    assert (ran.code, ran.err.splitlines()[0]) == (
        1,
        "error: every request is longer than the context of 262,144 tokens",
    )


def test_what_is_refused_is_counted_by_the_pass() -> None:
    workload = parse_workload("agents:n=2,turns=4,history=1000,tool=500,output=100")
    within = Within(workload, 1_700)
    for _ in range(2):
        assert [request.ends[-1] for request in within.stream()] == [1100, 1100, 1700, 1700]
        assert within.refused == 4


def test_a_flag_that_counts_over_the_line_is_said() -> None:
    line = ("--", "sglang", "serve", "--model-path", MODEL, "--max-mamba-cache-size", "100", "--tp", "2")
    typed = run("reuse", "--no-what-if", "--slots", "40", "--tp", "2", "--workload", "chat:sessions=5", *line)
    assert "--slots before the -- counts" in " ".join(typed.out.split())
    assert "--tp-size before" not in typed.out
    assert "not the 100 of" in " ".join(typed.out.split())


def test_policies_of_host_tiers_that_are_not_simulated_are_refused() -> None:
    sglang = ("--", "sglang", "serve", "--model-path", MODEL, "--enable-hierarchical-cache", "--hicache-write-policy")
    refused = run(*WORK, *sglang, "write_back")
    assert refused.code == 2
    assert refused.err.startswith("error: --hicache-write-policy 'write_back' is not simulated\n")
    assert run(*WORK, *sglang, "write_through").code == 0
    config = '{"kv_connector": "OffloadingConnector", "kv_connector_extra_config": {"eviction_policy": "%s"}}'
    vllm = ("--", "vllm", "serve", MODEL, "--kv-transfer-config")
    assert run(*WORK, *vllm, config % "arc").err.startswith("error: eviction_policy 'arc' is not simulated\n")
    assert run(*WORK, *vllm, config % "lru").code == 0
