"""Pages in a real browser: what the script computes is what Python computes, nothing is requested, nothing is logged.

Needs playwright (the extra `browser`) and a Chromium of the system; without them these tests are skipped, and say so.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import Any

import pytest
from browser_pages import SET, number, page

from hybridcalc import load_model, sglang, vllm
from hybridcalc.deployment import Memory, Workload, exact_rest
from hybridcalc.engines import ENGINES
from hybridcalc.engines.sglang import play as sglang_play
from hybridcalc.engines.sglang.server_plan import plan as sglang_plan
from hybridcalc.engines.view import facts_of, plan_view
from hybridcalc.errors import HybridcalcError
from hybridcalc.hardware import find_gpu


@pytest.fixture
def kimi() -> Any:
    args = sglang.ServerArgs(tp_size=8, kv_cache_dtype="fp8_e4m3")
    play = sglang_play.play(load_model("kimi-k3"), args, exact_rest(28.55), Workload.at(9216))
    assert play is not None
    return play


def test_every_range_moves_its_number_and_the_answer(opened: Any, kimi: Any) -> None:
    """With the keyboard alone: each range is reached by Tab order and moved by arrow keys."""
    tab = opened(page(kimi))
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
    tab = opened(page(kimi))
    tab.click("#play-star")
    tab.wait_for_timeout(60)
    assert tab.input_value("#set-ratio") == "2.2"
    admitted = [number(tab.inner_text(f"#result-{name}")) for name in ("by-state", "by-kv")]
    assert abs(admitted[0] - admitted[1]) <= 1


def test_a_wrong_number_is_answered_in_words(opened: Any, kimi: Any) -> None:
    tab = opened(page(kimi))
    shown = tab.evaluate(SET, {"length": ""})
    assert shown["said"].startswith("Tokens a request holds (L): from 1 to")
    assert shown["at-once"] == "-"


def test_pictures_are_redrawn(opened: Any, kimi: Any) -> None:
    """The live pictures follow the settings: their lines and labels change."""
    tab = opened(page(kimi))
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
    tab = opened(page(sglang_play.play(model, args, exact_rest(28.0), work)))
    assert number(tab.inner_text("#result-at-once")) == plan.concurrency
    assert plan.ready.choice.strategy in tab.inner_text("#set-strategy option:checked")
    tab.evaluate(SET, {"strategy": "no_buffer"})
    assert "no_buffer does not run under the overlap scheduler" in tab.inner_text("#play-said")


def test_settings_that_do_not_start_show_no_pictures(opened: Any, kimi: Any) -> None:
    """A picture that cannot be drawn of the settings is hidden; it comes back with settings that start."""
    tab = opened(page(kimi))
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
    tab = opened(page(kimi))
    unnamed = tab.evaluate("""() => [...document.querySelectorAll("input, select, button")].filter(field =>
      !field.labels?.length && !field.ariaLabel && !field.textContent.trim()).map(field => field.id)""")
    assert unnamed == []
    assert tab.get_attribute("html", "lang") == "en"


def test_the_page_prints_without_its_controls(opened: Any, kimi: Any) -> None:
    tab = opened(page(kimi))
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
        assert number(shown["at-once"]) == again.concurrency, chosen
        weights = f"{dict(again.rest.others)['weights']:.2f} GiB"
        assert weights in " ".join(
            tab.eval_on_selector_all("#chart-memory svg[role]", "all => all.map(e => e.ariaLabel)")
        )
        seen.add(weights)
    assert len(seen) > 1


def test_the_address_brings_settings_back(opened: Any, kimi: Any) -> None:
    """A page opened at the address of another shows what that shows; without it, what it was made of."""
    tab = opened(page(kimi))
    first = tab.evaluate(SET, {})
    assert "#" not in tab.url
    shown = tab.evaluate(SET, {"tp": "4", "kv": "auto", "length": "30000", "ratio": "0.4", "memory": "41.5"})
    assert {part.partition("=")[0] for part in tab.url.partition("#")[2].split("&")} == {
        "tp",
        "kv",
        "length",
        "ratio",
        "memory",
    }
    other = opened(page(kimi), "#" + tab.url.partition("#")[2])
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
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="axe: pip install '.[browser]'")
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
    tab = opened(page(kimi))
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
    assert found == sorted(found, key=number) and len(found) > 1
    head.click()
    assert tab.eval_on_selector_all(rows, "rows => rows.map(row => row.cells[1].textContent)") == found[::-1]
    assert tab.get_attribute("section:has(#budget) th.number", "aria-sort") == "descending"
