"""Requests that are wanted against those that run: over all replicas, one at least, and what a limit asks for."""

from __future__ import annotations

import pytest
from command_line import run

SGLANG = ("plan", "kimi-k3", "--tp", "8", "--rest", "28GiB")
VLLM = ("plan", "--engine", "vllm", "qwen3.6-35b-a3b", "--available", "40GiB", "--max-model-len", "32768", "-L", "32k")


@pytest.mark.parametrize(("wanted", "code"), [(192, 0), (193, 1)])
def test_replicas_are_added_up_on_vllm(wanted: int, code: int) -> None:
    """1,926 blocks hold 48 requests of 40 on each of 4 replicas."""
    ran = run(*VLLM, "-dp", "4", "-C", str(wanted))
    assert ran.code == code
    assert ran.out.startswith("192 requests of 32,768 tokens   the blocks bind, 48 on each of 4 replicas")


@pytest.mark.parametrize(("flags", "each"), [(("--dp", "2"), 60), (("--dp", "2", "--enable-dp-attention"), 19)])
def test_workers_are_added_up_on_sglang(flags: tuple[str, ...], each: int) -> None:
    """Replicas have ranks of their own; attention workers share them, and each keeps whole states."""
    ran = run(*SGLANG, "-L", "4k", *flags, "--json", "-C", "100")
    document = ran.document
    assert document["requests"] == 2 * document["requests_per_worker"]
    assert ran.code == (0 if document["requests"] >= 100 else 1)
    assert ran.code == 1 or not [finding for finding in document["findings"] if finding["rule"] == "HC002"]


def test_a_plan_that_serves_none_is_no() -> None:
    """27.00 GiB of KV for one request, and 14.76 are there; --compare says the same."""
    ran = run(*SGLANG, "-L", "1M")
    assert ran.code == 1
    assert "HC002 a request holds 1,048,576 tokens, none runs" in " ".join(ran.out.split())
    assert run(*SGLANG, "-L", "1M", "--compare", "--mamba-full-memory-ratio 1.1").code == 1


@pytest.mark.parametrize(("slots", "length", "rule", "code"), [
    (8, "9216", "HC002", 1), (8, "", "HC023", 0), (20, "9216", "", 0), (21, "", "", 0)
])  # fmt: skip
def test_slots_against_the_limit_beside_them(slots: int, length: str, rule: str, code: int) -> None:
    """4 requests x 5 slots: fewer are an error for a workload, as for `check`, else a warning."""
    given = ("-L", length) if length else ()
    ran = run(*SGLANG, *given, "--max-mamba-cache-size", str(slots), "--max-running-requests", "4", "--json")
    assert ran.code == code
    assert {f["rule"] for f in ran.document["findings"]} & {"HC002", "HC023"} == ({rule} if rule else set())


def test_a_length_beyond_the_context_gets_no_advice_that_its_refusal_would_follow() -> None:
    """HC022 stands whatever the pools hold: no suggestion, and none is pointed to."""
    document = run("plan", "qwen3.5-4b", "--rest", "20GiB", "-L", "2M", "--json").document
    assert document["suggestions"] == []
    assert "HC022" in {finding["rule"] for finding in document["findings"]}
    assert not [finding for finding in document["findings"] if "see the suggestions" in finding["fix"]]


@pytest.mark.parametrize("more", [(), ("--max-num-seqs", "64"), ("--max-num-seqs", "64", "--data-parallel-size", "2")])
def test_more_sequences_come_with_the_tokens_of_a_step_that_they_need(more: tuple[str, ...]) -> None:
    """vLLM refuses max_num_seqs above max_num_batched_tokens (HC049)."""
    flags = ("qwen3.5-2b", "--engine", "vllm", "--engine-version", "0.24.0", "-L", "32k", "--gpu", "h100", *more)
    asked = ("plan", *flags, "-C", "160", "--max-num-batched-tokens", "72", "--json")
    found = run(*asked).document
    said = [" ".join(one["flags"]) for one in found["suggestions"]]
    said.append(next(one["fix"] for one in found["findings"] if one["rule"] == "HC063").removeprefix("write "))
    for words in said:
        again = run(*asked, *words.partition(":")[0].partition(";")[0].split()).document
        assert again["starts"], words
        assert again["requests"] > found["requests"], words
