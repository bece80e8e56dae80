"""From which length does KV outweigh the state, and from which does a hybrid weigh less than a baseline?

The closed forms are in formulas.py; engines say what a model holds (`Holdings`: dtypes, sharding, rows,
pages).
"""

from dataclasses import dataclass
from fractions import Fraction
from typing import Any, NamedTuple, Protocol

from hybridcalc.architecture import Architecture
from hybridcalc.findings import Step
from hybridcalc.formulas import KvCurve, Span, lighter_spans, total_crossover_tokens

DEFAULT_LONGEST = 131_072


class Point(NamedTuple):
    """Bytes one sequence of ``tokens`` holds on one rank."""

    tokens: int
    state_bytes: int
    kv_bytes: int
    baseline_bytes: int | None


class Baseline(NamedTuple):
    """The other model: its KV per token, and where it meets the state alone and the whole hybrid.

    ``lighter``: the lengths at which the hybrid holds less, of which those from ``total_tokens`` on are the last.
    """

    name: str
    kv_bytes_per_token: int
    why: str
    component_tokens: Fraction | None
    total_tokens: Fraction | None
    lighter: tuple[Span, ...]


class Holdings(NamedTuple):
    """What one model holds of a sequence on one rank, as an engine keeps it.

    ``state_bytes`` of all ``state_layers`` (0 without a state), its KV over length and the layers that keep it;
    ``slot_bytes`` are those of one state slot, where they are fewer: pages padded, states kept beside the running one.
    ``layers`` in words, what state and KV consist of. ``ranks`` share the tokens of a sequence while each keeps its
    whole state. ``notes`` are said beside the answer, ``steps`` are the engine's own arithmetic.
    """

    name: str
    layers: str
    state_bytes: int
    state_layers: int
    state_why: str
    curve: KvCurve
    kv_layers: int
    kv_why: str
    ranks: int = 1
    notes: tuple[str, ...] = ()
    steps: tuple[Step, ...] = ()
    slot_bytes: int | None = None


class Stream(NamedTuple):
    """What one request moves in a step on one rank: its state (bytes, and elements but for the convolution), and its
    KV over its length, which ``sharing`` ranks part among them. A step verifies ``positions`` of it, more than one with
    drafts, and writes its state as often, or not at all where ReplaySSM keeps the inputs of steps (``writes``).
    """

    state_bytes: int
    state_elements: int
    curve: KvCurve
    sharing: int = 1
    positions: int = 1
    writes: int = 1


class StateGrid(NamedTuple):
    """Tokens from one state that a prefix cache may keep to the next: in prompts and in what is generated, with the
    flag that says how many of the latter; None for it where those of prompts hold.
    """

    prompts: int
    generated: int
    flag: str | None = None


class _Side(NamedTuple):
    """What one model holds on the ranks that share a sequence: a state on each, and its KV over length."""

    state_bytes: int
    curve: KvCurve


@dataclass(frozen=True, slots=True)
class Crossover:
    """The answer of ``hybridcalc crossover``; tokens are exact fractions, None where the two never meet."""

    model: str
    state_bytes: int
    slot_bytes: int
    state_why: str
    kv_bytes_per_token: int
    kv_why: str
    component_tokens: Fraction | None
    per_layer_tokens: Fraction | None
    traffic_tokens: Fraction | None
    baseline: Baseline | None
    curve: tuple[Point, ...]
    steps: tuple[Step, ...]
    notes: tuple[str, ...]

    @property
    def marks(self) -> list[tuple[str, Fraction]]:
        """The crossovers worth a mark on the curve."""
        found = [("KV = state", self.component_tokens)]
        if self.baseline is not None:
            name = f"hybrid = {self.baseline.name}"
            found += [(name, Fraction(span.last + 1)) for span in self.baseline.lighter if span.last is not None]
            found.append((name, self.baseline.total_tokens or None))
        return [(name, tokens) for name, tokens in found if tokens is not None]

    def to_dict(self) -> dict[str, Any]:
        """The keys of ``crossover --json``."""
        baseline = None
        if self.baseline is not None:
            baseline = {
                "name": self.baseline.name,
                "kv_bytes_per_token": self.baseline.kv_bytes_per_token,
                "component_tokens": _float(self.baseline.component_tokens),
                "total_tokens": _float(self.baseline.total_tokens),
            }
        return {
            "model": self.model,
            "state_bytes": self.state_bytes,
            "state_bytes_per_slot": self.slot_bytes,
            "kv_bytes_per_token": self.kv_bytes_per_token,
            "component_tokens": _float(self.component_tokens),
            "per_layer_tokens": _float(self.per_layer_tokens),
            "traffic_tokens": _float(self.traffic_tokens),
            "baseline": baseline,
            "lighter_tokens": [list(span) for span in self.baseline.lighter] if self.baseline is not None else None,
            "curve": [point._asdict() for point in self.curve],
            "notes": list(self.notes),
            "steps": [step.to_dict() for step in self.steps],
        }


