"""What every command says first: twelve lines of 80 columns, the same at every width, and -v for the rest."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from command_line import run

LINES = 12
SERVE = "python -m sglang.launch_server --model-path Qwen/Qwen3.5-397B-A17B-FP8 --tp"
K3 = ("kimi-k3", "--tp", "8", "--kv-cache-dtype", "fp8_e4m3", "--rest", "28.55GiB")
SPECULATION = ("--speculative-algorithm", "NEXTN", "--speculative-num-draft-tokens", "4")
ANSWERS = {
    "plan": ("plan", *K3, "-L", "9216"),
    "plan without a length": ("plan", *K3),
    "plan, wanted": ("plan", "qwen3.6-27b", "--rest", "83.4GiB", "-L", "32k", "-C", "100"),
    "plan, speculation": ("plan", "qwen3-next-80b-a3b", "--tp", "4", "--rest", "40GiB", "-L", "16k", *SPECULATION),
    "plan on GPUs": ("plan", "Qwen/Qwen3.5-397B-A17B-FP8", "--gpu", "8xh200", "-L", "64k"),
    "plan, an older release": ("plan", "qwen3.6-27b", "--rest", "20GiB", "-L", "8k", "--engine-version", "0.5.12"),
    "plan, vLLM": ("plan", "--engine", "vllm", "nemotron-h-8b", "--gpu", "h200", "-L", "4200"),
    "plan, a prefix": (
        "plan", "--engine", "vllm", "qwen3.5-4b", "--available", "12GiB", "-L", "2k", "--max-model-len", "8192",
        "--shared-prefix", "480", "--private", "100"),
    "plan, refused": ("plan", "--engine", "vllm", "qwen3-next-80b-a3b", "--gpu", "2xh100", "-L", "8k"),
    "compare": ("compare", f"{SERVE} 8", f"{SERVE} 8 --dp 8 --enable-dp-attention", "--gpu", "h200", "-L", "64k"),
    "compare, three": ("compare", f"{SERVE} 8", f"{SERVE} 4", f"{SERVE} 1", "--gpu", "h200", "-L", "64k"),
    "compare, two engines": ("compare", "tests/golden/inputs/five.sh", "--gpu", "h200", "-L", "64k"),
    "fit": ("fit", "qwen3.5-397b-a17b", "-L", "64k", "-C", "200", "--gpu", "h200,b200"),
    "fit, prices": ("fit", "qwen3.6-35b-a3b", "-L", "16k", "-C", "90", "--price", "l40s=0.86,h100=2.49,h200=3.80"),
    "fit, nothing serves": ("fit", "kimi-k3", "-L", "64k", "-C", "100", "--gpu", "8xb200,16xh100"),
    "fit, much to say": ("fit", "kimi-k3", "-L", "128k", "-C", "32", "--gpu", "h200,b200,b300,gb300"),
    "fit, models": ("fit", "--gpu", "2xrtx-4090", "-L", "128k"),
    "log": ("log", "examples/kimi-k3-boot.log", "-L", "9216", "-C", "60"),
    "log, llama.cpp": ("log", "tests/data/bootlogs/lcpp-002.log"),
    "ratio": ("ratio", *K3, "-L", "9216"),
    "ratio, speculation": ("ratio", "qwen3.6-35b-a3b", "-L", "9216", "--rest", "40GiB", *SPECULATION),
    "crossover": ("crossover", "qwen3.6-27b", "--baseline", "llama-3.3-70b", "-L", "32k"),
    "weights": ("weights", "Qwen/Qwen3.6-35B-A3B-FP8", "--tp", "2", "--engine", "vllm"),
    "reuse": ("reuse", "qwen3.5-35b-a3b", "--slots", "400", "--workload", "chat:sessions=40,turns=8"),
    "reuse, no slots": ("reuse", "qwen3.5-35b-a3b", "--workload", "chat:sessions=40,turns=8", "--running", "8"),
    "compare, none starts": ("compare", "tests/golden/inputs/five.sh", "--gpu", "rtx-4090", "-L", "64k"),
    "compare, many": ("compare", *(("tests/golden/inputs/five.sh",) * 6), "--gpu", "h200", "-L", "64k"),
    "plan --compare": ("plan", *K3, "-L", "8k", "--compare", "--strategy extra_buffer_lazy"),
    "plan --compare, three": (
        "plan", "qwen3.6-35b-a3b", "--gpu", "h200", "-L", "16k",
        "--compare", "--mamba-ssm-dtype bfloat16", "--compare", "--kv-cache-dtype fp8_e4m3",
    ),
    "slots": ("slots", "--max-mamba-cache-size", "257"),
    "plan --sweep": ("plan", *K3, "-L", "8k", "--sweep", "mamba-full-memory-ratio=0.2:4:0.2"),
    "plan --sweep, two": ("plan", *K3, "-L", "8k", "--sweep", "tp=4,5,8,16,32", "--sweep", "kv-cache-dtype=auto,fp8"),
    "compare, prices": ("compare", f"{SERVE} 8", f"{SERVE} 8", "--gpu", "h200,b200", "--price", "h200=3.5,b200=5.5"),
    "check": ("check", "examples"),
    "check, everything": ("check", "tests/data/manifests"),
    "models": ("models",),
    "models, a word": ("models", "qwen"),
    "rules": ("rules",),
    "schema": ("schema",),
    "verify": ("verify", "qwen3.5-0.8b", "--rest", "1GiB", "--device", "meta"),
    "live": ("live", "examples/kimi-k3-metrics.txt"),
    "log, no boot": ("log", "README.md"),
    "replayssm": ("replayssm", "kimi-k3", "--tp", "8", "--linear-replayssm-cache-len", "16"),
}  # fmt: skip


@pytest.mark.parametrize("arguments", ANSWERS.values(), ids=ANSWERS)
def test_an_answer_takes_twelve_lines_and_is_the_same_at_every_width(arguments: tuple[str, ...]) -> None:
    """Columns become paragraphs; no figure is lost, and none is added."""

    def figures(out: str) -> list[str]:
        return sorted(re.findall(r"\d[\d,.]*\d", out))

    out = run(*arguments).out
    assert out and len(out.splitlines()) <= LINES
    assert max(len(line) for line in out.splitlines()) <= 80
    for columns in ("60", "200"):
        assert figures(run(*arguments, COLUMNS=columns).out) == figures(out), columns


def test_what_is_left_out_is_counted_and_named() -> None:
    short, whole = (run(*ANSWERS["plan"], *more).out for more in ((), ("-v",)))
    last = short.splitlines()[-1]
    assert re.fullmatch(r"-v: \d+ figures?, \d+ settings?, HC010, HC012, budget, log lines", last)
    assert all(rule in whole for rule in ("HC010", "HC012")) and "log lines to expect" in whole
    assert whole.count("  safe  ") + whole.count("  bold  ") > 2


def test_the_safest_setting_changes_little_and_the_boldest_says_its_price() -> None:
    """Of what comes within a tenth of the most, the fewest changes: the ratio alone, not with another strategy."""
    out = run("plan", "qwen3.6-27b", "--rest", "83.4GiB", "-L", "32k").out
    assert "  safe  --mamba-full-memory-ratio 0.358  21 -> 30 requests\n" in out
    assert "  bold  --kv-cache-dtype fp8_e4m3 --mamba-full-memory-ratio 0.717\n" in out
    assert "21 -> 48 requests; check accuracy first" in out


def test_a_refusal_says_what_its_fix_comes_to() -> None:
    ran = run("plan", "Qwen/Qwen3-Next-80B-A3B-Instruct-FP8", "--engine", "vllm", "--gpu", "h20-96gb", "-L", "32k")
    said = " ".join(ran.out.split())
    assert ran.code == 1 and re.search(r"fix: write --max-num-seqs (\d+): \1 requests of 32,768 tokens", said)


def test_an_older_release_is_held_against_the_newest() -> None:
    said = " ".join(run(*ANSWERS["plan, an older release"]).out.split())
    assert "on 0.5.23 13 requests with the same flags; extra_buffer, not no_buffer" in said
    assert "with the same flags" not in run("plan", "qwen3.6-27b", "--rest", "20GiB", "-L", "8k").out


@pytest.mark.parametrize(
    ("command", "said"),
    [
        (("plan", *K3, "-L", "8k", "--engine-version", "0.5.99"), "SGLang 0.5.99 by the rules of 0.5.23, tp 8 on"),
        (("ratio", "kimi-k3", "--tp", "8", "-L", "8k", "--engine-version", "0.5.99"),
         "SGLang 0.5.99 by the rules of 0.5.23"),
        (("plan", *K3, "-L", "8k", "--engine-version", "0.5.99", "--compare", "--dcp-size 8"),
         "SGLang 0.5.99 is newer than the releases known here: the rules of 0.5.23 are used"),
        (("plan", *K3, "-L", "8k", "--engine-version", "0.5.19.post1"), "SGLang 0.5.19.post1 by the rules of 0.5.19"),
    ],
)  # fmt: skip
def test_a_release_that_is_not_known_is_named_beside_the_one_whose_rules_are_used(
    command: tuple[str, ...], said: str
) -> None:
    assert said in " ".join(run(*command).out.split())
    older = ["0.5.23" if word.startswith("0.5.") else word for word in command]
    assert "rules of" not in run(*older).out


def test_an_image_newer_than_every_release_is_said(tmp_path: Path) -> None:
    """By check and compare: the newest rules stand in for those of the tag."""
    file = tmp_path / "compose.yaml"
    line = "--model Qwen/Qwen3.6-27B --max-model-len 8192 --max-num-seqs 64"
    file.write_text(f"services:\n  a:\n    image: vllm/vllm-openai:v0.99.1\n    command: {line}\n")
    said = "vLLM 0.99.1 is newer than the releases known here: the rules of 0.33.0 are used"
    for command in (("check", str(file), "--gpu", "h100"), ("compare", str(file), "--gpu", "h100", "-L", "8k")):
        assert said in " ".join(run(*command).out.split())


def test_of_a_long_table_the_most_telling_rows_are_shown() -> None:
    """The best trade-offs of a sweep, in the order of its values; all of them with -v."""
    asked = ("plan", *K3, "-L", "8k", "--sweep", "mamba-full-memory-ratio=0.2:4:0.2")
    short, whole = run(*asked).out, run(*asked, "-v").out
    row = r"(?m)^  \d(?:\.\d)? .*$"
    assert len(re.findall(row, whole)) == 20 and len(short.splitlines()) <= LINES
    shown = re.findall(row, short)
    assert all("*" in line for line in shown) and shown == sorted(shown, key=lambda line: float(line.split()[0]))
    assert f"{20 - len(shown)} rows" in short.splitlines()[-1]


def test_a_comparison_says_what_differs() -> None:
    compared = ("plan", *K3, "-L", "8k", "--compare", "--strategy extra_buffer_lazy")
    assert "-v: what differs, side by side" in run(*compared).out
    assert "requests at once" in run(*compared, "-v").out


def test_of_many_launches_the_best_are_shown_and_the_others_counted() -> None:
    many = ("tests/golden/inputs/five.sh",) * 4
    short, whole = (run("compare", *many, "--gpu", "h200", "-L", "64k", *more).out for more in ((), ("-v",)))
    assert short.splitlines()[3] == whole.splitlines()[3] and short.count("five.sh:5") - 1 == 4
    rows = sum(line.startswith("  five.sh:") for line in short.splitlines())
    assert f"-v: {20 - rows} rows, " in short and whole.count("\n  five.sh:") >= 20


@pytest.mark.parametrize(
    ("asked", "shown"),
    [
        (("plan", "qwen3.6-35b-a3b", "--gpu", "h200", "-L", "64k", "-C", "60", "--workload", "agent"), True),
        (("plan", "qwen3.6-35b-a3b", "--gpu", "h200", "--workload", "chat:sessions=50"), True),
        (("plan", "qwen3.6-35b-a3b", "--gpu", "h200", "-L", "64k"), False),
        (("fit", "qwen3.6-35b-a3b", "--gpu", "h200", "-C", "20", "-L", "64k", "--pace", "40"), True),
        (("fit", "qwen3.6-35b-a3b", "--gpu", "h200", "-C", "20", "--workload", "chat:sessions=50"), True),
        (("fit", "qwen3.6-35b-a3b", "--gpu", "h200", "-C", "20", "-L", "64k"), False),
    ],
)
def test_the_wait_for_a_first_token_is_said_where_pace_or_kind_of_work_is_asked_for(
    asked: tuple[str, ...], shown: bool
) -> None:
    """The prefill of a prompt as long as a request, in the twelve lines; without the question it stands under -v."""
    said = run(*asked).out
    assert len(said.splitlines()) <= LINES
    assert bool(re.search(r"^  a prompt +[0-9,.]+ ms or more", said, re.M)) == shown, said
    assert re.search(r"^  a step +[0-9,.]+ ms or more", said, re.M), said
