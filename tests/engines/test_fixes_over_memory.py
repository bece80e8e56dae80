"""A fix that admits more requests says how many over a memory that is an estimate; nothing more where it is known."""

from __future__ import annotations

import re

import pytest

from hybridcalc.architecture.presets import load_model
from hybridcalc.deployment import Rest, Workload, exact_rest
from hybridcalc.engines import ENGINES

ESTIMATE = Rest(60.0, 58.0, 61.0, "an estimate")
SAID = re.compile(r"(write (--\S+) (\S+)): ([0-9]+) to ([0-9]+) run, by what lies beside the weights")
FIXES = {"vllm": ("--max-model-len 32768 --max-num-seqs 16", "HC060"), "sglang": ("--context-length 32768", "HC012")}


@pytest.mark.parametrize(("name", "flags", "rule"), [(name, *held) for name, held in FIXES.items()], ids=FIXES)
def test_a_fix_says_what_runs_at_both_ends(name: str, flags: str, rule: str) -> None:
    engine, model, work = ENGINES[name], load_model("qwen3.6-35b-a3b"), Workload.at(32768)
    args = engine.read(flags.split(), {}, unknown=[])[1]
    plan = engine.plan(model, args, ESTIMATE, work)
    finding = next(one for one in plan.findings if one.rule == rule)
    match = SAID.fullmatch(finding.fix)
    assert match is not None and finding.mend == (match[2], match[3])
    least, most, changed = int(match[4]), int(match[5]), engine.changed(args, f"{match[2]} {match[3]}")
    low, likely, high = (
        engine.plan(model, changed, exact_rest(gib), work).requests
        for gib in (ESTIMATE.low_gib, ESTIMATE.likely_gib, ESTIMATE.high_gib)
    )
    assert least <= low <= least + 1 and low <= likely <= high == most
    known = engine.plan(model, args, exact_rest(ESTIMATE.likely_gib), work)
    assert match[1] in {one.fix for one in known.findings}


def test_a_fix_that_admits_as_many_says_no_ends() -> None:
    engine, work = ENGINES["vllm"], Workload.at(32768)
    args = engine.read(["--max-model-len", "8192", "--max-num-seqs", "4"], {}, unknown=[])[1]
    plan = engine.plan(load_model("qwen3.6-35b-a3b"), args, ESTIMATE, work)
    assert "write --max-model-len 32768" in {one.fix for one in plan.findings}
