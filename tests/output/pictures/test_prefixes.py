"""The prefix cache that a page simulates is the one that Python does, request by request; needs node, else skipped."""

from __future__ import annotations

import json
import random
import shutil
import subprocess
from typing import Any

import pytest

from hybridcalc.architecture.presets import package_file
from hybridcalc.output.pictures.page import render
from hybridcalc.reuse.answer import answer
from hybridcalc.reuse.play import play_of
from hybridcalc.reuse.settings import Settings
from hybridcalc.reuse.sglang import sglang_policy
from hybridcalc.reuse.simulation import Setup, simulate
from hybridcalc.reuse.view import reuse_view
from hybridcalc.reuse.workloads import parse_workload

RUN = """
class Refused extends Error {}
function floordiv(a, b) { return Math.floor(a / b); }
%s
const cases = JSON.parse(require("fs").readFileSync(0, "utf8"));
console.log(JSON.stringify(cases.map(([s, c]) => reuseSimulate({ ...s, kv: s.kv ?? Infinity }, c, reuseRequests(s)))));
"""


def case(chance: random.Random) -> tuple[dict[str, Any], str]:
    """Settings of the page, and the workload that they are."""
    n, rounds, first = chance.randint(1, 30), chance.randint(1, 4), chance.randint(100, 20_000)
    s: dict[str, Any] = {"sessions": n, "rounds": rounds, "first": first, "growth": 0, "slots": chance.randint(1, 80)}
    s["kv"] = chance.choice([None, None, chance.randint(45_000, 300_000)])
    if chance.random() < 0.4:
        return {**s, "turns": 1, "added": 1, "output": 1}, f"cyclic:prefixes={n},tokens={first},rounds={rounds}"
    turns, added, output = chance.choice([2, 3, 5]), chance.randint(1, 3000), chance.randint(1, 700)
    sizes = f"n={n},history={first},turns={turns},tool={added},output={output},rounds={rounds},think=0"
    return {**s, "turns": turns, "added": added, "output": output}, f"agents:{sizes}"


@pytest.mark.skipif(shutil.which("node") is None, reason="there is no node")
def test_the_browser_simulates_what_python_does() -> None:
    chance = random.Random(5)
    policy, cases, wanted = sglang_policy(), [], []
    constants = {"grid": policy.grid, "chunk": policy.prefill_chunk, "interval": policy.decode_grid}
    for _ in range(80):
        s, workload = case(chance)
        outcome = simulate(parse_workload(workload), Setup(policy, s["slots"], kv_tokens=s["kv"]))
        cases.append([s, constants])
        wanted.append([outcome.requests, outcome.hits, outcome.prompt_tokens, outcome.hit_tokens, outcome.evictions])
    script = RUN % package_file("output/pictures/web/prefixes.js").decode()
    ran = subprocess.run(["node", "-e", script], input=json.dumps(cases), capture_output=True, text=True, check=True)
    found = [
        [one[name] for name in ("requests", "hits", "prompt", "hit", "evictions")] for one in json.loads(ran.stdout)
    ]
    assert found == wanted
    assert sum(hits for _, hits, *_ in wanted) > 1000


@pytest.mark.parametrize(
    ("workload", "live"),
    [
        ("cyclic:prefixes=20,tokens=900", True),
        ("agents:n=9,turns=3,think=0", True),
        ("cyclic:prefixes=20,zipf=1", False),
        ("agents:n=9,system=100", False),
        ("rag:documents=9", False),
        ("cyclic:prefixes=5+rag:documents=9", False),
        ("agents:n=1000,turns=1", False),
    ],
)
def test_a_page_is_live_where_the_browser_knows_the_workload(workload: str, live: bool) -> None:
    found = answer(parse_workload(workload), Settings("sglang", 12), what_if=False)
    assert (play_of(found) is not None) == live
    page = render(reuse_view(found))
    assert ('id="play-form"' in page) == live
    assert "function reuseSimulate" in page


def test_what_the_browser_does_not_repeat_has_no_settings() -> None:
    workload = parse_workload("cyclic:prefixes=20,tokens=900")
    for settings in (
        Settings("sglang", 40, running=2),
        Settings("sglang", 40, page_size=64),
        Settings("sglang", 40, host_slots=9),
        Settings("sglang", 40, int8_slots=9),
        Settings("vllm", 40),
    ):
        assert play_of(answer(workload, settings, what_if=False)) is None
