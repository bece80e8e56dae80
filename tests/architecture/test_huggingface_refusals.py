"""Configs that are refused: whole, once, in one line, with every field that is missing or makes no sense."""

import json
from dataclasses import asdict
from math import inf, nan
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from known_models import KNOWN, config_files, config_of
from small_configs import FIELDS, kda_config, small_config

from hybridcalc import Architecture
from hybridcalc.errors import ConfigError

read = Architecture.from_hf_config


def refusal_of(config: Any, **named: str) -> str:
    """The message of the ConfigError that reading ``config`` raises."""
    with pytest.raises(ConfigError) as refusal:
        read(config, **named)
    return refusal.value.message


def test_all_missing_fields_are_named_at_once() -> None:
    """One round trip is enough to complete a config."""
    assert refusal_of({"architectures": ["Qwen3NextForCausalLM"]}, name="k.json") == (
        "k.json: Qwen3NextForCausalLM config, missing num_hidden_layers, layer_types or full_attention_interval, "
        "linear_num_value_heads, linear_num_key_heads, linear_value_head_dim, linear_key_head_dim, "
        "linear_conv_kernel_dim, num_key_value_heads, head_dim, num_attention_heads, hidden_size"
    )


def test_a_missing_table_names_its_fields_too() -> None:
    """Fields inside a table carry its name."""
    assert refusal_of(
        small_config("JetNemotronForCausalLM", 1, layer_types=["jet"], efficient_attention_config={})
    ) == (
        "config.json: JetNemotronForCausalLM config, missing efficient_attention_config.jet, "
        "efficient_attention_config.jet.num_heads, efficient_attention_config.jet.head_dim, "
        "efficient_attention_config.jet.expand_v, efficient_attention_config.jet.conv_size"
    )


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({}, "config.json: not a model config, missing architectures and model_type"),
        ({"architectures": "Llama"}, "config.json: architectures = 'Llama' is no list of class names"),
        ({"architectures": {}, "model_type": "llama"}, "config.json: architectures = {} is no list of class names"),
        ({"text_config": {"architectures": 7}}, "config.json: architectures = 7 is no list of class names"),
        ({"model_type": ["llama"]}, "config.json: model_type = ['llama'] is no text"),
        ({"architectures": ["Qwen9ForCausalLM"]}, "config.json: unknown architecture Qwen9ForCausalLM; nearest known"),
        ({"model_type": "qwen3_nxt"}, "config.json: unknown architecture qwen3_nxt; nearest known: qwen3_next, "),
        ({"model_type": "zzzzzzzz"}, "config.json: unknown architecture zzzzzzzz"),
    ],
    ids=[
        "empty",
        "text for a list",
        "a table for a list",
        "a number for a list",
        "a list for text",
        "unknown class",
        "misspelt type",
        "nothing near",
    ],
)
def test_an_unknown_class_is_refused_with_the_nearest_names(config: dict[str, Any], message: str) -> None:
    """Guessing that an unknown class is plain attention would be a half-read."""
    assert refusal_of(config).startswith(message)


@pytest.mark.parametrize("config", [[], "{}", None, 7], ids=["list", "text", "none", "number"])
def test_what_is_no_object_is_refused(config: Any) -> None:
    """A parsed JSON file may hold anything."""
    assert refusal_of(config) == f"config.json: a config is a JSON object, this is a {type(config).__name__}"


def test_an_unknown_class_given_by_the_caller_is_refused_as_one_of_the_file_is() -> None:
    """``architecture`` overrides the class name; an unknown one is a ConfigError, not a KeyError."""
    assert "unknown architecture Foo" in refusal_of({}, architecture="Foo")


UNUSABLE = {
    "true": True, "false": False, "text": "64", "zero": 0, "negative": -4, "fraction": 2.5, "nan": nan,
    "infinity": inf, "beyond 2**31": 2**31 + 1, "thousands of digits": 10**5000, "list": [64], "table": {},
}  # fmt: skip


@pytest.mark.parametrize("value", UNUSABLE.values(), ids=UNUSABLE)
def test_a_size_that_is_no_positive_whole_number_is_named_with_its_value(value: Any) -> None:
    """Booleans are no numbers, strings are not converted, and sizes are bounded since they are multiplied."""
    message = refusal_of(small_config("Qwen3ForCausalLM", 2, num_attention_heads=value))
    assert "config, not understood: num_attention_heads = " in message and len(message) < 200


