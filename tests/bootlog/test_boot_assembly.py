"""Several boots, engines and ranks in one log, and draft models beside their targets."""

from __future__ import annotations

import io
import itertools
from dataclasses import replace
from pathlib import Path

import pytest
from test_statements import SGLANG, VLLM

from hybridcalc.bootlog.boots import Boot, figures, merged
from hybridcalc.bootlog.grammars import MOST_BOOTS, assemble
from hybridcalc.bootlog.reader import scan


def boots(text: str) -> list[Boot]:
    return assemble(scan(io.BytesIO(text.encode()))).boots


def test_each_start_is_a_boot_of_its_own() -> None:
    again = SGLANG.replace("124", "200").replace("330323", "250000")
    found = boots(SGLANG + again)
    assert [figures(boot)["max_mamba_cache_size"] for boot in found] == [124, 200]
    assert [figures(boot)["max_total_num_tokens"] for boot in found] == [330_323, 250_000]


def test_the_same_start_pasted_twice_adds_nothing() -> None:
    """Where the engine says nothing of a new start, a repeated line is a repetition."""
    pools = "".join(line + "\n" for line in SGLANG.splitlines() if "allocated" in line or "max_total" in line)
    assert len(boots(pools + pools)) == 1
    assert figures(boots(pools + pools)[0]) == figures(boots(pools)[0])


@pytest.mark.parametrize(
    ("prefixes", "apart"),
    [
        (("alpha-1  | ", "beta-1   | "), True),
        (("0|alpha  | ", "1|beta   | "), True),
        (("[pod/alpha-0/serve] ", "[pod/beta-0/serve] "), True),
        (("alpha-7d9c8b6f5d-x2x9z serve ", "beta-7d9c8b6f5d-k8s7q serve "), True),
        (("+ alpha-7d9c8b6f5d-x2x9z \u203a serve ", "+ beta-7d9c8b6f5d-k8s7q \u203a serve "), True),
        (("alpha-1  | ", "alpha-2  | "), False),
        (("[pod/alpha-leader/serve] ", "[pod/alpha-worker-0/serve] "), False),
        (("alpha-7d9c8b6f5d-x2x9z serve ", "alpha-7d9c8b6f5d-k8s7q serve "), False),
        (("INFO     | ", "WARNING  | "), False),
        (("stdout | ", "stderr | "), False),
    ],
)
def test_services_that_write_into_one_log_stay_apart(prefixes: tuple[str, str], apart: bool) -> None:
    """Line by line in turn; copies and nodes of one service are that service, a stream or a level is none."""
    again = SGLANG.replace("124", "200").replace("330323", "250000")
    pairs = zip(SGLANG.splitlines(), again.splitlines(), strict=True)
    found = boots("".join(prefix + line + "\n" for pair in pairs for prefix, line in zip(prefixes, pair, strict=True)))
    expected = [figures(boot) for text in (SGLANG, again) for boot in boots(text)]
    assert ([figures(boot) for boot in found] == expected) is apart


def test_engines_in_one_file_stay_apart() -> None:
    found = boots(
        "\n".join(line for pair in zip(SGLANG.splitlines(), VLLM.splitlines(), strict=False) for line in pair)
    )
    assert [boot.engine for boot in found] == ["sglang", "vllm"]


def test_another_pid_is_another_vllm_start() -> None:
    found = boots(VLLM + VLLM.replace("pid=90", "pid=91").replace("516,180", "350,043"))
    assert [figures(boot)["gpu_kv_cache_tokens"] for boot in found] == [516_180, 350_043]


def test_ranks_of_one_boot_are_one_boot() -> None:
    """Equal ranks give one value; uneven ones a list, and no draft."""
    both = SGLANG + SGLANG.replace("TP0", "TP1").replace("K size: 10.08", "K size: 5.04").replace(
        "V size: 10.08", "V size: 5.04"
    )
    found = boots("\n".join(sorted(both.splitlines(), key=lambda line: line[:20])))
    assert len(found) == 1 and found[0].ranks == ["TP0", "TP1"]
    said = figures(found[0])
    assert (said["k_gib"], said["kv_tokens"]) == ([10.08, 5.04], 330_323)
    assert "draft_k_gib" not in said


def test_a_draft_model_keeps_its_own_names() -> None:
    draft = (
        "[2026-10-02 00:39:42 TP0] Load weight end. elapsed=1 s, type=Qwen3_5MTP, avail mem=62.00 GB, "
        "mem usage=3.30 GB.\n"
        "[2026-10-02 00:39:42 TP0] KV Cache is allocated. dtype: torch.bfloat16, #tokens: 330323, K size: 0.63 GB, "
        "V size: 0.63 GB\n[2026-10-02 00:39:42 TP0] Memory pool end. avail mem=24.85 GB\n"
    )
    lines = SGLANG.splitlines(keepends=True)
    [boot] = boots("".join([*lines[:6], draft, *lines[6:]]))
    said = figures(boot)
    assert (said["weights_gib"], said["draft_weights_gib"]) == (28.47, 3.3)
    assert (said["k_gib"], said["draft_k_gib"], said["draft_kv_tokens"]) == (10.08, 0.63, 330_323)
    assert (said["mem_pool_end_avail_gib"], said["draft_mem_pool_end_avail_gib"]) == (26.11, 24.85)


