"""A vLLM boot: what the tokens mean, which model has the pages, blocks and groups."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from present import present

from hybridcalc import load_model, vllm
from hybridcalc.bootlog.grammars import assemble
from hybridcalc.bootlog.reader import scan
from hybridcalc.deployment import Workload
from hybridcalc.diagnosis import Question, diagnose, diagnose_log
from hybridcalc.diagnosis.vllm import candidates
from hybridcalc.engines.vllm.releases import NEWEST_VERSION
from hybridcalc.errors import HybridcalcError

LOGS = Path(__file__).resolve().parent.parent / "data" / "bootlogs"


def answer(text: str, **question: Any) -> Any:
    boots = assemble(scan(io.BytesIO(text.encode()))).boots
    return next(iter(diagnose(boots, Question(**question))))


def published(name: str, **question: Any) -> Any:
    return diagnose_log(LOGS / name, Question(**question)).boots[0]


def test_the_headline_says_how_many_requests_of_a_length_fit() -> None:
    """Without a model no fewer than of the longest; a length beyond max_model_len is refused, whatever fits."""
    shorter, longer = (published("vllm-015.log", workload=Workload.at(length)) for length in (8192, 16384))
    assert "the blocks hold at least 38 requests of 8,192 tokens" in shorter.meaning
    assert "requests of 16,384 tokens are refused: max_model_len is 10,240" in longer.meaning
    assert ("HC155", "--max-model-len 16384") in [(item.rule, item.fix) for item in longer.findings]
    wanted = published("vllm-015.log", workload=Workload.at(16384, concurrency=50))
    assert [item.fix for item in wanted.findings if item.rule == "HC155"] == ["--max-model-len 16384"]


OUT_OF_MEMORY = """\
INFO 08-20 03:10:00 [model_runner.py:1112] Model loading took 16.5557 GiB and 2.803817 seconds
ERROR 08-20 03:10:01 [engine.py:467] CUDA out of memory. Tried to allocate 33.75 GiB. GPU 0 has a total capacity of \
44.40 GiB of which 26.88 GiB is free.
"""


def test_out_of_memory_says_what_was_wanted_and_what_was_free() -> None:
    (found,) = answer(OUT_OF_MEMORY).findings
    assert "33.75 GiB (26.88 GiB of 44.40 GiB free)" in found.message
    assert "lower --max-num-seqs or --max-num-batched-tokens" in found.fix


def test_an_old_token_figure_is_a_quarter_of_the_capacity() -> None:
    """Published: 129,472 tokens printed, 517,888 held; 955 blocks of which a request takes 485."""
    found = published("vllm-025.log", model=load_model("qwen3.5-2b"), workload=Workload.at(32_768))
    assert (found.version, found.derived.tokens_mean) == ("by the rules of 0.20.0", "one group's share")
    assert found.derived.groups_seen == pytest.approx(4, abs=0.02)
    assert (found.derived.num_blocks, found.derived.blocks_per_request) == (955, 485)
    low, high = found.derived.capacity_tokens
    assert low <= 955 / 485 * 262_144 <= high
    assert found.suggestions


def test_a_new_token_figure_is_the_capacity() -> None:
    found = published("vllm-016.log")
    assert found.model_guess == "qwen3.5-0.8b on TP1, bf16 KV"
    assert found.derived.tokens_mean == "concurrency x max_model_len"
    assert "HC100" in [finding.rule for finding in found.findings]
    assert found.constants is not None and present(found.constants.exact).group_sizes == [6, 6, 6, 6]


def test_pages_alone_name_no_model() -> None:
    """Many geometries share a block of 544 tokens; which fit is said, none is chosen. None of them has 15.26 GiB of
    weights on each rank at the TP that makes such a block.
    """
    text = (LOGS / "vllm-036.log").read_text()
    without = answer("".join(line for line in text.splitlines(keepends=True) if "Model loading took" not in line))
    assert without.model_guess is None and len(without.candidates) > 1
    assert [finding.rule for finding in without.findings] == ["HC107"]
    assert published("vllm-036.log").candidates == ()


def test_the_printed_class_narrows_the_models() -> None:
    assert {candidate.model for candidate in published("vllm-018.log").candidates} <= {
        "nemotron-3-nano-30b-a3b",
        "nemotron-3.5-lightning-30b-a3b",
    }


WARNED = {"vllm-015.log": "HC142", "vllm-017.log": "HC141", "vllm-027.log": "HC141", "vllm-031.log": "HC143"}


@pytest.mark.parametrize(("name", "rule"), WARNED.items())
def test_what_wastes_memory_is_said(name: str, rule: str) -> None:
    assert rule in [finding.rule for finding in published(name).findings]


@settings(max_examples=25)
@given(
    st.sampled_from(["qwen3.5-27b", "qwen3-next-80b-a3b", "nemotron-3-nano-30b-a3b", "qwen3.5-35b-a3b"]),
    st.sampled_from([1, 2, 4]),
    st.sampled_from(["auto", "fp8"]),
    st.integers(12, 60),
    st.sampled_from([8192, 65_536]),
)
def test_what_a_plan_prints_is_diagnosed_back(model: str, tp: int, dtype: str, gib: int, length: int) -> None:
    """Plan, print, read, diagnose: with the model named, blocks and concurrency come out."""
    args = vllm.EngineArgs(tensor_parallel_size=tp, kv_cache_dtype=dtype, max_model_len=length, max_num_seqs=16)
    try:
        made = vllm.plan(load_model(model), args, available_bytes=gib * 2**30)
    except HybridcalcError:
        return
    lines = [*made.log_lines, f"Available KV cache memory: {gib} GiB"]
    found = answer("".join(f"INFO 09-18 22:23:41 [a.py:1] {line}\n" for line in lines), model=load_model(model))
    assert found.derived.num_blocks == made.num_blocks
    assert found.derived.planned_concurrency == pytest.approx(made.max_concurrency, abs=0.01)
    assert "HC100" in [finding.rule for finding in found.findings]


def test_llama_cpp_states_are_fp32_and_drafts_multiply_them() -> None:
    """1795.5 MiB are 4 cells of 1 + 2 copies: 149.62 MiB a sequence, published as such for one cell."""
    found = published("lcpp-002.log")
    assert found.derived.state_bytes_per_sequence == int(1795.5 * 2**20 / 12)
    assert [finding.rule for finding in found.findings] == ["HC150"]


def test_boots_that_are_started_alike_share_what_is_worked_out(steps: Callable[[Callable[[], object]], int]) -> None:
    """The pages of the models are planned for the first of them: five boots cost less than two."""
    line = (
        "(EngineCore pid={0}) INFO 09-18 22:23:41 [a.py:1] Setting attention block size to 544 tokens to ensure\n"
        "(EngineCore pid={0}) INFO 09-18 22:23:41 [a.py:1] GPU KV cache size: {0},000 tokens\n"
    )

    model = load_model("qwen3.5-27b")

    def diagnosed(many: int) -> Callable[[], object]:
        boots = assemble(scan(io.BytesIO("".join(map(line.format, range(100, 100 + many))).encode()))).boots
        assert len(boots) == many
        return lambda: list(diagnose(boots, Question(model)))

    one, five = diagnosed(1), diagnosed(5)
    candidates._kept.clear()
    first = steps(one)
    candidates._kept.clear()
    assert steps(five) < 2 * first


PAGES = (
    "(EngineCore pid=9) INFO 09-22 10:10:01 [core.py:114] Initializing a V1 LLM engine (v0.27.1) with config: "
    "model='{}', max_seq_len=24576, tensor_parallel_size={}, kv_cache_dtype=auto, enable_prefix_caching=False\n"
    "(EngineCore pid=9) INFO 09-22 10:10:10 [a.py:1] Setting attention block size to 528 tokens to ensure\n"
    "(EngineCore pid=9) INFO 09-22 10:10:10 [a.py:1] Padding mamba page size by 0.76% to ensure\n"
    "(EngineCore pid=9) INFO 09-22 10:10:33 [a.py:1] Available KV cache memory: 1.74 GiB\n"
    "(EngineCore pid=9) INFO 09-22 10:10:33 [a.py:1] GPU KV cache size: 53,084 tokens\n"
    "(EngineCore pid=9) INFO 09-22 10:10:33 [a.py:1] Maximum concurrency for 24,576 tokens per request: 2.16x\n"
)


def test_printed_memory_is_an_interval() -> None:
    """1.74 GiB holds 107 blocks by its digits and 108 by its interval; 108 print the tokens."""
    found = answer(PAGES.format("Qwen/Qwen3.5-9B", 1))
    assert (found.derived.num_blocks, found.derived.blocks_per_request) == (108, 50)
    assert found.model_guess == "qwen3.5-9b on TP1, bf16 KV" and found.constants.exact.certain


def test_a_model_without_preset_is_named_by_its_id() -> None:
    found = answer(PAGES.format("someone/Other-9B", 1))
    assert found.headline.startswith("vLLM 0.27.1, Other-9B, pages as of qwen3.5-")
    assert not found.constants.exact.certain
    assert any(one.rule == "HC107" and "Other-9B" in one.message for one in found.findings)


def test_the_printed_tensor_parallelism_rules_out_others() -> None:
    assert answer(PAGES.format("someone/Other-9B", 2)).model_guess == "Other-9B"


def test_requests_that_are_wanted_are_held_against_the_blocks() -> None:
    """100 of 108 blocks serve 2 requests of max_model_len, 150 would serve 3."""
    few, many = (answer(PAGES.format("Qwen/Qwen3.5-9B", 1), workload=Workload((), count)) for count in (2, 3))
    [fits], [short] = ([one for one in found.findings if one.rule == "HC155"] for found in (few, many))
    assert (fits.severity, short.severity) == ("note", "warning") and "150 blocks of 108" in short.message


def test_a_traceback_behind_prefixes_is_quoted() -> None:
    prefix = "(EngineCore pid=9) ERROR 06-10 10:00:30 [core.py:1108] "
    raised = ["KeyError: no such layer", "RuntimeError: Engine core initialization failed. See root cause above."]
    lines = ["EngineCore failed to start.", "Traceback (most recent call last):", "  raise KeyError(name)", *raised]
    found = answer("".join(f"{prefix}{line}\n" for line in lines))
    [error] = found.findings
    assert error.rule == "HC128" and "line 4: KeyError: no such layer" in error.message
    serving = "(APIServer pid=1) ERROR 06-10 10:00:30 [serving.py:1108] ValueError: a request was bad\n"
    assert "does not start" not in answer(PAGES.format("Qwen/Qwen3.5-9B", 1) + serving).headline


GDN = {"triton": "Triton/FLA", "flashinfer": "FlashInfer", "cutedsl": "CuteDSL"}


@pytest.mark.parametrize("asked", ["auto", "flashinfer", "cutedsl"])
@pytest.mark.parametrize("kernel", GDN)
def test_the_kernel_of_gdn_is_the_one_that_the_log_names(kernel: str, asked: str) -> None:
    """0.33: FlashInfer takes a checkpoint block and its grid, others none; what is asked for need not be what runs."""
    args = vllm.EngineArgs(engine_version="0.33.0", max_model_len=8192, max_num_seqs=8, gdn_prefill_backend=kernel)
    plan = vllm.plan(load_model("qwen3.6-35b-a3b"), args, available_bytes=40 * 2**30)
    lines = [
        f"non-default args: {{'model': 'Qwen/Qwen3.6-35B-A3B', 'gdn_prefill_backend': '{asked}'}}",
        "(EngineCore) Initializing a V1 LLM engine (v0.33.0) with config: model='Qwen/Qwen3.6-35B-A3B', "
        "tensor_parallel_size=1, enable_prefix_caching=True",
        f"Using {GDN[kernel]} GDN prefill kernel (requested={asked}, head_k_dim=128).",
        "Available KV cache memory: 40.0 GiB",
        *plan.log_lines,
    ]
    found = answer("\n".join(f"INFO 11-02 10:00:{at:02} [core.py:1] {line}" for at, line in enumerate(lines)))
    assert found.derived.num_blocks == plan.num_blocks
    assert found.derived.blocks_per_request == plan.blocks_per_request


def test_a_release_newer_than_all_says_whose_rules_it_is_read_by() -> None:
    args = vllm.EngineArgs(max_model_len=8192, max_num_seqs=8)
    plan = vllm.plan(load_model("qwen3.6-27b"), args, available_bytes=40 * 2**30)
    for version, said in (("0.99.0", f"0.99.0, by the rules of {NEWEST_VERSION}"), ("0.33.0", "0.33.0")):
        lines = [
            f"Initializing a V1 LLM engine (v{version}) with config: model='Qwen/Qwen3.6-27B', tensor_parallel_size=1",
            "Available KV cache memory: 40.0 GiB",
            *plan.log_lines,
        ]
        found = answer("\n".join(f"INFO 11-02 10:00:{at:02} [core.py:1] {line}" for at, line in enumerate(lines)))
        assert found.version == said


DRAFTED = """\
(APIServer pid=1) INFO 05-04 21:49:34 [u.py:2] non-default args: {'model': 'org/a-super', 'max_model_len': 131072, \
'kv_cache_dtype': 'fp8', 'enable_prefix_caching': False, \
'speculative_config': {'method': 'mtp', 'num_speculative_tokens': 3}}
(APIServer pid=1) INFO 05-04 21:49:43 [model.py:554] Resolved architecture: NemotronHForCausalLM
(APIServer pid=1) INFO 05-04 21:49:48 [model.py:554] Resolved architecture: NemotronHMTPModel
(EngineCore pid=1) INFO 05-04 21:49:57 [core.py:107] Initializing a V1 LLM engine (v0.19.2rc1.dev134+gfe9c3d6c5) with \
config: model='org/a-super', speculative_config=SpeculativeConfig(method='mtp', model='org/a-super', \
num_spec_tokens=3), max_seq_len=131072, tensor_parallel_size=1, kv_cache_dtype=fp8, enable_prefix_caching=False
(EngineCore pid=1) INFO 05-04 23:55:10 [interface.py:606] Setting attention block size to 8432 tokens to ensure that \
attention page size is >= mamba page size.
(EngineCore pid=1) WARNING 05-04 23:55:55 [kv.py:1] Add 2 padding layers, may waste at most 6.67% KV cache
(EngineCore pid=1) WARNING 05-04 23:55:55 [kv.py:1] Add 5 padding layers, may waste at most 12.50% KV cache
(EngineCore pid=1) INFO 05-04 23:55:57 [gpu_worker.py:440] Available KV cache memory: 36.25 GiB
(EngineCore pid=1) INFO 05-04 23:55:57 [kv.py:2] GPU KV cache size: 1,399,712 tokens
(EngineCore pid=1) INFO 05-04 23:55:57 [kv.py:3] Maximum concurrency for 131,072 tokens per request: 27.81x
(EngineCore pid=1) INFO 05-04 23:56:24 [gpu.py:6] Graph capturing finished in 15 secs, took 0.44 GiB
(EngineCore pid=1) INFO 05-04 23:56:24 [gpu.py:5] CUDA graph pool memory: 0.44 GiB (actual), 0.69 GiB (estimated)
"""


def test_a_start_with_a_draft_model_is_one_start_and_its_draft_tokens_are_known() -> None:
    """Two classes, two kinds of padding layers and both lines of the graphs are of one start; a layer of the draft
    model makes 1,001 blocks of 37.05 MiB, and not 1,126 of 8 layers.
    """
    found = assemble(scan(io.BytesIO(DRAFTED.encode()))).boots
    (answered,) = diagnose(found, Question(model=load_model("nemotron-3-super-120b-a12b")))
    assert (answered.version or "").startswith("0.19.2rc1.dev134+gfe9c3d6c5")
    assert present(answered.derived).to_dict()["num_blocks"] == 1001
    assert [one.message.partition(" layers")[0] for one in answered.findings if one.rule == "HC141"] == ["5"]


LIMITED = """\
INFO 09-01 10:00:00 [utils.py:278] non-default args: {'model': 'some/thing', 'max_num_seqs': 4}
INFO 09-01 10:01:00 [gpu_worker.py:508] Available KV cache memory: 18.86 GiB
INFO 09-01 10:01:01 [kv_cache_utils.py:2146] GPU KV cache size: 239,023 tokens
INFO 09-01 10:01:01 [kv_cache_utils.py:2147] Maximum concurrency for 32,768 tokens per request: 7.29x
"""


@pytest.mark.parametrize(
    ("wanted", "length", "said", "severity", "fix"),
    [
        (3, None, "3 run", "note", ""),
        (4, 8192, "4 run at once", "note", ""),
        (6, None, "4 run at once", "warning", "--max-num-seqs 6"),
        (9, 8192, "4 run at once", "warning", "--max-num-seqs 9 with more memory for the cache, or fp8 KV"),
    ],
)
def test_no_more_run_than_the_engine_lets(wanted: int, length: int | None, said: str, severity: str, fix: str) -> None:
    """max_num_seqs stops requests that the blocks would hold; where these lack as well, both are to be raised."""
    found = answer(LIMITED, workload=Workload(((length, 1),) if length else (), wanted))
    (one,) = [item for item in found.findings if item.rule == "HC155"]
    assert (one.severity, one.fix) == (severity, fix)
    assert said in one.message or wanted < 4
    assert ("4 requests of 8,192 tokens run at once" if length else "--max-num-seqs 4 run") in found.meaning


def test_tokens_that_are_printed_are_not_computed_again() -> None:
    """7.29 x 32,768 would be 238,878: the printed 239,023 are exact."""
    found = answer(LIMITED)
    assert "239,023 tokens together" in found.meaning
    assert found.derived.capacity_tokens == (239_023, 239_023)
