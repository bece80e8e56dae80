"""Floors of time on a page are those of Python, for all settings of the page, and the page's own as well."""

from __future__ import annotations

import json
import random
import re
from pathlib import Path
from typing import Any

import pytest
from browser_pages import SET
from command_line import run

from hybridcalc.engines.ask import arguments_of
from hybridcalc.errors import HybridcalcError
from hybridcalc.hardware import rates_of
from hybridcalc.speed import decode_step
from hybridcalc.speed.floor import EXPERTS, HEAD
from hybridcalc.speed.page import sizes_of

STEPS = 40
SERVED: dict[str, tuple[str, str, dict[str, Any]]] = {
    "mixture of experts": ("qwen3.5-35b-a3b", "sglang", {"tp_size": 2}),
    "latent": ("kimi-k3", "sglang", {"tp_size": 8, "dcp_size": 4}),
    "attention workers": ("kimi-k3", "sglang", {"tp_size": 8, "dp_size": 4, "enable_dp_attention": True}),
    "drafts": ("qwen3.6-27b", "sglang", {"speculative_algorithm": "EAGLE", "speculative_num_draft_tokens": 4}),
    "stages": ("nemotron-3-nano-30b-a3b", "vllm", {"tp_size": 2, "pp_size": 2}),
    "windows": ("gpt-oss-120b", "vllm", {"tp_size": 4}),
    "sparse": ("minicpm-sala", "sglang", {}),
    "replicas": ("granite-4.0-h-small", "vllm", {"dp_size": 3}),
}


def number(text: str) -> float:
    return float(text.replace(",", ""))


def opened_page(browser: Any, path: Path, *words: str) -> Any:
    """A tab with the page of a plan."""
    assert run("report", "-o", str(path), *words).code == 0
    tab = browser.new_page()
    tab.goto(path.as_uri())
    tab.wait_for_function("document.getElementById('play-said').textContent !== ''")
    return tab


@pytest.mark.parametrize("case", SERVED)
def test_a_step_of_the_script_is_that_of_python(case: str, browser: Any) -> None:
    model, engine, arguments = SERVED[case]
    served, found, args = arguments_of(model, engine, arguments)
    rates, chance = rates_of("h200"), random.Random(case)
    sizes = sizes_of(served, found, args, rates)
    script = (Path(__file__).parents[3] / "hybridcalc/output/pictures/web/speed.js").read_text("utf-8")
    tab = browser.new_page()
    tab.add_script_tag(content=script)
    for _ in range(STEPS):
        batch, context = round(2 ** chance.uniform(0, 11)), round(2 ** chance.uniform(0, 20))
        floor = decode_step(model, engine=engine, gpu="h200", batch=batch, context=context, **arguments)
        there = tab.evaluate(f"stepFloor({json.dumps(sizes)}, {rates.bandwidth_gbs}, {batch}, {context})")
        assert there["ms"] == pytest.approx(floor.floor_ms, rel=1e-6)
        assert there["each"] == pytest.approx(floor.tokens_per_second(), rel=1e-6)
        bytes_of = {part["name"].lower(): part["bytes"] for part in there["parts"]}
        weights = sum(floor.parts.get(name, 0) for name in ("weights", EXPERTS, HEAD))
        assert bytes_of["weights"] == pytest.approx(weights, rel=1e-6)
        for name in ("kv", "state"):
            assert bytes_of.get(name, 0) == pytest.approx(floor.parts.get(name, 0), abs=1)
    tab.close()


LAUNCHES = {
    "sglang": ("qwen3.5-35b-a3b", "--gpu", "2xh200", "-L", "16k"),
    "vllm": ("--gpu", "h200", "-L", "8k", "--", "vllm", "serve", "Qwen/Qwen3.5-35B-A3B"),
}


@pytest.mark.parametrize("engine", LAUNCHES)
def test_settings_of_a_page_change_the_pace(engine: str, browser: Any, tmp_path: Path) -> None:
    tab = opened_page(browser, tmp_path / "page.html", *LAUNCHES[engine])
    chance = random.Random(engine)
    offered = {
        name: tab.evaluate(f"[...document.getElementById('set-{name}').options].map(one => one.value)")
        for name in ("tp", "kv", "ssm")
    }
    seen = set()
    for _ in range(25):
        chosen = {name: chance.choice(values) for name, values in offered.items()} | {
            "length": str(round(2 ** chance.uniform(9, 17))),
            "memory": str(round(chance.uniform(20, 120), 1)),
        }
        tab.evaluate(SET, chosen)
        requests = re.match(r"([\d,]+) requests? of", tab.inner_text("#play-said"))
        text = tab.inner_text("#result-step-ms")
        if requests is None or requests[1] == "0":
            assert text == "-"
            continue
        asked: dict[str, Any] = {
            "tp_size": int(chosen["tp"]),
            "kv_cache_dtype": chosen["kv"],
            "mamba_ssm_dtype": chosen["ssm"],
        }
        batch, context = round(number(requests[1])), int(chosen["length"])
        try:
            floor = decode_step("qwen3.5-35b-a3b", engine=engine, gpu="h200", batch=batch, context=context, **asked)
        except HybridcalcError:
            continue
        assert number(text) == pytest.approx(floor.floor_ms, rel=0.01)
        assert number(tab.inner_text("#result-pace-each")) == pytest.approx(floor.tokens_per_second(), rel=0.05)
        assert number(tab.inner_text("#result-pace-all")) == pytest.approx(batch * floor.tokens_per_second(), rel=0.05)
        for name in ("step", "roofline"):
            assert tab.evaluate(f"document.getElementById('chart-{name}').querySelector('svg') !== null")
        seen.add(text)
    assert len(seen) > 8
    tab.close()


def test_a_page_without_a_gpu_has_no_pace(browser: Any, tmp_path: Path) -> None:
    tab = opened_page(browser, tmp_path / "page.html", "qwen3.5-35b-a3b", "--rest", "40GiB")
    assert tab.query_selector("#result-step-ms") is None
    assert tab.query_selector("#chart-step") is None
    tab.close()