def test_an_impossible_figure_gives_way_to_a_possible_one() -> None:
    decoy = "(Worker_DP1 pid=3) INFO 08-13 11:26:35 [a.py:1] Model loading took 999.99 GiB memory\n"
    assert figures(boots(decoy + VLLM)[0])["weights_gib"] == 15.26
    assert figures(boots(decoy)[0])["weights_gib"] == 999.99


def test_what_is_held_of_many_boots_is_bounded() -> None:
    line = "Mamba Cache is allocated. max_mamba_cache_size: {0}, conv_state size: 0.34GB, ssm_state size: 17.58GB\n"
    found = assemble(scan(io.BytesIO("".join(map(line.format, range(1, 3000))).encode())))
    assert len(found.boots) == MOST_BOOTS and found.dropped == 2999 - MOST_BOOTS
    assert (found.boots[0].count("state_pool", "slots"), found.boots[-1].count("state_pool", "slots")) == (1, 2999)


RUNNING_LINES = {"mamba_num", "mamba_usage", "full_tokens", "full_token_usage", "running_req", "queue_req"}


def flat(said: dict[str, object]) -> set[tuple[str, object]]:
    """Names with their single values; what a running server says is the last word alone, and left out."""
    return {
        (name, one)
        for name, value in said.items()
        if name not in RUNNING_LINES
        for one in (value if isinstance(value, list) else [value])
    }


def test_any_two_logs_in_one_file_keep_their_figures_and_names() -> None:
    """Thousands of pairs: no boot lends another its ranks, its draft or its end."""
    paths = sorted((Path(__file__).parent.parent / "data" / "bootlogs").glob("*.log"))
    read = {path.stem: list(scan(io.BytesIO(path.read_bytes()))) for path in paths}
    alone = {name: flat(merged(assemble(records).boots)) for name, records in read.items()}
    wrong = []
    for first, second in itertools.permutations(read, 2):
        behind = max((record.line for record in read[first]), default=0) + 1
        records = [*read[first], *(replace(record, line=record.line + behind) for record in read[second])]
        if flat(merged(assemble(records).boots)) != alone[first] | alone[second]:
            wrong.append((first, second))
    assert wrong == UNDECIDED


UNDECIDED = [
    ("sgl-022", "sgl-016"), ("sgl-022", "sgl-025"), ("sgl-022", "sgl-043"), ("sgl-022", "sgl-044"),
    ("sgl-038", "sgl-007"), ("sgl-042", "sgl-007"),
]  # fmt: skip
"""Weights whose line elides all figures, beside others of that class or of none; and a log that is pasted backwards:
"ready" comes first, behind the error of the log before.
"""


def test_a_load_behind_a_draft_context_is_no_draft() -> None:
    llama = (
        "llama_kv_cache: CUDA0 KV buffer size = 512.00 MiB\ncreating MTP draft context against the target model\n"
        "llama_kv_cache: CUDA0 KV buffer size = 32.00 MiB\n"
    )
    later = "llama_kv_cache: CUDA0 KV buffer size = 640.00 MiB\n"
    for between in ("", "load_tensors: CUDA0 model buffer size = 16028.79 MiB\n"):
        first, second = boots(llama + between + later)
        assert figures(first) == {"kv_buffer_mib": 512.0, "draft_kv_buffer_mib": 32.0}
        assert figures(second)["kv_buffer_mib"] == 640.0


FIGURES = (
    "(EngineCore pid=107) INFO {0} [gpu_worker.py:508] Available KV cache memory: 6.01 GiB\n"
    "(EngineCore pid=107) INFO {0} [kv_cache_utils.py:2146] GPU KV cache size: 569,878 tokens\n"
)
CONFIG = (
    "\n**Engine config:**\n\n(APIServer pid=1) INFO {0} [api_utils.py:273] non-default args: "
    "{{'model': '/models/qwen3.6-35b-a3b', 'max_model_len': 131072}}\n"
    "(EngineCore pid=107) INFO {0} [core.py:114] Initializing a V1 LLM engine (v0.24.0) with config: model='x'\n"
)


def test_a_config_pasted_behind_its_figures_is_of_their_boot() -> None:
    """Reports have a section for either: the clock says which came first. A later config starts another boot."""
    figures = FIGURES.format("07-09 02:58:11")
    [boot] = boots(figures + CONFIG.format("07-09 02:56:25"))
    assert boot.word("engine_started", "version") == "v0.24.0"
    assert boot.word("arguments", "model") == "/models/qwen3.6-35b-a3b"
    assert len(boots(figures + CONFIG.format("07-09 02:59:00"))) == 2
    assert len(boots(CONFIG.format("07-09 02:50:00") + figures + CONFIG.format("07-09 02:56:25"))) == 2


def test_lines_in_the_order_of_the_alphabet_are_one_start() -> None:
    """A total that stands before its buffer there, and a context behind both; with clocks the order is that of time."""
    lines = (
        "llama_init_from_model: KV self size  =  144.00 MiB, K (f16):   72.00 MiB, V (f16):   72.00 MiB",
        "llama_kv_cache_init:      CUDA0 KV buffer size =   144.00 MiB",
        "llama_new_context_with_model: n_ctx         = 16384",
        "llm_load_tensors: offloaded 49/49 layers to GPU",
        "llm_load_tensors:  CPU buffer size = 37803.47 MiB",
    )
    assert len(boots("\n".join(sorted(lines)))) == 1
    clocked = (f"2026-02-01 00:05:0{number} {line}" for number, line in enumerate(sorted(lines)))
    assert len(boots("\n".join(clocked))) > 1
