"""What vLLM's start-up checks before it builds a model, and how many batches it keeps in flight.

Results of vLLM's own classes for the refusals (0.32.0 and 0.33.0), and of config/vllm.py of each release.
"""

from typing import Any

import pytest

from hybridcalc import Architecture, load_model
from hybridcalc.engines.vllm import EngineArgs, Refusal
from hybridcalc.engines.vllm.planner import Prepared, prepare
from hybridcalc.engines.vllm.releases import RELEASES
from hybridcalc.errors import NotModelled

NGRAM = {"method": "ngram", "num_speculative_tokens": 3}
EAGLE = {"method": "eagle", "model": "a/b", "num_speculative_tokens": 2}
MTP = {"method": "mtp", "num_speculative_tokens": 2}
KIMI, NANO = "kimi-linear-48b-a3b", "nemotron-nano-9b-v2"


def started(model: str | Architecture, **given: Any) -> Prepared:
    loaded = load_model(model) if isinstance(model, str) else model
    return prepare(loaded, EngineArgs(**{"max_model_len": 8192} | given))


@pytest.mark.parametrize(
    ("model", "tp", "dcp", "starts"),
    [
        ("qwen3.5-27b", 8, 2, True),
        ("qwen3.5-27b", 8, 4, False),
        ("qwen3.5-27b", 4, 2, False),
        ("granite-4-h-small", 16, 2, True),
        (KIMI, 8, 8, True),
        (KIMI, 8, 3, False),
        ("mamba-2.8b", 8, 2, False),
    ],
)
def test_context_parallelism_shares_out_copies_of_heads(model: str, tp: int, dcp: int, starts: bool) -> None:
    """4 KV heads on 8 ranks are there twice: 2 ranks share one, 4 are refused. Latent rows take what divides."""
    asked = {"tensor_parallel_size": tp, "decode_context_parallel_size": dcp}
    if starts:
        assert started(model, **asked).held.dcp == dcp
        return
    with pytest.raises(Refusal, match="decode context parallel size") as caught:
        started(model, **asked)
    assert caught.value.stage == "create_engine_config"


def test_mtp_of_nemotron_wants_layers_in_the_config() -> None:
    """A config without num_nextn_predict_layers: unsupported speculative method."""
    with pytest.raises(Refusal, match="has no MTP layers"):
        started(NANO, speculative_config=MTP)
    assert started("qwen3-next-80b-a3b", speculative_config=MTP).settled["num_speculative_tokens"] == 2


@pytest.mark.parametrize(("model", "backend"), [(KIMI, "FLASH_ATTN"), (KIMI, "FLASHINFER"), (NANO, "TRITON_MLA")])
def test_backends_read_their_own_rows(model: str, backend: str) -> None:
    """Backends of MLA take no plain heads, and the others no latent rows."""
    with pytest.raises(Refusal, match=f"^{backend} reads "):
        started(model, attention_backend=backend)


@pytest.mark.parametrize(
    ("given", "names", "layout"),
    [
        ({"attention_backend": "FLASHINFER"}, "FLASHINFER", "LBNHC"),
        ({"gpu_capability": "10.0"}, "FLASHINFER", "LBHNC"),
        ({"gpu_capability": "8.9", "kv_cache_dtype": "fp8"}, "FLASHINFER", "LBNHC"),
        ({"gpu_capability": "8.9"}, "FLASH_ATTN", "LBNHC"),
        ({"kv_cache_dtype": "fp8"}, "FLASH_ATTN", "LBNHC"),
    ],
)
def test_backend_and_layout_by_gpu(given: dict[str, Any], names: str, layout: str) -> None:
    """FlashAttention reads fp8 KV on Hopper alone; FlashInfer wants heads first on compute capability 10.x alone."""
    ready = started("falcon-h1-0.5b", **given)
    assert (ready.settled["attention_backends"][0], ready.layout) == (names, layout)


def test_a_step_holds_what_is_scheduled() -> None:
    """max_num_batched_tokens below max_num_seqs, or below the length without chunked prefill, does not start."""
    with pytest.raises(Refusal, match="are fewer than max_num_seqs 256"):
        started(NANO, max_num_batched_tokens=128, max_num_seqs=256)
    with pytest.raises(Refusal, match="holds no request of 8,192"):
        started(NANO, max_num_batched_tokens=4096, enable_chunked_prefill=False, enable_prefix_caching=False)
    assert started(NANO, max_num_batched_tokens=128).args.seqs == 128


def test_throughput_doubles_the_defaults_of_a_batch() -> None:
    """--performance-mode throughput: twice the sequences and tokens that are not given."""
    args = EngineArgs(gpu_memory_gib=80, performance_mode="throughput")
    assert (args.seqs, args.batched_tokens) == (2048, 16384)
    assert EngineArgs(gpu_memory_gib=80, performance_mode="throughput", max_num_seqs=64).seqs == 64
    assert EngineArgs(max_num_seqs=2, max_model_len=512).batched_tokens == 1024


