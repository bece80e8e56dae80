"""What is a floor of time? Parts with bytes and floating-point operations, over what a GPU does at most.

    max(sum of bytes / bandwidth, sum of FLOPs / peak)

Bytes and operations are of one rank; bandwidth is in GB/s (10^9), the peak in TFLOP/s of the narrowest format that the
weights have. Public measurements lie above a floor, at 1.5 to 4 times (docs/speed.md).
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

from hybridcalc.errors import InputError
from hybridcalc.hardware import Rates

USUAL_SHARES = (0.25, 0.65)
"""Public measurements of hybrids with 16 requests and more take a floor's share of their time: from that to this."""
PROMPT_SHARES = (0.17, 0.87)
"""The same of prompts of 8,192 tokens, where kernels do what the GPU can in 16 bits: the shares of that time."""
WEIGHTS, HEAD, EXPERTS, KV, STATE = "weights", "lm_head", "experts", "kv", "state"
SCAN_FLOPS = 6
"""Floating-point operations that one token costs an element of a state: decay, read, write."""
SCANNED = f"{SCAN_FLOPS} FLOP a state element and token"
TIMES = {0: "now and then: replayed", 1: "once"}


class Part(NamedTuple):
    """What a step moves and computes for one purpose, on one rank."""

    name: str
    bytes: int
    flops: int
    why: str


@dataclass(frozen=True, slots=True)
class Floor:
    """The least time of one step on ranks with these ``rates``, and what it is made of. ``tflops``: their peak.

    It yields one token of each request of the ``batch``; with drafts, at most as many as it verifies ``positions``.
    ``beyond``: what kernels usually do beside, which no floor counts.
    """

    rates: Rates
    cost: tuple[Part, ...]
    tflops: float
    batch: int
    notes: tuple[str, ...] = ()
    positions: int = 1
    beyond: tuple[Part, ...] = ()

    def __repr__(self) -> str:
        each = ", ".join(f"{part.name} {self.part_ms(part):.3g}" for part in self.cost)
        return f"<{self.floor_ms:.3g} ms or more on a rank of {self.rates.name}: {each}>"

    @property
    def parts(self) -> dict[str, int]:
        """Bytes of each part."""
        return {part.name: part.bytes for part in self.cost}

    def part_ms(self, part: Part) -> float:
        """The least time of one part alone."""
        return max(part.bytes / self.rates.bandwidth_gbs / 1e6, part.flops / self.tflops / 1e9)

    @property
    def memory_ms(self) -> float:
        """What its bytes take."""
        return sum(part.bytes for part in self.cost) / self.rates.bandwidth_gbs / 1e6

    @property
    def compute_ms(self) -> float:
        """What its floating-point operations take."""
        return sum(part.flops for part in self.cost) / self.tflops / 1e9

    @property
    def floor_ms(self) -> float:
        """The least time."""
        return max(self.memory_ms, self.compute_ms)

    def token_ms(self, accepted: float | None = None) -> float:
        """The least time of a token where a step yields ``accepted`` of a request on average, at best all of them.

        Raises InputError for more than there are, or less than one.
        """
        given = self.positions if accepted is None else accepted
        if not 1 <= given <= self.positions:
            raise InputError(f"{given:g} tokens a step, of which it verifies {self.positions}", fix="at least 1")
        return self.floor_ms / given

    def tokens_per_second(self, accepted: float | None = None) -> float:
        """Tokens that one request gets at most."""
        return 1000 / self.token_ms(accepted)

    @property
    def band_ms(self) -> tuple[float, float]:
        """Where public measurements of batches lie."""
        least, most = USUAL_SHARES
        return self.floor_ms / most, self.floor_ms / least

    @property
    def prompt_band_ms(self) -> tuple[float, float]:
        """Where public measurements of prompts lie, of a floor that is one."""
        least, most = (self.compute_ms * self.tflops / self.rates.peak(16) / share for share in PROMPT_SHARES[::-1])
        return max(self.floor_ms, least), max(self.floor_ms, most)

    @property
    def binding(self) -> str:
        """The part that takes longest, or ``compute``."""
        if self.compute_ms > self.memory_ms:
            return "compute"
        largest = max(self.cost, key=lambda part: part.bytes).name
        return WEIGHTS if largest in (EXPERTS, HEAD) else largest

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        return {
            "gpu": self.rates.name,
            "bandwidth_gbs": self.rates.bandwidth_gbs,
            "peak_tflops": self.tflops,
            "floor_ms": round(self.floor_ms, 4),
            "band_ms": [round(end, 4) for end in self.band_ms],
            "batch": self.batch,
            "positions": self.positions,
            "tokens_per_second_per_request": round(self.tokens_per_second(), 2),
            "tokens_per_second": round(self.batch * self.tokens_per_second(), 1),
            "binding": self.binding,
            "parts": [part._asdict() | {"ms": round(self.part_ms(part), 4)} for part in self.cost],
            "notes": list(self.notes),
        }
