"""How many requests may a server run where each is to get so many tokens a second?

    requests = the most n of a worker with  floor of a step of n requests on each  <=  1 / pace

No step is shorter than its floor, so that more cannot keep the pace; whether so many do, no floor says. A step of more
requests never has a lower floor, so that the most is found by halving. All requests are as long as the workload's on
average.
"""

from math import ceil
from typing import Any, NamedTuple

from hybridcalc.architecture import Architecture
from hybridcalc.engines.engine import Engine
from hybridcalc.errors import HybridcalcError, InputError
from hybridcalc.fitting.candidates import Deployment
from hybridcalc.hardware import Gpu, Rates, gpu_id, rates_of
from hybridcalc.speed import Floor, step_of
from hybridcalc.speed.plans import Pace, pace_of, rate_text
from hybridcalc.units import MOST_SLOTS


class Paced(NamedTuple):
    """Requests of a worker that may keep a pace; where it is none, what a single one gets at most, and why."""

    requests: int
    rate: float = 0.0
    reason: str = ""


def at_pace(served: Engine, model: Architecture, args: Any, gpu: Gpu, context: int, pace: float) -> Paced:
    """How many may keep ``pace`` tokens a second. Raises InputError where nothing is known of the GPU's rates,
    NotModelled where nothing is known of the weights.
    """
    rates, workers = rates_of(gpu.source), served.workers(args)

    def rate(requests: int) -> float:
        return _step(served, model, args, rates, requests * workers, context).tokens_per_second()

    alone = rate(1)
    if alone < pace:
        said = f"one request gets {rate_text(alone)} tokens/s at most" + ("" if workers == 1 else " on each worker")
        return Paced(0, alone, said)
    low, high = 1, 2
    while high < MOST_SLOTS and rate(high) >= pace:
        low, high = high, 2 * high
    while low + 1 < high:
        middle = (low + high) // 2
        low, high = (middle, high) if rate(middle) >= pace else (low, middle)
    return Paced(low)


def unknown_rates(gpu: Gpu) -> str:
    """Why no pace can be told of a GPU; empty where it can."""
    if gpu_id(gpu.source) is None:
        return "a size has no bandwidth, of which a pace is told: name the GPU"
    try:
        rates_of(gpu.source)
    except InputError as error:
        return error.message
    return ""


def _step(served: Engine, model: Architecture, args: Any, rates: Rates, batch: int, context: int) -> Floor:
    return step_of(served, model, args, rates, batch=batch, context=context)


def pace_of_one(made: Deployment) -> Pace | None:
    """The floors of one of its servers at its part of the requests that are asked for, all that it runs where no number
    is; None where nothing is known of the GPU's rates or of the weights.
    """
    if gpu_id(made.offer.gpu.source) is None:
        return None
    try:
        asked = made.one.workload.wanted
        return pace_of(made.engine, made.one, wanted=asked and ceil(asked / made.servers))
    except HybridcalcError:
        return None
