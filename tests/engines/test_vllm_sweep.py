"""Sweeps of vLLM: every point is the plan of its combination alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from hybridcalc import load_model, vllm
from hybridcalc.architecture import Architecture
from hybridcalc.deployment import GIVEN, MemoryPart, Rest, Workload, exact_rest
from hybridcalc.engines import ENGINES
from hybridcalc.engines.sweep import (
    MOST_PREPARED,
    Point,
    Solver,
    SweepAxis,
    count_points,
    mark_front,
    parse_axis,
    sweep,
)
from hybridcalc.engines.vllm import EngineArgs, memory
from hybridcalc.engines.vllm import fit as vllm_fit
from hybridcalc.engines.vllm.fit import SWEEPING
from hybridcalc.engines.vllm.flags import TABLE, from_words
from hybridcalc.engines.vllm.pages import Prepared
from hybridcalc.errors import HybridcalcError, InputError
from hybridcalc.hardware import find_gpu

AT_4200 = Workload.at(4200)
NEMOTRON = ["nemotron-h-8b", "--max-model-len", "8192"]


def swept(
    words: list[str], specs: list[str], *, rest: Callable[..., Any] | None = None, work: Workload = AT_4200
) -> tuple[list[SweepAxis], list[Point]]:
    """Axes and every point of a sweep, on 40 GiB unless ``rest`` makes them of the arguments."""
    axes = [parse_axis(spec) for spec in specs]
    found = sweep(
        ENGINES["vllm"],
        axes,
        lambda more: from_words([*words, *more], {})[1],
        load_model(words[0]),
        memory=rest or (lambda _: exact_rest(40.0)),
        work=work,
    )
    return axes, list(found)


def alone(words: list[str], more: list[str], gib: float, work: Workload) -> tuple[int | str, ...]:
    """What a plan of the flags themselves comes to, in the form of a point's figures."""
    try:
        plan = vllm.plan(load_model(words[0]), from_words([*words, *more], {})[1], rest=exact_rest(gib), workload=work)
    except HybridcalcError as refusal:
        return 0, 0, 0, "", refusal.message
    return plan.num_blocks, plan.kv_cache_size_tokens, plan.concurrency, plan.binding, ""


SWEEPS = {
    "limits": (NEMOTRON, ["max-num-seqs=1,109,300,5000", "num-gpu-blocks-override=20,27,500"]),
    "lengths": (NEMOTRON[:1], ["max-model-len=1k,8k,131072,-1", "max-num-seqs=1,64"]),
    "dtypes": (NEMOTRON, ["kv-cache-dtype=auto,fp8", "mamba-ssm-cache-dtype=auto,bfloat16"]),
    "blocks": (NEMOTRON, ["block-size=16,24,512,1024", "prefix-match-unit=16,1040"]),
    "ranks": (NEMOTRON, ["tensor-parallel-size=1,2,3,8,16", "max-num-seqs=64,9999"]),
    "modes": (NEMOTRON, ["mamba-cache-mode=align,none", "max-num-batched-tokens=2048,8192"]),
    "attention alone": (["llama-3-8b"], ["block-size=16,32", "max-num-seqs=8,9999"]),
}  # fmt: skip


@pytest.mark.parametrize(
    "work", [AT_4200, Workload(), Workload(((4200, 3), (100, 2)))], ids=["4200", "no length", "a mix"]
)
@pytest.mark.parametrize(("words", "specs"), SWEEPS.values(), ids=SWEEPS)
def test_every_point_is_the_plan_of_its_combination_alone(words: list[str], specs: list[str], work: Workload) -> None:
    """Blocks, tokens, requests, what binds, and the reason where the engine would not start."""
    axes, found = swept(words, specs, work=work)
    assert len(found) == count_points(axes, TABLE)
    for point in found:
        more = [word for axis, value in zip(axes, point.values, strict=True) for word in (f"--{axis.name}", value)]
        assert point[1:6] == alone(words, more, 40.0, work), more


def test_the_sweeps_above_hold_points_of_every_kind() -> None:
    """Blocks, the limit and the longest length bind somewhere, and the engine refuses early and late."""
    found = [point for words, specs in SWEEPS.values() for point in swept(words, specs)[1]]
    assert {point.binding for point in found} == {"blocks", "limit", "context", ""}
    reasons = " ".join(point.refusal for point in found)
    for words in ("does not divide the 32", "takes no block of 24", "exceeds the", "one request of", "is beyond the"):
        assert words in reasons


def test_memory_and_length_are_swept_too() -> None:
    """In GiB and tokens; what is swept wins over what is given."""
    _, found = swept(NEMOTRON, ["available=20,40GiB", "length=4k,4200"])
    for point in found:
        gib, length = point.values
        assert point[1:6] == alone(
            NEMOTRON, [], float(gib.removesuffix("GiB")), Workload.at(4096 if length == "4k" else 4200)
        )