CONTRADICTIONS = {
    "layer_types of another length": (
        small_config("Qwen3NextForCausalLM", 3, layer_types=["linear_attention"]),
        "layer_types has 1 entries for 3 layers",
    ),
    "unknown kinds": (
        small_config("Qwen3NextForCausalLM", 2, layer_types=["linear_attention", "magic"]),
        "layer_types has unknown kinds 'magic'",
    ),
    "a list in words": (
        small_config("Qwen3NextForCausalLM", 2, layer_types="every other"), "layer_types = 'every other'"
    ),
    "unknown pattern letters": (
        small_config("NemotronHForCausalLM", None, hybrid_override_pattern="M*XQ"),
        "hybrid_override_pattern has unknown letters Q X",
    ),
    "pattern and list differ": (
        small_config("NemotronHForCausalLM", None, hybrid_override_pattern="M*", layers_block_type=["mamba", "mamba"]),
        "hybrid_override_pattern and layers_block_type differ",
    ),
    "count and pattern differ": (
        small_config("NemotronHForCausalLM", 3, hybrid_override_pattern="M*"),
        "num_hidden_layers = 3, the layer list has 2",
    ),
    "index beyond the layers": (
        small_config("BambaForCausalLM", 2, attn_layer_indices=[2]), "attn_layer_indices names layer 2 of 2"
    ),
    "index 0 where counting starts at 1": (kda_config(2, [0, 1]), "kda_layers names layer 0 of 2"),
    "granite's widths": (
        small_config("GraniteMoeHybridForCausalLM", 2, layer_types=["mamba", "attention"], mamba_expand=3),
        "mamba_n_heads x mamba_d_head = 128, mamba_expand gives 192",
    ),
    "lfm2's widths": (
        small_config("Lfm2ForCausalLM", 2, full_attn_idxs=[0], conv_dim=32), "conv_dim = 32, hidden_size = 64"
    ),
    "attn_type_list": (
        small_config("MiniMaxText01ForCausalLM", 2, attn_type_list=[0, 2]), "attn_type_list must be 2 entries of 0 or 1"
    ),
    "group list": (
        small_config("BailingMoeV3ForCausalLM", 2, layer_group_size=[1]),
        "layer_group_size must be a number or 2 entries of 0 or 1",
    ),
    "more mixers than layers": (
        small_config("MiniCPMSALAForCausalLM", 1, mixer_types=["minicpm4", "lightning-attn"]),
        "mixer_types has 2 entries for 1 layers",
    ),
    "no recurrent layer": (
        small_config("Qwen3NextForCausalLM", 1, layer_types=["full_attention"]), "no layer of the list is recurrent"
    ),
    "too many layers": (small_config("FalconH1ForCausalLM", 4097), "num_hidden_layers = 4097"),
    "a window of no length": (
        small_config("LaraMiniForCausalLM", 2, layer_types=["linear_attention", "sliding_attention"]),
        "missing sliding_window",
    ),
    "key heads that do not divide the value heads": (
        small_config("Qwen3NextForCausalLM", 2, full_attention_interval=2, linear_num_key_heads=3),
        "linear_num_value_heads = 4 is no multiple of linear_num_key_heads = 3",
    ),
    "heads that do not divide the hidden size": (
        small_config("Qwen3ForCausalLM", 2, num_attention_heads=5),
        "hidden_size = 64 is no multiple of num_attention_heads = 5, and no head_dim",
    ),
    "zaya layers below none": (small_config("ZayaForCausalLM", 2, zaya_layers=["a", -1]), "zaya_layers = ['a', -1]"),
    "zaya layers of truth": (small_config("ZayaForCausalLM", 2, zaya_layers=["a", True]), "zaya_layers = ['a', True]"),
    "zaya without attention": (small_config("ZayaForCausalLM", 2, zaya_layers=[4, 4]), "zaya_layers = [4, 4]"),
    "zaya layers in words": (small_config("ZayaForCausalLM", 4, zaya_layers="aaaa"), "zaya_layers = 'aaaa'"),
    "zaya layers that are no kinds": (small_config("ZayaForCausalLM", 2, zaya_layers=["a", "q"]), "zaya_layers"),
    "a table that is a list": (
        small_config("Glm5NextForConditionalGeneration", 4, linear_attn_config=[1]), "linear_attn_config = [1]"
    ),
    "an inner size of nothing": (
        small_config("BambaForCausalLM", 2, attn_layer_indices=[0], mamba_expand=1e-9), "mamba_expand = 1e-09"
    ),
}  # fmt: skip


def test_of_many_unknown_kinds_four_are_named() -> None:
    config = small_config("Qwen3NextForCausalLM", 5, layer_types=["p", "q", "r", "s", "t"])
    assert refusal_of(config).endswith("layer_types has unknown kinds 'p', 'q', 'r', 's'")


@pytest.mark.parametrize(("config", "reason"), CONTRADICTIONS.values(), ids=CONTRADICTIONS)
def test_fields_that_contradict_each_other_are_refused(config: dict[str, Any], reason: str) -> None:
    """A config is refused whole rather than half-read; the reason names the fields and their values."""
    assert reason in refusal_of(config)


