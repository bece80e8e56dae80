"""Failed boots: the cause, the step, and the flag that changes it."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from command_line import run

from hybridcalc.bootlog import boots
from hybridcalc.bootlog.grammars import assemble
from hybridcalc.bootlog.reader import scan
from hybridcalc.deployment import Workload
from hybridcalc.diagnosis import Question, diagnose, diagnose_log, out_of_memory, serving_findings
from hybridcalc.diagnosis.answer import Diagnosis

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
    "no tokens after weights": (
        WEIGHTS + "RuntimeError: Not enough memory. Please try to increase --mem-fraction-static. Current value: "
        "self.mem_fraction_static=0.25\n",
        "HC122", "at --mem-fraction-static 0.25, 61.53 of 90.00 GiB are free after the weights", "above 0.32",
    ),
    "no tokens at all": (
        "Load weight begin. avail mem=90.00 GB\nLoad weight end. type=Qwen3_5ForCausalLM, avail mem=1.20 GB, "
        "mem usage=88.80 GB.\nNot enough memory. Please try to increase --mem-fraction-static.\n",
        "HC122", "1.20 of 90.00 GiB", "no --mem-fraction-static helps; use smaller weights or more GPUs",
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
    "not free": (
        "ValueError: Free memory on device cuda:0 (100.94/121.69 GiB) on startup is less\nthan desired GPU memory "
        "utilization (0.835, 101.61 GiB).\n", "HC129", "100.94 GiB are free at the start, 101.61 are asked for",
        "--gpu-memory-utilization 0.829 at most",
    ),
    "negative": ("Available KV cache memory: -0.53 GiB\nERROR EngineCore failed to start.\n", "HC125", "-0.53",
                 "raise"),
    "engine": ("Available KV cache memory: 3.00 GiB\nERROR EngineCore failed to start.\n", "HC128", "failed", "above"),
    "clamped to none": (
        "max_running_requests is capped to 0 by the mamba state cache (max_mamba_cache_size=2, 5 state slots per "
        "request).\n", "HC121", "2 slots at 5 a request", "--max-mamba-cache-size 5 at least",
    ),
    "exception": (
        POOLS + "Scheduler hit an exception: Traceback (most recent call last):\n  File \"x.py\", line 425\n"
        "    self.page_size == 1\nAssertionError\n", "HC128", "AssertionError", "--page-size 1",
    ),
    "old length": ("The model's max seq len (4096) is larger than the maximum number of tokens that can be stored in "
                   "KV cache (3664).\n", "HC127", "4,096 tokens does not fit: 3,664", "--max-model-len 3664"),
    "no tokens, measured": (
        "RuntimeError: Not enough memory. Please try to increase --mem-fraction-static.\nCurrent value: "
        "self.server_args.mem_fraction_static=0.805\n\nMemory profiling: available_gpu_memory=11.66 GB, "
        "total_gpu_memory=77.80 GB,\nmem_fraction_static=0.81, rest_memory=-3.51 GB\n",
        "HC122", "-3.51 GiB at --mem-fraction-static 0.805, 11.66 of 77.80", "above 0.85, or use more GPUs",
    ),
    "compute buffer": (
        "llama_context: n_ubatch      = 1024\nggml_backend_cuda_buffer_type_alloc_buffer: allocating 1401.75 MiB on "
        "device 0: cudaMalloc failed: out of memory\ngraph_reserve: failed to allocate compute buffers\n",
        "HC124", "1.37 GiB of device 0: the compute buffer at n_ubatch = 1,024", "-ub 512",
    ),
    "llama.cpp": ("llama_kv_cache: CUDA0 KV buffer size = 2048.00 MiB\nggml: cudaMalloc failed: out of memory\n",
                  "HC124", "out of memory", "-ngl"),
}  # fmt: skip


def diagnosed(text: str) -> Diagnosis:
    return next(iter(diagnose(assemble(scan(io.BytesIO(text.encode()))).boots, Question())))


@pytest.mark.parametrize(("text", "rule", "said", "fix"), CASES.values(), ids=CASES)
def test_each_refusal_has_its_cause_and_its_flag(text: str, rule: str, said: str, fix: str) -> None:
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
def test_published_boots_fail_where_they_did(name: str) -> None:
    found = diagnose_log(LOGS / name, Question()).boots
    failed = any(finding.severity == "error" for boot in found for finding in boot.findings)
    refused = name in FAILED or name in ("vllm-004.log", "vllm-005.log", "vllm-006.log", "vllm-008.log")
    assert failed == refused


def test_an_exception_before_a_boot_went_on_is_no_failure() -> None:
    text = "Scheduler hit an exception: Traceback\nmax_total_num_tokens=5000, max_running_requests=8\n"
    assert not [one for one in diagnosed(text).findings if one.severity == "error"]


def test_advice_of_one_answer_goes_one_way() -> None:
    text = (
        "torch.OutOfMemoryError: CUDA out of memory.\nTo serve at least one request with the models's max seq len "
        "(16384),\n(1.71 GiB KV cache is needed, which is larger than the available KV cache memory (1.23 GiB).\n"
    )
    fixes = " ".join(one.fix for one in diagnosed(text).findings)
    assert "--gpu-memory-utilization" not in fixes and "--max-model-len" in fixes


def test_pages_of_another_program_name_no_model() -> None:
    found = diagnosed("Setting attention block size to 1024 tokens (was 784) so the KV unit\n")
    assert not found.candidates and found.to_dict()["figures"] == {"attention_block_size": 1024}


def test_what_is_left_out_of_a_boot_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(boots, "MOST_RECORDS", 10)
    found = diagnosed("".join(f"[TP{n}] Memory pool end. avail mem=9.00 GB\n" for n in range(25)))
    assert "15 lines of this boot are left out" in " ".join(one.message for one in found.findings)


def test_out_of_memory_needs_no_engine_to_be_explained() -> None:
    """Words that any engine may die with, and no line that says which it was."""
    found = diagnosed(OOM)
    [error] = found.findings
    assert (found.headline, found.boot.engine) == ("a server: does not start", "")
    assert (error.rule, error.message) == ("HC124", "out of memory on 970.00 MiB")
    assert error.fix.startswith("lower the server's share of the memory")


def serving(running: int, queued: int, state: float, kv: float, slots: int = 0, each: int | None = None) -> Diagnosis:
    """What is said of a server that was seen once, with these figures."""
    answer = diagnosed(POOLS)
    answer.findings.clear()
    seen = answer.boot.serving
    seen.lines, seen.most_running, seen.most_queued, seen.most_slots = 1, running, queued, slots
    seen.running_at_most_slots, seen.peak_state_usage, seen.peak_kv_usage = running, state, kv
    serving_findings(answer, each, more_state="more slots", more_kv="more tokens")
    return answer


@pytest.mark.parametrize(
    ("queued", "state", "kv", "said", "fix"),
    [
        (3, 0.95, 0.5, "the state pool is 95% full with 50% of KV in use, and 3 requests wait", "more slots"),
        (1, 1.0, 1.0, "the state pool is 100% full with 100% of KV in use, and 1 requests wait", "more slots"),
        (3, 0.949, 0.95, "KV is 95% full and 3 requests wait", "more tokens"),
        (3, 0.949, 0.949, "", ""),
        (0, 0.95, 0.5, "", ""),
        (0, 0.5, 1.0, "", ""),
    ],
)
def test_requests_wait_for_the_pool_that_is_full(queued: int, state: float, kv: float, said: str, fix: str) -> None:
    """From 95 % on, the states first; a full pool without a queue is a pool well used."""
    found = serving(10, queued, state, kv).findings
    assert [(one.rule, one.severity, one.message, one.fix) for one in found] == (
        [("HC130", "warning", said, fix)] if said else []
    )


def test_slots_of_a_running_request_are_those_in_use_over_those_that_run() -> None:
    [told] = serving(8, 0, 0.5, 0.5, slots=36, each=5).findings
    assert (told.rule, told.severity) == ("HC131", "note")
    assert told.message == (
        "36 slots in use with 8 running requests: 4.5 each, cached prefixes included; 5 are reserved for each"
    )
    assert "reserved" not in serving(8, 0, 0.5, 0.5, slots=36).findings[0].message
    assert "with 1 running requests: 5.0 each" in serving(1, 0, 0.5, 0.5, slots=5).findings[0].message
    assert serving(0, 0, 0.5, 0.5, slots=36).findings == [] == serving(8, 0, 0.5, 0.5).findings


def test_a_server_that_was_not_seen_serving_says_nothing_of_it() -> None:
    answer = diagnosed(POOLS)
    before = list(answer.findings)
    serving_findings(answer, 5, more_state="", more_kv="")
    assert (answer.findings, answer.derived.serving) == (before, None)
    assert serving(7, 2, 0.25, 0.5, slots=9).derived.serving == (1, 7, 2, 0, 9, 0.25, 0.5)


def test_refusals_with_the_same_figures_are_explained_once() -> None:
    """Ranks that die of figures of their own are told apart, in the order of the log."""
    many = diagnosed(WEIGHTS + "".join(f"[TP{rank}] {OOM.replace('970', str(100 + rank))}" for rank in range(4)))
    told = [one for one in many.findings if one.rule == "HC124"]
    assert [one.message.split()[4] for one in told] == ["100.00", "101.00", "102.00", "103.00"]
    same = diagnosed(WEIGHTS + OOM * 30)
    assert len([one for one in same.findings if one.rule == "HC124"]) == 1


def test_memory_that_ran_out_says_when_and_with_how_much_left() -> None:
    """The last line before says the moment; what is printed behind it does not count."""
    answer = diagnosed("Load weight begin. avail mem=90.00 GB\n" + OOM + "Memory pool end. avail mem=1.00 GB\n")
    error = answer.boot.errors[0] if answer.boot.errors else answer.boot.of("oom")[0]
    told = out_of_memory(answer.boot, error, "the batch")
    assert told.message == "out of memory on 970.00 MiB while the weights were loaded, with 90.00 GiB free before it"
    assert told.fix == "the weights do not fit: more GPUs or smaller weights"
    assert out_of_memory(answer.boot, error, "the batch", "buy more").fix == "buy more"


def _too_long(said: str) -> str:
    """A request of the model's own context in 5.12 GiB, which are 246 blocks of 21.25 MiB."""
    return (
        f"INFO non-default args: {{'model': 'Qwen/Qwen3.6-35B-A3B'{said}}}\n"
        "INFO Initializing a V1 LLM engine (v0.33.0) with config: model='Qwen/Qwen3.6-35B-A3B', max_seq_len=262144, "
        "tensor_parallel_size=1, pipeline_parallel_size=1\n"
        "INFO Model loading took 65.42 GiB memory and 60.1 seconds\n"
        "INFO Available KV cache memory: 5.12 GiB\n"
        "ERROR ValueError: To serve at least one request with the models's max seq len (262144), (5.19 GiB KV cache is "
        "needed, which is larger than the available KV cache memory (5.12 GiB). Based on the available memory, the "
        "estimated maximum model length is 256768.\n"
    )


