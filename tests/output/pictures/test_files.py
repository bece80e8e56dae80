"""Pictures in files: what is in an SVG (elements, labels), never its pixels; what is refused; and the pages' markup."""

from __future__ import annotations

import os
import re
import struct
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import make_pictures
import pytest
from command_line import run
from present import present

from hybridcalc import load_model
from hybridcalc.deployment import Workload, exact_rest
from hybridcalc.engines.charts import Chart
from hybridcalc.engines.sglang import ServerArgs
from hybridcalc.engines.sglang.curves import ratios_picture
from hybridcalc.engines.sglang.server_plan import plan as sglang_plan
from hybridcalc.output.pictures.palette import DARK, LIGHT

ROOT = Path(__file__).resolve().parents[3]
pytestmark = pytest.mark.needs("vl_convert")

SVG = "{http://www.w3.org/2000/svg}"
K3 = ("kimi-k3", "--tp", "8", "--kv-cache-dtype", "fp8_e4m3", "-L", "9216")
PLAN = ("plan", *K3, "--gpu", "h200", "--weights", "95GiB", "--mem-fraction-static", "0.9")


def _drawn(tmp_path: Path, *arguments: str) -> Any:
    target = tmp_path / "drawn.svg"
    ran = run(*arguments, "--save", str(target), "--force")
    assert (ran.code, ran.err) == (0, "")
    assert ran.out.startswith(f"{target}: ")
    return ElementTree.fromstring(target.read_text(encoding="utf-8"))


def _texts(svg: Any) -> list[str]:
    return ["".join(element.itertext()) for element in svg.iter(f"{SVG}text")]


def _fills(svg: Any, role: str) -> list[Any]:
    return [element for element in svg.iter(f"{SVG}path") if element.get("fill") == LIGHT[role]]


def test_memory_map_names_every_part_with_its_size(tmp_path: Path) -> None:
    """Weights, state pool cut by requests, KV, what is not charged and the headroom; one part each, to scale."""
    svg = _drawn(tmp_path, *PLAN)
    texts = _texts(svg)
    for label in ("weights  95.00 GiB", "state pool  13.71 GiB", "KV pool  15.31 GiB", "not charged  212.01 MiB"):
        assert label in texts
    assert "memory of one GPU" in texts
    assert any("261 state slots = 52 requests x 5 slots" in text for text in texts)
    widths: dict[str, float] = {}
    for role in ("weights", "state", "kv"):
        bar = next(path for path in _fills(svg, role) if path.get("aria-roledescription") == "bar")
        widths[role] = float(present(re.search(r"h([0-9.]+)", bar.get("d", "")))[1])
    assert widths["weights"] / widths["state"] == pytest.approx(95 / 13.7060, rel=1e-3)
    assert widths["kv"] / widths["state"] == pytest.approx(1_188_862 * 13_824 / (262 * 56_171_520), rel=1e-3)


def test_crossover_marks_both_meetings_on_log_axes(tmp_path: Path) -> None:
    svg = _drawn(tmp_path, "crossover", "kimi-k3", "--tp", "8", "--baseline", "deepseek-v3")
    texts = _texts(svg)
    for label in (
        "T*: KV = state at 2,032",
        "T*: hybrid = deepseek-v3 at 1,318",
        "tokens of one sequence",
        "memory",
        "state",
        "KV",
        "baseline deepseek-v3",
        "64 MiB",
        "4k",
    ):
        assert label in texts
    lines = [path for path in svg.iter(f"{SVG}path") if path.get("aria-roledescription") == "line mark"]
    assert {line.get("stroke") for line in lines} == {LIGHT[role] for role in ("state", "kv", "balanced", "baseline")}


def test_ratios_shade_the_binding_pool(tmp_path: Path) -> None:
    svg = _drawn(tmp_path, "ratio", *K3, "--rest", "28.55GiB")
    texts = _texts(svg)
    for label in (
        "state pool binds",
        "KV pool binds",
        "r* = 2.20",
        "ratio 0.9: 51 requests",
        "requests at once",
        "state slots admit",
        "KV tokens admit",
    ):
        assert label in texts
    assert _fills(svg, "state band") and _fills(svg, "kv band")


def test_lengths_show_both_caps_and_the_balanced_ratio(tmp_path: Path) -> None:
    texts = _texts(_drawn(tmp_path, *PLAN, "--figure", "lengths"))
    for label in (
        "state slots admit",
        "KV tokens admit",
        "at the balanced ratio of each length",
        "L = 9,216: 52 requests",
        "pools balanced at 22,862 tokens",
    ):
        assert label in texts


