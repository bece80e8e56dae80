"""Pages in a real browser: what the script computes is what Python computes, nothing is requested, nothing is logged.

Needs playwright (the extra `browser`) and a Chromium of the system; without them these tests are skipped, and say so.
"""

from __future__ import annotations

import random
import shutil
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from fractions import Fraction
from itertools import product
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "conformance"))

import sglang_cases
import test_vllm_vectors as vllm_vectors

from hybridcalc import load_model, sglang, vllm
from hybridcalc.deployment import Memory, Rest, Workload, exact_rest
from hybridcalc.engines import ENGINES
from hybridcalc.engines.sglang import planner as sglang_planner
from hybridcalc.engines.sglang import play as sglang_play
from hybridcalc.engines.sglang.balance import balance_model
from hybridcalc.engines.sglang.server_plan import plan as sglang_plan
from hybridcalc.engines.view import facts_of, plan_view
from hybridcalc.engines.vllm import planner as vllm_planner
from hybridcalc.engines.vllm import play as vllm_play
from hybridcalc.engines.vllm.server_plan import plan as vllm_plan
from hybridcalc.errors import HybridcalcError
from hybridcalc.formulas.slots import pin
from hybridcalc.hardware import find_gpu
from hybridcalc.output.pictures.page import render
from hybridcalc.resources import package_file
from hybridcalc.steps import View

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
if CHROMIUM is None:
    pytest.skip("no Chromium on this system", allow_module_level=True)
axe = pytest.importorskip(
    "axe_playwright_python.sync_playwright", reason="axe is not installed: pip install '.[browser]'"
)
playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed: pip install '.[browser]'")

FLAGS = ("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
         "--disable-background-networking", "--disable-component-update", "--disable-sync")  # fmt: skip
SETTINGS = 400
UNTYPED = (
    "engine_version",
    "draft_layers",
    "draft_kv_bytes_per_token",
    "gpu_memory_mib",
    "gpu_capability",
    "gpu_memory_gib",
)
SET = """values => { for (const [name, value] of Object.entries(values)) {
  const field = document.getElementById("set-" + name);
  field.value = value;
  field.dispatchEvent(new Event(field.tagName === "SELECT" ? "change" : "input"));
} return new Promise(done => requestAnimationFrame(() => requestAnimationFrame(() => done(Object.fromEntries(
  [...document.querySelectorAll("[id^=result-]")].map(e => [e.id.slice(7), e.textContent])
  .concat(["said", "launch"].map(name => [name, document.getElementById("play-" + name).textContent]))))))); }"""


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with playwright.sync_playwright() as driver:
        started = driver.chromium.launch(executable_path=CHROMIUM, args=list(FLAGS))
        yield started
        started.close()


@pytest.fixture
def opened(browser: Any, tmp_path: Path) -> Iterator[Any]:
    """Opens a page from disk, at a ``fragment`` of it; afterwards the console was silent and nothing else asked for."""
    seen: list[str] = []
    tabs = []

    def open_page(page: View, fragment: str = "", **options: Any) -> Any:
        target = tmp_path / "page.html"
        target.write_text(render(page), encoding="utf-8")
        tab = browser.new_page(**options)
        tab.on("console", lambda message: seen.append(f"console: {message.text}"))
        tab.on("pageerror", lambda error: seen.append(f"error: {error}"))
        tab.on(
            "request",
            lambda request: seen.append(request.url) if request.url.partition("#")[0] != target.as_uri() else None,
        )
        tab.goto(target.as_uri() + fragment)
        tab.wait_for_function("document.getElementById('play-said').textContent !== ''")
        tabs.append(tab)
        return tab

    yield open_page
    for tab in tabs:
        tab.close()
    assert seen == []


def _number(text: str) -> int:
    return int(text.replace(",", ""))


def _page(play: Any) -> View:
    return View("title", "headline", "meaning", play=lambda: play)