@pytest.mark.parametrize(
    ("tokens", "said", "fix"),
    [
        (32768, "", "--max-model-len 32768 --max-num-seqs 6, or raise --gpu-memory-utilization"),
        (32768, ", 'max_num_seqs': 4", "--max-model-len 32768, or raise --gpu-memory-utilization"),
        (262144, "", "more memory: 256,768 is the longest --max-model-len that starts, requests hold 262,144"),
    ],
)
def test_the_length_that_is_asked_for_is_what_a_fix_serves(tokens: int, said: str, fix: str) -> None:
    """As the planner has it for the printed memory: 245 blocks hold 6 requests of 40."""
    logged = assemble(scan(io.BytesIO(_too_long(said).encode()))).boots
    (answer,) = diagnose(logged, Question(workload=Workload.at(tokens)))
    assert [found.fix for found in answer.findings if found.rule == "HC127"] == [fix]


@pytest.mark.parametrize("said", ["", ", 'max_num_seqs': 1024", ", 'max_num_seqs': 8"])
def test_the_length_that_fits_comes_with_the_sequences_that_start(said: str) -> None:
    """Full graphs need a block for each sequence: 246 of 21.25 MiB in 5.12 GiB, fewer than on a GPU of 70 GiB."""
    (answer,) = diagnose(assemble(scan(io.BytesIO(_too_long(said).encode()))).boots, Question())
    (fix,) = [found.fix for found in answer.findings if found.rule == "HC127"]
    more = " --max-num-seqs 246" if not said.endswith(" 8") else ""
    assert fix.startswith(f"--max-model-len 256768{more}, or raise --gpu-memory-utilization")
    assert fix.count("--max-num-seqs") == (2 if more else 0)


