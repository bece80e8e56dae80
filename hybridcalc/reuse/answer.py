"""What is the answer of ``hybridcalc reuse``? What the cache did, the knee, other settings, the split, their weight.

    token hit rate   hit tokens / prompt tokens          hit rate   requests with a hit / requests
    recomputed       prompt tokens - hit tokens + replayed tokens

Every figure is of the requests after the warm-up rounds. Units: slots, tokens, bytes on one rank.
"""

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from hybridcalc.architecture import Architecture
from hybridcalc.engines.engine import Engine
from hybridcalc.errors import HybridcalcError, InputError
from hybridcalc.findings import Step
from hybridcalc.hardware import rates_of
from hybridcalc.reuse.knee import SHARE, Bar, HostNeed, Knee, find_host, find_knee, find_kv, kv_steps
from hybridcalc.reuse.machines import Machines
from hybridcalc.reuse.policy import MOST_STATES, NO_CAP
from hybridcalc.reuse.requests import Within, Workload
from hybridcalc.reuse.server_slots import NO_LIMIT, SlotServer
from hybridcalc.reuse.settings import Cost, Settings, Variant
from hybridcalc.reuse.simulation import Outcome, Setup, simulate
from hybridcalc.reuse.what_if import Row, Split, best_split, compare
from hybridcalc.speed.prompt import Recomputed, recompute_of


class Priced(NamedTuple):
    """The model that slots are priced for, and what settings weigh for it on one rank (memory.py)."""

    model: str
    weigh: Callable[[Settings], Cost]
    bounded: bool = False
    """Whether the memory is known."""
    recompute: Callable[[int, int, int], Recomputed] | None = None
    """What tokens cost, after so many cached ones, in so many requests; None where no GPU's rates are known."""
    link_gbs: float | None = None
    """GB/s between the host and a GPU, one way."""
    share: Callable[[Settings], tuple[str, int, int] | None] | None = None
    """Flags that split the memory for the slots of settings, and the pools they make."""
    machines: Callable[[int, int], Machines | None] | None = None
    """GPUs that hold so many slots and KV tokens."""

    def cost(self, settings: Settings) -> Cost | None:
        """What ``settings`` weigh; None where the engine does not start with them."""
        try:
            return self.weigh(settings)
        except HybridcalcError:
            return None

    def timed(self, served: Engine, model: Architecture, args: Any, gpu: str) -> "Priced":
        """The same with what tokens and transfers take on a GPU, as far as its rates are known."""
        found = self
        with suppress(InputError):
            rates = rates_of(gpu)
            if served.offers("weights"):

                def recompute(tokens: int, cached: int, requests: int) -> Recomputed:
                    return recompute_of(served, model, args, rates, tokens=tokens, cached=cached, requests=requests)

                found = found._replace(recompute=recompute)
            found = found._replace(link_gbs=rates.link_gbs("pcie"))
        return found


STATE, KV, BOTH, BLOCKS = "state", "kv", "both", "blocks"
SLOTS, CHECKPOINTS = "slots", "checkpoints"
HOST_STATE, HOST_KV, HOST = "host_state", "host_kv", "host"
"""Which pool lost what the workload would have reused: more of it alone would have kept it, or only both; with a host
tier behind, which of the host's; of llama-server its slots, its checkpoints or its host cache.
"""


class Transfers(NamedTuple):
    """Bytes between one GPU and its host, and the least time they take, all of them one after another."""

    stored_bytes: int
    loaded_bytes: int
    floor_seconds: float | None


