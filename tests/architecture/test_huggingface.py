"""config.json -> Architecture: every known file reads to its known figures, and every way to state the layers reads."""

import json
from typing import Any

import pytest
from known_models import FILES_OF_ANOTHER_NAME, KNOWN, SPELT_OUT, config_files, config_of, derived
from small_configs import kda_config, small_config

from hybridcalc import Architecture
from hybridcalc.architecture import kv_elements_per_token

read = Architecture.from_hf_config


@pytest.mark.parametrize("name", KNOWN)
def test_known_fields_read_to_the_figures_worked_out_by_hand(name: str) -> None:
    """models.json: layer counts, state elements and KV bytes of each model that is not a guess."""
    model = read(config_of(name), name=name, architecture=KNOWN[name]["architecture"])
    figures = derived(model)
    assert figures == {key: KNOWN[name]["derived"][key] for key in figures}
    assert model.family == KNOWN[name]["family"]


@pytest.mark.parametrize("name", [name for name, entry in KNOWN.items() if "swa" in entry["derived"]])
def test_known_sliding_windows_read_to_their_bytes(name: str) -> None:
    """Window layers keep KV of their own head count, up to the window."""
    model, swa = read(config_of(name), architecture=KNOWN[name]["architecture"]), KNOWN[name]["derived"]["swa"]
    attention: Any = model.window_attention or model.attention
    row = kv_elements_per_token(attention, 1)
    assert (model.window, model.window_layers * row * 2) == (swa["window"], swa["bytes_per_token_bf16"])


@pytest.mark.parametrize("stem", config_files())
def test_every_config_file_reads_to_the_same_figures(stem: str) -> None:
    """Whole and partial config.json files, quantised and sibling releases among them."""
    path, name = config_files()[stem]
    figures = derived(read(json.loads(path.read_text(encoding="utf-8")) | SPELT_OUT.get(name, {})))
    assert figures == {key: KNOWN[name]["derived"][key] for key in figures}


def test_files_of_another_name_are_there() -> None:
    """The table of sibling releases names files that exist."""
    assert set(FILES_OF_ANOTHER_NAME) <= set(config_files())


