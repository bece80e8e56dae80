"""Whose logs are read, what is looked for in them, and which records belong to one boot?

    assemble(records) -> boots, in the order of the log     several engines, several starts and all ranks kept apart

Each engine that is read has one grammar (its `GRAMMAR`), in the module that its row of ENGINES names for this room.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from functools import lru_cache
from importlib import import_module
from types import ModuleType
from typing import NamedTuple

from hybridcalc.bootlog import Record
from hybridcalc.bootlog.boots import COMMON, Boot, Find, Grammar, Needle
from hybridcalc.bootlog.forms import FormReader
from hybridcalc.bootlog.paste import TableReader
from hybridcalc.bootlog.prose import MODEL, RELEASE
from hybridcalc.engines import ENGINES

MOST_BOOTS, MOST_NAMES = 1000, 1000
NAMES = (RELEASE, MODEL)


class Sought(NamedTuple):
    """All that is looked for in a log, by any grammar. ``serving`` and ``settled`` are kinds of lines, by engine."""

    needles: tuple[Needle, ...]
    find: tuple[Find, ...]
    samples: tuple[bytes, ...]
    fragments: re.Pattern[bytes]
    serving: frozenset[tuple[str, str]]
    settled: frozenset[tuple[str, str]]


def room(engine: str, name: str) -> ModuleType | None:
    """The module that an engine has in the room ``name``; None where it has none there, or is not known."""
    row = ENGINES.rows.get(engine)
    return import_module(row.rooms[name]) if row is not None and name in row.rooms else None


def grammar(engine: str) -> Grammar:
    """The grammar of an engine's log; that of no engine in particular for "" and for one that has none."""
    module = room(engine, "bootlog")
    found: Grammar = COMMON if module is None else module.GRAMMAR
    return found


def sought() -> Sought:
    """What the grammars of all engines look for."""
    return _sought((*(grammar(name) for name, row in ENGINES.rows.items() if "bootlog" in row.rooms), COMMON))


@lru_cache(maxsize=4)
def _sought(grammars: tuple[Grammar, ...]) -> Sought:
    kinds = [(one.name, kind, form) for one in grammars for kind, form in one.kinds.items()]
    tables = TableReader([(one.name, one.rows) for one in grammars])
    reader = FormReader([(one.name, one.forms, one.elsewhere) for one in grammars])
    return Sought(
        tuple(dict.fromkeys(needle for one in reversed(grammars) for needle in one.needles)),
        (*(one.find for one in grammars if one.find is not None), reader.find, tables.find),
        tuple(literal for one in grammars for literal in one.samples),
        re.compile(b"|".join(one.fragments for one in grammars if one.fragments)),
        frozenset((engine, kind) for engine, kind, form in kinds if form.serving),
        frozenset((engine, kind) for engine, kind, form in kinds if form.settled),
    )


class Assembly(NamedTuple):
    """The boots of a log, how many there were beyond those that are kept, and what the text around them ``names``."""

    boots: list[Boot]
    dropped: int
    names: list[Record]


def assemble(records: Iterable[Record]) -> Assembly:
    """Boots in the order of their first lines; services that write into one log are kept apart. Records of no engine
    (an OOM) go to the boot of their service that spoke last.
    """
    boots: list[Boot] = []
    current: dict[tuple[str, str], Boot] = {}
    latest, source, dropped, waiting = dict[str, str](), "", 0, list[Record]()
    names: dict[tuple[object, ...], Record] = {}
    for record in records:
        if record.kind in NAMES:
            if len(names) < MOST_NAMES:
                names.setdefault((record.kind, record.figures), record)
            continue
        source = record.source or source
        engine = record.engine or latest.get(source, "")
        if not engine:
            waiting.append(record)
            continue
        boot = current.get((source, engine))
        if boot is None or boot.begins_anew(record):
            if boot is not None and boot.empty:
                boots.remove(boot)
            boot = current[source, engine] = Boot(grammar(engine))
            if len(boots) >= MOST_BOOTS:
                dropped += 1
                del boots[MOST_BOOTS // 2]
            boots.append(boot)
        elif boot.grammar.rehearsed is not None and (kinds := boot.grammar.rehearsed(boot, record)):
            number = boots.index(boot)
            boot = boots[number] = current[source, engine] = boot.changed(_without(kinds))
        latest[source] = engine
        boot.add(record)
    if waiting and not boots:
        told = {record.word("release_of") for record in names.values() if record.kind == RELEASE}
        boots.append(Boot(grammar(told.pop() or "") if len(told) == 1 else COMMON))  # an environment's dump says whose
    for record in waiting:
        boots[0].add(record)
    return Assembly([boot for boot in boots if not boot.empty], dropped, list(names.values()))


def _without(kinds: tuple[str, ...]) -> Callable[[Record], Record | None]:
    return lambda record: None if record.kind in kinds else record
