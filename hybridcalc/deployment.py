"""The question being asked: how long the requests are, how many run at once, and what memory there is.

A `Workload` may mix lengths; what a pool admits then follows from their mean, since memory adds up
(formulas.memory_of). A `Rest` is the memory left for both pools on one rank: a single figure where it is
known, an interval where it was read off a log printed to two decimals.
"""

import re
from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import TYPE_CHECKING, Any, NamedTuple

from hybridcalc.errors import InputError, MemoryUnknown, Refusal, quoted
from hybridcalc.units import parse_tokens

if TYPE_CHECKING:
    from hybridcalc.findings import Finding
    from hybridcalc.hardware import Gpu

KINDS = ("long", "agent", "batch", "small")
"""Kinds of workload that change what is worth setting: long documents, short agent turns, batch, small cards."""
_THOUSANDS = r"(?<![0-9:])[0-9]{1,3},[0-9]{3}(?![0-9kKmM])"
MOST_REQUESTS = 10**9


class Workload(NamedTuple):
    """Lengths in tokens with how many requests have each, the concurrency wanted, and the kind of work; and what part
    of a prompt requests share (``shared_prefix``) and what is each one's own (``private``), in tokens. ``mix``: the
    counts say how often a length comes, not how many requests run at once.
    """

    lengths: tuple[tuple[int, int], ...] = ()
    concurrency: int | None = None
    kind: str | None = None
    shared_prefix: int = 0
    private: int = 0
    mix: bool = False

    @classmethod
    def at(cls, length: int, *, concurrency: int | None = None) -> "Workload":
        """Requests that all hold ``length`` tokens."""
        return cls(((length, 1),), concurrency)

    @property
    def mean_length(self) -> Fraction | None:
        """Tokens a request holds on average; None when no length is given."""
        if not self.lengths:
            return None
        requests = sum(count for _, count in self.lengths)
        return Fraction(sum(tokens * count for tokens, count in self.lengths), requests) if requests else None

    @property
    def longest(self) -> int:
        """Tokens of the longest request; 0 when no length is given."""
        return max(self.lengths)[0] if self.lengths else 0

    @property
    def wanted(self) -> int | None:
        """Requests that should run at once: as given, or as many as the lengths list unless they are a mix."""
        listed = sum(count for _, count in self.lengths)
        return self.concurrency or (listed if listed > 1 and not self.mix else None)

    @property
    def tells_prompts(self) -> bool:
        """Whether it says what kind of requests come, and not only how long: then a prompt's time is of interest."""
        return self.kind is not None or self.mix

    def describe(self) -> str:
        """The lengths in words."""
        if len(self.lengths) == 1:
            return tokens_text(self.lengths[0][0])
        mean = self.mean_length
        return "no length" if mean is None else f"{float(mean):,.0f} tokens on average"


HEADROOM = "headroom"


class MemoryPart(NamedTuple):
    """A part of one GPU's memory, GiB. ``how`` it is known: as given, computed, or estimated between low and high;
    ``findings``: what is to know of it.
    """

    name: str
    low: float
    likely: float
    high: float
    how: str
    why: str = ""
    findings: "tuple[Finding, ...]" = ()

    @classmethod
    def of(cls, name: str, gib: float, how: str, why: str = "") -> "MemoryPart":
        """A part with nothing to either side."""
        return cls(name, gib, gib, gib, how, why)

    @property
    def text(self) -> str:
        """The figure, with its bounds where it has any."""
        if self.low == self.high:
            return f"{self.likely:.2f}"
        return f"{self.likely:.2f} ({self.low:.2f} to {self.high:.2f})"

    def to_dict(self) -> "dict[str, str | float | list[float]]":
        """Plain data: the figure, or [low, likely, high]."""
        gib = self.likely if self.low == self.high else [self.low, self.likely, self.high]
        return {"name": self.name, "gib": gib, "how": self.how, "why": self.why}


GIVEN, COMPUTED, ESTIMATED = "given", "computed", "estimated"


