"""vLLM's attention backends: which one serves, its smallest block, its layouts (tables of 0.33.0, partly read only)."""

from typing import Any

import pytest
from present import present

from hybridcalc import load_model
from hybridcalc.engines.vllm.config import EngineArgs
from hybridcalc.engines.vllm.layers import FIXED_BACKENDS, FREE_LAYOUTS, attention_backend, resolve_layout
from hybridcalc.engines.vllm.planner import prepare
from hybridcalc.engines.vllm.releases import rules_for
from hybridcalc.errors import InputError, Refusal

NEMOTRON, KIMI = "nemotron-h-8b", "kimi-linear-48b-a3b"


@pytest.mark.parametrize(
    ("model", "given", "name", "block"),
    [
        (NEMOTRON, {}, "FLASH_ATTN", 16),
        (NEMOTRON, {"kv_cache_dtype": "fp8"}, "FLASH_ATTN", 16),
        (NEMOTRON, {"kv_cache_dtype": "fp8_e5m2"}, "TRITON_ATTN", 16),
        (NEMOTRON, {"kv_cache_dtype": "int8_per_token_head"}, "TRITON_ATTN", 16),
        (NEMOTRON, {"dtype": "float32"}, "TRITON_ATTN", 16),
        (NEMOTRON, {"gpu_capability": "10.0"}, "FLASHINFER", 16),
        ("kimi-linear-48b-a3b", {}, "FLASH_ATTN_MLA", 16),
        (KIMI, {"kv_cache_dtype": "fp8"}, "TRITON_MLA", 16),
        (KIMI, {"kv_cache_dtype": "fp8", "engine_version": "0.22.1"}, "FLASH_ATTN_MLA", 16),
        (KIMI, {"gpu_capability": "10.0"}, "FLASHINFER_MLA", 32),
        (NEMOTRON, {"attention_backend": "triton_attn"}, "TRITON_ATTN", 16),
        (KIMI, {"attention_backend": "FLASHMLA"}, "FLASHMLA", 64),
    ],
)
def test_the_backend_follows_gpu_dtype_and_kind(model: str, given: dict[str, Any], name: str, block: int) -> None:
    ready = prepare(load_model(model), EngineArgs(**given))
    assert (present(ready.backend).name, present(ready.backend).kernel_block) == (name, block)
    assert name in ready.settled["attention_backends"]
    assert ready.pages.block % block == 0


def test_a_model_without_attention_has_none() -> None:
    assert attention_backend(load_model("codestral-mamba-7b"), EngineArgs(), rules_for(None)[0], "bfloat16") is None
    assert prepare(load_model("codestral-mamba-7b"), EngineArgs()).settled["attention_backends"] == ["MAMBA2_ATTN"]


def test_a_backend_nobody_knows_is_an_input_error() -> None:
    with pytest.raises(InputError, match=r"^--attention-backend MAGIC is not modelled$") as caught:
        prepare(load_model(NEMOTRON), EngineArgs(attention_backend="MAGIC"))
    assert caught.value.fix == f"one of {', '.join(FIXED_BACKENDS)}"


@pytest.mark.parametrize(
    ("asked", "layout"), [(None, "LBNHC"), ("NHD", "LBNHC"), ("HND", "LBHNC"), *((name, name) for name in FREE_LAYOUTS)]
)
def test_a_layout_by_name_or_alias(asked: str | None, layout: str) -> None:
    env = {} if asked is None else {"VLLM_KV_CACHE_LAYOUT": asked}
    ready = prepare(load_model(NEMOTRON), EngineArgs(env=env))
    assert ready.layout == layout
    assert f"Using {layout} KV cache layout." in ready.log


@pytest.mark.parametrize(
    ("model", "asked", "capability"),
    [(NEMOTRON, "BHLNC", "9.0"), (NEMOTRON, "LBNHC", "10.0"), (NEMOTRON, "nonsense", "9.0")],
)
def test_a_layout_that_one_of_the_caches_cannot_read_is_refused(model: str, asked: str, capability: str) -> None:
    """BHLNC is out for every hybrid; FlashInfer on Blackwell reads none that begins with LBN."""
    args = EngineArgs(env={"VLLM_KV_CACHE_LAYOUT": asked}, gpu_capability=capability)
    with pytest.raises(Refusal) as caught:
        prepare(load_model(model), args)
    assert (caught.value.stage, caught.value.rule) == ("layout+groups", "HC047")
    assert caught.value.message == f"VLLM_KV_CACHE_LAYOUT={asked} is no layout that both caches can be kept in"


def test_a_pure_state_model_takes_the_layouts_that_hybrids_cannot() -> None:
    for asked in ("BHLNC", "LHBNC"):
        assert resolve_layout(EngineArgs(env={"VLLM_KV_CACHE_LAYOUT": asked}), rules_for(None)[0], None) == asked


@pytest.mark.parametrize(("block", "near"), [(24, 32), (8, 16), (1, 16), (1000, 992)])
def test_a_block_that_the_kernels_do_not_divide_is_refused_with_the_nearest(block: int, near: int) -> None:
    """Recorded for 24 and 8: no valid attention backend."""
    with pytest.raises(Refusal) as caught:
        prepare(load_model(NEMOTRON), EngineArgs(block_size=block))
    assert (caught.value.stage, caught.value.rule) == ("initialize_model", "HC047")
    assert caught.value.message == f"FLASH_ATTN takes no block of {block} tokens: its kernels work on 16"
    assert caught.value.fix == f"write --block-size {near}, or leave it out"
    assert prepare(load_model(NEMOTRON), EngineArgs(block_size=near)).pages.block % near == 0
