"""Every vLLM pool that its own classes sized, from buffers that torch makes, with the views of all layers on them."""

from __future__ import annotations

from functools import cache
from itertools import pairwise

import pytest
from present import present
from vllm_cases import NEWEST, cases

pytest.importorskip("torch")

from hybridcalc.crosscheck.devices import MetaMeter
from hybridcalc.crosscheck.tensors import ELEMENT_BYTES, Sizes
from hybridcalc.crosscheck.verification import measure, verify_shard
from hybridcalc.crosscheck.vllm_tensors import block_tensors, page_bytes
from hybridcalc.engines.vllm.planner import Prepared, prepare

CASES = {case.id: case for case in cases(NEWEST)}
POOLED = [case_id for case_id, case in CASES.items() if "num_blocks" in case.recorded]


@cache
def prepared(case_id: str) -> Prepared:
    return prepare(CASES[case_id].model, CASES[case_id].args)


@pytest.mark.parametrize("case_id", POOLED)
def test_buffers_are_what_the_engine_allocates(case_id: str) -> None:
    """num_blocks x bytes_per_block; and the state views have the shapes and dtypes of the layer."""
    outputs = CASES[case_id].recorded
    tensors = block_tensors(prepared(case_id), Sizes(blocks=outputs["num_blocks"]))
    readings, _, _ = measure(tensors, MetaMeter())
    assert sum(reading.storage_bytes for reading in readings) == outputs["num_blocks"] * outputs["bytes_per_block"]
    assert [reading.view_problem for reading in readings] == [""] * len(tensors)
    states = [view for tensor in tensors for view in tensor.views if " state " in view.name]
    for part, (shape, dtype) in enumerate(zip(outputs["state_shapes"], outputs["state_dtypes"], strict=True)):
        views = [view for view in states if view.name.endswith(f"state {part}")]
        assert {view.shape for view in views} == {(outputs["num_blocks"], *shape)}
        assert {view.dtype for view in views} == {dtype}


@pytest.mark.parametrize("case_id", POOLED[:: len(POOLED) // 20])
def test_pages_of_a_group_do_not_overlap(case_id: str) -> None:
    """Every byte that a group's layers touch in two blocks is touched once; other groups reuse the same bytes."""
    ready = prepared(case_id)
    for group in range(len(ready.groups)):
        spans = []
        for number, tensor in enumerate(block_tensors(ready, Sizes(blocks=2))):
            for view in tensor.views:
                if not view.name.startswith(f"group {group} "):
                    continue
                size = view.nominal_bytes // 2
                step = view.stride[0] * ELEMENT_BYTES[view.dtype]
                start = view.offset * ELEMENT_BYTES[view.dtype]
                spans += [(number, start, start + size), (number, start + step, start + step + size)]
        spans.sort()
        assert all(one[0] != other[0] or one[2] <= other[1] for one, other in pairwise(spans))


def test_blocks_grow_on_a_line_through_nothing() -> None:
    """No block pads: block 0, which is never handed out, is counted among them."""
    ready = prepared(POOLED[0])
    shard = verify_shard(lambda sizes: block_tensors(ready, sizes), Sizes(blocks=500), 1, MetaMeter(), scale="10")
    assert shard.ok
    assert sum(present(row.slope_bytes) for row in shard.rows) == ready.bytes_per_block
    assert {row.intercept_bytes for row in shard.rows} == {0}


def test_a_short_group_leaves_the_last_layer_slots_untouched() -> None:
    """Kimi-Linear on one GPU: 27 layers in groups of which one is a layer short."""
    case_id = next(c for c in POOLED if "-kimi-linear" in c and len(set(CASES[c].recorded["group_sizes"])) > 1)
    ready = prepared(case_id)
    (tensor,) = block_tensors(ready, Sizes(blocks=3))
    short = min(range(len(ready.groups)), key=lambda number: ready.groups[number].layers)
    end = max(view.end_bytes for view in tensor.views if view.name.startswith(f"group {short} "))
    assert end <= tensor.shape_bytes - 3 * page_bytes(ready)


def test_the_selection_covers_what_was_recorded() -> None:
    assert len(POOLED) == 180
