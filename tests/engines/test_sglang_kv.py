"""Bytes of KV SGLang prices for one token on one rank, draft included, and their growth over a sequence."""

from collections.abc import Callable
from typing import Any, cast

import pytest

from hybridcalc import load_model
from hybridcalc.architecture import CompressedIndex, Config, GroupedQueryKV, LatentKV
from hybridcalc.engines import sglang
from hybridcalc.engines.sglang import ServerArgs
from hybridcalc.engines.sglang.crossover import kv_curve
from hybridcalc.engines.sglang.kv import KV_CACHE_DTYPES, KvCell, compressed_price, draft_layers, kv_cell, kv_dtype
from hybridcalc.engines.sglang.releases import RuleSet, rules_for
from hybridcalc.engines.sglang.sizes import kv_not_known
from hybridcalc.engines.sglang.strategy import resolve_strategy, with_defaults
from hybridcalc.errors import InputError, Refusal
from hybridcalc.speed import KV, decode_step

NEWEST = rules_for("0.5.23")[0]


def cell(name: str, *, rules: RuleSet = NEWEST, **flags: Any) -> KvCell:
    """The KV cell of a preset under flags."""
    return kv_cell(load_model(name), ServerArgs(**flags), rules)


@pytest.mark.parametrize(
    ("name", "flags", "cell_bytes"),
    [
        ("llama-3-8b", {}, 131_072),
        ("qwen3.5-27b", {}, 65_536),
        ("qwen3.5-35b-a3b", {"tp_size": 2}, 10_240),
        ("qwen3.5-35b-a3b", {"tp_size": 4}, 10_240),
        ("qwen3.5-35b-a3b", {"tp_size": 4, "dcp_size": 4}, 20_480),
        ("qwen3.5-35b-a3b", {"kv_cache_dtype": "fp8_e4m3"}, 10_240),
        ("qwen3.5-35b-a3b", {"kv_cache_dtype": "fp4_mx_block16"}, 10 * (2 * 128 * 2 + 2 * 256 // 16 * 2)),
        ("qwen3.5-35b-a3b", {"kv_cache_dtype": "mxfp8"}, 10 * (1024 + 32)),
        ("kimi-k3", {}, 27_648),
        ("kimi-k3", {"tp_size": 8}, 27_648),
        ("kimi-k3", {"tp_size": 8, "dcp_size": 8}, 27_648),
        ("kimi-k3", {"kv_cache_dtype": "fp8_e4m3"}, 13_824),
        ("kimi-k3", {"kv_cache_dtype": "fp8_e5m2"}, 13_824),
        ("kimi-k3", {"kv_cache_dtype": "fp4_mx_block16"}, 7776),
        ("glm-5.3-flash", {"kv_cache_dtype": "fp4_mx_block16"}, 11 * (256 + 32 + 33)),
        ("qwen3.5-35b-a3b", {"kv_cache_dtype": "fp4_mx_block16", "platform": "npu"}, 10_240),
        ("kimi-k3", {"kv_cache_dtype": "fp4_mx_block16", "platform": "xpu"}, 13_824),
        ("falcon-h1-34b", {}, 72 * 4 * 256 * 2),
        ("jet-nemotron-2b", {}, 4 * 2 * 256 * 2),
        ("codestral-mamba-7b", {}, 0),
        ("inkling", {}, 405_504),
    ],
    ids=[
        "gqa",
        "gqa of a hybrid",
        "heads shared out",
        "heads replicated",
        "ranks share tokens, not heads",
        "gqa fp8",
        "gqa fp4",
        "gqa mxfp8",
        "mla",
        "mla on every rank",
        "mla under dcp",
        "mla e4m3",
        "mla e5m2",
        "mla fp4",
        "sparse mla fp4",
        "gqa fp4 off CUDA",
        "mla fp4 off CUDA",
        "every layer",
        "full-length windows",
        "no attention",
        "windows at 0.8",
    ],
)
def test_the_cell_of_a_token(name: str, flags: dict[str, Any], cell_bytes: int) -> None:
    """SGLang pool_configurator.py (0.5.23), worked by hand; Kimi-K3's fp8 cell is the published log's 13,824 B."""
    assert cell(name, **flags).bytes == cell_bytes


@pytest.mark.parametrize(
    ("flags", "layer_bytes"),
    [
        ({}, 512 * 2 + 33),
        ({"kv_cache_dtype": "fp8_e4m3"}, 512 + 16 + 33),
        ({"kv_cache_dtype": "fp8_e4m3", "dsa_decode_backend": "trtllm"}, 512 + 33),
        ({"kv_cache_dtype": "fp8_e5m2"}, 512 + 33),
    ],
    ids=["bf16", "fp8 packed with scales", "fp8 plain", "e5m2"],
)
def test_a_sparse_attention_layer_keeps_index_keys(flags: dict[str, Any], layer_bytes: int) -> None:
    """GLM-5.3-Flash pools 4 tokens an index key: ceil((128 + 4) / 4) = 33 B beside a row of 512."""
    assert cell("glm-5.3-flash", **flags).bytes == 11 * layer_bytes


EAGLE: dict[str, Any] = {"speculative_algorithm": "EAGLE", "speculative_num_draft_tokens": 4}
DSPARK: dict[str, Any] = {"speculative_algorithm": "DSPARK", "speculative_num_draft_tokens": 4}


@pytest.mark.parametrize(
    ("flags", "version", "draft_bytes"),
    [
        (EAGLE | {"draft_layers": 1}, "0.5.23", 1152),
        (EAGLE | {"draft_layers": 1}, "0.5.16", 1152),
        (EAGLE, "0.5.23", 0),
        ({"draft_layers": 1}, "0.5.23", 0),
        (EAGLE | {"speculative_algorithm": "NGRAM", "draft_layers": 1}, "0.5.23", 0),
        (DSPARK | {"draft_kv_bytes_per_token": 4096, "tp_size": 8, "dcp_size": 2}, "0.5.23", 8192),
        (DSPARK | {"draft_layers": 2, "tp_size": 8, "dcp_size": 2}, "0.5.23", 4 * 1152),
        (DSPARK | {"draft_kv_bytes_per_token": 4096, "draft_layers": 2}, "0.5.16", 2 * 1152),
    ],
    ids=[
        "eagle of one layer",
        "eagle in 0.5.16",
        "the checkpoint has none",
        "no algorithm",
        "ngram",
        "dspark's own cell",
        "dspark scaled by dcp",
        "dspark's own cell unknown to 0.5.16",
    ],
)
def test_a_draft_model_adds_its_layers(flags: dict[str, Any], version: str, draft_bytes: int) -> None:
    """Kimi-K3, 1,152 B a layer: in proportion to the layers, or the draft's own cell times dcp."""
    assert cell("kimi-k3", rules=rules_for(version)[0], **flags).draft_bytes == draft_bytes


def test_draft_layers_are_those_of_the_checkpoint_unless_given() -> None:
    """Qwen3.5 carries one prediction layer; a separate draft model's count is given."""
    model = load_model("qwen3.5-27b")
    assert draft_layers(model, ServerArgs(**EAGLE)) == 1
    assert draft_layers(model, ServerArgs(**EAGLE, draft_layers=3)) == 3
    assert draft_layers(model, ServerArgs(**DSPARK)) == 0
    assert draft_layers(model, ServerArgs()) == 0


def test_sliding_windows_stop_growing() -> None:
    """Inkling: 11 full layers grow; 55 window layers of 16 KV heads stop at 512 tokens."""
    curve = kv_curve(load_model("inkling"), ServerArgs(), NEWEST)
    assert curve == (45_056, 450_560, 512)
    assert curve.at(512) + 45_056 == curve.at(513)


def test_jet_s_windows_grow_with_every_token() -> None:
    """SGLang gives them KV of full length."""
    assert kv_curve(load_model("jet-nemotron-2b"), ServerArgs(), NEWEST) == (4096, 0, 0)


@pytest.mark.parametrize(
    ("flag", "dtype"), [("auto", "bfloat16"), ("bf16", "bfloat16"), ("fp8", "fp8_e4m3"), ("fp4_e2m1", "fp4_mx_block16")]
)
def test_the_dtype_of_the_flag_or_of_the_model(flag: str, dtype: str) -> None:
    """auto takes the model's; short spellings are the engine's."""
    assert kv_dtype(load_model("kimi-k3"), ServerArgs(kv_cache_dtype=flag)) == dtype


def test_an_unknown_dtype_is_refused_with_the_known_ones() -> None:
    """The words of the refusal."""
    with pytest.raises(InputError) as refusal:
        cell("kimi-k3", kv_cache_dtype="int8")
    assert refusal.value.message == "--kv-cache-dtype int8 is not known"
    assert refusal.value.fix == f"write one of {', '.join(KV_CACHE_DTYPES)}"


def test_context_parallelism_that_does_not_divide_is_refused() -> None:
    """The words of the refusal; it shares the ranks of an attention worker."""
    with pytest.raises(InputError) as refusal:
        cell("kimi-k3", tp_size=8, dcp_size=3)
    assert refusal.value.message == "--dcp-size 3 does not divide the 8 ranks of an attention worker"
    assert refusal.value.fix == "context parallelism shares those ranks; give a divisor of --tp-size"


@pytest.mark.parametrize(
    ("attention", "row"),
    [(GroupedQueryKV(1, 1, 1), "1 of 1 KV heads x 2 fp4_mx_block16"), (LatentKV(1, 0), "1 fp4_mx_block16, whole on")],
    ids=["gqa", "mla"],
)
@pytest.mark.parametrize(
    "size",
    [lambda model, args: kv_cell(model, args, NEWEST), lambda model, args: kv_curve(model, args, NEWEST)],
    ids=["cell", "curve"],
)
def test_a_row_that_rounds_to_nothing_is_refused(
    attention: GroupedQueryKV | LatentKV, row: str, size: Callable[..., Any]
) -> None:
    """The engine divides its memory by it."""
    model = load_model("llama-3-8b")._replace(attention=attention)
    with pytest.raises(InputError) as refusal:
        size(model, ServerArgs(kv_cache_dtype="fp4_mx_block16"))
    assert refusal.value.message.startswith(f"a token's KV rounds to 0 bytes: {row}")
    assert size(model, ServerArgs())


@pytest.mark.parametrize(
    ("index", "dtype", "size"),
    [
        (CompressedIndex(1, 128, 4, 2048), "auto", 64),
        (CompressedIndex(1, 128, 4, 2048), "fp8_e4m3", 32),
        (CompressedIndex(2, 128, 4, 2048), "auto", 128),
        (CompressedIndex(1, 100, 3, 1536), "auto", 66),
        (CompressedIndex(1, 100, 3, 1536), "fp8_e4m3", 33),
    ],
)
def test_compressed_index_keys_are_priced_in_whole_bytes_down(index: CompressedIndex, dtype: str, size: int) -> None:
    """Heads x width x 2 B, or 1 B in fp8, over the tokens that share a key."""
    args = ServerArgs(qsa_indexer_dtype=dtype)
    assert compressed_price(index, args) == size
    plain = load_model("qwen3.5-35b-a3b")
    heads = cast(GroupedQueryKV, plain.attention)
    keyed = plain._replace(attention=heads._replace(compressed=index))
    assert kv_cell(keyed, args, NEWEST).bytes == kv_cell(plain, args, NEWEST).bytes + 10 * size


SIDES = (None, "trtllm", "tilelang", "triton", "aiter", "fa3", "flashmla_sparse")


@pytest.mark.parametrize("version", ["0.5.21", "0.5.22", "0.5.23"])
@pytest.mark.parametrize("platform", ["cuda", "hip", "musa"])
@pytest.mark.parametrize("mode", ["null", "prefill", "decode"])
def test_sparse_attention_reads_plain_fp8_with_some_backends(version: str, platform: str, mode: str) -> None:
    """TRT-LLM's on a side that runs; on ROCm tilelang, triton or aiter on either; from 0.5.22 tilelang on both."""
    rules, glm = rules_for(version)[0], load_model("glm-5.3-flash")
    index = 33 if version != "0.5.21" else 132
    for prefill in SIDES:
        for decode in SIDES:
            runs = {"null": (prefill, decode), "prefill": (prefill,), "decode": (decode,)}[mode]
            plain = "trtllm" in runs
            if platform == "hip":
                plain = plain or bool({prefill, decode} & {"tilelang", "triton", "aiter"})
            elif version != "0.5.21":
                plain = plain or prefill == decode == "tilelang"
            args = ServerArgs(
                kv_cache_dtype="fp8_e4m3",
                platform=platform,
                disaggregation_mode=mode,
                dsa_prefill_backend=prefill,
                dsa_decode_backend=decode,
            )
            assert kv_cell(glm, args, rules).bytes == 11 * (512 + (0 if plain else 16) + index), (prefill, decode)


DRAFTING: dict[str, Any] = {"speculative_algorithm": "EAGLE", "speculative_num_draft_tokens": 4}
DFLASH: dict[str, Any] = DRAFTING | {"speculative_algorithm": "DFLASH"}


@pytest.mark.parametrize(
    ("flags", "draft_bytes"),
    [
        (DRAFTING, 4096),
        (DRAFTING | {"speculative_draft_model_path": "qwen3.6-27b"}, 4096),
        (DRAFTING | {"speculative_draft_model_path": "llama-3-8b"}, 32 * 4096),
        (DRAFTING | {"speculative_draft_model_path": "nobody/knows-it"}, 0),
        (DRAFTING | {"speculative_draft_model_path": "nobody/knows-it", "draft_layers": 2}, 2 * 4096),
        (DFLASH | {"speculative_draft_model_path": "llama-3-8b"}, 131_072),
        (DFLASH | {"speculative_draft_model_path": "llama-3-8b", "tp_size": 4}, 32_768),
        (DFLASH | {"speculative_draft_model_path": "llama-3-8b", "draft_kv_bytes_per_token": 7}, 7),
        (DFLASH | {"speculative_draft_model_path": "deepseek-v3"}, 0),
        (DFLASH | {"speculative_draft_model_path": "-"}, 0),
    ],
)
def test_the_kv_of_a_draft_model_beside_the_target(flags: dict[str, Any], draft_bytes: int) -> None:
    """EAGLE prices the target's row for each layer of the draft, DFLASH the draft's own heads."""
    assert cell("qwen3.6-27b", **flags).draft_bytes == draft_bytes


def test_a_draft_under_unified_memory_lies_beside_the_target() -> None:
    """Both rows in one entry: the target's part rounded up to 16 bytes, the entry to 32; from 0.5.22."""
    odd = DFLASH | {"draft_kv_bytes_per_token": 7, "enable_unified_memory": True}
    assert cell("qwen3.6-27b", **odd).bytes == 65_536 + 32
    assert cell("qwen3.6-27b", **odd, rules=rules_for("0.5.21")[0]).bytes == 65_536 + 7
    assert cell("qwen3.6-27b", **odd, dcp_size=2, tp_size=2).bytes == 65_536 + 14
    assert cell("kimi-k3", tp_size=8, **odd).bytes == 27_648 + 32
    with pytest.raises(Refusal, match=r"^unified memory does not run with a draft whose KV cannot lie beside") as no:
        resolve_strategy(load_model("kimi-k3"), ServerArgs(tp_size=8, **DRAFTING, enable_unified_memory=True), NEWEST)
    assert no.value.rule == "HC008"


def test_a_sparse_draft_lies_whole_on_the_ranks_of_context_parallelism() -> None:
    """Its rows and index keys are priced for each rank; the target's index alone is, from 0.5.22."""
    model = load_model("glm-5.3-flash")
    attention = cast(LatentKV, model.attention)
    assert attention.indexer is not None
    model = model._replace(attention=attention._replace(indexer=attention.indexer._replace(kpool=1)))
    plain = kv_cell(model, ServerArgs(tp_size=2, dcp_size=2), NEWEST)
    drafted = kv_cell(model, ServerArgs(tp_size=2, dcp_size=2, draft_layers=1, **DRAFTING), NEWEST)
    row, index = 2 * 512, 132
    assert plain.bytes == plain.layers * (row + 2 * index)
    assert drafted.draft_bytes == 2 * row + 2 * index


MODELOPT = {"quant_method": "modelopt", "quant_algo": "FP8"}
FLOATS = {"kv_cache_scheme": {"num_bits": 8, "type": "float", "dynamic": False}}


@pytest.mark.parametrize(
    ("architecture", "quantization", "kv", "known"),
    [
        ("NemotronHForCausalLM", MODELOPT | FLOATS, "fp8_e4m3", True),
        (
            "NemotronHForCausalLM",
            {"quantization": {"quant_algo": "FP8", "kv_cache_quant_algo": "FP8"}},
            "fp8_e4m3",
            True,
        ),
        ("NemotronHForCausalLM", {"quantization": {"kv_cache_quant_algo": "NVFP4"}}, "bfloat16", True),
        ("NemotronHForCausalLM", MODELOPT, "bfloat16", True),
        ("NemotronHForCausalLM", {"quant_method": "compressed-tensors", **FLOATS}, "bfloat16", True),
        ("FalconH1ForCausalLM", MODELOPT | FLOATS, "bfloat16", False),
    ],
)
def test_kv_of_auto_is_that_of_a_modelopt_checkpoint(
    architecture: str, quantization: dict[str, Any], kv: str, known: bool
) -> None:
    """kv_cache_quant_algo of the quantisation that the class keeps (kv_cache_dtype.py); of other classes it is open."""
    config = Config({"quantization_config": quantization})
    model = load_model("nemotron-h-8b")._replace(architecture=architecture, config=config)
    assert kv_dtype(model, ServerArgs()) == kv
    assert kv_dtype(model, ServerArgs(kv_cache_dtype="fp8_e5m2")) == "fp8_e5m2"
    said = [said for said, _ in kv_not_known(model, ServerArgs(), draft_kv=0)]
    assert bool(said) is not known


def test_qwen3_5_keeps_its_quantisation_from_0_5_10_on() -> None:
    """models/qwen3_vl.py, its base, keeps no quant_config in 0.5.9."""
    config = Config({"quantization_config": MODELOPT | FLOATS})
    model = load_model("qwen3.5-27b")._replace(config=config)
    found = [kv_dtype(model, ServerArgs(engine_version=version)) for version in ("0.5.9", "0.5.10", None)]
    assert found == ["bfloat16", "fp8_e4m3", "fp8_e4m3"]


@pytest.mark.parametrize(
    ("checkpoint", "kv", "known"),
    [
        ("nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-NVFP4", 3072, True), ("nemotron-3-nano-30b-a3b", 6144, True),
        ("nvidia/Qwen3.6-27B-NVFP4", 32_768, True), ("Qwen/Qwen3.6-27B-FP8", 65_536, True),
        ("nvidia/NVIDIA-Nemotron-3-Super-120B-A12B-FP8", 4096, True), ("qwen3.5-27b-awq", 65_536, False),
    ],
)  # fmt: skip
def test_plan_and_the_floor_of_time_take_one_kv(checkpoint: str, kv: int, known: bool) -> None:
    """Whether a quantised name says FP8 KV is open where nothing is known of it: the first warning says so."""
    model = load_model(checkpoint)
    plan = sglang.plan(model, ServerArgs(), rest_gib=40)
    assert plan.kv_bytes_per_token == kv
    one, two = (decode_step(checkpoint, gpu="b300", context=context) for context in (100_000, 200_000))
    assert two.parts[KV] - one.parts[KV] == 100_000 * kv
    assert ("HC031" in {found.rule for found in plan.findings}) is not known


@pytest.mark.parametrize(
    ("capability", "dtype", "cell_bytes", "settled"),
    [("9.0", "auto", 11 * (1024 + 33), "bfloat16"), ("9.0", "fp8_e4m3", 11 * (528 + 33), "fp8_e4m3"),
     ("10.0", "auto", 11 * (512 + 33), "fp8_e4m3"), ("12.0", "bfloat16", 11 * (1024 + 33), "bfloat16")],
)  # fmt: skip
def test_sparse_attention_is_in_fp8_on_blackwell(capability: str, dtype: str, cell_bytes: int, settled: str) -> None:
    """GLM-5.3-Flash, 4 tokens an index key: rows that TensorRT-LLM reads have no scales; those of Hopper have."""
    model = load_model("glm-5.3-flash")
    args = with_defaults(model, ServerArgs(kv_cache_dtype=dtype, gpu_capability=capability), NEWEST)
    assert (kv_cell(model, args, NEWEST).bytes, args.kv_cache_dtype) == (cell_bytes, settled)


def test_a_draft_of_no_layers_has_no_cell_of_its_own() -> None:
    """The size of a DSPARK draft's token counts with its layers, and where nothing is said of these."""
    flags: dict[str, Any] = {"speculative_algorithm": "DSPARK", "speculative_num_draft_tokens": 4, "tp_size": 8}
    own = flags | {"draft_kv_bytes_per_token": 4096}
    found = [cell("kimi-k3", **own | more).draft_bytes for more in ({}, {"draft_layers": 5}, {"draft_layers": 0})]
    assert found == [4096, 4096, 0]


def test_a_draft_of_sparse_attention_is_rounded_down_by_itself_in_every_release() -> None:
    """1 of 11 layers: int(12,716 * (1 + 1 / 11)) would lose the last of 1,156 B to floats, as other drafts do."""
    drafts = {"speculative_algorithm": "EAGLE", "draft_layers": 1, "tp_size": 8}
    for release in ("0.5.20", "0.5.21"):
        found = cell("glm-5.3-flash", rules=rules_for(release)[0], **drafts)
        assert (found.target_bytes, found.draft_bytes) == (12_716, 1156)
    assert int(12_716 * (1 + 1 / 11)) - 12_716 == 1155


def test_index_keys_lie_on_every_context_parallel_rank_from_0_5_22_on() -> None:
    """132 B a layer and token; before, they were priced once."""
    prices = [
        cell("glm-5.3-flash", rules=rules_for(release)[0], tp_size=8, dcp_size=2).bytes
        - cell("glm-5.3-flash", rules=rules_for(release)[0], tp_size=8).bytes
        for release in ("0.5.21", "0.5.22")
    ]
    assert prices == [0, 11 * -(-132 // 4)]
