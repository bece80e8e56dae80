"""What is known of each model: the fields seen in its config and the figures worked out from them by hand.

tests/data/models.json has one entry a model, tests/data/configs whole or partial config.json files. A few entries state
their layer list in words; `config_of` spells it out, as the presets do.
"""

import json
from pathlib import Path
from typing import Any

from hybridcalc import Architecture
from hybridcalc.architecture import kv_elements_per_token

DATA = Path(__file__).resolve().parent.parent / "data"
MODELS: dict[str, dict[str, Any]] = {
    entry["name"]: entry for entry in json.loads((DATA / "models.json").read_text(encoding="utf-8"))
}
KNOWN = {name: entry for name, entry in MODELS.items() if entry["confidence"] != "guess"}

LINEAR, SLIDING, FULL, INDEXED = "linear_attention", "sliding_attention", "full_attention", "indexed_attention"
SPELT_OUT: dict[str, dict[str, Any]] = {
    "GLM-5.3-Flash": {"layer_types": [INDEXED if i % 4 == 3 else LINEAR for i in range(45)]},
    "OLMo-Hybrid-7B": {"layer_types": [FULL if i % 4 == 3 else LINEAR for i in range(32)]},
    "Lara-4-Mini": {"layer_types": [(LINEAR, SLIDING, LINEAR, FULL, SLIDING)[i % 5] for i in range(34)]},
    "LFM3-1.7B": {"layer_types": [FULL if i % 4 == 2 else SLIDING if i and i % 4 == 0 else "conv" for i in range(24)]},
    "Inkling": {"local_layer_ids": [i for i in range(66) if (i + 1) % 6]},
    "Inkling-2-Small": {"local_layer_ids": [i for i in range(48) if (i + 1) % 6]},
    "ZAYA1-8B": {"zaya_layers": ["a"] * 40},
}
FILES_OF_ANOTHER_NAME = {
    "MiniMaxAI--MiniMax-M1": "MiniMax-M1-80k",
    "Qwen--Qwen3-Next-80B-A3B-Thinking": "Qwen3-Next-80B-A3B",
    "thinkingmachines--Inkling-2-Small": "Inkling-2-Small",
    "nvidia--NVIDIA-Nemotron-3-Super-120B-A12B-FP8": "Nemotron-3-Super-120B-A12B",
    "nvidia--Qwen3.6-27B-NVFP4": "Qwen3.6-27B",
    "nvidia--Qwen3.6-35B-A3B-NVFP4": "Qwen3.6-35B-A3B",
}
"""Files of a sibling or quantised release, whose caches are the same."""


def config_of(name: str) -> dict[str, Any]:
    """The config fields of an entry, its layer list spelt out."""
    stated: dict[str, Any] = MODELS[name]["config"]
    return stated | SPELT_OUT.get(name, {})


def config_files() -> dict[str, tuple[Path, str]]:
    """Each file of tests/data/configs, and the entry it belongs to."""
    by_hf_id = {entry["hf_id"].replace("/", "--"): name for name, entry in MODELS.items()}
    stems = {path.name.removesuffix(".json").removesuffix(".partial"): path for path in (DATA / "configs").iterdir()}
    return {stem: (path, FILES_OF_ANOTHER_NAME.get(stem) or by_hf_id[stem]) for stem, path in sorted(stems.items())}


def derived(model: Architecture) -> dict[str, Any]:
    """The figures of an entry's ``derived``, worked out from an Architecture on one rank."""
    state = None
    if model.state is not None:
        shapes = model.state.shapes(1)
        state = {"conv": shapes.conv_elements, "ssm": shapes.temporal_elements}
    row = kv_elements_per_token(model.attention, 1) if model.attention is not None else 0
    return {
        "num_layers": model.num_layers,
        "linear_layers": model.state_layers,
        "full_attention_layers": model.attention_layers,
        "swa_layers": model.window_layers,
        "state_elems_per_layer_tp1": state,
        "kv_bytes_per_token_bf16": model.attention_layers * row * 2,
        "max_context": model.max_context,
        "ssm_dtype_declared": model.declared_ssm_dtype or model.declared_ssm_cache_dtype,
    }
