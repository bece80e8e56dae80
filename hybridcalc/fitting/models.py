"""Which models and checkpoints fit hardware that is there, how many requests run on each, and how long one may be."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from hybridcalc.architecture.geometry import Architecture
from hybridcalc.deployment import Memory, Workload, requests_text
from hybridcalc.engines.shapes import fitting_of
from hybridcalc.errors import HybridcalcError
from hybridcalc.fitting.answer import flat, gpus_text, record
from hybridcalc.fitting.candidates import Candidate, Deployment, arguments, certain
from hybridcalc.fitting.question import Question
from hybridcalc.fitting.search import KINDS, Found, Lost, measured
from hybridcalc.steps import html_of_records

ORDERS = ("parameters", "requests")


@dataclass(repr=False)
class FitModels:
    """The answer: the best deployment of each checkpoint that serves, and what the others lack."""

    question: Question
    found: Found
    least: int = 1
    order: str = ORDERS[0]

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
        return html_of_records(repr(self)[1:-1], flat(self.to_records()))

    def to_records(self) -> list[dict[str, Any]]:
        """The models as rows of a table, as pandas takes them."""
        return [
            {"name": made.model.name, "parameters": parameters_of(made), "max_length": longest(made, self.least)}
            | {name: value for name, value in record(made).items() if name not in ("price_per_hour", "pareto")}
            for made in self.deployments
        ]

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
            "allowed": sorted(self.question.allowed),
            "models": self.to_records(),
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


def longest(made: Deployment, requests: int) -> int:
    """The longest requests of which so many run for certain with the same ranks and settings, within the model's
    context. Tokens.
    """
    workload = made.one.workload
    low, high = workload.longest, max(made.model.max_context or 0, workload.longest)
    runs = _runs(made.candidate, made)
    if low == high or runs(high) >= requests:
        return high
    while low + 1 < high:
        middle = (low + high) // 2
        low, high = (middle, high) if runs(middle) >= requests else (low, middle)
    return low


def _runs(candidate: Candidate, made: Deployment) -> Callable[[int], int]:
    """Length -> requests that run for certain."""
    model: Architecture = candidate.model
    engine = candidate.served.engine

    def runs(length: int) -> int:
        work = Workload.at(length)
        args = arguments(candidate.served, candidate.shape, candidate.offer, work).changed(**made.change.fields)
        try:
            rest = engine.memory(model, args, Memory(gpu=candidate.offer.gpu))
            tuned = fitting_of(engine).tuned(model, args, rest, work)
            left = rest if rest.again is None else rest.again(tuned)
            return certain(engine.plan(model, tuned, left, work)) * made.servers
        except HybridcalcError:
            return 0

    return runs
