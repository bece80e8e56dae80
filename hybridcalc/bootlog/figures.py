"""What are a boot's printed figures called?

One dictionary a boot, one value a name, or the list of distinct values in order of appearance where ranks, buffers or
captures differ. Suffixes are units: ``_gib`` 2**30, ``_mib`` 2**20, ``_gb`` 10**9, ``_pct`` 0 to 100. A figure is here
only if the text prints it, and its form (forms.py) gives it a name; docs/log.md lists them.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from hybridcalc.bootlog.boots import Boot
from hybridcalc.bootlog.records import Printed, Value
from hybridcalc.units import GIB, MIB

LARGEST_GPU_GIB, LARGEST_WEIGHTS_GIB = 1024, 512
"""No rank's memory is larger: a figure beyond is a slip, and counts only where no other is printed."""
_OF_DRAFTS = frozenset({
    "avail_mem_after_weights_gib", "weights_gib", "mem_pool_end_avail_gib", "kv_tokens", "k_gib", "v_gib", "kv_gib",
    "kv_buffer_mib",
})  # fmt: skip
"""Figures of a draft model, reported with "draft_" in front; what it shares with the target is not said twice."""


class Figure(NamedTuple):
    """A figure under its reported name, with where it was printed."""

    name: str
    value: Value
    rank: str
    line: int

    def to_dict(self) -> dict[str, Any]:
        """Plain data; what a size or number was printed as stands beside its value."""
        entry: dict[str, Any] = {"key": self.name, "value": plain_value(self.value, self.name)}
        if isinstance(self.value, Printed):
            entry |= {"text": self.value.text, "decimals": self.value.decimals}
            if self.value.unit_bytes > 1 and not self.name.endswith("_gb"):
                entry["interval_bytes"] = [int(bound) for bound in self.value.interval]
        return entry | {"rank": self.rank, "line": self.line}


def figures(boot: Boot) -> dict[str, Any]:
    """A boot's figures: name -> value, or the list of its distinct values."""
    found: dict[str, dict[Any, None]] = {}
    impossible: dict[str, dict[Any, None]] = {}
    for figure in figure_list(boot):
        into = impossible if _impossible(figure) else found
        into.setdefault(figure.name, {})[plain_value(figure.value, figure.name)] = None
    found |= {name: values for name, values in impossible.items() if name not in found}
    return {name: next(iter(values)) if len(values) == 1 else list(values) for name, values in found.items()}


def merged(boots: Iterable[Boot]) -> dict[str, Any]:
    """The figures of several boots together, in the same form."""
    found: dict[str, dict[Any, None]] = {}
    for boot in boots:
        for name, value in figures(boot).items():
            found.setdefault(name, {}).update(dict.fromkeys(value if isinstance(value, list) else [value]))
    return {name: next(iter(values)) if len(values) == 1 else list(values) for name, values in found.items()}


def figure_list(boot: Boot) -> list[Figure]:
    """Every figure a boot printed, rank by rank, in the order of the log; a draft model's under its own name."""
    drafts = boot.grammar.of_draft(boot) if boot.grammar.of_draft is not None else set()
    reported, said = boot.grammar.reported, list[Figure]()
    for record in sorted(boot.statements, key=lambda record: record.line):
        draft, named = id(record) in drafts, set[str]()
        for figure, value in record.figures:
            name = reported.get((record.kind, figure))
            if name is None or name in named or (draft and name not in _OF_DRAFTS):
                continue
            named.add(name)
            said.append(Figure(f"draft_{name}" if draft else name, value, record.rank, record.line))
    for figure, (value, record) in boot.serving.last_figures().items():
        if name := reported.get((record.kind, figure)):
            said.append(Figure(name, value, record.rank, record.line))
    for record in boot.errors:
        if error := boot.form(record.kind).error:
            said.append(Figure("error", error, record.rank, record.line))
    return said


def impossible_figures(boot: Boot) -> list[Figure]:
    """Figures that no machine can have."""
    return [figure for figure in figure_list(boot) if _impossible(figure)]


def plain_value(value: Value, name: str) -> int | float | str:
    """A figure as JSON has it: a size in the unit its name ends in."""
    if not isinstance(value, Printed):
        return value
    if name.endswith("_mib") and value.unit_bytes == GIB:
        return value.number * (GIB // MIB)
    if name.endswith("_gib") and value.unit_bytes == MIB:
        return value.number / (GIB // MIB)
    return value.number


def _impossible(figure: Figure) -> bool:
    if not isinstance(figure.value, Printed) or not figure.name.endswith("_gib"):
        return False
    return figure.value.value > (LARGEST_WEIGHTS_GIB if figure.name == "weights_gib" else LARGEST_GPU_GIB) * GIB
