"""What people paste beside a boot: launch lines, shortened lines, prose with figures, tables, other programs' logs."""

from __future__ import annotations

from typing import Any

import pytest
from diagnosed import diagnosed

from hybridcalc.deployment import Workload
from hybridcalc.diagnosis.view import boot_view

SALA = (
    "python -m sglang.launch_server --model-path /models/MiniCPM-SALA --disable-radix-cache \\\n"
    "  --max-running-requests 20 --mem-fraction-static 0.84\n"
    "[2026-04-07 13:03:53] Load weight end. type=MiniCPMSALAForCausalLM, avail mem=64.60 GB, mem usage=17.99 GB.\n"
    "[2026-04-07 13:03:53] Using KV cache dtype: torch.bfloat16\n"
    "[2026-04-07 13:03:53] Mamba Cache is allocated. max_mamba_cache_size: 20, conv_state size: 0.00GB, "
    "ssm_state size: 0.98GB \n"
    "[2026-04-07 13:03:53] KV Cache is allocated. #tokens: 6612763, K size: 25.23 GB, V size: 25.23 GB\n"
)


def shown(text: str, **question: Any) -> Any:
    return boot_view(diagnosed(text, **question), length=False)


@pytest.mark.parametrize("typed", ["python -m sglang.launch_server", "launch_server  ", "sglang serve"])
def test_a_launch_line_before_a_log_of_sglang_is_read(typed: str) -> None:
    """Without a radix cache each request holds one slot, so the limit binds, not 20 // 5."""
    found = diagnosed(SALA.replace("python -m sglang.launch_server", typed), workload=Workload.at(8192))
    assert (found.derived.slots_per_request, found.derived.requests) == (1, 20)
    assert found.boot.word("arguments", "disable_radix_cache") == "True"


def test_a_fork_may_have_a_class_that_the_release_of_its_lines_lacks() -> None:
    found = diagnosed(SALA)
    assert found.version == "before 0.5.13"
    assert found.constants.exact[:3] == ("minicpm-sala", 50_331_648, 8192)


def test_of_a_shortened_line_what_lacks_names_no_release() -> None:
    whole = "[2026-02-01 10:00:00] KV Cache is allocated. #tokens: 499968, K size: 7.63 GB, V size: 7.63 GB\n"
    assert diagnosed(whole).version == diagnosed(whole.replace("d. #", "d.\n#")).version == "before 0.5.13"
    assert diagnosed(whole.replace("d. #", "d. dtype: ... #")).version is None
    assert diagnosed(whole.replace("K size: ", "K ")).version is None


def test_a_refusal_retold_keeps_its_figures() -> None:
    told = (
        'died with "Not enough GPU memory for hybrid (mamba/linear-attention) state cache" - '
        "max_mamba_cache_size=-31, total_rest_memory=-8.63 GB, 140.78 MB/req (evidence in the log)\n"
    )
    assert diagnosed(told).candidates[0].model == "glm-5.3-flash"
    alone = diagnosed("Not enough GPU memory for hybrid state cache.\n# Computed max_mamba_cache_size=-59\n")
    assert alone.findings[0].message == "no memory for the state pool: K comes out at -59"


TYPED = """vllm serve moonshotai/Kimi-K3 \\
  --tensor-parallel-size 8 --max-num-seqs=512 --enable-prefix-caching
ValueError: max_num_seqs (1024) exceeds available Mamba cache blocks (854)
"""


@pytest.mark.parametrize("start", ["vllm serve ", "python -m vllm.entrypoints.openai.api_server --model ",
                                   "docker run --gpus all vllm/vllm-openai:v0.25.0 --model "])  # fmt: skip
def test_a_launch_line_before_a_log_of_vllm_is_read(start: str) -> None:
    found = diagnosed(TYPED.replace("vllm serve ", start))
    assert found.model_guess == "kimi-k3 on TP8, bf16 KV"
    said = dict(found.boot.of("arguments")[0].figures)
    assert (said["max_num_seqs"], said["enable_prefix_caching"]) == (512, "True")


def test_a_sentence_about_a_command_is_no_launch() -> None:
    found = diagnosed("After vllm serve was up it said: GPU KV cache size: 4,096 tokens\n")
    assert not found.boot.of("arguments")


def test_what_is_wanted_is_answered_before_other_warnings() -> None:
    from hybridcalc.output.text import cut

    view = shown(
        "Mamba Cache is allocated. max_mamba_cache_size: 82, conv_state size: 0.13GB, ssm_state size: 7.29GB\n"
        "max_total_num_tokens=580364, max_running_requests=1, context_len=8192\n",
        workload=Workload((), 8),
    )
    assert cut(view, lines=8).view.findings[0].rule == "HC155"
    assert {found.rule for found in view.findings} >= {"HC111", "HC155"}


