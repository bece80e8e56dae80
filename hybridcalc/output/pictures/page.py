"""One page about one answer: verdict, pictures, settings to try, budget, findings, steps, and the flags to copy.

A single file without anything to load: the pictures are SVG, the script is inline, and the page's own policy forbids
requests. Whatever a user or a log wrote is escaped. Without the script the page still says everything but the settings.
"""

import json
import os
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from fractions import Fraction
from html import escape
from pathlib import Path
from typing import Any

from hybridcalc.engines.charts import Picture
from hybridcalc.engines.play import Control, Play
from hybridcalc.errors import HybridcalcError
from hybridcalc.findings import Finding
from hybridcalc.output.pictures.files import converter, draw_svg
from hybridcalc.output.pictures.palette import LIGHT, dark_rules, on
from hybridcalc.output.pictures.vega import WIDTH, specification
from hybridcalc.resources import package_file
from hybridcalc.steps import Choice, Number, Quantity, Step, Table, View

POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline' 'unsafe-eval'; img-src data:;"
    " base-uri 'none'; form-action 'none'"
)
"""Nothing is loaded and nothing is sent; the drawing library compiles its expressions, hence 'unsafe-eval'."""
SUBJECT = "hybridcalc"


def write_page(target: Path, view: View) -> None:
    """Write the page to ``target``."""
    target.write_text(render(view), encoding="utf-8")


def render(view: View) -> str:
    """The page as HTML."""
    play = None if view.play is None else view.play()
    sections = [
        section
        for section in (
            ("set", "What to set", _choices(view.choices)),
            ("instead", "Instead", f"<p>{escape(view.fix)}</p>" if view.fix else ""),
            ("try", "Try other settings", _play(play) if play is not None else ""),
            ("pictures", "Pictures", "\n".join(_figures_drawn(view))),
            ("figures", "Figures", _figures(view.figures)),
            ("evidence", "What the log says", _table(Table("", ("", "figure", "arithmetic"), view.evidence))),
            *((_anchor(table.title), table.title, _table(table)) for table in view.tables),
            ("findings", "Findings", _findings(view.findings)),
            ("log", "Log lines to expect", _lines(view.log_lines)),
            ("notes", "Notes", _notes(view.notes)),
            ("steps", "Steps and their sources", _steps(view.steps)),
        )
        if section[2]
    ]
    links = "".join(f'<li><a href="#{name}">{escape(title)}</a></li>' for name, title, _ in sections)
    body = "\n".join(
        f'<section aria-labelledby="{name}"><h2 id="{name}">{escape(title)}</h2>\n{content}</section>'
        for name, title, content in sections
    )
    scripts = _scripts(play)
    style = _web("style.css") + f"@media screen and (prefers-color-scheme: dark) {{\n{dark_rules('figure')}\n}}\n"
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{POLICY}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<link rel="icon" href="data:,">
<title>{escape(view.title)}</title>
<style>
{style}</style>
</head>
<body>
<header>
<p class="subject">{escape(view.subject or view.title)}</p>
<h1>{escape(view.headline)}</h1>
<p class="lead">{escape(view.meaning)}</p>
<nav aria-label="Sections"><ul>{links}</ul></nav>
</header>
<main>
{body}
</main>
<footer><p>Made by hybridcalc {_version()}: <code>{escape(command_line())}</code></p></footer>
<p id="announce" role="status" class="no-print" style="position:absolute;left:-999em"></p>
{scripts}
</body>
</html>
"""


def command_line() -> str:
    """The command that runs, as a shell would take it."""
    from shlex import join

    return join(["hybridcalc", *sys.argv[1:]])


def _figures_drawn(view: View) -> Iterator[str]:
    """The pictures that the answer has."""
    for draw in view.pictures.values():
        with suppress(HybridcalcError):
            yield f"<figure>{draw_svg(draw(), 'light')}</figure>"


def _figures(rows: Sequence[Quantity]) -> str:
    if not rows:
        return ""
    return _table(
        Table("", ("", "value", "", "why"), tuple((row.label, row.value, row.unit, row.reason) for row in rows), (1, 2))
    )


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
    for number, (label, flags, effect, full, _) in enumerate(choices):
        button = (
            f'<button type="button" data-copy="flags-{number}" aria-label="Copy {escape(flags, quote=True)}">'
            "Copy</button>"
        )
        lead = f"{escape(label)} " if label else ""
        items.append(
            f'<div class="flags">{lead}<code id="flags-{number}">{escape(flags)}</code>{button}</div>'
            f"<p>{escape(full or effect)}</p>"
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
    results = "".join(
        f'<div><dt>{escape(label)}</dt><dd id="result-{name}">-</dd></div>' for name, label in play.results.items()
    )
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
        text = json.dumps(_data(play, compiled), separators=(",", ":"))
        data = f'<script type="application/json" id="play-data">{_inert(text)}</script>\n'
        library = f"<script>\n(() => {{\n{_vega()}\n}})();\n</script>\n<script>\n{_web('arithmetic.js')}</script>\n"
    return f"{data}{library}<script>\n{_web('page.js')}</script>"


def _data(play: Play, compiled: dict[str, Any]) -> dict[str, Any]:
    """What the page's script reads."""
    controls = [
        {"name": c.name, "label": c.label, "low": c.low, "high": c.high, "whole": c.whole, "choices": bool(c.choices)}
        for c in play.controls
    ]
    return play.data | {
        "controls": controls,
        "results": list(play.results),
        "charts": compiled,
        "width": WIDTH,
        "bands": {role: {"fill": LIGHT[f"{role} band"], "label": label} for role, label in play.bands.items()},
        "inks": {role: on(role) for role in ("state", "kv", "scratch", "unused")},
    }


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
