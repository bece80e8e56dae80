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


def test_gpus_that_replicas_do_not_divide_are_said() -> None:
    """Three replicas on eight GPUs stand on one each, which nobody meant."""
    found: Any = run("plan", FP8, "--engine", "vllm", "--gpu", "8xb300", "-dp", "3", "-L", "8k", "--json").document
    assert found["refusal"] is not None or found["gpus"] == 3
    assert "8 GPUs do not divide by 3: each rank stands alone; -tp 2 takes 6" in found["notes"]


@pytest.mark.parametrize(
    ("words", "tensor", "replicas"),
    [(["--ep", "8"], 8, 1), (["--ep=8", "--tp", "2"], 2, 4), (["--ep-size", "8", "--dp", "2"], 4, 2)],
)
def test_vllm_shares_experts_among_all_ranks(words: list[str], tensor: int, replicas: int) -> None:
    """vLLM has a switch where SGLang counts: ep is tp x dp."""
    found: Any = run("plan", "qwen3.6-35b-a3b", "--engine", "vllm", "--gpu", "8xh200", *words, "--json").document
    given = found["arguments"]
    assert given["enable_expert_parallel"] is True
    assert (given.get("tensor_parallel_size", 1), given.get("data_parallel_size", 1)) == (tensor, replicas)
    weighed = hybridcalc.weights("qwen3.6-35b-a3b", engine="vllm", tp_size=tensor, ep_size=8)
    assert found["memory"]["weights_gib"] == weighed.likely / 2**30


def test_a_number_of_expert_ranks_that_vllm_has_not_is_refused() -> None:
    """Also in a comparison, and where it is no number."""
    words = ("plan", "qwen3.6-35b-a3b", "--engine", "vllm", "--gpu", "8xh200", "--tp", "8", "-L", "8k")
    for more in (("--ep", "4"), ("--compare", "--ep 4")):
        told = run(*words, *more)
        assert told.code == 2
        assert "--ep 4: vLLM shares experts out among all tp x dp ranks, 8 here" in told.err
    assert "--ep 'many' is no number of ranks" in run(*words, "--ep", "many").err
