"""Releases side by side: one meaning for every column, and why neighbours run differing numbers of requests."""

import pytest
from command_line import run

from hybridcalc.engines import ENGINES, causes

VLLM = "vllm serve Qwen/Qwen3.6-27B-FP8 --max-model-len 65536 --max-num-seqs 128"
SGLANG = "sglang serve Qwen/Qwen3.6-27B-FP8 --mem-fraction-static 0.85"


def test_kv_tokens_of_all_releases_mean_the_same() -> None:
    """vLLM 0.19 prints one group's share of the blocks, a quarter of what 0.20.2 prints of as many."""
    line = "vllm serve Qwen/Qwen3.6-27B-FP8 --max-model-len 65536 --max-num-seqs 128 --gpu-memory-utilization 0.9"
    said = run("compare", line, "--available", "40GiB", "-L", "16k", "--engine-version", "0.19.0,0.20.2", "-v")
    rows = [row.split() for row in said.out.splitlines() if row.strip().startswith(("0.19.0 ", "0.20.2 "))]
    tokens = {row[0]: int(row[3].replace(",", "")) for row in rows if len(row) > 3 and "," in row[3]}
    assert tokens.keys() == {"0.19.0", "0.20.2"}
    assert 0.9 < tokens["0.19.0"] / tokens["0.20.2"] < 1.1


def test_rules_that_move_the_requests_are_named() -> None:
    """Seven releases of vLLM, of which two neighbours run as many: of the others one rule each explains the difference,
    and the largest is said in the short answer.
    """
    command = ("compare", VLLM, "--gpu", "h100", "-L", "16k", "--engine-version")
    versions = "0.19.0,0.20.2,0.22.1,0.27.0,0.28.0,0.29.0,0.33.0"
    document = run(*command, versions, "--json").document
    certain = {side["label"]: side["requests_certain"] for side in document["sides"]}
    found = {tuple(cause["labels"]): cause for cause in document["causes"]}
    assert {pair: [rule["rule"] for rule in cause["rules"]] for pair, cause in found.items()} == {
        ("0.19.0", "0.20.2"): ["utilization_percent"],
        ("0.20.2", "0.22.1"): ["graphs_charged"],
        ("0.27.0", "0.28.0"): ["caches_hybrid_prefixes"],
        ("0.28.0", "0.29.0"): ["runner_v2"],
        ("0.29.0", "0.33.0"): ["checkpoints"],
    }
    for (older, newer), cause in found.items():
        assert cause["requests_certain"] == [certain[older], certain[newer]]
        moved = 28 if newer == "0.33.0" else certain[newer]  # the grid of blocks takes one more beside checkpoints
        assert [rule["requests"] for rule in cause["rules"]] == [moved]
    short = run(*command, versions).out.splitlines()
    assert len(short) <= 12
    assert max(map(len, short)) <= 80
    assert "note: 0.20.2 -> 0.22.1, 35 -> 31: memory of CUDA graphs is taken off the cache" in short
    assert all(any(line.split()[:1] == [version] for line in short) for version in certain)
    two = run(*command, "0.28.0,0.27.0").out.splitlines()
    assert "note: 0.27.0 -> 0.28.0, 31 -> 27: prefix caching is on by default for hybrids" in two


def test_the_strategy_that_auto_means_is_a_cause_beside_its_slots() -> None:
    short = run("compare", SGLANG, "--gpu", "h100", "-L", "4k", "--engine-version", "0.5.13,0.5.14").out.splitlines()
    assert "note: 0.5.13 -> 0.5.14, 41 -> 25: auto is by class, not always no_buffer" in short
    assert ["slots", "a", "request", "S", "3", "5"] in [line.split() for line in short]
    assert len(short) <= 12


def test_releases_are_compared_on_the_same_gpu_alone() -> None:
    """Of two GPUs each has causes of its own; of a release on one and another on the other nothing is said."""
    four = ("--gpu", "h100,h100,h200,h200", "--engine-version", "0.5.13,0.5.14,0.5.13,0.5.14")
    found = run("compare", SGLANG, "-L", "4k", *four, "--json").document["causes"]
    assert [cause["labels"] for cause in found] == [["h200, 0.5.13", "h200, 0.5.14"], ["h100, 0.5.13", "h100, 0.5.14"]]
    assert {rule["rule"] for cause in found for rule in cause["rules"]} == {"automatic_strategy"}
    two = ("--gpu", "h100,h200", "--engine-version", "0.5.13,0.5.14")
    assert run("compare", SGLANG, "-L", "4k", *two, "--json").document["causes"] == []


def test_other_flags_or_as_many_requests_have_no_causes() -> None:
    command = ("compare", "--gpu", "h100", "-L", "16k", "--json", "--engine-version")
    assert run(*command, "0.22.1,0.27.0", VLLM).document["causes"] == []
    other = f"{VLLM} --kv-cache-dtype fp8"
    assert run(*command, "0.27.0,0.28.0", VLLM, other).document["causes"] == []


def test_without_a_rule_that_does_settled_figures_are_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(causes, "changes", lambda *_: iter(()))
    command = ("compare", SGLANG, "--gpu", "h100", "-L", "4k", "--engine-version", "0.5.13,0.5.14")
    (cause,) = run(*command, "--json").document["causes"]
    assert cause["rules"] == []
    assert cause["figures"][0] == {"name": "slots a request S", "older": "3", "newer": "5"}
    assert "note: 0.5.13 -> 0.5.14, 41 -> 25: slots a request S 3, then 5" in run(*command).out


@pytest.mark.parametrize("engine", ["sglang", "vllm"])
def test_a_release_with_one_rule_of_another(engine: str) -> None:
    """It differs from its own in that rule alone, whatever the order of both."""
    releases = ENGINES[engine].part("releases").RELEASES
    older, newer = releases.rule_sets[3], releases.rule_sets[-1]
    for one, other in ((older, newer), (newer, older)):
        for rule, _, _ in causes.changes(one, other):
            mixed = releases.rules_for(releases.with_rule(one.version, rule, other.version))[0]
            assert mixed == one._replace(**{rule: getattr(other, rule)}) != one
    built = f"{newer.version}+cu130"
    assert releases.rules_for(built)[0] == newer