class Reuse(NamedTuple):
    """The answer. ``knee``, ``rows`` and ``splits`` are None where they were not asked for.

    ``kv_needed`` are the KV tokens that the knee wants, ``lost_to`` is which pool lost the rest, None where nothing
    worth it is lost. ``given``: the slots were; else they are the engine's own share of the memory, or the knee.
    ``within``: what the context served and refused. ``workers`` have such a cache each; figures are of one.
    """

    workload: Workload
    settings: Settings
    setup: Setup
    warmup_rounds: int
    outcome: Outcome
    knee: Knee | None
    rows: tuple[Row, ...] | None
    splits: tuple[Split, ...] | None
    priced: Priced | None
    notes: tuple[str, ...]
    kv_needed: int | None = None
    lost_to: str | None = None
    given: bool = True
    host_needed: HostNeed | None = None
    share: tuple[str, int, int] | None = None
    machines: Machines | None = None
    within: Within | None = None
    workers: int = 1

    @property
    def recomputed(self) -> Recomputed | None:
        """What the computed tokens cost; None where no GPU is known."""
        outcome = self.outcome
        if self.priced is None or self.priced.recompute is None or not outcome.requests:
            return None
        cached = outcome.hit_tokens // outcome.requests
        return self.priced.recompute(outcome.recomputed_tokens, cached, outcome.requests)

    @property
    def transfers(self) -> Transfers | None:
        """What a host tier moves; None without one, or without a model that says what it weighs."""
        own = self.price(self.settings)
        if not self.setup.has_host or self.priced is None or own is None or own.weight is None:
            return None
        out, slot, token = self.outcome, own.weight.slot, own.weight.token
        stored = round(out.stored_states * slot + out.stored_tokens * token)
        loaded = round(out.loaded_states * slot + out.loaded_tokens * token)
        gbs = self.priced.link_gbs
        return Transfers(stored, loaded, (stored + loaded) / gbs / 1e9 if gbs else None)

    def price(self, settings: Settings) -> Cost | None:
        """What ``settings`` weigh; None without a model."""
        return None if self.priced is None else self.priced.cost(settings)

    @property
    def enough(self) -> bool | None:
        """Whether the slots given reach the knee; None where there is none to reach."""
        if self.knee is None or self.knee.slots is None:
            return None
        return self.knee.reached_by(self.outcome)

    def to_dict(self) -> dict[str, Any]:
        """The keys of ``reuse --json``."""
        outcome, settings, knee = self.outcome, self.settings, self.knee
        own = self.price(settings)
        return {
            "engine": settings.engine,
            "policy": self.setup.policy.name,
            "model": None if self.priced is None else self.priced.model,
            "workload": {
                "name": self.workload.name,
                "description": self.workload.description,
                "rounds": self.workload.rounds,
                "warmup_rounds": self.warmup_rounds,
            },
            "refused": 0 if self.within is None else self.within.refused,
            "workers": self.workers,
            "slots": settings.slots,
            "checkpoint_slots": settings.int8_slots,
            "host_slots": self.setup.host_slots,
            "running": settings.running,
            "slots_per_request": self.setup.policy.slots_per_request,
            "cached_slots": self.setup.cached_slots,
            **outcome.to_dict(),
            "knee_slots": None if knee is None else knee.slots,
            "knee": None if knee is None else knee.to_dict(),
            "kv_tokens_needed": self.kv_needed,
            "kv_tokens": self.setup.kv_tokens,
            "host_kv_tokens": self.setup.host_kv_tokens,
            "host_chunks": None if self.setup.host_chunks is None else self.setup.host_chunks.blocks,
            "host_needed": None if self.host_needed is None else self.host_needed._asdict(),
            "transfers": None if self.transfers is None else self.transfers._asdict(),
            "recomputed_cost": self._recomputed_cost(),
            "lost_to": self.lost_to,
            "held": [point._asdict() for point in outcome.held],
            "share": None
            if self.share is None
            else {"flags": self.share[0], "slots": self.share[1], "kv_tokens": self.share[2]},
            "machines": None if self.machines is None else self.machines.to_dict(),
            "what_if": [self._row(row) for row in self.rows or ()],
            "split": [split.to_dict() for split in self.splits or ()],
            "memory": None if own is None else own.to_dict(),
            "notes": list(self.notes),
            "steps": [step.to_dict() for step in self.steps],
        }

    def _recomputed_cost(self) -> dict[str, Any] | None:
        cost = self.recomputed
        if cost is None:
            return None
        return {"gpu_seconds": cost.gpu_seconds, "band_gpu_seconds": list(cost.band_seconds), "gpus": cost.gpus}

    def _row(self, row: Row) -> dict[str, Any]:
        weighs = self.price(row.variant.settings)
        return row.to_dict() | {"memory": None if weighs is None else weighs.to_dict()}

    @property
    def steps(self) -> list[Step]:
        """How the figures come about."""
        outcome, policy, setup = self.outcome, self.setup.policy, self.setup
        source = f"simulation, {policy.name}"
        steps = [
            Step(
                "hit rate",
                "requests with a hit / requests",
                f"{outcome.hits:,} / {outcome.requests:,}",
                outcome.hit_rate,
                "",
                source,
            ),
            Step(
                "token hit rate",
                "hit tokens / prompt tokens",
                f"{outcome.hit_tokens:,} / {outcome.prompt_tokens:,}",
                outcome.token_hit_rate,
                "",
                source,
            ),
            Step(
                "recomputed",
                "prompt tokens - hit tokens + replayed tokens",
                f"{outcome.prompt_tokens:,} - {outcome.hit_tokens:,} + {outcome.replayed_tokens:,}",
                outcome.recomputed_tokens,
                "tokens",
                source,
            ),
            Step(
                "cached slots",
                "slots - running x own slots" if setup.checkpoint_slots is None else "int8 slots",
                f"{setup.slots:,} - {setup.running:,} x {policy.own_slots}"
                if setup.checkpoint_slots is None
                else f"{setup.checkpoint_slots:,}",
                setup.cached_slots,
                "slots",
                "docs/reuse.md",
            ),
        ]
        if self.knee is not None and self.knee.slots is not None:
            limit = self.knee.limit
            steps.append(
                Step(
                    "knee",
                    f"least slots with rates of at least {SHARE:g} x their limit",
                    f"{SHARE:g} x {limit.hit_rate:.4f} of requests, {SHARE:g} x {limit.token_hit_rate:.4f} of tokens",
                    self.knee.slots,
                    "slots",
                    f"{self.knee.method}; docs/reuse.md",
                )
            )
        return steps


