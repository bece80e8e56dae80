"""Lines that are no pools: every form in its versions, wrapped anywhere, and what must not be taken for one."""

from __future__ import annotations

import io
import json
import re
import textwrap
from typing import Any

import pytest
from published_boot import CHATTER

from hybridcalc.bootlog.boots import merged
from hybridcalc.bootlog.grammars import NAMES, assemble
from hybridcalc.bootlog.paste import plain
from hybridcalc.bootlog.reader import CHUNK_BYTES, QUIET_BYTES, scan


def figures(text: str | bytes) -> dict[str, Any]:
    raw = text.encode() if isinstance(text, str) else text
    return merged(assemble(scan(io.BytesIO(raw))).boots)


SGLANG = """\
[2026-10-02 00:39:31 TP0] Load weight begin. avail mem=93.77 GB
[2026-10-02 00:39:38 TP0] Load weight end. elapsed=7.20 s, type=Qwen3_5ForConditionalGeneration, quant=fp8, fmt=e4m3, \
avail mem=65.30 GB, mem usage=28.47 GB.
[2026-10-02 00:39:38 TP0] Reserving 1.10 GB of the KV budget for post-sizing multimodal allocations (feature pools).
[2026-10-02 00:39:40 TP0] Mamba Cache is allocated. max_mamba_cache_size: 124, conv_state size: 0.34GB, \
ssm_state size: 17.58GB
[2026-10-02 00:39:41 TP0] KV Cache is allocated. dtype: torch.bfloat16, #tokens: 330323, K size: 10.08 GB, \
V size: 10.08 GB
[2026-10-02 00:39:41 TP0] Memory pool end. avail mem=26.11 GB
[2026-10-02 00:39:41 TP0] max_running_requests is capped to 24 by the mamba state cache (max_mamba_cache_size=124, \
5 state slots per request). To raise it: increase --mamba-full-memory-ratio or --max-mamba-cache-size.
[2026-10-02 00:39:50 TP0] Capture target decode CUDA graph end. bs=[1, 2, 4], elapsed=9.02 s, mem usage=0.40 GB, \
avail mem=25.71 GB.
[2026-10-02 00:39:51 TP0] max_total_num_tokens=330323, chunked_prefill_size=8192, max_prefill_tokens=16384, \
max_running_requests=24, context_len=262144, available_gpu_mem=25.70 GB
"""
SGLANG_FIGURES = {
    "avail_mem_before_weights_gib": 93.77, "avail_mem_after_weights_gib": 65.3, "weights_gib": 28.47,
    "mm_reserve_gib": 1.1, "max_mamba_cache_size": 124, "conv_gib": 0.34, "ssm_gib": 17.58, "kv_tokens": 330_323,
    "kv_dtype": "bfloat16", "k_gib": 10.08, "v_gib": 10.08, "mem_pool_end_avail_gib": 26.11,
    "max_running_requests": 24, "slots_per_request": 5, "cuda_graph_gib": 0.4, "avail_mem_after_graph_gib": 25.71,
    "max_total_num_tokens": 330_323, "context_len": 262_144, "available_gpu_mem_gib": 25.7,
}  # fmt: skip
VLLM = """\
(EngineCore pid=90) INFO 09-18 22:23:41 [gpu_model_runner.py:5089] Model loading took 15.26 GiB memory and 23.1 seconds
(EngineCore pid=90) INFO 09-18 22:23:41 [interface.py:1108] Setting attention block size to 544 tokens to ensure that \
attention page size is >= mamba page size.
(EngineCore pid=90) INFO 09-18 22:23:41 [interface.py:1132] Padding mamba page size by 2.64% to ensure that mamba page \
size and attention page size are exactly equal.
(EngineCore pid=90) INFO 09-18 22:23:42 [gpu_worker.py:772] Available KV cache memory: 5.95 GiB
(EngineCore pid=90) INFO 09-18 22:23:42 [kv_cache_utils.py:1147] GPU KV cache size: 516,180 tokens, Maximum \
concurrency for 262,144 tokens per request: 1.97x
(EngineCore pid=90) INFO 09-18 22:23:52 [gpu_worker.py:1003] CUDA graph pool memory: 0.57 GiB (actual), 1.06 GiB \
(estimated), difference: 0.49 GiB (86.0%).
"""
VLLM_FIGURES = {
    "weights_gib": 15.26, "attention_block_size": 544, "mamba_padding_pct": 2.64, "available_kv_gib": 5.95,
    "gpu_kv_cache_tokens": 516_180, "max_model_len": 262_144, "max_concurrency": 1.97, "cuda_graph_gib": 0.57,
    "cuda_graph_estimated_gib": 1.06,
}  # fmt: skip
LLAMA = """\
load_tensors:        CUDA0 model buffer size = 16028.79 MiB
llama_kv_cache:      CUDA0 KV buffer size =  2048.00 MiB
llama_kv_cache: size = 2048.00 MiB ( 32768 cells,  16 layers,  4/4 seqs), K (f16): 1024.00 MiB, V (f16): 1024.00 MiB
llama_memory_recurrent: size =  598.50 MiB (     4 cells,  64 layers,  4 seqs), R (f32):  22.50 MiB, S (f32): 576.00 MiB
sched_reserve:      CUDA0 compute buffer size =    38.50 MiB
"""
LLAMA_FIGURES = {
    "weights_buffer_mib": 16028.79, "kv_buffer_mib": 2048.0, "kv_mib": 2048.0, "kv_k_mib": 1024.0, "kv_v_mib": 1024.0,
    "kv_cells": 32_768, "kv_layers": 16, "rs_mib": 598.5, "rs_cells": 4, "rs_r_mib": 22.5, "rs_s_mib": 576.0,
    "compute_buffer_mib": 38.5,
}  # fmt: skip
BOOTS = {"SGLang": (SGLANG, SGLANG_FIGURES), "vLLM": (VLLM, VLLM_FIGURES), "llama.cpp": (LLAMA, LLAMA_FIGURES)}


