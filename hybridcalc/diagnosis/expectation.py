"""Does a boot print what a plan said it would?

The log lines of a plan are read by the grammar that reads the boot, and each figure is held against the boot's: the
same digits, but for tokens, which may differ by a thousandth. A release that changes its arithmetic shows here first.
"""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from hybridcalc.architecture.presets import find_preset
from hybridcalc.bootlog.boots import Boot, figures, merged
from hybridcalc.bootlog.grammars import assemble
from hybridcalc.bootlog.reader import scan
from hybridcalc.engines import ENGINES
from hybridcalc.errors import InputError
from hybridcalc.saved_plan import SAVE, read_saved_plan, shown
from hybridcalc.units import LARGEST_TOKENS

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


class ExpectedPlan(NamedTuple):
    """What a plan predicts: the engine, whether it starts (None where the document does not say), and the figures."""

    engine: str | None
    starts: bool | None
    figures: dict[str, Any]
    model: str | None = None

    def compare(self, boot: Boot, models: Sequence[str] = ()) -> list[Compared]:
        """Every predicted figure against the boot's; before them the engine, the model (of the presets that fit it) and
        the outcome, if they part.
        """
        rows = []
        if self.engine and boot.engine and self.engine != boot.engine:
            rows.append(Compared("engine", self.engine, boot.engine))
        if self.model is not None and models and self.model not in models:
            rows.append(Compared("model", self.model, models[0]))
        if self.starts is not None and boot.started is not None and self.starts is not boot.started:
            rows.append(Compared("starts", self.starts, boot.started))
        printed = figures(boot)
        return [*rows, *(Compared(name, value, printed.get(name)) for name, value in self.figures.items())]


def read_plan(path: str) -> ExpectedPlan:
    """The document of ``plan --json``; ``-`` is standard input. Raises InputError for one that predicts nothing."""
    where, document = shown(path, "--expect"), read_saved_plan(path, "--expect")
    predicted = _predicted(document)
    if predicted is None:
        raise InputError(f"{where} is no plan", fix=SAVE)
    engine, starts = document.get("engine"), document.get("starts")
    if not predicted and starts is not False:
        raise InputError(f"{where} predicts no figure of a log", fix=SAVE)
    named = document.get("model")
    preset = find_preset(named) if isinstance(named, str) else None
    return ExpectedPlan(
        engine if isinstance(engine, str) and engine in ENGINES.rows else None,
        starts if isinstance(starts, bool) else None,
        predicted,
        None if preset is None else preset[0],
    )


def _predicted(document: Mapping[str, Any]) -> dict[str, Any] | None:
    """The figures of a plan's log lines and of its summary; None where one is of no machine."""
    lines = document.get("log_lines")
    said = [line for line in lines if isinstance(line, str)] if isinstance(lines, list) else None
    text = "".join(f"{line}\n" for line in said or ()).encode(errors="replace")
    if said is None or len(text) > LARGEST_LINES_BYTES:
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
