"""What vLLM refuses about a recurrent state; its shapes and bytes are replayed in tests/conformance."""

import pytest

from hybridcalc import load_model
from hybridcalc.engines.vllm import EngineArgs, layer_state
from hybridcalc.engines.vllm.configuration import context_parallel_sizes
from hybridcalc.engines.vllm.planner import prepare
from hybridcalc.engines.vllm.releases import rules_for
from hybridcalc.engines.vllm.runner import _flashinfer_runs_drafts
from hybridcalc.errors import HybridcalcError, InputError, Refusal, ShardingError


def test_a_model_without_a_state_is_refused() -> None:
    """Llama has KV alone."""
    with pytest.raises(InputError, match=r"(?m)^llama-3-8b has no recurrent layer: it keeps no state$"):
        layer_state(load_model("llama-3-8b"), EngineArgs())


def test_ranks_that_do_not_divide_are_refused_with_the_engine_s_own_number() -> None:
    """The engine asserts exact division: H * d for KDA."""
    with pytest.raises(ShardingError) as refusal:
        layer_state(load_model("kimi-linear-48b-a3b"), EngineArgs(tensor_parallel_size=3))
    assert (refusal.value.total, refusal.value.parts) == (4096, 3)


def test_linear_attention_heads_are_floored_not_checked() -> None:
    """vLLM's linear attention takes H // T without asking whether it divides."""
    (state,) = layer_state(load_model("ling-2.6-flash"), EngineArgs(tensor_parallel_size=3))
    assert state.shape == (10, 128, 128)


def test_plamo_2_has_no_rows_for_drafts() -> None:
    """Its class asks for the window alone, however many tokens are drafted."""
    drafting = EngineArgs(
        engine_version="0.26.0",
        speculative_config={"method": "ngram", "num_speculative_tokens": 5, "prompt_lookup_max": 4},
    )
    window, _ = layer_state(load_model("plamo-2-1b"), drafting)
    assert window.shape[0] == 3


@pytest.mark.parametrize(("release", "stage"), [("0.19.0", "create_engine_config"), ("0.20.0", "initialize_model")])
def test_states_were_shared_out_before_there_was_a_model(release: str, stage: str) -> None:
    """Before 0.20 the configuration sized the block, and asserted what the layers assert after it."""
    args = EngineArgs(tensor_parallel_size=6, engine_version=release)
    with pytest.raises(
        Refusal, match=r"^tensor parallel size 6 does not divide 10,240 channels of the convolution"
    ) as caught:
        prepare(load_model("qwen3.5-27b"), args)
    assert caught.value.stage == stage


def test_a_float16_kda_state_is_refused() -> None:
    """vLLM: "KDA recurrent state supports only auto, float32, and bfloat16; got float16" (recorded case)."""
    with pytest.raises(HybridcalcError):
        layer_state(load_model("kimi-linear-48b-a3b"), EngineArgs(mamba_ssm_cache_dtype="float16"))


@pytest.mark.parametrize("version", ["main", "", "0", "0.x"])
def test_what_is_no_version_is_refused(version: str) -> None:
    """As for SGLang: an InputError, not a ValueError or an IndexError."""
    with pytest.raises(InputError):
        layer_state(load_model("kimi-linear-48b-a3b"), EngineArgs(engine_version=version))


@pytest.mark.parametrize(
    ("model", "heads", "tp", "sizes"),
    [
        ("llama-3-8b", 32, 8, [1]),
        ("llama-3-8b", 32, 32, [1, 2, 4]),
        ("llama-3-8b", 48, 32, [1, 2]),
        ("llama-3-8b", 48, 24, [1, 2, 3]),
        ("kimi-k3", None, 6, [1, 2, 3, 6]),
        ("codestral-mamba-7b", None, 8, [1]),
    ],
)
def test_context_is_shared_among_ranks_that_hold_copies_of_a_head(
    model: str, heads: int | None, tp: int, sizes: list[int]
) -> None:
    """8 KV heads on 32 ranks are 4 copies each, of 4 queries or of 6, which 4 does not divide; latent rows fit any."""
    asked = load_model(model)
    assert context_parallel_sizes(asked._replace(num_attention_heads=heads) if heads else asked, tp) == sizes


@pytest.mark.parametrize(
    ("capability", "kv", "release", "runs"),
    [
        ("9.0", "auto", "0.29.0", False),
        ("9.0", "auto", "0.30.0", True),
        ("9.0", "nvfp4", "0.33.0", False),
        ("8.0", "nvfp4", "0.33.0", True),
        ("10.0", "nvfp4", "0.33.0", True),
    ],
)
def test_flashinfer_verifies_drafts_in_full_graphs(capability: str, kv: str, release: str, runs: bool) -> None:
    """Of nvfp4 KV not on Hopper."""
    args = EngineArgs(gpu_capability=capability, kv_cache_dtype=kv)
    assert _flashinfer_runs_drafts(args, rules_for(release)[0]) is runs