@pytest.mark.parametrize(("text", "expected"), BOOTS.values(), ids=BOOTS)
def test_a_boot_as_it_is_printed(text: str, expected: dict[str, Any]) -> None:
    assert figures(text) == expected


@pytest.mark.parametrize(("text", "expected"), BOOTS.values(), ids=BOOTS)
def test_a_boot_wrapped_by_a_terminal_or_an_editor(text: str, expected: dict[str, Any]) -> None:
    """At every width from 50 columns up, at the column or at a space; as a terminal, an editor or a quote does it."""
    lines = text.splitlines()
    for width in range(50, 150):
        hard = [line[at : at + width] for line in lines for at in range(0, len(line), width)]
        soft = [piece for line in lines for piece in textwrap.wrap(line, width)]
        for pieces in (hard, soft):
            assert figures("\n".join(pieces) + "\n") == expected, width
            assert figures("".join(f"> {piece}\n" for piece in pieces)) == expected, width


PREFIXES = {
    "docker": "2026-02-01T00:05:03.123456789Z ", "containerd": "2026-02-01T00:05:03.123456789Z stdout F ",
    "compose": "sglang-1  | ", "journald": "Feb 01 00:05:03 gpu-node python3[812]: ", "kubectl": "[pod/a-0/server] ",
    "Docker Desktop": "2026-05-01 21:15:56.652 | ", "Ray": "(Scheduler pid=812, ip=10.0.0.4) ", "shell comment": "# ",
}  # fmt: skip


@pytest.mark.parametrize("prefix", PREFIXES.values(), ids=PREFIXES)
@pytest.mark.parametrize(("text", "expected"), BOOTS.values(), ids=BOOTS)
def test_a_boot_behind_a_loggers_prefix(text: str, expected: dict[str, Any], prefix: str) -> None:
    assert figures("".join(f"{prefix}{line}\n" for line in text.splitlines())) == expected


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "utf-16-le", "utf-16-be", "utf-32"])
@pytest.mark.parametrize(("text", "expected"), BOOTS.values(), ids=BOOTS)
def test_a_boot_in_its_encoding(text: str, expected: dict[str, Any], encoding: str) -> None:
    """With its mark or without: PowerShell pipes write none."""
    assert figures(text.replace("\n", "\r\n").encode(encoding)) == expected