@pytest.mark.parametrize(
    ("version", "given", "batches"),
    [
        ("0.25.1", {}, 1),
        ("0.26.0", {}, 2),
        ("0.28.0", {"pipeline_parallel_size": 2}, 2),
        ("0.28.0", {"speculative_config": NGRAM}, 1),
        ("0.33.0", {"speculative_config": NGRAM}, 2),
        ("0.33.0", {"pipeline_parallel_size": 2}, 3),
        ("0.33.0", {"pipeline_parallel_size": 2, "env": {"VLLM_USE_V2_MODEL_RUNNER": "0"}}, 2),
    ],
)
def test_windows_hold_the_batches_in_flight(version: str, given: dict[str, Any], batches: int) -> None:
    """One batch before 0.26; then two with asynchronous scheduling, and one more than the stages under runner V2."""
    ready = started(NANO, engine_version=version, max_num_batched_tokens=2048, **given)
    assert ready.held.in_flight_tokens == batches * 2048


REPLAY = {"use_replayssm": True, "enable_prefix_caching": False}
CONNECTOR = {"kv_transfer_config": {"kv_connector": "NixlConnector", "kv_role": "kv_both"}}


@pytest.mark.parametrize(
    ("model", "given", "why"),
    [
        (KIMI, {"speculative_config": NGRAM, "mamba_backend": "flashinfer"}, "on Triton kernels alone"),
        (KIMI, {"mamba_backend": "triton"}, "does not run on model runner V2"),
        (NANO, {"mamba_backend": "flashinfer", **CONNECTOR}, "does not run with KV connectors"),
    ],
)
def test_what_replayssm_does_not_run_with(model: str, given: dict[str, Any], why: str) -> None:
    """Its own kernels, runner and pages, release by release."""
    with pytest.raises(Refusal, match=why):
        started(model, **REPLAY, **given)


def test_nemotron_with_pictures_replays_nothing() -> None:
    vision = load_model(NANO)._replace(architecture="NemotronH_Nano_VL_V2")
    with pytest.raises(Refusal, match="does not run ReplaySSM"):
        started(vision, **REPLAY, mamba_backend="flashinfer")


def test_recovery_of_drafts_runs_beside_connectors_once_its_records_lie_outside() -> None:
    """From 0.33 the records of drafts are no part of a page, so connectors transfer it as any other."""
    given = {**REPLAY, **CONNECTOR, "speculative_config": NGRAM}
    assert started(KIMI, **given).held.drafts == 0
    with pytest.raises(Refusal, match="does not run with KV connectors"):
        started(KIMI, engine_version="0.32.0", **given)


@pytest.mark.parametrize(
    ("given", "first"),
    [
        ({"kv_cache_dtype": "int8_per_token_head"}, "0.20.0"),
        ({"kv_cache_dtype": "int4_per_token_head"}, "0.25.0"),
        ({"kv_cache_dtype": "nvfp4_4over6", "gpu_capability": "10.0"}, "0.28.0"),
        ({"mamba_backend": "flashinfer"}, "0.20.0"),
        ({"prefix_match_unit": 16}, "0.26.0"),
        ({"prefix_cache_retention_interval": None}, "0.29.0"),
    ],
)
def test_arguments_that_a_release_does_not_have(given: dict[str, Any], first: str) -> None:
    """The command line refuses them, so no plan is made."""
    before = RELEASES.versions[RELEASES.versions.index(first) - 1] if first in RELEASES.versions else "0.24.0"
    with pytest.raises(Refusal, match=f"(?m)the first version that has it is {first}$") as caught:
        started(NANO, engine_version=before, **given)
    assert caught.value.release == first
    assert started("falcon-h1-0.5b", engine_version=first, **given)


@pytest.mark.parametrize(
    ("model", "before", "first"),
    [("Qwen3_5ForCausalLM", "0.27.0", "0.28.0"), ("BailingMoeV2_5ForCausalLM", "0.25.1", "0.26.0")],
)
def test_classes_whose_mtp_came_later(model: str, before: str, first: str) -> None:
    """hf_config_override of config/speculative.py knows their config from then on."""
    base = load_model("qwen3.5-27b" if model.startswith("Qwen") else "ling-2.6-flash")._replace(architecture=model)
    with pytest.raises(Refusal, match=f"(?m)the first is {first}$"):
        started(base, engine_version=before, speculative_config=MTP)
    assert started(base, engine_version=first, speculative_config=MTP).held.drafts == 2


def test_latent_rows_are_not_kept_in_fp8_e5m2() -> None:
    """No backend of MLA lists it."""
    with pytest.raises(Refusal, match="no backend of MLA reads it"):
        started(KIMI, kv_cache_dtype="fp8_e5m2")