LAYER_RULES = {
    "interval": ("Qwen3NextForCausalLM", 8, {"full_attention_interval": 4}, "sssasssa"),
    "interval with a remainder": ("Qwen3NextForCausalLM", 6, {"full_attention_interval": 4}, "sssass"),
    "layer_types": ("Qwen3NextForCausalLM", 2, {"layer_types": ["full_attention", "linear_attention"]}, "as"),
    "layer_types beside the interval": (
        "Qwen3NextForCausalLM", 2,
        {"layer_types": ["linear_attention", "full_attention"], "full_attention_interval": 2}, "sa",
    ),
    "sparse attention names": (
        "Qwen4ExpForConditionalGeneration", 3,
        {"layer_types": ["linear_attention", "qwen_sparse_attention", "indexed_attention"]}, "saa",
    ),
    "lara has windows": (
        "LaraMiniForCausalLM", 3,
        {"layer_types": ["linear_attention", "sliding_attention", "full_attention"], "sliding_window": 8}, "swa",
    ),
    "gigachat indices from 0": ("GigaChat35ForCausalLM", 3, {"full_attention_layers": [0, 2]}, "asa"),
    "gigachat layer_types": (
        "GigaChat35ForCausalLM", 2, {"layer_types": ["linear_attention", "full_attention"]}, "sa"
    ),
    "glm from 0": ("Glm5NextForConditionalGeneration", 4, {"linear_attn_config": {"kda_layers": [0, 1]}}, "ssaa"),
    "glm layer_types": (
        "Glm5NextForConditionalGeneration", 2, {"layer_types": ["indexed_attention", "linear_attention"]}, "as"
    ),
    "glm default": ("Glm5NextForConditionalGeneration", 6, {}, "sssass"),
    "ling-3 group size": ("BailingMoeV3ForCausalLM", 5, {"layer_group_size": 4}, "sssas"),
    "ling-3 group list": ("BailingMoeV3ForCausalLM", 4, {"layer_group_size": [1, 0, 1, 1]}, "sass"),
    "ling-2.5 group list": ("BailingMoeV2_5ForCausalLM", 3, {"layer_group_size": [0, 1, 1]}, "ass"),
    "ring-2 remainder is attention": ("BailingMoeLinearV2ForCausalLM", 5, {"layer_group_size": 2}, "sasaa"),
    "ring-2 group list": ("BailingMoeLinearV2ForCausalLM", 2, {"layer_group_size": [1, 0]}, "sa"),
    "nemotron pattern": ("NemotronHForCausalLM", None, {"hybrid_override_pattern": "M-*E"}, "s.a."),
    "nemotron block types": (
        "NemotronHForCausalLM", None, {"layers_block_type": ["mamba", "mlp", "attention", "moe"]}, "s.a."
    ),
    "nemotron both and a count": (
        "NemotronHForCausalLM", 2, {"hybrid_override_pattern": "*M", "layers_block_type": ["attention", "mamba"]}, "as"
    ),
    "falcon-h1 has both in every layer": ("FalconH1ForCausalLM", 3, {}, "bbb"),
    "granite layer_types": ("GraniteMoeHybridForCausalLM", 2, {"layer_types": ["mamba", "attention"]}, "sa"),
    "granite block types": ("GraniteMoeHybridForCausalLM", 2, {"layers_block_type": ["attention", "mamba"]}, "as"),
    "bamba indices from 0": ("BambaForCausalLM", 3, {"attn_layer_indices": [1]}, "sas"),
    "zamba2 ids": ("Zamba2ForCausalLM", 3, {"hybrid_layer_ids": [1]}, "sbs"),
    "zamba2 words": ("Zamba2ForCausalLM", 2, {"layers_block_type": ["mamba", "hybrid"]}, "sb"),
    "zamba2 letters": ("Zamba2ForCausalLM", 2, {"layers_block_type": ["g", "m"]}, "bs"),
    "jamba period and offset": ("JambaForCausalLM", 6, {"attn_layer_period": 4, "attn_layer_offset": 1}, "sasssa"),
    "plamo2 step": ("Plamo2ForCausalLM", 4, {}, "sasa"),
    "plamo2 of fewer layers than half a step": ("Plamo2ForCausalLM", 2, {"mamba_step": 4}, "sa"),
    "plamo2 windows": ("Plamo2ForCausalLM", 4, {"attention_window_size": 8, "full_attention_idx": [3]}, "swsa"),
    "plamo2 without mamba": ("Plamo2ForCausalLM", 2, {"mamba_enabled": False}, "aa"),
    "minimax 0 is linear": ("MiniMaxText01ForCausalLM", 3, {"attn_type_list": [0, 0, 1]}, "ssa"),
    "minimax layer_types": (
        "MiniMaxText01ForCausalLM", 2, {"layer_types": ["linear_attention", "full_attention"]}, "sa"
    ),
    "minicpm mixers repeat": ("MiniCPMSALAForCausalLM", 5, {"mixer_types": ["minicpm4", "lightning-attn"]}, "asasa"),
    "lfm2 indices": ("Lfm2ForCausalLM", 3, {"full_attn_idxs": [2]}, "ssa"),
    "lfm layer_types": (
        "Lfm2ForCausalLM", 4,
        {"layer_types": ["conv", "short_conv", "full_attention", "sliding_attention"], "sliding_window": 8}, "ssaw",
    ),
    "zaya even layers": ("ZayaForCausalLM", 4, {}, "b.b."),
    "zaya listed": ("ZayaForCausalLM", 2, {"zaya_layers": ["a", "a"]}, "bb"),
    "zaya of one layer": ("ZayaForCausalLM", 1, {"zaya_layers": ["a"]}, "b"),
    "zaya counts of experts": ("ZayaForCausalLM", 4, {"zaya_layers": ["a", 16, "a", 0]}, "b.b."),
    "zaya of an odd number": ("ZayaForCausalLM", 3, {}, "b.b"),
    "inkling local ids": ("InklingForConditionalGeneration", 3, {"local_layer_ids": [0, 1]}, "vvb"),
    "jet": ("JetNemotronForCausalLM", 3, {"layer_types": ["jet", "attn", "swa"]}, "saw"),
    "pure mamba2": ("Mamba2ForCausalLM", 3, {}, "sss"),
    "pure mamba1": ("FalconMambaForCausalLM", 2, {}, "ss"),
    "dense": ("Qwen3ForCausalLM", 2, {"sliding_window": None}, "aa"),
    "dense from max_window_layers on": (
        "Qwen3ForCausalLM", 3, {"sliding_window": 8, "use_sliding_window": True, "max_window_layers": 1}, "aww"
    ),
    "dense with a window it does not use": (
        "Qwen3ForCausalLM", 2, {"sliding_window": 8, "use_sliding_window": False}, "aa"
    ),
    "gemma3 pattern": ("Gemma3ForCausalLM", 4, {"sliding_window": 8, "sliding_window_pattern": 3}, "wwaw"),
    "gemma2 alternates by default": ("Gemma2ForCausalLM", 4, {"sliding_window": 8}, "wawa"),
    "gpt-oss alternates by default": ("GptOssForCausalLM", 4, {"sliding_window": 8}, "wawa"),
    "olmo3 has one in four by default": ("Olmo3ForCausalLM", 5, {"sliding_window": 8}, "wwwaw"),
    "gemma3 has one in six by default": ("Gemma3ForCausalLM", 7, {"sliding_window": 8}, "wwwwwaw"),
    "gemma3 with images too": ("Gemma3ForConditionalGeneration", 7, {"sliding_window": 8}, "wwwwwaw"),
}  # fmt: skip


@pytest.mark.parametrize(("architecture", "count", "fields", "layers"), LAYER_RULES.values(), ids=LAYER_RULES)
def test_each_way_to_state_the_layers(architecture: str, count: int, fields: dict[str, Any], layers: str) -> None:
    """The layer rules of each class, as the engines' and the library's config classes expand them."""
    assert read(small_config(architecture, count, **fields)).layers == layers


def test_kimi_counts_its_layers_from_one() -> None:
    """kda_layers is 1-based, unlike every other list of indices; what it does not name is MLA."""
    assert read(kda_config(5, [1, 2, 3])).layers == "sssaa"
