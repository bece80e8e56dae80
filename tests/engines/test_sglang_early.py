"""Rules of SGLang's early releases, each against what functions of that release's own sources return."""

from typing import Any

import pytest

from hybridcalc import load_model
from hybridcalc.engines.sglang import ServerArgs, planner, resolve
from hybridcalc.errors import HybridcalcError

DFLASH: dict[str, Any] = {
    "tp_size": 2, "mamba_radix_cache_strategy": "extra_buffer", "page_size": 1, "mamba_ssm_dtype": "bfloat16",
    "env": {"SGLANG_MAMBA_CONV_DTYPE": "float16"}, "kv_cache_dtype": "fp8_e4m3", "speculative_algorithm": "DFLASH",
    "speculative_num_draft_tokens": 7, "draft_layers": 1, "max_running_requests": 16, "disable_overlap_schedule": True,
}  # fmt: skip
NO_DRAFTS = "caches no prefixes beside drafts under no_buffer"
DRAFTS: dict[str, Any] = {"speculative_algorithm": "EAGLE", "speculative_num_draft_tokens": 4}
BUFFERS: dict[str, Any] = {"mamba_radix_cache_strategy": "extra_buffer"}


def start(version: str, budget: float = 100.0, name: str = "qwen3.5-35b-a3b", **flags: Any) -> tuple[Any, Any]:
    """A start-up of a release: what is prepared, and its sizes."""
    ready = planner.prepare(load_model(name), ServerArgs(engine_version=version, **flags))
    return ready, planner.size(ready, budget)


def told(version: str, **flags: Any) -> str:
    """What a release refuses, empty where it starts."""
    try:
        start(version, **flags)
    except HybridcalcError as error:
        return str(error)
    return ""


@pytest.mark.parametrize("version", ["0.5.11", "0.5.12", "0.5.13"])
def test_dflash_drafts_have_a_part_in_the_cell_before_others_have(version: str) -> None:
    """A draft layer to ten of the target's: 5,120 x 11 / 10; an EAGLE draft is not priced there."""
    ready, sizing = start(version, 101.123, **DFLASH)
    assert ready.cells[0].bytes == 5632
    if version == "0.5.13":
        assert sizing.tokens == 15_633_343
    assert start(version, **BUFFERS, **DRAFTS, draft_layers=1)[0].cells[0].draft_bytes == 0


@pytest.mark.parametrize(("version", "refused"), [("0.5.10", True), ("0.5.11", False), ("0.5.13", False)])
def test_drafts_on_a_decode_server_are_judged_before_or_after_its_cache_goes(version: str, *, refused: bool) -> None:
    """server_args.py __post_init__: the cache of a decode server is switched off last in 0.5.10, first in 0.5.11."""
    assert (NO_DRAFTS in told(version, disaggregation_mode="decode", **DRAFTS)) is refused
    assert ("the radix cache, which is off" in told(version, disaggregation_mode="decode", **BUFFERS)) is not refused


def test_a_decode_server_of_0_5_9_runs_without_overlap_though_nothing_is_cached() -> None:
    """no_buffer is judged while its cache is still on; a request holds one slot all the same."""
    ready, _ = start("0.5.9", disaggregation_mode="decode")
    assert (ready.choice.overlap, ready.slots.count) == (False, 1)


@pytest.mark.parametrize(("version", "refused"), [("0.5.10", True), ("0.5.11", False)])
def test_drafts_on_amd_switch_the_cache_off_only_later(version: str, *, refused: bool) -> None:
    """_handle_mamba_radix_cache spares AMD from 0.5.11 on."""
    assert (NO_DRAFTS in told(version, platform="hip", **DRAFTS)) is refused


@pytest.mark.parametrize(
    ("version", "platforms"), [("0.5.10", {"cuda"}), ("0.5.11", {"cuda", "musa"}), ("0.5.12", {"cuda", "musa", "npu"})]
)
def test_extra_buffers_reach_other_platforms_one_by_one(version: str, platforms: set[str]) -> None:
    """Each release's own assertion."""
    assert {name for name in ("cuda", "musa", "npu", "hip") if not told(version, platform=name, **BUFFERS)} == platforms


def test_early_buffers_do_not_ask_for_triton() -> None:
    """From 0.5.14 on, supports_mamba_cache_extra_buffer asks for it."""
    assert not told("0.5.13", linear_attn_backend="cutedsl", **BUFFERS)
    assert "not supported" in told("0.5.14", linear_attn_backend="cutedsl", **BUFFERS)


def test_drafts_run_under_context_parallelism_from_0_5_17_on() -> None:
    """0.5.16 stops on CUDA, whatever the drafts."""
    flags: dict[str, Any] = {"tp_size": 2, "dcp_size": 2, **DRAFTS, "name": "kimi-linear-48b-a3b"}
    assert "no drafts under context parallelism" in told("0.5.16", **flags)
    assert not told("0.5.17", **flags)


@pytest.mark.parametrize("platform", ["cuda", "hip", "npu", "musa"])
def test_context_parallelism_runs_everywhere_from_0_5_17_on(platform: str) -> None:
    """0.5.15 and 0.5.16 stop anywhere but on CUDA and ROCm, and there for drafts on CUDA alone."""
    flags: dict[str, Any] = {"tp_size": 2, "dcp_size": 2, "name": "kimi-linear-48b-a3b", "platform": platform}
    for version in ("0.5.15", "0.5.16"):
        assert (f"no context parallelism on {platform}" in told(version, **flags)) is (platform in ("npu", "musa"))
    assert not told("0.5.17", **flags)


def test_lazy_buffers_are_refused_beside_drafts_that_are_typed() -> None:
    """The check of 0.5.16 looks at the number of drafts before a start has one of its own."""
    flags: dict[str, Any] = {"mamba_radix_cache_strategy": "extra_buffer_lazy", "speculative_algorithm": "NGRAM"}
    assert not told("0.5.16", **flags)
    assert "refuses extra_buffer_lazy" in told("0.5.16", **flags, speculative_num_draft_tokens=4)


@pytest.mark.parametrize(
    ("name", "version", "backend", "page"),
    [
        ("nemotron-h-8b", "0.5.18", "flashinfer", 1), ("nemotron-h-8b", "0.5.19", "trtllm_mha", 64),
        ("lfm2-8b-a1b", "0.5.16", "trtllm_mha", 64), ("lfm2-8b-a1b", "0.5.17", "flashinfer", 1),
    ],
)  # fmt: skip
def test_a_class_takes_its_backend_on_blackwell_from_some_release_on(
    name: str, version: str, backend: str, page: int
) -> None:
    """Recorded of each release's own resolution."""
    found = resolve(load_model(name), ServerArgs(engine_version=version, gpu_capability="10.0", gpu_memory_mib=183_359))
    assert (found["attention_backend"], found["page_size"]) == (backend, page)
