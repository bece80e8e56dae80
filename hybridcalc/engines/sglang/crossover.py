"""From which length does KV outweigh the state, and from which does a hybrid weigh less than a baseline?

The closed forms are in formulas/crossover.py; here they meet the sizes SGLang keeps (dtypes, sharding, KV rows).
"""

from dataclasses import dataclass
from fractions import Fraction
from typing import Any, NamedTuple

from hybridcalc.architecture.geometry import Architecture
from hybridcalc.engines.sglang.config import ServerArgs, check_model, rules_for
from hybridcalc.engines.sglang.kv import kv_curve, kv_layers, kv_row
from hybridcalc.engines.sglang.states import slot_parts, state_slot
from hybridcalc.formulas.crossover import KvCurve, crossover_tokens, curve_lengths, total_crossover_tokens
from hybridcalc.plan import Step

DEFAULT_LONGEST = 131_072


class Point(NamedTuple):
    """Bytes one sequence of ``tokens`` holds on one rank."""

    tokens: int
    state_bytes: int
    kv_bytes: int
    baseline_bytes: int | None


class Baseline(NamedTuple):
    """The other model: its KV per token, and where it meets the state alone and the whole hybrid."""

    name: str
    kv_bytes_per_token: int
    why: str
    component_tokens: Fraction | None
    total_tokens: Fraction | None


@dataclass(frozen=True, slots=True)
class Crossover:
    """The answer of ``hybridcalc crossover``; tokens are exact fractions, None where the two never meet."""

    model: str
    state_bytes: int
    state_why: str
    kv_bytes_per_token: int
    kv_why: str
    component_tokens: Fraction | None
    per_layer_tokens: Fraction | None
    baseline: Baseline | None
    curve: tuple[Point, ...]
    steps: tuple[Step, ...]
    notes: tuple[str, ...]

    @property
    def marks(self) -> list[tuple[str, Fraction]]:
        """The crossovers worth a mark on the curve."""
        found = [("KV = state", self.component_tokens)]
        if self.baseline is not None:
            found.append((f"hybrid = {self.baseline.name}", self.baseline.total_tokens))
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
            "kv_bytes_per_token": self.kv_bytes_per_token,
            "component_tokens": _float(self.component_tokens),
            "per_layer_tokens": _float(self.per_layer_tokens),
            "baseline": baseline,
            "curve": [point._asdict() for point in self.curve],
            "notes": list(self.notes),
            "steps": [step.to_dict() for step in self.steps],
        }


def compare(
    model: Architecture, baseline: Architecture | None, args: ServerArgs, *, longest: int | None = None
) -> Crossover:
    """Crossovers of ``model`` with itself and with ``baseline``, up to ``longest`` tokens in the curve.

    Raises InputError for a model without a state, ShardingError for a tp that does not divide.
    """
    rules, note = rules_for(args.engine_version)
    check_model(rules, model.architecture)
    slot, own = state_slot(model, args), kv_curve(model, args)
    shared = args.dcp_size  # ranks that share the tokens of a sequence, while each keeps its whole state
    component = crossover_tokens(slot.bytes * shared, own.bytes_per_token)
    per_layer = None
    if own.bytes_per_token and slot.layers:
        per_layer = Fraction(slot.bytes * shared, slot.layers) / Fraction(own.bytes_per_token, kv_layers(model))
    other, other_curve, other_state = _baseline(baseline, slot.bytes, own, args)
    notes = [note, model.reading, _window_note(model, own)]
    marks = [component, other.total_tokens if other else None]
    end = longest or max([DEFAULT_LONGEST, *(4 * int(mark) for mark in marks if mark is not None)])
    curve = tuple(
        Point(
            tokens,
            slot.bytes,
            own.at(tokens) // shared,
            other_state + other_curve.at(tokens) // shared if other_curve is not None else None,
        )
        for tokens in curve_lengths(marks, end)
    )
    state_why = f"{model.describe_layers.split(' + ')[0]} layers: {slot_parts(slot)}"
    return Crossover(
        model=model.name, state_bytes=slot.bytes, state_why=state_why, kv_bytes_per_token=own.bytes_per_token,
        kv_why=kv_row(model, args), component_tokens=component, per_layer_tokens=per_layer,
        baseline=other, curve=curve, notes=tuple(text for text in notes if text),
        steps=tuple(_steps(model, slot.bytes, slot.layers, own, component, per_layer, other)),
    )  # fmt: skip


def _baseline(
    model: Architecture | None, state_bytes: int, own: KvCurve, args: ServerArgs
) -> tuple[Baseline | None, KvCurve | None, int]:
    """The other model, its KV over length, and its own state, which a hybrid as baseline holds as well."""
    if model is None:
        return None, None, 0
    curve, shared = kv_curve(model, args), args.dcp_size
    other_state = state_slot(model, args).bytes if model.state is not None else 0
    component = crossover_tokens(state_bytes * shared, curve.bytes_per_token)
    total = total_crossover_tokens((state_bytes - other_state) * shared, own, curve)
    why = f"{model.describe_layers} layers"
    if other_state:
        why += f", and a state of {other_state:,} B"
    return Baseline(model.name, curve.bytes_per_token, why, component, total), curve, other_state


def _window_note(model: Architecture, curve: KvCurve) -> str:
    if not curve.window_bytes_per_token:
        return ""
    most = curve.window_bytes_per_token * curve.window_tokens
    return f"{model.window_layers} sliding-window layers add up to {most:,} B, full at {curve.window_tokens:,} tokens"


def _steps(
    model: Architecture, state: int, layers: int, own: KvCurve, component: Fraction | None, per_layer: Fraction | None,
    other: Baseline | None,
) -> list[Step]:  # fmt: skip
    source, unit = "docs/formulas.md, crossover", "B per sequence and rank"
    steps = [Step("state", "layers x state of one", f"{layers} x {state // layers:,}", state, unit, source)]
    if component is not None and per_layer is not None:
        pair = f"{state // layers:,} / {own.bytes_per_token // kv_layers(model):,}"
        whole = f"{state:,} / {own.bytes_per_token:,}"
        steps.append(Step("T*(pair)", "state of a layer / KV of a layer", pair, per_layer, "tokens", source))
        steps.append(Step("T*(state)", "state / KV per token", whole, component, "tokens", source))
    if other is not None and other.total_tokens is not None:
        numbers = f"{state:,} / ({other.kv_bytes_per_token:,} - {own.bytes_per_token:,})"
        steps.append(Step("T*(total)", "state / (baseline KV - own KV)", numbers, other.total_tokens, "tokens", source))
    return steps


def _float(value: Fraction | None) -> float | None:
    return None if value is None else float(value)
