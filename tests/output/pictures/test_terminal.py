"""Pictures in a terminal: 80 columns, without colour, in ASCII; and the scales that all drawings share."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from command_line import run
from hypothesis import given
from hypothesis import strategies as st

from hybridcalc.engines.charts import Axis, Bar, Bars, Chart, Mark, Part, Series, cut
from hybridcalc.output.pictures.axes import decimals, powers, round_steps
from hybridcalc.output.pictures.terminal import draw
from hybridcalc.output.pictures.vega import LETTER_PX, WIDTH, mark_rows

PLAN = (
    "plan",
    "kimi-k3",
    "--tp",
    "8",
    "--gpu",
    "h200",
    "--weights",
    "95GiB",
    "--mem-fraction-static",
    "0.9",
    "-L",
    "9k",
)
VLLM = ("plan", "--engine", "vllm", "qwen3.6-35b-a3b", "--tensor-parallel-size", "2", "--max-model-len", "131072",
        "--available", "40GiB", "-L", "8k")  # fmt: skip
FIGURES = [
    *((PLAN, figure) for figure in ("memory", "lengths", "ratios", "change")),
    *((VLLM, figure) for figure in ("memory", "pages", "lengths", "change")),
    (("ratio", "kimi-k3", "--tp", "8", "-L", "9k"), "balance"),
    (("plan", "kimi-k3", "--tp", "8", "--rest", "28GiB", "-L", "9k", "--sweep", "mamba-full-memory-ratio=0.5:3:0.5"),
     "pareto"),
    (("reuse", "--slots", "256", "--workload", "cyclic:prefixes=384,tokens=1000,rounds=4"), "slots"),
]  # fmt: skip


@pytest.mark.needs("plotext")
@pytest.mark.parametrize(("command", "figure"), FIGURES, ids=[f"{c[0]} {f}" for c, f in FIGURES])
def test_every_figure_fits_80_columns_without_colour(command: tuple[str, ...], figure: str) -> None:
    ran = run(*command, "--figure", figure)
    assert (ran.code, ran.err) == (0, "")
    lines = ran.out.splitlines()
    assert len(lines) >= 7 and "\x1b" not in ran.out
    assert max(map(len, lines)) <= 80
    assert not any(line != line.rstrip() for line in lines)


@pytest.mark.needs("plotext")
def test_a_narrow_terminal_an_old_encoding_and_colour_behave() -> None:
    plain = run(*PLAN, "--figure", "lengths", encoding="ascii", COLUMNS="60")
    assert plain.code == 0 and plain.out.isascii()
    assert max(map(len, plain.out.splitlines())) <= 60
    coloured = run(*PLAN, "--figure", "memory", FORCE_COLOR="1")
    assert "\x1b[36m" in coloured.out
    assert "\x1b" not in run(*PLAN, "--figure", "memory", FORCE_COLOR="1", NO_COLOR="1").out


sizes = st.lists(st.integers(0, 2**40), min_size=1, max_size=6)


@given(st.lists(sizes, min_size=1, max_size=3), st.integers(24, 120))
def test_bars_are_to_scale_and_share_one_scale(rows: list[list[int]], width: int) -> None:
    """Each part's columns are its share of the longest bar, to within one; every row has the same width."""
    bars = Bars(
        "t",
        "",
        "memory",
        tuple(
            Bar(f"row {number}", tuple(Part(f"part {i}", "state", size, "abcdef"[i]) for i, size in enumerate(row)))
            for number, row in enumerate(rows)
        ),
    )
    drawn = draw(bars, width=width, colour=False)
    assert drawn is not None
    lines = [line for line in drawn.splitlines() if line.startswith("  [")]
    assert len({len(line) for line in lines}) == 1
    whole, inner = max(map(sum, rows)) or 1, len(lines[0]) - 4
    for row, line in zip(rows, lines, strict=True):
        for i, size in enumerate(row):
            assert abs(line.count("abcdef"[i]) - size * inner / whole) <= 1


@given(st.floats(1, 1e12), st.floats(1.01, 1e12))
def test_ticks_are_few_inside_and_increasing(low: float, factor: float) -> None:
    ticks = powers(low, low * factor)
    assert 1 < len(ticks) <= 10
    assert ticks == sorted(ticks)
    assert all(low * 0.999 <= tick <= low * factor * 1.001 for tick in ticks)


