"""What is a real tensor of a plan, and how does it grow?

    bytes(n) = unit * (n + pad)        n slots, request rows, tokens, checkpoints or blocks; pad: rows no one is given

Every pool is affine in one count, so two sizes give slope and intercept exactly, and a check at a small scale proves
the full one. A `Tensor` is one allocation: its own shape, the views an engine lays over it (whose nominal bytes may
exceed the storage, where windows overlap), and the bytes that the closed forms say, which come from elsewhere than the
shape. Units: bytes, elements.
"""

from collections.abc import Callable, Sequence
from fractions import Fraction
from math import prod
from typing import NamedTuple

from hybridcalc.units import DTYPE_BYTES

ELEMENT_BYTES = {**DTYPE_BYTES, "uint8": 1, "int32": 4, "int64": 8, "float64": 8}


class TensorView(NamedTuple):
    """A view of a tensor's storage: shape, stride and offset in elements of ``dtype``."""

    name: str
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int
    dtype: str

    @property
    def nominal_bytes(self) -> int:
        """Bytes the shape alone suggests."""
        return prod(self.shape) * ELEMENT_BYTES[self.dtype]

    @property
    def end_bytes(self) -> int:
        """Bytes of storage from its start to the view's last element."""
        if not prod(self.shape):
            return 0
        last = self.offset + sum((size - 1) * step for size, step in zip(self.shape, self.stride, strict=True))
        return (last + 1) * ELEMENT_BYTES[self.dtype]


class Tensor(NamedTuple):
    """One allocation. ``figure`` names the figure of a plan it counts in, ``pool`` the pool it belongs to (state,
    scratch, kv, other), ``grows_with`` the count it is affine in.
    """

    name: str
    figure: str
    pool: str
    shape: tuple[int, ...]
    dtype: str
    formula_bytes: int
    grows_with: str
    views: tuple[TensorView, ...] = ()

    @property
    def shape_bytes(self) -> int:
        """Bytes of the shape: what torch is asked for."""
        return prod(self.shape) * ELEMENT_BYTES[self.dtype]


class Sizes(NamedTuple):
    """Counts the pools are sized by. ``slots`` and ``checkpoints`` without their padding slot, ``rows`` of the request
    table with its padding row, ``tokens`` without the padding page; ``blocks`` are vLLM's.
    """

    slots: int = 0
    rows: int = 0
    tokens: int = 0
    window_tokens: int = 0
    checkpoints: int = 0
    blocks: int = 0

    def of(self, grows_with: str) -> int:
        """The count of that name."""
        return int(getattr(self, COUNTS[grows_with]))


Builder = Callable[[Sizes], tuple[Tensor, ...]]
"""The tensors of one rank for given counts."""
COUNTS = {
    "slot": "slots", "request": "rows", "token": "tokens", "window token": "window_tokens",
    "checkpoint": "checkpoints", "block": "blocks",
}  # fmt: skip


def scaled(full: Sizes, part: Fraction, page: int) -> Sizes:
    """The ``part`` of every count, rounded down, at least one of each there is; tokens in whole pages."""

    def share(count: int) -> int:
        return max(1, int(count * part)) if count else 0

    def pages(tokens: int) -> int:
        return max(1, int(tokens // page * part)) * page if tokens else 0

    return Sizes(
        share(full.slots),
        share(full.rows),
        pages(full.tokens),
        pages(full.window_tokens),
        share(full.checkpoints),
        share(full.blocks),
    )


def second_size(sizes: Sizes, page: int) -> Sizes:
    """Other counts to draw the line through: half of each, and two where there is but one."""
    half = scaled(sizes, Fraction(1, 2), page)
    one = (1, 1, page, page, 1, 1)
    pairs = zip(sizes, half, one, strict=True)
    return Sizes(*(2 * unit if count == smaller == unit else smaller for count, smaller, unit in pairs))


def contiguous(shape: Sequence[int]) -> tuple[int, ...]:
    """Strides of a dense tensor of that shape, in elements."""
    strides = [1]
    for size in reversed(shape[1:]):
        strides.append(strides[-1] * size)
    return tuple(reversed(strides))
