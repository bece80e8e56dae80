"""A browser for the tests of pages: playwright (the extra `browser`) and a system's Chromium, or they are skipped."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hybridcalc.findings import View
from hybridcalc.output.pictures.page import render

FLAGS = ("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
         "--disable-background-networking", "--disable-component-update", "--disable-sync")  # fmt: skip


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright: pip install '.[browser]'")
    chromium = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if chromium is None:
        pytest.skip("no Chromium on this system")
    with playwright.sync_playwright() as driver:
        started = driver.chromium.launch(executable_path=chromium, args=list(FLAGS))
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
