"""``hybridcalc log``: text, JSON, several files, stdin, gzip, the comparison with a plan, and its errors."""

from __future__ import annotations

import gzip
import json
import random
from pathlib import Path

import pytest
from command_line import run

LOGS = Path(__file__).resolve().parent.parent / "data" / "bootlogs"
K3 = str(LOGS / "sgl-015.log")
FIGURES = json.loads((LOGS / "figures.json").read_text())


def test_the_answer_opens_with_the_verdict_and_ends_with_flags() -> None:
    ran = run("log", K3, "-L", "9216")
    assert (ran.code, ran.err) == (0, "")
    lines = ran.out.splitlines()
    assert lines[0] == "SGLang 0.5.17 or later, kimi-k3 on TP8, fp32 state, fp8 KV"
    assert lines[1] == "  the state pool binds at 51 requests; 60 % of the KV idle at 9,216 tokens"
    assert "258 x 56,171,520 B = 13.50 GiB" in ran.out
    assert "--mamba-radix-cache-strategy extra_buffer_lazy" in ran.out
    assert all(len(line) <= 80 for line in lines)


def test_the_document_has_the_promised_keys() -> None:
    document = run("log", K3, "-L", "9216", "--json").document
    assert document["schema"] == "hybridcalc.log/2"
    [boot] = document["boots"]
    promised = {
        "engine",
        "version",
        "model_guess",
        "ranks",
        "records",
        "constants",
        "binding",
        "findings",
        "suggestions",
    }
    assert promised <= set(boot)
    assert (boot["engine"], boot["binding"]) == ("sglang", "state")
    low, high = boot["constants"]["state_bytes_per_slot"]
    assert low <= 56_171_520 <= high
    assert boot["constants"]["exact"]["kv_bytes_per_token"] == 13_824
    record = next(record for record in boot["records"] if record["key"] == "ssm_gib")
    assert (record["value"], record["text"], record["decimals"], record["line"]) == (13.04, "13.04", 2, 1)
    assert boot["steps"] and boot["suggestions"]


@pytest.mark.parametrize("name", FIGURES)
def test_every_published_log_is_answered_in_both_forms(name: str) -> None:
    """JSON carries each expected figure under its name; the text never fails."""
    document = run("log", str(LOGS / name), "--json").document
    assert document["figures"] == FIGURES[name]
    text = run("log", str(LOGS / name), "-L", "8k", "--explain")
    assert (text.code, text.err) == (0, "") and text.out.strip()


def test_several_files_stdin_and_gzip(tmp_path: Path) -> None:
    packed = tmp_path / "boot.log.gz"
    packed.write_bytes(gzip.compress(Path(K3).read_bytes()))
    document = run("log", str(packed), "-", "--json", stdin=(LOGS / "vllm-012.log").read_bytes()).document
    assert [(boot["file"], boot["engine"]) for boot in document["boots"]] == [
        (str(packed), "sglang"),
        ("stdin", "vllm"),
    ]
    assert [entry["file"] for entry in document["files"]] == [str(packed), "stdin"]
    packed.write_bytes(gzip.compress(Path(K3).read_bytes())[:-4])
    assert run("log", str(packed), "--json").document["files"][0]["findings"][0]["rule"] == "HC104"


def test_a_launch_line_is_held_against_the_log(tmp_path: Path) -> None:
    line = "python -m sglang.launch_server --model-path moonshotai/Kimi-K3 --tp 8 --max-mamba-cache-size 64"
    script = tmp_path / "serve.sh"
    script.write_text(line + "\n")
    for command in (line, str(script)):
        ran = run("log", K3, "--command", command)
        assert "HC108 the launch line pins 64 slots, the log has 257" in " ".join(ran.out.split())
    assert run("log", K3, "--command", line, "--fail-on", "error").code == 1


@pytest.mark.parametrize(
    "flag",
    [
        "--tp 4",
        "--tp 8 --mamba-ssm-dtype bfloat16",
        "--tp 8 --mamba-full-memory-ratio 2",
        "--tp 8 --max-total-tokens 1000",
    ],
)
def test_flags_that_cannot_have_produced_the_log_are_said(flag: str) -> None:
    command = f"python -m sglang.launch_server --model-path moonshotai/Kimi-K3 {flag}"
    assert "HC108" in run("log", K3, "--command", command).out
    right = command.replace(flag, "--tp 8 --kv-cache-dtype fp8_e4m3")
    assert "HC108" not in run("log", K3, "--command", right).out


def test_a_failed_boot_is_an_answer_unless_told_otherwise() -> None:
    path = str(LOGS / "vllm-003.log")
    assert run("log", path).code == 0
    assert run("log", path, "--fail-on", "error").code == 1


