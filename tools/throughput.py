"""Public measurements of hybrids at work beside the floor of a step: the table of docs/speed.md, and a test's points.

tests/data/throughput.tsv has one measurement a row, with its source; an empty cell is a figure its source does not
state.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from hybridcalc.speed import Floor, decode_step, prefill

DATA = Path(__file__).resolve().parent.parent / "tests" / "data" / "throughput.tsv"
PROMPTS = DATA.with_name("ttft.tsv")
PRESETS = {
    "nemotron-3-super": "nemotron-3-super-120b-a12b",
    "lfm2.5-8b-a1b": "lfm2-8b-a1b",
    "lfm2.5-1.2b": "lfm2.5-1.2b-instruct",
}
RELEASED = {
    ("nemotron-3-super", "NVFP4"): "nvidia/NVIDIA-Nemotron-3-Super-120B-A12B-NVFP4",
    ("nemotron-3-super", "FP8"): "nvidia/NVIDIA-Nemotron-3-Super-120B-A12B-FP8",
}
"""Checkpoints whose layout is known module by module."""
SPECULATES = ("with MTP", "FP8 MTP", "DSpark", ", MTP")
HEAD = ("| model | GPUs | requests | tokens | setting | measured ms | floor ms | share |", "|---" * 8 + "|")

PROMPT_HEAD = (
    "| model | GPUs | tokens | weights | measured ms | floor ms | share of 16 bits |", "|---" * 7 + "|",
)  # fmt: skip

PUBLISHED_HEAD = (
    "| model | GPUs | setting | floor ms | published ms | counted as there ms | what is counted otherwise there |",
    "|---" * 7 + "|",
)

ARGUMENTS = {("mamba_ssm_dtype", "bfloat16"): "bf16 state", ("kv_cache_dtype", "fp8_e4m3"): "fp8 kv"}
"""Arguments beside ranks and quantisation, and the words of a setting that stand for them."""

Point = dict[str, str]


def points() -> list[Point]:
    """Every measurement."""
    with DATA.open(encoding="utf-8", newline="") as table:
        return list(csv.DictReader(table, delimiter="\t"))


def speculates(point: Point) -> bool:
    """Whether a step yields more than one token of a request: its time per token may be below the floor of a step."""
    return any(word in point["setting"] for word in SPECULATES)


def why_no_floor(point: Point) -> str:
    """What a source leaves out that a floor follows from; nothing where it says all."""
    if not point["tp"].isdecimal() or point["gpu"].endswith("?"):
        return "its source does not name the GPU"
    if "IQ4" in point["setting"]:
        return "quantised as llama.cpp does"
    return "" if point["context_mean"] else "its source states no length"


def floor_of(point: Point) -> Floor:
    """The floor of the step that was measured."""
    setting = point["setting"].lower()
    given: dict[str, Any] = {name: value for (name, value), words in ARGUMENTS.items() if words in setting}
    released = RELEASED.get((point["model"], point["setting"].split()[0]))
    quantization = next((name for name in ("mxfp4", "nvfp4", "fp8") if setting.startswith(name)), None)
    return decode_step(
        released or PRESETS.get(point["model"], point["model"]),
        gpu=point["gpu"],
        tp_size=int(point["tp"]),
        batch=int(point["batch"]),
        context=int(point["context_mean"]),
        quantization=None if released else quantization,
        **given,
    )


class Otherwise(NamedTuple):
    """What the published floor of some points counts otherwise: bytes of all ranks together more than here, and the
    share of the KV and of the experts that it takes.
    """

    model: str
    setting: str
    what: str
    more_bytes: float = 0.0
    kv: float = 1.0
    experts: float = 1.0


MIXERS, ATTENTION, SHARED, LATENTS, HEAD_397B, ROUTERS_397B = (
    4_385_438_720,
    285_212_672,
    1_761_607_680,
    335_544_320,
    1_017_118_720,
    125_829_120,
)
"""Parameters: mixers, attention, shared experts and latent projections of Nemotron-3-Super; head and routers of
Qwen3.5-397B-A17B.
"""
MIXED = 5_669_201_224 + 536_870_928 + 1_818_034_792 + 654_311_456
"""Bytes of the same four groups in the NVFP4 release of Nemotron-3-Super."""
MXFP4, NVFP4 = 0.53125, 0.5625
"""Bytes of a parameter, its share of a scale counted."""
OTHERWISE = (
    Otherwise("kimi-k3", "NVFP4", "experts in nvfp4", experts=NVFP4 / MXFP4),
    Otherwise("nemotron-3-super", "NVFP4",
              "all mixers and KV in fp8, attention in bf16, the rest in nvfp4; the release keeps more in 8 and 16 bits",
              MIXERS + 2 * ATTENTION + NVFP4 * (SHARED + LATENTS) - MIXED, kv=0.5),
    Otherwise("nemotron-3-super", "FP8", "attention, latent projections and KV in fp8; the release keeps them in bf16",
              -ATTENTION - LATENTS, kv=0.5),
    Otherwise("qwen3.5-397b-a17b", "FP8", "head and routers in fp8, which its checkpoint keeps in bf16",
              -HEAD_397B - ROUTERS_397B),
)  # fmt: skip


def as_published(point: Point) -> tuple[float, str]:
    """The floor of a point as its published one counts, ms, and what that counts otherwise."""
    floor = floor_of(point)
    for each in OTHERWISE:
        if point["model"] == each.model and point["setting"].startswith(each.setting):
            more = each.more_bytes / int(point["tp"])
            more += (each.kv - 1) * floor.parts["kv"] + (each.experts - 1) * floor.parts["experts"]
            return floor.floor_ms + more / floor.rates.bandwidth_gbs / 1e6, each.what
    return floor.floor_ms, ""


def published_table() -> Iterator[str]:
    """The rows of docs/speed.md about floors that were published and count otherwise."""
    yield from PUBLISHED_HEAD
    for point in points():
        if point["bound_ms"] and not why_no_floor(point):
            there, what = as_published(point)
            if what:
                cells = [
                    point["model"],
                    f"{point['tp']} x {point['gpu']}",
                    point["setting"],
                    f"{floor_of(point).floor_ms:,.2f}",
                ]
                yield f"| {' | '.join([*cells, point['bound_ms'], f'{there:,.2f}', what])} |"


def prompts() -> list[Point]:
    """Every measurement of a prompt alone: the time to its first token."""
    with PROMPTS.open(encoding="utf-8", newline="") as table:
        return list(csv.DictReader(table, delimiter="\t"))


def prompt_of(point: Point) -> Floor:
    """The floor of the prompt that was measured."""
    quantization = None if point["setting"] == "bf16" else point["setting"].lower()
    return prefill(
        point["model"],
        gpu=point["gpu"],
        tokens=int(point["tokens"]),
        tp_size=int(point["tp"]),
        quantization=quantization,
    )


def prompt_table() -> Iterator[str]:
    """The rows of docs/speed.md about prompts."""
    yield from PROMPT_HEAD
    for point in prompts():
        floor, measured = prompt_of(point), float(point["measured_ttft_ms"])
        plain = floor.compute_ms * floor.tflops / floor.rates.peak(16)
        cells = [f"[{point['model']}]({point['source']})", f"{point['tp']} x {point['gpu']}", point["tokens"]]
        cells += [point["setting"], f"{measured:,.0f}", f"{floor.floor_ms:,.1f}", f"{plain / measured:.2f}"]
        yield f"| {' | '.join(cells)} |"


def table() -> Iterator[str]:
    """The rows of docs/speed.md, those without speculation first."""
    yield from HEAD
    for point in sorted(points(), key=speculates):
        measured = float(point["measured_tpot_ms"])
        cells = [f"[{point['model']}]({point['source']})", f"{point['tp']} x {point['gpu']}", point["batch"]]
        cells += [point["context_mean"], point["setting"], f"{measured:,.2f}"]
        if lacking := why_no_floor(point):
            cells += ["", lacking]
        else:
            floor = floor_of(point).floor_ms
            cells += [f"{floor:,.2f}", f"{floor / measured:.2f}"]
        yield f"| {' | '.join(cells)} |"
