"""``hybridcalc verify`` as it is typed: answers, refusals, plans, torchrun, Ctrl-C, and what is said without torch."""

from __future__ import annotations

import io
import json
import os
import runpy
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from command_line import run
from present import present
from verified import answer, complaint, text

from hybridcalc.crosscheck import backend
from hybridcalc.crosscheck import run as crosscheck_run
from hybridcalc.crosscheck.backend import torch
from hybridcalc.crosscheck.devices import Check
from hybridcalc.output.progress import byte_bars

K3 = ("kimi-k3", "--tp", "8", "--kv-cache-dtype", "fp8_e4m3", "--max-mamba-cache-size", "257", "--rest", "28.55GiB")


def process(*arguments: str, **options: Any) -> subprocess.CompletedProcess[str]:
    environment: dict[str, str] = os.environ | {"PYTHONWARNINGS": "ignore"} | options.pop("environment", {})
    ran: subprocess.CompletedProcess[str] = subprocess.run(
        arguments, capture_output=True, text=True, check=False, env=environment, **options
    )
    return ran


def test_kimi_k3_on_meta() -> None:
    """The published boot's 257 slots and one that pads, 56,171,520 B each."""
    document = answer(*K3, "--device", "meta")
    assert (document["schema"], document["ok"], document["device"]) == ("hybridcalc.verify/2", True, "meta")
    states = [row for row in document["rows"] if row["pool"] == "state"]
    assert sum(row["storage_bytes"] for row in states) == 258 * 56_171_520
    assert document["totals"]["figures"]["alloc_kv"] == sum(
        row["formula_bytes"] for row in document["rows"] if row["figure"] == "alloc_kv"
    )
    assert all(row["allocator_bytes"] is None for row in document["rows"])
    assert {"tensor", "shape", "dtype", "formula_bytes", "storage_bytes", "allocator_bytes", "ok"} <= set(states[0])
    assert "258 x 56,171,520 B; one pads" in text(*K3, "--device", "meta")


def test_a_plan_and_its_verification_agree() -> None:
    """The planner's own figures, from a launch line, come out of the tensors."""
    plan = run("plan", *K3, "--json").document["engine_figures"]
    document = answer(
        "--rest",
        "28.55GiB",
        "--device",
        "meta",
        "--",
        "python -m sglang.launch_server --model-path "
        "moonshotai/Kimi-K3 --tp 8 --kv-cache-dtype fp8_e4m3 --max-mamba-cache-size 257",
    )
    figures = document["totals"]["figures"]
    assert figures["conv_state"] == plan["alloc_mamba"]["conv_state"]
    assert figures["alloc_kv"] == plan["alloc_kv"]
    assert figures["alloc_req_to_token"] == plan["alloc_req_to_token"]


def test_on_cpu_every_page_is_there() -> None:
    document = answer("qwen3.5-0.8b", "--device", "cpu", "--memory", "120MiB")
    assert 0 < document["scale"] < 1
    assert document["totals"]["storage_bytes"] <= 120 * 2**20
    assert all(row["allocator_bytes"] == row["expected_allocator_bytes"] for row in document["rows"])
    assert document["memory_stats"]["resident_held_bytes"] > document["memory_stats"]["resident_before_bytes"]
    assert all(row["full_bytes"] == row["full_formula_bytes"] for row in document["rows"])


def test_every_preset_agrees_on_meta() -> None:
    document = answer("--all", "--device", "meta")
    assert len(document["models"]) > 50
    assert document["ok"] and all(model["ok"] for model in document["models"])
    assert "glm-5.3-flash" in {model["model"] for model in document["models"]}
    assert all(entry["reason"] for entry in document["skipped"])
    kinds = {entry["kind"] for entry in document["skipped"]}
    assert kinds == {"no state", "refused"}, "classes that SGLang lacks are no server"
    assert text("--all", "--device", "meta").startswith("every byte agrees")


def test_vllm_s_blocks_from_a_launch_line() -> None:
    """One buffer, and on it the states and pages of all 40 layers: two state tensors each, or keys and values."""
    line = "vllm serve Qwen/Qwen3.6-35B-A3B --max-model-len 131072"
    document = answer("--available", "40GiB", "--device", "meta", "--", line)
    (row,) = document["rows"]
    assert (document["engine"], row["shape"]) == ("vllm", [row["storage_bytes"]])
    assert len(row["views"]) == 30 * 2 + 10
    assert row["slope_bytes"] * document["sizes"]["blocks"] == row["storage_bytes"]
    said = " ".join(text("--available", "40GiB", "--device", "meta", "--", line).split())
    assert "views 70 pages of states and attention, inside the storage" in said


