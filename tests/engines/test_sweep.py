"""Sweeps of any engine: axes and their bounds, the count of combinations, the Pareto front."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hybridcalc import load_model
from hybridcalc.architecture import Architecture
from hybridcalc.deployment import Workload, exact_rest
from hybridcalc.engines.engine import Engine
from hybridcalc.engines.sglang.flags import TABLE as SGLANG
from hybridcalc.engines.sweep import (
    MOST_POINTS,
    OPTIONS,
    Outcome,
    Point,
    SweepAxis,
    Sweeping,
    count_points,
    field_of,
    mark_front,
    parse_axis,
    sweep,
)
from hybridcalc.engines.vllm.flags import TABLE as VLLM
from hybridcalc.errors import HybridcalcError, InputError, Refusal
from hybridcalc.output.document import print_csv
from hybridcalc.shell.flags import Flag, FlagTable


@pytest.mark.parametrize(
    ("text", "name", "values"),
    [
        ("page-size=1,64", "page-size", ("1", "64")),
        ("--page-size=1", "page-size", ("1",)),
        ("-tp=1,2", "tp", ("1", "2")),
        ("kv-cache-dtype= auto , fp8_e4m3 ,", "kv-cache-dtype", ("auto", "fp8_e4m3")),
        ("r=1:3:1", "r", ("1", "2", "3")),
        ("r=1:4:2", "r", ("1", "3")),
        ("r=0.1:0.5:0.1", "r", ("0.1", "0.2", "0.3", "0.4", "0.5")),
        ("r=-1:1:1", "r", ("-1", "0", "1")),
        ("r=5:5:1", "r", ("5",)),
        ("r=10:100:45", "r", ("10", "55", "100")),
        ("r=1e1:2e1:1e1", "r", ("10", "20")),
        ("r=0.90:1:0.05", "r", ("0.9", "0.95", "1")),
    ],
)
def test_values_are_listed_or_ranged_over_with_both_ends(text: str, name: str, values: tuple[str, ...]) -> None:
    """Decimals are exact, ends inclusive, and a value is written as one would type it."""
    assert parse_axis(text) == SweepAxis(name, values)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "=",
        "r",
        "r=",
        "=1,2",
        "r=,",
        "--=1",
        "r=1:2:0",
        "r=1:2:-1",
        "r=2:1:1",
        "r=a:b:c",
        "r=1:nan:1",
        "r=1:inf:1",
        "r=::",
        "r=1:2:",
        f"r=0:{MOST_POINTS}:1",
        "r=0:1:1e-30",
        "r=0:1e300:1",
        "r=0:1e999999:1",
        "r=0:1:1e-999999",
        "r=0:1:1e999999",
        "r=-1e99:1:1",
        "r=" + "1," * (MOST_POINTS + 1),
    ],
    ids=lambda text: text[:12],
)
def test_what_is_no_axis_is_refused_and_named(text: str, steps: Callable[..., Any]) -> None:
    """In one line, before anything is counted out."""

    def refuse() -> Any:
        with pytest.raises(InputError, match=r"^--sweep '") as refusal:
            parse_axis(text)
        return refusal

    assert len(refuse().value.message) < 120
    assert steps(refuse) < 2 * len(text) + 2_000


@given(st.integers(-50, 50), st.integers(0, 40), st.integers(1, 9), st.integers(0, 3))
def test_a_range_is_every_multiple_of_the_step_up_to_its_end(low: int, span: int, step: int, digits: int) -> None:
    """Against exact fractions, with up to three decimals."""
    scale = 10**digits
    written = ":".join(f"{number / scale:.{digits}f}" for number in (low, low + span, step))
    expected = [Fraction(number, scale) for number in range(low, low + span + 1, step)]
    assert [Fraction(value) for value in parse_axis(f"r={written}").values] == expected


def test_the_number_of_combinations_is_bounded() -> None:
    many = tuple(str(number) for number in range(500))
    assert count_points([SweepAxis("a", many), SweepAxis("b", many)], VLLM) == MOST_POINTS
    with pytest.raises(InputError, match="500,000 combinations are more than 250,000"):
        count_points([SweepAxis("a", many), SweepAxis("b", many), SweepAxis("c", ("1", "2"))], VLLM)


@pytest.mark.parametrize(
    ("table", "first", "second"),
    [
        (SGLANG, "a", "a"),
        (SGLANG, "tp", "tp-size"),
        (SGLANG, "mamba-full", "mamba-full-memory-ratio"),
        (SGLANG, "dp", "attn-dp-size"),
        (VLLM, "length", "length"),
        (VLLM, "gpu-memory-utilization", "device-memory-utilization"),
        (VLLM, "max-num-s", "max-num-seqs"),
    ],
)
def test_a_setting_is_swept_once_whatever_its_spelling(table: FlagTable, first: str, second: str) -> None:
    with pytest.raises(InputError, match=r"(?m)^--sweep names a setting twice$"):
        count_points([SweepAxis(first, ("1",)), SweepAxis(second, ("1",))], table)


@pytest.mark.parametrize(
    ("table", "name", "field"),
    [
        (SGLANG, "tp", "tp_size"),
        (VLLM, "block-size", "block_size"),
        (VLLM, "max-num-b", "max_num_batched_tokens"),
        (VLLM, "available", "available"),
        (VLLM, "length", "length"),
        (VLLM, "tp", "tensor_parallel_size"),
    ],
)
def test_a_name_is_the_argument_it_sets(table: FlagTable, name: str, field: str) -> None:
    assert field_of(name, table) == field


points = st.builds(
    Point, st.just(()), st.just(1), st.integers(0, 6), st.integers(0, 6), st.just(""), st.sampled_from(["", "", "no"]),
    st.just(False),
)  # fmt: skip


@given(st.lists(points, max_size=12))
def test_the_front_is_what_no_other_point_dominates(found: list[Point]) -> None:
    """By definition: no point that starts has as many requests and tokens and more of one."""

    def dominated(point: Point) -> bool:
        return any(
            other.requests >= point.requests and other.tokens >= point.tokens and other[2:4] != point[2:4]
            for other in found
            if not other.refusal
        )

    marked = mark_front(found)
    assert [point._replace(best=False) for point in marked] == found
    assert [point.best for point in marked] == [not point.refusal and not dominated(point) for point in found]


def test_points_off_the_front_are_kept_and_not_copied() -> None:
    """240,000 of them lie in memory once."""
    points = [Point(("1",), 1, 10, 1, "", ""), Point(("2",), 1, 20, 2, "", ""), Point(("3",), 0, 0, 0, "", "no")]
    marked = mark_front(points)
    assert [point.best for point in marked] == [False, True, False]
    assert marked[0] is points[0]
    assert marked[2] is points[2]


def test_rows_are_printed_as_they_come(capsys: pytest.CaptureFixture[str]) -> None:
    def rows() -> Iterator[dict[str, int]]:
        yield {"a": 1}
        assert capsys.readouterr().out == "a\n1\n"
        yield {"a": 2}

    print_csv(rows())
    assert capsys.readouterr().out == "2\n"


TOY = FlagTable(
    "Toy", (Flag("model", ("--model",), "str"), Flag("width", ("--width", "-w"), "int", 1, 99),
            Flag("doubled", ("--doubled-up",), "switch"), Flag("tripled", ("--tripled",), "flag")), (), (),
    read_tokens=int, multiples="",
)  # fmt: skip


MODEL, NO_LENGTH = load_model("nemotron-h-8b"), Workload()


class Swept(Engine):
    """An engine as a sweep asks it."""

    name, title, memory_option = "toy", "Toy", "room"
    flags = TOY
    sweeping = None

    def __init__(
        self,
        solve: Callable[..., Any],
        *,
        prepare: Callable[..., Any] = lambda _, width: width,
        cheap: tuple[str, ...] = (),
    ) -> None:
        self.sweeping = Sweeping(prepare, lambda _, *asked: solve(*asked), cheap, ("units", "tokens"), "units")


def toy(
    specs: list[str],
    *,
    work: Workload = NO_LENGTH,
    memory: Callable[..., Any] = lambda _: exact_rest(4.0),
    cheap: tuple[str, ...] = (),
    before: tuple[str, ...] = (),
) -> tuple[list[SweepAxis], list[Point], list[int]]:
    """Axes and points of an engine that answers what it was asked: width x GiB units, the length in tokens; and what it
    prepared for. ``before`` are words of the launch line; switches double and triple the width.
    """
    prepared = []

    def arguments(words: list[str]) -> int:
        read: dict[str, int] = TOY.read([*before, *words])
        return read.get("--width", 1) * (2 if read.get("--doubled-up") else 1) * (3 if read.get("--tripled") else 1)

    def solve(width: int, gib: float, work: Workload) -> Outcome:
        if width == 13:
            raise InputError("13 is refused")
        return Outcome(int(width * gib), int(work.mean_length or 0), width, "units")

    def prepare(_model: Architecture, width: int) -> int:
        prepared.append(width)
        return width

    axes = [parse_axis(spec) for spec in specs]
    engine = Swept(solve, prepare=prepare, cheap=cheap)
    return axes, list(sweep(engine, axes, arguments, MODEL, memory=memory, work=work)), prepared


def test_every_combination_comes_in_order_with_its_own_memory_and_length() -> None:
    """The last axis turns fastest; what is swept wins over what is given."""
    axes, found, _ = toy(["width=1,2", "room=2,8GiB", "length=1k,10"], work=Workload.at(5))
    assert [point.values for point in found] == [
        (width, room, length) for width in ("1", "2") for room in ("2", "8GiB") for length in ("1k", "10")
    ]
    assert [(point.units, point.tokens) for point in found] == [
        (2, 1024),
        (2, 10),
        (8, 1024),
        (8, 10),
        (4, 1024),
        (4, 10),
        (16, 1024),
        (16, 10),
    ]
    assert count_points(axes, TOY) == len(found)


def test_what_is_not_swept_follows_the_arguments() -> None:
    _, found, _ = toy(["width=1,3"], memory=lambda width: exact_rest(10.0 * width), work=Workload.at(7))
    assert [(point.units, point.tokens, point.requests) for point in found] == [(10, 7, 1), (90, 7, 3)]


def test_a_mix_of_lengths_is_handed_on_whole_and_a_swept_length_replaces_it() -> None:
    """What a solver makes of unequal requests, and of the prefix they share, is its own affair."""
    mix, asked = Workload(((8000, 20), (1000, 4)), None, None, 900, 100), []

    def solve(_args: int, _gib: float, work: Workload) -> Outcome:
        asked.append(work)
        return Outcome(1, 1, 1, "units")

    for specs in (["width=1"], ["length=10,20"]):
        axes = [parse_axis(spec) for spec in specs]
        list(sweep(Swept(solve), axes, lambda _: 1, MODEL, memory=lambda _: exact_rest(1.0), work=mix))
    assert asked == [mix, Workload.at(10), Workload.at(20)]


@pytest.mark.parametrize(
    ("specs", "before", "units"),
    [
        (["doubled-up=true,false"], (), [8, 4]),
        (["doubled-up=false,true"], ("--doubled-up",), [4, 8]),
        (["doubled=ON,no"], (), [8, 4]),
        (["tripled=yes,off,1,0"], (), [12, 4, 12, 4]),
        (["w=2,3"], (), [8, 12]),
        (["-w=2", "tripled=true"], (), [24]),
    ],
)
def test_switches_and_short_names_are_swept_too(specs: list[str], before: tuple[str, ...], units: list[int]) -> None:
    """On and off in any of the usual words; a switch that the launch line sets is off again where false is swept."""
    _, found, _ = toy(specs, before=before)
    assert [point.units for point in found] == units
    assert not any(point.refusal for point in found)


def test_names_are_checked_before_any_argument_is_read() -> None:
    """A misspelt name must be said to be one, not what reading it as a flag would stumble on."""

    def arguments(words: Any) -> None:
        raise AssertionError(words)

    engine = Swept(lambda *_: Outcome(1, 1, 1, ""))
    for spec in ("height=1", "gpu=h100", "doubled=2"):
        with pytest.raises(InputError, match=r"^--sweep "):
            list(sweep(engine, [parse_axis(spec)], arguments, MODEL, memory=lambda _: exact_rest(1.0), work=NO_LENGTH))


def test_cheap_arguments_memory_and_length_do_not_part_preparations() -> None:
    """What is prepared once is shared by all points that differ in these alone."""
    _, _, prepared = toy(["width=1,2", "room=1,2", "length=1,2"], cheap=("width",))
    assert prepared == [1]
    _, _, prepared = toy(["width=1,2", "room=1,2"])
    assert prepared == [1, 2]


def test_an_engine_that_is_not_swept_says_so() -> None:
    engine = Swept(lambda *_: None)
    engine.sweeping = None
    with pytest.raises(InputError, match=r"(?m)^--sweep is not for Toy$"):
        list(sweep(engine, [parse_axis("width=1")], len, MODEL, memory=exact_rest, work=NO_LENGTH))


def test_a_refused_combination_is_a_point_with_the_reason() -> None:
    _, found, _ = toy(["width=2,13,100", "room=1"])
    assert [(point.requests, point.refusal) for point in found] == [
        (2, ""),
        (0, "13 is refused"),
        (0, "--width '100' is not a whole number from 1 to 99"),
    ]
    assert found[1].to_dict([SweepAxis("width", ()), SweepAxis("room", ())], ("units", "words")) == {
        "width": 13,
        "room": 1,
        "units": None,
        "words": None,
        "requests": 0,
        "binding": None,
        "refusal": "13 is refused",
        "pareto": False,
    }


@pytest.mark.parametrize(
    ("specs", "text"),
    [
        (["height=1"], "--sweep height: no flag that changes a plan"),
        (["model=a,b"], "--sweep model: no flag that changes a plan"),
        *(([f"{option}=1"], f"--sweep {option}: no flag that changes a plan") for option in OPTIONS),
        (["doubled-up=2"], "--sweep doubled-up=2: a switch is true or false"),
        (["tripled=maybe"], "--sweep tripled=maybe: a switch is true or false"),
        (["width=0"], "--width '0' is not a whole number from 1 to 99"),
        (["room=much"], "--sweep room=much: not a usable size"),
        (["length=0"], "'0' is not a usable token count"),
    ],
)
def test_a_sweep_without_a_single_sensible_point_is_refused(specs: list[str], text: str) -> None:
    with pytest.raises(InputError) as refusal:
        toy(specs)
    assert refusal.value.message == text


def refusing(error: HybridcalcError, *, at: set[int]) -> Callable[[int], Any]:
    """Memory that some widths do not leave."""

    def memory(width: int) -> Any:
        if width in at:
            raise error
        return exact_rest(4.0)

    return memory


def test_weights_that_never_fit_are_refused_points_and_words_that_never_read_an_error() -> None:
    """What makes no sense anywhere is said once; what does not start anywhere is the answer of a sweep."""
    refused = Refusal("the weights do not fit", stage="load", rule="HC001", fix="")
    _, found, _ = toy(["width=1,2"], memory=refusing(refused, at={1, 2}))
    assert [point.refusal for point in found] == ["the weights do not fit"] * 2
    senseless = InputError("no such memory")
    _, found, _ = toy(["width=1,2"], memory=refusing(senseless, at={1}))
    assert [(point.refusal, point.units) for point in found] == [("no such memory", 0), ("", 8)]
    with pytest.raises(InputError, match=r"(?m)^no such memory$"):
        toy(["width=1,2"], memory=refusing(senseless, at={1, 2}))
