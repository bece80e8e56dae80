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


def test_answers_say_their_figures_and_have_rows() -> None:
    """In a line, as a table in notebooks, and as rows for pandas; typed like the rest."""
    plan = hybridcalc.plan("kimi-k3", tp_size=8, rest="28.55GiB", length=9216)
    assert "SGLang" in repr(plan) and "kimi-k3" in repr(plan) and "\n" not in repr(plan)
    assert f"{plan.requests} requests" in repr(plan) and "the state pool binds" in repr(plan)
    rows = plan.to_records()
    assert_type(rows, list[dict[str, Any]])
    assert [row["allocated_bytes"] for row in rows] == [line.allocated_bytes for line in plan.budget]
    assert_type(plan._repr_html_(), str)
    assert "<table>" in plan._repr_html_() and "257 slots" in plan._repr_html_()
    vllm_plan = hybridcalc.plan("vllm serve Qwen/Qwen3.6-35B-A3B", available="40GiB", length=8192)
    assert repr(vllm_plan).startswith("<vLLM") and "the blocks bind" in repr(vllm_plan)
    assert repr(hybridcalc.plan("llama-server -m qwen3.5-27b-Q4_K_M.gguf -c 8192")).startswith("<llama.cpp")
    weights = hybridcalc.weights("qwen3.5-27b")
    assert f"{weights.likely:,}" in repr(weights)
    assert_type(weights.to_records(), list[dict[str, Any]])
    assert sum(row["bytes_per_rank"] for row in weights.to_records()) == weights.likely
    assert weights.to_records()[0]["name"] in weights._repr_html_()


def test_searches_say_what_they_found() -> None:
    found = hybridcalc.fit("qwen3.6-35b-a3b", length=9216, concurrency=20, gpu="h200")
    assert "H200" in repr(found) and "20 requests" in repr(found)
    assert_type(found.to_records(), list[dict[str, Any]])
    assert found._repr_html_().count("<tr>") == 1 + len(found.to_records())
    none = hybridcalc.fit("kimi-k3", length="64k", concurrency=100, gpu="8xh100")
    assert repr(none) == "<nothing serves 100 requests of 65,536 tokens of kimi-k3>"
    assert "<table>" in none._repr_html_()
    models = hybridcalc.fit(gpu="rtx-4090", length="8k")
    assert f"{len(models.to_records())} checkpoints" in repr(models) and "<th>" in models._repr_html_()


def test_what_a_notebook_shows_is_escaped() -> None:
    from hybridcalc.findings import View
    from hybridcalc.notebook import html_of, html_of_records

    assert "<b>" not in html_of_records("<b>", [{"<b>": "<b>"}])
    assert "<i>" not in html_of(View("<i>", "<i>", "<i>", subject="<i>"))


def test_help_is_the_documentation() -> None:
    assert set(dir(hybridcalc)) == set(hybridcalc.__all__)
    for name in ("plan(", "fit(", "weights(", "load_model(", "sglang.", "vllm."):
        assert name in (hybridcalc.__doc__ or "")
    assert all(getattr(hybridcalc, name).__doc__ for name in dir(hybridcalc))