def test_a_vllm_plan_is_read_back(tmp_path: Path) -> None:
    line = ("--max-model-len", "32768", "--available", "20GiB", "--tensor-parallel-size", "2")
    plan = run("plan", "kimi-linear-48b-a3b", "--engine", "vllm", *line, "--json").document
    path = tmp_path / "plan.json"
    path.write_text(json.dumps(plan))
    document = answer("--plan", str(path), "--device", "meta")
    held = {figure["figure"]: figure for figure in document["plan"]}
    assert held["allocated_bytes"]["stated"] == plan["num_blocks"] * plan["bytes_per_block"]
    assert held["allocated_bytes"]["held_against"] == held["state_shapes"]["held_against"] == "tensors"
    plan["engine_figures"]["allocated_bytes"] += 1
    path.write_text(json.dumps(plan))
    assert not answer("--plan", str(path), "--device", "meta", code=1)["ok"]


def test_a_byte_bars_only_where_somebody_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a terminal's stderr the model and its bytes, both sizes together; none with --json, none in a pipe."""

    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setenv("COLUMNS", "80")
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    subject: Any = SimpleNamespace(model=SimpleNamespace(name="kimi-k3"))
    with byte_bars() as watch:
        present(present(watch)(subject, 3 * 2**20))(3 * 2**20)
    assert "kimi-k3" in terminal.getvalue() and "3.0/3.0 MiB" in terminal.getvalue()
    with byte_bars(quiet=True) as watch:
        assert watch is None
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    with byte_bars() as watch:
        assert watch is None


def test_presets_that_do_not_fit_are_passed_over_by_name() -> None:
    """One slot of Kimi-K3 on one rank is 449 MB; 48 MiB hold a few small models."""
    document = answer("--all", "--device", "cpu", "--memory", "48MiB", code=2)
    reasons = {entry["model"]: entry["reason"] for entry in document["skipped"]}
    assert "even one slot and one page, and two of each to draw the line, need" in reasons["kimi-k3"]
    assert document["models"] and document["ok"]
    short = sum(entry["kind"] == "memory" for entry in document["skipped"])
    said = " ".join(text("--all", "--device", "cpu", "--memory", "48MiB", code=2).split("  model")[0].split())
    assert said.startswith("every byte agrees") and f"{short} for too little memory" in said


def test_flags_that_every_preset_refuses_verify_nothing() -> None:
    """Not one server is left: that is no agreement."""
    flags = ("--all", "--device", "meta", "--engine", "vllm", "--pipeline-parallel-size", "4096")
    document = answer(*flags, code=2)
    assert (document["models"], document["ok"]) == ([], False)
    assert text(*flags, code=2).startswith("nothing is verified")


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        ((), 2, "verify needs a MODEL"),
        (("kimi-k3", "--device", "tpu"), 2, "--device 'tpu' is not known"),
        (("kimi-k3", "--device", "cuda"), 2, "finds no GPU"),
        (("kimi-k3", "--scale", "half"), 2, "--scale 'half' is not a scale"),
        (("kimi-k3", "--all"), 2, "--all verifies every preset"),
        (("kimi-k3", "--devise", "meta"), 2, "--devise is not an option of verify"),
        (("kimi-k3", "--tp", "5"), 1, "--tp 5 does not divide"),
        (("llama-3.1-8b",), 2, "no recurrent layer"),
        (
            ("kimi-k3", "--device", "cpu", "--memory", "1MiB", "--scale", "full"),
            2,
            "and two of each to draw the line, need",
        ),
        (("qwen3.5-0.8b", "--device", "cpu", "--memory", "200MiB", "--scale", "full"), 2, "MiB may be taken"),
        (("kimi-k3", "--engine-package", "--device", "meta"), 2, "no sglang is installed beside hybridcalc"),
        (("kimi-k3", "--platform", "abacus"), 2, "--platform 'abacus' is not known"),
    ],
)
def test_what_cannot_be_verified_gets_one_or_two_lines(arguments: tuple[str, ...], code: int, said: str) -> None:
    printed = complaint(*arguments, code=code)
    assert said in printed
    assert len(printed.splitlines()) <= 2


