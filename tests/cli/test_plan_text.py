"""`hybridcalc plan` as it is read, of both engines: 80 columns, whole figures, steps, colour; and whatever is typed."""

from __future__ import annotations

import json

import pytest
from command_line import pasted, plan, run
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

K3 = ("kimi-k3", "--tp", "8", "--kv-cache-dtype", "fp8_e4m3")
LAZY = (*K3, "--strategy", "extra_buffer_lazy")
REST = ("--rest", "28.55GiB")
VLLM = ("--engine", "vllm")
NEMOTRON = (*VLLM, "nemotron-h-8b", "--max-model-len", "8192")
MEMORY = ("--available", "40GiB")
ANSWERS = {
    "SGLang: all of it": (*LAZY, *REST, "-L", "9216", "--explain"),
    "SGLang: speculation": (
        *K3, *REST, "-L", "8k", "--speculative-algorithm", "EAGLE", "--speculative-num-draft-tokens", "4"),
    "SGLang: an interval": ("qwen3.5-9b", "--tp", "2", "--avail-before", "22.93", "--avail-after", "14.08",
                    "--mem-fraction-static", "0.8", "-L", "8k"),
    "SGLang: terabytes": (*K3, "--rest", "90000GiB", "-L", "8k"),
    "SGLang: shared sequences": (*K3, "--dcp", "8", *REST, "-L", "8k"),
    "SGLang: a comparison": (*LAZY, *REST, "-L", "8k", "--compare", "--strategy no_buffer"),
    "SGLang: a refusal": (*K3, "--rest", "-7.96GiB"),
    "SGLang: a sweep": (*K3, *REST, "-L", "8k", "--sweep", "mamba-full-memory-ratio=0.5:2:0.5"),
    "SGLang: a sweep of many settings": (
        *K3, "--sweep", "mamba-full-memory-ratio=0.5:2:0.5", "--sweep", "kv-cache-dtype=auto,fp8_e4m3", "--sweep",
        "mamba-radix-cache-strategy=extra_buffer,extra_buffer_lazy,no_buffer", "--sweep", "max-running-requests=10,64",
        "--sweep", "length=8k,9k", "--sweep", "rest=20,30", "--sweep", "page-size=1,64"),
    "vLLM: all of it": (*NEMOTRON, *MEMORY, "-L", "4200", "--explain"),
    "vLLM: a prefix": (*NEMOTRON, *MEMORY, "--shared-prefix", "900", "--private", "200"),
    "vLLM: mode all": (*NEMOTRON, *MEMORY, "--engine-version", "0.22.1", "--enable-prefix-caching", "-L", "4200"),
    "vLLM: an interval": (*NEMOTRON, "--gpu", "h200", "--weights", "16GiB", "-L", "4200"),
    "vLLM: terabytes": (*NEMOTRON, "--available", "90000GiB", "-L", "4200"),
    "vLLM: attention alone": (*VLLM, "llama-3-8b", *MEMORY, "-L", "4200"),
    "vLLM: states alone": (*VLLM, "codestral-mamba-7b", *MEMORY, "-L", "4200", "--max-num-seqs", "64"),
    "vLLM: unequal groups": (*VLLM, "zamba2-7b", *MEMORY, "-L", "4000"),
    "vLLM: a comparison": (*NEMOTRON, *MEMORY, "-L", "4200", "--compare", "--kv-cache-dtype fp8"),
    "vLLM: a refusal": (*NEMOTRON, "--available", "0.4GiB"),
    "vLLM: a sweep": (*NEMOTRON, *MEMORY, "-L", "4200", "--sweep", "max-num-seqs=8:64:8"),
}  # fmt: skip
FIGURES = {
    "SGLang": ("max_mamba_cache_size", "max_total_num_tokens", "max_running_requests"),
    "vLLM": ("num_blocks", "attn_block_size", "longest_max_model_len", "bytes_per_block"),
}
WHOLE = ("all of it", "terabytes", "an interval")


