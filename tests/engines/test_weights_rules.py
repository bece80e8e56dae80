"""What each engine shards, copies, pads and leaves whole when it loads weights: one rule a test.

Rules read in SGLang 0.5.23 and vLLM 0.33.0; figures worked out from the shapes of the models.
"""

from typing import Any

import pytest
from command_line import run

from hybridcalc import Architecture, load_model
from hybridcalc.architecture import Config
from hybridcalc.architecture.presets import shipped_config
from hybridcalc.architecture.quantization import integers
from hybridcalc.architecture.quantization_config import read_quantization
from hybridcalc.architecture.weights import parameters
from hybridcalc.engines import ENGINES
from hybridcalc.engines.weights import Line, Weights
from hybridcalc.errors import ShardingError
from hybridcalc.hardware import find_gpu

GATES = ["in_proj_a", "in_proj_b", "b_proj"]
FP8_BLOCK = {"quant_method": "fp8", "weight_block_size": [128, 128], "modules_to_not_convert": GATES}
FP8_ROW = {"quant_method": "fbgemm_fp8"}
NVFP4 = {"quant_method": "modelopt", "quant_algo": "NVFP4"}
MXFP8 = {"quant_method": "mxfp8"}
GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": 128, "sym": True}
INT4 = {
    "quant_method": "compressed-tensors",
    "config_groups": {"g": {"targets": ["Linear"], "weights": {"num_bits": 4, "type": "int", "group_size": 128}}},
}


def _model(name: str, quantization: dict[str, Any] | None = None, **fields: Any) -> Architecture:
    model = load_model(name)
    config = shipped_config(model.name) | fields | ({"quantization_config": quantization} if quantization else {})
    return model._replace(config=Config(config))


def _weights(model: Architecture, engine: str, **given: Any) -> Weights:
    served = ENGINES[engine]
    return served.weights(model, type(served.arguments())(**given))


def _line(found: Weights, end: str) -> Line:
    return next(line for line in found.lines if line.name.endswith(end))


def _added(found: Weights, name: str) -> int:
    return sum(line.bytes for line in found.lines if line.name == name)


def test_the_outermost_table_says_whether_embedding_and_head_are_one() -> None:
    """A class's default may stand in the text table of a multimodal config."""
    assert not parameters(
        _model("qwen3.6-27b", text_config={"tie_word_embeddings": True} | shipped_config("qwen3.6-27b"))
    ).tied
    assert parameters(_model("qwen3.6-27b", tie_word_embeddings=True)).tied


@pytest.mark.parametrize("release", ["0.5.20", "0.5.21", "0.5.22", "0.5.23"])
def test_ranks_divide_the_padded_vocabulary_but_where_the_engine_pads_it_until_they_do(release: str) -> None:
    """50,280 tokens are 50,304 rows, which 5 do not divide: refused by vLLM, and by SGLang up to 0.5.21 off the CPU;
    SGLang pads to 64 rows of each rank from 0.5.22 on (VocabParallelEmbedding.__init__, padding_size *= tp_size).
    """
    model, said = _model("mamba-2.8b"), "--tp 5 does not divide the 50,304 padded rows of the vocabulary"
    for platform in ("cuda", "cpu"):
        if platform == "cuda" and release in ("0.5.20", "0.5.21"):
            with pytest.raises(ShardingError, match=said):
                _weights(model, "sglang", tp_size=5, engine_version=release, platform=platform)
            continue
        found = _weights(model, "sglang", tp_size=5, engine_version=release, platform=platform)
        assert _line(found, "embed_tokens.weight").local[0] == 10_112
    with pytest.raises(ShardingError, match=said):
        _weights(model, "vllm", tensor_parallel_size=5)


