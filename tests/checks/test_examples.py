"""examples/deployments: a good file of each kind passes, a bad one fails for its reason; hook and action are sound."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from hybridcalc.checks.run import check_paths
from hybridcalc.checks.settings import Settings

ROOT = Path(__file__).resolve().parent.parent.parent
DEPLOYMENTS = ROOT / "examples" / "deployments"
BAD = {
    "Dockerfile": ({("HC071", 4)}, 1),
    "compose.yaml": ({("HC002", 8)}, 1),
    "custom-resource.yaml": ({("HC002", 9)}, 1),
    "deployment.yaml": ({("HC002", 22)}, 1),
    "dynamo.yaml": ({("HC004", 27)}, 1),
    "hybridcalc.yaml": ({("HC010", 5), ("HC012", 5), ("HC075", 8), ("HC077", 8)}, 1),
    "kserve.yaml": ({("HC070", 6)}, 1),
    "launch.sh": (set(), 3),
    "leader-worker-set.yaml": ({("HC070", 24)}, 1),
    "ray-service.yaml": ({("HC056", 15), ("HC057", 15)}, 0),
    "sglang-config.yaml": ({("HC009", 2)}, 1),
    "sglang.service": ({("HC002", 4)}, 1),
    "vllm-config.yaml": ({("HC044", 4)}, 1),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_example_fails_for_its_reason_and_its_good_twin_passes(name: str) -> None:
    rules, code = BAD[name]
    bad = check_paths([str(DEPLOYMENTS / "bad" / name)], Settings(), {})
    assert {(item.finding.rule, item.line) for item in bad.findings} == rules
    assert bad.exit_code("error", allow_unresolved=False) == code
    good = check_paths([str(DEPLOYMENTS / "good" / name)], Settings(), {})
    assert (len(good.checked), good.findings, good.troubles) == (1, (), ())
    assert good.exit_code("note", allow_unresolved=False) == 0


def test_every_example_is_exercised() -> None:
    for side in ("good", "bad"):
        assert {path.name for path in (DEPLOYMENTS / side).iterdir()} == set(BAD)


def test_the_hook_takes_the_files_that_a_walk_takes() -> None:
    (hook,) = yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text(encoding="utf-8"))
    assert hook["entry"] == "hybridcalc check"
    pattern = re.compile(hook["files"])
    for path in (*BAD, "a/Dockerfile.cuda", "b.yml", "c.sbatch"):
        assert pattern.search(path), path
    assert not pattern.search("readme.md")


def test_the_action_passes_its_inputs_through_the_environment() -> None:
    """No input is pasted into the script: a pull request cannot inject commands by a path."""
    action = yaml.safe_load((ROOT / "action.yml").read_text(encoding="utf-8"))
    assert action["runs"]["using"] == "composite"
    for step in action["runs"]["steps"]:
        assert "${{" not in step.get("run", "")
    assert {"paths", "arguments", "sarif"} <= set(action["inputs"])


@pytest.mark.parametrize(("folder", "code"), [("good", 0), ("bad", 1)])
def test_the_action_annotates_and_summarises_a_repository(folder: str, code: int, tmp_path: Path) -> None:
    """Its last step as a runner starts it, in a checkout that holds deployments in a folder, with SARIF asked for."""
    action = yaml.safe_load((ROOT / "action.yml").read_text(encoding="utf-8"))
    program, checkout = tmp_path / "bin" / "hybridcalc", tmp_path / "repository"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m hybridcalc "$@"\n', encoding="utf-8")
    program.chmod(0o755)
    shutil.copytree(DEPLOYMENTS / folder, checkout / "deploy files")
    summary = tmp_path / "summary.md"
    surroundings = {
        "PATH": f"{program.parent}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
        "GITHUB_ACTIONS": "true",
        "GITHUB_STEP_SUMMARY": str(summary),
        "PATHS": "*",
        "ARGUMENTS": "--allow-unresolved",
        "SARIF": "report.sarif",
    }
    command = ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", action["runs"]["steps"][-1]["run"]]
    ran = subprocess.run(
        command, cwd=checkout, env=os.environ | surroundings, capture_output=True, text=True, check=False
    )
    assert (ran.returncode, ran.stderr) == (code, "")
    annotations = re.findall(r"^::error file=deploy files/([^,]+),line=(\d+)", ran.stdout, re.MULTILINE)
    assert ("deployment.yaml", "22") in annotations if code else annotations == []
    assert summary.read_text(encoding="utf-8").startswith("#")
    assert ("HC002" in summary.read_text(encoding="utf-8")) == bool(code)
    assert '"2.1.0"' in (checkout / "report.sarif").read_text(encoding="utf-8")
