"""Parameters of a model as rows of tensors: their shapes, where they lie, and what ranks can share of each.

A `Tensor` is a matrix of ``rows`` x ``columns`` (a vector has one column), stacked once for every expert where it has
any. Its rows are `Part`s, since q, k and v, or the inputs of a mixer, are cut each by its own heads. A `Block` is what
repeats from layer to layer. Counts are exact; which engine cuts what over how many ranks is theirs (engines/*/weights).
"""

from collections.abc import Mapping
from typing import NamedTuple

from hybridcalc.errors import ShardingError


class Part(NamedTuple):
    """Rows that are cut together: ``units`` heads or groups (0: any even share), as ``called``; ``repeated`` ones are
    kept whole by every rank that would get less than one.
    """

    size: int
    units: int = 0
    repeated: bool = False
    called: str = "heads"

    def share(self, ranks: int, what: str) -> int:
        """Rows of one of ``ranks``. Raises ShardingError where they cannot be shared out."""
        units = self.units or self.size
        if self.repeated and ranks > units and ranks % units == 0:
            return self.size // units
        if units % ranks:
            counted = f"{units:,} {self.called}" if self.units else f"{units:,}"
            raise ShardingError(f"--tp {ranks} does not divide the {counted} of {what}", total=units, parts=ranks)
        return self.size // ranks


class Tensor(NamedTuple):
    """One parameter. ``cut``: the axis that ranks share ("rows", "columns", "" for none). ``over``: the ranks that
    share it: attention, mlp, shared, experts, vision, embedding or head. ``dtype``: "" for the model's own.
    ``linear``: a matrix that quantisation may apply to.
    """

    name: str
    group: str
    rows: tuple[Part, ...]
    columns: int = 1
    cut: str = ""
    over: str = "attention"
    experts: int = 0
    dtype: str = ""
    linear: bool = False

    @property
    def height(self) -> int:
        """Rows of one matrix."""
        rows = self.rows
        return rows[0].size if len(rows) == 1 else sum(part.size for part in rows)

    @property
    def parameters(self) -> int:
        """Elements, all experts together."""
        return (self.experts or 1) * self.height * self.columns

    @property
    def shape(self) -> tuple[int, ...]:
        """As a checkpoint would state it."""
        matrix = (self.height, self.columns) if self.columns > 1 else (self.height,)
        return (self.experts, *matrix) if self.experts else matrix


FIRST, LAST, DRAFT, VISION, LAYERS, HOST = "first", "last", "mtp", "vision", "layers", "host"
"""Where a block lies: on the first or last pipeline stage, with the draft, before the first layer, in its layers, or
in host memory.
"""


class Block(NamedTuple):
    """Tensors that repeat together, in ``layers`` (indices from 0) or ``times`` without being layers of the row.

    ``prefix`` is their name in a checkpoint up to the tensor's own, ``{}`` for the layer's index.
    """

    prefix: str
    tensors: tuple[Tensor, ...]
    layers: tuple[int, ...] = ()
    place: str = LAYERS
    times: int = 1

    @property
    def copies(self) -> int:
        """How often the tensors are there."""
        return len(self.layers) if self.place == LAYERS else self.times


class Local(NamedTuple):
    """What one rank holds of a tensor: experts (1 where it has none), rows by part, columns."""

    experts: int
    rows: tuple[int, ...]
    columns: int

    @property
    def elements(self) -> int:
        """Elements on the rank."""
        return self.experts * sum(self.rows) * self.columns


class Widths(NamedTuple):
    """How many ranks share each kind of tensor (`Tensor.over`); experts are shared out over ``experts`` ranks
    first, and each is cut over ``expert_cut``. ``padded``: kinds whose sizes are rounded up to a multiple of the ranks.
    """

    ranks: Mapping[str, int]
    experts: int = 1
    expert_cut: int = 1
    padded: frozenset[str] = frozenset()
    vocabulary_multiple: int = 64
    whole_experts: bool = True
    """Whether experts must divide, else a rank may hold one more."""
    redundant: int = 0
    """Copies of experts that balance their load, shared out like them."""
    pads_vocabulary: bool = True
    """Whether the vocabulary is padded until the ranks divide it, else they must divide its rows as rounded up."""

    def local(self, tensor: Tensor) -> Local:
        """A rank's part of a tensor. Raises ShardingError where it cannot be shared out."""
        if tensor.over in ("embedding", "head"):
            return Local(1, (self._vocabulary(tensor),), tensor.columns)
        if not tensor.cut and not tensor.experts:
            return Local(1, tuple([part.size for part in tensor.rows]), tensor.columns)
        ranks = self.expert_cut if tensor.over == "experts" else self.ranks.get(tensor.over, 1)
        experts = tensor.experts or 1
        if tensor.experts and self.experts > 1:
            experts += self.redundant
            if experts % self.experts and self.whole_experts:
                what = f"{tensor.experts} experts" + (f" and {self.redundant} more" if self.redundant else "")
                raise ShardingError(f"--ep {self.experts} does not divide {what}", total=experts, parts=self.experts)
            experts = -(-experts // self.experts)
        parts, columns = tensor.rows, tensor.columns
        if ranks == 1 or not tensor.cut:
            return Local(experts, tuple([part.size for part in parts]), columns)
        if tensor.cut == "columns":
            whole = self._padded(Part(columns), tensor.over, ranks)
            return Local(experts, tuple([part.size for part in parts]), whole.share(ranks, f"{tensor.name} columns"))
        if tensor.over in self.padded:
            parts = tuple(self._padded(part, tensor.over, ranks) for part in parts)
        what = tensor.name.rpartition(".")[0] or tensor.name
        return Local(experts, tuple([part.share(ranks, what) for part in parts]), columns)

    def _padded(self, part: Part, over: str, ranks: int) -> Part:
        if over not in self.padded:
            return part
        unit = part.size // part.units if part.units else 1
        units = -(-(part.units or part.size) // ranks) * ranks
        return part._replace(size=units * unit, units=units if part.units else 0)

    def _vocabulary(self, tensor: Tensor) -> int:
        """Rows of the vocabulary on a rank: rounded up to 64, and to a multiple of the ranks."""
        ranks = self.ranks.get(tensor.over, 1)
        rows = -(-tensor.height // self.vocabulary_multiple) * self.vocabulary_multiple
        if rows % ranks and not self.pads_vocabulary:
            what = f"the {rows:,} padded rows of the vocabulary"
            raise ShardingError(f"--tp {ranks} does not divide {what}", total=rows, parts=ranks)
        if rows % ranks:
            rows = -(-tensor.height // (self.vocabulary_multiple * ranks)) * self.vocabulary_multiple * ranks
        return rows // ranks


def linear(name: str, group: str, rows: int | tuple[Part, ...], columns: int, cut: str, over: str) -> Tensor:
    """A matrix that quantisation may apply to."""
    parts = (Part(rows),) if isinstance(rows, int) else rows
    return Tensor(name, group, parts, columns, cut, over, linear=True)


def vector(name: str, group: str, size: int | Part, *, cut: str = "", dtype: str = "") -> Tensor:
    """A vector: a norm, a bias; whole on every rank unless it is cut."""
    part = size if isinstance(size, Part) else Part(size)
    return Tensor(name, group, (part,), 1, cut, dtype=dtype)