@pytest.mark.parametrize(("text", "expected"), BOOTS.values(), ids=BOOTS)
def test_a_boot_as_json_lines_with_colours_and_separators(text: str, expected: dict[str, Any]) -> None:
    lines = text.splitlines()
    assert figures("".join(json.dumps({"log": f"{line}\n", "stream": "stderr"}) + "\n" for line in lines)) == expected
    coloured = "\n".join(f"\x1b[32m{line[:26]}\x1b[0m{line[26:]}" for line in lines)
    assert figures(coloured) == expected
    grouped = re.sub(r"(?<=[= ])([0-9]{3})([0-9]{3})(?=[, ])", r"\1,\2", text)
    assert figures(grouped) == expected


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (
            "Load weight end. type=Lfm2ForCausalLM, dtype=torch.bfloat16, avail mem=13.81 GB, mem usage=1.52 GB.",
            {"avail_mem_after_weights_gib": 13.81, "weights_gib": 1.52},
        ),
        (
            "Capture cuda graph end. Time elapsed: 1.24 s. mem usage=0.09 GB. avail mem=2.89 GB.",
            {"cuda_graph_gib": 0.09, "avail_mem_after_graph_gib": 2.89},
        ),
        (
            "Capture npu graph end. Time elapsed: 1.24 s. mem usage=0.09 GB. avail mem=2.89 GB.",
            {"cuda_graph_gib": 0.09, "avail_mem_after_graph_gib": 2.89},
        ),
        ("max_total_num_tokens=399740", {"max_total_num_tokens": 399_740}),
        (
            "max_total_num_tokens=10, max_running_requests=2, context_len=8, available_gpu_mem=3.39",
            {"max_total_num_tokens": 10, "max_running_requests": 2, "context_len": 8, "available_gpu_mem_gib": 3.39},
        ),
        ("Using KV cache dtype: torch.float8_e5m2", {"kv_dtype": "float8_e5m2"}),
        (
            "RuntimeError: Not enough GPU memory for hybrid (mamba/linear-attention) state cache. Computed "
            "max_mamba_cache_size=-72 (total_rest_memory=-21.21 GB, mamba_cache_per_req=146.81 MB). Try: (1) reduce",
            {
                "max_mamba_cache_size": -72,
                "total_rest_memory_gib": -21.21,
                "mamba_cache_per_req_mib": 146.81,
                "error": "not_enough_memory_hybrid",
            },
        ),
        (
            "RuntimeError: Hybrid (mamba/linear-attention) state cache is too small to serve any requests. "
            "max_mamba_cache_size=4, mamba_ratio=5, resulting max_num_reqs=0. Try: (1)",
            {"max_mamba_cache_size": 4, "slots_per_request": 5, "error": "mamba_cache_too_small"},
        ),
        (
            "RuntimeError: Not enough memory. Please try to increase --mem-fraction-static.",
            {"error": "not_enough_memory_kv"},
        ),
        ("torch.OutOfMemoryError: HIP out of memory. Tried to allocate 2.00 GiB.", {"error": "cuda_oom"}),
        (
            "Allocating kv hierarchical KV host pool: 3035904 tokens, 40.41 GB host memory.",
            {"hicache_kv_host_tokens": 3_035_904, "hicache_kv_host_gb": 40.41},
        ),
        (
            "Allocating 55.60 GB host memory for hierarchical Mamba cache (945 state slots, layout=page_first).",
            {"hicache_mamba_host_gb": 55.6},
        ),
        (
            "Decode batch [7], #running-req: 3, #full token: 900, full token usage: 0.10, mamba num: 9, "
            "mamba usage: 0.30, cuda graph: True, gen throughput (token/s): 1.00, #queue-req: 0",
            {
                "running_req": 3,
                "queue_req": 0,
                "full_tokens": 900,
                "full_token_usage": 0.1,
                "mamba_num": 9,
                "mamba_usage": 0.3,
            },
        ),
        ("Model loading took 78.4272 GiB and 77.370219 seconds", {"weights_gib": 78.4272}),
        ("Loading model weights took 3.7710 GB", {"weights_gib": 3.771}),
        ("Graph capturing finished in 4 secs, took 0.69 GiB", {"cuda_graph_gib": 0.69}),
        ("GPU KV cache size: 2,712,968 token", {"gpu_kv_cache_tokens": 2_712_968}),
        (
            "# maximum concurrency for 262,144 tokens per request: 1.04x",
            {"max_model_len": 262_144, "max_concurrency": 1.04},
        ),
        ("Available KV cache memory (-1.2 GiB)", {"available_kv_gib": -1.2}),
        (
            "ValueError: Free memory on device cuda:0 (17.1/22.05 GiB) on startup is less than desired GPU memory "
            "utilization (0.92, 20.28 GiB)` | vLLM demands",
            {"gpu_free_gib": 17.1, "gpu_total_gib": 22.05, "gpu_memory_utilization": 0.92, "requested_gib": 20.28},
        ),
        (
            "with the models's max seq len (96000), 3.89 GiB KV cache is needed, which is larger than the available KV "
            "cache memory (0.67 GiB).",
            {"kv_needed_gib": 3.89, "available_kv_gib": 0.67, "error": "kv_cache_below_one_request"},
        ),
        (
            "To serve at least one request with the model's max seq len (1048576), 7.89 GiB KV cache is needed, "
            "which is larger than the available KV cache memory (4.0 GiB).",
            {
                "max_model_len": 1_048_576,
                "kv_needed_gib": 7.89,
                "available_kv_gib": 4.0,
                "error": "kv_cache_below_one_request",
            },
        ),
        (
            "ValueError: The model's max seq len (4096) is larger than the maximum number of tokens that can be "
            "stored in KV cache (3664).",
            {"max_model_len": 4096, "error": "kv_cache_below_one_request"},
        ),
        (
            "boot refused: `max_mamba_cache_size=0 (total_rest_memory=-4.39 GB)`",
            {"max_mamba_cache_size": 0, "total_rest_memory_gib": -4.39, "error": "not_enough_memory_hybrid"},
        ),
        ("mamba num: 4, accept len: 2.67, accept rate: 0.56", {"mamba_num": 4}),
        (
            "max_total_num_tokens=525952, max_running_requests=8, context_len=262"
            + " " * 150
            + "144, available_gpu_mem=11.84 GB",
            {
                "max_total_num_tokens": 525_952,
                "max_running_requests": 8,
                "context_len": 262_144,
                "available_gpu_mem_gib": 11.84,
            },
        ),
        (
            "llama_init_from_model: KV self size  =  144.00 MiB, K (f16):   72.00 MiB, V (f16):   72.00 MiB",
            {"kv_mib": 144.0, "kv_k_mib": 72.0, "kv_v_mib": 72.0},
        ),
        (
            "llama_kv_cache: size = 512.00 MiB (8192 cells, 16 layers), K (f16) 256, V (f16) 256",
            {"kv_mib": 512.0, "kv_cells": 8192, "kv_layers": 16, "kv_k_mib": 256.0, "kv_v_mib": 256.0},
        ),
        (
            "llama_memory_recurrent: size =  149.62 MiB (1 cell, 64 layers)  R(f32) 5.62 + S(f32) 144.00",
            {"rs_mib": 149.62, "rs_cells": 1, "rs_r_mib": 5.62, "rs_s_mib": 144.0},
        ),
        (
            "Mamba cache mode is set to 'align' for Qwen3_5ForCausalLM by default when prefix caching is enabled",
            {"mamba_cache_mode": "align"},
        ),
        (
            "ValueError: To serve at least one request with the model's max seq len (131072), (16.4 GiB KV cache is "
            "needed, which is larger than the available KV cache memory (9.84 GiB). Based on the available memory, the "
            "estimated maximum model length is 78336. Try increasing `gpu_memory_utilization`",
            {
                "max_model_len": 131_072,
                "kv_needed_gib": 16.4,
                "available_kv_gib": 9.84,
                "estimated_max_model_len": 78_336,
                "error": "kv_cache_below_one_request",
            },
        ),
        ("Explicitly set (1.0/7.81) GiB for KV cache on node 0.", {"available_kv_gib": 1.0, "node_memory_gib": 7.81}),
    ],
)
def test_a_line_in_any_version(line: str, expected: dict[str, Any]) -> None:
    assert figures(f"[2026-10-02 00:39:31 TP0] {line}\n") == expected


