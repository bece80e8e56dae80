"""One page about one answer: verdict, pictures, settings to try, budget, findings, steps, and the flags to copy.

A single file without anything to load: the pictures are drawn by its own script, for the width of the reader's screen,
and the page's own policy forbids requests and every script but that one, by its hash. Whatever a user or a log wrote is
escaped. Without the script the pictures are those of a file, and the page says everything but the settings.
"""

import json
import re
import sys
from base64 import b64encode
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from fractions import Fraction
from hashlib import sha256
from html import escape
from pathlib import Path
from typing import Any

from hybridcalc.architecture.presets import package_file
from hybridcalc.engines.charts import Bars, Chart, Picture
from hybridcalc.engines.play import Control, Play
from hybridcalc.errors import HybridcalcError
from hybridcalc.findings import Choice, Finding, Number, Quantity, Step, Table, View
from hybridcalc.output.pictures.files import draw_svg
from hybridcalc.output.pictures.palette import dark_rules, page_rules

POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{hash}'; img-src data:; base-uri 'none';"
    " form-action 'none'"
)
"""Nothing is loaded and nothing is sent, and no script runs but the page's own, of that hash."""
SCRIPTS = ("arithmetic.js", "speed.js", "prefixes.js", "charts.js", "page.js")


def write_page(target: Path, view: View) -> None:
    """Write the page to ``target``."""
    target.write_text(render(view), encoding="utf-8")


