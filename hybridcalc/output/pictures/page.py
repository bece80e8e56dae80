"""One page about one answer: verdict, pictures, settings to try, budget, findings, steps, and the flags to copy.

A single file without anything to load: the pictures are SVG, the script is inline, and the page's own policy forbids
requests. Whatever a user or a log wrote is escaped. Without the script the page still says everything but the settings.
"""

import json
import os
import re
import sys
from collections.abc import Iterable, Sequence
from fractions import Fraction
from html import escape
from pathlib import Path
from typing import Any, NamedTuple

from hybridcalc.findings import Finding
from hybridcalc.output.pictures.chart import Picture
from hybridcalc.output.pictures.files import converter, draw_svg
from hybridcalc.output.pictures.palette import dark_rules
from hybridcalc.output.pictures.play import Control, Play, script_data
from hybridcalc.output.pictures.vega import WIDTH, specification
from hybridcalc.resources import package_file
from hybridcalc.steps import Number, Step

POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline' 'unsafe-eval'; img-src data:;"
    " base-uri 'none'; form-action 'none'"
)
"""Nothing is loaded and nothing is sent; the drawing library compiles its expressions, hence 'unsafe-eval'."""
SUBJECT = "hybridcalc"


class Choice(NamedTuple):
    """Flags to paste, and what they would do."""

    label: str
    flags: str
    effect: str


class Table(NamedTuple):
    """A table: title, header, rows, and the columns that hold numbers."""

    title: str
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    numbers: tuple[int, ...] = ()


class Page(NamedTuple):
    """What the page says. ``command`` is what made it; ``play`` the settings that recompute it."""

    title: str
    headline: str
    meaning: str
    command: str
    figures: tuple[tuple[str, str, str, str], ...] = ()
    pictures: tuple[Picture, ...] = ()
    play: Play | None = None
    tables: tuple[Table, ...] = ()
    findings: tuple[Finding, ...] = ()
    choices: tuple[Choice, ...] = ()
    log_lines: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    steps: tuple[Step, ...] = ()


def write_page(target: Path, page: Page) -> None:
    """Write the page to ``target``."""
    target.write_text(render(page), encoding="utf-8")


def render(page: Page) -> str:
    """The page as HTML."""
    sections = [
        section
        for section in (
            ("set", "What to set", _choices(page.choices)),
            ("try", "Try other settings", _play(page.play) if page.play is not None else ""),
            ("pictures", "Pictures", "\n".join(_figure(picture) for picture in page.pictures)),
            ("figures", "Figures", _figures(page.figures)),
            *((_anchor(table.title), table.title, _table(table)) for table in page.tables),
            ("findings", "Findings", _findings(page.findings)),
            ("log", "Log lines to expect", _lines(page.log_lines)),
            ("notes", "Notes", _notes(page.notes)),
            ("steps", "Steps and their sources", _steps(page.steps)),
        )
        if section[2]
    ]
    links = "".join(f'<li><a href="#{name}">{escape(title)}</a></li>' for name, title, _ in sections)
    body = "\n".join(
        f'<section aria-labelledby="{name}"><h2 id="{name}">{escape(title)}</h2>\n{content}</section>'
        for name, title, content in sections
    )
    scripts = _scripts(page.play)
    style = _web("style.css") + f"@media screen and (prefers-color-scheme: dark) {{\n{dark_rules('figure')}\n}}\n"
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{POLICY}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<link rel="icon" href="data:,">
<title>{escape(page.title)}</title>
<style>
{style}</style>
</head>
<body>
<header>
<p class="subject">{escape(page.title)}</p>
<h1>{escape(page.headline)}</h1>
<p class="lead">{escape(page.meaning)}</p>
<nav aria-label="Sections"><ul>{links}</ul></nav>
</header>
<main>
{body}
</main>
<footer><p>Made by hybridcalc {_version()}: <code>{escape(page.command)}</code></p></footer>
<p id="announce" role="status" class="no-print" style="position:absolute;left:-999em"></p>
{scripts}
</body>
</html>
"""


def command_line() -> str:
    """The command that runs, as a shell would take it."""
    from shlex import join

    return join(["hybridcalc", *sys.argv[1:]])


def _figure(picture: Picture) -> str:
    svg = draw_svg(picture, "light")
    return f"<figure>{svg}</figure>"


def _figures(rows: Sequence[tuple[str, str, str, str]]) -> str:
    if not rows:
        return ""
    return _table(Table("", ("", "value", "", "why"), tuple(rows), (1, 2)))


def _table(table: Table) -> str:
    if not table.rows:
        return ""
    kinds = [' class="number"' if column in table.numbers else "" for column in range(len(table.header))]
    head = "".join(f'<th scope="col"{kind}>{escape(cell)}</th>' for cell, kind in zip(table.header, kinds, strict=True))
    rows = []
    for first, *others in table.rows:
        cells = "".join(f"<td{kind}>{escape(cell)}</td>" for cell, kind in zip(others, kinds[1:], strict=True))
        rows.append(f'<tr><th scope="row">{escape(first)}</th>{cells}</tr>')
    return f'<div class="wide"><table><thead><tr>{head}</tr></thead><tbody>{"".join(rows)}</tbody></table></div>'


def _findings(findings: Iterable[Finding]) -> str:
    items = [
        f'<li class="{escape(f.severity)}"><span class="severity">{escape(f.severity)}</span> '
        f"<code>{escape(f.rule)}</code> {escape(f.message)}{_fix(f.fix)}</li>"
        for f in findings
    ]
    return f'<ul class="findings">{"".join(items)}</ul>' if items else ""


def _fix(text: str) -> str:
    return f"<br>{escape(text)}" if text else ""


def _choices(choices: Sequence[Choice]) -> str:
    items = []
    for number, (label, flags, effect) in enumerate(choices):
        button = (
            f'<button type="button" data-copy="flags-{number}" aria-label="Copy {escape(flags, quote=True)}">'
            "Copy</button>"
        )
        lead = f"{escape(label)} " if label else ""
        items.append(
            f'<div class="flags">{lead}<code id="flags-{number}">{escape(flags)}</code>{button}</div>'
            f"<p>{escape(effect)}</p>"
        )
    return "\n".join(items)


def _lines(lines: Sequence[str]) -> str:
    return f'<pre tabindex="0">{escape(chr(10).join(lines))}</pre>' if lines else ""


def _notes(notes: Sequence[str]) -> str:
    return "<ul>" + "".join(f"<li>{escape(note)}</li>" for note in notes) + "</ul>" if notes else ""


def _steps(steps: Sequence[Step]) -> str:
    rows = tuple((s.symbol, s.formula, s.with_numbers, _value(s.value), s.unit, s.source) for s in steps)
    return _table(Table("", ("", "formula", "with numbers", "value", "unit", "source"), rows, (3,)))


def _value(value: Number) -> str:
    exact = Fraction(value)
    if isinstance(value, int) or (exact.denominator == 1 and exact >= 1):
        return f"{int(exact):,}"
    return f"{float(exact):,.4g}" if exact < 1000 else f"{float(exact):,.2f}"


def _play(play: Play) -> str:
    controls = "\n".join(_control(control) for control in play.controls)
    results = "".join(f'<div><dt>{escape(r.label)}</dt><dd id="result-{r.name}">-</dd></div>' for r in play.results)
    charts = "\n".join(
        f'<figure><figcaption>{escape(picture.title)}</figcaption><div id="chart-{name}"></div></figure>'
        for name, picture in play.charts.items()
    )
    star = ""
    if any(control.name == "ratio" for control in play.controls):
        star = '<button type="button" id="play-star">Set the ratio to r*</button> '
    return f"""<noscript><p>Settings need the page's script; everything else stands without it.</p></noscript>
