"""What is read of files that others wrote: the last value that is taken, and the first that is not."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from pydantic import TypeAdapter, ValidationError
from small_configs import small_config

from hybridcalc.architecture import IndexCache
from hybridcalc.architecture.config_json import _model_dtype, _rope_factor, read_config
from hybridcalc.architecture.fields import Fields
from hybridcalc.architecture.gguf_model import Keys, _index
from hybridcalc.architecture.preset_schema import MOST_FIELDS, ConfigFields
from hybridcalc.architecture.quantization import FP8_BLOCK, FP8_TENSOR, MXFP8, integers
from hybridcalc.architecture.quantization_config import read_quantization
from hybridcalc.architecture.safetensors import parse_header, parse_index, tensors_of
from hybridcalc.errors import ConfigError, HybridcalcError, NotModelled


def taken(read: Callable[[], Any]) -> bool:
    """Whether a value is read; what is refused is refused as bad input."""
    try:
        read()
    except (HybridcalcError, ValidationError):
        return False
    return True


@pytest.mark.parametrize(
    ("value", "at_least", "read"),
    [
        (1, 1, 1), (0, 1, None), (2, 2, 2), (1, 2, None), (0, 0, 0), (-1, 0, None), (2**31, 1, 2**31),
        (2**31 + 1, 1, None), (4.0, 1, 4), (4.5, 1, None), (True, 1, None), ("4", 1, None), ([4], 1, None),
    ],
)  # fmt: skip
def test_a_whole_number_of_a_config(value: Any, at_least: int, read: int | None) -> None:
    """At least what makes sense and at most 2**31; a float only where it is whole."""
    fields = Fields({"n": value}, "x")
    found = fields.number("n", at_least=at_least)
    assert (found, fields.wrong != []) == ((at_least, True) if read is None else (read, False))


@pytest.mark.parametrize(
    ("value", "good"), [(0.5, True), (2**31, True), (0, False), (-1.0, False), (2**31 + 1, False), (True, False)]
)
def test_a_real_number_of_a_config(value: Any, good: bool) -> None:
    fields = Fields({"n": value}, "x")
    assert (fields.real("n"), fields.wrong == []) == (float(value) if good else 1.0, good)


@pytest.mark.parametrize(
    ("value", "good"),
    [([1] * 4096, True), ([1] * 4097, False), ([], True), ("11", False), ([True], False), ([1.0], False)],
)  # fmt: skip
def test_a_list_of_a_config_has_at_most_4096_entries(value: Any, good: bool) -> None:
    fields = Fields({"n": value}, "x")
    assert (fields.numbers("n"), fields.wrong == []) == (value if good else [], good)


@pytest.mark.parametrize(
    ("values", "kept"),
    [({}, None), ({"key_length": 128}, (128, 1)), ({"key_length": 128, "kpool": 0}, (128, 1)),
     ({"key_length": 128, "kpool": 4}, (128, 4)), ({"key_length": 128, "types": [1, 1]}, (128, 1))],
)  # fmt: skip
def test_an_indexer_of_a_gguf_keeps_a_key_a_token_unless_it_pools(values: dict[str, Any], kept: Any) -> None:
    keys = Keys.__new__(Keys)
    keys.kind, keys.layers = "deepseek32", 2
    keys.raw = lambda name: values.get(name.rpartition(".")[2])  # type: ignore[method-assign]
    assert _index(keys) == (IndexCache(*kept) if kept else None)
    values = {"key_length": 128, "types": [1, 0]}
    with pytest.raises(NotModelled, match="layers that share an indexer"):
        _index(keys)


@pytest.mark.parametrize(("count", "good"), [(1, True), (4096, True), (4097, False)])
def test_a_model_has_at_most_4096_layers(count: int, good: bool) -> None:
    assert taken(lambda: read_config(small_config("Qwen3ForCausalLM", count), name="x", architecture=None)) is good
    pattern = {"hybrid_override_pattern": ("M*" * count)[:count]}
    config = small_config("NemotronHForCausalLM", None, **pattern)
    assert taken(lambda: read_config(config, name="x", architecture=None)) is (good and count > 1) or count == 1


@pytest.mark.parametrize(
    ("sizes", "good"),
    [([0, 1, 2**31 - 1, 3], True), ([0, 1, 2, 3, 4], True), ([1, 2, 3], False), ([1, 2, 3, 2**31], False),
     ([1, 2, 3, -1], False), ([1, 2, 3, "4"], False)],
)  # fmt: skip
def test_sizes_by_layer_of_a_gguf(sizes: list[Any], good: bool) -> None:
    """A list that is longer is cut to the layers."""
    keys = Keys.__new__(Keys)
    keys.kind, keys.layers = "llama", 4
    keys.raw = lambda name: sizes  # type: ignore[method-assign]
    if good:
        assert keys.by_layer("n") == sizes[:4]
    else:
        with pytest.raises(ConfigError):
            keys.by_layer("n")


@pytest.mark.parametrize(
    ("total", "read"),
    [(None, None), (1, 1), (2**60 - 1, 2**60 - 1), (12.0, 12), (0, "no"), (-1, "no"), (2**60, "no"),
     (True, "no"), ("9", "no")],
)  # fmt: skip
def test_the_total_of_a_safetensors_index(total: Any, read: Any) -> None:
    data = json.dumps({"metadata": {} if total is None else {"total_size": total}}).encode()
    if read == "no":
        assert not taken(lambda: parse_index(data, "i.json"))
    else:
        assert parse_index(data, "i.json")["total"] == read


@pytest.mark.parametrize(
    ("entry", "read"),
    [
        ({"data_offsets": [0, 8], "shape": [2, 2]}, (4, 8)),
        ({"data_offsets": [8, 8], "shape": []}, (1, 0)),
        ({"data_offsets": [0, 2**50 - 1], "shape": [2]}, (2, 2**50 - 1)),
        ({"data_offsets": [0, 1], "shape": [1] * 16}, (1, 1)),
        ({"data_offsets": [0, 1], "shape": [1] * 17}, None),
        ({"data_offsets": [0, 2**50], "shape": [2]}, None),
        ({"data_offsets": [9, 8], "shape": [2]}, None),
        ({"data_offsets": [0, 8, 9], "shape": [2]}, None),
        ({"data_offsets": [0, -1], "shape": [2]}, None),
        ({"data_offsets": [0, True], "shape": [2]}, None),
        ({"data_offsets": [0, 8]}, None),
        ([0, 8], None),
    ],
)
def test_a_tensor_of_a_safetensors_header(entry: Any, read: tuple[int, int] | None) -> None:
    header = parse_header(json.dumps({"__metadata__": {"format": "pt"}, "w": entry}).encode(), "a")
    if read is None:
        assert not taken(lambda: list(tensors_of(header, "a")))
    else:
        assert list(tensors_of(header, "a")) == [("w", *read)]


@pytest.mark.parametrize(
    ("block", "scheme"),
    [
        ([1, 32], MXFP8), ([32, 1], FP8_BLOCK._replace(block=(32, 1))), ([128, 128], FP8_BLOCK),
        ([4096, 1], FP8_BLOCK._replace(block=(4096, 1))), ([4097, 1], FP8_TENSOR), ([0, 128], FP8_TENSOR),
        ([128], FP8_TENSOR), ([128, 128, 1], FP8_TENSOR), (["128", 128], FP8_TENSOR), (None, FP8_TENSOR),
    ],
)  # fmt: skip
def test_the_block_of_fp8_weights(block: Any, scheme: Any) -> None:
    """Two whole numbers up to 4,096; of anything else the scale is the tensor's."""
    found = read_quantization({"quantization_config": {"quant_method": "fp8", "weight_block_size": block}})
    assert found is not None and found.scheme == scheme


