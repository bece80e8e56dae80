"""vLLM's releases: which rules a version takes, and when each of them turns."""

import pytest

from hybridcalc import load_model
from hybridcalc.engines.vllm import EngineArgs
from hybridcalc.engines.vllm.planner import prepare
from hybridcalc.engines.vllm.releases import RELEASES, RuleSet, rules_for
from hybridcalc.errors import InputError
from hybridcalc.units import version_numbers


@pytest.mark.parametrize(
    ("version", "rules", "note"),
    [
        ("0.33.0", "0.33.0", ""),
        ("0.33.1", "0.33.0", "vLLM 0.33.1 is newer than the releases known here: the rules of 0.33.0 are used"),
        ("1.0", "0.33.0", "vLLM 1.0 is newer than the releases known here: the rules of 0.33.0 are used"),
        ("0.22.1", "0.22.1", ""),
        ("0.32.9", "0.32.0", "vLLM 0.32.9: the rules of 0.32.0 are used"),
        ("0.28.1", "0.28.0", "vLLM 0.28.1: the rules of 0.28.0 are used"),
        ("0.33", "0.33.0", "vLLM 0.33: the rules of 0.33.0 are used"),
        ("v0.22", "0.22.1", "vLLM v0.22: the rules of 0.22.1 are used"),
        ("0.29.0rc1-cu126", "0.29.0", "vLLM 0.29.0rc1-cu126: the rules of 0.29.0 are used"),
        ("0.22.0", "0.22.0", "vLLM 0.22.0: rules read in its source, not checked by its results"),
        ("0.18.0", "0.18.0", "vLLM 0.18.0: rules read in its source, not checked by its results"),
    ],
)
def test_a_version_takes_the_nearest_lower_rule_set(version: str, rules: str, note: str) -> None:
    found, said = rules_for(version)
    assert (found.version, said) == (rules, note)


@pytest.mark.parametrize("version", ["0.17.1", "0.11.0", "0.1"])
def test_a_version_older_than_every_known_one_is_refused(version: str) -> None:
    """Rules of a later version would be a guess."""
    with pytest.raises(InputError, match=rf"(?m)^vLLM {version} is older than every version known here$") as caught:
        prepare(load_model("nemotron-h-8b"), EngineArgs(engine_version=version))
    assert caught.value.fix == "known: 0.18.0 to 0.33.0"


FROM_ON = {
    "seqs_refused": "0.20.0", "conv_layout_switch": "0.20.0", "override_checked": "0.20.1", "graphs_charged": "0.21.0",
    "turboquant_hybrids": "0.21.0", "bfloat16_states": "0.22.0", "lightning_float32": "0.20.1",
    "drafts_in_mode_all": "0.22.0", "kda_joined": "0.23.0",
    "fine_hits": "0.26.0", "states_padded_apart": "0.26.0", "states_hashed_apart": "0.28.0",
    "nvfp4_on_fa2": "0.32.0", "drafts_on_last_stage": "0.30.0", "lightning_draft_graphs": "0.25.0",
    "sparse_retention": "0.26.0", "in_flight_batches": "0.26.0",
    "latent_block": "0.27.0", "latent_fp8_triton": "0.27.0", "kda_draft_rows": "0.27.0",
    "replayssm": "0.27.0", "caches_hybrid_prefixes": "0.28.0", "one_capacity_line": "0.28.0",
    "fitted_to_cache": "0.32.0", "groups_in_round": "0.32.0",
    "one_buffer": "0.28.0", "drafts_apart": "0.28.0",
    "batch_16k": "0.28.0", "null_block_reserved": "0.29.0", "shortconv_draft_rows": "0.29.0",
    "retention_checked": "0.29.0", "layouts_refused": "0.29.0", "recovers_kda": "0.29.0", "runner_v2": "0.29.0",
    "layout_line": "0.29.0", "group_lines": "0.30.0", "kda_dtype_obeyed": "0.30.0", "replays_flashinfer": "0.30.0",
    "windows_retain_drafts": "0.28.0", "all_groups_checked": "0.19.0", "nvfp4_taken": "0.21.0",
    "latent_triton_graphs": "0.22.0", "drafts_copied": "0.31.0", "graphs_uncompiled": "0.30.0",
    "compressed_fp8": "0.31.0", "index_packed": "0.32.0", "sparse_fp8_default": "0.33.0",
    "kernel_blocks": "0.32.0", "class_counts_drafts": "0.32.0", "single_unit_checked": "0.32.0",
    "replays_drafts": "0.32.0", "checkpoint_grid": "0.33.0", "gb10_is_small": "0.33.0",
}  # fmt: skip


UNTIL = {
    "least_block": "0.20.0", "block_forgotten": "0.20.0", "tokens_of_pool": "0.20.1", "all_by_default": "0.28.0",
    "caching_warned": "0.28.0", "modes": "0.32.0", "events_without_hybrids": "0.20.0", "connectors_opt_in": "0.22.0",
    "flash_takes_fp8": "0.22.0", "sharded_draft_graphs": "0.30.0",
}  # fmt: skip


BETWEEN = {
    "align_under_drafts": ("0.20.0", "0.22.0"), "kda_records_in_pool": ("0.29.0", "0.33.0"),
    "replays_on_v2": ("0.29.0", "0.30.0"), "mode_all_refused": ("0.32.0", "0.33.0"),
    "mode_all_deprecated": ("0.30.0", "0.32.0"), "flash_takes_packed": ("0.20.0", "0.22.0"),
    "nvfp4_taken_anywhere": ("0.21.0", "0.25.0"),
}  # fmt: skip


OUTSIDE = {"context_parallel_groups": ("0.20.0", "0.26.0"), "kda_context_parallel": ("0.27.0", "0.28.0")}


VALUES = {
    "checkpoints",
    "flashinfer_draft_graphs",
    "mixed_from",
    "latent_triton_draft_graphs",
    "runner_v2_lacks",
    "replay_buffer_most",
    "utilization_percent",
}


def test_every_rule_turns_with_its_release() -> None:
    """What a rule says before, between and after the releases that changed it."""
    flags = set(RuleSet._fields) - {"version", "recorded"}
    assert flags == {*FROM_ON, *UNTIL, *BETWEEN, *OUTSIDE, *VALUES}
    spans = {name: (first, "99.0") for name, first in FROM_ON.items()}
    spans |= {name: ("0.0", last) for name, last in UNTIL.items()} | BETWEEN | OUTSIDE
    for name, (first, last) in spans.items():
        for rules in RELEASES.rule_sets:
            within = version_numbers(first) <= version_numbers(rules.version) < version_numbers(last)
            assert getattr(rules, name) is (within != (name in OUTSIDE)), (name, rules.version)


@pytest.mark.parametrize("version", ["main", "", "0.x", "0.33.0; rm"])
def test_what_is_no_version_is_refused(version: str) -> None:
    with pytest.raises(InputError, match=r"(?m) is not a version$") as caught:
        prepare(load_model("nemotron-h-8b"), EngineArgs(engine_version=version))
    assert caught.value.fix == "write one like 0.5.23 or 0.33.0"
