"""Which deployments serve a workload most cheaply? Every combination is either planned exactly or shown to lose.

    requests of a worker <= memory left / least bytes of a request        servers >= ceil(wanted / requests of a server)

Candidates wait in the order of what they cost at least: a kind of GPU with a shape of server, first a single one where
the weights leave anything, then as many as the GPU's memory less the weights asks for, then by the memory that the
engine leaves, with each setting; the cheapest is planned. Once as many deployments are known as are asked for, and
every candidate costs more than the last of them, no other can be among them. What certainly runs is counted: where the
memory is an estimate, the requests at its low end.

That no bound is above what it bounds follows from what an engine says of fitting (`engines/shapes.py`). All requests of
a worker share the memory left, of which each takes `request_bytes` at least; and the memory left is no more than the
`leanest` arguments leave with those settings, nor than the GPU's less the weights. Weights and requests are known for a
candidate from another GPU only where the engine's arguments are equal on both. A pace bounds the requests of a worker
by the floor of a step with those settings (`fitting/pace.py`).
"""

import heapq
from collections.abc import Callable, Iterator
from functools import partial
from itertools import count
from math import ceil
from typing import Any, NamedTuple

from hybridcalc.architecture import Architecture
from hybridcalc.deployment import Memory, Rest
from hybridcalc.engines.better import Change
from hybridcalc.engines.checkpoints import quantized_by_name
from hybridcalc.engines.ranks import deciding
from hybridcalc.engines.shapes import CONTEXT, Shape, fitting_of, settings
from hybridcalc.errors import HybridcalcError, NotModelled, Refusal
from hybridcalc.fitting.candidates import (
    Candidate,
    Deployment,
    Group,
    Key,
    arguments,
    certain,
    on_card,
    ranked,
    shaped,
    worst,
)
from hybridcalc.fitting.pace import at_pace, unknown_rates
from hybridcalc.fitting.question import Question, Served
from hybridcalc.hardware import gpus_in_words
from hybridcalc.units import GIB

MOST_REQUESTS = 10**12
"""More than a server ever runs."""
ROUNDED = 1 + 2.0**-40
"""What the engines' arithmetic in floats may round up to, and far less than a request."""

KINDS = ("dearer", "gpus", "pace", "memory", "weights", "context", "refused", "unknown")
"""Why something is no answer, the nearest to one first: it costs more, takes more GPUs than there are, not even one
request keeps the pace, a request or the weights do not fit, requests are beyond the context, the engine refuses,
nothing is known of the model or of the GPU.
"""


class Lost(NamedTuple):
    """Why a candidate is no answer: ``kind`` is one of KINDS.

    ``lacks_gib``: what one GPU lacks, where it is memory; ``gpus``: how many it would take at least; ``rate``: tokens a
    second that one request gets at most, where that is not enough.
    """

    candidate: Candidate
    kind: str
    reason: str
    lacks_gib: float = 0.0
    gpus: int = 0
    nearest: Deployment | None = None
    rate: float = 0.0