def answer(
    workload: Workload,
    settings: Settings,
    *,
    warmup_rounds: int = 0,
    knee: bool = True,
    what_if: bool = True,
    step_tokens: int = 256,
    priced: Priced | None = None,
    bar: Bar = lambda _: None,
    notes: Sequence[str] = (),
    given: bool = True,
    workers: int = 1,
) -> Reuse:
    """Simulate a workload, and what is asked beside. Raises InputError for settings that do not go together.

    Without slots ``given``, those of ``settings`` are the engine's own share of the memory; where that is not known,
    they are the knee. Requests longer than the context are refused by the server and left out. ``workload`` is that of
    one of the ``workers``, which have a cache each. Raises IllegalCombination where all requests are too long.
    """
    context = None if settings.context is None else Within(workload, settings.context)
    if context is not None:
        workload = workload._replace(stream=context.stream)
    counted: dict[str, Any] = {"warmup_rounds": warmup_rounds}
    found: Knee | None = None
    if not given and (priced is None or not priced.bounded):
        least = settings._replace(slots=max(1, settings.running * settings.policy.slots_per_request))
        found = find_knee(workload, least.setup.with_free_kv(), **counted, progress=bar)
        least = least._replace(longest=0 if context is None else context.longest)
        settings = settings.room.wanted(least, found.slots or least.slots)[0]

    def cost(settings: Settings) -> Cost | None:
        return None if priced is None else priced.cost(settings)

    def within(settings: Settings) -> Settings:
        return settings.within(cost(settings))

    setup = within(settings).setup
    outcome = simulate(workload, setup, **counted, progress=bar("simulating"))
    if context is not None:
        settings = settings._replace(longest=context.longest)
    if knee and found is None:
        known = None if setup.bounds_kv or setup.has_host else outcome
        found = find_knee(workload, setup.with_free_kv(), **counted, progress=bar, given=known)
    needed: int | None = None
    if found is not None:
        steps = kv_steps(outcome.requests)
        needed = find_kv(workload, setup.without_host().with_free_kv(), found, **counted, progress=bar, steps=steps)
    lost_to = None if found is None else _lost_to(workload, setup, outcome, found, warmup_rounds, bar)
    host_needed = None
    if found is not None and found.slots is not None and setup.has_host:
        host_needed = find_host(workload, setup, found, **counted, progress=bar)
    shares, machines = _turned(settings, setup, outcome, found, needed, priced, workers)
    rows: tuple[Row, ...] | None = None
    splits: tuple[Split, ...] | None = None
    if what_if:
        own = None if found is None else Row(Variant("", "", settings), outcome, found, needed)
        compared, left = compare(workload, settings, **counted, bar=bar, within=within, given=own, cost=cost)
        rows, notes = tuple(compared), (*notes, *(f"not tried: {variant.flags}: {why}" for variant, why in left))
        splits = best_split(workload, settings, **counted, step_tokens=step_tokens, bar=bar, within=within)
    return Reuse(
        workload,
        settings,
        setup,
        warmup_rounds,
        outcome,
        found,
        rows,
        splits,
        priced,
        (*notes, *_notes(workload, setup, outcome, found)),
        needed,
        lost_to,
        given,
        host_needed,
        shares,
        machines,
        context,
        workers,
    )


