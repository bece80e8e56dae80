"""Why do two releases run differing numbers of requests of one launch? The rules that move them, each alone.

Of launches that differ in their release only, neighbours are compared: the older one is planned again with one rule of
the newer one at a time (`Releases.with_rule`). Where no rule alone moves the requests as they moved, the figures that
start-up settles are compared.
"""

import re
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any, NamedTuple, cast

from hybridcalc.engines.answer import Answer
from hybridcalc.engines.arguments import RECORDED
from hybridcalc.engines.ranking import Ranked
from hybridcalc.engines.view import facts_of
from hybridcalc.errors import HybridcalcError

SETTLED = ("slots a request S", "a request takes", "and each token", "block, tokens", "of states a request")
"""Figures that requests follow from, by their names beside each other, the most telling first."""
LINE = 74
"""Columns of a note's one line."""


class MovingRule(NamedTuple):
    """A rule of the newer release, what it says and what it came to (empty where it holds or does not), and the
    requests of the older one with that rule alone.
    """

    rule: str
    meaning: str
    value: str
    requests: int


class Cause(NamedTuple):
    """Two neighbours of a launch, by name and release, the requests that certainly run of each, the rules that move
    them, the farthest first, and the figures (name, of the older, of the newer) where none does.
    """

    labels: tuple[str, str]
    releases: tuple[str, str]
    requests: tuple[int, int]
    rules: tuple[MovingRule, ...]
    figures: tuple[tuple[str, str, str], ...]

    @property
    def text(self) -> str:
        """The cause in a line; empty where nothing is known."""
        told = [(moved.meaning, moved.value) for moved in self.rules]
        told = told or [(f"{name} {had}, then {has}", "") for name, had, has in self.figures]
        (older, newer), release = self.labels, self.releases[1]
        said = f"{older} -> {release if newer.endswith(release) else newer}"
        said += f", {self.requests[0]:,} -> {self.requests[1]:,}"
        for number, (words, value) in enumerate(told):
            longer = f"{said}{'; ' if number else ': '}{words}"
            if number and len(longer) > LINE:
                break
            valued = f"{longer}: {value}"
            said = valued if value and len(valued) <= LINE else longer
        return said if told else ""

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        return {
            "labels": list(self.labels),
            "engine_versions": list(self.releases),
            "requests_certain": list(self.requests),
            "rules": [moved._asdict() for moved in self.rules],
            "figures": [{"name": name, "older": had, "newer": has} for name, had, has in self.figures],
        }


def causes(sides: Sequence[Ranked]) -> list[Cause]:
    """Of every two neighbours that run differing numbers of requests, the largest difference first."""
    found = [_cause(older, newer) for older, newer in _neighbours(sides) if older.certain != newer.certain]
    return sorted(found, key=lambda cause: -abs(cause.requests[1] - cause.requests[0]))


def _neighbours(sides: Sequence[Ranked]) -> Iterator[tuple[Ranked, Ranked]]:
    """Each launch with the next newer one that differs from it in its release alone."""
    alike = list[tuple[tuple[Any, ...], dict[str, Ranked]]]()
    for side in sides:
        if side.plan is None or side.known is None:
            continue
        launch = (side.engine.name, side.known, side.args.changed(engine_version=None), side.model)
        group = next((releases for first, releases in alike if first == launch), None)
        if group is None:
            alike.append((launch, group := {}))
        group.setdefault(_release(side), side)
    for _, group in alike:
        known = next(iter(group.values())).engine.releases
        yield from pairwise(group[release] for release in sorted(group, key=known.index))


def _release(side: Ranked) -> str:
    return side.engine.release(side.args.engine_version)


def _cause(older: Ranked, newer: Ranked) -> Cause:
    """What moves the requests of one to those of the other."""
    way = 1 if newer.certain > older.certain else -1
    moved = [each for each in _moved(older, newer) if way * each.requests > way * older.certain]
    moved.sort(key=lambda each: -way * each.requests)
    return Cause(
        (older.label, newer.label),
        (_release(older), _release(newer)),
        (older.certain, newer.certain),
        tuple(moved),
        () if moved else tuple(_figures(older, newer)),
    )


def _moved(older: Ranked, newer: Ranked) -> Iterator[MovingRule]:
    """The older launch with each rule of the newer one's release that differs; without those it does not start with."""
    module, plan = older.engine.part("releases"), cast(Answer, older.plan)
    had, has = (module.rules_for(side.args.engine_version)[0] for side in (older, newer))
    for rule, said, value in changes(had, has):
        args = older.args.changed(engine_version=module.RELEASES.with_rule(had.version, rule, has.version))
        try:
            rest = plan.rest if plan.rest.again is None else plan.rest.again(args)
            tried = older._replace(args=args, answer=older.engine.plan(older.model, args, rest, plan.workload))
        except HybridcalcError:
            continue
        said = f"{'no longer: ' if getattr(has, rule) is False else ''}{said or rule.replace('_', ' ')}"
        yield MovingRule(rule, said, value, tried.certain)


def _figures(older: Ranked, newer: Ranked) -> Iterator[tuple[str, str, str]]:
    """The settled figures that differ."""
    had, has = (_settled(side) for side in (older, newer))
    yield from ((name, had[name], has[name]) for name in had if name in has and had[name] != has[name])


def _settled(side: Ranked) -> dict[str, str]:
    plan: Any = side.plan
    cells = facts_of(side.engine).cells(plan)
    found = {name: cells[name] for name in SETTLED if name in cells}
    if plan.rest.fraction is not None:
        found["default fraction"] = f"{plan.rest.fraction:g}"
    return found | {"memory for the caches": f"{plan.rest.likely_gib:.2f} GiB"}


EXPLAINED = re.compile(r"(?P<names>``\w+``(?:,\s+``\w+``)*):\s+(?P<text>[^;`]+?)(?=;|\.\s|\.$|\s*``)", re.DOTALL)
"""A rule, or several, in the docstring of a RuleSet, and what it says."""


def meanings(rules: Any) -> dict[str, str]:
    """Rule -> what the docstring of its RuleSet says of it; nothing where docstrings are left out."""
    said: dict[str, str] = {}
    for match in EXPLAINED.finditer(type(rules).__doc__ or ""):
        text = " ".join(match["text"].split())
        said |= dict.fromkeys(re.findall(r"\w+", match["names"]), text)
    return said


def changes(old: Any, new: Any) -> Iterator[tuple[str, str, str]]:
    """The rules of a release that differ from those of one before: rule, what its RuleSet says of it (empty where that
    is nothing), and what it came to: names that came and went, or a value; nothing of one that holds or does not.
    """
    said = meanings(new)
    for rule, held in new._asdict().items():
        had = getattr(old, rule)
        if rule in ("version", RECORDED) or held == had:
            continue
        if isinstance(held, frozenset | tuple):
            names = [f"+ {name}" for name in sorted(set(held) - set(had))]
            value = ", ".join([*names, *(f"- {name}" for name in sorted(set(had) - set(held)))])
        else:
            value = "" if isinstance(held, bool) else str(held)
        yield rule, said.get(rule, ""), value
