"""Failed boots: the cause, the step, and the flag that changes it."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

from hybridcalc.bootlog import EVERYTHING, scan
from hybridcalc.bootlog.boots import assemble
from hybridcalc.diagnosis.answer import Diagnosis
from hybridcalc.diagnosis.boot import diagnose, diagnose_log
from hybridcalc.diagnosis.question import Question

LOGS = Path(__file__).resolve().parent.parent / "data" / "bootlogs"
WEIGHTS = (
    "Load weight begin. avail mem=90.00 GB\n"
    "Load weight end. elapsed=1 s, type=Qwen3_5ForCausalLM, avail mem=61.53 GB, mem usage=28.47 GB.\n"
)
POOLS = "Memory pool end. avail mem=9.00 GB\n"
OOM = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 970.00 MiB.\n"

CASES = {
    "hybrid": (
        WEIGHTS + "Not enough GPU memory for hybrid (mamba/linear-attention) state cache. Computed "
        "max_mamba_cache_size=-72 (total_rest_memory=-9.00 GB, mamba_cache_per_req=146.81 MB)\n",
        "HC120", "-9.00 GiB are left for both pools, K comes out at -72 of slots of 146.81 MiB", "by more than 0.10",
    ),
    "no request": (
        "Hybrid (mamba/linear-attention) state cache is too small to serve any requests. max_mamba_cache_size=4, "
        "mamba_ratio=5, resulting max_num_reqs=0.\n",
        "HC121", "4 slots at 5 a request", "--max-mamba-cache-size 6",
    ),
    "no tokens": ("Not enough memory. Please try to increase --mem-fraction-static.\n", "HC122", "KV", "fraction"),
    "weights": ("ValueError: Loaded weights leave no GPU memory for the KV cache under\n", "HC122", "weights", "GPUs"),
    "ping-pong": (
        "AssertionError: Not enough space for mamba ping pong idx, try to increase --mamba-full-memory-ratio.\n",
        "HC123", "tracking states", "--max-mamba-cache-size where it is set",
    ),
    "slots": ("AssertionError: Not enough space for mamba cache, try to increase\n", "HC123", "no free", "ratio"),
    "OOM while loading": ("Load weight begin. avail mem=90.00 GB\n" + OOM, "HC124",
                          "970.00 MiB while the weights were loaded, with 90.00 GiB free", "more GPUs"),
    "OOM in graphs": (WEIGHTS + POOLS + "Capture cuda graph begin. avail mem=9.00 GB\n" + OOM, "HC124",
                      "970.00 MiB while graphs were captured, with 9.00 GiB free", "lower --mem-fraction-static"),
    "no blocks": (
        "Free memory on device (44.00/47.50 GiB) on startup. Desired GPU memory utilization is (0.7, 33.25 GiB).\n"
        "Available KV cache memory: -3.31 GiB\nThe current --gpu-memory-utilization=0.7000 is equivalent to "
        "--gpu-memory-utilization=0.6868 without\nValueError: No available memory for the cache blocks.\n",
        "HC125", "-3.31 GiB at --gpu-memory-utilization 0.7", "above 0.77",
    ),
    "sequences": ("ValueError: max_num_seqs (1024) exceeds available Mamba cache blocks (969).\n", "HC126",
                  "1,024 sequences need a block each, there are 969", "--max-num-seqs 969"),
    "one request": (
        "ValueError: To serve at least one request with the model's max seq len (131072), (16.4 GiB KV cache is "
        "needed, which is larger than the available KV cache memory (9.84 GiB). Based on the available memory, the "
        "estimated maximum model length is 78336. \n",
        "HC127", "131,072 tokens does not fit: 16.4 GiB are needed, 9.84 are there", "--max-model-len 78336",
    ),
    "llama.cpp": ("llama_kv_cache: CUDA0 KV buffer size = 2048.00 MiB\nggml: cudaMalloc failed: out of memory\n",
                  "HC124", "out of memory", "-ngl"),
}  # fmt: skip


def diagnosed(text: str) -> Diagnosis:
    boots = assemble(scan(io.BytesIO(text.encode()), grammars=EVERYTHING)).boots
    return next(iter(diagnose(boots, Question())))


@pytest.mark.parametrize(("text", "rule", "said", "fix"), CASES.values(), ids=CASES)
def test_each_refusal_has_its_cause_and_its_flag(text: str, rule: str, said: str, fix: str):
    found = diagnosed(text)
    [error] = [finding for finding in found.findings if finding.severity == "error"]
    assert error.rule == rule and said in error.message and fix in error.fix
    assert "does not start" in found.headline and found.meaning == error.message


FAILED = [
    "sgl-020.log",
    "sgl-038.log",
    "sgl-042.log",
    "sgl-052.log",
    "vllm-003.log",
    "vllm-009.log",
    "vllm-019.log",
    "vllm-029.log",
]


@pytest.mark.parametrize("name", sorted(path.name for path in LOGS.glob("*.log")))
def test_published_boots_fail_where_they_did(name: str):
    boots = diagnose_log(LOGS / name, Question()).boots
    failed = any(finding.severity == "error" for boot in boots for finding in boot.findings)
    refused = name in FAILED or name in ("vllm-004.log", "vllm-005.log", "vllm-006.log", "vllm-008.log")
    assert failed == refused
