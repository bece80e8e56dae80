"""Whose logs are read, and what is looked for in them?

Each engine that is read has one grammar (its `GRAMMAR`), in the module that its row of ENGINES names for this room; the
programs whose logs are read although nothing here plans them are in UNPLANNED. What belongs to no engine is here.
"""

from __future__ import annotations

import re
from functools import lru_cache
from importlib import import_module
from types import ModuleType
from typing import NamedTuple

from hybridcalc.bootlog.forms import Find, Form, FormReader, Grammar, Needle
from hybridcalc.engines.engine import ENGINES, Row

UNPLANNED = {
    "llama.cpp": Row(
        "llama.cpp", "", rooms={"bootlog": "hybridcalc.bootlog.llamacpp", "diagnosis": "hybridcalc.diagnosis.llamacpp"}
    )
}
"""Programs whose logs are read although they are no engine here."""

_OOM = (("tried", "Tried to allocate {size}"),)
COMMON = Grammar(
    "",
    "",
    (
        Form("oom", "CUDA out of memory.", _OOM, 200, bare=True, repeats=True, error="cuda_oom"),
        Form("oom", "HIP out of memory.", _OOM, 200, bare=True),
        Form("oom", "NPU out of memory.", _OOM, 200, bare=True),
        Form("oom", "XPU out of memory.", _OOM, 200, bare=True),
    ),
    needles=(Needle(b"size", b"z"), Needle(b"GB", b"B"), Needle(b"iB", b"B"), Needle(b"memory", b"E")),
    fragments=rb"GB|GiB|MiB|MB|Loaded w",
)
"""Lines that any engine may print. Sizes with their units, "size" and "memory": every line that sizes memory holds one
of them, or stands right beside one that does; "memory" without a unit is a refusal, and stands behind the name of an
exception. A line that holds none of them has a literal of its own. Logs of a few pages are read as a whole.
"""


class Sought(NamedTuple):
    """All that is looked for in a log, by any grammar. ``serving`` and ``settled`` are kinds of lines, by engine."""

    needles: tuple[Needle, ...]
    find: tuple[Find, ...]
    samples: tuple[bytes, ...]
    fragments: re.Pattern[bytes]
    serving: frozenset[tuple[str, str]]
    settled: frozenset[tuple[str, str]]


def rows() -> dict[str, Row]:
    """Every engine and program that may have a grammar or a diagnosis."""
    return {**ENGINES.rows, **UNPLANNED}


def room(engine: str, name: str) -> ModuleType | None:
    """The module that an engine has in the room ``name``; None where it has none there, or is not known."""
    row = rows().get(engine)
    return import_module(row.rooms[name]) if row is not None and name in row.rooms else None


def grammar(engine: str) -> Grammar:
    """The grammar of an engine's log; that of no engine in particular for "" and for one that has none."""
    module = room(engine, "bootlog")
    found: Grammar = COMMON if module is None else module.GRAMMAR
    return found


def sought() -> Sought:
    """What the grammars of all engines look for."""
    return _sought((*(grammar(name) for name, row in rows().items() if "bootlog" in row.rooms), COMMON))


@lru_cache(maxsize=4)
def _sought(grammars: tuple[Grammar, ...]) -> Sought:
    kinds = [(one.name, kind, form) for one in grammars for kind, form in one.kinds.items()]
    return Sought(
        tuple(dict.fromkeys(needle for one in reversed(grammars) for needle in one.needles)),
        (*(one.find for one in grammars if one.find is not None), FormReader(grammars).find),
        tuple(literal for one in grammars for literal in one.samples),
        re.compile(b"|".join(one.fragments for one in grammars if one.fragments)),
        frozenset((engine, kind) for engine, kind, form in kinds if form.serving),
        frozenset((engine, kind) for engine, kind, form in kinds if form.settled),
    )
