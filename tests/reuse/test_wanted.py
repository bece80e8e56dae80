"""What a workload wants, turned into flags that are planned again, and into GPUs."""

from __future__ import annotations

import json
from typing import Any

import pytest
from command_line import run

from hybridcalc import load_model, sglang
from hybridcalc.reuse.hosts import HiCache
from hybridcalc.reuse.settings import Settings
from hybridcalc.reuse.sglang import cost, host_for, share

LINE = ("qwen3.5-397b-a17b", "--tp", "8", "--workload", "cyclic:prefixes=100,tokens=20000")


def reuse(*arguments: str) -> dict[str, Any]:
    ran = run("reuse", *arguments, "--json")
    assert (ran.code, ran.err) == (0, "")
    document: dict[str, Any] = json.loads(ran.out)
    return document


def test_a_ratio_is_the_least_that_makes_the_slots_and_is_planned() -> None:
    model, args = load_model("qwen3.5-397b-a17b"), sglang.ServerArgs(tp_size=8)
    found = share(model, args, Settings("sglang", 298), 68.0)
    assert found is not None
    flags, slots, tokens = found
    name, ratio = flags.split()
    assert name == "--mamba-full-memory-ratio"
    plan = sglang.plan(model, sglang.ServerArgs(tp_size=8, mamba_full_memory_ratio=float(ratio)), rest_gib=68.0)
    assert (plan.max_mamba_cache_size, plan.max_total_num_tokens) == (slots, tokens)
    less = sglang.ServerArgs(tp_size=8, mamba_full_memory_ratio=round(float(ratio) - 0.01, 2))
    assert sglang.plan(model, less, rest_gib=68.0).max_mamba_cache_size < 298 <= slots
    assert share(model, args, Settings("sglang", 10**6), 68.0) is None


def test_a_host_tier_of_the_size_that_is_said_holds_what_the_knee_keeps() -> None:
    model, args = load_model("qwen3.5-397b-a17b"), sglang.ServerArgs(tp_size=8)
    now = Settings("sglang", 100)
    weighs = cost(model, args, now._replace(hicache=HiCache()), 68.0)
    variant = host_for(now, 300, 2_000_000, weighs)
    assert variant is not None
    host = cost(model, args, variant.settings, 68.0).host
    assert host is not None
    assert host.slots >= 300
    assert (host.kv_tokens or 0) >= 2_000_000


def test_what_is_short_is_turned_into_flags_that_suffice() -> None:
    """Each setting that is said to reach the knee does, when it is asked about."""
    short = reuse(*LINE, "--rest", "68GiB", "--slots", "100")
    assert (short["lost_to"], short["hits"]) == ("state", 0)
    ratio = short["share"]
    assert (ratio["slots"], ratio["kv_tokens"]) >= (short["knee_slots"], short["kv_tokens_needed"])
    there = reuse(*LINE, "--rest", "68GiB", "--slots", str(ratio["slots"]), "--no-what-if")
    assert there["lost_to"] is None
    assert there["kv_tokens"] == pytest.approx(ratio["kv_tokens"], rel=0.001)
    rows = {row["name"]: row for row in short["what_if"]}
    sized = rows["host tier for all"]
    assert sized["token_hit_rate"] == pytest.approx(short["knee"]["limit_token_hit_rate"])
    again = reuse(*LINE, "--rest", "68GiB", "--slots", "100", *sized["flags"].split(), "--no-what-if")
    assert again["hit_tokens"] == sized["hit_tokens"]


def test_what_no_split_of_the_memory_holds_is_turned_into_gpus() -> None:
    """300 prefixes of 20,000 tokens: fit is asked for as many slots and as much KV, and its plan has them."""
    line = (*LINE[:-1], "cyclic:prefixes=300,tokens=20000,rounds=3", "--gpu", "8xh200", "--no-what-if")
    short = reuse(*line)
    machines = short["machines"]
    assert short["lost_to"] in ("kv", "both")
    assert short["share"] is None
    assert (machines["gpu"], machines["gpus"] >= 8) == ("h200", True)
    assert machines["slots"] >= short["knee_slots"]
    assert machines["kv_tokens"] >= short["kv_tokens_needed"]
    assert machines["line"].startswith("hybridcalc fit qwen3.5-397b-a17b --gpu h200 --engine sglang -L ")
    assert "sglang.launch_server" in machines["launch"]


def test_blocks_that_lack_are_turned_into_gpus_and_a_host_tier() -> None:
    line = (
        "qwen3.5-35b-a3b",
        "--engine",
        "vllm",
        "--gpu",
        "h100",
        "--workload",
        "cyclic:prefixes=100,tokens=20000,rounds=3",
    )
    short = reuse(*line)
    assert short["lost_to"] == "blocks"
    machines = short["machines"]
    assert machines["slots"] >= short["knee_slots"]
    assert machines["kv_tokens"] >= short["kv_tokens_needed"]
    rows = {row["name"]: row for row in short["what_if"]}
    flags = rows["host tier for all"]["flags"].split()
    assert reuse(*line, *flags, "--no-what-if")["hit_tokens"] == rows["host tier for all"]["hit_tokens"] > 0


def test_the_mode_all_is_tried_where_a_release_has_it() -> None:
    line = ("--engine", "vllm", "--slots", "64", "--workload", "shared:tokens=1500,private=700,rounds=9")
    old = reuse(*line, "--engine-version", "0.31.0")
    assert any(row["flags"] == "--mamba-cache-mode all" for row in old["what_if"])
    assert not any(row["flags"] == "--mamba-cache-mode all" for row in reuse(*line)["what_if"])


def test_a_host_tier_is_of_all_ranks_and_gpus_that_suffice_are_said_at_once() -> None:
    """HiCache is as large on each rank; the tier holds what the knee wants, not all that was ever kept."""
    ran = run("reuse", "qwen3.6-35b-a3b", "--gpu", "2xh100", "--workload", "agents:n=150,history=20k,turns=4", "-v")
    shown = " ".join(ran.out.split())
    assert "x h100 hold them" in shown
    assert "for each of 2 ranks" in shown


def test_what_the_engine_does_not_take_together_is_not_proposed() -> None:
    """Both an int8 pool and a host tier help here; a launch with both is refused, and so is the question."""
    asked = ("qwen3.5-397b-a17b", "--tp", "8", "--slots", "60", "--rest", "18GiB")
    found = reuse(*asked, "--workload", "agents:n=30,history=20k,turns=4")
    flags = [row["flags"] for row in found["what_if"]]
    assert "--enable-int8-mamba-checkpoint" in flags
    assert "--enable-hierarchical-cache" in flags
    assert not any("int8" in each and "hierarchical" in each for each in flags)
    both = run("reuse", *asked, "--enable-int8-mamba-checkpoint", "--enable-hierarchical-cache", "--workload", "chat:")
    assert (both.code, both.err.splitlines()[0]) == (1, "error: int8 checkpoints do not run with a host tier")
