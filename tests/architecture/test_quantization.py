"""Bytes of a quantised matrix, how a checkpoint says that it is quantised, and which modules it leaves in 16 bits."""

from __future__ import annotations

from collections.abc import Callable
from math import ceil
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from present import present

from hybridcalc.architecture.quantization import (
    FP8_BLOCK,
    FP8_CHANNEL,
    FP8_TENSOR,
    INT8,
    LONGEST_PATTERN,
    MXFP4,
    MXFP8,
    NF4,
    NVFP4,
    Quantization,
    Scheme,
    integers,
)
from hybridcalc.architecture.quantization_config import read_quantization
from hybridcalc.architecture.quantization_names import (
    KEPT,
    agrees,
    check_quantization,
    meant_by,
    named_quantization,
    without_blocks,
)
from hybridcalc.engines.checkpoints import kv_cache_format, quantized_by_name
from hybridcalc.errors import InputError

BYTES: dict[str, tuple[Scheme, Callable[[int, int], int]]] = {
    "fp8 128x128": (FP8_BLOCK, lambda n, k: n * k + 4 * ceil(n / 128) * ceil(k / 128)),
    "fp8 per channel": (FP8_CHANNEL, lambda n, k: n * k + 4 * n),
    "fp8 per tensor": (FP8_TENSOR, lambda n, k: n * k + 8),
    "mxfp8": (MXFP8, lambda n, k: n * k + n * ceil(k / 32)),
    "nvfp4": (NVFP4, lambda n, k: ceil(n * k / 2) + n * ceil(k / 16) + 8),
    "mxfp4": (MXFP4, lambda n, k: ceil(n * k / 2) + n * ceil(k / 32)),
    "nf4": (NF4, lambda n, k: ceil(n * k / 2) + 4 * n * ceil(k / 64)),
    "int8 per channel": (INT8, lambda n, k: n * k + 4 * n),
    "int4 g128": (integers(4, 128), lambda n, k: ceil(n * k / 2) + 2 * n * ceil(k / 128)),
    "int4 g32 asymmetric": (
        integers(4, 32, symmetric=False),
        lambda n, k: ceil(n * k / 2) + 2 * n * ceil(k / 32) + ceil(n * ceil(k / 32) / 2),
    ),
    "int8": (integers(8, 0), lambda n, k: n * k + 2 * n),
}
"""Scheme -> bytes of N rows and K columns, by the engines' quantisation methods."""
sizes = st.integers(1, 600)


@given(st.sampled_from(sorted(BYTES)), sizes, sizes, st.lists(sizes, max_size=3))
def test_bytes_of_a_matrix_follow_from_its_scheme(name: str, rows: int, columns: int, more: list[int]) -> None:
    """Values, scales and what stands beside; joined matrices are scaled each by itself."""
    scheme, size = BYTES[name]
    assert scheme.name == name
    assert scheme.stored([rows], columns) == size(rows, columns)
    assert scheme.stored([rows, *more], columns) == sum(size(part, columns) for part in (rows, *more))


def test_a_scale_may_be_narrower_on_disk() -> None:
    assert FP8_BLOCK.stored([256], 256, scale_bytes=1) == 256 * 256 + 4


