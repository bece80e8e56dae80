"""A log line is one Form, and an engine's log one grammar beside its row: nothing else changes for either."""

from __future__ import annotations

import io
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest

from hybridcalc.bootlog import vllm
from hybridcalc.bootlog.boots import Grammar, merged
from hybridcalc.bootlog.forms import Form
from hybridcalc.bootlog.grammars import assemble
from hybridcalc.bootlog.reader import scan
from hybridcalc.diagnosis import Question, diagnose_log
from hybridcalc.engines import ENGINES, Row


def test_a_line_is_one_form(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its figure comes out under its name, of a boot that it neither starts nor ends."""
    figures = (("tokens", "Prefix pool holds {count} tokens", "prefix_tokens"),)
    form = Form("prefix_pool", "Prefix pool holds", figures, 80)
    monkeypatch.setattr(vllm, "GRAMMAR", replace(vllm.GRAMMAR, forms=(*vllm.FORMS, form)))
    text = b"Model loading took 3.50 GiB memory\nPrefix pool holds 4,096 tokens\nGPU KV cache size: 516,180 tokens\n"
    [boot] = assemble(scan(io.BytesIO(text))).boots
    assert merged([boot]) == {"weights_gib": 3.5, "prefix_tokens": 4096, "gpu_kv_cache_tokens": 516_180}


TOY = Grammar(
    "toy",
    "Toy server",
    (
        Form("begins", "toy: hello", starts=True, mark=True),
        Form("pool", "toy: pool of", (("tokens", "toy: pool of {count} tokens", "kv_tokens"),), 80, settled=True),
        Form("refused", "toy: no room for", (("short", "no room for {size}", "short_gib"),), 80, error="no_room"),
        Form("listens", "toy: listening", up=True, mark=True),
    ),
)


def test_an_engines_log_is_one_grammar_and_its_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two starts, told apart; the second failed, and is said to have, without a word about the engine elsewhere."""
    module = ModuleType("toy_log")
    module.GRAMMAR = TOY  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "toy_log", module)
    monkeypatch.setitem(ENGINES.rows, "toy", Row("Toy server", "toy_engine", rooms={"bootlog": "toy_log"}))
    path = tmp_path / "boot.log"
    path.write_text(
        "toy: hello\ntoy: pool of 4,096 tokens\ntoy: listening\n"
        "toy: hello\ntoy: pool of 8,192 tokens\ntoy: no room for 1.50 GiB\n"
    )
    answer = diagnose_log(path, Question())
    assert [(boot.boot.engine, boot.headline) for boot in answer.boots] == [
        ("toy", "Toy server"),
        ("toy", "Toy server: does not start"),
    ]
    assert answer.figures == {"kv_tokens": [4096, 8192], "short_gib": 1.5, "error": "no_room"}
    assert answer.boots[1].to_dict()["findings"][0]["message"] == "line 6: toy: no room for"
