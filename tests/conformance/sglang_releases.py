"""Every recorded start-up of every SGLang release: which figures come out exactly, and which part."""

from collections.abc import Mapping, Sequence
from functools import cache
from types import MappingProxyType
from typing import Any

from sglang_cases import RECORDED, arguments, model, recorded

from hybridcalc.engines.sglang import planner
from hybridcalc.errors import Refusal

RELEASES: dict[str, str] = {name.removeprefix("sglang-"): name for name in RECORDED if name.count("-") == 1}
FIGURES = ("max_mamba_cache_size", "max_total_num_tokens", "max_running_requests", "S", "cell_size")
"""K, T, R, S and the cell: what makes a case exact, besides its refusal."""
OTHERWISE: Mapping[str, frozenset[str]] = MappingProxyType(
    {
        "0.5.9": frozenset({"conv_shape"}),  # three rows where later releases join them
        "0.5.16": frozenset({"log", "ring_bytes_per_req"}),  # not recorded
        "0.5.20": frozenset({"kda_config"}),  # named for GLM-5.3 from 0.5.21 on
    }
)
"""Outputs that a release does not have, or has in another form."""


def start_up(name: str, case: dict[str, Any], version: str) -> tuple[str, dict[str, Any]]:
    """The stage at which a case is refused (empty: it starts), and every output up to there."""
    outputs: dict[str, Any] = {"log": []}
    try:
        ready = planner.prepare(model(name, case), arguments(case["inputs"], engine_version=version))
        outputs |= {"radix_cache": ready.args.radix_cache} | planner.ready_outputs(ready)
        sizing = planner.size(ready, case["inputs"]["budget_gib"])
        outputs["priced_total_bytes"] = sizing.state.charged_bytes + sizing.state.draft_bytes
        pools = planner.allocation(ready, sizing)
    except Refusal as refusal:
        return refusal.stage, outputs | refusal.outputs
    return "", outputs | planner.outputs(ready, sizing, pools)


def carried(found: Any, recorded_value: Any) -> Any:
    """``found`` cut down to the keys that were recorded, so that a difference shows as such."""
    if isinstance(recorded_value, dict) and isinstance(found, dict):
        return {key: carried(found.get(key), value) for key, value in recorded_value.items()}
    return found


def differences(name: str, case: dict[str, Any], version: str, names: Sequence[str] = ()) -> dict[str, tuple[Any, Any]]:
    """Outputs by name (all, or ``names``) -> (recorded, found) where they differ; ``refused``: one alone starts."""
    stage, found = start_up(name, case, version)
    outputs = case["outputs"]
    refused = (outputs.get("raises") or {}).get("stage", "")
    if bool(stage) != bool(refused):
        return {"refused": (refused, stage)}
    every = FIGURES if refused else [name for name in outputs if name not in OTHERWISE.get(version, ())]
    return {
        key: (outputs[key], found[key])
        for key in names or every
        if key in outputs and key in found and carried(found[key], outputs[key]) != outputs[key]
    }


@cache
def counts() -> dict[str, tuple[int, int]]:
    """Releases -> how many of the recorded start-ups are exact, and how many there are."""
    found = {}
    for version, name in RELEASES.items():
        cases = recorded(name)["cases"]
        found[version] = sum(not differences(name, case, version) for case in cases), len(cases)
    return found
