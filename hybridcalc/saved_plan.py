"""A saved answer of ``plan --json``, read back.

What stands in the file is data from outside: size, text and schema are checked here, its figures where they are used.
"""

import json
import sys
from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from hybridcalc.errors import InputError, printable, quoted
from hybridcalc.units import MIB

LARGEST_PLAN_BYTES = 16 * MIB
PLAN_SCHEMA = "hybridcalc.plan/2"
ANEW = "write it anew with plan --json"
SAVE = "hybridcalc plan ... --json > plan.json"


def shown(path: str, flag: str) -> str:
    """How messages call the plan: by its file, or by the flag where it is stdin."""
    return f"{flag} -" if path == "-" else printable(path[:60]) if path.strip() else repr(path[:60])


def read_saved_plan(path: str, flag: str) -> Mapping[str, Any]:
    """The document in a file, or on standard input for ``-``; the engine's own figures stand beside the common ones.

    Raises InputError for what is no plan, and for many of them.
    """
    where = shown(path, flag)
    try:
        with nullcontext(sys.stdin.buffer) if path == "-" else Path(path).open("rb") as stream:
            data = stream.read(LARGEST_PLAN_BYTES + 1)
    except (OSError, ValueError) as error:
        reason = (getattr(error, "strerror", None) or "not a file name").lower()
        raise InputError(f"{flag} {where} cannot be read: {reason}") from None
    if len(data) > LARGEST_PLAN_BYTES:
        raise InputError(f"{where} has more than {LARGEST_PLAN_BYTES // MIB} MiB: no plan is as long", fix=ANEW)
    if not data.strip():
        failed = "the plan before the pipe failed, or wrote no --json"
        raise InputError(f"{where} is empty", fix=failed if path == "-" else SAVE)
    try:
        document = json.loads(data, parse_constant=lambda text: _no_figure(where, text))
    except UnicodeDecodeError:
        raise InputError(f"{where} is no text", fix=SAVE) from None
    except json.JSONDecodeError as error:
        raise InputError(f"{where}:{error.lineno}:{error.colno} is not JSON from there on", fix=ANEW) from None
    except (ValueError, RecursionError):
        raise InputError(f"{where} nests too deep, or has a number too long, for a plan", fix=ANEW) from None
    schema = document.get("schema") if isinstance(document, dict) else None
    if schema != PLAN_SCHEMA:
        if isinstance(schema, str) and schema.startswith(PLAN_SCHEMA.partition("/")[0] + "/"):
            raise InputError(f"{where} has schema {quoted(schema)}; {PLAN_SCHEMA} is read here", fix=ANEW)
        raise InputError(f"{where} is no answer of plan --json", fix=SAVE)
    for several in ("compare", "sweep"):
        if several in document:
            raise InputError(f"{where} answers plan --{several}: that is many plans", fix="give the answer of one")
    own = document.get("engine_figures")
    if not isinstance(own, dict):
        raise InputError(f"{where}: engine_figures is absent", fix=ANEW)
    twice = next((name for name, value in own.items() if document.get(name, value) != value), None)
    if twice is not None:
        raise InputError(f"{where}: {printable(twice[:40])} has two values, one in engine_figures", fix=ANEW)
    return {**document, **own}


def _no_figure(where: str, text: str) -> float:
    raise InputError(f"{where}: {text} is no figure", fix=ANEW)
