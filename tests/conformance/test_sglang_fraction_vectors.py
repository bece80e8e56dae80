"""The memory fraction that SGLang settles where nobody types one, held against its own resolution, to the last bit."""

import dataclasses
import json
import lzma
from pathlib import Path
from typing import Any

import pytest

from hybridcalc import Architecture, sglang
from hybridcalc.engines.sglang.fraction import NO_GPU, captured_sizes, settle_fraction

FILES = Path(__file__).resolve().parent.parent / "data" / "vectors" / "releases"
RELEASES = ("0.5.20", "0.5.22", "0.5.23")
FIELDS = {field.name for field in dataclasses.fields(sglang.ServerArgs)}
UNKNOWN_CLASSES = {"0.5.20": {"gigachat3.5"}}
"""Model classes that a release starts as something else."""


def _recorded(version: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(lzma.decompress((FILES / f"sglang-memfrac-{version}.json.xz").read_bytes()))
    return found


@pytest.mark.parametrize("version", RELEASES)
def test_every_recorded_fraction_is_met(version: str) -> None:
    """Chunk, graphs, tensor parallelism, DP attention, drafts, vision towers, roles, expert backends."""
    recorded = _recorded(version)
    met = 0
    for case in recorded["cases"]:
        expected = case["outputs"].get("mem_fraction_static")
        if expected is None or case["model"] in UNKNOWN_CLASSES.get(version, ()):
            continue
        given = {name: value for name, value in case["args"].items() if name in FIELDS}
        if "attn_dp_size" in case["args"]:
            given |= {"dp_size": case["args"]["attn_dp_size"], "enable_dp_attention": True}
        args = sglang.ServerArgs(engine_version=version, env=case.get("env") or {}, **given)
        model = Architecture.from_hf_config(recorded["geometries"][case["model"]], name=case["model"])
        settled = settle_fraction(model, args, case["gpu_mem_mib"])
        assert settled.fraction == expected, case["id"]
        assert settled.chunk // args.attn_dp_size == case["outputs"]["chunked_prefill_size"], case["id"]
        met += 1
    assert met >= 140


def test_without_a_gpu_the_fraction_is_fixed() -> None:
    from hybridcalc import load_model

    assert settle_fraction(load_model("qwen3.5-9b"), sglang.ServerArgs(), None).fraction == NO_GPU


def test_captured_sizes_grow_coarser() -> None:
    """8 + 14 + 8 + 8 sizes up to 1,024."""
    sizes = captured_sizes(1024)
    assert (len(sizes), sizes[0], sizes[7], sizes[8], sizes[-1]) == (38, 4, 32, 48, 1024)
    assert len(captured_sizes(8192)) == 58
