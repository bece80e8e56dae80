"""What do a model's weights take on one rank, where an engine puts its tensors?

    bytes = sum over the stage's blocks of layers x local tensor in its scheme + what the engine adds after loading

The heaviest pipeline stage counts (placement.py says which has what). Exact where class, config and quantisation are
known; where a checkpoint's name says that it is quantised and nothing says how, or only a count of its parameters is
published, the bytes are an interval.
"""

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from hybridcalc.architecture.geometry import Architecture
from hybridcalc.architecture.tensors import DRAFT, FIRST, LAST, LAYERS, VISION, Block, Tensor, Widths
from hybridcalc.architecture.weights import Parameters, Parts, parameters, schemes, stored_bytes
from hybridcalc.engines.checkpoints import RULES, Stored, checkpoint_of
from hybridcalc.engines.placement import Placement
from hybridcalc.errors import ConfigError, NotModelled, ShardingError
from hybridcalc.findings import Finding
from hybridcalc.units import DTYPE_BYTES, short_dtype

if TYPE_CHECKING:
    from hybridcalc.architecture.quantization import Quantization

ADDED = "added"
"""The group of what an engine adds after loading."""


class Line(NamedTuple):
    """One tensor on the rank: how often it is there, its shape whole and local, how it is stored, in all bytes."""

    group: str
    name: str
    copies: int
    shape: tuple[int, ...]
    local: tuple[int, ...]
    dtype: str
    sharding: str
    parameters: int
    bytes: int


class Group(NamedTuple):
    """A group of tensors: parameters of the model, bytes on the rank."""

    name: str
    parameters: int
    bytes_per_rank: int
    dtype: str
    sharding: str


class Weights(NamedTuple):
    """The answer. ``bytes_per_rank``, low and high: equal where they are exact. ``uncertain`` says why they are not."""

    model: Architecture
    checkpoint: str
    quantization: str
    parameters: int
    parameters_text: int
    checkpoint_bytes: int | None
    low: int
    likely: int
    high: int
    lines: tuple[Line, ...]
    groups: tuple[Group, ...]
    weights_from: str
    uncertain: str = ""
    findings: tuple[Finding, ...] = ()

    @property
    def exact(self) -> bool:
        """Whether there is nothing to either side."""
        return self.low == self.high

    @property
    def bytes_per_rank(self) -> int | list[int]:
        """Bytes on the heaviest rank, or [low, likely, high]."""
        return self.likely if self.exact else [self.low, self.likely, self.high]

    def to_dict(self) -> dict[str, Any]:
        """The document of `weights --json`."""
        return {
            "model": self.model.name,
            "checkpoint": self.checkpoint,
            "quantization": self.quantization,
            "parameters": self.parameters,
            "parameters_text": self.parameters_text,
            "checkpoint_bytes": self.checkpoint_bytes,
            "bytes_per_rank": self.bytes_per_rank,
            "uncertain": self.uncertain or None,
            "groups": [group._asdict() for group in self.groups],
            "weights_from": self.weights_from,
            "findings": [finding.to_dict() for finding in self.findings],
            "tensors": [line._asdict() for line in self.lines],
        }


def lines_of(
    found: Parameters, quantization: "Quantization | None", placed: Placement, dtype: str, stage: int
) -> Iterator[Line]:
    """Every tensor of a stage as one rank holds it, then what the engine adds. Raises ShardingError."""
    first, last = placed.stages[stage]
    ends = {FIRST: stage == 0, LAST: stage == len(placed.stages) - 1}
    ends[DRAFT], ends[VISION] = ends[LAST] and placed.draft, ends[FIRST] and placed.vision
    for block, of_block in zip(found.blocks, schemes(found, quantization), strict=True):
        if block.place == LAYERS:
            held = sum(first <= layer < last for layer in block.layers)
        else:
            tied = block.place == FIRST and found.tied and ends[LAST] and block.tensors[0].over == "embedding"
            held = block.times if ends[block.place] or tied else 0
        if held:
            for tensor, parts in zip(block.tensors, of_block, strict=True):
                yield from _lines(block, tensor, parts, held, placed, dtype, first, last)
    for extra in placed.extras:
        times = sum(first <= layer < last for layer in extra.layers) if extra.layers else 1
        if times and extra.bytes:
            yield Line(ADDED, extra.name, times, (), (), "", extra.why, 0, times * extra.bytes)


