"""At which length does KV outweigh the recurrent state, and from where on does the hybrid beat a baseline?

    T*(pair)     = state of one layer / KV of one layer per token
    T*(state)    = state of all layers / KV of all layers per token
    T*(baseline) = state / baseline's KV per token                     the state against the baseline's KV alone
    T*(total)    : state + hybrid KV(T) = baseline KV(T)                the whole hybrid against the baseline

KV(T) grows by bytes_per_token and, for sliding windows, by window bytes until the window is full: a piecewise linear
curve, solved exactly piece by piece. Unit: tokens (fractions; the curve is read at whole tokens).
Source: the hybrid-SSM chapter (C2) and the recurrent-state article (D1), which reads one pair as if it were the model.
"""

from fractions import Fraction
from typing import NamedTuple


class KvCurve(NamedTuple):
    """KV bytes of one sequence over its length: a part that always grows and a part that stops at a window."""

    bytes_per_token: int
    window_bytes_per_token: int = 0
    window_tokens: int = 0

    def at(self, tokens: int) -> int:
        """KV bytes at ``tokens``."""
        return self.bytes_per_token * tokens + self.window_bytes_per_token * min(tokens, self.window_tokens)


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


def curve_lengths(marks: list[Fraction | None], longest: int) -> list[int]:
    """Lengths worth drawing: powers of two up to ``longest`` and the whole tokens around each crossover."""
    lengths = {2**i for i in range(longest.bit_length()) if 2**i <= longest} | {longest}
    for mark in marks:
        if mark is not None and 1 <= mark <= longest:
            lengths.add(max(1, int(mark)))
    return sorted(lengths)
