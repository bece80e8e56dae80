"""Requests that are wanted (-C) and more than run: every answer names what lets them run, and it does, pasted back."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from command_line import run

from hybridcalc.findings import Choice, least_costly, two

QWEN = "sglang serve Qwen/Qwen3.6-27B"
SMALL = "vllm serve ibm-granite/granite-4.0-h-small"
LAZY = "--mamba-radix-cache-strategy extra_buffer_lazy"
DRAFTED = (
    "sglang serve Qwen/Qwen3.5-397B-A17B-FP8 --tp 8 --speculative-algorithm EAGLE --speculative-num-draft-tokens 4"
)
SETTING = re.compile(r"^  (safe|bold)  (.*?)  ?([0-9,]+) -> ([0-9,]+)", re.M | re.S)


def asked(model: str, flags: str, gpu: str, length: str, wanted: int, *more: str) -> tuple[str, ...]:
    """A plan of a launch line, where that names an engine, else of a model."""
    beside = ("plan", "-L", length, "-C", str(wanted), "--gpu", gpu, *more)
    if model.split()[0] in ("sglang", "vllm"):
        return (*beside, "--", *model.split(), *flags.split())
    return (*beside, model, *flags.split())


def settings_of(out: str) -> dict[str, tuple[str, int]]:
    """What is shown to set: flags, and the requests that they come to."""
    return {
        label: (" ".join(flags.replace("\\\n", " ").split()), int(after.replace(",", "")))
        for label, flags, _, after in SETTING.findall(out)
    }


def text(answer: str) -> str:
    return " ".join(answer.split())


SAMPLE = [
    ("qwen3.6-35b-a3b", "--tp 2", "h100", "32k", 60),
    ("qwen3.6-27b", "--tp 2", "h100", "8k", 60),
    ("qwen3.6-27b", "", "h200", "8k", 70),
    ("gpt-oss-120b", "", "h100", "8k", 20),
    ("kimi-linear-48b-a3b", "--tp 2", "h100", "64k", 90),
    ("ibm-granite/granite-4.0-h-tiny", "", "l4", "8k", 60),
    ("sglang serve moonshotai/Kimi-K3 --tp 16", "", "16xh200", "32k", 60),
    (f"{QWEN} --tp 1", "", "8xh100", "32k", 60),
    (f"{QWEN} --tp 3", "", "4xl4", "8k", 4),
    ("vllm serve Qwen/Qwen3.6-27B -tp 2 --max-model-len 32768", "", "2xh100", "32k", 60),
    (f"{SMALL} -tp 2 --max-model-len 32768 --max-num-seqs 16", "", "8xl40s", "32k", 60),
    ("vllm serve moonshotai/Kimi-K3 -tp 8 --max-model-len 32768 --max-num-seqs 32", "", "8xb200", "32k", 60),
    ("vllm serve Qwen/Qwen3.6-27B -tp 3", "", "4xl4", "8k", 8),
    ("vllm serve Qwen/Qwen3.6-35B-A3B --max-model-len 32768 --max-num-seqs 5", "", "h100", "32k", 40),
    (DRAFTED, "", "8xh200", "64k", 100),
    (DRAFTED, "--disable-radix-cache", "8xh200", "64k", 100),
    ("vllm serve moonshotai/Kimi-Linear-48B-A3B-Instruct -tp 4", "", "4xh100", "64k", 200),
]  # fmt: skip


@pytest.mark.parametrize(("model", "flags", "gpu", "length", "wanted"), SAMPLE)
def test_what_is_shown_gives_what_it_says(model: str, flags: str, gpu: str, length: str, wanted: int) -> None:
    """Every safe and bold line and every fix with a number, pasted back: as many run; and a way to all of them is
    shown wherever one is listed.
    """
    shown = run(*asked(model, flags, gpu, length, wanted))
    assert shown.code == 1
    pasted = dict(settings_of(shown.out).values())
    for found in re.finditer(r"(?:write|add) (-[^:;]*): ([0-9,]+)(?: of)?[^;]*? request", text(shown.out)):
        pasted[found[1]] = int(found[2].replace(",", ""))
    assert pasted
    for given, after in pasted.items():
        ranks = re.search(r"-tp? ([0-9]+)", given)
        name = re.sub(r"^[0-9]+x", "", gpu)
        many = max(int(ranks[1]) if ranks else 1, int(gpu.partition("x")[0]) if "x" in gpu else 1)
        again = run(*asked(model, f"{flags} {given}", f"{many}x{name}" if ranks else gpu, length, wanted, "--json"))
        assert again.document.get("requests") == after, given
    document = run(*asked(model, flags, gpu, length, wanted, "--json")).document
    reaching = [one for one in document.get("suggestions", ()) if one["requests_after"] >= wanted]
    written = [" ".join([*map("=".join, one["env"].items()), *one["flags"]]) for one in reaching]
    told = any(f"write {one};" in text(shown.out) for one in written)
    assert told or not reaching or any(after >= wanted for after in pasted.values())
    bold = [one for one in document.get("suggestions", ()) if one["risk"] != "none"]
    best = max((one["requests_after"] for one in bold), default=0)
    if best > settings_of(shown.out).get("safe", ("", 0))[1]:
        assert told or "bold" in settings_of(shown.out)


def test_a_safe_setting_that_is_enough_stands_before_one_with_fewer_changes_that_is_not() -> None:
    """Balancing alone comes to 56; with lazy buffers 60 run."""
    found = settings_of(run(*asked("qwen3.6-35b-a3b", "--tp 2", "h100", "32k", 60)).out)
    assert found["safe"] == (f"{LAZY} --mamba-full-memory-ratio 0.384", 60)
    assert found["bold"][1] > 60
    assert settings_of(run(*asked("qwen3.6-35b-a3b", "--tp 2", "h100", "32k", 56)).out)["safe"][1] == 56


def test_the_limit_of_drafts_is_raised_where_it_is_not_typed() -> None:
    """48 is the engine's own, and no bound of the memory; what is typed stays."""
    found = run(*asked(DRAFTED, "", "8xh200", "64k", 100))
    listed = run(*asked(DRAFTED, "", "8xh200", "64k", 100, "--json")).document["suggestions"]
    safe = max((one for one in listed if one["risk"] == "none"), key=lambda one: int(one["requests_after"]))
    assert (safe["flags"][-2:], safe["requests_after"]) == (["--max-running-requests", "56"], 56)
    assert "--max-running-requests 100" in text(found.out)
    assert "no more than 48" not in text(found.out)
    typed = run(*asked(DRAFTED, "--max-running-requests 100", "8xh200", "64k", 100, "--json")).document["suggestions"]
    assert not any("--max-running-requests" in one["flags"] for one in typed)
    enough = settings_of(run(*asked(DRAFTED, "", "8xh200", "64k", 48)).out)["safe"]
    assert "--max-running-requests" not in enough[0] and enough[1] == 48


