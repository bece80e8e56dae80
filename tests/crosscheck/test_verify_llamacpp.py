"""``verify --engine llama.cpp``: layouts by the engine itself, of tiny models and of full-size ones in sparse files."""

import json
import os
import sys
from math import prod
from pathlib import Path
from typing import Any

import pytest
from command_line import run
from gguf_files import ALIGNMENT, header

sys.path.insert(0, str(Path(__file__).parents[1] / "engines"))
from llamacpp_server import TINY, write_tiny

from hybridcalc import llamacpp, load_model
from hybridcalc.crosscheck import llamacpp as room

Q8_0, F32 = 8, 0


def shape(name: str, kind: str, sizes: dict[str, Any], vocabulary: int) -> tuple[int, ...]:
    """The dimensions of a tensor, by its name and the sizes of a model of its kind."""
    hidden, wide = sizes["embedding_length"], sizes["feed_forward_length"]
    heads, key, value = (sizes.get(f"attention.{part}", 0) for part in ("head_count", "key_length", "value_length"))
    kv = sizes.get("attention.head_count_kv", 0)
    kv = max(kv) if isinstance(kv, list) else kv
    inner, state, rank, groups = (
        sizes.get(f"ssm.{part}", 0) for part in ("inner_size", "state_size", "time_step_rank", "group_count")
    )
    taps, columns = sizes.get("ssm.conv_kernel", 0), inner + 2 * groups * state
    qwen, part = kind == "qwen35", name.split(".", 2)[-1] if name.startswith("blk.") else name
    one = (1,) if not qwen else ()
    found: dict[str, tuple[int, ...]] = {
        "token_embd.weight": (hidden, vocabulary),
        "output.weight": (hidden, vocabulary),
        "attn_q.weight": (hidden, heads * key * (2 if qwen else 1)),
        "attn_k.weight": (hidden, kv * key),
        "attn_v.weight": (hidden, kv * value),
        "attn_output.weight": (heads * value, hidden),
        "attn_q_norm.weight": (key,),
        "attn_k_norm.weight": (key,),
        "attn_qkv.weight": (hidden, columns),
        "attn_gate.weight": (hidden, inner),
        "ssm_conv1d.weight": (taps, columns),
        "ssm_conv1d.bias": (columns,),
        "ssm_dt.bias": (rank,),
        "ssm_a": (*one, rank),
        "ssm_d": (*one, rank),
        "ssm_beta.weight": (hidden, rank),
        "ssm_alpha.weight": (hidden, rank),
        "ssm_norm.weight": (state,) if qwen else (inner // max(groups, 1), groups),
        "ssm_in.weight": (hidden, 2 * inner + 2 * groups * state + rank),
        "ssm_out.weight": (inner, hidden),
        "ffn_gate.weight": (hidden, wide),
        "ffn_up.weight": (hidden, wide),
        "ffn_down.weight": (wide, hidden),
        "shortconv.conv.weight": (sizes.get("shortconv.l_cache", 0), hidden),
        "shortconv.in_proj.weight": (hidden, 3 * hidden),
        "shortconv.out_proj.weight": (hidden, hidden),
    }
    return found.get(part, (hidden,))


FULL: dict[str, tuple[str, str, dict[str, Any], int]] = {
    "qwen3.5-27b": ("qwen35", "sssa" * 16, {
        "embedding_length": 5120, "feed_forward_length": 17408, "attention.head_count": 24,
        "attention.head_count_kv": 4, "attention.key_length": 256, "attention.value_length": 256,
        "ssm.inner_size": 6144, "ssm.state_size": 128, "ssm.time_step_rank": 48, "ssm.group_count": 16,
        "rope.dimension_count": 64, "rope.dimension_sections": [11, 11, 10, 0]}, 248320),
    "falcon-h1-34b": ("falcon-h1", "b" * 72, {
        "embedding_length": 5120, "feed_forward_length": 21504, "attention.head_count": 20,
        "attention.head_count_kv": 4, "attention.key_length": 128, "attention.value_length": 128,
        "ssm.inner_size": 4096, "ssm.state_size": 256, "ssm.time_step_rank": 32, "ssm.group_count": 2,
        "rope.dimension_count": 128}, 261120),
    "lfm2-2.6b": ("lfm2", "", {
        "embedding_length": 2048, "feed_forward_length": 10752, "attention.head_count": 32,
        "attention.key_length": 64, "attention.value_length": 64, "rope.dimension_count": 64}, 65536),
    "granite-4.0-h-micro": ("granitehybrid", "", {
        "embedding_length": 2048, "feed_forward_length": 8192, "attention.head_count": 32,
        "attention.key_length": 64, "attention.value_length": 64, "rope.dimension_count": 64,
        "ssm.inner_size": 4096, "ssm.state_size": 128, "ssm.time_step_rank": 64, "ssm.group_count": 1}, 100352),
    "codestral-mamba-7b": ("mamba2", "s" * 64, {
        "embedding_length": 4096, "ssm.inner_size": 8192, "ssm.state_size": 128, "ssm.time_step_rank": 128,
        "ssm.group_count": 8}, 32768),
}  # fmt: skip
"""Released models: kind, layers (of the preset where it is empty), sizes, vocabulary."""


def write_full(name: str, path: Path) -> Path:
    """A released model in a sparse file: a header with its sizes, and room for all its tensors in Q8_0."""
    kind, layers, own, vocabulary = FULL[name]
    layers = layers or load_model(name).layers
    sizes = TINY[kind]["metadata"] | own | {"block_count": len(layers), "context_length": 131072}
    kv = load_model(name).attention
    if "attention.head_count_kv" not in own and kv is not None:
        sizes["attention.head_count_kv"] = [kv.kv_heads if letter == "a" else 0 for letter in layers]  # type: ignore[union-attr]
    patterns: dict[str, list[str]] = {}
    tiny = dict.fromkeys(each.split(".")[1] for each in TINY[kind]["tensors"] if each.startswith("blk."))
    for number in tiny:
        parts = [each.split(".", 2)[2] for each in TINY[kind]["tensors"] if each.startswith(f"blk.{number}.")]
        letter = "b" if kind == "falcon-h1" else "a" if "attn_k.weight" in parts else "s"
        patterns.setdefault(letter, parts)
    names = [each for each in TINY[kind]["tensors"] if not each.startswith("blk.")]
    names += [f"blk.{layer}.{part}" for layer, letter in enumerate(layers) for part in patterns[letter]]
    metadata = {
        "general.architecture": kind,
        **{f"{kind}.{key}": held for key, held in sizes.items()},
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "default",
        "tokenizer.ggml.tokens": [f"t{number}" for number in range(vocabulary)],
        "tokenizer.ggml.merges": ["t 0"],
        "tokenizer.ggml.token_type": [1] * vocabulary,
        "tokenizer.ggml.bos_token_id": 0,
        "tokenizer.ggml.eos_token_id": 1,
    }
    tensors, held = {}, []
    for each in names:
        dimensions = shape(each, kind, sizes, vocabulary)
        quantised = len(dimensions) == 2 and dimensions[0] % 32 == 0 and "norm" not in each
        tensors[each] = (dimensions, Q8_0 if quantised else F32)
        held.append(prod(dimensions) // 32 * 34 if quantised else 4 * prod(dimensions))
    data = header(metadata, tensors, held)
    path.write_bytes(data)
    os.truncate(path, -(-len(data) // ALIGNMENT) * ALIGNMENT + sum(-(-size // ALIGNMENT) * ALIGNMENT for size in held))
    return path


@pytest.mark.parametrize("kind", ["qwen35", "falcon-h1", "lfm2", "granitehybrid", "mamba2"])
def test_shapes_are_those_of_the_tiny_models(kind: str) -> None:
    """What full-size files are written by gives the shapes that the loader took of the tiny ones."""
    tiny = TINY[kind]
    assert {name: list(shape(name, kind, tiny["metadata"], 256)) for name in tiny["tensors"]} == tiny["tensors"]


@pytest.mark.needs("xllamacpp")
@pytest.mark.parametrize("name", FULL)
def test_full_size_models_are_laid_out_as_planned(name: str, tmp_path: Path) -> None:
    """Every line of the engine's layout of a model of up to 38 GB, whose file takes a few MB, is the plan's."""
    path = write_full(name, tmp_path / "full.gguf")
    assert path.stat().st_blocks * 512 < 2**25
    model, args = load_model(str(path)), llamacpp.ContextParams(n_ctx=32768, n_seq_max=4, type_k="q8_0", type_v="q8_0")
    found = room.booted(model, args)
    assert found.ok, [line for line in found.lines if not line.ok]
    preset = load_model(name)
    assert (model.layers, model.attention) == (preset.layers, preset.attention)
    caches = 2 if model.attention is not None else 1
    assert [line.name for line in found.lines] == [
        *["KV", "states"][2 - caches :],
        "weights",
        "KV and states",
        "compute buffer",
    ]
    assert found.lines[0].printed == found.lines[0].planned


@pytest.mark.needs("xllamacpp")
@pytest.mark.parametrize(
    ("flags", "code"),
    [(("-c", "8192", "-np", "4"), 0), (("-c", "4096", "-ctk", "q8_0", "-fa", "off", "-ctv", "q8_0"), 0)],
)
def test_the_command_boots_a_file(flags: tuple[str, ...], code: int, tmp_path: Path) -> None:
    """What starts has its lines side by side; what the plan refuses, the engine does not start."""
    path = write_tiny("qwen35", tmp_path / "tiny.gguf")
    answer = run("verify", str(path), "--engine", "llama.cpp", *flags, "--json")
    document = json.loads(answer.out)
    assert answer.code == code and document["ok"] and document["engine"] == "llama.cpp" and document["lines"]
    assert "agree" in run("verify", "--", "llama-server", "-m", str(path), *flags).out


@pytest.mark.needs("xllamacpp")
def test_what_differs_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A plan that is wrong by a state is found out, with exit code 1."""
    path = write_tiny("lfm2", tmp_path / "tiny.gguf")
    monkeypatch.setattr("hybridcalc.engines.llamacpp.planner.Prepared.r_bytes", property(lambda ready: 12345))
    answer = run("verify", str(path), "--engine", "llama.cpp", "-c", "4096")
    assert answer.code == 1 and "differ" in answer.out and "printed: " in " ".join(answer.out.split())


@pytest.mark.needs("xllamacpp")
def test_a_file_that_the_engine_does_not_load(tmp_path: Path) -> None:
    """Its own reason in a line, no traceback of its wheel."""
    path = write_tiny("qwen35", tmp_path / "tiny.gguf")
    os.truncate(path, 200_000)
    answer = run("verify", str(path), "--engine", "llama.cpp", "-c", "4096")
    assert answer.code == 2 and "data is not within the file bounds" in answer.err and "Traceback" not in answer.err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("qwen3.5-27b",), "llama.cpp is verified by booting a GGUF file, and qwen3.5-27b is none"),
        (("x.gguf", "--device", "cpu"), "--device says nothing of an engine that is booted whole"),
        (("--all",), "--all says nothing of an engine that is booted whole"),
    ],
)
def test_what_it_is_not_for(words: tuple[str, ...], said: str) -> None:
    answer = run("verify", *words, "--engine", "llama.cpp", "-c", "4096")
    assert answer.code == 2 and said in answer.err
