"""What a launch line says of prefixes: whether any are kept, the longest request, and what was typed beside it."""

from __future__ import annotations

from pathlib import Path

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
        (("llama-server", "-m", f"{MODEL}.gguf", "--no-cache-prompt"), "--no-cache-prompt"),
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
        ("llama-server", "-m", f"{MODEL}.gguf", "-c", "16384", "-np", "4"),
    ],
)
def test_requests_that_the_context_does_not_hold_are_left_out(line: tuple[str, ...]) -> None:
    """4,000 + 200 + 100 tokens are too many from the first step on; 3,000 + 200 + 100 from the third, each 500 more."""
    work = WORK if line[0] != "llama-server" else WORK[:2] + WORK[4:]
    none = run(*work, "--", *line)
    assert (none.code, none.out) == (1, "")
    assert none.err.startswith("error: every request is longer than the context of 4,096 tokens\n")
    some = run("reuse", "--no-what-if", "--workload", "fanout:tokens=3000,rounds=1", "--", *line)
    assert some.code == 0
    assert "; 128 of 384 requests are refused: longer than 4,096 tokens" in " ".join(some.out.split("\n\n")[0].split())


def test_the_models_own_context_counts_too() -> None:
    ran = run("reuse", "--no-what-if", MODEL, "--slots", "9", "--workload", "agents:n=4,history=300k,turns=2")
    assert (ran.code, ran.err.splitlines()[0]) == (
        1,
        "error: every request is longer than the context of 262,144 tokens",
    )


@pytest.mark.parametrize(
    ("line", "alone"),
    [
        (("sglang", "serve", "--model-path", MODEL, "--tp", "2", "--dp-size", "4"), "--tp 2"),
        (("vllm", "serve", MODEL, "-tp", "2", "--data-parallel-size", "4"), "-tp 2"),
    ],
)
def test_each_data_parallel_worker_has_a_cache_and_its_share_of_the_prefixes(line: tuple[str, ...], alone: str) -> None:
    """Four workers of 400 sessions do as one of 100."""
    several = run("reuse", "--no-what-if", "--gpu", "8xh200", "--workload", "chat:sessions=400", "--json", "--", *line)
    words = [*line[: line.index(alone.split()[0])], *alone.split()]
    one = run("reuse", "--no-what-if", "--gpu", "2xh200", "--workload", "chat:sessions=100", "--json", "--", *words)
    keys = ("token_hit_rate", "hit_tokens", "requests", "knee_slots", "kv_tokens_needed")
    assert {key: several.document[key] for key in keys} == {key: one.document[key] for key in keys}
    assert (several.document["workers"], one.document["workers"]) == (4, 1)
    said = run("reuse", "--no-what-if", "--gpu", "8xh200", "--workload", "chat:sessions=400", "--", *line).out
    assert "; each of 4 workers, which share the prefixes" in " ".join(said.split("\n\n")[0].split())


def test_attention_workers_divide_the_slots_of_a_flag() -> None:
    line = ("--", "sglang", "serve", "--model-path", MODEL, "--tp", "4", "--dp-size", "4", "--enable-dp-attention")
    asked = ("reuse", "--no-what-if", "-v", "--gpu", "4xh200", "--workload", "chat:sessions=200")
    few = run(*asked, *line, "--max-mamba-cache-size", "80")
    knee = run(*asked, "--json", *line, "--max-mamba-cache-size", "80").document
    assert knee["slots"] == 20
    assert f"safe  --max-mamba-cache-size {4 * knee['knee_slots']}" in few.out


def test_a_trace_is_sent_to_one_of_the_workers_whole(tmp_path: Path) -> None:
    trace = tmp_path / "trace.jsonl"
    trace.write_text('{"hash_ids": [1, 2], "input_length": 1000, "output_length": 10}\n' * 3)
    line = ("--", "sglang", "serve", "--model-path", MODEL, "--dp-size", "4")
    ran = run("reuse", "--no-what-if", "--slots", "9", "--workload", str(trace), *line)
    assert "; one of 4 workers, sent the whole trace" in " ".join(ran.out.split())


@pytest.mark.parametrize(
    ("asked", "part"),
    [
        ("cyclic:prefixes=10", "prefixes 3,"),
        ("chat:sessions=100,rate=2/s", "sessions 25, turns 5, user 200, output 100, rounds 1, rate 0.5"),
        ("batch:n=1000,prompts=10", "n 300, prompts 3,"),
        ("shared:prompts=1", "prompts 1,"),
    ],
)
def test_the_busiest_of_four_workers_has_so_much(asked: str, part: str) -> None:
    assert part in parse_workload(asked, workers=4).description
    assert part in parse_workload(f"{asked}+rag", workers=4).description


@pytest.mark.parametrize("gpu", ["b300", "gb200", "8xgb300", "gh200", "h200"])
def test_every_gpu_is_asked(gpu: str) -> None:
    """PCIe 6 has a rate; where the host is joined by something else, transfers have no floor."""
    tier = ("--hicache-ratio", "2", "--no-what-if", "--workload", "chat:sessions=20", "--slots", "20", "--json")
    moved = run("reuse", MODEL, "--gpu", gpu, *tier).document["transfers"]
    assert moved["stored_bytes"] > 0
    assert (moved["floor_seconds"] is None) == (gpu in ("gb200", "8xgb300", "gh200"))


def test_memory_that_is_not_there_is_answered_as_plan_does() -> None:
    ran = run("reuse", MODEL, "--gpu", "h100", "--workload", "agents:n=5")
    assert (ran.code, ran.out) == (1, "")
    fix = " ".join(ran.err.split("\n", 1)[1].split())
    assert fix.startswith("write --mem-fraction-static 0.85: ") and fix in " ".join(
        run("plan", MODEL, "--gpu", "h100").out.split()
    )


def test_a_rest_beside_a_gpu_is_said_to_count() -> None:
    asked = ("reuse", MODEL, "--no-what-if", "--rest", "20GiB", "--workload", "chat:sessions=9")
    assert "--rest counts, not what is left of the --gpu" in run(*asked, "--gpu", "h100").out
    assert "--rest counts" not in run(*asked).out


def test_an_engines_own_name_of_the_slots_is_taken() -> None:
    asked = ("reuse", "--no-what-if", "--json", "--workload", "chat:sessions=9")
    named = run(*asked, "--max-mamba-cache-size", "7").document
    assert named["slots"] == run(*asked, "--engine", "llama.cpp", "--parallel", "7").document["slots"] == 7


def test_of_settings_that_do_as_well_the_cheaper_one_is_proposed() -> None:
    """A cap of states on a path keeps as much as a host tier that takes gigabytes."""
    ran = run("reuse", MODEL, "--rest", "20GiB", "--slots", "40", "--workload", "agents:n=20")
    assert "safe  --mamba-max-states-per-path 2" in ran.out


def test_the_line_for_fit_names_the_checkpoint_of_the_launch() -> None:
    line = ("--", "sglang", "serve", "Qwen/Qwen3.6-35B-A3B-FP8")
    found = run("reuse", "--no-what-if", "--json", "--gpu", "h100", "--workload", "agents:n=60", *line).document
    assert found["machines"]["line"].startswith("hybridcalc fit Qwen/Qwen3.6-35B-A3B-FP8 --gpu h100 ")


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
