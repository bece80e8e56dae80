"""Floors of time: never above a public measurement, equal to their formula, monotone in what they follow from."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from throughput import WITHOUT_FLOOR, floor_of, points, speculates

import hybridcalc
from hybridcalc.errors import InputError
from hybridcalc.hardware import rates_of
from hybridcalc.speed import EXPERTS, KV, STATE, decode_step, prefill

KNOWN = [row for row in points() if row["model"] not in WITHOUT_FLOOR]
PLAIN = [row for row in KNOWN if not speculates(row)]
OFF = {
    (
        "kimi-k3",
        "1",
    ): "the published floor takes the latent projections in bf16, its checkpoint's config quantises them",
    ("qwen3.5-397b-a17b", "4"): "the published floor takes head and routers in fp8, and half of the state",
    ("nemotron-3-super", "1"): "the published floor takes the mixers in fp8, here nvfp4 is every linear layer",
}


def name(row: dict[str, str]) -> str:
    return f"{row['model']}-{row['gpu']}-{row['setting']}"


@pytest.mark.parametrize("row", PLAIN, ids=name)
def test_no_floor_is_above_a_measurement(row: dict[str, str]) -> None:
    assert 0.05 * float(row["measured_tpot_ms"]) < floor_of(row).floor_ms < float(row["measured_tpot_ms"])


@pytest.mark.parametrize(
    "row", [row for row in KNOWN if row["bound_ms"] and (row["model"], row["batch"]) not in OFF], ids=name
)
def test_floors_are_those_published(row: dict[str, str]) -> None:
    assert floor_of(row).floor_ms == pytest.approx(float(row["bound_ms"]), rel=0.03)


@pytest.mark.parametrize(
    "row", [row for row in KNOWN if row["bound_ms"] and (row["model"], row["batch"]) in OFF], ids=name
)
def test_the_other_floors_are_off_for_a_reason_and_no_further(row: dict[str, str]) -> None:
    assert floor_of(row).floor_ms == pytest.approx(float(row["bound_ms"]), rel=0.23)


@pytest.mark.parametrize(("batch", "expected"), [(16, 8.10), (64, 20.0)])
def test_kimi_k3_on_eight_b300(batch: int, expected: float) -> None:
    floor = decode_step("kimi-k3", gpu="8xb300", tp_size=8, batch=batch, context=8704, quantization="mxfp4")
    assert floor.floor_ms == pytest.approx(expected, rel=0.03)


def test_the_state_is_read_and_written() -> None:
    own = hybridcalc.plan("qwen3.5-35b-a3b", tp_size=1, rest="40GiB").to_dict()["state_bytes_per_slot"]
    floor = decode_step("qwen3.5-35b-a3b", gpu="h200", batch=256, context=1024)
    assert floor.parts[STATE] == 2 * 256 * own
    drafted = decode_step("qwen3.5-35b-a3b", gpu="h200", batch=256, context=1024, drafts=3)
    assert drafted.parts[STATE] == (1 + 4) * 256 * own


def test_the_traffic_of_state_and_kv_meets_at_twice_token_equiv() -> None:
    plan = hybridcalc.plan("qwen3.5-35b-a3b", tp_size=2, rest="40GiB").to_dict()
    meeting = round(2 * plan["token_equiv"])
    parts = [
        decode_step("qwen3.5-35b-a3b", gpu="h200", tp_size=2, batch=8, context=meeting + more).parts for more in (-1, 1)
    ]
    assert parts[0][KV] < parts[0][STATE]
    assert parts[1][KV] > parts[1][STATE]


def test_experts_are_touched_as_evenly_routed() -> None:
    whole = decode_step("qwen3.5-35b-a3b", gpu="h200", batch=100_000, context=0).parts[EXPERTS]
    for batch in (1, 2, 7, 64):
        touched = decode_step("qwen3.5-35b-a3b", gpu="h200", batch=batch, context=0).parts[EXPERTS]
        assert touched == pytest.approx(whole * (1 - (1 - 8 / 256) ** batch), rel=1e-6)


@pytest.mark.parametrize("engine", ["sglang", "vllm"])
@pytest.mark.parametrize("model", ["qwen3.5-35b-a3b", "granite-4.0-h-small", "falcon-h1-34b-instruct", "llama-3.1-8b"])
def test_both_engines_move_the_same_of_a_model(model: str, engine: str) -> None:
    asked: dict[str, Any] = {"gpu": "h100", "batch": 8, "context": 4096, "mamba_ssm_dtype": "float32"}
    one, other = (decode_step(model, engine=each, **asked).parts for each in (engine, "sglang"))
    assert one == other


@given(st.integers(1, 512), st.integers(0, 65_536), st.sampled_from((1, 2, 4, 8)))
def test_a_step_takes_longer_with_more_to_do(batch: int, context: int, tp: int) -> None:
    def ms(batch: int, context: int, tp: int) -> float:
        return decode_step("nemotron-3-nano-30b-a3b", gpu="h100", tp_size=tp, batch=batch, context=context).floor_ms

    here = ms(batch, context, tp)
    assert here <= ms(batch + 1, context, tp)
    assert here <= ms(batch, context + 1, tp)
    assert here >= ms(batch, context, 2 * tp) * 0.999 or tp == 8


def test_attention_workers_move_their_own_requests() -> None:
    spread = decode_step(
        "kimi-k3",
        gpu="b300",
        tp_size=8,
        dp_size=8,
        enable_dp_attention=True,
        batch=64,
        context=8704,
        quantization="mxfp4",
    )
    shared = decode_step("kimi-k3", gpu="b300", tp_size=8, batch=64, context=8704, quantization="mxfp4")
    assert spread.parts[KV] * 8 == shared.parts[KV]  # latent rows are whole on every rank without it
    assert spread.parts[EXPERTS] == shared.parts[EXPERTS]
    assert spread.parts[STATE] == shared.parts[STATE]
    assert spread.parts["weights"] > 4 * shared.parts["weights"]


def test_a_short_prefill_reads_the_weights_and_a_long_one_computes() -> None:
    short, long = (prefill("qwen3.6-27b", gpu="h200", tokens=tokens) for tokens in (1, 8192))
    assert short.binding == "projections"
    assert short.floor_ms == pytest.approx(
        decode_step("qwen3.6-27b", gpu="h200", batch=1, context=0).floor_ms, rel=0.05
    )
    assert long.binding == "compute"
    assert long.floor_ms == pytest.approx(2 * 25.6e9 * 8192 / 989e9, rel=0.1)


def test_the_peak_is_that_of_the_narrowest_weights() -> None:
    rates = rates_of("b200")
    assert [rates.peak(bits) for bits in (16, 8, 4)] == [2250, 4500, 9000]
    assert rates_of("a100-80gb").peak(4) >= rates_of("a100-80gb").peak(16)


def test_what_has_no_rates_is_refused() -> None:
    with pytest.raises(InputError, match="a size has no bandwidth"):
        rates_of("80GiB")
    with pytest.raises(InputError, match="no GPU"):
        rates_of("h9000")
    with pytest.raises(InputError, match="0 requests"):
        decode_step("kimi-k3", gpu="b300", batch=0)
