"""The docs as a site: built strictly, and whole without the network."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
ELSEWHERE = re.compile(r"""<(?:script|link|img|iframe|source)\b[^>]*\b(?:src|href)=["']?(?:https?:)?//[^\s"'>]+""")
pytestmark = pytest.mark.needs("material")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The built site. Every page is in the navigation, every link and anchor leads somewhere: else it is not built."""
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)]
    ran = subprocess.run(
        command, cwd=ROOT, env=os.environ | {"NO_MKDOCS_2_WARNING": "1"}, capture_output=True, text=True, check=False
    )
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "", "")
    return folder


def test_every_page_of_docs_is_a_page_of_the_site(site: Path) -> None:
    pages = {path.with_suffix(".html").name for path in (ROOT / "docs").glob("*.md")}
    assert len(pages) > 20
    assert pages | {"404.html"} == {path.name for path in site.glob("*.html")}


def test_nothing_is_loaded_from_elsewhere(site: Path) -> None:
    loaded = {found for page in site.glob("*.html") for found in ELSEWHERE.findall(page.read_text(encoding="utf-8"))}
    assert loaded == set()
    styles = "".join(path.read_text(encoding="utf-8") for path in site.rglob("*.css"))
    assert "url(" in styles
    assert re.findall(r"(?:@import|url\()\s*[\"']?https?:[^)\"']+", styles) == []


def test_tables_of_generated_pages_are_tables(site: Path) -> None:
    """A row that Markdown does not read as one would stand as text with bars."""
    for name in ("rules", "json", "recipes", "commands"):
        page = (site / f"{name}.html").read_text(encoding="utf-8")
        assert page.count("<table>") > 2
        assert "|---" not in page
