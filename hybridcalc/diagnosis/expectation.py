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

from hybridcalc.bootlog import EVERYTHING, scan
from hybridcalc.bootlog.boots import Boot, assemble
from hybridcalc.bootlog.figures import figures, merged
from hybridcalc.errors import InputError

LARGEST_PLAN_BYTES = 2**24
TOKEN_TOLERANCE = 0.001
"""Share by which tokens may differ: the memory they rest on is known to two decimals."""
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
            return abs(self.printed - self.expected) <= self.expected * TOKEN_TOLERANCE
        return bool(self.expected == self.printed)

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        return {"figure": self.name, "expected": self.expected, "printed": self.printed, "agrees": self.agrees}


def read_plan(path: str) -> dict[str, Any]:
    """The document of ``plan --json``; ``-`` is standard input. Raises InputError for anything else."""
    try:
        with nullcontext(sys.stdin.buffer) if path == "-" else Path(path).open("rb") as stream:
            text = stream.read(LARGEST_PLAN_BYTES + 1)
        document = json.loads(text) if len(text) <= LARGEST_PLAN_BYTES else None
    except OSError as error:
        raise InputError(f"{path[:80]}: cannot be read ({(error.strerror or 'input error').lower()})") from None
    except (ValueError, RecursionError):
        document = None
    if not isinstance(document, dict) or not isinstance(document.get("log_lines"), list):
        raise InputError(f"{path[:80]} is no plan", fix="write one with `hybridcalc plan ... --json`")
    return document


def compare(boot: Boot, plan: Mapping[str, Any]) -> list[Compared]:
    """Every figure that the plan predicts, against the boot's."""
    lines = "\n".join(line for line in plan["log_lines"] if isinstance(line, str)) + "\n"
    expected = merged(assemble(scan(io.BytesIO(lines.encode()), grammars=EVERYTHING)).boots)
    for key, name in _SUMMARY.items():
        value = plan.get(key)
        if isinstance(value, int) and not isinstance(value, bool):
            expected.setdefault(name, value)
    printed = figures(boot)
    return [Compared(name, value, printed.get(name)) for name, value in expected.items()]
