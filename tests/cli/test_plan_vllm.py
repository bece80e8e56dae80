"""`hybridcalc plan` and `crossover` for vLLM, end to end: memory, launch lines, refusals, sweeps."""

from __future__ import annotations

import csv
import io
import json
import re
from pathlib import Path

import pytest
from command_line import pasted, plan, run

VLLM = ("--engine", "vllm")
NEMOTRON = (*VLLM, "nemotron-h-8b", "--max-model-len", "8192")
MEMORY = ("--available", "40GiB")
LAUNCH = (
    "--", "VLLM_USE_V2_MODEL_RUNNER=1", "vllm", "serve", "nvidia/Nemotron-H-8B-Base-8K", "--max_model_len=8192",
    "--max-num-seqs", "64", "--port", "8000", "--trust-remote-code",
)  # fmt: skip


def test_nemotron_h_8b_on_40_gib() -> None:
    """Blocks of 1,040 tokens, 26 a request, 96.92x, as vLLM 0.33.0 computes them."""
    answer = plan(*NEMOTRON, *MEMORY, "-L", "4200")
    assert (answer["engine"], answer["engine_version"], answer["model"]) == ("vllm", "0.33.0", "nemotron-h-8b")
    assert (answer["attn_block_size"], answer["num_blocks"], answer["blocks_per_request"]) == (1040, 2520, 26)
    assert f"{answer['max_concurrency']:.2f}" == "96.92"
    assert (answer["requests"], answer["binding"]) == (109, "blocks")


def test_json_is_one_document_with_its_schema() -> None:
    ran = run("plan", *NEMOTRON, *MEMORY, "-L", "4200", "--json")
    answer = ran.document
    assert answer["schema"] == "hybridcalc.plan/2" and ran.err == "" and "\x1b" not in ran.out
    assert (answer["starts"], answer["refusal"]) == (True, None)
    assert sum(line["allocated_bytes"] for line in answer["budget"]) == answer["engine_figures"]["allocated_bytes"]
    assert answer["suggestions"] and all(set(s) >= {"flags", "effect", "why"} for s in answer["suggestions"])
    assert answer["log_lines"] and answer["steps"]


def test_a_shared_prefix_is_reused_in_whole_blocks() -> None:
    """0.22.1, mode all: 3,840 of 4,000 tokens, 360 computed; of 900 nothing. The length follows from both."""
    old = (*NEMOTRON, *MEMORY, "--engine-version", "0.22.1", "--enable-prefix-caching")
    answer = plan(*old, "--shared-prefix", "4000", "--private", "200")
    assert (answer["prefix"]["reused_tokens"], answer["prefix"]["computed_tokens"]) == (3840, 360)
    assert answer["workload"]["length_tokens"] == 4200
    short = plan(*old, "--shared-prefix", "900", "--private", "200")
    assert short["prefix"]["reused_tokens"] == 0
    assert "HC055" in [finding["rule"] for finding in short["findings"]]


def test_a_launch_line_says_the_engine() -> None:
    """Model, variables, = forms and underscores; flags that leave memory alone are passed over."""
    answer = plan(*MEMORY, *LAUNCH)
    assert (answer["engine"], answer["model"], answer["num_blocks"]) == ("vllm", "nemotron-h-8b", 2520)
    assert (answer["max_num_seqs"], answer["max_model_len"]) == (64, 8192)


@pytest.mark.parametrize(
    ("outside", "key", "value"),
    [
        (("--max-num-seqs", "9"), "max_num_seqs", 9),
        (("-tp", "2"), "attn_bytes_per_token_per_layer", 2048.0),
        (("--no-enable-prefix-caching",), "mamba_cache_mode", "none"),
        (("qwen3-next-80b-a3b",), "model", "qwen3-next-80b-a3b"),
        (("--engine-version", "0.27.0"), "prefix_caching", False),
        (("--env", "VLLM_KV_CACHE_LAYOUT=HND"), "layout", "LBHNC"),
    ],
    ids=["limit", "tp", "switch", "MODEL", "version", "variable"],
)
def test_what_stands_outside_the_launch_line_wins(outside: tuple[str, ...], key: str, value: float | str) -> None:
    assert plan(*outside, *MEMORY, *LAUNCH)[key] == value


