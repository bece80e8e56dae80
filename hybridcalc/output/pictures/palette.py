"""Colours of pictures: told apart by people who see few, on a light ground and on a dark one.

Pools have the hues of Okabe and Ito's palette (blue, orange, reddish purple, vermillion, green); what only fills the
memory is grey. Every colour of a drawing is the light one; a dark ground replaces it by its partner, in a file by a
rule of the SVG itself (`prefers-color-scheme`), in a page by the page's.
"""

from collections.abc import Mapping

LIGHT = {
    "state": "#0072b2", "kv": "#e69f00", "scratch": "#cc79a7", "trouble": "#c44f00", "baseline": "#007d5c",
    "balanced": "#7c2d6b", "weights": "#6c7681", "other": "#a3acb5", "headroom": "#cbd2d9", "unused": "#f0f3f5",
    "context": "#4b5560", "answer": "#101418", "limit": "#5e6a76",
    "text": "#1f2328", "muted": "#57606a", "grid": "#dde2e7", "ground": "#ffffff",
    "state band": "#e1eef8", "kv band": "#fcf0d6", "limit band": "#e9ecef", "on dark": "#fefefe", "on light": "#010101",
}  # fmt: skip
DARK = {
    "state": "#4aa5e6", "kv": "#f0b429", "scratch": "#dd93bd", "trouble": "#ff7b39", "baseline": "#35c79b",
    "balanced": "#f4a3d8", "weights": "#8b949e", "other": "#7b858f", "headroom": "#434b54", "unused": "#20262d",
    "context": "#b4bdc6", "answer": "#f2f5f8", "limit": "#9ca7b2",
    "text": "#e6edf3", "muted": "#9aa4af", "grid": "#2f363d", "ground": "#0d1117",
    "state band": "#12293d", "kv band": "#35290c", "limit band": "#20272e", "on dark": "#010102", "on light": "#020101",
}  # fmt: skip
"""Roles on a dark ground; text on a filled part is dark there, since the fills are light."""

FILLS = (
    "state", "kv", "scratch", "trouble", "baseline", "balanced", "weights", "other", "headroom", "unused", "context",
)  # fmt: skip
ON_DARK = ("state", "trouble", "weights", "context", "baseline", "balanced")
"""Fills that carry light text on a light ground."""


def on(role: str) -> str:
    """The colour of text on a part of that role."""
    if role in ("headroom", "unused"):
        return LIGHT["text"]
    return LIGHT["on dark" if role in ON_DARK else "on light"]


def dark_rules(selector: str = "") -> str:
    """CSS that turns each light colour into its partner, in fills and strokes under ``selector``."""
    scope = f"{selector} " if selector else ""
    return "\n".join(
        f'{scope}[fill="{light}"]{{fill:{DARK[role]}}}{scope}[stroke="{light}"]{{stroke:{DARK[role]}}}'
        for role, light in LIGHT.items()
    )


def page_rules() -> str:
    """CSS of a page's own drawings: a class for each role as a fill, a line, a band, and text on its fill."""
    schemes = []
    for colours in (LIGHT, DARK):
        held = ";".join(f"--c-{role.replace(' ', '-')}:{colour}" for role, colour in colours.items())
        inks = ";".join(f"--i-{role}:{_partner(on(role), colours)}" for role in FILLS)
        schemes.append(f":root{{{held};{inks}}}")
    rules = [f".fill-{role}{{fill:var(--c-{role})}}.ink-{role}{{fill:var(--i-{role})}}" for role in FILLS]
    rules += [f".line-{role}{{stroke:var(--c-{role})}}" for role in ("answer", "limit", *FILLS)]
    rules += [f".band-{role}{{fill:var(--c-{role}-band)}}" for role in ("state", "kv", "limit")]
    return f"{schemes[0]}\n@media screen and (prefers-color-scheme: dark) {{{schemes[1]}}}\n{''.join(rules)}\n"


def _partner(light: str, colours: Mapping[str, str]) -> str:
    return next(colours[role] for role, colour in LIGHT.items() if colour == light)


def darkened(svg: str) -> str:
    """The drawing on a dark ground for good."""
    for role, light in LIGHT.items():
        svg = svg.replace(f'"{light}"', f'"{DARK[role]}"')
    return svg
