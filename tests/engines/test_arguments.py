"""What the arguments of both engines have in common."""

import json
from dataclasses import FrozenInstanceError, replace
from typing import Any

import pytest

from hybridcalc import load_model, sglang, vllm
from hybridcalc.engines.sglang.planner import CHEAP_FIELDS, prepare
from hybridcalc.engines.vllm import planner


@pytest.mark.parametrize(
    ("args", "fields"),
    [
        (sglang.ServerArgs(tp_size=8), {"mamba_full_memory_ratio": 2.5, "max_mamba_cache_size": None}),
        (vllm.EngineArgs(block_size=64), {"speculative_config": {"method": "mtp", "num_speculative_tokens": 3}}),
    ],
)
def test_changed_arguments_are_those_of_replace(args: Any, fields: Any) -> None:
    assert args.changed(**fields) == replace(args, **fields) != args
    assert args.changed() == args


def test_an_argument_that_there_is_not_is_an_error() -> None:
    with pytest.raises(TypeError):
        sglang.ServerArgs().changed(tensor_parallel_size=8)


def test_arguments_hold_what_was_given_alone() -> None:
    args = sglang.ServerArgs(8, page_size=None, kv_cache_dtype="fp8_e4m3")
    assert vars(args) == {"tp_size": 8, "kv_cache_dtype": "fp8_e4m3"} and vars(args.changed(tp_size=1)) == {
        "kv_cache_dtype": "fp8_e4m3"
    }
    with pytest.raises(TypeError):
        args.env["SGLANG_MAMBA_CONV_DTYPE"] = "float32"  # type: ignore[index]  # that of all who gave none
    with pytest.raises(FrozenInstanceError):
        args.tp_size = 4  # type: ignore[misc]


def test_a_document_is_its_reader_s_own() -> None:
    """What several plans share is in the document of each anew."""

    def spoil(value: Any) -> None:
        for each in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
            spoil(each)
        if isinstance(value, dict | list):
            value.clear()

    model = load_model("nemotron-h-8b")
    env = {"SGLANG_MAMBA_CONV_DTYPE": "float32"}
    for plan in (
        lambda: sglang.plan(model, sglang.ServerArgs(env=env), rest_gib=9.0),
        lambda: vllm.plan(model, vllm.EngineArgs(max_model_len=8192), available_bytes=9 * 2**30),
    ):
        first = plan().to_dict()
        told = json.dumps(first)
        spoil(first)
        assert json.dumps(plan().to_dict()) == told


def test_what_is_kept_of_a_preparation_is_never_another_server_s() -> None:
    """One model after another, one argument after another, and an environment that its owner changes in place."""
    first, second = load_model("kimi-k3"), load_model("qwen3-next-80b-a3b")
    env: dict[str, str] = {}
    args = sglang.ServerArgs(tp_size=8, env=env)
    assert prepare(first, args).slot.conv_dtype == "bfloat16" and prepare(second, args).model is second
    env["SGLANG_MAMBA_CONV_DTYPE"] = "float32"
    assert prepare(second, args).slot.conv_dtype == "float32"
    assert prepare(second, args.changed(tp_size=4)).slot != prepare(second, args).slot
    assert prepare(second, args.changed(max_mamba_cache_size=7)).args.max_mamba_cache_size == 7
    longer: dict[str, Any] = {"max_position_embeddings": 4096}
    told = vllm.EngineArgs(hf_overrides=longer)
    assert planner.prepare(second, told).length == 4096
    longer["max_position_embeddings"] = 2048
    assert planner.prepare(second, told).length == 2048


@pytest.mark.parametrize(("field", "value"), list(zip(CHEAP_FIELDS, (0.5, 77, 9, 50_000), strict=True)))
def test_cheap_arguments_change_nothing_of_a_preparation(field: Any, value: Any) -> None:
    model, args = load_model("kimi-k3"), sglang.ServerArgs(tp_size=8)
    prepared = prepare(model, args)
    prepare(model, args.changed(tp_size=4))
    assert prepare(model, args.changed(**{field: value}))._replace(args=args, given=args) == prepared
