"""Pages in a browser, for tests: what is set in one, and what it shows."""

from __future__ import annotations

from typing import Any

from hybridcalc.findings import View

SET = """values => { for (const [name, value] of Object.entries(values)) {
  const field = document.getElementById("set-" + name);
  field.value = value;
  field.dispatchEvent(new Event(field.tagName === "SELECT" ? "change" : "input"));
} return new Promise(done => requestAnimationFrame(() => requestAnimationFrame(() => done(Object.fromEntries(
  [...document.querySelectorAll("[id^=result-]")].map(e => [e.id.slice(7), e.textContent])
  .concat(["said", "launch"].map(name => [name, document.getElementById("play-" + name).textContent]))))))); }"""


def number(text: str) -> int:
    return int(text.replace(",", ""))


def page(play: Any) -> View:
    return View("title", "headline", "meaning", play=lambda: play)
