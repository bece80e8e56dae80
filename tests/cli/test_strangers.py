"""What somebody who does not know the tool runs into: words that nobody reads, errors, answers with a part left out."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest
from command_line import plan, run

FP8 = "Qwen/Qwen3.6-35B-A3B-FP8"
SHOWN = ("--gpu", "h100", "-L", "8k")
LINES = {
    "sglang": ("sglang", "serve", FP8),
    "vllm": ("vllm", "serve", FP8),
    "llama.cpp": ("llama-server", "-m", "qwen3.6-35b-a3b-Q4_K_M.gguf"),
}


@pytest.mark.parametrize("line", LINES.values(), ids=LINES)
def test_a_flag_that_no_release_has_is_a_warning_in_twelve_lines(line: tuple[str, ...]) -> None:
    ran = run("plan", *SHOWN, "--", *line, "--no-such-flag", "3", COLUMNS="80")
    assert ran.code == 0 and "warning: HC071 no " in ran.out and "takes --no-such-flag" in ran.out
    assert len(ran.out.splitlines()) <= 12
    assert run("plan", *SHOWN, "--fail-on", "warning", "--", *line, "--no-such-flag", "3").code == 1
    (found,) = [one for one in plan(*SHOWN, "--", *line, "--no-such-flag", "3")["findings"] if one["rule"] == "HC071"]
    assert (found["severity"], found["fix"]) == ("warning", "leave it out")
    assert not any(one["rule"] == "HC071" for one in plan(*SHOWN, "--", *line)["findings"])


def test_a_line_with_such_a_flag_is_not_the_best_of_equals() -> None:
    line = f"vllm serve {FP8}"
    ran = run("compare", *SHOWN, f"{line} --no-such-flag 3", line)
    assert ran.out.startswith("line 2 runs the most")
    assert "warning: HC071 line 1: no vLLM known here takes --no-such-flag" in ran.out
    assert run("compare", *SHOWN, "--json", f"{line} --no-such-flag 3", line).document["ranking"] == [1, 0]
    beside = run("plan", *SHOWN, "--compare=--max-num-seqs 8", "--", *LINES["vllm"], "--no-such-flag", "3")
    assert beside.out.count("warning: HC071") == 1


@pytest.mark.parametrize("name", ["nvidia/Qwen3.6-35B-A3B-NVFP4", "nvidia/Qwen3.6-27B-NVFP4"])
def test_a_checkpoint_of_several_kinds_is_called_by_all_the_leanest_first(name: str) -> None:
    ran = run("plan", "--gpu", "l40s", "-L", "16k", "--", "vllm", "serve", name)
    assert "(compressed-tensors nvfp4 and fp8 per tensor)" in " ".join(ran.out.split())


def test_what_is_left_to_the_host_stands_before_the_cards() -> None:
    line = ("llama-server", "-hf", "unsloth/Qwen3.6-35B-A3B-GGUF:Q4_K_M", "-c", "262144", "-np", "4", "--cpu-moe")
    ran = run("plan", "--gpu", "2xrtx-4090", "-L", "32k", "--", *line, COLUMNS="80")
    shown = " ".join(ran.out.split())
    assert "all of it" not in shown and "on the cards" in shown
    assert "host 18.63 GiB" in shown and "of weights, embeddings, experts" in shown


def test_a_context_to_write_says_what_does_not_fit() -> None:
    shown = " ".join(
        run("plan", "--gpu", "rtx-4090", "-L", "200k", "--", "ollama", "run", "qwen3.5:27b-q4_K_M").out.split()
    )
    assert "OLLAMA_CONTEXT_LENGTH=204800, or PARAMETER num_ctx 204800 (KV and states of 12.65 GiB, " in shown
    assert "layers go to the host)" in shown
    fits = " ".join(
        run("plan", "--gpu", "rtx-4090", "-L", "40k", "--", "ollama", "run", "qwen3.5:27b-q4_K_M").out.split()
    )
    assert "PARAMETER num_ctx 40960" in fits and "go to the host" not in fits
    beyond = " ".join(run("plan", "-L", "400k", "--", "ollama", "run", "qwen3.5:27b-q4_K_M").out.split())
    assert "was trained for 262,144 tokens" in beyond and "write OLLAMA" not in beyond


def test_no_type_mix_is_guessed_for_a_tag_without_one() -> None:
    out = run("plan", "--", "ollama", "run", "qwen3.5:27b").out
    assert "Qwen/Qwen3.5-27B (type mix not given)" in out and "bf16" not in out


def test_what_a_step_takes_is_said_of_a_plan_that_states_bind() -> None:
    ran = run("plan", *SHOWN, "--", *LINES["sglang"], COLUMNS="80")
    lines = ran.out.splitlines()
    assert len(lines) <= 12 and any(line.startswith("  a step ") for line in lines)
    assert all(any(line.startswith(f"  {name} ") for line in lines) for name in ("safe", "bold"))


def test_the_parts_of_a_memory_add_up() -> None:
    out = run("plan", "Qwen/Qwen3.5-397B-A17B-FP8", "--gpu", "8xh200", "-L", "64k", COLUMNS="80").out
    line = next(line for line in out.splitlines() if line.startswith("  memory "))
    assert line.split("GiB")[1].strip() == "of 139.80: 47.01 weights, 24.02 kept, 2.00 else"
    assert pytest.approx(139.80) == 66.77 + 47.01 + 24.02 + 2.00


@pytest.mark.parametrize("arguments", [("compare", "--gpu", "h100", "echo hello"), ("plan", "-L", "8k", "--")])
@pytest.mark.parametrize("columns", [40, 80])
def test_an_error_keeps_to_the_width_of_its_terminal(arguments: tuple[str, ...], columns: int) -> None:
    wrapped, whole = run(*arguments, COLUMNS=f"{columns}"), run(*arguments)
    lines = wrapped.err.splitlines()
    assert max(map(len, lines)) <= columns and len(lines) > 2
    assert lines[0].startswith("error: ") and all(line.startswith(" " * 7) for line in lines[1:])
    assert len(whole.err.splitlines()) == 2 and "".join(whole.err.split()) == "".join(wrapped.err.split())


def test_continued_lines_of_steps_stand_further_in() -> None:
    out = run("plan", *SHOWN, "--explain", "--", *LINES["vllm"], COLUMNS="40").out
    steps = out.split("-v: ")[1].splitlines()[4:]
    assert max(map(len, steps)) <= 40
    continued = [line for before, line in pairwise(steps) if len(line) - len(line.lstrip()) == 8]
    assert continued and all(line[0] != " " or line.startswith("    ") for line in steps if line)


def test_a_report_says_which_file_and_line_it_could_not_read(tmp_path: Path) -> None:
    script = tmp_path / "launch.sh"
    script.write_text('#!/bin/sh\n\nvllm serve kimi-k3 --max-num-seqs "${MOST[@]}"\n', encoding="utf-8")
    page = ("-o", str(tmp_path / "page.html"))
    ran = run("report", str(script), *page)
    assert ran.code == 2 and "launch.sh:3: '${MOST[@]}' is a value the shell decides" in ran.err
    folder = run("report", str(tmp_path), *page)
    assert folder.code == 2 and "is a folder of deployments, and a page is of one" in folder.err
    assert "config.json" not in folder.err


def test_a_model_of_ones_own_says_what_is_missing_of_it() -> None:
    model = Path(__file__).resolve().parents[2] / "examples" / "my-hybrid.yaml"
    shown = " ".join(run("fit", str(model), "-L", "8k", "-C", "10", "--gpu", "h100").out.split())
    assert "its preset says no hidden size, and with it no parameters: give its config.json" in shown
