"""Which builds of llama.cpp are known? Their rules for the caches are the same: those read and recorded are alike."""

from typing import NamedTuple

from hybridcalc.engines.releases import RECORDED, Change, Releases


class RuleSet(NamedTuple):
    """What a build does its own way: so far nothing that changes a figure."""

    version: str
    recorded: bool = False


CHANGES = (
    Change("b11434", RECORDED, True, "src/llama-kv-cache.cpp, llama-memory-recurrent.cpp; its own figures"),
    Change("b11549", RECORDED, True, "its own figures, by the wheel xllamacpp"),
)
RELEASES = Releases("llama.cpp", RuleSet("b11434"), CHANGES)
rules_for = RELEASES.rules_for
NEWEST_VERSION = RELEASES.newest