def _lines(
    block: Block, tensor: Tensor, parts: Parts, held: int, placed: Placement, dtype: str, first: int, last: int
) -> Iterator[Line]:
    own = tensor.name.removesuffix(".weight").rpartition(".")[2]
    kept = tensor._replace(cut="") if own in placed.whole else tensor
    if own in placed.cut:
        kept = tensor._replace(cut=placed.cut[own])
    local = placed.widths.local(kept)
    wide = tensor.dtype or ("float32" if tensor.group in placed.wide else dtype)
    shape = (sum(local.rows), local.columns) if tensor.columns > 1 else (sum(local.rows),)
    for scheme, layers in parts:
        times = held if layers is None else sum(first <= layer < last for layer in layers)
        if not times:
            continue
        size = local.elements * DTYPE_BYTES[wide]
        if scheme is not None:
            size = local.experts * placed.matrix(scheme, tensor, local)
        yield Line(
            block.place if block.place in (DRAFT, VISION) else tensor.group,
            block.prefix + tensor.name,
            times,
            tensor.shape,
            (local.experts, *shape) if tensor.experts else shape,
            wide if scheme is None else scheme.name,
            _sharding(kept, placed.widths),
            times * tensor.parameters,
            times * size,
        )


def _sharding(tensor: Tensor, widths: Widths) -> str:
    """How ranks share a tensor, in words."""
    if tensor.over == "experts":
        cut = f", each / {widths.expert_cut}" if widths.expert_cut > 1 and tensor.cut else ""
        return f"{tensor.experts} experts / {widths.experts}{cut}" if widths.experts > 1 else cut[2:] or "whole"
    ranks = widths.ranks.get(tensor.over, 1)
    return f"/ {ranks}" if tensor.cut and ranks > 1 else "whole"


def _groups(lines: tuple[Line, ...], found: Parameters) -> tuple[Group, ...]:
    counted = found.groups()
    names = list(dict.fromkeys([*counted, *(line.group for line in lines)]))
    made = []
    for name in names:
        of = [line for line in lines if line.group == name]
        largest = sorted(of, key=lambda line: -line.bytes)
        dtypes = dict.fromkeys(short_dtype(line.dtype) for line in largest if line.dtype)
        ways = dict.fromkeys(line.sharding for line in largest)
        made.append(
            Group(
                name,
                counted.get(name, 0),
                sum(line.bytes for line in of),
                ", ".join(list(dtypes)[:2]),
                ("" if name == ADDED else ", ".join(list(ways)[:2])) if of else "not loaded",
            )
        )
    return tuple(made)


def weigh(
    model: Architecture,
    placement: "Callable[[Parameters, Quantization | None], Placement]",
    *,
    dtype: str = "bfloat16",
    quantization: str | None = None,
    ranks: int = 1,
) -> Weights:
    """Weights of a model on the heaviest of ``ranks``. Raises ShardingError where they cannot be shared, NotModelled or
    ConfigError where nothing is known of them.
    """
    stored = checkpoint_of(model, quantization)
    try:
        found = parameters(model)
    except (NotModelled, ConfigError):
        return _from_published(model, stored, ranks)
    if stored.marked:
        return _by_name(model, stored, found, placement, dtype)
    return _exact(model, stored, found, stored.quantization, placement, dtype)


def heaviest(found: Parameters, quantization: "Quantization | None", placed: Placement, dtype: str) -> tuple[Line, ...]:
    """The tensors of the heaviest stage."""
    stages = [tuple(lines_of(found, quantization, placed, dtype, stage)) for stage in range(len(placed.stages))]
    return max(stages, key=lambda lines: sum(line.bytes for line in lines))