@pytest.mark.parametrize(
    "words",
    [
        ("--available", "40GiB", "--", "vllm", "serve", "Qwen/Qwen3.6-35B-A3B", "--no-enable-chunked-prefill"),
        ("--available", "40GiB", "--", "vllm", "serve", "Qwen/Qwen3.6-35B-A3B", "--block-size", "7"),
        ("--rest", "1MiB", "--", "python -m sglang.launch_server --model-path moonshotai/Kimi-K3 --tp 8"),
        ("--rest", "28GiB", "--", "sglang", "serve", "moonshotai/Kimi-K3", "--tp", "5"),
    ],
    ids=["chunked prefill", "block size", "too little memory", "ranks"],
)
def test_what_plan_refuses_is_not_verified(words: tuple[str, ...]) -> None:
    """In the words of the plan."""
    refusal = run("plan", "--json", *words).document["refusal"]
    assert refusal["reason"][1:] in complaint("--device", "meta", *words, code=1)


def test_the_steps_lead_to_full_scale() -> None:
    """257 slots of 54,263,808 B and one that pads."""
    assert "= 54,263,808 x 257 + 54,263,808" in text(*K3, "--device", "meta", "--explain")
    assert "--all verifies many" in complaint("--all", "--explain")


def test_a_narrow_page_breaks_a_shape_between_its_dimensions() -> None:
    said = text("-v", "kimi-k3", "--tp", "8", "--rest", "1000000TiB", "--device", "meta")
    assert "9271981555 x 3 x" in said


def test_allocator_settings_are_said(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the variable holds, what torch refuses of it, and that another allocator is not predicted."""
    monkeypatch.setenv("PYTORCH_ALLOC_CONF", "max_split_size_mb:1,foo:1")
    said = " ".join(text("kimi-k3", "--device", "meta", "-v").split())
    assert "PYTORCH_ALLOC_CONF is max_split_size_mb:1,foo:1" in said
    assert "torch refuses it on a GPU: max_split_size_mb:1 is not 20 or more" in said
    assert "foo:1 is not known here" in said
    monkeypatch.setenv("PYTORCH_ALLOC_CONF", "backend:cudaMallocAsync")
    assert "are the driver's: none are predicted" in " ".join(text("kimi-k3", "--device", "meta", "-v").split())


def test_a_check_that_does_not_hold_is_exit_code_1(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(crosscheck_run, "behaviour_checks", lambda model: [Check("ring replay", 1e-12, 0.5, "<=")])
    said = text("kimi-k3", "--device", "meta", code=1)
    assert said.startswith("the tensors agree, a check does not")
    assert "differs: ring replay: 0.5, bound 1e-12" in said


def test_without_torch_one_line_names_the_extra(tmp_path: Path) -> None:
    """A torch that does not import stands for none: two lines, exit code 2, and the other commands still answer."""
    (tmp_path / "torch.py").write_text("raise ImportError('No module named torch')")
    path = {"PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])}
    ran = process(sys.executable, "-m", "hybridcalc", "verify", "kimi-k3", environment=path)
    assert (ran.returncode, ran.stdout) == (2, "")
    assert ran.stderr.splitlines()[1].strip() == "pip install 'hybridcalc[torch]'"
    assert process(sys.executable, "-m", "hybridcalc", "models", environment=path).returncode == 0


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("raise OSError('libcudart.so.13: cannot open shared object file')", "OSError: libcudart.so.13: cannot open"),
        ("raise RuntimeError('built for another numpy')", "RuntimeError: built for another numpy"),
        ("", "does not import"),
    ],
    ids=["missing library", "refuses", "not torch at all"],
)
def test_a_torch_that_is_broken_stands_for_none(
    source: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "torch.py").write_text(source)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "torch")
    with pytest.raises(Exception, match=r"^verify allocates with torch, which does not import: ") as refusal:
        runpy.run_path(backend.__file__)
    assert said in str(refusal.value) and "pip install" in getattr(refusal.value, "fix", "")


@pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU would be verified, for minutes")
def test_the_script_for_gpus_says_that_there_is_none() -> None:
    script = Path(__file__).resolve().parent.parent.parent / "benchmarks" / "gpu_verify.sh"
    ran = process("bash", str(script), environment={"PYTHON": sys.executable})
    assert (ran.returncode, ran.stdout) == (0, "skipped: torch finds no GPU here\n")


def test_help_needs_no_torch() -> None:
    ran = process(sys.executable, "-X", "importtime", "-m", "hybridcalc", "verify", "--help")
    assert ran.returncode == 0
    assert " torch\n" not in ran.stderr
