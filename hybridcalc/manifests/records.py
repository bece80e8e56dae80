"""What a file says about one deployment: engine, words, environment, hardware, and what is asked of it."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from hybridcalc.manifests.source import AnyWord, Place, Setting, Source, Word


class Hardware(NamedTuple):
    """GPUs of a deployment: the ``label`` that names their kind, how many a node has, and how many nodes."""

    label: str | None = None
    gpus: int | None = None
    gpus_place: Place | None = None
    nodes: int = 1


class Deployment(NamedTuple):
    """One engine that a file starts. ``model`` is what the file says it serves where no flag does; ``native`` is what a
    hybridcalc.yaml adds (memory, workload, expectations), ``marks`` where it says so; ``image`` is the container's,
    ``orphan`` a line of flags behind the launch that belongs to no command, ``heads`` the lines where the document and
    the mappings around the launch begin.
    """

    source: Source
    kind: str
    name: str
    engine: str
    words: tuple[AnyWord, ...]
    env: Mapping[str, Setting]
    place: Place
    hardware: Hardware = Hardware()
    model: Word | None = None
    native: Any = None
    replicas: int | None = None
    marks: Mapping[str, Place] = {}
    image: str = ""
    orphan: Word | None = None
    heads: tuple[int, ...] = ()

    @property
    def path(self) -> str:
        """The file it stands in."""
        return self.source.path


class Trouble(NamedTuple):
    """Something about a file that is no deployment: why it could not be read, or that a template is to be rendered."""

    path: str
    line: int
    message: str
    fix: str = ""
    unreadable: bool = True
