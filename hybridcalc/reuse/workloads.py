"""Which requests does a kind of work send? Synthetic workloads, written ``kind:name=value,...``.

    cyclic   distinct prompts, probed in turn or, with zipf, by popularity
    chat     conversations that are open at the same time, each turn longer than the one before
    agents   the same from a long history on, each turn the result of a tool
    fanout   agents that branch off a shared context and take steps of their own
    rag      documents by popularity, each with a private question
    shared   one prompt, or a few, in front of private ones
    batch    the same sorted by what is in front, as a batch is sent

Joined by ``+`` they are sent at the same time, each evenly over the whole.

All are seeded and streamed: what is held are the open conversations, never the requests. A run (requests.py) is named
by a whole number; names are never used twice, so what is private stays so. Units: tokens; think time in seconds.
"""

import random
import re
from collections.abc import Callable, Iterator
from difflib import get_close_matches
from heapq import heapify, heapreplace
from itertools import accumulate, count
from typing import NamedTuple

from hybridcalc.errors import InputError, quoted
from hybridcalc.reuse.requests import Request, Workload
from hybridcalc.units import parse_tokens

Values = dict[str, int | float]
Runs = tuple[tuple[int, ...], tuple[int, ...]]
MOST_OF_A_NUMBER, MOST_EXPONENT = 10**9, 10.0
MOST_TOKENS = 2**27
"""Tokens of one run; longer prompts than any model takes are slips of the keyboard."""
MOST_HELD = 10**6
"""Prompts, conversations or documents that a generator may hold at a time."""
MOST_TURNS = 1000
"""Turns of one conversation, steps of one agent: each is looked up through all that were before it."""
MOST_OPEN_TURNS = 10**7
"""Turns of all that is open at a time, which is what a generator holds: some 2 GB."""
MOST_REQUESTS = 10**8
"""Requests of a workload: ten minutes' simulation."""


