"""Which builds of llama.cpp are known? Their rules for the caches are the same: those read and recorded are alike."""

from typing import NamedTuple

from hybridcalc.engines.arguments import RECORDED, Change, Releases


class RuleSet(NamedTuple):
    """What a build does its own way: so far nothing that changes a figure."""

    version: str
    recorded: bool = False


CHANGES = (
    Change("b11434", RECORDED, True, "src/llama-kv-cache.cpp, llama-memory-recurrent.cpp; its own figures"),
    Change("b11549", RECORDED, True, "its own figures, by the wheel xllamacpp"),
)
RELEASES = Releases("llama.cpp", RuleSet("b11434"), CHANGES)


def rules_for(version: str | None) -> tuple[RuleSet, str]:
    """The rules of a build of llama.cpp, and a note; a release of Ollama (0.32.15) has those of the newest build.

    Raises InputError for what is no version, or older than every one known.
    """
    if version is None or version[:1] == "b" or "." not in version:
        return RELEASES.rules_for(version)
    from hybridcalc.engines.llamacpp.ollama import RELEASES as OLLAMA

    return RELEASES.rules_for(None)[0], OLLAMA.rules_for(version)[1] if version not in OLLAMA.versions else ""


NEWEST_VERSION = RELEASES.newest
