"""Is a deployment's program the engine itself? Forks and others' builds of it have flags of their own."""

import re

from hybridcalc.engines import ENGINES
from hybridcalc.engines.engine import Engine
from hybridcalc.errors import AmbiguousFlag, HybridcalcError
from hybridcalc.findings import Finding
from hybridcalc.manifests import Deployment


def refused(error: HybridcalcError, engine: Engine, image: str) -> Finding:
    """What an engine's flags refuse; a fork of it may have others, and what an ambiguous one means is not known."""
    severity = "warning" if isinstance(error, AmbiguousFlag) or is_fork(engine, image) else "error"
    return Finding.of(error, rule="HC071", severity=severity)


def fork_of(deployment: Deployment, engine: Engine) -> str:
    """The program made of an engine that an image holds, by its name; empty for the engine's own and for others'."""
    forks = ENGINES.rows[engine.name].starter.forks
    return next((name for pattern, name in forks if re.search(pattern, deployment.image.lower())), "")


def is_fork(engine: Engine, image: str) -> bool:
    """Whether an image is another's build of an engine that is built with other flags too."""
    forked = ENGINES.rows[engine.name].starter.forked
    return forked and bool(image) and ENGINES.launchers.own_tag(image) is None