@pytest.mark.parametrize(
    ("quantization", "rows"),
    [(GPTQ, 48), ({"quant_method": "awq", "w_bit": 4, "q_group_size": 128}, 48), (INT4, 24), (FP8_BLOCK, 24)],
)
def test_gates_of_a_mixer_are_whole_where_kernels_need_64_rows(quantization: dict[str, Any], rows: int) -> None:
    """Qwen3.5 under AWQ, GPTQ and AutoRound in vLLM; compressed-tensors and fp8 share them out."""
    found = _weights(_model("qwen3.6-27b", quantization), "vllm", tensor_parallel_size=2, gpu_capability="8.0")
    assert _line(found, "in_proj_b").local[0] == rows


@pytest.mark.parametrize(("quantization", "size"), [(None, 2), (FP8_BLOCK, 2), (FP8_ROW, 1)])
def test_absorbed_copies_are_in_16_bits_unless_fp8_has_no_blocks(
    quantization: dict[str, Any] | None, size: int
) -> None:
    """SGLang keeps both halves of each kv_b_proj beside it; blocks of 128 become 16 bits, Ling-3.0's never."""
    model, found = _model("kimi-linear-48b-a3b", quantization), parameters(load_model("kimi-linear-48b-a3b"))
    elements = next(7 * t.parameters for block in found.blocks for t in block.tensors if t.name == "kv_b_proj")
    assert _added(_weights(model, "sglang", tp_size=2), "absorbed kv_b_proj") == elements // 2 * size


@pytest.mark.parametrize(("card", "other"), [("8.6", "9.0"), ("8.0", "8.9"), ("8.8", "12.0")])
def test_a_card_without_fp8_keeps_a_scale_a_row_in_both_engines(card: str, other: str) -> None:
    """4 bytes for 128 x 128 elements become 2 for 128: 1.5 % of what is in fp8."""
    model = _model("qwen3.6-27b", FP8_BLOCK)
    for engine in ("sglang", "vllm"):
        old, new = (_line(_weights(model, engine, gpu_capability=one), "down_proj") for one in (card, other))
        rows, columns = old.local
        assert (old.bytes - new.bytes) // old.copies == 2 * rows * columns // 128 - 4 * rows * columns // 128**2


