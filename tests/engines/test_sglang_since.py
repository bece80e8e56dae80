"""Flags and values that a release of SGLang does not have, as its own parser takes them."""

from dataclasses import fields
from typing import Any

import pytest

from hybridcalc import load_model
from hybridcalc.engines.sglang import ServerArgs, planner, releases
from hybridcalc.engines.sglang.flags import ATTENTION_BACKENDS, FLAGS, LINEAR_BACKENDS
from hybridcalc.engines.sglang.releases import RELEASES
from hybridcalc.errors import HybridcalcError, Refusal


def lacking(version: str, **flags: Any) -> Refusal | None:
    """What a release says of flags that it may not have."""
    try:
        planner.prepare(load_model("qwen3.5-35b-a3b"), ServerArgs(engine_version=version, **flags))
    except Refusal as refusal:
        return refusal if refusal.rule == "HC024" else None
    except HybridcalcError:
        pass
    return None


@pytest.mark.parametrize(
    ("first", "before", "flags"),
    [
        ("0.5.11", "0.5.10", {"speculative_algorithm": "DFLASH", "speculative_num_draft_tokens": 4}),
        ("0.5.16", "0.5.15", {"speculative_algorithm": "DSPARK", "speculative_num_draft_tokens": 4}),
        ("0.5.13", "0.5.12", {"mamba_radix_cache_strategy": "extra_buffer_lazy"}),
        ("0.5.16", "0.5.15", {"kv_cache_dtype": "mxfp8"}),
        ("0.5.17", "0.5.16", {"attention_backend": "hpc_ops"}),
        ("0.5.10", "0.5.9", {"linear_attn_backend": "cutedsl"}),
        ("0.5.18", "0.5.17", {"linear_attn_decode_backend": "helion"}),
        ("0.5.10", "0.5.9", {"linear_attn_decode_backend": "triton"}),
        ("0.5.15", "0.5.14", {"enable_unified_memory": True}),
        ("0.5.16", "0.5.15", {"enable_linear_replayssm_spec": True}),
        ("0.5.14", "0.5.13", {"enable_int8_mamba_checkpoint": True}),
    ],
)
def test_what_came_later_is_refused_before_its_first_release(first: str, before: str, flags: dict[str, Any]) -> None:
    refusal = lacking(before, **flags)
    assert refusal is not None
    assert (refusal.stage, refusal.release) == ("arguments", first)
    assert refusal.reason.endswith(f"yet: the first release that has it is {first}")
    assert lacking(first, **flags) is None


def test_the_later_of_flag_and_value_is_named() -> None:
    """0.5.9 has no such flag at all; the value came later still, in a release that is said once the flag is there."""
    early, late = (lacking(version, linear_attn_backend="helion") for version in ("0.5.9", "0.5.10"))
    assert early is not None
    assert late is not None
    assert (early.release, late.release) == ("0.5.10", "0.5.18")


def test_a_backend_that_was_dropped_is_refused_after_its_last_release() -> None:
    refusal = lacking("0.5.20", attention_backend="cutlass_mla")
    assert refusal is not None
    assert refusal.reason == (
        "SGLang 0.5.20 has no --attention-backend cutlass_mla any more: the last release that has it is 0.5.19"
    )
    assert lacking("0.5.19", attention_backend="cutlass_mla") is None


def test_the_tables_are_of_arguments_flags_and_releases_that_exist() -> None:
    names, released = {field.name for field in fields(ServerArgs)}, set(RELEASES.versions)
    firsts = {
        *releases.FLAGS_SINCE.values(),
        *(first for values in releases.VALUES_SINCE.values() for first in values.values()),
    }
    assert {*releases.FLAGS_SINCE, *releases.VALUES_SINCE} <= names & {flag.field for flag in FLAGS}
    assert firsts | set(releases.VALUES_UNTIL.values()) <= released
    assert set(releases.ATTENTION) <= set(ATTENTION_BACKENDS)
    assert set(releases.LINEAR) <= set(LINEAR_BACKENDS)
