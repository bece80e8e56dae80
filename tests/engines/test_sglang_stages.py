"""Pipeline stages of SGLang: which classes run them, and which layers each stage counts, release by release."""

import pytest

from hybridcalc import load_model
from hybridcalc.engines.sglang import ServerArgs, planner
from hybridcalc.engines.sglang.releases import RELEASES, rules_for
from hybridcalc.errors import Refusal


def prepared(model: str, release: str, **flags: object) -> planner.Prepared:
    """A model on a release."""
    return planner.prepare(load_model(model), ServerArgs(engine_version=release, **flags))  # type: ignore[arg-type]


@pytest.mark.parametrize("model", ["qwen3-next-80b", "falcon-h1-3b", "lfm2-1.2b", "jet-nemotron-2b"])
@pytest.mark.parametrize("release", ["0.5.9", "0.5.23"])
def test_classes_whose_forward_takes_no_stage_are_refused(model: str, release: str) -> None:
    """ModelRunner asserts `pp_proxy_tensors` in the model's forward once it is loaded."""
    with pytest.raises(Refusal, match=f"does not run pipeline stages in SGLang {release}") as caught:
        prepared(model, release, tp_size=2, pp_size=2)
    assert (caught.value.stage, caught.value.rule, caught.value.flag) == ("load", "HC024", "--pp-size")
    assert caught.value.fix == "write --pp-size 1"
    assert prepared(model, release, tp_size=2).stages


@pytest.mark.parametrize("model", ["qwen3.6-27b", "kimi-linear-48b", "nemotron-h-8b", "granite-4.0-h-small"])
def test_others_run_them(model: str) -> None:
    for release in RELEASES.versions:
        assert len(prepared(model, release, pp_size=2).stages) == 2


def test_qwen4_exp_and_gemma_4_run_them_from_a_release_on() -> None:
    for name, first, before in (
        ("Qwen4ExpForConditionalGeneration", "0.5.21", "0.5.20"),
        ("Gemma4ForConditionalGeneration", "0.5.13", "0.5.12"),
    ):
        assert name in rules_for(before)[0].unstaged_classes
        assert name not in rules_for(first)[0].unstaged_classes


def test_a_stage_counts_the_first_layer_of_the_next_beside_a_pool_of_windows() -> None:
    """gpt-oss's 36 layers alternate: 18 a stage, and one more on the first up to 0.5.20, which range(start, end + 1)
    takes in; the last has none to take.
    """
    old, new = (prepared("gpt-oss-120b", release, pp_size=2).stages for release in ("0.5.20", "0.5.21"))
    assert [stage.kv_layers + stage.window_layers for stage in old] == [19, 18]
    assert [stage.kv_layers + stage.window_layers for stage in new] == [18, 18]
    assert [(stage.first, stage.end) for stage in old] == [(0, 18), (18, 36)]
    assert prepared("gpt-oss-120b", "0.5.20").stages == prepared("gpt-oss-120b", "0.5.21").stages


def test_a_stage_without_attention_stops_the_start_up_to_0_5_16() -> None:
    """KV // 0 bytes a token; later releases leave the tokens to the other stages."""
    with pytest.raises(Refusal, match="pipeline stage 0 of 8 has no attention layer") as caught:
        prepared("nemotron-h-8b", "0.5.16", pp_size=8)
    assert (caught.value.stage, caught.value.rule) == ("tokens", "HC009")
    assert caught.value.fix == "write --pp-size 4 or less"
    assert prepared("nemotron-h-8b", "0.5.16", pp_size=4).stages
    ready = prepared("nemotron-h-8b", "0.5.17", pp_size=8)
    assert ready.cells[0].price == 0
    assert planner.size(ready, 20.0).stage_tokens[0] == planner.UNBOUNDED_TOKENS


def test_a_stage_without_attention_pays_for_the_row_that_fp4_is_unpacked_in() -> None:
    """Up to 0.5.20 the fp8 row is added whatever the layers: 8 heads x 128 x 2 B on one rank."""
    cells = prepared("nemotron-h-8b", "0.5.20", pp_size=8, kv_cache_dtype="fp4_mx_block16").cells
    assert cells[0].layers == 0
    assert cells[0].price == 2048
    assert prepared("nemotron-h-8b", "0.5.21", pp_size=8, kv_cache_dtype="fp4_mx_block16").cells[0].price == 0


def test_minicpm_does_not_run_under_data_parallel_attention() -> None:
    with pytest.raises(Refusal, match="MiniCPM does not run under data-parallel attention") as caught:
        prepared("minicpm-sala", "0.5.19", tp_size=2, dp_size=2, enable_dp_attention=True)
    assert (caught.value.rule, caught.value.fix) == ("HC025", "drop --enable-dp-attention")
    with pytest.raises(Refusal, match="data-parallel attention"):  # one worker has it switched off only later
        prepared("minicpm-sala", "0.5.21", enable_dp_attention=True)
    assert prepared("minicpm-sala", "0.5.22", enable_dp_attention=True).stages