@pytest.mark.parametrize("verbose", [(), ("-v",)], ids=["short", "whole"])
@pytest.mark.parametrize("arguments", ANSWERS.values(), ids=ANSWERS)
def test_text_fits_80_columns_and_cuts_nothing(arguments: tuple[str, ...], verbose: tuple[str, ...]) -> None:
    """No terminal: 80 columns, no ellipsis, no trailing blanks, no escape codes, ASCII alone."""
    out = run("plan", *verbose, *arguments).out
    assert out
    assert max(len(line) for line in out.splitlines()) <= 80
    assert out.isascii() and "\x1b" not in out
    assert not any(word.endswith("...") for line in out.splitlines() if "[" not in line for word in line.split())
    assert all(line == line.rstrip() for line in out.splitlines())


@pytest.mark.parametrize(
    "name", [*(f"{engine}: {name}" for engine in FIGURES for name in WHOLE), "vLLM: mode all", "vLLM: unequal groups"]
)
def test_text_holds_every_figure_of_the_budget_whole(name: str) -> None:
    """A figure cut short, or broken over two lines, would be another figure."""
    arguments = [word for word in ANSWERS[name] if word != "--explain"]
    answer, out = plan(*arguments), run("plan", "-v", *arguments).out
    figures = [line["allocated_bytes"] for line in answer["budget"]]
    if name.startswith("SGLang"):
        figures += [line["charged_bytes"] for line in answer["budget"]]
    figures += [answer[key] for key in FIGURES[name.split(":")[0]]]
    assert all(f"{figure:,}" in out for figure in figures)


@pytest.mark.parametrize(
    ("arguments", "step"),
    [
        ((*LAZY, *REST), "state charge = (K + 1) x P + rings\n    = 258 x 56,171,520\n    = 14,492,252,160 B"),
        ((*NEMOTRON, *MEMORY), "concurrency = blocks / per request\n    = 2,520 / 26"),
    ],
    ids=FIGURES,
)
def test_explain_adds_every_step_to_the_same_answer(arguments: tuple[str, ...], step: str) -> None:
    short, long = run("plan", *arguments).out, run("plan", *arguments, "--explain").out
    assert long.startswith(short.rstrip("\n"))
    assert step in long


@pytest.mark.parametrize(("severity", "code"), [("note", 1), ("warning", 1), ("error", 0), ("never", 0)])
@pytest.mark.parametrize(
    "arguments", [(*LAZY, *REST, "-L", "9216"), (*NEMOTRON, *MEMORY, "--block-size", "1024")], ids=FIGURES
)
def test_fail_on_turns_findings_into_exit_1(arguments: tuple[str, ...], severity: str, code: int) -> None:
    """Half of the KV idles, or the page is twice as large: a warning, and no error."""
    ran = run("plan", *arguments, "--fail-on", severity)
    assert (ran.code, ran.err) == (code, "")


def test_a_sweep_of_many_settings_still_shows_what_each_comes_to() -> None:
    """Columns that do not fit become paragraphs; none is dropped at the edge."""
    answer = run("plan", *ANSWERS["SGLang: a sweep of many settings"]).out
    assert "requests 64" in " ".join(answer.split())


def test_a_flag_line_that_is_too_long_continues_as_a_shell_reads_it() -> None:
    """Without the continuation it is word by word the flags of the document."""
    found = plan(*K3, *REST, "-L", "8k")["suggestions"]
    flags = [pasted(suggestion) for suggestion in found]
    out = run("plan", "-v", *K3, *REST, "-L", "8k").out
    assert any(len(line) > 72 for line in flags)
    joined = " ".join(out.replace(" \\\n", " ").split())
    assert all(f"safe {line} " in joined or f"bold {line} " in joined for line in flags)


