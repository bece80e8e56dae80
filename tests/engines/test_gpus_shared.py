"""Several GPUs: replicas and stages share them first, tensor-parallel ranks what is left; what is idle is said."""

from typing import Any

import pytest
from command_line import run

import hybridcalc

FP8 = "Qwen/Qwen3.5-397B-A17B-FP8"


@pytest.mark.parametrize("engine", ["sglang", "vllm"])
@pytest.mark.parametrize(
    ("words", "tensor", "idle"),
    [
        ([], 8, False),
        (["--dp", "2"], 4, False),
        (["--pp", "2"], 4, False),
        (["--tp", "4"], 4, True),
        (["--tp", "4", "--dp", "2"], 4, False),
        (["-tp", "8"], 8, False),
    ],
)
def test_ranks_follow_from_the_gpus(engine: str, words: list[str], tensor: int, idle: bool) -> None:
    """Ranks may be typed in one way for every engine."""
    found: Any = run("plan", FP8, "--engine", engine, "--gpu", "8xh200", *words, "-L", "64k", "--json").document
    arguments = found["arguments"]
    assert arguments.get("tp_size", arguments.get("tensor_parallel_size")) == tensor
    assert any("the others idle" in note for note in found["notes"]) is idle


def test_from_python_too() -> None:
    """A number of replicas that is given leaves the rest of the GPUs to each."""
    assert hybridcalc.plan(FP8, gpu="8xh200", dp_size=2).args.tp_size == 4
    assert hybridcalc.plan(FP8, engine="vllm", gpu="8xh200", data_parallel_size=2).args.tensor_parallel_size == 4


def test_a_launch_line_means_what_it_says() -> None:
    """Two replicas of one rank each are no replicas of four."""
    found = run("plan", "--json", "--gpu", "8xh200", "-L", "8k", "--", "vllm", "serve", "Qwen/Qwen3.6-27B", "-dp", "2")
    assert found.document["gpus"] == 2
