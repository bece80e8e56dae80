"""``hybridcalc verify`` as it is typed: answers, refusals, plans, torchrun, Ctrl-C, and what is said without torch."""

from __future__ import annotations

import io
import json
import os
import pickle
import runpy
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from command_line import Ran, run
from hypothesis import given
from hypothesis import strategies as st
from present import present

from hybridcalc import saved_plan
from hybridcalc.cli import verify
from hybridcalc.cli.app import execute
from hybridcalc.crosscheck import backend
from hybridcalc.crosscheck import run as crosscheck_run
from hybridcalc.crosscheck.backend import torch
from hybridcalc.crosscheck.devices import Check
from hybridcalc.crosscheck.ranks import Process
from hybridcalc.output.progress import byte_bars

K3 = ("kimi-k3", "--tp", "8", "--kv-cache-dtype", "fp8_e4m3", "--max-mamba-cache-size", "257", "--rest", "28.55GiB")


def answer(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0) -> dict[str, Any]:
    assert execute(["verify", "--json", *arguments]) == code
    document: dict[str, Any] = json.loads(capsys.readouterr().out)
    return document


def text(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0) -> str:
    assert execute(["verify", *arguments]) == code
    return capsys.readouterr().out


def complaint(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 2) -> str:
    assert execute(["verify", *arguments]) == code
    printed = capsys.readouterr()
    assert printed.out == ""
    return printed.err


def process(*arguments: str, **options: Any) -> subprocess.CompletedProcess[str]:
    environment: dict[str, str] = os.environ | {"PYTHONWARNINGS": "ignore"} | options.pop("environment", {})
    ran: subprocess.CompletedProcess[str] = subprocess.run(
        arguments, capture_output=True, text=True, check=False, env=environment, **options
    )
    return ran


def test_kimi_k3_on_meta(capsys: pytest.CaptureFixture[str]) -> None:
    """The published boot's 257 slots and one that pads, 56,171,520 B each."""
    document = answer(capsys, *K3, "--device", "meta")
    assert (document["schema"], document["ok"], document["device"]) == ("hybridcalc.verify/2", True, "meta")
    states = [row for row in document["rows"] if row["pool"] == "state"]
    assert sum(row["storage_bytes"] for row in states) == 258 * 56_171_520
    assert document["totals"]["figures"]["alloc_kv"] == sum(
        row["formula_bytes"] for row in document["rows"] if row["figure"] == "alloc_kv"
    )
    assert all(row["allocator_bytes"] is None for row in document["rows"])
    assert {"tensor", "shape", "dtype", "formula_bytes", "storage_bytes", "allocator_bytes", "ok"} <= set(states[0])
    assert "258 x 56,171,520 B; one pads" in text(capsys, *K3, "--device", "meta")