DRAFTS: dict[str, Any] = {"speculative_algorithm": "NEXTN", "speculative_num_draft_tokens": 4, "draft_layers": 1}
CASES = {
    "plain": ("kimi-k3", sglang.ServerArgs(tp_size=8, kv_cache_dtype="fp8_e4m3")),
    "drafts": ("qwen3.6-35b-a3b", sglang.ServerArgs(tp_size=2, **DRAFTS)),
    "rings a slot": ("kimi-k3", sglang.ServerArgs(tp_size=8, enable_linear_replayssm_spec=True, **DRAFTS)),
    "rings a request": ("qwen3.6-35b-a3b", sglang.ServerArgs(enable_linear_replayssm_spec=True, **DRAFTS)),
    "dcp, pages": ("kimi-k3", sglang.ServerArgs(tp_size=8, dcp_size=4, page_size=64)),
    "stages, limit": ("qwen3-next-80b-a3b", sglang.ServerArgs(tp_size=2, pp_size=2, max_running_requests=40)),
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
    tab = opened(_page(play))
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
        assert {key: _number(shown[key]) for key in expected} == expected, values
        binds = {"state": "state pool", "kv": "KV pool", "limit": "request limit"}[plan.binding]
        assert f"the {binds} binds" in shown["said"], values
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
        assert {key: _number(shown[key]) for key in expected} == expected, values
        binds = {"blocks": "the blocks bind", "limit": "max_num_seqs binds", "context": "longer than max_model_len"}
        assert binds[plan.binding] in shown["said"], values


@pytest.fixture
def kimi() -> Any:
    play = sglang_play.play(load_model("kimi-k3"), CASES["plain"][1], exact_rest(28.55), Workload.at(9216))
    assert play is not None
    return play


def test_every_range_moves_its_number_and_the_answer(opened: Any, kimi: Any) -> None:
    """With the keyboard alone: each range is reached by Tab order and moved by arrow keys."""
    tab = opened(_page(kimi))
    for control in kimi.controls:
        if control.choices:
            continue
        before = tab.input_value(f"#set-{control.name}"), tab.inner_text(".results")
        tab.focus(f"#range-{control.name}")
        for _ in range(90):
            tab.keyboard.press("ArrowLeft")
        tab.wait_for_timeout(60)
        after = tab.input_value(f"#set-{control.name}"), tab.inner_text(".results")
        assert after[0] != before[0] and after[1] != before[1], control.name
    tab.click("#play-reset")
    tab.wait_for_timeout(60)
    assert tab.input_value("#set-length") == "9216"


def test_the_ratio_can_be_set_to_the_balanced_one(opened: Any, kimi: Any) -> None:
    tab = opened(_page(kimi))
    tab.click("#play-star")
    tab.wait_for_timeout(60)
    assert tab.input_value("#set-ratio") == "2.2"
    admitted = [_number(tab.inner_text(f"#result-{name}")) for name in ("by-state", "by-kv")]
    assert abs(admitted[0] - admitted[1]) <= 1


def test_a_wrong_number_is_answered_in_words(opened: Any, kimi: Any) -> None:
    tab = opened(_page(kimi))
    shown = tab.evaluate(SET, {"length": ""})
    assert shown["said"].startswith("Tokens a request holds (L): from 1 to")
    assert shown["at-once"] == "-"


def test_pictures_are_redrawn(opened: Any, kimi: Any) -> None:
    """The live pictures follow the settings: their lines and labels change."""
    tab = opened(_page(kimi))
    before = {name: tab.inner_html(f"#chart-{name}") for name in kimi.charts}
    tab.evaluate(SET, {"length": "65536", "ratio": "3", "memory": "60"})
    tab.wait_for_timeout(200)
    for name, drawn in before.items():
        assert tab.inner_html(f"#chart-{name}") != drawn, name
    assert "50 GiB" in tab.inner_text("#chart-memory") and "with these settings" in tab.inner_text("#chart-memory")
    assert "L = 65,536" in tab.inner_text("#chart-lengths")
    assert "ratio 3" in tab.inner_text("#chart-ratios")


@pytest.mark.parametrize("name", ["lfm2-1.2b", "jet-nemotron-2b", "kimi-k3"])
def test_a_page_opens_at_the_plan_it_is_about(opened: Any, name: Any) -> None:
    """Whatever strategy the engine chooses itself, with or without the overlap scheduler."""
    model, args, work = load_model(name), sglang.ServerArgs(tp_size=8 if name == "kimi-k3" else 1), Workload.at(8192)
    plan = sglang_plan(model, args, rest=exact_rest(28.0), workload=work)
    tab = opened(_page(sglang_play.play(model, args, exact_rest(28.0), work)))
    assert _number(tab.inner_text("#result-at-once")) == plan.concurrency
    assert plan.ready.choice.strategy in tab.inner_text("#set-strategy option:checked")
    tab.evaluate(SET, {"strategy": "no_buffer"})
    assert "no_buffer does not run under the overlap scheduler" in tab.inner_text("#play-said")


def test_settings_that_do_not_start_show_no_pictures(opened: Any, kimi: Any) -> None:
    """A picture that cannot be drawn of the settings is hidden; it comes back with settings that start."""
    tab = opened(_page(kimi))
    seen = """() => Object.fromEntries([...document.querySelectorAll("[id^=chart-]")].map(
      e => [e.id.slice(6), getComputedStyle(e).visibility === "visible"]))"""
    assert set(tab.evaluate(seen).values()) == {True}
    for values, visible in (
        ({"memory": "0.1"}, set()),
        ({"memory": "0.5"}, {"ratios", "lengths"}),
        ({"memory": "28", "length": ""}, set()),
        ({"length": "9216", "strategy": "no_buffer"}, set()),
        ({"strategy": "auto"}, {"memory", "ratios", "lengths"}),
    ):
        tab.evaluate(SET, values)
        assert {name for name, shown in tab.evaluate(seen).items() if shown} <= visible, values
    assert set(tab.evaluate(seen).values()) == {True}


def test_every_field_has_a_name_for_readers_of_screens(opened: Any, kimi: Any) -> None:
    tab = opened(_page(kimi))
    unnamed = tab.evaluate("""() => [...document.querySelectorAll("input, select, button")].filter(field =>
      !field.labels?.length && !field.ariaLabel && !field.textContent.trim()).map(field => field.id)""")
    assert unnamed == []
    assert tab.get_attribute("html", "lang") == "en"


def test_the_page_prints_without_its_controls(opened: Any, kimi: Any) -> None:
    tab = opened(_page(kimi))
    tab.emulate_media(media="print")
    assert not tab.is_visible("#play-form")
    assert tab.is_visible(".results")


LAUNCHES: dict[str, tuple[str, Any]] = {
    "sglang": ("qwen3.5-397b-a17b", sglang.ServerArgs(tp_size=8, quantization="fp8")),
    "vllm": ("qwen3.6-35b-a3b", vllm.EngineArgs(tensor_parallel_size=2, max_model_len=131072)),
}


@pytest.fixture(params=LAUNCHES)
def on_gpus(request: Any) -> Any:
    """The whole answer of a plan whose memory follows from a GPU."""
    name, args = LAUNCHES[request.param]
    engine, model, work = ENGINES[request.param], load_model(name), Workload.at(32768)
    rest = engine.memory(model, args, Memory(gpu=find_gpu("h200")))
    return engine, model, args, engine.plan(model, args, rest, work)


def test_ranks_and_dtypes_change_weights_and_memory(opened: Any, on_gpus: Any) -> None:
    """Every combination of choices comes to what Python plans on the same GPUs, weights and all."""
    engine, model, args, plan = on_gpus
    gpu = Memory(gpu=find_gpu("h200"))
    tab = opened(plan_view(engine, plan))
    play = facts_of(engine).play(plan)
    assert play is not None
    choices = {control.name: [value for value, _ in control.choices] for control in play.controls if control.choices}
    fields = {name: engine.flags.by_spelling[flag].field for name, (flag, _) in play.data["launch"]["flags"].items()}
    seen = set()
    for values in product(*choices.values()):
        chosen = dict(zip(choices, values, strict=True))
        shown = tab.evaluate(SET, chosen)
        typed = {fields[name]: int(value) if name == "tp" else value for name, value in chosen.items()}
        changed = replace(args, **typed)
        try:
            again = engine.plan(model, changed, engine.memory(model, changed, gpu), plan.workload)
        except HybridcalcError:
            assert shown["said"].startswith("Does not start"), chosen
            continue
        assert _number(shown["at-once"]) == again.concurrency, chosen
        weights = f"{dict(again.rest.others)['weights']:.2f} GiB"
        assert weights in " ".join(
            tab.eval_on_selector_all("#chart-memory svg[role]", "all => all.map(e => e.ariaLabel)")
        )
        seen.add(weights)
    assert len(seen) > 1


def test_the_address_brings_settings_back(opened: Any, kimi: Any) -> None:
    """A page opened at the address of another shows what that shows; without it, what it was made of."""
    tab = opened(_page(kimi))
    first = tab.evaluate(SET, {})
    assert "#" not in tab.url
    shown = tab.evaluate(SET, {"tp": "4", "kv": "auto", "length": "30000", "ratio": "0.4", "memory": "41.5"})
    assert {part.partition("=")[0] for part in tab.url.partition("#")[2].split("&")} == {
        "tp", "kv", "length", "ratio", "memory",
    }  # fmt: skip
    other = opened(_page(kimi), "#" + tab.url.partition("#")[2])
    assert other.evaluate(SET, {}) == shown != first
    other.evaluate("location.hash = '#tp=3&length=x&nothing=1&ratio=0.5'")
    other.wait_for_timeout(60)
    assert other.input_value("#set-tp") == "8" and other.input_value("#set-ratio") == "0.5"
    other.click("#play-reset")
    assert other.evaluate(SET, {}) == first and "=" not in other.url
    assert other.inner_text("#given-at-once") == first["at-once"]


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 1100])
def test_axe_finds_nothing_and_letters_are_legible(opened: Any, on_gpus: Any, width: int, scheme: str) -> None:
    """Names, contrast, headings, labels, regions; letters of 11 px and more; nothing wider than the screen."""
    engine, _, _, plan = on_gpus
    size = {"width": width, "height": 844}
    tab = opened(plan_view(engine, plan), "#length=20000", viewport=size, color_scheme=scheme)
    found = axe.Axe().run(tab).response["violations"]
    assert [(each["id"], [node["html"][:200] for node in each["nodes"]]) for each in found] == []
    smallest, wide = tab.evaluate("""() => [Math.min(...[...document.querySelectorAll("body *")].filter(e =>
      e.getClientRects().length && [...e.childNodes].some(n => n.nodeType === 3 && n.textContent.trim())).map(e =>
      parseFloat(getComputedStyle(e).fontSize))), document.documentElement.scrollWidth]""")
    assert smallest >= 11 and wide <= width
    outside = tab.evaluate("""() => [...document.querySelectorAll("figure text")].filter(text => {
      const box = text.getBoundingClientRect(), whole = text.ownerSVGElement.getBoundingClientRect();
      return box.left < whole.left - 2 || box.right > whole.right + 2; }).map(text => text.textContent)""")
    assert outside == []


