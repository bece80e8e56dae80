"""An answer of `fit` as a picture: requests over GPUs of each hardware found, and the front of the best."""

from hybridcalc.deployment import requests_text
from hybridcalc.engines.charts import Axis, Chart, Mark, Series
from hybridcalc.fitting.answer import Fit, gpus_text
from hybridcalc.fitting.candidates import Deployment
from hybridcalc.fitting.models import FitModels
from hybridcalc.steps import View

ROLES = ("state", "kv", "baseline", "scratch", "balanced", "trouble")
"""What tells curves apart."""
SERVERS = 2
"""How far curves run beyond what is asked for."""


def fit_view(fit: Fit) -> View:
    """The answer for pictures."""
    question = fit.question
    title = f"{question.models[0].name}: {requests_text(question.wanted or 1)} of {question.workload.describe()}"
    return View(title, title, pictures={"gpus": lambda: gpus_picture(fit, title)})


def models_view(fit: FitModels) -> View:
    """The same for models, of which there is no picture."""
    offer = fit.question.offers[0]
    title = f"models on {gpus_text(offer.most, offer)}"
    return View(title, title)


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
        marks=(Mark(float(fit.deployments[0].gpus), f"{fit.deployments[0].gpus} GPUs"),),
    )


def _curve(made: Deployment, most: int) -> list[tuple[float, float]]:
    """Points of one hardware, from none."""
    each, ranks = made.certain // made.servers, made.shape.ranks
    return [(float(ranks * count), float(each * count)) for count in range(most // ranks + 1)]