def test_no_tokens_are_no_share_of_any() -> None:
    found = diagnosed("GPU KV cache size: 0 tokens\nMaximum concurrency for 10,000 tokens per request: 1.00x\n")
    assert found.derived.groups_seen is None
    assert "HC140" not in [one.rule for one in found.findings]


OLLAMA = """time=2026-05-09T10:33:52.782Z level=INFO source=ggml.go:136 msg="" architecture=qwen35moe \
file_type=unknown name=Qwen3.6-35B-A3B description="" num_tensors=733
time=2026-05-09T10:33:53.028Z level=INFO source=runner.go:1284 msg=load request="{Operation:fit LoraPath:[] \
Parallel:4 BatchSize:512 KvSize:65536 KvCacheType: NumThreads:4}"
time=2026-05-09T10:33:53.029Z level=INFO source=runner.go:1284 msg=load request="{Operation:commit LoraPath:[] \
Parallel:1 BatchSize:512 KvSize:16384 KvCacheType: NumThreads:4}"
time=2026-05-09T10:33:53.100Z level=INFO source=sched.go:491 msg="gpu memory" available="10.3 GiB"
time=2026-05-09T10:33:53.731Z level=INFO source=ggml.go:494 msg="offloaded 17/41 layers to GPU"
time=2026-05-09T10:33:53.731Z level=INFO source=device.go:240 msg="model weights" device=CUDA0 size="8.3 GiB"
time=2026-05-09T10:33:53.731Z level=INFO source=device.go:245 msg="model weights" device=CPU size="11.5 GiB"
time=2026-05-09T10:33:53.731Z level=INFO source=device.go:251 msg="kv cache" device=CUDA0 size="192.0 MiB"
time=2026-05-09T10:33:53.731Z level=INFO source=device.go:262 msg="compute graph" device=CUDA0 size="1.1 GiB"
time=2026-05-09T10:33:53.731Z level=INFO source=device.go:272 msg="total memory" size="21.1 GiB"
"""


def test_a_runner_of_ollama_says_what_it_reckons_with() -> None:
    """What is committed counts, not what is tried; what is on the host, and why so few layers are not."""
    found = diagnosed(OLLAMA.replace("\\\n", ""), workload=Workload.at(8192))
    assert (found.headline, found.derived.requests) == ("Ollama, qwen3.6-35b-a3b", 1)
    assert [row.arithmetic for row in found.rows[:3]] == [
        "CUDA0 8.3 + CPU 11.5 GiB",
        "CUDA0 192.0 MiB",
        "CUDA0 1.1 GiB",
    ]
    assert found.derived.buffers_bytes["caches"] == 192 * 2**20
    said = next(one.message for one in found.findings if one.rule == "HC152")
    assert said == "17 of 41 layers are on the device: 21.10 GiB are needed for all, 10.30 GiB are free"


@pytest.mark.parametrize("opening", ['msg="offload to cuda"', "msg=offload library=cuda"])
def test_an_old_ollama_says_why_so_few_layers_are_on_the_device(opening: str) -> None:
    text = (
        f"level=INFO source=server.go:168 {opening} layers.requested=-1 layers.model=95 layers.offload=65 "
        'memory.available="[23.2 GiB 23.2 GiB]" memory.required.full="152.6 GiB" memory.required.kv="752.0 MiB" '
        'memory.weights.total="132.3 GiB" memory.graph.full="2.0 GiB"\n'
    )
    found = diagnosed(text)
    assert found.derived.buffers_bytes == {"weights": 142_056_043_315, "caches": 752 * 2**20, "compute": 2 * 2**30}
    assert "152.60 GiB are needed for all, 46.40 GiB are free" in found.findings[0].message
    real = (
        text + "llama_kv_cache: CUDA0 KV buffer size = 768.00 MiB\nload_tensors: CUDA0 model buffer size = 20.00 MiB\n"
    )
    assert diagnosed(real).derived.buffers_bytes == {"weights": 20 * 2**20, "KV": 768 * 2**20, "compute": 2 * 2**30}


def test_a_host_that_does_not_hold_a_model_ends_its_load() -> None:
    found = diagnosed('error="model requires more system memory (29.9 GiB) than is available (27.4 GiB)"\n')
    assert found.meaning == "the host's memory does not hold the model: 29.90 GiB are needed, 27.40 GiB are free"