@pytest.mark.parametrize("form", ["words", "text", "script", "stdin"])
def test_a_launch_line_comes_in_every_form(form: str, tmp_path: Path) -> None:
    text = "M=nemotron-h-8b; vllm serve $M -sc.method ngram -sc.num_speculative_tokens 2 --max-model-len 8K | tee x"
    script = tmp_path / "launch.sh"
    script.write_text("#!/bin/bash\n" + text.replace("--max", "\\\n  --max"), encoding="utf-8")
    words = text.removeprefix("M=nemotron-h-8b; ").removesuffix(" | tee x").replace("$M", "nemotron-h-8b").split()
    line = {"words": words, "text": [text], "script": [str(script)], "stdin": ["-"]}[form]
    answer = plan(*MEMORY, "--", *line, stdin=script.read_bytes())
    assert (answer["model"], answer["num_speculative_tokens"], answer["max_model_len"]) == ("nemotron-h-8b", 2, 8192)


def test_a_gpu_decides_memory_kernels_and_the_default_limit() -> None:
    """139.80 GiB, as the runtime gives them, x 0.9 - 16 - 4; 1,024 sequences; what else it holds is an interval."""
    gpu = (*NEMOTRON, "--gpu", "h200", "--weights", "16GiB", "--gpu-memory-utilization", "0.9")
    answer = plan(*gpu, "--non-cache", "4GiB")
    assert answer["memory"]["rest_gib"] == pytest.approx(139.80 * 0.9 - 20)
    assert answer["max_num_seqs"] == 1024 and not answer["intervals"]
    low, high = plan(*gpu)["intervals"]["num_blocks"]
    assert low < answer["num_blocks"] < high  # 1,024 sequences may sample in more than 4 GiB
    blackwell = plan(*VLLM, "nemotron-h-8b", "--gpu", "b200", "--weights", "16GiB", "--max-num-seqs", "64")
    assert (blackwell["attention_backends"], blackwell["layout"]) == (["FLASHINFER", "MAMBA2_ATTN"], "LBHNC")
    assert plan(*NEMOTRON, *MEMORY, "--gpu-capability", "10.0")["attention_backends"][0] == "FLASHINFER"


def test_the_memory_may_stand_among_the_flags() -> None:
    assert plan(*NEMOTRON, "--kv-cache-memory-bytes", "40G")["num_blocks"] == 2520
    both = plan(*NEMOTRON, *MEMORY, "--kv-cache-memory-bytes", "20G")
    assert both["num_blocks"] == 2520
    assert "--available is given: --kv-cache-memory-bytes changes nothing here" in both["notes"]


def test_weights_come_from_the_index_beside_a_config(tmp_path: Path) -> None:
    from pathlib import Path

    config = Path(__file__).resolve().parent.parent.parent / "examples" / "qwen3.5-27b" / "config.json"
    (tmp_path / "config.json").write_bytes(config.read_bytes())
    total = json.dumps({"metadata": {"total_size": 55_562_855_904}})
    (tmp_path / "model.safetensors.index.json").write_text(total)
    flags = ("-tp", "2", "--gpu", "80GiB", "--non-cache", "3GiB", "--max-num-seqs", "64", "--max-model-len", "8k")
    memory = plan(*VLLM, str(tmp_path), *flags)["memory"]
    assert 25 < memory["weights_gib"] < 26 and "the index of" in memory["weights_from"]
    assert memory["rest_gib"] == pytest.approx(80 * 0.92 - memory["weights_gib"] - 3)


