"""A hybridcalc.yaml that init writes is what check reads, whether it was given by flags or by answers."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from command_line import run

LINE = "vllm serve Qwen/Qwen3.6-27B -tp 2 --max-num-seqs 64 --served-model-name 'a: b'"
GIVEN: dict[str, tuple[str, ...]] = {
    "a model": ("--model", "kimi-k3", "--gpu", "8xb200", "-L", "9216", "-C", "20"),
    "of vLLM": ("--model", "Qwen/Qwen3.6-27B", "--engine", "vllm", "--gpu", "2xh100", "-L", "8k"),
    "one GPU": ("--model", "Qwen/Qwen3.6-27B", "--gpu", "h200", "-L", "8k"),
    "a line": ("--command", LINE, "--gpu", "2xh100", "-L", "8k", "-C", "16"),
}


def checked(folder: Path, *words: str) -> dict[str, Any]:
    """The document of check, of a file that is read whole and judged to the end."""
    ran = run("check", str(folder / "hybridcalc.yaml"), "--json", *words)
    assert ran.document["unreadable"] == []
    return ran.document


@pytest.mark.parametrize("words", GIVEN.values(), ids=GIVEN)
def test_what_flags_say_is_read_back(words: tuple[str, ...], tmp_path: Path) -> None:
    ran = run("init", str(tmp_path), *words)
    assert (ran.code, ran.err) == (0, "")
    assert ran.out.splitlines()[0] == f"wrote {tmp_path / 'hybridcalc.yaml'}"
    (deployment,) = checked(tmp_path)["deployments"]
    said = dict(zip(words[::2], words[1::2], strict=True))
    assert deployment["engine"] == ("vllm" if "vllm" in " ".join(words) else "sglang")
    assert deployment["gpu"] == (said["--gpu"].partition("x")[2] or said["--gpu"])
    ranks = {value["flag"]: value["value"] for value in deployment["resolved"]}
    assert ("x" in said["--gpu"]) == bool({"--tp-size", "--tensor-parallel-size"} & set(ranks))


def test_what_is_expected_is_held(tmp_path: Path) -> None:
    """More requests than the GPUs hold are an error of check, at the file's line."""
    run("init", str(tmp_path), "--model", "kimi-k3", "--gpu", "8xb200", "-L", "1M", "-C", "5000")
    rules = {finding["rule"] for finding in checked(tmp_path)["findings"]}
    assert "HC075" in rules or "HC074" in rules


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((), "init needs --model or --command, --gpu, -L"),
        (("--gpu", "h200"), "init needs --model or --command, -L"),
        (("--model", "kimi-k3", "-L", "8k"), "init needs --gpu"),
        (("--model", "kimi-k3", "--gpu", "h200"), "init needs -L"),
        (("--model", "kimi-k99", "--gpu", "h200", "-L", "8k"), "no model 'kimi-k99'"),
        (("--model", "kimi-k3", "--gpu", "h2000", "-L", "8k"), "h2000"),
        (("--command", "python train.py", "--gpu", "h200", "-L", "8k"), "starts no engine"),
        (("--command", LINE, "--model", "kimi-k3", "--gpu", "h200", "-L", "8k"), "--command says model"),
    ],
)
def test_what_is_missing_or_wrong_is_said_and_nothing_written(
    words: tuple[str, ...], message: str, tmp_path: Path
) -> None:
    ran = run("init", str(tmp_path), *words)
    assert ran.code == 2
    assert message in ran.err
    assert list(tmp_path.iterdir()) == []


def test_a_file_is_written_over_only_by_force(tmp_path: Path) -> None:
    words = ("init", str(tmp_path), "--model", "kimi-k3", "--gpu", "8xb200", "-L", "8k")
    assert run(*words).code == 0
    (tmp_path / "hybridcalc.yaml").write_text("mine", encoding="utf-8")
    assert "is there already" in run(*words).err
    assert (tmp_path / "hybridcalc.yaml").read_text(encoding="utf-8") == "mine"
    assert run(*words, "--force").code == 0
    assert len(checked(tmp_path)["deployments"]) == 1


def test_in_a_terminal_it_asks_until_the_answer_is_right(tmp_path: Path) -> None:
    """The answers are those of a person: one is misspelt first."""
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "hybridcalc", "init", str(tmp_path)]
    with subprocess.Popen(command, stdin=theirs, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as asked:
        os.write(ours, b"kimi-k99\nkimi-k3\n8xb200\n9216\n")
        _, err = asked.communicate(timeout=60)
    os.close(ours)
    os.close(theirs)
    assert asked.returncode == 0, err
    assert "no model 'kimi-k99'" in err.decode()
    (deployment,) = checked(tmp_path)["deployments"]
    assert (deployment["model"], deployment["gpu"], deployment["gpus"]) == ("kimi-k3", "b200", 8)


def test_a_link_to_no_file_is_written_through_by_force_alone(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder/hybridcalc.yaml").symlink_to(tmp_path / "elsewhere.yaml")
    words = ("init", str(tmp_path / "folder"), *GIVEN["a model"])
    ran = run(*words)
    assert (ran.code, ran.out) == (2, "")
    assert "is a link to a file that is not there" in ran.err
    assert not (tmp_path / "elsewhere.yaml").exists()
    assert run(*words, "--force").code == 0
    assert (tmp_path / "elsewhere.yaml").exists()
