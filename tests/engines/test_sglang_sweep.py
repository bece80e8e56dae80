"""Sweeps of SGLang: every point is the plan of its combination alone."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable
from typing import Any

import pytest

from hybridcalc import load_model, sglang
from hybridcalc.deployment import GIVEN, MemoryPart, Rest, Workload, exact_rest
from hybridcalc.engines import ENGINES
from hybridcalc.engines.sglang import memory
from hybridcalc.engines.sglang.flags import TABLE, from_words
from hybridcalc.engines.sweep import (
    MOST_ROWS,
    Point,
    SweepAxis,
    count_points,
    mark_front,
    parse_axis,
    sweep,
    sweep_view,
)
from hybridcalc.errors import HybridcalcError, InputError
from hybridcalc.hardware import find_gpu

AT_9216 = Workload.at(9216)
K3 = ["kimi-k3", "--tp", "8", "--kv-cache-dtype", "fp8_e4m3"]


def swept(
    words: list[str], specs: list[str], *, rest: Callable[..., Any] | None = None, work: Workload = AT_9216
) -> tuple[list[SweepAxis], list[Point]]:
    """Axes and every point of a sweep, on 28.55 GiB unless ``rest`` makes them of the arguments."""
    axes = [parse_axis(spec) for spec in specs]
    found = sweep(
        ENGINES["sglang"],
        axes,
        lambda more: from_words([*words, *more], {})[1],
        load_model(words[0]),
        memory=rest or (lambda _: exact_rest(28.55)),
        work=work,
    )
    return axes, list(found)


def alone(words: list[str], more: list[str], rest_gib: float, work: Workload) -> tuple[int | str, ...]:
    """What a plan of the flags themselves comes to, in the form of a point's figures."""
    try:
        plan = sglang.plan(
            load_model(words[0]), from_words([*words, *more], {})[1], rest=exact_rest(rest_gib), workload=work
        )
    except HybridcalcError as refusal:
        return 0, 0, 0, "", refusal.message
    return plan.max_mamba_cache_size, plan.logical_token_capacity, plan.concurrency, plan.binding, ""


DRAFTS = ["--speculative-algorithm", "EAGLE", "--speculative-num-draft-tokens", "4"]
SWEEPS = {
    "memory arguments": (K3, ["mamba-full-memory-ratio=0.5:2.5:0.5", "max-running-requests=8,64,2048"]),
    "K and tokens": (K3, ["max-mamba-cache-size=1,60,257,4000", "max-total-tokens=5000,900k"]),
    "strategies": (K3, ["mamba-radix-cache-strategy=extra_buffer,extra_buffer_lazy,no_buffer", "page-size=1,64,100"]),
    "shapes": (K3, ["tp-size=4,5,8", "mamba-ssm-dtype=float32,bfloat16", "mamba-full-memory-ratio=0.9,3"]),
    "context parallelism": (K3, ["dcp-size=1,8", "kv-cache-dtype=auto,fp8_e4m3"]),
    "rings": ([*K3, *DRAFTS, "--enable-linear-replayssm-spec"],
              ["linear-replayssm-cache-len=4,8,12,16", "max-mamba-cache-size=3,200"]),
    "draft states": (["qwen3.5-397b-a17b", "--tp", "8", *DRAFTS],
                     ["speculative-num-draft-tokens=2,8", "mamba-full-memory-ratio=0.5,2"]),
    "index pages": (["glm-5.3-flash", "--tp", "8", "--mamba-track-interval", "1024"],
                    ["page-size=64,1024", "mamba-full-memory-ratio=0.5,0.9"]),
    "a class with defaults of its own": (["inkling", "--tp", "8"], ["mamba-full-memory-ratio=0.2,0.9"]),
    "no KV": (["falcon-mamba-7b"], ["max-running-requests=1,9", "mamba-full-memory-ratio=0.2,0.9"]),
}  # fmt: skip


