"""config.json -> Architecture: where fields may sit, what they may be called, and what stands in for absent ones."""

import json
from typing import Any, cast

import pytest
from known_models import DATA
from small_configs import KV, small_config

from hybridcalc import Architecture
from hybridcalc.architecture import GroupedQueryKV, IndexCache, LatentKV
from hybridcalc.architecture.families import PleConv
from hybridcalc.architecture.families.gdn import GatedDeltaNet
from hybridcalc.architecture.families.lightning import Lightning
from hybridcalc.architecture.families.mamba2 import Mamba2
from hybridcalc.architecture.families.shortconv import ConvStream, ShortConv
from hybridcalc.errors import ConfigError

read = Architecture.from_hf_config
QWEN = small_config("Qwen3NextForCausalLM", 4, full_attention_interval=4)
VISION = {"num_hidden_layers": 99, "hidden_size": 1, "num_attention_heads": 1, "head_dim": 7, "layer_types": ["x"]}


@pytest.mark.parametrize("table", ["text_config", "llm_config", "language_config"])
def test_fields_may_sit_in_a_table_and_vision_fields_are_never_read(table: str) -> None:
    """Nested configs read as flat ones; a vision tower's fields of the same names are left alone."""
    flat = {key: value for key, value in QWEN.items() if key != "architectures"}
    nested = {"architectures": QWEN["architectures"], "vision_config": VISION, table: flat}
    model = read(nested)
    assert (model.layers, model.state, model.attention) == ("sssa", read(QWEN).state, read(QWEN).attention)
    assert model.multimodal and not read(QWEN).multimodal


def test_a_vision_table_stands_in_for_nothing() -> None:
    """A field that is only in vision_config is missing."""
    text = {key: value for key, value in QWEN.items() if key not in ("architectures", "num_hidden_layers")}
    nested = {"architectures": QWEN["architectures"], "text_config": text, "vision_config": VISION}
    with pytest.raises(ConfigError, match=r"(?m)missing num_hidden_layers$"):
        read(nested)


def test_a_nested_config_falls_back_on_the_top_level() -> None:
    """Some files keep the dtype or a count above the table; the table wins where both have a field."""
    text = {key: value for key, value in QWEN.items() if key != "architectures"} | {"max_position_embeddings": 4096}
    outer = {"torch_dtype": "float16", "max_position_embeddings": 1, "mtp_num_hidden_layers": 2}
    model = read({"architectures": QWEN["architectures"], "text_config": text} | outer)
    assert (model.model_dtype, model.max_context, model.draft_layers) == ("float16", 4096, 2)


@pytest.mark.parametrize(
    ("marks", "architecture"),
    [
        ({"model_type": "qwen3_next"}, "Qwen3NextForCausalLM"),
        ({"architectures": [], "model_type": "qwen3_5_moe_text"}, "Qwen3_5MoeForCausalLM"),
        ({"architectures": ["SomethingElse", "OlmoHybridForCausalLM"]}, "OlmoHybridForCausalLM"),
        ({"architectures": ["Qwen3NextForCausalLM"], "model_type": "llama"}, "Qwen3NextForCausalLM"),
    ],
    ids=["by model_type", "empty list", "first known class", "class before model_type"],
)
def test_the_class_comes_from_architectures_or_else_from_model_type(marks: dict[str, Any], architecture: str) -> None:
    """Partial files carry no architectures; model_type then names the class."""
    assert (
        read({key: value for key, value in QWEN.items() if key != "architectures"} | marks).architecture == architecture
    )


def test_the_class_may_be_given_for_a_file_that_names_none() -> None:
    """``architecture`` overrides what the file says."""
    assert read(QWEN, architecture="OlmoHybridForCausalLM").architecture == "OlmoHybridForCausalLM"


@pytest.mark.parametrize(
    ("kernel", "architecture"),
    [({"short_conv_kernel_size": 4}, "BailingMoeV3ForCausalLM"), ({}, "BailingMoeV2_5ForCausalLM")],
    ids=["ling-3", "ling-2.5"],
)
def test_bailing_hybrid_is_told_apart_by_its_convolution(kernel: dict[str, int], architecture: str) -> None:
    """Two generations share model_type bailing_hybrid; only Ling-3 convolves."""
    config = (
        small_config("BailingMoeV2_5ForCausalLM", 2, layer_group_size=2) | kernel | {"model_type": "bailing_hybrid"}
    )
    del config["architectures"]
    assert read(config).architecture == architecture


