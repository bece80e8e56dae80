"""What --emit writes is read back as the same launch, and `check` has nothing to say about it."""

from __future__ import annotations

from pathlib import Path

import pytest
from command_line import run

NAMES = {"cmd": "serve.sh", "compose": "compose.yaml", "kubernetes": "deployment.yaml"}
LAUNCHES = {
    "sglang": "--engine sglang Qwen/Qwen3.6-27B-FP8 --tp 2 --mamba-radix-cache-strategy extra_buffer_lazy"
    " --mamba-full-memory-ratio 0.25 --kv-cache-dtype fp8_e4m3",
    "vllm": "--engine vllm Qwen/Qwen3.6-27B-FP8 -tp 2 --max-model-len 32768 --max-num-seqs 32"
    ' --speculative-config {"method":"mtp","num_speculative_tokens":2}',
}


@pytest.mark.parametrize("engine", LAUNCHES)
@pytest.mark.parametrize("form", ["cmd", "compose", "kubernetes", "yaml"])
def test_plans_are_read_back_as_they_were(engine: str, form: str, tmp_path: Path) -> None:
    """The same arguments from the file, no finding that the plan has not, nor anything unresolved."""
    plan = run("plan", *LAUNCHES[engine].split(), "--gpu", "h100", "--json", "--fail-on", "never").document
    name = f"{engine}-yaml" if form == "yaml" else form
    text = run("plan", *LAUNCHES[engine].split(), "--gpu", "h100", "--emit", name).out
    path = tmp_path / NAMES.get(form, f"{engine}-config.yaml")
    path.write_text(text, encoding="utf-8")
    reached = '"--host"' in text or engine == "vllm"  # SGLang listens to its own container alone by default
    assert reached == (form in ("compose", "kubernetes") or engine == "vllm")
    checked = run("check", str(path), "--json").document
    assert {found["rule"] for found in checked["findings"]} <= {found["rule"] for found in plan["findings"]}
    assert checked["deployments"][0]["unresolved"] == []
    again = run("compare", str(path), "--gpu", "h100", "--json").document["sides"][0]["arguments"]
    left_out = {"engine_version"}
    assert {k: v for k, v in again.items() if k not in left_out} == plan["arguments"]


@pytest.mark.parametrize("form", ["cmd", "compose", "kubernetes", "sglang-yaml", "vllm-yaml"])
def test_the_first_row_of_fit_is_written(form: str, tmp_path: Path) -> None:
    """Replicas as a number where the form has one; variables in front, in the environment or in a comment."""
    asked = ("fit", "qwen3.6-35b-a3b", "-L", "16k", "-C", "300", "--gpu", "l40s,h100")
    text = run(*asked, "--emit", form).out
    path = tmp_path / NAMES.get(form, f"{form}.yaml")
    path.write_text(text, encoding="utf-8")
    checked = run("check", str(path), "--gpu", "l40s", "--json").document
    assert len(checked["deployments"]) == 1
    assert checked["findings"] == []


def test_forms_that_cannot_be_are_refused() -> None:
    """Of another engine, unknown, of GPUs whose image is not known, beside --json."""
    asked = ("plan", "qwen3.6-35b-a3b", "--gpu", "2xh100")
    assert "write sglang-yaml" in run(*asked, "--emit", "vllm-yaml").err
    assert "cmd, compose, kubernetes" in run(*asked, "--emit", "helm").err
    assert "leave out --json" in run(*asked, "--emit", "cmd", "--json").err
    assert "write --emit cmd" in run("plan", "qwen3.6-35b-a3b", "--gpu", "mi300x", "--emit", "compose").err


def test_a_log_is_written_with_the_safest_that_helps() -> None:
    """The launch line of the boot, with the first suggestion; without the line there is nothing to write."""
    boot = ("log", "examples/kimi-k3-boot.log", "-L", "9216", "-C", "70")
    line = "sglang serve --model-path moonshotai/Kimi-K3 --tp 8 --kv-cache-dtype fp8_e4m3"
    suggested = run(*boot, "--command", line, "--json").document["boots"][0]["suggestions"]
    text = run(*boot, "--command", line, "--emit", "cmd").out
    assert suggested
    assert all(word in text for word in suggested[0]["flags"])
    assert "add --command LINE" in run(*boot, "--emit", "cmd").err
