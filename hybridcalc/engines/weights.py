"""What do a model's weights take on one rank, where an engine puts its tensors?

    bytes = sum over the stage's blocks of layers x local tensor in its scheme + what the engine adds after loading

The heaviest pipeline stage counts (placement.py says which has what). Exact where class, config and quantisation are
known; where a checkpoint's name says that it is quantised and nothing says how, or only a count of its parameters is
published, the bytes are an interval.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterator
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, NamedTuple

from hybridcalc.architecture import Architecture
from hybridcalc.architecture.tensors import DRAFT, FIRST, HOST, LAST, LAYERS, VISION, Block, Tensor, Widths
from hybridcalc.architecture.weights import PLAIN, Parameters, parameters, schemes, stored_bytes
from hybridcalc.engines.checkpoints import RULES, Stored, checkpoint_of
from hybridcalc.engines.placement import ALL, Extra, Placement
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
    """The answer. ``bytes_per_rank``, low and high: equal where they are exact. ``uncertain`` says why they are not.
    What is counted only where it is asked for stands apart; ``beside``: what of it is not on a rank, in words.
    """

    model: Architecture
    checkpoint: str
    quantization: str
    low: int
    likely: int
    high: int
    weights_from: str
    counted: "Counted"
    uncertain: str = ""
    findings: tuple[Finding, ...] = ()
    beside: str = ""

    @property
    def parameters(self) -> int:
        """All parameters of the checkpoint."""
        return self.counted.parameters

    @property
    def parameters_text(self) -> int:
        """Those without the vision tower and the draft layers."""
        return self.counted.parameters_text

    @property
    def checkpoint_bytes(self) -> int | None:
        """Bytes of the tensors on disk; None where they are not known."""
        return self.counted.checkpoint_bytes

    @property
    def lines(self) -> tuple[Line, ...]:
        """Every tensor of the heaviest rank; none where there is no closed form."""
        return self.counted.lines

    @property
    def groups(self) -> tuple[Group, ...]:
        """Tensors by group; none where there is no closed form."""
        return self.counted.groups

    @property
    def exact(self) -> bool:
        """Whether there is nothing to either side."""
        return self.low == self.high

    @property
    def bytes_per_rank(self) -> int | list[int]:
        """Bytes on the heaviest rank, or [low, likely, high]."""
        return self.likely if self.exact else [self.low, self.likely, self.high]

    def __repr__(self) -> str:
        size = f"{self.likely:,}" if self.exact else f"{self.low:,} to {self.high:,}"
        return f"<weights of {self.checkpoint}: {size} B on the heaviest rank, {self.parameters:,} parameters>"

    def _repr_html_(self) -> str:
        """The groups, for notebooks."""
        from hybridcalc.notebook import html_of_records

        return html_of_records(repr(self)[1:-1], self.to_records())

    def to_records(self) -> list[dict[str, Any]]:
        """The groups of tensors as rows of a table, as pandas takes them."""
        return [group._asdict() for group in self.groups]

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
            "groups": self.to_records(),
            "weights_from": self.weights_from,
            "findings": [finding.to_dict() for finding in self.findings],
            "tensors": [line._asdict() for line in self.lines],
        }


Held = tuple[Block, Tensor, Tensor, str, tuple[int, ...] | None, int]
"""A tensor on a rank in one scheme: its block, as it is, as it is cut, its dtype, the layers of the scheme (None for
all of its block), bytes of one. A plain tuple: there are sixty in the first plan of a model.
"""


class Counted:
    """What a checkpoint and its heaviest rank hold, each counted when it is first asked for."""

    def __init__(
        self,
        found: Parameters | None = None,
        *,
        parameters: int = 0,
        text: int = 0,
        others: str = "vision and draft layers",
        stored: Callable[[], int | None] = lambda: None,
        held: tuple[Held, ...] = (),
        placed: Placement | None = None,
        stage: int = 0,
    ) -> None:
        self._found, self._parameters, self._text, self._stored = found, parameters, text or parameters, stored
        self.others = others
        self._held, self._placed, self._stage = held, placed, stage

    @cached_property
    def parameters(self) -> int:
        """All parameters."""
        return self._parameters if self._found is None else self._found.number()

    @cached_property
    def parameters_text(self) -> int:
        """Those of text."""
        return self._text if self._found is None else self._found.number(draft=False, vision=False)

    @cached_property
    def checkpoint_bytes(self) -> int | None:
        """Bytes on disk."""
        return self._stored()

    @cached_property
    def lines(self) -> tuple[Line, ...]:
        """Every tensor of the heaviest rank."""
        if self._found is None or self._placed is None:
            return ()
        return tuple(lines_of(self._held, self._found, self._placed, self._stage))

    @cached_property
    def groups(self) -> tuple[Group, ...]:
        """Tensors by group."""
        return () if self._found is None else _groups(self.lines, self._found)


def held_by(found: Parameters, quantization: "Quantization | None", placed: Placement, dtype: str) -> tuple[Held, ...]:
    """Every tensor as a rank of any stage holds it. Raises ShardingError."""
    left_out = {DRAFT: not placed.draft, VISION: not placed.vision, HOST: not placed.tables}
    widths, whole, cut, sizes = placed.widths, placed.whole, placed.cut, DTYPE_BYTES
    wider = dict.fromkeys(placed.wide, "float32")
    held, layout = list[Held](), schemes(found, quantization)
    for n, block in enumerate(found.blocks):
        if left_out.get(block.place):
            continue
        for tensor, parts in zip(block.tensors, layout.of(n), strict=True):
            kept = tensor
            if whole or cut:
                own = tensor.name.removesuffix(".weight").rpartition(".")[2]
                if own in whole or own in cut:
                    kept = tensor._replace(cut=cut.get(own, ""))
            wide = tensor.dtype or wider.get(tensor.group, dtype)
            if parts is PLAIN or (block.place == DRAFT and (ALL in placed.plain or tensor.name in placed.plain)):
                alone = not (kept.cut or kept.experts)
                elements = kept.parameters if alone else widths.local(kept).elements
                held.append((block, tensor, kept, wide, None, elements * sizes[wide]))
                continue
            part = widths.local(kept)
            for scheme, layers in parts:
                if scheme is None:
                    held.append((block, tensor, kept, wide, layers, part.elements * sizes[wide]))
                else:
                    size = part.experts * placed.matrix(scheme, tensor, part)
                    held.append((block, tensor, kept, scheme.name, layers, size))
    return tuple(held)


def times_in(
    block: Block, own: tuple[int, ...] | None, found: Parameters, stages: tuple[tuple[int, int], ...], stage: int
) -> int:
    """How often a tensor of a block is there in a stage, in ``own`` layers or all of the block's."""
    if block.place == LAYERS:
        layers = block.layers if own is None else own
        if len(stages) == 1:
            return len(layers)
        first, last = stages[stage]
        return bisect_left(layers, last) - bisect_left(layers, first)
    if stage == 0 and block.place in (FIRST, VISION, HOST):
        return block.times
    at_end = stage == len(stages) - 1
    tied = block.place == FIRST and found.tied and block.tensors[0].over == "embedding"
    return block.times if at_end and (tied or block.place in (LAST, DRAFT)) else 0


