"""Closed forms: pure functions of integers, no I/O and no engine version. docs/formulas.md works each one through.

In sections, each with its formulas, symbols, units and source: slots of a request, the ratio at which both pools
run out together, pages that hold a state, where KV outweighs the state, states beside the running ones, rings of
ReplaySSM.
"""

from dataclasses import dataclass
from enum import StrEnum
from fractions import Fraction
from math import isqrt, prod
from typing import Literal, NamedTuple

from hybridcalc.architecture.families import Replay
from hybridcalc.errors import IllegalCombination
from hybridcalc.units import DTYPE_BYTES

# How many state slots does one running request hold, and how many requests do K slots admit?
#
#     S = base + tracking                         slots per request (SGLang's table, below)
#     prefill slots = ceil(input / chunk) + 2     slots one prompt touches when every chunk boundary is checkpointed
#     admitted = K // S                           requests that K slots admit
#     pin = dp * (ceil(C / dp) * S + 1)           K that admits C requests, one stash slot a data-parallel worker
#
# The table mirrors SGLang kv_cache_configurator._calculate_mamba_ratio (0.5.23). It leaves out which strategy a model
# gets when none is asked for: engines/sglang/strategy.py.


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


# At which ratio do the state pool and the KV pool run out together?
#
#     token_equiv = state / kv                                tokens of KV that one state slot weighs
#     r* = (S + D) * state / (L * (kv / dcp + draft_kv))      = (S + D) * token_equiv * dcp / L without a draft model
#     state pool = rest * r / (1 + r)                         what --mamba-full-memory-ratio r gives the state
#
# state: bytes per slot and rank; kv: bytes per token and rank before context parallelism divides it (dcp ranks share
# the tokens); draft_kv: the draft model's bytes per token, which context parallelism does not divide; L: tokens a
# request holds; S: slots per request; D: draft states charged per request, 0 without speculation and under ReplaySSM
# verification. r* is a memory ratio, without unit.
#
# r* is the published form: it charges D to the slots of every request. Today's SGLang allocates (requests + 1) * D
# draft states beside the slot pool and takes them off the same memory; the two agree on which pool is short, and the
# planner solves the second exactly.
# Source: SGLang's sizing note (B4) and kv_cache_configurator._handle_max_mamba_cache.


def token_equiv(state_bytes: int | Fraction, kv_bytes_per_token: int | Fraction) -> Fraction:
    """Tokens of KV that weigh as much as one state slot. Unit: tokens. Both sizes must be positive."""
    return Fraction(state_bytes) / Fraction(kv_bytes_per_token)


def balanced_ratio(
    state_bytes: int | Fraction,
    kv_bytes_per_token: int | Fraction,
    *,
    slots_per_request: int,
    length_tokens: int | Fraction,
    draft_states: int = 0,
    dcp: int = 1,
    draft_kv_bytes_per_token: int = 0,
) -> Fraction:
    """r*: the ratio of state memory to KV memory one request of ``length_tokens`` needs. Exact."""
    state = (slots_per_request + draft_states) * Fraction(state_bytes)
    kv = Fraction(kv_bytes_per_token) / dcp + draft_kv_bytes_per_token
    return state / (length_tokens * kv)


