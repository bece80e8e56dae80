"""A saved answer of ``plan --json``, read back for ``verify --plan``: its server, and every figure it states.

What stands in the file is data from outside: model, arguments and figures are checked here or by those that own the
rules, and each complaint names its place in the document.
"""

from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any

from hybridcalc.cli import options
from hybridcalc.crosscheck.subject import Subject, room_of
from hybridcalc.engines.engine import ENGINES, Engine
from hybridcalc.errors import InputError, quoted
from hybridcalc.saved_plan import ANEW, read_saved_plan, shown
from hybridcalc.units import LARGEST_TOKENS


def subject_of_plan(path: str) -> Subject:
    """The server of a plan, at the sizes it states, with the figures to hold. Raises InputError and Refusal."""
    where, document = shown(path, "--plan"), read_saved_plan(path, "--plan")
    if document.get("starts") is not True:
        raise InputError(f"{where} is a plan that does not start: there is nothing to allocate")
    name, arguments = document.get("model"), document.get("arguments")
    if not isinstance(arguments, dict) or not isinstance(name, str):
        raise InputError(f"{where} states no arguments", fix="write it anew with this version's plan --json")
    model = options.model(name)
    named = document.get("engine")
    if not isinstance(named, str) or named not in ENGINES:
        raise InputError(f"{where}: engine {quoted(named)} is not {' or '.join(ENGINES)}", fix=ANEW)
    engine, room = ENGINES[named], room_of(named)
    args = _arguments(where, arguments, engine)
    counts = tuple(_count(where, document, key) for key in room.COUNTS)
    figures = room.stated(document, engine.prepare(model, args), where)
    return room.subject(model, args, None, counts=counts, plan=figures)


def _count(where: str, document: Mapping[str, Any], key: str) -> int:
    """A count of a plan: K, T or R, or blocks."""
    count = document.get(key)
    if not isinstance(count, int) or isinstance(count, bool) or not 0 < count <= LARGEST_TOKENS:
        raise InputError(f"{where}: {key} {quoted(count)} is no count", fix=ANEW)
    return count


def _arguments(where: str, arguments: Mapping[str, Any], engine: Engine) -> Any:
    """The engine's arguments of a plan, held to what its command line takes."""
    blank = engine.read([], {})[1]
    unknown = sorted(set(arguments) - {field.name for field in fields(blank)})
    if unknown:
        raise InputError(f"{where}: arguments.{unknown[0][:40]} is no argument of {engine.title} known here")
    args = replace(blank, **arguments)
    try:
        engine.check_arguments(args)
    except InputError as error:
        raise InputError(f"{where}: arguments.{error.message}", fix=error.fix) from None
    engine.check_together(args)
    return args
