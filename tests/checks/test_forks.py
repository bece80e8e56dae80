"""Programs made of an engine: their own flags are not the engine's to judge."""

from __future__ import annotations

from pathlib import Path

import pytest
from judged import check, found

FORKS = (
    (
        "ghcr.io/ikawrakow/ik-llama-cpp@sha256:5f914f1c",
        'llama-server, -m, /models/Qwen3.6-27B-Q4_K_M.gguf, -c, "32768", --split-mode, graph, --max-gpu, "2", --fit',
        "ik_llama.cpp",
    ),
    (
        "anbeeld/beellama.cpp:v0.3.2",
        'llama-server, -m, /models/Qwen3.6-27B-Q4_K_M.gguf, -c, "32768", --kvarn-mode, both, --split-mode, graph',
        "beellama.cpp",
    ),
    (
        "vllm/vllm-omni:v0.26.0",
        'vllm, serve, Qwen/Qwen3.6-27B, --vae-parallel-mode, tile, --max-num-seqs, "8"',
        "vLLM-Omni",
    ),
)


@pytest.mark.parametrize(("image", "words", "name"), FORKS)
def test_flags_of_a_fork_are_not_called_unknown(tmp_path: Path, image: str, words: str, name: str) -> None:
    """Neither names nor values of its own; the program is named, and what both share is read."""
    checked = check(tmp_path, f"services:\n  one:\n    image: {image}\n    command: [{words}]\n", "compose.yaml")
    assert "HC071" not in found(checked)
    assert any(f"its image is of {name}: " in note for note in checked.notes)
    assert checked.model_preset == "qwen3.6-27b"
    assert {"--ctx-size", "--max-num-seqs"} & {value.flag for value in checked.values}


def test_the_same_flags_are_errors_of_the_engine_itself(tmp_path: Path) -> None:
    """llama.cpp's own image has no split mode of that name."""
    own = "services:\n  one:\n    image: ghcr.io/ggml-org/llama.cpp:server-cuda-b11549\n    command: [-m, a.gguf, {}]\n"
    checked = check(tmp_path, own.format("--split-mode, graph"), "compose.yaml")
    assert "HC071" in found(checked)


def test_a_recipe_names_the_image_of_its_model(tmp_path: Path) -> None:
    """One of vLLM's recipes, whose model is served by vLLM-Omni."""
    text = (
        "model:\n  model_id: Qwen/Qwen3.6-27B\n  docker_image: {nvidia: 'vllm/vllm-omni:minimax-h3'}\n"
        "variants:\n  default:\n    vllm_args: [--vae-parallel-mode, tile, --max-num-seqs, '8']\n"
    )
    checked = check(tmp_path, text, "recipe.yaml")
    assert "HC071" not in found(checked)