REFUSED = {
    "one request": ((*NEMOTRON, "--available", "0.4GiB"), "HC041", "get_kv_cache_configs"),
    "no memory": ((*NEMOTRON, "--available", "-1GiB"), "HC040", "get_kv_cache_configs"),
    "unknown hybrid": ((*VLLM, "lara-4-mini", *MEMORY), "HC043", "create_engine_config"),
    "long": ((*VLLM, "nemotron-h-8b", "--max-model-len", "8193", *MEMORY), "HC051", "create_engine_config"),
    "drafts": ((*NEMOTRON, *MEMORY, "--spec-tokens", "3"), "HC049", "create_engine_config"),
    "removed": ((*VLLM, "bamba-9b", *MEMORY), "HC043", "create_engine_config"),
    "retired mode": (
        (*NEMOTRON, *MEMORY, "--mamba-cache-mode", "all", "--engine-version", "0.32.0"), "HC042", "create_engine_config"
    ),
    "sequences": ((*NEMOTRON, *MEMORY, "--max-num-seqs", "5000"), "HC044", "cudagraph_mamba_check"),
    "unit": ((*NEMOTRON, *MEMORY, "--prefix-match-unit", "100"), "HC045", "resolve_kv_cache_block_sizes"),
    "ranks": ((*NEMOTRON, *MEMORY, "-tp", "3"), "HC050", "create_engine_config"),
    "block": ((*NEMOTRON, *MEMORY, "--block-size", "24"), "HC047", "initialize_model"),
    "weights": ((*NEMOTRON, "--gpu", "h100", "--weights", "90GiB"), "HC040", "initialize_model"),
    "launch line": ((*MEMORY, *LAUNCH, "--block-size", "24"), "HC047", "initialize_model"),
}  # fmt: skip


@pytest.mark.parametrize(("arguments", "rule", "stage"), REFUSED.values(), ids=REFUSED)
def test_what_the_engine_refuses_is_exit_1_with_a_reason_and_a_fix(
    arguments: tuple[str, ...], rule: str, stage: str
) -> None:
    """The question is clear and the answer is no: as text and as a document."""
    before = arguments.index("--") if "--" in arguments else len(arguments)
    text = run("plan", *arguments)
    document = run("plan", *arguments[:before], "--json", *arguments[before:])
    assert (text.code, text.err, document.code, document.err) == (1, "", 1, "")
    answer = document.document
    assert answer["schema"] == "hybridcalc.plan/2" and answer["starts"] is False
    refusal = answer["refusal"]
    assert (refusal["rule"], refusal["stage"]) == (rule, stage)
    assert refusal["reason"] and refusal["fix"]
    assert text.out.startswith("does not start")
    flat = " ".join(text.out.split())
    assert refusal["reason"] in flat
    first, *more = re.split("([,;] or )", refusal["fix"], maxsplit=1)  # what the fix comes to stands between
    assert f"fix: {first}" in flat and "".join(more) in flat


def test_a_removed_model_and_a_retired_mode_start_under_the_version_that_is_named() -> None:
    assert plan(*VLLM, "bamba-9b", *MEMORY, "--engine-version", "0.23.0")["starts"]
    retired = (*NEMOTRON, *MEMORY, "--mamba-cache-mode", "all", "--enable-prefix-caching")
    assert plan(*retired, "--engine-version", "0.31.0")["mamba_cache_mode"] == "all"
    assert plan(*retired, "--engine-version", "0.32.0", code=1)["refusal"]["rule"] == "HC042"


BAD = {
    "no memory": ((), "error: plan needs the memory free for the cache: add --gpu NAME\n"
                      "       or --available SIZE, or --kv-cache-memory-bytes\n"),
    "memory twice": ((*MEMORY, "--gpu", "h200", "--weights", "16GiB"),
                     "error: the memory is given in more than one way\n       keep --available or --gpu\n"),
    "weights alone": ((*MEMORY, "--weights", "16GiB"),
                      "error: --weights says nothing without --gpu\n       add --gpu NAME, or leave it out\n"),
    "non-cache alone": ((*MEMORY, "--non-cache", "3GiB"),
                        "error: --non-cache says nothing without --gpu\n       add --gpu NAME, or leave it out\n"),
    "SGLang's memory": (("--rest", "40GiB"), "error: --rest says nothing about vLLM\n       leave it out\n"),
    "SGLang's figures": (("--avail-before", "22", "--avail-after", "14"),
                         "error: --avail-before says nothing about vLLM\n       leave it out\n"),
    "SGLang's platform": ((*MEMORY, "--platform", "cuda"),
                          "error: --platform says nothing about vLLM\n       leave it out\n"),
    "SGLang's drafts": ((*MEMORY, "--max-draft-tokens", "4"),
                        "error: --max-draft-tokens says nothing about vLLM\n       leave it out\n"),
    "SGLang's draft KV": ((*MEMORY, "--draft-kv-bytes-per-token", "4"),
                          "error: --draft-kv-bytes-per-token says nothing about vLLM\n       leave it out\n"),
    "private alone": ((*MEMORY, "--private", "200"),
                      "error: --private says nothing without --shared-prefix\n       add --shared-prefix N\n"),
    "a length below the prefix": ((*MEMORY, "-L", "1000", "--shared-prefix", "4000"),
                                  "error: -L 1,000 is shorter than the 4,000 tokens of --shared-prefix and "
                                  "--private\n       leave out -L, or count the answer in: prompt and answer "
                                  "together\n"),
    "no capability": ((*MEMORY, "--gpu-capability", "x"),
                      "error: 'x' is no compute capability\n       write 9.0 for Hopper\n"),
    "no version": ((*MEMORY, "--engine-version", "main"), None),
    "misspelt": ((*MEMORY, "--max-model-length", "7"),
                 "error: --max-model-length is not a flag of vLLM\n       write --max-model-len\n"),
    "unknown": ((*MEMORY, "--mem-fraction-static", "0.8"),
                "error: --mem-fraction-static is no flag of vLLM nor of plan\n       write --gpu-memory-utilization\n"),
    "not modelled": ((*MEMORY, "--kv-cache-dtype", "fp4"), None),
    "another engine's line": ((*MEMORY, "--", "sglang", "serve", "x"),
                              "error: the launch line starts sglang, not vllm\n       leave out --engine\n"),
    "a sweep of a share": ((*MEMORY, "--sweep", "gpu-memory-utilization=0.8,0.9"),
                           "error: --sweep gpu-memory-utilization changes nothing beside a given memory\n"
                           "       give --gpu, or the avail figures\n"),
}  # fmt: skip


