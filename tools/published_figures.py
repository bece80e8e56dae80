"""Figures that public write-ups state about hybrid serving memory, each recomputed with this library.

tests/data/published-figures.yaml holds the claims, their inputs and a verdict; FIGURES below recomputes every one from
the library's own formulas. tools/make_docs.py turns both into docs/published-figures.md.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from fractions import Fraction
from pathlib import Path
from typing import Any

import yaml

from hybridcalc.architecture.families.kda import KimiDelta
from hybridcalc.architecture.families.mamba2 import Mamba2
from hybridcalc.architecture.presets import load_model
from hybridcalc.engines.sglang import ServerArgs
from hybridcalc.engines.sglang.kv import kv_cell
from hybridcalc.engines.sglang.releases import rules_for
from hybridcalc.engines.sglang.sizes import state_slot
from hybridcalc.formulas import (
    KvCurve,
    admitted_requests,
    aligned_block,
    balanced_ratio,
    blocks_for,
    crossover_tokens,
    cyclic_hit_rate,
    int8_slot_bytes,
    memory_of,
    padding_share,
    prefill_slots,
    replay_rings,
    reused_tokens,
    smallest_ring,
    token_equiv,
    total_crossover_tokens,
)
from hybridcalc.units import DTYPE_BYTES, GIB

DATA = Path(__file__).resolve().parent.parent / "tests" / "data" / "published-figures.yaml"
SOURCES = {
    "A": "hybrid Mamba KV-cache engineering write-up (Kimi-K3 on SGLang)",
    "B": "SGLang note on computing the mamba ratio",
    "C": "vLLM hybrid-SSM chapter (Nemotron-H-8B)",
    "D": "article on hybrid KV against recurrent state",
    "E": "SGLang pull request on int8 checkpoints",
}
K3 = load_model("kimi-k3")
K3_TP8 = ServerArgs(tp_size=8, kv_cache_dtype="fp8_e4m3")
NEMOTRON_8B = state_slot(load_model("nemotron-h-8b"), ServerArgs())


def figures() -> list[dict[str, Any]]:
    """The claims, as the data file states them."""
    entries: list[dict[str, Any]] = yaml.safe_load(DATA.read_text(encoding="utf-8"))
    return entries


def recomputed(entry: Mapping[str, Any]) -> Any:
    """What the library makes of a claim's inputs: a number, a mapping, or None for a claim without a figure."""
    return FIGURES[entry["id"]](entry["inputs"])


def _k3_state(inputs: Mapping[str, Any], part: str) -> int:
    shapes = KimiDelta(inputs["heads"], inputs["head_dim"], inputs.get("kernel", 4)).shapes(inputs["tp"])
    elements = shapes.conv_elements if part == "conv" else shapes.temporal_elements
    return int(inputs["layers"] * elements * DTYPE_BYTES[inputs["dtype"]])


def _a4(_: Mapping[str, Any]) -> dict[str, int]:
    return {
        "per_gpu": state_slot(K3, ServerArgs(tp_size=8, mamba_ssm_dtype="bfloat16")).bytes,
        "eight_gpus": state_slot(K3, ServerArgs(mamba_ssm_dtype="bfloat16")).bytes,
    }


def _a7(inputs: Mapping[str, Any]) -> int:
    rings = replay_rings(
        "inputs",
        layers=inputs["layers"],
        slots=inputs["slots"],
        v_heads=inputs["heads"],
        v_head_dim=inputs["head_dim"],
        k_heads=inputs["heads"],
        k_head_dim=inputs["head_dim"],
        cache_len=inputs["cache_len"],
        conv_dtype="bfloat16",
    )
    return sum(ring.bytes for ring in rings)


def _b1(inputs: Mapping[str, Any]) -> dict[str, int]:
    printed = Fraction(str(inputs["conv_gib"])) + Fraction(str(inputs["ssm_gib"]))
    by_n = round(printed * GIB / inputs["max_mamba_cache_size"])
    return {"per_slot_by_N": by_n, "exact_from_architecture": state_slot(K3, K3_TP8).bytes}


def _b2(inputs: Mapping[str, Any]) -> dict[str, int]:
    cell = kv_cell(K3, K3_TP8, rules_for(K3_TP8.engine_version)[0])
    measured = Fraction(str(inputs["kv_gib"])) * GIB / inputs["tokens"]
    return {"measured": int(measured), "exact_from_architecture": cell.bytes}


