"""How much of what was recorded of each release of vLLM comes out here, for tests and a table of the documentation."""

from typing import Any

from vllm_cases import FILES, NEWEST, Case, cases

OWN_CLASSES = "releases/vllm-own-classes.json.xz"
"""Starts of a release's own classes that were kept where both sides agree: they prove nothing of a release."""


def differences(case: Case) -> dict[str, Any]:
    """Recorded outputs, and the stage of a refusal, that come out otherwise here: (here, recorded)."""
    refusal, found = case.start_up()
    other = {name: (found.get(name), value) for name, value in case.recorded.items() if found.get(name) != value}
    stage = refusal.stage if refusal else None
    return other if stage == case.stage else other | {"stage": (stage, case.stage)}


def counts() -> dict[str, tuple[int, int]]:
    """Release -> (cases that come out in every output and refusal, cases recorded)."""
    found = dict[str, tuple[int, int]]()
    for case in (case for file in (*FILES, NEWEST) if file != OWN_CLASSES for case in cases(file)):
        exact, recorded = found.get(case.given["vllm"], (0, 0))
        found[case.given["vllm"]] = exact + (not differences(case)), recorded + 1
    return found
