"""``--save``, ``--figure``, ``--theme`` and ``--force``: how a command's answer becomes a picture or a page.

A command asks for a `Wanted` first, so that a file that may not be written is refused before anything is computed, and
then shows its view: as text, as a picture or as a page.
"""

import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from hybridcalc.cli.options import PICTURE
from hybridcalc.errors import InputError, quoted

if TYPE_CHECKING:
    from hybridcalc.engines.charts import Picture
    from hybridcalc.steps import View


class Pictures(NamedTuple):
    """What picture of an answer is wanted, as typed."""

    save: Annotated[
        str | None,
        typer.Option(
            "--save",
            metavar="FILE",
            help="Write a picture, FILE.svg or FILE.png, or a page, FILE.html.",
            rich_help_panel=PICTURE,
        ),
    ] = None
    figure: Annotated[
        str | None,
        typer.Option(
            "--figure",
            metavar="NAME",
            help="Which picture to save or, without --save, to print.",
            rich_help_panel=PICTURE,
        ),
    ] = None
    theme: Annotated[
        str,
        typer.Option(
            "--theme",
            metavar="NAME",
            help="auto (follows the reader), light or dark; of a saved picture.",
            rich_help_panel=PICTURE,
        ),
    ] = "auto"
    force: Annotated[bool, typer.Option("--force", help="Let --save write over a file.", rich_help_panel=PICTURE)] = (
        False
    )


class Wanted(NamedTuple):
    """What picture of an answer is wanted, and where."""

    target: Path | None
    figure: str | None
    theme: str

    @property
    def any(self) -> bool:
        """Whether one is wanted at all."""
        return self.target is not None or self.figure is not None

    @property
    def page(self) -> bool:
        """Whether it is a page."""
        return self.target is not None and self.target.suffix.lower() == ".html"


NOTHING = Wanted(None, None, "auto")
"""No picture and no page."""


def wanted(typed: Pictures, *, document: bool = False, explain: bool = False) -> Wanted:
    """The options as typed, checked. ``document``: JSON or CSV is printed; ``explain``: the steps are.

    Raises InputError for what cannot be written or is not known, and for options that would be passed over.
    """
    save, figure, theme, force = typed
    if save is None:
        for name, idle in (("--theme", theme != "auto"), ("--force", force)):
            if idle:
                raise InputError(
                    f"{name} is about a saved picture, and none is", fix="add --save FILE.svg, or leave it out"
                )
        if figure is not None and document:
            raise InputError(
                "--figure prints a picture where a document is printed", fix="add --save FILE.svg, or leave out one"
            )
        if figure is not None and explain:
            raise InputError("--figure takes the place of what --explain explains", fix="leave out one")
        return Wanted(None, figure, theme)
    from hybridcalc.output.pictures.files import THEMES, check_target

    page = save.lower().endswith(".html")
    if page and figure is not None:
        raise InputError("a page holds every picture", fix="leave out --figure, or save FILE.svg")
    if page and theme != "auto":
        raise InputError("a page follows its reader's scheme", fix="leave out --theme, or save FILE.svg")
    if explain and not page and not document:
        raise InputError("--save takes the place of what --explain explains", fix="leave out one, or save FILE.html")
    if theme not in THEMES:
        raise InputError(f"--theme {quoted(theme)} is not known", fix=f"write {', '.join(THEMES)}")
    return Wanted(check_target(save, force=force), figure, theme)


def show(
    view: "View | Callable[[], View]",
    asked: Wanted,
    *,
    document: bool = False,
    explain: bool = False,
    text: "Callable[[], None] | None" = None,
) -> None:
    """Show an answer: its page, its picture, or, where neither is wanted and no ``document`` is printed, its text.

    ``text`` prints that otherwise than any view is.
    """
    if document and not asked.any:
        return
    if not asked.any and text is not None:
        text()
        return
    made = view if isinstance(view, tuple) else view()
    if not asked.any:
        from hybridcalc.output.terminal import print_view

        print_view(made, explain=explain)
    elif asked.target is None:
        _print(_chosen(asked, made.pictures))
    else:
        print(f"{asked.target}: {_save(asked, asked.target, made)}", file=sys.stderr if document else sys.stdout)


def _save(asked: Wanted, target: Path, view: "View") -> str:
    """Write the page or the picture; its title."""
    if asked.page:
        from hybridcalc.output.pictures.page import write_page

        write_page(target, view)
        return view.title
    from hybridcalc.output.pictures.files import draw_png, draw_svg

    picture = _chosen(asked, view.pictures)
    if target.suffix.lower() == ".png":
        target.write_bytes(draw_png(picture, asked.theme))
    else:
        target.write_text(draw_svg(picture, asked.theme), encoding="utf-8")
    return picture.title


def nothing_drawn(asked: Wanted, why: str = "nothing starts") -> None:
    """Say why no picture comes, where the answer's text stands in its place."""
    if asked.any:
        print(f"no picture: {why}", file=sys.stderr)


def _chosen(asked: Wanted, draw: "Mapping[str, Callable[[], Picture]]") -> "Picture":
    if not draw:
        raise InputError("there is nothing to draw", fix="the answer without --save says why")
    name = asked.figure or next(iter(draw))
    if name not in draw:
        raise InputError(f"--figure {quoted(name)} is no picture of this answer", fix=f"write {', '.join(draw)}")
    return draw[name]()


def _print(picture: "Picture") -> None:
    from hybridcalc.output import terminal
    from hybridcalc.output.pictures.terminal import draw, headed

    out = terminal.console()
    drawn = draw(picture, width=out.width, colour=out.color_system is not None, encoding=out.encoding)
    if drawn is None:
        raise InputError("curves in the terminal need the plotting library", fix="pip install 'hybridcalc[plot]'")
    out.file.write(headed(picture, drawn, out.width) + "\n")