def _turned(
    settings: Settings,
    setup: Setup,
    outcome: Outcome,
    knee: Knee | None,
    needed: int | None,
    priced: Priced | None,
    workers: int,
) -> tuple[tuple[str, int, int] | None, Machines | None]:
    """The knee in flags that split the memory, where it holds both pools; where it does not, in GPUs that do."""
    if knee is None or knee.slots is None or needed is None or priced is None or knee.reached_by(outcome):
        return None, None
    wanted = settings.room.wanted(settings, knee.slots)[0]
    if priced.share is not None and settings.int8_slots is None:
        found = priced.share(wanted)
        if found is not None and found[2] >= needed:
            return found, None
    if priced.machines is None or not setup.bounds_kv:
        return None, None
    return None, priced.machines(workers * knee.slots, workers * needed)


def _lost_to(
    workload: Workload, setup: Setup, outcome: Outcome, knee: Knee, warmup_rounds: int, bar: Bar
) -> str | None:
    """Which pool lost what the workload would have reused: one that, were it larger, would have kept it."""

    def run(name: str, changed: Setup) -> Outcome:
        return simulate(workload, changed, warmup_rounds=warmup_rounds, progress=bar(name))

    if setup.server is not None:
        return _lost_by_server(setup, outcome, knee, run)
    if not knee.limit.hits or knee.reached_by(outcome):
        return None

    def reached(name: str, changed: Setup) -> bool:
        return knee.reached_by(run(name, changed))

    if setup.host_chunks is not None:
        return HOST
    if setup.has_host:
        roomy = setup._replace(host_slots=max(knee.limit.most_cached, setup.host_slots))
        if reached("with host slots to spare", roomy):
            return HOST_STATE
        return HOST_KV if reached("with host KV to spare", setup._replace(host_kv_tokens=None)) else HOST
    if setup.pool is not None and setup.cached_slots >= setup.pool.blocks // setup.pool.per_state:
        return BLOCKS
    if setup.bounds_kv:
        if reached("with KV to spare", setup.with_free_kv()):
            return KV
        if not reached("with slots to spare", setup.with_cached(max(knee.cached_slots or 0, setup.cached_slots))):
            return BOTH
    return STATE


def _lost_by_server(setup: Setup, outcome: Outcome, knee: Knee, run: Callable[[str, Setup], Outcome]) -> str | None:
    """What of llama-server, were there more of it, would have kept more: slots, the host cache, or checkpoints."""
    server = setup.server or SlotServer()
    if knee.limit.hits and not knee.reached_by(outcome):
        endless = setup._replace(server=server._replace(cache_bytes=NO_LIMIT), kv_tokens=None)
        if setup.has_host and knee.reached_by(run("with host cache to spare", endless)):
            return HOST
        more = setup.with_cached(max(knee.cached_slots or 0, setup.cached_slots)).with_free_kv()
        return SLOTS if knee.reached_by(run("with slots to spare", more)) else BOTH
    spare = setup._replace(server=server._replace(checkpoints=MOST_STATES))
    kept = run("with checkpoints to spare", spare)
    return CHECKPOINTS if outcome.hit_tokens < SHARE * kept.hit_tokens else None


def _notes(workload: Workload, setup: Setup, outcome: Outcome, knee: Knee | None) -> list[str]:
    """Limits of what the figures say."""
    said = []
    if not setup.running and setup.policy.own_slots:
        own, least = setup.policy.own_slots, setup.policy.slots_per_request
        said.append(
            f"slots of running requests come on top, {own} each; --running R takes them out of --slots, which "
            f"must be R x {least} at least"
        )
    if not outcome.requests:
        said.append(f"nothing is counted: the workload ends in its warm-up ({workload.rounds} rounds)")
    if knee is not None and knee.limited:
        said.append(f"the workload fills even {knee.limit.most_cached:,} slots: its limit may lie higher")
    if knee is not None and knee.slots is not None and knee.method == "search":
        said.append("the knee was found by trial: one slot fewer falls short; not every smaller number was tried")
    if not setup.running and setup.policy.path_cap != NO_CAP and knee is not None and not knee.limit.hits:
        said.append(
            "the path cap gives up each state before it is used again; requests that run at once lock theirs: "
            "--running R shows what that spares"
        )
    return said
