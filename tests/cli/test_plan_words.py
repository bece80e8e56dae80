"""`hybridcalc plan` under odd words, widths, encodings and streams."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from command_line import plan, run

K3 = ("kimi-k3", "--tp", "8", "--kv-cache-dtype", "fp8_e4m3")
REST = ("--rest", "28.55GiB")


@pytest.mark.parametrize(
    "arguments",
    [
        ("--compare", "--served-model-name \x1b[31mred"),
        ("--sweep", "attention-backend=\x1b[31mred,b"),
        ("--linear-attn-decode-backend", "\x1b[31mred", "--enable-linear-replayssm"),
        ("--env", "SGLANG_MAMBA_SSM_DTYPE=\x1b[31mred", "--explain"),
    ],
)
def test_control_codes_of_others_reach_no_pipe(arguments: tuple[str, ...]) -> None:
    """What somebody typed is shown as text."""
    ran = run("plan", *K3, *REST, *arguments)
    assert "\x1b" not in ran.out + ran.err


def test_words_outside_the_encoding_of_stdout_are_shown_escaped() -> None:
    ran = run("plan", *K3, *REST, "--compare", "--served-model-name é", encoding="ascii")
    assert (ran.code, ran.err) == (0, "")
    assert r"--served-model-name \xe9" in ran.out


def test_a_closed_stdout_is_no_defect() -> None:
    line = " ".join((sys.executable, "-m", "hybridcalc", "plan", *K3, *REST))
    ran = subprocess.run(["bash", "-c", f"{line} >&-"], capture_output=True, check=False)
    assert (ran.returncode, ran.stderr) == (0, b"")


@pytest.mark.parametrize("flags", ["--rest 10GiB", "-L 8k", "--length 8k", "--env A=1", "--fail-on error"])
def test_a_comparison_takes_no_options_of_plan(flags: str) -> None:
    """They would change nothing, and two equal columns would be believed."""
    ran = run("plan", *K3, *REST, "--compare", flags)
    assert (ran.code, ran.err.splitlines()[1]) == (2, "       write it outside --compare")


@pytest.mark.parametrize(
    ("word", "meant"),
    [("--conc", "--concurrency"), ("--js", "--json"), ("--JSON", "--json"), ("-json", "--json"), ("--len", "--length")],
)
def test_a_shortened_option_is_not_taken_for_a_flag_of_the_engine(word: str, meant: str) -> None:
    ran = run("plan", *K3, *REST, word, "8")
    assert (ran.code, ran.err) == (2, f"error: {word} is not an option of plan\n       write {meant}\n")


def test_thousands_of_unknown_flags_are_refused_at_once(steps: Callable[..., Any]) -> None:
    def refused(many: int) -> Callable[..., Any]:
        return lambda: run("plan", *K3, *REST, *(f"--zz{number}" for number in range(many))).code

    assert refused(3000)() == 2
    assert steps(refused(2000)) <= 2.5 * steps(refused(1000))


def test_many_equal_best_rows_are_cut_and_said_to_be() -> None:
    out = run("plan", *K3, *REST, "-L", "8k", "--sweep", "context-length=8192:9192:1", "-v").out
    assert len(out.splitlines()) < 80
    assert "1,001 points: only those are shown" in " ".join(out.split())


def test_what_a_sweep_completes_is_not_refused_before() -> None:
    """Draft tokens are swept: the algorithm alone is no mistake."""
    ran = run("plan", *K3, *REST, "--speculative-algorithm", "EAGLE", "--sweep", "speculative-num-draft-tokens=2,4")
    assert (ran.code, ran.err) == (0, "")


@pytest.mark.parametrize("columns", ["1", "20", "40", "60", "²", "0", "99999999"])
@pytest.mark.parametrize("command", [("plan", *K3, *REST, "-L", "9216"), ("ratio", "kimi-k3", "-L", "9216", *REST)])
def test_no_figure_is_cut_at_any_width(command: tuple[str, ...], columns: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Narrow answers become paragraphs; a width that is none is passed over."""
    monkeypatch.setenv("COLUMNS", columns)
    ran = run(*command)
    assert (ran.code, ran.err) == (0, "")
    words = "".join(ran.out.split())
    assert "56,171,520B" in words if command[0] == "plan" else "449,372,160B" in words
    assert "\u2026" not in ran.out


