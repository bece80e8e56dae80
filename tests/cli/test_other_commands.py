"""`hybridcalc slots`, `crossover`, `replayssm` and `models` end to end."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from typing import Any

import pytest
from command_line import run


def test_crossover_against_llama_has_the_published_readings() -> None:
    """Hybrid-SSM chapter: 102,137,856 B, 779 tokens for the state, 891 for the whole hybrid (C1, C2)."""
    answer = run("crossover", "nemotron-h-8b", "--baseline", "llama-3-8b", "--json").document
    assert answer["state_bytes"] == 102_137_856
    assert answer["baseline"]["component_tokens"] == 779.25
    assert answer["baseline"]["total_tokens"] == pytest.approx(890.571, abs=5e-4)


def test_crossover_of_one_layer_pair_is_not_that_of_the_model() -> None:
    """The recurrent-state article's 650 tokens are one layer pair's 658; the model's are 3,071 (D1)."""
    answer = run("crossover", "nemotron-nano-12b-v2", "--mamba-ssm-dtype", "bfloat16", "--json").document
    assert answer["per_layer_tokens"] == 658.0
    assert answer["component_tokens"] == pytest.approx(3070.67, abs=5e-3)


@pytest.mark.needs("plotext")
def test_crossover_draws_state_and_kv() -> None:
    out = run("crossover", "-v", "nemotron-h-8b", "--baseline", "llama-3-8b").out
    assert "T*: KV = state at 6,234; T*: hybrid = llama-3-8b at 891" in out
    assert "s state   k KV   a all of nemotron-h-8b   b baseline llama-3-8b" in out
    drawn = [line for line in out.splitlines() if line.rstrip().endswith("│")]
    assert all(any(letter in line for line in drawn) for letter in "skab")
    assert max(len(line) for line in out.splitlines()) <= 80


@pytest.mark.parametrize(
    ("model", "baseline", "says"),
    [
        (
            "bamba-9b",
            "codestral-mamba-7b",
            "below 12,148 tokens bamba-9b holds less than codestral-mamba-7b, and no less at any other length",
        ),
        (
            "inkling",
            "qwen3.5-27b",
            "T* = 4,104 tokens from there on inkling holds less than qwen3.5-27b, and below 341 tokens as well",
        ),
        (
            "lara-4-mini",
            "jamba-1.5-mini",
            "T* = 6,152 tokens from 6,153 tokens on "
            "lara-4-mini holds less than jamba-1.5-mini, and below 42 tokens as well",
        ),
        ("kimi-linear-48b-a3b", "kimi-k3", "from the first token kimi-linear-48b-a3b holds less than kimi-k3"),
        (
            "kimi-k3",
            "kimi-linear-48b-a3b",
            "never kimi-k3 holds no less than kimi-linear-48b-a3b, however long the sequence",
        ),
    ],
)
def test_crossover_says_at_which_lengths_the_hybrid_is_lighter(model: str, baseline: str, says: str) -> None:
    """Below, above, both, always or never; at 6,152 tokens both weigh the same."""
    out = run("crossover", model, "--baseline", baseline).out
    assert " ".join(out.split()).startswith(says)
    assert max(len(line) for line in out.splitlines()) <= 80


@pytest.mark.needs("plotext")
@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "cp1252"])
def test_a_curve_is_drawn_in_ascii_where_lines_cannot_be_written(encoding: str) -> None:
    """No escapes, no failure, and the same letters."""
    ran = run("crossover", "-v", "bamba-9b", "--baseline", "llama-3-8b", encoding=encoding)
    assert (ran.code, ran.err) == (0, "")
    assert ran.out.isascii()
    assert "\\u" not in ran.out
    assert "  s state   k KV" in ran.out and "|as" in ran.out


@pytest.mark.needs("plotext")
@pytest.mark.parametrize(("terminal", "coloured"), [("dumb", False), ("xterm-256color", True)])
def test_a_curve_has_colours_where_the_terminal_has(terminal: str, coloured: bool) -> None:
    """On a terminal of its own; TERM=dumb shows no escape code."""
    ours, theirs = pty.openpty()
    environment = {k: v for k, v in os.environ.items() if k not in ("NO_COLOR", "FORCE_COLOR")} | {"TERM": terminal}
    with subprocess.Popen(
        [sys.executable, "-m", "hybridcalc", "crossover", "-v", "bamba-9b"], stdout=theirs, env=environment
    ) as child:
        os.close(theirs)
        picture = b""
        while b"tokens of one sequence" not in picture:
            picture += os.read(ours, 65_536)
        while True:
            try:
                picture += os.read(ours, 65_536)
            except OSError:  # the other side is closed
                break
    os.close(ours)
    assert (child.returncode, b"\x1b" in picture) == (0, coloured)


