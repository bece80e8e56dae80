"""Release and model that the text around a log tells: issue forms, environment dumps, image tags, sentences."""

from __future__ import annotations

import pytest
from diagnosed import diagnosed

from hybridcalc.bootlog.prose import find
from hybridcalc.diagnosis.names import Hints, alike, hints_of

CAPACITY = (
    "INFO [kv_cache_utils.py:1319] GPU KV cache size: 290,864 tokens\n"
    "INFO [kv_cache_utils.py:1324] Maximum concurrency for 32,768 tokens per request: 33.04x\n"
)
PAGES = "INFO [interface.py:911] Setting attention block size to 1568 tokens to ensure\n"
POOLS = (
    "[2026-03-01 10:00:01 TP0] Mamba Cache is allocated. max_mamba_cache_size: 124, conv_state size: 0.34GB, "
    "ssm_state size: 17.58GB \n"
    "[2026-03-01 10:00:01 TP0] KV Cache is allocated. dtype: torch.bfloat16, #tokens: 330323, K size: 10.08 GB, "
    "V size: 10.08 GB\n"
)


def hints(text: str) -> Hints:
    return hints_of([found.record for found in find(text.encode())])


@pytest.mark.parametrize(
    ("text", "engine", "release"),
    [
        ("vLLM version: 0.29.0\n", "vllm", "0.29.0"),
        ("vLLM Version                 : 0.29.0\nvLLM Build Flags:\n", "vllm", "0.29.0"),
        ("[pip3] vllm==0.29.0+cu130\n", "vllm", "0.29.0"),
        ("Name: vllm\nVersion: 0.29.0\nSummary: serving\n", "vllm", "0.29.0"),
        ("vllm                     0.29.0\n", "vllm", "0.29.0"),
        ("image: vllm/vllm-openai:v0.29.0-cu130\n", "vllm", "0.29.0"),
        ("- vLLM: 0.29.0\n", "vllm", "0.29.0"),
        ("| vLLM | 0.29.0 |\n", "vllm", "0.29.0"),
        ("2 x H100, vLLM v0.29.0, CUDA 13\n", "vllm", "0.29.0"),
        ("docker run lmsysorg/sglang:v0.5.12.post1-cu130\n", "sglang", "0.5.12.post1"),
        ("sglang: 0.5.10.post1\nsgl_kernel: 0.3.9\n", "sglang", "0.5.10.post1"),
        ("It broke after vLLM 0.28.0.\n\nvLLM version: 0.29\nvllm==0.29.0\n", "vllm", "0.29.0"),
    ],
)
def test_releases_as_people_write_them(text: str, engine: str, release: str) -> None:
    assert {name: hint.said for name, hint in hints(text).releases.items()} == {engine: release}


@pytest.mark.parametrize(
    "text",
    [
        "It worked before vLLM 0.28.0.\n",
        "vLLM 0.28 and vLLM 0.29.0 both fail\n",
        "vllm 0.12 % slower\n",
        "a padded vllm-flash-attn 2.6.2, the sglang-router 0.2.1\n",
        "vLLM version: main\n",
    ],
)
def test_what_tells_no_release(text: str) -> None:
    assert not hints(text).releases


@pytest.mark.parametrize(
    ("text", "model"),
    [
        ("Model: Qwen/Qwen3.8-27B\n", "Qwen/Qwen3.8-27B"),
        ("| Model | Qwen3.6-27B-FP8 |\n", "Qwen3.6-27B-FP8"),
        ("- model name: https://huggingface.co/Qwen/Qwen3.6-27B\n", "Qwen/Qwen3.6-27B"),
        ("# Qwen3.6-27B does not start on two RTX-3090\n", "Qwen3.6-27B"),
        ("Model: Qwen3.6-27B\nSmaller ones, as Qwen3.5-9B, run.\n", "Qwen3.6-27B"),
        ("Model name:            AMD EPYC 7763 64-Core Processor\nModel:   1\n", None),
        ("Qwen3.6-27B runs, Qwen3.5-9B does not\n", None),
        ("Model: Qwen3.6-27B\nModel: Qwen3.5-9B\n", None),
    ],
)
def test_models_as_people_write_them(text: str, model: str | None) -> None:
    told = hints(text).model
    assert (told.said if told is not None else None) == model


