"""Which flags would serve a workload better, and by how much? The search that engines share.

A candidate is a change of arguments, planned exactly. It is worth saying when more requests of the workload run at
once; so is what several of them come to together, and a little more of the memory. An engine has the candidates, and
`Serve` says what arguments come to.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple, Protocol

from hybridcalc.deployment import Rest, Workload
from hybridcalc.findings import CARE, RISKS, Suggestion

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
    flags = sorted((change.flags for change in taken), key=lambda flags: flags.startswith("-"))  # variables in front
    risk = max((change.risk for change in taken), key=RISKS.index)
    why = f"{len(taken)} changes together, each of which helps alone"
    return [suggestion(plan, " ".join(flags), best, why, risk)]


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
