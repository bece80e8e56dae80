"""What the script of a page computes is what Python computes."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from browser_pages import SET, number, page

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "conformance"))

import sglang_cases
import test_vllm_vectors as vllm_vectors

from hybridcalc import load_model, sglang, vllm
from hybridcalc.architecture.presets import package_file
from hybridcalc.deployment import Rest, Workload, exact_rest
from hybridcalc.engines import ENGINES
from hybridcalc.engines.sglang import planner as sglang_planner
from hybridcalc.engines.sglang import play as sglang_play
from hybridcalc.engines.sglang.balance import balance_model
from hybridcalc.engines.sglang.server_plan import plan as sglang_plan
from hybridcalc.engines.vllm import planner as vllm_planner
from hybridcalc.engines.vllm import play as vllm_play
from hybridcalc.engines.vllm.server_plan import plan as vllm_plan
from hybridcalc.errors import HybridcalcError
from hybridcalc.formulas import pin

SETTINGS = 400


UNTYPED = (
    "engine_version",
    "draft_layers",
    "draft_kv_bytes_per_token",
    "gpu_memory_mib",
    "gpu_capability",
    "gpu_memory_gib",
)


DRAFTS: dict[str, Any] = {"speculative_algorithm": "NEXTN", "speculative_num_draft_tokens": 4, "draft_layers": 1}


CASES = {
    "plain": ("kimi-k3", sglang.ServerArgs(tp_size=8, kv_cache_dtype="fp8_e4m3")),
    "drafts": ("qwen3.6-35b-a3b", sglang.ServerArgs(tp_size=2, **DRAFTS)),
    "rings a slot": ("kimi-k3", sglang.ServerArgs(tp_size=8, enable_linear_replayssm_spec=True, **DRAFTS)),
    "rings a request": ("qwen3.6-35b-a3b", sglang.ServerArgs(enable_linear_replayssm_spec=True, **DRAFTS)),
    "dcp, pages": ("kimi-k3", sglang.ServerArgs(tp_size=8, dcp_size=4, page_size=64)),
    "stages, limit": ("qwen3.6-35b-a3b", sglang.ServerArgs(tp_size=2, pp_size=2, max_running_requests=40)),
    "older": ("nemotron-nano-9b-v2", sglang.ServerArgs(engine_version="0.5.16", max_total_tokens=500_000)),
    "no radix": ("lfm2-1.2b", sglang.ServerArgs(disable_radix_cache=True, max_running_requests=64)),
    "windows": ("inkling", sglang.ServerArgs(tp_size=8)),
}  # fmt: skip


def tried(
    opened: Any,
    play: Any,
    count: int,
    case: str,
    draw: Callable[[random.Random], dict[str, str]],
    planned: Callable[[dict[str, str], Workload, Rest], Any],
    **untyped: Any,
) -> Iterator[tuple[dict[str, str], Any, Any]]:
    """Random settings in the browser: what was set and what is shown, with the plan, where Python has one, which is
    that of the launch line that the page writes.
    """
    assert play is not None
    tab = opened(page(play))
    choices = {control.name: [value for value, _ in control.choices] for control in play.controls if control.choices}
    rng = random.Random(case)
    started = 0
    for _ in range(count):
        values = {key: rng.choice(options) for key, options in choices.items()} | draw(rng)
        values["memory"] = repr(round(2 ** rng.uniform(-1, 8), 3))
        shown = tab.evaluate(SET, values)
        work, rest = Workload.at(int(values["length"])), exact_rest(float(values["memory"]))
        try:
            plan = planned(values, work, rest)
            launch = ENGINES.launch(shown["launch"])
            read = ENGINES[plan.engine].read([*launch.words], launch.variables, [])[1]
            again: Any = ENGINES[plan.engine].plan(plan.model, replace(read, **untyped), rest, work)
            assert again.engine_figures == plan.engine_figures, shown["launch"]
        except HybridcalcError:
            assert shown["said"].startswith("Does not start"), values
            continue
        started += 1
        yield values, shown, plan
    assert started >= 5


def _untyped(args: Any) -> dict[str, Any]:
    return {name: value for name, value in args.given().items() if name in UNTYPED}


@pytest.mark.parametrize("case", CASES)
def test_sglang_settings_come_to_what_python_plans(opened: Any, case: Any) -> None:
    """Random settings in the browser: every integer, what binds and what is refused, as the planner has them."""
    name, args = CASES[case]
    model = load_model(name)

    def draw(rng: random.Random) -> dict[str, str]:
        return {
            "length": str(rng.choice([rng.randint(1, 300), int(2 ** rng.uniform(8, 20))])),
            "concurrency": str(rng.randint(1, 400)),
            "ratio": f"{10 ** rng.uniform(-1.6, 1.6):.4g}",
        }

    def planned(values: dict[str, str], work: Workload, rest: Rest) -> Any:
        changed = replace(
            args,
            tp_size=int(values["tp"]),
            kv_cache_dtype=values["kv"],
            mamba_ssm_dtype=values["ssm"],
            mamba_radix_cache_strategy=values["strategy"],
            mamba_full_memory_ratio=float(values["ratio"]),
        )
        return sglang_plan(model, changed, rest=rest, workload=work)

    play, count = (
        sglang_play.play(model, args, exact_rest(28.55), Workload.at(9216)),
        SETTINGS if case == "plain" else SETTINGS // 8,
    )
    for values, shown, plan in tried(opened, play, count, case, draw, planned, **_untyped(args)):
        expected = {
            "slots": plan.max_mamba_cache_size,
            "tokens": plan.logical_token_capacity,
            "limit": plan.max_running_requests,
            "by-state": plan.capacity.state_requests,
            "by-kv": plan.capacity.kv_requests,
            "at-once": plan.concurrency,
            "slots-per-request": plan.slots_per_request,
            "pin": pin(int(values["concurrency"]), plan.slots_per_request, dp=plan.args.attn_dp_size),
        }
        assert {key: number(shown[key]) for key in expected} == expected, values
        binds = {"state": "the state pool binds", "kv": "the KV pool binds", "limit": "the request limit binds"}
        assert {**binds, "context": "longer than the context"}[plan.binding] in shown["said"], values
        assert _is(shown["ratio-star"], balance_model(model, plan.args, plan.workload).ratio), values


def _is(text: str, exact: Fraction) -> bool:
    """Whether three significant digits are shown of it."""
    return abs(float(text.replace(",", "")) - float(exact)) <= 0.0051 * float(exact)


@pytest.fixture(scope="module")
def arithmetic(browser: Any) -> Iterator[Any]:
    """A blank tab that knows the page's arithmetic."""
    tab = browser.new_page()
    tab.add_script_tag(content=package_file("output/pictures/web/arithmetic.js").decode())
    yield tab
    tab.close()


