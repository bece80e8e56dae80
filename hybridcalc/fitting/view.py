"""An answer of `fit` as a picture: requests over GPUs of each hardware found, and the front of the best; of models on
hardware that is there, requests over their length.
"""

from collections.abc import Iterator

from hybridcalc.deployment import requests_text
from hybridcalc.engines.charts import Axis, Chart, Mark, Series, lengths
from hybridcalc.findings import View
from hybridcalc.fitting.answer import Fit, gpus_text
from hybridcalc.fitting.candidates import Deployment
from hybridcalc.fitting.models import UNLIMITED, FitModels
from hybridcalc.hardware import gpus_in_words

ROLES = ("state", "kv", "baseline", "scratch", "balanced", "trouble")
"""What tells curves apart."""
POINTS, SHORTEST = 33, 1024
"""Lengths of a curve, and the least of them where no shorter one is asked for. Tokens."""
MOST_CURVES, HEADROOM = 12, 1.3
"""Checkpoints of which curves are drawn, those that are alike once; how far the axis goes on beyond them."""
BEYOND = 8
"""Times the length that is asked for: how far a curve runs that nothing ends."""
SERVERS = 2
"""How far curves run beyond what is asked for."""


def fit_view(fit: Fit) -> View:
    """The answer for pictures."""
    question = fit.question
    title = f"{question.models[0].name}: {requests_text(question.wanted or 1)} of {question.workload.describe()}"
    return View(title, title, pictures={"gpus": lambda: gpus_picture(fit, title)})


def models_view(fit: FitModels) -> View:
    """The same for models."""
    offer = fit.question.offers[0]
    title = f"models on {gpus_text(offer.most, offer)}"
    return View(title, title, pictures={"lengths": lambda: lengths_picture(fit, title)})


def gpus_picture(fit: Fit, title: str) -> Chart:
    """Requests that certainly run over GPUs: a curve for each hardware and engine, servers added one by one; the Pareto
    front of what was found.
    """
    rows = fit.deployments[: len(ROLES)]
    most = max(made.gpus for made in rows) * SERVERS
    series = [
        Series(f"{made.offer.name}, {made.engine.title}", role, tuple(_curve(made, most)), letter, style="steps")
        for made, role, letter in zip(rows, ROLES, "abcdef", strict=False)
    ]
    front = sorted((made.gpus, made.certain) for number, made in enumerate(fit.deployments) if number in fit.front)
    series.append(Series("Pareto front", "trouble", tuple((float(x), float(y)) for x, y in front), "o", style="dots"))
    wanted = fit.question.wanted or 1
    told = f"{wanted:,} are wanted; what certainly runs, servers added one by one"
    return Chart(
        f"Requests over GPUs: {title}",
        told,
        Axis("GPUs", "number", low=0, high=float(most)),
        Axis("requests at once", "number", low=0),
        tuple(series),
        marks=(Mark(float(fit.deployments[0].gpus), gpus_in_words(fit.deployments[0].gpus)),),
    )


def _curve(made: Deployment, most: int) -> list[tuple[float, float]]:
    """Points of one hardware, from none to the last server before the edge."""
    each, ranks = made.certain // made.servers, made.shape.ranks
    last = (most - 1) // ranks
    return [
        *((float(ranks * count), float(each * count)) for count in range(last + 1)),
        (float(most), float(each * last)),
    ]


def lengths_picture(fit: FitModels, title: str) -> Chart:
    """Requests that certainly run over their length: a curve for each of the first checkpoints, with the ranks and
    settings that suit what was asked for, to where its context or its memory ends.
    """
    asked = fit.question.workload.longest
    low = min(SHORTEST, asked)
    curves: dict[tuple[tuple[float, float], ...], list[str]] = {}
    for made in fit.deployments[:MOST_CURVES]:
        curves.setdefault(tuple(_over_lengths(fit, made, low)), []).append(_checkpoint(made))
    named = list(curves.items())[: len(ROLES)]
    series = [
        Series(names[0] + (f" and {len(names) - 1} alike" if names[1:] else ""), role, curve, letter, style="steps")
        for (curve, names), role, letter in zip(named, ROLES, "abcdef", strict=False)
    ]
    counts = [count for curve, _ in named for _, count in curve]
    return Chart(
        f"Requests over their length: {title}",
        "What certainly runs, in the layout of the answer, to where the context or the memory ends",
        Axis("tokens a request", "tokens", log=True, low=low, high=max(curve[-1][0] for curve, _ in named)),
        Axis("requests at once", "number", log=True, low=min(counts) / HEADROOM, high=max(counts) * HEADROOM),
        tuple(series),
        marks=(Mark(float(asked), f"{asked:,} tokens"),),
    )


def _checkpoint(made: Deployment) -> str:
    return (made.model.asked or made.model.name).rpartition("/")[2]


def _over_lengths(fit: FitModels, made: Deployment, low: int) -> Iterator[tuple[float, float]]:
    """Points of one checkpoint: from each length on what runs of the next one, the longest at the end."""
    longest = fit.longest(made)
    longest = longest if longest < UNLIMITED else BEYOND * fit.question.workload.longest
    tried = lengths(low, max(low, longest), POINTS)
    counts = [fit.certain_at(made, length) for length in tried]
    yield from ((float(length), float(count)) for length, count in zip(tried, [*counts[1:], counts[-1]], strict=True))