@pytest.mark.parametrize(("arguments", "text"), BAD.values(), ids=BAD)
def test_bad_input_is_one_or_two_lines_and_exit_2(arguments: tuple[str, ...], text: str) -> None:
    """What, where, why, and what to write instead: word by word."""
    ran = run("plan", *NEMOTRON, *arguments)
    assert (ran.out, ran.code) == ("", 2)
    assert ran.err == text if text is not None else ran.err.startswith("error: ")
    assert len(ran.err.splitlines()) <= 2


def test_a_hybrid_that_is_not_modelled_says_so(tmp_path: Path) -> None:
    written = (Path(__file__).resolve().parents[2] / "examples" / "my-hybrid.yaml").read_text(encoding="utf-8")
    model = tmp_path / "my-hybrid.yaml"
    model.write_text(written.replace("Qwen3_5ForConditionalGeneration", "AliceAIForCausalLM"), encoding="utf-8")
    ran = run("plan", *VLLM, str(model), *MEMORY)
    assert (ran.code, ran.err) == (
        2,
        "error: the hybrid class AliceAIForCausalLM is not modelled for vLLM\n"
        "       no other engine known here has it\n",
    )


@pytest.mark.parametrize(
    ("version", "note"),
    [
        ("0.22.0", "vLLM 0.22.0: rules read in its source, not checked by its results"),
        ("0.31.2", "vLLM 0.31.2: the rules of 0.31.0 are used"),
    ],
)
def test_a_version_without_results_of_its_own_says_what_it_rests_on(version: str, note: str) -> None:
    assert note in plan(*NEMOTRON, *MEMORY, "--engine-version", version)["notes"]
    assert not any("rules" in said for said in plan(*NEMOTRON, *MEMORY)["notes"])


def test_a_comparison_equals_the_plans_of_its_sides() -> None:
    work = ("-L", "4200")
    answer = plan(*NEMOTRON, *MEMORY, *work, "--compare", "--kv-cache-dtype fp8", "--compare", "qwen3-next-80b-a3b")
    alone = [
        plan(*NEMOTRON, *MEMORY, *work),
        plan(*NEMOTRON, *MEMORY, *work, "--kv-cache-dtype", "fp8"),
        plan(*VLLM, "qwen3-next-80b-a3b", "--max-model-len", "8192", *MEMORY, *work),
    ]
    for side, whole in zip(answer["compare"], alone, strict=True):
        assert {k: v for k, v in side.items() if k not in ("flags", "notes")} == {
            k: v for k, v in whole.items() if k not in ("schema", "notes")
        }


def test_a_comparison_with_a_side_that_does_not_start_is_exit_1() -> None:
    ran = run("plan", *NEMOTRON, *MEMORY, "--compare", "--max-num-seqs 5000")
    assert ran.code == 1
    assert "HC044 max_num_seqs 5,000 exceeds the 2,520 blocks" in " ".join(ran.out.split())
    assert plan(*NEMOTRON, *MEMORY, "--compare", "--max-num-seqs 5000", code=1)["compare"][1]["starts"] is False