@pytest.mark.parametrize("form", ["words", "text", "script", "stdin"])
def test_a_launch_line_comes_in_every_form(form: str, tmp_path: Path) -> None:
    """As words, as one quoted text, as the path of a script, and on stdin: the same plan."""
    text = (
        "M=kimi-k3; SGLANG_OPT_MAMBA_SKIP_DECODE_LOCK=1 python3 -m sglang.launch_server --model-path $M --tp 8 | tee x"
    )
    script = tmp_path / "launch.sh"
    script.write_text("#!/bin/bash\n" + text.replace("--tp", "\\\n  --tp"), encoding="utf-8")
    words = text.removeprefix("M=kimi-k3; ").removesuffix(" | tee x").replace("$M", "kimi-k3").split()
    line = {"words": words, "text": [text], "script": [str(script)], "stdin": ["-"]}[form]
    answer = plan(*REST, "--", *line, stdin=script.read_bytes())
    assert (answer["model"], answer["slots_per_request"], answer["max_mamba_cache_size"]) == ("kimi-k3", 4, 257)


@pytest.mark.parametrize(
    ("line", "by"),
    [
        ("sglang serve --model-path /data/models/Kimi-K3", "as its last part is named"),
        ("sglang serve --model-path /model --served-model-name moonshotai/Kimi-K3", "by moonshotai/Kimi-K3"),
        ("docker run -v /data/Kimi-K3:/model:ro lmsysorg/sglang sglang serve --model-path /model", "by /data/Kimi-K3"),
        ("bash -c 'M=/x/kimi-k3; exec sglang serve --model-path $M ...'", "as its last part is named"),
    ],
)
def test_a_path_of_another_machine_means_the_model_that_check_takes_it_for(line: str, by: str) -> None:
    answer = plan(*REST, "--", line + (" --tp 8" if "bash" not in line else ""))
    assert answer["model"] == "kimi-k3"
    assert any("is taken for kimi-k3, " + by in note for note in answer["notes"])


def test_an_environment_switch_stands_among_the_flags_as_suggestions_write_it() -> None:
    switch = "SGLANG_OPT_MAMBA_SKIP_DECODE_LOCK=1"
    assert plan(*K3[:3], switch, *K3[3:], *REST) == plan(*K3, *REST, "--env", switch)
    assert run("plan", *K3, "OTHER=1", *REST).code == 2


def test_a_folder_with_a_blank_in_its_name_is_a_model(tmp_path: Path) -> None:
    folder = tmp_path / "our model"
    folder.mkdir()
    (folder / "config.json").write_text("{}", encoding="utf-8")
    ran = run("plan", str(folder), *REST)
    assert "launch line" not in ran.err


def test_a_flag_that_nobody_knows_is_refused_here_and_named_in_a_launch_line() -> None:
    """Typed for this command it is a mistake; a newer engine's launch line may have it."""
    ran = run("plan", *K3, *REST, "--mamba-ratio", "2")
    assert (ran.code, ran.err) == (
        2,
        "error: --mamba-ratio is no flag of SGLang nor of plan\n       see `hybridcalc plan --help`\n",
    )
    answer = plan(*REST, "--", "sglang", "serve", "kimi-k3", "--tp", "8", "--mamba-ratio", "2")
    (found,) = [found for found in answer["findings"] if found["rule"] == "HC071"]
    assert found["severity"] == "warning" and found["message"].startswith("no SGLang known here takes --mamba-ratio: ")


def test_an_option_of_plan_behind_the_launch_line_is_refused() -> None:
    ran = run("plan", *REST, "--", "sglang", "serve", "kimi-k3", "--tp", "8", "-L", "8k")
    assert (ran.code, ran.err) == (2, "error: -L belongs to plan, not to the engine\n       write it before the --\n")


def test_without_prefix_caching_the_fix_is_a_k() -> None:
    """K is the request limit there: 64 of 64 run under the flag that is named."""
    flags = (
        "qwen3.5-27b",
        "--tp",
        "4",
        "--rest",
        "60GiB",
        "-L",
        "32k",
        "--disaggregation-mode",
        "decode",
        "--max-running-requests",
        "1024",
        "-C",
        "64",
    )
    short = next(f for f in plan(*flags, code=1)["findings"] if f["rule"] == "HC002")
    assert plan(*flags, *short["fix"].removeprefix("write ").split())["requests"] >= 64


def test_a_container_is_planned_with_the_release_of_its_image() -> None:
    line = (
        "docker run -e SGLANG_MAMBA_CONV_DTYPE=float32 lmsysorg/sglang:v0.5.16 sglang serve qwen3-next-80b-a3b --tp 2"
    )
    answer = plan("--rest", "60GiB", "--", line)
    assert (answer["engine_version"], answer["model"]) == ("0.5.16", "qwen3-next-80b-a3b")
    assert plan("--rest", "60GiB", "--engine-version", "0.5.23", "--", *line.split())["engine_version"] == "0.5.23"


