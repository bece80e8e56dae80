"""SGLang's memory fraction without a GPU, and the sizes whose graphs it captures."""

from dataclasses import replace
from typing import Any

import pytest

from hybridcalc import load_model, sglang
from hybridcalc.architecture import Config
from hybridcalc.architecture.presets import shipped_config
from hybridcalc.engines.sglang.fraction import (
    NO_GPU,
    by_memory,
    captured_sizes,
    prefill_backend,
    settle_fraction,
    vision_factor,
)
from hybridcalc.engines.sglang.releases import RELEASES, rules_for


def test_without_a_gpu_the_fraction_is_fixed() -> None:
    """Nothing is captured and nothing kept; the chunk is the one asked for, else that of the largest GPUs."""
    model = load_model("qwen3.5-9b")
    for asked, chunk in ((None, 16_384), (4096, 4096)):
        found = settle_fraction(model, sglang.ServerArgs(chunked_prefill_size=asked), None)
        assert found[:5] == (NO_GPU, chunk, 0, 0, 0.0)


@pytest.mark.parametrize(
    ("name", "context", "fraction"),
    [("granite-4-h-tiny", None, 0.862 * 0.85), ("granite-4-h-tiny", 8192, 0.862), ("kimi-k3", None, 0.80866375)],
)
def test_aiter_takes_its_share_of_the_fraction_on_amd(name: str, context: int | None, fraction: float) -> None:
    """MI300X, 8 ranks; Kimi-K3's 12 heads of a rank run on triton."""
    args = sglang.ServerArgs(tp_size=8, platform="hip", context_length=context)
    assert settle_fraction(load_model(name), args, 196_592).fraction == fraction


@pytest.mark.parametrize(
    ("release", "mib", "ranks", "sizes"),
    [
        ("0.5.19", 20 * 1024 - 1, 1, (2048, 8)),
        ("0.5.19", 20 * 1024, 1, (2048, 24)),
        ("0.5.19", 35 * 1024 - 1, 4, (2048, 80)),
        ("0.5.19", 35 * 1024, 4, (4096, 160)),
        ("0.5.20", 20 * 1024, 3, (4096, 48)),
        ("0.5.20", 24 * 1024, 4, (4096, 160)),
        ("0.5.23", 60 * 1024, 1, (8192, 256)),
        ("0.5.23", 90 * 1024, 1, (8192, 256)),
        ("0.5.23", 160 * 1024 - 1, 4, (8192, 512)),
        ("0.5.23", 160 * 1024, 1, (16_384, 512)),
        ("0.5.23", 160 * 1024, 4, (16_384, 512)),
    ],
)
def test_chunk_and_decode_graphs_go_by_the_memory_of_a_gpu(
    release: str, mib: int, ranks: int, sizes: tuple[int, int]
) -> None:
    """Cards of 20 to 35 GiB had a row of their own before 0.5.20; four ranks have larger graphs."""
    assert by_memory(sglang.ServerArgs(tp_size=ranks), mib, rules_for(release)[0]) == sizes


@pytest.mark.parametrize(("chunk", "tokens"), [(1, 2048), (2047, 2048), (2049, 2049), (0, 16_384), (-1, 16_384)])
def test_the_memory_of_a_step_is_of_its_chunk_or_of_the_most_it_prefills(chunk: int, tokens: int) -> None:
    """memory_hook.py: 2,048 tokens at least, and max_prefill_tokens where prompts are not cut, here of a small card.

    512 + 1.5 x tokens + 128 + 2 x 8 decode graphs, without graphs of prefill.
    """
    flags: dict[str, Any] = {"chunked_prefill_size": chunk, "disable_prefill_cuda_graph": True}
    found = settle_fraction(load_model("falcon-h1-0.5b"), sglang.ServerArgs(**flags), 16 * 1024)
    assert found.reserved_mib == 512 + 1.5 * tokens + 128 + 16


@pytest.mark.parametrize(("mib", "reserved"), [(60 * 1024, 512 + 3072 + 128 + 16), (60 * 1024 + 1, 10_240)])
def test_large_gpus_keep_ten_gib_at_least(mib: int, reserved: float) -> None:
    """memory_hook.py: above 60 GiB, and not of 60 GiB."""
    flags: dict[str, Any] = {"chunked_prefill_size": 2048, "cuda_graph_max_bs_decode": 8}
    args = sglang.ServerArgs(**flags, disable_prefill_cuda_graph=True)
    assert settle_fraction(load_model("falcon-h1-0.5b"), args, mib).reserved_mib == reserved


