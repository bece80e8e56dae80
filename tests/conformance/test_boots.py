"""Real boots: what SGLang and vLLM printed, against a plan of the same inputs, within the tolerance that each
record states.
"""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from hybridcalc import Architecture, load_model, sglang, vllm
from hybridcalc.architecture import GroupedQueryKV
from hybridcalc.architecture.families.gdn import GatedDeltaNet
from hybridcalc.engines.sglang import ServerArgs
from hybridcalc.engines.sglang.memory import rest_from_boot
from hybridcalc.engines.vllm import EngineArgs
from hybridcalc.engines.vllm.planner import prepare

BOOTS: dict[str, dict[str, Any]] = {
    boot["id"]: boot
    for boot in json.loads((Path(__file__).resolve().parent.parent / "data" / "vectors" / "boots.json").read_bytes())
}
MODELS = {"c01": "qwen3.5-9b", "c05": "qwen3.8-27b", "c07": "qwen3.8-27b", "c09": "qwen3.8-27b"}


def model_of(boot_id: str) -> Architecture:
    """The preset of a boot; checkpoints in fp8 or fp4 keep the geometry."""
    return load_model(MODELS[boot_id])


def printed(plan: sglang.Plan, name: str) -> float:
    """A figure of the log lines a plan expects: ``ssm_state size: 4.38GB``."""
    match = re.search(rf"\b{name} size: ([0-9.]+) ?GB", " ".join(plan.log_lines))
    assert match is not None
    return float(match[1])


def test_every_sglang_boot_is_tested_here() -> None:
    """One test each; the records of other engines are selected by engine."""
    assert {boot_id for boot_id, boot in BOOTS.items() if boot["engine"] == "sglang"} == set(MODELS)


@pytest.mark.parametrize("boot_id", MODELS)
def test_presets_have_the_geometry_of_the_boots(boot_id: str) -> None:
    recorded, model = BOOTS[boot_id]["geometry"], model_of(boot_id)
    state, attention = cast(GatedDeltaNet, model.state), cast(GroupedQueryKV, model.attention)
    assert (len(model.layers), model.state_layers, model.attention_layers) == (
        recorded["layers"],
        recorded["gdn_layers"],
        recorded["attn_layers"],
    )
    assert (state.num_k_heads, state.num_v_heads, state.conv_kernel) == (
        recorded["linear_k_heads"],
        recorded["linear_v_heads"],
        recorded["conv_kernel"],
    )
    assert state.k_head_dim == state.v_head_dim == recorded["linear_head_dim"]
    assert (attention.kv_heads, attention.head_dim) == (recorded["kv_heads"], recorded["head_dim"])


def args_of_c01(version: str) -> ServerArgs:
    given = BOOTS["c01"]["input"]
    return ServerArgs(
        tp_size=given["tp"],
        mem_fraction_static=given["mem_fraction_static"],
        mamba_ssm_dtype=given["ssm_dtype"],
        mamba_full_memory_ratio=given["mamba_full_memory_ratio"],
        kv_cache_dtype=given["kv_dtype"],
        mamba_radix_cache_strategy="no_buffer",
        disable_overlap_schedule=True,
        engine_version=version,
    )


def test_c01_from_the_memory_it_printed_to_the_pools() -> None:
    """Under the rules of 0.5.16: its release reserved nothing for images and did not charge the padding slot, so that
    the solve gives 187 where 186 was printed; the record allows a slot and 0.5 % of the tokens.
    """
    given, recorded = BOOTS["c01"]["input"], BOOTS["c01"]["output"]
    args, model = args_of_c01("0.5.16"), model_of("c01")
    rest = rest_from_boot(given["avail_before_weights_gib"], given["avail_after_weights_gib"], model, args)
    assert rest.likely_gib == pytest.approx(BOOTS["c01"]["predicted"]["rest_gib"], abs=1e-3)
    plan = sglang.plan(model, args, rest=rest)
    assert plan.slots_per_request == 3
    assert abs(plan.max_mamba_cache_size - recorded["K"]) <= 1
    assert plan.max_total_num_tokens == pytest.approx(recorded["kv_tokens"], rel=0.005)
    assert plan.max_running_requests == recorded["max_running_requests"]
    slot = plan.bytes_per_slot / 2**30
    assert printed(plan, "conv_state") == pytest.approx(recorded["conv_gib"], abs=0.01)
    assert printed(plan, "ssm_state") == pytest.approx(recorded["ssm_gib"], abs=slot + 0.01)
    assert printed(plan, "K") == pytest.approx(recorded["k_gib"], abs=0.005)


