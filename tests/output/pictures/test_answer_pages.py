"""Pages: what stands on them, and that nothing that a user or a log wrote becomes markup."""

from __future__ import annotations

from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from command_line import pasted, run

ROOT = Path(__file__).resolve().parents[3]
pytestmark = pytest.mark.needs("vl_convert")

SVG = "{http://www.w3.org/2000/svg}"
K3 = ("kimi-k3", "--tp", "8", "--kv-cache-dtype", "fp8_e4m3", "-L", "9216")
PLAN = ("plan", *K3, "--gpu", "h200", "--weights", "95GiB", "--mem-fraction-static", "0.9")


def _drawn(tmp_path: Path, *arguments: str) -> Any:
    target = tmp_path / "drawn.svg"
    ran = run(*arguments, "--save", str(target), "--force")
    assert (ran.code, ran.err) == (0, "")
    assert ran.out.startswith(f"{target}: ")
    return ElementTree.fromstring(target.read_text(encoding="utf-8"))


def _texts(svg: Any) -> list[str]:
    return ["".join(element.itertext()) for element in svg.iter(f"{SVG}text")]


class _Page(HTMLParser):
    """What a page holds: elements, ids, visible text, and places it would load from."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.ids: list[str] = []
        self.loads: list[str] = []
        self.text: list[str] = []
        self.inside = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.inside = tag
        given = {name: value or "" for name, value in attrs}
        if "id" in given:
            self.ids.append(given["id"])
        self.loads += [given[name] for name in ("src", "href") if name in given and tag in ("script", "link", "img")]

    def handle_data(self, data: str) -> None:
        if self.inside not in ("script", "style"):
            self.text.append(data)


def _page(tmp_path: Path, *arguments: str, code: int = 0) -> tuple[str, _Page]:
    target = tmp_path / "page.html"
    ran = run(*arguments, str(target), "--force")
    assert (ran.code, ran.err) == (code, "")
    text = target.read_text(encoding="utf-8")
    assert len(text) < 2**20
    return text, _Page(text)


def test_a_plans_page_holds_verdict_pictures_budget_findings_steps_and_flags(tmp_path: Path) -> None:
    text, page = _page(tmp_path, *PLAN, "--save")
    document = run(*PLAN, "--json").document
    said = " ".join(" ".join(page.text).split())
    for finding in document["findings"]:
        assert finding["message"] in said
    for suggestion in document["suggestions"]:
        assert pasted(suggestion) in said
    for step in document["steps"]:
        assert step["source"] in said
    for line in document["budget"]:
        assert f"{line['allocated_bytes']:,}" in said
    assert text.count('data-copy="flags-') == len(document["suggestions"])
    assert text.count("<figure>") == 6 and text.count('<svg role="img"') == 6
    assert "unsafe-eval" not in text and "script-src 'sha256-" in text
    assert page.loads == ["data:,"]
    assert len(page.ids) == len(set(page.ids))
    assert "default-src 'none'" in text


def test_a_refused_plan_is_a_page_too(tmp_path: Path) -> None:
    _, page = _page(tmp_path, "report", "kimi-k3", "--rest", "1GiB", "-o", code=1)
    assert "does not start" in page.text


def test_hostile_names_are_escaped(tmp_path: Path) -> None:
    """Whatever a user or a log wrote does not become markup, in texts, attributes or data."""
    hostile = '"><script>alert(1)</script><img src=x onerror=alert(2)>'
    from hybridcalc.findings import Choice, Finding, Quantity, Table, View
    from hybridcalc.output.pictures.page import render

    page = View(
        hostile,
        hostile,
        hostile,
        figures=(Quantity(*(hostile,) * 4),),
        tables=(Table("T", ("a", "b"), ((hostile,) * 2,)),),
        findings=(Finding("HC000", "error", hostile, hostile),),
        choices=(Choice("set", hostile, hostile),),
        log_lines=(hostile,),
        notes=(hostile,),
    )
    text = render(page)
    assert "<script>alert" not in text and "<img" not in text
    assert text.count("<script>") == 1


def test_a_hostile_folder_is_escaped_in_page_and_picture(tmp_path: Path) -> None:
    """A config is named after its folder, and pages say the command that made them."""
    folder = tmp_path / "<script>alert(2)<script>"
    folder.mkdir()
    (folder / "config.json").write_bytes(
        (ROOT / "tests" / "data" / "configs" / "Qwen--Qwen3.5-35B-A3B.json").read_bytes()
    )
    text, page = _page(tmp_path, "plan", str(folder), "--rest", "20GiB", "-L", "8k", "--save")
    assert "<script>alert" not in text and "<script>alert(2)" in " ".join(page.text)
    svg = _drawn(tmp_path, "plan", str(folder), "--rest", "20GiB", "-L", "8k")
    assert any("<script>alert(2)" in words for words in _texts(svg))