def test_sglang_keeps_a_packed_copy_of_mxfp8_scales_and_padded_scales_of_nvfp4() -> None:
    """One more of NK/32; NK/16 more where the swizzled copy has other rows or columns than its source."""
    rows, columns = 5120, 17408
    line = _line(_weights(_model("qwen3.6-27b", MXFP8), "sglang"), "mlp.down_proj")
    assert line.bytes == line.copies * (rows * columns + 2 * rows * columns // 32)
    even, odd = (_line(_weights(_model("qwen3.6-27b", NVFP4), "sglang"), end) for end in ("mlp.down_proj", "in_proj_a"))
    assert even.bytes == even.copies * (rows * columns * 9 // 16 + 8)
    assert odd.bytes == odd.copies * (64 * rows // 2 + 128 * rows // 16 + 8 + 48 * rows // 16)


@pytest.mark.parametrize(
    ("model", "whole"), [("glm-5.3-flash", True), ("ling-3.0-flash", True), ("jamba-1.5-mini", False)]
)
def test_dense_mlps_are_whole_where_the_class_does_that(model: str, whole: bool) -> None:
    """--moe-dense-tp-size 1 is of DeepSeek's kin and Ling."""
    found = _weights(_model(model), "sglang", tp_size=2, moe_dense_tp_size=1)
    mlp = next(line for line in found.lines if line.group == "mlp" and line.name.endswith("down_proj"))
    assert (mlp.local == mlp.shape) is whole


@pytest.mark.parametrize(
    ("flags", "group", "whole"),
    [
        ({"mm_enable_dp_encoder": True}, "vision", True),
        ({}, "vision", False),
        ({"moe_a2a_backend": "deepep"}, "shared_expert", True),
        ({"moe_a2a_backend": "none"}, "shared_expert", False),
        ({}, "shared_expert", False),
    ],
)
def test_groups_are_whole_on_each_rank_where_a_flag_says_so(flags: dict[str, Any], group: str, whole: bool) -> None:
    """--mm-enable-dp-encoder keeps the tower of images whole, an all-to-all among experts the shared one."""
    found = _weights(_model("qwen3.5-35b-a3b"), "sglang", tp_size=4, **flags)
    assert all(line.local == line.shape for line in found.lines if line.group == group) is whole


@pytest.mark.parametrize(("flags", "ranks"), [({}, 4), ({"enable_dp_lm_head": True}, 2)])
def test_the_head_is_shared_by_a_worker_where_a_flag_says_so(flags: dict[str, Any], ranks: int) -> None:
    """--enable-dp-lm-head: over the 2 ranks of an attention worker, and over all 4 without."""
    dp = {"tp_size": 4, "dp_size": 2, "enable_dp_attention": True}
    line = _line(_weights(_model("qwen3.5-35b-a3b"), "sglang", **dp, **flags), "lm_head.weight")
    assert line.shape[0] == ranks * line.local[0]


@pytest.mark.parametrize("quantization", [FP8_BLOCK, GPTQ])
def test_other_checkpoints_have_draft_layers_as_the_rest(quantization: dict[str, Any]) -> None:
    drafting = {"speculative_algorithm": "EAGLE", "speculative_num_draft_tokens": 4}
    found = _weights(_model("qwen3.6-27b", quantization), "sglang", **drafting)
    lines = [line for line in found.lines if line.name.endswith("down_proj") and line.group in ("mlp", "mtp")]
    assert {line.group for line in lines} == {"mlp", "mtp"}
    assert len({line.dtype for line in lines}) == 1 and lines[0].dtype != "bfloat16"


def test_draft_layers_of_modelopt_stay_in_16_bits_under_sglang() -> None:
    """vLLM leaves their projection of two hidden states alone in 16 bits."""
    model, drafting = (
        _model("qwen3.6-27b", NVFP4),
        {"speculative_algorithm": "EAGLE", "speculative_num_draft_tokens": 4},
    )
    drafts = [line for line in _weights(model, "sglang", **drafting).lines if line.group == "mtp"]
    assert {line.dtype for line in drafts} == {"bfloat16"}
    found = _weights(model, "vllm", speculative_config={"method": "mtp", "num_speculative_tokens": 3})
    by_name = {line.name: line.dtype for line in found.lines if line.group == "mtp"}
    assert by_name["mtp.fc"] == "bfloat16"
    assert by_name["mtp.layers.{}.down_proj"] == "nvfp4"


@pytest.mark.parametrize("method", ["mtp", "qwen3_next_mtp"])
def test_vllm_loads_the_layers_of_mtp_with_a_number_of_drafts_or_without(method: str) -> None:
    """It drafts by the number of the layers where none is given: --speculative-config '{"method":"mtp"}'."""
    plain, unset, one = (
        _weights(_model("qwen3.6-35b-a3b"), "vllm", speculative_config=config).likely
        for config in (None, {"method": method}, {"method": method, "num_speculative_tokens": 1})
    )
    assert plain < unset == one


def test_a_longer_context_lengthens_the_rotary_table_of_sglang() -> None:
    """It grows when positions beyond the model's own are asked for."""
    model = _model("qwen3.6-27b")
    own, longer = (_added(_weights(model, "sglang", context_length=n), "rotary table") for n in (4096, 524_288))
    assert (own, longer) == (262_144 * 64 * 4, 524_288 * 64 * 4)


def test_an_embedding_is_whole_where_the_environment_says_so() -> None:
    """Of DeepSeek's kin alone."""
    told = {"SGLANG_ENABLE_EMBED_REPLICATION": "1"}
    for name, ranks in (("kimi-k3", 1), ("qwen3.6-27b", 4)):
        line = _line(_weights(_model(name), "sglang", tp_size=4, env=told), "embed_tokens.weight")
        assert line.local[0] * ranks == line.shape[0]


def test_rows_of_fp8_are_padded_on_rocm() -> None:
    """256 bytes a row of a multiple of 512, in vLLM, unless VLLM_ROCM_FP8_PADDING=0: 0.92 GiB of a 27B model."""
    model = load_model("Qwen/Qwen3.6-27B-FP8")
    padded, plain = (_weights(model, "vllm", rocm=rocm).likely for rocm in (True, False))
    assert (padded - plain) / 2**30 == pytest.approx(0.92, abs=0.05)
    off = _weights(model, "vllm", rocm=True, env={"VLLM_ROCM_FP8_PADDING": "0"})
    assert off.likely == plain


def test_copies_of_experts_are_shared_out_like_them() -> None:
    """256 experts and 32 copies on 8 ranks: 36 each; 30 copies do not divide."""
    model = _model("qwen3.6-35b-a3b")
    line = _line(_weights(model, "sglang", tp_size=8, ep_size=8, ep_num_redundant_experts=32), "experts.down_proj")
    assert line.local[0] == 36
    with pytest.raises(ShardingError, match="--ep 8 does not divide 256 experts and 30 more"):
        _weights(model, "sglang", tp_size=8, ep_size=8, ep_num_redundant_experts=30)


def test_vllm_shares_copies_of_experts_out_where_it_balances_their_load() -> None:
    """256 experts and 32 copies on 8 ranks: 36 each; with EPLB they must divide, without it a rank holds one more."""
    model = _model("qwen3.6-35b-a3b")
    given = {"tensor_parallel_size": 8, "enable_expert_parallel": True, "enable_eplb": True}
    copies = {"eplb_config": {"num_redundant_experts": 32}}
    weights = _weights(model, "vllm", **given, **copies)
    assert _line(weights, "experts.down_proj").local[0] == 36
    assert _line(weights, "EPLB's buffer").bytes == 36 * 3 * 512 * 2048 * 2, "one layer"
    with pytest.raises(ShardingError, match="--ep 8 does not divide 256 experts and 30 more"):
        _weights(model, "vllm", **given, eplb_config={"num_redundant_experts": 30})


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("-tp 8 --enable-eplb", "EPLB needs expert parallelism"),
        ("--enable-expert-parallel --enable-eplb", "EPLB needs several tp or dp ranks"),
        ("--eplb-config.num_redundant_experts 8", "8 redundant experts need EPLB"),
        ("--eplb-config.num_redundant_experts x", "is no number of experts"),
    ],
)
def test_vllm_refuses_what_does_not_balance(given: str, said: str) -> None:
    ran = run("plan", "--gpu", "h200", "-L", "32k", "--", "vllm", "serve", "Qwen/Qwen3.6-35B-A3B", *given.split())
    assert ran.code != 0
    assert said in ran.out + ran.err


def test_shared_experts_are_whole_where_ranks_have_tokens_of_their_own() -> None:
    """vLLM with expert parallelism, several tp ranks and several replicas."""
    model = _model("qwen3.6-35b-a3b")
    for replicas, rows in ((1, 256), (2, 512)):
        given = {"tensor_parallel_size": 2, "data_parallel_size": replicas, "enable_expert_parallel": True}
        assert _line(_weights(model, "vllm", **given), "shared_expert.gate_proj").local[0] == rows


def test_gptq_in_order_of_activations_keeps_two_numbers_a_column() -> None:
    """Which group a column is of, and where it stands among columns in that order."""
    ordered = read_quantization({"quantization_config": GPTQ | {"desc_act": True}})
    assert ordered is not None and ordered.scheme is not None
    assert ordered.scheme.stored([4096], 2048) - integers(4, 128).stored([4096], 2048) == 8 * 2048


def test_an_amd_card_is_hip_to_sglang() -> None:
    """Unless --platform says something else."""
    served = ENGINES["sglang"]
    card = find_gpu("mi300x")
    assert served.with_options(served.arguments(), {"gpu": card}).platform == "hip"
    assert served.with_options(served.arguments(), {"gpu": card, "platform": "cuda"}).platform == "cuda"