@pytest.mark.parametrize(
    ("group", "read"), [(64, 64), (2**16, 2**16), (2**16 + 1, 128), (-1, 128), (True, 128), ("64", 128)]
)
def test_the_group_of_packed_integers(group: Any, read: int) -> None:
    given = {"quant_method": "gptq", "bits": 4, "group_size": group}
    found = read_quantization({"quantization_config": given})
    assert found is not None and found.scheme == integers(4, read)


@pytest.mark.parametrize(
    ("rope", "factor"),
    [
        ({"factor": 4}, 4.0), ({"factor": 4.5, "type": "yarn"}, 4.5), ({"factor": 1e6}, 1e6),
        ({"factor": 1e6 + 1}, 1.0),
        ({"factor": 0}, 1.0), ({"factor": "4"}, 1.0), ({}, 1.0), ({"factor": 4, "rope_type": "llama3"}, 1.0),
        ({"factor": 4, "original_max_position_embeddings": 4096}, 1.0),
    ],
)  # fmt: skip
def test_the_factor_that_stretches_a_context(rope: dict[str, Any], factor: float) -> None:
    assert _rope_factor(Fields(rope, "x")) == factor


@pytest.mark.parametrize(
    ("stated", "dtype"),
    [
        ({"torch_dtype": "float16"}, "float16"), ({"torch_dtype": "torch.float32"}, "float32"),
        ({"dtype": "bfloat16"}, "bfloat16"), ({"dtype": "half"}, "float16"), ({"dtype": "float8_e4m3fn"}, "bfloat16"),
        ({"dtype": "no_such"}, "bfloat16"), ({"dtype": "auto"}, "bfloat16"), ({}, "bfloat16"),
    ],
)  # fmt: skip
def test_the_dtype_of_a_model_is_one_of_three(stated: dict[str, Any], dtype: str) -> None:
    """What is kept in other types is computed in bfloat16."""
    assert _model_dtype(Fields(stated, "x")) == dtype


