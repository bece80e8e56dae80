"""llama.cpp's caches against what it printed itself, to the printed digit: 64 contexts of eight models (b11434)."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from hybridcalc import llamacpp, load_model
from hybridcalc.engines.llamacpp.memory import compute_buffer
from hybridcalc.units import MIB

RECORDED = json.loads((Path(__file__).parents[1] / "data" / "vectors" / "llamacpp.json").read_text("utf-8"))
CASES = {f"{number}-{case['model']}": case for number, case in enumerate(RECORDED["cases"])}
_KV = re.compile(
    r"llama_kv_cache: size = +([\d.]+) MiB \( *(\d+) cells, +(\d+) layers, +(\d+)/(\d+) seqs\), "
    r"K \((\w+)\): +([\d.]+) MiB, V \((\w+)\): +([\d.]+) MiB"
)
_RS = re.compile(
    r"llama_memory_recurrent: size = +([\d.]+) MiB \( *(\d+) cells, +(\d+) layers, +(\d+) seqs +(\d+) rs_seq\), "
    r"R \((\w+)\): +([\d.]+) MiB, S \((\w+)\): +([\d.]+) MiB"
)


def planned(case: dict[str, Any]) -> llamacpp.Plan:
    return llamacpp.plan(load_model(case["model"]), llamacpp.ContextParams(**case["args"]))


def test_there_are_as_many_as_were_recorded() -> None:
    assert len(CASES) == 64 and all(case["ok"] for case in CASES.values())


@pytest.mark.parametrize("case_id", CASES)
def test_every_printed_figure(case_id: str) -> None:
    """Sizes, cells, layers, sequences, streams, types and both halves of both caches; the context as it was settled."""
    case = CASES[case_id]
    plan, text = planned(case), "\n".join(planned(case).log_lines)
    assert [list(found) for found in _KV.findall(text)] == case["kv"]
    assert [list(found) for found in _RS.findall(text)] == case["rs"]
    figures = plan.engine_figures
    assert ([[str(figures["n_ctx"])]], [[str(figures["n_ctx_seq"])]]) == (case["nctx"], case["nctxseq"])


@pytest.mark.parametrize("case_id", CASES)
def test_output_buffer_and_the_bounds_of_the_compute_buffer(case_id: str) -> None:
    case, plan = CASES[case_id], planned(CASES[case_id])
    assert [[f"{plan.output_bytes / MIB:.2f}"]] == case["outb"]
    bounds = compute_buffer(plan.ready)
    assert bounds is not None and bounds.low <= float(case["compute"][0][0]) * MIB <= bounds.high


@pytest.mark.parametrize("model", RECORDED["models"])
def test_geometry_of_the_models(model: str) -> None:
    """Rows of K and V and both parts of a state, in elements of a layer."""
    recorded = RECORDED["models"][model]
    ready = llamacpp.plan(load_model(model), llamacpp.ContextParams(n_ctx=4096)).ready
    cache = ready.caches[0]
    found = (cache.layers, cache.k_row // 2, cache.v_row // 2, ready.state_layers, ready.r, ready.s)
    assert found == tuple(recorded[key] for key in ("kv_layers", "k_row", "v_row", "state_layers", "r", "s"))