def test_releases_that_may_be_the_same() -> None:
    assert alike("0.29", "v0.29.0") and alike("0.29.0", "0.29.0, by the rules of 0.33.0")
    assert not alike("0.2", "0.29.0") and not alike("0.28.0", "0.29.0")


def test_an_issue_form_fills_what_the_log_leaves_out() -> None:
    found = diagnosed(f"### Environment\nvLLM version: 0.19.0\nModel: Qwen/Qwen3.5-27B\n\n{PAGES}{CAPACITY}")
    assert found.headline.startswith("vLLM 0.19.0, as told, qwen3.5-27b") and found.version == "0.19.0"
    [said] = [one.message for one in found.findings if one.rule == "HC117"]
    assert said == ("line 2 says vLLM 0.19.0, line 3 names Qwen/Qwen3.5-27B: read from the text around the log")


def test_what_the_log_prints_counts_over_the_text_around_it() -> None:
    """A report of one model, and a launch of another; another release than the one that is printed."""
    text = "vLLM version: 0.19.0\nModel: Qwen/Qwen3.5-35B-A3B\nvllm serve Qwen3.5-27B --max-model-len 32768\n"
    printed = "INFO [api_utils.py:1] vLLM API server version 0.20.0\n"
    found = diagnosed(text + printed + CAPACITY)
    assert found.headline.startswith("vLLM 0.20.0, qwen3.5-27b")
    assert [one.message for one in found.findings if one.rule == "HC117"] == [
        "line 1 says vLLM 0.19.0, the log is of 0.20.0: it counts",
        "line 2 says Qwen/Qwen3.5-35B-A3B, the log names Qwen3.5-27B: the log counts",
    ]


def test_a_release_whose_lines_are_others_is_not_believed() -> None:
    """0.29 prints the capacity of all groups, which 290,864 tokens at 33.04 x 32,768 are not."""
    found = diagnosed("vLLM version: 0.29.0\n" + CAPACITY)
    assert found.headline.startswith("vLLM before 0.20") and "as told" not in found.headline
    assert any(one.message.startswith("line 1 says vLLM 0.29.0, the log is of before") for one in found.findings)


def test_sglang_takes_release_and_model_from_the_text_where_its_lines_allow_it() -> None:
    assert "fits qwen3.5-27b, qwen3.6-27b, qwen3.8-27b" in " ".join(f.message for f in diagnosed(POOLS).findings)
    found = diagnosed(f"sglang: 0.5.20\nModel: Qwen/Qwen3.6-27B\n{POOLS}")
    assert found.headline.startswith("SGLang 0.5.20, as told, qwen3.6-27b on TP1")
    old = diagnosed(f"sglang: 0.5.9\n{POOLS}")
    assert "as told" not in old.headline
    assert any("line 1 says SGLang 0.5.9, the log is of" in one.message for one in old.findings)


def test_a_model_of_other_sizes_is_said_and_not_believed() -> None:
    found = diagnosed(f"Model: Qwen/Qwen3.5-9B\n{POOLS}")
    assert "qwen3.5-27b" in found.headline
    assert any("Qwen/Qwen3.5-9B, whose sizes are not those of the log" in one.message for one in found.findings)


def test_a_model_that_is_but_mentioned_decides_between_those_that_fit() -> None:
    found = diagnosed(f"Unlike Qwen3.5-9B, Qwen3.8-27B queues on this card.\n{POOLS}")
    assert found.headline.endswith("qwen3.8-27b on TP1, fp32 state, bf16 KV")
    by_pages = diagnosed(f"vLLM version: 0.28.0\nUnlike Qwen3.5-9B, Qwen3.8-27B queues.\n{PAGES}")
    assert {one.model for one in by_pages.candidates} == {"qwen3.8-27b"}


def test_llama_cpp_takes_the_model_that_the_text_speaks_of() -> None:
    text = (
        "llama_kv_cache: size = 4096.00 MiB ( 65536 cells,  16 layers,  1/1 seqs), K (f16): 2048.00 MiB, V (f16): "
        "2048.00 MiB\n"
        "llama_memory_recurrent: size =  149.62 MiB (     1 cells,  64 layers,  1 seqs), R (f32):    5.62 MiB, "
        "S (f32):  144.00 MiB\n"
    )
    assert "caches as of" in diagnosed(text).headline
    assert diagnosed(f"# Qwen3.6-27B loops\n{text}").headline == "llama.cpp, qwen3.6-27b"