def _exact(
    model: Architecture,
    stored: Stored,
    found: Parameters,
    quantization: "Quantization | None",
    placement: "Callable[[Parameters, Quantization | None], Placement]",
    dtype: str,
) -> Weights:
    placed = placement(found, quantization)
    lines = heaviest(found, quantization, placed, dtype)
    likely = sum(line.bytes for line in lines)
    own = DTYPE_BYTES[model.model_dtype]
    computed = stored_bytes(found, quantization, dtype_bytes=own, scale_bytes=stored.scale_bytes)
    checkpoint = stored.bytes or (None if found.unknown else computed)
    low, high, uncertain = likely, likely, ""
    if stored.bytes is not None and not found.unknown and abs(stored.bytes - computed) > computed // 100:
        low, high = sorted((likely, likely * stored.bytes // computed))
        uncertain = f"the checkpoint holds {stored.bytes:,} B of tensors, the closed form {computed:,} B"
    if found.unknown and placed.vision:
        unknown = max(0, (stored.parameters or 0) - found.number()) if stored.quantization is None else 0
        extra = (unknown or 500_000_000) * DTYPE_BYTES[dtype]
        likely, high = likely + extra // 2, likely + extra * 3 // 2
        uncertain = f"{' and '.join(found.unknown)} has no closed form: about {extra:,} B, maybe shared by the ranks"
    return Weights(
        model,
        stored.name,
        quantization.method if quantization else "none",
        found.number(),
        found.number(draft=False, vision=False),
        checkpoint,
        low,
        likely,
        high,
        lines,
        _groups(lines, found),
        stored.source,
        uncertain,
        stored.findings,
    )


def layouts(stored: Stored, found: Parameters) -> "tuple[Quantization | None, ...]":
    """How a checkpoint is quantised; where only its name says so, from every linear layer to the experts alone."""
    if not stored.marked:
        return (stored.quantization,)
    from hybridcalc.architecture.quantization import meant_by

    return tuple(meant_by(stored.marked, experts="routed_experts" in found.groups()))


def _by_name(
    model: Architecture,
    stored: Stored,
    found: Parameters,
    placement: "Callable[[Parameters, Quantization | None], Placement]",
    dtype: str,
) -> Weights:
    """An interval: from every linear layer quantised to routed experts (or the MLP) alone.

    A layout that ranks cannot cut is no more than a guess: one without blocks takes its place, and a finding says so.
    """
    from hybridcalc.architecture.quantization import without_blocks

    sizes, refused = list[Weights](), ""
    for each in layouts(stored, found):
        assert each is not None  # noqa: S101  a name that says how it is quantised
        try:
            sizes.append(_exact(model, stored, found, each, placement, dtype))
        except ShardingError as error:
            sizes.append(_exact(model, stored, found, without_blocks(each), placement, dtype))
            refused = f"; stored in blocks it would not start: {error.message}"
    low, middle, high = sorted(each.likely for each in sizes)
    said = f"{stored.name} says {stored.marked}, and which modules are quantised is not known"
    rule = RULES[0]
    finding = Finding(rule.id, rule.severity, f"{said}: an interval{refused}", fix="give its folder, or --weights SIZE")
    return sizes[1]._replace(
        low=low, likely=middle, high=high, checkpoint_bytes=None, uncertain=said, findings=(finding,),
        quantization=f"{stored.marked}, by its name",
    )  # fmt: skip


def _from_published(model: Architecture, stored: Stored, ranks: int) -> Weights:
    """An interval around a published count: shared evenly, or a tenth of it on every rank."""
    count = stored.parameters
    if count is None and stored.bytes is None:
        raise NotModelled(
            f"{model.name}: neither a closed form nor a published size of its weights is known",
            lacking=f"weights of {model.architecture}",
            fix="give --weights SIZE, or a folder with its safetensors",
        )
    total = stored.bytes or (count or 0) * DTYPE_BYTES[model.model_dtype]
    even = total // ranks
    high = min(total, even + total // 10) if ranks > 1 else even + even // 100
    return Weights(
        model, stored.name, "none", count or 0, count or 0, total, even, (even + high) // 2, high, (), (),
        stored.source.replace("closed form", "its published size"),
        f"no closed form of {model.architecture}: {total:,} B of published size, not shared quite evenly",
    )  # fmt: skip