def test_memory_follows_the_arguments_of_a_point() -> None:
    """A larger share leaves more: each point is planned with its own."""
    gpu = find_gpu("h200")

    def left(args: EngineArgs) -> Rest:
        return memory.rest_from_gpu(gpu, MemoryPart.of("weights", 16.0, GIVEN), load_model("nemotron-h-8b"), args)

    _, found = swept([*NEMOTRON, "--max-num-seqs", "1024"], ["gpu-memory-utilization=0.5,0.7,0.9"], rest=left)
    for point in found:
        more = ["--max-num-seqs", "1024", "--gpu-memory-utilization", point.values[0]]
        gib = left(from_words([*NEMOTRON, *more], {})[1]).likely_gib
        assert point[1:6] == alone(NEMOTRON, more, gib, AT_4200)
    assert found[0].units < found[1].units < found[2].units
    assert [point.best for point in mark_front(found)] == [False, False, True]


def test_weights_that_do_not_fit_are_points_that_do_not_start() -> None:
    gpu, given = find_gpu("h100"), MemoryPart.of("weights", 16.0, GIVEN)

    def left(args: EngineArgs) -> Rest:
        return memory.rest_from_gpu(gpu, given, load_model("nemotron-h-8b"), args)

    _, found = swept(NEMOTRON, ["gpu-memory-utilization=0.1,0.9"], rest=left)
    assert found[0].refusal.startswith("weights alone take 16.00 of 7.92 GiB")
    assert found[1].requests > 0 and not found[1].refusal


@pytest.mark.parametrize("spec", ["nonsense=3", "model=kimi-k3", "port=1", "gpu=h100", "weights=16"])
def test_a_name_that_changes_no_plan_is_refused(spec: str) -> None:
    """Flags nobody needs change nothing, and options of the command are none of the engine."""
    with pytest.raises(InputError, match=r"(?m)^--sweep [a-z]+: no flag that changes a plan$"):
        swept(NEMOTRON, [spec])


@pytest.mark.parametrize(
    ("spec", "before", "flags"),
    [
        ("tp=1,2", (), [["-tp", "1"], ["-tp", "2"]]),
        ("enforce-eager=true,false", ("--max-num-seqs", "9999"), [["--enforce-eager"], ["--no-enforce-eager"]]),
        ("enforce=1,0", ("--max-num-seqs", "9999"), [["--enforce-eager"], ["--no-enforce-eager"]]),
        ("enable-prefix-caching=false,true", (), [["--no-enable-prefix-caching"], ["--enable-prefix-caching"]]),
        (
            "speculative-config.num_speculative_tokens=1,3",
            ("--speculative-config.method", "ngram"),
            [["--speculative-config.num_speculative_tokens", number] for number in "13"],
        ),
    ],
)
def test_switches_short_and_dotted_names_are_swept(spec: str, before: tuple[str, ...], flags: list[list[str]]) -> None:
    """Each point is the plan of what one would type; 9,999 sequences start without full graphs alone."""
    words = [*NEMOTRON, *before]
    _, found = swept(words, [spec])
    assert [point[1:6] for point in found] == [alone(words, more, 40.0, AT_4200) for more in flags]
    assert len({point[1:6] for point in found}) == 2


def test_a_value_that_is_no_switch_is_refused() -> None:
    with pytest.raises(InputError, match=r"(?m)^--sweep enforce-eager=2: a switch is true or false$") as caught:
        swept(NEMOTRON, ["enforce-eager=2"])
    assert caught.value.fix == "write enforce-eager=true,false"


def test_a_sweep_of_many_shapes_keeps_few_of_them() -> None:
    """Memory is bounded whatever is swept: what is prepared for old shapes is let go."""
    solver, work = Solver(load_model("nemotron-h-8b"), SWEEPING), Workload()
    args = EngineArgs(max_model_len=8192, max_num_seqs=1)
    first = solver(args, (0,), 40.0, work)
    for shape in range(1, MOST_PREPARED + 10):
        assert solver(args, (shape,), 40.0, work) == first
        assert len(solver._prepared) <= MOST_PREPARED


def test_points_that_differ_in_limits_and_memory_alone_share_one_preparation(monkeypatch: pytest.MonkeyPatch) -> None:
    """What makes a sweep of a quarter million points answerable."""
    made = []

    def counted(model: Architecture, args: EngineArgs) -> Prepared:
        made.append(args)
        ready: Prepared = SWEEPING.prepare(model, args)
        return ready

    monkeypatch.setattr(vllm_fit, "SWEEPING", SWEEPING._replace(prepare=counted))
    axes = [parse_axis("max-num-seqs=1:50:1"), parse_axis("available=1:50:1")]
    assert count_points(axes, TABLE) == 2_500
    found = list(
        sweep(
            ENGINES["vllm"],
            axes,
            lambda more: from_words([*NEMOTRON, *more], {})[1],
            load_model("nemotron-h-8b"),
            memory=lambda _: exact_rest(40.0),
            work=AT_4200,
        )
    )
    assert len(made) == 1
    assert (found[-1].values, found[-1].requests, found[-1].binding) == (("50", "50"), 50, "limit")


def test_a_refusal_stops_every_point_as_it_stops_a_plan() -> None:
    """Nothing is starred that does not start."""
    _, found = swept(["granite-4.0-h-small", "--block-size", "24"], ["max-num-seqs=8,16"])
    assert [point.requests for point in found] == [0, 0]
    assert all(point.refusal.startswith("FLASH_ATTN takes no block of 24 tokens: ") for point in found)