def test_a_plan_and_its_verification_agree(capsys: pytest.CaptureFixture[str]) -> None:
    """The planner's own figures, from a launch line, come out of the tensors."""
    assert execute(["plan", *K3, "--json"]) == 0
    plan = json.loads(capsys.readouterr().out)["engine_figures"]
    document = answer(
        capsys,
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


def test_on_cpu_every_page_is_there(capsys: pytest.CaptureFixture[str]) -> None:
    document = answer(capsys, "qwen3.5-0.8b", "--device", "cpu", "--memory", "120MiB")
    assert 0 < document["scale"] < 1
    assert document["totals"]["storage_bytes"] <= 120 * 2**20
    assert all(row["allocator_bytes"] == row["expected_allocator_bytes"] for row in document["rows"])
    assert document["memory_stats"]["resident_held_bytes"] > document["memory_stats"]["resident_before_bytes"]
    assert all(row["full_bytes"] == row["full_formula_bytes"] for row in document["rows"])


def test_every_preset_agrees_on_meta(capsys: pytest.CaptureFixture[str]) -> None:
    document = answer(capsys, "--all", "--device", "meta")
    assert len(document["models"]) > 60
    assert document["ok"] and all(model["ok"] for model in document["models"])
    assert "glm-5.3-flash" in {model["model"] for model in document["models"]}
    assert all(entry["reason"] for entry in document["skipped"])
    assert {entry["kind"] for entry in document["skipped"]} == {"no state"}
    assert text(capsys, "--all", "--device", "meta").startswith("every byte agrees")


def test_vllm_s_blocks_from_a_launch_line(capsys: pytest.CaptureFixture[str]) -> None:
    """One buffer, and on it the states and pages of all 40 layers: two state tensors each, or keys and values."""
    line = "vllm serve Qwen/Qwen3.6-35B-A3B --max-model-len 131072"
    document = answer(capsys, "--available", "40GiB", "--device", "meta", "--", line)
    (row,) = document["rows"]
    assert (document["engine"], row["shape"]) == ("vllm", [row["storage_bytes"]])
    assert len(row["views"]) == 30 * 2 + 10
    assert row["slope_bytes"] * document["sizes"]["blocks"] == row["storage_bytes"]
    said = " ".join(text(capsys, "--available", "40GiB", "--device", "meta", "--", line).split())
    assert "views 70 states and attention pages of every layer" in said


def test_a_vllm_plan_is_read_back(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    line = ("--max-model-len", "32768", "--available", "20GiB", "--tensor-parallel-size", "2")
    assert execute(["plan", "kimi-linear-48b-a3b", "--engine", "vllm", *line, "--json"]) == 0
    plan = json.loads(capsys.readouterr().out)
    path = tmp_path / "plan.json"
    path.write_text(json.dumps(plan))
    document = answer(capsys, "--plan", str(path), "--device", "meta")
    held = {figure["figure"]: figure for figure in document["plan"]}
    assert held["allocated_bytes"]["stated"] == plan["num_blocks"] * plan["bytes_per_block"]
    assert held["allocated_bytes"]["held_against"] == held["state_shapes"]["held_against"] == "tensors"
    plan["engine_figures"]["allocated_bytes"] += 1
    path.write_text(json.dumps(plan))
    assert not answer(capsys, "--plan", str(path), "--device", "meta", code=1)["ok"]


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


def test_presets_that_do_not_fit_are_passed_over_by_name(capsys: pytest.CaptureFixture[str]) -> None:
    """One slot of Kimi-K3 on one rank is 449 MB; 48 MiB hold a few small models."""
    document = answer(capsys, "--all", "--device", "cpu", "--memory", "48MiB", code=2)
    reasons = {entry["model"]: entry["reason"] for entry in document["skipped"]}
    assert "even one slot and one page, and two of each to draw the line, need" in reasons["kimi-k3"]
    assert document["models"] and document["ok"]
    short = sum(entry["kind"] == "memory" for entry in document["skipped"])
    said = " ".join(text(capsys, "--all", "--device", "cpu", "--memory", "48MiB", code=2).split("  model")[0].split())
    assert said.startswith("every byte agrees") and f"{short} for too little memory" in said


def test_flags_that_every_preset_refuses_verify_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    """Not one server is left: that is no agreement."""
    flags = ("--all", "--device", "meta", "--engine", "vllm", "--pipeline-parallel-size", "4096")
    document = answer(capsys, *flags, code=2)
    assert (document["models"], document["ok"]) == ([], False)
    assert text(capsys, *flags, code=2).startswith("nothing is verified")


def leaves(part: Any, place: tuple[int | str, ...] = ()) -> Iterator[tuple[int | str, ...]]:
    """Places of all whole numbers in a document."""
    if isinstance(part, int) and not isinstance(part, bool):
        yield place
    elif isinstance(part, dict | list):
        for step, value in part.items() if isinstance(part, dict) else enumerate(part):
            yield from leaves(value, (*place, step))


class TestPlanFiles:
    @pytest.fixture
    def plan(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Any:
        flags = ("--speculative-algorithm", "EAGLE", "--speculative-num-draft-tokens", "4")
        assert execute(["plan", "qwen3.6-27b", "--tp", "2", "--rest", "20GiB", *flags, "--json"]) == 0
        document = json.loads(capsys.readouterr().out)

        def written(**changed: Any) -> str:
            path = tmp_path / "plan.json"
            own = {name: value for name, value in changed.items() if name in document["engine_figures"]}
            others = {name: value for name, value in changed.items() if name in document or name not in own}
            path.write_text(json.dumps({**document, "engine_figures": document["engine_figures"] | own, **others}))
            return str(path)

        write: Any = written
        write.document = document
        return write

    def test_the_figures_it_states_are_held_against_the_tensors(
        self, plan: Any, capsys: pytest.CaptureFixture[str]
    ) -> None:
        document = answer(capsys, "--plan", plan(), "--device", "meta")
        assert {figure["figure"] for figure in document["plan"]} >= {
            "alloc_mamba.conv_state",
            "alloc_mamba.intermediate_ssm",
            "alloc_kv",
            "bytes_per_slot",
            "uncharged_bytes",
            "budget.draft states.charged_bytes",
        }
        assert document["ok"] and all(figure["ok"] for figure in document["plan"])

    def test_a_figure_that_is_off_is_named_with_its_difference(
        self, plan: Any, capsys: pytest.CaptureFixture[str]
    ) -> None:
        states = plan.document["engine_figures"]["alloc_mamba"]
        wrong = states | {"ssm_state": states["ssm_state"] - 512}
        said = text(capsys, "--plan", plan(alloc_mamba=wrong), "--device", "meta", code=1)
        assert said.startswith("the tensors agree, a check does not")
        said = " ".join(said.split())
        assert f"alloc_mamba.ssm_state: the plan states {wrong['ssm_state']:,}, the tensors give" in said
        assert ", 512 more" in said

    def test_a_plan_is_read_from_a_pipe(self, plan: Any) -> None:
        ran = run("verify", "--plan", "-", "--device", "meta", stdin=json.dumps(plan.document).encode())
        assert (ran.code, ran.out.splitlines()[0]) == (0, "every byte agrees")

    @pytest.mark.parametrize(
        ("changed", "said"),
        [
            ({"schema": "hybridcalc.ratio/1"}, "is no answer of plan --json"),
            ({"starts": False}, "does not start"),
            ({"arguments": None}, "states no arguments"),
            ({"arguments": {"tp": 2}}, "arguments.tp is no argument of SGLang"),
            ({"arguments": {"tp_size": "two"}}, "arguments.tp_size 'two' is not a whole number from 1 to 4,096"),
            ({"arguments": {"tp_size": 0}}, "arguments.tp_size 0 is not a whole number"),
            ({"arguments": {"tp_size": 10**400}}, "arguments.tp_size a number of hundreds of digits is not"),
            ({"arguments": {"mamba_radix_cache_strategy": "x"}}, "mamba_radix_cache_strategy 'x' is not one of"),
            ({"engine": "trt"}, "engine 'trt' is not sglang or vllm"),
            ({"schema": "hybridcalc.plan/1"}, "has schema 'hybridcalc.plan/1'; hybridcalc.plan/2 is read here"),
            ({"compare": []}, "answers plan --compare: that is many plans"),
            ({"max_mamba_cache_size": -1}, "max_mamba_cache_size -1 is no count"),
            ({"max_total_num_tokens": True}, "max_total_num_tokens True is no count"),
            ({"max_total_num_tokens": 10**18}, "max_total_num_tokens 1000000000000000000 is no count"),
            ({"alloc_mamba": 5}, "alloc_mamba.pool_size is absent"),
            ({"bytes_per_slot": None}, "bytes_per_slot None is not a whole number"),
            ({"uncharged_bytes": "9"}, "uncharged_bytes '9' is not a whole number"),
            ({"budget": []}, "budget.state pool.charged_bytes is absent"),
            ({"memory": {"rest_gib": "20"}}, "memory.rest_gib '20' is no memory"),
            ({"engine_figures": None}, "engine_figures is absent"),
            ({"model": "no-such-model"}, "no-such-model"),
        ],
    )
    def test_what_is_no_plan(
        self, plan: Any, changed: dict[str, Any], said: str, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert said in complaint(capsys, "--plan", plan(**changed), "--device", "meta")

    def test_a_plan_brings_its_own_flags(self, plan: Any, capsys: pytest.CaptureFixture[str]) -> None:
        assert "brings its own flags" in complaint(capsys, "--plan", plan(), "--tp", "4")
        assert "leave out the launch line" in complaint(capsys, "--plan", plan(), "--rest", "4GiB")
        assert "exclude each other" in complaint(capsys, "--plan", plan(), "--all")
        assert "brings its own model, not kimi-k3" in complaint(capsys, "kimi-k3", "--plan", plan())
        assert "environment and version" in complaint(capsys, "--plan", plan(), "--engine-version", "0.5.16")

    def test_every_figure_it_states_is_held(self, plan: Any, capsys: pytest.CaptureFixture[str]) -> None:
        """Each number of the plan, one more than it was: a difference, named in the answer."""
        unheld = {"schema", "steps", "workload", "requests", "requests_per_worker", "ratio", "idle_percent", "memory"}
        unheld |= {"findings", "suggestions", "notes", "log_lines", "arguments", "launch", "engine_figures"}
        of_the_workload = {"state_requests", "kv_requests"}
        figures = plan.document["engine_figures"] | {k: v for k, v in plan.document.items() if k not in unheld}
        for name, value in figures.items():
            for place in leaves(value) if name not in of_the_workload else ():
                changed = json.loads(json.dumps(figures))
                *path, last = name, *place
                part = changed
                for step in path:
                    part = part[step]
                part[last] += 1
                assert execute(["verify", "--plan", plan(**changed), "--device", "meta", "--json"]) == 1, (name, place)
                held = json.loads(capsys.readouterr().out)["plan"]
                assert not all(figure["ok"] for figure in held), (name, place)

    def test_a_plan_that_is_cut_short_or_endless_says_where(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        path = tmp_path / "plan.json"
        monkeypatch.chdir(tmp_path)
        path.write_text('{"schema":\n')
        assert "plan.json:2:1 is not JSON from there on" in complaint(capsys, "--plan", path.name)
        path.write_text(" ")
        assert "plan.json is empty" in complaint(capsys, "--plan", path.name)
        path.write_bytes(b"[" * 100_000)
        assert "nests too deep" in complaint(capsys, "--plan", path.name)
        monkeypatch.setattr(saved_plan, "LARGEST_PLAN_BYTES", 2**20)
        path.write_bytes(b" " * (2**20 + 1))
        assert "has more than 1 MiB" in complaint(capsys, "--plan", path.name)
        assert "cannot be read: no such file" in complaint(capsys, "--plan", "none.json")

    def test_a_pipe_whose_plan_failed_is_empty(self) -> None:
        ran = run("verify", "--plan", "-")
        assert (ran.code, ran.err.splitlines()[0]) == (2, "error: --plan - is empty")

    @given(st.binary(max_size=60))
    def test_any_bytes_get_one_line(self, data: bytes) -> None:
        path = Path(tempfile.gettempdir()) / f"hybridcalc-{os.getpid()}.json"
        path.write_bytes(data)
        try:
            assert execute(["verify", "--plan", str(path)]) == 2
        finally:
            path.unlink()


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
def test_what_cannot_be_verified_gets_one_or_two_lines(
    arguments: tuple[str, ...], code: int, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    printed = complaint(capsys, *arguments, code=code)
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
def test_what_plan_refuses_is_not_verified(words: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    """In the words of the plan."""
    assert execute(["plan", "--json", *words]) == 1
    refusal = json.loads(capsys.readouterr().out)["refusal"]
    assert refusal["reason"][1:] in complaint(capsys, "--device", "meta", *words, code=1)


def test_the_steps_lead_to_full_scale(capsys: pytest.CaptureFixture[str]) -> None:
    """257 slots of 54,263,808 B and one that pads."""
    assert "= 54,263,808 x 257 + 54,263,808" in text(capsys, *K3, "--device", "meta", "--explain")
    assert "--all verifies many" in complaint(capsys, "--all", "--explain")


def test_a_narrow_page_breaks_a_shape_between_its_dimensions(capsys: pytest.CaptureFixture[str]) -> None:
    said = text(capsys, "kimi-k3", "--tp", "8", "--rest", "1000000TiB", "--device", "meta")
    assert "9271981555 x 3 x" in said


def test_allocator_settings_are_said(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """What the variable holds, what torch refuses of it, and that another allocator is not predicted."""
    monkeypatch.setenv("PYTORCH_ALLOC_CONF", "max_split_size_mb:1,foo:1")
    said = " ".join(text(capsys, "kimi-k3", "--device", "meta").split())
    assert "PYTORCH_ALLOC_CONF is max_split_size_mb:1,foo:1" in said
    assert "torch refuses it on a GPU: max_split_size_mb:1 is not 20 or more" in said
    assert "foo:1 is not known here" in said
    monkeypatch.setenv("PYTORCH_ALLOC_CONF", "backend:cudaMallocAsync")
    assert "are the driver's: none are predicted" in " ".join(text(capsys, "kimi-k3", "--device", "meta").split())


def test_a_check_that_does_not_hold_is_exit_code_1(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(crosscheck_run, "behaviour_checks", lambda model: [Check("ring replay", 1e-12, 0.5, "<=")])
    said = text(capsys, "kimi-k3", "--device", "meta", code=1)
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


def test_a_world_that_is_no_number_is_named() -> None:
    ran = run("verify", "kimi-k3", WORLD_SIZE="four")
    assert (ran.code, ran.out) == (2, "")
    assert "WORLD_SIZE='four' is no number" in ran.err


@pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU would be verified, for minutes")
def test_the_script_for_gpus_says_that_there_is_none() -> None:
    script = Path(__file__).resolve().parent.parent.parent / "benchmarks" / "gpu_verify.sh"
    ran = process("bash", str(script), environment={"PYTHON": sys.executable})
    assert (ran.returncode, ran.stdout) == (0, "skipped: torch finds no GPU here\n")


def test_help_needs_no_torch() -> None:
    ran = process(sys.executable, "-X", "importtime", "-m", "hybridcalc", "verify", "--help")
    assert ran.returncode == 0
    assert " torch\n" not in ran.stderr


def test_ctrl_c_ends_quietly_while_memory_is_touched() -> None:
    """Interrupted in the middle of 60 GiB of address space on cpu: no traceback, exit code 130."""
    started = subprocess.Popen(
        [sys.executable, "-W", "ignore", "-c", SLOW], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert started.stdout is not None
    try:
        started.stdout.readline()
        started.send_signal(signal.SIGINT)
        out, err = started.communicate(timeout=120)
    finally:
        started.kill()  # what was not interrupted would touch memory for ever
    assert (started.returncode, err) == (130, "")
    assert out == "resident memory is back\n"


SLOW = """
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job starts with it ignored
from hybridcalc.crosscheck import devices
from hybridcalc.cli.app import execute

write_all = devices.write_all
before = None

def announce(tensor):
    global before
    if before is None:
        before = devices.resident_bytes()
        print("touching", flush=True)
    while True:
        write_all(tensor)

devices.write_all = announce
code = execute(["verify", "qwen3.5-0.8b", "--device", "cpu", "--memory", "300MiB"])
if devices.resident_bytes() - before < 64 * 2**20:
    print("resident memory is back")
sys.exit(code)
"""


class World:
    """Four processes of torchrun in one: each rank runs in turn, the first last, and hears what the others sent."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.sent: list[Any] = [None] * 4
        self.monkeypatch = monkeypatch

    @contextmanager
    def processes(self, device: str) -> Iterator[Any]:
        rank = int(os.environ["RANK"])
        yield SimpleNamespace(rank=rank, world=4, sharers=4, mine=Process(rank, 4).mine, gather=self.gather)

    def gather(self, result: Any) -> Any:
        self.sent[int(os.environ["RANK"])] = pickle.loads(pickle.dumps(result))
        return self.sent if os.environ["RANK"] == "0" else [result]

    def verify(self, *arguments: str) -> Ran:
        """What the first rank prints; the others print nothing, or their own trouble after it."""
        self.monkeypatch.setattr(crosscheck_run, "processes", self.processes)
        self.monkeypatch.setattr(time, "sleep", lambda seconds: None)
        for rank in "321":
            assert run("verify", *arguments, RANK=rank).out == ""
        return run("verify", *arguments, RANK="0")


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> Any:
    return World(monkeypatch)


def test_every_rank_is_gathered(world: Any) -> None:
    """Two stages of two ranks: each process its own shard, one document, and the stages differ in layers."""
    ran = world.verify(
        "kimi-linear-48b-a3b", *["--tp", "2", "--pp", "2", "--device", "cpu", "--memory", "480MiB", "--json"]
    )
    assert ran.code == 0, ran.err
    document = ran.document
    assert (document["processes"], document["ok"]) == (4, True)
    assert [(rank["rank"], rank["stage"], rank["tp_rank"]) for rank in document["ranks"]] == [
        (0, 0, 0),
        (1, 0, 1),
        (2, 1, 0),
        (3, 1, 1),
    ]
    sizes = [rank["totals"]["full_bytes"] for rank in document["ranks"]]
    assert sizes[0] == sizes[1] != sizes[2] == sizes[3]
    assert document["totals"]["all_ranks_full_bytes"] == sum(sizes)
    assert all(rank["memory_stats"]["resident_held_bytes"] for rank in document["ranks"])


def test_fewer_processes_than_ranks_take_turns(world: Any) -> None:
    """Eight ranks with attention over two workers on four processes."""
    ran = world.verify("kimi-k3", "--tp", "8", "--dp", "2", "--enable-dp-attention", "--device", "meta")
    assert ran.code == 0, ran.err
    rows = [line.split() for line in ran.out.split("rank  stage")[1].splitlines()[1:9]]
    assert [(row[0], row[2], row[3]) for row in rows] == [(str(i), str(i), str(i // 4)) for i in range(8)]


def test_a_rank_that_fails_gives_way_to_the_first(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It waits to be ended, and speaks only where nobody ends it: torchrun takes the first exit for the whole."""
    waited: list[float] = []
    monkeypatch.setattr(time, "sleep", waited.append)
    monkeypatch.setenv("RANK", "3")
    assert "error: rank 3: --tp 5 does not divide" in complaint(capsys, "kimi-k3", "--tp", "5", code=1)
    assert waited == [verify.GIVE_WAY_SECONDS]
    monkeypatch.setenv("RANK", "0")
    assert "error: --tp 5 does not divide" in complaint(capsys, "kimi-k3", "--tp", "5", code=1)
    assert len(waited) == 1


def test_too_little_memory_says_who_shares_it(world: Any) -> None:
    ran = world.verify(
        "kimi-linear-48b-a3b", *["--tp", "4", "--device", "cpu", "--memory", "400MiB", "--scale", "full"]
    )
    assert ran.code == 2
    assert "may be taken by each of the 4 processes that share it" in ran.err
    assert ran.err.startswith("error: --scale full needs")


def test_under_torchrun_an_error_is_said_once() -> None:
    """As the answer of a real one stands in docs/verify.md, whose examples are run."""
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    ran = process(*launcher, "-m", "hybridcalc", "verify", "kimi-k3", "--tp", "5", "--device", "meta")
    assert ran.returncode == 1
    assert ran.stderr.count("--tp 5 does not divide") == 1