def test_a_draft_context_names_the_model_it_is_of() -> None:
    """Cells that all sequences share hold one request of so many tokens, whatever the slots."""
    text = (
        "llama_context: n_ctx = 8192\nllama_context: n_ctx_seq = 8192\nllama_context: kv_unified = {}\n"
        "llama_kv_cache: CUDA0 KV buffer size = 512.00 MiB\n"
        "llama_memory_recurrent: size = 598.50 MiB ( 4 cells, 64 layers, 4 seqs 0 rs_seq), R (f32): 22.50 MiB, "
        "S (f32): 576.00 MiB\n"
        "srv load_model: creating MTP draft context against the target model '/m/Qwen3.8-27B-UD-Q4_K_M.gguf'\n"
    )
    shared, apart = (diagnosed(text.format(word), workload=Workload.at(8192)) for word in ("true", "false"))
    assert shared.model_guess == "qwen3.8-27b"
    assert (shared.derived.requests, apart.derived.requests) == (1, 4)


def test_an_older_card_has_other_blocks() -> None:
    """784 tokens a block where Hopper's kernel would keep states at a grid, 832: 62 requests, by the blocks of 784."""
    text = (
        "Initializing a V1 LLM engine (v0.33.0) with config: model='Qwen/Qwen3.6-27B-FP8', max_seq_len=131072, "
        "tensor_parallel_size=2\nAvailable KV cache memory: 25.28 GiB\n"
        "Setting attention block size to 784 tokens to ensure that attention page size is >= mamba page size.\n"
        "Padding mamba page size by 0.13% to ensure\n"
        "GPU KV cache size: 795,471 tokens, Maximum concurrency for 131,072 tokens per request: 6.07x\n"
    )
    found = diagnosed(text, workload=Workload.at(8192))
    assert (found.model_guess, found.derived.requests) == ("qwen3.6-27b on TP2, bf16 KV", 62)
    small = (
        text.replace("size=2", "size=1").replace("25.28", "11.63").replace("795,471", "183,048").replace("6.07", "1.40")
    )
    assert diagnosed(small, workload=Workload.at(8192)).derived.requests == 14  # 256 sequences would not start


def test_half_of_a_kv_line_is_not_all_of_it() -> None:
    text = "KV Cache is allocated. #tokens: 2085000, K size: 11.93 GB, V siz\n"
    assert [row.arithmetic for row in diagnosed(text).rows] == [""]


def test_a_split_that_the_log_echoes_and_its_pools_do_not_keep_is_said() -> None:
    text = (
        "server_args=ServerArgs(model_path='Qwen/Qwen3-Next-80B-A3B-Instruct', tp_size=4, mamba_full_memory_ratio={})\n"
        "Mamba Cache is allocated. max_mamba_cache_size: 10, conv_state size: 0.00GB, ssm_state size: 0.19GB\n"
        "KV Cache is allocated. #tokens: 2085000, K size: 11.93 GB, V size: 11.93 GB\n"
    )
    said = [(one.severity, one.message) for one in diagnosed(text.format(0.9)).findings if one.rule == "HC108"]
    assert said == [("warning", "the echoed command splits at 0.9, the pools at 0.01")]
    assert "HC108" not in [one.rule for one in diagnosed(text.format(0.0085)).findings]


def test_a_breakdown_of_memory_stands_in_for_buffers() -> None:
    text = (
        "print: |   - CUDA0 (Quadro P6000) | 24436 = 24222 + (35761 = 33296 +    1720 +     744) "
        "+      -35547 |\n"
        "print: |   - CUDA1 (Quadro P6000) | 24436 = 24284 + (    0 =     0 +       0 +       0) "
        "+         152 |\n"
        "print: |   - Host                 |                  2341 =  2117 +       0 +     224    |\n"
    )
    found = diagnosed(text).derived.buffers_bytes
    assert found == {"weights": (33296 + 2117) * 2**20, "caches": 1720 * 2**20, "compute": (744 + 224) * 2**20}


def test_a_load_that_dies_of_a_bare_error_of_the_device_ran_out_of_memory() -> None:
    text = "llama_kv_cache: CUDA0 KV buffer size = 64.00 MiB\n CUDA error: out of memory\n  current device: 0\n"
    assert (diagnosed(text).headline, diagnosed(text).meaning) == ("llama.cpp: does not start", "out of memory")


def test_ranks_that_no_line_decides_are_not_named() -> None:
    """Blocks of 1,056 tokens are those of TP1 and TP2 alike."""
    text = (
        "Resolved architecture: Qwen3_5MoeForConditionalGeneration\n"
        "Setting attention block size to 1056 tokens to ensure that attention page size is >= mamba page size.\n"
        "Padding mamba page size by 0.76% to ensure\n"
    )
    found = diagnosed(text)
    assert {one.tp for one in found.candidates} > {1}
    assert (found.model_guess, found.derived.bytes_per_block) == ("qwen3.5-35b-a3b, bf16 KV", None)


