"""What check and plan say where there is little to read: an empty folder, a model of no known size, a script."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from command_line import run


def test_a_folder_without_a_file_to_read_is_said(tmp_path: Path) -> None:
    ran = run("check", str(tmp_path))
    assert (ran.code, ran.out.splitlines()[1].strip()) == (
        0,
        "no file here is of a kind that may start an engine (--help names them)",
    )


def test_a_gpu_that_is_known_is_not_what_is_missing(tmp_path: Path) -> None:
    (tmp_path / "Modelfile").write_text("FROM qwen3.5:27b\n")
    said = " ".join(run("check", str(tmp_path / "Modelfile"), "--gpu", "h100").out.split())
    assert "not checked for want of the weights on a rank" in said
    assert "GPU known here" not in said


@pytest.mark.parametrize("shell", [[], ["bash"], ["/bin/sh", "-ex"]], ids=" ".join)
def test_a_script_is_planned_behind_a_shell_too(tmp_path: Path, shell: list[str]) -> None:
    script = tmp_path / "run.sh"
    script.write_text("MODEL=nvidia/Nemotron-H-8B-Base-8K\nvllm serve $MODEL --max-model-len 8192\n")
    ran = run("plan", "-L", "2000", "--gpu", "h100", "--", *shell, str(script))
    assert (ran.code, ran.err) == (0, "")
    assert "nvidia/Nemotron-H-8B-Base-8K" in ran.out


@pytest.mark.parametrize(
    ("line", "column"),
    [
        ("vllm serve Qwen/Qwen3.6-27B --max-num-seqs 16 --no-such-flag 3\n", 47),
        ("sglang serve kimi-k3 --tp 8 --no-such-flag=3\n", 29),
        ("vllm serve Qwen/Qwen3.6-27B --max-num-seqs 16 --port 3\n", 0),
        ("python3 -m dynamo.vllm --model Qwen/Qwen3.6-27B --no-such-flag 3\n", 0),
    ],
)
def test_a_flag_that_no_list_has_is_a_warning_at_its_place(tmp_path: Path, line: str, column: int) -> None:
    (tmp_path / "a.sh").write_text(line)
    ran = run("check", str(tmp_path / "a.sh"), "--select", "HC071", "--json")
    found = [(item["severity"], item["column"], item["message"]) for item in json.loads(ran.out)["findings"]]
    assert ran.code == 0
    assert [item[:2] for item in found] == [("warning", column)] * (column > 0)
    assert all("takes --no-such-flag: the server may not start" in item[2] for item in found)


def test_of_folders_the_worst_is_told_and_of_files_everything() -> None:
    """Errors before warnings, in the order of files; -v says how many more there are."""
    folder = run("check", "examples/deployments/bad")
    assert len(folder.out.splitlines()) <= 12 and "warning" not in folder.out.partition("13 deployments")[0]
    assert "-v: 14 more, the lines they are in" in folder.out and folder.code == 1
    whole = run("check", "examples/deployments/bad", "-v")
    assert whole.out.count(" HC") > folder.out.count(" HC") and "warning HC010" in whole.out
    named = run("check", "examples/deployments/bad/hybridcalc.yaml", "examples/deployments/bad/compose.yaml")
    assert len(named.out.splitlines()) > 12 and "-v:" not in named.out


def test_a_file_that_is_named_is_read_although_the_settings_exclude_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pyproject.toml").write_text('[tool.hybridcalc]\nexclude = ["old"]\n')
    (tmp_path / "old").mkdir()
    (tmp_path / "old/a.sh").write_text("vllm serve kimi-k3 --max-num-seqz 4\n")
    assert run("check", "old/a.sh", "--json").document["summary"]["deployments"] == 1
    assert run("check", ".", "--json").document["summary"]["deployments"] == 0