class Compare(Protocol):
    """The crossovers of a model with itself and with a baseline, up to ``longest`` tokens in the curve."""

    def __call__(
        self, model: Architecture, baseline: Architecture | None, args: Any, *, longest: int | None = None
    ) -> Crossover:
        """Compare them. Raises InputError for a model without a state."""
        ...


def compare(
    hybrid: Holdings, baseline: Holdings | None, moved: Stream | None, *, longest: int | None = None
) -> Crossover:
    """Crossovers of ``hybrid`` with itself and with ``baseline``, up to ``longest`` tokens in the curve.

    ``moved``: what a step of the hybrid moves, None where a query reads part of the KV alone.
    """
    own, shared = hybrid.curve, hybrid.ranks
    component = _outweighs(hybrid.state_bytes * shared, own)
    per_layer = None
    if own.bytes_per_token and hybrid.state_layers:
        per_layer = Fraction(hybrid.state_bytes * shared, hybrid.state_layers)
        per_layer /= Fraction(own.bytes_per_token, hybrid.kv_layers)
    one = _Side(hybrid.state_bytes, own)
    other, side = _baseline(baseline, one, shared)
    traffic = None if moved is None else _outweighs(2 * moved.state_bytes * moved.sharing, moved.curve)
    marks = [component]
    if other is not None:
        marks += [other.total_tokens, *(Fraction(s.last + 1) for s in other.lighter if s.last is not None)]
    end = longest or max([DEFAULT_LONGEST, *(4 * int(mark) for mark in marks if mark is not None)])
    curve = tuple(
        Point(
            tokens,
            hybrid.state_bytes,
            own.at(tokens) // shared,
            side.state_bytes + side.curve.at(tokens) // shared if side is not None else None,
        )
        for tokens in curve_lengths(marks, end)
    )
    return Crossover(
        model=hybrid.name,
        state_bytes=hybrid.state_bytes,
        slot_bytes=hybrid.state_bytes if hybrid.slot_bytes is None else hybrid.slot_bytes,
        state_why=hybrid.state_why,
        kv_bytes_per_token=own.bytes_per_token,
        kv_why=hybrid.kv_why,
        component_tokens=component,
        per_layer_tokens=per_layer,
        traffic_tokens=traffic,
        baseline=other,
        curve=curve,
        notes=hybrid.notes,
        steps=(*hybrid.steps, *_steps(hybrid, one, component, per_layer, other, side)),
    )


def _baseline(model: Holdings | None, hybrid: _Side, shared: int) -> tuple[Baseline | None, _Side | None]:
    """The other model, and what it holds: a hybrid as baseline has a state as well."""
    if model is None:
        return None, None
    curve = model.curve
    more_state = (hybrid.state_bytes - model.state_bytes) * shared
    component = _outweighs(hybrid.state_bytes * shared, curve)
    total = total_crossover_tokens(more_state, hybrid.curve, curve)
    lighter = lighter_spans(more_state, hybrid.curve, curve)
    why = f"{model.layers} layers"
    if model.state_bytes:
        why += f", and a state of {model.state_bytes:,} B"
    return Baseline(model.name, curve.bytes_per_token, why, component, total, lighter), _Side(model.state_bytes, curve)


def moved_whole(model: Architecture, stream: Stream) -> Stream | None:
    """What a step moves of a model whose attention reads all KV; None of sparse attention."""
    attention: Any = model.attention
    sparse = getattr(attention, "compressed", None) or getattr(attention, "indexer", None)
    return None if sparse else stream


def _outweighs(state_bytes: int, curve: KvCurve) -> Fraction | None:
    """Tokens at which that KV weighs as much as the state, windows included; None where it never does."""
    return total_crossover_tokens(state_bytes, KvCurve(0), curve)