def test_every_suggestion_can_be_pasted_into_a_comparison_and_keeps_its_promise() -> None:
    for suggestion in plan(*NEMOTRON, *MEMORY, "-L", "4200")["suggestions"]:
        after = plan(*NEMOTRON, *MEMORY, "-L", "4200", "--compare", pasted(suggestion))["compare"][1]
        promised = suggestion["effect"].split("-> ")[1].split()[0].replace(",", "")
        assert after["requests"] == int(promised)


def test_csv_and_json_of_a_sweep_agree() -> None:
    """The same rows in the same order, under the engine's own names."""
    flags = (
        *NEMOTRON,
        *MEMORY,
        "-L",
        "4200",
        "--sweep",
        "kv-cache-dtype=auto,fp8",
        "--sweep",
        "max-num-seqs=64,256,9999",
    )
    rows = list(csv.DictReader(io.StringIO(run("plan", *flags, "--csv").out)))
    points = plan(*flags)["sweep"]
    assert rows == [{k: "" if v is None else str(v) for k, v in point.items()} for point in points]
    assert list(rows[0])[:4] == ["kv-cache-dtype", "max-num-seqs", "num_blocks", "kv_cache_size_tokens"]
    assert [point["requests"] for point in points] == [64, 109, 0, 64, 119, 0]
    assert "exceeds the 2,520 blocks" in points[2]["refusal"]


def test_a_sweep_that_starts_nowhere_is_a_no() -> None:
    assert run("plan", *NEMOTRON, *MEMORY, "--sweep", "max-num-seqs=5000,6000").code == 1


def test_crossover_counts_whole_pages() -> None:
    """18 blocks of states with prefix caching, 6 without: 294,912 / 16,384 x ... tokens of its own KV."""
    answer = run("crossover", "nemotron-h-8b", *VLLM, "--baseline", "llama-3-8b", "--json").document
    assert (answer["schema"], answer["engine"]) == ("hybridcalc.crossover/2", "vllm")
    assert (answer["state_bytes"], answer["kv_bytes_per_token"]) == (18 * 17_039_360, 16_384)
    assert answer["component_tokens"] == 18 * 17_039_360 / 16_384 == 18_720
    without = run("crossover", "nemotron-h-8b", *VLLM, "--no-enable-prefix-caching", "--json").document
    assert without["component_tokens"] == 6_240
    assert run("crossover", "nemotron-h-8b", "--json").document["engine"] == "sglang"


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        (("nemotron-h-8b", *VLLM, "--dp", "2"), 2, "error: --dp-size says nothing about vLLM\n       leave it out\n"),
        (
            ("nemotron-h-8b", "--enable-prefix-caching"),
            2,
            "error: --enable-prefix-caching says nothing about SGLang\n       leave it out\n",
        ),
        (("llama-3-8b", *VLLM), 2, "error: llama-3-8b has no recurrent layer: it keeps no state\n"),
        (
            ("bamba-9b", *VLLM),
            1,
            "error: vLLM 0.33.0 no longer has BambaForCausalLM: the last version that had it is 0.23.0\n"
            "       use --engine-version 0.23.0\n",
        ),
        (
            ("nemotron-h-8b", "--engine", "tgi"),
            2,
            "error: --engine 'tgi' is not planned\n       write sglang or vllm or llama.cpp\n",
        ),
    ],
)
def test_what_crossover_does_not_answer_for_vllm(arguments: tuple[str, ...], code: int, text: str) -> None:
    ran = run("crossover", *arguments)
    assert (ran.code, ran.out, ran.err) == (code, "", text)


def test_what_an_estimate_leaves_open_is_said_to_be_undecided() -> None:
    """It starts with the least that boots take beside the weights, and not with the likely figure."""
    ran = run("plan", *VLLM, "Qwen/Qwen3.6-27B-FP8", "--gpu", "32.5GiB", "--max-model-len", "8k", "--max-num-seqs", "4")
    assert ran.code == 1
    said = r"undecided by the estimate of memory: it starts with 0\.\d+ GiB beside, not with 0\.90"
    assert re.search(said, " ".join(ran.out.split()))
