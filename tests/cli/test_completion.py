"""What shells offer: of every command, by the shells' own protocols, from a file that is what the commands say."""

import importlib.util
import json
from pathlib import Path

import pytest
from command_line import run

from hybridcalc.architecture.presets import model_names
from hybridcalc.cli import completion
from hybridcalc.engines import ENGINES

ROOT = Path(__file__).resolve().parent.parent.parent


def test_the_file_is_what_the_commands_say() -> None:
    """Run python tools/compile_completion.py when this fails."""
    spec = importlib.util.spec_from_file_location("compile_completion", ROOT / "tools" / "compile_completion.py")
    assert spec is not None and spec.loader is not None
    compiler = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(compiler)
    assert compiler.TARGET.read_text(encoding="utf-8") == compiler.compiled()


@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("pl", ["plan"]),
        ("plan kimi-k", ["kimi-k3"]),
        ("plan kimi-k3 --gpu h200-", ["h200-nvl"]),
        ("plan kimi-k3 --gpu 8xh200-", ["8xh200-nvl"]),
        ("plan kimi-k3 --gpu=h200-", ["--gpu=h200-nvl"]),
        ("fit kimi-k3 --gpu h100,h200-", ["h100,h200-nvl"]),
        ("plan x --mamba-full", ["--mamba-full-memory-ratio"]),
        ("plan x --kv-cache-dtype fp8_e4", ["fp8_e4m3"]),
        ("plan --engine vllm x --mamba-cache-mode a", ["all", "align"]),
        ("plan -- vllm serve x --mamba-cache-mode a", ["all", "align"]),
        ("plan -- llama-server -ctk q5", ["q5_0", "q5_1"]),
        ("plan x --mamba-cache-mode a", []),
        ("models show kimi-k", ["kimi-k3"]),
        ("plan -- vllm serve moonshotai/Kimi-K", ["moonshotai/Kimi-K3"]),
        ("plan -- sglang serve --model-path moonshotai/Kimi-K", ["moonshotai/Kimi-K3"]),
        ("plan -- vl", ["vllm"]),
        ("rules HC00", ["HC001", "HC009"]),
        ("schema co", ["compare"]),
        ("log boot.log --model kimi-k", ["kimi-k3"]),
        ("check --fail-on w", ["warning"]),
        ("check some", []),
        ("plan kimi-k3 ", []),
        ("plan kimi-k3 -L ", []),
    ],
)
def test_what_is_offered(line: str, offered: list[str]) -> None:
    *before, typed = line.split(" ")
    found = completion.offered(before, typed)
    assert [name for name in found if name in offered] == offered and (offered or not found)


def test_every_flag_of_every_engine_is_offered() -> None:
    for name in ENGINES:
        found = completion.offered(["plan", "--engine", name, "x"], "-")
        assert set(ENGINES[name].flags.by_spelling) <= set(found)


def _asked(monkeypatch: pytest.MonkeyPatch, **environment: str) -> int | None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    return completion.answer()


def test_bash(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    words = "hybridcalc\nplan\nx\n--gpu\n=\nh200-"  # bash parts words at "="
    assert _asked(monkeypatch, _HYBRIDCALC_COMPLETE="complete_bash", COMP_WORDS=words, COMP_CWORD="5") == 0
    assert capsys.readouterr().out == "h200-nvl\n"


def test_zsh(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    line = "hybridcalc plan kimi-k3 --gpu h200-"
    assert _asked(monkeypatch, _HYBRIDCALC_COMPLETE="complete_zsh", _TYPER_COMPLETE_ARGS=line) == 0
    assert capsys.readouterr().out == """_arguments '*: :(("h200-nvl"))'\n"""
    assert _asked(monkeypatch, _TYPER_COMPLETE_ARGS="hybridcalc log ") == 0
    assert capsys.readouterr().out == "_files\n"


def test_fish(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    asked = {"_HYBRIDCALC_COMPLETE": "complete_fish", "_TYPER_COMPLETE_ARGS": "hybridcalc weights "}
    assert _asked(monkeypatch, **asked, _TYPER_COMPLETE_FISH_ACTION="get-args") == 0
    assert capsys.readouterr().out.split() == model_names()
    assert _asked(monkeypatch, _TYPER_COMPLETE_FISH_ACTION="is-args") == 0
    assert _asked(monkeypatch, _TYPER_COMPLETE_ARGS="hybridcalc log ") == 1


def test_other_shells_are_left_to_typer(monkeypatch: pytest.MonkeyPatch) -> None:
    assert _asked(monkeypatch, _HYBRIDCALC_COMPLETE="complete_powershell") is None
    assert _asked(monkeypatch, _HYBRIDCALC_COMPLETE="source_bash") is None


def test_names_are_plain_words() -> None:
    """None that a shell would read as anything else."""
    document = json.loads((ROOT / "hybridcalc" / "cli" / "completion.json").read_text(encoding="utf-8"))
    names = [*document["lists"]["gpus"], *document["lists"]["models"], *document["root"]["commands"]]
    assert all(name.isascii() and name.replace("-", "").replace(".", "").replace("_", "").isalnum() for name in names)


@pytest.mark.parametrize("option", ["--install-completion", "--show-completion"])
def test_a_shell_that_is_not_known_is_an_error(option: str) -> None:
    """And no file is changed: without its name, the shell that runs would be taken."""
    ran = run(option, "nosuch")
    assert (ran.code, ran.out) == (2, "")
    assert "'nosuch' is not one of 'bash', 'zsh', 'fish'" in " ".join(ran.err.split())