READ: dict[str, tuple[dict[str, Any], str, Scheme]] = {
    "fp8": ({"quant_method": "fp8"}, "fp8", FP8_TENSOR),
    "fp8 in blocks": ({"quant_method": "fp8", "weight_block_size": [128, 128]}, "fp8", FP8_BLOCK),
    "fp8 in other blocks": (
        {"quant_method": "fp8", "weight_block_size": [64, 4096]}, "fp8", FP8_BLOCK._replace(block=(64, 4096))),
    "mx blocks": ({"quant_method": "fp8", "weight_block_size": [1, 32]}, "fp8", MXFP8),
    "no blocks": ({"quant_method": "fp8", "weight_block_size": [0, 128]}, "fp8", FP8_TENSOR),
    "three blocks": ({"quant_method": "fp8", "weight_block_size": [1, 1, 1]}, "fp8", FP8_TENSOR),
    "wide blocks": ({"quant_method": "fp8", "weight_block_size": [1, 4097]}, "fp8", FP8_TENSOR),
    "awq": ({"quant_method": "awq", "bits": 4, "group_size": 64}, "awq int4 g64 asymmetric",
            integers(4, 64, symmetric=False)),
    "awq symmetric": ({"quant_method": "awq", "w_bit": 4, "q_group_size": 32, "zero_point": False}, "awq int4 g32",
                      integers(4, 32)),
    "gptq": ({"quant_method": "gptq", "bits": 8}, "gptq int8 g128", integers(8, 128)),
    "gptq asymmetric": ({"quant_method": "gptq", "sym": False}, "gptq int4 g128 asymmetric",
                        integers(4, 128, symmetric=False)),
    "gptq marlin": ({"quant_method": "gptq_marlin", "sym": True}, "gptq_marlin int4 g128", integers(4, 128)),
    "autoround": ({"quant_method": "intel/auto-round"}, "intel/auto-round int4 g128", integers(4, 128)),
    "bitsandbytes": ({"quant_method": "bitsandbytes"}, "bitsandbytes", NF4),
    "bitsandbytes 8": ({"quant_method": "bitsandbytes", "load_in_8bit": True}, "bitsandbytes", INT8),
    "mxfp4": ({"quant_method": "mxfp4"}, "mxfp4", MXFP4),
    "mxfp8": ({"quant_method": "mxfp8"}, "mxfp8", MXFP8),
    "fbgemm": ({"quant_method": "fbgemm_fp8"}, "fp8 per channel", FP8_CHANNEL),
    "w8a8 int8": ({"quant_method": "w8a8_int8"}, "int8 per channel", INT8),
    "w8a8 fp8": ({"quant_method": "w8a8_fp8"}, "fp8 per channel", FP8_CHANNEL),
    "ptpc": ({"quant_method": "ptpc_fp8"}, "fp8 per channel", FP8_CHANNEL),
    "modelopt fp8": ({"quant_method": "modelopt", "quant_algo": "FP8"}, "modelopt fp8 per tensor", FP8_TENSOR),
    "modelopt by its algorithm": ({"quant_algo": "NVFP4"}, "modelopt nvfp4", NVFP4),
    "modelopt inside": ({"quantization": {"quant_algo": "FP8_PB_WO"}}, "modelopt fp8 128x128", FP8_BLOCK),
    "modelopt awq": ({"quant_algo": "W4A16_AWQ", "group_size": 64}, "modelopt int4 g64", integers(4, 64)),
    "modelopt awq of 128": ({"quant_algo": "INT4_AWQ"}, "modelopt int4 g128", integers(4, 128)),
}  # fmt: skip


@pytest.mark.parametrize(("given", "method", "scheme"), READ.values(), ids=READ)
@pytest.mark.parametrize("inside", ["", "text_config", "llm_config", "language_config"])
def test_a_config_says_how_its_checkpoint_is_quantised(
    given: dict[str, Any], method: str, scheme: Scheme, inside: str
) -> None:
    """At the top or in the part of the text model."""
    config = {"quantization_config": given}
    found = present(read_quantization({inside: config} if inside else config))
    assert (found.method, found.scheme) == (method, scheme)
    assert found.head is method.startswith("modelopt")