def test_values_are_read_with_pointer_and_keys(opened: Any, kimi: Any) -> None:
    tab = opened(_page(kimi))
    tab.hover("#chart-lengths .frame")
    assert "requests at once: " in tab.inner_text("#chart-lengths .reading")
    tab.focus("#chart-ratios .frame")
    tab.keyboard.press("ArrowRight")
    before = tab.inner_text("#chart-ratios .reading")
    tab.keyboard.press("PageUp")
    assert "state slots admit: " in before != tab.inner_text("#chart-ratios .reading")
    tab.keyboard.press("Escape")
    assert not tab.is_visible("#chart-ratios .reading")


def test_tables_are_sorted_by_a_click(opened: Any, on_gpus: Any) -> None:
    tab = opened(plan_view(on_gpus[0], on_gpus[3]))
    rows = "section:has(#budget) tbody tr"
    head = tab.locator("section:has(#budget) th.number button").first
    head.click()
    found = tab.eval_on_selector_all(rows, "rows => rows.map(row => row.cells[1].textContent)")
    assert found == sorted(found, key=_number) and len(found) > 1
    head.click()
    assert tab.eval_on_selector_all(rows, "rows => rows.map(row => row.cells[1].textContent)") == found[::-1]
    assert tab.get_attribute("section:has(#budget) th.number", "aria-sort") == "descending"