<div class="play"><form id="play-form" hidden aria-label="Settings">
{controls}
<div>{star}<button type="button" id="play-reset">Reset</button></div>
</form>
<div><dl class="results">{results}</dl>
<p id="play-said" class="said" role="status"></p>
{charts}
</div></div>"""


def _control(control: Control) -> str:
    name, label = control.name, escape(control.label)
    if control.choices:
        options = "".join(
            f'<option value="{escape(value, quote=True)}"{" selected" if value == control.value else ""}>'
            f"{escape(told)}</option>"
            for value, told in control.choices
        )
        return (
            f'<div class="control"><label for="set-{name}">{label}</label>'
            f'<select id="set-{name}" name="{name}">{options}</select></div>'
        )
    step = "1" if control.whole else "any"
    return f"""<div class="control"><label for="set-{name}">{label}</label><div class="pair">
<input type="range" id="range-{name}" min="0" max="1000" aria-label="{escape(control.label, quote=True)}, coarse">
<input type="number" id="set-{name}" name="{name}" value="{control.value}" min="{control.low:g}"
 max="{control.high:.9g}" step="{step}" required></div></div>"""


def _scripts(play: Play | None) -> str:
    data = library = ""
    if play is not None:
        compiled = {name: _compiled(picture) for name, picture in play.charts.items()}
        text = json.dumps(script_data(play, compiled, WIDTH), separators=(",", ":"))
        data = f'<script type="application/json" id="play-data">{_inert(text)}</script>\n'
        library = f"<script>\n(() => {{\n{_vega()}\n}})();\n</script>\n<script>\n{_web('arithmetic.js')}</script>\n"
    return f"{data}{library}<script>\n{_web('page.js')}</script>"


def _inert(text: str) -> str:
    """JSON that cannot end the element it stands in."""
    return text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")


def _compiled(picture: Picture) -> dict[str, Any]:
    compiled: dict[str, Any] = converter().vegalite_to_vega(specification(picture))
    return compiled


def _vega() -> str:
    """The drawing library for the page (Vega, BSD licence), bundled by the converter once and kept.

    Bundling takes two seconds, so it is kept in the user's cache under the converter's version.
    """
    import tempfile

    library = converter()
    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / SUBJECT
    kept = folder / f"vega-{library.get_vega_version()}.js"
    try:
        text = kept.read_text(encoding="utf-8")
    except (OSError, ValueError):
        text = ""
    if text.startswith("/* Vega") and text.endswith("/* end */"):
        return text
    bundle = re.sub(r"</(script)", r"<\\/\1", library.javascript_bundle("window.vegaEmbed=vegaEmbed;"))
    text = f"/* Vega {library.get_vega_version()}, https://vega.github.io, BSD-3-Clause */\n{bundle}\n/* end */"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", dir=folder, encoding="utf-8", delete=False) as stream:
            stream.write(text)
        Path(stream.name).replace(kept)
    except OSError:
        pass  # nowhere to keep it: it is bundled again next time
    return text


def _web(name: str) -> str:
    return package_file(f"output/pictures/web/{name}").decode()


def _anchor(title: str) -> str:
    return re.sub(r"[^a-z]+", "-", title.lower()).strip("-")


def _version() -> str:
    from hybridcalc import __version__

    return __version__