def _b3(_: Mapping[str, Any]) -> dict[str, float]:
    pool, kv = Fraction("13.50") * GIB, Fraction("15.03") * GIB / 1167552
    return {
        "from_log_by_N": round(float(token_equiv(pool / 257, kv)), 1),
        "from_log_by_N_plus_1": round(float(token_equiv(pool / 258, kv)), 1),
        "exact_from_architecture": round(float(token_equiv(state_slot(K3, K3_TP8).bytes, 13824)), 3),
    }


def _b4(inputs: Mapping[str, Any]) -> dict[str, float]:
    def at(dcp: int) -> Fraction:
        return balanced_ratio(
            state_slot(K3, K3_TP8).bytes,
            13824,
            slots_per_request=inputs["slots_per_request"],
            length_tokens=inputs["length"],
            dcp=dcp,
        )

    return {"dcp1": round(float(at(1)), 4), "dcp8": round(float(at(8)), 3)}


def _c1(inputs: Mapping[str, Any]) -> dict[str, float]:
    return {"bytes": NEMOTRON_8B.bytes, "conv_share": round(NEMOTRON_8B.conv_bytes / NEMOTRON_8B.bytes, 6)}


def _c2(inputs: Mapping[str, Any]) -> dict[str, float]:
    base, own = inputs["baseline_kv_bytes_per_token"], inputs["hybrid_kv_bytes_per_token"]
    half = state_slot(load_model("nemotron-h-8b"), ServerArgs(mamba_ssm_dtype="bfloat16")).bytes
    return {
        "component": _float(crossover_tokens(NEMOTRON_8B.bytes, base)),
        "component_bf16": _float(crossover_tokens(half, base)),
        "total": round(_float(total_crossover_tokens(NEMOTRON_8B.bytes, KvCurve(own), KvCurve(base))), 3),
    }


def _c3(inputs: Mapping[str, Any]) -> dict[str, float]:
    hybrid = memory_of([inputs["tokens"]], NEMOTRON_8B.bytes, 16384)
    base = memory_of([inputs["tokens"]], 0, 131072)
    return {"baseline_gib": base / GIB, "hybrid_gib": round(hybrid / GIB, 6), "factor": round(base / hybrid, 5)}


def _c5(inputs: Mapping[str, Any]) -> dict[str, float]:
    page, kv = inputs["state_page"], inputs["attn_bytes_per_token"]
    align, every = aligned_block(page, kv, inputs["alignment"]), aligned_block(page, kv, inputs["chunk"])
    return {
        "align_block": align,
        "all_block": every,
        "all_padding": round(float(padding_share(page, every * kv)), 6),
        "align_padding": round(float(padding_share(page, align * kv)), 6),
    }


def _c6(inputs: Mapping[str, Any]) -> dict[str, float]:
    blocks = blocks_for(inputs["tokens"], inputs["block"])
    logical, padded = blocks * 24 * 4_255_744, blocks * 24 * inputs["block"] * 4096
    return {"blocks": blocks, "logical_gib": round(logical / GIB, 4), "padded_gib": round(padded / GIB, 4)}


def _c7(inputs: Mapping[str, Any]) -> dict[str, int]:
    reused, short = reused_tokens(4000, inputs["block"]), reused_tokens(900, inputs["block"])
    return {"reused": reused, "recomputed": 4200 - reused, "short_reused": short, "short_recomputed": 1100 - short}


def _d1(inputs: Mapping[str, Any]) -> dict[str, float]:
    inner = inputs["heads"] * inputs["head_dim"]
    mixer = Mamba2(inputs["heads"], inputs["head_dim"], inputs["d_state"], inputs["groups"], inner, inputs["kernel"])
    shapes = mixer.shapes(1)
    layer, kv = 2 * (shapes.conv_elements + shapes.temporal_elements), 2 * 2 * 8 * 128
    model = load_model("nemotron-nano-12b-v2")
    return {
        "state_bytes_one_layer": layer,
        "kv_bytes_one_layer_per_token": kv,
        "crossover_one_layer_pair": _float(crossover_tokens(layer, kv)),
        "mamba_layers": model.state_layers,
        "attention_layers": model.attention_layers,
        "crossover_whole_model": round(_float(crossover_tokens(28 * layer, 6 * kv)), 2),
    }