def test_a_boot_is_compared_with_a_plan(tmp_path: Path) -> None:
    """The drift alarm: 0 where the boot is as planned, 1 where it parts, whichever way the plan comes."""
    flags = ("kimi-k3", "--tp", "8", "--kv-cache-dtype", "fp8_e4m3")
    right = run("plan", *flags, "--rest", "28.5287GiB", "--json").out
    wrong = run("plan", *flags, "--rest", "30GiB", "--json").out
    path = tmp_path / "plan.json"
    path.write_text(right)
    agreed = run("log", K3, "--expect", str(path), "--json")
    assert agreed.code == 0
    assert {row["figure"]: row["agrees"] for row in agreed.document["boots"][0]["expected"]}["kv_tokens"] is True
    assert run("log", K3, "--expect", "-", stdin=right.encode()).code == 0
    ran = run("log", K3, "--expect", "-", stdin=wrong.encode())
    assert ran.code == 1 and ran.out.startswith("differs from the plan in ")
    other = run("plan", "qwen3.6-27b", "--rest", "30GiB", "--json").out
    ran = run("log", K3, "--expect", "-", stdin=other.encode())
    assert ran.code == 1 and "the plan is of qwen3.6-27b, this is kimi-k3" in ran.out.partition("\n\n")[0]
    path.write_text("{}")
    assert run("log", K3, "--expect", str(path)).err == (
        f"error: {str(path)[:60]} is no answer of plan --json\n       hybridcalc plan ... --json > plan.json\n"
    )


SCHEMA = '{"schema": "hybridcalc.plan/2", "engine_figures": {}, "log_lines": '
NO_PLANS = {
    '["\\ud800"]': "predicts no figure of a log",
    "[]": "predicts no figure of a log",
    '[], "max_mamba_cache_size": 1' + "0" * 400: "is no plan",
    '["KV Cache is allocated. #tokens: 1' + ",000" * 300 + ', KV size: 15.03 GB"]': "is no plan",
    '["' + "x" * 70_000 + '"]': "is no plan",
    "1": "is no plan",
    "1" + "0" * 5000: "nests too deep, or has a number too long",
}


@pytest.mark.parametrize(("lines", "said"), NO_PLANS.items(), ids=range(len(NO_PLANS)))
def test_a_plan_that_predicts_nothing_or_nonsense_is_refused(lines: str, said: str) -> None:
    ran = run("log", K3, "--expect", "-", stdin=f"{SCHEMA}{lines}}}".encode())
    assert (ran.code, ran.out) == (2, "") and said in ran.err and ran.err.count("\n") == 2


def test_a_comparison_that_compares_nothing_is_no_agreement() -> None:
    """Another engine, a start that failed, a boot that prints none of the figures: each is a parting."""
    flags = ("kimi-k3", "--tp", "8", "--kv-cache-dtype", "fp8_e4m3", "--rest", "28.5287GiB", "--json")
    planned = run("plan", *flags).out.encode()
    ran = run("log", str(LOGS / "vllm-003.log"), "--expect", "-", "--json", stdin=planned)
    rows = {row["figure"]: row for row in ran.document["boots"][0]["expected"]}
    assert ran.code == 1
    assert (rows["engine"]["printed"], rows["starts"]["printed"]) == ("vllm", False)
    only = (SCHEMA + '[], "engine": "sglang", "starts": true, "attn_block_size": 1072}').encode()
    ran = run("log", K3, "--expect", "-", stdin=only)
    assert ran.code == 1 and "the boot prints nothing that the plan predicts" in ran.out
    refused = (SCHEMA + '[], "engine": "sglang", "starts": false}').encode()
    assert run("log", str(LOGS / "sgl-016.log"), "--expect", "-", stdin=refused).code == 1


def test_a_log_without_a_boot_says_so(tmp_path: Path) -> None:
    path = tmp_path / "boot.log"
    path.write_text("INFO: nothing to see\n")
    ran = run("log", str(path))
    assert (ran.code, ran.err) == (1, "")
    assert ran.out.startswith("no boot in it")
    assert run("log", str(path), "--json").document["boots"] == []


ERRORS = {
    ("log",): "Missing argument",
    ("log", "no/such/file"): "no/such/file: no such file",
    ("log", "-", "-"): "stdin is named twice",
    ("log", K3, "-L", "long"): "-L: 'long' is not a token count",
    ("log", K3, "--model", "kimi-k33"): "kimi-k33",
    ("log", K3, "--command", "nothing.sh"): "'nothing.sh' starts no engine known here",
    ("log", K3, "--fail-on", "all"): "--fail-on 'all' is not a severity",
    ("log", K3, "--expect", "no/plan"): "no/plan cannot be read",
}


@pytest.mark.parametrize(("arguments", "said"), ERRORS.items(), ids=[" ".join(a[1:])[-30:] for a in ERRORS])
def test_an_error_is_one_or_two_lines(arguments: tuple[str, ...], said: str) -> None:
    ran = run(*arguments)
    assert ran.code == 2 and ran.out == ""
    assert said.lower() in ran.err.lower() and ran.err.count("\n") <= 2


def test_damaged_logs_are_answered_to_the_end() -> None:
    """Cut, shuffled, flipped: the command answers or says that there is no boot, and never fails."""
    draw = random.Random(41)
    logs = [path.read_bytes() for path in sorted(LOGS.glob("*.log"))]
    for number in range(60):
        lines = draw.choice(logs).split(b"\n")
        draw.shuffle(lines)
        raw = bytearray(b"\n".join(lines))
        for _ in range(3):
            raw[draw.randrange(len(raw))] ^= 1 << draw.randrange(8)
        ran = run(
            "log", "-", "-L", "8k", *(["--json"] if number % 2 else []), stdin=bytes(raw[: draw.randrange(len(raw))])
        )
        assert ran.code in (0, 1) and ran.err == "", (ran.err, raw)


def test_no_color_wins() -> None:
    ran = run("log", K3, NO_COLOR="1", FORCE_COLOR="1")
    assert ran.code == 0 and "\x1b" not in ran.out