@pytest.mark.parametrize(
    ("line", "gpu", "wanted", "ranks", "after"),
    [
        ("vllm serve moonshotai/Kimi-K3 -tp 8 --pipeline-parallel-size 2 --max-model-len 65536", "16xh200", 64, 8, 125),
        ("vllm serve moonshotai/Kimi-Linear-48B-A3B-Instruct -tp 4", "4xh100", 200, 4, 303),
        ("vllm serve inclusionAI/Ling-3.0-flash -tp 8", "8xh100", 128, 8, 471),
        ("vllm serve Qwen/Qwen3.6-35B-A3B -tp 8", "8xh100", 300, 4, 316),  # two KV heads: four ranks hold copies of one
    ],
)
def test_ranks_that_share_the_rows_stand_before_more_gpus(
    line: str, gpu: str, wanted: int, ranks: int, after: int
) -> None:
    """As SGLang's plans and ``fit`` do; no accuracy is at stake."""
    found = run(*asked(line, "", gpu, "64k", wanted))
    assert settings_of(found.out)["bold"] == (f"--decode-context-parallel-size {ranks}", after)
    assert "check accuracy" not in found.out and "on 64 GPUs" not in text(found.out)
    enough = run(*asked(line, f"--decode-context-parallel-size {ranks}", gpu, "64k", wanted))
    assert enough.code == 0 and "--decode-context-parallel-size" not in "".join(map(str, settings_of(enough.out)))


