"""What may be varied of a server to make a model fit hardware? What an engine says about that (`Fitting`).

A `Shape` is how one server is laid out on GPUs; settings are one `Change` of each axis; `tuned` sets what then follows
(a ratio of pools, a number of sequences). An engine has its `FITTING` in a module `fit` of its folder; the search
itself (hybridcalc/fitting) knows none of them.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from fractions import Fraction
from itertools import product
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from hybridcalc.architecture.weights import widths_of
from hybridcalc.engines.better import Change
from hybridcalc.errors import HybridcalcError
from hybridcalc.findings import RISKS

if TYPE_CHECKING:
    from hybridcalc.architecture import Architecture
    from hybridcalc.deployment import Rest, Workload
    from hybridcalc.engines.engine import Engine

AS_IT_IS = Change("", {}, "")
"""The value of an axis that sets nothing."""
REUSE, ACCURACY = "reuse", "accuracy"
"""What may be given up where it is allowed: cached prefixes; exactness of the answers."""
CONTEXT = "context"
"""Stage of a refusal of requests that are longer than the model's context."""
STAGES, MANY = (1, 2, 4), 16
"""Pipeline stages that are tried, of servers of so many GPUs at most; beyond these 3 stages as well."""
Axes = tuple[tuple[Change, ...], ...]


def stages_of(ranks: int) -> tuple[int, ...]:
    """Pipeline stages that are tried of a server of so many GPUs."""
    return STAGES if ranks <= MANY else (*STAGES, 3)


class Shape(NamedTuple):
    """One server on GPUs: the arguments that share a model out, GPUs it takes, workers in it that admit requests.

    ``copied``: replicas of it are an argument of the same launch (`Fitting.copies`) and change nothing in each.
    """

    fields: Mapping[str, Any]
    ranks: int
    workers: int = 1
    copied: bool = True
    risk: str = "none"

    def times(self, servers: int, copies: str) -> tuple[dict[str, Any], int]:
        """The arguments of so many servers, and how often their launch is started."""
        return ({copies: servers}, 1) if self.copied else ({}, servers)


class Nodes(NamedTuple):
    """How the launches of one server on several nodes find each other: the ``flags`` of each, {nodes} being their
    number, {rank} its own from 0 and {head} the address of node 0; and what all ``beyond`` that one add.

    ``outer``: the argument of the outermost ranks, of which a node holds whole ones or shares one with whole nodes.
    """

    flags: tuple[str, ...] = ()
    beyond: tuple[str, ...] = ()
    outer: str = ""

    def words(self, nodes: int, rank: str, head: str) -> tuple[str, ...]:
        """The flags of a node."""
        return tuple(flag.format(nodes=nodes, rank=rank, head=head) for flag in self.flags)

    def text(self, nodes: int) -> str:
        """What the launch of node N adds, in words."""
        if not self.flags:
            return "--rpc with the others, each of which runs rpc-server"
        return "; beyond node 0 ".join(filter(None, (" ".join(self.words(nodes, "N", "HEAD")), " ".join(self.beyond))))


class Fitting(NamedTuple):
    """What an engine says of fitting.

    ``shapes``: every layout on so many GPUs with so many tensor-parallel ranks at most. ``axes``: the settings to try,
    of a server, with what may be given up. ``started``: arguments that hold the workload. ``tuned``: those arguments
    with what their pools need to run the most requests on the least that the memory may be, on each worker so many at
    most where a number is given; raises Refusal where none runs. ``request_bytes``: no request takes less on a rank,
    tuned or not. ``leanest``: however those arguments are tuned, they leave no more memory than these. ``copies``: the
    argument that says replicas. ``checkpoints``: those that the engine serves, of the ones known. ``nodes``: how
    launches on several nodes find each other.
    """

    shapes: "Callable[[Architecture, int, int], Iterator[Shape]]"
    axes: "Callable[[Architecture, Any, frozenset[str]], Axes]"
    started: "Callable[[Any, Workload], Any]"
    tuned: "Callable[[Architecture, Any, Rest, Workload, int | None], Any]"
    request_bytes: "Callable[[Architecture, Any, Workload], Fraction]"
    leanest: "Callable[[Any], Any]"
    copies: str
    nodes: Nodes
    checkpoints: "Callable[[Iterable[Architecture]], Iterable[Architecture]]" = tuple


def fitting_of(engine: "Engine") -> Fitting:
    """What an engine says of fitting. Raises InputError where it is not fitted."""
    return cast(Fitting, engine.offered("fit", "fit").FITTING)


def nodes_of(engine: "Engine", args: Any, ranks: int, node: int) -> int:
    """The fewest nodes of so many GPUs on which a server's ranks stand in even parts; 1 where one holds them."""
    outer = getattr(args, fitting_of(engine).nodes.outer, 1)
    even = (count for count in range(1, ranks + 1) if not ranks % count and not (outer % count and count % outer))
    return next(count for count in even if ranks <= count * node)


def has_experts(model: "Architecture") -> bool:
    """Whether a model has routed experts, as far as that is known."""
    try:
        sizes = widths_of(model)
    except HybridcalcError:
        return False
    return sizes is not None and bool(sizes.experts)


def settings(axes: Axes) -> Iterator[Change]:
    """One value of every axis, in all combinations, those that set nothing first."""
    for chosen in product(*axes):
        fields: dict[str, Any] = {}
        for change in chosen:
            env = {**fields.get("env", {}), **change.fields.get("env", {})}
            fields |= {**change.fields, **({"env": env} if env else {})}
        named = [change for change in chosen if change.flags]
        flags = sorted((change.flags for change in named), key=lambda flags: flags.startswith("-"))
        risk = max((change.risk for change in chosen), key=RISKS.index, default="none")
        yield Change(" ".join(flags), fields, "; ".join(change.why for change in named), risk)