def _added(placed: Placement, stage: int) -> Iterator[tuple[Extra, int]]:
    """What the engine adds in a stage, and how often."""
    first, last = placed.stages[stage]
    for extra in placed.extras:
        times = sum(first <= layer < last for layer in extra.layers) if extra.layers else 1
        if times and extra.bytes:
            yield extra, times


def heaviest(held: tuple[Held, ...], found: Parameters, placed: Placement) -> tuple[int, int]:
    """The heaviest stage, and its bytes on a rank."""
    sizes = [
        sum([size * times_in(block, layers, found, placed.stages, stage) for block, _, _, _, layers, size in held])
        + sum(extra.bytes * times for extra, times in _added(placed, stage))
        for stage in range(len(placed.stages))
    ]
    return max(enumerate(sizes), key=lambda stage: stage[1])


def lines_of(held: tuple[Held, ...], found: Parameters, placed: Placement, stage: int) -> Iterator[Line]:
    """Every tensor of a stage as one rank holds it, then what the engine adds."""
    for block, tensor, kept, dtype, layers, size in held:
        times, local = times_in(block, layers, found, placed.stages, stage), placed.widths.local(kept)
        if not times:
            continue
        shape = (sum(local.rows), local.columns) if local.columns > 1 else (sum(local.rows),)
        yield Line(
            block.place if block.place in (DRAFT, VISION) else tensor.group,
            block.prefix + tensor.name,
            times,
            tensor.shape,
            (local.experts, *shape) if tensor.experts else shape,
            dtype,
            _sharding(kept, placed.widths),
            times * tensor.parameters,
            times * size,
        )
    for extra, times in _added(placed, stage):
        yield Line(ADDED, extra.name, times, (), (), "", extra.why, 0, times * extra.bytes)


def _sharding(tensor: Tensor, widths: Widths) -> str:
    """How ranks share a tensor, in words."""
    if tensor.over == "experts":
        cut = f", each / {widths.expert_cut}" if widths.expert_cut > 1 and tensor.cut else ""
        return f"{tensor.experts} experts / {widths.experts}{cut}" if widths.experts > 1 else cut[2:] or "whole"
    ranks = widths.ranks.get(tensor.over, 1)
    return f"/ {ranks}" if tensor.cut and ranks > 1 else "whole"


