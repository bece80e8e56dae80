"""What does every combination of a few settings come to? Planned exactly, with the best trade-offs marked.

    --sweep mamba-full-memory-ratio=0.5:2:0.1 --sweep kv-cache-dtype=auto,fp8_e4m3

A name is a flag of the engine without its dashes, or ``length`` (tokens), or what the engine calls the memory for its
caches (GiB). A point is on the Pareto front when no other has at least as many requests and tokens and more of one.
An engine says what one combination comes to (`Sweeping`); points that share a preparation make it once.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from decimal import Decimal, InvalidOperation
from functools import lru_cache
from itertools import chain, product
from math import isfinite
from typing import Any, NamedTuple

from hybridcalc.architecture import Architecture
from hybridcalc.deployment import Rest, Workload
from hybridcalc.engines import offered
from hybridcalc.engines.charts import Axis, Chart, Series
from hybridcalc.engines.engine import Engine
from hybridcalc.errors import HybridcalcError, IllegalCombination, InputError, Refusal, quoted
from hybridcalc.findings import Table, View
from hybridcalc.shell.flags import LIKENESS, Flag, FlagTable
from hybridcalc.units import parse_gib, parse_tokens

MOST_POINTS = 250_000
OPTIONS = ("gpu", "weights", "engine", "engine-version", "non-cache")
"""Options of the command, which begin like flags of an engine and cannot be swept."""
SWITCHES = ("flag", "switch")
"""Kinds of flags that take no value of their own."""
LARGEST_VALUE = Decimal(10**18)
"""Beyond it, and below its inverse, no setting of a server lies."""

MOST_PREPARED = 1024
"""Preparations, arguments and sizes kept at once: points that share them read and prepare them once."""


class Outcome(NamedTuple):
    """What one combination comes to: units of the pool (slots, blocks), tokens, requests, and what binds."""

    units: int
    tokens: int
    requests: int
    binding: str


class Sweeping(NamedTuple):
    """How an engine is swept. ``solve`` says what arguments come to with so much memory and that workload (without a
    length: as long as the engine lets them), given what ``prepare`` made for those that share it; either raises
    HybridcalcError for what does not start.

    ``cheap_fields`` are arguments that change only the arithmetic, not what is prepared for it; ``names`` are what the
    engine calls its units and tokens, ``unit`` is the unit in words.
    ``tried``: a memory that makes pools of a server's size may be looked for.
    """

    prepare: Callable[[Architecture, Any], Any]
    solve: Callable[[Any, Any, float, Workload], Outcome]
    cheap_fields: tuple[str, ...]
    names: tuple[str, str]
    unit: str
    tried: bool = True


class SweepAxis(NamedTuple):
    """One swept setting and its values, as text."""

    name: str
    values: tuple[str, ...]


class Point(NamedTuple):
    """One combination: the values, what they come to, or why the engine would not start."""

    values: tuple[str, ...]
    units: int
    tokens: int
    requests: int
    binding: str
    refusal: str
    best: bool = False

    def to_dict(self, axes: Sequence[SweepAxis], names: tuple[str, str]) -> dict[str, Any]:
        """Plain data, the swept settings first; ``names`` are what the engine calls its units and tokens."""
        settings = {axis.name: typed(value) for axis, value in zip(axes, self.values, strict=True)}
        units, tokens = names
        return settings | {
            units: self.units or None,
            tokens: self.tokens or None,
            "requests": self.requests,
            "binding": self.binding or None,
            "refusal": self.refusal or None,
            "pareto": self.best,
        }


def typed(text: str) -> int | float | str:
    """A swept value as a number, where it is one."""
    for kind in (int, float):
        try:
            value = kind(text)
        except ValueError:
            continue
        return value if isfinite(value) else text
    return text


class Solver:
    """Solves combinations for one model, and prepares once for those that share it."""

    def __init__(self, model: Architecture, how: Sweeping) -> None:
        self.model, self.how = model, how
        self._prepared: dict[tuple[Any, ...], Any] = {}

    def __call__(self, args: Any, key: tuple[Any, ...], gib: float, work: Workload) -> Outcome:
        """One combination; ``key`` tells those apart whose preparation differs. Raises HybridcalcError."""
        ready = self._prepared.get(key)
        if ready is None:
            if len(self._prepared) >= MOST_PREPARED:
                self._prepared.clear()
            try:
                ready = self.how.prepare(self.model, args)
            except Refusal as refusal:
                ready = refusal
            self._prepared[key] = ready
        if isinstance(ready, Refusal):
            raise ready.with_traceback(None)  # the same object is raised for every point
        return self.how.solve(ready, args, gib, work)


def parse_axis(text: str) -> SweepAxis:
    """``NAME=a,b,c`` or ``NAME=low:high:step``. Raises InputError for anything else, and for too many values."""
    name, equals, values = text.partition("=")
    name = name.strip().lstrip("-")
    if not equals or not name or not values.strip():
        raise InputError(f"--sweep {quoted(text)} is not NAME=values", fix="write NAME=a,b,c or NAME=low:high:step")
    if values.count(":") == 2 and "," not in values:
        return SweepAxis(name, _range(text, values))
    listed = tuple(value.strip() for value in values.split(",") if value.strip())
    if not listed or len(listed) > MOST_POINTS:
        raise InputError(f"--sweep {quoted(text)} holds no usable list of values", fix="write NAME=a,b,c")
    return SweepAxis(name, listed)


def count_points(axes: Sequence[SweepAxis], table: FlagTable) -> int:
    """Combinations of all axes. Raises InputError above MOST_POINTS and for a name given twice."""
    if len({field_of(axis.name, table) for axis in axes}) < len(axes):
        raise InputError("--sweep names a setting twice", fix="list all its values in one --sweep")
    count = 1
    for axis in axes:
        count *= len(axis.values)
    if count > MOST_POINTS:
        raise InputError(f"{count:,} combinations are more than {MOST_POINTS:,}", fix="take larger steps")
    return count


def sweep(
    engine: Engine,
    axes: Sequence[SweepAxis],
    arguments: Callable[[list[str]], Any],
    model: Architecture,
    *,
    memory: Callable[[Any], Rest],
    work: Workload,
) -> Iterator[Point]:
    """Every combination in order, planned exactly on the likely ``memory``.

    A combination that makes no sense is a refused point; InputError is raised when none makes any, and for an engine
    that is not swept.
    """
    how: Sweeping = offered(engine.sweeping, "--sweep", engine.title)
    table, memory_name = engine.flags, engine.memory_option
    solve = Solver(model, how)
    cheap = {axis.name for axis in axes if field_of(axis.name, table) in how.cheap_fields}
    switches = {axis.name: flag for axis in axes if (flag := _flag(axis.name, table)) and flag.kind in SWITCHES}
    read = lru_cache(MOST_PREPARED)(lambda words: arguments(list(words)))
    size = lru_cache(MOST_PREPARED)(lambda text: _gib(memory_name, text))
    senseless: InputError | None = None
    sense = checked = False
    for values in product(*(axis.values for axis in axes)):
        given = {axis.name: value for axis, value in zip(axes, values, strict=True)}
        try:
            gib = size(given.pop(memory_name)) if memory_name in given else None
            asked = Workload.at(parse_tokens(given.pop("length"))) if "length" in given else work
            if not checked:
                _check_names(given, table, memory_name)
                checked = True
            words = (_words(name, value, table, switches.get(name)) for name, value in given.items())
            args = read(tuple(chain.from_iterable(words)))
            key = tuple(value for name, value in given.items() if name not in cheap)
            gib = memory(args).likely_gib if gib is None else gib
            point = _point(values, solve, args, key, gib, asked)
            sense = True
        except IllegalCombination as refusal:  # the weights do not fit
            point, sense = _refused(values, refusal.message), True
        except InputError as error:
            point, senseless = _refused(values, error.message), senseless or error
        yield point
    if senseless is not None and not sense:
        raise senseless


def _point(
    values: tuple[str, ...], solve: Solver, args: Any, key: tuple[Any, ...], gib: float, work: Workload
) -> Point:
    try:
        return Point(values, *solve(args, key, gib, work), refusal="")
    except HybridcalcError as refusal:
        return _refused(values, refusal.message)


def _words(name: str, value: str, table: FlagTable, switch: Flag | None) -> list[str]:
    """The words of a launch line that set ``name`` to ``value``; a ``switch`` takes true or false."""
    spelling = f"-{name}" if f"-{name}" in table.by_spelling else f"--{name}"
    if switch is None:
        return [spelling, value]
    if value.lower() in ("true", "on", "yes", "1"):
        return [spelling]
    if value.lower() not in ("false", "off", "no", "0"):
        raise InputError(f"--sweep {name}={value[:20]}: a switch is true or false", fix=f"write {name}=true,false")
    return [f"--no-{name}"] if switch.kind == "switch" else []


def _refused(values: tuple[str, ...], reason: str) -> Point:
    return Point(values, 0, 0, 0, "", reason)


def field_of(name: str, table: FlagTable) -> str:
    """The argument that a swept name sets, whatever its spelling; the name itself where it is no flag."""
    flag = _flag(name, table)
    return name if flag is None else flag.field


def _flag(name: str, table: FlagTable) -> Flag | None:
    """The flag of a swept name: by a spelling in full, else the first that begins so."""
    exact = (flag for flag in table.flags if {f"-{name}", f"--{name}"} & set(flag.spellings))
    near = (flag for flag in table.flags if any(spelling.startswith(f"--{name}") for spelling in flag.spellings))
    return next(exact, None) or next(near, None)


def mark_front(points: Sequence[Point]) -> list[Point]:
    """The same points with those of the Pareto front over requests and tokens marked."""
    order = sorted((p for p in points if not p.refusal), key=lambda p: (-p.requests, -p.tokens))
    front, most = set[tuple[int, int]](), -1
    for point in order:
        if point.tokens > most:
            front.add((point.requests, point.tokens))
            most = point.tokens
    return [p._replace(best=True) if not p.refusal and (p.requests, p.tokens) in front else p for p in points]


def _check_names(names: Iterable[str], table: FlagTable, memory_name: str) -> None:
    """A swept name must set something: the engine passes over flags nobody knows, a sweep does not."""
    known = [spelling for flag in table.flags[1:] for spelling in flag.spellings]  # the first names the model
    for name in names:
        head = name.partition(".")[0].replace("_", "-")
        if f"-{name}" in known or any(spelling == f"--{head}" for spelling in known if "." in name):
            continue
        if name in OPTIONS or not any(spelling.startswith(f"--{name}") for spelling in known):
            raise InputError(
                f"--sweep {name[:60]}: no flag that changes a plan", fix=_nearest(name, known, memory_name)
            )


def _nearest(name: str, known: Sequence[str], memory_name: str) -> str:
    """What to write for a name that sets nothing: the spelling it comes closest to, where one is close."""
    from difflib import get_close_matches

    near = get_close_matches(f"--{name}", known, n=1, cutoff=LIKENESS) if len(name) <= 80 else ()
    names = f"name a memory flag of the engine, {memory_name} or length"
    return next((f"write {spelling.lstrip('-')}" for spelling in near), names)


def _range(text: str, values: str) -> tuple[str, ...]:
    try:
        low, high, step = (Decimal(part.strip()) for part in values.split(":"))
    except InvalidOperation:
        raise InputError(f"--sweep {quoted(text)} is no range of numbers", fix="write NAME=low:high:step") from None
    if not (low.is_finite() and high.is_finite() and step.is_finite()) or step <= 0 or high < low:
        raise InputError(f"--sweep {quoted(text)} goes nowhere", fix="low <= high and a step above 0")
    if min(_exponent(value) for value in (low, high, step)) < -LARGEST_VALUE.adjusted():
        raise InputError(f"--sweep {quoted(text)} has too many digits", fix="write NAME=low:high:step")
    if max(-low, high, step) > LARGEST_VALUE or high - low >= step * MOST_POINTS:
        raise InputError(f"--sweep {quoted(text)} has too many steps", fix=f"at most {MOST_POINTS:,}")
    count = int((high - low) / step) + 1
    return tuple(f"{(low + step * i).normalize():f}" for i in range(count))


def _exponent(value: Decimal) -> int:
    """The place of the last digit that a number is written with."""
    exponent = value.as_tuple().exponent
    return exponent if isinstance(exponent, int) else 0


def _gib(name: str, text: str) -> float:
    """A size; a number alone is GiB, so that a range can be swept."""
    try:
        return parse_gib(f"{text}GiB" if text[-1:].isdecimal() else text)
    except InputError:
        raise InputError(
            f"--sweep {name}={text[:20]}: not a usable size", fix=f"write {name}=20:40:1, in GiB"
        ) from None


MOST_REASONS, MOST_ROWS = 4, 60
MOST_LABELS, MOST_DRAWN = 12, 2000


def sweep_view(
    engine: Engine,
    model: str,
    axes: Sequence[SweepAxis],
    points: Sequence[Point],
    work: Workload,
    *,
    estimated: bool = False,
) -> View:
    """Every point of a sweep, or the front alone where there are too many to read. ``estimated``: memory is an interval
    of which they take the likely middle.
    """
    refused = sum(bool(point.refusal) for point in points)
    shown = (list(points) if len(points) <= MOST_ROWS else [point for point in points if point.best])[:MOST_ROWS]
    length = work.mean_length
    what = f"requests of {float(length):,.0f} tokens" if length is not None else "requests"
    most = max((point.requests for point in points if not point.refusal), default=None)
    rows = tuple(
        (
            *point.values,
            f"{point.units:,}",
            f"{point.tokens:,}",
            f"{point.requests:,} {'*' if point.best else ' '}",
            "refused" if point.refusal else point.binding,
        )
        for point in shown
    )
    best = any(point.best for point in shown)
    notes = ["* no other combination has as many requests and tokens, and more of one"] if best else []
    reasons = list(dict.fromkeys(f"refused: {point.refusal}" for point in shown if point.refusal))
    notes += reasons[:MOST_REASONS]
    if len(reasons) > MOST_REASONS:
        notes.append(f"{len(reasons) - MOST_REASONS} more reasons: see --csv or --json")
    if estimated:
        notes.append("memory is an estimate: these are of the likely one, and a plan of one of them says the range")
    if len(shown) < len(points):
        notes.append(f"{len(points):,} points: only those are shown; --csv or --json print all of them")
    unit: str = offered(engine.sweeping, "--sweep", engine.title).unit
    header = (*(axis.name for axis in axes), unit, "KV tokens", "requests  ", "binds")
    counted = f"{len(points):,} combination{'s' if len(points) != 1 else ''}"
    starred = "; * the best trade-offs" if best else ""
    telling = sorted(range(len(shown)), key=lambda n: (bool(shown[n].refusal), not shown[n].best, -shown[n].requests))
    columns = tuple(range(len(axes), len(axes) + 3))
    return View(
        f"{model} on {engine.title}",
        "nothing starts" if most is None else f"{most:,} {what} at most",
        f"{counted}{f', {refused:,} refused' if refused else ''}{starred}",
        tables=(Table("Combinations", header, rows, columns, asked=True, telling=tuple(telling)),),
        notes=tuple(notes),
        pictures={"pareto": lambda: pareto_picture(axes, points, model)},
    )


def pareto_picture(axes: Sequence[SweepAxis], points: Sequence[Point], model: str) -> Chart:
    """Every combination that starts. Raises InputError where none does."""
    started = [point for point in points if not point.refusal]
    if not started:
        raise InputError("nothing starts: there is nothing to draw", fix="the answer without --save says why")
    best = sorted({(p.tokens, p.requests) for p in started if p.best})
    others = sorted({(p.tokens, p.requests) for p in started if not p.best})
    if len(others) > MOST_DRAWN:
        others = others[:: -(-len(others) // MOST_DRAWN)]
    names = ", ".join(axis.name for axis in axes)
    count = f"{len(points):,} combination{'s' if len(points) != 1 else ''}"
    told = f"{count} of {names}; {len(points) - len(started):,} do not start."
    series = [Series("other combinations", "other", tuple(others), ".", "dots")] if others else []
    series.append(Series("best trade-offs", "state", tuple(best), "*", "dots"))
    return Chart(
        f"Requests against KV tokens: {model}",
        told,
        Axis("KV tokens", "number"),
        Axis("requests at once"),
        tuple(series),
        labels=_labels(started),
    )


def _labels(points: Sequence[Point]) -> tuple[tuple[float, float, str], ...]:
    """The settings of the best points."""
    best: dict[tuple[int, int], str] = {}
    for point in points:
        if point.best:
            best.setdefault((point.tokens, point.requests), ", ".join(point.values))
    ordered = sorted(best.items(), key=lambda item: -item[0][1])
    return tuple((float(tokens), float(requests), text) for (tokens, requests), text in ordered[:MOST_LABELS])