def test_sweep_names_the_best_trade_offs(tmp_path: Path) -> None:
    svg = _drawn(tmp_path, "plan", *K3, "--rest", "28.55GiB", "--sweep", "mamba-full-memory-ratio=0.5:2.5:0.5")
    texts = _texts(svg)
    assert "best trade-offs" in texts and "KV tokens" in texts
    points = [path for path in svg.iter(f"{SVG}path") if path.get("aria-roledescription") == "point"]
    ran = run("plan", *K3, "--rest", "28.55GiB", "--sweep", "mamba-full-memory-ratio=0.5:2.5:0.5", "--json")
    assert len(points) == len({(p["requests"], p["logical_token_capacity"]) for p in ran.document["sweep"]})


def test_change_shows_what_the_suggestions_promise(tmp_path: Path) -> None:
    """Each row's requests are those that the suggestion's effect states: the flags are read back and planned."""
    texts = _texts(_drawn(tmp_path, *PLAN, "--figure", "change"))
    promised = [
        present(re.search(r"-> ([\d,]+)", present(s)["effect"]))[1]
        for s in present(run(*PLAN, "--json").document)["suggestions"]
    ]
    rows = [match[1] for text in texts if (match := re.match(r"([\d,]+) at once with", text))]
    assert len(rows) == 2 and set(rows) <= set(promised)


def test_vllm_pages_show_their_padding(tmp_path: Path) -> None:
    svg = _drawn(
        tmp_path,
        "plan",
        "--engine",
        "vllm",
        "qwen3.6-35b-a3b",
        "--tensor-parallel-size",
        "2",
        "--max-model-len",
        "131072",
        "--available",
        "40GiB",
        "--figure",
        "pages",
    )
    texts = _texts(svg)
    assert "30 state layers: one state" in texts and "10 full attention layers: KV of 1,088 tokens" in texts
    assert "padding" in texts and any("padded by 3.82 %" in text for text in texts)


def test_slots_over_time_show_the_pool_and_the_knee(tmp_path: Path) -> None:
    texts = _texts(
        _drawn(tmp_path, "reuse", "--slots", "256", "--workload", "cyclic:prefixes=384,tokens=1000,rounds=4")
    )
    for label in ("cached states", "given: 256", "suffices: 384", "requests so far", "state slots"):
        assert label in texts


def test_a_picture_follows_the_readers_scheme_unless_told(tmp_path: Path) -> None:
    """auto brings the dark colours as a rule, dark has them alone; every role has a partner of its own."""
    assert set(LIGHT) == set(DARK)
    assert len(set(LIGHT.values())) == len(LIGHT)
    target = tmp_path / "x.svg"
    for theme, ruled, ground in (("auto", True, "ground"), ("light", False, "ground"), ("dark", False, None)):
        assert run(*PLAN, "--save", str(target), "--theme", theme, "--force").code == 0
        text = target.read_text(encoding="utf-8")
        assert ("prefers-color-scheme" in text) == ruled
        assert (f'fill="{LIGHT["ground"]}"' in text) == (ground is not None)