@pytest.mark.parametrize(
    ("algorithm", "scheme"),
    [
        ("FP8", FP8_TENSOR),
        ("FP8_PER_CHANNEL_PER_TOKEN", FP8_CHANNEL),
        ("FP8_PB_WO", FP8_BLOCK),
        ("FP8_PB_REAL", FP8_BLOCK),
        ("NVFP4", NVFP4),
        ("W4A16_NVFP4", NVFP4),
        ("W4A8_NVFP4_FP8", NVFP4),
        ("NVFP4_AWQ", NVFP4),
        ("MXFP8", MXFP8),
        ("MXFP4", MXFP4),
        ("W4A8_MXFP4_FP8", MXFP4),
        ("INT8_SQ", INT8),
    ],
)
def test_modelopt_s_algorithms(algorithm: str, scheme: Scheme) -> None:
    """Beside a config.json as well as in it, and of a module of a mixed checkpoint."""
    beside = {"hf_quant_config": {"quantization": {"quant_algo": algorithm, "exclude_modules": ["lm_head"]}}}
    found = present(read_quantization(beside))
    assert (found.scheme, found.excluded, found.of("lm_head")) == (scheme, ("lm_head",), None)
    layers = {"model.layers.1.mlp.experts": {"quant_algo": algorithm}, "model.layers.1.mlp.gate": {"quant_algo": "?"}}
    mixed = present(
        read_quantization({"hf_quant_config": {"quant_algo": "MIXED_PRECISION", "quantized_layers": layers}})
    )
    assert mixed.of("model.layers.1.mlp.experts") == scheme
    assert mixed.of("model.language_model.layers.1.mlp.experts") == scheme
    assert mixed.of("model.layers.1.mlp.gate") is None and mixed.of("model.layers.2.mlp.experts") is None
    assert mixed.of_layers("model.layers.{}.mlp.experts", (0, 1, 2)) == {None: [0, 2], scheme: [1]}


WEIGHTS: list[tuple[dict[str, Any], str, Scheme]] = [
    ({"type": "float", "num_bits": 8, "strategy": "block"}, "", FP8_BLOCK),
    ({"type": "float", "num_bits": 8, "strategy": "channel"}, "", FP8_CHANNEL),
    ({"type": "float", "num_bits": 8, "strategy": "tensor"}, "", FP8_TENSOR),
    ({"type": "float", "num_bits": 8}, "", FP8_TENSOR),
    ({"type": "float", "num_bits": 8, "group_size": 32}, "", MXFP8),
    ({"type": "float", "num_bits": 4, "group_size": 16}, "nvfp4-pack-quantized", NVFP4),
    ({"type": "float", "num_bits": 4, "group_size": 32}, "", MXFP4),
    ({"type": "float", "num_bits": 4}, "mxfp4-pack-quantized", MXFP4),
    ({"type": "int", "num_bits": 8, "strategy": "channel"}, "", INT8),
    ({"type": "int", "num_bits": 8, "group_size": 128, "strategy": "group"}, "", integers(8, 128)),
    ({"type": "int", "num_bits": 4, "group_size": 32}, "", integers(4, 32)),
    ({"type": "int", "num_bits": 4, "group_size": 32, "symmetric": True}, "", integers(4, 32)),
    ({"type": "int", "num_bits": 4, "group_size": 32, "symmetric": False}, "", integers(4, 32, symmetric=False)),
]


@pytest.mark.parametrize(("weights", "layout", "scheme"), WEIGHTS)
def test_a_group_of_compressed_tensors(weights: dict[str, Any], layout: str, scheme: Scheme) -> None:
    groups, ignored = {"group_0": {"weights": weights, "targets": ["Linear"]}}, ["lm_head", "re:.*gate$"]
    given = {"quant_method": "compressed-tensors", "format": layout, "ignore": ignored, "config_groups": groups}
    found = present(read_quantization({"quantization_config": given}))
    assert (found.method, found.scheme, found.only) == (f"compressed-tensors {scheme.name}", scheme, ())
    assert found.of("model.layers.0.mlp.up_proj") == scheme
    assert found.of("model.layers.0.mlp.gate") is None
    assert found.of("model.layers.0.mlp.gate_proj") == scheme