@pytest.mark.parametrize(
    "work", [AT_9216, Workload(), Workload(((9216, 3), (100, 2)))], ids=["9216", "no length", "a mix"]
)
@pytest.mark.parametrize(("words", "specs"), SWEEPS.values(), ids=SWEEPS)
def test_every_point_is_the_plan_of_its_combination_alone(words: list[str], specs: list[str], work: Workload) -> None:
    """Slots, tokens, requests, what binds, and the reason where the engine would not start."""
    axes, found = swept(words, specs, work=work)
    assert len(found) == count_points(axes, TABLE)
    for point in found:
        more = [word for axis, value in zip(axes, point.values, strict=True) for word in (f"--{axis.name}", value)]
        assert point[1:6] == alone(words, more, 28.55, work), more


def test_the_sweeps_above_hold_points_of_every_kind() -> None:
    """Both pools, the limit and the context bind somewhere; the engine refuses in the early and in the last stage."""
    found = [point for words, specs in SWEEPS.values() for point in swept(words, specs)[1]]
    assert {point.binding for point in found} == {"state", "kv", "limit", "context", ""}
    reasons = {point.refusal for point in found}
    assert any("--tp 5 does not divide" in reason for reason in reasons)
    assert any("power of two" in reason for reason in reasons)


def test_memory_and_length_are_swept_too() -> None:
    """In GiB and tokens; what is swept wins over what is given."""
    _, found = swept(K3, ["rest=20,28.55", "length=4k,9216"])
    for point in found:
        rest, length = point.values
        assert point[1:6] == alone(K3, [], float(rest), Workload.at(4096 if length == "4k" else 9216))


def test_memory_follows_the_arguments_of_a_point() -> None:
    """A larger fraction leaves more: each point is planned with its own."""
    gpu, model = find_gpu("h200"), load_model("kimi-k3")

    def left(args: sglang.ServerArgs) -> Rest:
        return memory.rest_from_gpu(gpu, MemoryPart.of("weights", 80.0, GIVEN), model, args)

    _, found = swept(K3, ["mem-fraction-static=0.7,0.9"], rest=left)
    for point in found:
        more = ["--mem-fraction-static", point.values[0]]
        rest = left(from_words([*K3, *more], {})[1]).likely_gib
        assert point[1:6] == alone(K3, more, rest, Workload.at(9216))
    assert found[0].units < found[1].units


def test_ranks_whose_weights_do_not_fit_are_points_that_do_not_start() -> None:
    """The other points are still answered."""
    gpu, model = find_gpu("h200"), load_model("kimi-k3")

    def left(args: sglang.ServerArgs) -> Rest:
        return memory.rest_from_gpu(gpu, MemoryPart.of("weights", 800 / args.tp_size, GIVEN), model, args)

    _, found = swept([*K3, "--mem-fraction-static", "0.9"], ["tp-size=4,8"], rest=left)
    assert found[0].refusal == "weights alone take 200.00 of 137.90 GiB (139.80 less about 1.9)"
    assert found[1].requests > 0 and not found[1].refusal


@pytest.mark.parametrize("spec", ["nonsense=3", "model-path=kimi-k3", "draft-layers=1,2", "trust-remote-code=1"])
def test_a_name_that_changes_no_plan_is_refused(spec: str) -> None:
    """The engine passes over flags nobody knows; all points would silently be the same."""
    with pytest.raises(InputError, match=r"(?m)^--sweep [a-z-]+: no flag that changes a plan$"):
        swept(K3, [spec])


@pytest.mark.parametrize(
    ("spec", "text"),
    [
        ("max-mamba-cache-size=0", "--max-mamba-cache-size '0' is not a whole number from 1"),
        ("max-mamba-cach-size=4", "--sweep max-mamba-cach-size: no flag that changes a plan"),
        ("rest=0", "--sweep rest=0: not a usable size"),
        ("rest=much", "--sweep rest=much: not a usable size"),
        ("length=0", "'0' is not a usable token count"),
    ],
)
def test_a_useless_value_is_refused_with_its_name(spec: str, text: str) -> None:
    with pytest.raises(InputError) as refusal:
        swept(K3, [spec])
    assert text in refusal.value.message