def render(view: View) -> str:
    """The page as HTML."""
    play = None if view.play is None else view.play()
    drawn = {name: picture for name, draw in view.pictures.items() if (picture := _drawn(draw)) is not None}
    live = {} if play is None else play.charts
    others = {name: picture for name, picture in drawn.items() if name not in live}
    sections = [
        section
        for section in (
            ("set", "What to set", _choices(view.choices)),
            ("instead", "Instead", f"<p>{escape(view.fix)}</p>" if view.fix else ""),
            ("try", "Try other settings", _play(play, drawn) if play is not None else ""),
            ("pictures", "Pictures", "\n".join(_figures_drawn(others))),
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
    script = "\n".join(_web(name) for name in SCRIPTS)
    digest = b64encode(sha256(f"\n{script}".encode()).digest()).decode()
    style = (
        _web("style.css")
        + page_rules()
        + f"@media screen and (prefers-color-scheme: dark) {{\n{dark_rules('figure')}\n}}\n"
    )
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{POLICY.format(hash=digest)}">
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
{_inputs(view)}<nav aria-label="Sections"><ul>{links}</ul></nav>
</header>
<main>
{body}
<p id="announce" role="status" class="unseen"></p>
</main>
<footer><p>Made by hybridcalc {_version()}: <code>{escape(command_line())}</code></p></footer>
{_data(play)}<script>
{script}</script>
</body>
</html>
"""


def command_line() -> str:
    """The command that runs, as a shell would take it."""
    from shlex import join

    return join(["hybridcalc", *sys.argv[1:]])


def _drawn(draw: Any) -> Picture | None:
    """A picture of the answer; None where it has nothing to show."""
    with suppress(HybridcalcError):
        found: Picture = draw()
        return found
    return None


def _figures_drawn(pictures: Mapping[str, Picture]) -> Iterator[str]:
    """The pictures that the settings do not change, each with the data that the script draws it from."""
    for name, picture in pictures.items():
        told = f"<p>{escape(picture.told)}</p>" if picture.told else ""
        data = json.dumps(plain(picture), separators=(",", ":"))
        yield (
            f"<figure><figcaption>{escape(picture.title)}</figcaption>{told}"
            f'<div data-picture="data-{name}">{_file(picture)}</div>'
            f'<script type="application/json" id="data-{name}">{_inert(data)}</script></figure>'
        )


def _file(picture: Picture | None) -> str:
    """The picture as of a file, for readers without the script; nothing without the plotting library."""
    if picture is not None:
        with suppress(HybridcalcError):
            return draw_svg(picture, "light")
    return ""


def plain(picture: Picture) -> dict[str, Any]:
    """A picture as the script reads it: its own fields."""
    found = picture._asdict()
    lists = {"series": Chart, "marks": Chart, "bands": Chart, "bars": Bars}
    for name, kind in lists.items():
        if isinstance(picture, kind):
            found[name] = [item._asdict() for item in found[name]]
    if isinstance(picture, Chart):
        return found | {"x": picture.x._asdict(), "y": picture.y._asdict()}
    for bar in found["bars"]:
        bar["parts"] = [part._asdict() for part in bar["parts"]]
    return found


def _inputs(view: View) -> str:
    """What the answer was asked of."""
    rows = "".join(f"<div><dt>{escape(name)}</dt><dd>{escape(value)}</dd></div>" for name, value in view.inputs())
    return f'<dl class="inputs">{rows}</dl>\n' if rows else ""


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
    head = "".join(
        f'<th scope="col"{kind}>{escape(cell)}</th>' if cell else f"<td{kind}></td>"
        for cell, kind in zip(table.header, kinds, strict=True)
    )
    rows = []
    for first, *others in table.rows:
        cells = "".join(f"<td{kind}>{escape(cell)}</td>" for cell, kind in zip(others, kinds[1:], strict=True))
        rows.append(f'<tr><th scope="row">{escape(first)}</th>{cells}</tr>')
    sorted_by = ' class="sorted"' if len(rows) > 2 and table.numbers else ""
    name = escape(table.title or " and ".join(cell for cell in table.header if cell), quote=True)
    return (
        f'<div class="wide" tabindex="0" role="group" aria-label="{name}"><table{sorted_by}>'
        f"<thead><tr>{head}</tr></thead><tbody>{''.join(rows)}</tbody></table></div>"
    )


def _findings(findings: Iterable[Finding]) -> str:
    items = [
        f'<li class="{escape(f.severity)}"><span class="severity">{escape(f.severity)}</span> '
        f"<code>{escape(f.rule)}</code> {escape(f.message)}{_fix(f.fix)}</li>"
        for f in findings
    ]
    return f'<ul class="findings">{"".join(items)}</ul>' if items else ""


def _fix(text: str) -> str:
    return f"<br>{escape(text)}" if text else ""


def _words(flags: str) -> str:
    """Flags of which each breaks after its end alone, where the line is narrow."""
    return " ".join(f"<span>{escape(word)}</span>" for word in flags.split(" "))


def _choices(choices: Sequence[Choice]) -> str:
    items = []
    for number, (label, flags, effect, full, *_) in enumerate(choices):
        button = (
            f'<button type="button" data-copy="flags-{number}" aria-label="Copy {escape(flags, quote=True)}">'
            "Copy</button>"
        )
        lead = f"{escape(label)} " if label else ""
        items.append(
            f'<div class="flags">{lead}<code id="flags-{number}">{_words(flags)}</code>{button}</div>'
            f"<p>{escape(full or effect)}</p>"
        )
    return "\n".join(items)


def _lines(lines: Sequence[str]) -> str:
    return f'<pre tabindex="0" role="group" aria-label="Log lines">{escape(chr(10).join(lines))}</pre>' if lines else ""


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


def _play(play: Play, drawn: Mapping[str, Picture]) -> str:
    controls = "\n".join(_control(control) for control in play.controls)
    results = "".join(
        f'<tr><th scope="row">{escape(label)}</th><td class="number" id="given-{name}">-</td>'
        f'<td class="number" id="result-{name}">-</td></tr>'
        for name, label in play.results.items()
    )
    charts = "\n".join(
        f"<figure><figcaption>{escape(title)}</figcaption>"
        f'<div id="chart-{name}">{_file(drawn.get(name))}</div></figure>'
        for name, title in play.charts.items()
    )
    star = ""
    if any(control.name == "ratio" for control in play.controls):
        star = '<button type="button" id="play-star">Set the ratio to r*</button> '
    return f"""<noscript><p>Settings need the page's script; everything else stands without it.</p></noscript>
<div class="play"><form id="play-form" hidden aria-label="Settings">
{controls}
<div>{star}<button type="button" id="play-reset">Reset</button></div>
</form>
<div><p id="play-said" class="said" role="status"></p>
<div class="flags"><code id="play-launch"></code><button type="button" data-copy="play-launch"
 aria-label="Copy the launch line">Copy</button></div>
<p class="small">The launch line of these settings; the address of this page holds them as well.</p>
<table class="results"><thead><tr><td></td><th scope="col" class="number">as given</th>
<th scope="col" class="number">with these settings</th></tr></thead><tbody>{results}</tbody></table>
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


def _data(play: Play | None) -> str:
    """What the page's script reads of the settings."""
    if play is None:
        return ""
    controls = [
        {"name": c.name, "label": c.label, "low": c.low, "high": c.high, "whole": c.whole, "choices": bool(c.choices)}
        for c in play.controls
    ]
    data = play.data | {"controls": controls, "results": list(play.results), "charts": dict(play.charts)}
    text = json.dumps(data, separators=(",", ":"))
    return f'<script type="application/json" id="play-data">{_inert(text)}</script>\n'


def _inert(text: str) -> str:
    """JSON that cannot end the element it stands in."""
    return text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")


def _web(name: str) -> str:
    return package_file(f"output/pictures/web/{name}").decode()


def _anchor(title: str) -> str:
    return re.sub(r"[^a-z]+", "-", title.lower()).strip("-")


def _version() -> str:
    from hybridcalc import __version__

    return __version__
