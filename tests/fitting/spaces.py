"""Small spaces of deployments, each of which can be planned."""

from __future__ import annotations

from math import ceil

from hybridcalc.architecture.presets import load_model
from hybridcalc.deployment import Memory, Workload
from hybridcalc.engines.shapes import fitting_of, settings
from hybridcalc.errors import HybridcalcError
from hybridcalc.fitting.candidates import Candidate, Deployment, arguments, certain
from hybridcalc.fitting.question import Question, checkpoints, engines, offers


def question(
    model: str, length: int, requests: int | None, gpus: str, *allowed: str, engine: str = "", most_tp: int = 16,
    ranks: tuple[int, ...] = (1, 2, 4),
) -> Question:  # fmt: skip
    """A search over few ranks."""
    return Question(
        Workload.at(length, concurrency=requests),
        requests,
        checkpoints(load_model(model)),
        offers(gpus.split(","), {}, None),
        engines([engine] if engine else []),
        frozenset(allowed),
        most_tp,
        ranks=ranks,
    )


def every_deployment(asked: Question) -> list[Deployment]:
    """Every combination that starts and serves, planned one by one with no bound at all."""
    found = []
    for offer in asked.offers:
        for served in asked.engines:
            fitting = fitting_of(served.engine)
            for model in asked.models:
                for ranks in asked.ranks_of(offer):
                    for shape in fitting.shapes(model, ranks, asked.most_tp):
                        found += _of_shape(asked, Candidate(offer, served, model, shape))
    return found


def _of_shape(asked: Question, candidate: Candidate) -> list[Deployment]:
    offer, served, model, shape = candidate
    fitting, found = fitting_of(served.engine), []
    try:
        args = arguments(served, shape, offer, asked.workload)
        rest = served.engine.memory(model, args, Memory(gpu=offer.gpu))
        changes = list(settings(fitting.axes(model, args, asked.allowed)))
    except HybridcalcError:
        return []
    for change in changes:
        try:
            tuned = fitting.tuned(model, args.changed(**change.fields), rest, asked.workload)
            left = served.engine.memory(model, tuned, Memory(gpu=offer.gpu))
            plan = served.engine.plan(model, tuned, left, asked.workload)
        except HybridcalcError:
            continue
        runs = certain(plan)
        if not runs:
            continue
        servers = offer.most // shape.ranks if asked.wanted is None else ceil(asked.wanted / runs)
        made = Deployment(candidate, change, tuned, left, plan, servers, cheapest=asked.wanted is not None)
        if servers and made.gpus <= offer.most:
            found.append(made)
    return found