def test_a_misspelt_name_is_told_the_one_it_comes_closest_to() -> None:
    for spec, fix in (
        ("max-mamba-cach-size=4", "write max-mamba-cache-size"),
        ("nonsense=3", "name a memory flag of the engine, rest or length"),
    ):
        with pytest.raises(InputError) as refusal:
            swept(K3, [spec])
        assert refusal.value.fix == fix


def test_a_combination_that_makes_no_sense_is_a_refused_point() -> None:
    """The others are answered all the same."""
    _, found = swept(["kimi-k3", "--kv-cache-dtype", "fp8_e4m3"], ["tp=1,8", "dcp=1,8", "rest=0,28.55"])
    reasons = {point.values: point.refusal for point in found}
    assert reasons["8", "8", "28.55"] == ""
    assert "does not divide" in reasons["1", "8", "28.55"]
    assert reasons["8", "1", "0"] == "--sweep rest=0: not a usable size"


def test_csv_and_json_of_the_command_agree(capsys: pytest.CaptureFixture[str]) -> None:
    """The same rows in the same order: axes first, empty cells for nothing."""
    from hybridcalc.cli.app import execute

    flags = [
        "--rest",
        "28.55GiB",
        "-L",
        "9216",
        "--sweep",
        "mamba-radix-cache-strategy=extra_buffer,no_buffer",
        "--sweep",
        "mamba-full-memory-ratio=0.5:1.5:0.5",
    ]
    assert execute(["plan", *K3, *flags, "--csv"]) == 0
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert execute(["plan", *K3, *flags, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["schema"] == "hybridcalc.plan/2"
    assert rows == [
        {key: "" if value is None else str(value) for key, value in point.items()} for point in document["sweep"]
    ]
    assert list(rows[0])[:2] == ["mamba-radix-cache-strategy", "mamba-full-memory-ratio"]
    _, found = swept(K3, [flags[5], flags[7]])
    figures = [(p.units, p.requests, p.refusal, p.best) for p in mark_front(found)]
    assert figures == [
        (p["max_mamba_cache_size"] or 0, p["requests"], p["refusal"] or "", p["pareto"]) for p in document["sweep"]
    ]


@pytest.mark.parametrize("specs", [["mamba-full-memory-ratio=0.5:2:0.5", "rest=20:29:1"], ["rest=20:29:1", "tp=4,8"]])
def test_the_flags_of_points_that_differ_in_memory_alone_are_read_once(specs: list[str]) -> None:
    read: list[tuple[str, ...]] = []

    def arguments(more: list[str]) -> Any:
        read.append(tuple(more))
        return from_words(["kimi-k3", *more], {})[1]

    axes, engine = [parse_axis(spec) for spec in specs], ENGINES["sglang"]
    points = list(sweep(engine, axes, arguments, load_model("kimi-k3"), memory=exact_rest, work=AT_9216))
    assert len(points) == 10 * len(set(read)) and len(read) == len(set(read))


@pytest.mark.parametrize(("more", "rows"), [(0, MOST_ROWS), (1, 1)])
def test_every_point_is_a_row_as_long_as_they_are_few(more: int, rows: int) -> None:
    """Of more points the front alone, here one: all but one have the same requests and fewer tokens."""
    count = MOST_ROWS + more
    axis = SweepAxis("rest", tuple(f"{20 + n}" for n in range(count)))
    points = mark_front([Point((value,), 1, 1000 + n, 10, "kv", "") for n, value in enumerate(axis.values)])
    view = sweep_view(ENGINES["sglang"], "kimi-k3", [axis], points, AT_9216)
    assert [len(table.rows) for table in view.tables] == [rows]
