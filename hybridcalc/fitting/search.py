"""Which deployments serve a workload most cheaply? Every combination is either planned exactly or shown to lose.

    requests of a worker <= memory left / least bytes of a request        servers >= ceil(wanted / requests of a server)

Candidates wait in the order of what they cost at least: a kind of GPU with a shape of server, first a single one where
the weights leave anything, then as many as the GPU's memory less the weights asks for, then by the memory that the
engine leaves, with each setting; the cheapest is planned. Once as many deployments are known as are asked for, and
every candidate costs more than the last of them, no other can be among them. What certainly runs is counted: where the
memory is an estimate, the requests at its low end.
"""

import heapq
from collections.abc import Callable, Iterator
from functools import partial
from itertools import count
from math import ceil
from typing import Any, NamedTuple

from hybridcalc.architecture.geometry import Architecture
from hybridcalc.deployment import Memory, Rest
from hybridcalc.engines.checkpoints import quantized_by_name
from hybridcalc.engines.shapes import CONTEXT, Shape, fitting_of, settings
from hybridcalc.engines.suggest import Change
from hybridcalc.errors import HybridcalcError, NotModelled, Refusal
from hybridcalc.fitting.candidates import Candidate, Deployment, Group, Key, arguments, certain, on_card, ranked, worst
from hybridcalc.fitting.question import Question, Served
from hybridcalc.units import GIB

MOST_REQUESTS = 10**12
"""More than a server ever runs."""


KINDS = ("dearer", "gpus", "memory", "weights", "context", "refused", "unknown")
"""Why something is no answer, the nearest to one first: it costs more, takes more GPUs than there are, a request or the
weights do not fit, requests are beyond the context, the engine refuses, nothing is known of the model.
"""


class Lost(NamedTuple):
    """Why a candidate is no answer: ``kind`` is one of KINDS.

    ``lacks_gib``: what one GPU lacks, where it is memory; ``gpus``: how many it would take at least.
    """

    candidate: Candidate
    kind: str
    reason: str
    lacks_gib: float = 0.0
    gpus: int = 0
    nearest: Deployment | None = None


class Found(NamedTuple):
    """The best deployment of each group, of which the first ``top`` are certain to be the first of all; why the others
    are none, and those that were left since they cost more.
    """

    deployments: tuple[Deployment, ...]
    lost: tuple[Lost, ...]
    waiting: tuple[Lost, ...]
    planned: int
    considered: int


