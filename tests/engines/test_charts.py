"""What a picture shows, before it is drawn: memory cut into parts, curves cut at the top, lengths along an axis."""

from __future__ import annotations

from itertools import pairwise
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hybridcalc import load_model
from hybridcalc.deployment import HEADROOM, Rest, Workload, exact_rest
from hybridcalc.engines.charts import (
    Bar,
    Part,
    Series,
    gpu_parts,
    lengths,
    over_length,
    part,
    pool_parts,
    pools_bar,
    request_cuts,
)
from hybridcalc.engines.sglang import ServerArgs
from hybridcalc.engines.sglang.curves import memory_picture
from hybridcalc.engines.sglang.server_plan import plan as sglang_plan
from hybridcalc.findings import BudgetLine
from hybridcalc.units import GIB


def line(name: str, charged: int, allocated: int, kind: str = "state") -> BudgetLine:
    """A buffer of a budget."""
    return BudgetLine(name, kind, charged, allocated, "")


def rest(gib: float, *others: tuple[str, float]) -> Rest:
    """Memory left for the pools, and what else the GPU holds."""
    return Rest(gib, gib, gib, "given", others=others)


@pytest.mark.parametrize(
    ("each", "requests", "group", "ticks"),
    [
        (100, 4, 1, [100, 200, 300]),
        (100, 3, 1, [100, 200, 300]),
        (100, 5, 1, [100, 200, 300]),
        (3, 133, 1, [3 * i for i in range(1, 134)]),
        (2, 200, 2, [4 * i for i in range(1, 100)]),
        (1, 400, 5, [5 * i for i in range(1, 80)]),
        (1, 11, 5, [5, 10]),
        (1, 10, 5, [5, 10]),
        (1, 9, 5, [5]),
        (100, 0, 0, []),
    ],
)
def test_a_pool_is_cut_into_requests_as_finely_as_can_be_told_apart(
    each: int, requests: int, group: int, ticks: list[int]
) -> None:
    """At most 160 to the whole bar, in groups of 1, 2, 5, ...; no tick on the pool's own end."""
    bar = Bar("", (Part("weights", "weights", 80, "W"), Part("state pool", "state", 400, "S")))
    cut, found = request_cuts(bar, "state pool", each, requests)
    assert (cut.ticks, found) == (tuple(float(80 + tick) for tick in ticks if tick < 400), group)
    assert request_cuts(bar, "KV pool", each, requests) == (bar, 0)


@given(st.integers(1, 10**6), st.integers(0, 10**6), st.integers(2, 50))
def test_lengths_run_from_end_to_end_in_equal_steps(low: int, more: int, points: int) -> None:
    found = lengths(low, low + more, points)
    assert found == sorted(set(found)) and (found[0], found[-1]) == (low, low + more)
    assert len(found) <= points
    if more == 0:
        assert found == [low]
    assert lengths(low + 1, low, points) == [low + 1]


def test_steps_of_a_logarithmic_axis_are_equal() -> None:
    assert lengths(1, 10_000, 5) == [1, 10, 100, 1000, 10_000]


def test_a_budget_s_parts_are_what_is_charged_and_what_goes_beyond() -> None:
    """A buffer that takes more than its price shows the price; the rest of all of them is one part."""
    parts = pool_parts([line("state pool", 100, 130), line("draft states", 0, 7), line("KV pool", 50, 40, "kv")])
    assert parts == [
        Part("state pool", "state", 100, "S"),
        Part("KV pool", "kv", 40, "K"),
        Part("not charged", "trouble", 37, "!"),
    ]
    assert pool_parts([line("free blocks", 5, 5, "kv")]) == [Part("free blocks", "unused", 5, ".")]
    assert part("some", "other", 1).letter == "S" and part("", "other", 1).letter == "?"


