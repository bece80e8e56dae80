"""What start-ups of SGLang settled that nobody typed: fraction, chunk, graphs, backend, page, strategy, limit."""

from typing import Any

import pytest
from sglang_cases import model, recorded

from hybridcalc.engines.sglang import ServerArgs, resolve

NAMES = (
    "mem_fraction_static", "chunked_prefill_size", "max_running_requests", "decode_max_bs", "decode_backend",
    "prefill_backend",
)  # fmt: skip
LATER = ("page_size", "attention_backend", "mamba_radix_cache_strategy", "disable_overlap_schedule")
"""Settled after the fraction: a start-up that stopped in between may lack them."""


def settled(name: str, version: str, case: dict[str, Any]) -> dict[str, Any]:
    """The same by hybridcalc."""
    given = dict(case["args"])
    if "attn_dp_size" in given:
        given |= {"dp_size": given.pop("attn_dp_size"), "enable_dp_attention": True}
    capability = f"{case['sm'] // 10}.{case['sm'] % 10}"
    hardware = {"gpu_memory_mib": case["gpu_mem_mib"], "gpu_capability": capability}
    return resolve(model(name, case), ServerArgs(**given, **hardware, engine_version=version))


@pytest.mark.parametrize(
    ("kind", "version", "starts"),
    [
        ("memfrac", "0.5.20", 161),
        ("memfrac", "0.5.22", 166),
        ("memfrac", "0.5.23", 166),
        ("gpus", "0.5.23", 400),
        ("gpus", "0.5.16", 80),
        ("gpus", "0.5.17", 80),
        ("gpus", "0.5.18", 80),
        ("gpus", "0.5.19", 80),
        ("decode", "0.5.16", 27),
        ("decode", "0.5.18", 27),
        ("decode", "0.5.23", 27),
    ],
)
def test_every_recorded_default(kind: str, version: str, starts: int) -> None:
    """The fraction to the last bit."""
    name = f"sglang-{kind}-{version}"
    cases = [case for case in recorded(name)["cases"] if case["outputs"].get("mem_fraction_static") is not None]
    assert len(cases) == starts
    parting = {}
    for case in cases:
        outputs, found = case["outputs"], settled(name, version, case)
        names = NAMES if "stopped" in outputs else NAMES + LATER
        differ = {key: (outputs[key], found[key]) for key in names if outputs[key] != found[key]}
        if differ:
            parting[case["id"]] = differ
    assert parting == {}
