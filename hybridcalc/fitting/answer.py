"""What a search comes to: deployments that serve, why others lose, and where nothing serves, what comes nearest."""

import shlex
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

from hybridcalc.deployment import requests_text
from hybridcalc.engines.answer import Answer
from hybridcalc.fitting.candidates import Deployment
from hybridcalc.fitting.pace import pace_of_one
from hybridcalc.fitting.question import ALLOWED, MOST_TP, Offer, Question, offers
from hybridcalc.fitting.search import KINDS, Found, Lost, Search, measured
from hybridcalc.hardware import MOST_GPUS, gpu_id, gpus_in_words
from hybridcalc.speed.plans import rate_text

DEFAULT_TOP = 4
MOST_MEASURED = 40
"""Losers of which the nearest is found by what they lack to the byte; the others lack more of the weights alone."""


class Loser(NamedTuple):
    """Hardware with an engine and a checkpoint, and the nearest it comes to an answer."""

    nearest: Lost

    @property
    def kind(self) -> str:
        """One of KINDS."""
        return self.nearest.kind

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        offer, served, model, shape = self.nearest.candidate
        return {
            "gpu": offer.name,
            "engine": served.engine.name,
            "engine_version": served.version,
            "checkpoint": model.asked or model.name,
            "gpus": shape.ranks,
            "tp_size": common(served.engine, shape.fields, "tp_size"),
            "kind": self.kind,
            "reason": self.nearest.reason,
            "lacks_gib": self.nearest.lacks_gib or None,
            "least_gpus": self.nearest.gpus or None,
        }


def common(engine: Any, fields: Any, name: str) -> int:
    """An argument that engines call otherwise, by its common name; of arguments or of a shape's fields."""
    own = engine.renamed.get(name, name)
    value: int = fields.get(own, 1) if isinstance(fields, dict) else getattr(fields, own, 1)
    return value


def rest_of(plan: Answer) -> float | list[float]:
    """Memory left for the caches, GiB, or [low, likely, high]."""
    rest = plan.rest
    return rest.likely_gib if rest.exact else [rest.low_gib, rest.likely_gib, rest.high_gib]


def record(made: Deployment, *, pareto: bool = False) -> dict[str, Any]:
    """A deployment as plain data, flat but for its launch line and findings."""
    plan, engine = made.plan, made.engine
    launch = made.launch
    head = len(engine.command("MODEL"))
    weights = next((part.to_dict()["gib"] for part in plan.rest.parts if part.name == "weights"), None)
    return {
        "engine": engine.name,
        "engine_version": made.served.version,
        "checkpoint": launch["argv"][head - 1],
        "gpu": made.offer.name,
        "gpus": made.gpus,
        "workers": plan.workers * made.launches,
        "servers": made.servers,
        "launches": made.launches,
        **{name: common(engine, made.args, name) for name in ("tp_size", "pp_size", "dp_size", "dcp_size")},
        "flags": launch["argv"][head:],
        "requests": made.requests,
        "requests_certain": made.certain,
        "requests_per_gpu": made.requests / made.gpus,
        "binding": plan.binding,
        "idle_percent": None if plan.idle_percent is None else round(plan.idle_percent, 2),
        "weights_gib": weights,
        "rest_gib": rest_of(plan),
        "price_per_hour": None if made.offer.price is None else round(made.cost, 4),
        "risk": made.risk,
        "pareto": pareto,
        "speed": None if (pace := pace_of_one(made)) is None else pace.to_dict(),
        "launch": launch,
        "findings": [finding.to_dict() for finding in plan.findings],
    }


TIMED = ("floor_ms", "tokens_per_second_per_request", "tokens_per_second", "binding")
"""What rows of a table say of time."""


def row(found: dict[str, Any]) -> dict[str, Any]:
    """A deployment as a row of a table: what is said of its speed in columns of their own."""
    speed = found["speed"] or {}
    return {
        name: value
        for own, said in found.items()
        for name, value in ([(f"speed_{key}", speed.get(key)) for key in TIMED] if own == "speed" else [(own, said)])
    }