@pytest.mark.parametrize(
    "text",
    [
        '- NO "max_running_requests is capped to 6 by the mamba state cache" line',
        'the warning "max_running_requests is capped to 6 by the mamba state cache" must not appear',
        'without "KV Cache is allocated. #tokens: 4096, KV size: 0.84 GB"',
        '"Available KV cache memory: 5.35 GiB" is no longer printed',
        'logger.info(f"Load weight begin. avail mem={mem:.2f} GB")',
        '"Setting attention block size to %d tokens "',
        'f"max_num_seqs ({max_num_reqs}) exceeds available Mamba cache blocks ({n})."',
        "Replace gpu_memory_utilization config with `--kv-cache-memory=8820325233` (8.21 GiB) to fit",
        "To maintain the same effective KV cache size as before, increase --gpu-memory-utilization to 0.7132.",
        "server_args=ServerArgs(model_path='a/b', max_running_requests=32, max_mamba_cache_size=48, tp_size=8)",
        "GPU KV cache size: ... tokens, Maximum concurrency for ... tokens per request: ...x",
        "Load weight end. ... avail mem=... GB, mem usage=",
        "Memory pool end. avail mem=3.4",
        "Available KV cache memory: 5.3",
        "KV Cache VA upper bound. dtype: torch.bfloat16, #tokens: 273408, KV size: 4.18 GB",
        "LoRA adapter loading ends: a. avail mem=12.00 GB",
        "Capture target decode CUDA graph begin. backend=full, avail mem=73.10 GB",
        "Capturing batches (bs=1 avail_mem=72.47 GB): 100%|####| 2/2",
        "[unified-memory-pool]   total_bytes=123, max_total_num_tokens=400, max_mamba_cache_size=9, max_num_reqs=2",
    ],
)
def test_what_is_no_result_is_not_reported(text: str) -> None:
    """Quoted to be absent, source code, advice, settings, elided and cut figures, reservations, other steps' memory."""
    assert figures(f"{text}\n") == {}