def test_groups_of_compressed_tensors_with_targets_hold_those_alone() -> None:
    eight, four = {"type": "float", "num_bits": 8, "strategy": "channel"}, {"type": "float", "num_bits": 4}
    groups = {
        "a": {"weights": eight, "targets": ["re:.*attn.*"]},
        "b": {"weights": four, "targets": ["re:.*experts.*"]},
        "c": {"weights": None},
    }
    given = {"quant_method": "compressed-tensors", "config_groups": groups}
    found = present(read_quantization({"quantization_config": given}))
    assert found.of("model.layers.3.self_attn.q_proj") == FP8_CHANNEL
    assert found.of("model.layers.3.mlp.experts.7.up_proj") == NVFP4
    assert found.of("model.layers.3.mlp.up_proj") is None
    with pytest.raises(InputError, match=r"(?m)^compressed-tensors without config_groups$"):
        read_quantization({"quantization_config": {"quant_method": "compressed-tensors"}})


NAME = "model.language_model.layers.12.mlp.experts"


@pytest.mark.parametrize(
    ("pattern", "name", "excluded"),
    [
        ("lm_head", "lm_head", True),
        ("layers.12", NAME, True),
        ("layers.1", NAME, False),
        ("model.layers.12", NAME, True),
        ("backbone.layers.12.mlp", NAME, True),
        ("experts", NAME, True),
        ("expert", NAME, False),
        ("model.layers.*.mlp", NAME, True),
        ("*layers.1[0-2].*", NAME, True),
        ("*layers.1[3-9].*", NAME, False),
        ("layers.1?", NAME, True),
        ("exp*", NAME, True),
        ("xp*", NAME, False),
        ("re:.*\\.mlp\\..*", NAME, True),
        ("re:mlp", NAME, False),
        ("layers.12.mlp.experts.0.gate_proj", NAME, True),
        ("layers.12.mlp.experts.0.up_proj", NAME, True),
        ("layers.12.mlp.experts.1.up_proj", NAME, False),
        ("model.layers.0.q_proj", "model.layers.0.qkv_proj", True),
        ("model.layers.0.k_proj", "model.layers.0.qkv_proj", False),
        ("in_proj_z", "model.layers.0.in_proj_qkvz", True),
        ("in_proj_qkv", "model.layers.0.in_proj_qkvz", True),
        ("in_proj_b", "model.layers.0.in_proj_ba", True),
        ("in_proj_a", "model.layers.0.in_proj_ba", False),
    ],
)
def test_a_pattern_names_modules_by_name_beginning_part_glob_or_expression(
    pattern: str, name: str, excluded: bool
) -> None:
    """With the prefixes of a multimodal model or without; a joined module by one of its parts, experts by the first."""
    given = {"quant_method": "fp8", "modules_to_not_convert": [pattern]}
    found = present(read_quantization({"quantization_config": given}))
    head = {"quantization_config": {"quant_method": "modelopt", "quant_algo": "FP8", "exclude_modules": [pattern]}}
    asked = present(read_quantization(head)) if name == "lm_head" else found
    assert (asked.of(name, expert=name == NAME) is None) is excluded


@pytest.mark.parametrize("key", ["modules_to_not_convert", "ignored_layers", "ignore", "exclude_modules"])
def test_what_is_left_out_is_listed_under_several_names(key: str) -> None:
    found = present(read_quantization({"quantization_config": {"quant_method": "fp8", key: ["mlp"]}}))
    assert (found.of("a.mlp"), found.of("a.attn")) == (None, FP8_TENSOR)
    assert present(read_quantization({"quantization_config": {"quant_method": "fp8", key: "mlp"}})).of("mlp") is None


