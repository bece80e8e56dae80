"""How a boot ended: what was asked to stop has not failed, and a traceback's files say whose failure it is."""

from __future__ import annotations

import pytest
from diagnosed import diagnosed

from hybridcalc.bootlog.boots import COMMON

SIZED = (
    "(EngineCore pid=193) INFO 08-16 04:30:54 [kv_cache_utils.py:1] GPU KV cache size: 62,557 tokens\n"
    "(APIServer pid=1) INFO:     Application startup complete.\n"
)
DEAD = (
    "(APIServer pid=1) ERROR 08-16 04:34:54 [async_llm.py:704] vllm.v1.engine.exceptions.EngineDeadError: EngineCore "
    "encountered an issue. See stack trace (above) for the root cause.\n"
)
ASKED = [form.opening for form in COMMON.forms if form.kind == "stopped"]
OOM = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 18.56 GiB. GPU 0 has a total capacity of 95.59 GiB\n"
)


@pytest.mark.parametrize("asked", ASKED)
def test_what_ends_a_server_that_was_asked_to_stop_is_no_failure(asked: str) -> None:
    assert "failed" in diagnosed(SIZED + DEAD).headline
    found = diagnosed(f"{SIZED}(APIServer pid=1) INFO: {asked}\n{DEAD}")
    assert "failed" not in found.headline and not any(one.severity == "error" for one in found.findings)
    assert "failed" in diagnosed(f"{SIZED}{DEAD}INFO: {asked}\n").headline


@pytest.mark.parametrize(
    ("file", "engine", "flag"),
    [
        ("/env/sglang/srt/mem_cache/memory_pool.py", "SGLang", "--mem-fraction-static"),
        ("/env/vllm/v1/worker/gpu_worker.py", "vLLM", "--gpu-memory-utilization"),
    ],
)
def test_the_files_of_a_traceback_say_whose_failure_it_is(file: str, engine: str, flag: str) -> None:
    frame = "_init_mamba_pool" if engine == "SGLang" else "_allocate_kv_cache_tensors"
    found = diagnosed(f'  File "{file}", line 499, in {frame}\n{OOM}')
    assert found.headline.startswith(engine) and flag in (found.findings[0].fix or "")
    assert "allocated" in found.meaning


@pytest.mark.parametrize(
    "words",
    [
        "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 1 has 23.56 GiB total, 1.08 GiB free,\n22.46 GiB in use.",
        "NPU out of memory. Tried to allocate 2.00 GiB (NPU 2; 23.56 GiB total capacity; 1.08 GiB free; more)",
    ],
)
def test_what_was_free_is_read_of_older_and_shorter_words(words: str) -> None:
    found = diagnosed(f"vLLM's profile_run died:\n{words}\n")
    assert found.meaning.startswith("out of memory on 2.00 GiB (1.08 GiB of 23.56 GiB free) between the weights")
    assert "--max-num-batched-tokens" in (found.findings[0].fix or "")


def test_the_banner_says_the_release() -> None:
    banner = "(APIServer pid=1) INFO 03-17 11:29:48 [utils.py:302]  \u2580\u2584\u2580 \u2588  version 0.24.0\n"
    assert diagnosed(banner + SIZED).version == "0.24.0"


def test_the_files_of_a_traceback_end_no_statement() -> None:
    """The exception's own line stands behind them, however many there are."""
    frames = '  File "/x/sglang/srt/model_executor/model_runner.py", line 508, in _init_pools\n    self.run()\n' * 12
    log = f"[2026-06-07 18:37:48] Scheduler hit an exception: Traceback (most recent call last):\n{frames}"
    found = diagnosed(
        f"[2026-06-07 18:37:47] Memory pool end. avail mem=66.08 GB\n{log}ImportError: cannot import it\n"
    )
    assert "ImportError: cannot import it" in found.meaning
