"""Pictures of a plan: every point is what a plan of it would say, and the line under the title says what is drawn."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import pytest

from hybridcalc import load_model, sglang, vllm
from hybridcalc.deployment import Workload, exact_rest
from hybridcalc.engines.sglang import curves
from hybridcalc.engines.sglang.server_plan import Plan, plan
from hybridcalc.engines.vllm import curves as vllm_curves
from hybridcalc.errors import InputError
from hybridcalc.units import GIB

KIMI = load_model("kimi-k3")


def planned(length: int | None = 9216, **flags: Any) -> Plan:
    """Kimi-K3 on 8 GPUs with 28.55 GiB for the pools of each."""
    work = Workload.at(length) if length is not None else Workload()
    return plan(KIMI, sglang.ServerArgs(tp_size=8, **flags), rest=exact_rest(28.55), workload=work)


@pytest.mark.parametrize(
    ("flags", "length", "low", "high", "top", "bands", "marks", "told"),
    [
        ({}, 9216, 0.05, 20.0, 2.2 * 56, "state kv", ["r* = 1.10", "ratio 0.9: 51 requests"], "56 requests at most"),
        ({}, None, 0.05, 20.0, 2.2 * 59, "state kv", ["r* = 1.24", "ratio 0.9: 51 requests"], "59 requests at most"),
        ({"max_running_requests": 20}, 9216, 0.05, 20.0, 2.2 * 56, "state limit kv",
         ["r* = 1.10", "ratio 0.9: 20 requests"],
         "20 requests at most, where the pools hold 56: the request limit binds"),
        ({"max_running_requests": 56}, 9216, 0.05, 20.0, 2.2 * 56, "state kv",
         ["r* = 1.10", "ratio 0.9: 51 requests"], "56 requests at most"),
        ({"max_mamba_cache_size": 257}, 9216, 0.05, 20.0, 2.2 * 56, "state kv", ["r* = 1.10"], "56 requests at most"),
        ({"mamba_full_memory_ratio": 100.0}, 9216, 0.05, 200.0, 2.2 * 56, "state kv",
         ["r* = 1.10", "ratio 100: 1 request"], "56 requests at most"),
        ({"mamba_full_memory_ratio": 0.04}, 9216, 0.02, 20.0, 1.1 * 115, "state kv",
         ["r* = 1.10", "ratio 0.04: 3 requests"], "56 requests at most"),
    ],
)  # fmt: skip
def test_requests_over_the_ratio(
    flags: dict[str, Any],
    length: int | None,
    low: float,
    high: float,
    top: float,
    bands: str,
    marks: list[str],
    told: str,
) -> None:
    """From 0.05 to 20, or beyond today's ratio by as much again; no higher than 2.2 times what the pools hold, unless
    today's ratio wants it.
    """
    drawn = planned(length, **flags)
    chart = curves.ratios_picture(drawn)
    assert (chart.x.low, chart.x.high, chart.y.low) == (low, high, 0) and abs((chart.y.high or 0) - top) < 1e-6
    assert " ".join(band.role for band in chart.bands) == bands
    assert all(one.high == other.low for one, other in zip(chart.bands, chart.bands[1:], strict=False))
    assert (chart.bands[0].low, round(chart.bands[-1].high, 9)) == (low, high)
    assert [mark.label for mark in chart.marks] == marks
    assert chart.told == f"Requests of {length or 8192:,} tokens; 28.55 GiB for both pools; {told}."
    served = chart.series[0].points
    assert len(served) == 129
    for ratio, requests in served[::16]:
        own = {name: value for name, value in flags.items() if name != "max_mamba_cache_size"}
        assert planned(length or 8192, **{**own, "mamba_full_memory_ratio": ratio}).concurrency == requests


@pytest.mark.parametrize(
    ("length", "ratio", "top", "ends"),
    [
        (256, 0.9, 8.0 * 106, (0.05, 158.724)),
        (500_000, 0.1, 1.1 * 9, (0.005079, 20.0)),
        (500_000, 100.0, 8.0 * 2, (0.005079, 200.0)),
        (1_000_000, 100.0, 8.0, (0.0025396, 200.0)),
        (2_000_000, 1.0, 8.0, (0.0012698, 20.0)),
    ],
)
def test_a_picture_of_few_requests_is_eight_times_as_high_at_most(
    length: int, ratio: float, top: float, ends: tuple[float, float]
) -> None:
    """Of the requests of the best ratio, none as one; it reaches from a fourth of r* = 5 x 56,171,520 / 27,648 L
    to four times it.
    """
    chart = curves.ratios_picture(planned(length, mamba_full_memory_ratio=ratio))
    assert chart.y.high == pytest.approx(top)
    assert (chart.x.low, chart.x.high) == pytest.approx(ends, rel=1e-4)


def test_a_ratio_is_drawn_where_it_splits_something() -> None:
    with pytest.raises(InputError) as caught:
        curves.ratio_chart("x", sglang.ServerArgs(), planned().ready, 28.55, Workload(), None, None)
    assert (caught.value.message, caught.value.fix) == ("x has no ratio to draw", "it needs a state and KV that grows")
    with pytest.raises(InputError) as caught:
        curves.ratio_chart("x", sglang.ServerArgs(), planned().ready, 0.01, Workload(), Fraction(1), None)
    assert (caught.value.message, caught.value.fix) == ("no ratio starts in 10.24 MiB", "give more memory")


@pytest.mark.parametrize(
    ("flags", "length", "end", "met"),
    [({}, 9216, 2**20, 11_462), ({}, 300_000, 1_200_000, 11_462), ({"dcp_size": 8}, None, 2**20, 91_702),
     ({"max_mamba_cache_size": 5}, 9216, 2**20, None)],
)  # fmt: skip
def test_requests_over_their_length(flags: dict[str, Any], length: int | None, end: int, met: int | None) -> None:
    """To the model's own end, 2**20 tokens or four times the length asked for; both pools, and the lower of them."""
    drawn = planned(length, **flags)
    chart = curves.lengths_picture(drawn)
    assert (chart.x.low, chart.x.high) == (256, end)
    answer, state, kv, balanced = chart.series
    slots, tokens = drawn.sizing.state.slots, drawn.logical_token_capacity
    assert all(len(series.points) == 65 for series in chart.series)
    assert {y for _, y in state.points} == {slots // 5}
    assert all(y == tokens // x for x, y in kv.points)
    assert [y for _, y in answer.points] == [
        min(a, b, drawn.sizing.requests) for (_, a), (_, b) in zip(state.points, kv.points, strict=True)
    ]
    assert balanced.style == "dashed" and all(
        a >= b for (_, a), (_, b) in zip(balanced.points, balanced.points[1:], strict=False)
    )
    met_at = [mark.label for mark in chart.marks if mark.label.startswith("pools")]
    assert met_at == ([f"pools balanced at {met:,} tokens"] if met else [f"pools balanced at {tokens:,} tokens"])


@pytest.mark.parametrize("length", [256, 9216, 131_072])
def test_the_balanced_curve_is_the_memory_over_a_request(length: int) -> None:
    """28.55 GiB without the padding slot, over 5 slots of 56,171,520 B and 27,648 B a token."""
    requests = curves.balanced_at(planned().ready, 28.55)(length)
    assert requests == (int(28.55 * GIB) - 56_171_520) // (5 * 56_171_520 + 27_648 * length)


@pytest.mark.parametrize(
    ("flags", "length", "said", "title"),
    [
        ({}, 9216, "257 state slots = 51 requests x 5 slots; 584,602 KV tokens of 27,648 B. "
         "51 requests of 9,216 tokens: state pool binds.", "tp 8"),
        ({"max_running_requests": 20}, 9216, "257 state slots = 51 requests x 5 slots; 584,602 KV tokens of 27,648 B. "
         "20 requests of 9,216 tokens: request limit binds.", "tp 8"),
        ({"dcp_size": 8, "kv_cache_dtype": "fp8_e4m3"}, None, "257 state slots = 51 requests x 5 slots; 1,169,204 KV "
         "tokens of 13,824 B. 51 requests at once.", "tp 8, dcp 8, KV fp8_e4m3"),
    ],
)  # fmt: skip
def test_memory_of_the_pools(flags: dict[str, Any], length: int | None, said: str, title: str) -> None:
    picture = curves.memory_picture(planned(length, **flags))
    assert (picture.title, picture.told) == (f"Memory for the pools of one GPU: kimi-k3, {title}", said)
    assert picture.axis == "memory of the pools"


NEMOTRON, NEXT = "nemotron-h-8b", "qwen3-next-80b-a3b"


def vllm_plan(model: str = NEMOTRON, length: int | None = None, **flags: Any) -> Any:
    """40 GiB for the blocks of one GPU, 8,192 tokens at most."""
    work = Workload.at(length) if length else Workload()
    args = vllm.EngineArgs(**{"max_model_len": 8192, **flags})
    return vllm.plan(load_model(model), args, available_bytes=40 * GIB, workload=work)


@pytest.mark.parametrize("flags", [{}, {"max_num_seqs": 20}, {"max_model_len": 1000}])
def test_blocks_over_the_length_of_requests(flags: dict[str, Any]) -> None:
    """Up to max_model_len and no further; what runs is the lower of blocks and max_num_seqs."""
    drawn = vllm_plan(**flags)
    chart = vllm_curves.lengths_picture(drawn)
    answer, blocks, limit = chart.series
    assert max(x for x, _ in blocks.points) <= drawn.max_model_len and blocks.points[0][0] == 256
    assert {y for _, y in limit.points} == {drawn.args.seqs} and limit.name == f"--max-num-seqs {drawn.args.seqs:,}"
    for (x, runs), (_, fit) in zip(answer.points, blocks.points, strict=True):
        assert runs == min(fit, drawn.args.seqs)
        if int(x) % 7 == 0:
            assert vllm_plan(length=int(x), **flags).running.fits == fit
    assert chart.told == f"{drawn.usable_blocks:,} usable blocks; {drawn.fixed_blocks} of a request's hold its states."
    assert next(mark.label for mark in chart.marks) == f"max_model_len {drawn.max_model_len:,}"
    assert chart.y.high == 1.2 * max(drawn.args.seqs, blocks.points[0][1])


@pytest.mark.parametrize(
    ("model", "flags", "told", "bars"),
    [
        (NEMOTRON, {}, "Every page is 4,259,840 B, so a block is 1,040 tokens; a state is padded by 0.10 %. "
         "7 groups of up to 4 layers.", ["24 state layers: one state", "4 full attention layers: KV of 1,040 tokens"]),
        (NEMOTRON, {"max_num_seqs": 20, "kv_cache_dtype": "fp8"}, "Every page is 4,259,840 B, so a block is "
         "2,080 tokens; a state is padded by 0.10 %. 7 groups of up to 4 layers.",
         ["24 state layers: one state", "4 full attention layers: KV of 2,080 tokens"]),
    ],
)  # fmt: skip
def test_pages_of_a_plan(model: str, flags: dict[str, Any], told: str, bars: list[str]) -> None:
    picture = vllm_curves.pages_picture(vllm_plan(model, **flags))
    assert picture.told == told
    assert [bar.name for bar in picture.bars] == bars
    page = vllm_plan(model, **flags).ready.pages.page
    assert all(sum(part.bytes for part in bar.parts) == page for bar in picture.bars)


def test_empty_layer_slots_are_counted_and_memory_says_what_binds() -> None:
    lfm2 = vllm_plan("lfm2-1.2b")
    empty = sum(max(lfm2.group_sizes) - size for size in lfm2.group_sizes)
    assert empty and vllm_curves.pages_picture(lfm2).told.endswith(f"layers, {empty} layer slots empty.")
    memory = vllm_curves.memory_picture(vllm_plan(length=4200))
    assert memory.told == "2,520 blocks of 16.25 MiB; 109 requests of 4,200 tokens: the blocks bind."
    assert memory.title == "The block pool of one GPU: nemotron-h-8b, vLLM, tp 1"
    assert memory.axis == "memory of the pool"
    assert vllm_curves.memory_picture(vllm_plan(length=4200, max_num_seqs=7)).told.endswith(
        "7 requests of 4,200 tokens: max_num_seqs binds."
    )
