"""One JSON document on stdout, or the rows of a sweep as CSV, and nothing else."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

SCHEMA_VERSION = 2


def print_json(command: str, answer: Mapping[str, Any]) -> None:
    """Print ``answer`` with its schema first."""
    sys.stdout.write(json_text(command, answer))


def json_text(command: str, answer: Mapping[str, Any]) -> str:
    """``answer`` as a document with its schema first. Floats stay finite; bytes stay integers."""
    document = {"schema": f"hybridcalc.{command}/{SCHEMA_VERSION}", **answer}
    return json.dumps(document, indent=2, allow_nan=False) + "\n"


def json_pieces(command: str, answer: Mapping[str, Any]) -> Iterator[str]:
    """`json_text` in pieces; a value that is an iterator becomes a list, and no more than an item of it is held."""
    document = {"schema": f"hybridcalc.{command}/{SCHEMA_VERSION}", **answer}
    before = "{\n  "
    for key, value in document.items():
        yield f"{before}{json.dumps(key)}: "
        before = ",\n  "
        if not isinstance(value, Iterator):
            yield _indented(value, 2)
            continue
        opening = "["
        for item in value:
            yield f"{opening}\n    {_indented(item, 4)}"
            opening = ","
        yield "[]" if opening == "[" else "\n  ]"
    yield "\n}\n"


def _indented(value: Any, depth: int) -> str:
    return json.dumps(value, indent=2, allow_nan=False).replace("\n", "\n" + " " * depth)


def print_csv(rows: Iterable[Mapping[str, Any]]) -> None:
    """The points of a sweep as CSV, one a line as it comes, under their names; there is at least one."""
    import csv

    points = iter(rows)
    first = next(points)
    writer = csv.DictWriter(sys.stdout, fieldnames=list(first), lineterminator="\n")
    writer.writeheader()
    writer.writerow(first)
    writer.writerows(points)
