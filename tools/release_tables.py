"""What changed in each release of an engine, and how many of its recorded start-ups come out exactly.

The rows follow from the engine's releases.py. The counts are those of `counts()` in the module <engine>_releases of
tests/conformance/, where there is one: release -> (exact, recorded).
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests" / "conformance"))

from hybridcalc.engines import ENGINES
from hybridcalc.engines.arguments import Releases
from hybridcalc.engines.causes import changes

HEAD = ("| release | what changed | start-ups recorded | exact |", "|---|---|---|---|")


def release_table(engine: str, counted: Mapping[str, tuple[Any, Any]] | None = None) -> Iterator[str]:
    """The table of an engine's releases, the newest first; ``counted`` None counts its recorded start-ups."""
    module = ENGINES[engine].part("releases")
    releases: Releases[Any] = module.RELEASES
    counted = _counts(engine) if counted is None else counted
    before = (None, *releases.rule_sets)
    yield from HEAD
    for old, rules in reversed(list(zip(before, releases.rule_sets, strict=False))):
        changed = "; ".join(_changes(old, rules)) if old is not None else "the oldest that is known"
        exact, cases = counted.get(rules.version, ("", "" if rules.recorded else "none: read in its source"))
        yield f"| {rules.version} | {changed or 'nothing that bears on memory'} | {cases} | {exact} |"


def _counts(engine: str) -> Mapping[str, tuple[Any, Any]]:
    name = f"{engine}_releases"
    if find_spec(name) is None:
        return {}
    counts: Mapping[str, tuple[Any, Any]] = import_module(name).counts()
    return counts


def _changes(old: Any, new: Any) -> Iterator[str]:
    """What a release does otherwise than the one before, in the words of its RuleSet."""
    for rule, said, value in changes(old, new):
        words = f"{said} (`{rule}`)" if said else f"`{rule}`"
        if rule == "missing_classes":
            yield from (f"runs {name}" for name in sorted(set(old.missing_classes) - set(new.missing_classes)))
            yield from (f"does not run {name}" for name in sorted(set(new.missing_classes) - set(old.missing_classes)))
        elif value:
            yield f"{words}: {value}"
        else:
            yield words if getattr(new, rule) else f"no longer: {words}"
