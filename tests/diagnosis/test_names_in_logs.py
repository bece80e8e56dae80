"""How a log names its model: paths, cache folders, commits, served names, and names as people write them."""

from __future__ import annotations

import pytest
from diagnosed import diagnosed

from hybridcalc.diagnosis.names import named_model

COMMIT = "c45c273b0d6ef2859cb2d85b36dd52253c80d878"
PAGES = (
    "(EngineCore pid=1) INFO 07-04 01:56:13 [interface.py:911] Setting attention block size to 1568 tokens to ensure "
    "that attention page size is >= mamba page size.\n"
    "(EngineCore pid=1) INFO 07-04 01:56:13 [interface.py:935] Padding mamba page size by 0.13% to ensure that\n"
    "(EngineCore pid=1) INFO 07-04 01:56:33 [gpu_worker.py:1] Available KV cache memory: 7.19 GiB\n"
    "(EngineCore pid=1) INFO 07-04 01:56:33 [kv_cache_utils.py:1] GPU KV cache size: 223,880 tokens\n"
    "(EngineCore pid=1) INFO 07-04 01:56:33 [kv_cache_utils.py:2] Maximum concurrency for 200,000 tokens per request: "
    "1.12x\n"
)
ARGUMENTS = "(APIServer pid=1) INFO 07-04 01:55:20 [api_utils.py:1] non-default args: {{'model': '{}', {}}}\n"


@pytest.mark.parametrize(
    ("path", "served", "preset"),
    [
        ("Qwen/Qwen3.6-27B", None, "qwen3.6-27b"),
        (f"/root/.cache/huggingface/hub/models--Qwen--Qwen3.6-27B/snapshots/{COMMIT}", None, "qwen3.6-27b"),
        (f"/models/qwen36-27b/snapshots/{COMMIT}/", None, "qwen3.6-27b"),
        ("/model", "qwen36-27b-nvfp4-vllm", "qwen3.6-27b"),
        ("/data/checkpoint-1200", "Qwen3.8-27B", "qwen3.8-27b"),
        ("qwen3.8-27b-mine-v2", None, "qwen3.8-27b"),
        ("Falcon-H1-1.5B-Deep-mine", None, "falcon-h1-1.5b-deep"),
    ],
)
def test_the_model_that_a_log_names(path: str, served: str | None, preset: str) -> None:
    found = named_model(path, served)
    assert found is not None and found.preset is not None and found.preset.name == preset


@pytest.mark.parametrize("path", ["/model", f"/models/ctx/snapshots/{COMMIT}", f"/cache/{COMMIT}", "", None])
def test_paths_that_name_nothing(path: str | None) -> None:
    assert named_model(path, "m") is named_model(path) is None


def test_a_name_of_another_model_stays_one() -> None:
    found = named_model("Qwen3-8B", "chat")
    assert found is not None and found == ("Qwen3-8B", None)


def test_the_served_name_decides_between_models_of_the_same_pages() -> None:
    served = ARGUMENTS.format("/model", "'max_model_len': 200000, 'served_model_name': ['qwen36-27b-nvfp4-vllm']")
    assert diagnosed(served + PAGES).headline.endswith("qwen3.6-27b on TP1, fp8 KV")
    undecided = diagnosed(ARGUMENTS.format("/model", "'max_model_len': 200000") + PAGES)
    assert "fits qwen3.5-27b, qwen3.6-27b, qwen3.8-27b: all of the same pages" in [
        f.message for f in undecided.findings
    ]


def test_lines_that_somebody_may_have_shortened_date_no_release() -> None:
    """What a whole line lacks tells an old release, and nothing where its clock was left out too."""
    line = "KV Cache is allocated. #tokens: 100000, K size: 3.05 GB, V size: 3.05 GB\n"
    assert diagnosed(line).headline.startswith("SGLang, lines as before 0.5.13")
    assert diagnosed(line).version is None
    assert diagnosed(f"[2026-03-01 10:00:01] {line}").version == "before 0.5.13"


@pytest.mark.parametrize(("padding", "drafts"), [("8.68", 0), ("6.27", 2), ("5.11", 3), ("2.86", 5)])
def test_the_class_in_the_line_of_the_cache_mode_finds_model_and_drafts(padding: str, drafts: int) -> None:
    """A class and its pages give the draft tokens, which the log need not print."""
    lines = (
        "[interface.py:926] Setting attention block size to 1152 tokens to ensure that\n"
        f"[interface.py:950] Padding mamba page size by {padding}% to ensure that mamba page size\n"
        "[config.py:605] Mamba cache mode is set to 'align' for Glm5NextForConditionalGeneration by default\n"
    )
    found = diagnosed(lines)
    assert found.model_guess.startswith("glm-5.3-flash")
    told = [f.message for f in found.findings if "draft tokens" in f.message]
    assert told == ([f"the pages are those with {drafts} draft tokens, of which no line tells"] if drafts else [])


@pytest.mark.parametrize(
    ("line", "name"),
    [
        ("[2026-05-01 10:00:00] server_args=ServerArgs(model_path='Qwen/Qwen3.6-27B', tp_size=1)\n", "qwen3.6-27b"),
        ("[2026-05-01 10:00:00] server_args=ServerArgs(model_path='/m/Qwen2.5-7B', tp_size=1)\n", "Qwen2.5-7B"),
        (ARGUMENTS.format("Qwen/Qwen3.6-27B", "'max_model_len': 200000"), "qwen3.6-27b"),
    ],
)
def test_a_model_that_is_named_is_named_where_figures_do_not_tell_it(line: str, name: str) -> None:
    sglang = "[2026-05-01 10:00:02] max_total_num_tokens=6827, max_running_requests=16, context_len=4096\n"
    found = diagnosed(line + (sglang if "ServerArgs" in line else "KV cache size: 77,777 tokens\n"))
    assert f", {name}" in found.headline
