"""What does every combination of a few settings come to? Planned exactly, with the best trade-offs marked.

    --sweep mamba-full-memory-ratio=0.5:2:0.1 --sweep kv-cache-dtype=auto,fp8_e4m3

A name is a flag of the engine without its dashes, or ``rest`` (GiB) or ``length`` (tokens). Points that only differ in
ratio, K, limits, memory or length share all that does not depend on them. A point is on the Pareto front when no other
has at least as many requests and tokens and more of one.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from decimal import Decimal, InvalidOperation
from fractions import Fraction
from itertools import product
from typing import Any, NamedTuple

from hybridcalc.architecture.geometry import Architecture
from hybridcalc.deployment import Rest
from hybridcalc.engines.sglang.allocation import check_allocation, check_kv_pages
from hybridcalc.engines.sglang.config import Refusal, ServerArgs, with_model_defaults
from hybridcalc.engines.sglang.flags import FLAGS
from hybridcalc.engines.sglang.planner import Prepared, prepare, size
from hybridcalc.engines.sglang.settings import binding_limit, settle
from hybridcalc.errors import HybridcalcError, InputError
from hybridcalc.units import parse_gib, parse_tokens

MOST_POINTS = 250_000
LARGEST_VALUE = Decimal(10**18)
"""Beyond it, and below its inverse, no setting of a server lies."""
CHEAP_FIELDS = ("mamba_full_memory_ratio", "max_mamba_cache_size", "max_running_requests", "max_total_tokens")
"""Arguments that change only the arithmetic of a plan, not what is prepared for it."""

Arguments = Callable[[list[str]], ServerArgs]
"""Engine flags, as words -> arguments; raises InputError for what the engine's command line would refuse."""


class _Shared(NamedTuple):
    """What points of one preparation share; ``unbuildable`` says why the pools are refused once they are sized."""

    ready: Prepared
    unbuildable: str


class Axis(NamedTuple):
    """One swept setting and its values, as text."""

    name: str
    values: tuple[str, ...]


class Point(NamedTuple):
    """One combination: the values, what they come to, or why the engine would not start."""

    values: tuple[str, ...]
    slots: int
    tokens: int
    requests: int
    binding: str
    refusal: str
    best: bool = False

    def to_dict(self, axes: Sequence[Axis]) -> dict[str, Any]:
        """Plain data, the swept settings first."""
        settings = {axis.name: value for axis, value in zip(axes, self.values, strict=True)}
        return settings | {
            "max_mamba_cache_size": self.slots or None,
            "logical_token_capacity": self.tokens or None,
            "requests": self.requests,
            "binding": self.binding or None,
            "refusal": self.refusal or None,
            "pareto": self.best,
        }


def parse_axis(text: str) -> Axis:
    """``NAME=a,b,c`` or ``NAME=low:high:step``. Raises InputError for anything else, and for too many values."""
    name, equals, values = text.partition("=")
    name = name.strip().removeprefix("--")
    if not equals or not name or not values.strip():
        raise InputError(f"--sweep {text[:40]!r} is not NAME=values", fix="write NAME=a,b,c or NAME=low:high:step")
    if values.count(":") == 2 and "," not in values:
        return Axis(name, _range(text, values))
    listed = tuple(value.strip() for value in values.split(",") if value.strip())
    if not listed or len(listed) > MOST_POINTS:
        raise InputError(f"--sweep {text[:40]!r} holds no usable list of values", fix="write NAME=a,b,c")
    return Axis(name, listed)


def count_points(axes: Sequence[Axis]) -> int:
    """Combinations of all axes. Raises InputError above MOST_POINTS and for a name given twice."""
    if len({_field(axis.name) for axis in axes}) < len(axes):
        raise InputError("--sweep names a setting twice", fix="list all its values in one --sweep")
    count = 1
    for axis in axes:
        count *= len(axis.values)
    if count > MOST_POINTS:
        raise InputError(f"{count:,} combinations are more than {MOST_POINTS:,}", fix="take larger steps")
    return count


def sweep(
    model: Architecture,
    arguments: Arguments,
    axes: Sequence[Axis],
    *,
    memory: Callable[[ServerArgs], Rest],
    length: Fraction | None,
) -> Iterator[Point]:
    """Every combination in order, planned exactly on the likely ``memory``.

    A combination that makes no sense is a refused point; InputError is raised when none makes any.
    """
    prepared: dict[tuple[Any, ...], _Shared | Refusal] = {}
    cheap = {axis.name for axis in axes if _field(axis.name) in CHEAP_FIELDS}
    senseless: InputError | None = None
    sense = False
    for values in product(*(axis.values for axis in axes)):
        given = {axis.name: value for axis, value in zip(axes, values, strict=True)}
        try:
            rest = _gib(given.pop("rest")) if "rest" in given else None
            tokens = Fraction(parse_tokens(given.pop("length"))) if "length" in given else length
            args = arguments([word for name, value in given.items() for word in (f"--{name}", value)])
            if not prepared:
                _check_names(given)
            key = tuple(value for name, value in given.items() if name not in cheap)
            rest = memory(args).likely_gib if rest is None else rest
            point = _point(model, args, key, prepared, values, rest, tokens)
            sense = True
        except Refusal as refusal:  # the weights do not fit
            point, sense = _refused(values, refusal.message), True
        except InputError as error:
            point, senseless = _refused(values, error.message), senseless or error
        yield point
    if senseless is not None and not sense:
        raise senseless


