"""vLLM's start-up against what the engine's own classes computed (0.33.0, 0.22.1): every recorded output, the stage of
every refusal with what the stages before it had settled, and the lines about caches word for word.
"""

import json
import re
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from present import present

from hybridcalc import Architecture
from hybridcalc.engines.vllm import EngineArgs, Refusal, layer_state, state_bytes_per_layer
from hybridcalc.engines.vllm.planner import outputs, prepare, size
from hybridcalc.errors import ShardingError

VECTORS = json.loads((Path(__file__).resolve().parent.parent / "data" / "vectors" / "vllm.json").read_bytes())
CASES: dict[str, dict[str, Any]] = {case["id"]: case for case in VECTORS["cases"]}
STATEFUL = [case_id for case_id, case in CASES.items() if (case["outputs"] or {}).get("state_shapes")]
REFUSED = [case_id for case_id, case in CASES.items() if case.get("error")]
UNSHARDED = [case_id for case_id in REFUSED if "does not divide num_groups" in CASES[case_id]["error"]["message"]]
CUT_GEOMETRY = {"qwen3-next-80b-tp16"}
"""Refused for the number of its experts, which was cut to 8 where it was recorded: no matter of the cache."""
ABOUT_CACHES = re.compile(
    r"Updating mamba|Mamba cache mode|Setting attention|Setting kv cache|Padding mamba|Add \d+ padding|"
    r"Overriding num|Auto-fit|GPU KV cache|Maximum conc|kv cache group|kv lcm|Warning: Prefix|Hybrid or mamba|"
    r"Using \w+ KV cache layout"
)


@cache
def model_of(geometry: str, overrides: str) -> Architecture:
    """A geometry with the fields that --hf-overrides replaces."""
    return Architecture.from_hf_config(VECTORS["geometries"][geometry] | json.loads(overrides), name=geometry)


def asked(case_id: str) -> tuple[Architecture, EngineArgs]:
    """Model and arguments of a case, under the engine's own names."""
    case = CASES[case_id]
    return (
        model_of(case["geometry"], json.dumps(case["args"].get("hf_overrides") or {})),
        EngineArgs(**case["args"], env=case["env"], engine_version=case["vllm"], gpu_capability=case["gpu_capability"]),
    )


def start_up(case_id: str) -> tuple[Refusal | None, dict[str, Any]]:
    """What stops the start-up, if anything does, and what it had settled by then."""
    try:
        ready = prepare(*asked(case_id))
        sizing = size(ready, CASES[case_id]["available_bytes"])
    except Refusal as refusal:
        return refusal, refusal.outputs
    return None, outputs(ready, sizing)


def printed(case_id: str) -> list[str]:
    """The recorded lines about caches, without level and place."""
    lines = [line.split(" ", 2)[2] for line in CASES[case_id]["log"]]
    return [line for line in lines if ABOUT_CACHES.match(line)]


@pytest.mark.parametrize("case_id", [case_id for case_id in CASES if case_id not in CUT_GEOMETRY])
def test_every_recorded_output_and_line(case_id: str) -> None:
    """No output more and none less: shapes, block, page, groups, blocks, capacity, block sizes, layout, refusal."""
    refusal, found = start_up(case_id)
    recorded = CASES[case_id]["outputs"] or {}
    assert (refusal.stage if refusal else None) == (CASES[case_id].get("error") or {}).get("stage")
    assert {name: value for name, value in found.items() if name != "log"} == recorded
    assert found["log"] == printed(case_id)


@pytest.mark.parametrize(
    "case_id", [case_id for case_id in REFUSED if "To serve at least one request" in CASES[case_id]["error"]["message"]]
)
def test_a_request_that_does_not_fit_is_told_the_length_that_does(case_id: str) -> None:
    """The engine's estimate, and its figure of what one request needs, in GiB."""
    message = CASES[case_id]["error"]["message"]
    refusal, _ = start_up(case_id)
    needed = re.search(r"\(([0-9.]+) GiB KV cache is needed", message)
    assert needed and f"({float(needed[1]):.2f} GiB)" in present(refusal).reason
    estimate = re.search(r"estimated maximum model length is (\d+)", message)
    assert ("--max-model-len" in present(refusal).fix) == bool(estimate)
    if not estimate:
        return
    said = re.fullmatch(
        rf"write --max-model-len {estimate[1]}(?: --max-num-seqs (\d+))?, or give it more memory", present(refusal).fix
    )
    assert said
    model, args = asked(case_id)
    again = replace(args, max_model_len=int(estimate[1]), max_num_seqs=int(said[1] or args.seqs))
    assert size(prepare(model, again), CASES[case_id]["available_bytes"]).length == int(estimate[1])
    if said[1]:
        with pytest.raises(Refusal, match=r"^max_num_seqs [0-9,]+.* exceeds the "):
            size(prepare(model, replace(again, max_num_seqs=args.seqs)), CASES[case_id]["available_bytes"])


def test_more_sequences_than_blocks_are_told_how_many_there_are() -> None:
    """max_num_seqs (A) exceeds available Mamba cache blocks (B): the fix writes B."""
    found = [case_id for case_id in REFUSED if CASES[case_id]["error"]["stage"] == "cudagraph_mamba_check"]
    assert len(found) == 5
    for case_id in found:
        message = CASES[case_id]["error"]["message"]
        match = present(re.search(r"max_num_seqs \((\d+)\) exceeds available Mamba cache blocks \((\d+)\)", message))
        refusal, _ = start_up(case_id)
        assert present(refusal).reason.startswith(
            f"max_num_seqs {int(match[1]):,} exceeds the {int(match[2]):,} blocks"
        )
        assert present(refusal).fix == f"write --max-num-seqs {match[2]}"


@pytest.mark.parametrize("case_id", STATEFUL)
def test_state_tensors_of_a_layer(case_id: str) -> None:
    """Without the start-up around it, as crossovers ask for them: shapes in their order, dtypes, bytes."""
    model, args = asked(case_id)
    tensors, recorded = layer_state(model, args), CASES[case_id]["outputs"]
    assert [list(tensor.shape) for tensor in tensors] == recorded["state_shapes"]
    assert [tensor.dtype for tensor in tensors] == recorded["state_dtypes"]
    assert state_bytes_per_layer(model, args) == recorded["state_bytes_per_layer"]


@pytest.mark.parametrize("case_id", UNSHARDED)
def test_mamba2_groups_that_the_ranks_do_not_divide_are_refused(case_id: str) -> None:
    """The mixer asserts that tp divides the groups or that there is one."""
    with pytest.raises(
        ShardingError, match=r"^vLLM runs \d+ Mamba2 groups only on rank counts that divide them, not \d+$"
    ):
        layer_state(*asked(case_id))


def test_the_selections_above_cover_what_was_recorded() -> None:
    """A case that no list selects, or an output or a line that no case has, would be skipped in silence."""
    assert (len(CASES), len(STATEFUL), len(REFUSED), len(UNSHARDED)) == (199, 188, 28, 3)
    assert set(REFUSED) > CUT_GEOMETRY
    assert all("experts" in CASES[case_id]["error"]["message"] for case_id in CUT_GEOMETRY)
    names = {name for case in CASES.values() for name in case["outputs"] or {}}
    assert len(names) == 33
    lines = {present(ABOUT_CACHES.match(line))[0] for case_id in CASES for line in printed(case_id)}
    assert len({re.sub(r"\d+|L?[BNLHC]{5}", "N", line) for line in lines}) >= 13
    assert sum(case["vllm"] == "0.22.1" for case in CASES.values()) == 36
