"""What is to be verified: the tensors of each rank of a server, at counts that a plan, a memory or the flags give.

A `Subject` is the same for every engine: a builder of tensors for each pipeline stage, the counts at full scale, and
the ranks that share each stage. Ranks of a stage are alike: attention and state are cut evenly, or refused.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol, cast

from hybridcalc.architecture import Architecture
from hybridcalc.crosscheck.plan_figures import PlanFigures
from hybridcalc.crosscheck.tensors import Builder, Sizes
from hybridcalc.deployment import Rest
from hybridcalc.engines import ENGINES, offered

ASSUMED_REQUESTS, ASSUMED_TOKENS = 64, 4096
"""Requests, and tokens of each, where neither a memory nor the flags say how large the pools are."""
ENDLESS_GIB = 2.0**30
"""A memory that never limits what is stated."""


class Rank(NamedTuple):
    """One process of the server: its number, pipeline stage, and place in the stage."""

    rank: int
    stage: int
    tp_rank: int
    dp_rank: int


class Skipped(NamedTuple):
    """A preset that is passed over, and why: ``kind`` is "no state", "refused" or "memory"."""

    model: str
    reason: str
    kind: str


class Subject(NamedTuple):
    """A server to verify. ``plan`` has the figures that a saved plan states, to be held against it."""

    engine: str
    engine_version: str
    model: Architecture
    args: Any
    stages: tuple[Builder, ...]
    full: Sizes
    page: int
    ranks: tuple[Rank, ...]
    plan: PlanFigures | None
    notes: tuple[str, ...]


class Room(Protocol):
    """What an engine has in this room: a module here, under the name of the room in ENGINES."""

    COUNTS: tuple[str, ...]
    """The counts in the document of a plan that size its server."""

    def subject(
        self,
        model: Architecture,
        args: Any,
        rest: Rest | None,
        *,
        plan: PlanFigures | None = None,
        counts: tuple[int, ...] | None = None,
        notes: tuple[str, ...] = (),
    ) -> Subject:
        """A server: with ``rest`` as its start-up sizes it, with ``counts`` as a plan says, else as the flags do, or
        for 64 requests. Raises Refusal for what the engine does not start with.
        """

    def stated(self, document: Mapping[str, Any], ready: Any, where: str) -> PlanFigures:
        """The figures of a plan. Raises InputError for one that is absent or of another kind, and Refusal where nothing
        starts on the memory it states.
        """

    def shown(self, rules: Mapping[str, Any], shards: Mapping[int, Any]) -> dict[str, Any]:
        """What the tensors of each stage show of a plan's figures."""

    def more_flags(self, model: Architecture, words: Sequence[str]) -> list[str]:
        """Flags without which the engine starts no such model, where ``words`` do not set them."""

    def package_rows(self, subject: Subject, what: str) -> Iterator[Any]:
        """What the installed engine makes of the subject, and what is made of it here."""


def room_of(engine: str) -> Room:
    """What an engine has in this room. Raises InputError where it has nothing."""
    return cast(Room, offered(ENGINES.room(engine, "crosscheck"), "verify", ENGINES.rows[engine].title))