@pytest.mark.parametrize("served", ["qwen3.6-27b", "Qwen/Qwen3.6-27B", "chat"])
def test_a_path_that_says_fp8_is_planned_with_fp8(served: str) -> None:
    """What the model is served as says which it is, the end of its path which checkpoint of it."""
    line = ("vllm", "serve", "/models/Qwen3.6-27B-FP8", "--served-model-name", served, "--max-num-seqs", "64")
    document = run("plan", "--gpu", "h200", "-L", "8k", "--json", "--", *line).document
    named = run("plan", "Qwen/Qwen3.6-27B-FP8", "--engine", "vllm", "--gpu", "h200", "--json").document
    assert document["memory"]["weights_gib"] == named["memory"]["weights_gib"] < 30


def test_a_config_file_is_read_as_check_reads_it(tmp_path: Path) -> None:
    """What --emit wrote, typed with any path, or beside the script that names it; what the line says itself wins."""
    config, script = tmp_path / "server.yaml", tmp_path / "serve.sh"
    config.write_text(run("plan", "qwen3.6-27b", "--gpu", "h100", "--tp", "2", "--emit", "sglang-yaml").out)
    script.write_text("sglang serve --config server.yaml\n")
    asked = ("plan", "--gpu", "h100", "-L", "8k", "--json", "--fail-on", "never")
    plain = run(*asked, "--", *["sglang", "serve", "--model-path", "Qwen/Qwen3.6-27B", "--tp", "2"]).document
    for line in (("sglang", "serve", "--config", str(config)), (f"sglang serve --config={config}",), (str(script),)):
        assert run(*asked, "--", *line).document["requests"] == plain["requests"]
    more = run(*asked, "--", "sglang", "serve", "--config", str(config), "--tp", "4").document
    assert more["arguments"]["tp_size"] == 4
    gone = run(*asked, "--", "sglang", "serve", "--config", str(tmp_path / "none.yaml"))
    assert (gone.code, "give its flags in its place" in gone.err) == (2, True)


def test_what_a_flag_before_the_dashes_overrules_is_said() -> None:
    line = "sglang serve --model-path Qwen/Qwen3.6-27B --tp 2 --mem-fraction-static 0.8"
    asked = ("plan", "--gpu", "h100", "-L", "8k", "--json", "--fail-on", "never")
    notes = run(*asked, "--tp", "4", "--mem-fraction-static", "0.8", "--", *line.split()).document["notes"]
    told = [note for note in notes if "before the --" in note]
    assert told == ["--tp before the -- counts, not the 2 of the launch line"]


def test_a_container_that_asks_for_more_gpus_than_a_node_holds_is_warned_of() -> None:
    line = "docker run --gpus 16 lmsysorg/sglang:v0.5.23 sglang serve --model-path moonshotai/Kimi-K3 --tp 16"
    for gpu, warned in (("b200", True), ("300GiB", False)):
        done = run("plan", "--gpu", gpu, "-L", "8k", "--json", "--fail-on", "never", "--", *line.split()).document
        assert ("HC081" in {each["rule"] for each in done["findings"]}) == warned


def test_lm_studios_command_is_answered_with_that_of_llama_cpp() -> None:
    ran = run("plan", "--gpu", "rtx-4070", "--", "lms", "load", "qwen/qwen3.5-9b", "--context-length", "131072")
    assert ran.code == 2 and "write llama-server -m FILE.gguf -c TOKENS -np SLOTS" in " ".join(ran.err.split())


def test_a_step_is_of_the_requests_that_are_wanted() -> None:
    """-C 1 of 74 that would run: the states and KV of one are read, and weights are read for one token."""
    asked = ("nvidia/NVIDIA-Nemotron-3-Super-120B-A12B-NVFP4", "--engine", "vllm", "--gpu", "dgx-spark", "-L", "4k")
    one, all_of_them = (run("plan", *asked, *more, "--json").document for more in (("-C", "1"), ()))
    assert (one["speed"]["batch"], all_of_them["speed"]["batch"]) == (1, all_of_them["requests"])
    assert one["speed"]["floor_ms"] < all_of_them["speed"]["floor_ms"] / 5
    assert "tokens/s at most at 1 request" in " ".join(run("plan", *asked, "-C", "1").out.split())
