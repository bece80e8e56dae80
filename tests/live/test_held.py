"""`live --expect`: a server of another engine or model is not as planned, nor one that exports nothing of the plan."""

import json
from pathlib import Path
from typing import Any

import pytest
from test_verdict import EXAMPLE, live, metrics

from hybridcalc.live.held import expected
from hybridcalc.live.verdict import Live
from hybridcalc.live.view import view

TEXTS = {
    "sglang": EXAMPLE.read_text(),
    "vllm": metrics(
        "vllm:", {"num_requests_running": 4, "num_requests_waiting": 0, "kv_cache_usage_perc": 0.5},
        'model_name="Qwen/Qwen3.6-35B-A3B-FP8"',
    ) + metrics("vllm:", {"cache_config_info": 1}, 'num_gpu_blocks="1400"'),
    "llama.cpp": metrics("llamacpp:", {"requests_processing": 1, "requests_deferred": 0}),
}  # fmt: skip
TITLES = {"sglang": "SGLang", "vllm": "vLLM", "llama.cpp": "llama.cpp"}
PLANS: dict[str, dict[str, Any]] = {
    "sglang": {"model": "kimi-k3", "max_mamba_cache_size": 257, "max_total_num_tokens": 1_169_204},
    "vllm": {"model": "qwen3.6-35b-a3b", "num_blocks": 1400},
    "llama.cpp": {"model": "qwen3.6-35b-a3b", "n_ctx": 4096, "n_seq_max": 4},
}


def told(found: Live) -> list[str]:
    return [one.message for one in found.findings if one.rule == "HC307"]


@pytest.mark.parametrize("planned", TITLES)
@pytest.mark.parametrize("there", TITLES)
def test_a_plan_of_another_engine_is_not_this_server(there: str, planned: str) -> None:
    found = told(expected(live(TEXTS[there]), {"engine": planned, **PLANS[planned]}))
    if there != planned:
        assert found == [f"the plan is of {TITLES[planned]}, this is {TITLES[there]}"]
    elif there == "llama.cpp":  # its metrics alone say neither
        assert found == ["the server: no pool and no limit of the plan is exported: none is compared"]
    else:
        assert found == []


def test_a_plan_of_another_model_is_not_this_server() -> None:
    plan = {"engine": "vllm", **PLANS["vllm"], "model": "qwen3.5-397b-a17b"}
    assert told(expected(live(TEXTS["vllm"]), plan)) == [
        "the plan is of qwen3.5-397b-a17b, this is Qwen/Qwen3.6-35B-A3B-FP8"
    ]
    alias = live(TEXTS["vllm"].replace("Qwen/Qwen3.6-35B-A3B-FP8", "chat"))
    assert told(expected(alias, plan)) == []
    assert told(expected(alias, plan, "qwen3.6-35b-a3b")) == [
        "the plan is of qwen3.5-397b-a17b, this is qwen3.6-35b-a3b"
    ]


def test_all_that_differs_is_one_finding_and_what_is_as_planned_is_said() -> None:
    plan = {"engine": "sglang", **PLANS["sglang"]}
    held = expected(live(TEXTS["sglang"]), plan)
    assert "as planned: 257 slots, 1,169,204 tokens of KV" in view(held).meaning
    (differs,) = told(expected(live(TEXTS["sglang"]), plan | {"max_mamba_cache_size": 245, "max_total_num_tokens": 9}))
    assert differs == "the server: 257 slots, planned 245; 1,169,204 tokens of KV, planned 9"
    (blocks,) = told(expected(live(TEXTS["vllm"]), {"engine": "vllm", **PLANS["vllm"], "num_blocks": 1755}))
    assert blocks == "the server: 1,400 blocks, planned 1,755"


def test_every_kind_of_a_fleet_is_held_to_the_plan(tmp_path: Path) -> None:
    from command_line import run

    files = []
    for name, text in TEXTS.items():
        files.append(tmp_path / f"{name}.txt")
        files[-1].write_text(text)
    plan = tmp_path / "plan.json"
    document = {"schema": "hybridcalc.plan/2", "engine": "sglang", **PLANS["sglang"], "engine_figures": {}}
    plan.write_text(json.dumps(document))
    assert run("live", str(files[0]), "--expect", str(plan)).code == 0
    code, out, _ = run("live", *map(str, files), "--expect", str(plan), "--json")
    found = json.loads(out)
    rules = {one["engine"]: {each["rule"] for each in one["findings"]} for one in (found, *found["others"])}
    assert code == 1
    assert {name for name, own in rules.items() if "HC307" in own} == {"vllm", "llama.cpp"}
