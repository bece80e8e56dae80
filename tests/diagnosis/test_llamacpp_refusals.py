"""Loads of llama.cpp that fail, and loaders that refuse: which buffer it was, by whose figures, and what helps."""

from __future__ import annotations

import io
from typing import Any

import pytest

from hybridcalc.bootlog.grammars import assemble
from hybridcalc.bootlog.reader import scan
from hybridcalc.diagnosis import Question, diagnose

ALLOCATION = (
    "ggml_backend_cuda_buffer_type_alloc_buffer: allocating 598.50 MiB on device 0: cudaMalloc failed: out of memory\n"
)
CONTEXT = "llama_init_from_model: failed to initialize the context: failed to allocate buffer for {} cache\n"
ESTIMATE = (
    "[2026-07-23 10:21:52.881] [error] [LM Studio] Model load size estimate with raw num offload layers 'max' and "
    "context length '8192':\n  Model: 14.87 GB\n  Context: 936.03 MB\n  Total: 15.81 GB\n"
)
GUARDRAIL = (
    "Error: Model loading was stopped due to insufficient system resources. Under the current settings, this model "
    "requires approximately 22.92 GB of memory, and continuing to load it would likely overload your system.\n"
)


def only(text: str) -> Any:
    """The answer for a text of one boot."""
    [answer] = diagnose(assemble(scan(io.BytesIO(text.encode()))).boots, Question())
    return answer


@pytest.mark.parametrize(("kind", "which", "less"), [("kv", "the KV cache", "-ctk q8_0"), ("rs", "the states", "-np")])
@pytest.mark.parametrize("before", ["", ALLOCATION])
def test_the_cache_that_did_not_fit_is_named(before: str, kind: str, which: str, less: str) -> None:
    """With the allocation that failed for it, or by the context's own words alone, and once."""
    answer = only(before + CONTEXT.format(kind))
    [found] = [one for one in answer.findings if one.severity == "error"]
    assert found.rule == "HC124" and which in found.message and less in (found.fix or "")
    assert ("598.50 MiB" in found.message) == bool(before)


def test_an_architecture_that_the_build_does_not_know() -> None:
    answer = only("llama_model_load: error loading model: unknown model architecture: 'qwen3next'\n")
    [found] = answer.findings
    assert found.rule == "HC128" and "qwen3next" in found.message and "newer" in (found.fix or "")


def test_what_lm_studio_reckons_is_told_in_its_units() -> None:
    answer = only(ESTIMATE * 2)
    assert answer.headline == "LM Studio"
    assert answer.meaning == "15.81 GB reckoned before the load at a context of 8,192"
    [row] = answer.rows
    assert row.what == "15.81 GB reckoned" and "weights 14.87 GB, caches 936.03 MB" in row.arithmetic


def test_a_load_that_the_guardrail_refused_was_not_tried() -> None:
    """The figure of its message, else that of the estimate before it; the model is that of the command."""
    answer = only("lms load qwen3.5-9b --context-length 110000\n" + GUARDRAIL)
    assert answer.headline.startswith("LM Studio, qwen3.5-9b") and "22.92 GB" in answer.meaning
    answer = only(ESTIMATE + GUARDRAIL.replace("approximately 22.92 GB of memory", "more"))
    assert "15.81 GB" in answer.meaning


@pytest.mark.parametrize("event", ["restored context checkpoint", "erased invalidated context checkpoint"])
def test_checkpoints_that_are_used_or_dropped_say_what_they_take(event: str) -> None:
    """How many a slot keeps is printed where one is created alone."""
    line = (
        f"slot update_slots: id 0 | task 1 | {event} (pos_min = 9, pos_max = 9, n_tokens = 30104, size = 149.626 MiB)\n"
    )
    answer = only(line)
    assert answer.derived.checkpoint_state_bytes == int(149.626 * 2**20)
    assert answer.derived.checkpoints_bytes is None
    [found] = [one for one in answer.findings if one.rule == "HC153"]
    assert "not printed" in found.message


def test_a_rehearsal_that_overfills_a_device_is_told() -> None:
    """What it counts is missing from the device's total: nothing of it is loaded. A real load's memory is there."""
    line = (
        "common_memory_breakdown_print: |   - CUDA2 (Quadro P4000) | 8107 = {} + (26423 = 23975 + 1718 + 729) + {} |\n"
    )
    [found] = [one for one in only(line.format(7962, -26279)).findings if one.rule == "HC152"]
    assert "26,423 MiB are projected, 7,962 MiB are free" in found.message
    assert not any(one.rule == "HC152" for one in only(line.format(900, 1204)).findings)
