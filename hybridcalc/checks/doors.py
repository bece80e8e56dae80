"""How an engine is asked: which flags size, what words mean, what flags alone decide, and the whole plan.

The rest of checks/ knows no engine. Each `Door` is one of them, in a module of its own; a new engine is added here.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from importlib import import_module
from typing import Any, NamedTuple

from hybridcalc.architecture.geometry import Architecture
from hybridcalc.deployment import Workload
from hybridcalc.errors import IllegalCombination, InputError
from hybridcalc.findings import Finding
from hybridcalc.shell.flags import FlagTable

DOORS = {"sglang": "hybridcalc.checks.sglang_door", "vllm": "hybridcalc.checks.vllm_door"}
Waiting = tuple[tuple[str, tuple[str, ...]], ...]
"""Rules that were not checked, each with the figures it waits for."""


class Memory(NamedTuple):
    """What is known of the memory of a rank: texts as they were given."""

    gpu: str | None = None
    weights: str | None = None
    rest: str | None = None
    available: str | None = None


class Figures(NamedTuple):
    """What expectations are held against; ``idle_percent`` is None without a length."""

    requests: int
    tokens: int
    idle_percent: float | None


class Answer(NamedTuple):
    """Findings of a deployment, what waits for a figure, and the figures of its plan where there is one."""

    findings: tuple[Finding, ...]
    waiting: Waiting
    figures: Figures | None = None
    refused: bool = False


class Door(NamedTuple):
    """An engine: its flags, the environment it reads, its words as arguments, its answer, and the GPUs it takes."""

    table: FlagTable
    environment: frozenset[str]
    read: Callable[[Sequence[str], Mapping[str, str], str | None], tuple[str | None, Any]]
    answer: Callable[[Architecture, Any, Memory, Workload], Answer]
    ranks: Callable[[Any], int]
    model_flag: str
    newest: str
    rules_for: Callable[[str], Any]

    def knows(self, version: str) -> bool:
        """Whether there are rules for a version of the engine."""
        try:
            self.rules_for(version)
        except InputError:
            return False
        return True


@cache
def door(engine: str) -> Door:
    """The engine of that name."""
    found: Door = import_module(DOORS[engine]).DOOR
    return found


def refusal_finding(refusal: IllegalCombination) -> Finding:
    """What an engine does not start with, as a finding."""
    return Finding(getattr(refusal, "rule", "HC071"), "error", refusal.message, refusal.fix)


def behind(rule: str) -> Waiting:
    """What waits where the engine does not even start: every other rule."""
    return (("all", (f"a launch that {rule} does not stop",)),)


def still_waiting(waiting: Waiting, figure: str, instead: Sequence[str]) -> Waiting:
    """What waits, with ``instead`` in place of a figure; without what waits for nothing any more."""
    replaced = (
        (rule, tuple(part for need in needs for part in (instead if need == figure else (need,))))
        for rule, needs in waiting
    )
    return tuple((rule, needs) for rule, needs in replaced if needs)