def test_c01_with_the_padding_slot_charged_gives_the_printed_186() -> None:
    """The solver of 0.5.23 on the same memory: K, T and R of the record's own prediction, to the token."""
    predicted = BOOTS["c01"]["predicted"]
    plan = sglang.plan(model_of("c01"), args_of_c01("0.5.23"), rest_gib=predicted["rest_gib"])
    found = plan.max_mamba_cache_size, plan.max_total_num_tokens, plan.max_running_requests
    assert found == (predicted["K"], predicted["tokens"], predicted["max_running_requests"])
    assert plan.max_mamba_cache_size == BOOTS["c01"]["output"]["K"]


def test_c05_does_not_start_with_the_slots_the_engine_computed() -> None:
    """K = -28 of -7.96 GiB, and the bytes of a slot, exactly."""
    given, recorded = BOOTS["c05"]["input"], BOOTS["c05"]["output"]
    args = ServerArgs(
        tp_size=given["tp"],
        mamba_full_memory_ratio=given["mamba_full_memory_ratio"],
        mamba_ssm_dtype=given["ssm_dtype"],
    )
    with pytest.raises(sglang.Refusal) as refusal:
        sglang.plan(model_of("c05"), args, rest_gib=given["total_rest_memory_gib"])
    assert refusal.value.stage == "solve"
    match = re.search(r"gives (-?\d+) slots of ([\d,]+) B$", refusal.value.reason)
    assert match is not None
    assert int(match[1]) == recorded["K"]
    assert f"{int(match[2].replace(',', '')) / 2**20:.2f}" == f"{recorded['mamba_cache_per_req_mib']:.2f}"


def test_c07_pins_its_slots_and_prints_the_same_sizes() -> None:
    """K = 360 at S = 5: 361 slots and the KV of 228,520 tokens, to 0.01 GiB."""
    given, recorded = BOOTS["c07"]["input"], BOOTS["c07"]["output"]
    args = ServerArgs(
        tp_size=given["tp"],
        max_mamba_cache_size=given["max_mamba_cache_size"],
        max_running_requests=given["user_max_running_requests"],
        mamba_ssm_dtype=given["ssm_dtype"],
        kv_cache_dtype="fp8_e4m3",
        max_total_tokens=given["kv_tokens"],
    )
    plan = sglang.plan(model_of("c07"), args, rest_gib=62.0)
    assert (plan.max_mamba_cache_size, plan.slots_per_request) == (given["max_mamba_cache_size"], given["S"])
    assert plan.max_total_num_tokens == given["kv_tokens"]
    assert plan.max_running_requests == recorded["max_running_requests"]
    for name, key in (("conv_state", "conv_gib"), ("ssm_state", "ssm_gib"), ("K", "k_gib"), ("V", "v_gib")):
        assert printed(plan, name) == pytest.approx(recorded[key], abs=0.01)


def c09(slots: int, rest_gib: float) -> sglang.Plan:
    given = BOOTS["c09"]["input"]
    args = ServerArgs(
        tp_size=given["tp"],
        mamba_ssm_dtype=given["ssm_dtype"],
        kv_cache_dtype=given["kv_dtype"],
        max_mamba_cache_size=slots,
        max_running_requests=given["user_max_running_requests"],
        speculative_algorithm="NEXTN",
        speculative_num_draft_tokens=4,
        draft_layers=given["kv_layers_including_mtp"] - BOOTS["c09"]["geometry"]["attn_layers"],
    )
    return sglang.plan(model_of("c09"), args, rest_gib=rest_gib)


