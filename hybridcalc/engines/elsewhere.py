"""Which other engine has a class for a model that this one does not have?"""

from hybridcalc.architecture import Architecture
from hybridcalc.engines import ENGINES


def elsewhere(name: str, model: Architecture) -> str:
    """What to write instead of the engine ``name``: each engine whose releases are known to have the model's class
    (``release_with``), with the release where that is an older one; or that there is none.
    """
    said = []
    for other in ENGINES.rows:
        engine = ENGINES[other]
        release = engine.release_with(model) if other != name else ""
        if release:
            older = "" if release == engine.newest else f" --engine-version {release}"
            said.append(f"{engine.title} {release} has it: --engine {other}{older}")
    return "; or ".join(said) or "no other engine known here has it"
