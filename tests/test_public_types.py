"""What a type checker knows of the public names: mypy reads this file, and pytest runs it.

``assert_type`` proves that a name has its type and not Any; a wrong call carries the error that mypy must find, since
an unused ``type: ignore`` is an error itself.
"""

import json
from pathlib import Path
from typing import Any, assert_type

import pytest

import hybridcalc
from hybridcalc import Architecture, load_model, sglang, vllm
from hybridcalc.errors import HybridcalcError, IllegalCombination

ROOT = Path(__file__).resolve().parent.parent


def test_a_model_is_an_architecture() -> None:
    model = load_model("kimi-k3")
    assert_type(model, Architecture)
    assert_type(model.name, str)
    assert_type(model.max_context, int | None)
    config = json.loads((ROOT / "examples" / "qwen3.5-27b" / "config.json").read_bytes())
    assert_type(Architecture.from_hf_config(config), Architecture)
    assert_type(hybridcalc.__version__, str)


def test_an_sglang_plan_says_what_it_holds() -> None:
    args = sglang.ServerArgs(tp_size=8, kv_cache_dtype="fp8_e4m3", env={})
    plan = sglang.plan(load_model("kimi-k3"), args, rest_gib=28.55)
    assert_type(plan, sglang.Plan)
    assert_type(plan.max_mamba_cache_size, int)
    assert_type(plan.max_running_requests, int)
    assert_type(plan.to_dict(), dict[str, Any])
    assert_type(sglang.ServerArgs.from_command("sglang serve --model-path kimi-k3 --tp 8").tp_size, int)


def test_a_vllm_plan_says_what_it_holds() -> None:
    args = vllm.EngineArgs(tensor_parallel_size=2, max_model_len=131072)
    plan = vllm.plan(load_model("qwen3.5-27b"), args, available_bytes=40 * 2**30)
    assert_type(plan, vllm.Plan)
    assert_type(plan.num_blocks, int)
    assert_type(plan.to_dict(), dict[str, Any])


def test_refusals_are_errors_with_a_stage_and_a_reason() -> None:
    with pytest.raises(sglang.Refusal) as refused:
        sglang.plan(load_model("kimi-k3"), sglang.ServerArgs(tp_size=8), rest_gib=0.01)
    assert_type(refused.value.stage, str)
    assert_type(refused.value.reason, str)
    assert_type(refused.value.fix, str)
    assert isinstance(refused.value, IllegalCombination) and isinstance(refused.value, HybridcalcError)


def test_wrong_calls_are_found_before_they_run() -> None:
    """Each is an error to mypy, and to whoever runs it all the same."""
    with pytest.raises(TypeError):
        sglang.ServerArgs(tp=8)  # type: ignore[call-arg]
    with pytest.raises(HybridcalcError):
        sglang.plan(load_model("kimi-k3"), sglang.ServerArgs(tp_size="8"), rest_gib=28.55)  # type: ignore[arg-type]
    with pytest.raises(AttributeError):
        sglang.Plans  # type: ignore[attr-defined]  # noqa: B018
    with pytest.raises(AttributeError):
        hybridcalc.load_preset("kimi-k3")  # type: ignore[attr-defined]
