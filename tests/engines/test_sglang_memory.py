"""The memory that SGLang's pools share: from two figures of a boot, from a GPU and weights, and what is set aside."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hybridcalc import load_model
from hybridcalc.architecture import Architecture
from hybridcalc.deployment import GIVEN, MemoryPart
from hybridcalc.engines.sglang import ServerArgs
from hybridcalc.engines.sglang.fraction import settle_fraction
from hybridcalc.engines.sglang.memory import CONTEXTS, least_slack_gib, multimodal_gib, rest_from_boot, rest_from_gpu
from hybridcalc.errors import InputError, Refusal
from hybridcalc.hardware import Gpu

K3 = load_model("kimi-k3")  # multimodal, MLA
QWEN = load_model("qwen3.5-9b")  # multimodal, GQA
TEXT = load_model("kimi-linear-48b-a3b")  # neither images nor GQA
NEMOTRON = load_model("nemotron-3-ultra-550b-a55b")  # GQA, text alone
AFTER_CAPTURE = {"SGLANG_ENABLE_POST_CAPTURE_KV_SIZING": "1"}


def weights(gib: float) -> MemoryPart:
    return MemoryPart.of("weights", gib, GIVEN, "--weights")


def args(fraction: float | None = 0.8, **given: Any) -> ServerArgs:
    return ServerArgs(mem_fraction_static=fraction, **given)


def test_two_figures_of_a_boot_leave_what_the_engine_computes() -> None:
    """14.08 - 22.93 x (1 - 0.8) = 9.494; half a cent to either side of both figures."""
    rest = rest_from_boot(22.93, 14.08, TEXT, args())
    assert rest.likely_gib == 14.08 - 22.93 * (1 - 0.8)
    assert (rest.low_gib, rest.high_gib) == pytest.approx((9.494 - 0.006, 9.494 + 0.006))
    assert rest.why == "14.08 GiB after the weights - 22.93 x (1 - 0.8)"


@given(st.floats(1, 300), st.floats(0, 1), st.floats(0.05, 0.95))
def test_figures_before_rounding_lie_in_the_interval(before: float, share: float, fraction: float) -> None:
    """Whatever a boot had, the two decimals it printed bracket what that leaves."""
    after = before * share
    printed = float(f"{before:.2f}"), float(f"{after:.2f}")
    rest = rest_from_boot(*printed, TEXT, args(fraction))
    true = after - before * (1 - fraction)
    assert rest.low_gib - 1e-9 <= true <= rest.high_gib + 1e-9
    assert rest.low_gib < rest.likely_gib < rest.high_gib


def test_a_gpu_leaves_what_context_weights_and_fraction_do_not_take() -> None:
    """80 - 0.6 = 79.4 free; less 50 of weights and 79.4 x 0.2. The context is an estimate, and so is the rest."""
    rest = rest_from_gpu(Gpu(80.0, "as given"), weights(50.0), TEXT, args())
    low, likely, high = (80.0 - context for context in CONTEXTS["one"])
    assert (rest.high_gib, rest.likely_gib, rest.low_gib) == pytest.approx([x * 0.8 - 50 for x in (low, likely, high)])
    assert rest.why == "80.00 GiB (as given) - 0.60 (0.25 to 0.85) of context - 50.00 of weights - 79.40 x (1 - 0.8)"
    assert [part.name for part in rest.parts] == ["context", "weights", "headroom"]


def test_weights_that_do_not_fit_are_refused() -> None:
    with pytest.raises(Refusal) as refusal:
        rest_from_gpu(Gpu(80.0, "as given"), weights(79.4), TEXT, args())
    assert refusal.value.message == "weights alone take 79.40 of 79.40 GiB (80.00 less about 0.6)"
    assert (refusal.value.stage, refusal.value.rule, refusal.value.exit_code) == ("load", "HC001", 1)


@pytest.mark.parametrize(
    ("fraction", "text"),
    [
        (1.0, "--mem-fraction-static 1 is not between 0 and 1"),
        (0.0, "--mem-fraction-static 0 is not between 0 and 1"),
        (float("nan"), "--mem-fraction-static nan is not between 0 and 1"),
    ],
)
def test_a_fraction_must_be_one(fraction: float, text: str) -> None:
    asked: tuple[Callable[[], object], ...] = (
        lambda: rest_from_boot(22.0, 14.0, TEXT, args(fraction)),
        lambda: rest_from_gpu(Gpu(80.0, "x"), weights(5.0), TEXT, args(fraction)),
    )
    for ask in asked:
        with pytest.raises(InputError) as refusal:
            ask()
        assert refusal.value.message == text


def test_a_fraction_that_nobody_gives_is_the_engines_own() -> None:
    """By the GPU; the figures of a boot do not tell which one that is."""
    rest = rest_from_gpu(Gpu(80.0, "x"), weights(5.0), TEXT, args(None))
    assert rest.fraction == settle_fraction(TEXT, args(None), 80 * 1024).fraction
    assert rest_from_gpu(Gpu(80.0, "x"), weights(5.0), TEXT, args(0.8)).fraction is None
    with pytest.raises(InputError, match="the memory for the pools depends on --mem-fraction-static"):
        rest_from_boot(22.0, 14.0, TEXT, args(None))


@pytest.mark.parametrize(
    ("model", "given", "reserve_mb"),
    [
        (K3, {}, 100),
        (QWEN, {}, 100),
        (TEXT, {}, 0),
        (NEMOTRON, {}, 0),
        (QWEN, {"engine_version": "0.5.17"}, 0),
        (QWEN, {"env": {"SGLANG_VLM_CACHE_SIZE_MB": "512"}}, 512),
        (QWEN, {"env": {"SGLANG_VLM_CACHE_SIZE_MB": "0"}}, 0),
        (TEXT, {"env": {"SGLANG_VLM_CACHE_SIZE_MB": "512"}}, 0),
        (QWEN, {"env": {"SGLANG_MM_FEATURE_CACHE_MB": "512"}}, 100),
        (QWEN, {"mm_feature_transport": "cpu"}, 100),
        (QWEN, {"mm_feature_transport": "cuda_ipc"}, 1124),
        (QWEN, {"mm_feature_transport": "cuda_vmm", "env": {"SGLANG_MM_FEATURE_CACHE_MB": "512"}}, 612),
        (TEXT, {"mm_feature_transport": "cuda_ipc"}, 0),
    ],
)
def test_images_have_a_reserve_on_multimodal_models_since_0_5_18(
    model: Architecture, given: dict[str, Any], reserve_mb: int
) -> None:
    """And what is reserved is not there for the pools."""
    assert multimodal_gib(model, args(**given)) == reserve_mb / 1024
    rest = rest_from_boot(22.93, 14.08, model, args(**given))
    assert rest.likely_gib == pytest.approx(9.494 - reserve_mb / 1024)
    assert (" for images" in rest.why) == (reserve_mb > 0)


@pytest.mark.parametrize("text", ["-1", "1.5", "much", "1" * 30, "\u0663"])
def test_a_reserve_that_is_no_number_is_refused(text: str) -> None:
    with pytest.raises(InputError, match=r"(?m)^SGLANG_VLM_CACHE_SIZE_MB=.* is not a number of MB$"):
        multimodal_gib(QWEN, args(env={"SGLANG_VLM_CACHE_SIZE_MB": text}))


@pytest.mark.parametrize(
    ("gpu_gib", "given", "mb"),
    [
        (40.0, {"chunked_prefill_size": 4096}, 512 + 1.5 * 4096 + 1024 / 8),
        (40.0, {"chunked_prefill_size": 1024}, 512 + 1.5 * 2048 + 1024 / 8),
        (40.0, {"chunked_prefill_size": 4096, "tp_size": 4, "pp_size": 2}, 512 + 1.5 * 4096 + 1024),
        (60.0, {"chunked_prefill_size": 4096}, 512 + 1.5 * 4096 + 1024 / 8),
        (61.0, {"chunked_prefill_size": 4096}, 10_240),
        (61.0, {"chunked_prefill_size": 16_384}, 512 + 1.5 * 16_384 + 1024 / 8),
        (16.0, {}, 512 + 1.5 * 2048 + 1024 / 8),
        (40.0, {"chunked_prefill_size": 1}, 512 + 1.5 * 2048 + 1024 / 8),
        (40.0, {"chunked_prefill_size": -1, "disaggregation_mode": "decode"}, 512 + 1.5 * 2048 + 1024 / 8),
        (
            40.0,
            {
                "disaggregation_mode": "decode",
                "chunked_prefill_size": 8192,
                "max_running_requests": 1000,
                "speculative_algorithm": "EAGLE",
                "speculative_num_draft_tokens": 4,
            },
            512 + 1.5 * 4000 + 1024 / 8,
        ),
    ],
)
def test_sizing_after_capture_keeps_a_least_slack(gpu_gib: float, given: dict[str, Any], mb: float) -> None:
    """512 + 1.5 x max(tokens, 2048) + tp x pp / 8 x 1024 MB; at least 10,240 above 60 GiB."""
    assert least_slack_gib(NEMOTRON, args(env=AFTER_CAPTURE, **given), gpu_gib) == mb / 1024


@pytest.mark.parametrize(
    ("model", "given"),
    [
        (NEMOTRON, {}),
        (NEMOTRON, {"env": {"SGLANG_ENABLE_POST_CAPTURE_KV_SIZING": "0"}}),
        (NEMOTRON, {"env": AFTER_CAPTURE, "engine_version": "0.5.15"}),
        (NEMOTRON, {"env": AFTER_CAPTURE, "platform": "hip"}),
        (TEXT, {"env": AFTER_CAPTURE}),
        (NEMOTRON, {"env": AFTER_CAPTURE, "chunked_prefill_size": -1}),
        (NEMOTRON, {"env": AFTER_CAPTURE, "chunked_prefill_size": 0, "disaggregation_mode": "prefill"}),
    ],
    ids=["unset", "off", "0.5.15", "hip", "MLA", "whole prompts", "whole prompts of a prefill server"],
)
def test_elsewhere_the_fraction_alone_decides(model: Architecture, given: dict[str, Any]) -> None:
    assert least_slack_gib(model, args(**given), 80.0) == 0


def test_the_larger_slack_counts() -> None:
    """A fraction of 0.99 would keep 0.79 GiB; 10 are kept. One of 0.5 keeps more."""
    gpu = Gpu(80.0, "as given")
    tight = rest_from_gpu(gpu, weights(50.0), NEMOTRON, args(0.99, env=AFTER_CAPTURE, chunked_prefill_size=4096))
    assert tight.likely_gib == pytest.approx(79.4 - 50 - 10)
    assert tight.why.endswith("10.00 kept for graph capture")
    loose = rest_from_gpu(gpu, weights(20.0), NEMOTRON, args(0.5, env=AFTER_CAPTURE))
    plain = rest_from_gpu(gpu, weights(20.0), NEMOTRON, args(0.5))
    assert (loose.likely_gib, loose.why) == (plain.likely_gib, plain.why)


def test_a_boot_keeps_the_larger_slack_too() -> None:
    """77.9 GiB free before the weights is a card above 60: 10 GiB are kept, not 77.9 x 0.01."""
    rest = rest_from_boot(77.9, 40.0, NEMOTRON, args(0.99, env=AFTER_CAPTURE, chunked_prefill_size=4096))
    assert (rest.low_gib, rest.likely_gib, rest.high_gib) == pytest.approx((29.995, 30.0, 30.005))
    small = rest_from_boot(40.0, 20.0, NEMOTRON, args(0.99, env=AFTER_CAPTURE, chunked_prefill_size=4096))
    assert small.likely_gib == pytest.approx(20 - 6784 / 1024)


def test_the_index_beside_a_config_weighs_the_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """MODEL is a checkpoint's folder: --gpu needs no --weights."""
    from pathlib import Path

    from hybridcalc.cli.app import execute

    config = Path(__file__).resolve().parent.parent.parent / "examples" / "qwen3.5-27b" / "config.json"
    folder, total = tmp_path, json.dumps({"metadata": {"total_size": 55_562_855_904}})
    (folder / "model.safetensors.index.json").write_text(total)
    (folder / "config.json").write_bytes(config.read_bytes())
    for model in (folder, folder / "config.json"):
        flags = ["--tp", "2", "--gpu", "80GiB", "--mem-fraction-static", "0.8", "--json"]
        assert execute(["plan", str(model), *flags]) == 0
        memory = json.loads(capsys.readouterr().out)["memory"]
        assert memory["weights_from"].startswith("closed form of its config.json, the index of")
        assert memory["rest_gib"][1] == pytest.approx((80 - 0.7) * 0.8 - memory["weights_gib"] - 100 / 1024)
        assert 25 < memory["weights_gib"] < 26