@pytest.mark.parametrize(
    ("version", "given", "lacks"),
    [
        ("0.22.1", {}, "states"),
        ("0.23.0", {"enable_prefix_caching": True, "mamba_cache_mode": "align"}, "states in mode align"),
        ("0.23.0", {}, ""),
        ("0.24.0", {"enable_prefix_caching": True, "mamba_cache_mode": "align"}, "states in mode align"),
        ("0.24.0", {}, ""),
        ("0.25.1", {"enable_prefix_caching": True}, ""),
        ("0.25.1", {"speculative_config": NGRAM}, "ngram"),
        ("0.32.0", {"speculative_config": {**EAGLE, "parallel_drafting": True}}, "parallel drafting"),
        ("0.32.0", {"speculative_config": {**EAGLE, "method": "dflash", "parallel_drafting": True}}, ""),
        ("0.32.0", {"speculative_config": {**EAGLE, "method": "dspark", "parallel_drafting": True}}, ""),
    ],
)
def test_runner_v2_is_refused_for_what_it_lacks(version: str, given: dict[str, Any], lacks: str) -> None:
    """VLLM_USE_V2_MODEL_RUNNER=1 of a hybrid does not start before 0.23, nor there in mode align."""
    given = {"engine_version": version, "env": {"VLLM_USE_V2_MODEL_RUNNER": "1"}, **given}
    if not lacks:
        assert started(NANO, **given)
        return
    with pytest.raises(Refusal, match=f"(?m)^model runner V2 does not run {lacks}$"):
        started(NANO, **given)


@pytest.mark.parametrize("version", ["0.20.0", "0.22.1", "0.24.0"])
@pytest.mark.parametrize("given", [{}, {"enable_prefix_caching": True, "mamba_cache_mode": "align"}])
def test_runner_v2_takes_classes_that_declare_no_states(version: str, given: dict[str, Any]) -> None:
    """Qwen3.5's classes do not say that they have states, for which these releases refuse the runner to others."""
    runner = {"engine_version": version, "env": {"VLLM_USE_V2_MODEL_RUNNER": "1"}}
    assert started("qwen3.5-27b", **runner, **given)
    if given or version < "0.23":
        with pytest.raises(Refusal, match="model runner V2 does not run states"):
            started("qwen3-next-80b-a3b", **runner, **given)


def test_turboquant_lies_beside_states_from_0_21_on() -> None:
    """Before, the layers at both ends were left out, which the engine refused for hybrids.

    Source: vLLM engine/arg_utils.py (0.20.2, 0.21.0).
    """
    given = {"kv_cache_dtype": "turboquant_k8v4", "max_model_len": 8192}
    with pytest.raises(Refusal, match=r"(?m)turboquant_k8v4 does not lie beside states in this release$") as caught:
        started(NANO, engine_version="0.20.2", **given)
    assert (caught.value.rule, "0.21.0" in str(caught.value.fix)) == ("HC049", True)
    assert started(NANO, engine_version="0.21.0", **given)


def test_turboquant_of_a_model_without_states_is_not_modelled() -> None:
    """The two layers at either end keep the model's dtype.

    Source: vLLM model_executor/layers/quantization/turboquant/config.py get_boundary_skip_layers (0.33.0).
    """
    with pytest.raises(NotModelled, match=r"(?m)whose two layers at either end keep their own dtype, is not modelled$"):
        started("llama-3-8b", kv_cache_dtype="turboquant_k8v4")


def test_lightning_keeps_no_float32_before_0_20_1() -> None:
    """Ring and MiniMax: the class refused --mamba-cache-dtype float32."""
    with pytest.raises(Refusal, match="lightning attention is not kept in float32"):
        started("ling-2.6-flash", engine_version="0.20.0", mamba_cache_dtype="float32")
    assert started("ling-2.6-flash", engine_version="0.20.1", mamba_cache_dtype="float32").state[0].dtype == "float32"


@pytest.mark.parametrize("version", ["0.18.0", "0.22.1", "0.33.0"])
def test_ranks_divide_the_rows_of_the_vocabulary(version: str) -> None:
    """131,071 tokens are 131,072 rows, which 2 ranks divide and 3 do not; 131,073 are 131,136, which 3 do."""
    config = {
        "architectures": ["Lfm2ForCausalLM"],
        "model_type": "lfm2",
        "num_hidden_layers": 2,
        "hidden_size": 1536,
        "num_attention_heads": 24,
        "num_key_value_heads": 6,
        "conv_L_cache": 3,
        "intermediate_size": 4096,
        "layer_types": ["conv", "full_attention"],
        "max_position_embeddings": 8192,
    }

    def start(tokens: int, ranks: int) -> None:
        model = Architecture.from_hf_config(config | {"vocab_size": tokens}, name="vocabulary")
        prepare(model, EngineArgs(max_model_len=4096, tensor_parallel_size=ranks, engine_version=version))

    start(131071, 2)
    start(131073, 3)
    with pytest.raises(Refusal, match="3 does not divide the rows of the vocabulary") as caught:
        start(131072, 3)
    assert (caught.value.stage, caught.value.rule) == ("initialize_model", "HC050")
    assert caught.value.fix == "write -tp 1, 2, 4 or 8"