def nested(depth: int, kind: Callable[[Any], Any]) -> Any:
    """A value in so many tables or lists."""
    value: Any = 1
    for _ in range(depth):
        value = kind(value)
    return value


@pytest.mark.parametrize(
    ("value", "good"),
    [
        (2**31, True), (2**31 + 1, False), (-(2**31), True), (-(2**31) - 1, False), (1e300, True), (None, True),
        (True, True), ("x" * 4096, True), ("x" * 4097, False), ("a\nb", False), ([1] * 4096, True), ([1] * 4097, False),
        ({str(n): n for n in range(MOST_FIELDS)}, True), ({str(n): n for n in range(MOST_FIELDS + 1)}, False),
        (nested(3, lambda value: {"k": value}), True), (nested(4, lambda value: {"k": value}), False),
        (nested(3, lambda value: [value]), True), (nested(4, lambda value: [value]), False), ({1, 2}, False),
    ],
)  # fmt: skip
def test_fields_of_a_config_in_a_preset_are_few_and_small(value: Any, good: bool) -> None:
    """Four levels with the table itself."""
    adapter = TypeAdapter(ConfigFields)
    assert taken(lambda: adapter.validate_python({"field": value})) is good
    assert MOST_FIELDS == 64
    assert list(adapter.validate_python({"k" * 300: 1})) == ["k" * 200]


@pytest.mark.parametrize(("fields", "head_dim"), [({"mamba_headdim": 16}, 16), ({}, 16)])
def test_heads_of_zamba_share_its_inner_width(fields: dict[str, Any], head_dim: int) -> None:
    """2 x 64 over 8 heads, stated or not."""
    config = small_config("Zamba2ForCausalLM", 2, hybrid_layer_ids=[1], **fields)
    assert read_config(config, name="x", architecture=None)["state"].head_dim == head_dim