def test_a_baseline_with_less_kv_is_never_beaten() -> None:
    ran = run("crossover", "llama-3-8b", "--baseline", "kimi-k3")
    assert (ran.code, ran.err) == (2, "error: llama-3-8b has no recurrent layer: it keeps no state\n")
    answer = run("crossover", "zamba2-7b", "--baseline", "llama-3-8b", "--json").document
    assert answer["baseline"]["total_tokens"] is None


def test_a_model_without_kv_has_no_crossover() -> None:
    ran = run("crossover", "falcon-mamba-7b")
    assert ran.code == 0
    assert ran.out.startswith("no crossover")


def test_rings_of_120_slots_weigh_what_their_shapes_say() -> None:
    """KV-cache write-up's table sums to 2,448,230,400 B, not 1.4 GB (A7)."""
    answer = run(
        "replayssm", "kimi-k3", "--tp", "8", "--linear-replayssm-cache-len", "16", "--slots", "120", "--json"
    ).document
    assert (answer["total_bytes"], answer["ring_bytes_per_slot"]) == (2_448_230_400, 20_401_920)
    assert [ring["name"] for ring in answer["buffers"]] == ["d", "k", "g", "rawv", "rawk", "beta"]
    assert answer["legal"] is True


@pytest.mark.parametrize(
    ("flags", "reason"),
    [
        (("--linear-replayssm-cache-len", "12"), "the ring length must be a power of two, 12 is not"),
        (
            ("--linear-replayssm-cache-len", "8", "--speculative-num-draft-tokens", "8"),
            "the ring length must be at least 2 x D = 16 for 8 draft tokens, 8 is not",
        ),
    ],
)
def test_illegal_ring_lengths_are_refused_with_the_rule(flags: tuple[str, ...], reason: str) -> None:
    ran = run("replayssm", "kimi-k3", "--tp", "8", *flags, "--json")
    assert (ran.code, ran.document["legal"], ran.document["reason"]) == (1, False, reason)
    assert "use: --linear-replayssm-cache-len 16" in run("replayssm", "kimi-k3", "--tp", "8", *flags).out


def test_slots_answer_the_write_ups_example() -> None:
    """ceil(13600 / 6144) + 2 = 5, and 80 slots admit 16 requests (A5, A6)."""
    flags = ("--input-length", "13600", "--chunked-prefill-size", "6144", "--max-mamba-cache-size", "80")
    answer = run("slots", *flags, "--json").document
    assert (answer["prefill_slots"], answer["max_concurrent"]) == (5, 16)


def test_the_slot_table_has_every_combination_once() -> None:
    table = run("slots", "--json").document["table"]
    keys = {(row["strategy"], row["overlap"], row["skip_decode_lock"], row["radix_cache"]) for row in table}
    assert len(keys) == len(table) == 24
    refused = {(row["strategy"], row["overlap"]) for row in table if not row["allowed"]}
    assert refused == {("no_buffer", True), ("extra_buffer_lazy", False)}


@pytest.mark.parametrize(
    ("flags", "error"),
    [
        (("--strategy", "no_buffer"), "no_buffer does not run under the overlap scheduler"),
        (("--strategy", "no_buffer", "--pp", "2"), "no_buffer does not run under the overlap scheduler"),
        (
            ("--strategy", "no_buffer", "--page-size", "64", "--disable-overlap-schedule"),
            "no_buffer needs --page-size 1, not 64",
        ),
        (("--page-size", "96"), "--mamba-track-interval 256 is no multiple of --page-size 96"),
        (
            ("glm-5.3-flash", "--page-size", "64"),
            "the sparse-attention index needs pages of 64 pooled tokens, 4 to one, not pages of 64",
        ),
    ],
)
def test_slots_of_flags_the_engine_refuses_are_exit_1(flags: tuple[str, ...], error: str) -> None:
    """With a model and without: the answer is no, not a figure."""
    ran = run("slots", *flags)
    assert (ran.code, ran.out, ran.err.splitlines()[0]) == (1, "", f"error: {error}")


@pytest.mark.parametrize("engine", ["sglang", "vllm"])
@pytest.mark.parametrize("command", [("weights",), ("plan", "--gpu", "h200")])
def test_more_pipeline_stages_than_layers_are_refused(engine: str, command: tuple[str, ...]) -> None:
    ran = run(*command, "kimi-k3", "--engine", engine, "--pipeline-parallel-size", "100")
    assert (ran.code, "93 layers do not make 100 pipeline stages" in ran.out + ran.err) == (1, True)


