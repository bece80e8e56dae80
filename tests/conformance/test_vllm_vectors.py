"""vLLM's recurrent state against what the engine's own classes computed: shapes, dtypes and bytes (0.33.0, 0.22.1)."""

import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from hybridcalc import Architecture
from hybridcalc.engines.vllm import EngineArgs, layer_state, state_bytes_per_layer
from hybridcalc.errors import ShardingError

VECTORS = json.loads((Path(__file__).resolve().parent.parent / "data" / "vectors" / "vllm.json").read_bytes())
CASES: dict[str, dict[str, Any]] = {case["id"]: case for case in VECTORS["cases"]}
STATEFUL = [case_id for case_id, case in CASES.items() if (case["outputs"] or {}).get("state_shapes")]
ERRORS = {case_id: case["error"]["message"] for case_id, case in CASES.items() if case.get("error")}
UNSHARDED = [case_id for case_id, message in ERRORS.items() if "does not divide num_groups" in message]
ARGUMENTS = (
    "tensor_parallel_size", "dtype", "mamba_cache_dtype", "mamba_ssm_cache_dtype", "use_replayssm",
    "replayssm_buffer_len",
)  # fmt: skip


@cache
def model_of(geometry: str, overrides: str) -> Architecture:
    """A geometry with the fields that --hf-overrides replaces."""
    return Architecture.from_hf_config(VECTORS["geometries"][geometry] | json.loads(overrides), name=geometry)


def asked(case_id: str) -> tuple[Architecture, EngineArgs]:
    """Model and arguments of a case."""
    case = CASES[case_id]
    args = case["args"]
    given = {name: args[name] for name in ARGUMENTS if name in args}
    speculative = (args.get("speculative_config") or {}).get("num_speculative_tokens", 0)
    return (
        model_of(case["geometry"], json.dumps(args.get("hf_overrides") or {})),
        EngineArgs(**given, num_speculative_tokens=speculative, env=case["env"], engine_version=case["vllm"]),
    )


@pytest.mark.parametrize("case_id", STATEFUL)
def test_state_tensors_of_a_layer(case_id):
    """mamba_utils.py and the layer classes: shapes in their order, dtypes, and the bytes of the page they need."""
    model, args = asked(case_id)
    tensors, outputs = layer_state(model, args), CASES[case_id]["outputs"]
    assert [list(tensor.shape) for tensor in tensors] == outputs["state_shapes"]
    assert [tensor.dtype for tensor in tensors] == outputs["state_dtypes"]
    assert state_bytes_per_layer(model, args) == outputs["state_bytes_per_layer"]


@pytest.mark.parametrize("case_id", UNSHARDED)
def test_mamba2_groups_that_the_ranks_do_not_divide_are_refused(case_id):
    """The mixer asserts that tp divides the groups or that there is one."""
    with pytest.raises(
        ShardingError, match=r"^vLLM runs \d+ Mamba2 groups only on rank counts that divide them, not \d+$"
    ):
        layer_state(*asked(case_id))


def test_the_selections_above_cover_what_was_recorded():
    """A case that no list selects would be skipped in silence."""
    assert (len(CASES), len(STATEFUL), len(UNSHARDED)) == (199, 188, 3)
