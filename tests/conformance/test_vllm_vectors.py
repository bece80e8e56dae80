"""vLLM's start-up against what the engine's own classes computed, release by release: every recorded output, the stage
of every refusal with what the stages before it had settled, and of 0.33.0 and 0.22.1 the lines about caches.
"""

import re
from dataclasses import replace

import pytest
from present import present
from vllm_cases import ABOUT_CACHES, FILES, NEWEST, cases
from vllm_releases import counts, differences

from hybridcalc.engines.vllm import Refusal, layer_state, state_bytes_per_layer
from hybridcalc.engines.vllm.pages import FULL, STATE
from hybridcalc.engines.vllm.planner import prepare, size
from hybridcalc.engines.vllm.releases import RELEASES
from hybridcalc.errors import ShardingError

CASES = {case.id: case for case in cases(NEWEST)}
STATEFUL = [case_id for case_id, case in CASES.items() if case.recorded.get("state_shapes")]
REFUSED = [case_id for case_id, case in CASES.items() if case.stage]
UNSHARDED = [case_id for case_id in REFUSED if "does not divide num_groups" in CASES[case_id].message]
LATER = ("layout", "cache_hit_alignment_tokens", "block_table_row_len")
"""Outputs that were not recorded of every release."""


@pytest.mark.parametrize("case_id", CASES)
def test_every_recorded_output_and_line(case_id: str) -> None:
    """No output more and none less: shapes, block, page, groups, blocks, capacity, block sizes, layout, refusal."""
    case = CASES[case_id]
    refusal, found = case.start_up()
    assert (refusal.stage if refusal else None) == case.stage
    unrecorded = {"log", *(name for name in LATER if name not in case.recorded)}
    assert {name: value for name, value in found.items() if name not in unrecorded} == case.recorded
    assert found["log"] == case.printed


@pytest.mark.parametrize("file", FILES)
def test_every_recorded_case_of_a_release(file: str) -> None:
    """Blocks, groups, block size, blocks a request, concurrency, token figure, and refusals at their stage."""
    assert {case.id: other for case in cases(file) if (other := differences(case))} == {}


UNEVEN = ("GPU KV cache size", "Maximum concurrency", "kv cache group", "kv lcm", "Add ")
"""Beginnings of lines that were not recorded of every start-up."""


@pytest.mark.parametrize("file", FILES)
def test_the_lines_of_a_release(file: str) -> None:
    """Word for word. A warning of padding layers was recorded twice where groups were made twice."""
    for case in cases(file):
        if "log" not in case.given or case.id in UNPRINTED:
            continue
        _, found = case.start_up()
        printed = [line for at, line in enumerate(case.printed) if line not in case.printed[:at]]
        untold = tuple(start for start in UNEVEN if not any(line.startswith(start) for line in printed))
        expected = [line for line in found["log"] if not line.startswith(untold)]
        assert list(dict.fromkeys(expected)) == printed, case.id


UNPRINTED = {"0.19.0-falcon-h1-34b-tp4"}
"""Refused by its configuration here, which there was after the block had been settled."""


def test_the_layers_of_every_stage() -> None:
    """Of each kind, as the engine shares them out."""
    kinds = {"MambaSpec": STATE, "FullAttentionSpec": FULL, "MLAAttentionSpec": FULL}
    staged = [case for file in FILES for case in cases(file) if "layers_per_stage" in case.given.get("outputs", {})]
    assert len(staged) == 36
    for case in staged:
        counted = [
            {kind: sum(group.layers for group in own if group.kind == kind) for kind in (STATE, FULL)}
            for own in prepare(case.model, case.args).stages
        ]
        recorded = case.given["outputs"]["layers_per_stage"]
        assert counted == [{kinds[name]: count for name, count in own.items()} for own in recorded], case.id


def test_every_recorded_release_is_named_by_a_row_and_no_other() -> None:
    """``recorded`` of the rules is what the files say."""
    assert set(counts()) == set(RELEASES.recorded)
    assert sum(len(cases(file)) for file in FILES) == 1393