def test_other_ways_to_leave_out_a_module() -> None:
    """A dynamic entry of GPTQ, a module in 16 bits or the blocks of AutoRound, the head unless it is named."""
    dynamic = {"quant_method": "gptq", "dynamic": {"-:.*attn.*": {}, "+:.*mlp.*": {"bits": 8}}}
    found = present(read_quantization({"quantization_config": dynamic}))
    assert found.of("layers.0.attn.q") is None and found.of("layers.0.mlp.q") is not None
    extra = {
        "quant_method": "auto-round",
        "extra_config": {"a": {"bits": 16}, "b": {"bits": 15}, ".*c$": {"bits": 16}, "d": 16},
    }
    found = present(read_quantization({"quantization_config": extra}))
    assert [found.of(name) is None for name in ("a", "b", "x.c", "d")] == [True, False, True, False]
    blocks = {"quant_method": "auto-round", "block_name_to_quantize": "model.layers, mtp.layers"}
    found = present(read_quantization({"quantization_config": blocks}))
    assert [found.of(name) is None for name in ("model.layers.0.q", "visual.blocks.0.q")] == [False, True]
    for more, kept in (({}, True), ({"lm_head": True}, False), ({"lm_head": False}, True)):
        found = present(read_quantization({"quantization_config": {"quant_method": "gptq", **more}}))
        assert (found.of("lm_head") is None) is kept
    experts = present(read_quantization({"quantization_config": {"quant_method": "mxfp4"}}))
    assert experts.of("a.experts", expert=True) == MXFP4 and experts.of("a.mlp") is None


@pytest.mark.parametrize(
    ("patterns", "kept"),
    [
        (["lm_head"], ""),
        (["model.layers.0"], "0"),
        (["model.layers.0*"], "0"),
        (["0"], "0"),
        (["re:model\\.layers\\.7\\.mlp"], "7"),
        (["re:.*layers\\.[0-9]\\.mlp"], "0123456789"),
        (["fc1", "model.layers.x1.mlp"], ""),
        (["layers.3.mlp", "backbone.layers.5.mlp.fc", "language_model.model.layers.6"], "356"),
        (["model.language_model.layers.2.mlp.fc", "model.layers.2.mlp.fc1", "model.layers.12"], "2"),
        (["mlp"], "0123456789"),
        (["model.layers.4.mlp.fc.0.gate_proj"], ""),
        (["model.m*"], ""),
        (["ml*", "model.x*"], "0123456789"),
        (["model.layers.8.m*"], "8"),
        (["*.layers.?.mlp"], "0123456789"),
        (["*layers.9*", "backbone.layers.[12].mlp"], "129"),
    ],
)
def test_layers_are_parted_as_their_names_are_listed(patterns: list[str], kept: str) -> None:
    """All at once, and each for itself."""
    given = {"quant_method": "fp8", "modules_to_not_convert": patterns}
    found, name = present(read_quantization({"quantization_config": given})), "model.layers.{}.mlp.fc"
    having = found.of_layers(name, range(10))
    assert "".join(map(str, having.get(None, []))) == kept
    for scheme, layers in having.items():
        assert [layer for layer in range(10) if found.of(name.replace("{}", str(layer))) == scheme] == layers


@pytest.mark.parametrize(
    ("pattern", "reason"),
    [
        ("(a+)+b", "is not read"),
        ("(a|b*)*", "is not read"),
        ("a{2}{3}", "is not read"),
        ("x" * (LONGEST_PATTERN - 2), ""),
        ("(", "is no regular expression"),
        ("[a-z]+\\.mlp", ""),
    ],
)
def test_an_expression_of_a_file_is_bounded(pattern: str, reason: str) -> None:
    """In length, and without repeats of repeats."""
    given = {"quant_method": "fp8", "modules_to_not_convert": [f"re:{pattern}"]}
    found = present(read_quantization({"quantization_config": given}))
    if reason:
        with pytest.raises(InputError, match=reason):
            found.of("a.mlp")
    else:
        found.of("a.mlp")
    assert LONGEST_PATTERN == 400


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"kv_cache_scheme": {"num_bits": 8, "type": "float"}}, "fp8"),
        ({"kv_cache_scheme": {"num_bits": 8, "type": "float", "dynamic": False}}, "fp8"),
        ({"kv_cache_scheme": {"num_bits": 8, "type": "float", "dynamic": True}}, ""),
        ({"kv_cache_scheme": {"num_bits": 8, "type": "int"}}, ""),
        ({"kv_cache_scheme": {"num_bits": 4, "type": "float"}}, ""),
        ({"kv_cache_quant_algo": "FP8"}, "fp8"),
        ({"kv_cache_quant_algo": "NVFP4"}, "nvfp4"),
        ({"kv_cache_quant_algo": "INT8"}, ""),
        ({"kv_cache_quant_algo": None}, ""),
        ({"quantization": {"kv_cache_quant_algo": "FP8"}}, "fp8"),
    ],
)
@pytest.mark.parametrize("where", ["quantization_config", "hf_quant_config"])
def test_a_checkpoint_may_say_how_its_kv_cache_is_kept(given: dict[str, Any], said: str, where: str) -> None:
    """Static 8-bit floats, or ModelOpt's algorithm."""
    assert kv_cache_format({where: given}) == said
    assert kv_cache_format({}) == ""