@pytest.mark.parametrize("model", [(), ("kimi-k3",)])
def test_lazy_buffers_on_pipeline_stages_are_not_told_to_drop_a_flag_nobody_gave(model: tuple[str, ...]) -> None:
    """pp turned the overlap scheduler off."""
    ran = run("slots", *model, "--pp", "2", "--strategy", "extra_buffer_lazy")
    fix = "write --mamba-radix-cache-strategy extra_buffer: pipeline stages run without overlap"
    assert (ran.code, ran.err.splitlines()[1].strip()) == (1, fix)


@pytest.mark.parametrize("model", [(), ("kimi-k3",), ("codestral-mamba-7b",)])
@pytest.mark.parametrize("strategy", ["no_buffer", "extra_buffer", "extra_buffer_lazy"])
@pytest.mark.parametrize("flags", [(), ("--disable-overlap-schedule",), ("--disable-radix-cache",)])
@pytest.mark.parametrize("page", [(), ("--page-size", "64")])
def test_the_slot_table_agrees_with_the_answer(
    model: tuple[Any, ...], strategy: str, flags: tuple[str, ...], page: tuple[str, ...]
) -> None:
    """The row of the flags as given: refused with exit 1, else the same S."""
    ran = run("slots", *model, "--strategy", strategy, *flags, *page, "--json")
    table = run("slots", *model, *page, "--json").document["table"]
    overlap, radix = "--disable-overlap-schedule" not in flags, "--disable-radix-cache" not in flags
    (row,) = (
        r
        for r in table
        if (r["strategy"], r["overlap"], r["radix_cache"]) == (strategy, overlap, radix) and not r["skip_decode_lock"]
    )
    assert ran.code == (0 if row["allowed"] else 1)
    if row["allowed"]:
        assert ran.document["selected"]["slots"] == row["slots"]


def test_models_lists_every_preset_with_its_confidence() -> None:
    models = run("models", "--json").document["models"]
    assert len(models) >= 68
    assert {model["confidence"] for model in models} == {"verified", "second-hand"}
    assert all(model["source"] for model in models)


def test_words_choose_among_the_presets() -> None:
    names = [model["name"] for model in run("models", "Qwen", "27b", "--json").document["models"]]
    assert names
    assert all("qwen" in name and "27b" in name for name in names)
    assert run("models", "--json", "--family", "kda", "kimi").document["models"] != []
    assert "qwen3-next" not in run("models", "kimi").out
    refused = run("models", "kimi", "nosuchword")
    assert (refused.code, refused.err) == (
        2,
        "error: no preset has 'nosuchword' in its name\n       `hybridcalc models` lists them all\n",
    )


def test_models_show_names_the_source() -> None:
    ran = run("models", "show", "moonshotai/kimi-k3")
    assert ran.code == 0
    assert "released config.json" in ran.out
    assert (
        run("models", "show", "kimi-k3", "--tp", "8", "--json").document["models"][0]["state_bytes_per_slot"]
        == 56_171_520
    )


def test_models_family_filters() -> None:
    models = run("models", "--family", "lightning", "--json").document["models"]
    assert {model["family"] for model in models} == {"lightning"}


@pytest.mark.parametrize("arguments", [("--json", "show", "kimi-k3"), ("show", "kimi-k3", "--json")])
def test_models_show_takes_json_on_either_side(arguments: tuple[str, str, str]) -> None:
    """A flag of the group is a flag of what it shows."""
    assert [model["name"] for model in run("models", *arguments).document["models"]] == ["kimi-k3"]


@pytest.mark.parametrize("family", ["gdn", "kda", "bogus"])
def test_models_show_refuses_a_family(family: str) -> None:
    """One model has one family: the flag would be dropped."""
    ran = run("models", "--family", family, "show", "kimi-k3", "--json")
    assert (ran.code, ran.out) == (2, "")
    assert ran.err == "error: --family chooses among presets, `show` is of one\n       drop it\n"


