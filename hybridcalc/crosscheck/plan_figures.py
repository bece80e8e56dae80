"""Does a saved plan state what its tensors and its rules give? Every figure of it, one by one.

A figure is held against the tensors where shapes, slopes and storage give it: pools, bytes of a slot or block, state
shapes, layers, the allocated side of the budget. What no tensor shows (prices, charges, counts of a sizing) is held
against the engine's rules, run again on the memory the plan states. Figures are named by their place in the document:
``alloc_mamba.ring.replayssm_d``, ``budget.KV pool.charged_bytes``. Leaves out: the workload's own answers (capacity,
binding, findings, suggestions), steps and sentences.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction
from math import isfinite
from typing import TYPE_CHECKING, Any, NamedTuple

from hybridcalc.engines.answer import Documented
from hybridcalc.engines.document import common_figures
from hybridcalc.errors import InputError, quoted
from hybridcalc.saved_plan import ANEW

if TYPE_CHECKING:  # a plan is read, and refused, without torch
    from hybridcalc.crosscheck.verification import Row

LARGEST_GIB = 2.0**30
OF_THE_WORKLOAD = frozenset({
    "requests", "requests_range", "requests_per_worker", "binding", "idle_percent", "workload", "ratio", "slots_reason",
})  # fmt: skip
"""Figures of a plan that answer for a workload, or say why: they are not held."""
CLOSED = ("alloc_mamba", "budget")
"""Parts of a plan that hold figures alone: a name there that the rules do not have is one too many."""
Figures = Mapping[str, Any]


class Stated(NamedTuple):
    """A figure that a plan states, and what it should be; ``held_against`` is "tensors" or "rules"."""

    figure: str
    stated: Any
    expected: Any
    held_against: str

    @property
    def ok(self) -> bool:
        """Whether they are the same."""
        return bool(self.stated == self.expected)

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        return {**self._asdict(), "ok": self.ok}


class PlanFigures(NamedTuple):
    """What a plan states, and what the rules make of the memory it states; the same names in both."""

    stated: Figures
    rules: Figures


def held_figures(plan: PlanFigures, shown: Figures) -> tuple[Stated, ...]:
    """Every figure of a plan against what the tensors show, and against the rules where they show nothing."""
    return tuple(
        Stated(name, stated, shown.get(name, plan.rules[name]), "tensors" if name in shown else "rules")
        for name, stated in plan.stated.items()
    )


def slope(rows: Sequence[Row], figure: str) -> int | float:
    """Bytes that one more slot, checkpoint or block takes in the tensors of a figure."""
    total = sum((row.slope_bytes or Fraction() for row in rows if row.tensor.figure == figure), Fraction())
    return int(total) if total.denominator == 1 else float(total)


def stated_memory(document: Mapping[str, Any], where: str) -> float:
    """The memory left that a plan states, GiB. Raises InputError for none."""
    memory = document.get("memory")
    value = memory.get("rest_gib") if isinstance(memory, Mapping) else None
    if isinstance(value, list) and len(value) == 3:
        value = value[1]
    known = isinstance(value, int | float) and not isinstance(value, bool)
    if not known or not isfinite(value) or abs(value) > LARGEST_GIB:  # type: ignore[arg-type]  # a number by now
        raise InputError(f"{where}: memory.rest_gib {quoted(value)} is no memory", fix=ANEW)
    return float(value)  # type: ignore[arg-type]


def held_of(plan: Documented, *left_out: str) -> dict[str, Any]:
    """The figures of a plan that do not depend on its workload, the engine's own among them, by name."""
    found = {name: value for name, value in common_figures(plan).items() if name not in OF_THE_WORKLOAD}
    return found | {name: value for name, value in plan.engine_figures.items() if name not in left_out}


def paired(document: Mapping[str, Any], found: Mapping[str, Any], where: str) -> PlanFigures:
    """The figures of the rules and the document's own under the same names."""
    rules = dict(_flat(found))
    stated = dict(_flat({name: document[name] for name in found if name in document}))
    missing = next((name for name in rules if name not in stated), None)
    if missing is not None:
        raise InputError(f"{where}: {missing} is absent", fix=ANEW)
    for name, value in rules.items():
        if not _alike(value, stated[name]):
            raise InputError(f"{where}: {name} {quoted(stated[name])} is not {_kind(value)}", fix=ANEW)
    more = next((name for name in stated if name not in rules and name.split(".")[0] in CLOSED), None)
    if more is not None:
        raise InputError(f"{where}: {more[:60]} is no figure of such a server", fix=ANEW)
    return PlanFigures({name: stated[name] for name in rules}, rules)


def _flat(part: Any, place: str = "") -> Iterator[tuple[str, Any]]:
    """Leaves of a document under dotted names. Lines of a budget go by their names; their sentences are left out."""
    if isinstance(part, Mapping) and part:
        for name, value in part.items():
            if name not in ("why", "kind", "name"):
                yield from _flat(value, f"{place}.{name}" if place else str(name))
    elif isinstance(part, list) and part and all(isinstance(line, Mapping) for line in part):
        for number, line in enumerate(part):
            yield from _flat(line, f"{place}.{line.get('name', number)}")
    elif not (isinstance(part, Mapping) and place.endswith(".ring")):
        yield place, part


def _alike(expected: Any, stated: Any) -> bool:
    """Whether a stated value is of the kind the figure is; a figure may be null where there is none."""
    if expected is None:
        return stated is None or (isinstance(stated, int) and not isinstance(stated, bool))
    if isinstance(expected, bool) or isinstance(stated, bool):
        return isinstance(stated, bool) and isinstance(expected, bool)
    if isinstance(expected, float):
        return isinstance(stated, int | float)
    return isinstance(stated, type(expected))


def _kind(value: Any) -> str:
    """What a figure is, in words."""
    kinds = {bool: "true or false", int: "a whole number", float: "a number", str: "text", list: "a list"}
    return kinds.get(type(value), "a figure")