@pytest.mark.parametrize("case_id", [case_id for case_id in REFUSED if "To serve at least" in CASES[case_id].message])
def test_a_request_that_does_not_fit_is_told_the_length_that_does(case_id: str) -> None:
    """The engine's estimate, and its figure of what one request needs, in GiB."""
    case = CASES[case_id]
    refusal, _ = case.start_up()
    needed = re.search(r"\(([0-9.]+) GiB KV cache is needed", case.message)
    assert needed and f"({float(needed[1]):.2f} GiB)" in present(refusal).reason
    estimate = re.search(r"estimated maximum model length is (\d+)", case.message)
    assert ("--max-model-len" in present(refusal).fix) == bool(estimate)
    if not estimate:
        return
    said = re.fullmatch(
        rf"write --max-model-len {estimate[1]}(?: --max-num-seqs (\d+))?, or give it more memory", present(refusal).fix
    )
    assert said
    again = replace(case.args, max_model_len=int(estimate[1]), max_num_seqs=int(said[1] or case.args.seqs))
    assert size(prepare(case.model, again), case.available_bytes).length == int(estimate[1])
    if said[1]:
        with pytest.raises(Refusal, match=r"^max_num_seqs [0-9,]+.* exceeds the "):
            size(prepare(case.model, replace(again, max_num_seqs=case.args.seqs)), case.available_bytes)


def test_more_sequences_than_blocks_are_told_how_many_there_are() -> None:
    """max_num_seqs (A) exceeds available Mamba cache blocks (B): the fix writes B."""
    found = [case_id for case_id in REFUSED if CASES[case_id].stage == "cudagraph_mamba_check"]
    assert len(found) == 5
    for case_id in found:
        message = CASES[case_id].message
        match = present(re.search(r"max_num_seqs \((\d+)\) exceeds available Mamba cache blocks \((\d+)\)", message))
        refusal, _ = CASES[case_id].start_up()
        assert present(refusal).reason.startswith(
            f"max_num_seqs {int(match[1]):,} exceeds the {int(match[2]):,} blocks"
        )
        assert present(refusal).fix == f"write --max-num-seqs {match[2]}"


@pytest.mark.parametrize("case_id", STATEFUL)
def test_state_tensors_of_a_layer(case_id: str) -> None:
    """Without the start-up around it, as crossovers ask for them: shapes in their order, dtypes, bytes."""
    case = CASES[case_id]
    tensors = layer_state(case.model, case.args)
    assert [list(tensor.shape) for tensor in tensors] == case.recorded["state_shapes"]
    assert [tensor.dtype for tensor in tensors] == case.recorded["state_dtypes"]
    assert state_bytes_per_layer(case.model, case.args) == case.recorded["state_bytes_per_layer"]


@pytest.mark.parametrize("case_id", UNSHARDED)
def test_mamba2_groups_that_the_ranks_do_not_divide_are_refused(case_id: str) -> None:
    """The mixer asserts that tp divides the groups or that there is one."""
    with pytest.raises(
        ShardingError, match=r"(?m)^vLLM runs \d+ Mamba2 groups only on rank counts that divide them, not \d+$"
    ):
        layer_state(CASES[case_id].model, CASES[case_id].args)


def test_the_selections_above_cover_what_was_recorded() -> None:
    """A case that no list selects, or an output or a line that no case has, would be skipped in silence."""
    assert (len(CASES), len(STATEFUL), len(REFUSED), len(UNSHARDED)) == (199, 188, 28, 3)
    names = {name for case in CASES.values() for name in case.recorded}
    assert len(names) == 33
    lines = {present(ABOUT_CACHES.match(line))[0] for case in CASES.values() for line in case.printed}
    assert len({re.sub(r"\d+|L?[BNLHC]{5}", "N", line) for line in lines}) >= 13
    assert sum(case.given["vllm"] == "0.22.1" for case in CASES.values()) == 36
