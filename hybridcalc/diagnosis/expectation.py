"""Does a boot print what a plan said it would?

The log lines of a plan are read by the grammar that reads the boot, and each figure is held against the boot's: the
same digits, but for tokens, which may differ by a thousandth. A release that changes its arithmetic shows here first.
"""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any, NamedTuple

from hybridcalc.bootlog import scan
from hybridcalc.bootlog.boots import Boot, assemble
from hybridcalc.bootlog.figures import figures, merged
from hybridcalc.engines.engine import ENGINES
from hybridcalc.errors import InputError, printable
from hybridcalc.units import LARGEST_TOKENS

LARGEST_PLAN_BYTES = 2**22
LARGEST_LINES_BYTES = 2**16
TOKEN_TOLERANCE = 1000
"""One part in as many by which tokens may differ: the memory they rest on is known to two decimals."""
_TOKENS = frozenset({"kv_tokens", "draft_kv_tokens", "max_total_num_tokens", "gpu_kv_cache_tokens"})
_SUMMARY = {
    "max_mamba_cache_size": "max_mamba_cache_size",
    "max_total_num_tokens": "max_total_num_tokens",
    "max_running_requests": "max_running_requests",
    "attn_block_size": "attention_block_size",
    "kv_cache_size_tokens": "gpu_kv_cache_tokens",
}
"""Keys of ``plan --json`` -> the figure of a log they predict."""


class Compared(NamedTuple):
    """One figure: what was expected, what the boot printed (None where it did not), and whether they agree."""

    name: str
    expected: Any
    printed: Any

    @property
    def agrees(self) -> bool | None:
        """None where the boot does not print the figure."""
        if self.printed is None:
            return None
        if self.name in _TOKENS and isinstance(self.printed, int) and isinstance(self.expected, int):
            return abs(self.printed - self.expected) * TOKEN_TOLERANCE <= self.expected
        return bool(self.expected == self.printed)

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        return {"figure": self.name, "expected": self.expected, "printed": self.printed, "agrees": self.agrees}


class Plan(NamedTuple):
    """What a plan predicts: the engine, whether it starts (None where the document does not say), and the figures."""

    engine: str | None
    starts: bool | None
    figures: dict[str, Any]


def read_plan(path: str) -> Plan:
    """The document of ``plan --json``; ``-`` is standard input. Raises InputError for anything else."""
    shown = printable(path[:80]) if path.strip() else repr(path[:80])
    no_plan = InputError(f"{shown} is no plan", fix="write one with `hybridcalc plan ... --json`")
    try:
        with nullcontext(sys.stdin.buffer) if path == "-" else Path(path).open("rb") as stream:
            text = stream.read(LARGEST_PLAN_BYTES + 1)
    except OSError as error:
        raise InputError(f"{shown}: cannot be read ({(error.strerror or 'input error').lower()})") from None
    except ValueError:
        raise InputError(f"{shown}: cannot be read (not a file name)") from None
    try:
        document = json.loads(text) if len(text) <= LARGEST_PLAN_BYTES else None
    except (ValueError, RecursionError):
        document = None
    if not isinstance(document, dict) or not isinstance(document.get("log_lines"), list):
        raise no_plan
    predicted = _predicted(document)
    if predicted is None:
        raise no_plan
    engine, starts = document.get("engine"), document.get("starts")
    plan = Plan(
        engine if isinstance(engine, str) and engine in ENGINES else None,
        starts if isinstance(starts, bool) else None,
        predicted,
    )
    if not predicted and plan.starts is not False:
        raise InputError(f"{shown} predicts no figure of a log", fix="write a plan with `hybridcalc plan ... --json`")
    return plan


def _predicted(document: Mapping[str, Any]) -> dict[str, Any] | None:
    """The figures of a plan's log lines and of its summary; None where one is of no machine."""
    lines = "\n".join(line for line in document["log_lines"] if isinstance(line, str)) + "\n"
    text = lines.encode(errors="replace")
    if len(text) > LARGEST_LINES_BYTES:
        return None
    expected = merged(assemble(scan(io.BytesIO(text))).boots)
    for key, name in _SUMMARY.items():
        value = document.get(key)
        if isinstance(value, int) and not isinstance(value, bool):
            expected.setdefault(name, value)
    values = [one for value in expected.values() for one in (value if isinstance(value, list) else [value])]
    if any(isinstance(value, int | float) and not abs(value) <= LARGEST_TOKENS for value in values):
        return None
    return expected


def compare(boot: Boot, plan: Plan) -> list[Compared]:
    """Every figure that the plan predicts, against the boot's; before them the engine and the outcome, if they part."""
    rows = []
    if plan.engine and boot.engine and plan.engine != boot.engine:
        rows.append(Compared("engine", plan.engine, boot.engine))
    started = boot.started
    if plan.starts is not None and started is not None and plan.starts is not started:
        rows.append(Compared("starts", plan.starts, started))
    printed = figures(boot)
    return [*rows, *(Compared(name, value, printed.get(name)) for name, value in plan.figures.items())]