def test_a_gpu_is_weights_pools_what_they_leave_and_the_headroom() -> None:
    """What is not charged comes out of the headroom; the parts are the whole GPU."""
    lines = [line("state pool", 2 * GIB, 3 * GIB), line("KV pool", 4 * GIB, 4 * GIB, "kv")]
    known = rest(7.0, ("weights", 10.0), (HEADROOM, 2.5), ("context", 0.5))
    sizes = [(p.name, p.bytes / GIB) for p in gpu_parts(lines, known)]
    assert sizes == [
        ("weights", 10.0),
        ("state pool", 2.0),
        ("KV pool", 4.0),
        ("unused", 1.0),
        ("not charged", 1.0),
        ("context", 0.5),
        (HEADROOM, 1.5),
    ]
    assert sum(size for _, size in sizes) == 7.0 + 10.0 + 2.5 + 0.5
    exact = [line("KV pool", 7 * GIB, 7 * GIB, "kv")]
    assert [p.name for p in gpu_parts(exact, known)] == ["weights", "KV pool", "context", HEADROOM]
    larger = [line("KV pool", GIB, 9 * GIB, "kv")]
    assert [(p.name, p.bytes / GIB) for p in gpu_parts(larger, rest(1.0, (HEADROOM, 2.0)))] == [
        ("KV pool", 1.0),
        ("not charged", 8.0),
    ]


@pytest.mark.parametrize(("left", "shown"), [(1999, False), (2001, True), (0, False)])
def test_unused_memory_below_a_two_thousandth_is_rounding(left: int, shown: bool) -> None:
    """Of all that is shown."""
    whole = 2000 * 2000
    lines = [line("KV pool", whole - left, whole - left, "kv")]
    assert ("unused" in [p.name for p in gpu_parts(lines, rest(whole / GIB))]) is shown


@pytest.mark.parametrize(("left", "shown"), [(100, False), (101, True)])
def test_unused_memory_below_a_hundredth_is_not_compared(left: int, shown: bool) -> None:
    lines = [line("KV pool", 10_000 - left, 10_000 - left, "kv")]
    plan = SimpleNamespace(budget=lines, rest=rest(10_000 / GIB))
    assert ("unused" in [p.name for p in pools_bar("", plan).parts]) is shown


@pytest.mark.parametrize(
    ("spread", "marks"),
    [((), []), (((9000, 1),), ["L = 9,000: 4 requests"]), (((8000, 1), (10_000, 1)), ["mean L = 9,000: 4 requests"])],
)
def test_a_curve_over_lengths_marks_the_workload(spread: tuple[tuple[int, int], ...], marks: list[str]) -> None:
    """A fifth above the highest point is shown, of one request at least."""
    plan = SimpleNamespace(workload=Workload(spread), concurrency=4)
    chart = over_length("x", "", 1000, [Series("a", "kv", ((1.0, 1.0),), "k")], [], plan, high=50)
    assert [mark.label for mark in chart.marks] == marks
    assert (chart.y.low, chart.y.high, chart.x.low, chart.x.high) == (1, 60.0, 256, 1000)
    assert chart.x.log and chart.y.log
    assert over_length("x", "", 1000, [], [], plan, high=0).y.high == 1.2


@pytest.mark.parametrize(
    ("group", "next_one"), list(pairwise([1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000]))
)
def test_requests_are_grouped_by_round_numbers(group: int, next_one: int) -> None:
    """As many pieces as a bar shows, and a byte more."""
    for size, expected in ((160 * group, group), (160 * group + 1, next_one)):
        bar = Bar("", (Part("state pool", "state", size, "S"),))
        assert request_cuts(bar, "state pool", 1, size)[1] == expected


@pytest.mark.parametrize(
    ("rest", "said"),
    [
        (28.55, "A line in the state pool every request."),
        (280.0, "A line in the state pool every 10 requests."),
        (2800.0, "A line in the state pool every 100 requests."),
    ],
)
def test_a_picture_of_memory_says_how_the_state_pool_is_cut(rest: float, said: str) -> None:
    plan = sglang_plan(load_model("kimi-k3"), ServerArgs(tp_size=8), rest=exact_rest(rest), workload=Workload.at(9216))
    assert memory_picture(plan).cuts == said