def _groups(lines: tuple[Line, ...], found: Parameters) -> tuple[Group, ...]:
    counted, hosted = found.groups(), {t.group for block in found.blocks if block.place == HOST for t in block.tensors}
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
                ("" if name == ADDED else ", ".join(list(ways)[:2]))
                if of
                else ("host memory" if name in hosted else "not loaded"),
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
    except (NotModelled, ConfigError) as error:
        if stored.parameters is None and stored.bytes is None:
            error.fix = "give --weights SIZE, or a folder with its safetensors"
            raise
        return _from_published(model, stored, ranks)
    if stored.marked:
        return _by_name(model, stored, found, placement, dtype)
    return _exact(model, stored, found, stored.quantization, placement, dtype)


def _exact(
    model: Architecture,
    stored: Stored,
    found: Parameters,
    quantization: "Quantization | None",
    placement: "Callable[[Parameters, Quantization | None], Placement]",
    dtype: str,
) -> Weights:
    placed = placement(found, quantization)
    held = held_by(found, quantization, placed, dtype)
    stage, likely = heaviest(held, found, placed)
    own = DTYPE_BYTES[model.model_dtype]
    computed = partial(stored_bytes, found, quantization, dtype_bytes=own, scale_bytes=stored.scale_bytes)
    low, high, uncertain = likely, likely, ""
    read = model.config is not None  # what a preset states is what the closed form gives
    if read and stored.bytes and not found.unknown and abs(stored.bytes - computed()) > computed() // 100:
        low, high = sorted((likely, likely * stored.bytes // computed()))
        uncertain = f"the checkpoint holds {stored.bytes:,} B of tensors, the closed form {computed():,} B"
    if found.unknown and placed.vision:
        unknown = max(0, (stored.parameters or 0) - found.number()) if stored.quantization is None else 0
        extra = (unknown or 500_000_000) * DTYPE_BYTES[dtype]
        likely, high = likely + extra // 2, likely + extra * 3 // 2
        uncertain = f"{' and '.join(found.unknown)} has no closed form: about {extra:,} B, maybe shared by the ranks"
    on_disk = partial(_on_disk, stored.bytes, found, computed)
    return Weights(
        model,
        stored.name,
        quantization.method if quantization else "none",
        low,
        likely,
        high,
        stored.source,
        Counted(found, stored=on_disk, held=held, placed=placed, stage=stage),
        uncertain,
        stored.findings,
    )


def _on_disk(stored: int | None, found: Parameters, computed: Callable[[], int]) -> int | None:
    """Bytes of a checkpoint: as published or read, else computed where all of it has a closed form."""
    return stored or (None if found.unknown else computed())


def layouts(stored: Stored, found: Parameters) -> "tuple[Quantization | None, ...]":
    """How a checkpoint is quantised; where only its name says so, from every linear layer to the experts alone."""
    if not stored.marked:
        return (stored.quantization,)
    from hybridcalc.architecture.quantization_names import meant_by

    return tuple(
        meant_by(stored.marked, experts=any(tensor.experts for block in found.blocks for tensor in block.tensors))
    )


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
    from hybridcalc.architecture.quantization_names import TYPE_MIXES, without_blocks

    if stored.marked in TYPE_MIXES:
        whole = _exact(model, stored, found, None, placement, dtype).likely
        low, likely, high = (int(whole * bits / 16) for bits in TYPE_MIXES[stored.marked])
        counted = Counted(parameters=found.number(), text=found.number(draft=False, vision=False))
        why = f"files of {stored.marked} differ in the share of each type"
        return Weights(model, stored.name, stored.marked, low, likely, high, stored.source, counted, why)
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
    sizes[1].counted.checkpoint_bytes = None
    return sizes[1]._replace(
        low=low,
        likely=middle,
        high=high,
        uncertain=said,
        findings=(finding,),
        quantization=f"{stored.marked}, by its name",
    )


def _from_published(model: Architecture, stored: Stored, ranks: int) -> Weights:
    """An interval around a published count: shared evenly, or a tenth of it on every rank."""
    count = stored.parameters
    total = stored.bytes or (count or 0) * DTYPE_BYTES[model.model_dtype]
    even = total // ranks
    high = min(total, even + total // 10) if ranks > 1 else even + even // 100
    return Weights(
        model,
        stored.name,
        "none",
        even,
        (even + high) // 2,
        high,
        stored.source.replace("closed form", "its published size"),
        Counted(parameters=count or 0, stored=lambda: total),
        f"no closed form of {model.architecture}: {total:,} B of published size, not shared quite evenly",
    )
