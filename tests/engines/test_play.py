"""What a page starts from: the launch line that its settings write is the one that was planned."""

from __future__ import annotations

from typing import Any

import pytest

from hybridcalc import load_model, sglang, vllm
from hybridcalc.deployment import Workload, exact_rest
from hybridcalc.engines.sglang import play as sglang_play
from hybridcalc.engines.vllm import play as vllm_play

LINES: dict[str, tuple[Any, Any, dict[str, list[str]]]] = {
    "sglang, as it starts": (sglang_play, sglang.ServerArgs(), {
        "tp": ["--tp-size", "1"], "kv": ["--kv-cache-dtype", "auto"], "ssm": ["--mamba-ssm-dtype", "float32"],
        "strategy": ["--mamba-radix-cache-strategy", "auto"], "ratio": ["--mamba-full-memory-ratio", "0.9"],
    }),
    "sglang, with flags": (
        sglang_play, sglang.ServerArgs(mamba_ssm_dtype="bfloat16", mamba_full_memory_ratio=2.0),
        {"ssm": ["--mamba-ssm-dtype", ""], "ratio": ["--mamba-full-memory-ratio", ""]},
    ),
    "vllm, as it starts": (vllm_play, vllm.EngineArgs(max_model_len=8192), {
        "tp": ["--tensor-parallel-size", "1"], "kv": ["--kv-cache-dtype", "auto"],
    }),
}  # fmt: skip
"""Flags of the settings, and the value of each that needs none: "" where the launch typed it, which stays typed."""


@pytest.mark.parametrize(("page", "args", "flags"), LINES.values(), ids=LINES)
def test_a_flag_that_was_typed_stays_on_the_line(page: Any, args: Any, flags: dict[str, list[str]]) -> None:
    play = page.play(load_model("qwen3.5-27b"), args, exact_rest(60.0), Workload.at(8192))
    launch = play.data["launch"]
    assert {name: launch["flags"][name] for name in flags} == flags
    assert not {spelling for spelling, _ in launch["flags"].values()}.intersection(launch["argv"])


@pytest.mark.parametrize(
    ("page", "args", "gib", "length", "ends"),
    [
        (sglang_play, sglang.ServerArgs(), 60.0, 8192,
         {"length": (1, 2**20), "concurrency": (1, 10_000), "memory": (0.5, 256)}),
        (vllm_play, vllm.EngineArgs(max_num_seqs=256), 60.0, 8192,
         {"length": (1, 2**20), "seqs": (1, 10_000), "memory": (0.5, 256)}),
        (vllm_play, vllm.EngineArgs(max_num_seqs=20_000), 300.0, 2_000_000,
         {"length": (1, 2_000_000), "seqs": (1, 20_000), "memory": (0.5, 300)}),
    ],
)  # fmt: skip
def test_a_setting_reaches_from_the_least_that_does_something_to_what_was_asked(
    page: Any, args: Any, gib: float, length: int, ends: dict[str, tuple[float, float]]
) -> None:
    controls = page.play(load_model("qwen3.5-27b"), args, exact_rest(gib), Workload.at(length)).controls
    assert {one.name: (one.low, one.high) for one in controls if not one.choices and one.name != "ratio"} == ends