def _contrast(one: str, other: str) -> float:
    def luminance(colour: str) -> float:
        parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
        linear = [p / 12.92 if p <= 0.03928 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("scheme", [LIGHT, DARK], ids=["light", "dark"])
def test_text_can_be_read_on_its_ground(scheme: dict[str, str]) -> None:
    """WCAG AA: 4.5 to 1 for text, on the ground and on the shaded bands."""
    for ground in ("ground", "state band", "kv band", "limit band"):
        for text in ("text", "muted"):
            assert _contrast(scheme[text], scheme[ground]) >= 4.5, (text, ground)


def test_png_is_a_png_of_the_same_drawing(tmp_path: Path) -> None:
    target = tmp_path / "x.png"
    assert run(*PLAN, "--save", str(target)).code == 0
    data = target.read_bytes()
    assert data.startswith(b"\x89PNG\r\n\x1a\n")
    width, height = struct.unpack(">II", data[16:24])
    assert width > 1300 and height > 300


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((*PLAN, "--save", "x.pdf"), "error: 'x.pdf' is no picture\n       write FILE.svg, FILE.png or FILE.html\n"),
        (
            (*PLAN, "--save", "no/x.svg"),
            "error: 'no/x.svg' cannot be written\n       its folder must exist, and it must not be one\n",
        ),
        (
            (*PLAN, "--save", "x.svg", "--theme", "sepia"),
            "error: --theme 'sepia' is not known\n       write auto, light, dark\n",
        ),
        (
            (*PLAN, "--save", "x.svg", "--figure", "cake"),
            "error: --figure 'cake' is no picture of this answer\n"
            "       write memory, lengths, ratios, change, step, roofline\n",
        ),
        (
            (*PLAN, "--figure", "memory", "--json"),
            "error: --figure prints a picture where a document is printed\n"
            "       add --save FILE.svg, or leave out one\n",
        ),
        (
            (*PLAN, "--sweep", "mamba-full-memory-ratio=1,2", "--figure", "pareto", "--csv"),
            "error: --figure prints a picture where a document is printed\n"
            "       add --save FILE.svg, or leave out one\n",
        ),
        (
            (*PLAN, "--figure", "memory", "--explain"),
            "error: --figure takes the place of what --explain explains\n       leave out one\n",
        ),
        (
            (*PLAN, "--save", "x.svg", "--explain"),
            "error: --save takes the place of what --explain explains\n       leave out one, or save FILE.html\n",
        ),
        (
            (*PLAN, "--theme", "dark"),
            "error: --theme is about a saved picture, and none is\n       add --save FILE.svg, or leave it out\n",
        ),
        (
            (*PLAN, "--force"),
            "error: --force is about a saved picture, and none is\n       add --save FILE.svg, or leave it out\n",
        ),
        (
            (*PLAN, "--save", "x.html", "--theme", "dark"),
            "error: a page follows its reader's scheme\n       leave out --theme, or save FILE.svg\n",
        ),
        (
            (*PLAN, "--save", "x.html", "--figure", "memory"),
            "error: a page holds every picture\n       leave out --figure, or save FILE.svg\n",
        ),
        (
            (*PLAN, "--save", "a" * 300 + ".svg"),
            f"error: '{'a' * 57}...' cannot be written: File name too long\n       choose another name\n",
        ),
        (("report", "kimi-k3"), "error: report needs a file to write\n       add -o report.html\n"),
        (("report", "kimi-k3", "-o", "x.svg"), "error: -o 'x.svg' is no page\n       write -o FILE.html\n"),
        (
            ("report", "-o", "x.html"),
            "error: report needs a MODEL, a boot log or a launch line\n       see `hybridcalc report --help`\n",
        ),
    ],
)
def test_what_cannot_be_saved_says_what_to_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    ran = run(*arguments)
    assert (ran.code, ran.out, ran.err) == (2, "", message)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("arguments", [(*PLAN, "--save"), ("report", "kimi-k3", "-o")], ids=["save", "report"])