@given(st.lists(st.floats(1, 1000), min_size=1, max_size=3, unique=True))
def test_labels_of_marks_stay_inside_where_there_is_room(places: list[float]) -> None:
    """A label lies on the side where it stays inside the picture."""
    series = (Series("s", "state", ((1, 1), (1000, 2)), "s"),)
    chart = Chart(
        "t",
        "",
        Axis("x", log=True, low=1, high=1000),
        Axis("y"),
        series,
        tuple(Mark(place, "a label") for place in places),
    )
    from math import log

    for row in mark_rows(chart):
        at = log(row["x"]) / log(1000) * WIDTH
        wide = 10 + LETTER_PX * len(row["label"])
        assert at - wide >= 0 if row["left"] else at + wide <= WIDTH


@given(st.lists(st.floats(1, 1000), min_size=1, max_size=5, unique=True))
def test_no_line_strikes_a_label_to_its_right(places: list[float]) -> None:
    """Lines begin at their own labels: none to the right of one reaches up to it, as far as labels lie on the right."""
    series = (Series("s", "state", ((1, 1), (1000, 2)), "s"),)
    chart = Chart(
        "t",
        "",
        Axis("x", log=True, low=1, high=1000),
        Axis("y"),
        series,
        tuple(Mark(place, "label") for place in places),
    )
    rows = mark_rows(chart)
    assert sorted(row["row"] for row in rows) == list(range(len(places)))
    right = [row for row in rows if not row["left"]]
    for one in right:
        assert all(other["row"] < one["row"] for other in right if other["x"] > one["x"])
    for one in (row for row in rows if row["left"]):
        assert all(other["row"] < one["row"] for other in rows if other["x"] < one["x"])


@given(st.floats(1e-9, 1e6), st.floats(1.5, 1e9))
def test_decimals_are_inside_and_increasing(low: float, factor: float) -> None:
    ticks = decimals(low, low * factor)
    assert ticks == sorted(set(ticks)) and len(ticks) <= 30
    assert all(low * 0.999 <= tick <= low * factor * 1.001 for tick in ticks)
    assert ticks or factor < 2.6


@given(st.floats(0, 1e6), st.floats(1, 1e9))
def test_round_steps_are_whole_and_few(low: float, wide: float) -> None:
    ticks = round_steps(low, low + wide)
    assert len(ticks) <= 6 and all(tick == round(tick) for tick in ticks)


@given(st.lists(st.floats(0, 100), min_size=2, max_size=20), st.floats(1, 99))
def test_a_cut_curve_ends_at_the_edge(heights: list[float], top: float) -> None:
    curve = [(2.0**i, y) for i, y in enumerate(heights)]
    shown = cut(curve, top)
    assert all(y <= top for _, y in shown)
    assert {point for point in curve if point[1] <= top} <= set(shown)
    if heights[0] > top >= heights[1]:
        assert shown[0][1] == top and 1 <= shown[0][0] <= 2


def test_a_part_too_thin_to_draw_is_said() -> None:
    out = run("plan", "kimi-k3", "--tp", "8", "--rest", "28.55GiB", "-L", "9216", "--figure", "memory").out
    assert "(thin) not charged" in out and "!" not in out and "a line every" not in out


def test_curves_need_the_library_and_bars_do_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "plotext", None)
    ran = run(*PLAN, "--figure", "lengths")
    assert (ran.code, ran.err) == (
        2,
        "error: curves in the terminal need the plotting library\n       pip install 'hybridcalc[plot]'\n",
    )
    assert run(*PLAN, "--figure", "memory").code == 0


def test_files_need_the_library(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A page draws its pictures itself."""
    monkeypatch.setitem(sys.modules, "vl_convert", None)
    for suffix in ("svg", "png"):
        ran = run(*PLAN, "--save", str(tmp_path / f"x.{suffix}"))
        assert (ran.code, ran.err) == (
            2,
            "error: pictures in files need the plotting library\n       pip install 'hybridcalc[plot]'\n",
        )
    assert list(tmp_path.iterdir()) == []
    assert run(*PLAN, "--save", str(tmp_path / "x.html")).code == 0
