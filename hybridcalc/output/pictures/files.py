"""Drawings in files: SVG and PNG by vl-convert (Vega without a browser), and what is never written over.

An SVG follows the reader's light or dark scheme unless a theme is asked for; a PNG is light or dark.
"""

import re
from pathlib import Path
from typing import Any
from zlib import crc32

from hybridcalc.engines.charts import Picture
from hybridcalc.errors import InputError, quoted
from hybridcalc.output.pictures.palette import dark_rules, darkened
from hybridcalc.output.pictures.vega import specification

SUFFIXES = (".svg", ".png", ".html")
THEMES = ("auto", "light", "dark")
PNG_SCALE = 2
MISSING = "pip install 'hybridcalc[plot]'"


def check_target(name: str, *, force: bool) -> Path:
    """The file to write, before anything is computed. Raises InputError for another format, and for a file that is
    there unless ``force`` says that it may go.
    """
    path, shown = Path(name), quoted(name, 60)
    if path.suffix.lower() not in SUFFIXES:
        raise InputError(f"{shown} is no picture", fix="write FILE.svg, FILE.png or FILE.html")
    try:
        if path.is_dir() or not path.parent.is_dir():
            raise InputError(f"{shown} cannot be written", fix="its folder must exist, and it must not be one")
        if path.is_symlink() and not path.exists() and not force:
            raise InputError(f"{shown} is a link to a file that is not there", fix="add --force to write through it")
        if path.exists() and not path.is_file():
            raise InputError(f"{shown} is no regular file", fix="write FILE.svg, FILE.png or FILE.html elsewhere")
        if path.exists() and not force:
            raise InputError(f"{shown} is there already", fix="add --force to write over it")
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) and error.strerror else "no name of a file"
        raise InputError(f"{shown} cannot be written: {why}", fix="choose another name") from None
    return path


def draw_svg(picture: Picture, theme: str = "auto") -> str:
    """The picture as SVG. Raises InputError where the plotting library is not installed."""
    svg: str = converter().vegalite_to_svg(specification(picture))
    svg = _named_clips(_accessible(svg, picture), picture.title)
    if theme == "dark":
        return darkened(svg)
    if theme == "auto":
        style = f"<style>@media (prefers-color-scheme: dark) {{\n{dark_rules()}\n}}</style>"
        at = svg.index(">") + 1
        svg = svg[:at] + style + svg[at:]
    return svg


def draw_png(picture: Picture, theme: str = "light") -> bytes:
    """The picture as PNG, twice as many pixels as it has points."""
    svg = draw_svg(picture, "dark" if theme == "dark" else "light")
    png: bytes = converter().svg_to_png(svg, scale=PNG_SCALE)
    return png


def converter() -> Any:
    """The plotting library."""
    try:
        import vl_convert
    except ImportError:
        raise InputError("pictures in files need the plotting library", fix=MISSING) from None
    return vl_convert


def _named_clips(svg: str, title: str) -> str:
    """The drawing with names of its own for its clips: the library counts on from picture to picture, and a page holds
    several.
    """
    names = list(dict.fromkeys(re.findall(r'<clipPath id="([^"]+)"', svg)))
    own = f"c{crc32(title.encode()):08x}"
    for number, name in enumerate(names):
        for before, after in ((f'id="{name}"', f'id="{own}-{number}"'), (f"url(#{name})", f"url(#{own}-{number})")):
            svg = svg.replace(before, after)
    return svg


def _accessible(svg: str, picture: Picture) -> str:
    """With a title and a role for readers of screens."""
    from html import escape

    told = escape(f"{picture.title}. {picture.told}", quote=True)
    return re.sub(r"<svg ", f'<svg role="img" aria-label="{told}" ', svg, count=1)