@pytest.mark.parametrize("memory", [("--rest", "20GiB"), ("--gpu", "h100")])
@pytest.mark.parametrize("ranks", ["3", "12"])
def test_ranks_that_layers_do_not_divide_by_are_refused_by_every_command(memory: tuple[str, str], ranks: str) -> None:
    """24 query, 4 KV, 16 key and 48 value heads of Qwen3.6-27B: 1, 2, 4 and 8 ranks share them all."""
    asked = ("Qwen/Qwen3.6-27B", "--tp", ranks)
    memory = (memory[0], f"{ranks}x{memory[1]}" if memory[0] == "--gpu" else memory[1])
    for command, more in (
        ("plan", ("-L", "8k", *memory)),
        ("ratio", ("-L", "8k", *memory)),
        ("ratio", ("-L", "8k")),
        ("crossover", ()),
        ("crossover", ("--baseline", "llama-3-8b")),
        ("verify", ("--device", "meta")),
        ("weights", ()),
    ):
        ran = run(command, *asked, *more)
        said = ran.out if command == "plan" else ran.err
        assert ran.code == 1, (command, said)
        assert f"--tp {ranks} does not divide" in said, (command, said)
        most = "1 or 2" if ranks == "3" and "--gpu" in more else "1, 2, 4 or 8"  # of the GPUs given
        assert f"write --tp {most}" in said or "fix: write --tp " in said, (command, said)


@pytest.mark.parametrize("command", ["plan", "verify", "reuse", "compare", "report"])
def test_a_usage_names_each_of_its_words_once(command: str) -> None:
    """What is asked stands first, the launch line last; nothing stands behind it."""
    usage = " ".join(run(command, "--help").out.partition("\n\n")[0].split())
    assert usage.endswith("[-- LAUNCH LINE]"), usage
    assert usage.split()[3].startswith("[") and usage.split()[3] != "[OPTIONS]", usage


@pytest.mark.parametrize(("engine", "flag"), [("sglang", "--tp"), ("vllm", "-tp")])
def test_groups_that_ranks_do_not_divide_are_called_groups(engine: str, flag: str) -> None:
    """Nemotron-H-8B has 128 heads, which 16 ranks share, and 8 groups of B and C, which they do not."""
    ran = run("plan", "nemotron-h-8b", "--engine", engine, "--tp", "16", "--gpu", "16xh200", "-L", "8k")
    assert ran.code == 1
    assert f"{flag} 16 does not divide the 8 groups of in_proj" in ran.out
    assert f"fix: write {flag} " in ran.out


@pytest.mark.parametrize(("rule", "flag"), [("HC044", "--max-num-seqs"), ("HC002", "--max-mamba-cache-size")])
def test_a_rule_says_which_flags_change_what_it_finds(rule: str, flag: str) -> None:
    said = " ".join(run("rules", rule).out.split())
    assert "change " in said and flag in said and "plan and check name the value" in said
    assert flag in json.loads(run("rules", rule, "--json").out)["rules"][0]["flags"]


@pytest.mark.parametrize(
    ("engine", "flag", "own"),
    [("sglang", "--gpu-memory-utilization", "--mem-fraction-static"),
     ("vllm", "--mem-fraction-static", "--gpu-memory-utilization"), ("vllm", "--context-length", "--max-model-len")],
)  # fmt: skip
def test_a_flag_of_another_engine_is_told_by_its_name_here(engine: str, flag: str, own: str) -> None:
    """Typed beside a model it is refused, in a launch line a warning says its name there."""
    asked = ("qwen3.6-27b", "--engine", engine, "--gpu", "h100", "-L", "8k")
    assert run("plan", *asked, flag, "0.9").err.endswith(f"write {own}\n")
    line = f"{engine} serve Qwen/Qwen3.6-27B {flag} 0.9" + (" --max-num-seqs 8" if engine == "vllm" else "")
    said = run("plan", "-L", "8k", "--gpu", "2xh100", "-v", "--", *line.split()).out
    assert f"its name there is {own}" in " ".join(said.split())


def test_one_thing_is_said_once() -> None:
    """Of findings with the same fix the first says it; the memory of a GPU is what its pools are; one is singular."""
    said = run("plan", "qwen3.6-27b", "--gpu", "h100", "-L", "32k", "-v").out
    assert "HC011" in said and "HC012" in said and said.count("write --mamba-full-memory-ratio") == 1
    assert "  memory  " in said and "  pools  " not in said
    assert "= 1 tokens" not in run("plan", "qwen3.6-27b", "--gpu", "h100", "-L", "1", "--explain").out
    assert "arameter count" not in run("models", "show", "kimi-k3", "-v").out


def test_more_ranks_than_gpus_are_told_with_the_gpus_to_write() -> None:
    assert run("plan", "qwen3.6-27b", "--gpu", "2xh100", "-L", "8k", "--tp", "4").err.endswith("write --gpu 4xh100\n")


def test_class_names_stay_whole_where_models_do_not_fit() -> None:
    said = run("fit", "--gpu", "l4", "-L", "8k", "-C", "16", "--explain").out
    assert "BambaForCausalLM" in said and "LaraMiniForCausalLM" in said
