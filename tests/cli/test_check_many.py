"""`check` on more files than one process takes: every file is read, and the answer is the same each time."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from itertools import cycle, islice, pairwise, product
from pathlib import Path
from typing import Any

import pytest
from command_line import process, run

from hybridcalc.checks import QUOTED_AROUND, FileResult
from hybridcalc.checks import run as checks
from hybridcalc.checks.settings import Settings

STARTS = ("sglang serve", "vllm serve", "python3 -m sglang.launch_server --model-path")
MODELS = ("moonshotai/Kimi-K3", "/data/models/kimi-k3", "./weights", "$MODEL", "ibm-granite/granite-4.0-h-small")
FLAGS = (
    "--max-running-requests 4 --max-mamba-cache-size 8", "--config missing.yaml", "--attention-bakend fa3",
    "--mamba-scheduler-strategy extra_buffer", "--page-size ${PAGE} --no-such-flag 1", "$MORE", "--tp 8 --pp-size $PP",
    "--mamba-cache-mode all --tensor-parallel-size 4 # hybridcalc: ignore=HC042,HC044",
)  # fmt: skip
FILES = 130


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of FILES files that is the working directory, checked by two processes."""
    launches = islice(cycle(product(MODELS, FLAGS, STARTS)), FILES)
    for number, (model, flags, start) in enumerate(launches):
        folder = tmp_path / f"part{number // 50}"
        folder.mkdir(exist_ok=True)
        (folder / f"{number:03}.sh").write_text(f"{start} {model} {flags}\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(checks, "_processors", lambda: 2)
    return tmp_path


@pytest.mark.parametrize("form", ["json", "sarif", "text"])
def test_the_answer_is_the_same_for_every_hash_seed(here: Path, form: str) -> None:
    shown = {process("check", ".", "--format", form, PYTHONHASHSEED=str(seed)).out for seed in (0, 1)}
    assert len(shown) == 1
    assert shown != {""}


def test_many_processes_find_what_one_finds(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    several = run("check", ".", "--json")
    monkeypatch.setattr(checks, "_processors", lambda: 1)
    alone = run("check", ".", "--json")
    assert (several.code, several.out) == (alone.code, alone.out)
    assert len(several.document["deployments"]) == FILES
    assert several.document["unreadable"] == []


def lost(monkeypatch: pytest.MonkeyPatch, name: str, happens: Callable[..., Any]) -> str:
    """What a check says of a file at which something happens to the process that reads it."""
    check_file = checks.check_file

    def failing(path: Any, settings: Any, variables: Any, **more: Any) -> Any:
        return happens() if path.endswith(name) else check_file(path, settings, variables, **more)

    monkeypatch.setattr(checks, "check_file", failing)
    ran = run("check", ".", "--json")
    assert (ran.code, len(ran.document["deployments"])) == (2, FILES - 1)
    (trouble,) = ran.document["unreadable"]
    assert trouble["file"].endswith(name)
    message: str = trouble["message"]
    return message


@pytest.mark.parametrize("name", ["000.sh", "077.sh", f"{FILES - 1}.sh"])
def test_a_process_that_is_ended_costs_its_file_alone(here: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """As the kernel does for want of memory: every file but the one that brought it about is in the report."""
    message = lost(monkeypatch, name, lambda: os.kill(os.getpid(), 9))
    assert message == "the process that read it was ended by SIGKILL, as a rule for want of memory"


def test_a_process_that_leaves_is_said_with_its_exit_code(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert lost(monkeypatch, "077.sh", lambda: os._exit(7)) == "the process that read it was ended by exit code 7"


class Placed(str):
    """A text that is no text alone: it is sent, and cannot be read."""

    def __new__(cls, text: str, place: int) -> Placed:
        return str.__new__(cls, text)


@pytest.mark.parametrize(("held", "said"), [(lambda: None, "Can't pickle"), (Placed("a", 1), "TypeError: ")])
def test_a_result_that_cannot_cross_costs_its_file_alone(
    here: Path, monkeypatch: pytest.MonkeyPatch, held: Any, said: str
) -> None:
    assert said in lost(monkeypatch, "077.sh", lambda: FileResult(held, (), ()))


def test_a_reader_that_leaves_ends_it_quietly(here: Path) -> None:
    """As `hybridcalc check . | head -1` does; a pipe that breaks between processes does not."""
    command = [sys.executable, "-m", "hybridcalc", "check", ".", "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as writer:
        assert writer.stdout is not None and writer.stderr is not None
        assert writer.stdout.readline() == b"{\n"
        writer.stdout.close()
        assert writer.wait() == -signal.SIGPIPE
        assert writer.stderr.read() == b""


def test_a_quoted_line_is_kept_as_far_as_it_is_shown(tmp_path: Path) -> None:
    """A List on one line, as machines write it: every finding would hold the whole of it."""
    launch = "sglang serve kimi-k3 --tp 8 --max-running-requests 4 --max-mamba-cache-size 8"
    pods = [f"{{kind: Pod, spec: {{containers: [{{command: [sh, -c, {launch}]}}]}}}}" for _ in range(200)]
    path = tmp_path / "list.yaml"
    path.write_text(f"# pods\n{{apiVersion: v1, kind: List, items: [{', '.join(pods)}]}}\n")
    report = checks.check_paths([str(path)], Settings(), {})
    assert len(report.findings) == 200
    assert max(len(line.text) for item in report.findings for line in item.quote) <= 2 * QUOTED_AROUND
    shown = run("check", str(path)).out.splitlines()
    pointed = [line[caret.index("^") :] for line, caret in pairwise(shown) if caret.strip() == "^"]
    assert (len(pointed), {text[:3] for text in pointed}) == (200, {"8]}"})
