"""What is asked: for which workload, on which GPUs, with which engines and checkpoints, and what may be given up."""

from collections.abc import Sequence
from fractions import Fraction
from math import ceil
from typing import NamedTuple

from hybridcalc.architecture import Architecture
from hybridcalc.architecture.presets import load_model, shipped_checkpoints
from hybridcalc.deployment import Workload
from hybridcalc.engines import ENGINES
from hybridcalc.engines.engine import Engine
from hybridcalc.engines.shapes import ACCURACY, REUSE
from hybridcalc.errors import InputError, quoted
from hybridcalc.hardware import MOST_GPUS, Gpu, find_gpu, gpu_id, shipped_gpus

ALLOWED = (ACCURACY, REUSE)
RANKS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)
"""GPUs of one server that are tried."""
MOST_TP = 16
MOST_SHOWN = 6
MOST_PACE = 10**6
"""Tokens a second of one request, beyond any GPU."""
JOINED = ("any", "nvlink")


class Offer(NamedTuple):
    """GPUs of one kind: the preset's id or the size, how many there are at most, and the price of one an hour."""

    name: str
    gpu: Gpu
    most: int = MOST_GPUS
    price: float | None = None

    def cost(self, gpus: int) -> float:
        """The price of so many, or their number where no price is known."""
        return gpus if self.price is None else gpus * self.price


class Served(NamedTuple):
    """An engine in one release; None is the newest."""

    engine: Engine
    release: str | None = None

    @property
    def version(self) -> str:
        """The release whose rules are used."""
        return self.engine.release(self.release)


class Question(NamedTuple):
    """A search. ``wanted`` requests are to run at once for certain, None for as many as do;
    ``models`` are the checkpoints of one model, or of
    all where hardware is given. ``linked``: several ranks only on cards that NVLink joins.
    ``variables``: whether a launch may need some in its environment.
    ``pace``: tokens a second that each request is to get, as far as the floor of a step allows.
    """

    workload: Workload
    wanted: int | None
    models: tuple[Architecture, ...]
    offers: tuple[Offer, ...]
    engines: tuple[Served, ...]
    allowed: frozenset[str] = frozenset()
    most_tp: int = MOST_TP
    linked: bool = False
    pace: float | None = None
    variables: bool = True
    ranks: tuple[int, ...] = RANKS

    @property
    def context(self) -> int:
        """Tokens that a request holds on average."""
        return round(self.workload.mean_length or 0)

    def ranks_of(self, offer: Offer) -> tuple[int, ...]:
        """GPUs of one server that are tried on an offer."""
        alone = self.linked and not offer.gpu.linked
        return tuple(count for count in self.ranks if count <= (1 if alone else offer.most))


def wanted_requests(concurrency: int, headroom: Fraction) -> int:
    """Requests that are to run, with so much to spare."""
    return ceil(concurrency * (1 + headroom))


def checkpoints(model: Architecture) -> tuple[Architecture, ...]:
    """The checkpoints of a preset, the one that was asked for alone where the name is of one: with an organisation, or
    with a word for how it is stored.
    """
    listed = shipped_checkpoints(model.name) if model.config is None else []
    asked = model.asked.lower()
    one = "/" in asked or model.reading or asked.endswith("bf16")
    if not listed or (one and asked != model.name.lower()):
        return (model,)
    return tuple(load_model(each["id"]) for each in listed)


def left_out(models: Sequence[Architecture]) -> tuple[str, list[str]]:
    """The preset of a checkpoint that was asked for alone, and its others, which its own name searches too."""
    if len(models) > 1 or models[0].config is not None:
        return "", []
    asked = (models[0].asked or models[0].hf_id or "").lower()
    others = [each["id"] for each in shipped_checkpoints(models[0].name) if each["id"].lower() != asked]
    return models[0].name, others


def offers(names: Sequence[str], prices: dict[str, float], most: int | None) -> tuple[Offer, ...]:
    """The GPUs that are named, those that have a price, or all. Raises InputError for an unknown one, and for GPUs of
    which only some have a price.
    """
    price_of = {find_gpu(name): price for name, price in prices.items()}
    named = list(names) or list(prices) or list(shipped_gpus())
    found = []
    for name in named:
        gpu = find_gpu(name)
        count = min(gpu.cards or MOST_GPUS, most or MOST_GPUS)
        card = gpu._replace(cards=None)
        if price_of and card not in price_of:
            raise InputError(f"no price of {name}", fix=f"add --price {_plain(name)}=PRICE, or leave it out of --gpu")
        found.append(Offer(_plain(name), card, count, price_of.get(card)))
    distinct = tuple(dict.fromkeys(found))
    twice = next((one.name for one in distinct if sum(other.name == one.name for other in distinct) > 1), None)
    if twice is not None:
        raise InputError(f"--gpu names {twice} with two numbers", fix="keep one")
    return distinct


def _plain(name: str) -> str:
    """The preset's id that a name with a count stands for, or the size as it is typed."""
    gpu = find_gpu(name)
    return gpu_id(gpu.source) or name.strip().rpartition("x")[2].strip()


def engines(names: Sequence[str]) -> tuple[Served, ...]:
    """Engines as ``name``, ``name@release`` or ``name@all``. Raises InputError."""
    found: list[Served] = []
    for name in names or [name for name in ENGINES if ENGINES[name].fitted_unasked]:
        plain, at, release = name.strip().partition("@")
        engine = ENGINES[ENGINES.named(plain)]
        if not at:
            found.append(Served(engine))
        elif release == "all":
            found += [Served(engine, version) for version in engine.releases]
        else:
            known = [version for version in engine.releases if f"{version}.".startswith(f"{release}.")]
            if not known:
                shown = ", ".join(engine.releases[-MOST_SHOWN:])
                raise InputError(f"--engine {quoted(name)}: no rules of that release", fix=f"one of ..., {shown}")
            found.append(Served(engine, known[-1]))
    return tuple(dict.fromkeys(found))