def _steps(
    whole: Holdings,
    hybrid: _Side,
    component: Fraction | None,
    per_layer: Fraction | None,
    other: Baseline | None,
    side: _Side | None,
) -> list[Step]:
    source, unit, state = "docs/formulas.md, crossover", "B per sequence and rank", hybrid.state_bytes
    layers, shared = whole.state_layers, whole.ranks
    one = Step("state", "layers x state of one", f"{layers} x {state // layers:,}", state, unit, source)
    steps = [] if whole.steps else [one]  # an engine's own arithmetic ends in the state it holds
    if component is not None and per_layer is not None:
        pair = f"{_share(state, layers)}{f' x {shared}' if shared > 1 else ''} / "
        pair += _share(hybrid.curve.bytes_per_token, whole.kv_layers)
        steps.append(Step("T*(pair)", "state of a layer / KV of a layer", pair, per_layer, "tokens", source))
    alone = _Side(state, KvCurve(0))
    if component is not None:
        steps.append(_meeting("T*(state)", alone, _Side(0, hybrid.curve), component, component, shared, ""))
    if other is None or side is None:
        return steps
    found = other.component_tokens
    if found is not None:
        only_kv = _Side(0, side.curve)
        steps.append(_meeting("T*(baseline)", alone, only_kv, found, found, shared, "baseline "))
    total = other.total_tokens
    if total == 0:
        text = "the baseline weighs no less at any length"
        steps.append(Step("T*(total)", text, "0", total, "tokens", source))
    elif total is not None:
        steps.append(_meeting("T*(total)", hybrid, side, total, total, shared, "baseline "))
    for span in other.lighter:
        if span.last is None:
            continue
        if span.first > 1:
            steps.append(_meeting("T*(lighter from)", hybrid, side, span.first, None, shared, "baseline "))
        steps.append(_meeting("T*(lighter below)", hybrid, side, span.last + 1, None, shared, "baseline "))
    return steps


def _meeting(
    symbol: str, hybrid: _Side, other: _Side, near: Fraction | int, value: Fraction | None, shared: int, whose: str
) -> Step:
    """Where both sides weigh the same: what one holds more at no tokens, over what the other gains with each.

    ``near`` lies on the piece of both curves that holds the meeting; ``value`` is the meeting where it is known.
    """
    full, slope = hybrid.curve.line(near)
    other_full, other_slope = other.curve.line(near)
    terms = [
        (1, "state", hybrid.state_bytes, shared),
        (1, "full windows", full, 1),
        (-1, f"{whose}state", other.state_bytes, shared),
        (-1, f"{whose}full windows", other_full, 1),
    ]
    rates = [
        (1, f"{whose}KV{_filling(other.curve, near)} per token", other_slope, 1),
        (-1, f"own KV{_filling(hybrid.curve, near)} per token", slope, 1),
    ]
    turned = -1 if other_slope < slope else 1  # the other side may be ahead and lose its lead
    above, above_numbers = _sum(terms, turned)
    below, below_numbers = _sum(rates, turned)
    if value is None:
        lead = (hybrid.state_bytes - other.state_bytes) * shared + full - other_full
        value = Fraction(lead, other_slope - slope)
    numbers = f"{above_numbers} / {below_numbers}"
    return Step(symbol, f"{above} / {below}", numbers, value, "tokens", "docs/formulas.md, crossover")


def _filling(curve: KvCurve, tokens: Fraction | int) -> str:
    """Said of KV whose windows still grow at that length."""
    return " and windows" if curve.window_bytes_per_token and tokens <= curve.window_tokens else ""


def _sum(terms: list[tuple[int, str, int, int]], turned: int) -> tuple[str, str]:
    """The signed terms that are not 0, in words and in numbers: those to add, then those to take off."""
    signed = [(sign * turned, name, size, ranks) for sign, name, size, ranks in terms if size]
    kept = sorted(signed, key=lambda term: -term[0])
    words = numbers = ""
    for sign, name, size, ranks in kept:
        joint = (" + " if sign > 0 else " - ") if words else ("" if sign > 0 else "-")
        words, numbers = words + joint + name, numbers + joint + _ranks(size, ranks)
    return (f"({words})", f"({numbers})") if len(kept) > 1 else (words, numbers)


def _share(size: int, layers: int) -> str:
    """What one of ``layers`` has of ``size``; a division where pages do not share out evenly among them."""
    return f"{size // layers:,}" if size % layers == 0 else f"({size:,} / {layers})"


def _ranks(size: int, ranks: int) -> str:
    """Bytes that each of the ranks keeps whole."""
    return f"{size:,}" if ranks == 1 else f"{size:,} x {ranks}"


def _float(value: Fraction | None) -> float | None:
    return None if value is None else float(value)


def curve_lengths(marks: list[Fraction | None], longest: int) -> list[int]:
    """Lengths worth drawing: powers of two up to ``longest`` and the whole tokens around each crossover."""
    lengths = {2**i for i in range(longest.bit_length()) if 2**i <= longest} | {longest}
    for mark in marks:
        if mark is not None and 1 <= mark <= longest:
            lengths.add(max(1, int(mark)))
    return sorted(lengths)
