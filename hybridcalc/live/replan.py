"""Which start makes the pools that a running server has, and what would it plan for its requests?

The memory with which the planner makes just these pools is found by halving; without a launch line, ranks and KV dtype
are those at which the default split gives them. A search takes some tenths of a second, and what it finds holds as long
as pools and arguments stay as they are: it is kept. llama.cpp takes no memory to plan, but its launch line.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import product
from typing import Any, NamedTuple

from hybridcalc.architecture import Architecture
from hybridcalc.bootlog.grammars import room
from hybridcalc.deployment import Memory, Rest, Workload, exact_rest
from hybridcalc.engines import ENGINES
from hybridcalc.engines.answer import Answer
from hybridcalc.engines.engine import Engine
from hybridcalc.engines.sweep import Outcome, Sweeping
from hybridcalc.errors import HybridcalcError
from hybridcalc.findings import Suggestion
from hybridcalc.live.worker import BLOCKS, KV, STATE, Worker

LIKELY_TP, LIKELY_KV = (1, 2, 4, 8, 16), (None, "fp8_e4m3")
MOST_GIB = 2.0**12
HALVINGS = 60
GIVEN = "the launch line"
"""How a start was found that was given."""


class LiveQuestion(NamedTuple):
    """What is known beside the metrics: the model, the launch (its engine and arguments), and the length."""

    model: Architecture | None = None
    engine: str | None = None
    args: Any = None
    length: int | None = None


class Start(NamedTuple):
    """Arguments and memory that make the pools of a worker, and how they were found."""

    args: Any
    rest: Rest
    how: str


class Planner:
    """Plans of the starts whose pools are those of a worker, each start searched for once."""

    def __init__(self, asked: LiveQuestion) -> None:
        """For what is known beside the metrics."""
        self.asked = asked
        self._found: dict[tuple[Any, ...], tuple[tuple[Start, ...], str]] = {}

    def plans(self, worker: Worker, model: Architecture | None) -> tuple[tuple[Answer, ...], str]:
        """Plans at the length that its requests have, and how they were found; or none, and why not."""
        served = ENGINES.get(worker.engine)
        if served is None:
            return (), ""
        if self.asked.engine not in (None, served.name):
            return (), f"the launch line starts {ENGINES.rows[self.asked.engine].title}, this is {served.title}"
        if not _tried(served) and self.asked.args is None:
            return (), ""
        if model is None:
            return (), "no model is known here: nothing is planned"
        length = self.asked.length or _length(worker)
        workload = Workload.at(length) if length else Workload()
        starts, why = self._starts(served, worker, model)
        plans = []
        for start in starts:
            with suppress(HybridcalcError):
                plans.append((served.plan(model, start.args, start.rest, workload), start.how))
        if not plans:
            return (), why
        if len({plan.requests for plan, _ in plans}) > 1:
            return (), f"{len(plans)} starts of {model.name} give these pools, with other figures each"
        told = [how for _, how in plans]  # each in quotes where there are several: a flag is of its own start alone
        return tuple(plan for plan, _ in plans), " or ".join(f"'{how}'" if len(told) > 1 else how for how in told)

    def more(self, worker: Worker, plan: Answer, wanted: int) -> tuple[Suggestion, ...]:
        """What lets so many requests run where the limit binds, of an engine whose own suggestions do not say it."""
        suggest = getattr(room(worker.engine, "live"), "more_requests", None)
        return () if suggest is None else suggest(ENGINES[worker.engine], plan, wanted)

    def _starts(self, served: Engine, worker: Worker, model: Architecture) -> tuple[tuple[Start, ...], str]:
        sizes = tuple((pool, worker.pools[pool].size) for pool in (STATE, KV, BLOCKS) if pool in worker.pools)
        known = tuple(sorted((name, repr(value)) for name, value in _said(served, worker).items()))
        key = (served.name, model, sizes, worker.launch, known)
        if key not in self._found:
            search = _searched if _tried(served) else _given
            self._found[key] = search(served, worker, model, self.asked)
        return self._found[key]


def _tried(served: Engine) -> bool:
    """Whether a memory that makes the pools of a server may be looked for."""
    return served.sweeping is not None and served.sweeping.tried


def _searched(
    served: Engine, worker: Worker, model: Architecture, asked: LiveQuestion
) -> tuple[tuple[Start, ...], str]:
    found = []
    for args, how in _candidates(served, worker, asked):
        with suppress(HybridcalcError):
            gib = memory_of(served, model, args, worker)
            if gib is not None:
                found.append(Start(args, exact_rest(gib, "what makes its pools"), how))
    return tuple(found), f"no start of {model.name} gives these pools"


def _given(served: Engine, worker: Worker, model: Architecture, asked: LiveQuestion) -> tuple[tuple[Start, ...], str]:
    """The launch line of an engine that takes what was asked for, where the server is what it makes."""
    try:
        rest = served.memory(model, asked.args, Memory())
        figures = served.plan(model, asked.args, rest, Workload()).to_dict()["engine_figures"]
    except HybridcalcError as error:
        return (), f"the launch line does not start: {error}"
    for name, value in worker.settings.items():
        if figures.get(name) not in (None, value):
            return (), f"the launch line is another server's: {name} is {value:,} here, planned {figures[name]:,}"
    return (Start(asked.args, rest, GIVEN),), ""


def _said(served: Engine, worker: Worker) -> dict[str, Any]:
    """What a server says of arguments that the engine has."""
    return {name: value for name, value in worker.settings.items() if name in served.flags.by_field}


def agreed(plans: Sequence[Answer]) -> tuple[Suggestion, ...]:
    """The suggestions of a plan that every other one makes as well, with the same gain."""
    others = [{(each.flags, each.after) for each in plan.suggestions} for plan in plans[1:]]
    first = plans[0].suggestions if plans else ()
    return tuple(each for each in first if all((each.flags, each.after) in own for own in others))


def _length(worker: Worker) -> int | None:
    tokens = worker.each(KV)
    return max(1, round(tokens)) if tokens else None


def _candidates(served: Engine, worker: Worker, asked: LiveQuestion) -> Iterator[tuple[Any, str]]:
    """Arguments that the server may have been started with: its own, or the likely ones."""
    if asked.args is not None:
        yield asked.args, GIVEN
        return
    if worker.launch:
        try:
            line = ENGINES.launch(worker.launch)
            yield served.read(line.words, line.variables, unknown=[])[1], "its own launch command"
        except HybridcalcError:
            pass
        else:
            return
    base = served.read([], {})[1]
    known = {name: value for name, value in _said(served, worker).items() if hasattr(base, name)}
    if served.renamed.get("tp_size", "tp_size") in known:
        with suppress(HybridcalcError, TypeError):
            args = replace(base, **known)
            served.check_arguments(args)
            yield args, "what the server says of its arguments"
        return
    for tp, dtype in product(LIKELY_TP, LIKELY_KV if "kv_cache_dtype" not in known else (None,)):
        given: dict[str, Any] = {"tp_size": tp} | ({"kv_cache_dtype": dtype} if dtype else {})
        try:
            args = served.with_options(replace(base, **known), given)
            served.check_arguments(args)
        except (HybridcalcError, TypeError):
            continue
        yield args, f"--tp {tp}{f' --kv-cache-dtype {dtype}' if dtype else ''}"


def memory_of(served: Engine, model: Architecture, args: Any, worker: Worker) -> float | None:
    """The memory, GiB, with which a start makes the pools of a worker; None where there is none.

    Slots, or blocks, never fall with the memory; between two of their steps tokens do not either. So halving finds
    first the memories with just so many slots, and among them the one with just so many tokens. Of a server that does
    not say its slots, those that its tokens come with are tried, and one more or less.
    """
    sweeping: Sweeping = served.sweeping
    units, tokens = worker.pools.get(BLOCKS) or worker.pools.get(STATE), worker.pools.get(KV)
    prepared = sweeping.prepare(model, args)

    def at(gib: float) -> Outcome:
        try:
            return sweeping.solve(prepared, args, gib, Workload())
        except HybridcalcError:
            return Outcome(0, 0, 0, "")

    def within(wanted: int) -> float | None:
        low = _least(lambda gib: at(gib).units >= wanted, 0.0, MOST_GIB)
        high = _least(lambda gib: at(gib).units > wanted, low, MOST_GIB)
        if at(low).units != wanted:
            return None
        if not count:
            return low
        found = _least(lambda gib: at(gib).tokens >= count, low, high)
        return found if at(found).tokens == count and at(found).units == wanted else None

    count = round(tokens.size) if tokens is not None and tokens.size else 0
    if units is not None and units.size:
        return within(round(units.size))
    if not count:
        return None
    near = at(_least(lambda gib: at(gib).tokens >= count, 0.0, MOST_GIB)).units
    return next((gib for wanted in (near, near - 1, near + 1) if (gib := within(wanted)) is not None), None)


def _least(reached: Callable[[float], bool], low: float, high: float) -> float:
    """The least of the memories between the two that has what is wanted, or the greatest where none has."""
    if reached(low):
        return low
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        low, high = (low, middle) if reached(middle) else (middle, high)
    return high