def test_the_fix_of_an_error_is_the_setting_below_it() -> None:
    """Fewest changes that cost accuracy; where GPUs are given and idle, those before any of them."""
    command = asked("vllm serve Qwen/Qwen3.6-27B -tp 2 --max-model-len 32768", "", "2xh100", "32k", 60)
    flags, after = settings_of(run(*command).out)["bold"]
    assert (flags, after) == ("--kv-cache-dtype fp8 --no-enable-prefix-caching", 72)
    assert "no more than" not in run(*command).out
    idle = asked("vllm serve Qwen/Qwen3.6-27B -tp 2 --max-model-len 32768", "", "4xh100", "32k", 60)
    assert re.search(r"HC063 .* write -tp 4[^:]*: [0-9]+ requests", text(run(*idle).out))


def test_a_plan_that_holds_no_more_says_under_which_flags() -> None:
    """--rest leaves no GPU to add: the most of these flags is said as theirs."""
    found = run("plan", "qwen3.6-27b", "--rest", "4GiB", "-L", "8k", "-C", "900")
    assert "these flags hold no more than" in text(found.out)
    assert "no split of this memory" not in found.out


def test_ratio_says_that_no_ratio_is_enough() -> None:
    """A pin of 60 x 5 + 1 slots leaves KV for fewer."""
    found = run("ratio", "qwen3.6-35b-a3b", "-L", "32k", "-C", "60", "--tp", "2", "--gpu", "h100", "-v")
    assert found.code == 1
    told = text(found.out)
    assert f"HC002 60 requests are wanted: no ratio runs more than 56; write {LAZY}" in told
    assert "54 requests: 301 slots are enough for 60, and KV holds 54" in told
    assert run("ratio", "qwen3.6-35b-a3b", "-L", "32k", "-C", "56", "--tp", "2", "--gpu", "h100").code == 0


@pytest.mark.parametrize(
    ("line", "gpu", "wanted", "written"),
    [
        ("vllm serve moonshotai/Kimi-K3 -tp 12 --max-model-len 32768 --max-num-seqs 32", "12xb200", 60, "-tp 32"),
        ("vllm serve Qwen/Qwen3.6-27B -tp 3", "4xl4", 8, "-tp 4"),
        ("sglang serve Qwen/Qwen3.6-27B --tp 3", "4xl4", 8, "--tp 8"),
        ("vllm serve moonshotai/Kimi-K3 -tp 8", "8xb200", 60, "-tp 32"),
        ("vllm serve moonshotai/Kimi-K3 -tp 8 --max-model-len 32768 --max-num-seqs 32", "8xb200", 60, "-tp 32"),
        ("sglang serve moonshotai/Kimi-K3 --tp 8", "8xb200", 60, "--tp 24"),
        ("sglang serve moonshotai/Kimi-K3 --tp 12", "12xh200", 60, "--tp 48"),
    ],
)
def test_ranks_that_are_written_start_and_serve_what_is_wanted(line: str, gpu: str, wanted: int, written: str) -> None:
    """No list of numbers that divide and hold no weights, and the same form whatever else is typed."""
    length = "32k" if "Kimi" in line else "8k"
    told = text(run("plan", "-L", length, "-C", str(wanted), "--gpu", gpu, "--", *line.split()).out)
    found = re.search(r"fix: write (--?tp [0-9]+)[^:]*: ([0-9]+) requests", told)
    assert found is not None, told
    assert found[1] == written and int(found[2]) >= wanted
    assert "--tp 3" not in told or line.startswith("sglang")  # as each command line spells it


@pytest.mark.parametrize(
    ("line", "length", "wanted", "release", "ranks", "of"),
    [("sglang serve Qwen/Qwen3.6-27B-FP8 --max-running-requests 64", "32k", None, "0.5.23", 4, "64")],
)
def test_more_ranks_are_those_that_serve_what_is_wanted_or_say_of_how_many(
    line: str, length: str, wanted: int | None, release: str, ranks: int, of: str
) -> None:
    """Wanted by -C or by the limit that is typed."""
    more = () if wanted is None else ("-C", str(wanted))
    told = text(run("plan", "--gpu", "h100", "-L", length, *more, "--engine-version", release, "--", *line.split()).out)
    assert re.search(rf"write --tp {ranks}[^:]*: {of} requests[^;]* on {ranks} GPUs", told), told
    assert "use more GPUs" not in told


def test_a_variable_behind_a_launch_line_is_environment() -> None:
    """As a setting that is shown has it; of a name that the engine does not know it is still refused."""
    line = ("plan", "--json", "--gpu", "2xh100", "-L", "8k", "--", *QWEN.split(), "--tp", "2")
    today, behind = run(*line).document, run(*line, "SGLANG_OPT_MAMBA_SKIP_DECODE_LOCK=1").document
    assert behind["slots_per_request"] == today["slots_per_request"] - 1
    assert run(*line, "UNKNOWN=1").code == 2


