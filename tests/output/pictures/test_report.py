"""`hybridcalc report` on what people have: boot logs of every engine, presets, launch lines; and pictures of a boot."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from command_line import run
from present import present

ROOT = Path(__file__).resolve().parents[3]
pytestmark = pytest.mark.needs("vl_convert")

LOGS = sorted((ROOT / "tests" / "data" / "bootlogs").glob("*.log"))
LOG = str(ROOT / "examples" / "kimi-k3-boot.log")


def _report(tmp_path: Path, *arguments: str, code: int = 0) -> str:
    target = tmp_path / "report.html"
    ran = run("report", "-o", str(target), "--force", *arguments)
    assert (ran.code, ran.err) == (code, ""), ran.err
    text = target.read_text(encoding="utf-8")
    assert len(text) < 2**20
    return text


@pytest.mark.parametrize("log", LOGS, ids=[log.name for log in LOGS])
def test_every_boot_log_has_a_report(log: Path, tmp_path: Path) -> None:
    text = _report(tmp_path, str(log))
    assert text.count("<h1>") == 1 and re.search(r"<h1>(SGLang|vLLM|llama\.cpp)", text)


def test_a_boots_report_shows_the_pools_before_and_after(tmp_path: Path) -> None:
    """The published boot: 51 requests as booted; what other flags come to; settings start from the boot's own."""
    text = _report(tmp_path, LOG, "-L", "9216")
    assert "51 at once as booted" in text
    assert "Memory as printed" in text
    assert re.search(r'name="length" value="9216"', text)
    assert "256 x 56,171,520" in text or "258 x 56,171,520 B" in text


def test_figures_of_a_log(tmp_path: Path) -> None:
    svg = tmp_path / "x.svg"
    assert run("log", LOG, "-L", "9216", "--save", str(svg)).code == 0
    assert "as booted" in svg.read_text(encoding="utf-8")
    printed = run("log", LOG, "--figure", "printed")
    assert printed.code == 0 and "S state pool 13.50 GiB" in printed.out


@pytest.mark.parametrize("name", ["kimi-k3", "llama-3-8b", "mamba-2.8b", "glm-5.3-flash", "plamo-2-1b", "inkling"])
def test_every_kind_of_preset_has_a_report(name: str, tmp_path: Path) -> None:
    """With a state and KV, without a state, without KV, with pages it insists on, with windows alone."""
    assert name in _report(tmp_path, name)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("lfm2-8b-a1b", "--rest", "28GiB"), "of 8,192 tokens"),
        (("lfm2-8b-a1b", "--rest", "28GiB", "-L", "4k"), "of 4,096 tokens"),
        (("lfm2-8b-a1b", "--rest", "28GiB", "--lengths", "2k:3,4k:3"), "of 3,072 tokens on average"),
        (("lfm2-8b-a1b", "--rest", "28GiB", "--workload", "batch"), "of 8,192 tokens"),
        (("--engine", "vllm", "--available", "40GiB", "--max-model-len", "4096", "qwen3.6-35b-a3b"), "4,096 tokens"),
    ],
)
def test_requests_of_a_plan_hold_8k_tokens_unless_a_length_is_given(
    arguments: tuple[str, ...], said: str, tmp_path: Path
) -> None:
    """Verdict, pictures and settings speak of the same length."""
    target = tmp_path / "x.html"
    if arguments[0] == "--engine":
        arguments = (arguments[-1], *arguments[:-1])
    assert run("report", *arguments, "-o", str(target)).code == 0
    text = target.read_text(encoding="utf-8")
    assert said in present(re.search(r"<h1>(.*?)</h1>", text))[1]
    length = present(re.search(r"([\d,]+) tokens", said))[1].replace(",", "")
    assert f'name="length" value="{length}"' in text


def test_a_launch_line_has_a_report(tmp_path: Path) -> None:
    line = ("python", "-m", "sglang.launch_server", "--model-path", "moonshotai/Kimi-K3", "--tp", "8")
    assert "kimi-k3 on SGLang" in _report(tmp_path, "--rest", "28GiB", "-L", "9216", "--", *line)
    text = _report(tmp_path, "vllm serve Qwen/Qwen3.6-35B-A3B --max-model-len 131072", "--available", "40GiB")
    assert "qwen3.6-35b-a3b on vLLM" in text


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (("--compare", "--kv-cache-dtype fp8_e4m3"), ("tokens either way", "state slots K", "Pools side by side")),
        (("--sweep", "mamba-full-memory-ratio=0.5:2.5:0.5"), ("tokens at most", "Combinations", "5 combinations")),
    ],
)
def test_comparisons_and_sweeps_have_pages(flags: tuple[str, str], said: tuple[str, str, str], tmp_path: Path) -> None:
    target = tmp_path / "x.html"
    ran = run("plan", "kimi-k3", "--tp", "8", "--rest", "28GiB", "-L", "9216", *flags, "--save", str(target))
    assert (ran.code, ran.err) == (0, "")
    text = target.read_text(encoding="utf-8")
    assert [words for words in said if words not in text] == []


def test_no_boot_and_no_target_are_said(tmp_path: Path) -> None:
    empty = tmp_path / "empty.log"
    empty.write_text("nothing here\n", encoding="utf-8")
    assert "no boot in it" in _report(tmp_path, str(empty), code=1)
    ran = run("report", "no-such-model", "-o", str(tmp_path / "x.html"))
    assert ran.code == 2 and ran.err.startswith("error: no model 'no-such-model'")
    assert not (tmp_path / "x.html").exists()
