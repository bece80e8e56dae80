"""Small spaces of deployments, each of which can be planned."""

from __future__ import annotations

import random
from fractions import Fraction
from math import ceil
from typing import Any

from hybridcalc.architecture.presets import load_model
from hybridcalc.deployment import Memory, Workload
from hybridcalc.engines.shapes import fitting_of, settings
from hybridcalc.errors import HybridcalcError
from hybridcalc.fitting.candidates import Candidate, Deployment, arguments, certain
from hybridcalc.fitting.pace import at_pace
from hybridcalc.fitting.question import Question, checkpoints, engines, offers, wanted_requests
from hybridcalc.fitting.search import Search
from hybridcalc.hardware import rates_of
from hybridcalc.reuse.requests import planned_workload
from hybridcalc.reuse.workloads import parse_workload
from hybridcalc.speed import step_of


def question(
    model: str,
    length: int,
    requests: int | None,
    gpus: str,
    *allowed: str,
    engine: str = "",
    most_tp: int = 16,
    ranks: tuple[int, ...] = (1, 2, 4),
    pace: float | None = None,
) -> Question:
    """A search over few ranks."""
    return Question(
        Workload.at(length, concurrency=requests),
        requests,
        checkpoints(load_model(model)),
        offers(gpus.split(","), {}, None),
        engines([engine] if engine else []),
        frozenset(allowed),
        most_tp,
        pace=pace,
        ranks=ranks,
    )


def every_deployment(asked: Question) -> list[Deployment]:
    """Every combination that starts and serves, planned one by one with no bound at all."""
    found = []
    for offer in asked.offers:
        for served in asked.engines:
            fitting = fitting_of(served.engine)
            for model in fitting.checkpoints(asked.models):
                if offer.gpu.amd and "nvfp4" in model.asked.lower():
                    continue  # no kernels
                for ranks in asked.ranks_of(offer):
                    for shape in fitting.shapes(model, ranks, asked.most_tp):
                        found += _of_shape(asked, Candidate(offer, served, model, shape))
    return found


def _of_shape(asked: Question, candidate: Candidate) -> list[Deployment]:
    offer, served, model, shape = candidate
    fitting, found = fitting_of(served.engine), list[Deployment]()
    try:
        args = arguments(served, shape, offer, asked.workload)
        rest = served.engine.memory(model, args, Memory(gpu=offer.gpu))
        changes = list(settings(fitting.axes(model, args, asked.allowed)))
    except HybridcalcError:
        return []
    for change in changes:
        if change.fields.get("env") and not asked.variables:
            continue
        try:
            changed = args.changed(**change.fields)
            limit = None if asked.pace is None else _keeping(asked.pace, candidate, changed, asked.context)
            if limit == 0:
                continue
            tuned = fitting.tuned(model, changed, rest, asked.workload, limit)
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


def _keeping(pace: float, candidate: Candidate, args: Any, context: int) -> int:
    """Requests of a worker whose step is not too long by its floor: so many keep the pace, one more does not."""
    offer, served, model, _ = candidate
    engine, rates, workers = served.engine, rates_of(offer.gpu.source), served.engine.workers(args)
    most = at_pace(engine, model, args, offer.gpu, context, pace).requests
    for requests in {1, most, most + 1, most + 2, 2 * most + 1} - {0}:
        step = step_of(engine, model, args, rates, batch=requests * workers, context=context)
        assert (step.tokens_per_second() >= pace) == (requests <= most), (pace, requests, most)
    return most


def best_of_all(asked: Question) -> list[tuple[Any, Any]]:
    """The key and the group of the best of each group, of all combinations planned one by one, in order."""
    best: dict[tuple[str, ...], Deployment] = {}
    for made in every_deployment(asked):
        group = made.candidate.group(asked)
        if group not in best or made.key < best[group].key:
            best[group] = made
    return sorted((made.key, group) for group, made in best.items())


def found_alike(asked: Question) -> bool:
    """Whether the pruned search finds what planning everything finds, for one row, two, and all of them."""
    wanted = best_of_all(asked)
    for top in (1, 2, max(1, len(wanted))):
        found = Search(asked, top).run().deployments
        if [(made.key, made.candidate.group(asked)) for made in found][:top] != wanted[:top]:
            return False
    return True


PLACES = (
    "l40s", "h100", "rtx-4090", "a100-80gb", "4xh200", "6xb200", "mi300x", "l4", "2xrtx-pro-6000", "gb10", "h20-96gb",
)  # fmt: skip
MODELS = (
    "qwen3.6-35b-a3b", "qwen3.5-9b", "qwen3.6-27b", "kimi-linear-48b-a3b", "nemotron-3-nano-30b-a3b", "lfm2-8b-a1b",
    "granite-4.0-h-small", "falcon-h1-34b", "jamba-1.5-mini", "llama-3.1-8b", "gpt-oss-120b", "glm-5.3-flash",
    "minicpm-sala", "falcon-mamba-7b", "zamba2-7b", "ling-3.0-flash", "deepseek-v3",
)  # fmt: skip


TRAFFIC = ("chat:sessions=6,turns=4", "rag", "cyclic:prefixes=12,tokens=900,rounds=2")
"""Workloads of which requests have many lengths."""


def random_question(seed: int) -> Question:
    """Any of what a search may be asked: mixes of lengths, a traffic, requests to spare, prices, links, what is given
    up, a pace, any engine, a release.
    """
    pick = random.Random(seed)
    model = pick.choice(MODELS)
    length = pick.choice((700, 4096, 16_384, 50_000, 131_072))
    lengths = ((length, 1),) if pick.random() < 0.6 else ((length, 3), (length // 7, 5))
    wanted = pick.choice((None, 1, 7, 40, 300))
    spare = pick.choice((0, 0, Fraction(1, 10), Fraction(3, 7), Fraction(2)))
    work = Workload(lengths, wanted, mix=True)
    if pick.random() < 0.2:
        work = planned_workload(parse_workload(pick.choice(TRAFFIC)), concurrency=wanted)
    gpus = pick.sample(PLACES, 1 if wanted is None else 2)
    engine = pick.choice(("sglang", "vllm", "sglang@0.5.20", "vllm@0.25", "llama.cpp", "", ""))
    allowed = frozenset(name for name in ("accuracy", "reuse") if pick.random() < 0.3)
    priced = {gpu.split("x", 1)[-1] if gpu[0].isdigit() else gpu: round(pick.uniform(0.3, 9), 2) for gpu in gpus}
    placed = offers(gpus, priced if pick.random() < 0.4 else {}, pick.choice((None, None, 4, 9)))
    pace = pick.choice((None, None, 12.0, 45.0, 160.0))
    ranks = pick.choice(((1, 2), (1, 2, 4), (2, 3), (1, 8)))
    return Question(
        work,
        None if wanted is None else wanted_requests(wanted, Fraction(spare)),
        checkpoints(load_model(model)),
        placed if wanted is not None else tuple(offer._replace(most=min(offer.most, 8)) for offer in placed),
        engines([engine] if engine else []),
        allowed,
        pick.choice((16, 16, 2)),
        pick.random() < 0.2,
        pace,
        pick.random() < 0.8,
        ranks,
    )