MARKS = {
    "nvidia/X-NVFP4": "nvfp4", "x/Model-FP8": "fp8", "x/m_w4a16": "w4a16", "m-AWQ-4bit": "awq", "m.int8": "int8",
    "m-4bit-g32": "4bit", "x/fp8net": "", "fp8/model": "", "m-GPTQ-Int4": "gptq", "m-mxfp4": "mxfp4", "m-bnb": "bnb",
    "m-gguf": "gguf", "m-w8a8": "w8a8", "m-autoround": "autoround", "m-quantized.w8a16": "quantized", "m-FP4": "fp4",
}  # fmt: skip


@pytest.mark.parametrize(("name", "mark"), MARKS.items(), ids=MARKS)
def test_a_name_may_say_that_its_checkpoint_is_quantised(name: str, mark: str) -> None:
    """As a word of its last part."""
    assert quantized_by_name(name) == mark


SPOKEN_AS = {
    "fp8": FP8_CHANNEL, "fp8_per_tensor": FP8_TENSOR, "fp8_per_block": FP8_BLOCK, "fp8_block": FP8_BLOCK,
    "w8a8_fp8": FP8_CHANNEL, "nvfp4": NVFP4, "modelopt_fp4": NVFP4, "modelopt": FP8_TENSOR, "modelopt_fp8": FP8_TENSOR,
    "mxfp4": MXFP4, "mxfp8": MXFP8, "w8a8_int8": INT8, "int8": INT8, "bitsandbytes": NF4, "experts_int8": INT8,
    "awq": integers(4, 128, symmetric=False), "AWQ_Marlin": integers(4, 128, symmetric=False),
    "gptq": integers(4, 128), "gptq_marlin": integers(4, 128), "int4": integers(4, 128),
    "auto-round": integers(4, 128), "auto_round": integers(4, 128), "compressed-tensors": integers(4, 128),
    "ptpc_fp8": FP8_CHANNEL, "fp8_e4m3": FP8_CHANNEL,
}  # fmt: skip


@pytest.mark.parametrize(("name", "scheme"), SPOKEN_AS.items(), ids=SPOKEN_AS)
def test_a_launch_names_a_quantisation(name: str, scheme: Scheme) -> None:
    """Of every linear layer but the head, the vision tower and the small projections of a mixer; of experts alone."""
    found = present(named_quantization(name))
    assert (found.scheme, found.excluded) == (scheme, KEPT)
    assert found.experts_only is (name in ("mxfp4", "experts_int8"))
    assert all(found.of(kept) is None for kept in ("lm_head", "model.visual.x", "a.in_proj_a", "a.in_proj_ba"))


@pytest.mark.parametrize("name", ["none", "bf16", "BFloat16", "fp16", "unquant", ""])
def test_a_launch_may_name_none(name: str) -> None:
    assert named_quantization(name) is None
    assert not agrees(name, present(named_quantization("fp8")))