def _refused(values: tuple[str, ...], reason: str) -> Point:
    return Point(values, 0, 0, 0, "", reason)


def _field(name: str) -> str:
    """The argument that a swept name sets, whatever its spelling; the name itself where it is no flag."""
    exact = (flag.field for flag in FLAGS if f"--{name}" in flag.spellings)
    near = (flag.field for flag in FLAGS if any(spelling.startswith(f"--{name}") for spelling in flag.spellings))
    return next(exact, None) or next(near, name)


def mark_front(points: Sequence[Point]) -> list[Point]:
    """The same points with those of the Pareto front over requests and tokens marked."""
    order = sorted((p for p in points if not p.refusal), key=lambda p: (-p.requests, -p.tokens))
    front, most = set[tuple[int, int]](), -1
    for point in order:
        if point.tokens > most:
            front.add((point.requests, point.tokens))
            most = point.tokens
    return [p._replace(best=not p.refusal and (p.requests, p.tokens) in front) for p in points]


def _point(
    model: Architecture, args: ServerArgs, key: tuple[Any, ...], prepared: dict[tuple[Any, ...], _Shared | Refusal],
    values: tuple[str, ...], rest_gib: float, length: Fraction | None,
) -> Point:  # fmt: skip
    shared = prepared.get(key)
    if shared is None:
        try:
            shared = _share(model, args)
        except Refusal as refusal:
            shared = refusal
        prepared[key] = shared
    if isinstance(shared, Refusal):
        return _refused(values, shared.reason)
    ready = shared.ready._replace(args=with_model_defaults(model.architecture, args))
    try:
        sizing = size(ready, rest_gib)
    except HybridcalcError as refusal:
        return _refused(values, refusal.message)
    if shared.unbuildable:
        return _refused(values, shared.unbuildable)
    slots, tokens = sizing.state.slots, sizing.tokens * args.dcp_size
    if length is None:
        binding = binding_limit(slots, tokens, ready.slots.count, sizing.requests)
        return Point(values, slots, tokens, sizing.requests, binding, "")
    setting = settle("", "", ready, sizing, length)
    return Point(values, slots, tokens, setting.running, setting.binding, "")


def _share(model: Architecture, args: ServerArgs) -> _Shared:
    ready = prepare(model, args)
    try:
        check_allocation(model, ready.args, replay_active=ready.replay_active)
        check_kv_pages(model, ready.args)
    except Refusal as refusal:
        return _Shared(ready, refusal.reason)
    return _Shared(ready, "")


def _check_names(names: Iterable[str]) -> None:
    """A swept name must set something: the engine passes over flags nobody knows, a sweep does not."""
    known = [spelling for flag in FLAGS if flag.field != "model_path" for spelling in flag.spellings]
    for name in names:
        if not any(spelling.startswith(f"--{name}") for spelling in known):
            raise InputError(
                f"--sweep {name[:40]}: no flag that changes a plan",
                fix="name a memory flag of the engine, rest or length",
            )


def _range(text: str, values: str) -> tuple[str, ...]:
    try:
        low, high, step = (Decimal(part.strip()) for part in values.split(":"))
    except InvalidOperation:
        raise InputError(f"--sweep {text[:40]!r} is no range of numbers", fix="write NAME=low:high:step") from None
    if not (low.is_finite() and high.is_finite() and step.is_finite()) or step <= 0 or high < low:
        raise InputError(f"--sweep {text[:40]!r} goes nowhere", fix="low <= high and a step above 0")
    if max(-low, high, step) > LARGEST_VALUE or step < 1 / LARGEST_VALUE or high - low >= step * MOST_POINTS:
        raise InputError(f"--sweep {text[:40]!r} has too many steps", fix=f"at most {MOST_POINTS:,}")
    count = int((high - low) / step) + 1
    return tuple(f"{(low + step * i).normalize():f}" for i in range(count))


def _gib(text: str) -> float:
    """A size; a number alone is GiB, so that a range can be swept."""
    try:
        return parse_gib(f"{text}GiB" if text[-1:].isdecimal() else text)
    except InputError:
        raise InputError(f"--sweep rest={text[:20]}: not a usable size", fix="write rest=20:40:1, in GiB") from None
