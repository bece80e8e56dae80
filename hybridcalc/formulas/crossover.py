"""At which length does KV outweigh the recurrent state, and from where on does the hybrid beat a baseline?

    T*(pair)     = state of one layer / KV of one layer per token
    T*(state)    : KV(T) = state; state of all layers / KV of all layers per token where there is no window
    T*(baseline) = state / baseline's KV per token                     the state against the baseline's KV alone
    T*(total)    : state + hybrid KV(T) = baseline KV(T)                the whole hybrid against the baseline
    spans        : lengths with state + hybrid KV(T) < baseline KV(T)   wherever the hybrid is the lighter of the two

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


def curve_lengths(marks: list[Fraction | None], longest: int) -> list[int]:
    """Lengths worth drawing: powers of two up to ``longest`` and the whole tokens around each crossover."""
    lengths = {2**i for i in range(longest.bit_length()) if 2**i <= longest} | {longest}
    for mark in marks:
        if mark is not None and 1 <= mark <= longest:
            lengths.add(max(1, int(mark)))
    return sorted(lengths)