def memory_of(slots: int, tokens: int) -> float:
    """GiB in which ``slots`` leave ``tokens`` and half a token."""
    plenty = c09(slots, 200.0)
    charged: int = 200 * 2**30 - plenty.engine_figures["kv_available_bytes"]
    cell: int = plenty.engine_figures["cell_size"]
    return (charged + (tokens + 0.5) * cell) / 2**30


@pytest.mark.parametrize(("slots", "tokens", "fewer", "more"), [(21, 158_116, 10, 182_901), (63, 451_633, 20, 548_520)])
def test_c09_slots_exchange_for_tokens(slots: int, tokens: int, fewer: int, more: int) -> None:
    """One memory, two pins: each slot given up is 2,253.18 tokens, on both tiers, exactly."""
    boot = BOOTS["c09"]
    assert {tokens, more} <= {
        boot["input"]["point"]["tokens"],
        boot["output"]["tokens"],
        *boot["output"]["other_tier"].values(),
    }
    rest = memory_of(slots, tokens)
    before, after = c09(slots, rest), c09(fewer, rest)
    assert (before.max_total_num_tokens, after.max_total_num_tokens) == (tokens, more)
    rate = before.bytes_per_slot / before.kv_bytes_per_token
    assert f"{rate:.2f}" == f"{boot['predicted']['tokens_per_slot']:.2f}"


def vllm_args(given: dict[str, Any], **more: Any) -> EngineArgs:
    """Arguments of a vLLM record; 0.18 and 0.19 print tokens by the same formula."""
    return EngineArgs(
        tensor_parallel_size=given["tp"],
        max_model_len=given["max_model_len"],
        kv_cache_dtype=given["kv_dtype"],
        mamba_ssm_cache_dtype=given["ssm_dtype"],
        engine_version="0.19.0",
        **more,
    )


def test_c12_qwen3_5_2b_prints_129472_tokens() -> None:
    """5.95 GiB, prefix caching off: blocks of 544 tokens, 955 of them, 1.97x at 262,144 tokens."""
    given, recorded = BOOTS["c12"]["input"], BOOTS["c12"]["output"]
    args = vllm_args(given, enable_prefix_caching=given["prefix_caching"], max_num_seqs=256)
    found = vllm.plan(load_model("qwen3.5-2b"), args, available_bytes=int(given["available_kv_gib"] * 2**30))
    assert found.attn_block_size == recorded["attention_block_size"]
    assert (found.num_blocks, found.kv_cache_size_tokens) == (
        BOOTS["c12"]["predicted"]["blocks"],
        recorded["gpu_kv_cache_tokens"],
    )
    assert f"{found.max_concurrency:.2f}" == f"{recorded['max_concurrency']:.2f}"
    assert f"GPU KV cache size: {recorded['gpu_kv_cache_tokens']:,} tokens" in found.log_lines


def test_c14_qwen3_5_27b_prints_290864_tokens() -> None:
    """1,487 blocks, the only count that gives both printed figures; its memory is not on record."""
    given, recorded = BOOTS["c14"]["input"], BOOTS["c14"]["output"]
    args = vllm_args(given, num_gpu_blocks_override=given["blocks"], max_num_seqs=256)
    found = vllm.plan(load_model("qwen3.5-27b"), args, available_bytes=2**40)
    assert found.attn_block_size == BOOTS["c14"]["predicted"]["attention_block_size"]
    assert (found.num_blocks, found.kv_cache_size_tokens) == (given["blocks"], recorded["gpu_kv_cache_tokens"])
    assert f"{found.max_concurrency:.2f}" == f"{recorded['max_concurrency']:.2f}"
    for blocks in (given["blocks"] - 1, given["blocks"] + 1):
        changed = replace(args, num_gpu_blocks_override=blocks)
        other = vllm.plan(load_model("qwen3.5-27b"), changed, available_bytes=2**40)
        same = other.kv_cache_size_tokens == recorded["gpu_kv_cache_tokens"]
        assert not same or f"{other.max_concurrency:.2f}" != f"{recorded['max_concurrency']:.2f}"


