"""`hybridcalc slots`, `crossover`, `replayssm` and `models` end to end."""

from __future__ import annotations

import pytest
from command_line import run


def test_crossover_against_llama_has_the_published_readings():
    """Hybrid-SSM chapter: 102,137,856 B, 779 tokens for the state, 891 for the whole hybrid (C1, C2)."""
    answer = run("crossover", "nemotron-h-8b", "--baseline", "llama-3-8b", "--json").document
    assert answer["state_bytes"] == 102_137_856
    assert answer["baseline"]["component_tokens"] == 779.25
    assert answer["baseline"]["total_tokens"] == pytest.approx(890.571, abs=5e-4)


def test_crossover_of_one_layer_pair_is_not_that_of_the_model():
    """The recurrent-state article's 650 tokens are one layer pair's 658; the model's are 3,071 (D1)."""
    answer = run("crossover", "nemotron-nano-12b-v2", "--mamba-ssm-dtype", "bfloat16", "--json").document
    assert answer["per_layer_tokens"] == 658.0
    assert answer["component_tokens"] == pytest.approx(3070.67, abs=5e-3)


def test_crossover_draws_state_and_kv():
    out = run("crossover", "nemotron-h-8b", "--baseline", "llama-3-8b").out
    assert "KV = state at 6,234; hybrid = llama-3-8b at 891" in out
    assert all(f"{letter * 2} " in out for letter in "skb")
    assert max(len(line) for line in out.splitlines()) <= 80


def test_a_baseline_with_less_kv_is_never_beaten():
    ran = run("crossover", "llama-3-8b", "--baseline", "kimi-k3")
    assert (ran.code, ran.err) == (2, "error: llama-3-8b has no recurrent layer: it keeps no state\n")
    answer = run("crossover", "zamba2-7b", "--baseline", "llama-3-8b", "--json").document
    assert answer["baseline"]["total_tokens"] is None


def test_a_model_without_kv_has_no_crossover():
    ran = run("crossover", "falcon-mamba-7b")
    assert ran.code == 0
    assert ran.out.startswith("no crossover")


def test_rings_of_120_slots_weigh_what_their_shapes_say():
    """KV-cache write-up's table sums to 2,448,230,400 B, not 1.4 GB (A7)."""
    answer = run(
        "replayssm", "kimi-k3", "--tp", "8", "--linear-replayssm-cache-len", "16", "--slots", "120", "--json"
    ).document
    assert (answer["total_bytes"], answer["bytes_per_slot"]) == (2_448_230_400, 20_401_920)
    assert [ring["name"] for ring in answer["buffers"]] == ["d", "k", "g", "rawv", "rawk", "beta"]
    assert answer["legal"] is True


@pytest.mark.parametrize(("flags", "reason"), [
    (("--linear-replayssm-cache-len", "12"), "the ring length must be a power of two, 12 is not"),
    (("--linear-replayssm-cache-len", "8", "--speculative-num-draft-tokens", "8"),
     "the ring length must be at least 2 x D = 16 for 8 draft tokens, 8 is not"),
])  # fmt: skip
def test_illegal_ring_lengths_are_refused_with_the_rule(flags, reason):
    ran = run("replayssm", "kimi-k3", "--tp", "8", *flags, "--json")
    assert (ran.code, ran.document["legal"], ran.document["reason"]) == (1, False, reason)
    assert "use: --linear-replayssm-cache-len 16" in run("replayssm", "kimi-k3", "--tp", "8", *flags).out


def test_slots_answer_the_write_ups_example():
    """ceil(13600 / 6144) + 2 = 5, and 80 slots admit 16 requests (A5, A6)."""
    flags = ("--input-length", "13600", "--chunked-prefill-size", "6144", "--max-mamba-cache-size", "80")
    answer = run("slots", *flags, "--json").document
    assert (answer["prefill_slots"], answer["max_concurrent"]) == (5, 16)


def test_the_slot_table_has_every_combination_once():
    table = run("slots", "--json").document["table"]
    keys = {(row["strategy"], row["overlap"], row["skip_decode_lock"], row["radix_cache"]) for row in table}
    assert len(keys) == len(table) == 24
    refused = {(row["strategy"], row["overlap"]) for row in table if not row["allowed"]}
    assert refused == {("no_buffer", True), ("extra_buffer_lazy", False)}


def test_models_lists_every_preset_with_its_confidence():
    models = run("models", "--json").document["models"]
    assert len(models) >= 68
    assert {model["confidence"] for model in models} == {"verified", "second-hand"}
    assert all(model["source"] for model in models)


def test_models_show_names_the_source():
    ran = run("models", "show", "moonshotai/kimi-k3")
    assert ran.code == 0
    assert "released config.json" in ran.out
    assert run("models", "show", "kimi-k3", "--tp", "8", "--json").document["models"][0]["state_bytes"] == 56_171_520


def test_models_family_filters():
    models = run("models", "--family", "lightning", "--json").document["models"]
    assert {model["family"] for model in models} == {"lightning"}