@pytest.mark.parametrize(
    ("architecture", "fields", "attention"),
    [
        ("Qwen3ForCausalLM", {}, GroupedQueryKV(2, 16, 16)),
        ("Qwen3ForCausalLM", {"head_dim": 256}, GroupedQueryKV(2, 256, 256)),
        ("Qwen3ForCausalLM", {"num_key_value_heads": None}, GroupedQueryKV(4, 16, 16)),
        ("Qwen3ForCausalLM", {"v_head_dim": 8}, GroupedQueryKV(2, 16, 8)),
        ("Qwen3ForCausalLM", {"v_head_dim": 0}, GroupedQueryKV(2, 16, 16)),
        (
            "NemotronHForCausalLM",
            {"hybrid_override_pattern": "M*", "attention_head_dim": 32},
            GroupedQueryKV(2, 32, 32),
        ),
        ("Zamba2ForCausalLM", {"hybrid_layer_ids": [0]}, GroupedQueryKV(2, 32, 32)),
        ("DeepseekV3ForCausalLM", {}, LatentKV(512, 64)),
        ("BailingMoeV3ForCausalLM", {"layer_group_size": 2, "use_mla_nope": True}, LatentKV(512, 0)),
        ("BailingMoeV3ForCausalLM", {"layer_group_size": 2, "mla_use_nope": True}, LatentKV(512, 64)),
        ("GigaChat35ForCausalLM", {"full_attention_layers": [1]}, LatentKV(512, 64)),
        ("GigaChat35ForCausalLM", {"full_attention_layers": [1], "qk_rope_head_dim": 0}, LatentKV(512, 0)),
        (
            "Glm5NextForConditionalGeneration",
            {
                "layer_types": ["linear_attention", "indexed_attention"],
                "index_topk": 2048,
                "index_head_dim": 128,
                "index_kpool": 16,
            },
            LatentKV(512, 64, IndexCache(128, 16)),
        ),
    ],
    ids=[
        "head_dim from hidden",
        "head_dim stated",
        "all heads",
        "narrower values",
        "v_head_dim 0",
        "attention_head_dim",
        "twice the hidden size",
        "latent",
        "nope drops the rotary part",
        "kimi's nope does not",
        "class default",
        "no rotary part",
        "indexer",
    ],
)
def test_attention_of_a_layer(architecture: str, fields: dict[str, Any], attention: GroupedQueryKV | LatentKV) -> None:
    """head_dim stated beats hidden // heads; MLA keeps its rotary part unless the model really drops it."""
    assert read(small_config(architecture, 2, **fields)).attention == attention


@pytest.mark.parametrize(
    ("architecture", "fields", "state"),
    [
        ("Qwen3NextForCausalLM", {"full_attention_interval": 2}, GatedDeltaNet(4, 2, 8, 16, 4)),
        ("JetNemotronForCausalLM", {"layer_types": ["jet", "attn"]}, GatedDeltaNet(4, 4, 256, 96, 4)),
        ("FalconH1ForCausalLM", {"mamba_d_ssm": 96}, Mamba2(8, 16, 32, 1, 96, 4)),
        ("FalconH1ForCausalLM", {"mamba_d_ssm": None}, Mamba2(8, 16, 32, 1, 128, 4)),
        ("Plamo2ForCausalLM", {}, Mamba2(8, 16, 32, 0, 128, 4)),
        ("Mamba2ForCausalLM", {"intermediate_size": 256}, Mamba2(8, 16, 32, 1, 256, 4)),
        ("Zamba2ForCausalLM", {"hybrid_layer_ids": [0]}, Mamba2(8, 16, 32, 1, 128, 4)),
        (
            "MiniCPMSALAForCausalLM",
            {"mixer_types": ["lightning-attn", "minicpm4"], "lightning_nkv": 4},
            Lightning(4, 16),
        ),
        ("MiniCPMSALAForCausalLM", {"mixer_types": ["lightning-attn", "minicpm4"]}, Lightning(2, 16)),
        ("MiniMaxText01ForCausalLM", {"attn_type_list": [0, 1]}, Lightning(4, 16)),
    ],
    ids=[
        "gdn",
        "jet truncates head_dim x expand_v",
        "falcon-h1 mamba_d_ssm",
        "falcon-h1 expand",
        "plamo2 has no groups",
        "mamba2 intermediate_size",
        "zamba2 head dim from inner",
        "lightning_nkv heads",
        "kv heads",
        "all heads",
    ],
)
def test_state_of_a_layer(architecture: str, fields: dict[str, Any], state: Any) -> None:
    """Field names and the sizes that stand in for absent ones, one class a row."""
    assert read(small_config(architecture, 2, **fields)).state == state


def test_intermediate_size_beats_a_misleading_expand() -> None:
    """Falcon-Mamba states expand 16 and an intermediate_size of twice the hidden size; the latter is right."""
    assert (
        cast(Any, read(small_config("FalconMambaForCausalLM", 2, expand=16, intermediate_size=128)).state).inner_size
        == 128
    )


def test_short_convolutions_keep_their_streams_apart() -> None:
    """ZAYA1: one sharded stream over heads and KV heads, one hidden-wide stream whole on every rank."""
    streams = cast(ShortConv, read(small_config("ZayaForCausalLM", 2, cca_time0=3)).state).streams
    assert streams == (ConvStream(6 * 16, 3), ConvStream(64, 1, None))


