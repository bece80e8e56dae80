"""SGLang's arguments: what follows from them, and which rule set a version meets."""

import pytest

from hybridcalc import load_model
from hybridcalc.engines.sglang import ServerArgs
from hybridcalc.engines.sglang.releases import NEWEST_VERSION, rules_for
from hybridcalc.engines.sglang.served import check_model
from hybridcalc.engines.sglang.strategy import with_defaults
from hybridcalc.engines.vllm import EngineArgs
from hybridcalc.errors import IllegalCombination, InputError


@pytest.mark.parametrize(
    ("version", "rules", "note"),
    [
        ("0.5.23", "0.5.23", ""),
        ("0.5.16", "0.5.16", ""),
        ("0.5.20", "0.5.20", ""),
        ("0.5.16.post1", "0.5.16", "SGLang 0.5.16.post1: the rules of 0.5.16 are used"),
        ("v0.5.23", "0.5.23", ""),
        ("0.5.23.post1", "0.5.23", "SGLang 0.5.23.post1: the rules of 0.5.23 are used"),
        ("1.0", "0.5.23", "SGLang 1.0 is newer than the releases known here: the rules of 0.5.23 are used"),
        ("0.5", "0.5.23", "SGLang 0.5: the rules of 0.5.23 are used"),
        ("0.5.16rc1", "0.5.16", "SGLang 0.5.16rc1: the rules of 0.5.16 are used"),
    ],
)
def test_a_version_takes_the_nearest_lower_rule_set(version: str, rules: str, note: str) -> None:
    """Versions are data; a note says when another version stands in."""
    found, said = rules_for(version)
    assert (found.version, said) == (rules, note)


@pytest.mark.parametrize("version", ["", "main", "0.5.x", "0", "\u0660.\u0665", "9" * 60 + ".1", "-1.2", "0..5"])
def test_what_is_no_version_is_refused(version: str) -> None:
    """With the one to write instead."""
    with pytest.raises(InputError) as refusal:
        rules_for(version)
    assert refusal.value.message.startswith(repr(version[:37])[:-1])
    assert refusal.value.message.endswith(" is not a version")
    assert refusal.value.fix == "write one like 0.5.23 or 0.33.0"


def test_a_version_older_than_every_known_one_is_refused() -> None:
    """Rules of a later version would be a guess."""
    with pytest.raises(InputError) as refusal:
        rules_for("0.5.8")
    assert refusal.value.message == "SGLang 0.5.8 is older than every version known here"
    assert refusal.value.fix == "known: 0.5.9 to 0.5.23"


def test_kimi_k3_needs_the_newer_version() -> None:
    """0.5.16 has no such class."""
    with pytest.raises(IllegalCombination) as refusal:
        check_model(rules_for("0.5.16")[0], "KimiK3ForConditionalGeneration")
    name = "KimiK3ForConditionalGeneration"
    assert (
        refusal.value.message == f"SGLang 0.5.16 has no class for {name} yet: the first release that has it is 0.5.17"
    )
    assert refusal.value.fix == f"use --engine-version {NEWEST_VERSION}"


def test_attention_data_parallelism_shares_out_the_ranks() -> None:
    """attention TP = tp / dp under --enable-dp-attention; plain data parallelism is separate servers."""
    assert ServerArgs(tp_size=16, dp_size=4, enable_dp_attention=True).attn_tp_size == 4
    assert ServerArgs(tp_size=16, dp_size=4).attn_tp_size == 16


def test_data_parallelism_that_does_not_divide_is_refused() -> None:
    """The words of the refusal."""
    with pytest.raises(InputError) as refusal:
        _ = ServerArgs(tp_size=8, dp_size=3, enable_dp_attention=True).attn_tp_size
    assert refusal.value.message == "--dp-size 3 does not divide --tp-size 8"
    assert refusal.value.fix == "under --enable-dp-attention the tp ranks are shared out among the dp workers"


@pytest.mark.parametrize(
    ("value", "on"), [("1", True), ("true", True), (" ON ", True), ("y", True), ("0", False), ("", False), ("2", False)]
)
def test_the_decode_lock_switch_is_read_as_the_engine_reads_it(value: str, on: bool) -> None:
    """SGLANG_OPT_MAMBA_SKIP_DECODE_LOCK."""
    assert ServerArgs(env={"SGLANG_OPT_MAMBA_SKIP_DECODE_LOCK": value}).skip_decode_lock is on


def test_draft_tokens_count_only_under_speculation() -> None:
    """A number without an algorithm does nothing."""
    assert ServerArgs(speculative_num_draft_tokens=4).draft_tokens == 0
    assert ServerArgs(speculative_num_draft_tokens=4, speculative_algorithm="EAGLE").draft_tokens == 4


@pytest.mark.parametrize("version", ["0.5.19", "0.5.20", "0.5.23"])
def test_inkling_brings_smaller_ratios_of_its_own(version: str) -> None:
    """SGLang model_overrides/inkling.py: 0.1 for both where nothing is set; up to 0.5.19 also where a flag says 0.9 or
    0.8, its default. Other classes keep theirs.
    """
    model, rules = load_model("inkling"), rules_for(version)[0]
    settled = with_defaults(model, ServerArgs(), rules)
    assert (settled.memory_ratio, settled.window_ratio) == (0.1, 0.1)
    asked = with_defaults(model, ServerArgs(mamba_full_memory_ratio=0.5), rules)
    assert (asked.memory_ratio, asked.window_ratio) == (0.5, 0.1)
    typed = with_defaults(model, ServerArgs(mamba_full_memory_ratio=0.9, swa_full_tokens_ratio=0.8), rules)
    assert (typed.memory_ratio, typed.window_ratio) == ((0.1, 0.1) if version == "0.5.19" else (0.9, 0.8))
    assert with_defaults(load_model("qwen3-next-80b-a3b"), ServerArgs(), rules) == ServerArgs()


def test_both_engines_read_a_compute_capability_alike() -> None:
    assert ServerArgs(gpu_capability="10").capability == (10, 0)
    assert EngineArgs(gpu_capability="9.0").capability == (9, 0)
    for args in (ServerArgs(gpu_capability="9.x"), EngineArgs(gpu_capability="9.x")):
        with pytest.raises(InputError, match=r"(?m)^'9\.x' is no compute capability$"):
            _ = args.capability