def test_the_memory_map_is_to_scale() -> None:
    """One letter a column: the pools' columns are as their bytes, to within a column."""
    arguments = (*LAZY, *REST)
    bar = next(line for line in run("plan", "-v", *arguments).out.splitlines() if line.startswith("  [")).strip(" []")
    allocated = {line["name"]: line["allocated_bytes"] for line in plan(*arguments)["budget"]}
    assert len(bar) == 76
    for name, letter in (("state pool", "S"), ("KV pool", "K"), ("request table", "t")):
        assert abs(bar.count(letter) - 76 * allocated[name] / sum(allocated.values())) < 1


def test_colour_is_for_terminals_and_no_color_wins() -> None:
    coloured = run("plan", *LAZY, *REST, FORCE_COLOR="1")
    assert "\x1b[" in coloured.out
    assert "\x1b" not in run("plan", *LAZY, *REST, FORCE_COLOR="1", NO_COLOR="1").out
    assert "\x1b" not in run("plan", *LAZY, *REST, "--json", FORCE_COLOR="1").out


def test_a_stdout_of_ascii_takes_the_whole_answer() -> None:
    """As in a container without a locale."""
    ran = run("plan", *LAZY, *REST, "-L", "9216", "--explain", encoding="ascii")
    assert (ran.code, ran.err) == (0, "")
    assert ran.out == run("plan", *LAZY, *REST, "-L", "9216", "--explain").out


def test_vllms_map_shows_the_whole_gpu_where_it_is_known() -> None:
    """Weights, activations and headroom beside the blocks: the columns are as their bytes."""
    out = run("plan", "-v", *ANSWERS["vLLM: an interval"]).out
    bar = next(line for line in out.splitlines() if line.startswith("  [")).strip(" []")
    card = 143_771 / 1024
    for letter, gib in (("W", 16), ("H", card * 0.08), ("A", 3)):
        assert abs(bar.count(letter) - len(bar) * gib / card) <= 1


FLAGS = {
    (): st.sampled_from([
        *K3, "--rest", "28GiB", "--gpu", "h100", "--weights", "60GiB", "--mem-fraction-static", "0.8", "--avail-before",
        "70", "--avail-after", "30", "-L", "8k", "--lengths", "8k:3", "--compare", "--tp 4", "--sweep",
        "page-size=1,64", "--", "sglang", "serve", "--strategy", "no_buffer", "-C", "9", "--csv", "--json",
    ]),
    VLLM: st.sampled_from([
        *NEMOTRON, "--available", "40GiB", "--gpu", "h100", "--weights", "16GiB", "--non-cache", "3GiB", "-L", "8k",
        "--lengths", "8k:3", "--shared-prefix", "4k", "--private", "200", "--compare", "--kv-cache-dtype fp8",
        "--sweep", "max-num-seqs=1,64", "--", "vllm", "serve", "--mamba-cache-mode", "all", "-C", "9", "--csv",
        "--json", "-tp", "2", "-sc.method", "mtp", "--engine-version", "0.22.1", "--max-model-len", "-1",
        "--gpu-capability", "10.0",
    ]),
}  # fmt: skip
WORDS = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=8)


@pytest.mark.parametrize("engine", FLAGS, ids=FIGURES)
@given(st.data())
@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_no_command_line_ends_in_a_defect(engine: tuple[str, ...], data: st.DataObject) -> None:
    """Whatever is typed after `plan`: an answer, or an error that is not ours."""
    known, typed = data.draw(st.lists(FLAGS[engine], max_size=12)), data.draw(st.lists(WORDS, max_size=2))
    ran = run("plan", *engine, *[word for word in (*known, *typed) if word != "-"])
    assert ran.code in (0, 1, 2)
    assert "this is a defect" not in ran.err and "Traceback" not in ran.err
    assert len(ran.err.splitlines()) <= 2
    if ran.out.startswith("{"):
        assert json.loads(ran.out)["schema"] == "hybridcalc.plan/2"