@pytest.mark.parametrize(
    ("vision", "factor"),
    [
        ({}, 1.0),
        ({"num_hidden_layers": 12}, 1.05),
        ({"hidden_size": 1152}, 1 - 0.1 * (1152**2 / 1024**2 - 1)),
        ({"num_hidden_layers": 36, "hidden_size": 1024}, 0.95),
        ({"num_hidden_layers": 72, "hidden_size": 2048}, 0.8),
    ],
)
def test_a_larger_vision_tower_leaves_less(vision: dict[str, int], factor: float) -> None:
    """adjust_mem_fraction_for_vlm: 24 layers of 1,024 unless the config says others, a tenth less for each as much."""
    model = load_model("qwen3.5-9b")
    config = Config(dict(shipped_config(model.name)) | {"vision_config": vision})
    assert vision_factor(model._replace(config=config)) == pytest.approx(factor, rel=1e-12)


@pytest.mark.parametrize(
    ("backend", "found"),
    [("none", "breakable"), ("deepep", "breakable"), ("megamoe", "breakable"), ("flashinfer", "breakable"),
     ("mooncake", ""), ("mori", "")],
)  # fmt: skip
def test_prefill_is_captured_beside_some_ways_to_send_to_experts(backend: str, found: str) -> None:
    """cuda_graph_hook.py: "unvalidated a2a backend" names the others."""
    rules = rules_for("0.5.23")[0]
    assert prefill_backend(load_model("qwen3-next-80b"), sglang.ServerArgs(moe_a2a_backend=backend), rules) == found


def test_captured_sizes_grow_coarser() -> None:
    """8 + 14 + 8 + 8 sizes up to 1,024."""
    sizes = captured_sizes(1024)
    assert (len(sizes), sizes[0], sizes[7], sizes[8], sizes[-1]) == (38, 4, 32, 48, 1024)
    assert len(captured_sizes(8192)) == 58


@pytest.mark.parametrize(
    ("name", "first"), [("qwen3.5-9b", "0.5.16"), ("glm-5.3-flash", "0.5.22"), ("qwen3.8-flash-next", "0.5.22")]
)
def test_prefill_of_multimodal_classes_runs_in_graphs_from_a_release_on(name: str, first: str) -> None:
    """Seen in the model lists of each release, and in start-ups of its own classes."""
    model, releases = load_model(name), [rules.version for rules in RELEASES.rule_sets]
    before, rules = (RELEASES.rules_for(v)[0] for v in (releases[releases.index(first) - 1], first))
    found = [prefill_backend(model, sglang.ServerArgs(engine_version=r.version), r) for r in (before, rules)]
    assert found == ["", "breakable"]


@pytest.mark.parametrize(
    ("name", "flags", "first", "found"),
    [
        ("ling-2.6-flash", {}, "0.5.18", ["", "breakable"]),
        ("nemotron-h-8b", {}, "0.5.17", ["breakable", ""]),
        ("nemotron-h-8b", {}, "0.5.18", ["", "breakable"]),
        ("kimi-linear-48b", {}, "0.5.20", ["breakable", ""]),
        ("qwen3-next-80b", {"pp_size": 2}, "0.5.19", ["breakable", ""]),
        ("qwen3-next-80b", {"moe_a2a_backend": "deepep"}, "0.5.17", ["", "breakable"]),
    ],
)
def test_what_prefill_graphs_do_not_run_beside(name: str, flags: dict[str, Any], first: str, found: list[str]) -> None:
    """Read in each release's own list, and seen in start-ups of 0.5.16, 0.5.19 and 0.5.21."""
    releases = [rules.version for rules in RELEASES.rule_sets]
    both = (RELEASES.rules_for(v)[0] for v in (releases[releases.index(first) - 1], first))
    assert [prefill_backend(load_model(name), sglang.ServerArgs(**flags), rules) for rules in both] == found


@pytest.mark.parametrize("release", RELEASES.versions[RELEASES.versions.index("0.5.16") :])
def test_a_decode_server_keeps_room_for_the_drafts_that_are_typed(release: str) -> None:
    """H100, 8 ranks, 512 requests: NGRAM's 12 drafts are settled once the fraction is."""
    model = load_model("qwen3-next-80b")
    args = sglang.ServerArgs(
        tp_size=8, disaggregation_mode="decode", speculative_algorithm="NGRAM", engine_version=release
    )
    untyped, typed = (
        settle_fraction(model, each, 81_559).fraction for each in (args, replace(args, speculative_num_draft_tokens=12))
    )
    assert (untyped, typed) == (0.874, 0.856)


@pytest.mark.parametrize(("release", "backend"), [("0.5.20", ""), ("0.5.21", ""), ("0.5.22", "breakable")])
def test_qwen4_exp_is_a_class_of_images_whatever_its_config_has(release: str, backend: str) -> None:
    """Prefill graphs are captured from 0.5.22 on; a config without a vision tower changes nothing."""
    model = load_model("qwen3.8-flash-next")._replace(multimodal=False)
    args = sglang.ServerArgs(tp_size=4, engine_version=release, gpu_memory_mib=143_771, gpu_capability="9.0")
    assert prefill_backend(model, args, rules_for(release)[0]) == backend
