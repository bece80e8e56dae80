"""Toy's releases."""

from typing import NamedTuple

from hybridcalc.engines.arguments import RECORDED, Change, Releases


class RuleSet(NamedTuple):
    """What a release does its own way: whether requests are limited."""

    version: str
    recorded: bool = False
    limited: bool = False


RELEASES = Releases("Toy", RuleSet("1.0"), (Change("1.0", RECORDED, True, "seen"), Change("2.0", "limited", True, "")))
rules_for = RELEASES.rules_for