class Kind(NamedTuple):
    """A kind of workload: its parameters with their defaults, what streams it, and its requests and rounds.

    Where a request follows on another: how many may run at once is the product of ``at_once``, and ``turns`` is how
    many follow on each other. ``spread``: what servers share, each prefix at one of them, and what goes with it.
    """

    defaults: Values
    meaning: dict[str, str]
    stream: Callable[[Values, int], Iterator[Request]]
    requests: Callable[[Values], int]
    rounds: Callable[[Values], int]
    at_once: tuple[str, ...] = ()
    turns: str = ""
    spread: tuple[str, ...] = ()

    def of_worker(self, values: Values, workers: int) -> Values:
        """The part of the worker that has the most."""
        first, *along = self.spread
        whole = int(values[first])
        part = -(-whole // workers)
        scaled = {key: values[key] * part / whole for key in along}
        return {**values, first: part, **{key: type(values[key])(value) for key, value in scaled.items()}}


COMMON: Values = {"rounds": 4, "preempt": 0.0}
SESSIONS: Values = {**COMMON, "rounds": 1, "think": 0.0, "rate": 0.0}
SHARES = ("preempt",)
REALS = ("zipf", "think", "preempt", "rate")
MAY_BE_ZERO = (*REALS, "system", "tail", "growth", "output", "tool")
SECONDS = {"": 1.0, "ms": 0.001, "s": 1.0, "sec": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0}
_NUMBER_AND_UNIT = re.compile(r"([0-9.eE+-]*[0-9.])(/?)([a-z]*)")
LIMITS = {
    **dict.fromkeys(("prefixes", "sessions", "documents", "parents", "prompts", "agents", "n"), MOST_HELD),
    **dict.fromkeys(("turns", "steps"), MOST_TURNS), "rounds": MOST_OF_A_NUMBER,
}  # fmt: skip
"""The most of what is counted; else MOST_TOKENS."""


PEOPLE = frozenset({"users", "clients", "conversations", "chats", "agents", "people", "concurrency"})
"""What people call those whose turns follow on each other: the first parameter of such a kind."""


def parse_workload(text: str, *, seed: int = 0, workers: int = 1) -> Workload:
    """The workload of ``cyclic:prefixes=384,tokens=1000,rounds=4``, or of several joined by ``+``; of so many
    ``workers`` that of one.

    Raises InputError naming the part that is wrong.
    """
    if "+" in text:
        from hybridcalc.reuse.requests import mixed

        parts = [part.strip() for part in text.split("+")]
        return mixed([parse_workload(part, seed=seed + place, workers=workers) for place, part in enumerate(parts)])
    name, values = values_of(text)
    kind = KINDS[name]
    if workers > 1:
        values = kind.of_worker(values, workers)
    at_once = _product(*kind.at_once)(values) if kind.at_once else None
    _check_size(name, kind, values, at_once or 0)
    described = ", ".join(f"{key} {value:,}" for key, value in values.items() if value)
    return Workload(
        name,
        lambda: kind.stream(values, seed),
        kind.requests(values),
        kind.rounds(values),
        described,
        preempts=values["preempt"] > 0,
        at_once=at_once,
        asked=text if workers == 1 else "",
    )


def values_of(text: str) -> tuple[str, Values]:
    """The kind of a workload as it is written, and all its parameters. Raises InputError."""
    name, _, rest = text.partition(":")
    if name not in KINDS:
        raise InputError(
            f"--workload {quoted(text)} is neither a kind of workload nor a file",
            fix=f"write {', '.join(f'{kind}:...' for kind in KINDS)} or the name of a trace",
        )
    kind = KINDS[name]
    values, typed = dict(kind.defaults), set[str]()
    for part in filter(None, (part.strip() for part in rest.split(","))):
        key, equals, value = (piece.strip() for piece in part.partition("="))
        if key in values and not equals:
            raise InputError(f"--workload {name}: {key} has no value", fix=f"write {key}={kind.defaults[key]}")
        if key not in values:
            first = next(iter(kind.defaults))
            near = [first] if key in PEOPLE and kind.turns == "turns" else get_close_matches(key, values, n=1)
            instead = f"write {name}:{near[0]}={value or '...'}; " if near else ""
            raise InputError(
                f"--workload {name}: {quoted(part)} is not one of its parameters",
                fix=f"{instead}it takes {', '.join(values)}",
            )
        if key in typed:
            raise InputError(f"--workload {name}: {key} is given twice", fix="leave one of them")
        typed.add(key)
        values[key] = _value(name, key, value)
    return name, values


def _check_size(name: str, kind: Kind, values: Values, at_once: int) -> None:
    """Raise InputError for a workload that would take too much memory or time."""
    held = at_once * int(values.get(kind.turns, 0))
    if held > MOST_OPEN_TURNS:
        product = " x ".join((*kind.at_once, kind.turns))
        raise InputError(f"--workload {name}: {product} is {held:,}", fix=f"at most {MOST_OPEN_TURNS:,} are simulated")
    requests = kind.requests(values)
    if requests > MOST_REQUESTS:
        raise InputError(
            f"--workload {name}: that is {requests:,} requests; at most {MOST_REQUESTS:,} are simulated",
            fix="write fewer rounds",
        )


def _value(kind: str, key: str, text: str) -> int | float:
    where = f"--workload {kind}: {key}={text[:20]}"
    if key in REALS:
        number = _real(where, key, text)
        most = 1.0 if key in SHARES else MOST_EXPONENT if key == "zipf" else float(MOST_OF_A_NUMBER)
        if not 0 <= number <= most:
            raise InputError(f"{where}: not a number from 0 to {most:g}")
        return number
    whole = 0 if text == "0" else _whole(where, key, text)
    least, most = int(key not in MAY_BE_ZERO), LIMITS.get(key, MOST_TOKENS)
    if not least <= whole <= most:
        raise InputError(f"{where}: not a whole number from {least} to {most:,}")
    return whole


def _real(where: str, key: str, text: str) -> float:
    """A number; of pauses with a unit of time (60s, 2min), of rates with one it is by (2/s, 90/min)."""
    try:
        found = _NUMBER_AND_UNIT.fullmatch(text) if key in ("think", "rate") else None
        if found is None:
            return float(text) if text.isascii() else float("")
        number, per, unit = float(found[1]), found[2], found[3]
        if unit not in SECONDS or bool(per) != (key == "rate" and bool(unit)):
            raise ValueError
    except ValueError:
        sample = {"think": "60s or 1.5min", "rate": "2/s or 90/min"}.get(key, "1.0")
        raise InputError(f"{where} is not a number", fix=f"write one like {sample}") from None
    return number / SECONDS[unit] if key == "rate" else number * SECONDS[unit]


def _whole(where: str, key: str, text: str) -> int:
    try:
        return parse_tokens(text)
    except InputError as error:
        if key in LIMITS:
            raise InputError(f"{where}: not a whole number from 1 to {LIMITS[key]:,}") from None
        raise InputError(f"{where}: {error.message}", fix=error.fix) from None


class _Popularity:
    """Draws 0 .. n - 1 in turn, or by Zipf's law with exponent ``zipf``: the k-th most popular weighs 1 / k**zipf."""

    def __init__(self, number: int, zipf: float, chance: random.Random) -> None:
        self.number, self.zipf, self.chance = number, zipf, chance
        self.weights = list(accumulate((rank + 1) ** -zipf for rank in range(number))) if zipf else []

    def round(self) -> Iterator[int]:
        """As many draws as there are things."""
        if not self.zipf:
            return iter(range(self.number))
        return iter(self.chance.choices(range(self.number), cum_weights=self.weights, k=self.number))


def _longer(runs: Runs, name: int, tokens: int) -> Runs:
    """Runs with one more behind; unchanged where it has no tokens."""
    ids, ends = runs
    if not tokens:
        return runs
    return (*ids, name), (*ends, (ends[-1] if ends else 0) + tokens)


_NEW = tuple.__new__
"""Makes a request of its fields: a named tuple's own constructor is slow."""


class _Writer:
    """Makes requests: names for private runs, and by chance where one is preempted."""

    def __init__(self, values: Values, seed: int, first_name: int) -> None:
        self.chance, self.names = random.Random(seed), count(first_name)  # noqa: S311 - a simulation, seeded
        self.preempt, self.output = float(values["preempt"]), int(values["output"])

    def request(self, runs: Runs, round: int) -> tuple[Request, Runs]:
        """A request with the prompt ``runs``, and the runs with its answer."""
        ids, ends = runs
        prompt, output, preempted = ends[-1], self.output, 0
        if output:
            runs = ids, ends = (*ids, next(self.names)), (*ends, prompt + output)
        if self.preempt and output > 1 and self.chance.random() < self.preempt:
            preempted = self.chance.randrange(1, output)
        return _NEW(Request, (ids, ends, prompt, round, preempted)), runs


def _cyclic(values: Values, seed: int) -> Iterator[Request]:
    number, tokens, tail, system = (int(values[key]) for key in ("prefixes", "tokens", "tail", "system"))
    writer = _Writer(values, seed, number + 1)
    popularity = _Popularity(number, float(values["zipf"]), writer.chance)
    ids, ends = _longer(((), ()), 0, system)
    ends = (*ends, system + tokens)
    for round in range(int(values["rounds"])):
        for prefix in popularity.round():
            runs = (*ids, prefix + 1), ends
            yield writer.request(_longer(runs, next(writer.names), tail) if tail else runs, round)[0]


def _chat(values: Values, seed: int) -> Iterator[Request]:
    user, growth = int(values["user"]), int(values["growth"])
    return _conversations(values, seed, int(values["sessions"]), lambda turn: user + turn * growth)


def _agents(values: Values, seed: int) -> Iterator[Request]:
    history, tool, growth = int(values["history"]), int(values["tool"]), int(values["growth"])
    return _conversations(values, seed, int(values["n"]), lambda turn: tool + (turn - 1) * growth if turn else history)


def _conversations(values: Values, seed: int, sessions: int, said: Callable[[int], int]) -> Iterator[Request]:
    """Every session is always in a conversation; ``rounds`` conversations one after another, a round is a turn, which
    adds ``said`` tokens. With a ``rate`` sessions begin by and by, so many a second.
    """
    turns = int(values["turns"])
    think, rate, last = float(values["think"]), float(values["rate"]), turns * int(values["rounds"])
    writer = _Writer(values, seed, 1)
    start = _longer(((), ()), 0, int(values["system"]))
    names, output = writer.names, writer.output
    if not think and not rate and not writer.preempt and output and said(1):  # all are equally long in a turn
        new = _NEW
        for turn in range(last):
            if turn % turns == 0:
                before, ends = [start[0]] * sessions, start[1]
            prompt = (ends[-1] if ends else 0) + said(turn % turns)
            ends = (*ends, prompt, prompt + output)
            for session, ids in enumerate(before):
                before[session] = ids = (*ids, next(names), next(names))
                yield new(Request, (ids, ends, prompt, turn, 0))
        return
    history, chance = [start] * sessions, writer.chance
    if rate:
        begins = accumulate(chance.expovariate(rate) for _ in range(sessions))
        clock = [(begin, session, 0) for session, begin in enumerate(begins)]
    else:
        clock = [(chance.random() * think, session, 0) for session in range(sessions)]
    heapify(clock)
    while clock[0][0] != float("inf"):
        now, session, turn = clock[0]
        runs = start if turn % turns == 0 else history[session]
        more = said(turn % turns)
        request, history[session] = writer.request(_longer(runs, next(names), more), turn)
        yield request
        later = now + 1 + think * chance.expovariate(1.0) if turn + 1 < last else float("inf")
        heapreplace(clock, (later, session, turn + 1))


def _fanout(values: Values, seed: int) -> Iterator[Request]:
    """``parents`` contexts are worked on at a time, agents taking steps in turn; a round is one such generation."""
    parents, agents, steps = (int(values[key]) for key in ("parents", "agents", "steps"))
    tokens, task, growth = (int(values[key]) for key in ("tokens", "task", "growth"))
    writer = _Writer(values, seed, 1)
    for round in range(int(values["rounds"])):
        contexts = [
            _longer(_longer(((), ()), 0, int(values["system"])), next(writer.names), tokens) for _ in range(parents)
        ]
        history = [[context] * agents for context in contexts]
        for step in range(steps):
            for parent in range(parents):
                for agent in range(agents):
                    runs = _longer(history[parent][agent], next(writer.names), growth if step else task)
                    request, history[parent][agent] = writer.request(runs, round)
                    yield request


def _rag(values: Values, seed: int) -> Iterator[Request]:
    documents, tokens, question = (int(values[key]) for key in ("documents", "tokens", "question"))
    writer = _Writer(values, seed, documents + 1)
    popularity = _Popularity(documents, float(values["zipf"]), writer.chance)
    start = _longer(((), ()), 0, int(values["system"]))
    for round in range(int(values["rounds"])):
        for document in popularity.round():
            runs = _longer(_longer(start, document + 1, tokens), next(writer.names), question)
            yield writer.request(runs, round)[0]


def _shared(values: Values, seed: int) -> Iterator[Request]:
    prompts, tokens, private = (int(values[key]) for key in ("prompts", "tokens", "private"))
    writer = _Writer(values, seed, prompts + 1)
    for round in range(int(values["rounds"])):
        for prompt in range(prompts):
            runs = _longer(_longer(((), ()), prompt + 1, tokens), next(writer.names), private)
            yield writer.request(runs, round)[0]


def _batch(values: Values, seed: int) -> Iterator[Request]:
    """Each shared prompt with all that stand behind it, then the next; every request is sent once."""
    writer = _Writer(values, seed, int(values["prompts"]) + 1)
    start = _longer(((), ()), 0, int(values["system"]))
    number, prompts = int(values["n"]), int(values["prompts"])
    for round in range(int(values["rounds"])):
        for place in range(number):
            front = _longer(start, place * prompts // number + 1, int(values["shared"]))
            yield writer.request(_longer(front, next(writer.names), int(values["tokens"])), round)[0]


def _product(*keys: str) -> Callable[[Values], int]:
    def product(values: Values) -> int:
        result = 1
        for key in keys:
            result *= int(values[key])
        return result

    return product


_ROUNDS = {
    "rounds": "times over", "preempt": "share of requests preempted once while they answer",
    "system": "tokens in front of every prompt", "output": "tokens of an answer",
}  # fmt: skip
_SESSIONS = {
    "rounds": "conversations of a session, one after another; a warm-up round is a turn", "turns": "of each",
    "growth": "tokens by which each turn adds more", "think": "mean seconds between turns; 0: in turn",
    "rate": "sessions that begin in a second; 0: all at once",
}  # fmt: skip
KINDS = {
    "cyclic": Kind(
        {"prefixes": 384, "tokens": 1000, "tail": 0, "system": 0, "output": 1, "zipf": 0.0, **COMMON},
        {**_ROUNDS, "prefixes": "distinct prompts", "tokens": "of each", "tail": "private tokens behind each",
         "zipf": "exponent of their popularity; 0: in turn"},
        _cyclic, _product("prefixes", "rounds"), _product("rounds"), spread=("prefixes",),
    ),
    "chat": Kind(
        {"sessions": 100, "turns": 5, "system": 0, "user": 200, "growth": 0, "output": 100, **SESSIONS},
        {**_ROUNDS, **_SESSIONS, "sessions": "conversations open at a time", "user": "tokens a user adds in a turn"},
        _chat, _product("sessions", "turns", "rounds"), _product("turns", "rounds"), ("sessions",), "turns",
        ("sessions", "rate"),
    ),
    "agents": Kind(
        {"n": 100, "history": 20480, "turns": 12, "tool": 2048, "growth": 0, "output": 200, "system": 0, **SESSIONS,
         "think": 60.0},
        {**_ROUNDS, **_SESSIONS, "n": "agents at work at a time", "history": "tokens of an agent's first prompt",
         "tool": "tokens that the result of a tool adds in a turn"},
        _agents, _product("n", "turns", "rounds"), _product("turns", "rounds"), ("n",), "turns",
        ("n", "rate"),
    ),
    "fanout": Kind(
        {"parents": 16, "agents": 8, "steps": 3, "tokens": 4000, "task": 200, "growth": 500, "output": 100,
         "system": 0, **COMMON},
        {**_ROUNDS, "parents": "contexts worked on at a time", "agents": "that branch off each", "steps": "of an agent",
         "tokens": "of a context", "task": "tokens of an agent's task", "growth": "tokens each step adds"},
        _fanout, _product("parents", "agents", "steps", "rounds"), _product("rounds"), ("parents", "agents"), "steps",
        ("parents",),
    ),
    "rag": Kind(
        {"documents": 200, "tokens": 4000, "question": 50, "output": 200, "system": 500, "zipf": 1.0, **COMMON},
        {**_ROUNDS, "documents": "that are asked about", "tokens": "of each", "question": "private tokens behind it",
         "zipf": "exponent of their popularity; 0: in turn"},
        _rag, _product("documents", "rounds"), _product("rounds"), spread=("documents",),
    ),
    "shared": Kind(
        {"tokens": 1500, "private": 700, "prompts": 1, "output": 100, **COMMON, "rounds": 100},
        {**_ROUNDS, "tokens": "of the shared prompt", "private": "tokens behind it",
         "prompts": "shared prompts, in turn"},
        _shared, _product("prompts", "rounds"), _product("rounds"), spread=("prompts",),
    ),
    "batch": Kind(
        {"n": 10000, "prompts": 10, "shared": 2000, "tokens": 500, "output": 200, "system": 0, **COMMON, "rounds": 1},
        {**_ROUNDS, "n": "requests of the batch", "prompts": "shared prompts, one after another",
         "shared": "tokens of each", "tokens": "private tokens behind it"},
        _batch, _product("n", "rounds"), _product("rounds"), spread=("prompts", "n"),
    ),
}  # fmt: skip
"""Every kind of workload. A new one is added here; ``meaning`` is documented in docs/reuse.md."""
