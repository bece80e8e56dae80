"""Public measurements of hybrids at work beside the floor of a step: the table of docs/speed.md, and a test's points.

tests/data/throughput.tsv has one measurement a row, with its source; an empty cell is a figure its source does not
state.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator
from pathlib import Path

from hybridcalc.speed import Floor, decode_step

DATA = Path(__file__).resolve().parent.parent / "tests" / "data" / "throughput.tsv"
PRESETS = {
    "nemotron-3-super": "nemotron-3-super-120b-a12b",
    "lfm2.5-8b-a1b": "lfm2-8b-a1b",
    "lfm2.5-1.2b": "lfm2.5-1.2b-instruct",
}
WITHOUT_FLOOR = {
    "inkling": "its source states no length",
    "qwen3.8-27b": "quantised as llama.cpp does",
    "qwen3-next-80b-a3b": "its source does not name the GPU",
}
SPECULATES = ("with MTP", "FP8 MTP", "DSpark", ", MTP")
HEAD = ("| model | GPUs | requests | tokens | setting | measured ms | floor ms | share |", "|---" * 8 + "|")

Point = dict[str, str]


def points() -> list[Point]:
    """Every measurement."""
    with DATA.open(encoding="utf-8", newline="") as table:
        return list(csv.DictReader(table, delimiter="\t"))


def speculates(point: Point) -> bool:
    """Whether a step yields more than one token of a request: its time per token may be below the floor of a step."""
    return any(word in point["setting"] for word in SPECULATES)


def floor_of(point: Point) -> Floor:
    """The floor of the step that was measured."""
    quantization = next((name for name in ("mxfp4", "nvfp4", "fp8") if name in point["setting"].lower()), None)
    return decode_step(
        PRESETS.get(point["model"], point["model"]),
        gpu=point["gpu"],
        tp_size=int(point["tp"]),
        batch=int(point["batch"]),
        context=int(point["context_mean"]),
        quantization=quantization,
    )


def table() -> Iterator[str]:
    """The rows of docs/speed.md, those without speculation first."""
    yield from HEAD
    for point in sorted(points(), key=speculates):
        measured = float(point["measured_tpot_ms"])
        cells = [f"[{point['model']}]({point['source']})", f"{point['tp']} x {point['gpu']}", point["batch"]]
        cells += [point["context_mean"], point["setting"], f"{measured:,.2f}"]
        if point["model"] in WITHOUT_FLOOR:
            cells += ["", WITHOUT_FLOOR[point["model"]]]
        else:
            floor = floor_of(point).floor_ms
            cells += [f"{floor:,.2f}", f"{floor / measured:.2f}"]
        yield f"| {' | '.join(cells)} |"