@pytest.mark.parametrize(
    "architecture",
    [
        "GigaChat35ForCausalLM",
        "Glm5NextForConditionalGeneration",
        "MiniMaxText01ForCausalLM",
        "Qwen3NextForCausalLM",
        "Qwen4ExpForConditionalGeneration",
    ],
)
def test_a_sliding_window_layer_is_refused_where_the_class_has_no_window(architecture: str) -> None:
    """A window layer without a window would count for nothing: its KV would be left out."""
    refusal_of(small_config(architecture, 2, layer_types=["linear_attention", "sliding_attention"]))


@pytest.mark.parametrize(
    "config",
    [
        {"architectures": ["Foo\nBar"]},
        small_config("NemotronHForCausalLM", None, hybrid_override_pattern="M\n*"),
        {"model_type": "a\x1b[31m\rb"},
    ],
    ids=["class", "pattern", "model_type"],
)
def test_line_breaks_of_a_file_do_not_break_the_message(config: dict[str, Any]) -> None:
    """A refusal is one printable line whatever a file holds."""
    assert refusal_of(config).isprintable()


def check_read_or_refused(config: Any) -> None:
    """Nothing but an Architecture of positive sizes, or a ConfigError of one line."""
    try:
        model = read(config)
    except ConfigError as error:
        lines = error.message.splitlines()
    else:
        lines = [model.describe_layers]
        parts = [part._asdict() for part in (model.attention, model.window_attention) if part is not None]
        parts += [asdict(cast(Any, model.state))] if model.state is not None else []
        sizes = {name: size for part in parts for name, size in part.items() if isinstance(size, int)}
        assert all(size > 0 for name, size in sizes.items() if name not in ("n_groups", "qk_rope_head_dim")), sizes
        assert 1 <= model.num_layers <= 4096 and set(model.layers) <= set("sawbv.")
        assert (model.window is not None) == bool(model.window_layers), model
        assert model.attention is not None or not set(model.layers) & set("abwv"), model
        assert (model.state is not None) == bool(model.state_layers), model
    assert len(lines) == 1, lines


scalars = st.none() | st.booleans() | st.integers(-2, 70) | st.floats() | st.integers() | st.text(max_size=8)
values = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=6) | st.dictionaries(st.text(max_size=6), inner, max_size=4),
    max_leaves=8,
)  # fmt: skip
OPTIONAL = (
    "architectures", "model_type", "num_hidden_layers", "layer_types", "layers_block_type", "text_config",
    "rope_scaling", "linear_attn_config", "hybrid_override_pattern", "layer_group_size", "vision_config",
    "sliding_window", "torch_dtype", "zaya_layers", "mixer_types", "attn_type_list", "index_topk", "ple_layer_ids",
    "mamba_expand", "expand", "head_dim", "full_attention_interval", "attn_layer_period", "attn_layer_offset",
    "local_layer_ids", "hybrid_layer_ids",
)  # fmt: skip


@settings(max_examples=150)
@given(st.sampled_from([*FIELDS]), st.dictionaries(st.sampled_from(OPTIONAL), values, max_size=6))
def test_any_values_in_the_fields_of_a_class_are_read_or_refused_in_one_line(
    architecture: str, fields: dict[str, Any]
) -> None:
    """JSON-like values of every kind in the fields that readers look at."""
    check_read_or_refused(small_config(architecture, 2, **fields))


@given(values)
def test_any_json_value_is_read_or_refused_in_one_line(value: Any) -> None:
    """A file may hold anything."""
    check_read_or_refused(value)


REAL = [config_of(name) | {"architectures": [KNOWN[name]["architecture"]]} for name in KNOWN]
REAL += [json.loads(path.read_text(encoding="utf-8")) for path, _ in config_files().values()]


def _fields_of(config: dict[str, Any]) -> list[tuple[dict[str, Any], str]]:
    nested = [table for table in config.values() if isinstance(table, dict)]
    return [(table, key) for table in (config, *nested) for key in table]


@settings(max_examples=150)
@given(st.sampled_from(REAL), st.data())
def test_a_real_config_with_fields_dropped_or_retyped_is_read_or_refused_in_one_line(
    config: dict[str, Any], data: st.DataObject
) -> None:
    """Released files with up to three fields dropped, replaced or turned into text, a list or a float."""
    config = json.loads(json.dumps(config))
    for _ in range(data.draw(st.integers(1, 3))):
        table, key = data.draw(st.sampled_from(_fields_of(config)))
        change = data.draw(st.sampled_from(["drop", "replace", "text", "list", "float", "shorten"]))
        if change == "drop":
            del table[key]
        elif change == "shorten" and isinstance(table[key], list | str):
            table[key] = table[key][1:]
        else:
            kinds = {"text": str(table[key]), "list": [table[key]], "float": 0.5}
            table[key] = kinds.get(change) if change in kinds else data.draw(values)
    check_read_or_refused(config)
