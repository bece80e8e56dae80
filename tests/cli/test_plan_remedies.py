"""What a refusal for want of memory advises starts, and serves what is said of it."""

from __future__ import annotations

import pytest
from command_line import plan, run

SHORT = {
    "no slot": (("qwen3.5-9b", "--gpu", "rtx-4090", "-L", "8k"), "--mem-fraction-static 0.82"),
    "slots for no request": (("falcon-h1-34b-instruct", "--gpu", "h100", "-L", "8k"), "--mem-fraction-static 0.85"),
    "weights": (("qwen3-next-80b-a3b-instruct", "--gpu", "rtx-pro-6000", "-L", "8k"), "--tp 2"),
    "vLLM's weights": (("qwen3.5-27b", "--gpu", "rtx-5090", "-L", "8k", "--engine", "vllm"), "-tp 4"),
}


@pytest.mark.parametrize("name", SHORT)
def test_what_a_refusal_for_memory_advises_starts(name: str) -> None:
    """The least share of the memory, the fewest ranks: each serves what is said of it, and a step less nothing."""
    words, expected = SHORT[name]
    answer = run("plan", *words)
    assert answer.code == 1 and f"fix: write {expected}: " in answer.out
    flag, value = expected.split()
    count = int(answer.out.partition(f"{expected}: ")[2].split()[0])
    assert plan(*words, flag, value)["requests"] == count > 0
    less = str(int(value) - 1) if flag in ("--tp", "-tp") else f"{float(value) - 0.01:.2f}"
    assert run("plan", *words, flag, less).code == 1


def test_a_checkpoint_that_is_advised_starts() -> None:
    answer = run("plan", "qwen3-next-80b-a3b-instruct", "--gpu", "rtx-pro-6000", "-L", "8k")
    name, _, count = " ".join(answer.out.split()).split("or load ")[1].partition(": ")
    assert plan(name, "--gpu", "rtx-pro-6000", "-L", "8k")["requests"] == int(count.split()[0])


def test_a_memory_below_zero_is_called_so() -> None:
    answer = run("plan", "qwen3.5-4b", "--rest=-10GB", "-L", "8k")
    assert answer.code == 1 and "weights and what is kept take 9.31 GiB more than there is" in " ".join(
        answer.out.split()
    )


@pytest.mark.parametrize("count", [0, 5000, 100_000, 10**17])
def test_a_number_of_gpus_is_bounded(count: int) -> None:
    answer = run("plan", "qwen3.5-4b", "--gpu", f"{count}xh200", "-L", "8k")
    assert answer.code == 2
    said = f"--gpu '{count}xh200': {count:,} is no number of GPUs that is planned"
    assert answer.err == f"error: {said}\n       write 1 to 4,096, as in 8xh200\n"
