"""Draw the pictures of docs/pictures/, each by the command that a reader would type.

python tools/make_pictures.py            draw them
python tools/make_pictures.py --check    exit 1 when one is not what its command draws
python tools/make_pictures.py --page     photograph a page as well, in a Chromium of the system (the extra `browser`)

A picture is current when its elements and texts are the same and no coordinate moved: only the width of letters, which
depends on the fonts of a machine, may shift what stands beside a text.
"""

from __future__ import annotations

import contextlib
import io
import re
import shlex
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Literal

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from hybridcalc.cli.app import execute

FOLDER = Path(__file__).resolve().parent.parent / "docs" / "pictures"
KIMI = "kimi-k3 --tp 8 --kv-cache-dtype fp8_e4m3"
ON_H200 = f"plan {KIMI} --gpu h200 --weights 95GiB --mem-fraction-static 0.9 -L 9216"
QWEN = "plan --engine vllm qwen3.6-35b-a3b --tensor-parallel-size 2 --max-model-len 131072 --available 40GiB -L 8k"
AGENTS = "reuse qwen3.5-397b-a17b --tp 8 --slots 180 --rest 18GiB --workload agents:n=60,history=20k,turns=8"
PICTURES = {
    "memory": f"{ON_H200}",
    "crossover": "crossover kimi-k3 --tp 8 --baseline deepseek-v3",
    "lengths": f"{ON_H200} --figure lengths",
    "ratios": f"ratio {KIMI} -L 9216 --rest 28.55GiB",
    "pareto": f"plan {KIMI} --rest 28.55GiB -L 9216 --sweep mamba-full-memory-ratio=0.4:3:0.2"
              " --sweep mamba-radix-cache-strategy=extra_buffer,extra_buffer_lazy",
    "change": f"{ON_H200} --figure change",
    "pages": f"{QWEN} --figure pages",
    "hits": f"{AGENTS} --figure hits",
    "pools": f"{AGENTS} --no-what-if --figure pools",
    "lost": f"{AGENTS} --no-what-if --figure lost",
    "slots": "reuse kimi-k3 --tp 8 --slots 320 --running 16 --workload chat:",
}  # fmt: skip
"""File of docs/pictures/ without its suffix, and the command line that draws it."""
PAGE = "report Qwen/Qwen3.5-397B-A17B-FP8 --gpu 8xh200 -L 64k"
TRIED = "ratio=0.238&kv=fp8_e4m3"
SHOTS: tuple[tuple[str, int, int, Literal["light", "dark"], str], ...] = (
    ("page", 1040, 980, "light", "#try"), ("page-dark", 1040, 980, "dark", "body"),
    ("page-phone", 390, 844, "dark", "figure:has(#chart-memory)"), ("page-phone-light", 390, 844, "light", "body"),
)  # fmt: skip
"""File, width and height of the screen, scheme, and what stands at its top."""
TOLERANCE_PX = 12.0
_NUMBER = re.compile(r"-?\d+(?:\.\d+)?(?:e-?\d+)?")


def draw(name: str, target: Path) -> None:
    """Run one command."""
    words = [*shlex.split(PICTURES[name]), "--save", str(target), "--force"]
    with contextlib.redirect_stdout(io.StringIO()):
        code = execute(words)
    if code:
        raise SystemExit(f"hybridcalc {shlex.join(words)} failed")


def photograph() -> None:
    """A page on a wide screen and on a phone, its verdict and what it draws, by day and by night."""
    from playwright.sync_api import sync_playwright

    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    with tempfile.TemporaryDirectory() as scratch, sync_playwright() as driver:
        page = Path(scratch) / "page.html"
        with contextlib.redirect_stdout(io.StringIO()):
            execute([*shlex.split(PAGE), "-o", str(page)])
        browser = driver.chromium.launch(executable_path=chromium, args=["--headless", "--no-sandbox", "--disable-gpu"])
        for name, width, height, scheme, top in SHOTS:
            tab = browser.new_page(viewport={"width": width, "height": height}, color_scheme=scheme)
            tab.goto(f"{page.as_uri()}#{TRIED}")
            tab.locator(top).evaluate("element => element.scrollIntoView()")
            tab.screenshot(path=FOLDER / f"{name}.png")
        browser.close()


def same(drawn: str, kept: str) -> bool:
    """Whether two drawings differ in nothing but where letters push something."""
    if _NUMBER.sub("#", _without_texts(drawn)) != _NUMBER.sub("#", _without_texts(kept)):
        return False
    if re.findall(r">([^<>]+)</text>", drawn) != re.findall(r">([^<>]+)</text>", kept):
        return False
    pairs = zip(_NUMBER.findall(_without_texts(drawn)), _NUMBER.findall(_without_texts(kept)), strict=True)
    return all(abs(float(a) - float(b)) <= TOLERANCE_PX for a, b in pairs)


def _without_texts(svg: str) -> str:
    return re.sub(r">[^<>]+</text>", "></text>", svg)


def main() -> int:
    """Draw or check every picture."""
    stale = 0
    FOLDER.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        for name in PICTURES:
            kept, target = FOLDER / f"{name}.svg", Path(scratch) / f"{name}.svg"
            draw(name, target)
            drawn = target.read_text(encoding="utf-8")
            if kept.exists() and same(drawn, kept.read_text(encoding="utf-8")):
                continue
            if "--check" in sys.argv:
                print(f"docs/pictures/{name}.svg is out of date: run python tools/make_pictures.py")
                stale = 1
            else:
                kept.write_text(drawn, encoding="utf-8")
    if "--page" in sys.argv:
        photograph()
    return stale


if __name__ == "__main__":
    sys.exit(main())
