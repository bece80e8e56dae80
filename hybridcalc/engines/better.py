"""Which flags would serve the requests better, and which let as many run as are wanted?

A candidate is a change of arguments, planned exactly. It is worth saying when more requests of the workload run at
once; so is what several of them come to together, and a little more of the memory. Where a number of requests is wanted
(-C), the set of changes that costs least and lets them run is looked for as well. An engine has the candidates, and
`Serve` says what arguments come to.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import combinations
from typing import Any, NamedTuple, Protocol

from hybridcalc.deployment import Rest, Workload
from hybridcalc.errors import Write
from hybridcalc.findings import CARE, RISKS, SAFE, Suggestion, costs, least_costly, suggested

MOST = 8
STEP = 0.02
"""How far a share of the memory is raised in one go."""


class Change(NamedTuple):
    """A candidate: the flags as they are typed, the fields they set, why one would, and what it may cost."""

    flags: str
    fields: Mapping[str, Any]
    why: str
    risk: str = "none"


class Served(NamedTuple):
    """Requests of the workload that run at once, and the flags that this takes beside those of a change."""

    requests: int
    flags: str = ""


class Serve(Protocol):
    """What arguments come to with so much more memory than the plan has; None where the engine refuses them."""

    def __call__(self, args: Any, *, more_gib: float = 0.0) -> Served | None:
        """Plan them."""


class Planned(Protocol):
    """A plan that is searched from."""

    args: Any
    rest: Rest
    workload: Workload

    @property
    def workers(self) -> int:
        """Workers, or replicas, of the whole deployment."""

    @property
    def requests(self) -> int:
        """Requests of the workload that run at once today, on all of them."""


def suggestion(plan: Planned, flags: str, served: Served, why: str, risk: str = "none") -> Suggestion:
    """One suggestion: what to set, from how many requests to how many, why, and what it may cost."""
    flags, after = f"{flags} {served.flags}".strip(), served.requests * plan.workers
    return Suggestion(flags, plan.requests, after, plan.workload.describe(), why + CARE.get(risk, ""), risk)


def all_at_once(plan: Planned, changes: Sequence[Change], served: Served, why: str) -> Suggestion:
    """Several changes as one suggestion, variables in front; it costs what each of them does."""
    flags = " ".join(sorted((change.flags for change in changes), key=lambda flags: flags.startswith("-")))
    risks = [change.risk for change in changes]
    found = suggestion(plan, flags, served, why, max(risks, key=RISKS.index))
    return found._replace(cost=costs(risks))


def most_gain(found: Iterable[Suggestion]) -> list[Suggestion]:
    """Those worth reading, the most gain first."""
    return sorted(found, key=lambda suggestion: -suggestion.after)[:MOST]


def better(plan: Planned, changes: Iterable[Change], serve: Serve, best: int) -> list[Suggestion]:
    """The changes that admit more than ``best`` requests, each alone; and all together that help on top of another."""
    found, helpful = list[Suggestion](), list[tuple[int, Change]]()
    for change in changes:
        served = serve(plan.args.changed(**change.fields))
        if served is not None and served.requests > best:
            found.append(suggestion(plan, change.flags, served, change.why, change.risk))
            helpful.append((served.requests, change))
    helpful.sort(key=lambda pair: -pair[0])
    return found + _together(plan, [change for _, change in helpful], serve)


def _together(plan: Planned, changes: Iterable[Change], serve: Serve) -> list[Suggestion]:
    """As many of the changes as help on top of one another, the strongest first."""
    taken, args, best = list[Change](), plan.args, Served(0)
    for change in changes:
        more = args.changed(**change.fields)
        served = serve(more)
        if served is not None and served.requests > best.requests:
            taken, args, best = [*taken, change], more, served
    if len(taken) < 2:
        return []
    return [all_at_once(plan, taken, best, f"{len(taken)} changes together, each of which helps alone")]


def reaching(plan: Planned, changes: Iterable[Change], serve: Serve, found: Sequence[Suggestion]) -> list[Suggestion]:
    """The set of changes that costs least of those that let as many requests run as are wanted; nothing where as many
    run today, where no set does, and where one that is ``found`` already costs no more.
    """
    wanted, candidates = plan.workload.wanted or 0, tuple(changes)
    if plan.requests >= wanted:
        return []
    known = least_costly(suggested(found), wanted)
    sets = [some for many in range(1, len(candidates) + 1) for some in combinations(candidates, many)]
    for some in sorted(sets, key=_cost):
        if known is not None and known.cost <= _cost(some):
            break
        args = plan.args
        for change in some:
            args = args.changed(**change.fields)
        served = serve(args)
        if served is not None and served.requests * plan.workers >= wanted:
            return [all_at_once(plan, some, served, "as many run as are wanted")]
    return []


def _cost(changes: Iterable[Change]) -> tuple[int, ...]:
    return costs(change.risk for change in changes)


def way_to(plan: Any, wanted: int, otherwise: str) -> str:
    """What to write so that ``wanted`` requests run: the suggestion that costs least, with GPUs that are given and idle
    before one that is bold; else more GPUs, where the plan knows what they hold (``wider``); else ``otherwise``.
    """
    found = least_costly(suggested(plan.suggestions), wanted)
    if found is not None and found.label == SAFE:
        return Write.flags(found.flags)
    wider: Callable[..., str] = plan.wider
    if idle := wider(wanted, within=True):
        return idle
    if found is not None:
        care = CARE["accuracy"] if found.cost[0] else ""
        return Write.flags(found.flags, care)
    return wider(wanted, within=False) or otherwise


def larger_share(
    plan: Planned,
    field: str,
    share: float | None,
    largest: float,
    serve: Serve,
    best: int,
    why: Callable[[float, float], str],
) -> list[Suggestion]:
    """A little more of the memory than ``share``, up to ``largest``, where it is known what that is taken of.

    ``field`` sets it; ``why`` says it of the larger share and of the memory, GiB.
    """
    whole = plan.rest.before_gib
    if whole is None or share is None or share + STEP > largest:
        return []
    larger = round(share + STEP, 4)
    served = serve(plan.args.changed(**{field: larger}), more_gib=(larger - share) * whole)
    if served is None or served.requests <= best:
        return []
    return [suggestion(plan, f"--{field.replace('_', '-')} {larger:g}", served, why(larger, whole), "memory")]
