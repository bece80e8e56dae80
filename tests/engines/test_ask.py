"""hybridcalc.plan: of a model or of a launch line, of any engine, the same as the engine's own call."""

from typing import Any

import pytest

import hybridcalc
from hybridcalc import load_model, sglang, vllm
from hybridcalc.deployment import Workload, exact_rest
from hybridcalc.errors import InputError, MemoryUnknown, Refusal


def test_a_model_with_arguments_is_planned_as_by_its_engine() -> None:
    plan = hybridcalc.plan("kimi-k3", tp_size=8, kv_cache_dtype="fp8_e4m3", rest="28.55GiB", length="9k")
    args = sglang.ServerArgs(tp_size=8, kv_cache_dtype="fp8_e4m3")
    own = sglang.plan(load_model("kimi-k3"), args, rest_gib=28.55, workload=Workload.at(9216))
    assert plan.to_dict() == own.to_dict()


def test_a_launch_line_says_engine_model_and_arguments() -> None:
    line = "VLLM_USE_V2_MODEL_RUNNER=0 vllm serve Qwen/Qwen3-Next-80B-A3B-Instruct -tp 2 --max-num-seqs 128"
    plan = hybridcalc.plan(line, available=40, length=8192)
    model = load_model("Qwen/Qwen3-Next-80B-A3B-Instruct")
    args = vllm.EngineArgs(tensor_parallel_size=2, max_num_seqs=128, env={"VLLM_USE_V2_MODEL_RUNNER": "0"})
    own = vllm.plan(model, args, rest=exact_rest(40.0), workload=Workload.at(8192))
    assert plan.to_dict() == own.to_dict()


def test_an_architecture_and_a_gpu_with_weights_will_do() -> None:
    model = load_model("qwen3-next-80b-a3b")
    plan = hybridcalc.plan(model, engine="vllm", tensor_parallel_size=2, gpu="h100", weights=76.0 / 2, length=8192)
    assert plan.rest.before_gib == pytest.approx(79.65, abs=0.5) and plan.requests > 0


@pytest.mark.parametrize(
    ("asked", "given", "error", "message"),
    [
        ("kimi-k3", {}, MemoryUnknown, "plan needs the memory left for the pools"),
        ("kimi-k3", {"available": 40.0}, InputError, "--available says nothing about SGLang"),
        (
            "kimi-k3",
            {"rest": 40.0, "tensor_parallel_size": 8},
            InputError,
            "tensor_parallel_size is no argument of SGLang",
        ),
        ("vllm serve kimi-k3", {"engine": "sglang"}, InputError, "the launch line starts vllm, not sglang"),
        ("kimi-k3", {"engine": "trt"}, InputError, "engine 'trt' is not planned"),
        ("kimi-k3", {"rest": True}, InputError, "rest True is not a size"),
        ("kimi-k3", {"rest": "0.1GiB", "tp_size": 8}, Refusal, "no room for a state slot"),
        ("sglang serve --tp 8", {"rest": 40.0}, InputError, "the launch line names no model"),
    ],
)
def test_what_cannot_be_planned_is_said(asked: str, given: dict[str, Any], error: type[Any], message: str) -> None:
    with pytest.raises(error, match=message):
        hybridcalc.plan(asked, **given)


def test_an_error_in_python_is_told_in_its_words() -> None:
    """Not as options of a command: the argument of that flag, and the GPU by its name."""
    with pytest.raises(InputError, match="tp is no argument of SGLang") as caught:
        hybridcalc.plan("qwen3.6-27b", tp=2, gpu="h100", length="8k")
    assert caught.value.fix == "write tp_size"
    with pytest.raises(InputError, match="zork is no argument of SGLang") as caught:
        hybridcalc.plan("qwen3.6-27b", zork=2, gpu="h100", length="8k")
    assert caught.value.fix == "it takes the fields of ServerArgs"
    with pytest.raises(MemoryUnknown, match='add gpu="NAME"'):
        hybridcalc.plan("qwen3.6-27b", length="8k")
