"""How many state slots does one running request hold, and how many requests do K slots admit?

    S = base + tracking                         slots per request (SGLang's table, below)
    prefill slots = ceil(input / chunk) + 2     slots one prompt touches when every chunk boundary is checkpointed
    admitted = K // S                           requests that K slots admit
    pin = dp * (ceil(C / dp) * S + 1)           K that admits C requests, one stash slot a data-parallel worker

The table mirrors SGLang kv_cache_configurator._calculate_mamba_ratio (0.5.23). It leaves out which strategy a model
gets when none is asked for: engines/sglang/strategy.py.
"""

from dataclasses import dataclass
from enum import StrEnum

from hybridcalc.errors import IllegalCombination


class Strategy(StrEnum):
    """How SGLang keeps recurrent states for its radix cache (``--mamba-radix-cache-strategy``)."""

    NO_BUFFER = "no_buffer"
    EXTRA_BUFFER = "extra_buffer"
    EXTRA_BUFFER_LAZY = "extra_buffer_lazy"


STRATEGIES = ("auto", *(strategy.value for strategy in Strategy))
"""What the flag takes."""


@dataclass(frozen=True, slots=True)
class Slots:
    """State slots one running request holds, and why."""

    count: int
    reason: str


def slots_per_request(
    strategy: Strategy, *, overlap: bool = True, skip_decode_lock: bool = False, radix_cache: bool = True
) -> Slots:
    """S: 1 without the radix cache; else base + tracking.

    base is 3 (the live state, the one the radix tree retains, a copy on write), 2 under
    SGLANG_OPT_MAMBA_SKIP_DECODE_LOCK. tracking is 2 for extra_buffer under the overlap scheduler, 1 without it,
    1 for extra_buffer_lazy; no_buffer tracks nothing and gives back the slot that the skip saves. Unit: slots.
    Raises IllegalCombination for extra_buffer_lazy without the overlap scheduler. no_buffer under the overlap
    scheduler is counted here (3) and refused at start-up (strategy.py).
    Source: SGLang kv_cache_configurator._calculate_mamba_ratio, allocation_sizing (0.5.23).
    """
    if not radix_cache:
        return Slots(1, "radix cache off: one live state")
    base = 2 if skip_decode_lock else 3
    if strategy is Strategy.NO_BUFFER:
        return Slots(3, "no_buffer: live state, radix retention, copy-on-write")
    if strategy is Strategy.EXTRA_BUFFER_LAZY and not overlap:
        raise IllegalCombination(
            "extra_buffer_lazy needs the overlap scheduler",
            fix="drop --disable-overlap-schedule, or use --mamba-radix-cache-strategy extra_buffer",
        )
    tracking = 2 if strategy is Strategy.EXTRA_BUFFER and overlap else 1
    scheduler = "" if overlap else " without the overlap scheduler"
    skip = " (decode lock skipped)" if skip_decode_lock else ""
    return Slots(base + tracking, f"{strategy.value}{scheduler}: {base} + {tracking}{skip}")


def prefill_slots(input_tokens: int, chunk_tokens: int) -> int:
    """Slots a prompt touches when each chunk boundary keeps a state: ceil(input / chunk) + 2. Unit: slots.

    The two are the live state and the one being written. Source: hybrid KV-cache engineering write-up (A5).
    """
    return -(-input_tokens // chunk_tokens) + 2


def admitted_requests(slots: int, per_request: int) -> int:
    """Requests that run at once on ``slots`` state slots. Unit: requests."""
    return max(0, slots) // per_request


def pin(concurrency: int, per_request: int, *, dp: int = 1) -> int:
    """``--max-mamba-cache-size`` that admits ``concurrency`` requests. Unit: slots, of the whole server.

    One slot a worker is kept free (the stash), since a pool with every slot held cannot turn over. Under attention
    data parallelism the engine divides the flag by dp, so each worker's share is rounded up to whole requests.
    """
    return dp * (-(-concurrency // dp) * per_request + 1)