def test_sglangs_recorded_start_ups_come_out_in_the_browser(arithmetic: Any) -> None:
    """Every recorded K, T and R of the engine's own classes, where start-up gets as far as counting memory."""
    asked, recorded = [], []
    for case_id, case in sglang_cases.CASES.items():
        outputs, model, args = case["outputs"], sglang_cases.model_of(case_id), sglang_cases.arguments_of(case_id)
        if sglang_cases.refused_at(case_id) == "alloc":
            continue
        try:
            ready = sglang_planner.prepare(model, args)
            sizes = sglang_play.sizes_of(model, args, sglang_play.constants_of(ready))
        except HybridcalcError:
            continue
        if "refused" in sizes:
            continue
        ready_args = ready.args
        asked.append(
            [
                sizes,
                sglang_play.constants_of(ready),
                case["inputs"]["budget_gib"],
                ready_args.mamba_full_memory_ratio,
                ready_args.max_mamba_cache_size,
            ]
        )
        refused = bool(sglang_cases.refused_at(case_id))
        names = ("max_mamba_cache_size", "max_total_num_tokens", "max_running_requests")
        recorded.append((case_id, None if refused else [outputs[name] for name in names]))
    shown = arithmetic.evaluate(
        """cases => cases.map(([e, c, gib, ratio, slots]) => {
      try { const s = sglangSize(e, c, gib, ratio, slots); return [s.K, s.T, s.R]; }
      catch (error) { if (error instanceof Refused) { return null; } throw error; } })""",
        asked,
    )
    assert len(recorded) > 140
    assert [(case_id, found) for (case_id, _), found in zip(recorded, shown, strict=True)] == recorded