class Rest(NamedTuple):
    """Memory left for both pools on one rank, GiB: the likely value, the bounds it may lie in, and where it is from.

    ``before_gib`` is the memory that --mem-fraction-static is a fraction of, where the memory left depends on it, and
    ``others`` what else the GPU holds, by name: weights, headroom, ...; ``weights_from`` says where theirs is from.
    ``gpu`` and ``total_gib`` name the GPU, where it is known, ``parts`` what its memory goes to, each with its bounds,
    ``fraction`` the engine's share of it, where that was not given but settled. ``again``: other arguments of the same
    engine -> the memory that they leave on that GPU; None where the memory is said and stays what it is.
    ``undecided``: why the least that it may be refuses the start, which the likely memory allows.
    """

    likely_gib: float
    low_gib: float
    high_gib: float
    why: str
    before_gib: float | None = None
    others: tuple[tuple[str, float], ...] = ()
    gpu: str | None = None
    total_gib: float | None = None
    weights_from: str | None = None
    parts: tuple[MemoryPart, ...] = ()
    fraction: float | None = None
    again: "Callable[[Any], Rest] | None" = None
    undecided: "tuple[Finding, ...]" = ()

    def at(self, gib: float) -> "Rest":
        """Exactly so much of it."""
        return self._replace(likely_gib=gib, low_gib=gib, high_gib=gib)

    def start_of(self, least: str, most: str) -> str:
        """What a start takes that one end of the estimate allows and the other does not: "1.50 GiB beside, not with
        6.00". The ends are named low, likely or high, of what is beside the caches.
        """
        estimate = max(self.parts, key=lambda part: part.high - part.low, default=None)
        if estimate is not None and estimate.low < estimate.high:
            return f"{getattr(estimate, least):.2f} GiB {estimate.name}, not with {getattr(estimate, most):.2f}"
        left = {"low": self.high_gib, "likely": self.likely_gib, "high": self.low_gib}
        return f"{left[least]:.2f} GiB for the caches, not with {left[most]:.2f}"

    def told(self, refusal: Refusal) -> Refusal:
        """A refusal of what this memory holds, which says what it was."""
        refusal.outputs |= {"available_gib": self.likely_gib, "memory_why": self.why, "rest": self}
        return refusal

    def undecided_as(self, refusal: Refusal, least: str, most: str) -> Refusal:
        """A refusal that another memory within the estimate would not give."""
        start = self.start_of(least, most)
        said = f"{refusal.reason}; undecided by the estimate of memory: it starts with {start}"
        about = {name: getattr(refusal, name) for name in ("stage", "rule", "fix", "flag", "release")}
        open_one = Refusal(said, **about)
        open_one.outputs, open_one.undecided = refusal.outputs, True
        return open_one

    def left_gib(self, args: Any, more_gib: float = 0.0) -> float:
        """The likely memory that ``args`` leave; where that does not follow from them, this one and ``more_gib``."""
        return self.likely_gib + more_gib if self.again is None else self.again(args).likely_gib

    @property
    def headroom_gib(self) -> float | None:
        """Memory kept free for activations and graphs; None where it is not known."""
        return dict(self.others).get(HEADROOM)

    @property
    def exact(self) -> bool:
        """Whether there is nothing to either side of the likely value."""
        return self.low_gib == self.high_gib


WEIGHTS_NAME = "weights"
GPU, WEIGHTS = "the GPU", "the weights on a rank"
"""Figures that a memory follows from, as they are named where they are missing."""


class Memory(NamedTuple):
    """What is known of the memory of one rank before it is planned; sizes in GiB, None for what is not given.

    ``rest`` and ``available`` are the memory left for the caches, as the engine that has the name counts it; else it
    follows from the GPU and the weights on a rank (``weighed`` computes them, where no figure is given), or from what a
    boot printed as free before and after the weights. ``non_cache``: what the GPU holds beside.
    """

    rest: float | None = None
    available: float | None = None
    gpu: "Gpu | None" = None
    weights: float | None = None
    non_cache: float | None = None
    avail_before: float | None = None
    avail_after: float | None = None
    weighed: "Callable[[], MemoryPart | None] | None" = None

    def weights_part(self) -> MemoryPart | None:
        """Weights on a rank; None where nothing tells. Raises what computing them raises."""
        if self.weights is not None:
            return MemoryPart.of(WEIGHTS_NAME, self.weights, GIVEN, "--weights")
        return self.weighed() if self.weighed is not None else None

    def unknown(self, wanted: str, otherwise: str) -> MemoryUnknown:
        """What is missing where the memory does not follow: weights, or a GPU and weights that no model tells."""
        if self.gpu is not None:
            return MemoryUnknown("--gpu needs the weights on one rank", figures=(WEIGHTS,), fix="add --weights SIZE")
        missing = (GPU,) if self.weighed is not None else (GPU, WEIGHTS)
        return MemoryUnknown(f"plan needs the memory {wanted}: add --gpu NAME", figures=missing, fix=otherwise)


def one_way(ways: Mapping[str, bool]) -> None:
    """Raise InputError where the memory is given in more ways than one."""
    if sum(ways.values()) > 1:
        *most, last = ways
        raise InputError("the memory is given in more than one way", fix=f"keep {', '.join(most)} or {last}")


def exact_rest(gib: float, why: str = "as given") -> Rest:
    """Memory that is known."""
    return Rest(gib, gib, gib, why)


def tokens_text(count: int) -> str:
    """``1 token``, ``9,216 tokens``."""
    return f"{count:,} token{'s' if count != 1 else ''}"


def requests_text(count: int) -> str:
    """``1 request``, ``2 requests``."""
    return f"{count:,} request{'' if count == 1 else 's'}"


MOST_LENGTHS = 1000
"""Lengths of a mix that is typed."""


def parse_lengths(text: str) -> tuple[tuple[int, int], ...]:
    """Lengths and counts in ``8k:20,128k:2``; a length alone counts once. Raises InputError naming the part."""
    parts = [part for part in text.split(",") if part.strip()]
    if len(parts) > MOST_LENGTHS:
        raise InputError(
            f"{len(parts):,} lengths are more than {MOST_LENGTHS:,}", fix="write equal ones as LENGTH:REQUESTS"
        )
    if not parts:
        raise InputError(f"{quoted(text)} holds no lengths", fix="write 8k:20,128k:2 (length:requests, ...)")
    if re.search(_THOUSANDS, text):
        raise InputError(f"{quoted(text)}: a comma parts lengths, not thousands", fix="write 8192:5, or 128:1,256:1")
    return tuple(_length(part) for part in parts)


def _length(part: str) -> tuple[int, int]:
    length, colon, count = part.strip().partition(":")
    count = count.strip() if colon else "1"
    if not (count.isascii() and count.isdecimal()) or len(count) > 10 or not 0 < int(count) <= MOST_REQUESTS:
        raise InputError(f"{quoted(part)}: the requests of a length are a whole number", fix="write 8k:20,128k:2")
    return parse_tokens(length.strip()), int(count)