@dataclass(repr=False)
class Fit:
    """The answer of a search for hardware. ``deployments``: the cheapest of each kind of GPU and engine, best first."""

    question: Question
    found: Found
    top: int = DEFAULT_TOP

    @property
    def deployments(self) -> tuple[Deployment, ...]:
        """Those that serve, the cheapest first."""
        return self.found.deployments[: self.top]

    @cached_property
    def front(self) -> frozenset[int]:
        """Which of them are on the Pareto front: none costs no more and runs as many requests, and one of it better."""
        most, front = -1, set[int]()
        order = sorted(range(len(self.deployments)), key=lambda n: (self.deployments[n].cost, -self._certain(n)))
        for number in order:
            if self._certain(number) > most:
                most = self._certain(number)
                front.add(number)
        return frozenset(front)

    def _certain(self, number: int) -> int:
        return self.deployments[number].certain

    @cached_property
    def losers(self) -> tuple[Loser, ...]:
        """Every other hardware with an engine and a checkpoint, the nearest to an answer first."""
        shown = {made.candidate.group(self.question) for made in self.deployments}
        beyond = [
            Lost(made.candidate, "dearer", f"takes {gpus_in_words(made.gpus)}", gpus=made.gpus)
            for made in self.found.deployments[self.top :]
        ]
        best: dict[tuple[str, ...], Lost] = {}
        for lost in (*beyond, *self.found.waiting, *self.found.lost):
            candidate = lost.candidate
            group = candidate.group(self.question)
            if group in shown:
                continue
            key = (*group, candidate.model.asked or candidate.model.name)
            if key not in best or _nearness(lost) < _nearness(best[key]):
                best[key] = lost
        lost_ones = (measured(lost, self.question) for lost in best.values())
        return tuple(Loser(lost) for lost in sorted(lost_ones, key=_nearness))

    @cached_property
    def nearest(self) -> "Nearest | None":
        """Where nothing serves: what comes nearest."""
        return None if self.deployments else nearest(self.question, self.found)

    @cached_property
    def bolder(self) -> Deployment | None:
        """What the best hardware comes to with answers allowed to change; None where that costs as much."""
        question = self.question
        if not self.deployments or set(ALLOWED[:1]) <= question.allowed:
            return None
        first = self.deployments[0]
        asked = question._replace(allowed=question.allowed | set(ALLOWED[:1]), offers=(first.offer,))
        found = Search(asked, 1).run().deployments
        return found[0] if found and found[0].cost < first.cost else None

    def __repr__(self) -> str:
        wanted = f"{requests_text(self.question.wanted or 1)} of {self.question.workload.describe()}"
        if not self.deployments:
            return f"<nothing serves {wanted} of {self.question.models[0].name}>"
        first = self.deployments[0]
        gpus = gpus_text(first.gpus, first.offer)
        return f"<{self.question.models[0].name}, {wanted}: {gpus} with {first.engine.title} run {first.certain:,}>"

    def _repr_html_(self) -> str:
        """The deployments, for notebooks."""
        from hybridcalc.notebook import html_of_records

        return html_of_records(repr(self)[1:-1], flat(self.to_records()))

    def to_records(self) -> list[dict[str, Any]]:
        """The deployments as rows of a table, as pandas takes them."""
        return [row(found) for found in self._records()]

    def _records(self) -> list[dict[str, Any]]:
        return [record(made, pareto=number in self.front) for number, made in enumerate(self.deployments)]

    def to_dict(self) -> dict[str, Any]:
        """The document of ``fit --json``."""
        work, question = self.question.workload, self.question
        return {
            "model": question.models[0].name,
            "workload": {
                "length_tokens": work.longest or None,
                "mean_length_tokens": float(work.mean_length) if work.mean_length else None,
                "requests": question.wanted,
            },
            "pace": question.pace,
            "ranked_by": "gpus" if question.offers[0].price is None else "price",
            "allowed": sorted(question.allowed),
            "deployments": self._records(),
            "refused": [loser.to_dict() for loser in self.losers],
            "nearest": None if self.nearest is None else self.nearest.to_dict(),
            "combinations": self.found.considered,
            "planned": self.found.planned,
        }