PAGES = {page["name"]: page for page in BOOTS["c16"]["input"]}
BLOCKS = {page["name"]: page for page in BOOTS["c16"]["output"]}
FP8 = {"kv_cache_dtype": "fp8"}
VLLM: dict[str, list[tuple[str, dict[str, Any]]]] = {
    "Qwen3.5-4B/9B bf16 KV": [("qwen3.5-4b", {}), ("qwen3.5-9b", {})],
    "27B bf16 KV TP1 or TP2": [("qwen3.5-27b", {}), ("qwen3.8-27b", {})],
    "27B fp8 KV": [("qwen3.5-27b", FP8)],
    "27B TP2 fp8 KV, MTP n=3 (conv 6 columns)": [
        ("qwen3.5-27b", {"tensor_parallel_size": 2, **FP8,
                         "speculative_config": {"method": "mtp", "num_speculative_tokens": 3}})
    ],
    "27B bf16 KV, DFlash n=7 (conv 10 columns)": [
        ("qwen3.5-27b", {"speculative_config": {"method": "dflash", "num_speculative_tokens": 7}})
    ],
    "27B bf16 ssm, bf16 KV, n=7": [
        ("qwen3.5-27b", {"speculative_config": {"method": "dflash", "num_speculative_tokens": 7},
                         "mamba_ssm_cache_dtype": "bfloat16"})
    ],
    "Qwen3.5-0.8B bf16 KV": [("qwen3.5-0.8b", {})],
    "Qwen3.5-0.8B on CPU (align 128)": [("qwen3.5-0.8b", {"block_size": 128})],
    "35B-A3B fp8 KV (no padding line)": [("qwen3.5-35b-a3b", FP8)],
    "Nemotron-3-Nano-30B fp8 KV fp32 ssm": [
        ("nemotron-3-nano-30b-a3b", {"mamba_ssm_cache_dtype": "float32", **FP8})
    ],
    "granite-4.0-h-small bf16": [("granite-4.0-h-small", {})],
    "LFM2.5-1.2B fp16": [("lfm2.5-1.2b", {"dtype": "float16"})],
}  # fmt: skip


@pytest.mark.parametrize(
    ("name", "model", "given"), [(name, model, given) for name, cases in VLLM.items() for model, given in cases]
)
def test_c16_vllm_makes_the_recorded_blocks(name: str, model: str, given: dict[str, Any]) -> None:
    """State and KV bytes of a layer, the attention block that covers the state, and the padding that is printed."""
    args = EngineArgs(engine_version="0.22.1", enable_prefix_caching=False, **given)
    ready = prepare(load_model(model), args)
    assert (ready.state_bytes, ready.kv_bytes) == (PAGES[name]["state_page_bytes"], PAGES[name]["attn_bytes_per_token"])
    assert ready.pages.block == BLOCKS[name]["attention_block_size"]
    padding = BLOCKS[name]["mamba_padding_pct"]
    if padding is not None:  # not in that boot's log
        assert f"{ready.settled.get('padding_pct', 0.0):.2f}" == f"{padding:.2f}"
    assert any(line.startswith("Padding mamba") for line in ready.log) == (padding != 0)


def test_every_row_of_c16_is_tested_here() -> None:
    assert set(VLLM) == set(PAGES) == set(BLOCKS)


def test_every_vllm_boot_is_tested_here() -> None:
    assert {boot_id for boot_id, boot in BOOTS.items() if boot["engine"].startswith("vllm")} == {"c12", "c14", "c16"}