def test_a_model_that_no_figure_is_held_against_has_no_dtypes() -> None:
    """Of a refusal alone the model is known by name: no page was printed that would fit it."""
    refused = "ValueError: max_num_seqs (1024) exceeds available Mamba cache blocks (614).\n"
    found = diagnosed(f"Deploy Qwen3.6-27B on one H100.\n{refused}")
    assert found.headline == "vLLM, qwen3.6-27b: does not start" and not found.candidates
    assert not any("pages fit" in one.message for one in found.findings)


def test_an_error_of_no_engine_is_that_of_the_environment_around_it() -> None:
    oom = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 32.00 GiB.\n"
    found = diagnosed(f"vLLM Version: 0.20.0\n{oom}")
    assert found.headline == "vLLM 0.20.0, as told: does not start"
    [error] = [one for one in found.findings if one.severity == "error"]
    assert error.fix.startswith("lower --gpu-memory-utilization") and "draft states" not in error.fix
    assert diagnosed(oom).headline.startswith("a server")
    assert diagnosed(f"vllm==0.20.0\nsglang==0.5.12\n{oom}").headline.startswith("a server")


def test_an_engine_that_failed_with_its_hybrid_manager_off_failed_of_that() -> None:
    off = "WARNING [kv_cache_utils.py:1170] Hybrid KV cache manager is disabled for this hybrid model, This means\n"
    failed = "ERROR 03-04 12:47:30 [core.py:1029] EngineCore failed to start.\n"
    [error] = [one for one in diagnosed(off + failed).findings if one.severity == "error"]
    assert error.message == "line 1: the hybrid KV cache manager is off, and the engine failed to start"
    assert "--kv-transfer-config" in error.fix
    [unknown] = [one for one in diagnosed(failed).findings if one.severity == "error"]
    assert unknown.message == "the engine failed to start"


def test_graphs_that_a_release_does_not_charge_are_not_kept_from_the_cache() -> None:
    text = (
        "INFO [gpu_model_runner.py:5686] Estimated CUDA graph memory: 0.12 GiB total\n"
        "INFO [gpu_worker.py:436] Available KV cache memory: -3.71 GiB\n"
        "ValueError: No available memory for the cache blocks.\n"
    )
    later = "INFO [gpu_worker.py:490] In v0.19, CUDA graph memory profiling will be enabled by default (VLLM_X=1)\n"
    assert "kept for graphs" in diagnosed(text).meaning
    assert "kept for graphs" not in diagnosed(later + text).meaning


@pytest.mark.parametrize(("block", "padding", "drafts"), [(448, "3.23", 7), (480, "1.27", 15)])
def test_drafters_of_whole_blocks_widen_the_pages(block: int, padding: str, drafts: int) -> None:
    """48 heads x 128 x 128 x 2 + (3 + D) x 10,240 x 2 B of Qwen3.8-27B's bf16 state, in pages of 4,096 B a token."""
    state = 48 * 128 * 128 * 2 + (3 + drafts) * 10_240 * 2
    assert f"{100 * (block * 4096 / state - 1):.2f}" == padding
    text = (
        f"Qwen3.8-27B with DFlash\nSetting attention block size to {block} tokens to ensure\n"
        f"Padding mamba page size by {padding}% to ensure\n"
    )
    found = diagnosed(text)
    assert found.model_guess.startswith("qwen3.8-27b")
    assert any(f"with {drafts} draft tokens" in one.message for one in found.findings)


@pytest.mark.parametrize("time", ["0.02.208 I ", "3.45.67 I ", "0.943 "])
def test_a_clock_behind_the_name_of_a_container_is_no_release(time: str) -> None:
    line = f"sglang   {time}llama_kv_cache: CUDA0 KV buffer size = 8.00 MiB\n"
    assert hints_of(one.record for one in find(line.encode())).releases == {}


def test_a_label_in_front_of_several_models_states_none() -> None:
    line = b"- Models: Qwen3.6-27B, Qwen3.6-35B-A3B, Qwen3.8-27B\n"
    assert hints_of(one.record for one in find(line)).model is None
    assert hints_of(one.record for one in find(b"- Model: Qwen3.6-27B, in bf16\n")).model is not None
