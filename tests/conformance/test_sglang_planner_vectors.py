"""Whole start-ups of SGLang, stage by stage: every output that was recorded, refusals and log lines included."""

from typing import Any

import pytest
from sglang_cases import CASES, arguments_of, model_of, refused_at

from hybridcalc.engines.sglang import planner
from hybridcalc.errors import Refusal


def start_up(case_id: str, **changed: Any) -> tuple[str, dict[str, Any]]:
    """The stage at which the planner refuses a case (empty: it starts), and every output up to there."""
    outputs: dict[str, Any] = {"log": []}
    try:
        ready = planner.prepare(model_of(case_id), arguments_of(case_id, **changed))
        outputs |= planner.ready_outputs(ready)
        sizing = planner.size(ready, CASES[case_id]["inputs"]["budget_gib"])
        pools = planner.allocation(ready, sizing)
    except Refusal as refusal:
        return refusal.stage, outputs | refusal.outputs
    return "", planner.outputs(ready, sizing, pools)


def carried(found: Any, recorded: Any) -> Any:
    """``found`` cut down to the keys that were recorded, so that a difference shows as such."""
    if isinstance(recorded, dict) and isinstance(found, dict):
        return {key: carried(found.get(key), value) for key, value in recorded.items()}
    return found


@pytest.mark.parametrize("case_id", CASES)
def test_every_recorded_output_of_0_5_23(case_id: str) -> None:
    """Pipeline stages, disaggregation, windows, draft states, rings, int8 pools and the lines the engine prints."""
    recorded = {name: value for name, value in CASES[case_id]["outputs"].items() if name != "raises"}
    stage, outputs = start_up(case_id)
    assert stage == refused_at(case_id)
    assert carried(outputs, recorded) == recorded


@pytest.mark.parametrize("case_id", [case_id for case_id, case in CASES.items() if "outputs_0516" in case])
def test_every_recorded_output_of_0_5_16(case_id: str) -> None:
    """The rule set of the older version; a refusal of its solver carries no stage."""
    recorded = {name: value for name, value in CASES[case_id]["outputs_0516"].items() if name != "raises"}
    raises = CASES[case_id]["outputs_0516"].get("raises")
    stage, outputs = start_up(case_id, engine_version="0.5.16")
    assert bool(stage) == (raises is not None)
    assert stage == (raises or {}).get("stage", stage)
    assert carried(outputs, recorded) == recorded
