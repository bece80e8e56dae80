"""``hybridcalc check --fix``: made twice it is what it is made once, and nothing that it wrote stops the launch."""

from __future__ import annotations

import json
import shutil
from itertools import product
from pathlib import Path

import pytest
from command_line import run

ROOT = Path(__file__).parent.parent.parent
FOLDERS = (ROOT / "tests" / "data" / "manifests", ROOT / "examples")
QUESTIONS = (("-L", "8k", "--gpu", "h100"), ("-L", "100k", "--gpu", "h200", "-C", "40"), ())


def texts(folder: Path) -> dict[str, str]:
    return {
        str(path.relative_to(folder)): path.read_text(errors="surrogateescape")
        for path in folder.rglob("*")
        if path.is_file()
    }


def errors(folder: Path, *options: str) -> set[tuple[str, str]]:
    document = json.loads(run("check", str(folder), *options, "--json").out)
    found = [item for item in document["findings"] if item["severity"] == "error"]
    return {(item["file"], item["rule"]) for item in found}


def twice(folder: Path, *options: str) -> bool:
    """Fix a folder twice; whether the first time changed something."""
    before, wrong = texts(folder), errors(folder, *options)
    run("check", str(folder), *options, "--fix")
    once = texts(folder)
    ran = run("check", str(folder), *options, "--fix")
    assert ran.err.splitlines()[-1] == "0 fixes made"
    assert texts(folder) == once
    assert errors(folder, *options) <= wrong
    return once != before


@pytest.mark.parametrize("options", QUESTIONS, ids=" ".join)
def test_fixes_made_twice_are_fixes_made_once(tmp_path: Path, options: tuple[str, ...]) -> None:
    for at, folder in enumerate(FOLDERS):
        shutil.copytree(folder, tmp_path / str(at))
    assert twice(tmp_path, *options)


@pytest.mark.parametrize("gpu", ["h100", "b200"])
def test_settings_of_any_size_are_mended_once(tmp_path: Path, gpu: str) -> None:
    sglang = "sglang serve {} --tp 8 --max-mamba-cache-size {} --max-running-requests {}\n"
    for at, given in enumerate(
        product(("kimi-k3", "Qwen/Qwen3.5-397B-A17B-FP8"), (1, 40, 255, 2501), (1, 16, 64, 500))
    ):
        (tmp_path / f"s{at}.sh").write_text(sglang.format(*given))
    for at, seqs in enumerate((1, 28, 281, 394, 900)):
        (tmp_path / f"v{at}.sh").write_text(f"vllm serve Qwen/Qwen3.6-27B --max-num-seqs {seqs}\n")
    assert twice(tmp_path, "-L", "8k", "--gpu", gpu)


POD = "sglang serve Qwen/Qwen3.5-397B-A17B-FP8 --tp 8 --max-mamba-cache-size 40 --max-running-requests 64\n"
CASES = {
    "two rules want two values": (
        POD,
        "h100",
        ["write 321", "mend HC002 first"],
        "the value that it writes is found again",
    ),
    "it does not fit in any case": (
        "sglang serve kimi-k3 --tp 8 --max-running-requests 500 --max-mamba-cache-size 100\n",
        "b200",
        ["HC001"],
        "HC001 stops the launch then",
    ),
    "it is refused further on": (
        "docker run vllm/vllm-openai:v0.24.0 --model Qwen/Qwen3.6-27B --max-num-seqs 900\n",
        "h100",
        ["write --max-num-seqs 28"],
        "HC044 write --max-num-seqs 28: HC041 is found then",
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_a_fix_that_does_not_hold_is_said_and_not_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    text, gpu, said, unmade = CASES[name]
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "a.sh"
    path.write_text(text)
    ran = run("check", "a.sh", "-L", "8k", "--gpu", gpu, "--fix")
    assert ran.code == 1
    assert ran.err.splitlines()[-1] == "0 fixes made"
    assert unmade in ran.err
    assert path.read_text() == text
    assert all(part in " ".join(ran.out.split()) for part in said)


def test_a_fix_of_several_values_is_said_and_not_made(tmp_path: Path) -> None:
    path = tmp_path / "a.sh"
    path.write_text(
        "docker run vllm/vllm-openai:v0.24.0 --model Qwen/Qwen3.5-2B --max-num-seqs 64 --max-num-batched-tokens 512 "
        "-tp 2 --kv-cache-dtype fp8_e4m3\n"
    )
    ran = run("check", str(path), "--gpu", "h100", "-L", "32k", "-C", "600", "--fix")
    said = "HC063 write --max-num-seqs 600 --max-num-batched-tokens 600: it is not one value"
    assert ran.err.splitlines() == [f"not made: {path}:1 {said}", "0 fixes made"]


def test_a_diff_of_an_absolute_path_has_one_slash(tmp_path: Path) -> None:
    path = tmp_path / "a.sh"
    path.write_text("sglang serve kimi-k3 --tp 8 --max-running-requests 4 --max-mamba-cache-size 8\n")
    ran = run("check", str(path), "--diff")
    assert ran.out.splitlines()[:2] == [f"--- a{path}", f"+++ b{path}"]
