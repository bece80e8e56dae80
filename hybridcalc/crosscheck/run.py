"""``verify`` from end to end: every rank of every server, on one process or on torchrun's, and what they came to."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from hybridcalc.crosscheck.backend import torch
from hybridcalc.crosscheck.behaviour import behaviour_checks
from hybridcalc.crosscheck.devices import Check, find_device, meter
from hybridcalc.crosscheck.engine_package import EngineComparison, compare_with_engine
from hybridcalc.crosscheck.plan_figures import PlanFigures, Stated, held_figures
from hybridcalc.crosscheck.ranks import Process, processes
from hybridcalc.crosscheck.subject import Rank, Skipped, Subject, room_of
from hybridcalc.crosscheck.verification import NoMemory, Progress, Row, Shard, verify_shard
from hybridcalc.errors import HybridcalcError

Watch = Callable[[Subject, int], Progress]
"""Told of each server and the bytes to come; gives what is told of each tensor."""


class RankResult(NamedTuple):
    """What one rank came to."""

    rank: Rank
    shard: Shard

    def to_dict(self) -> dict[str, Any]:
        """Plain data, without the rows."""
        return {
            **self.rank._asdict(),
            "scale": float(self.shard.scale),
            "totals": self.shard.totals,
            "memory_stats": self.shard.memory_stats,
            "checks": [check.to_dict() for check in self.shard.checks],
            "ok": self.shard.ok,
        }


class Verified(NamedTuple):
    """One server: its ranks in order, checks beside the tensors, and the comparison with an installed engine."""

    subject: Subject
    device: str
    processes: int
    ranks: tuple[RankResult, ...]
    stated: tuple[Stated, ...]
    behaviour: tuple[Check, ...]
    engine: EngineComparison | None

    @property
    def shards(self) -> list[Shard]:
        """One shard of each kind: the first of every stage, and any other that is not like it."""
        found: list[Shard] = []
        for result in self.ranks:
            if not any(_alike(result.shard, shard) for shard in found):
                found.append(result.shard)
        return found

    @property
    def ok(self) -> bool:
        """Whether every byte agrees and every check holds."""
        checks: Sequence[Any] = (*self.stated, *self.behaviour)
        return (
            all(result.shard.ok for result in self.ranks)
            and all(check.ok for check in checks)
            and (self.engine is None or self.engine.ok)
        )

    def to_dict(self) -> dict[str, Any]:
        """The keys of ``verify --json``."""
        first = self.ranks[0].shard
        return {
            "engine": self.subject.engine,
            "engine_version": self.subject.engine_version,
            "model": self.subject.model.name,
            "device": self.device,
            "torch": torch.__version__,
            "processes": self.processes,
            "scale": float(first.scale),
            "sizes": first.sizes._asdict(),
            "full_sizes": first.full._asdict(),
            "rows": [{"stage": shard.stage, **row.to_dict()} for shard in self.shards for row in shard.rows],
            "totals": first.totals | {"ranks": len(self.ranks), "all_ranks_full_bytes": self.all_bytes},
            "memory_stats": first.memory_stats,
            "checks": [check.to_dict() for check in first.checks],
            "plan": [figure.to_dict() for figure in self.stated],
            "behaviour": [check.to_dict() for check in self.behaviour],
            "ranks": [result.to_dict() for result in self.ranks],
            "engine_package": None if self.engine is None else self.engine.to_dict(),
            "notes": list(self.subject.notes),
            "ok": self.ok,
        }

    @property
    def all_bytes(self) -> int:
        """Bytes at full scale over the ranks that were verified."""
        return sum(result.shard.totals["full_bytes"] for result in self.ranks)


class VerifyAnswer(NamedTuple):
    """All servers that were verified, and presets that were passed over."""

    servers: tuple[Verified, ...]
    skipped: tuple[Skipped, ...]
    many: bool

    @property
    def ok(self) -> bool:
        """Whether every server that was verified agrees, and one was."""
        return bool(self.servers) and all(server.ok for server in self.servers)

    @property
    def exit_code(self) -> int:
        """1 where a byte differs; 2 where memory was too little for a preset, or nothing was verified; else 0."""
        if any(not server.ok for server in self.servers):
            return 1
        return 2 if not self.servers or any(skipped.kind == "memory" for skipped in self.skipped) else 0

    def to_dict(self) -> dict[str, Any]:
        """The document: of one server, or a list of them under "models"."""
        if not self.many:
            return self.servers[0].to_dict()
        return {
            "models": [server.to_dict() for server in self.servers],
            "skipped": [skipped._asdict() for skipped in self.skipped],
            "ok": self.ok,
        }


def run_verification(
    subjects: Iterable[Subject | Skipped],
    *,
    device: str | None,
    scale: str,
    limit: int | None,
    many: bool = False,
    engine_package: bool = False,
    watch: Watch | None = None,
) -> VerifyAnswer | None:
    """Verify every server. None on a process that only serves another's answer.

    Raises NoMemory (of one server; among many it is passed over), InputError and Refusal; whatever was allocated is
    free again then.
    """
    found: list[Verified] = []
    skipped: list[Skipped] = []
    where = find_device(device)
    with processes(where) as process:
        for subject in subjects:
            if isinstance(subject, Skipped):
                skipped.append(subject)
                continue
            try:
                verified = _verify(subject, where, process, scale, limit, engine_package, watch)
            except NoMemory as error:
                if not many:
                    raise
                skipped.append(Skipped(subject.model.name, error.message, "memory"))
                continue
            if verified is not None:
                found.append(verified)
        if process.rank:
            return None
    return VerifyAnswer(tuple(found), tuple(skipped), many)


def _verify(
    subject: Subject,
    device: str,
    process: Process,
    scale: str,
    limit: int | None,
    engine_package: bool,
    watch: Watch | None,
) -> Verified | None:
    ranks = subject.ranks if process.world > 1 else _one_a_stage(subject)
    mine: list[RankResult] | HybridcalcError
    try:
        mine = [_measured(subject, rank, device, scale, limit, process.sharers, watch) for rank in process.mine(ranks)]
    except HybridcalcError as error:
        if process.world == 1:
            raise
        mine = error
    gathered = process.gather(mine)
    failed = next((result for result in gathered if isinstance(result, HybridcalcError)), None)
    if failed is not None:
        raise failed
    if process.rank:
        return None
    results = sorted((result for part in gathered for result in part), key=lambda result: result.rank.rank)
    stages = {result.rank.stage: result.shard for result in reversed(results)}
    return Verified(
        subject=subject,
        device=device,
        processes=process.world,
        ranks=tuple(results),
        stated=() if subject.plan is None else _held(subject.plan, subject.engine, stages),
        behaviour=tuple(behaviour_checks(subject.model)),
        engine=compare_with_engine(subject) if engine_package else None,
    )


def _held(plan: PlanFigures, engine: str, stages: Mapping[int, Shard]) -> tuple[Stated, ...]:
    return held_figures(plan, room_of(engine).shown(plan.rules, stages))


def _measured(
    subject: Subject, rank: Rank, device: str, scale: str, limit: int | None, sharers: int, watch: Watch | None
) -> RankResult:
    build = subject.stages[rank.stage]
    shard = verify_shard(
        build,
        subject.full,
        subject.page,
        meter(device),
        scale=scale,
        limit=limit,
        sharers=sharers,
        stage=rank.stage,
        watch=None if watch is None else partial(watch, subject),
    )
    return RankResult(rank, shard)


def _one_a_stage(subject: Subject) -> list[Rank]:
    return [rank for rank in subject.ranks if rank.tp_rank == 0]


def _alike(one: Shard, other: Shard) -> bool:
    """Whether two shards hold the same tensors and came to the same; where the allocator put them may differ."""

    def key(row: Row) -> tuple[Any, ...]:
        return (row.tensor, row.storage_bytes, row.full_bytes, row.ok)

    return one.sizes == other.sizes and [key(row) for row in one.rows] == [key(row) for row in other.rows]