@pytest.mark.parametrize(
    ("version", "majors"),
    [
        ("0.20.0", {"10.0"}),
        ("0.27.0", {"10.0"}),
        ("0.28.0", {"10.0", "12.0"}),
        ("0.30.0", {"9.0", "10.0", "12.0"}),
        ("0.33.0", {"8.9", "9.0", "10.0", "12.0"}),
    ],
)
def test_flashinfer_verifies_drafts_in_full_graphs_on_some_gpus(version: str, majors: set[str]) -> None:
    """Where it does not, graphs are in pieces, and max_num_seqs may exceed the blocks. Without drafts it may not."""
    for gpu in ("8.9", "9.0", "10.0", "12.0"):
        given: dict[str, Any] = {"engine_version": version, "gpu_capability": gpu, "attention_backend": "FLASHINFER"}
        assert started(NANO, **given).seqs_checked
        assert started(NANO, speculative_config=NGRAM, **given).seqs_checked is (gpu in majors)


@pytest.mark.parametrize(
    ("version", "gpu", "checked"),
    [("0.29.0", "10.0", True), ("0.29.0", "12.0", False), ("0.30.0", "10.0", False), ("0.30.0", "9.0", False)],
)
def test_flashinfer_shares_out_drafts_in_pieces_of_graphs(version: str, gpu: str, checked: bool) -> None:
    """Under context parallelism of 4 KV heads on 8 ranks."""
    given = {"tensor_parallel_size": 8, "decode_context_parallel_size": 2, "attention_backend": "FLASHINFER"}
    ready = started("qwen3.5-27b", speculative_config=NGRAM, engine_version=version, gpu_capability=gpu, **given)
    assert ready.seqs_checked is checked


@pytest.mark.parametrize(
    ("version", "plain", "drafting"),
    [("0.20.2", False, False), ("0.22.1", True, True), ("0.26.0", True, False), ("0.31.0", True, True)],
)
def test_triton_kernels_of_latent_rows_and_full_graphs(version: str, plain: bool, drafting: bool) -> None:
    given = {"engine_version": version, "gpu_capability": "8.0"}
    assert started(KIMI, **given).seqs_checked is plain
    assert started(KIMI, speculative_config=NGRAM, **given).seqs_checked is drafting


def test_minimax_runs_no_pipeline_stages() -> None:
    with pytest.raises(Refusal, match="does not run pipeline stages") as caught:
        started("minimax-text-01", engine_version="0.19.0", pipeline_parallel_size=2, tensor_parallel_size=8)
    assert caught.value.stage == "create_engine_config"


def test_the_oldest_release_checks_the_blocks_of_the_first_group_alone() -> None:
    """Nemotron-H-8B: 6 groups of states, one block each, come before its attention of 5 blocks."""
    from hybridcalc.engines.vllm.planner import size

    old, later = (started("nemotron-h-8b", engine_version=version, max_num_seqs=1) for version in ("0.18.0", "0.19.0"))
    room = 2 * old.bytes_per_block
    assert size(old, room).blocks == 2 < old.blocks_at(8192)
    with pytest.raises(Refusal, match="2 are free"):
        size(later, room)


@pytest.mark.parametrize(
    ("version", "asked", "checked"),
    [
        ("0.29.0", {"mode": 0}, False),
        ("0.29.0", {"mode": 3}, True),
        ("0.29.0", {"mode": 0, "cudagraph_mode": "FULL_DECODE_ONLY"}, True),
        ("0.30.0", {"mode": 0}, True),
        ("0.30.0", {"mode": 0, "cudagraph_mode": "PIECEWISE"}, False),
    ],
)
def test_graphs_of_a_model_that_is_not_compiled(version: str, asked: dict[str, Any], checked: bool) -> None:
    """None up to 0.29, those of decoding after it, where graphs in pieces are not asked for alone."""
    assert started(NANO, engine_version=version, compilation_config=asked).seqs_checked is checked


def test_overrides_beside_the_text_config_change_nothing() -> None:
    """Qwen3.5 reads its text_config."""
    short = {"max_position_embeddings": 4096}
    assert started("qwen3.5-27b", hf_overrides=short).length == 8192
    with pytest.raises(Refusal, match="beyond the model's own 4,096"):
        started("qwen3.5-27b", hf_overrides={"text_config": short})