class Opened(NamedTuple):
    """A setting of a candidate that is to be planned: its least key, its arguments, the most memory that they leave,
    and how many requests of a worker may keep the pace.
    """

    key: Key
    change: Change
    args: Any
    most: Rest
    limit: int | None


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
        self._cards: dict[Key, tuple[Any, Key]] = {}
        self._alike: dict[tuple[Any, ...], list[Any]] = {}
        self._taken: dict[tuple[Any, ...], HybridcalcError | None] = {}
        self._weights: dict[tuple[Any, ...], int | HybridcalcError] = {}
        self._least: dict[tuple[Any, ...], float | HybridcalcError] = {}

    def run(self) -> Found:
        """The deployments. What cannot be one is in ``lost``."""
        unrated = (
            {} if self.question.pace is None else {each.name: unknown_rates(each.gpu) for each in self.question.offers}
        )
        for candidate in self._candidates():
            self.considered += 1
            if reason := unrated.get(candidate.offer.name):
                self._lose(candidate, "unknown", reason)
                continue
            barred = self._barred(candidate)
            if barred is not None:
                self._lose(candidate, _kind_of(barred), barred.message + _other_release(candidate, barred))
            elif not _has_kernels(candidate):
                self._lose(candidate, "refused", "no kernels for NVFP4 on AMD GPUs are known")
            elif least := self._key(candidate, MOST_REQUESTS, candidate.shape.risk):
                self._push(least, candidate, self._weigh)
        while self._heap and not self._settled(self._heap[0][0]):
            step = heapq.heappop(self._heap)[-1]
            step()
            self.watch()
        ranked = sorted(self.best.values(), key=lambda each: (each.key, each.candidate.group(self.question)))
        return Found(tuple(ranked), tuple(self.lost), tuple(self._waiting()), self.planned, self.considered)

    def _waiting(self) -> Iterator[Lost]:
        """Candidates that cost more than what was found, whatever they come to."""
        for key, _, candidate, _ in self._heap:
            yield Lost(candidate, "dearer", f"takes {gpus_in_words(key[1])} or more", gpus=key[1])

    def _candidates(self) -> Iterator[Candidate]:
        question = self.question
        for offer in question.offers:
            for served in question.engines:
                fitting = fitting_of(served.engine)
                for model in fitting.checkpoints(question.models):
                    for ranks in question.ranks_of(offer):
                        for shape in fitting.shapes(model, ranks, question.most_tp):
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
        """Why a release does not take the model's class or requests so long, whatever the ranks; None where it does."""
        _, served, model, _ = candidate
        key = (served.engine.name, served.release, model.name, model.asked)
        if key not in self._taken:
            self._taken[key] = None
            work = self.question.workload
            try:
                fitting_of(served.engine).request_bytes(model, arguments(served, Shape({}, 1), None, work), work)
            except HybridcalcError as error:
                if isinstance(error, NotModelled) or error.release or _kind_of(error) == CONTEXT:
                    self._taken[key] = error
        return self._taken[key]

    def _weigh(self, candidate: Candidate, key: Key) -> None:
        """The first bound: a server at least, where the weights leave anything of the GPU's memory."""
        if self._beaten(candidate, key):
            return
        weights, memory = self._weights_of(candidate), candidate.offer.gpu.engine_gib
        if isinstance(weights, HybridcalcError):
            self._lose(candidate, _kind_of(weights), weights.message)
        elif weights >= memory * GIB:
            reason = f"weights take {weights / GIB:.2f} GiB of {memory:.2f}"
            self._lose(candidate, "weights", reason, weights / GIB - memory)
        else:
            self._narrow(candidate, weights)

    def _weights_of(self, candidate: Candidate) -> int | HybridcalcError:
        """The least bytes of the weights on a rank, on GPUs of the candidate's kind."""
        _, served, model, shape = candidate
        key = (*self._card(candidate)[1:], model.name, model.asked, tuple(shape.fields.items()))
        if key not in self._weights:
            try:
                args = shaped(self._cards[candidate.place][0], served, shape, self.question.workload)
                self._weights[key] = served.engine.weights(model, args, mended=False).low
            except HybridcalcError as error:
                self._weights[key] = error
        return self._weights[key]

    def _narrow(self, candidate: Candidate, weights: int) -> None:
        """The second bound: what is left by the least that a request takes."""
        offer, shape = candidate.offer, candidate.shape
        request = self._request_of(candidate)
        if isinstance(request, HybridcalcError):
            self._lose(candidate, _kind_of(request), request.message)
            return
        each = int((offer.gpu.engine_gib * GIB - weights) * ROUNDED // request)
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
            self._lose(candidate, "gpus", f"takes {gpus_in_words(gpus)} or more", gpus=gpus)
            return
        self._push(least, candidate, self._open)

    def _request_of(self, candidate: Candidate) -> float | HybridcalcError:
        """The least bytes of a request on a rank, on GPUs of the candidate's kind."""
        _, served, model, shape = candidate
        key = (*self._card(candidate), model.name, model.asked, tuple(shape.fields.items()))
        if key not in self._least:
            try:
                args = shaped(self._cards[candidate.place][0], served, shape, self.question.workload)
                self._least[key] = _least_request(self.question, served, model, args)
            except HybridcalcError as error:
                self._least[key] = error
        return self._least[key]

    def _card(self, candidate: Candidate) -> Key:
        """A number that GPUs share where the engine's arguments are equal on them; the engine, what decides weights."""
        place = candidate.place
        if place not in self._cards:
            args, alike = on_card(candidate.served, candidate.offer), self._alike.setdefault(place[1:], [])
            if args not in alike:
                alike.append(args)
            decided = deciding(candidate.served.engine, args)
            self._cards[place] = args, (alike.index(args), *place[1:], *decided)
        return self._cards[place][1]

    def _open(self, candidate: Candidate, key: Key) -> None:
        """The third bound, of each setting: the most memory that the engine leaves with it, and the pace."""
        question, (offer, served, model, shape) = self.question, candidate
        if self._beaten(candidate, key):
            return
        try:
            args = arguments(served, shape, offer, question.workload)
            served.engine.memory(model, args, Memory(gpu=offer.gpu))
            changes = list(_settings(question, served, model, args))
        except HybridcalcError as error:
            self._lose(candidate, _kind_of(error, served.engine.indivisible[1]), error.message)
            return
        lost, opened = list[Lost](), False
        for change in changes:
            found = self._least_of(candidate, change, args.changed(**change.fields))
            if isinstance(found, Lost):
                lost.append(found)
            else:
                opened = True
                self._push(found.key, candidate, self._plan, found)
        if not opened:
            self.lost.append(min(lost, key=lambda each: (KINDS.index(each.kind), each.gpus, each.lacks_gib)))

    def _least_of(self, candidate: Candidate, change: Change, args: Any) -> "Lost | Opened":
        """The least key of a candidate with a setting, or why it is no answer."""
        question, (offer, served, model, shape) = self.question, candidate
        fitting, limit = fitting_of(served.engine), None
        try:
            size = float(fitting.request_bytes(model, args, question.workload))
            most = served.engine.memory(model, fitting.leanest(args), Memory(gpu=offer.gpu))
        except HybridcalcError as error:
            return Lost(candidate, _kind_of(error), error.message)
        each = int(most.low_gib * GIB * ROUNDED // size)
        if each <= 0:
            reason = f"a request takes {size / GIB:.2f} GiB, {most.low_gib:.2f} are left for certain"
            return Lost(candidate, "memory", reason, size / GIB - most.low_gib)
        if question.pace is not None:
            try:
                kept = at_pace(served.engine, model, args, offer.gpu, question.context, question.pace)
            except HybridcalcError as error:
                return Lost(candidate, "unknown", error.message)
            if not kept.requests:
                return Lost(candidate, "pace", kept.reason, rate=kept.rate)
            limit = kept.requests
            each = min(each, limit)
        key = self._key(candidate, each * shape.workers, worst(shape.risk, change.risk))
        if key is None:
            gpus = self._servers(candidate, each * shape.workers) * shape.ranks
            return Lost(candidate, "gpus", f"takes {gpus_in_words(gpus)} or more", gpus=gpus)
        return Opened(key, change, args, most, limit)

    def _plan(self, candidate: Candidate, found: "Opened", key: Key) -> None:
        """One candidate with its settings, planned exactly."""
        if self._beaten(candidate, key):
            return
        group = candidate.group(self.question)
        best = self.best.get(group)
        self.planned += 1
        try:
            made = self.deployment(candidate, found)
        except HybridcalcError as error:
            self._lose(candidate, _kind_of(error), error.message)
            return
        if made is None:
            self._lose(candidate, "memory", "at the low end of its memory it does not start")
        elif made.gpus > candidate.offer.most:
            reason = f"takes {gpus_in_words(made.gpus)}"
            self.lost.append(Lost(candidate, "gpus", reason, gpus=made.gpus, nearest=made))
        elif best is None or made.key < best.key:
            self.best[group] = made

    def deployment(self, candidate: Candidate, found: "Opened") -> Deployment | None:
        """As many servers as serve what is wanted; None where none runs for certain. Raises HybridcalcError."""
        engine, work = candidate.served.engine, self.question.workload
        rest = found.most if found.most.again is None else found.most.again(found.args)
        tuned = fitting_of(engine).tuned(candidate.model, found.args, rest, work, found.limit)
        left = rest if rest.again is None else rest.again(tuned)
        plan = engine.plan(candidate.model, tuned, left, work)
        runs = certain(plan)
        if not runs:
            return None
        servers, cheapest = self._servers(candidate, runs), self.question.wanted is not None
        return Deployment(candidate, found.change, tuned, left, plan, servers, cheapest=cheapest)

    def of(self, candidate: Candidate, change: Change) -> Deployment | None:
        """A candidate with a setting; None where it is no answer."""
        offer, served, _, shape = candidate
        try:
            args = arguments(served, shape, offer, self.question.workload).changed(**change.fields)
            found = self._least_of(candidate, change, args)
            return None if isinstance(found, Lost) else self.deployment(candidate, found)
        except HybridcalcError:
            return None

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


def _kind_of(error: HybridcalcError, indivisible: str | None = None) -> str:
    """The kind of loss that an error of the engine is; where the memory is asked, a refusal that is not of ranks
    (``indivisible``: its rule) is of weights that do not fit.
    """
    if isinstance(error, NotModelled):
        return "unknown"
    if isinstance(error, Refusal) and error.stage == CONTEXT:
        return CONTEXT
    return "weights" if isinstance(error, Refusal) and indivisible not in (None, error.rule) else "refused"


def _settings(question: Question, served: Served, model: Architecture, args: Any) -> Iterator[Change]:
    """The settings of a server that are tried."""
    for change in settings(fitting_of(served.engine).axes(model, args, question.allowed)):
        if question.variables or not change.fields.get("env"):
            yield change


def _least_request(question: Question, served: Served, model: Architecture, args: Any) -> float:
    """The least that a request takes with any of the settings. Raises where none of them starts."""
    fitting, sizes = fitting_of(served.engine), list[float]()
    refused: HybridcalcError | None = None
    for change in _settings(question, served, model, args):
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