def test_a_refusal_in_the_comments_of_a_batch_file_is_whole() -> None:
    text = (
        "rem \"To serve at least one request with the model's max seq len (12000), 1.66 GiB\n"
        "rem KV cache is needed, which is larger than the available KV cache memory (0.82 GiB) ...\n"
        'rem estimated maximum model length is 1600". Weights came up\n'
    )
    [found] = diagnosed(text).findings
    assert found.message == "one request of 12,000 tokens does not fit: 1.66 GiB are needed, 0.82 are there"
    assert found.mend == ("--max-model-len", "1600")


STAGE = (
    "{0}Mamba Cache is allocated. max_mamba_cache_size: 131, conv_state size: 0.18GB, ssm_state size: 9.28GB\n"
    "{0}KV Cache is allocated. dtype: torch.bfloat16, #tokens: 345292, K size: 5.27 GB, V size: 5.27 GB\n"
)


def test_the_pools_of_a_pipeline_are_those_of_a_stage() -> None:
    """Half the layers of TP1 on each of two stages are what TP2 has of all: the ranks or the launch line tell."""
    ranks = "".join(STAGE.format(f"[2026-03-02 10:15:02 PP{stage} TP0] ") for stage in (0, 1))
    named = "python -m sglang.launch_server --model-path Qwen/Qwen3.8-27B --pp-size 2\n" + STAGE.format("")
    for text in (ranks, named):
        found = diagnosed(text)
        assert "on TP1 x PP2" in found.headline
        assert found.candidates[0].sizes == (76_972_032, 32_768)
        assert "HC108" not in [one.rule for one in found.findings]


def test_slots_that_a_flag_in_a_sentence_asks_for() -> None:
    """40 slots make 8 requests at 5 each; with another limit the flag is advice, and says nothing of that start."""
    text = "`--max-mamba-cache-size 40`: SGLang reports `max_running_requests=8`\n"
    found = diagnosed(text, workload=Workload.at(8192, concurrency=20))
    assert found.derived.slots_per_request == 5
    assert any("20 requests want 100 slots (20 x 5) of 40" in one.message for one in found.findings)
    assert diagnosed(text.replace("=8", "=16")).derived.slots_per_request is None


def test_about_so_much_is_never_said_as_exact() -> None:
    found = diagnosed("| setting | value |\n|---|---|\n| KV tokens | ~1,619,600 |\n| mamba slots | 309 |\n")
    assert "~1,619,600 KV tokens" in found.meaning
    assert [row.what for row in found.rows] == ["K = 309 slots", "~1,619,600 tokens"]
    assert any("about 1,619,600" in one.message for one in found.findings)


def test_a_first_pipeline_stage_alone_is_no_whole_model() -> None:
    """Half of Kimi K3 on TP8 x PP2, as the planner prints it; nothing else is taken for it."""
    text = (
        "[2026-02-01 00:05:02 PP0 TP0] Mamba Cache is allocated. max_mamba_cache_size: 534, conv_state size: 0.48GB, "
        "ssm_state size: 13.71GB \n"
        "[2026-02-01 00:05:02 PP0 TP0] KV Cache is allocated. dtype: torch.bfloat16, #tokens: 1133053, "
        "KV size: 13.37 GB\n"
    )
    found = diagnosed(text)
    assert "kimi-k3 on TP8 x PP2" in found.headline
    assert any("PP0 of the pipeline stages alone" in one.message for one in found.findings)
    both = diagnosed(text + text.replace("PP0", "PP1"))
    assert "kimi-k3 on TP8 x PP2" in both.headline
    assert not any("pipeline stages alone" in one.message for one in both.findings)
    assert not diagnosed(text.replace(" PP0 TP0", "")).candidates


def test_where_slots_alone_are_printed_what_they_admit_is_said_by_strategy() -> None:
    text = "Mamba Cache is allocated. max_mamba_cache_size: 40, conv_state size: 0.07GB, ssm_state size: 2.15GB\n"
    [said] = [one.message for one in diagnosed(text).findings if one.rule == "HC131"]
    assert "5 (extra_buffer, what auto mostly takes from 0.5.14 on): 8 requests" in said
    assert "3 (no_buffer, what auto takes before 0.5.14): 13 requests" in said
    assert "1 (without a prefix cache): 40 requests" in said
    assert not [one for one in diagnosed(SALA).findings if one.rule == "HC131"]


def test_a_worker_that_died_behind_the_cache_did_not_start() -> None:
    """The traceback is cut off: that a worker raised is all that is left of it."""
    text = "GPU KV cache size: 198,784 tokens\nMaximum concurrency for 8,192 tokens per request: 24.27x\n"
    died = "(VllmWorker rank=1 pid=106) ERROR 04-29 01:10:12 [multiproc_executor.py:470] WorkerProc hit an exception.\n"
    assert "does not start" in diagnosed(text + died).headline
    assert "does not start" not in diagnosed(text).headline
