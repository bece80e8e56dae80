"""Which models and checkpoints fit hardware that is there, how many requests run on each, and how long one may be."""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

from hybridcalc.deployment import Workload, requests_text
from hybridcalc.fitting.answer import DEFAULT_TOP, flat, gpus_text, record, row
from hybridcalc.fitting.candidates import Deployment
from hybridcalc.fitting.question import Question
from hybridcalc.fitting.search import KINDS, Found, Lost, Search, measured

ORDERS = ("parameters", "requests")
UNLIMITED = 2**30
"""Tokens of a request beyond which nothing limits its length."""


@dataclass(repr=False)
class FitModels:
    """The answer: the best deployment of each checkpoint that serves, and what the others lack."""

    question: Question
    found: Found
    least: int = 1
    order: str = ORDERS[0]
    top: int = DEFAULT_TOP

    @cached_property
    def deployments(self) -> tuple[Deployment, ...]:
        """Checkpoints that serve as many requests as are asked for, the largest or the busiest first."""
        serving = [made for made in self.found.deployments if made.certain >= self.least]
        if self.order == ORDERS[1]:
            return tuple(sorted(serving, key=lambda made: (-made.certain, -parameters_of(made), made.model.asked)))
        return tuple(sorted(serving, key=lambda made: (-parameters_of(made), made.model.name, made.model.asked)))

    @cached_property
    def lost(self) -> tuple[Lost, ...]:
        """Checkpoints that do not, the nearest first."""
        best: dict[tuple[str, str], Lost] = {}
        serving = {(made.model.name, made.model.asked) for made in self.deployments}
        few = [
            Lost(made.candidate, "few", f"{requests_text(made.certain)} of {self.least:,}", nearest=made)
            for made in self.found.deployments
            if made.certain < self.least
        ]
        for lost in (*few, *self.found.lost):
            key = (lost.candidate.model.name, lost.candidate.model.asked)
            if key not in serving and (key not in best or _nearness(lost) < _nearness(best[key])):
                best[key] = lost
        return tuple(sorted((measured(lost, self.question) for lost in best.values()), key=_nearness))

    def __repr__(self) -> str:
        offer, work = self.question.offers[0], self.question.workload.describe()
        return f"<{len(self.deployments)} checkpoints serve {work} on {gpus_text(offer.most, offer)}>"

    def _repr_html_(self) -> str:
        """The models, for notebooks."""
        from hybridcalc.notebook import html_of_records

        return html_of_records(repr(self)[1:-1], flat(self.to_records()))

    def to_records(self) -> list[dict[str, Any]]:
        """The models as rows of a table, as pandas takes them."""
        return [row(found) for found in self._records()]

    def _records(self) -> list[dict[str, Any]]:
        return [
            {"name": made.model.name, "parameters": parameters_of(made), "max_length": self.longest(made)}
            | {name: value for name, value in record(made).items() if name not in ("price_per_hour", "pareto")}
            for made in self.deployments
        ]

    def longest(self, made: Deployment) -> int:
        """The longest requests of which as many as are asked for run for certain with the same ranks and settings,
        within the model's context; UNLIMITED where neither that nor the memory ends. Tokens.
        """
        low = self.question.workload.longest
        high = max(made.model.max_context or UNLIMITED, low)
        if low == high or self.certain_at(made, high) >= self.least:
            return high
        while low + 1 < high:
            middle = (low + high) // 2
            low, high = (middle, high) if self.certain_at(made, middle) >= self.least else (low, middle)
        return low

    def certain_at(self, made: Deployment, length: int) -> int:
        """Requests of another length that run for certain with the same ranks and settings."""
        asked = self.question._replace(workload=Workload.at(length))
        found = Search(asked, 1).of(made.candidate, made.change)
        return 0 if found is None else found.certain

    def to_dict(self) -> dict[str, Any]:
        """The document of ``fit --gpu ... --json``."""
        offer = self.question.offers[0]
        return {
            "gpu": offer.name,
            "gpus": offer.most,
            "workload": {
                "length_tokens": self.question.workload.longest or None,
                "mean_length_tokens": float(self.question.workload.mean_length or 0) or None,
                "requests": self.least,
            },
            "pace": self.question.pace,
            "allowed": sorted(self.question.allowed),
            "models": self._records(),
            "refused": [lost_record(lost) for lost in self.lost],
            "combinations": self.found.considered,
            "planned": self.found.planned,
        }


def lost_record(lost: Lost) -> dict[str, Any]:
    """A checkpoint that does not fit, as plain data."""
    return {
        "name": lost.candidate.model.name,
        "checkpoint": lost.candidate.model.asked or lost.candidate.model.name,
        "kind": lost.kind,
        "reason": lost.reason,
        "lacks_gib": lost.lacks_gib or None,
    }


def _nearness(lost: Lost) -> tuple[int, float]:
    return -1 if lost.kind == "few" else KINDS.index(lost.kind), lost.lacks_gib or float("inf")


def parameters_of(made: Deployment) -> int:
    """Parameters of a checkpoint."""
    count: int = made.engine.weights(made.model, made.args).parameters
    return count