def test_an_exception_that_passes_on_what_another_said_is_no_second_cause() -> None:
    log = (
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.50 GiB. GPU 0 has a total capacity of "
        "79.18 GiB of which 1.20 GiB is free.\n"
        "Exception: Capture cuda graph failed: CUDA out of memory. Tried to allocate 2.50 GiB.\n"
    )
    (answer,) = diagnose(assemble(scan(io.BytesIO((WEIGHTS + POOLS + log).encode()))).boots, Question())
    assert [found.message for found in answer.findings if found.rule == "HC124"] == [answer.meaning]
    assert "1.20 GiB of 79.18 GiB free" in answer.meaning


def test_the_fraction_that_starts_is_planned_where_the_one_asked_for_fits_the_weights(tmp_path: Path) -> None:
    """0.84 leaves 0.3 GiB beside the weights, too little for a slot: "above 0.84" would be what was asked for."""
    log = tmp_path / "boot.log"
    log.write_text(
        "server_args=ServerArgs(model_path='Qwen/Qwen3.6-35B-A3B', tp_size=1, mem_fraction_static=0.84)\n"
        "Load weight begin. avail mem=78.48 GB\n"
        "Load weight end. type=Qwen3_5MoeForConditionalGeneration, dtype=torch.bfloat16, avail mem=12.85 GB, "
        "mem usage=65.63 GB.\n"
        "RuntimeError: Not enough memory. Please try to increase --mem-fraction-static.\n"
    )
    assert "fix: --mem-fraction-static 0.85 at least" in run("log", str(log)).out
    free = ("--avail-before", "78.48", "--avail-after", "12.85", "--mem-fraction-static")
    started = [
        run("plan", "Qwen/Qwen3.6-35B-A3B", *free, share).out.startswith("does not") for share in ("0.84", "0.85")
    ]
    assert started == [True, False]