def test_vllms_recorded_start_ups_come_out_in_the_browser(arithmetic: Any) -> None:
    asked, recorded = [], []
    for case_id, case in vllm_vectors.CASES.items():
        model, args, outputs = case.model, case.args, case.recorded
        if case.stage or not outputs.get("num_blocks") or args.max_model_len == -1:
            continue
        ready = vllm_planner.prepare(model, args)
        sizes = vllm_play.sizes_of(model, args, vllm_play.constants_of(ready))
        assert "refused" not in sizes, case_id
        asked.append([sizes, vllm_play.constants_of(ready), case.available_bytes / 2**30, ready.args.seqs])
        recorded.append((case_id, [outputs["num_blocks"], sum(outputs["group_blocks_per_request"])]))
    shown = arithmetic.evaluate(
        """cases => cases.map(([e, c, gib, seqs]) => {
      const s = vllmServe(e, c, gib, seqs, 1); return [s.blocks, s.perRequest]; })""",
        asked,
    )
    assert len(recorded) > 50
    assert [(case_id, found) for (case_id, _), found in zip(recorded, shown, strict=True)] == recorded


VLLM_CASES = {
    "align": ("qwen3.6-35b-a3b", vllm.EngineArgs(tensor_parallel_size=2, max_model_len=131072)),
    "no caching": ("nemotron-nano-9b-v2", vllm.EngineArgs(max_model_len=32768, enable_prefix_caching=False)),
    "dcp": ("kimi-k3", vllm.EngineArgs(tensor_parallel_size=8, max_model_len=65536, decode_context_parallel_size=2)),
    "attention": ("llama-3.1-8b", vllm.EngineArgs(max_model_len=16384)),
}  # fmt: skip


@pytest.mark.parametrize("case", VLLM_CASES)
def test_vllm_settings_come_to_what_python_plans(opened: Any, case: Any) -> None:
    name, args = VLLM_CASES[case]
    model = load_model(name)

    def draw(rng: random.Random) -> dict[str, str]:
        return {"length": str(int(2 ** rng.uniform(0, 17.5))), "seqs": str(int(2 ** rng.uniform(0, 12)))}

    def planned(values: dict[str, str], work: Workload, rest: Rest) -> Any:
        changed = replace(
            args,
            tensor_parallel_size=int(values["tp"]),
            kv_cache_dtype=values["kv"],
            mamba_ssm_cache_dtype=values["ssm"],
            max_num_seqs=int(values["seqs"]),
        )
        return vllm_plan(model, changed, rest=rest, workload=work)

    play, count = (
        vllm_play.play(model, args, exact_rest(40.0), Workload.at(8192)),
        SETTINGS if case == "align" else SETTINGS // 8,
    )
    for values, shown, plan in tried(opened, play, count, case, draw, planned, **_untyped(args)):
        expected = {
            "blocks": plan.num_blocks,
            "each": plan.running.blocks_each,
            "per-request": plan.blocks_per_request,
            "fits": plan.running.fits,
            "at-once": plan.concurrency,
            "block": plan.attn_block_size,
        }
        assert {key: number(shown[key]) for key in expected} == expected, values
        binds = {"blocks": "the blocks bind", "limit": "max_num_seqs binds", "context": "longer than max_model_len"}
        assert binds[plan.binding] in shown["said"], values