def test_inkling_keeps_six_streams_a_layer() -> None:
    """Full k, v and local k, v follow their KV heads; two hidden-wide streams are whole on every rank."""
    fields = {"local_layer_ids": [0], "swa_num_key_value_heads": 4, "swa_head_dim": 8}
    model = read(small_config("InklingForConditionalGeneration", 2, **fields))
    kv, local, hidden = ConvStream(32, 3, 2), ConvStream(32, 3, 4), ConvStream(64, 3, None)
    assert cast(ShortConv, model.state).streams == (kv, kv, local, local, hidden, hidden)
    assert (model.window, model.window_attention) == (512, GroupedQueryKV(4, 8, 8))


@pytest.mark.parametrize(("kernel", "rows"), [(2, 1), (3, 2), (4, 3)])
def test_convolutions_of_inkling_keep_one_column_less_than_their_kernel(kernel: int, rows: int) -> None:
    fields = {"local_layer_ids": [0], "sconv_kernel_size": kernel}
    streams = cast(ShortConv, read(small_config("InklingForConditionalGeneration", 2, **fields)).state).streams
    assert {stream.rows for stream in streams} == {rows}


def test_plain_granite_carries_unused_mamba_fields() -> None:
    """Granite-4.0-Micro: every layer is attention, so the file's mamba_* fields mean nothing."""
    model = read(small_config("GraniteMoeHybridForCausalLM", 2, layer_types=["attention"] * 2))
    assert (model.state, model.family, model.describe_layers) == (None, "attention", "2 GQA")


def test_qwen4_short_convolution_counts_each_layer_once() -> None:
    """Layers with per-layer embeddings, hidden x 4 channels, (kernel - 1) x ngram columns."""
    fields = {"full_attention_interval": 2, "ple_layer_ids": [1, 1, 2]}
    assert read(small_config("Qwen4ExpForConditionalGeneration", 2, **fields)).ple_conv == PleConv(2, 256, 9)


@pytest.mark.parametrize(
    ("rope", "factor"),
    [
        ({"rope_type": "yarn", "factor": 4}, 4.0),
        ({"rope_type": "llama3", "factor": 8}, 1.0),
        ({"type": "yarn", "factor": 4, "original_max_position_embeddings": 4096}, 1.0),
        ({"factor": float("nan")}, 1.0),
        ({"factor": "many"}, 1.0),
        (None, 1.0),
    ],
    ids=["yarn", "llama3", "length already stretched", "nan", "text", "none"],
)
def test_rope_scaling_stretches_the_context_unless_the_length_includes_it(
    rope: dict[str, Any] | None, factor: float
) -> None:
    """SGLang multiplies context_len by rope_scaling.factor, but not for llama3 or a stated original length."""
    assert read(small_config("Qwen3ForCausalLM", 1, rope_scaling=rope)).rope_scaling_factor == factor


@pytest.mark.parametrize("name", ["seq_length", "max_seq_len", "model_max_length", "max_position_embeddings"])
def test_the_context_length_has_several_names(name: str) -> None:
    """The first one set, in the engine's order, of which max_sequence_length is the first."""
    assert read(small_config("Qwen3ForCausalLM", 1, **{name: 4096})).max_context == 4096
    assert read(small_config("Qwen3ForCausalLM", 1, **{name: 4096}, max_sequence_length=8192)).max_context == 8192


def test_kimi_k3_reads_whole_from_its_released_file() -> None:
    """93 layers of which the last two are both MLA; the vision tower's sizes are not read."""
    path = DATA / "configs" / "moonshotai--Kimi-K3.json"
    model = read(json.loads(path.read_text(encoding="utf-8")))
    assert (model.describe_layers, model.layers[-2:], model.hidden_size) == ("69 KDA + 24 MLA", "aa", 7168)
    assert model.multimodal


def test_whole_numbers_may_be_written_as_floats() -> None:
    """JSON writers turn 64 into 64.0; the number is the same."""
    assert (
        read(small_config("Qwen3ForCausalLM", 1) | {key: float(value) for key, value in KV.items()}).hidden_size == 64
    )


@pytest.mark.parametrize("field", ["mamba_ssm_dtype", "mamba_ssm_cache_dtype", "torch_dtype"])
def test_texts_are_kept_without_control_characters(field: str) -> None:
    """Whatever a config says may end up on a terminal."""
    model = Architecture.from_hf_config(small_config("Qwen3ForCausalLM", 2, **{field: "a\x1b[31m\n\x9b\0"}))
    declared = (model.declared_ssm_dtype or "", model.declared_ssm_cache_dtype or "", model.model_dtype)
    assert all(text.isprintable() for text in declared)
