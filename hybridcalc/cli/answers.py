"""How an answer is shown: as text, as JSON or CSV, as a picture or as a page.

A command asks for a `Wanted` first, so that a file that may not be written is refused before anything is computed, and
then hands over its view and its document as functions: only what is wanted is made.
"""

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from hybridcalc.cli.app import Json
from hybridcalc.cli.options import PICTURE, Explain, Verbose
from hybridcalc.errors import InputError, quoted

if TYPE_CHECKING:
    from hybridcalc.deployment import Memory, Workload
    from hybridcalc.engines.charts import Picture
    from hybridcalc.findings import View
    from hybridcalc.manifests.emit import Emitted


class Forms(NamedTuple):
    """In which form an answer is wanted, as typed."""

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
    as_json: Json = False
    explain: Explain = False
    verbose: Verbose = False


class Wanted(NamedTuple):
    """In which form an answer is wanted: a picture or a page, to a file; a document on stdout; text with the steps."""

    target: Path | None = None
    figure: str | None = None
    theme: str = "auto"
    json: bool = False
    csv: bool = False
    explain: bool = False
    verbose: bool = False

    @property
    def drawn(self) -> bool:
        """Whether a picture or a page is wanted."""
        return self.target is not None or self.figure is not None

    @property
    def page(self) -> bool:
        """Whether it is a page."""
        return self.target is not None and self.target.suffix.lower() == ".html"

    def undrawn(self, why: str = "nothing starts") -> "Wanted":
        """The same for an answer that has no picture, which is said; it has a page."""
        if self.page or not self.drawn:
            return self
        print(f"no picture: {why}", file=sys.stderr)
        return self._replace(target=None, figure=None)


def wanted(typed: Forms, *, as_csv: bool = False) -> Wanted:
    """The options as typed, checked.

    Raises InputError for what cannot be written or is not known, and for options that would be passed over.
    """
    save, figure, theme, force, as_json, explain, verbose = typed
    document = as_json or as_csv
    form = Wanted(None, figure, theme, as_json, as_csv, explain, verbose)
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
        return form
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
    return form._replace(target=check_target(save, force=force))


CONFIG_FORM = "-yaml"
"""How the name of an engine's own config file ends among the forms of --emit."""


def check_emit(
    form: str, *others: "Sequence[str]", as_json: bool, others_are: str = "--json, --compare and --sweep"
) -> None:
    """Raise InputError for a form of --emit that is not known, and beside another form of the answer."""
    from hybridcalc.manifests.emit import check_form

    check_form(form)
    if as_json or any(others):
        raise InputError("--emit prints one deployment and nothing else", fix=f"leave out {others_are}")


def write_out(form: str, launch: "Emitted", work: "Workload", memory: "Memory | None" = None) -> None:
    """Print a deployment file; what `check` will find in it is set aside there and said on standard error."""
    from hybridcalc.checks.written import written

    text, aside = written(form, launch, work, memory)
    for found in aside:
        typer.echo(f"{found.severity}: {found.rule} {found.message}; set aside in the file", err=True)
    typer.echo(text, nl=False)


def show(
    command: str,
    asked: Wanted,
    view: "Callable[[], View]",
    document: Callable[[], Mapping[str, Any]],
    *,
    text: Callable[[], None] | None = None,
    rows: "Callable[[], Iterable[Mapping[str, Any]]] | None" = None,
) -> None:
    """Show an answer of ``command``; ``text`` prints it where its text is more than that of one view, ``rows`` are
    those of its CSV.
    """
    quiet = asked.json or asked.csv
    if asked.target is not None:
        print(f"{asked.target}: {_save(asked, asked.target, view())}", file=sys.stderr if quiet else sys.stdout)
    elif asked.drawn:
        _print(_chosen(asked, view().pictures))
    elif text is not None and not quiet:
        text()
    elif not quiet:
        from hybridcalc.output.text import print_view

        print_view(view(), explain=asked.explain, verbose=asked.verbose)
    if quiet:
        from hybridcalc.output.document import print_csv, print_json

        print_csv(rows()) if asked.csv and rows is not None else print_json(command, document())


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


def _chosen(asked: Wanted, draw: "Mapping[str, Callable[[], Picture]]") -> "Picture":
    if not draw:
        raise InputError("there is nothing to draw", fix="the answer without --save says why")
    name = asked.figure or next(iter(draw))
    if name not in draw:
        timed = "; it needs --gpu, -L and an engine whose steps are modelled" if name in ("step", "roofline") else ""
        raise InputError(f"--figure {quoted(name)} is no picture of this answer", fix=f"write {', '.join(draw)}{timed}")
    return draw[name]()


def _print(picture: "Picture") -> None:
    from hybridcalc.output import terminal
    from hybridcalc.output.pictures.terminal import draw, headed

    out = terminal.console()
    drawn = draw(picture, width=out.width, colour=out.color_system is not None, encoding=out.encoding)
    if drawn is None:
        raise InputError("curves in the terminal need the plotting library", fix="pip install 'hybridcalc[plot]'")
    out.file.write(headed(picture, drawn, out.width) + "\n")
