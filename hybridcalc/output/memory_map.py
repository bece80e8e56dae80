"""One GPU's memory to scale, as a bar of letters: what each pool takes of it.

Each segment has a letter of its own, so that the bar reads without colour; segments too small for a column are named in
the legend only. Columns are shared out by largest remainder: they always add up to the width.
"""

from collections.abc import Sequence
from typing import NamedTuple

from rich.text import Text

from hybridcalc.units import format_bytes

NARROWEST = 20


class Segment(NamedTuple):
    """A part of the memory: its name, the letter it is drawn with, its bytes, and a style of rich."""

    name: str
    letter: str
    bytes: int
    style: str


def columns(sizes: Sequence[int], width: int) -> list[int]:
    """Columns for each size: floors of the exact shares, the rest to the largest remainders."""
    total = sum(sizes)
    if total <= 0:
        return [0] * len(sizes)
    shares = [size * width // total for size in sizes]
    left = sorted(range(len(sizes)), key=lambda i: -(sizes[i] * width % total))
    for position in left[: width - sum(shares)]:
        shares[position] += 1
    return shares


def memory_map(segments: Sequence[Segment], width: int) -> Text:
    """The bar and its legend, at ``width`` columns."""
    shown = [segment for segment in segments if segment.bytes > 0]
    inner = max(NARROWEST, width - 4)
    bar = Text("  [")
    for segment, count in zip(shown, columns([s.bytes for s in shown], inner), strict=True):
        bar.append(segment.letter * count, style=segment.style)
    bar.append("]\n")
    legend, used = Text("  "), 2
    for segment in shown:
        entry = f"{segment.letter} {segment.name} {format_bytes(segment.bytes)}"
        if used + len(entry) > width and used > 2:
            legend.append("\n  ")
            used = 2
        legend.append(entry + "   ", style=segment.style)
        used += len(entry) + 3
    return bar + legend