class Search:
    """One search; ``watch`` is told of each candidate that is settled."""

    def __init__(self, question: Question, top: int, watch: Callable[[], None] = lambda: None) -> None:
        self.question, self.top, self.watch = question, top, watch
        self.best: dict[Group, Deployment] = {}
        self.lost: list[Lost] = []
        self.planned = self.considered = 0
        self._heap: list[tuple[Any, ...]] = []
        self._order = count()
        self._cards: dict[tuple[Any, ...], tuple[Any, ...]] = {}
        self._taken: dict[tuple[Any, ...], HybridcalcError | None] = {}
        self._weights: dict[tuple[Any, ...], int | HybridcalcError] = {}
        self._least: dict[tuple[Any, ...], float | HybridcalcError] = {}

    def run(self) -> Found:
        """The deployments. What cannot be one is in ``lost``."""
        for candidate in self._candidates():
            self.considered += 1
            barred = self._barred(candidate)
            if barred is not None:
                self._lose(candidate, _kind_of(barred), barred.message + _other_release(candidate, barred))
            elif _has_kernels(candidate):
                self._bound(candidate)
            else:
                self._lose(candidate, "refused", "no kernels for NVFP4 on AMD GPUs are known")
        while self._heap and not self._settled(self._heap[0][0]):
            step = heapq.heappop(self._heap)[-1]
            step()
            self.watch()
        ranked = sorted(self.best.values(), key=lambda each: (each.key, each.candidate.group(self.question)))
        return Found(tuple(ranked), tuple(self.lost), tuple(self._waiting()), self.planned, self.considered)

    def _waiting(self) -> Iterator[Lost]:
        """Candidates that cost more than what was found, whatever they come to."""
        for key, _, candidate, _ in self._heap:
            yield Lost(candidate, "dearer", f"takes {key[1]:,} GPUs or more", gpus=key[1])

    def _candidates(self) -> Iterator[Candidate]:
        question = self.question
        for offer in question.offers:
            for served in question.engines:
                shapes = fitting_of(served.engine).shapes
                for model in question.models:
                    for ranks in question.ranks_of(offer):
                        for shape in shapes(model, ranks, question.most_tp):
                            yield Candidate(offer, served, model, shape)

    def _settled(self, key: Key) -> bool:
        """Whether nothing that costs as much can change the answer."""
        if self.question.wanted is None or len(self.best) < self.top:
            return False
        last = sorted(each.key for each in self.best.values())[self.top - 1]
        return key > last

    def _push(self, key: Key, candidate: Candidate, step: Callable[..., None], *given: Any) -> None:
        heapq.heappush(self._heap, (key, next(self._order), candidate, partial(step, candidate, *given, key)))

    def _servers(self, candidate: Candidate, requests: int) -> int:
        """Servers of so many requests each that serve what is wanted, or as many as there are GPUs for."""
        wanted = self.question.wanted
        return candidate.offer.most // candidate.shape.ranks if wanted is None else ceil(wanted / requests)

    def _key(self, candidate: Candidate, requests: int, risk: str) -> Key | None:
        """The least key of a candidate of whose servers each runs at most so many; None beyond the GPUs there are."""
        servers, offer = self._servers(candidate, requests), candidate.offer
        gpus, cheapest = servers * candidate.shape.ranks, self.question.wanted is not None
        if gpus > offer.most:
            return None
        return ranked(offer.cost(gpus), gpus, risk, requests * servers, cheapest=cheapest)

    def _barred(self, candidate: Candidate) -> HybridcalcError | None:
        """Why a release does not take the model's class, whatever its ranks; None where it does."""
        _, served, model, _ = candidate
        key = (served.engine.name, served.release, model.name, model.asked)
        if key not in self._taken:
            self._taken[key] = None
            try:
                served.engine.prepare(model, arguments(served, Shape({}, 1), None, self.question.workload))
            except HybridcalcError as error:
                if isinstance(error, NotModelled) or error.release:
                    self._taken[key] = error
        return self._taken[key]

    def _bound(self, candidate: Candidate) -> None:
        """The first bound: a server at least, where the weights leave anything of the GPU's memory."""
        offer, served, model, shape = candidate
        key = (served.engine.name, served.release, model.name, model.asked, tuple(shape.fields.items()))
        if key not in self._weights:
            try:
                args = arguments(served, shape, None, self.question.workload)
                self._weights[key] = served.engine.weights(model, args).low
            except HybridcalcError as error:
                self._weights[key] = error
        weights, memory = self._weights[key], offer.gpu.engine_gib
        if isinstance(weights, HybridcalcError):
            self._lose(candidate, _kind_of(weights), weights.message)
        elif weights >= memory * GIB:
            reason = f"weights take {weights / GIB:.2f} GiB of {memory:.2f}"
            self._lose(candidate, "weights", reason, weights / GIB - memory)
        else:
            least = self._key(candidate, MOST_REQUESTS, shape.risk)
            if least is None:
                self._lose(candidate, "gpus", f"takes {shape.ranks:,} GPUs or more", gpus=shape.ranks)
            else:
                self._push(least, candidate, self._narrow, weights)

    def _narrow(self, candidate: Candidate, weights: int, key: Key) -> None:
        """The second bound: what is left by the least that a request takes."""
        if self._beaten(candidate, key):
            return
        offer, shape = candidate.offer, candidate.shape
        request = self._request_of(candidate)
        if isinstance(request, HybridcalcError):
            self._lose(candidate, _kind_of(request), request.message)
            return
        each = int((offer.gpu.engine_gib * GIB - weights) // request)
        if not each:
            lacks = (weights + request) / GIB - offer.gpu.engine_gib
            reason = (
                f"weights take {weights / GIB:.2f} GiB and a request {request / GIB:.2f} of {offer.gpu.engine_gib:.2f}"
            )
            self._lose(candidate, "memory", reason, lacks)
            return
        least = self._key(candidate, each * shape.workers, shape.risk)
        if least is None:
            gpus = self._servers(candidate, each * shape.workers) * shape.ranks
            self._lose(candidate, "gpus", f"takes {gpus:,} GPUs or more", gpus=gpus)
            return
        self._push(least, candidate, self._open)

    def _request_of(self, candidate: Candidate) -> float | HybridcalcError:
        """The least bytes of a request on a rank, on GPUs of the candidate's kind."""
        offer, served, model, shape = candidate
        where = (offer.name, served.engine.name, served.release)
        if where not in self._cards:
            self._cards[where] = fitting_of(served.engine).card(on_card(served, offer))
        key = (*where[1:], self._cards[where], model.name, model.asked, tuple(shape.fields.items()))
        if key not in self._least:
            try:
                args = arguments(served, shape, offer, self.question.workload)
                self._least[key] = _least_request(self.question, served, model, args)
            except HybridcalcError as error:
                self._least[key] = error
        return self._least[key]

    def _open(self, candidate: Candidate, key: Key) -> None:
        """The second bound, of each setting: the memory that the engine leaves."""
        question, (offer, served, model, shape) = self.question, candidate
        if self._beaten(candidate, key):
            return
        fitting = fitting_of(served.engine)
        try:
            args = arguments(served, shape, offer, question.workload)
            rest = served.engine.memory(model, args, Memory(gpu=offer.gpu))
        except Refusal as refusal:  # the weights do not fit, or not in so many parts
            kind = "refused" if refusal.rule == served.engine.indivisible[1] else "weights"
            self._lose(candidate, kind, refusal.message)
            return
        except HybridcalcError as error:
            self._lose(candidate, _kind_of(error), error.message)
            return
        try:
            changes = list(settings(fitting.axes(model, args, question.allowed)))
        except HybridcalcError as error:
            self._lose(candidate, _kind_of(error), error.message)
            return
        refused: Lost | None = None
        opened = False
        for change in changes:
            changed = args.changed(**change.fields)
            try:
                size = fitting.request_bytes(model, changed, question.workload)
            except HybridcalcError as error:
                refused = refused or Lost(candidate, _kind_of(error), error.message)
                continue
            each = int(rest.low_gib * GIB // size) * shape.workers
            if each <= 0:
                lacks = float(size) / GIB - rest.low_gib
                reason = f"a request takes {float(size) / GIB:.2f} GiB, {rest.low_gib:.2f} are left for certain"
                refused = Lost(candidate, "memory", reason, lacks)
                continue
            least = self._key(candidate, each, worst(shape.risk, change.risk))
            if least is None:
                gpus = self._servers(candidate, each) * shape.ranks
                refused = Lost(candidate, "gpus", f"takes {gpus:,} GPUs or more", gpus=gpus)
                continue
            opened = True
            self._push(least, candidate, self._plan, change, changed, rest)
        if not opened and refused is not None:
            self.lost.append(refused)

    def _plan(self, candidate: Candidate, change: Change, args: Any, rest: Rest, key: Key) -> None:
        """One candidate with its settings, planned exactly."""
        if self._beaten(candidate, key):
            return
        group = candidate.group(self.question)
        best = self.best.get(group)
        self.planned += 1
        try:
            made = self.deployment(candidate, change, args, rest)
        except HybridcalcError as error:
            self._lose(candidate, _kind_of(error), error.message)
            return
        if made is None:
            self._lose(candidate, "memory", "at the low end of its memory it does not start")
        elif made.gpus > candidate.offer.most:
            reason = f"takes {made.gpus:,} GPUs"
            self.lost.append(Lost(candidate, "gpus", reason, gpus=made.gpus, nearest=made))
        elif best is None or made.key < best.key:
            self.best[group] = made

    def deployment(self, candidate: Candidate, change: Change, args: Any, rest: Rest) -> Deployment | None:
        """As many servers as serve what is wanted; None where none runs for certain. Raises HybridcalcError."""
        engine, work = candidate.served.engine, self.question.workload
        tuned = fitting_of(engine).tuned(candidate.model, args, rest, work)
        left = rest if rest.again is None else rest.again(tuned)
        plan = engine.plan(candidate.model, tuned, left, work)
        runs = certain(plan)
        if not runs:
            return None
        servers, cheapest = self._servers(candidate, runs), self.question.wanted is not None
        return Deployment(candidate, change, tuned, left, plan, servers, cheapest=cheapest)

    def _beaten(self, candidate: Candidate, key: Key) -> bool:
        """Whether what is known of the group is better than a candidate can be."""
        best = self.best.get(candidate.group(self.question))
        return best is not None and best.key < key

    def _lose(self, candidate: Candidate, kind: str, reason: str, lacks_gib: float = 0.0, gpus: int = 0) -> None:
        self.lost.append(Lost(candidate, kind, reason, lacks_gib, gpus))


def _other_release(candidate: Candidate, error: HybridcalcError) -> str:
    """The release that would take what this one refuses."""
    return f"; --engine {candidate.served.engine.name}@{error.release} takes it" if error.release else ""


def _has_kernels(candidate: Candidate) -> bool:
    """Whether a card can compute with a checkpoint, as far as that is known: NVFP4 has kernels for CUDA alone."""
    return not (candidate.offer.gpu.amd and quantized_by_name(candidate.model.asked) == "nvfp4")


def _kind_of(error: HybridcalcError) -> str:
    """The kind of loss that an error of the engine is."""
    if isinstance(error, NotModelled):
        return "unknown"
    return CONTEXT if isinstance(error, Refusal) and error.stage == CONTEXT else "refused"


def _least_request(question: Question, served: Served, model: Architecture, args: Any) -> float:
    """The least that a request takes with any of the settings. Raises where none of them starts."""
    fitting, sizes = fitting_of(served.engine), list[float]()
    refused: HybridcalcError | None = None
    for change in settings(fitting.axes(model, args, question.allowed)):
        try:
            size = fitting.request_bytes(model, args.changed(**change.fields), question.workload)
            sizes.append(max(1.0, float(size)))
        except HybridcalcError as error:
            refused = refused or error
    if not sizes and refused is not None:
        raise refused
    return min(sizes)


def measured(lost: Lost, question: Question) -> Lost:
    """What weights and a request lack of the memory that the engine leaves for them, at the low end of its estimates;
    anything else as it was lost.
    """
    if lost.kind not in ("weights", "memory"):
        return lost
    offer, served, model, shape = lost.candidate
    engine = served.engine
    try:
        args = arguments(served, shape, offer, question.workload)
        left = engine.memory(model, args, Memory(gpu=offer.gpu, weights=0.0)).low_gib
        weights = engine.weights(model, args).high / GIB
        request = _least_request(question, served, model, args) / GIB
    except HybridcalcError:
        return lost
    lacks = weights + request - left
    if lacks <= 0:
        return lost
    said = f"weights take {weights:.2f} GiB and a request {request:.2f} of the {left:.2f} there are for them"
    return lost._replace(reason=said, lacks_gib=lacks)
