"""Colours that meet in one picture are told apart by people who see no red, green or blue; texts have contrast."""

from __future__ import annotations

from itertools import combinations

import pytest

from hybridcalc.output.pictures.palette import DARK, FILLS, LIGHT, on

SEEN = {
    "as it is": ((1, 0, 0), (0, 1, 0), (0, 0, 1)),
    "no red": ((0.152286, 1.052583, -0.204868), (0.114503, 0.786281, 0.099216), (-0.003882, -0.048116, 1.051998)),
    "no green": ((0.367322, 0.860646, -0.227968), (0.280085, 0.672501, 0.047413), (-0.011820, 0.042940, 0.968881)),
    "no blue": ((1.255528, -0.076749, -0.178779), (-0.078411, 0.930809, 0.147602), (0.004733, 0.691367, 0.303900)),
}
"""What is seen of linear red, green and blue: Machado, Oliveira and Fernandes 2009, severity 1."""
TOGETHER = {
    "curves of a plan": ("answer", "state", "kv", "balanced"),
    "curves of vLLM": ("answer", "kv", "limit"),
    "curves of a crossover": ("state", "kv", "baseline"),
    "pools": ("state", "kv", "scratch", "trouble", "unused"),
    "memory": ("weights", "state", "kv", "unused", "headroom", "context"),
}
LEAST_DIFFERENCE, LEAST_CONTRAST = 10.5, 4.5


def _linear(colour: str) -> list[float]:
    values = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    return [v / 12.92 if v <= 0.04045 else ((v + 0.055) / 1.055) ** 2.4 for v in values]


def _lab(colour: str, seen: str) -> tuple[float, float, float]:
    """CIE L*a*b* of a colour as it is seen."""
    linear = _linear(colour)
    r, g, b = (min(1.0, max(0.0, sum(m * v for m, v in zip(row, linear, strict=True)))) for row in SEEN[seen])
    x, y, z = (
        (0.4124564 * r + 0.3575761 * g + 0.1804375 * b) / 0.95047,
        0.2126729 * r + 0.7151522 * g + 0.0721750 * b,
        (0.0193339 * r + 0.1191920 * g + 0.9503041 * b) / 1.08883,
    )
    fx, fy, fz = (v ** (1 / 3) if v > 0.008856 else 7.787 * v + 16 / 116 for v in (x, y, z))
    return 116 * fy - 16, 500 * (fx - fy), 200 * (fy - fz)


def _luminance(colour: str) -> float:
    r, g, b = _linear(colour)
    return 0.2126 * r + 0.7152 * g + 0.0722 * b


@pytest.mark.parametrize("scheme", [LIGHT, DARK], ids=["light", "dark"])
@pytest.mark.parametrize("seen", SEEN)
@pytest.mark.parametrize("picture", TOGETHER)
def test_colours_that_meet_are_told_apart(picture: str, seen: str, scheme: dict[str, str]) -> None:
    near = {
        (one, other): round(sum((a - b) ** 2 for a, b in zip(*found, strict=True)) ** 0.5, 1)
        for one, other in combinations(TOGETHER[picture], 2)
        if (found := (_lab(scheme[one], seen), _lab(scheme[other], seen)))
    }
    assert {pair: far for pair, far in near.items() if far < LEAST_DIFFERENCE} == {}


@pytest.mark.parametrize("scheme", [LIGHT, DARK], ids=["light", "dark"])
@pytest.mark.parametrize("role", FILLS)
def test_texts_on_parts_have_contrast(role: str, scheme: dict[str, str]) -> None:
    ink = next(scheme[name] for name, colour in LIGHT.items() if colour == on(role))
    low, high = sorted((_luminance(ink), _luminance(scheme[role])))
    assert (high + 0.05) / (low + 0.05) >= LEAST_CONTRAST


def test_no_two_roles_share_a_colour() -> None:
    """A colour is one thing, and turns into one other on a dark ground."""
    assert len(set(LIGHT.values())) == len(LIGHT) == len(DARK) == len(set(DARK.values()))
