"""A candidate of the search, and what it is once it is planned: a deployment with its launch line."""

from functools import cached_property
from typing import Any, NamedTuple

from hybridcalc.architecture import Architecture
from hybridcalc.deployment import Rest, Workload, requests_text
from hybridcalc.engines.answer import Answer
from hybridcalc.engines.better import Change
from hybridcalc.engines.document import launch_of
from hybridcalc.engines.shapes import Shape, fitting_of, nodes_of
from hybridcalc.findings import RISKS
from hybridcalc.fitting.question import Offer, Question, Served

Key = tuple[Any, ...]
Group = tuple[str, ...]


class Candidate(NamedTuple):
    """A kind of GPU, an engine, a checkpoint and a shape of server."""

    offer: Offer
    served: Served
    model: Architecture
    shape: Shape

    @property
    def place(self) -> Key:
        """The kind of GPU, the engine and its release."""
        return self.offer.name, self.served.engine.name, self.served.release

    def group(self, question: Question) -> Group:
        """Of which the best deployment is shown: hardware and engine, or a checkpoint where any may be it."""
        if question.wanted is None:
            return self.model.name, self.model.asked
        return self.offer.name, self.served.engine.name, self.served.version


class Deployment:
    """Servers that serve the workload: the candidate, its settings, the arguments and the plan of all of them."""

    def __init__(
        self,
        candidate: Candidate,
        change: Change,
        args: Any,
        rest: Rest,
        plan: Answer,
        servers: int,
        *,
        cheapest: bool = True,
    ) -> None:
        self.candidate, self.cheapest = candidate, cheapest
        self.offer, self.served, self.model, self.shape = candidate
        self.change, self.rest, self.servers = change, rest, servers
        fields, self.launches = self.shape.times(servers, fitting_of(self.engine).copies)
        self.args = args.changed(**fields)
        self.one = plan

    def __repr__(self) -> str:
        gpus = f"{self.gpus} x {self.offer.name}"
        return f"<{gpus}, {self.engine.title}, {self.shape.ranks} a server: {requests_text(self.requests)}>"

    @property
    def engine(self) -> Any:
        """The engine that serves."""
        return self.served.engine

    @cached_property
    def plan(self) -> Answer:
        """The plan of the launch line; where it is started several times, of its part of the requests."""
        if self.servers == 1:
            return self.one
        work = self.one.workload
        if self.launches > 1:
            work = work._replace(concurrency=None, mix=True)
        found: Answer = self.engine.plan(self.model, self.args, self.rest, work)
        return found

    @property
    def gpus(self) -> int:
        """GPUs in all."""
        return self.shape.ranks * self.servers

    @property
    def nodes(self) -> int:
        """Nodes that one server stands on."""
        return nodes_of(self.engine, self.one.args, self.shape.ranks, self.offer.gpu.node)

    @property
    def spread(self) -> str:
        """How it stands on nodes of such GPUs: where one server takes more than a node holds, what each node's launch
        adds; where copies of one launch do, that each node starts its share. Empty where one node holds a launch.
        """
        nodes, node = self.nodes, self.offer.gpu.node
        if nodes > 1:
            added = fitting_of(self.engine).nodes.text(nodes)
            return f"{nodes} of {self.shape.ranks // nodes} GPUs; node N adds {added}"
        if self.shape.copied and self.gpus > node:
            return f"{node} GPUs each: {self.servers} replicas, on each node the line with its share of them"
        return ""

    @property
    def certain(self) -> int:
        """Requests that run at once whatever the memory is in the bounds of its estimate."""
        return certain(self.one) * self.servers

    @property
    def requests(self) -> int:
        """Requests that run at once on the likely memory."""
        return self.one.requests * self.servers

    @property
    def cost(self) -> float:
        """The price of an hour, or GPUs."""
        return self.offer.cost(self.gpus)

    @property
    def launch(self) -> dict[str, Any]:
        """The whole launch line, started ``launches`` times."""
        return launch_of(self.engine, self.model, self.args.given())

    def started(self, *, one: bool) -> tuple[dict[str, Any], int]:
        """The launch line of ``one`` server, else of as many as a launch holds and a node, and how often it is started
        for all of them to run.
        """
        fits = 1 if one or not self.shape.copied else max(1, self.offer.gpu.node // self.shape.ranks)
        copies = next(count for count in range(min(fits, self.servers), 0, -1) if not self.servers % count)
        fields, _ = self.shape.times(copies, fitting_of(self.engine).copies)
        return launch_of(self.engine, self.model, self.one.args.changed(**fields).given()), self.servers // copies

    @property
    def key(self) -> Key:
        """What deployments are ranked by: cost, GPUs, what is given up, requests, and as few launches as do; those of
        hardware that is there by requests first.
        """
        simple = (-self.requests, self.launches, len(self.change.fields), self.shape.ranks)
        return (*ranked(self.cost, self.gpus, self.risk, self.certain, cheapest=self.cheapest), *simple)

    @property
    def risk(self) -> str:
        """What its settings and its ranks may cost."""
        return worst(self.shape.risk, self.change.risk)


def certain(plan: Answer) -> int:
    """Requests of a plan at the low end of its memory."""
    least: int = getattr(plan, "requests_at_ends", (plan.requests,))[0]
    return min(least, plan.requests)


def worst(*risks: str) -> str:
    """The gravest of some risks."""
    return max(risks, key=RISKS.index)


def ranked(cost: float, gpus: int, risk: str, requests: int, *, cheapest: bool) -> Key:
    """The head of a key; no deployment has a lower one than its bounds."""
    given_up = RISKS.index(risk)
    return (cost, gpus, given_up, -requests) if cheapest else (-requests, given_up, gpus, cost)


def on_card(served: Served, offer: Offer | None) -> Any:
    """An engine's arguments on a GPU, or on none that is named."""
    engine, card = served.engine, None if offer is None else offer.gpu
    return engine.with_options(engine.arguments(), {"gpu": card, "engine_version": served.release})


def arguments(served: Served, shape: Shape, offer: Offer | None, workload: Workload) -> Any:
    """An engine's arguments of a shape on a GPU, or on none that is named."""
    return shaped(on_card(served, offer), served, shape, workload)


def shaped(card: Any, served: Served, shape: Shape, workload: Workload) -> Any:
    """The same of arguments on a GPU."""
    return fitting_of(served.engine).started(card.changed(**shape.fields), workload)
