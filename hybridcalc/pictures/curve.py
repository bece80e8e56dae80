"""State against KV over the length of a sequence, as a curve in the terminal (plotext, log axes).

Returns text; None when the plotting library is not installed. Series are told apart by their marker as well as by
colour, so that the picture reads without colour; where an encoding lacks the lines of boxes, they are drawn in ASCII.
"""

from collections.abc import Sequence
from fractions import Fraction
from math import ceil
from textwrap import wrap

from hybridcalc.crossover import Point
from hybridcalc.units import format_bytes

HEIGHT = 18
WIDEST = 100
SHORTEST = 16
"""Tokens at which the curve starts: below it only the fixed state is to be seen."""
ASCII_LINES = str.maketrans("\u2500\u2502\u250c\u2510\u2514\u2518\u251c\u2524\u252c\u2534\u253c", "-|+++++++++")


def draw_crossover(
    curve: Sequence[Point], marks: Sequence[tuple[str, Fraction]], *, width: int, colour: bool, encoding: str = "utf-8"
) -> str | None:
    """The curve at ``width`` columns, with a vertical line at each of ``marks``; its lines can be written in
    ``encoding``.
    """
    try:
        import plotext as plot
    except ImportError:
        return None
    drawn = [point for point in curve if point.tokens >= SHORTEST] or list(curve)
    plot.clear_figure()
    plot.plot_size(min(width, WIDEST) - 1, HEIGHT)
    plot.theme("clear")
    lengths, sizes = [point.tokens for point in drawn], []
    for name, values, marker, shade in _series(drawn):
        seen = [(x, y) for x, y in zip(lengths, values, strict=True) if y > 0]
        if seen:
            plot.plot(*zip(*seen, strict=True), label=name, marker=marker, color=shade)
            sizes += [y for _, y in seen]
    for _, tokens in marks:
        if lengths[0] <= tokens <= lengths[-1]:
            plot.vertical_line(float(tokens))
    plot.xscale("log")
    plot.yscale("log")
    ticks = _powers(lengths[0], lengths[-1], 4)
    plot.xticks(ticks, [_tokens(tick) for tick in ticks])
    levels = _powers(min(sizes), max(sizes), 16) if sizes else []
    plot.yticks(levels, [format_bytes(level) for level in levels])
    plot.xlabel("tokens of one sequence")
    text: str = plot.build()
    text = text if colour else plot.uncolorize(text)
    try:
        text.encode(encoding)
    except (UnicodeError, LookupError):
        text = text.translate(ASCII_LINES).encode("ascii", "replace").decode("ascii")
    places = "; ".join(f"{name} at {ceil(tokens):,}" for name, tokens in marks)
    named = wrap(f"lines: {places}", min(width, WIDEST) - 3) if places else []
    lines = [*text.splitlines(), *(f"  {line}" for line in named)]
    return "\n".join(line.rstrip() for line in lines).rstrip()


def _series(curve: Sequence[Point]) -> list[tuple[str, list[int], str, str]]:
    series = [
        ("state", [point.state_bytes for point in curve], "s", "cyan"),
        ("KV", [point.kv_bytes for point in curve], "k", "yellow"),
    ]
    if curve and curve[0].baseline_bytes is not None:
        series.append(("baseline", [point.baseline_bytes or 0 for point in curve], "b", "default"))
    return series


def _powers(lowest: int, highest: int, base: int) -> list[int]:
    """Powers of ``base`` within a range, or its ends where it holds fewer than two."""
    powers, power = [], 1
    while power <= highest:
        if power >= lowest:
            powers.append(power)
        power *= base
    return powers if len(powers) > 1 else [lowest, highest]


def _tokens(count: int) -> str:
    for unit, name in ((2**20, "M"), (2**10, "k")):
        if count >= unit and count % unit == 0:
            return f"{count // unit}{name}"
    return str(count)