def test_no_file_is_written_over_without_force(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    target = tmp_path / "x.html"
    target.write_text("mine", encoding="utf-8")
    ran = run(*arguments, str(target))
    assert ran.code == 2 and "is there already" in ran.err and "--force" in ran.err
    assert target.read_text(encoding="utf-8") == "mine"
    assert run(*arguments, str(target), "--force").code == 0
    assert target.read_text(encoding="utf-8").startswith("<!doctype html>")


@pytest.mark.parametrize("force", [(), ("--force",)], ids=["", "force"])
def test_what_is_no_regular_file_is_not_written(tmp_path: Path, force: tuple[str, ...]) -> None:
    """A FIFO would wait for its reader for ever; a link to nowhere is followed only when told to."""
    fifo, link = tmp_path / "fifo.svg", tmp_path / "link.svg"
    os.mkfifo(fifo)
    link.symlink_to(tmp_path / "nowhere.svg")
    ran = run(*PLAN, "--save", str(fifo), *force)
    assert ran.code == 2 and "is no regular file" in ran.err
    ran = run(*PLAN, "--save", str(link), *force)
    assert ran.code == (0 if force else 2)
    assert (tmp_path / "nowhere.svg").exists() == bool(force)


@pytest.mark.parametrize("suffix", ["svg", "png"])
@pytest.mark.parametrize(
    "flags",
    [(), ("--compare", "--max-running-requests 4"), ("--sweep", "mamba-full-memory-ratio=1,2")],
    ids=["plan", "compare", "sweep"],
)
def test_what_does_not_start_says_so_in_place_of_a_picture(tmp_path: Path, flags: tuple[str, ...], suffix: str) -> None:
    asked = ("plan", "kimi-k3", "--tp", "8", "--rest", "0.3GiB", "-L", "9216", *flags)
    plain, target = run(*asked), tmp_path / f"x.{suffix}"
    for wanted in (("--save", str(target)), ("--figure", "change")):
        ran = run(*asked, *wanted)
        assert (ran.code, ran.out, ran.err) == (1, plain.out, "no picture: nothing starts\n")
    assert not target.exists()


def _curves(picture: Chart) -> dict[str, Any]:
    return {series.name: series.points for series in picture.series}


@pytest.mark.parametrize("model", ["granite-4.0-h-small", "kimi-k3", "lfm2-1.2b"])
def test_both_curves_are_seen_at_todays_ratio(model: str) -> None:
    """Each curve has points on either side of the marked ratios, or runs to the upper edge and ends there."""
    plan = sglang_plan(
        load_model(model),
        ServerArgs(tp_size=8 if model == "kimi-k3" else 1),
        rest=exact_rest(28.55),
        workload=Workload.at(9216),
    )
    picture = ratios_picture(plan)
    marks = [mark.at for mark in picture.marks]
    assert len(marks) == 2
    for name, points in _curves(picture).items():
        xs, ys = zip(*points, strict=True)
        assert max(ys) <= present(picture.y.high) * (1 + 1e-12)
        for at in marks:
            nearest = min((abs(x - at), y) for x, y in points)
            assert xs[0] <= at <= xs[-1] or nearest[1] == pytest.approx(picture.y.high), (name, at)
    if model != "lfm2-1.2b":  # there state slots admit sixty times what KV does
        assert all(points[0][0] <= 0.9 <= points[-1][0] for points in _curves(picture).values())


def test_the_most_that_runs_counts_the_request_limit(tmp_path: Path) -> None:
    texts = _texts(_drawn(tmp_path, "plan", "lfm2-8b-a1b", "--rest", "28GiB", "-L", "16", "--figure", "ratios"))
    assert "4,096 requests at most, where the pools hold" in " ".join(texts)
    assert "request limit binds" in texts and "state pool binds" not in texts  # the band is too narrow


def test_every_part_of_a_memory_map_has_a_colour_of_its_own(tmp_path: Path) -> None:
    svg = _drawn(tmp_path, *PLAN)
    bars = [path.get("fill") for path in svg.iter(f"{SVG}path") if path.get("aria-roledescription") == "bar"]
    assert len(bars) == len(set(bars)) == 7


def test_trade_offs_at_the_right_edge_are_named_too(tmp_path: Path) -> None:
    flags = (
        "--sweep",
        "mamba-full-memory-ratio=0.4:3:0.2",
        "--sweep",
        "mamba-radix-cache-strategy=extra_buffer,extra_buffer_lazy",
    )
    texts = _texts(_drawn(tmp_path, "plan", "kimi-k3", "--tp", "8", "-L", "9216", "--rest", "28.55GiB", *flags))
    named = [text for text in texts if re.fullmatch(r"[\d.]+, extra_buffer(_lazy)?", text)]
    assert sorted(named) == ["0.4, extra_buffer_lazy", "0.6, extra_buffer_lazy", "0.8, extra_buffer_lazy"]


def test_a_document_stays_alone_on_stdout(tmp_path: Path) -> None:
    ran = run(*PLAN, "--json", "--save", str(tmp_path / "x.svg"))
    assert ran.code == 0 and ran.document["schema"] == "hybridcalc.plan/2"
    assert "x.svg: One GPU" in ran.err


@pytest.mark.parametrize("name", make_pictures.PICTURES)
def test_pictures_of_the_docs_are_current(name: str, tmp_path: Path) -> None:
    make_pictures.draw(name, tmp_path / "x.svg")
    kept = (make_pictures.FOLDER / f"{name}.svg").read_text(encoding="utf-8")
    assert make_pictures.same((tmp_path / "x.svg").read_text(encoding="utf-8"), kept)


def test_a_moved_curve_is_noticed() -> None:
    kept = (make_pictures.FOLDER / "ratios.svg").read_text(encoding="utf-8")
    assert make_pictures.same(kept, kept)
    assert not make_pictures.same(kept.replace("r* = 2.20", "r* = 2.21"), kept)
    moved = re.sub(r'd="M([\d.]+),', lambda m: f'd="M{float(m[1]) + 40:g},', kept)
    assert not make_pictures.same(moved, kept)
