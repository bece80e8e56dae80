"""How does an answer look in a notebook? As HTML: the verdict, its figures, findings, and what to set; and rows."""

from collections.abc import Iterable, Mapping
from typing import Any

from hybridcalc.findings import View


def html_of(view: View) -> str:
    """The short answer as a notebook shows it: verdict, figures, findings, what to set."""
    from html import escape

    rows = "".join(
        f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in figure.brief)}</tr>" for figure in view.figures
    )
    told = [(found.severity, f"{found.rule} {found.message}") for found in view.findings]
    told += [(choice.label, f"{choice.flags}: {choice.effect}") for choice in view.choices]
    items = "".join(f"<li><b>{escape(name)}</b> {escape(text)}</li>" for name, text in told)
    said = f"<p><b>{escape(view.headline)}</b> {escape(view.meaning)}<br>{escape(view.subject)}</p>"
    return f"{said}<table>{rows}</table><ul>{items}</ul>"


def html_of_records(said: str, records: Iterable[Mapping[str, Any]]) -> str:
    """Rows as a notebook shows them, under what they come to."""
    from html import escape

    rows = list(records)
    head = "".join(f"<th>{escape(name)}</th>" for name in (rows[0] if rows else ()))
    body = "".join(f"<tr>{''.join(f'<td>{escape(str(cell))}</td>' for cell in row.values())}</tr>" for row in rows)
    return f"<p>{escape(said)}</p><table><tr>{head}</tr>{body}</table>"