def test_a_file_that_is_not_written_is_said() -> None:
    command = ("plan", "qwen3.6-35b-a3b", "--tp", "2", "--gpu", "h100", "-L", "32k", "-C", "60", "--emit", "compose")
    found = run(*command)
    assert (found.code, found.out) == (1, "")
    assert found.err.startswith("nothing is written for --emit compose: there are findings from error on; --fail-on")
    assert "nothing is written" not in run(*command, "--fail-on", "never").err
    assert "it does not start" in run(*command[:2], "--gpu", "l4", *command[6:]).err


@pytest.mark.parametrize(
    ("line", "options"),
    [(QWEN, "--draft-layers 1"), (QWEN, "--max-draft-tokens 4"), ("vllm serve Qwen/Qwen3.6-27B", "--draft-layers 1")],
)
def test_drafts_without_speculation_are_refused(line: str, options: str) -> None:
    found = run("plan", "--gpu", "h200", "-L", "8k", *options.split(), "--", *line.split())
    assert found.code == 2
    assert found.err.startswith(f"error: {options.split()[0]} has no effect alone\n")


def test_the_low_end_that_misses_what_is_wanted_is_said() -> None:
    line = "vllm serve Qwen/Qwen3.6-35B-A3B-FP8 --max-model-len 32768"
    found = run("plan", "-C", "40", "-L", "32k", "--gpu", "h100", "--", *line.split())
    assert found.code == 0
    assert found.out.startswith("43 requests (33 to 44: the low end misses 40) of 32,768 tokens")
    assert "misses" not in run("plan", "-C", "33", "-L", "32k", "--gpu", "h100", "--", *line.split()).out


def test_a_start_that_the_estimate_leaves_open_is_no_refusal() -> None:
    line = ("nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16", "--engine", "vllm", "--gpu", "h100", "-L", "128k", "-C", "60")
    found = run("plan", *line)
    assert found.code == 1 and found.out.startswith("may not start\n")
    fix = text(found.out.partition("\nfix: ")[2])
    assert "60 requests are wanted; for these add -tp 2 --max-num-seqs" in fix


def test_a_check_names_flags_and_no_two_fixes_that_contradict(tmp_path: Path) -> None:
    script = tmp_path / "run.sh"
    script.write_text(f"{QWEN} --tp 2\n")
    found = text(run("check", str(script), "--gpu", "2xh100", "-L", "8k", "-C", "60").out)
    assert "suggestions" not in found
    assert f"write {LAZY} --mamba-full-memory-ratio 1.15" in found
    script.write_text("vllm serve Qwen/Qwen3.6-27B -tp 2 --max-model-len 32768 --max-num-seqs 512\n")
    found = text(run("check", str(script), "--gpu", "2xh100", "-L", "32k", "-C", "60").out)
    assert "HC063" in found and "HC060" not in found


def test_the_two_that_are_shown_follow_what_is_wanted() -> None:
    """Least cost among those that are enough; nearest where none is; and without a number as much as fits a line."""
    safe = [Choice("safe", "--a 1 --b 2", "", "", 70, (0, 0, 0)), Choice("safe", "--a 1", "", "", 65, (0, 0, 0))]
    bold = [
        Choice("bold", "--c 1 --d 1", "", "", 90, (2, 0, 0)),
        Choice("bold", "--e 1", "", "", 80, (0, 1, 0)),
        Choice("bold", "--c 1", "", "", 85, (1, 0, 0)),
    ]

    def flags(wanted: int) -> list[str]:
        return [choice.flags for choice in two([*safe, *bold], wanted, 72)]

    assert flags(0) == ["--a 1", "--c 1 --d 1"]
    assert flags(60) == ["--a 1", "--c 1 --d 1"]
    assert flags(70) == ["--a 1 --b 2", "--c 1 --d 1"]
    assert flags(75) == ["--a 1 --b 2", "--e 1"]
    assert flags(88) == ["--a 1 --b 2", "--c 1 --d 1"]
    assert flags(95) == ["--a 1 --b 2", "--c 1 --d 1"]
    assert least_costly(safe, 71) is None
