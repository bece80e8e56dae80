"""Start-ups of SGLang 0.5.9 to 0.5.23, each release held to the rules of its own."""

import pytest
from sglang_cases import recorded
from sglang_releases import FIGURES, RELEASES, differences

from hybridcalc.engines.sglang.releases import RELEASES as KNOWN


@pytest.mark.parametrize("version", KNOWN.versions)
def test_every_recorded_start_up_of_a_release(version: str) -> None:
    """K, T, R, S, the cell, what is charged and allocated, the lines of the log, and what is refused."""
    name = RELEASES[version]
    cases = recorded(name)["cases"]
    parting = {case["id"]: found for case in cases if (found := differences(name, case, version))}
    assert parting == {}


def test_every_release_that_is_known_was_recorded() -> None:
    """A release whose rows say that its results were recorded has a file of them, with figures in it."""
    assert set(RELEASES) == set(KNOWN.recorded)
    for name in RELEASES.values():
        assert sum(FIGURES[0] in case["outputs"] for case in recorded(name)["cases"]) > 60


def test_every_recorded_start_up_with_compressed_index_keys() -> None:
    """Qwen4-Exp with an indexer: ratios, widths, a draft, pipeline stages, and profiles that kernels cannot select."""
    name = "sglang-qsa-0.5.23"
    cases = recorded(name)["cases"]
    parting = {case["id"]: differences(name, case, "0.5.23") for case in cases}
    assert {case: found for case, found in parting.items() if found} == {}
    assert len(parting) == 12


def test_every_recorded_start_up_with_drafts_beside_windows() -> None:
    """Inkling: drafts of every kind, and the pool of windows by its ratio and by the request limit."""
    name = "sglang-windows-0.5.23"
    cases = recorded(name)["cases"]
    parting = {case["id"]: differences(name, case, "0.5.23") for case in cases}
    assert {case: found for case, found in parting.items() if found} == {}
    assert len(parting) == 81


def test_every_recorded_start_up_with_replayssm_verification_or_fp4_off_cuda_in_0_5_16() -> None:
    """Verification, and every reason that 0.5.16 refuses it for; cells of fp4 off CUDA."""
    name = "sglang-options-0.5.16"
    cases = recorded(name)["cases"]
    parting = {case["id"]: differences(name, case, "0.5.16") for case in cases}
    assert {case: found for case, found in parting.items() if found} == {}
    assert len(parting) == 19