def test_a_server_that_gets_up_did_not_fail() -> None:
    failed = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 970.00 MiB.\n"
    assert figures(SGLANG + failed)["error"] == "cuda_oom"
    assert "error" not in figures(SGLANG + failed + "[2026-10-02 00:40:51] The server is fired up and ready to roll!\n")


def test_of_a_running_server_the_last_values_are_reported() -> None:
    """Of each kind of line the newest; a figure that the newest line leaves out is not known."""
    text = (
        "Prefill batch, #new-seq: 1, #running-req: 1, #queue-req: 2, mamba usage: 0.29\n"
        "Prefill batch, #new-seq: 2, #cached-token: 1280, #running-req: 4, mamba usage: 0.89\n"
    )
    assert figures(text) == {"running_req": 4, "mamba_usage": 0.89}


def test_a_boot_in_a_long_log_is_found_wherever_it_stands() -> None:
    chatter = CHATTER * (3 * CHUNK_BYTES // len(CHATTER))
    lines = chatter.count(b"\n")
    for before, after in ((b"", chatter), (chatter, b""), (chatter, chatter)):
        found = list(scan(io.BytesIO(before + SGLANG.encode() + after)))
        boot = [record for record in found if record.kind not in ("running", "prefilling", *NAMES)]
        assert [record.line - (lines if before else 0) for record in boot] == list(range(1, 10))
        said = merged(assemble(found).boots)
        assert {name: said[name] for name in SGLANG_FIGURES} == SGLANG_FIGURES


def test_a_long_log_is_not_read_on_after_its_boot() -> None:
    """Unless the whole of it is asked for; a remark says where reading stopped."""

    class Counted(io.BytesIO):
        taken = 0

        def read(self, size: int | None = -1, /) -> bytes:
            self.taken += size or 0
            return super().read(size)

    stream, remarks = Counted(SGLANG.encode() + CHATTER * (6 * QUIET_BYTES // len(CHATTER))), list[str]()
    found = merged(assemble(scan(stream, remarks, whole=False)).boots)
    assert found["kv_tokens"] == 330_323 and found["mamba_num"] == 20
    assert stream.taken < 2 * QUIET_BYTES and remarks[0].startswith("read up to line ")
    assert merged(assemble(scan(io.BytesIO(stream.getvalue()))).boots) == found


def test_a_padded_number_is_whole_only_where_what_follows_proves_it() -> None:
    assert "context_len" not in figures("max_total_num_tokens=5, context_len=262" + " " * 150 + "144 and more\n")
    assert figures("max_total_num_tokens=5, context_len=262" + " " * 9 + "144, available\n").get("context_len") is None


@pytest.mark.parametrize(
    ("text", "cut"),
    [
        ("[2026-02-27 17:10:28 TP0] Mamba Cache is allocated. max_mamba_cache_size: 8", {"max_mamba_cache_size": 8}),
        ("[2026-02-27 17:10:28 TP0] KV Cache is allocated. #tokens: 58", {"kv_tokens": 58}),
        ("[2026-02-27 17:10:28 TP0] max_total_num_tokens=580364, context_len=26", {"context_len": 26}),
        ("KV Cache is allocated.\n#tokens: 58", {"kv_tokens": 58}),
        ("[2026-02-27 17:10:28] Using KV cache dtype: bfloat16\nfull token usage: 0.9", {}),
    ],
)
def test_a_number_that_the_end_of_a_log_may_have_cut_is_not_there(text: str, cut: dict[str, Any]) -> None:
    """What a log stops in may be the beginning of a longer number; in front of a line end it is whole."""
    whole = figures(text + "\n")
    assert cut.items() <= whole.items()
    assert figures(text) == {name: value for name, value in whole.items() if name not in cut}


def test_a_quoted_name_that_the_end_of_a_log_cuts_is_not_there() -> None:
    """A model's name without its closing quote may be any longer one."""
    log = b"x\nKV Cache is allocated. #tokens: 58\nserver_args=ServerArgs(tp_size=8, model_path='Qwen/Qwen3.6-27"
    (boot,) = assemble(scan(io.BytesIO(log))).boots
    assert boot.word("arguments", "model_path") is None and boot.count("arguments", "tp_size") == 8


@pytest.mark.parametrize(("first", "second"), [("12:", "13:"), ("1201-", "1202-"), ("run.log:9:", "run.log:10:")])
def test_a_lines_number_before_a_digit_is_told_by_the_numbers_beside_it(first: str, second: str) -> None:
    text = f"{first}max_total_num_tokens=2285\n{second}20, max_running_requests=72, available_gpu_mem=29.76 GB\n"
    assert figures(text)["max_total_num_tokens"] == 228_520


def test_a_number_before_a_digit_is_no_lines_where_none_stands_beside_it() -> None:
    assert plain(b"4:1\n5:2\n").text == b"1\n2\n"
    assert plain(b"4:1\n9:2\n").text == b"4:1\n9:2\n"


@pytest.mark.parametrize(("clock", "tokens"), [(b"", 58), (b"12:34:56 ", None), (b"2026-11-30 12:34:56 ", None)])
def test_the_last_figure_of_a_line_is_cut_off_where_a_logger_wrote_it(clock: bytes, tokens: int | None) -> None:
    """A line without a clock is a quotation, which is whole; a log that ends within a line may have had more digits."""
    found = [record.count("tokens") for record in scan(io.BytesIO(clock + b"KV Cache is allocated. #tokens: 58"))]
    assert (found or [None])[0] == tokens