def flat(records: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Records whose every value fits a cell: launch lines as lines, lists as words, intervals by their likely value."""

    def cell(value: Any) -> Any:
        if isinstance(value, dict):
            return command_text(value)
        if isinstance(value, list) and len(value) == 3 and all(isinstance(each, float) for each in value):
            return value[1]
        if isinstance(value, list):
            return " ".join(each["rule"] if isinstance(each, dict) else each for each in value)
        return value

    return [{name: cell(value) for name, value in found.items()} for found in records]


def command_text(launch: Mapping[str, Any]) -> str:
    """A launch as a line: variables in front, words quoted for a shell."""
    variables = [f"{name}={shlex.quote(value)}" for name, value in launch["env"].items()]
    return " ".join([*variables, shlex.join(launch["argv"])])


def _nearness(lost: Lost) -> tuple[int, float, float]:
    """Fewer GPUs, or more tokens a second, or less memory that lacks, are nearer."""
    return KINDS.index(lost.kind), lost.gpus - lost.rate, lost.lacks_gib or float("inf")


class Nearest(NamedTuple):
    """What comes nearest to serving, in words; the deployment that runs the most, where one starts; and what serves
    with more GPUs than there are, more ranks than were asked for or, where memory lacks, other GPUs.
    """

    text: str
    lacks: str
    made: Deployment | None = None
    more: Deployment | None = None
    lacks_gib: float | None = None
    lacks_requests: int | None = None
    lacks_rate: float | None = None

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        return {
            "text": self.text,
            "lacks": self.lacks,
            "lacks_gib": self.lacks_gib,
            "lacks_requests": self.lacks_requests,
            "lacks_tokens_per_second": self.lacks_rate,
            "deployment": None if self.made is None else record(self.made),
            "with_more_gpus": None if self.more is None else record(self.more),
        }


def nearest(question: Question, found: Found) -> Nearest:
    """The deployment that runs most requests on the GPUs there are; else what is nearest to the pace, or lacks least
    memory; else a refusal.
    """
    limited = any(offer.most < MOST_GPUS for offer in question.offers)
    more = None
    if limited:
        free = tuple(offer._replace(most=MOST_GPUS) for offer in question.offers)
        served = Search(question._replace(offers=free), 1).run().deployments
        more = served[0] if served else None
    most = Search(question._replace(wanted=None), 1).run()
    wanted = question.wanted or 1
    if most.deployments:
        made = most.deployments[0]
        text = f"{gpus_text(made.gpus, made.offer)} run {requests_text(made.certain)} of {wanted:,} for certain"
        few = wanted - made.certain
        return Nearest(text, f"{requests_text(few)} more", made, more, lacks_requests=few)
    slow = max((lost for lost in (*found.lost, *most.lost) if lost.rate), key=lambda each: each.rate, default=None)
    if slow is not None:
        rate = (question.pace or 0.0) - slow.rate
        text = f"{gpus_text(slow.candidate.shape.ranks, slow.candidate.offer)}: {slow.reason}"
        return Nearest(text, f"{rate_text(rate)} tokens/s", None, more, lacks_rate=rate)
    short = sorted((lost for lost in (*found.lost, *most.lost) if lost.lacks_gib > 0), key=lambda each: each.lacks_gib)
    if short:
        lost = min((measured(each, question) for each in short[:MOST_MEASURED]), key=lambda each: each.lacks_gib)
        offer, _, _, shape = lost.candidate
        lacks, more = f"{lost.lacks_gib:.2f} GiB a GPU", more or _elsewhere(question)
        return Nearest(f"{gpus_text(shape.ranks, offer)}: {lost.reason}", lacks, None, more, lacks_gib=lost.lacks_gib)
    reasons = Counter(lost.reason for lost in found.lost if lost.kind in ("context", "refused", "unknown"))
    text = reasons.most_common(1)[0][0] if reasons else "no combination is known"
    return Nearest(text, "", None, more)


def _elsewhere(question: Question) -> Deployment | None:
    """What serves with as many ranks as are ever tried, else on GPUs of more memory; none where prices say which."""
    offered = question.offers
    larger = [each for each in offers((), {}, None) if each.gpu.engine_gib > max(one.gpu.engine_gib for one in offered)]
    tries = [question._replace(most_tp=MOST_TP)] if question.most_tp < MOST_TP else []
    tries += [question._replace(most_tp=MOST_TP, offers=tuple(larger))] if larger and offered[0].price is None else []
    found = (served[0] for asked in tries if (served := Search(asked, 1).run().deployments))
    return next(found, None)


def gpus_text(count: int, offer: Offer) -> str:
    """``8 x H200``: the preset's id as it is spoken of, or the size that was given."""
    name = offer.name if gpu_id(offer.gpu.source) is None else offer.name.upper().replace("-", " ")
    return f"{count:,} x {name}"


def layout(made: Deployment) -> str:
    """How ranks share a launch, and how often it is started: ``tp 2, dp 4``, ``tp 8 x 3``."""
    plan_args, engine = made.args, made.engine
    parts = [f"tp {common(engine, plan_args, 'tp_size')}"]
    for name in ("pp", "dp", "dcp"):
        count = common(engine, plan_args, f"{name}_size")
        parts += [f"{name} {count}"] if count > 1 else []
    return ", ".join(parts) + (f" x {made.launches}" if made.launches > 1 else "")


def counted(losers: Iterable[Loser]) -> str:
    """How many lose for what, in words."""
    said = {
        "dearer": "cost more",
        "gpus": "take more GPUs than there are",
        "pace": "for the pace",
        "memory": "for the memory of a request",
        "weights": "for weights",
        "context": "for the context",
        "refused": "refused",
        "unknown": "not modelled",
    }
    found = Counter(loser.kind for loser in losers)
    return ", ".join(f"{found[kind]} {said[kind]}" for kind in KINDS if found[kind])
