"""Every allocation that SGLang's own classes recorded, from tensors that torch makes: on meta whole, on cpu in part."""

from __future__ import annotations

from functools import cache

import pytest
from sglang_cases import CASES, arguments_of, model_of

from hybridcalc.engines.sglang.planner import Prepared

pytest.importorskip("torch")

from hybridcalc.crosscheck.devices import CpuMeter, MetaMeter
from hybridcalc.crosscheck.sglang_tensors import full_sizes, stage_tensors
from hybridcalc.crosscheck.tensors import Sizes
from hybridcalc.crosscheck.verification import measure, verify_shard
from hybridcalc.engines.sglang.planner import allocation, prepare, size
from hybridcalc.errors import Refusal
from hybridcalc.units import MIB

ALLOCATED = [case_id for case_id, case in CASES.items() if "alloc_mamba" in case["outputs"]]
POOLS = ("conv_state", "ssm_state", "intermediate_ssm", "intermediate_conv_window")


def recorded(case_id: str) -> dict[str, int]:
    """The allocation figures of a case, under the names of the tensors' figures."""
    outputs = CASES[case_id]["outputs"]
    states = outputs["alloc_mamba"]
    figures: dict[str, int] = {name: states[name] for name in POOLS} | states["ring"]
    if "int8_ckpt" in states:
        figures["int8_ckpt"] = states["int8_ckpt"]["bytes"]
    if "ple_short_conv" in states:
        figures["ple_short_conv"] = states["ple_short_conv"]
    if "alloc_kv" in outputs:
        kv = outputs["alloc_kv"]
        figures["alloc_kv"] = kv if isinstance(kv, int) else sum(kv)
    if "alloc_req_to_token" in outputs:
        figures["alloc_req_to_token"] = outputs["alloc_req_to_token"]
    return figures


@cache
def server(case_id: str) -> tuple[Prepared, Sizes]:
    """A case's start-up, and the counts of its pools; those of a refused KV pool are in the refusal."""
    ready = prepare(model_of(case_id), arguments_of(case_id))
    sizing = size(ready, CASES[case_id]["inputs"]["budget_gib"])
    try:
        return ready, full_sizes(ready, sizing, allocation(ready, sizing))
    except Refusal:
        return ready, Sizes(sizing.state.slots, sizing.requests + 1, sizing.tokens)


@pytest.mark.parametrize("case_id", ALLOCATED)
def test_every_recorded_allocation_comes_out_of_tensors_on_meta(case_id: str) -> None:
    """alloc_mamba with rings, draft states and int8 pools, alloc_kv and the request table, at full size."""
    ready, full = server(case_id)
    tensors = stage_tensors(ready, 0, full)
    readings, _, _ = measure(tensors, MetaMeter())
    found = dict.fromkeys(recorded(case_id), 0)
    for tensor, reading in zip(tensors, readings, strict=True):
        if tensor.figure in found:
            found[tensor.figure] += reading.storage_bytes
        assert reading.view_problem == ""
    assert found == recorded(case_id)


def small_ones() -> list[str]:
    """The case with the smallest slot of each model, and of these the dozen with the smallest."""

    def slot(case_id: str) -> tuple[int, str]:
        return CASES[case_id]["outputs"]["bytes_per_slot"], case_id

    smallest: dict[str, str] = {}
    for case_id in sorted(ALLOCATED, key=slot):
        smallest.setdefault(CASES[case_id]["model"], case_id)
    return list(smallest.values())[:12]


SMALL = small_ones()


@pytest.mark.parametrize("case_id", SMALL)
def test_twelve_small_ones_are_allocated_and_touched(case_id: str) -> None:
    """On cpu at whichever scale 128 MiB hold: every page is resident, and two scales lead to the recorded figures."""
    ready, full = server(case_id)
    shard = verify_shard(
        lambda sizes: stage_tensors(ready, 0, sizes), full, ready.args.tokens_per_page, CpuMeter(), limit=128 * MIB
    )
    assert shard.ok, [problem for row in shard.rows for problem in row.problems]
    assert all(row.took.measured == row.took.expected is not None for row in shard.rows)
    assert {name: shard.figure(name) for name in recorded(case_id)} == recorded(case_id)


def test_the_selection_covers_what_was_recorded() -> None:
    assert (len(ALLOCATED), len(SMALL)) == (149, 12)
    assert sum("alloc_kv" in CASES[case_id]["outputs"] for case_id in ALLOCATED) == 145