def _d2(inputs: Mapping[str, Any]) -> dict[str, float]:
    pair = Fraction(4096 * inputs["tokens"], 2_695_168)
    return {"one_layer_pair": round(float(pair), 1), "whole_model": round(float(pair * 6 / 28), 2)}


def _d3(_: Mapping[str, Any]) -> dict[str, float]:
    state, kv = 60 * 2**20, 20 * 2**10
    return {
        "t_star": _float(crossover_tokens(state, kv)),
        "state_gib": 256 * state / GIB,
        "kv_2048_gib": memory_of([2048] * 256, 0, kv) / GIB,
        "kv_8192_gib": memory_of([8192] * 256, 0, kv) / GIB,
    }


def _qwen_35b(dtype: str) -> Any:
    return state_slot(load_model("qwen3.5-35b-a3b"), ServerArgs(tp_size=4, mamba_ssm_dtype=dtype))


def _e1(_: Mapping[str, Any]) -> dict[str, float]:
    slot = _qwen_35b("float32")
    return {
        "ssm_gib_1281_slots_fp32": round(1281 * slot.ssm_bytes / GIB, 4),
        "conv_gib_1281_slots": round(1281 * slot.conv_bytes / GIB, 4),
    }


def _int8(scale: str) -> int:
    slot = _qwen_35b("float32")
    return int8_slot_bytes(
        layers=slot.layers, temporal=slot.temporal_shape, conv_bytes=slot.conv_bytes_per_layer, scale_dtype=scale
    )


def _e2(_: Mapping[str, Any]) -> dict[str, float]:
    return {
        "active_gib_257_slots": round(257 * _qwen_35b("float32").bytes / GIB, 4),
        "int8_gib_1025_slots_2byte_scales": round(1025 * _int8("bfloat16") / GIB, 4),
        "int8_bytes_per_slot_2byte_scales": _int8("bfloat16"),
        "int8_bytes_per_slot_4byte_scales": _int8("float32"),
    }


def _e3(_: Mapping[str, Any]) -> dict[str, float]:
    return {
        "vs_bf16_state": round(_qwen_35b("bfloat16").bytes / _int8("bfloat16"), 3),
        "vs_fp32_state": round(_qwen_35b("float32").bytes / _int8("float32"), 3),
    }


def _e4(inputs: Mapping[str, Any]) -> dict[str, Any]:
    rates = {str(n): [cyclic_hit_rate(p, n) for p in inputs["prefixes"]] for n in inputs["slots"]}
    return {"lru_cyclic": rates}


def _float(value: Fraction | None) -> float:
    assert value is not None
    return float(value)


FIGURES: dict[str, Callable[[Mapping[str, Any]], Any]] = {
    "A1": lambda i: i["mla_layers"] * (i["kv_lora_rank"] + i["qk_rope_head_dim"]) * DTYPE_BYTES[i["dtype"]],
    "A2": lambda i: _k3_state(i, "ssm"),
    "A3": lambda i: _k3_state(i, "conv"),
    "A4": _a4,
    "A5": lambda i: prefill_slots(i["input_length"], i["chunked_prefill_size"]),
    "A6": lambda i: admitted_requests(i["max_mamba_cache_size"], i["slots_per_request"]),
    "A7": _a7,
    "A8": lambda _: None,
    "A9": lambda i: smallest_ring(i["draft_tokens"]),
    "B1": _b1, "B2": _b2, "B3": _b3, "B4": _b4,
    "C1": _c1, "C2": _c2, "C3": _c3,
    "C4": lambda i: {"gib": round(i["slots"] * NEMOTRON_8B.bytes / GIB, 4)},
    "C5": _c5, "C6": _c6, "C7": _c7,
    "D1": _d1, "D2": _d2, "D3": _d3,
    "D4": lambda i: {"flop_per_byte": i["flops"] / (2 * DTYPE_BYTES[i["dtype"]])},
    "E1": _e1, "E2": _e2, "E3": _e3, "E4": _e4,
}  # fmt: skip
"""Every claim's id, and how its figure follows from its inputs."""

__all__ = ["FIGURES", "SOURCES", "figures", "recomputed"]