def test_a_quantisation_without_a_layout_is_told_from_one_that_no_engine_has() -> None:
    check_quantization("quark")
    with pytest.raises(InputError, match="--quantization 'quark': its layout is not known here"):
        named_quantization("quark")
    with pytest.raises(InputError, match="--quantization 'fp3' is not known here"):
        check_quantization("fp3")
    with pytest.raises(InputError, match=r"(?m)^quantisation 'hqq' is not known here$"):
        read_quantization({"quantization_config": {"quant_method": "hqq"}})
    with pytest.raises(InputError, match=r"(?m)^quantisation 'FP7' of ModelOpt is not known here$"):
        read_quantization({"quantization_config": {"quant_algo": "FP7"}})
    assert read_quantization({}) is None


@pytest.mark.parametrize(
    ("name", "config", "same"),
    [
        ("fp8", {"quant_method": "fp8", "weight_block_size": [128, 128]}, True),
        ("fp8", {"quant_method": "gptq"}, False),
        ("awq", {"quant_method": "awq"}, True),
        ("awq_marlin", {"quant_method": "awq"}, True),
        ("gptq", {"quant_method": "fp8"}, False),
        ("quark", {"quant_method": "fp8"}, True),
        ("none", {"quant_method": "fp8"}, False),
        ("modelopt", {"quant_algo": "FP8"}, True),
        ("modelopt", {"quant_algo": "NVFP4"}, False),
        ("fp8_per_tensor", {"quant_algo": "NVFP4"}, False),
        ("fp8", {"quant_method": "fp8", "weight_block_size": [1, 32]}, True),
        ("modelopt_fp4", {"quant_algo": "NVFP4"}, True),
        ("modelopt_fp4", {"quant_algo": "MIXED_PRECISION"}, True),
    ],
)
def test_a_launch_agrees_with_its_checkpoint_in_the_kind_of_number(
    name: str, config: dict[str, Any], same: bool
) -> None:
    assert agrees(name, present(read_quantization({"quantization_config": config}))) is same


@pytest.mark.parametrize(
    ("mark", "lean", "rich"),
    [
        ("fp8", FP8_TENSOR, FP8_BLOCK),
        ("nvfp4", NVFP4, NVFP4),
        ("fp4", NVFP4, NVFP4),
        ("mxfp4", MXFP4, MXFP4),
        ("mxfp8", MXFP8, MXFP8),
        ("w8a8", INT8, FP8_CHANNEL),
        ("int8", INT8, integers(8, 128)),
        ("8bit", INT8, integers(8, 128)),
        ("w8a16", INT8, integers(8, 128)),
        ("awq", integers(4, 128), integers(4, 32, symmetric=False)),
    ],
)
@pytest.mark.parametrize("experts", [True, False])
def test_what_a_name_may_mean_is_an_interval(mark: str, lean: Scheme, rich: Scheme, experts: bool) -> None:
    """All linear layers by the leanest scheme, what releases quantise, and experts or MLPs alone by the widest."""
    least, usual, most = meant_by(mark, experts=experts)
    alone, other = ("a.experts.up", "a.mlp.up") if experts else ("a.mlp.up", "a.attn.q")
    assert [least.of(name) for name in ("lm_head", alone, other)] == [lean] * 3
    assert [usual.of(name) for name in ("lm_head", "mtp.fc", alone, other)] == [None, None, lean, lean]
    assert [most.of(name) for name in ("lm_head", alone, other)] == [None, rich, None]
    assert without_blocks(most).of(alone) == FP8_CHANNEL


@pytest.mark.parametrize(
    "listed", [r"re:.*layers\.(1|3)\.mixer\..*", r"re:.*layers\.[13]\.mixer\..*", "*layers.[13].mixer*"]
)
def test_layers_that_a_pattern_names_in_a_choice_are_told_apart(listed: str) -> None:
    """A number is one of a layer wherever it stands in a pattern: after a dot, in brackets, between bars."""
    found = Quantization("fp8", FP8_TENSOR, (listed,)).of_layers("backbone.layers.{}.mixer.in_proj", range(4))
    assert found == {FP8_TENSOR: [0, 2], None: [1, 3]}
