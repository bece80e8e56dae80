"""The same questions from Python.

hybridcalc.fit("qwen3.5-397b-a17b", length="64k", concurrency=200, gpu="h200,b200").to_records()
hybridcalc.fit(gpu="2xrtx-4090", length="128k").to_records()              which models fit
"""

from collections.abc import Callable, Iterable, Mapping
from fractions import Fraction

from hybridcalc.architecture import Architecture
from hybridcalc.architecture.presets import load_model, model_names
from hybridcalc.deployment import Workload
from hybridcalc.engines import ENGINES
from hybridcalc.errors import InputError, quoted
from hybridcalc.fitting.answer import DEFAULT_TOP, Fit
from hybridcalc.fitting.models import ORDERS, FitModels
from hybridcalc.fitting.question import (
    ALLOWED,
    JOINED,
    MOST_PACE,
    MOST_TP,
    Offer,
    Question,
    checkpoints,
    engines,
    offers,
    wanted_requests,
)
from hybridcalc.fitting.search import Search
from hybridcalc.hardware import find_gpu
from hybridcalc.units import parse_tokens


def fit(
    model: str | Architecture | None = None,
    *,
    length: str | int | None = None,
    concurrency: int | None = None,
    workload: Workload | None = None,
    gpu: str | Iterable[str] = (),
    engine: str | Iterable[str] = (),
    prices: Mapping[str, float] | None = None,
    allow: str | Iterable[str] = (),
    max_gpus: int | None = None,
    max_tp: int = MOST_TP,
    interconnect: str = JOINED[0],
    headroom: float | Fraction = 0,
    pace: float | None = None,
    variables: bool = True,
    top: int = DEFAULT_TOP,
    order: str = ORDERS[0],
    watch: Callable[[], None] = lambda: None,
) -> Fit | FitModels:
    """The cheapest deployments that serve a model's workload; without a model, the models that fit one kind of GPU.

    ``gpu``: names, of all presets where none is given, each with the number that there is at most (8xh200).
    ``prices``: of a GPU, an hour. ``headroom``: requests to spare, as a share. ``allow``: "accuracy" (states and KV of
    fewer bits), "reuse" (no prefix cache). ``pace``: tokens a second of each request, as far as the floor of a step
    allows them. ``variables``: whether a launch may need some in its environment. Raises InputError for what cannot be
    read.
    """
    work = workload if workload is not None else _workload(length, concurrency)
    if not work.lengths:
        raise InputError("fit needs the length of requests", fix="add -L TOKENS, --lengths or --workload")
    allowed = frozenset(_listed(allow))
    for name in sorted(allowed - set(ALLOWED)):
        raise InputError(f"--allow {quoted(name)} is not known", fix=f"write {' or '.join(ALLOWED)}")
    if interconnect not in JOINED:
        raise InputError(f"--interconnect {quoted(interconnect)} is not known", fix=f"write {' or '.join(JOINED)}")
    if pace is not None and not 0 < pace < MOST_PACE:
        raise InputError(f"--pace {pace:g} is no number of tokens a second", fix="write --pace 30")
    if order not in ORDERS:
        raise InputError(f"--sort {quoted(order)} is not known", fix=f"write {' or '.join(ORDERS)}")
    cards = _listed(gpu)
    if gpu and not cards:
        raise InputError("--gpu names none", fix="write --gpu h100,h200, or leave it out for all")
    offered = offers(cards, dict(prices or {}), max_gpus)
    name = model if isinstance(model, str) else "" if model is None else model.asked
    of_files = ENGINES.meant_by([name])
    named = _listed(engine) or ([] if of_files == ENGINES.usual else [of_files])
    served, linked = engines(named), interconnect == JOINED[1]
    if model is None:
        offer = _one_kind(cards, offered)
        models = tuple(each for name in model_names() for each in checkpoints(load_model(name)))
        asked = Question(work, None, models, (offer,), served, allowed, max_tp, linked, pace, variables)
        return FitModels(asked, Search(asked, len(models), watch).run(), work.wanted or 1, order, top)
    if order != ORDERS[0]:
        raise InputError("--sort is the order of models, and one is named", fix="leave it out, or MODEL")
    wanted = work.wanted
    if wanted is None:
        raise InputError(
            "fit needs the number of requests", fix="add -C N: how many are to run at once; a workload does not say"
        )
    found = checkpoints(load_model(model) if isinstance(model, str) else model)
    spare = wanted_requests(wanted, Fraction(headroom))
    asked = Question(work, spare, found, offered, served, allowed, max_tp, linked, pace, variables)
    return Fit(asked, Search(asked, top, watch).run(), top)


def _one_kind(named: list[str], offered: tuple[Offer, ...]) -> Offer:
    """The GPUs that models are to fit: as many as are named, one where no number is."""
    if len(named) != 1:
        raise InputError("fit without a MODEL needs one kind of GPU", fix="name a MODEL, or --gpu 2xrtx-4090")
    return offered[0]._replace(most=find_gpu(named[0]).cards or 1)


def _listed(names: str | Iterable[str]) -> list[str]:
    parts = names.split(",") if isinstance(names, str) else [part for name in names for part in name.split(",")]
    return [part.strip() for part in parts if part.strip()]


def _workload(length: str | int | None, concurrency: int | None) -> Workload:
    tokens = parse_tokens(length) if isinstance(length, str) else length
    return Workload(((tokens, 1),) if tokens else (), concurrency)