def balanced_requests(
    rest_bytes: int,
    state_bytes: int | Fraction,
    kv_bytes_per_token: int | Fraction,
    *,
    slots_per_request: int,
    length_tokens: int,
    draft_states: int = 0,
    dcp: int = 1,
    draft_kv_bytes_per_token: int = 0,
) -> int:
    """Requests that ``rest_bytes`` serves when both pools run out together. Unit: requests.

    One slot pads the pool and never serves. Source: the same two charges, summed.
    """
    kv = Fraction(kv_bytes_per_token) / dcp + draft_kv_bytes_per_token
    per_request = (slots_per_request + draft_states) * Fraction(state_bytes) + length_tokens * kv
    return max(0, int((rest_bytes - Fraction(state_bytes)) // per_request))


def memory_of(requests: list[int], state_bytes: int, kv_bytes_per_token: int) -> int:
    """Bytes Q requests of unequal lengths hold: Q * state + sum(T_i) * kv. ``requests`` are their lengths in tokens."""
    return len(requests) * state_bytes + sum(requests) * kv_bytes_per_token


def split(rest_gib: float, ratio: float) -> tuple[float, float]:
    """(state, KV) share of ``rest_gib`` at ``ratio``, in GiB; floats in the engine's own order: rest * r / (1 + r)."""
    state = rest_gib * ratio / (1 + ratio)
    return state, rest_gib - state


# How long must an attention block be so that one page of it holds a whole recurrent state, and what does that cost?
#
#     block    = alignment * ceil(state / (alignment * kv))    tokens; a page of block * kv bytes then covers the state
#     padding  = (page - state) / state                        what each state wastes of its page, relative to the state
#     blocks   = ceil(tokens / block)                          blocks a request of that length takes in one layer
#     reused   = shared // block * block                       tokens of a shared prefix that whole blocks can serve
#
# state: bytes of one layer's state; kv: bytes one attention layer keeps per token. vLLM puts both caches on pages of
# one size, so the smaller of the two is inflated; its alignment is the attention kernel's block, or that and the chunk
# size where every block keeps a state. Source: vLLM platforms/interface.py; the hybrid-SSM chapter (C5 to C7).


def aligned_block(state_bytes: int, kv_bytes_per_token: int, alignment: int) -> int:
    """Tokens of the smallest block, a multiple of ``alignment``, whose page holds the state."""
    return alignment * -(-state_bytes // (alignment * kv_bytes_per_token))


def padding_share(state_bytes: int, page_bytes: int) -> Fraction:
    """Share of a page wasted, relative to the state in it. Without unit; 0 is an exact fit."""
    return Fraction(page_bytes - state_bytes, state_bytes)


def blocks_for(tokens: int, block: int) -> int:
    """Blocks that ``tokens`` take; the last one may be part empty."""
    return -(-tokens // block)


def reused_tokens(shared_tokens: int, block: int) -> int:
    """Tokens of a shared prefix that come from the cache: only whole blocks do."""
    return shared_tokens // block * block


def divisors(number: int) -> list[int]:
    """Every divisor of a positive whole number, ascending: the units that a block can be cut into."""
    small = [n for n in range(1, isqrt(number) + 1) if number % n == 0]
    return sorted({*small, *(number // n for n in small)})


# At which length does KV outweigh the recurrent state, and from where on does the hybrid beat a baseline?
#
#     T*(pair)     = state of one layer / KV of one layer per token
#     T*(state)    : KV(T) = state; state of all layers / KV of all layers per token where there is no window
#     T*(baseline) = state / baseline's KV per token                     the state against the baseline's KV alone
#     T*(total)    : state + hybrid KV(T) = baseline KV(T)                the whole hybrid against the baseline
#     spans        : lengths with state + hybrid KV(T) < baseline KV(T)   wherever the hybrid is the lighter of the two
#
# KV(T) grows by bytes_per_token and, for sliding windows, by window bytes until the window is full: a piecewise linear
# curve, solved exactly piece by piece. Unit: tokens (fractions; the curve is read at whole tokens).
# Source: the hybrid-SSM chapter (C2) and the recurrent-state article (D1), which reads one pair as the model.


class KvCurve(NamedTuple):
    """KV bytes of one sequence over its length: a part that always grows and a part that stops at a window."""

    bytes_per_token: int
    window_bytes_per_token: int = 0
    window_tokens: int = 0

    def at(self, tokens: int) -> int:
        """KV bytes at ``tokens``."""
        return self.bytes_per_token * tokens + self.window_bytes_per_token * min(tokens, self.window_tokens)

    def line(self, tokens: Fraction | int) -> tuple[int, int]:
        """Bytes of the full windows, and bytes a token adds, on the piece of the curve that leads to ``tokens``.

        On it the curve is one line: full windows + tokens x bytes a token.
        """
        if tokens <= self.window_tokens:
            return 0, self.bytes_per_token + self.window_bytes_per_token
        return self.window_bytes_per_token * self.window_tokens, self.bytes_per_token


class Span(NamedTuple):
    """Whole lengths from ``first`` to ``last``, both included; ``last`` is None where there is no end."""

    first: int
    last: int | None


def crossover_tokens(state_bytes: int, kv_bytes_per_token: int) -> Fraction | None:
    """Tokens at which KV weighs as much as the state; None when there is no KV that grows."""
    return Fraction(state_bytes, kv_bytes_per_token) if kv_bytes_per_token else None


def total_crossover_tokens(state_bytes: int, hybrid: KvCurve, baseline: KvCurve) -> Fraction | None:
    """Smallest length from which on the baseline's KV weighs at least as much as state plus the hybrid's KV.

    None when there is no such length, equality throughout included. With plain KV on both sides this is
    state / (baseline - hybrid bytes per token). A negative ``state_bytes`` is a hybrid that starts out lighter.
    """
    if _slope_at_end(baseline) < _slope_at_end(hybrid):
        return None
    bounds = [0, *sorted({hybrid.window_tokens, baseline.window_tokens} - {0})]
    for start in reversed(bounds):  # from the end: the last piece in which the lead is still negative holds the meeting
        lead = baseline.at(start) - hybrid.at(start) - state_bytes
        gain = _slope(baseline, start) - _slope(hybrid, start)
        if lead < 0:
            return start + Fraction(-lead, gain) if gain > 0 else None
    return None if _same(state_bytes, hybrid, baseline) else Fraction(0)


def lighter_spans(state_bytes: int, hybrid: KvCurve, baseline: KvCurve) -> tuple[Span, ...]:
    """Every whole length from 1 on at which state plus the hybrid's KV weighs less than the baseline's KV.

    Windows bend the curves, so that there may be none, one or two such spans. A baseline's own state is taken off
    ``state_bytes``. Unit: tokens.
    """
    ends = sorted({hybrid.window_tokens, baseline.window_tokens} - {0})
    spans: list[Span] = []
    for start, end in zip([1, *(end + 1 for end in ends)], [*ends, None], strict=True):
        full, slope = baseline.line(start)
        own_full, own_slope = hybrid.line(start)
        found = _positive(full - own_full - state_bytes, slope - own_slope, start, end)
        if found is not None and spans and spans[-1].last == found.first - 1:
            found = Span(spans.pop().first, found.last)
        if found is not None:
            spans.append(found)
    return tuple(spans)


def _positive(lead: int, gain: int, start: int, end: int | None) -> Span | None:
    """The whole numbers T from ``start`` to ``end`` with lead + gain x T > 0."""
    first, last = start, end
    if gain > 0:
        first = max(start, -lead // gain + 1)
    elif gain < 0:
        turn = -(lead // gain) - 1  # below lead / -gain, which is rounded up
        last = turn if end is None else min(turn, end)
    elif lead <= 0:
        return None
    return None if last is not None and last < first else Span(first, last)


def _same(state_bytes: int, hybrid: KvCurve, baseline: KvCurve) -> bool:
    """Whether both sides weigh the same at every length."""
    points = (0, 1, max(hybrid.window_tokens, baseline.window_tokens) + 1)
    return all(baseline.at(tokens) == hybrid.at(tokens) + state_bytes for tokens in points)


def _slope_at_end(curve: KvCurve) -> int:
    """Bytes each further token adds once every window is full."""
    return curve.bytes_per_token


def _slope(curve: KvCurve, tokens: int) -> int:
    """Bytes the next token after ``tokens`` adds."""
    return curve.bytes_per_token + (curve.window_bytes_per_token if tokens < curve.window_tokens else 0)


# States beside the running ones: int8 checkpoints, snapshots over a sequence, and the hand-over to decode.
#
#     int8 slot      layers * (H*dv*dk + H*dk * scale + conv)      one byte a value, one scale a row of dv values
#     prefill        ceil(input / chunk) snapshots                 one at each chunk boundary
#     decode         generated // track_interval snapshots made    only the newest is kept: one slot, rewritten
#     hand-over      state + input * kv                            bytes moved from prefill to decode for one sequence
#
# Scales are stored in the SSM dtype (4 B under float32), not in two bytes. Units: bytes, snapshots.
# Source: SGLang mem_cache/mamba_checkpoint_pool.py and --mamba-track-interval (0.5.23); int8 checkpoint write-up (E2).


def int8_slot_bytes(*, layers: int, temporal: tuple[int, ...], conv_bytes: int, scale_dtype: str) -> int:
    """Bytes of one int8 checkpoint slot. ``temporal`` is (H, dv, dk) of one layer, ``conv_bytes`` its windows.

    Without a temporal state (short convolutions) only the windows count.
    """
    values = prod(temporal) if temporal else 0
    rows = temporal[0] * temporal[-1] if values else 0
    return layers * (values + rows * DTYPE_BYTES[scale_dtype] + conv_bytes)


def prefill_snapshots(input_tokens: int, chunk_tokens: int) -> int:
    """Snapshots a prompt leaves when each prefill chunk ends in one."""
    return -(-input_tokens // chunk_tokens)


def decode_snapshots(generated_tokens: int, track_interval: int) -> int:
    """Snapshots written while decoding, one each ``track_interval`` tokens; each replaces the one before."""
    return generated_tokens // track_interval


def handover_bytes(state_bytes: int, kv_bytes_per_token: int, input_tokens: int) -> int:
    """Bytes moved when prefill hands one sequence to decode: its state and the KV of its prompt, per rank."""
    return state_bytes + input_tokens * kv_bytes_per_token


def cyclic_hit_rate(prefixes: int, slots: int) -> int:
    """Hit rate of ``prefixes`` probed in turn, again and again, against an LRU of ``slots`` states: 1 or 0.

    One prefix too many and each is evicted just before its turn. Without unit; the first round is left out.
    """
    return 1 if prefixes <= slots else 0


# What do ReplaySSM's ring buffers cost, and which ring lengths are legal?
#
# Instead of D full states a request, ReplaySSM keeps the inputs of the last L steps and replays them. Per layer and
# slot, with Hv value heads and Hk key heads on the rank, dv and dk their widths, c = bytes of the conv dtype:
#
#     both     d, rawv: Hv * L * dv * c      k, rawk: Hk * L * dk * c
#     inputs   g: Hk * L * dk * 4            beta: Hv * L * 4
#     pairs    g: Hv * L * 4                 no beta; rawv and rawk only where the conv dtype is not fp32
#     window   g: Hv * L * 4                 beta: Hv * L * 4; no d and no k
#
# KDA replays inputs: raw v and k with g, one decay a key channel, and beta. GDN replays d and k as pairs of a rounded
# value and the rest; up to SGLang 0.5.19 it kept a window of its raw inputs. A ring keeps L a power of two and at least
# 2D (early-flush margin). Shapes are (layers, slots, heads, L[, width]); bytes are exact.
# Source: SGLang configs/mamba_utils.py, mem_cache/memory_pool.py (0.5.23).


Kept = Replay | Literal["window"]
"""What a ring holds: a family's form, or that which GDN had before it."""


class Ring(NamedTuple):
    """One ring buffer of the whole pool on one rank."""

    name: str
    shape: tuple[int, ...]
    dtype: str

    @property
    def bytes(self) -> int:
        """Bytes of the whole buffer."""
        return prod(self.shape) * DTYPE_BYTES[self.dtype]


def replay_rings(
    kept: Kept,
    *,
    layers: int,
    slots: int,
    v_heads: int,
    v_head_dim: int,
    k_heads: int,
    k_head_dim: int,
    cache_len: int,
    conv_dtype: str,
) -> tuple[Ring, ...]:
    """The rings of verification: d, k, g, and as ``kept`` asks rawv, rawk and beta. Heads per rank."""
    value = (layers, slots, v_heads, cache_len, v_head_dim)
    key = (layers, slots, k_heads, cache_len, k_head_dim)
    decay = Ring("g", key if kept == "inputs" else value[:-1], "float32")
    rings: tuple[Ring, ...] = (Ring("d", value, conv_dtype), Ring("k", key, conv_dtype), decay)
    if kept == "pairs" and conv_dtype == "float32":
        return rings
    if kept == "window":
        rings = (decay,)
    rings = (*rings, Ring("rawv", value, conv_dtype), Ring("rawk", key, conv_dtype))
    return rings if kept == "pairs" else (*rings, Ring("beta", value[:-1], "float32"))


def ring_length_problem(cache_len: int, draft_tokens: int) -> str:
    """Why a ring of ``cache_len`` cannot serve ``draft_tokens``; empty when it can. D is 0 without speculation."""
    if cache_len < 1 or cache_len & (cache_len - 1):
        return f"the ring length must be a power of two, {cache_len} is not"
    if cache_len < 2 * draft_tokens:
        least = f"2 x D = {2 * draft_tokens} for {draft_tokens} draft tokens"
        return f"the ring length must be at least {least}, {cache_len} is not"
    return ""


def smallest_ring(draft_tokens: int) -> int:
    """Smallest legal ring for D draft tokens: the next power of two from 2D. Unit: steps."""
    return 1 << max(0, 2 * draft_tokens - 1).bit_length()
